// Positional encoding: each table as an image, and the similarity of two positions by their distance.
import {element, hideValue, number, showValue, visible, word} from "./dom.js";
import {headColour, paint} from "./colour.js";
import {headTitle} from "./labels.js";
import {linePlot} from "./plot.js";
import {enlarged} from "./small_map.js";
import {within} from "./tokens.js";

const maxProducts = 5e7; // for larger tables fewer pairs per distance are averaged

// The mean cosine similarity of rows at each distance. For rotary tables (cosines and sines of angles) this is
// the mean cosine of the angles' differences, because every row is equally long.
export function similarity({shape: [rows, wide], data}) {
  const lengths = Float64Array.from({length: rows}, (_, t) => {
    let sum = 0;
    for (let i = 0; i < wide; i++) sum += data[t * wide + i] ** 2;
    return Math.sqrt(sum);
  });
  const skip = Math.max(1, Math.ceil((rows * rows * wide) / 2 / maxProducts));
  return Float64Array.from({length: rows}, (_, distance) => {
    let [sum, count] = [0, 0];
    const step = Math.min(skip, rows - distance);
    for (let t = 0; t + distance < rows; t += step) {
      const size = lengths[t] * lengths[t + distance];
      if (!size) continue;
      const [a, b] = [t * wide, (t + distance) * wide];
      let product = 0;
      for (let i = 0; i < wide; i++) product += data[a + i] * data[b + i];
      sum += product / size;
      count++;
    }
    return count ? sum / count : NaN;
  });
}

function plotOf(position, table) {
  const [rows, columns] = table.shape;
  if (position.kind === "bias") {
    const lines = Array.from({length: rows}, (_, head) => ({
      name: headTitle(head), colour: headColour(head), values: Array.from(table.data.subarray(head * columns, (head + 1) * columns)),
    }));
    return linePlot({title: "Bias by distance, one line per head", x: Array.from({length: columns}, (_, at) => position.first + at), lines, across: "distance",
      up: "bias"});
  }
  const up = position.kind === "rotary" ? "mean cosine of the angle" : "mean cosine";
  return linePlot({title: "Similarity of two positions by distance", x: Array.from({length: rows}, (_, at) => at),
    lines: [{name: up, values: similarity(table)}], across: "distance", up});
}

// One table: its image, the value under the pointer or the cursor, and its plot.
function tableFigure(app, position, table, at) {
  const [rows, columns] = table.shape;
  const names = position.kind === "bias" ? ["head", "distance"] : ["position", "dimension"];
  const nameOf = position.kind === "bias" ? (row, column) => [row, position.first + column] : (row, column) => [position.first + row, column];
  let most = 0;
  for (const value of table.data) if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
  const canvas = element("canvas", {
    class: "table", role: "img", tabindex: 0, "data-own": true, "data-table": at, "data-rows": rows, "data-columns": columns,
    "aria-label": `${visible(position.name)}: ${rows} by ${columns} numbers from ${number(-most)} to ${number(most)}; arrow keys read them`,
  });
  const cell = Math.max(1, Math.min(14, Math.floor(560 / columns)));
  const tall = position.kind === "bias" ? Math.max(cell, 14) : Math.max(1, Math.min(cell, Math.floor(420 / rows)));
  canvas.style.width = `${Math.min(720, columns * cell)}px`;
  canvas.style.height = `${Math.min(460, rows * tall)}px`;
  let cursor = [0, 0];
  const draw = () => paint(canvas, table.data, rows, columns, (value) => 0.5 + (0.5 * value) / (most || 1), "diverging");
  const showCell = (row, column, x, y) => {
    cursor = [row, column];
    const value = table.data[row * columns + column];
    const labels = nameOf(row, column);
    const lines = [`${names[0]} ${labels[0]}, ${names[1]} ${labels[1]}`, number(value)];
    showValue(x, y, lines, {row, column, value});
    return lines.join(": ");
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const [row, column] = [Math.floor(((event.clientY - box.top) / box.height) * rows), Math.floor(((event.clientX - box.left) / box.width) * columns)];
    showCell(within(row, rows), within(column, columns), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", hideValue);
  canvas.addEventListener("blur", hideValue);
  canvas.addEventListener("keydown", (event) => {
    const way = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
    if (!way) return;
    event.preventDefault();
    event.stopPropagation();
    const [row, column] = [within(cursor[0] + way[0], rows, cursor[0]), within(cursor[1] + way[1], columns, cursor[1])];
    const box = canvas.getBoundingClientRect();
    app.announce(showCell(row, column, box.left + ((column + 0.5) * box.width) / columns, box.top + ((row + 0.5) * box.height) / rows));
  });
  const [top, bottom] = [nameOf(0, 0), nameOf(rows - 1, columns - 1)];
  const corner = (name, value) => element("span", {}, `${name} ${number(value)}`);
  const figure = element("figure", {class: "map"},
    element("div", {class: "down"}, corner(names[0], top[0]), corner("", bottom[0])), canvas,
    element("div", {class: "along"}, corner(names[1], top[1]), corner("", bottom[1])));
  const plot = plotOf(position, table);
  const what = {
    table: "One row per position, and the cosine similarity of two rows by their distance.",
    rotary: "Cosines and sines of the angles by which queries and keys are rotated.",
    bias: "The bias added to each score, by the distance between query and key.",
  };
  const whole = element("section", {class: "position", "data-table": at, "data-kind": position.kind}, element("h2", {}, word(position.name)),
    element("p", {class: "quiet"}, what[position.kind]), element("div", {class: "side-by-side"}, figure, rows > 1 || position.kind === "bias" ? plot : null));
  return {whole, canvas, plot, draw};
}

function mountPositions(root, app) {
  const {positions} = app.trace();
  let made = null;

  async function update(names) {
    if (!made) {
      made = [];
      const tables = await Promise.all(positions.map((position) => app.store.tensor(position.table)));
      made = tables.map((table, at) => tableFigure(app, positions[at], table, at));
      root.replaceChildren(...made.map(({whole}) => whole));
      made.forEach(({draw}) => draw());
      app.announce(positions.map((position, at) => `${visible(position.name)}, ${tables[at].shape.join(" by ")}`).join("; "));
    } else if (names.includes("theme")) {
      const tables = await Promise.all(positions.map((position) => app.store.tensor(position.table)));
      made.forEach((one, at) => {
        one.draw();
        const plot = plotOf(positions[at], tables[at]);
        one.plot.replaceWith(plot);
        one.plot = plot;
      });
    }
  }

  // The table nearest to the top of the window is saved as a picture.
  const current = () => made.find(({whole}) => whole.getBoundingClientRect().bottom > 80) ?? made[0];
  const npz = async () => {
    const arrays = {names: positions.map(({name}) => name)};
    for (const [at, position] of positions.entries()) {
      const table = await app.store.tensor(position.table);
      arrays[`table_${at}`] = table;
      if (position.kind !== "bias") arrays[`similarity_${at}`] = {shape: [table.shape[0]], data: similarity(table)};
    }
    return arrays;
  };
  return {update, save: {png: () => enlarged(current().canvas), svg: () => current().plot, npz}};
}

export const positionsView = {
  name: "positions", title: "Positional encoding", key: "p",
  about: "Positional encoding: the tables as images, and the similarity of two positions by their distance.",
  fits: (trace) => trace.positions?.length > 0,
  mount: mountPositions,
};
