// DOM elements, and text that never becomes markup.

const joiners = "\u200c\u200d"; // some scripts need these two
const wideCharacter = /[▁\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Extended_Pictographic}\uff00-\uff60]/u;
const hiddenCharacters = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

// Invisible and direction-changing characters written out: NUL is ␀, a right-to-left override ‹202E›.
export function visible(text) {
  return String(text).replace(hiddenCharacters, (character) => {
    if (joiners.includes(character)) return character;
    const code = character.codePointAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : `‹${code.toString(16).toUpperCase().padStart(4, "0")}›`;
  });
}

// Three significant digits; an unknown value is a dash.
export function number(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const size = Math.abs(x);
  let text = String(Number(x.toPrecision(3)));
  if (size >= 1000) text = Math.round(x).toLocaleString("en");
  else if (size > 0 && size < 0.001) text = x.toExponential(1);
  return text.replace("-", "−");
}

// A token cut to the length of a label.
export function label(text, maxLength = 18) {
  const characters = Array.from(visible(text));
  let [room, whole] = [maxLength, 0];
  for (let at = 0; at < characters.length && room >= 0; at++) {
    room -= wideCharacter.test(characters[at]) ? 2 : 1;
    if (room >= 1) whole = at + 1;
  }
  return room >= 0 ? characters.join("") : characters.slice(0, whole).join("") + "…";
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.replace(/^on/, ""), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  // Strings become text nodes, never markup.
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// element("p", {class: "quiet", onclick: f}, "text", child, ...): listeners are functions, null is left out.
export function element(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// A token as an element with its own writing direction.
export function word(text, attributes) {
  return element("bdi", attributes, visible(text));
}

export const sharpest = Math.max(2, window.devicePixelRatio || 1); // pixels of a saved picture for one on screen

// A canvas as sharp as the screen, or sharper; its context draws in CSS pixels.
export function sharp(canvas, width, height, scale = window.devicePixelRatio || 1) {
  const [across, down] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  if (canvas.width !== across || canvas.height !== down) [canvas.width, canvas.height] = [across, down];
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return context;
}

// The tooltip of the page, `#value`: the value under the pointer, in full precision for scripts that read the page.
// lines: strings, the first one strong. data: {row, column, value} become data-row, data-column, data-value.
export function showValue(x, y, lines, data = {}) {
  let tip = document.getElementById("value");
  if (!tip) {
    tip = element("div", {id: "value", role: "tooltip"});
    document.body.append(tip);
  }
  tip.replaceChildren(...lines.map((line, at) => element(at ? "span" : "b", {}, word(line))));
  for (const name of ["row", "column", "value"]) {
    if (data[name] === undefined || data[name] === null) delete tip.dataset[name];
    else tip.dataset[name] = String(data[name]);
  }
  tip.hidden = false;
  const {width, height} = tip.getBoundingClientRect();
  const [across, down] = [document.documentElement.clientWidth, window.innerHeight];
  tip.style.left = `${Math.max(4, x + 14 + width > across ? x - width - 10 : x + 14)}px`;
  tip.style.top = `${Math.max(4, y + 18 + height > down ? y - height - 10 : y + 18)}px`;
}

export function hideValue() {
  const tip = document.getElementById("value");
  if (tip) tip.hidden = true;
}

// A box that scrolls sideways where its content is wider; a hint says so until its end is in sight.
export function scrollBox(attributes, ...children) {
  const box = element("div", {...attributes, class: `scroll ${attributes?.class ?? ""}`.trim()}, children);
  const hint = element("p", {class: "scroll-hint quiet", "aria-hidden": "true", hidden: true}, "scroll sideways for more →");
  const check = () => (hint.hidden = box.scrollLeft + box.clientWidth >= box.scrollWidth - 2);
  box.addEventListener("scroll", check, {passive: true});
  const watch = new ResizeObserver(check);
  for (const node of [box, ...box.children]) watch.observe(node);
  return element("div", {class: "scroll-frame"}, box, hint);
}

// f at most once per frame; print does not wait for frames.
export function framed(f) {
  let frame = 0;
  return () => {
    if (matchMedia("print").matches) return f();
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      f();
    });
    return undefined;
  };
}
