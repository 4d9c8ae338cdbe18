// An attention matrix on a canvas: zoom, pan and drawing.
import {label, sharp, svg} from "./dom.js";
import {colour, shade, strength} from "./colour.js";
import {pictured} from "./save.js";

const [largestCell, labelledCell, griddedCell, numberedCell] = [64, 11, 9, 27]; // pixels: at most; with every label, lines, numbers
const [margin, leastWide] = [6, 320]; // pixels; a narrow matrix keeps some room to zoom into

export class WeightMap {
  // tiles: the drawn tiles. matrix: its numbers, written into the cells; null when they are pooled.
  // points(row, f) calls f(column, weight) for the exact weights of a pooled row, or is null.
  constructor(tiles, rows, columns, {matrix = null, points = null} = {}) {
    Object.assign(this, {tiles, rows, columns, matrix, points});
    [this.x, this.y, this.scale] = [0, 0, null];
    [this.chosen, this.hover] = [[null, null], [null, null]]; // [row, column]
  }

  // The size of labels and cells in the available room; measure: any 2d context.
  size(measure, room, tallest) {
    measure.font = "13px system-ui, sans-serif";
    const widest = (texts) => Math.ceil([...texts.slice(0, 600).map((text) => label(text)), texts.length.toLocaleString("en")]
      .reduce((most, text) => Math.max(most, measure.measureText(text).width), 24)) + 14;
    [this.left, this.above] = [widest(this.rows), widest(this.columns)];
    const {tall, wide} = this.tiles;
    const [across, down] = [room - this.left - margin, tallest - this.above - margin];
    const least = tall <= 24 ? 28 : tall <= 40 ? 16 : 0; // a short text may be a little taller than the window
    this.fitted = Math.min(44, across / wide, Math.max(down / tall, least));
    this.height = Math.round(this.above + Math.max(60, tall * this.fitted) + margin);
    this.width = Math.round(Math.min(room, Math.max(this.left + wide * this.fitted + margin, Math.min(this.height, leastWide))));
    if (this.scale) this.clamp();
  }

  // Show all of it, or a part: zoom is relative to the fitted size, x and y the unit in the upper left corner.
  show(zoom = 1, x = 0, y = 0) {
    [this.scale, this.x, this.y] = [this.fitted * zoom, x, y];
    this.clamp();
  }

  // A map smaller than its room does not move.
  clamp() {
    this.scale = Math.min(Math.max(largestCell, this.fitted), Math.max(this.fitted, this.scale));
    const [across, down] = [(this.width - this.left - margin) / this.scale, (this.height - this.above - margin) / this.scale];
    this.x = Math.max(0, Math.min(this.x, this.tiles.wide - across));
    this.y = Math.max(0, Math.min(this.y, this.tiles.tall - down));
  }

  // Zoom around a point.
  zoom(factor, at = [(this.width + this.left) / 2, (this.height + this.above) / 2]) {
    const [s, t] = [this.x + (at[0] - this.left) / this.scale, this.y + (at[1] - this.above) / this.scale];
    this.scale = Math.min(Math.max(largestCell, this.fitted), Math.max(this.fitted, this.scale * factor));
    [this.x, this.y] = [s - (at[0] - this.left) / this.scale, t - (at[1] - this.above) / this.scale];
    this.clamp();
  }

  pan(dx, dy) {
    this.x -= dx / this.scale;
    this.y -= dy / this.scale;
    this.clamp();
  }

  // Bring a row and a column into the window.
  reveal(row, column) {
    const into = (unit, start, room) => (unit < start ? unit : unit + 1 > start + room ? unit + 1 - room : start);
    if (column !== null) this.x = into(column, this.x, (this.width - this.left - margin) / this.scale);
    if (row !== null) this.y = into(row, this.y, (this.height - this.above - margin) / this.scale);
    this.clamp();
  }

  // The row and the column under a point of the canvas, null outside.
  under(px, py) {
    const [row, column] = [Math.floor(this.y + (py - this.above) / this.scale), Math.floor(this.x + (px - this.left) / this.scale)];
    return [py >= this.above && row < this.tiles.tall ? row : null, px >= this.left && column < this.tiles.wide ? column : null];
  }

