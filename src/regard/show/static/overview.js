// All layers and heads as thumbnails: one row per layer, or all heads sorted by a statistic.
import {element, hideValue, number, showValue, visible} from "./dom.js";
import {paint, strength} from "./colour.js";
import {headOf, headTitle, statistics} from "./labels.js";
import {pictured} from "./save.js";

const maxCells = 128; // across a thumbnail, where the screen has as many pixels
const kindOf = (layer) => [layer.name.split(".")[0], layer.rows === layer.columns ? "" : "cross"].filter(Boolean).join(" · ");
const groupTitles = {encoder: "Encoder self-attention", decoder: "Decoder self-attention", "decoder · cross": "Cross-attention", "encoder · cross": "Encoder cross-attention"};

// Paints some thumbnails per frame, those on screen first.
class Painter {
  constructor(app) {
    this.app = app;
    this.waiting = [];
    [this.going, this.first] = [false, true];
    this.ended = false;
    this.observer = new IntersectionObserver((entries) => {
      for (const {target, isIntersecting} of entries) if (isIntersecting) this.want(target);
    }, {rootMargin: "300px"});
  }

  watch(canvas, layer, head) {
    canvas.job = {layer, head, done: false};
    this.observer.observe(canvas);
  }

  want(canvas) {
    if (canvas.job.done) return;
    canvas.job.done = true;
    this.waiting.push(canvas);
    if (!this.going) requestAnimationFrame(() => this.go());
    this.going = true;
  }

  // Repaint in other colours; print needs all thumbnails at once.
  again(canvases) {
    const print = matchMedia("print").matches;
    this.first = true;
    for (const canvas of canvases) {
      if (!print && !canvas.dataset.painted) continue;
      canvas.job.done = false;
      this.want(canvas);
    }
    if (print) this.go();
  }

  async go() {
    const until = matchMedia("print").matches ? Infinity : performance.now() + (this.first ? 60 : 12);
    this.first = false;
    while (this.waiting.length && performance.now() < until && !this.ended) {
      const canvas = this.waiting.shift();
      const {layer, head} = canvas.job;
      const size = Math.max(24, Math.min(maxCells, Math.floor(canvas.clientWidth * window.devicePixelRatio)));
      const {shape, data} = await this.app.store.tiles(this.app.trace(), layer, head, [0, layer.queries], [0, layer.keys], size);
      paint(canvas, data, shape[0], shape[1], (value) => strength(value, 1, layer.keys));
      canvas.dataset.painted = "yes";
    }
    this.going = this.waiting.length > 0 && !this.ended;
    if (this.going) requestAnimationFrame(() => this.go());
  }

  end() {
    this.ended = true;
    this.observer.disconnect();
  }
}

class Overview {
  constructor(root, app) {
    [this.root, this.app] = [root, app];
    this.tools = element("div", {class: "tools"});
    this.grid = element("div", {role: "grid", "aria-label": "All heads", onkeydown: (event) => this.key(event)});
    root.append(this.tools, this.grid);
    this.painter = null;
    this.drawn = "";
    this.save = {
      npz: () => this.arrays(), png: () => this.picture(),
      svg: async () => pictured(await this.picture(), this.grid.clientWidth, this.grid.clientHeight),
    };
  }

  sort() {
    const sort = this.app.state.get("sort");
    return sort in statistics ? sort : "layer";
  }

  update(names) {
    const drawn = `${this.app.state.get("trace")} ${this.sort()}`;
    if (drawn !== this.drawn) {
      this.drawn = drawn;
      this.draw();
    } else if (names.includes("theme")) this.painter.again(this.thumbs.map((thumb) => thumb.querySelector("canvas")));
    const [layer, head] = [this.app.state.get("layer"), this.app.state.get("head")];
    for (const thumb of this.thumbs) {
      const on = thumb.dataset.layer === layer && Number(thumb.dataset.head) === head;
      thumb.setAttribute("aria-selected", on ? "true" : "false");
      thumb.tabIndex = on ? 0 : -1;
    }
  }

