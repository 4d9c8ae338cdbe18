// The checkpoints of a run, one after the other: watch attention emerge.
import {element, label, number, visible, word} from "./dom.js";
import {paint, strength} from "./colour.js";
import {chosenOf, headNumber, likeLayer} from "./across.js";
import {smallMap} from "./small.js";
import {linePlot} from "./plot.js";
import {chooser, player, turns, within} from "./tokens.js";

const timeMeasures = [["entropy", "entropy, bits"], ["alignment", "alignment"], ["distance", "distance, tokens"]];

export function mountTime(root, app) {
  const {state, page} = app;
  const turn = turns();
  const go = (look) => state.set({look});
  const control = player("Checkpoint", go, 650);
  const title = element("h3");
  const map = smallMap("checkpoint", app);
  const measure = chooser("over time:", (at) => state.set({measure: offered[at][0]}), {id: "measure"});
  const plot = element("div", {id: "over-time"});
  const film = element("div", {class: "film", role: "group", "aria-label": "All checkpoints"});
  root.append(control.root, element("div", {class: "pair"}, element("figure", {}, title, map.canvas),
    element("section", {}, element("div", {class: "tools"}, measure.root), plot)), film);
  root.addEventListener("keydown", control.keydown);
  let [offered, filmed, wanted] = [timeMeasures, "", null];

  // The layer that is followed: the selected one, found again in every look.
  function followed() {
    const layer = app.layer();
    wanted = layer ?? wanted;
    return page.looks.map((look) => likeLayer(look, wanted));
  }

  async function drawFilm(layers, key) {
    if (filmed === key) return;
    filmed = key;
    const frames = await Promise.all(page.looks.map(async (look, at) => {
      const layer = layers[at];
      if (!layer) return null;
      const made = await chosenOf(app, look, layer, within(state.get("head"), layer.heads));
      const canvas = element("canvas", {"aria-hidden": "true"});
      paint(canvas, made.data, made.rows, made.columns, (value) => strength(value));
      canvas.style.aspectRatio = `${made.columns} / ${made.rows}`;
      return element("button", {type: "button", class: "frame", "data-look": at, "aria-label": visible(look.label), onclick: () => go(at)}, canvas,
        element("span", {}, label(look.label, 16)));
    }));
    if (filmed === key) film.replaceChildren(...frames.filter(Boolean));
  }

  async function update(names) {
    const mine = turn();
    const at = state.get("look");
    const look = app.look();
    const layers = followed();
    const layer = layers[at];
    control.show(page.looks.length, at, visible(look.label));
    if (!layer) return title.replaceChildren("This checkpoint has no attention.");
    const head = within(state.get("head"), layer.heads);
    const made = await chosenOf(app, look, layer, head);
    if (!mine()) return;
    title.replaceChildren(word(look.label), element("small", {}, `  ${visible(layer.name)}, ${made.summary === "head" ? `head ${head}` : made.summary}`));
    map.show({...made, largest: 34, room: Math.max(240, Math.min(620, root.clientWidth > 900 ? root.clientWidth / 2 - 30 : root.clientWidth - 10))});
    offered = timeMeasures.filter(([name]) => layers.some((one) => one?.[name]));
    const place = Math.max(0, offered.findIndex(([name]) => name === state.get("measure")));
    measure.show(offered.map(([, text]) => text), place);
    const [name, up] = offered[place];
    const values = layers.map((one) => (one ? headNumber(one, name, within(head, one.heads), made.summary) : null) ?? NaN);
    plot.replaceChildren(linePlot({
      title: `${up} at each checkpoint`, x: page.looks.map((_, number) => number), lines: [{name, values}], across: "checkpoint", up,
      named: (number) => visible(page.looks[number]?.label ?? ""), mark: at, pick: go,
    }));
    await drawFilm(layers, `${layer.name} ${head} ${made.summary} ${state.get("words")}${names.includes("theme") ? Math.random() : ""}`);
    for (const frame of film.children) frame.setAttribute("aria-current", Number(frame.dataset.look) === at ? "true" : "false");
    app.say(`${visible(look.label)}: ${up} ${number(values[at])}`);
  }

  const npz = async () => {
    const layers = followed();
    const arrays = {labels: page.looks.map((look) => look.label)};
    for (const [at, look] of page.looks.entries()) {
      const made = layers[at] && (await chosenOf(app, look, layers[at], within(state.get("head"), layers[at].heads)));
      if (made) arrays[`weights_${at}`] = {shape: [made.rows, made.columns], data: made.data.slice()};
    }
    for (const [name] of offered) {
      arrays[name] = {shape: [layers.length], data: Float64Array.from(layers,
        (one) => (one ? headNumber(one, name, within(state.get("head"), one.heads), "head") : null) ?? NaN)};
    }
    return arrays;
  };
  return {update, save: {png: () => map.picture(), svg: () => plot.querySelector("svg"), npz}, unmount: control.stop};
}
