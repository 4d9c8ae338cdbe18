// Head view: queries on the left joined by lines to keys on the right, one colour per head.
import {element, framed, hideValue, number, showValue, svg, visible} from "./dom.js";
import {colour, headColour} from "./colour.js";
import {chosenMatrix, summaries, textsOf, tokenAt, unitAt} from "./merge.js";
import {headTitle, sideTitles} from "./labels.js";
import {AttentionLines} from "./attention_lines.js";
import {eachTop} from "./store.js";


class HeadView {
  constructor(root, app) {
    [this.root, this.app] = [root, app];
    this.chips = element("div", {class: "chips", role: "group", "aria-label": "Heads"});
    const canvas = element("canvas", {"aria-hidden": "true"});
    const drawing = svg("svg", {id: "head-drawing", role: "group", "aria-label": "Queries on the left attend to keys on the right",
      onpointerleave: () => this.leave()});
    this.lines = new AttentionLines(canvas, drawing);
    this.still = element("div", {class: "still"}, canvas, drawing);
    this.spacer = element("div", {});
    this.box = element("div", {class: "lines", onkeydown: (event) => this.key(event)}, this.still, this.spacer);
    this.box.addEventListener("scroll", framed(() => this.draw()));
    root.append(element("div", {class: "tools"}, this.chips), this.box);
    [this.hover, this.call, this.shown] = [null, 0, null]; // hover: {side: "row" | "column", unit}
    const whole = () => this.lines.whole();
    this.save = {svg: whole, png: whole, npz: () => this.arrays()};
  }

  // The drawn heads: [{head, paint, name}]; a summary is drawn in the accent colour.
  drawnHeads() {
    const {state} = this.app;
    const summary = state.get("summary");
    if (summary !== "head") return [{head: state.get("head"), paint: colour("--accent"), name: summaries[summary]}];
    const heads = state.get("heads") ?? [...Array(this.app.layer().heads).keys()];
    return heads.map((head) => ({head, paint: headColour(head), name: headTitle(head)}));
  }

  async update(names) {
    const {app} = this;
    const {state} = app;
    const picked = names.includes("head") && !names.includes("view") && !names.includes("layer");
    const onlyHead = String(state.get("heads")) === String(state.get("head"));
    if (picked && !onlyHead && state.get("summary") === "head") return state.set({heads: [state.get("head")]});
    const call = ++this.call;
    const [trace, layer, {words, summary}] = [app.trace(), app.layer(), app.choice()];
    const weighted = async (one) => ({...one, ...(await this.weights(trace, layer, {head: one.head, summary, words}))});
    const shown = await Promise.all(this.drawnHeads().map(weighted));
    if (call !== this.call) return undefined;
    Object.assign(this, {trace, layer, words, shown});
    [this.rows, this.columns] = [textsOf(trace.sides[layer.rows], words), textsOf(trace.sides[layer.columns], words)];
    const captions = layer.rows === layer.columns ? ["query", "key"] : [`query (${sideTitles[layer.rows]})`, `key (${sideTitles[layer.columns]})`];
    this.lines.show([this.rows, this.columns], shown, captions);
    this.chipRow();
    this.size();
    if (names.some((name) => ["row", "layer", "view"].includes(name))) this.reveal();
    return this.draw();
  }

  // The weights of one head: each(row, f) calls f(column, weight) for the stored weights of a row; of(row, column) is one of them.
  async weights(trace, layer, choice) {
    if (layer.weights) {
      const {columns, data, most} = await chosenMatrix(this.app.store, trace, layer, choice);
      const each = (row, f) => {
        for (let column = 0, at = row * columns; column < columns; column++, at++) if (data[at] > 0) f(column, data[at]);
      };
      return {each, most, of: (row, column) => data[row * columns + column]};
    }
    const top = await this.app.store.top(layer);
    const heads = choice.summary === "maximum" ? [...Array(layer.heads).keys()] : [choice.head];
    const each = (row, f) => {
      const found = new Map();
      for (const head of heads) eachTop(top, head, row, (key, weight) => found.set(key, Math.max(found.get(key) ?? 0, weight)));
      for (const [column, weight] of found) f(column, weight);
    };
    const of = (row, column) => {
      let found = 0;
      each(row, (key, weight) => (found = key === column ? weight : found));
      return found;
    };
    return {each, of, most: 1};
  }

  chipRow() {
    const {state} = this.app;
    const single = state.get("summary") === "head";
    const on = new Set(this.shown.map(({head}) => head));
    const all = [...Array(this.layer.heads).keys()];
    const choose = (heads) => state.set({heads: heads.length === all.length || !heads.length ? null : heads});
    const chip = (head) => {
      const made = element("button", {
        class: "chip", id: `chip-${head}`, "aria-pressed": on.has(head) ? "true" : "false", "aria-label": headTitle(head), title: `${headTitle(head)}; double click: only this head`,
        onclick: () => choose(all.filter((other) => on.has(other) !== (other === head))),
        ondblclick: () => choose([head]),
      }, `${head}`);
      made.style.setProperty("--mine", headColour(head));
      return made;
    };
    const chips = single ? all.map(chip) : [element("span", {class: "quiet"}, summaries[state.get("summary")])];
    const whole = on.size === all.length;
    if (single && all.length > 1) chips.push(element("button", {class: "chip-all", onclick: () => choose(whole ? [state.get("head")] : all)},
      whole ? "only one" : "all"));
    const at = [...this.chips.children].indexOf(document.activeElement);
    this.chips.replaceChildren(...chips);
    if (at >= 0) this.chips.children[at]?.focus();
  }

