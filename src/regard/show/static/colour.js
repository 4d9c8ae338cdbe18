// Colours come from the style sheet's custom properties, so themes and print need no second copy.

const knownRamps = new Map();

// A custom property of the page, "--ink".
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The colour of a head, one of eight that colour-blind people can tell apart; more heads repeat them.
export function headColour(head) {
  return colour(`--head-${head % 8}`);
}

// Clear the cached palettes when the theme changes.
export function forgetColours() {
  knownRamps.clear();
}

function channels(text) {
  const digits = text.replace("#", "");
  const long = digits.length === 3 ? Array.from(digits, (digit) => digit + digit).join("") : digits;
  return [0, 2, 4].map((at) => parseInt(long.slice(at, at + 2), 16));
}

// 256 colours of packed RGBA for ImageData: "ramp" from nothing to one, "diverging" from minus one over zero to one.
export function palette(name = "ramp") {
  if (!knownRamps.has(name)) {
    const stops = [];
    for (let at = 0; colour(`--${name}-${at}`); at++) stops.push(channels(colour(`--${name}-${at}`)));
    const packed = new Uint32Array(256);
    const bytes = new Uint8ClampedArray(packed.buffer);
    for (let level = 0; level < 256; level++) {
      const at = (level / 255) * (stops.length - 1);
      const [left, part] = [Math.min(Math.floor(at), stops.length - 2), at - Math.min(Math.floor(at), stops.length - 2)];
      for (let c = 0; c < 3; c++) bytes[4 * level + c] = stops[left][c] * (1 - part) + stops[left + 1][c] * part;
      bytes[4 * level + 3] = 255;
    }
    knownRamps.set(name, packed);
  }
  return knownRamps.get(name);
}

// One colour of a palette as CSS; share is from 0 to 1.
export function shade(share, name = "ramp") {
  const bytes = new Uint8Array(palette(name).buffer);
  const level = 4 * Math.round(255 * Math.min(1, Math.max(0, share || 0)));
  return `rgb(${bytes[level]} ${bytes[level + 1]} ${bytes[level + 2]})`;
}

// The strength in which a weight is drawn: the square root keeps small weights visible; with very many keys, the cube root.
export function strength(weight, most = 1, keys = 1) {
  const share = Math.min(1, weight / most);
  return !(weight > 0) ? 0 : keys > 512 ? Math.cbrt(share) : Math.sqrt(share);
}

// Draw rows x columns of values onto a canvas of that many pixels; `of` maps a value to a share 0..1.
export function paint(canvas, data, rows, columns, of = strength, name = "ramp") {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const [pixels, colours] = [new Uint32Array(image.data.buffer), palette(name)];
  for (let at = 0; at < pixels.length; at++) pixels[at] = colours[(255 * of(data[at]) + 0.5) | 0];
  context.putImageData(image, 0, 0);
  return canvas;
}
