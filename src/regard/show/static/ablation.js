// Ablation: heads switched off, and how the loss and the predictions change.
import {element, hideValue, number, scrollBox, showValue, svg, visible, word} from "./dom.js";
import {shade} from "./colour.js";
import {headOf} from "./labels.js";
import {tokenWord, latestCall} from "./tokens.js";

const cellWide = 48;
const cellTall = 27;
const listedChanges = 100; // changed predictions in a table

const signed = (x) => (x > 0 ? `+${number(x)}` : number(x));
const keyOf = (layer, head) => `${layer}:${head}`;

// The heads that an address names, if they exist.
function tickedOf(text, trace) {
  const wanted = new Set(String(text ?? "").split(";"));
  return trace.layers.flatMap(({name, heads}) => Array.from({length: heads}, (_, head) => [name, head])).filter(([name, head]) => wanted.has(keyOf(name, head)));
}

// The changed predictions as a table, one line per token; a label has no position.
function changedTable(trace, changed) {
  if (!changed.length) return element("p", {class: "quiet"}, "No prediction changes.");
  const tokens = (trace.sides.target ?? trace.sides.decoder_input ?? trace.sides.source)?.tokens ?? [];
  const positionOf = (row) => (row < 0 ? "label" : [trace.shape === "decoder" ? "after " : `${row} `, tokenWord(tokens[row] ?? "")]);
  const table = element("table", {class: "keys changed"}, element("thead", {},
    element("tr", {}, ["position", "before", "", "after"].map((text) => element("th", {scope: "col"}, text)))),
    element("tbody", {}, changed.slice(0, listedChanges).map(([row, before, after]) => element("tr", {"data-row": row, "data-before": visible(before), "data-after": visible(after)},
      element("th", {scope: "row"}, positionOf(row)), element("td", {}, tokenWord(before)), element("td", {class: "quiet"}, "→"),
      element("td", {}, tokenWord(after, {class: "boxed"}))))));
  const left = changed.length - listedChanges;
  return left > 0 ? element("div", {}, table, element("p", {class: "quiet"}, `and ${left.toLocaleString("en")} more`)) : table;
}

