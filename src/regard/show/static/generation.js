// How a text is said, step by step: the candidates, what each step attends to, and the tree of the beam.
import {element, number, visible} from "./dom.js";
import {barChart} from "./plot.js";
import {chooser, player, tokenStrip, tokenWord, turns, within} from "./tokens.js";
import {beamTree} from "./tree.js";

// The side on which steps stand, and which of its tokens a step says: a decoder alone says what follows its row.
function sayingSide(look) {
  if (look.shape === "encoder-decoder") return {side: "said", ahead: 0};
  return look.shape === "decoder" ? {side: "read", ahead: 1} : {side: "source", ahead: 0};
}

// The layers in which a step looks, by what it looks at: {columns: [layer, ...]}.
function lookedAt(look) {
  const rows = look.shape === "encoder-decoder" ? ["said", "read"] : [sayingSide(look).side];
  const groups = new Map();
  for (const layer of look.layers) {
    if (!rows.includes(layer.rows)) continue;
    if (!groups.has(layer.columns)) groups.set(layer.columns, []);
    groups.get(layer.columns).push(layer);
  }
  return groups;
}

// Which step of the text the first step of a beam is: a decoder alone reads before it speaks.
function beamBegins(steps, beams) {
  const best = beams.filter((node) => node.best).sort((a, b) => a.step - b.step);
  const fits = (from) => best.filter((node) => steps[from + node.step]?.chosen[0] === node.text).length;
  let found = 0;
  for (let from = 1; from < steps.length; from++) if (fits(from) > fits(found)) found = from;
  return found;
}

// The mean over all heads of some layers, of what is known of a row.
async function meanRow(app, layers, row) {
  const made = new Float64Array(layers[0].keys);
  let count = 0;
  for (const layer of layers) {
    for (let head = 0; head < layer.heads; head++, count++) {
      (await app.store.row(app.look(), layer, head, row)).forEach((weight, s) => (made[s] += weight));
    }
  }
  return {weights: made.map((weight) => weight / count), count};
}

function mountGeneration(root, app) {
  const {state} = app;
  const turn = turns();
  const look = app.look();
  const {steps, beams} = look;
  const {side, ahead} = sayingSide(look);
  const last = steps[steps.length - 1];
  const own = look.sides[side]?.tokens ?? [];
  // What would follow the last token read has no token yet.
  const tokens = last.row + ahead >= own.length ? [...own, last.chosen[0]] : own;
  const stepOf = new Map(steps.map((step, at) => [step.row + ahead, at]));
  const go = (step) => state.set({step});
  const control = player("Step", go);
  const said = tokenStrip(look.shape === "encoder" ? "The text; choose a token" : "What is said, word by word", (at) => {
    if (stepOf.has(at)) go(stepOf.get(at));
  });
  const attend = chooser("attention of", (at) => state.set({attend: at ? "head" : "mean"}), {id: "attend"});
  const bars = element("div", {class: "candidates"});
  const chosen = element("p", {class: "sum"});
  const groups = [...lookedAt(look)].sort(([a], [b]) => (b === "source") - (a === "source")).map(([columns, layers]) => {
    const strip = tokenStrip(`Attention to ${columns}`, (column) => state.set({column}));
    const title = element("h3");
    return {columns, layers, strip, title, whole: element("section", {class: "attended", "data-columns": columns}, title, strip.root)};
  });
  const begin = beams?.length ? beamBegins(steps, beams) : 0;
  const tree = beams?.length ? beamTree(beams, (step) => go(within(begin + step, steps.length, steps.length - 1))) : null;
  root.append(control.root, element("section", {}, element("h3", {}, look.shape === "encoder" ? "The text" : "Said so far"), said.root),
    element("div", {class: "pair"}, element("section", {}, element("h3", {}, "Candidates"), bars, chosen),
      element("div", {}, groups.length ? attend.root : null, groups.map(({whole}) => whole))));
  if (tree) {
    root.append(element("section", {class: "beam"}, element("h3", {}, "The beam"),
      element("p", {class: "quiet"}, "Strong words were kept, faint ones left; the winning path is drawn in colour."),
      element("div", {class: "scroll"}, tree.root)));
  }
  root.addEventListener("keydown", control.keydown);
  let drawn = -1;

  async function attention(group, row) {
    const selected = app.layer();
    const single = state.get("attend") === "head" && group.layers.includes(selected);
    const whole = group.layers.filter((layer) => layer.weights && layer.keys === group.layers[0].keys);
    if (single || !whole.length) {
      const layer = single ? selected : group.layers[0];
      const head = single ? within(state.get("head"), layer.heads) : 0;
      if (row >= layer.queries) return null;
      return {weights: await app.store.row(look, layer, head, row), text: `${visible(layer.name)}, head ${head}`};
    }
    if (row >= whole[0].queries) return null;
    const {weights, count} = await meanRow(app, whole, row);
    return {weights, text: count === 1 ? "its one head" : `mean of ${count} heads in ${whole.length} ${whole.length === 1 ? "layer" : "layers"}`};
  }

  async function update(names) {
    const at = within(state.get("step"), steps.length);
    const step = steps[at];
    const mine = turn();
    control.show(steps.length, at, `step ${at + 1} of ${steps.length}`);
    attend.show(["all heads, their mean", "the selected head"], state.get("attend") === "head" ? 1 : 0);
    if (at !== drawn || names?.includes("theme")) {
      const rows = step.candidates.map(([text, value]) => ({text, value, marked: false}));
      const hit = rows.find(({text, value}) => text === step.chosen[0]
        && Math.abs(value - step.chosen[1]) < 1e-6) ?? rows.find(({text}) => text === step.chosen[0]);
      if (hit) Object.assign(hit, {marked: true, note: "chosen"});
      else rows.push({text: step.chosen[0], value: step.chosen[1], marked: true, note: "chosen"});
      bars.replaceChildren(barChart(`Candidates of step ${at + 1}`, rows, {most: Math.max(step.candidates[0]?.[1] ?? 0, step.chosen[1])}));
      chosen.replaceChildren("says ", tokenWord(step.chosen[0], {class: "said"}), " with probability ",
        element("output", {"data-value": step.chosen[1]}, number(step.chosen[1])));
      drawn = at;
    }
    said.show({tokens, chosen: step.row + ahead, later: look.shape === "encoder" ? null : step.row + ahead + 1});
    tree?.mark(at - begin);
    app.say(`step ${at + 1}: ${visible(step.chosen[0])}, probability ${number(step.chosen[1])}`);
    const found = await Promise.all(groups.map((group) => attention(group, step.row)));
    if (!mine()) return;
    groups.forEach((group, place) => {
      group.whole.hidden = !found[place];
      if (!found[place]) return;
      const title = {source: look.shape === "encoder" ? "Looks at the text" : "Looks at the source",
        read: "Looks at what was read"}[group.columns] ?? `Looks at ${group.columns}`;
      group.title.replaceChildren(title, " ", element("small", {}, found[place].text));
      const list = look.sides[group.columns].tokens;
      group.strip.show({tokens: list, chosen: state.get("column") === null ? -1 : within(state.get("column"), list.length), weights: found[place].weights,
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
  about: "Step through what the model says: the candidates, what each step attends to, and the beam.",
  fits: (look) => Boolean(look.steps?.length),
  mount: mountGeneration,
};
