// The attention matrix of one head: zoom, pan, values under the pointer, the keys of a row by weight.
import {element, framed, hideValue, label, number, sharpest, showValue, visible, word} from "./dom.js";
import {palette} from "./colour.js";
import {textsOf, tokenAt, unitAt} from "./merge.js";
import {eachTop} from "./store.js";
import {Tiles} from "./tiles.js";
import {WeightMap} from "./weight_map.js";

const rankedKeys = 14; // listed next to the matrix

class MatrixView {
  constructor(root, app) {
    [this.root, this.app] = [root, app];
    this.canvas = element("canvas", {class: "map", id: "map", tabindex: 0, role: "img"});
    this.legend = element("canvas", {width: 256, height: 1, "aria-hidden": "true"});
    this.greatest = element("span", {});
    this.list = element("ol", {class: "ranked", id: "row-weights"});
    this.heading = element("h3", {});
    this.hint = element("p", {class: "quiet"});
    const button = (text, title, act) => element("button", {title, "aria-label": title, onclick: act}, text);
    const zooms = element("div", {class: "choose", role: "group", "aria-label": "Zoom"}, button("−", "smaller (-)", () => this.zoom(1 / 1.5)),
      button("fit", "all of it (0)", () => this.fit()), button("+", "larger (+)", () => this.zoom(1.5)));
    this.plot = element("div", {class: "plot"}, this.canvas);
    root.append(element("div", {class: "tools"}, zooms, element("div", {class: "legend"}, element("span", {}, "0"), this.legend, this.greatest)),
      element("div", {class: "matrix"}, this.plot, element("aside", {"aria-label": "The selected query"}, this.heading, this.list, this.hint)));
    this.draw = framed(() => this.map && this.canvas.isConnected && this.map.draw(this.canvas));
    [this.call, this.addressTimer, this.key, this.map] = [0, null, "", null];
    this.listen();
    this.save = {png: () => this.picture(), svg: () => this.map.drawing(this.canvas), npz: () => this.arrays()};
  }

  // The visible part, sharp enough for print.
  picture() {
    const made = element("canvas");
    this.map.draw(made, sharpest);
    return made;
  }

  async update(names) {
    const {app} = this;
    const call = ++this.call;
    const [trace, layer, choice] = [app.trace(), app.layer(), app.choice()];
    const matrix = await app.matrix();
    const top = matrix.pooled ? await app.store.top(layer) : null;
    if (call !== this.call) return;
    const key = JSON.stringify([app.state.get("trace"), layer.name, choice]);
    if (key !== this.key || names.includes("theme")) {
      const before = this.map && this.trace === trace && this.layer.rows === layer.rows && this.layer.columns === layer.columns && this.words === choice.words
        ? this.map : null;
      Object.assign(this, {key, trace, layer, matrix, top, words: choice.words});
      this.make(choice, before);
    } else if (names.includes("size")) this.measure();
    this.map.chosen = this.chosen();
    if (names.includes("row") || names.includes("column")) this.map.reveal(...this.map.chosen);
    this.draw();
    await this.rank(call);
  }

  // The map of the selected matrix, at the zoom of the one before it.
  make(choice, before) {
    const {app, trace, layer, matrix} = this;
    const live = matrix.pooled && app.page.live && choice.summary === "head";
    const fetchTiles = live ? (rows, columns, size) => app.store.fetchWeights(trace, layer, choice.head, rows, columns, size) : null;
    const units = matrix.pooled ? [layer.queries, layer.keys] : [matrix.rows, matrix.columns];
    const tiles = new Tiles(matrix, units, {fetchTiles, onTiles: () => this.draw()});
    const heads = choice.summary === "maximum" ? [...Array(layer.heads).keys()] : [choice.head];
    const points = matrix.pooled && !live ? (row, f) => heads.forEach((head) => eachTop(this.top, head, row, f)) : null;
    [this.rows, this.columns] = [textsOf(trace.sides[layer.rows], this.words), textsOf(trace.sides[layer.columns], this.words)];
    const first = !this.map;
    this.map = new WeightMap(tiles, this.rows, this.columns, {matrix: matrix.pooled ? null : matrix, points});
    this.measure();
    const [zoom, x, y] = ["zoom", "x", "y"].map((name) => app.state.get(name));
    if (before) this.map.show(before.scale / this.map.fitted, before.x, before.y);
    else if (first && [zoom, x, y].every((value) => typeof value === "number")) this.map.show(zoom, x, y);
    else this.map.show();
    const context = this.legend.getContext("2d");
    const image = context.createImageData(256, 1);
    new Uint32Array(image.data.buffer).set(palette());
    context.putImageData(image, 0, 0);
    this.greatest.textContent = number(tiles.most);
    const about = `Weights of ${layer.title}: ${this.rows.length} queries attend to ${this.columns.length} keys. Arrow keys move over them.`;
    this.canvas.setAttribute("aria-label", visible(about));
  }

