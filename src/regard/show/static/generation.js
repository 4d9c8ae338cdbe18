// Generation step by step: the candidates, the attention of each step, and the tree of the beam search.
import {element, number, scrollBox, visible} from "./dom.js";
import {barChart} from "./plot.js";
import {chooser, player, tokenStrip, tokenWord, latestCall, within} from "./tokens.js";
import {headOf, originTitle} from "./labels.js";
import {beamTree} from "./beam_tree.js";

// The side of the predicted tokens, and their offset: a decoder-only model predicts the token after its row.
function predictedSide(trace) {
  if (trace.shape === "encoder-decoder") return {side: "target", ahead: 0};
  return trace.shape === "decoder" ? {side: "decoder_input", ahead: 1} : {side: "source", ahead: 0};
}

// The attention layers of a step by the side of their keys: {columns: [layer, ...]}.
function layersByKeys(trace) {
  const rows = trace.shape === "encoder-decoder" ? ["target", "decoder_input"] : [predictedSide(trace).side];
  const groups = new Map();
  for (const layer of trace.layers) {
    if (!rows.includes(layer.rows)) continue;
    if (!groups.has(layer.columns)) groups.set(layer.columns, []);
    groups.get(layer.columns).push(layer);
  }
  return groups;
}

// The step of the text at which the beam search starts: a decoder-only model reads its prompt first.
function beamStart(steps, beams) {
  const best = beams.filter((node) => node.best).sort((a, b) => a.step - b.step);
  const fits = (from) => best.filter((node) => steps[from + node.step]?.chosen[0] === node.text).length;
  let found = 0;
  for (let from = 1; from < steps.length; from++) if (fits(from) > fits(found)) found = from;
  return found;
}

// The mean row over all heads of some layers.
async function meanRow(app, layers, row) {
  const made = new Float64Array(layers[0].keys);
  let count = 0;
  for (const layer of layers) {
    for (let head = 0; head < layer.heads; head++, count++) {
      (await app.store.row(app.trace(), layer, head, row)).forEach((weight, s) => (made[s] += weight));
    }
  }
  return {weights: made.map((weight) => weight / count), count};
}