  // The visible part: rows [a, b], columns [c, d].
  window() {
    const [a, c] = [Math.floor(this.y), Math.floor(this.x)];
    const b = Math.min(this.tiles.tall, Math.ceil(this.y + (this.height - this.above) / this.scale));
    return [a, b, c, Math.min(this.tiles.wide, Math.ceil(this.x + (this.width - this.left) / this.scale))];
  }

  draw(canvas, sharpness) {
    const {left, above, width, height, scale} = this;
    const context = sharp(canvas, width, height, sharpness);
    const [a, b, c, d] = this.window();
    const [x, y] = [left - this.x * scale, above - this.y * scale];
    context.fillStyle = colour("--paper");
    context.fillRect(0, 0, width, height);
    context.save();
    context.beginPath();
    context.rect(left, above, Math.min(width - left, x + this.tiles.wide * scale - left), Math.min(height - above, y + this.tiles.tall * scale - above));
    context.clip();
    this.tiles.draw(context, [a, b], [c, d], x, y, scale);
    if (this.points && scale >= 1.5) this.exact(context, [a, b], [c, d], x, y);
    if (scale >= griddedCell) this.grid(context, [a, b], [c, d], x, y);
    if (scale >= numberedCell && this.matrix) this.numbers(context, [a, b], [c, d], x, y);
    context.restore();
    this.labels(context, [a, b], [c, d], x, y);
    this.marks(context, x, y);
  }

  // The exact weights of the top keys of each row, over tiles that only have a maximum.
  exact(context, [a, b], [c, d], x, y) {
    context.fillStyle = colour("--ramp-0");
    context.globalAlpha = Math.min(0.92, this.scale / 6);
    context.fillRect(x + c * this.scale, y + a * this.scale, (d - c) * this.scale, (b - a) * this.scale);
    context.globalAlpha = 1;
    for (let row = a; row < b; row++) {
      this.points(row, (column, weight) => {
        if (column < c || column >= d) return;
        context.fillStyle = shade(strength(weight, this.tiles.most, this.tiles.wide));
        context.fillRect(x + column * this.scale, y + row * this.scale, this.scale, this.scale);
      });
    }
  }

  grid(context, [a, b], [c, d], x, y) {
    context.strokeStyle = colour("--paper");
    context.lineWidth = 1;
    context.beginPath();
    for (let row = a; row <= b; row++) {
      context.moveTo(this.left, y + row * this.scale);
      context.lineTo(this.width, y + row * this.scale);
    }
    for (let column = c; column <= d; column++) {
      context.moveTo(x + column * this.scale, this.above);
      context.lineTo(x + column * this.scale, this.height);
    }
    context.stroke();
  }