  measure() {
    const whole = this.root.clientWidth;
    const room = whole > 760 ? whole - 264 : whole; // the list is next to the map where there is room
    const top = this.plot.getBoundingClientRect().top + window.scrollY;
    this.map.size(this.canvas.getContext("2d"), room, Math.max(360, window.innerHeight - top - 24, this.rows.length > 64 ? window.innerHeight * 0.78 : 0));
  }

  // The weight of a cell: exact where it is stored, else the maximum of its tile.
  weight(row, column) {
    const {matrix, layer} = this;
    if (!matrix.pooled) return {value: matrix.data[row * matrix.columns + column], exact: true};
    let value = this.map.tiles.exactly(row, column);
    if (this.app.state.get("summary") === "head") eachTop(this.top, this.app.state.get("head"), row,
      (key, weight) => (value = key === column ? weight : value));
    if (value !== null) return {value, exact: true};
    const [i, j] = [Math.floor((row * matrix.rows) / layer.queries), Math.floor((column * matrix.columns) / layer.keys)];
    return {value: matrix.data[i * matrix.columns + j], exact: false};
  }

  chosen() {
    const {state} = this.app;
    const unit = (side, token) => (token === null ? null : unitAt(this.trace.sides[side], this.words, token));
    return [unit(this.layer.rows, state.get("row")), unit(this.layer.columns, state.get("column"))];
  }

  select(row, column) {
    const token = (side, unit) => (unit === null ? null : tokenAt(this.trace.sides[side], this.words, unit));
    this.app.state.set({row: token(this.layer.rows, row), column: token(this.layer.columns, column)});
  }

  zoom(factor, at) {
    this.map.zoom(factor, at);
    this.moved();
  }

  fit() {
    this.map.show();
    this.moved();
  }

  // Draw, and a moment later write the zoom into the address.
  moved() {
    this.draw();
    clearTimeout(this.addressTimer);
    this.addressTimer = setTimeout(() => {
      const {scale, fitted, x, y} = this.map;
      const round = (value) => Math.round(100 * value) / 100;
      const whole = Math.abs(scale / fitted - 1) < 1e-6;
      this.app.state.set(whole ? {zoom: null, x: null, y: null} : {zoom: round(scale / fitted), x: round(x), y: round(y)});
    }, 250);
  }

