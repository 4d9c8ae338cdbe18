// A small attention matrix with its tokens, on a canvas: for views that show several at once.
import {element, hideValue, label, number, sharp, sharpest, showValue} from "./dom.js";
import {colour, paint, strength} from "./colour.js";

const minLabelledCell = 9; // pixels; smaller cells have no labels

// The share of the palette for a value: weights, or signed differences.
const shareOf = {
  ramp: (most) => (value) => strength(value, most),
  diverging: (most) => (value) => (Number.isFinite(value) ? Math.max(0, Math.min(1, 0.5 + (0.5 * value) / (most || 1))) : 0.5),
};

function widestOf(texts, context) {
  return Math.min(110, texts.reduce((most, text) => Math.max(most, context.measureText(label(text, 12)).width + 9), 12));
}

function drawLabels(context, {rowTexts, columnTexts, left, top, cell}) {
  context.fillStyle = colour("--ink");
  context.font = `${Math.min(12, cell)}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  rowTexts.forEach((text, row) => context.fillText(label(text, 12), left - 6, top + (row + 0.5) * cell));
  context.textAlign = "left";
  columnTexts.forEach((text, column) => {
    context.save();
    context.translate(left + (column + 0.5) * cell, top - 5);
    context.rotate(-Math.PI / 2);
    context.fillText(label(text, 12), 0, 0);
    context.restore();
  });
}

function drawLines(context, {rows, columns, left, top, cell, wide, tall}) {
  context.strokeStyle = colour("--paper");
  context.lineWidth = 1;
  context.beginPath();
  for (let row = 1; row < rows; row++) {
    context.moveTo(left, top + row * cell);
    context.lineTo(wide, top + row * cell);
  }
  for (let column = 1; column < columns; column++) {
    context.moveTo(left + column * cell, top);
    context.lineTo(left + column * cell, tall);
  }
  context.stroke();
}

// show({rows, columns, data, rowTexts, columnTexts, most?, room, maxCell?}): the texts are null where rows are tiles.
// kind: "ramp" or "diverging".
export function smallMap(name, app, kind = "ramp") {
  const canvas = element("canvas", {class: "small-map", role: "img", tabindex: 0, "data-own": true, "data-map": name});
  let shown = null;
  let cursor = [0, 0];

  function show(given) {
    const {rows, columns, rowTexts, columnTexts, room, maxCell = 24} = given;
    const measure = sharp(canvas, 10, 10);
    measure.font = "12px system-ui, sans-serif";
    let [left, top] = rowTexts && columnTexts ? [widestOf(rowTexts, measure), widestOf(columnTexts, measure)] : [0, 0];
    let cell = Math.min(maxCell, (room - left) / columns, 480 / rows);
    const labelled = cell >= minLabelledCell && rowTexts && columnTexts;
    if (!labelled) {
      [left, top] = [0, 0];
      cell = Math.min(maxCell, room / columns, 520 / rows);
    }
    shown = {...given, labelled, left, top, cell, wide: left + cell * columns, tall: top + cell * rows};
    draw(canvas);
    canvas.setAttribute("aria-label", `${name}: ${rows} by ${columns}; arrow keys read it`);
  }

  function draw(onto, sharpness) {
    const {rows, columns, data, most = 1, labelled, left, top, cell, wide, tall} = shown;
    const context = sharp(onto, wide, tall, sharpness);
    context.fillStyle = colour("--paper");
    context.fillRect(0, 0, wide, tall);
    const pixels = paint(document.createElement("canvas"), data, rows, columns, shareOf[kind](most), kind);
    context.imageSmoothingEnabled = false;
    context.drawImage(pixels, left, top, cell * columns, cell * rows);
    if (cell >= 8) drawLines(context, shown);
    if (labelled) drawLabels(context, shown);
    return onto;
  }

  function showCell(row, column, x, y) {
    cursor = [row, column];
    const {columns, data, rowTexts, columnTexts} = shown;
    const value = data[row * columns + column];
    const lines = [rowTexts && columnTexts ? `${rowTexts[row]} → ${columnTexts[column]}` : `tile ${row}, ${column}`, number(value)];
    showValue(x, y, lines, {row, column, value});
    return lines.join(": ");
  }
  canvas.addEventListener("pointermove", (event) => {
    if (!shown) return;
    const box = canvas.getBoundingClientRect();
    const scale = shown.wide / box.width;
    const row = Math.floor(((event.clientY - box.top) * scale - shown.top) / shown.cell);
    const column = Math.floor(((event.clientX - box.left) * scale - shown.left) / shown.cell);
    if (row < 0 || column < 0 || row >= shown.rows || column >= shown.columns) hideValue();
    else showCell(row, column, event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", hideValue);
  canvas.addEventListener("blur", hideValue);
  canvas.addEventListener("keydown", (event) => {
    const way = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
    if (!way || !shown) return;
    event.preventDefault();
    event.stopPropagation();
    const row = Math.max(0, Math.min(shown.rows - 1, cursor[0] + way[0]));
    const column = Math.max(0, Math.min(shown.columns - 1, cursor[1] + way[1]));
    const box = canvas.getBoundingClientRect();
    app.announce(showCell(row, column, box.left + shown.left + (column + 0.5) * shown.cell, box.top + shown.top + (row + 0.5) * shown.cell));
  });
  // The map, sharp enough for print.
  const picture = () => draw(document.createElement("canvas"), sharpest);
  return {canvas, show, picture};
}

// Several canvases side by side as one picture.
export function joinedCanvas(canvases) {
  const gap = 24 * sharpest;
  const made = document.createElement("canvas");
  made.width = canvases.reduce((sum, canvas) => sum + canvas.width + gap, gap);
  made.height = Math.max(...canvases.map((canvas) => canvas.height)) + 2 * gap;
  const context = made.getContext("2d");
  context.fillStyle = colour("--paper");
  context.fillRect(0, 0, made.width, made.height);
  let x = gap;
  for (const canvas of canvases) {
    context.drawImage(canvas, x, gap);
    x += canvas.width + gap;
  }
  return made;
}

// A canvas of one pixel per number, enlarged to a picture.
export function enlarged(canvas) {
  const factor = Math.max(1, Math.floor(1000 / Math.max(canvas.width, canvas.height)));
  const made = document.createElement("canvas");
  [made.width, made.height] = [canvas.width * factor, canvas.height * factor];
  const context = made.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, 0, 0, made.width, made.height);
  return made;
}
