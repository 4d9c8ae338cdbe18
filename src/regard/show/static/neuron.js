// Neuron view: how one attention weight is computed from query, key, scale and softmax, step by step.
import {element, number, scrollBox, visible} from "./dom.js";
import {signedBars} from "./plot.js";
import {chooser, moved, tokenStrip, tokenWord, latestCall, within} from "./tokens.js";

const maxTableKeys = 64; // of more keys only the top ones are listed
const smallest = 2 ** -24; // above 0 in float16

// Row t of head h in a tensor of heads x rows x width.
function vectorOf({shape, data}, head, t) {
  const [heads, rows, wide] = shape.length === 3 ? shape : [shape[0], 1, shape[1]];
  const from = ((heads === 1 ? 0 : head) * rows + t) * wide;
  return data.subarray(from, from + wide);
}

// The terms of one score, their sum, and the score.
function scoreOf(inputs, query, key, vector, bias) {
  if (inputs.kind === "uniform") return {terms: [], sum: 0, score: 0};
  const terms = new Float64Array(query.length);
  for (let i = 0; i < terms.length; i++) {
    terms[i] = inputs.kind === "additive" ? vector[i] * Math.tanh(query[i] + key[i]) : query[i] * key[i];
  }
  const sum = terms.reduce((a, b) => a + b, 0);
  const scale = inputs.kind === "additive" ? 1 : inputs.scale;
  return {terms, sum, score: scale * sum + bias};
}

// Masked softmax: the weights of the attended keys; masked keys get none.
export function maskedSoftmax(scores, attended) {
  let maximum = -Infinity;
  scores.forEach((score, s) => attended[s] && (maximum = Math.max(maximum, score)));
  const exponentials = Float64Array.from(scores, (score, s) => (attended[s] ? Math.exp(score - maximum) : 0));
  const sum = exponentials.reduce((a, b) => a + b, 0);
  return {maximum, exponentials, sum, weights: exponentials.map((value) => (sum > 0 ? value / sum : 0))};
}

// "1 ÷ √64" for 0.125, where a scale is such a number.
export function scaleText(scale) {
  const under = Math.round(1 / scale ** 2);
  if (scale === 1) return "1 (no scaling)";
  return under > 1 && Math.abs(1 / Math.sqrt(under) - scale) < 1e-6 * scale ? `${number(scale)} = 1 ÷ √${under}` : number(scale);
}

function maxAbsolute(...lists) {
  let most = 0;
  for (const list of lists) for (const value of list) most = Math.max(most, Math.abs(value));
  return most;
}

// The computation of one query of a head: score, exponential and weight of each key, and the recorded weights.
export async function computedRow(app, layer, head, row) {
  const {score_inputs: inputs} = layer;
  const [queries, keys] = [await app.store.tensor(inputs.query), await app.store.tensor(inputs.key)];
  const vector = inputs.vector ? vectorOf(await app.store.tensor(inputs.vector), head, 0) : null;
  const bias = inputs.bias ? vectorOf(await app.store.tensor(inputs.bias), head, row) : null;
  const recorded = await app.store.row(app.trace(), layer, head, row);
  const exact = Boolean(layer.weights || app.page.live);
  const query = vectorOf(queries, head, row);
  const scores = new Float64Array(layer.keys);
  const attended = new Uint8Array(layer.keys);
  for (let s = 0; s < layer.keys; s++) {
    scores[s] = scoreOf(inputs, query, vectorOf(keys, head, s), vector, bias ? bias[s] : 0).score;
    attended[s] = exact ? recorded[s] > 0 : !layer.causal || s <= row;
  }
  const recordedText = (s) => number(exact || recorded[s] > 0 ? recorded[s] : null); // a dash where nothing was recorded
  return {row, query, keyAt: (s) => vectorOf(keys, head, s), vector, bias, recorded, recordedText, exact, scores, attended, ...maskedSoftmax(scores, attended)};
}

// Why a key has no weight: it is masked, or its weight is less than the smallest number of float16.
function unattended(layer, found, s) {
  const later = layer.causal && s > found.row;
  return !later && Math.exp(found.scores[s] - found.maximum) < smallest * found.sum ? "≈ 0" : "masked";
}