  numbers(context, [a, b], [c, d], x, y) {
    context.font = `${Math.min(13, this.scale / 2.9)}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const [paper, ink] = [colour("--paper"), colour("--ink")];
    for (let row = a; row < b; row++) {
      for (let column = c; column < d; column++) {
        const {text, strong} = this.written(row, column);
        context.fillStyle = strong ? paper : ink;
        context.fillText(text, x + (column + 0.5) * this.scale, y + (row + 0.5) * this.scale);
      }
    }
  }

  // The text of a cell, and whether the cell is too dark for ink.
  written(row, column) {
    const value = this.matrix.data[row * this.matrix.columns + column];
    const text = value >= 0.005 ? value.toFixed(2).replace(/^0\./, ".") : "";
    return {text, strong: strength(value, this.tiles.most, this.tiles.wide) > 0.52};
  }

  // Labels are skipped when there is no room for all; zoomed out they become numbers.
  labels(context, [a, b], [c, d], x, y) {
    const step = this.scale >= labelledCell ? 1 : 2 ** Math.ceil(Math.log2(labelledCell / this.scale) + 0.3);
    const size = Math.min(13, Math.max(11, this.scale * 0.8));
    const [ink, quiet, mark] = [colour("--ink"), colour("--quiet"), colour("--mark")];
    const along = (texts, first, last, special, put) => {
      const marked = special.filter((unit) => unit !== null && unit >= first && unit < last);
      const units = new Set(marked);
      for (let unit = Math.ceil(first / step) * step; unit < last; unit += step) {
        if (step === 1 || marked.every((other) => Math.abs(unit - other) * this.scale > size)) units.add(unit);
      }
      for (const unit of units) {
        const named = step <= 8 || marked.includes(unit);
        context.font = `${unit === special[0] ? 600 : 400} ${size}px system-ui, sans-serif`;
        context.fillStyle = marked.includes(unit) ? mark : named ? ink : quiet;
        put(named ? label(texts[unit]) : unit.toLocaleString("en"), unit);
      }
    };
    context.textBaseline = "middle";
    context.textAlign = "right";
    along(this.rows, a, b, [this.chosen[0], this.hover[0]], (text, unit) => {
      const at = y + (unit + 0.5) * this.scale;
      if (at >= this.above - 1 && at <= this.height) context.fillText(text, this.left - 7, at);
    });
    context.textAlign = "left";
    along(this.columns, c, d, [this.chosen[1], this.hover[1]], (text, unit) => {
      const at = x + (unit + 0.5) * this.scale;
      if (at < this.left - 1 || at > this.width) return;
      context.save();
      context.translate(at, this.above - 7);
      context.rotate(-Math.PI / 2);
      context.fillText(text, 0, 0);
      context.restore();
    });
  }

  // Frames around the row and the column that are selected or under the pointer.
  marks(context, x, y) {
    const size = Math.max(2, this.scale);
    const right = Math.min(this.width - 1, x + this.tiles.wide * this.scale);
    const bottom = Math.min(this.height - 1, y + this.tiles.tall * this.scale);
    context.save();
    context.beginPath();
    context.rect(this.left - 2, this.above - 2, this.width, this.height);
    context.clip();
    for (const [[row, column], name, line] of [[this.hover, "--quiet", 1], [this.chosen, "--mark", 1.5]]) {
      [context.strokeStyle, context.lineWidth] = [colour(name), line];
      if (row !== null) context.strokeRect(this.left, y + row * this.scale, right - this.left, size);
      if (column !== null) context.strokeRect(x + column * this.scale, this.above, size, bottom - this.above);
    }
    context.restore();
  }

  // The visible part as an SVG: few cells as rectangles, many as an image.
  drawing(canvas) {
    const {left, above, width, height, scale} = this;
    const [a, b, c, d] = this.window();
    if (!this.matrix || (b - a) * (d - c) > 20000 || scale < 4) return pictured(canvas, width, height);
    const whole = svg("svg", {viewBox: `0 0 ${width} ${height}`, width, height});
    const [x, y, size] = [left - c * scale, above - a * scale, Math.min(13, scale * 0.8)];
    for (let row = a; row < b; row++) {
      for (let column = c; column < d; column++) {
        const fill = shade(strength(this.matrix.data[row * this.matrix.columns + column], this.tiles.most, this.tiles.wide));
        whole.append(svg("rect", {x: x + column * scale, y: y + row * scale, width: scale - 0.5, height: scale - 0.5, fill}));
        if (scale < numberedCell) continue;
        const {text, strong} = this.written(row, column);
        const amount = svg("text", {x: x + (column + 0.5) * scale, y: y + (row + 0.5) * scale, dy: ".35em", "font-size": Math.min(13, scale / 2.9),
          "text-anchor": "middle"}, text);
        amount.style.fill = colour(strong ? "--paper" : "--ink");
        whole.append(amount);
      }
      whole.append(svg("text", {x: left - 7, y: y + (row + 0.5) * scale, dy: ".35em", "font-size": size, "text-anchor": "end"}, label(this.rows[row])));
    }
    for (let column = c; column < d; column++) {
      const turned = `translate(${x + (column + 0.5) * scale} ${above - 7}) rotate(-90)`;
      whole.append(svg("text", {transform: turned, dy: ".35em", "font-size": size}, label(this.columns[column])));
    }
    return whole;
  }
}
