// Subwords merged into words, and heads and layers into one matrix.

export const summaries = {
  head: "single head", mean: "mean", maximum: "maximum", rollout: "rollout", norm: "norm-weighted",
};

// Which word a token belongs to.
export function wordAt(side, token) {
  let [low, high] = [0, side.words.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (side.words[middle][1] <= token) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The row or column of what is drawn (a word, or a token) at which a token stands, and the first token of one.
export function unitAt(side, words, token) {
  return words ? wordAt(side, token) : token;
}

export function tokenAt(side, words, unit) {
  return words ? side.words[unit][0] : unit;
}

// The texts of what is drawn: words or tokens.
export function textsOf(side, words) {
  return words ? side.word_texts : side.tokens;
}

// Keys of a word add up.
export function mergedKeys(row, spans) {
  const made = new Float32Array(spans.length);
  spans.forEach(([start, stop], word) => {
    for (let s = start; s < stop; s++) made[word] += row[s];
  });
  return made;
}

// Keys of a word add up, queries of a word are averaged, so rows still sum to one.
export function mergedMatrix({rows, columns, data}, rowSpans, columnSpans) {
  const made = new Float32Array(rowSpans.length * columnSpans.length);
  rowSpans.forEach(([start, stop], r) => {
    for (let t = start; t < stop; t++) {
      const merged = mergedKeys(data.subarray(t * columns, (t + 1) * columns), columnSpans);
      for (let c = 0; c < merged.length; c++) made[r * merged.length + c] += merged[c] / (stop - start);
    }
  });
  return {rows: rowSpans.length, columns: columnSpans.length, data: made};
}

// Heads as one: data is H x size.
function meanOf(data, heads) {
  const size = data.length / heads;
  const made = new Float32Array(size);
  for (let h = 0; h < heads; h++) for (let at = 0; at < size; at++) made[at] += data[h * size + at] / heads;
  return made;
}

function maximumOf(data, heads) {
  const size = data.length / heads;
  const made = data.slice(0, size);
  for (let h = 1; h < heads; h++) for (let at = 0; at < size; at++) made[at] = Math.max(made[at], data[h * size + at]);
  return made;
}

// Each weight times the length of what it brings (Kobayashi 2020); rows no longer sum to one.
function normWeighted(data, norms, columns) {
  return data.map((weight, at) => weight * norms[at % columns]);
}

// Half the attention, half what stays: one layer more of Abnar and Zuidema's rollout.
function rolledOn(before, layer, size) {
  const made = new Float32Array(size * size);
  for (let t = 0; t < size; t++) {
    let sum = 1;
    for (let s = 0; s < size; s++) sum += layer[t * size + s];
    for (let s = 0; s < size; s++) {
      const share = (layer[t * size + s] + (s === t ? 1 : 0)) / sum;
      if (!share) continue;
      for (let c = 0; c < size; c++) made[t * size + c] += share * before[s * size + c];
    }
  }
  return made;
}

const isSelf = (layer) => layer.rows === layer.columns && layer.queries === layer.keys;

// Which summaries can be made of a layer: of a long text only those that pooled weights are enough for.
export function summariesFor(layer) {
  if (!layer.weights) return ["head", "maximum"];
  return ["head", "mean", "maximum", ...(isSelf(layer) && layer.rolls ? ["rollout"] : []), ...(layer.norms ? ["norm"] : [])];
}

async function summed(store, look, layer, head, summary) {
  const {queries: rows, keys: columns, heads} = layer;
  if (!layer.weights) {
    const {size, weights} = layer.pooled;
    const {data} = await store.tensor(weights);
    const one = data.subarray(head * size * size, (head + 1) * size * size);
    return {rows: size, columns: size, data: summary === "maximum" ? maximumOf(data, heads) : one};
  }
  const {data} = await store.tensor(layer.weights);
  const one = data.subarray(head * rows * columns, (head + 1) * rows * columns);
  if (summary === "mean") return {rows, columns, data: meanOf(data, heads)};
  if (summary === "maximum") return {rows, columns, data: maximumOf(data, heads)};
  if (summary === "norm") {
    const norms = (await store.tensor(layer.norms)).data.subarray(head * columns, (head + 1) * columns);
    return {rows, columns, data: normWeighted(one, norms, columns)};
  }
  if (summary === "rollout") {
    let made = new Float32Array(rows * rows);
    for (let t = 0; t < rows; t++) made[t * rows + t] = 1;
    for (const below of look.layers) {
      if (below.rows !== layer.rows || !isSelf(below) || !below.weights) continue;
      made = rolledOn(made, meanOf((await store.tensor(below.weights)).data, below.heads), rows);
      if (below === layer) break;
    }
    return {rows, columns, data: made};
  }
  return {rows, columns, data: one};
}

// What a choice of head, summary and words means for a layer: {rows, columns, data, pooled, most: what counts as strong}. A long text without the full
// weights is pooled: rows and columns are then tiles; there are no words then.
export function chosenMatrix(store, look, layer, {head = 0, summary = "head", words = false}) {
  const number = store.page.looks.indexOf(look);
  const whose = summary === "head" || summary === "norm" ? head : 0;
  return store.remember(`chosen ${number} ${layer.name} ${whose} ${summary} ${words}`, async () => {
    const made = await summed(store, look, layer, head, summary);
    if (!layer.weights) return {...made, pooled: true, most: 1};
    const [rows, columns] = [look.sides[layer.rows], look.sides[layer.columns]];
    const merged = words ? mergedMatrix(made, rows.words, columns.words) : made;
    return {...merged, pooled: false, most: summary === "norm" ? merged.data.reduce((most, value) => Math.max(most, value), 0) : 1};
  });
}

// A row of that matrix for a token of the layer's rows: what is drawn (words or tokens) and their weights. Of a long text
// this is one head's row, or the greatest over heads.
export async function chosenRow(store, look, layer, choice, token) {
  if (layer.weights) {
    const {columns, data} = await chosenMatrix(store, look, layer, choice);
    const at = unitAt(look.sides[layer.rows], choice.words, token);
    return data.subarray(at * columns, (at + 1) * columns);
  }
  const heads = choice.summary === "maximum" ? [...Array(layer.heads).keys()] : [choice.head ?? 0];
  const found = await Promise.all(heads.map((head) => store.row(look, layer, head, token)));
  const most = found[0].slice();
  for (const row of found.slice(1)) row.forEach((weight, s) => (most[s] = Math.max(most[s], weight)));
  return most;
}