function mountNeuron(root, app) {
  const {state} = app;
  const startCall = latestCall();
  // The selected query, or one that attends to many keys.
  const rowOf = (layer) => within(state.get("row"), layer.queries, layer.causal ? layer.queries >> 1 : 0);
  const queries = tokenStrip("Query token", (row) => state.set({row}));
  const keys = tokenStrip("Key token", (column) => state.set({column}));
  const steps = element("ol", {class: "steps"});
  const body = element("tbody");
  const lists = element("div", {class: "pair"},
    element("div", {}, element("h3", {}, "Query"), queries.root), element("div", {}, element("h3", {}, "Key"), keys.root));
  const others = chooser("Layers with vectors:", (at) => state.set({layer: withVectors()[at].name}));
  const none = element("p", {class: "quiet"}, "This page does not store the queries and keys of this layer. ", others.root);
  root.append(none, lists, steps);
  let [made, shown] = ["", null];
  // The selected key, or the one with the largest weight.
  const columnOf = (layer, found) => within(state.get("column"), layer.keys, found.weights.indexOf(Math.max(...found.weights)));
  const withVectors = () => app.trace().layers.filter((layer) => layer.score_inputs);

  function setColumn(event) {
    const line = event.target.closest?.("tr[data-key]");
    if (line) state.set({column: Number(line.dataset.key)});
  }
  body.addEventListener("pointerover", setColumn);
  body.addEventListener("click", setColumn);
  body.addEventListener("keydown", (event) => {
    const lines = [...body.children];
    const to = moved(event.key, lines.indexOf(event.target), lines.length);
    if (to === null || event.key === "ArrowLeft" || event.key === "ArrowRight") return;
    event.preventDefault();
    event.stopPropagation();
    state.set({column: Number(lines[to].dataset.key)});
    lines[to].focus();
  });

  // The table of all keys: made once per query, then only marked.
  function fillTable(layer, found) {
    const tokens = app.trace().sides[layer.columns].tokens;
    let order = Array.from(tokens, (_, s) => s);
    if (order.length > maxTableKeys) order = order.sort((a, b) => found.weights[b] - found.weights[a]).slice(0, maxTableKeys);
    const most = Math.max(1e-9, ...order.map((s) => found.weights[s]));
    body.replaceChildren(...order.map((s) => {
      const gauge = element("i");
      gauge.style.width = `${(100 * found.weights[s]) / most}%`;
      const dash = element("span", {class: "quiet"}, unattended(layer, found, s));
      return element("tr", {
        tabindex: -1, "data-key": s, "data-score": found.scores[s], "data-exponential": found.exponentials[s], "data-weight": found.weights[s],
        "data-recorded": found.recorded[s], class: found.attended[s] ? null : "masked-key",
      },
      element("th", {scope: "row"}, tokenWord(tokens[s])), element("td", {}, number(found.scores[s])),
      element("td", {}, found.attended[s] ? number(found.exponentials[s]) : dash), element("td", {}, found.attended[s] ? number(found.weights[s]) : ""),
      element("td", {class: "gauge"}, gauge), element("td", {class: "quiet"}, found.recordedText(s)));
    }));
  }

  function markTable(column) {
    for (const line of body.children) {
      const chosen = Number(line.dataset.key) === column;
      line.tabIndex = chosen ? 0 : -1;
      line.classList.toggle("chosen", chosen);
      line.setAttribute("aria-selected", chosen ? "true" : "false");
    }
  }

  function productSteps(layer, found, names, column) {
    const {score_inputs: inputs} = layer;
    const key = found.keyAt(column);
    const bias = found.bias ? found.bias[column] : 0;
    const {terms, sum, score} = scoreOf(inputs, found.query, key, found.vector, bias);
    const most = maxAbsolute(found.query, key);
    const step = (name, title, ...parts) => element("li", {"data-step": name}, element("h3", {}, title), ...parts);
    const result = (text, value) => element("p", {class: "sum"}, text, element("output", {"data-value": value}, number(value)));
    if (inputs.kind === "uniform") return [step("score", "Uniform scores", element("p", {}, "This layer does not compare queries with keys: all scores are 0."),
      result("score = ", 0))];
    const pair = [{part: "query", text: "query", values: found.query, most}, {part: "key", text: "key", values: key, most}];
    const width = found.query.length;
    if (inputs.kind === "additive") {
      const activated = Float64Array.from(found.query, (value, i) => Math.tanh(value + key[i]));
      return [
        step("vectors", "Query and key", element("p", {}, "The query of ", names.query(), " and the key of ", names.key(), `: ${width} numbers each.`),
          signedBars("query and key, number by number", pair)),
        step("tanh", "Add, then tanh", element("p", {}, "tanh(query + key) is between −1 and 1."),
          signedBars("tanh of query plus key", [{part: "tanh", text: "tanh(q + k)", values: activated, most: 1}])),
        step("products", "Multiply by v", element("p", {}, "v is a parameter of the layer, the same for every pair."),
          signedBars("the vector v, and the products", [
            {part: "vector", text: "v", values: found.vector, most: maxAbsolute(found.vector)},
            {part: "products", text: "v × tanh", values: terms, most: maxAbsolute(terms)}])),
        step("score", "Sum", result("score = ", score)),
      ];
    }
    return [
      step("vectors", "Query and key", element("p", {}, "The query of ", names.query(), " and the key of ", names.key(), `: ${width} numbers each`,
        inputs.kind === "shared" ? ", the key normalised to length one." : "."), signedBars("query and key, number by number", pair)),
      step("products", "Elementwise product", element("p", {}, "Positive where both have the same sign."),
        signedBars("products of query and key", [{part: "products", text: "q × k", values: terms, most: maxAbsolute(terms)}])),
      step("sum", "Dot product", result("sum = ", sum)),
      step("score", "Scale", element("p", {}, `Times ${scaleText(inputs.scale)}. Scaling keeps the softmax from saturating with wide vectors.`),
        found.bias ? element("p", {}, `Plus the position bias of this distance, ${number(bias)}.`) : null,
        result(`${number(sum)} × ${number(inputs.scale)}${found.bias ? ` ${bias < 0 ? "−" : "+"} ${number(Math.abs(bias))}` : ""} = `, score)),
    ];
  }

  function softmaxStep(layer, found) {
    const heads = ["key", "score", "exp(score − max)", "weight", "", "recorded"];
    const count = found.attended.reduce((a, b) => a + b, 0);
    return element("li", {"data-step": "softmax", "data-sum": found.sum, "data-maximum": found.maximum},
      element("h3", {}, "Softmax over the attended keys"),
      element("p", {}, `The exponentials of ${count} ${count === 1 ? "key" : "keys"} sum to ${number(found.sum)}; each divided by the sum is a weight.`,
        layer.keys > maxTableKeys ? ` The top ${maxTableKeys} are listed.` : "",
        found.exact ? "" : " For this long text only the top keys are stored."),
      scrollBox({}, element("table", {class: "keys"},
        element("thead", {}, element("tr", {}, heads.map((text) => element("th", {scope: "col"}, text)))), body)));
  }

  async function update() {
    const layer = app.layer();
    const missing = !layer?.score_inputs;
    none.hidden = !missing;
    lists.hidden = steps.hidden = missing;
    if (missing) return others.show(withVectors().map(({title}) => title), -1);
    const [head, row] = [within(state.get("head"), layer.heads), rowOf(layer)];
    const {[layer.rows]: querySide, [layer.columns]: keySide} = app.trace().sides;
    const isLatest = startCall();
    const key = `${layer.name} ${head} ${row}`;
    const found = made === key && shown ? shown : await computedRow(app, layer, head, row);
    if (!isLatest()) return;
    const column = columnOf(layer, found);
    queries.show({tokens: querySide.tokens, chosen: row});
    keys.show({tokens: keySide.tokens, chosen: column, weights: found.recorded, row});
    const names = {
      query: () => tokenWord(querySide.tokens[row], {class: "boxed"}), key: () => tokenWord(keySide.tokens[column], {class: "boxed"}),
    };
    if (made !== key) fillTable(layer, found);
    [made, shown] = [key, found];
    const last = steps.querySelector('[data-step="softmax"]');
    const first = productSteps(layer, found, names, column);
    const weight = found.weights[column];
    const end = element("li", {"data-step": "weight"}, element("h3", {}, "Attention weight"),
      found.attended[column]
        ? element("p", {}, names.query(), " attends to ", names.key(), " with weight ",
          element("output", {"data-value": weight, "data-recorded": found.recorded[column]}, number(weight)), ".")
        : element("p", {}, names.query(), " does not attend to ", names.key(), ": the key is masked, or the weight is too small for float16."),
      element("p", {class: "quiet"}, `Computed on this page from vectors rounded to float16; recorded in the model: ${found.recordedText(column)}.`));
    // Local attention multiplies the softmax by a Gaussian, so weights do not sum to one: the factor follows from the recorded weights.
    const total = found.recorded.reduce((a, b) => a + b, 0);
    if (found.exact && found.attended[column] && Math.abs(total - 1) > 0.01) {
      const factor = found.recorded[column] / weight;
      end.append(element("p", {}, "Local attention multiplies the softmax by a Gaussian around the predicted position: ",
        element("output", {class: "fade", "data-value": factor}, `× ${number(factor)}`), `. The weights of this query sum to ${number(total)}.`));
    }
    // The table stays in the page while the pointer moves over it; the steps before and after it are made again.
    const table = last?.dataset.made === key ? last : softmaxStep(layer, found);
    table.dataset.made = key;
    for (const old of [...steps.children]) if (old !== table) old.remove();
    if (!table.isConnected) steps.append(table);
    table.before(...first);
    table.after(end);
    markTable(column);
    app.announce(`${visible(querySide.tokens[row])} attends to ${visible(keySide.tokens[column])}: score ${number(found.scores[column])}, weight ${number(weight)}`);
  }

  async function npz() {
    const layer = app.layer();
    const found = await computedRow(app, layer, within(state.get("head"), layer.heads), rowOf(layer));
    const key = found.keyAt(columnOf(layer, found));
    return {
      query: {shape: [found.query.length], data: found.query.slice()}, key: {shape: [key.length], data: key.slice()},
      scores: {shape: [layer.keys], data: found.scores}, weights: {shape: [layer.keys], data: found.weights},
      recorded: {shape: [layer.keys], data: Float32Array.from(found.recorded)}, keys: app.trace().sides[layer.columns].tokens,
    };
  }

  const drawing = () => steps.querySelector('[data-step="products"] svg') ?? steps.querySelector("svg");
  return {update, save: {png: drawing, svg: drawing, npz}};
}

export const neuronView = {
  name: "neuron", title: "Neuron", key: "n",
  about: "How one attention weight is computed: query, key, dot product, scaling and softmax, in numbers.",
  fits: (trace) => trace.layers.some((layer) => layer.score_inputs),
  mount: mountNeuron,
};
