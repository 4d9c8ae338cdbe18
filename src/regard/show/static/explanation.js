// Does it use what it looks at? Attention beside gradient x input and beside leaving a token out, for one prediction.
import {element, number, scrollBox, svg, visible} from "./dom.js";
import {drawnLabel} from "./plot.js";
import {chooser, latestCall, moved, tokenStrip, tokenWord, within} from "./tokens.js";
import {headOf} from "./labels.js";

const measures = {
  attention: ["attention", "how much the model looks at the token"],
  gradient: ["gradient × input", "|gradient · embedding|: how much a small change of the token's vector would change the prediction"],
  left: ["leaving it out", "how much the log-probability of the prediction changes without the token"],
};
const pairs = [["attention", "left"], ["attention", "gradient"], ["gradient", "left"]];

// Ranks from 0; equal values share their mean rank.
function ranks(values) {
  const order = Array.from(values, (_, at) => at).sort((a, b) => values[a] - values[b]);
  const found = new Float64Array(values.length);
  for (let first = 0, stop; first < order.length; first = stop) {
    stop = first + 1;
    while (stop < order.length && values[order[stop]] === values[order[first]]) stop++;
    for (let at = first; at < stop; at++) found[order[at]] = (first + stop - 1) / 2;
  }
  return found;
}

// Spearman's rank correlation; null for fewer than three tokens, or where all are equal.
export function rankCorrelation(first, second) {
  if (first.length < 3) return null;
  const middle = (first.length - 1) / 2;
  const [a, b] = [ranks(first), ranks(second)];
  let [product, sizeA, sizeB] = [0, 0, 0];
  a.forEach((rank, at) => {
    product += (rank - middle) * (b[at] - middle);
    sizeA += (rank - middle) ** 2;
    sizeB += (b[at] - middle) ** 2;
  });
  return sizeA && sizeB ? product / Math.sqrt(sizeA * sizeB) : null;
}

// The layers whose rows make these predictions and whose columns are the tokens that are explained.
function explainedLayers(trace) {
  const {side} = trace.attribution;
  const rows = trace.shape === "encoder-decoder" ? ["target", "decoder_input"] : [side];
  return trace.layers.filter((layer) => layer.weights && layer.columns === side && rows.includes(layer.rows));
}

