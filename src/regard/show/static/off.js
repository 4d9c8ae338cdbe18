// What heads are for: switch them off and see loss and words change.
import {element, hideValue, number, showValue, svg, visible, word} from "./dom.js";
import {shade} from "./colour.js";
import {tokenWord, turns} from "./tokens.js";

const cellWide = 48;
const cellTall = 27;
const listedChanges = 100; // of what is said otherwise, in a table

const signed = (x) => (x > 0 ? `+${number(x)}` : number(x));
const keyOf = (layer, head) => `${layer}:${head}`;

// The heads that an address names, those that exist.
function tickedOf(text, look) {
  const wanted = new Set(String(text ?? "").split(";"));
  return look.layers.flatMap(({name, heads}) => Array.from({length: heads}, (_, head) => [name, head])).filter(([name, head]) => wanted.has(keyOf(name, head)));
}

// What changes, as a table: was and is now, a line a token; a label has no place.
function changedTable(look, changed) {
  if (!changed.length) return element("p", {class: "quiet"}, "Every likeliest prediction stays as it was.");
  const tokens = (look.sides.said ?? look.sides.read ?? look.sides.source)?.tokens ?? [];
  const place = (row) => (row < 0 ? "label" : [look.shape === "decoder" ? "after " : `${row} `, tokenWord(tokens[row] ?? "")]);
  const table = element("table", {class: "keys changed"}, element("thead", {},
    element("tr", {}, ["at", "was", "", "is now"].map((text) => element("th", {scope: "col"}, text)))),
    element("tbody", {}, changed.slice(0, listedChanges).map(([row, was, now]) => element("tr", {"data-row": row, "data-was": visible(was), "data-now": visible(now)},
      element("th", {scope: "row"}, place(row)), element("td", {}, tokenWord(was)), element("td", {class: "quiet"}, "→"),
      element("td", {}, tokenWord(now, {class: "said"}))))));
  const left = changed.length - listedChanges;
  return left > 0 ? element("div", {}, table, element("p", {class: "quiet"}, `and ${left.toLocaleString("en")} more`)) : table;
}

