// LSH buckets: the bucket of each token in each hash round, and which tokens share one.
import {element, hideValue, number, scrollBox, showValue, visible} from "./dom.js";
import {headColour, paint} from "./colour.js";
import {headOf} from "./labels.js";
import {pictured} from "./save.js";
import {enlarged} from "./small_map.js";
import {chooser, moved, tokenWord, latestCall, within} from "./tokens.js";

const windowLength = 192; // tokens shown of a long text, around the selected one

// In how many rounds each pair of tokens of [start, stop) shares a bucket: {size, data}; causal layers leave out later keys.
export function sharedRounds(buckets, rounds, [start, stop], causal) {
  const size = stop - start;
  const data = new Int32Array(size * size);
  for (let a = 0; a < size; a++) {
    for (let b = 0; b < (causal ? a + 1 : size); b++) {
      for (let r = 0; r < rounds; r++) data[a * size + b] += buckets[(start + a) * rounds + r] === buckets[(start + b) * rounds + r];
    }
  }
  return {size, data};
}

function mountBuckets(root, app) {
  const {state} = app;
  const startCall = latestCall();
  const hashLayers = app.trace().layers.filter((layer) => layer.buckets);
  const others = chooser("LSH layers:", (at) => state.set({layer: hashLayers[at].name}));
  const note = element("p", {class: "quiet"});
  const rounds = element("div", {class: "rounds"});
  const partners = element("div", {class: "partners"});
  const canvas = element("canvas", {class: "table square", role: "img", tabindex: 0, "data-own": true});
  const matrix = element("section", {}, element("h3", {}, "Shared buckets"),
    element("p", {class: "quiet"}, "Rows are queries, columns are keys; more colour is more rounds in one bucket."), canvas);
  root.append(others.root, note, rounds, element("div", {class: "pair"}, element("section", {}, element("h3", {}, "Keys in the same bucket"), partners), matrix));
  let [built, shown] = ["", null];

  const tokenOf = (event) => {
    const node = event.target.closest?.("[data-token]");
    return node ? Number(node.dataset.token) : null;
  };
  const choose = (event) => {
    const at = tokenOf(event);
    if (at !== null) state.set({row: at});
  };
  rounds.addEventListener("pointerover", choose);
  rounds.addEventListener("click", choose);
  rounds.addEventListener("focusin", choose);
  rounds.addEventListener("keydown", (event) => {
    const line = event.target.closest("[data-round]");
    const nodes = line ? [...line.querySelectorAll("[data-token]")] : [];
    const to = moved(event.key, nodes.indexOf(event.target), nodes.length);
    if (to === null || event.key === "ArrowUp" || event.key === "ArrowDown") return;
    event.preventDefault();
    event.stopPropagation();
    nodes[to].focus();
  });

  // One line per round, one box per bucket, the tokens in the order of their buckets.
  function build({tokens, part: [start, stop], buckets, count}) {
    rounds.replaceChildren(...Array.from({length: count}, (_, round) => {
      const members = new Map();
      for (let t = start; t < stop; t++) {
        const bucket = buckets[t * count + round];
        if (!members.has(bucket)) members.set(bucket, []);
        members.get(bucket).push(t);
      }
      const boxes = [...members].sort(([a], [b]) => a - b).map(([bucket, list]) => {
        const box = element("div", {class: "bucket", "data-bucket": bucket, role: "group", "aria-label": `bucket ${bucket}`},
          element("small", {}, String(bucket)),
          list.map((t) => tokenWord(tokens[t], {class: "token", tabindex: -1, "data-token": t})));
        box.style.borderColor = headColour(bucket);
        return box;
      });
      return element("section", {class: "round", "data-round": round}, element("h3", {}, `Round ${round + 1}`), element("div", {class: "boxes"}, boxes));
    }));
  }

  function mark({row, buckets, count}) {
    for (const line of rounds.children) {
      const own = buckets[row * count + Number(line.dataset.round)];
      for (const node of line.querySelectorAll("[data-token]")) {
        const t = Number(node.dataset.token);
        node.tabIndex = t === row ? 0 : -1;
        node.classList.toggle("chosen", t === row);
      }
      for (const box of line.querySelectorAll("[data-bucket]")) {
        const same = Number(box.dataset.bucket) === own;
        box.classList.toggle("own", same);
        box.style.backgroundColor = same ? `color-mix(in srgb, ${headColour(own)} 22%, transparent)` : "";
      }
    }
  }

  // The keys that share a bucket with the selected query: the rounds as dots, and the weight.
  function list({row, layer, tokens, buckets, count, weights}) {
    const lines = [];
    for (let s = 0; s < (layer.causal ? row + 1 : layer.keys); s++) {
      const found = Array.from({length: count}, (_, r) => buckets[row * count + r] === buckets[s * count + r]);
      if (s === row || !(found.some(Boolean) || weights[s] > 0)) continue;
      lines.push({s, found, weight: weights[s]});
    }
    lines.sort((a, b) => b.weight - a.weight || a.s - b.s);
    const dots = (found) => found.map((yes) => (yes ? "●" : "○")).join(" ");
    const roundText = (found) => (found.some(Boolean) ? `round ${found.map((yes, r) => (yes ? r + 1 : 0)).filter(Boolean).join(", ")}` : "adjacent bucket");
    const rows = lines.slice(0, 40).map(({s, found, weight}) => element("tr",
      {"data-key": s, "data-rounds": found.filter(Boolean).length, "data-weight": weight},
      element("th", {scope: "row"}, tokenWord(tokens[s]), element("small", {}, ` ${s}`)),
      element("td", {class: "dots", "aria-label": roundText(found)}, dots(found)), element("td", {}, roundText(found)), element("td", {}, number(weight))));
    partners.replaceChildren(
      element("p", {}, tokenWord(tokens[row], {class: "boxed"}),
        ` (token ${row.toLocaleString("en")}) shares a bucket with ${lines.filter(({found}) => found.some(Boolean)).length.toLocaleString("en")} other tokens in ${count} ${count === 1 ? "round" : "rounds"}`,
        lines.length > 40 ? "; the top 40 keys by weight are listed." : "."),
      ...(rows.length ? [scrollBox({}, element("table", {class: "keys"},
        element("thead", {}, element("tr", {}, ["key", "rounds", "shared in", "weight"].map((text) => element("th", {scope: "col"}, text)))),
        element("tbody", {}, rows)))] : []));
    app.announce(`${visible(tokens[row])} shares a bucket with ${lines.length} other tokens`);
  }

  function draw({part, buckets, count, layer}) {
    const {size, data} = sharedRounds(buckets, count, part, layer.causal);
    paint(canvas, data, size, size, (times) => times / count);
    canvas.dataset.first = String(part[0]);
    canvas.setAttribute("aria-label", `In how many of ${count} rounds two tokens share a bucket, ${size} by ${size}; arrow keys read it`);
    const side = Math.max(160, Math.min(420, size * Math.max(1, Math.floor(420 / size))));
    canvas.style.width = canvas.style.height = `${side}px`;
    shown.shared = data;
    shown.size = size;
  }

  let cursor = [0, 0];
  function showCell(row, column, x, y) {
    cursor = [row, column];
    const {tokens, part, shared: data, size, count} = shown;
    const value = data[row * size + column];
    const lines = [`${visible(tokens[part[0] + row])} → ${visible(tokens[part[0] + column])}`, `${value} of ${count} rounds`];
    showValue(x, y, lines, {row: part[0] + row, column: part[0] + column, value});
    return lines.join(": ");
  }
  const cellAt = (event) => {
    const box = canvas.getBoundingClientRect();
    return [within(Math.floor(((event.clientY - box.top) / box.height) * shown.size), shown.size),
      within(Math.floor(((event.clientX - box.left) / box.width) * shown.size), shown.size)];
  };
  canvas.addEventListener("pointermove", (event) => shown && showCell(...cellAt(event), event.clientX, event.clientY));
  canvas.addEventListener("click", (event) => shown && state.set({row: shown.part[0] + cellAt(event)[0]}));
  canvas.addEventListener("pointerleave", hideValue);
  canvas.addEventListener("blur", hideValue);
  canvas.addEventListener("keydown", (event) => {
    const way = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
    if (!way || !shown) return;
    event.preventDefault();
    event.stopPropagation();
    const [row, column] = [within(cursor[0] + way[0], shown.size, cursor[0]), within(cursor[1] + way[1], shown.size, cursor[1])];
    const box = canvas.getBoundingClientRect();
    app.announce(showCell(row, column, box.left + ((column + 0.5) * box.width) / shown.size, box.top + ((row + 0.5) * box.height) / shown.size));
  });

  async function update(names) {
    const selected = app.layer();
    const layer = selected?.buckets ? selected : hashLayers[0];
    const head = within(state.get("head"), layer.heads);
    const row = within(state.get("row"), layer.queries, layer.causal ? layer.queries - 1 : 0); // the last query may attend to all keys
    const isLatest = startCall();
    const all = await app.store.tensor(layer.buckets);
    const weights = await app.store.row(app.trace(), layer, head, row);
    if (!isLatest()) return;
    others.root.hidden = selected === layer;
    others.show(hashLayers.map(({title}) => title), hashLayers.indexOf(layer));
    const count = all.shape[2];
    const buckets = all.data.subarray(head * layer.queries * count, (head + 1) * layer.queries * count);
    const inPart = shown && built.startsWith(`${layer.name} ${head} `) && row >= shown.part[0] && row < shown.part[1];
    const start = inPart ? shown.part[0] : Math.max(0, Math.min(row - windowLength / 2, layer.queries - windowLength));
    const part = [start, Math.min(layer.queries, start + windowLength)];
    shown = {...(inPart ? shown : {}), tokens: app.trace().sides[layer.rows].tokens, part, buckets, count, layer, row, weights};
    const key = `${layer.name} ${head} ${start}`;
    note.textContent = `${headOf(layer, head)}: ${count} hash ${count === 1 ? "round" : "rounds"}. ` +
      (layer.queries > windowLength ? `Tokens ${part[0].toLocaleString("en")} to ${(part[1] - 1).toLocaleString("en")} of ${layer.queries.toLocaleString("en")} are shown.` : "Point at a token to see the tokens in its buckets.");
    if (built !== key || names.includes("theme")) {
      build(shown);
      draw(shown);
    }
    built = key;
    mark(shown);
    list(shown);
  }

  const npz = () => ({
    buckets: {shape: [shown.layer.queries, shown.count], data: shown.buckets.slice()}, shared: {shape: [shown.size, shown.size], data: shown.shared},
    tokens: shown.tokens,
  });
  const drawing = () => {
    const picture = enlarged(canvas);
    return pictured(picture, picture.width, picture.height);
  };
  return {update, save: {png: () => enlarged(canvas), svg: drawing, npz}};
}

export const bucketsView = {
  name: "buckets", title: "LSH buckets", key: "b",
  about: "LSH attention: the bucket of each token in each hash round, and which tokens share one.",
  fits: (trace) => trace.layers.some((layer) => layer.buckets),
  mount: mountBuckets,
};