function mountAblation(root, app) {
  const {state, page} = app;
  const trace = app.trace();
  const {ablation} = trace;
  const found = new Map((ablation?.heads ?? []).map((one) => [keyOf(one.layer, one.head), one]));
  const change = (one) => (one.loss === null || ablation.loss === null ? null : one.loss - ablation.loss);
  const most = Math.max(1e-9, ...[...found.values()].map((one) => Math.abs(change(one) ?? 0)));
  const digits = most >= 0.1 ? 2 : most >= 0.01 ? 3 : 4;
  const brief = (delta) => (Math.abs(delta) < 0.5 * 10 ** -digits ? "0" : signed(Number(delta.toFixed(digits))));
  const layers = trace.layers.filter(({name}) => page.live || (ablation?.heads ?? []).some((one) => one.layer === name));
  const layerOf = (one) => trace.layers.find(({name}) => name === one.layer);
  const titleOf = (one) => headOf(layerOf(one), one.head);
  const widest = Math.max(...layers.map(({heads}) => heads), 1);
  const startCall = latestCall();
  const left = 210;
  const grid = svg("svg", {
    class: "grid", role: "grid", "aria-label": "Change of loss with a head switched off, layers by heads", width: left + widest * cellWide + 4,
    height: 24 + layers.length * cellTall, viewBox: `0 0 ${left + widest * cellWide + 4} ${24 + layers.length * cellTall}`,
  });
  const panel = element("section", {class: "panel", "aria-live": "polite"});
  const body = element("tbody");
  const table = element("section");
  const result = element("section", {class: "panel", id: "ablation-result", hidden: !page.live});
  const unit = ablation ? visible(ablation.unit) : "";
  const about = element("p", {}, ablation ? ["Loss without ablation: ", element("output", {"data-loss": ablation.loss}, number(ablation.loss)),
    ` ${unit}. Blue: the loss rises with the head switched off; orange: it falls.`] : "Tick heads to switch them off.",
    page.live ? " Ticked heads are switched off together." : "");
  const offline = element("p", {class: "quiet", hidden: Boolean(page.live)},
    "This file has each head switched off on its own; the live page (regard show without --out) switches off several at once.");
  root.append(about, offline, element("div", {class: "pair"}, element("section", {}, scrollBox({}, grid)),
    element("div", {}, panel, result)), table);
  const cells = [];

  function buildGrid() {
    cells.length = 0;
    const parts = Array.from({length: widest}, (_, head) => svg("text", {class: "tick", x: left + (head + 0.5) * cellWide, y: 14, "text-anchor": "middle"},
      String(head)));
    layers.forEach((layer, at) => {
      const {name, heads} = layer;
      const y = 22 + at * cellTall;
      const line = svg("g", {role: "row"}, svg("text", {class: "name", role: "rowheader", x: left - 10, y: y + cellTall / 2, dy: ".35em",
        "text-anchor": "end"}, svg("title", {}, visible(layer.tip)), visible(layer.title)));
      for (let head = 0; head < heads; head++) {
        const one = found.get(keyOf(name, head));
        const delta = one ? change(one) : null;
        const share = delta === null ? 0.5 : 0.5 + (0.5 * delta) / most;
        const back = svg("rect", {width: cellWide - 3, height: cellTall - 3, rx: 3});
        back.style.fill = shade(share, "diverging");
        const cell = svg("g", {
          class: Math.abs(share - 0.5) > 0.28 ? "cell strong" : "cell", role: "gridcell", tabindex: -1, transform: `translate(${left + head * cellWide} ${y})`,
          "data-layer": name, "data-head": head, "data-loss": one?.loss, "data-value": delta,
          "aria-label": `${visible(headOf(layer, head))}: ${delta === null ? "unknown" : `loss ${signed(delta)}`}`,
        }, back, svg("text", {x: (cellWide - 3) / 2, y: (cellTall - 3) / 2, dy: ".35em", "text-anchor": "middle"}, delta === null ? "" : brief(delta)));
        cells.push({cell, layer, name, head, at});
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
    const ticked = tickedOf(state.get("ticked"), trace).map(([layer, number]) => keyOf(layer, number));
    const key = keyOf(name, head);
    const now = ticked.includes(key) ? ticked.filter((other) => other !== key) : [...ticked, key];
    state.set({ticked: now.join(";") || null});
  }
  grid.addEventListener("pointermove", (event) => {
    const one = cellOf(event);
    const known = one && found.get(keyOf(one.name, one.head));
    if (!known) return hideValue();
    showValue(event.clientX, event.clientY, [headOf(one.layer, one.head), `loss ${number(known.loss)} (${signed(change(known))})`,
      `${known.changed.length} predictions change`],
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

  // The same numbers as a sortable table.
  const columns = [["layer", "layer"], ["head", "head"], ["loss", "loss"], ["change", "change"], ["predictions", "predictions changed"]];
  function buildTable() {
    const [by, down] = [String(state.get("order") ?? "-change").replace("-", ""), String(state.get("order") ?? "-change").startsWith("-")];
    const value = {layer: (one) => layers.findIndex(({name}) => name === one.layer), head: (one) => one.head, loss: (one) => one.loss, change,
      predictions: (one) => one.changed.length}[by] ?? change;
    const rows = [...found.values()].sort((a, b) => (down ? -1 : 1) * (value(a) - value(b)));
    const ticked = new Set(tickedOf(state.get("ticked"), trace).map(([layer, head]) => keyOf(layer, head)));
    body.replaceChildren(...rows.map((one) => element("tr",
      {"data-layer": one.layer, "data-head": one.head, "data-loss": one.loss, "data-value": change(one),
      class: one.layer === state.get("layer") && one.head === state.get("head") ? "chosen" : null},
      page.live ? element("td", {}, element("input", {type: "checkbox", "aria-label": `${visible(titleOf(one))} switched off`,
        checked: ticked.has(keyOf(one.layer, one.head)), onchange: () => tick(one.layer, one.head)})) : null,
      element("th", {scope: "row"}, element("button", {type: "button", class: "plain", onclick: () => select({name: one.layer, head: one.head})},
        word(layerOf(one).title))),
      element("td", {}, String(one.head)), element("td", {}, number(one.loss)), element("td", {}, signed(change(one))),
      element("td", {}, String(one.changed.length)))));
    const heads = columns.map(([name, text]) => element("th", {scope: "col", "aria-sort": name === by ? (down ? "descending" : "ascending") : "none"},
      element("button", {type: "button", class: "plain", "data-order": name, onclick: () => state.set({order: by === name && down ? name : `-${name}`})},
        `${text}${name === by ? (down ? " ↓" : " ↑") : ""}`)));
    table.replaceChildren(element("h3", {}, "All heads"),
      scrollBox({class: "short"}, element("table", {class: "keys sortable"},
      element("thead", {}, element("tr", {}, page.live ? element("th", {scope: "col"}, "off") : null, heads)), body)));
  }

  function showOne() {
    const [name, head] = [state.get("layer"), state.get("head")];
    const one = found.get(keyOf(name, head));
    const chosen = cells.find((cell) => cell.name === name && cell.head === head) ?? cells[0];
    const ticked = new Set(tickedOf(state.get("ticked"), trace).map(([layer, number]) => keyOf(layer, number)));
    for (const {cell, name: layer, head: number} of cells) {
      cell.setAttribute("tabindex", cell === chosen?.cell ? 0 : -1);
      cell.setAttribute("aria-selected", layer === name && number === head ? "true" : "false");
      cell.classList.toggle("ticked", ticked.has(keyOf(layer, number)));
    }
    panel.hidden = !one;
    if (!one) return;
    panel.replaceChildren(element("h3", {}, word(titleOf(one)), " switched off"),
      element("p", {class: "sum"}, `${number(ablation.loss)} → `, element("output", {"data-loss": one.loss}, number(one.loss)),
        ` ${unit} (${signed(change(one))})`), changedTable(trace, one.changed));
    app.announce(`${visible(titleOf(one))} switched off: loss ${signed(change(one))}, ${one.changed.length} predictions change`);
  }

  async function ablateTicked() {
    const ticked = tickedOf(state.get("ticked"), trace);
    const isLatest = startCall();
    if (!ticked.length) return result.replaceChildren(element("h3", {}, "Several heads switched off"),
      element("p", {class: "quiet"}, "Tick heads in the table below, or press space on one in the grid."));
    result.replaceChildren(element("h3", {}, `${ticked.length} ${ticked.length === 1 ? "head" : "heads"} switched off`), element("p", {class: "quiet"}, "computing …"));
    const answer = await app.store.post("ablate", {trace: page.traces.indexOf(trace), heads: ticked});
    if (!isLatest()) return;
    result.replaceChildren(...[element("h3", {}, `${ticked.length} ${ticked.length === 1 ? "head" : "heads"} switched off`),
      element("p", {class: "sum"}, ablation ? `${number(ablation.loss)} → ` : "loss ", element("output", {"data-loss": answer.loss}, number(answer.loss)),
        ` ${unit}${ablation ? ` (${signed(answer.loss - ablation.loss)})` : ""}`),
      answer.output === null || answer.output === undefined ? null : element("p", {}, "output: ", word(answer.output, {class: "boxed", id: "ablation-output"})),
      changedTable(trace, answer.changed)].filter(Boolean));
    app.announce(`${ticked.length} heads switched off: loss ${number(answer.loss)}`);
  }

  let requested = null;
  async function update(names) {
    if (!cells.length || names.includes("theme")) buildGrid();
    if (ablation && (!body.children.length || names.some((name) => ["order", "ticked", "layer", "head"].includes(name)))) buildTable();
    showOne();
    const now = String(state.get("ticked"));
    if (page.live && now !== requested) {
      requested = now;
      await ablateTicked();
    }
  }

  const npz = () => {
    const all = [...found.values()];
    return {
      layers: all.map((one) => one.layer), heads: {shape: [all.length], data: Int32Array.from(all, (one) => one.head)},
      loss: {shape: [all.length], data: Float64Array.from(all, (one) => one.loss)}, baseline: {shape: [1], data: Float64Array.of(ablation.loss)},
    };
  };
  return {update, save: {png: () => grid, svg: () => grid, ...(ablation ? {npz} : {})}};
}

export const ablationView = {
  name: "ablation", title: "Ablation", key: "x",
  about: "Ablation: switch heads off and see how the loss and the predictions change.",
  fits: (trace, page) => Boolean(trace.layers.length && (trace.ablation || page.live)),
  mount: mountAblation,
};
