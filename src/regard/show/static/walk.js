// The guided walk: one token through the model, from its vector to the next token, each step with its numbers.
import {element, number, svg, visible} from "./dom.js";
import {barChart, signedBars} from "./plot.js";
import {latestCall, tokenStrip, tokenWord, within} from "./tokens.js";
import {computedRow, maskedSoftmax, scaleText} from "./neuron.js";

const maxKeys = 12; // listed in the weighted sum
const maxBars = 512; // numbers of a vector that are drawn

// Row t of a tensor of rows x width, or of head h of heads x rows x width.
function rowOf({shape, data}, t, head = 0) {
  const [rows, wide] = shape.slice(-2);
  const from = (head * rows + t) * wide;
  return data.subarray(from, from + wide);
}

const largest = (...lists) => lists.reduce((most, list) => list.reduce((a, b) => Math.max(a, Math.abs(b)), most), 0);
const drawn = (part, text, values, most) => ({part, text, values: Array.from(values.slice(0, maxBars)), most});
const step = (name, title, ...parts) => element("li", {"data-step": name}, element("h3", {}, title), ...parts);
const said = (...parts) => element("p", {}, ...parts);

// The softmax of logits at a temperature, of the k largest only.
export function sampled(logits, temperature, k) {
  const kept = logits.slice(0, k);
  return maskedSoftmax(Array.from(kept, (value) => value / temperature), new Uint8Array(kept.length).fill(1)).weights;
}

// A slider with its value beside it.
function slider(name, {min, max, step: by, value}, change) {
  const shown = element("output", {}, String(value));
  const input = element("input", {type: "range", min, max, step: by, value, "aria-label": name, oninput: () => {
    shown.textContent = input.value;
    change();
  }});
  return {root: element("label", {class: "pick"}, `${name} `, input, " ", shown), value: () => Number(input.value)};
}

