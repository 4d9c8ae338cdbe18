// Attention lines: two columns of units (tokens or words) and the lines between them, their geometry and drawing.
import {label, number, sharp, svg, visible} from "./dom.js";
import {drawnLabel} from "./plot.js";

const [unitHeight, aboveUnits, belowUnits] = [24, 26, 14];
const maxLines = 6000;
const [minWeightFocused, minWeight] = [0.002, 0.03]; // smaller weights are not drawn: with one unit in focus, with all

// The columns scroll together; a short one moves less, so that both ends meet.
export class AttentionLines {
  // canvas: for lines. drawing: an SVG over it, for the units.
  constructor(canvas, drawing) {
    [this.canvas, this.drawing] = [canvas, drawing];
    [this.scrolled, this.focus, this.selected, this.folded] = [0, null, null, null];
  }

  // texts: [rows, columns]. shown: [{paint, name, most, each(row, f), of(row, column)}]. captions: [left, right].
  show(texts, shown, captions) {
    [this.rows, this.columns] = texts;
    Object.assign(this, {shown, captions});
  }

  // The two columns are as close as their texts allow, centred in the width.
  size(width, tallest) {
    this.full = Math.max(this.rows.length, this.columns.length) * unitHeight + aboveUnits + belowUnits;
    this.height = Math.min(this.full, tallest);
    this.width = width;
    const measure = this.canvas.getContext("2d");
    measure.font = "13.5px system-ui, sans-serif";
    const widest = (texts) => 14 + texts.slice(0, 500).reduce((most, text) => Math.max(most, measure.measureText(label(text)).width), 20);
    this.wide = {row: widest(this.rows), column: widest(this.columns)};
    this.swatches = this.shown.length > 1 ? Math.min(140, 9 * this.shown.length) : 0;
    const [left, right] = [this.wide.row + 48, this.wide.column + 60 + this.swatches];
    const between = Math.max(90, Math.min(480, width - left - right));
    this.left = Math.max(0, (width - left - right - between) / 2) + left;
    this.right = this.left + between;
  }

  get scrolls() {
    return this.full > this.height;
  }

  // Only the top keys of the selected row, so that all of them fit on screen.
  fold() {
    this.folded = null;
    if (this.selected === null || !this.scrolls) return;
    const weights = new Map();
    for (const head of this.shown) head.each(this.selected, (column, weight) => weights.set(column, (weights.get(column) ?? 0) + weight / head.most));
    const room = Math.floor((this.height - aboveUnits - belowUnits) / unitHeight);
    const first = [...weights].sort((a, b) => b[1] - a[1]).slice(0, room);
    const units = first.map(([column]) => column).sort((a, b) => a - b);
    this.folded = new Map(units.map((unit, at) => [unit, at]));
  }

  offset(count) {
    return Math.max(0, count * unitHeight - (this.height - aboveUnits - belowUnits)) * this.scrolled;
  }

  // The y of a unit's middle; null for a key that is folded away.
  unitY(side, unit) {
    if (side === "column" && this.folded) {
      return this.folded.has(unit) ? aboveUnits + (this.folded.get(unit) + 0.5) * unitHeight : null;
    }
    return aboveUnits + (unit + 0.5) * unitHeight - this.offset(side === "row" ? this.rows.length : this.columns.length);
  }

  // The units of a side that are on screen.
  units(side) {
    if (side === "column" && this.folded) return [...this.folded.keys()];
    const count = side === "row" ? this.rows.length : this.columns.length;
    const first = Math.floor(this.offset(count) / unitHeight);
    const last = Math.min(count, first + Math.ceil((this.height - aboveUnits - belowUnits) / unitHeight) + 1);
    return Array.from({length: last - first}, (_, at) => first + at);
  }

  // How far to scroll, from 0 to 1, to have a row in the middle; null when it is on screen.
  reveal(row) {
    const at = this.unitY("row", row);
    const travel = this.rows.length * unitHeight - (this.height - aboveUnits - belowUnits);
    if (travel <= 0 || (at > aboveUnits + unitHeight && at < this.height - 2 * unitHeight)) return null;
    return Math.max(0, Math.min(1, ((row + 0.5) * unitHeight - this.height / 2) / travel));
  }

  // All lines on screen, the largest weight last: [{from, to, weight, head}].
  lines() {
    const {focus} = this;
    const columns = new Set(this.units("column"));
    const rows = focus?.side === "row" ? [focus.unit] : this.units("row");
    const found = [];
    for (const head of this.shown) {
      for (const from of rows) {
        head.each(from, (to, weight) => {
          if (weight < minWeightFocused * head.most || !columns.has(to) || (focus?.side === "column" && focus.unit !== to)) return;
          found.push({from, to, weight, head});
        });
      }
    }
    found.sort((a, b) => a.weight / a.head.most - b.weight / b.head.most);
    // If attention is spread thin, the largest weight is still visible: uniform attention is drawn at a third of its strength.
    const largest = found.length ? found.at(-1).weight / found.at(-1).head.most : 1;
    this.peak = Math.max(focus ? 0.02 : Math.min(0.3, 3 / this.columns.length), largest);
    const least = focus ? 0 : Math.min(minWeight, 0.3 * largest);
    return found.filter(({weight, head}) => weight >= least * head.most).slice(-maxLines);
  }

  stroke({weight, head}) {
    const strong = Math.min(1, weight / head.most / this.peak);
    const width = 0.5 + Math.min(4.4, 1.2 + 16 / this.shown.length) * strong;
    return {width, opacity: this.focus ? 0.2 + 0.75 * strong : 0.03 + 0.87 * strong ** 1.1};
  }