function mountOff(root, app) {
  const {state, page} = app;
  const look = app.look();
  const off = look.off;
  const found = new Map((off?.heads ?? []).map((one) => [keyOf(one.layer, one.head), one]));
  const change = (one) => (one.loss === null || off.loss === null ? null : one.loss - off.loss);
  const most = Math.max(1e-9, ...[...found.values()].map((one) => Math.abs(change(one) ?? 0)));
  const places = most >= 0.1 ? 2 : most >= 0.01 ? 3 : 4;
  const brief = (delta) => (Math.abs(delta) < 0.5 * 10 ** -places ? "0" : signed(Number(delta.toFixed(places))));
  const layers = look.layers.filter(({name}) => page.live || (off?.heads ?? []).some((one) => one.layer === name));
  const widest = Math.max(...layers.map(({heads}) => heads), 1);
  const turn = turns();
  const left = 148;
  const grid = svg("svg", {
    class: "grid", role: "grid", "aria-label": "Change of loss with a head switched off, layers by heads", width: left + widest * cellWide + 4,
    height: 24 + layers.length * cellTall, viewBox: `0 0 ${left + widest * cellWide + 4} ${24 + layers.length * cellTall}`,
  });
  const panel = element("section", {class: "panel", "aria-live": "polite"});
  const body = element("tbody");
  const table = element("section");
  const answer = element("section", {class: "panel", id: "off-answer", hidden: !page.live});
  const unit = off ? visible(off.measure) : "";
  const about = element("p", {}, off ? ["Loss as it is: ", element("output", {"data-loss": off.loss}, number(off.loss)),
    ` ${unit}. Blue: the loss rises without the head; orange: it falls.`] : "Tick heads to switch them off.",
    page.live ? " Ticked heads are switched off together." : "");
  const alone = element("p", {class: "quiet", hidden: Boolean(page.live)},
    "In this file heads are off one at a time; the live page (regard show without --out) switches off several at once.");
  root.append(about, alone, element("div", {class: "pair"}, element("section", {}, element("div", {class: "scroll"}, grid)),
    element("div", {}, panel, answer)), table);
  const cells = [];

  function buildGrid() {
    cells.length = 0;
    const parts = Array.from({length: widest}, (_, head) => svg("text", {class: "tick", x: left + (head + 0.5) * cellWide, y: 14, "text-anchor": "middle"},
      String(head)));
    layers.forEach(({name, heads}, at) => {
      const y = 22 + at * cellTall;
      const line = svg("g", {role: "row"}, svg("text", {class: "name", role: "rowheader", x: left - 10, y: y + cellTall / 2, dy: ".35em",
        "text-anchor": "end"}, visible(name)));
      for (let head = 0; head < heads; head++) {
        const one = found.get(keyOf(name, head));
        const delta = one ? change(one) : null;
        const share = delta === null ? 0.5 : 0.5 + (0.5 * delta) / most;
        const back = svg("rect", {width: cellWide - 3, height: cellTall - 3, rx: 3});
        back.style.fill = shade(share, "diverging");
        const cell = svg("g", {
          class: Math.abs(share - 0.5) > 0.28 ? "cell strong" : "cell", role: "gridcell", tabindex: -1, transform: `translate(${left + head * cellWide} ${y})`,
          "data-layer": name, "data-head": head, "data-loss": one?.loss, "data-value": delta,
          "aria-label": `${visible(name)}, head ${head}: ${delta === null ? "not known" : `loss ${signed(delta)}`}`,
        }, back, svg("text", {x: (cellWide - 3) / 2, y: (cellTall - 3) / 2, dy: ".35em", "text-anchor": "middle"}, delta === null ? "" : brief(delta)));
        cells.push({cell, name, head, at});
        line.append(cell);
      }
      parts.push(line);
    });
    grid.replaceChildren(...parts);
  }

  const cellOf = (event) => {
    const node = event.target.closest?.('[role="gridcell"]');
    return cells.find(({cell}) => cell === node) ?? null;
  };
  const select = ({name, head}) => state.set({layer: name, head});
  function tick(name, head) {
    const ticked = tickedOf(state.get("ticked"), look).map(([layer, number]) => keyOf(layer, number));
    const key = keyOf(name, head);
    const now = ticked.includes(key) ? ticked.filter((other) => other !== key) : [...ticked, key];
    state.set({ticked: now.join(";") || null});
  }
  grid.addEventListener("pointermove", (event) => {
    const one = cellOf(event);
    const known = one && found.get(keyOf(one.name, one.head));
    if (!known) return hideValue();
    showValue(event.clientX, event.clientY, [`${one.name}, head ${one.head}`, `loss ${number(known.loss)} (${signed(change(known))})`,
      `${known.changed.length} of the likeliest words change`],
      {row: one.name, column: one.head, value: change(known)});
  });
  grid.addEventListener("pointerleave", hideValue);
  grid.addEventListener("click", (event) => {
    const one = cellOf(event);
    if (!one) return;
    if (page.live && (event.shiftKey || event.ctrlKey || event.metaKey)) tick(one.name, one.head);
    else select(one);
  });
  grid.addEventListener("keydown", (event) => {
    const one = cellOf(event);
    if (!one) return;
    const way = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
    if (page.live && event.key === " ") tick(one.name, one.head);
    else if (!way) return;
    event.preventDefault();
    event.stopPropagation();
    if (!way) return;
    const next = cells.find(({at, head}) => at === one.at + way[0] && head === Math.min(one.head + way[1], (layers[at]?.heads ?? 1) - 1));
    if (!next) return;
    select(next);
    next.cell.focus();
  });

  // The same numbers as a table that can be sorted.
  const columns = [["layer", "layer"], ["head", "head"], ["loss", "loss"], ["change", "change"], ["words", "words changed"]];
  function buildTable() {
    const [by, down] = [String(state.get("order") ?? "-change").replace("-", ""), String(state.get("order") ?? "-change").startsWith("-")];
    const value = {layer: (one) => layers.findIndex(({name}) => name === one.layer), head: (one) => one.head, loss: (one) => one.loss, change,
      words: (one) => one.changed.length}[by] ?? change;
    const rows = [...found.values()].sort((a, b) => (down ? -1 : 1) * (value(a) - value(b)));
    const ticked = new Set(tickedOf(state.get("ticked"), look).map(([layer, head]) => keyOf(layer, head)));
    body.replaceChildren(...rows.map((one) => element("tr",
      {"data-layer": one.layer, "data-head": one.head, "data-loss": one.loss, "data-value": change(one),
      class: one.layer === state.get("layer") && one.head === state.get("head") ? "chosen" : null},
      page.live ? element("td", {}, element("input", {type: "checkbox", "aria-label": `${visible(one.layer)}, head ${one.head} off`,
        checked: ticked.has(keyOf(one.layer, one.head)), onchange: () => tick(one.layer, one.head)})) : null,
      element("th", {scope: "row"}, element("button", {type: "button", class: "plain", onclick: () => select({name: one.layer, head: one.head})},
        word(one.layer))),
      element("td", {}, String(one.head)), element("td", {}, number(one.loss)), element("td", {}, signed(change(one))),
      element("td", {}, String(one.changed.length)))));
    const heads = columns.map(([name, text]) => element("th", {scope: "col", "aria-sort": name === by ? (down ? "descending" : "ascending") : "none"},
      element("button", {type: "button", class: "plain", "data-order": name, onclick: () => state.set({order: by === name && down ? name : `-${name}`})},
        `${text}${name === by ? (down ? " ↓" : " ↑") : ""}`)));
    table.replaceChildren(element("h3", {}, "All heads"),
      element("div", {class: "scroll short"}, element("table", {class: "keys sortable"},
      element("thead", {}, element("tr", {}, page.live ? element("th", {scope: "col"}, "off") : null, heads)), body)));
  }

  function showOne() {
    const [name, head] = [state.get("layer"), state.get("head")];
    const one = found.get(keyOf(name, head));
    const chosen = cells.find((cell) => cell.name === name && cell.head === head) ?? cells[0];
    const ticked = new Set(tickedOf(state.get("ticked"), look).map(([layer, number]) => keyOf(layer, number)));
    for (const {cell, name: layer, head: number} of cells) {
      cell.setAttribute("tabindex", cell === chosen?.cell ? 0 : -1);
      cell.setAttribute("aria-selected", layer === name && number === head ? "true" : "false");
      cell.classList.toggle("ticked", ticked.has(keyOf(layer, number)));
    }
    panel.hidden = !one;
    if (!one) return;
    panel.replaceChildren(element("h3", {}, word(name), `, head ${head} off`),
      element("p", {class: "sum"}, `${number(off.loss)} → `, element("output", {"data-loss": one.loss}, number(one.loss)),
        ` ${unit} (${signed(change(one))})`), changedTable(look, one.changed));
    app.say(`${visible(name)}, head ${head} off: loss ${signed(change(one))}, ${one.changed.length} predictions change`);
  }

  async function ask() {
    const ticked = tickedOf(state.get("ticked"), look);
    const mine = turn();
    if (!ticked.length) return answer.replaceChildren(element("h3", {}, "Several heads off"),
      element("p", {class: "quiet"}, "Tick heads in the table below, or press space on one in the grid."));
    answer.replaceChildren(element("h3", {}, `${ticked.length} ${ticked.length === 1 ? "head" : "heads"} off`), element("p", {class: "quiet"}, "computing …"));
    const got = await app.store.post("off", {look: page.looks.indexOf(look), heads: ticked});
    if (!mine()) return;
    answer.replaceChildren(...[element("h3", {}, `${ticked.length} ${ticked.length === 1 ? "head" : "heads"} off`),
      element("p", {class: "sum"}, off ? `${number(off.loss)} → ` : "loss ", element("output", {"data-loss": got.loss}, number(got.loss)),
        ` ${unit}${off ? ` (${signed(got.loss - off.loss)})` : ""}`),
      got.said === null || got.said === undefined ? null : element("p", {}, "says ", word(got.said, {class: "said", id: "off-said"})),
      changedTable(look, got.changed)].filter(Boolean));
    app.say(`${ticked.length} heads off: loss ${number(got.loss)}`);
  }

  let asked = null;
  async function update(names) {
    if (!cells.length || names.includes("theme")) buildGrid();
    if (off && (!body.children.length || names.some((name) => ["order", "ticked", "layer", "head"].includes(name)))) buildTable();
    showOne();
    const now = String(state.get("ticked"));
    if (page.live && now !== asked) {
      asked = now;
      await ask();
    }
  }

  const npz = () => {
    const all = [...found.values()];
    return {
      layers: all.map((one) => one.layer), heads: {shape: [all.length], data: Int32Array.from(all, (one) => one.head)},
      loss: {shape: [all.length], data: Float64Array.from(all, (one) => one.loss)}, unchanged: {shape: [1], data: Float64Array.of(off.loss)},
    };
  };
  return {update, save: {png: () => grid, svg: () => grid, ...(off ? {npz} : {})}};
}

export const offView = {
  name: "off", title: "Heads off", key: "x",
  about: "Switch heads off and see the loss and the words change.",
  fits: (look, page) => Boolean(look.layers.length && (look.off || page.live)),
  mount: mountOff,
};
