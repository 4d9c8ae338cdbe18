// The tensors of the page: decoded on first use and cached, or fetched from the server.

const maxTilesPerSide = 1024; // that the server returns at once
const maxCached = 48; // matrices
let halfValues = null;

// Every float16 as a float32.
function halfTable() {
  if (!halfValues) {
    halfValues = new Float32Array(65536);
    for (let bits = 0; bits < 65536; bits++) {
      const [exponent, part, sign] = [(bits >> 10) & 31, bits & 1023, bits & 32768 ? -1 : 1];
      if (exponent === 0) halfValues[bits] = sign * part * 2 ** -24;
      else if (exponent === 31) halfValues[bits] = part ? NaN : sign * Infinity;
      else halfValues[bits] = sign * (1 + part / 1024) * 2 ** (exponent - 15);
    }
  }
  return halfValues;
}

// Little-endian bytes as numbers: Float32Array for f2 and f4, Int32Array for i4 and u2.
export function decoded(bytes, type) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const count = bytes.byteLength / (type === "f2" || type === "u2" ? 2 : 4);
  const made = type.startsWith("f") ? new Float32Array(count) : new Int32Array(count);
  if (type === "f2") {
    const table = halfTable();
    for (let at = 0; at < count; at++) made[at] = table[view.getUint16(2 * at, true)];
  } else if (type === "f4") for (let at = 0; at < count; at++) made[at] = view.getFloat32(4 * at, true);
  else if (type === "i4") for (let at = 0; at < count; at++) made[at] = view.getInt32(4 * at, true);
  else for (let at = 0; at < count; at++) made[at] = view.getUint16(2 * at, true);
  return made;
}

export function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let at = 0; at < characters.length; at++) bytes[at] = characters.charCodeAt(at);
  return bytes;
}

// Max pooling: the maximum of each tile of a part of a rows x columns matrix; the tile of row t is floor((t - a) * tall / (b - a)).
export function pooledTiles(data, columns, [a, b], [c, d], size) {
  const [tall, wide] = [Math.min(size, b - a), Math.min(size, d - c)];
  if (tall === b - a && wide === columns) return {shape: [tall, wide], data: data.subarray(a * columns, b * columns)};
  const tiles = new Float32Array(tall * wide);
  const across = Int32Array.from({length: d - c}, (_, s) => Math.floor((s * wide) / (d - c)));
  for (let t = a; t < b; t++) {
    const to = Math.floor(((t - a) * tall) / (b - a)) * wide;
    const from = t * columns + c;
    for (let s = 0; s < d - c; s++) {
      const value = data[from + s];
      if (value > tiles[to + across[s]]) tiles[to + across[s]] = value;
    }
  }
  return {shape: [tall, wide], data: tiles};
}

// The top keys of a row of a long text, the largest weight first: f(key, weight) for each. top: {keys, weights}, H x T x k.
export function eachTop({keys, weights}, head, row, f) {
  const [, rows, count] = keys.shape;
  const from = (head * rows + row) * count;
  for (let at = from; at < from + count && keys.data[at] >= 0; at++) f(keys.data[at], weights.data[at]);
}

// The error message of a refused request.
async function refusal(answer) {
  const body = await answer.json().catch(() => null);
  return new Error(body?.error ?? `the server answered ${answer.status}.`);
}

export class Store {
  // blob(n) gives the bytes of blob number n.
  constructor(page, blob) {
    [this.page, this.blob] = [page, blob];
    this.tensors = new Map();
    this.cache = new Map();
  }

  // The tensor of a ref: {shape, data}, decoded once.
  async tensor(ref) {
    return this.peek(ref) ?? this.decode(ref);
  }

  // The tensor if it is decoded already, else null: hovering must not wait.
  peek(ref) {
    const data = this.tensors.get(`${ref.blob} ${ref.type}`); // refs of the same bytes share a blob
    return data ? {shape: ref.shape, data} : null;
  }

  decode(ref) {
    this.tensors.set(`${ref.blob} ${ref.type}`, decoded(this.blob(ref.blob), ref.type));
    return this.peek(ref);
  }

