// LSH attention: in which bucket each token fell in each round, and who met whom.
import {element, hideValue, number, showValue, visible} from "./dom.js";
import {headColour, paint} from "./colour.js";
import {pictured} from "./save.js";
import {enlarged} from "./small.js";
import {chooser, moved, tokenWord, turns, within} from "./tokens.js";

const windowLength = 192; // of a long text the tokens around the chosen one are shown

// How often tokens of a part [start, stop) fell into one bucket: {size, data}, rounds counted; never with a later one when causal.
export function meetings(buckets, rounds, [start, stop], causal) {
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
  const turn = turns();
  const hashed = app.look().layers.filter((layer) => layer.buckets);
  const others = chooser("Layers with buckets:", (at) => state.set({layer: hashed[at].name}));
  const note = element("p", {class: "quiet"});
  const rounds = element("div", {class: "rounds"});
  const met = element("div", {class: "met"});
  const canvas = element("canvas", {class: "table square", role: "img", tabindex: 0, "data-own": true});
  const matrix = element("section", {}, element("h3", {}, "Who met whom"),
    element("p", {class: "quiet"}, "Rows look, columns are looked at; more colour is more rounds in one bucket."), canvas);
  root.append(others.root, note, rounds, element("div", {class: "pair"}, element("section", {}, element("h3", {}, "Whom it met"), met), matrix));
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

  // One line a round: the tokens in the order of their buckets, a box a bucket.
  function build({tokens, part: [start, stop], buckets, count}) {
    rounds.replaceChildren(...Array.from({length: count}, (_, round) => {
      const inside = new Map();
      for (let t = start; t < stop; t++) {
        const bucket = buckets[t * count + round];
        if (!inside.has(bucket)) inside.set(bucket, []);
        inside.get(bucket).push(t);
      }
      const boxes = [...inside].sort(([a], [b]) => a - b).map(([bucket, list]) => {
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

  // Whom the chosen token met: the rounds as dots, the weight it gave.
  function list({row, layer, tokens, buckets, count, weights}) {
    const lines = [];
    for (let s = 0; s < (layer.causal ? row + 1 : layer.keys); s++) {
      const found = Array.from({length: count}, (_, r) => buckets[row * count + r] === buckets[s * count + r]);
      if (s === row || !(found.some(Boolean) || weights[s] > 0)) continue;
      lines.push({s, found, weight: weights[s]});
    }
    lines.sort((a, b) => b.weight - a.weight || a.s - b.s);
    const dots = (found) => found.map((yes) => (yes ? "●" : "○")).join(" ");
    const said = (found) => (found.some(Boolean) ? `round ${found.map((yes, r) => (yes ? r + 1 : 0)).filter(Boolean).join(", ")}` : "beside its bucket");
    const rows = lines.slice(0, 40).map(({s, found, weight}) => element("tr",
      {"data-key": s, "data-rounds": found.filter(Boolean).length, "data-weight": weight},
      element("th", {scope: "row"}, tokenWord(tokens[s]), element("small", {}, ` ${s}`)),
      element("td", {class: "dots", "aria-label": said(found)}, dots(found)), element("td", {}, said(found)), element("td", {}, number(weight))));
    met.replaceChildren(
      element("p", {}, tokenWord(tokens[row], {class: "said"}),
        ` (token ${row}) met ${lines.filter(({found}) => found.some(Boolean)).length} others in ${count} ${count === 1 ? "round" : "rounds"}`,
        lines.length > 40 ? "; the 40 weightiest are listed." : "."),
      ...(rows.length ? [element("div", {class: "scroll"}, element("table", {class: "keys"},
        element("thead", {}, element("tr", {}, ["token", "met", "found by", "weight"].map((text) => element("th", {scope: "col"}, text)))),
        element("tbody", {}, rows)))] : []));
    app.say(`${visible(tokens[row])} met ${lines.length} others`);
  }

  function draw({part, buckets, count, layer}) {
    const {size, data} = meetings(buckets, count, part, layer.causal);
    paint(canvas, data, size, size, (times) => times / count);
    canvas.dataset.first = String(part[0]);
    canvas.setAttribute("aria-label", `How many of ${count} rounds brought two tokens together, ${size} by ${size}; arrow keys read it`);
    const side = Math.max(160, Math.min(420, size * Math.max(1, Math.floor(420 / size))));
    canvas.style.width = canvas.style.height = `${side}px`;
    shown.met = data;
    shown.size = size;
  }

  let cursor = [0, 0];
  function tell(row, column, x, y) {
    cursor = [row, column];
    const {tokens, part, met: data, size, count} = shown;
    const value = data[row * size + column];
    const lines = [`${visible(tokens[part[0] + row])} → ${visible(tokens[part[0] + column])}`, `${value} of ${count} rounds`];
    showValue(x, y, lines, {row: part[0] + row, column: part[0] + column, value});
    return lines.join(": ");
  }
  const placeOf = (event) => {
    const box = canvas.getBoundingClientRect();
    return [within(Math.floor(((event.clientY - box.top) / box.height) * shown.size), shown.size),
      within(Math.floor(((event.clientX - box.left) / box.width) * shown.size), shown.size)];
  };
  canvas.addEventListener("pointermove", (event) => shown && tell(...placeOf(event), event.clientX, event.clientY));
  canvas.addEventListener("click", (event) => shown && state.set({row: shown.part[0] + placeOf(event)[0]}));
  canvas.addEventListener("pointerleave", hideValue);
  canvas.addEventListener("blur", hideValue);
  canvas.addEventListener("keydown", (event) => {
    const way = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
    if (!way || !shown) return;
    event.preventDefault();
    event.stopPropagation();
    const [row, column] = [within(cursor[0] + way[0], shown.size, cursor[0]), within(cursor[1] + way[1], shown.size, cursor[1])];
    const box = canvas.getBoundingClientRect();
    app.say(tell(row, column, box.left + ((column + 0.5) * box.width) / shown.size, box.top + ((row + 0.5) * box.height) / shown.size));
  });

  async function update(names) {
    const selected = app.layer();
    const layer = selected?.buckets ? selected : hashed[0];
    const head = within(state.get("head"), layer.heads);
    const row = within(state.get("row"), layer.queries, layer.causal ? layer.queries - 1 : 0); // the last could meet them all
    const mine = turn();
    const all = await app.store.tensor(layer.buckets);
    const weights = await app.store.row(app.look(), layer, head, row);
    if (!mine()) return;
    others.root.hidden = selected === layer;
    others.show(hashed.map(({name}) => name), hashed.indexOf(layer));
    const count = all.shape[2];
    const buckets = all.data.subarray(head * layer.queries * count, (head + 1) * layer.queries * count);
    const inPart = shown && built.startsWith(`${layer.name} ${head} `) && row >= shown.part[0] && row < shown.part[1];
    const start = inPart ? shown.part[0] : Math.max(0, Math.min(row - windowLength / 2, layer.queries - windowLength));
    const part = [start, Math.min(layer.queries, start + windowLength)];
    shown = {...(inPart ? shown : {}), tokens: app.look().sides[layer.rows].tokens, part, buckets, count, layer, row, weights};
    const key = `${layer.name} ${head} ${start}`;
    note.textContent = `${layer.name}, head ${head}: ${count} ${count === 1 ? "round" : "rounds"} of hashing. ` +
      (layer.queries > windowLength ? `Tokens ${part[0]} to ${part[1] - 1} of ${layer.queries} are shown.` : "Point at a token to see whom it met.");
    if (built !== key || names.includes("theme")) {
      build(shown);
      draw(shown);
    }
    built = key;
    mark(shown);
    list(shown);
  }

  const npz = () => ({
    buckets: {shape: [shown.layer.queries, shown.count], data: shown.buckets.slice()}, met: {shape: [shown.size, shown.size], data: shown.met},
    tokens: shown.tokens,
  });
  const drawing = () => {
    const picture = enlarged(canvas);
    return pictured(picture, picture.width, picture.height);
  };
  return {update, save: {png: () => enlarged(canvas), svg: drawing, npz}};
}

export const bucketsView = {
  name: "buckets", title: "Buckets", key: "b",
  about: "LSH attention: in which bucket each token fell in each round, and who met whom.",
  fits: (look) => look.layers.some((layer) => layer.buckets),
  mount: mountBuckets,
};