function mountWalk(root, app) {
  const {state} = app;
  const startCall = latestCall();
  const tokens = tokenStrip("Token", (row) => state.set({row}));
  const list = element("ol", {class: "steps"});
  root.append(element("p", {class: "quiet"}, "Follow one token through the model. Choose it here; every number below is the model's own, rounded to float16."),
    tokens.root, list);

  // The side whose tokens are embedded for the rows of a layer: a target token is predicted from the decoder input of its row.
  const readSide = (trace) => (trace.shape === "encoder" ? "source" : "decoder_input");

  async function embeddingStep(trace, side, row, name) {
    const {table, position, read} = trace.walk.embeddings[side];
    const load = async (ref) => (ref ? rowOf(await app.store.tensor(ref), row) : null);
    const [vector, place, sum] = [await load(table), await load(position), await load(read)];
    const added = [vector, place].filter(Boolean);
    const most = largest(...(added.length ? added : [sum]));
    // A layer norm may follow, as in BERT: then the sum has a scale of its own.
    const changed = place !== null && sum.some((x, i) => Math.abs(x - vector[i] - place[i]) > 0.01 * most);
    const rows = [];
    if (place) rows.push(drawn("table", "embedding", vector, most), drawn("position", "position", place, most));
    rows.push(drawn("read", changed ? "normalised" : place ? "sum" : "embedding", sum, changed ? largest(sum) : largest(sum, ...added)));
    return step("embedding", place ? "Embedding plus position" : "Embedding",
      said(name(), ` becomes a vector of ${sum.length} numbers, `,
        trace.walk.characters ? "made from its characters by convolutions" : "one row of a table that was trained",
        place ? ". Attention does not know order, so a vector of the position is added." : ".",
        changed ? " The sum is normalised before the first layer reads it." : ""),
      signedBars("the vector of the token", rows));
  }

  async function attentionSteps(trace, layer, head, row, name) {
    const [found, values, outputs] = [await computedRow(app, layer, head, row),
      await app.store.tensor(trace.walk.layers[layer.name].values), await app.store.tensor(trace.walk.layers[layer.name].outputs)];
    const side = trace.sides[layer.columns];
    const order = Array.from(side.tokens, (_, s) => s).filter((s) => found.attended[s]).sort((a, b) => found.recorded[b] - found.recorded[a] || found.scores[b] - found.scores[a]);
    const best = order[0] ?? 0;
    const value = rowOf(values, best, head);
    const key = found.keyAt(best);
    const bestName = () => tokenWord(side.tokens[best], {class: "boxed"});
    const [most, scores] = [largest(found.query, key), order.map((s) => found.scores[s])];
    const output = rowOf(outputs, row, head);
    const sum = new Float64Array(output.length);
    order.forEach((s) => rowOf(values, s, head).forEach((x, i) => (sum[i] += found.recorded[s] * x)));
    const top = largest(sum, output, value);
    const few = order.length > maxKeys ? ` The ${maxKeys} keys with the largest weights are drawn, of ${order.length.toLocaleString("en")}.` : "";
    const low = Math.min(0, ...scores);
    const stateful = layer.name.endsWith("cross") && !trace.walk.feedforward; // a recurrent or convolutional decoder
    return [
      step("vectors", "Query, key and value",
        said(...(stateful ? ["The query is made of the decoder's state at ", name(), ", keys and values of the encoder's states."]
          : ["The query says what ", name(), " looks for, a key what a token offers, a value what it gives."]),
        " Here the query, and the key and the value of ", bestName(), "."),
        signedBars("query, key and value", [drawn("query", "query", found.query, most), drawn("key", "key", key, most),
          drawn("value", "value", value, largest(value))])),
      step("scores", "Scores", said(layer.score_inputs.kind === "additive" ? "The query is compared with every key: v · tanh(query + key)."
        : `The dot product of the query with every key, times ${scaleText(layer.score_inputs.scale)}.`, few, low < 0 ? " The bars start at the lowest score." : ""),
      barChart("scores above the lowest", order.slice(0, maxKeys).map((s) => ({text: side.tokens[s], value: found.scores[s] - low,
        shown: number(found.scores[s])})))),
      step("softmax", "Softmax", said("Scores become weights between 0 and 1 that sum to one.", few),
        barChart("attention weights", order.slice(0, maxKeys).map((s) => ({text: side.tokens[s], value: found.recorded[s], marked: s === best})), {most: 1})),
      step("sum", stateful ? "Weighted sum of values: the context vector" : "Weighted sum of values",
        said(`Each value times its weight, added up: ${stateful ? "what the decoder learns of the source at this step" : "the output of this head"}.`),
        signedBars("the weighted sum", [
          ...order.slice(0, 3).map((s) => drawn(`value-${s}`, `${number(found.recorded[s])} × ${visible(side.tokens[s])}`,
            rowOf(values, s, head).map((x) => x * found.recorded[s]), top)),
          drawn("sum", "sum", sum, top), drawn("output", "recorded", output, top)])),
      layer.heads > 1 ? step("heads", "Heads side by side", said(`${layer.heads} heads do this at once, each with vectors of its own. A matrix mixes their outputs.`),
        signedBars("the outputs of all heads", Array.from({length: layer.heads}, (_, h) => {
          const own = rowOf(outputs, row, h);
          return drawn(`head-${h}`, `head ${h}`, own, largest(own));
        }))) : null,
    ];
  }

  async function layersStep(trace, row) {
    const states = await app.store.tensor(trace.walk.states);
    const count = states.shape[0];
    const cell = trace.layers.length ? "The cell reads the context vector, which attention found, beside the token; its new state is the output of the layer."
      : "Each layer carries a state from token to token; this is the state at the token, layer by layer.";
    return step("layers", "Through the layers",
      said(trace.walk.feedforward ? "What attention found is added to the token's vector, a feed-forward network changes it, and the next layer begins." : cell),
      signedBars("the vector of the token after each layer", Array.from({length: count}, (_, at) => {
        const own = rowOf(states, row, at);
        return drawn(`layer-${at}`, at === 0 ? "input" : `layer ${at - 1}`, own, largest(own));
      })));
  }

  async function predictionStep(trace, row) {
    const {walk} = trace;
    if (!walk.logits) return null;
    const logits = Array.from(rowOf(await app.store.tensor(walk.logits), row));
    const names = walk.candidates[row];
    const chart = element("div", {class: "candidates"});
    const drawnToken = element("output", {class: "drawn"});
    const redraw = () => {
      const probabilities = sampled(logits, temperature.value(), topK.value());
      chart.replaceChildren(barChart("probabilities", Array.from(probabilities).slice(0, maxKeys).map((value, at) => ({text: names[at], value, marked: at === 0,
        shown: `${number(value)}  logit ${number(logits[at])}`})), {most: 1}));
    };
    const temperature = slider("temperature", {min: 0.1, max: 2, step: 0.1, value: 1}, redraw);
    const topK = slider("top-k", {min: 1, max: logits.length, step: 1, value: logits.length}, redraw);
    const draw = element("button", {type: "button", onclick: () => {
      const probabilities = sampled(logits, temperature.value(), topK.value());
      let left = Math.random();
      let at = 0;
      while (at < probabilities.length - 1 && left > probabilities[at]) left -= probabilities[at++];
      drawnToken.replaceChildren(tokenWord(names[at], {class: "boxed"}));
    }}, "Sample");
    redraw();
    return step("prediction", "Logits, softmax, sampling",
      said("The last vector is compared with the vector of every token of the vocabulary: a logit each. Softmax turns logits into probabilities. ",
        `A low temperature favours the best, top-k leaves only the k best. Probabilities are among the ${logits.length} most likely tokens.`),
      element("p", {}, temperature.root, " ", topK.root, " ", draw, " ", drawnToken), chart);
  }

  // The end of the way in a classifier.
  function labelStep({prediction}) {
    if (!prediction) return null;
    const pooled = "The last vectors of all tokens become one vector of the text.";
    const [[best, probability]] = prediction;
    if (probability === null) return step("label", "The number", said(`${pooled} A linear map makes a number of it: `, element("strong", {}, visible(best)), "."));
    return step("label", "The label", said(`${pooled} Each label gets a score, and softmax turns scores into probabilities. The model predicts `,
      element("strong", {}, visible(best)), "."),
    barChart("probabilities of labels", prediction.map(([text, value], at) => ({text, value, marked: at === 0})), {most: 1}));
  }

  async function update() {
    const trace = app.trace();
    const layer = app.layer();
    const isLatest = startCall();
    const side = layer ? layer.rows : readSide(trace);
    const read = side === "target" ? "decoder_input" : side;
    const shown = trace.sides[read].tokens;
    const row = within(state.get("row"), layer?.queries ?? shown.length, layer?.causal ? shown.length >> 1 : 0);
    const head = layer ? within(state.get("head"), layer.heads) : 0;
    const name = () => tokenWord(shown[row], {class: "boxed"});
    const steps = [await embeddingStep(trace, read, row, name)];
    if (layer?.score_inputs && trace.walk.layers[layer.name]) steps.push(...await attentionSteps(trace, layer, head, row, name));
    if (read === readSide(trace)) steps.push(await layersStep(trace, row), await predictionStep(trace, row), labelStep(trace));
    else steps.push(step("encoder", "On to the decoder", said("The encoder's last vectors are what the decoder attends to. Choose a layer of the decoder to go on.")));
    if (!isLatest()) return;
    tokens.show({tokens: shown, chosen: row});
    list.replaceChildren(...steps.filter(Boolean));
    app.announce(`${visible(shown[row])}: ${list.children.length} steps`);
  }

  const drawing = () => list.querySelector("svg") ?? svg("svg", {});
  async function npz() {
    const states = await app.store.tensor(app.trace().walk.states);
    return {states: {shape: states.shape, data: Float32Array.from(states.data)}};
  }
  return {update, save: {png: drawing, svg: drawing, npz}};
}

export const walkView = {
  name: "walk", title: "Begin here", key: "i",
  about: "One token through the model, step by step: vectors, scores, softmax, weighted sum, layers, the next token.",
  fits: (trace) => Boolean(trace.walk),
  mount: mountWalk,
};
