// The texts above every view: click a token to choose a row; what it looks at is shaded.
import {element, number} from "./dom.js";
import {shade, strength} from "./colour.js";
import {textsOf, tokenAt, unitAt} from "./merge.js";
import {tokenWord} from "./tokens.js";

const shownAtOnce = 400; // tokens of a text
const sideTitles = {source: "source", read: "reads", said: "says"};

// Which sides stand above a view: the source, and of the target what the selected layer's rows are.
function sidesShown(look, layer) {
  const target = layer && layer.rows !== "source" ? layer.rows : look.sides.said ? "said" : "read";
  return ["source", target].filter((name) => look.sides[name]);
}

// Which words of the source and of what is said belong together, as Moses writes it.
function alignmentLine({alignment}) {
  if (!alignment) return [];
  const title = "words of the source and of what is said, counted from 0, as Moses writes them";
  return [element("div", {class: "line", title}, element("span", {class: "side"}, "aligned"), element("span", {id: "alignment", class: "quiet"}, alignment))];
}

export class Texts {
  constructor(app) {
    this.app = app;
    this.root = element("section", {id: "texts", "aria-label": "The texts"});
    this.drawn = "";
    this.units = new Map();
  }

  async update() {
    const {app} = this;
    const [look, layer, words] = [app.look(), app.layer(), app.state.get("words")];
    const names = sidesShown(look, layer);
    const parts = names.map((name) => this.part(look.sides[name], words, name, layer));
    const drawn = JSON.stringify([app.state.get("look"), names, words, layer?.rows, layer?.columns, parts]);
    if (drawn !== this.drawn) {
      this.drawn = drawn;
      this.units.clear();
      this.root.replaceChildren(...names.map((name, at) => this.line(look.sides[name], name, words, parts[at], layer)), ...alignmentLine(look));
    }
    await this.shadeAll(look, layer, words);
  }

  // The part of a long text that is shown: around what is selected.
  part(side, words, name, layer) {
    const count = textsOf(side, words).length;
    if (count <= shownAtOnce) return [0, count];
    const token = (layer?.rows === name ? this.app.state.get("row") : this.app.state.get("column")) ?? 0;
    const half = shownAtOnce / 2;
    const start = Math.max(0, Math.min(count - shownAtOnce, Math.floor(unitAt(side, words, token) / half) * half - half / 2));
    return [start, start + shownAtOnce];
  }

  line(side, name, words, [start, stop], layer) {
    const texts = textsOf(side, words);
    const chooses = layer?.rows === name ? "row" : layer?.columns === name ? "column" : null;
    const found = [];
    for (let unit = start; unit < stop; unit++) {
      const token = element(chooses ? "button" : "span", {class: "token", "data-unit": unit}, tokenWord(texts[unit]));
      if (chooses) token.addEventListener("click", () => this.choose(chooses, side, words, unit));
      found.push(token);
    }
    this.units.set(name, {found, start, chooses});
    const group = element("div", {class: "tokens", role: "group", "aria-label": `${sideTitles[name]}, ${texts.length} ${words ? "words" : "tokens"}`},
      start ? element("span", {class: "more"}, `… ${start.toLocaleString("en")} before`) : null, found,
      stop < texts.length ? element("span", {class: "more"}, `${(texts.length - stop).toLocaleString("en")} more …`) : null);
    group.addEventListener("keydown", (event) => {
      const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      const next = found[found.indexOf(document.activeElement) + step];
      if (!step || !next) return;
      event.preventDefault();
      next.focus();
      next.click();
    });
    const alone = Object.keys(this.app.look().sides).length === 1;
    return element("div", {class: "line", "data-side": name}, element("span", {class: "side"}, alone ? "text" : sideTitles[name]), group);
  }

  choose(what, side, words, unit) {
    const token = tokenAt(side, words, unit);
    const {state} = this.app;
    const now = state.get(what);
    state.set({[what]: now !== null && unitAt(side, words, now) === unit ? null : token});
  }

  async shadeAll(look, layer, words) {
    const {state} = this.app;
    const row = state.get("row");
    const weights = layer && row !== null ? await this.app.row(row) : null;
    if (weights && (state.get("row") !== row || this.app.layer() !== layer)) return;
    const whole = layer?.weights || this.app.page.live; // else only the weightiest keys are known
    for (const [name, {found, start, chooses}] of this.units) {
      const at = (token) => (token === null ? -1 : unitAt(look.sides[name], words, token));
      const looked = weights && layer.columns === name;
      const most = looked && state.get("summary") === "norm" ? Math.max(...weights) : 1;
      const chosen = layer?.rows === name ? at(row) : -1;
      const aimed = layer?.columns === name ? at(state.get("column")) : -1;
      const pressed = chooses === "row" ? chosen : aimed;
      found.forEach((token, place) => {
        const unit = start + place;
        const share = looked ? strength(weights[unit], most) : 0;
        token.style.backgroundColor = share > 0.08 ? shade(share * 0.85) : "";
        token.classList.toggle("strong", share > 0.6);
        token.classList.toggle("chosen", unit === chosen);
        token.classList.toggle("aimed", unit === aimed);
        if (looked && (whole || weights[unit] > 0)) token.title = number(weights[unit]);
        else token.removeAttribute("title");
        if (!chooses) return;
        token.setAttribute("aria-pressed", unit === pressed ? "true" : "false");
        token.tabIndex = unit === pressed || (pressed < 0 && place === 0) ? 0 : -1;
      });
    }
  }
}