  // Each head is offset a little below the one before it, so that none hides another.
  curve({from, to, head}) {
    const slot = (this.shown.indexOf(head) - (this.shown.length - 1) / 2) * Math.min(2.6, 17 / this.shown.length);
    const [y1, y2] = [this.unitY("row", from) + slot, this.unitY("column", to) + slot];
    const bend = (this.right - this.left) * 0.45;
    return [this.left, y1, this.left + bend, y1, this.right - bend, y2, this.right, y2];
  }

  // listen(group, side, unit) gives a unit its listeners.
  draw(listen) {
    const context = sharp(this.canvas, this.width, this.height);
    context.clearRect(0, 0, this.width, this.height);
    for (const line of this.lines()) {
      const [x1, y1, ...rest] = this.curve(line);
      const {width, opacity} = this.stroke(line);
      [context.globalAlpha, context.strokeStyle, context.lineWidth] = [opacity, line.head.paint, width];
      context.beginPath();
      context.moveTo(x1, y1);
      context.bezierCurveTo(...rest);
      context.stroke();
    }
    context.globalAlpha = 1;
    context.clearRect(0, 0, this.width, aboveUnits - 2); // lines that scroll out end below the captions
    for (const [name, value] of Object.entries({width: this.width, height: this.height,
      viewBox: `0 0 ${this.width} ${this.height}`})) this.drawing.setAttribute(name, value);
    const active = document.activeElement?.closest?.(".unit");
    const focused = active && this.drawing.contains(active) ? active.dataset : null;
    this.drawing.replaceChildren(
      svg("text", {class: "caption", x: this.left - 10, y: 14, "text-anchor": "end"}, this.captions[0]),
      svg("text", {class: "caption", x: this.right + 10, y: 14}, this.folded ? `${this.captions[1]} (top keys)` : this.captions[1]),
      ...["row", "column"].flatMap((side) => this.units(side).map((unit) => this.unit(side, unit, listen)).filter(Boolean)));
    if (focused) this.find(focused.side, focused.unit)?.focus({preventScroll: true});
  }

  find(side, unit) {
    return this.drawing.querySelector(`.unit[data-side="${side}"][data-unit="${unit}"]`);
  }

  // The weights between a unit and the unit in focus on the other side, one per head; null without one.
  amounts(side, unit) {
    if (!this.focus || this.focus.side === side) return null;
    return this.shown.map((head) => (side === "column" ? head.of(this.focus.unit, unit) : head.of(unit, this.focus.unit)));
  }

  unit(side, unit, listen) {
    const y = this.unitY(side, unit);
    if (y < aboveUnits + 2 || y > this.height - 4) return null;
    const text = (side === "row" ? this.rows : this.columns)[unit];
    const amounts = this.amounts(side, unit);
    const mean = amounts ? amounts.reduce((sum, weight) => sum + weight, 0) / amounts.length : null;
    const on = (this.focus?.side === side && this.focus.unit === unit) || (side === "row" && unit === this.selected);
    const group = svg("g", {
      class: on ? "unit on" : "unit", role: "button", tabindex: side === "row" && unit === (this.selected ?? this.units("row")[0]) ? 0 : -1,
      "data-side": side, "data-unit": unit, "data-weight": mean,
      "aria-label": visible(`${side === "row" ? "query" : "key"} ${unit + 1}, ${text}${mean === null ? "" : `, weight ${number(mean)}`}`),
    });
    const [wide, left] = [this.wide[side], side === "row"];
    const anchor = left ? "end" : "start";
    group.append(svg("rect", {class: "back", x: left ? this.left - 3 - wide : this.right + 3, y: y - unitHeight / 2 + 1, width: wide, height: unitHeight - 2,
      rx: 4}));
    group.append(svg("text", {x: left ? this.left - 10 : this.right + 10, y, dy: ".35em", "text-anchor": anchor,
      class: mean !== null && mean < 0.02 * this.shown[0].most ? "faint" : null}, drawnLabel(text, 18)));
    if (amounts) group.append(...this.numbers(amounts, mean, left, left ? this.left - wide - 8 : this.right + wide + 10, y, anchor));
    listen(group, side, unit);
    return group;
  }

  // Next to a unit: one square per head, and the mean.
  numbers(amounts, mean, left, x, y, anchor) {
    const found = [];
    const each = this.swatches / amounts.length;
    if (!left && each) {
      amounts.forEach((weight, at) => {
        const opacity = Math.sqrt(Math.min(1, weight / this.shown[at].most));
        found.push(svg("rect", {x: x + at * each, y: y - 7, width: each - 1, height: 14, fill: this.shown[at].paint, "fill-opacity": opacity,
          "data-head": this.shown[at].head, "data-value": weight}));
      });
    }
    if (mean >= 0.0005) found.push(svg("text", {class: "amount", x: left ? x : x + this.swatches + 6, y, dy: ".35em", "text-anchor": anchor}, number(mean)));
    return found;
  }

  // The drawing with its lines inside, for as long as it takes to copy it.
  whole() {
    const paths = this.lines().map((line) => {
      const [x1, y1, ...rest] = this.curve(line).map((value) => Math.round(10 * value) / 10);
      const {width, opacity} = this.stroke(line);
      return svg("path", {d: `M${x1} ${y1}C${rest.join(" ")}`, fill: "none", stroke: line.head.paint, "stroke-width": width.toFixed(2),
        "stroke-opacity": opacity.toFixed(3)});
    });
    const group = svg("g", {}, paths);
    this.drawing.prepend(group);
    setTimeout(() => group.remove(), 0);
    return this.drawing;
  }
}