  draw() {
    const {state} = this.app;
    const {layers} = this.app.trace();
    this.painter?.end();
    this.painter = new Painter(this.app);
    this.thumbs = [];
    const sort = this.sort();
    const offered = ["layer", ...Object.keys(statistics).filter((name) => layers.some((layer) => layer[name]))];
    const buttons = offered.map((name) => element("button",
      {id: `sort-${name}`, "aria-pressed": name === sort ? "true" : "false", title: statistics[name] ?? "one row per layer",
      onclick: () => state.set({sort: name === "layer" ? null : name})}, name === "layer" ? "by layer" : name));
    this.tools.replaceChildren(element("span", {class: "quiet ordering"}, "sort"),
      element("div", {class: "choose", role: "group", "aria-label": "sort by"}, buttons),
      element("span", {class: "quiet"}, `below each head: ${statistics[sort] ?? "bits of entropy: low = focused"}`));
    this.grid.replaceChildren(...(sort === "layer" ? this.groups(layers) : [this.sorted(layers, sort)]));
  }

  groups(layers) {
    const groups = new Map();
    for (const layer of layers) groups.set(kindOf(layer), [...(groups.get(kindOf(layer)) ?? []), layer]);
    return [...groups].map(([kind, found]) => {
      const most = Math.max(...found.map(({heads}) => heads));
      const thumbWidth = most > 8 ? "5.6rem" : most > 4 ? "7rem" : most > 2 ? "7.2rem" : "13rem";
      const rows = found.map((layer, at) => {
        const thumbs = Array.from({length: layer.heads}, (_, head) => this.thumb(layer, head, "entropy", headTitle(head)));
        const row = element("div", {class: "thumbs", role: "row"}, thumbs);
        row.style.setProperty("--across", most);
        row.style.setProperty("--thumb", thumbWidth);
        return element("div", {class: "layer-row", role: "presentation"},
          element("span", {title: visible(layer.tip)}, `layer ${layer.name.match(/\d+/)?.[0] ?? at}`), row);
      });
      const box = element("div", {class: "layer-rows"}, rows); // as many layers side by side as there is room for
      box.style.setProperty("--row", `calc(3.4rem + ${most} * (${thumbWidth} + .5rem))`);
      return element("section", {class: "group", role: "rowgroup", "aria-label": visible(kind)},
        element("h3", {title: visible(found[0].tip)}, groupTitles[kind] ?? visible(kind)), box);
    });
  }

  sorted(layers, sort) {
    const heads = layers.flatMap((layer) => Array.from({length: layer.heads}, (_, head) => ({layer, head, value: layer[sort]?.[head] ?? null})));
    const down = sort === "confidence" ? -1 : 1;
    const known = heads.filter(({value}) => value !== null).sort((a, b) => down * (a.value - b.value));
    const thumbs = known.map(({layer, head}) => this.thumb(layer, head, sort, layer.title));
    const row = element("div", {class: "thumbs", role: "row"}, thumbs);
    row.style.setProperty("--across", "auto-fill");
    row.style.setProperty("--thumb", "7rem");
    row.style.gridTemplateColumns = "repeat(auto-fill, minmax(6.5rem, 1fr))";
    return row;
  }

