// How one weight comes about: query, key, products, scale, softmax, as numbered steps with the model's own numbers.
import {element, number, visible} from "./dom.js";
import {signedBars} from "./plot.js";
import {chooser, moved, tokenStrip, tokenWord, turns, within} from "./tokens.js";

const longestTable = 64; // of more keys the weightiest stand in the table

// Row t of head h in a tensor of heads x rows x width.
function vectorOf({shape, data}, head, t) {
  const [heads, rows, wide] = shape.length === 3 ? shape : [shape[0], 1, shape[1]];
  const from = ((heads === 1 ? 0 : head) * rows + t) * wide;
  return data.subarray(from, from + wide);
}

// The parts of one score: what is added up, the sum, and the score it becomes.
function scored(inside, query, key, vector, bias) {
  if (inside.kind === "even") return {terms: [], sum: 0, score: 0};
  const terms = new Float64Array(query.length);
  for (let i = 0; i < terms.length; i++) {
    terms[i] = inside.kind === "additive" ? vector[i] * Math.tanh(query[i] + key[i]) : query[i] * key[i];
  }
  const sum = terms.reduce((a, b) => a + b, 0);
  const scale = inside.kind === "additive" ? 1 : inside.scale;
  return {terms, sum, score: scale * sum + bias};
}

// Scores to weights over the keys that are seen; the others get none.
export function softmaxOver(scores, seen) {
  let greatest = -Infinity;
  scores.forEach((score, s) => seen[s] && (greatest = Math.max(greatest, score)));
  const powers = Float64Array.from(scores, (score, s) => (seen[s] ? Math.exp(score - greatest) : 0));
  const sum = powers.reduce((a, b) => a + b, 0);
  return {greatest, powers, sum, weights: powers.map((power) => (sum > 0 ? power / sum : 0))};
}

// "1 ÷ √64" for 0.125, where a scale is such a number.
export function scaleText(scale) {
  const under = Math.round(1 / scale ** 2);
  if (scale === 1) return "1: nothing is scaled here";
  return under > 1 && Math.abs(1 / Math.sqrt(under) - scale) < 1e-6 * scale ? `${number(scale)}, that is 1 ÷ √${under}` : number(scale);
}

function greatestOf(...lists) {
  let most = 0;
  for (const list of lists) for (const value of list) most = Math.max(most, Math.abs(value));
  return most;
}

// Everything about one query of a head: its score, power and weight for each key, and what was recorded.
async function reckoned(app, layer, head, row) {
  const {inside} = layer;
  const [query, key] = [await app.store.tensor(inside.query), await app.store.tensor(inside.key)];
  const vector = inside.vector ? vectorOf(await app.store.tensor(inside.vector), head, 0) : null;
  const bias = inside.bias ? vectorOf(await app.store.tensor(inside.bias), head, row) : null;
  const recorded = await app.store.row(app.look(), layer, head, row);
  const exact = Boolean(layer.weights || app.page.live);
  const asking = vectorOf(query, head, row);
  const scores = new Float64Array(layer.keys);
  const seen = new Uint8Array(layer.keys);
  for (let s = 0; s < layer.keys; s++) {
    scores[s] = scored(inside, asking, vectorOf(key, head, s), vector, bias ? bias[s] : 0).score;
    seen[s] = exact ? recorded[s] > 0 : !layer.causal || s <= row;
  }
  const told = (s) => number(exact || recorded[s] > 0 ? recorded[s] : null); // a dash where nothing was recorded
  return {asking, answering: (s) => vectorOf(key, head, s), vector, bias, recorded, told, exact, scores, seen, ...softmaxOver(scores, seen)};
}

