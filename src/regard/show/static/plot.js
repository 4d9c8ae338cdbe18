// Small drawings of numbers: lines, bars, and bars of either sign.
import {hideValue, label, number, showValue, svg, visible} from "./dom.js";

// The wanted width, or what the view has room for: text keeps its size on a phone.
export function roomFor(width, taken = 0) {
  const {clientWidth = 0} = document.getElementById("view") ?? {};
  return clientWidth ? Math.max(240, Math.min(width, clientWidth - taken)) : width;
}

// About `count` round numbers between two bounds.
export function ticks(low, high, count = 5) {
  const rough = (high - low) / count || 1;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * unit >= rough) * unit;
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step; at++) found.push(Number((at * step).toPrecision(12)));
  return found;
}

// A round number in full, so that all labels of an axis are written alike.
function tick(value) {
  const size = Math.abs(value);
  return size === 0 || (size >= 1e-6 && size < 1000) ? String(value).replace("-", "−") : number(value);
}

function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [0, 1] : [low, high];
}

// Lines over a common x: lines are [{name, values, colour}], x their coordinates. `mark` is an index of x, `pick` the action of a click.
export function linePlot({title, x, lines, across, up, named = number, width = roomFor(520), height = 210, mark = null, pick = null}) {
  const [left, right, top, bottom] = [52, 14, lines.length > 1 ? 30 : 12, 36];
  const [lowX, highX] = [x[0], x.length > 1 ? x[x.length - 1] : x[0] + 1];
  let [low, high] = extent(lines.flatMap((line) => Array.from(line.values)));
  if (low > 0 && low < 0.4 * high) low = 0;
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const toX = (value) => left + ((value - lowX) / (highX - lowX)) * (width - left - right);
  const toY = (value) => height - bottom - ((value - low) / (high - low)) * (height - top - bottom);
  const root = svg("svg", {class: "plot", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", tabindex: 0, "data-own": true});
  root.append(svg("title", {}, visible(title)));
  for (const value of ticks(low, high, 4)) {
    root.append(svg("path", {class: value === 0 ? "zero" : "rule", d: `M${left} ${toY(value)}H${width - right}`}));
    root.append(svg("text", {class: "tick", x: left - 7, y: toY(value), dy: ".33em", "text-anchor": "end"}, tick(value)));
  }
  const labelled = x.length <= 8 ? x : ticks(lowX, highX, 7);
  for (const value of labelled) {
    const text = label(named(value), 10);
    const middle = Math.min(toX(value), width - 2 - 3.1 * text.length); // a long name at the end moves inwards
    root.append(svg("text", {class: "tick", x: middle, y: height - bottom + 15, "text-anchor": "middle"}, text));
  }
  root.append(svg("text", {class: "axis", x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle"}, across));
  root.append(svg("text", {class: "axis", transform: `translate(11 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle"}, up));
  for (const line of lines) {
    let path = "";
    line.values.forEach((value, at) => {
      if (Number.isFinite(value)) path += `${path ? "L" : "M"}${toX(x[at]).toFixed(2)} ${toY(value).toFixed(2)}`;
    });
    const drawn = svg("path", {class: "curve", d: path, "data-line": line.name, "data-values": Array.from(line.values).join(" ")});
    if (line.colour) drawn.style.stroke = line.colour;
    root.append(drawn);
  }
  // The legend of several lines, in their colours.
  const spacing = (width - left - right) / Math.max(5, Math.min(lines.length, 12));
  lines.slice(0, lines.length > 1 ? 12 : 0).forEach((line, at) => {
    const name = svg("text", {class: "tick named", x: left + at * spacing, y: 14}, lines.length > 6 ? line.name.replace(/^\D+/, "") || line.name : line.name);
    if (line.colour) name.style.fill = line.colour;
    root.append(name);
  });
  const pointer = svg("g", {class: "pointer"});
  root.append(pointer);

  function point(at) {
    pointer.replaceChildren(svg("path", {class: "rule", d: `M${toX(x[at])} ${top}V${height - bottom}`}));
    for (const line of lines) {
      if (!Number.isFinite(line.values[at])) continue;
      const dot = svg("circle", {class: "dot", cx: toX(x[at]), cy: toY(line.values[at]), r: 3.5});
      if (line.colour) dot.style.fill = line.colour;
      pointer.append(dot);
    }
  }
  if (mark !== null) point(mark);
  let at = mark ?? 0;
  function showPoint(index, clientX, clientY) {
    at = index;
    point(at);
    const texts = lines.slice(0, 12).map((line) => (lines.length > 1 ? `${line.name}: ${number(line.values[at])}` : number(line.values[at])));
    showValue(clientX, clientY, [`${across} ${named(x[at])}`, ...texts], {row: 0, column: x[at], value: lines[0].values[at]});
  }
  function rest() {
    hideValue();
    if (mark !== null) point(mark);
    else pointer.replaceChildren();
  }
  root.addEventListener("pointermove", (event) => {
    const box = root.getBoundingClientRect();
    const wanted = lowX + ((((event.clientX - box.left) / box.width) * width - left) / (width - left - right)) * (highX - lowX);
    let nearest = 0;
    x.forEach((value, index) => {
      if (Math.abs(value - wanted) < Math.abs(x[nearest] - wanted)) nearest = index;
    });
    showPoint(nearest, event.clientX, event.clientY);
  });
  root.addEventListener("pointerleave", rest);
  root.addEventListener("blur", rest);
  if (pick) root.addEventListener("click", () => pick(at));
  root.addEventListener("keydown", (event) => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (pick && event.key === "Enter") pick(at);
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const box = root.getBoundingClientRect();
    showPoint(Math.max(0, Math.min(x.length - 1, at + step)), box.left + (box.width * toX(x[at])) / width, box.top);
  });
  return root;
}

// A label of a drawing; the marker of a leading space is faint.
export function drawnLabel(text, maxLength) {
  const short = label(text, maxLength) || "∅";
  const [space] = short.match(/^▁+/) ?? [""];
  return [svg("tspan", {class: "space"}, space), short.slice(space.length)];
}

// Bars with a text on the left and a number on the right: rows are [{text, value, marked?, note?, shown?}]; values are 0 or more,
// and `shown` stands instead of the number.
export function barChart(name, rows, {most = null, maxLength = 14} = {}) {
  const width = roomFor(520);
  const [height, left, right] = [25, 130, 120];
  const top = most ?? Math.max(1e-9, ...rows.map((row) => row.value));
  const root = svg("svg", {class: "bars", viewBox: `0 0 ${width} ${height * rows.length + 4}`, width, height: height * rows.length + 4, role: "list",
    "aria-label": visible(name)});
  rows.forEach((row, at) => {
    const long = Math.max(1.5, (Math.max(0, row.value) / top) * (width - left - right));
    const y = at * height;
    root.append(svg("g", {
      class: row.marked ? "bar marked" : "bar", role: "listitem", "data-row": at, "data-value": row.value, "data-marked": row.marked ? "yes" : null,
      "aria-label": `${visible(row.text)}: ${number(row.value)}${row.note ? `, ${row.note}` : ""}`,
    },
    svg("title", {}, `${visible(row.text)} ${row.value}`),
    svg("text", {class: "name", x: left - 10, y: y + height / 2, dy: ".35em", "text-anchor": "end"}, drawnLabel(row.text, maxLength)),
    svg("rect", {x: left, y: y + 5, width: long, height: height - 9, rx: 2}),
    svg("text", {class: "amount", x: left + long + 7, y: y + height / 2, dy: ".35em"}, row.shown ?? (row.note ? `${number(row.value)}  ${row.note}` : number(row.value)))));
  });
  return root;
}

// Rows of signed numbers, one bar per number: rows are [{part, text, values, most}].
export function signedBars(name, rows) {
  const [width, tall] = [roomFor(860, 48), 58];
  const names = rows.map((row) => label(row.text, 18));
  const [left, right] = [Math.max(96, 24 + 7 * Math.max(...names.map((name) => name.length))), 12];
  const height = tall * rows.length;
  const root = svg("svg", {class: "signed", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": visible(name)});
  const room = width - left - right;
  rows.forEach((row, index) => {
    const middle = index * tall + tall / 2;
    const step = room / row.values.length;
    let [up, down] = ["", ""];
    row.values.forEach((value, at) => {
      const size = Math.max(0.4, Math.min(1, Math.abs(value) / (row.most || 1)) * (tall / 2 - 5));
      const x = (left + at * step + step * 0.1).toFixed(2);
      const bar = `M${x} ${middle}v${(value < 0 ? size : -size).toFixed(2)}h${(step * 0.8).toFixed(2)}V${middle}z`;
      if (value < 0) down += bar;
      else up += bar;
    });
    root.append(svg("g", {"data-part": row.part, "data-values": Array.from(row.values).join(" ")},
      svg("text", {class: "name", x: left - 12, y: middle, dy: ".35em", "text-anchor": "end"}, names[index]),
      svg("path", {class: "rule", d: `M${left} ${middle}H${width - right}`}),
      svg("path", {class: "plus", d: up}), svg("path", {class: "minus", d: down})));
  });
  const spot = svg("rect", {class: "spot", y: 0, height});
  spot.style.display = "none";
  root.append(spot);
  root.addEventListener("pointermove", (event) => {
    const box = root.getBoundingClientRect();
    const count = rows[0].values.length;
    const at = Math.floor((((event.clientX - box.left) / box.width) * width - left) / (room / count));
    const row = rows[Math.min(rows.length - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows.length)))];
    if (at < 0 || at >= count) return rest();
    spot.style.display = "";
    spot.setAttribute("x", left + (at * room) / count);
    spot.setAttribute("width", room / count);
    const lines = rows.map((line) => `${line.text}: ${number(line.values[at])}`);
    showValue(event.clientX, event.clientY, [`dimension ${at}`, ...lines], {row: row.part, column: at, value: row.values[at]});
  });
  function rest() {
    spot.style.display = "none";
    hideValue();
  }
  root.addEventListener("pointerleave", rest);
  return root;
}