function mountExplanation(root, app) {
  const {state} = app;
  const startCall = latestCall();
  const trace = app.trace();
  const {attribution} = trace;
  const layers = explainedLayers(trace);
  const {tokens} = trace.sides[attribution.side];
  const whole = attribution.shares !== null;
  const choose = (at) => state.set({step: at});
  const strip = tokenStrip("Predictions; choose one", choose);
  const attend = chooser("attention of", (at) => state.set({attend: at ? "head" : "mean"}), {id: "attend-explained"});
  const title = element("h2");
  const picture = element("div");
  const sums = element("dl", {class: "correlations"});
  const note = element("p", {class: "quiet"});
  root.append(element("p", {class: "quiet"}, "Attention says where the model looks. The two other measures ask the prediction itself."),
    element("section", {}, element("h3", {}, whole ? "Prediction for the text" : "Predictions; choose one"), strip.root), element("section", {}, title, attend.root),
    element("div", {class: "pair"}, element("section", {}, scrollBox({class: "short"}, picture)),
      element("section", {}, element("h3", {}, "Do they rank the tokens alike?"), sums, note)));

  // The tokens that a prediction could depend on: of a causal model, those up to its row.
  const seen = (at) => (trace.shape === "decoder" ? Math.min(tokens.length, attribution.rows[at] + 1) : tokens.length);

  async function weightsOf(chosen, at) {
    const made = new Float64Array(tokens.length);
    let count = 0;
    for (const [layer, head] of chosen) {
      const {data} = await app.store.matrix(layer, head);
      const shares = whole ? attribution.shares : null;
      for (let row = 0; row < layer.queries; row++) {
        const share = shares ? shares[row] : Number(row === attribution.rows[at]);
        if (share) for (let s = 0; s < made.length; s++) made[s] += share * data[row * layer.keys + s];
      }
      count++;
    }
    return made.map((weight) => weight / count);
  }

  function heads() {
    const selected = app.layer();
    if (state.get("attend") === "head" && layers.includes(selected)) {
      const head = within(state.get("head"), selected.heads);
      return {chosen: [[selected, head]], text: visible(headOf(selected, head))};
    }
    const chosen = layers.flatMap((layer) => Array.from({length: layer.heads}, (_, head) => [layer, head]));
    return {chosen, text: chosen.length === 1 ? "the only head" : `mean of ${chosen.length} heads in ${layers.length} ${layers.length === 1 ? "layer" : "layers"}`};
  }

  async function valuesAt(chosen, at) {
    const row = async (ref) => (await app.store.tensor(ref)).data.subarray(at * tokens.length, at * tokens.length + seen(at));
    return {attention: (await weightsOf(chosen, at)).subarray(0, seen(at)), gradient: await row(attribution.gradient), left: await row(attribution.left_out)};
  }

  const correlated = (values) => pairs.map(([one, two]) => rankCorrelation(values[one], values[two]));

  // A row per token with a bar per measure, each relative to the largest of its measure.
  function showBars(values, marked) {
    const [left, wide, gap, height, top] = [110, 120, 18, 22, 24];
    const rows = values.attention.length;
    const width = left + 3 * (wide + gap);
    const drawing = svg("svg", {class: "bars explained", viewBox: `0 0 ${width} ${top + height * rows + 4}`, width, height: top + height * rows + 4, role: "list",
      "aria-label": "What the prediction depends on, token by token"});
    const names = Object.keys(measures);
    names.forEach((name, column) => drawing.append(svg("text", {class: "tick", x: left + column * (wide + gap), y: 14},
      svg("title", {}, measures[name][1]), measures[name][0])));
    for (let s = 0; s < rows; s++) {
      const y = top + s * height;
      const text = names.map((name) => `${measures[name][0]} ${number(values[name][s])}`).join(", ");
      const row = svg("g", {class: s === marked ? "bar marked" : "bar", role: "listitem", "data-token": s, "aria-label": `${visible(tokens[s])}: ${text}`,
        onclick: () => state.set({column: s})}, svg("text", {class: "name", x: left - 10, y: y + 15, "text-anchor": "end"}, drawnLabel(tokens[s], 12)));
      names.forEach((name, column) => {
        const most = values[name].reduce((a, b) => Math.max(a, b), 0) || 1;
        const [x, long] = [left + column * (wide + gap), Math.max(1.5, ((wide - 44) * values[name][s]) / most)];
        row.append(svg("rect", {x, y: y + 4, width: long, height: height - 8, rx: 2}),
          svg("text", {class: "amount", x: x + long + 5, y: y + 15, "data-measure": name, "data-value": values[name][s]}, number(values[name][s])));
      });
      drawing.append(row);
    }
    picture.replaceChildren(drawing);
  }

  function showSums(here, means) {
    sums.replaceChildren(...pairs.flatMap(([one, two], at) => [
      element("dt", {}, `${measures[one][0]} and ${measures[two][0]}`),
      element("dd", {}, element("output", {"data-pair": `${one}-${two}`, "data-value": here[at]}, number(here[at])),
        means ? element("small", {"data-mean": `${one}-${two}`, "data-value": means[at]}, ` mean of all predictions ${number(means[at])}`) : null)]));
    note.textContent = `Spearman's rank correlation over all tokens: 1 if both rank them alike, 0 if they have nothing in common, −1 if reversed. A token is left out by writing ${
      visible(attribution.instead)} in its place. Tokens that hardly matter count as much as those that do, so look at the bars too.`;
  }

  async function update() {
    const isLatest = startCall();
    const at = within(state.get("step"), attribution.rows.length);
    const {chosen, text} = heads();
    attend.show(["mean over all heads", "the selected head"], state.get("attend") === "head" ? 1 : 0);
    const all = await Promise.all(attribution.rows.map((_, p) => valuesAt(chosen, p)));
    if (!isLatest()) return;
    const found = all.map(correlated);
    const mean = (pair) => {
      const known = found.map((one) => one[pair]).filter((one) => one !== null);
      return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
    };
    strip.show({tokens: attribution.chosen, chosen: at});
    title.replaceChildren("Why ", tokenWord(attribution.chosen[at], {class: "boxed"}), "?", element("small", {}, `attention: ${text}`));
    showBars(all[at], state.get("column"));
    showSums(found[at], found.length > 1 ? pairs.map((_, pair) => mean(pair)) : null);
    app.announce(`${visible(attribution.chosen[at])}: attention and leaving out correlate ${number(found[at][0])}`);
  }

  // Up and down move over the tokens.
  root.addEventListener("keydown", (event) => {
    if (!["ArrowUp", "ArrowDown"].includes(event.key) || event.target.closest?.("select, [role=option]")) return;
    event.preventDefault();
    const to = moved(event.key, within(state.get("column"), tokens.length), tokens.length);
    state.set({column: to});
  });

  async function npz() {
    const {chosen} = heads();
    const shape = [attribution.rows.length, tokens.length];
    const attention = new Float64Array(shape[0] * shape[1]);
    for (let p = 0; p < shape[0]; p++) attention.set(await weightsOf(chosen, p), p * shape[1]);
    const stored = async (ref) => ({shape, data: Float32Array.from((await app.store.tensor(ref)).data)});
    return {tokens, predictions: attribution.chosen, attention: {shape, data: attention}, gradient: await stored(attribution.gradient),
      left_out: await stored(attribution.left_out)};
  }
  const drawing = () => picture.firstChild;
  return {update, save: {png: drawing, svg: drawing, npz}};
}

export const explanationView = {
  name: "explanation", title: "Explanation", key: "u",
  about: "Does it use what it looks at? Attention beside gradient × input and beside leaving each token out.",
  fits: (trace) => Boolean(trace.attribution && explainedLayers(trace).length),
  mount: mountExplanation,
};