function mountGeneration(root, app) {
  const {state} = app;
  const startCall = latestCall();
  const trace = app.trace();
  const {generation: steps, beams} = trace;
  const {side, ahead} = predictedSide(trace);
  const last = steps[steps.length - 1];
  const own = trace.sides[side]?.tokens ?? [];
  // The prediction after the last token has no token in the text.
  const tokens = last.row + ahead >= own.length ? [...own, last.chosen[0]] : own;
  const stepOf = new Map(steps.map((step, at) => [step.row + ahead, at]));
  const go = (step) => state.set({step});
  const control = player("Step", go);
  const strip = tokenStrip(trace.shape === "encoder" ? "The text; choose a token" : "The tokens, step by step", (at) => {
    if (stepOf.has(at)) go(stepOf.get(at));
  });
  const attend = chooser("attention of", (at) => state.set({attend: at ? "head" : "mean"}), {id: "attend"});
  const bars = element("div", {class: "candidates"});
  const chosen = element("p", {class: "sum"});
  const groups = [...layersByKeys(trace)].sort(([a], [b]) => (b === "source") - (a === "source")).map(([columns, layers]) => {
    const keys = tokenStrip(`Attention to ${columns}`, (column) => state.set({column}));
    const title = element("h3");
    return {columns, layers, keys, title, whole: element("section", {class: "attended", "data-columns": columns}, title, keys.root)};
  });
  const start = beams?.length ? beamStart(steps, beams) : 0;
  const tree = beams?.length ? beamTree(beams, (step) => go(within(start + step, steps.length, steps.length - 1))) : null;
  root.append(control.root, element("section", {}, element("h3", {}, trace.shape === "encoder" ? "Text" : trace.prompt ? "Prompt, then generated so far" : "Generated so far"), strip.root),
    element("div", {class: "pair"}, element("section", {}, element("h3", {}, "Candidates"), bars, chosen),
      element("div", {}, groups.length ? attend.root : null, groups.map(({whole}) => whole))));
  if (tree) {
    root.append(element("section", {class: "beam"}, element("h3", {}, "Beam search"),
      element("p", {class: "quiet"}, "Strong tokens were kept in the beam, faint ones pruned; the best hypothesis is coloured."),
      scrollBox({}, tree.root)));
  }
  root.addEventListener("keydown", control.keydown);
  let drawn = -1;
  const firstStep = Math.max(0, steps.findIndex(({origin}) => origin === "chosen")); // after the prompt

  async function attention(group, row) {
    const selected = app.layer();
    const single = state.get("attend") === "head" && group.layers.includes(selected);
    const whole = group.layers.filter((layer) => layer.weights && layer.keys === group.layers[0].keys);
    if (single || !whole.length) {
      const layer = single ? selected : group.layers[0];
      const head = single ? within(state.get("head"), layer.heads) : 0;
      if (row >= layer.queries) return null;
      return {weights: await app.store.row(trace, layer, head, row), text: visible(headOf(layer, head))};
    }
    if (row >= whole[0].queries) return null;
    const {weights, count} = await meanRow(app, whole, row);
    return {weights, text: count === 1 ? "the only head" : `mean of ${count} heads in ${whole.length} ${whole.length === 1 ? "layer" : "layers"}`};
  }

  async function update(names) {
    const at = within(state.get("step"), steps.length, firstStep);
    const step = steps[at];
    const isLatest = startCall();
    control.show(steps.length, at, `step ${at + 1} of ${steps.length}`);
    attend.show(["mean over all heads", "the selected head"], state.get("attend") === "head" ? 1 : 0);
    if (at !== drawn || names?.includes("theme")) {
      const note = originTitle(step.origin, trace.shape);
      const rows = step.candidates.map(([text, value]) => ({text, value, marked: false}));
      const hit = rows.find(({text, value}) => text === step.chosen[0]
        && Math.abs(value - step.chosen[1]) < 1e-6) ?? rows.find(({text}) => text === step.chosen[0]);
      if (hit) Object.assign(hit, {marked: true, note});
      else rows.push({text: step.chosen[0], value: step.chosen[1], marked: true, note});
      bars.replaceChildren(barChart(`Candidates of step ${at + 1}`, rows, {most: Math.max(step.candidates[0]?.[1] ?? 0, step.chosen[1])}));
      chosen.replaceChildren(step.origin === "given" ? "gives " : "predicts ", tokenWord(step.chosen[0], {class: "boxed"}),
        step.origin === "given" ? `, which is ${note}, probability ` : " with probability ", element("output", {"data-value": step.chosen[1]}, number(step.chosen[1])));
      drawn = at;
    }
    strip.show({tokens, chosen: step.row + ahead, later: trace.shape === "encoder" ? null : step.row + ahead + 1,
      prompt: trace.prompt});
    tree?.mark(at - start);
    app.announce(`step ${at + 1}: ${visible(step.chosen[0])}, probability ${number(step.chosen[1])}`);
    const found = await Promise.all(groups.map((group) => attention(group, step.row)));
    if (!isLatest()) return;
    groups.forEach((group, number) => {
      group.whole.hidden = !found[number];
      if (!found[number]) return;
      const title = trace.shape === "encoder-decoder" && group.columns === "source" ? "Cross-attention" : "Self-attention";
      group.title.replaceChildren(title, " ", element("small", {}, found[number].text));
      const list = trace.sides[group.columns].tokens;
      group.keys.show({tokens: list, chosen: state.get("column") === null ? -1 : within(state.get("column"), list.length), weights: found[number].weights,
        row: step.row});
    });
  }

  const npz = () => ({
    rows: {shape: [steps.length], data: Int32Array.from(steps, (step) => step.row)}, chosen: steps.map((step) => step.chosen[0]),
    probabilities: {shape: [steps.length], data: Float64Array.from(steps, (step) => step.chosen[1])},
    candidates: steps.flatMap((step) => step.candidates.map(([text]) => text)),
    candidate_steps: {shape: [steps.reduce((sum, step) => sum + step.candidates.length, 0)],
      data: Int32Array.from(steps.flatMap((step, at) => step.candidates.map(() => at)))},
    candidate_probabilities: {shape: [steps.reduce((sum, step) => sum + step.candidates.length, 0)],
      data: Float64Array.from(steps.flatMap((step) => step.candidates.map(([, p]) => p)))},
  });
  const drawing = () => tree?.root ?? bars.firstChild;
  return {update, save: {png: drawing, svg: drawing, npz}, unmount: control.stop};
}

export const generationView = {
  name: "generation", title: "Generation", key: "g",
  about: "Step through the generated tokens: candidates, attention and beam search at each step.",
  fits: (trace) => Boolean(trace.generation?.length),
  mount: mountGeneration,
};
