// Attention summaries: subwords merged into words, heads and layers into one matrix.

export const summaries = {
  head: "single head", mean: "mean", maximum: "maximum", rollout: "attention rollout", norm: "norm-weighted",
};

// The word of a token.
export function wordAt(side, token) {
  let [low, high] = [0, side.word_spans.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (side.word_spans[middle][1] <= token) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The unit (a token, or a word if words are merged) of a token, and the first token of a unit.
export function unitAt(side, words, token) {
  return words ? wordAt(side, token) : token;
}

export function tokenAt(side, words, unit) {
  return words ? side.word_spans[unit][0] : unit;
}

// The texts of the units: words or tokens.
export function textsOf(side, words) {
  return words ? side.word_texts : side.tokens;
}

// Sum over the keys of a word.
export function mergedKeys(row, spans) {
  const made = new Float32Array(spans.length);
  spans.forEach(([start, stop], word) => {
    for (let s = start; s < stop; s++) made[word] += row[s];
  });
  return made;
}

// Sum over the keys of a word, mean over its queries: rows still sum to one.
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

// The mean over heads; data is H x size.
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

// Weights times the norms of the transformed values (Kobayashi 2020); rows no longer sum to one.
function normWeighted(data, norms, columns) {
  return data.map((weight, at) => weight * norms[at % columns]);
}

// One more layer of attention rollout: half attention, half residual connection (Abnar 2020).
function rolloutStep(before, layer, size) {
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

// The summaries of a layer; a long text has only those that pooled weights allow.
export function summariesFor(layer) {
  if (!layer.weights) return ["head", "maximum"];
  return ["head", "mean", "maximum", ...(isSelf(layer) && layer.rollout ? ["rollout"] : []), ...(layer.value_norms ? ["norm"] : [])];
}

async function summaryMatrix(store, trace, layer, head, summary) {
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
    const norms = (await store.tensor(layer.value_norms)).data.subarray(head * columns, (head + 1) * columns);
    return {rows, columns, data: normWeighted(one, norms, columns)};
  }
  if (summary === "rollout") {
    let made = new Float32Array(rows * rows);
    for (let t = 0; t < rows; t++) made[t * rows + t] = 1;
    for (const below of trace.layers) {
      if (below.rows !== layer.rows || !isSelf(below) || !below.weights) continue;
      made = rolloutStep(made, meanOf((await store.tensor(below.weights)).data, below.heads), rows);
      if (below === layer) break;
    }
    return {rows, columns, data: made};
  }
  return {rows, columns, data: one};
}

// The matrix of a layer for a choice of head, summary and words: {rows, columns, data, pooled, most: the maximum of the colour scale}.
// A long text without full weights is pooled: its rows and columns are tiles, and words are not merged.
export function chosenMatrix(store, trace, layer, {head = 0, summary = "head", words = false}) {
  const number = store.page.traces.indexOf(trace);
  const owner = summary === "head" || summary === "norm" ? head : 0;
  return store.cached(`chosen ${number} ${layer.name} ${owner} ${summary} ${words}`, async () => {
    const made = await summaryMatrix(store, trace, layer, head, summary);
    if (!layer.weights) return {...made, pooled: true, most: 1};
    const [rows, columns] = [trace.sides[layer.rows], trace.sides[layer.columns]];
    const merged = words ? mergedMatrix(made, rows.word_spans, columns.word_spans) : made;
    return {...merged, pooled: false, most: summary === "norm" ? merged.data.reduce((most, value) => Math.max(most, value), 0) : 1};
  });
}

// A row of that matrix for a token of the layer's rows. For a long text it is one head's row, or the maximum over heads.
export async function chosenRow(store, trace, layer, choice, token) {
  if (layer.weights) {
    const {columns, data} = await chosenMatrix(store, trace, layer, choice);
    const at = unitAt(trace.sides[layer.rows], choice.words, token);
    return data.subarray(at * columns, (at + 1) * columns);
  }
  const heads = choice.summary === "maximum" ? [...Array(layer.heads).keys()] : [choice.head ?? 0];
  const found = await Promise.all(heads.map((head) => store.row(trace, layer, head, token)));
  const most = found[0].slice();
  for (const row of found.slice(1)) row.forEach((weight, s) => (most[s] = Math.max(most[s], weight)));
  return most;
}
