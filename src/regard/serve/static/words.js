// Words shaded by their probability, and the alternatives of a word in a menu below it.
import {element, hideValue, showValue, visible, word} from "./dom.js";

export const percent = (p) => (p >= 0.9995 ? "100 %" : p < 0.001 ? "under 0.1 %" : `${(100 * p).toPrecision(p < 0.1 ? 2 : 3)} %`);

// Pieces of a text with their log-probabilities -> its words: [{text, start, end, probability}], a geometric mean over the pieces.
export function wordsOf(pieces) {
  const text = pieces.map((piece) => piece.text).join("");
  const found = [...text.matchAll(/\S+/gu)].map((match) => ({text: match[0], start: match.index, end: match.index + match[0].length, sum: 0, count: 0}));
  let [at, from] = [0, 0];
  for (const piece of pieces) {
    const to = at + piece.text.length;
    while (from < found.length && found[from].end <= at) from++;
    for (let index = from; index < found.length && found[index].start < to; index++) {
      if (!Number.isFinite(piece.logprob)) continue;
      found[index].sum += piece.logprob;
      found[index].count += 1;
    }
    at = to;
  }
  return {text, words: found.map(({sum, count, ...one}) => ({...one, probability: count ? Math.exp(sum / count) : null}))};
}

// The server's words: [{word, start, end, probability}], counted in characters, at their places in a string of UTF-16.
export function placed(text, words) {
  const starts = [0];
  for (const character of text) starts.push(starts[starts.length - 1] + character.length);
  return words.map(({word: one, start, end, probability}) => ({text: one, start: starts[start] ?? text.length, end: starts[end] ?? text.length, probability}));
}

// A place in a string, counted in characters as the server counts.
export const characters = (text, at) => Array.from(text.slice(0, at)).length;

// A word as an element; one of which nothing can be seen gets a sign.
export const seenWord = (text, attributes) => word(/^[\s\u200c\u200d]*$/u.test(text) ? "∅" : text, attributes);

// One word; a known probability shades it, `choose` makes it a button.
function shadedWord(one, choose) {
  const node = element(choose ? "button" : "span", {type: choose ? "button" : null, class: "word", "data-probability": one.probability,
    "aria-description": one.probability === null ? null : `probability ${percent(one.probability)}`,
    "aria-haspopup": choose ? "menu" : null}, seenWord(one.text));
  if (one.probability !== null) {
    node.style.setProperty("--doubt", `${(58 * (1 - one.probability) ** 0.6).toFixed(1)}%`);
    const show = (x, y) => showValue(x, y, [one.text, `probability ${percent(one.probability)}`, ...(choose ? ["click for alternatives"] : [])], {value: one.probability});
    node.addEventListener("pointermove", (event) => show(event.clientX, event.clientY));
    node.addEventListener("pointerleave", hideValue);
    node.addEventListener("focus", () => {
      if (!node.matches(":focus-visible")) return;
      const {left, bottom} = node.getBoundingClientRect();
      show(left, bottom - 12);
    });
    node.addEventListener("blur", hideValue);
  }
  if (choose) node.addEventListener("click", () => {
    hideValue();
    choose(node);
  });
  return node;
}

// A text with its words shaded; what stands between them stays. choose(index, node) is called with a clicked word.
// The words before `first` cannot be chosen.
export function shadedText(text, words, choose = null, first = 0) {
  const nodes = [];
  let at = 0;
  words.forEach((one, index) => {
    if (one.start > at) nodes.push(spaces(text.slice(at, one.start)));
    nodes.push(shadedWord(one, choose && index >= first ? (node) => choose(index, node) : null));
    at = one.end;
  });
  if (at < text.length) nodes.push(spaces(text.slice(at)));
  return nodes;
}

// Text between words: line breaks stay, whatever else is invisible is written out.
export function spaces(text) {
  return text.split("\n").map(visible).join("\n");
}

let openMenu = null;

export function closeMenu() {
  openMenu?.();
  openMenu = null;
}

// A menu below a word: rows are [{text, probability}], or a promise of them; choose(row) is called with one.
export async function alternativesMenu(node, rows, choose) {
  closeMenu();
  const menu = element("div", {class: "alternatives", role: "menu", "aria-label": "Alternatives"}, element("p", {class: "quiet"}, "looking …"));
  const {left, bottom} = node.getBoundingClientRect();
  menu.style.left = `${Math.max(8, Math.min(left, document.documentElement.clientWidth - 276)) + window.scrollX}px`;
  menu.style.top = `${bottom + 6 + window.scrollY}px`;
  const outside = (event) => menu.contains(event.target) || event.target === node || closeMenu();
  const keys = (event) => {
    const items = [...menu.querySelectorAll('[role="menuitem"]')];
    const at = items.indexOf(document.activeElement);
    const to = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1}[event.key];
    if (event.key === "Escape") {
      closeMenu();
      node.focus();
    } else if (to !== undefined && items.length) items[(to + items.length) % items.length].focus();
    else return;
    event.preventDefault();
  };
  document.addEventListener("pointerdown", outside);
  menu.addEventListener("keydown", keys);
  node.addEventListener("keydown", keys);
  node.setAttribute("aria-expanded", "true");
  document.body.append(menu);
  const close = () => {
    document.removeEventListener("pointerdown", outside);
    node.removeEventListener("keydown", keys);
    node.removeAttribute("aria-expanded");
    menu.remove();
  };
  openMenu = close;
  try {
    const found = await rows;
    if (openMenu !== close) return;
    if (!found.length) {
      menu.replaceChildren(element("p", {class: "quiet"}, "no alternatives"));
      return;
    }
    const most = Math.max(...found.map((row) => row.probability));
    menu.replaceChildren(...found.map((row) => {
      const item = element("button", {type: "button", role: "menuitem", "data-probability": row.probability}, seenWord(row.text),
        element("small", {}, percent(row.probability)));
      item.style.setProperty("--share", `${((100 * row.probability) / most).toFixed(1)}%`);
      item.addEventListener("click", () => {
        closeMenu();
        choose(row);
      });
      return item;
    }));
    menu.querySelector("button").focus();
  } catch (error) {
    if (openMenu === close) menu.replaceChildren(element("p", {class: "problem"}, visible(error.message)));
  }
}

// What the shading means.
export function legend() {
  return element("p", {class: "shades quiet", "aria-hidden": "true"}, "sure", element("i", {}), "unsure");
}
