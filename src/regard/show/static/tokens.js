// Strips of tokens to choose from, choosers and a player, shared by several views.
import {element, hideValue, number, showValue, visible} from "./dom.js";
import {shade, strength} from "./colour.js";

const stripLength = 240; // tokens shown of a long text, around the selected one

// A valid index of a list, whatever an address says.
export function within(value, length, otherwise = 0) {
  return Number.isInteger(value) && value >= 0 && value < length ? value : Math.max(0, Math.min(otherwise, length - 1));
}

// Only the latest of several asynchronous calls counts: `const isLatest = startCall(); await ...; if (!isLatest()) return;`
export function latestCall() {
  let latest = 0;
  return () => {
    const call = ++latest;
    return () => call === latest;
  };
}

// The index that an arrow key moves to, or null.
export function moved(key, at, length) {
  const targets = {ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: length - 1};
  return key in targets ? Math.max(0, Math.min(length - 1, targets[key])) : null;
}

// The text of a token; an empty one gets a visible sign.
export function tokenText(text) {
  return visible(text) || "∅";
}

// A token as an element; the marker of a leading space is faint.
export function tokenWord(text, attributes) {
  const [space] = text.match(/^▁+/) ?? [""];
  return element("bdi", attributes, element("span", {class: "space"}, space), tokenText(text).slice(space.length));
}

function around(chosen, length) {
  const start = Math.max(0, Math.min(Math.floor(chosen - stripLength / 2), length - stripLength));
  return [start, Math.min(length, start + stripLength)];
}

// A strip of tokens of which one is chosen, by click or arrow keys. show({tokens, chosen, weights?, later?}) draws it; weights colour it.
export function tokenStrip(name, choose) {
  const root = element("div", {class: "strip", role: "listbox", "aria-label": name, "aria-orientation": "horizontal"});
  let shown = {tokens: null, start: 0, stop: 0, weights: null};

  const nodeAt = (at) => root.querySelector(`[data-token="${at}"]`);
  const tokenOf = (event) => {
    const node = event.target.closest?.("[data-token]");
    return node && root.contains(node) ? Number(node.dataset.token) : null;
  };
  const showWeight = (at, x, y) => {
    if (!shown.weights) return;
    const weight = shown.weights[at];
    showValue(x, y, [tokenText(shown.tokens[at]), number(weight)], {row: shown.row, column: at, value: weight});
  };

  root.addEventListener("click", (event) => {
    const at = tokenOf(event);
    if (at !== null) choose(at);
  });
  root.addEventListener("pointermove", (event) => {
    const at = tokenOf(event);
    if (at === null) hideValue();
    else showWeight(at, event.clientX, event.clientY);
  });
  root.addEventListener("pointerleave", hideValue);
  root.addEventListener("focusout", hideValue);
  root.addEventListener("keydown", (event) => {
    const at = tokenOf(event);
    const to = at === null ? null : moved(event.key, at, shown.tokens.length);
    if (to === null && event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation();
    choose(to ?? at);
    const node = nodeAt(to ?? at);
    if (!node) return;
    node.focus();
    const {left, bottom} = node.getBoundingClientRect();
    showWeight(to ?? at, left, bottom - 10);
  });

  function build(tokens, [start, stop]) {
    const rest = (count) => count > 0 && element("span", {class: "rest"}, `… ${count} more `);
    const nodes = [];
    for (let at = start; at < stop; at++) {
      nodes.push(tokenWord(tokens[at], {class: "token", role: "option", tabindex: -1, "data-token": at}));
    }
    root.replaceChildren(...[rest(start), ...nodes, rest(tokens.length - stop)].filter(Boolean));
  }

  // chosen: a token, or -1 for none; the keyboard then starts at the first.
  function show({tokens, chosen, weights = null, later = null, row = null, prompt = 0}) {
    const at = Math.max(0, chosen);
    const moving = tokens !== shown.tokens || at < shown.start || at >= shown.stop;
    const [start, stop] = moving ? around(at, tokens.length) : [shown.start, shown.stop];
    if (moving) build(tokens, [start, stop]);
    shown = {tokens, start, stop, weights, row};
    let most = 0;
    for (const weight of weights ?? []) most = Math.max(most, weight);
    for (const node of root.querySelectorAll("[data-token]")) {
      const token = Number(node.dataset.token);
      const share = weights ? strength(weights[token], most || 1) : 0;
      node.tabIndex = token === at ? 0 : -1;
      node.setAttribute("aria-selected", token === chosen ? "true" : "false");
      node.classList.toggle("chosen", token === chosen);
      node.style.backgroundColor = weights ? shade(share) : "";
      node.classList.toggle("strong", share > 0.6);
      node.classList.toggle("prompt", token < prompt);
      if (token < prompt) node.title = "in the prompt";
      node.classList.toggle("later", later !== null && token >= later);
      if (weights) node.dataset.value = String(weights[token]);
      else delete node.dataset.value;
    }
  }

  return {root, show};
}

// A choice among names: <label>name <select/></label>; show(names, chosen) draws it.
export function chooser(name, choose, attributes = {}) {
  const select = element("select", {...attributes, onchange: () => choose(Number(select.value))});
  const root = element("label", {class: "pick"}, `${name} `, select);
  let before = "";
  function show(names, chosen) {
    const all = JSON.stringify(names);
    if (all !== before) {
      select.replaceChildren(...names.map((text, at) => element("option", {value: at}, visible(text))));
      before = all;
    }
    select.value = String(chosen);
  }
  return {root, select, show};
}

// Buttons, a slider and arrow keys over a count of steps, played one after the other. show(length, at) draws it.
export function player(name, choose, pause = 900) {
  let [length, at, timer] = [0, 0, 0];
  const go = (to) => choose(Math.max(0, Math.min(length - 1, to)));
  const button = (text, title, action) => element("button", {type: "button", title, "aria-label": title, onclick: action}, text);
  const slider = element("input", {type: "range", min: 0, step: 1, "aria-label": name, oninput: () => go(Number(slider.value))});
  const play = button("▶", "Play", () => (timer ? stop() : start()));
  play.className = "play";
  const count = element("span", {class: "count"});

  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "▶";
    play.title = "Play";
    play.setAttribute("aria-label", "Play");
  }
  function start() {
    if (at >= length - 1) go(0);
    timer = setInterval(() => (at >= length - 1 ? stop() : go(at + 1)), pause);
    play.textContent = "❚❚";
    play.title = "Pause";
    play.setAttribute("aria-label", "Pause");
  }
  function keydown(event) {
    if (event.target.closest?.("select, [role=option], [role=treeitem], [role=gridcell], [data-own]")) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") go(at + (event.key === "ArrowLeft" ? -1 : 1));
    else if (event.key === " " && event.target.tagName !== "BUTTON") play.click();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  const root = element("div", {class: "player", role: "group", "aria-label": name},
    button("«", "First", () => go(0)), button("‹", "Previous", () => go(at - 1)), play,
    button("›", "Next", () => go(at + 1)), button("»", "Last", () => go(length - 1)), slider, count);
  function show(newLength, newAt, text) {
    [length, at] = [newLength, newAt];
    slider.max = String(length - 1);
    slider.value = String(at);
    slider.setAttribute("aria-valuetext", text);
    count.textContent = text;
  }
  return {root, show, stop, keydown};
}