  thumb(layer, head, shown, title) {
    const canvas = element("canvas", {width: 1, height: 1, "aria-hidden": "true"});
    const numbers = Object.keys(statistics).filter((name) => (layer[name]?.[head] ?? null) !== null);
    const texts = numbers.map((name) => `${name} ${number(layer[name][head])}`);
    const value = layer[shown]?.[head] ?? null;
    const full = title === layer.title; // then the head is next to its value
    const under = element("div", {class: full ? "under full" : "under"}, element("span", {}, visible(title)),
      element("span", {}, full ? `${headTitle(head)}: ${number(value)}` : `${number(value)} bits`));
    const thumb = element("button", {
      class: "thumb", role: "gridcell", tabindex: -1, "data-layer": layer.name, "data-head": head, "data-value": value,
      "aria-label": visible(`${headOf(layer, head)}, ${texts.join(", ")}`),
      onclick: () => this.app.state.set({layer: layer.name, head, summary: "head", view: "matrix"}),
      onpointermove: (event) => showValue(event.clientX, event.clientY, [headOf(layer, head), ...texts], {row: head, value}),
      onpointerleave: hideValue,
    }, element("div", {class: "frame"}, canvas), under);
    this.painter.watch(canvas, layer, head);
    this.thumbs.push(thumb);
    return thumb;
  }

  // Arrow keys move over the grid in screen order.
  key(event) {
    const at = this.thumbs.indexOf(document.activeElement);
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    if (at < 0 || !step) return;
    event.preventDefault();
    let next = this.thumbs[at + step[0]];
    if (step[1]) {
      const here = this.thumbs[at].getBoundingClientRect();
      const boxes = this.thumbs.map((thumb) => ({thumb, box: thumb.getBoundingClientRect()}));
      const beyond = boxes.filter(({box}) => (step[1] > 0 ? box.top > here.bottom - 4 : box.bottom < here.top + 4));
      const far = ({box}) => Math.abs(box.top - here.top) * 1000 + Math.abs(box.left - here.left);
      // Layers may be side by side: then up and down lead to the layer before or after.
      const rows = [...this.grid.querySelectorAll('[role="row"]')];
      const beside = rows[rows.indexOf(this.thumbs[at].parentElement) + step[1]]?.children[Number(this.thumbs[at].dataset.head)];
      next = beyond.sort((a, b) => far(a) - far(b))[0]?.thumb ?? beside;
    }
    if (!next) return;
    this.app.state.set({layer: next.dataset.layer, head: Number(next.dataset.head)});
    next.focus();
    this.app.announce(next.getAttribute("aria-label"));
  }

  arrays() {
    const made = {};
    for (const layer of this.app.trace().layers) {
      for (const name of Object.keys(statistics)) {
        if (layer[name]) made[`${layer.name}.${name}`] = {shape: [layer.heads], data: Float64Array.from(layer[name], (value) => value ?? NaN)};
      }
    }
    return made;
  }

  // All thumbnails on one canvas, in screen order.
  async picture() {
    for (const thumb of this.thumbs) this.painter.want(thumb.querySelector("canvas"));
    while (this.painter.going) await new Promise(requestAnimationFrame);
    const area = this.grid.getBoundingClientRect();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [2 * area.width, 2 * area.height];
    const context = canvas.getContext("2d");
    const style = getComputedStyle(document.body);
    context.scale(2, 2);
    context.fillStyle = style.backgroundColor;
    context.fillRect(0, 0, area.width, area.height);
    context.imageSmoothingEnabled = false;
    for (const frame of this.grid.querySelectorAll(".frame")) {
      const box = frame.getBoundingClientRect();
      const thumb = frame.firstChild;
      context.drawImage(thumb, box.left - area.left, box.top - area.top, box.width, box.height);
    }
    context.fillStyle = style.color;
    context.textBaseline = "top";
    for (const text of this.grid.querySelectorAll("h3, .layer-row > span, .under span")) {
      const box = text.getBoundingClientRect();
      context.font = `${getComputedStyle(text).fontSize} system-ui, sans-serif`;
      context.fillText(text.textContent, box.left - area.left, box.top - area.top + 2, box.width + 2);
    }
    return canvas;
  }

  unmount() {
    this.painter?.end();
  }
}

export const overviewView = {
  name: "overview", title: "Overview", key: "o",
  about: "The attention matrix of every layer and head: rows are queries, columns are keys. Choose one to open it.",
  fits: (trace) => trace.layers.length > 0,
  mount: (root, app) => new Overview(root, app),
};