  // Cache make() under a key; the oldest entries are dropped. A promise that fails is not cached.
  cached(key, make) {
    if (!this.cache.has(key)) {
      if (this.cache.size >= maxCached) this.cache.delete(this.cache.keys().next().value);
      const made = make();
      this.cache.set(key, made);
      made.catch?.(() => this.cache.get(key) === made && this.cache.delete(key));
    }
    return this.cache.get(key);
  }

  // One head of a layer whose weights are here in full: {rows, columns, data}, T x S, a view into the tensor.
  async matrix(layer, head) {
    const {data} = await this.tensor(layer.weights);
    const size = layer.queries * layer.keys;
    return {rows: layer.queries, columns: layer.keys, data: data.subarray(head * size, (head + 1) * size)};
  }

  // A row of S weights: exact, or, for a long text offline, its top keys and 0 elsewhere.
  async row(trace, layer, head, t) {
    if (layer.weights) return (await this.matrix(layer, head)).data.subarray(t * layer.keys, (t + 1) * layer.keys);
    if (this.page.live) return this.cached(`row ${this.page.traces.indexOf(trace)} ${layer.name} ${head} ${t}`, () => this.fetchRow(trace, layer, head, t));
    const row = new Float32Array(layer.keys);
    eachTop(await this.top(layer), head, t, (key, weight) => (row[key] = weight));
    return row;
  }

  async fetchRow(trace, layer, head, t) {
    const row = new Float32Array(layer.keys);
    for (let from = 0; from < layer.keys; from += maxTilesPerSide) {
      const to = Math.min(layer.keys, from + maxTilesPerSide);
      row.set((await this.fetchWeights(trace, layer, head, [t, t + 1], [from, to], maxTilesPerSide)).data, from);
    }
    return row;
  }

  // The top keys of all rows of a long text: {keys, weights}, for eachTop.
  async top(layer) {
    return {keys: await this.tensor(layer.top.keys), weights: await this.tensor(layer.top.weights)};
  }

  // Rows [a, b] and columns [c, d] max-pooled to at most size x size tiles: {shape, data}.
  async tiles(trace, layer, head, rows, columns, size) {
    if (layer.weights) return pooledTiles((await this.matrix(layer, head)).data, layer.keys, rows, columns, size);
    const {size: n, weights} = layer.pooled;
    const finer = rows[1] - rows[0] < layer.queries || columns[1] - columns[0] < layer.keys;
    if (this.page.live && finer) return this.fetchWeights(trace, layer, head, rows, columns, size);
    const {data} = await this.tensor(weights);
    const [down, across] = [layer.queries / n, layer.keys / n];
    const part = ([a, b], step) => [Math.floor(a / step), Math.max(Math.floor(a / step) + 1, Math.ceil(b / step))];
    return pooledTiles(data.subarray(head * n * n, (head + 1) * n * n), n, part(rows, down), part(columns, across), size);
  }

  // Weights from the server, cached.
  fetchWeights(trace, layer, head, [a, b], [c, d], size) {
    const number = this.page.traces.indexOf(trace);
    const {revision} = this.page; // the server refuses requests from pages of an older text
    const query = new URLSearchParams({trace: number, layer: layer.name, head, rows: `${a}:${b}`, columns: `${c}:${d}`, size, revision});
    return this.cached(`weights ${query}`, async () => {
      const answer = await fetch(`${this.page.live}/weights?${query}`);
      if (!answer.ok) throw await refusal(answer);
      const shape = answer.headers.get("X-Shape").split(",").map(Number);
      return {shape, data: decoded(new Uint8Array(await answer.arrayBuffer()), "f2")};
    });
  }

  // Another request to the server: JSON in and out.
  async post(endpoint, body) {
    const answer = await fetch(`${this.page.live}/${endpoint}`, {
      method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({...body, revision: this.page.revision}),
    });
    if (!answer.ok) throw await refusal(answer);
    return answer.json();
  }
}
