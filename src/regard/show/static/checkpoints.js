// The checkpoints of a run, one after the other: attention emerges during training.
import {element, label, number, visible, word} from "./dom.js";
import {paint, strength} from "./colour.js";
import {selectedMatrix, headStatistic, matchingLayer} from "./traces.js";
import {smallMap} from "./small_map.js";
import {linePlot} from "./plot.js";
import {chooser, latestCall, within} from "./tokens.js";
import {headOf} from "./labels.js";
import {summaries} from "./merge.js";

const checkpointStatistics = [["entropy", "bits of entropy: low = focused"], ["confidence", "confidence"], ["distance", "distance, tokens"]];

export function mountCheckpoints(root, app) {
  const {state, page} = app;
  const startCall = latestCall();
  const go = (trace) => state.set({trace});
  const title = element("h3");
  const map = smallMap("checkpoint", app);
  const statistic = chooser("over training:", (at) => state.set({statistic: offered[at][0]}), {id: "statistic"});
  const plot = element("div", {id: "over-training"});
  const film = element("div", {class: "film", role: "group", "aria-label": "All checkpoints"});
  root.append(element("div", {class: "pair"}, element("figure", {}, title, map.canvas),
    element("section", {}, element("div", {class: "tools"}, statistic.root), plot)), film);
  root.addEventListener("keydown", app.film.keydown);
  let [offered, filmed, wanted] = [checkpointStatistics, "", null];

  // The selected layer in every checkpoint.
  function followed() {
    const layer = app.layer();
    wanted = layer ?? wanted;
    return page.traces.map((trace) => matchingLayer(trace, wanted));
  }

  async function drawFilm(layers, key) {
    if (filmed === key) return;
    filmed = key;
    const frames = await Promise.all(page.traces.map(async (trace, at) => {
      const layer = layers[at];
      if (!layer) return null;
      const made = await selectedMatrix(app, trace, layer, within(state.get("head"), layer.heads));
      const canvas = element("canvas", {"aria-hidden": "true"});
      paint(canvas, made.data, made.rows, made.columns, (value) => strength(value));
      canvas.style.aspectRatio = `${made.columns} / ${made.rows}`;
      return element("button", {type: "button", class: "frame", "data-trace": at, "aria-label": visible(trace.label), onclick: () => go(at)}, canvas,
        element("span", {}, label(trace.label, 16)));
    }));
    if (filmed === key) film.replaceChildren(...frames.filter(Boolean));
  }

  async function update(names) {
    const isLatest = startCall();
    const at = state.get("trace");
    const trace = app.trace();
    const layers = followed();
    const layer = layers[at];
    if (!layer) return title.replaceChildren("This checkpoint has no attention.");
    const head = within(state.get("head"), layer.heads);
    const made = await selectedMatrix(app, trace, layer, head);
    if (!isLatest()) return;
    title.replaceChildren(word(trace.label), element("small", {}, `  ${visible(made.summary === "head" ? headOf(layer, head) : `${layer.title}, ${summaries[made.summary]}`)}`));
    map.show({...made, maxCell: 34, room: Math.max(240, Math.min(620, root.clientWidth > 900 ? root.clientWidth / 2 - 30 : root.clientWidth - 10))});
    offered = checkpointStatistics.filter(([name]) => layers.some((one) => one?.[name]));
    const index = Math.max(0, offered.findIndex(([name]) => name === state.get("statistic")));
    statistic.show(offered.map(([, text]) => text), index);
    const [name, up] = offered[index];
    const values = layers.map((one) => (one ? headStatistic(one, name, within(head, one.heads), made.summary) : null) ?? NaN);
    plot.replaceChildren(linePlot({
      title: `${up} at each checkpoint`, x: page.traces.map((_, number) => number), lines: [{name, values}], across: "checkpoint", up,
      named: (number) => visible(page.traces[number]?.label ?? ""), mark: at, pick: go,
    }));
    await drawFilm(layers, `${layer.name} ${head} ${made.summary} ${state.get("words")}${names.includes("theme") ? Math.random() : ""}`);
    for (const frame of film.children) frame.setAttribute("aria-current", Number(frame.dataset.trace) === at ? "true" : "false");
    app.announce(`${visible(trace.label)}: ${up} ${number(values[at])}`);
  }

  const npz = async () => {
    const layers = followed();
    const arrays = {labels: page.traces.map((trace) => trace.label)};
    for (const [at, trace] of page.traces.entries()) {
      const made = layers[at] && (await selectedMatrix(app, trace, layers[at], within(state.get("head"), layers[at].heads)));
      if (made) arrays[`weights_${at}`] = {shape: [made.rows, made.columns], data: made.data.slice()};
    }
    for (const [name] of offered) {
      arrays[name] = {shape: [layers.length], data: Float64Array.from(layers,
        (one) => (one ? headStatistic(one, name, within(state.get("head"), one.heads), "head") : null) ?? NaN)};
    }
    return arrays;
  };
  return {update, save: {png: () => map.picture(), svg: () => plot.querySelector("svg"), npz}};
}