  size() {
    const top = this.box.getBoundingClientRect().top + window.scrollY;
    this.lines.size(this.box.clientWidth, Math.max(440, window.innerHeight - top - 20));
    this.still.style.height = `${this.lines.height}px`;
    this.spacer.style.height = `${this.lines.full - this.lines.height}px`;
    this.box.style.maxHeight = `${this.lines.height}px`;
  }

  selected() {
    const row = this.app.state.get("row");
    return row === null ? null : unitAt(this.trace.sides[this.layer.rows], this.words, row);
  }

  reveal() {
    const row = this.selected();
    this.scrolledTo();
    const share = row === null ? null : this.lines.reveal(row);
    if (share !== null) this.box.scrollTop = share * this.spacer.offsetHeight;
  }

  scrolledTo() {
    const travel = this.spacer.offsetHeight;
    this.lines.scrolled = travel > 0 ? Math.min(1, this.box.scrollTop / travel) : 0;
  }

  // Draw the lines of the unit under the pointer, else of the selected row, else all.
  draw() {
    if (!this.shown) return;
    const row = this.selected();
    this.scrolledTo();
    this.lines.selected = row;
    this.lines.focus = this.hover ?? (row === null ? null : {side: "row", unit: row});
    this.lines.fold();
    this.lines.draw((group, side, unit) => this.listen(group, side, unit));
  }

  leave() {
    hideValue();
    if (!this.hover) return;
    this.hover = null;
    this.draw();
  }

  listen(group, side, unit) {
    const {state} = this.app;
    group.addEventListener("pointerenter", (event) => {
      const row = this.selected();
      const paired = side === "column" && row !== null; // with a row selected, a key shows the weights between them
      const next = paired ? null : {side, unit};
      if (this.hover?.side !== next?.side || this.hover?.unit !== next?.unit) {
        this.hover = next;
        this.draw();
      }
      if (!paired) return hideValue();
      const amounts = this.shown.map((one) => one.of(row, unit));
      const mean = amounts.reduce((sum, weight) => sum + weight, 0) / amounts.length;
      const lines = this.shown.map((one, at) => `${one.name}: ${number(amounts[at])}`).slice(0, 16);
      return showValue(event.clientX, event.clientY, [`${visible(this.rows[row])} → ${visible(this.columns[unit])}`, ...lines],
        {row, column: unit, value: mean});
    });
    group.addEventListener("click", () => {
      const token = tokenAt(this.trace.sides[side === "row" ? this.layer.rows : this.layer.columns], this.words, unit);
      this.hover = null;
      if (side === "column") state.set({column: token});
      else state.set({row: this.selected() === unit ? null : token});
      this.draw();
    });
    group.addEventListener("focus", () => this.app.announce(group.getAttribute("aria-label")));
  }

  // Up and down move the selected row; Enter chooses.
  key(event) {
    const unit = event.target.closest(".unit");
    const step = {ArrowUp: -1, ArrowDown: 1}[event.key];
    if (!unit || !(step || event.key === "Enter" || event.key === " ")) return;
    event.preventDefault();
    if (!step) {
      unit.dispatchEvent(new MouseEvent("click"));
      return;
    }
    const next = Math.max(0, Math.min(this.rows.length - 1, (this.selected() ?? -step) + step));
    this.hover = null;
    this.app.state.set({row: tokenAt(this.trace.sides[this.layer.rows], this.words, next)});
    setTimeout(() => {
      this.lines.find("row", next)?.focus({preventScroll: true});
      this.announceRow(next);
    });
  }

  announceRow(row) {
    const best = [];
    for (const one of this.shown) one.each(row, (column, weight) => best.push([column, weight, one.name]));
    best.sort((a, b) => b[1] - a[1]);
    const texts = best.slice(0, 3).map(([column, weight, name]) => `${this.columns[column]} ${number(weight)} (${name})`);
    this.app.announce(visible(`${this.rows[row]} attends to ${texts.join(", ")}`));
  }

  async arrays() {
    const made = {rows: this.rows.map(String), columns: this.columns.map(String)};
    if (this.layer.weights) {
      for (const {head} of this.shown) {
        const {rows, columns, data} = await chosenMatrix(this.app.store, this.trace, this.layer, {...this.app.choice(), head});
        made[this.app.choice().summary === "head" ? `head-${head}` : this.app.choice().summary] = {shape: [rows, columns], data};
      }
    } else Object.assign(made, await this.app.store.top(this.layer));
    return made;
  }

  unmount() {
    this.call = -1;
    hideValue();
  }
}

export const headView = {
  name: "head", title: "Heads", key: "h",
  about: "Each query on the left is joined to the keys it attends to. Point at a token to isolate it; choose heads by colour.",
  fits: (trace) => trace.layers.length > 0,
  mount: (root, app) => new HeadView(root, app),
};