  pointIn(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  point(event) {
    const [row, column] = this.map.under(...this.pointIn(event));
    const inside = row !== null && column !== null;
    this.map.hover = inside ? [row, column] : [null, null];
    this.draw();
    if (!inside) return hideValue();
    const {value, exact} = this.weight(row, column);
    const names = `${visible(this.rows[row])} → ${visible(this.columns[column])}`;
    return showValue(event.clientX, event.clientY, [exact ? number(value) : `at most ${number(value)}`, names, `query ${row + 1}, key ${column + 1}`],
      {row, column, value});
  }

  listen() {
    const {canvas} = this;
    const pointers = new Map();
    let start = null;
    const lift = (event) => {
      pointers.delete(event.pointerId);
      canvas.classList.remove("dragged");
      if (event.type === "pointerup" && start && !start.moved) this.select(...this.map.under(...this.pointIn(event)));
    };
    const move = (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) return this.point(event);
      const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
      pointers.set(event.pointerId, [event.clientX, event.clientY]);
      start.moved ||= Math.hypot(event.clientX - start.x, event.clientY - start.y) > 4;
      if (!start.moved) return undefined;
      hideValue();
      canvas.classList.add("dragged");
      if (others.length) {
        const far = ([x, y]) => Math.hypot(x - others[0][0], y - others[0][1]) || 1;
        return this.zoom(far([event.clientX, event.clientY]) / far(before), this.pointIn(event));
      }
      this.map.pan(event.clientX - before[0], event.clientY - before[1]);
      return this.moved();
    };
    const listeners = {
      pointerdown: (event) => {
        canvas.setPointerCapture(event.pointerId);
        pointers.set(event.pointerId, [event.clientX, event.clientY]);
        start = {x: event.clientX, y: event.clientY, moved: pointers.size > 1};
      },
      pointermove: (event) => this.map && move(event),
      pointerup: lift,
      pointercancel: lift,
      pointerleave: () => {
        if (this.map) this.map.hover = [null, null];
        hideValue();
        this.draw();
      },
      dblclick: (event) => this.zoom(2, this.pointIn(event)),
      keydown: (event) => this.press(event),
    };
    for (const [name, listener] of Object.entries(listeners)) canvas.addEventListener(name, listener);
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), this.pointIn(event));
    }, {passive: false});
  }

  press(event) {
    const step = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
    const factor = {"+": 1.5, "=": 1.5, "-": 1 / 1.5}[event.key];
    if (factor) this.zoom(factor);
    else if (event.key === "0") this.fit();
    else if (step && event.shiftKey) {
      this.map.pan(-60 * step[1], -60 * step[0]);
      this.moved();
    } else if (step) {
      const on = (unit, by, count) => (unit === null ? 0 : Math.max(0, Math.min(count - 1, unit + by)));
      const [row, column] = this.chosen();
      const next = [on(row, step[0], this.rows.length), on(column, step[1], this.columns.length)];
      this.select(...next);
      const {value, exact} = this.weight(...next);
      this.app.announce(`${visible(this.rows[next[0]])} to ${visible(this.columns[next[1]])}: ${exact ? "" : "at most "}${number(value)}`);
    } else return;
    event.preventDefault();
  }

  // The keys of the selected query as a list, the largest weight first.
  async rank(call) {
    const [row, column] = this.chosen();
    if (row === null) {
      this.heading.replaceChildren("Keys by weight");
      this.hint.textContent = "Click a cell, or move with the arrow keys: the keys of its query are listed here, the largest weight first.";
      return this.list.replaceChildren();
    }
    const weights = await this.app.row(this.app.state.get("row"));
    if (call !== this.call) return undefined;
    const order = [...weights.keys()].filter((key) => weights[key] > 0).sort((p, q) => weights[q] - weights[p]);
    const first = order.slice(0, rankedKeys);
    if (column !== null && !first.includes(column)) first.push(column);
    const rest = order.slice(rankedKeys).filter((key) => key !== column);
    const sum = rest.reduce((total, key) => total + weights[key], 0);
    this.heading.replaceChildren(word(label(this.rows[row], 24)), " attends to");
    this.hint.textContent = rest.length ? `and ${rest.length.toLocaleString("en")} more, together ${number(sum)}` : "";
    const whole = !this.matrix.pooled || this.app.page.live; // else only the top keys are known
    return this.list.replaceChildren(...first.map((key) => {
      const text = whole || weights[key] > 0 ? number(weights[key]) : `at most ${number(this.weight(row, key).value)}`;
      const item = element("li", {
        class: key === column ? "on" : null, "data-row": row, "data-column": key, "data-value": weights[key], onclick: () => this.select(row, key),
      }, word(label(this.columns[key], 22)), element("span", {}, text));
      item.style.setProperty("--share", `${100 * Math.min(1, weights[key])}%`);
      return item;
    }));
  }

  arrays() {
    const {rows, columns, data} = this.matrix;
    return {weights: {shape: [rows, columns], data}, rows: this.rows.map(String), columns: this.columns.map(String)};
  }

  unmount() {
    clearTimeout(this.addressTimer);
    this.call = -1;
    hideValue();
  }
}

export const matrixView = {
  name: "matrix", title: "Attention matrix", key: "m",
  about: "The attention matrix of one head: rows are queries, columns are keys. Zoom by wheel or + and −, drag to move, click a cell to list its row.",
  fits: (trace) => trace.layers.length > 0,
  mount: (root, app) => new MatrixView(root, app),
};