function mountNeuron(root, app) {
  const {state} = app;
  const turn = turns();
  // The query that was chosen, or one that sees much.
  const rowOf = (layer) => within(state.get("row"), layer.queries, layer.causal ? layer.queries >> 1 : 0);
  const queries = tokenStrip("Query: the token that looks", (row) => state.set({row}));
  const keys = tokenStrip("Key: the token that is looked at", (column) => state.set({column}));
  const steps = element("ol", {class: "steps"});
  const body = element("tbody");
  const lists = element("div", {class: "pair"},
    element("div", {}, element("h3", {}, "Query"), queries.root), element("div", {}, element("h3", {}, "Key"), keys.root));
  const others = chooser("Layers whose vectors are kept:", (at) => state.set({layer: kept()[at].name}));
  const none = element("p", {class: "quiet"}, "The vectors of this layer are not on this page. ", others.root);
  root.append(none, lists, steps);
  let [made, shown] = ["", null];
  // The key that was chosen, or the weightiest.
  const columnOf = (layer, found) => within(state.get("column"), layer.keys, found.weights.indexOf(Math.max(...found.weights)));
  const kept = () => app.look().layers.filter((layer) => layer.inside);

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

  // The table of all keys: made once a query, then only marked.
  function fillTable(layer, found) {
    const tokens = app.look().sides[layer.columns].tokens;
    let order = Array.from(tokens, (_, s) => s);
    if (order.length > longestTable) order = order.sort((a, b) => found.weights[b] - found.weights[a]).slice(0, longestTable);
    const most = Math.max(1e-9, ...order.map((s) => found.weights[s]));
    body.replaceChildren(...order.map((s) => {
      const gauge = element("i");
      gauge.style.width = `${(100 * found.weights[s]) / most}%`;
      const dash = element("span", {class: "quiet"}, "no weight");
      return element("tr", {
        tabindex: -1, "data-key": s, "data-score": found.scores[s], "data-power": found.powers[s], "data-weight": found.weights[s],
        "data-recorded": found.recorded[s], class: found.seen[s] ? null : "unseen-key",
      },
      element("th", {scope: "row"}, tokenWord(tokens[s])), element("td", {}, number(found.scores[s])),
      element("td", {}, found.seen[s] ? number(found.powers[s]) : dash), element("td", {}, found.seen[s] ? number(found.weights[s]) : ""),
      element("td", {class: "gauge"}, gauge), element("td", {class: "quiet"}, found.told(s)));
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
    const {inside} = layer;
    const key = found.answering(column);
    const bias = found.bias ? found.bias[column] : 0;
    const {terms, sum, score} = scored(inside, found.asking, key, found.vector, bias);
    const same = greatestOf(found.asking, key);
    const step = (name, title, ...parts) => element("li", {"data-step": name}, element("h3", {}, title), ...parts);
    const result = (text, value) => element("p", {class: "sum"}, text, element("output", {"data-value": value}, number(value)));
    if (inside.kind === "even") return [step("score", "Every key scores the same", element("p", {}, "This layer does not compare: all scores are 0."),
      result("score = ", 0))];
    const pair = [{part: "query", text: "query", values: found.asking, most: same}, {part: "key", text: "key", values: key, most: same}];
    const width = found.asking.length;
    if (inside.kind === "additive") {
      const bent = Float64Array.from(found.asking, (value, i) => Math.tanh(value + key[i]));
      return [
        step("vectors", "Query and key", element("p", {}, "What ", names.query(), " asks and ", names.key(), ` answers: ${width} numbers each.`),
          signedBars("query and key, number by number", pair)),
        step("bent", "Add them, and bend the sum", element("p", {}, "tanh(query + key): no number is beyond ±1."),
          signedBars("tanh of query plus key", [{part: "tanh", text: "tanh(q + k)", values: bent, most: 1}])),
        step("products", "Weigh each number", element("p", {}, "Times the layer's own vector v, the same for every pair."),
          signedBars("the vector v, and the products", [
            {part: "vector", text: "v", values: found.vector, most: greatestOf(found.vector)},
            {part: "products", text: "v × tanh", values: terms, most: greatestOf(terms)}])),
        step("score", "Add up", result("score = ", score)),
      ];
    }
    return [
      step("vectors", "Query and key", element("p", {}, "What ", names.query(), " asks and ", names.key(), ` answers: ${width} numbers each`,
        inside.kind === "shared" ? ", the key made one long." : "."), signedBars("query and key, number by number", pair)),
      step("products", "Multiply, number by number", element("p", {}, "Where both point the same way the product is positive."),
        signedBars("products of query and key", [{part: "products", text: "q × k", values: terms, most: greatestOf(terms)}])),
      step("sum", "Add up", result("sum = ", sum)),
      step("score", "Scale", element("p", {}, `Times ${scaleText(inside.scale)}. So long vectors do not make the softmax steep.`),
        found.bias ? element("p", {}, `Plus the bias of this distance, ${number(bias)}.`) : null,
        result(`${number(sum)} × ${number(inside.scale)}${found.bias ? ` ${bias < 0 ? "−" : "+"} ${number(Math.abs(bias))}` : ""} = `, score)),
    ];
  }

  function softmaxStep(layer, found) {
    const heads = ["key", "score", "e^(score − greatest)", "weight", "", "recorded"];
    const count = found.seen.reduce((a, b) => a + b, 0);
    return element("li", {"data-step": "softmax", "data-sum": found.sum, "data-greatest": found.greatest},
      element("h3", {}, "Softmax over all keys that are seen"),
      element("p", {}, `The powers of ${count} ${count === 1 ? "key" : "keys"} sum to ${number(found.sum)}; each divided by that is its weight.`,
        layer.keys > longestTable ? ` The ${longestTable} weightiest are listed.` : "",
        found.exact ? "" : " Of this long text only the weightiest keys were recorded."),
      element("div", {class: "scroll"}, element("table", {class: "keys"},
        element("thead", {}, element("tr", {}, heads.map((text) => element("th", {scope: "col"}, text)))), body)));
  }

  async function update() {
    const layer = app.layer();
    const missing = !layer?.inside;
    none.hidden = !missing;
    lists.hidden = steps.hidden = missing;
    if (missing) return others.show(kept().map(({name}) => name), -1);
    const [head, row] = [within(state.get("head"), layer.heads), rowOf(layer)];
    const {[layer.rows]: asking, [layer.columns]: answering} = app.look().sides;
    const mine = turn();
    const key = `${layer.name} ${head} ${row}`;
    const found = made === key && shown ? shown : await reckoned(app, layer, head, row);
    if (!mine()) return;
    const column = columnOf(layer, found);
    queries.show({tokens: asking.tokens, chosen: row});
    keys.show({tokens: answering.tokens, chosen: column, weights: found.recorded, row});
    const names = {
      query: () => tokenWord(asking.tokens[row], {class: "said"}), key: () => tokenWord(answering.tokens[column], {class: "said"}),
    };
    if (made !== key) fillTable(layer, found);
    [made, shown] = [key, found];
    const last = steps.querySelector('[data-step="softmax"]');
    const first = productSteps(layer, found, names, column);
    const weight = found.weights[column];
    const end = element("li", {"data-step": "weight"}, element("h3", {}, "The weight"),
      found.seen[column]
        ? element("p", {}, "Of all that ", names.query(), " gathers, ",
          element("output", {"data-value": weight, "data-recorded": found.recorded[column]}, number(weight)), " comes from ", names.key(), ".")
        : element("p", {}, names.query(), " gives ", names.key(), " no weight: it does not see it, or the weight is too small for float16."),
      element("p", {class: "quiet"}, `Computed here from the vectors above, which are rounded to float16; recorded in the model: ${found.told(column)}.`));
    // Weights that do not sum to one fade after the softmax (local attention): by how much follows from what was recorded.
    const total = found.recorded.reduce((a, b) => a + b, 0);
    if (found.exact && found.seen[column] && Math.abs(total - 1) > 0.01) {
      const factor = found.recorded[column] / weight;
      end.append(element("p", {}, "This layer looks at one place, and what is far from it fades: ",
        element("output", {class: "fade", "data-value": factor}, `× ${number(factor)}`), `. The weights of this row sum to ${number(total)}.`));
    }
    // The table stays where it is while the pointer moves over it: only what stands before and after it is made anew.
    const table = last?.dataset.made === key ? last : softmaxStep(layer, found);
    table.dataset.made = key;
    for (const old of [...steps.children]) if (old !== table) old.remove();
    if (!table.isConnected) steps.append(table);
    table.before(...first);
    table.after(end);
    markTable(column);
    app.say(`${visible(asking.tokens[row])} looks at ${visible(answering.tokens[column])}: score ${number(found.scores[column])}, weight ${number(weight)}`);
  }

  async function npz() {
    const layer = app.layer();
    const found = await reckoned(app, layer, within(state.get("head"), layer.heads), rowOf(layer));
    const key = found.answering(columnOf(layer, found));
    return {
      query: {shape: [found.asking.length], data: found.asking.slice()}, key: {shape: [key.length], data: key.slice()},
      scores: {shape: [layer.keys], data: found.scores}, weights: {shape: [layer.keys], data: found.weights},
      recorded: {shape: [layer.keys], data: Float32Array.from(found.recorded)}, keys: app.look().sides[layer.columns].tokens,
    };
  }

  const drawing = () => steps.querySelector('[data-step="products"] svg') ?? steps.querySelector("svg");
  return {update, save: {png: drawing, svg: drawing, npz}};
}

export const neuronView = {
  name: "neuron", title: "Neuron", key: "n",
  about: "How one weight comes about: the query, the key, their products, the scale and the softmax, in numbers.",
  fits: (look) => look.layers.some((layer) => layer.inside),
  mount: mountNeuron,
};
