// A matrix at every zoom: max-pooled levels (two by two), painted tile by tile and cached.
import {paint, strength} from "./colour.js";

const tileSize = 256; // cells of a tile
const maxTiles = 160;

// The next coarser level: each cell is the maximum of 2 x 2.
function halved({rows, columns, data}) {
  const [tall, wide] = [Math.ceil(rows / 2), Math.ceil(columns / 2)];
  const made = new Float32Array(tall * wide);
  for (let row = 0; row < rows; row++) {
    const [from, to] = [row * columns, (row >> 1) * wide];
    for (let column = 0; column < columns; column++) {
      const value = data[from + column];
      if (value > made[to + (column >> 1)]) made[to + (column >> 1)] = value;
    }
  }
  return {rows: tall, columns: wide, data: made};
}

function cut({columns, data}, top, left, tall, wide) {
  const part = new Float32Array(tall * wide);
  for (let row = 0; row < tall; row++) part.set(data.subarray((top + row) * columns + left, (top + row) * columns + left + wide), row * wide);
  return part;
}

// The cache key of a tile from the server, `step` units long.
const fetchedKey = (step, top, left) => `fetched ${step} ${top} ${left}`;

export class Tiles {
  // matrix: {rows, columns, data}. units: [T, S], what it covers; more than its cells when it is pooled.
  // fetchTiles(rows, columns, size), if given, fetches finer tiles of a pooled matrix; onTiles() is called when they arrive.
  constructor(matrix, [tall, wide], {fetchTiles = null, onTiles = () => {}} = {}) {
    Object.assign(this, {tall, wide, fetchTiles, onTiles});
    this.levels = [matrix];
    this.cache = new Map();
    this.exact = new Map(); // cached tiles of the server in which a cell is one weight
    // A floor: attention spread evenly over many tokens stays faint.
    this.most = Math.min(0.25, matrix.most ?? 1);
    for (const value of matrix.data) if (value > this.most) this.most = value;
  }

  level(number) {
    while (this.levels.length <= number) this.levels.push(halved(this.levels.at(-1)));
    return this.levels[number];
  }

  keep(key, canvas) {
    if (this.cache.size >= maxTiles) {
      const oldest = this.cache.keys().next().value;
      this.cache.delete(oldest);
      this.exact.delete(oldest);
    }
    this.cache.set(key, canvas);
    return canvas;
  }

  painted(data, rows, columns) {
    return paint(document.createElement("canvas"), data, rows, columns, (value) => strength(value, this.most, this.wide));
  }

  // The exact weight if the server has sent it, else null.
  exactly(row, column) {
    const [top, left] = [row - (row % tileSize), column - (column % tileSize)];
    const part = this.exact.get(fetchedKey(tileSize, top, left));
    return part ? part.data[(row - top) * part.columns + column - left] : null;
  }

  // Draw rows [a, b] and columns [c, d] (in units) so that unit (t, s) is at x + s * scale, y + t * scale.
  draw(context, [a, b], [c, d], x, y, scale) {
    const first = this.levels[0];
    const [down, across] = [this.tall / first.rows, this.wide / first.columns]; // units of one cell of the finest level
    const number = Math.max(0, Math.ceil(Math.log2(1 / (scale * Math.max(down, across))) - 1e-9));
    const level = this.level(number);
    const [rowUnits, columnUnits] = [down * 2 ** number, across * 2 ** number];
    context.imageSmoothingEnabled = false;
    const last = (value, units, count) => Math.min(Math.ceil(value / units / tileSize), Math.ceil(count / tileSize));
    for (let i = Math.floor(Math.max(0, a) / rowUnits / tileSize); i < last(b, rowUnits, level.rows); i++) {
      for (let j = Math.floor(Math.max(0, c) / columnUnits / tileSize); j < last(d, columnUnits, level.columns); j++) {
        const [top, left] = [i * tileSize, j * tileSize];
        const [rows, columns] = [Math.min(tileSize, level.rows - top), Math.min(tileSize, level.columns - left)];
        const key = `${number} ${i} ${j}`;
        const tile = this.cache.get(key) ?? this.keep(key, this.painted(cut(level, top, left, rows, columns), rows, columns));
        context.drawImage(tile, x + left * columnUnits * scale, y + top * rowUnits * scale, columns * columnUnits * scale, rows * rowUnits * scale);
      }
    }
    if (this.fetchTiles && number === 0 && scale * Math.max(down, across) > 2) this.finer(context, [a, b], [c, d], x, y, scale);
  }

  // Tiles of the server over the pooled ones, as fine as the screen shows.
  finer(context, [a, b], [c, d], x, y, scale) {
    const step = tileSize * 2 ** Math.max(0, Math.ceil(Math.log2(1 / scale) - 1e-9));
    for (let top = Math.floor(Math.max(0, a) / step) * step; top < Math.min(b, this.tall); top += step) {
      for (let left = Math.floor(Math.max(0, c) / step) * step; left < Math.min(d, this.wide); left += step) {
        const [bottom, right] = [Math.min(this.tall, top + step), Math.min(this.wide, left + step)];
        const key = fetchedKey(step, top, left);
        const tile = this.cache.get(key);
        // The server's tiles are whole units long, so the last ones may reach beyond the matrix.
        const [down, across] = [Math.ceil((bottom - top) / tileSize), Math.ceil((right - left) / tileSize)];
        if (tile) context.drawImage(tile, x + left * scale, y + top * scale, tile.width * across * scale, tile.height * down * scale);
        else if (tile === undefined) {
          this.cache.set(key, null); // requested, not yet here
          this.fetchTiles([top, bottom], [left, right], tileSize).then(({shape, data}) => {
            this.keep(key, this.painted(data, shape[0], shape[1]));
            if (step === tileSize) this.exact.set(key, {columns: shape[1], data});
            this.onTiles();
          }, () => this.cache.delete(key));
        }
      }
    }
  }
}
