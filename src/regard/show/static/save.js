// Save the view as a file: PNG, SVG, or NPZ for numpy.

function download(name, type, parts) {
  const address = URL.createObjectURL(new Blob(parts, {type}));
  const link = document.createElement("a");
  link.download = name;
  link.href = address;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

const drawnProperties = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-linecap", "stroke-dasharray", "opacity", "font-family",
  "font-size", "font-weight", "font-variant-numeric", "text-anchor", "dominant-baseline", "display", "visibility",
];

// An SVG with its computed styles as attributes, so that it needs no style sheet.
export function standalone(drawing) {
  if (!drawing.isConnected) {
    // Computed styles need a drawing in the page, so it is in the page for a moment.
    const holder = document.createElement("div");
    holder.className = "visually-hidden";
    holder.append(drawing);
    document.body.append(holder);
    const made = standalone(drawing);
    holder.remove();
    return made;
  }
  const copy = drawing.cloneNode(true);
  const [live, still] = [[drawing, ...drawing.querySelectorAll("*")], [copy, ...copy.querySelectorAll("*")]];
  live.forEach((node, at) => {
    const style = getComputedStyle(node);
    for (const name of drawnProperties) {
      const value = style.getPropertyValue(name);
      if (value && value !== "normal") still[at].setAttribute(name, value);
    }
    for (const name of ["class", "style", "tabindex"]) still[at].removeAttribute(name);
  });
  const {width, height} = drawing.getBoundingClientRect();
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", Math.round(width));
  copy.setAttribute("height", Math.round(height));
  if (!copy.hasAttribute("viewBox")) copy.setAttribute("viewBox", `0 0 ${Math.round(width)} ${Math.round(height)}`);
  const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  paper.setAttribute("width", "100%");
  paper.setAttribute("height", "100%");
  paper.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
  copy.prepend(paper);
  return copy;
}

// Draw an SVG onto a canvas, twice as large.
async function canvasOf(drawing) {
  const copy = standalone(drawing);
  const text = new XMLSerializer().serializeToString(copy);
  const address = URL.createObjectURL(new Blob([text], {type: "image/svg+xml"}));
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * Number(copy.getAttribute("width")), 2 * Number(copy.getAttribute("height"))];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(address);
  return canvas;
}

// A canvas as an SVG image.
export function pictured(canvas, width, height) {
  const image = document.createElementNS("http://www.w3.org/2000/svg", "image");
  const whole = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({width, height})) for (const node of [image, whole]) node.setAttribute(name, value);
  image.setAttribute("href", canvas.toDataURL("image/png"));
  whole.append(image);
  return whole;
}

// drawing: a canvas or an SVG element.
export async function savePNG(name, drawing) {
  const canvas = drawing instanceof HTMLCanvasElement ? drawing : await canvasOf(drawing);
  const made = await new Promise((done) => canvas.toBlob(done, "image/png"));
  download(`${name}.png`, "image/png", [made]);
}

export function saveSVG(name, drawing) {
  download(`${name}.svg`, "image/svg+xml", [new XMLSerializer().serializeToString(standalone(drawing))]);
}

// One numpy array as a .npy file, version 1.0.
export function npyOf({shape, data}) {
  const type = data instanceof Float32Array ? "<f4" : data instanceof Int32Array ? "<i4" : "<f8";
  const wide = data instanceof Float32Array || data instanceof Int32Array ? data : Float64Array.from(data);
  const tuple = `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
  const text = `{'descr': '${type}', 'fortran_order': False, 'shape': ${tuple}, }`;
  const header = text.padEnd(Math.ceil((10 + text.length + 1) / 64) * 64 - 11) + "\n";
  const bytes = new Uint8Array(10 + header.length + wide.byteLength);
  bytes.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 255, header.length >> 8]);
  bytes.set(new TextEncoder().encode(header), 10);
  bytes.set(new Uint8Array(wide.buffer, wide.byteOffset, wide.byteLength), 10 + header.length);
  return bytes;
}

// A list of strings as a numpy array: <U, four bytes per character.
function npyOfTexts(texts) {
  const characters = texts.map((text) => Array.from(text, (character) => character.codePointAt(0)));
  const maxLength = Math.max(1, ...characters.map((line) => line.length));
  const codes = new Int32Array(texts.length * maxLength);
  characters.forEach((line, at) => codes.set(line, at * maxLength));
  const bytes = npyOf({shape: [texts.length], data: codes});
  const [start, type] = [10, `'<i4'`];
  const header = new TextDecoder().decode(bytes.subarray(start, start + bytes[8] + 256 * bytes[9]));
  const named = header.trimEnd().replace(type, `'<U${maxLength}'`).padEnd(header.length - 1) + "\n";
  bytes.set(new TextEncoder().encode(named), start);
  return bytes;
}

let checksumTable = null;

function checksum(bytes) {
  checksumTable ??= Uint32Array.from({length: 256}, (_, n) => {
    for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
    return n >>> 0;
  });
  let sum = 0xffffffff;
  for (const byte of bytes) sum = checksumTable[(sum ^ byte) & 255] ^ (sum >>> 8);
  return (sum ^ 0xffffffff) >>> 0;
}

// Files as a zip archive without compression.
export function zipped(files) {
  const [parts, listed] = [[], []];
  let at = 0;
  for (const [name, bytes] of files) {
    const title = new TextEncoder().encode(name);
    const fields = [20, 0x800, 0, 0, 0x21]; // version, names in UTF-8, stored, the first of January 1980
    const tail = [checksum(bytes), bytes.length, bytes.length];
    const local = new DataView(new ArrayBuffer(30));
    local.setUint32(0, 0x04034b50, true);
    fields.forEach((value, index) => local.setUint16(4 + 2 * index, value, true));
    tail.forEach((value, index) => local.setUint32(14 + 4 * index, value, true));
    local.setUint16(26, title.length, true);
    const entry = new DataView(new ArrayBuffer(46));
    entry.setUint32(0, 0x02014b50, true);
    entry.setUint16(4, 20, true);
    fields.forEach((value, index) => entry.setUint16(6 + 2 * index, value, true));
    tail.forEach((value, index) => entry.setUint32(16 + 4 * index, value, true));
    entry.setUint16(28, title.length, true);
    entry.setUint32(42, at, true);
    parts.push(local, title, bytes);
    listed.push(entry, title);
    at += 30 + title.length + bytes.length;
  }
  const length = listed.reduce((sum, part) => sum + part.byteLength, 0);
  const end = new DataView(new ArrayBuffer(22));
  end.setUint32(0, 0x06054b50, true);
  end.setUint16(8, files.length, true);
  end.setUint16(10, files.length, true);
  end.setUint32(12, length, true);
  end.setUint32(16, at, true);
  return [...parts, ...listed, end];
}

// arrays: {name: {shape, data} or a list of strings}.
export function saveNPZ(name, arrays) {
  const files = Object.entries(arrays).map(([title, array]) => [`${title}.npy`, Array.isArray(array) ? npyOfTexts(array) : npyOf(array)]);
  download(`${name}.npz`, "application/zip", zipped(files));
}
