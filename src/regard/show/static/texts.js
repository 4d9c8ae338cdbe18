// The texts above every view: click a token to select a query; the keys it attends to are shaded.
import {element, number, visible} from "./dom.js";
import {shade, strength} from "./colour.js";
import {textsOf, tokenAt, unitAt} from "./merge.js";
import {sideTips, sideTitles} from "./labels.js";
import {tokenWord} from "./tokens.js";

const maxShown = 400; // tokens of a text

// The sides above a view: the source, and the decoder input or the target, whichever has the queries.
function sidesShown(trace, layer) {
  const target = layer && layer.rows !== "source" ? layer.rows : trace.sides.target ? "target" : "decoder_input";
  return ["source", target].filter((name) => trace.sides[name]);
}

// The word alignment in the Moses (Pharaoh) format.
function alignmentLine({alignment, sides}) {
  if (!alignment) return [];
  const title = "which word of the source each word of the target was made from, by cross-attention: source word - target word, counted from 0 (the Moses format)";
  const wordOf = (side, number) => visible(side.word_texts[side.word_ids.indexOf(Number(number))] ?? "");
  const links = alignment.split(" ").flatMap((link) => {
    const [from, to] = link.split("-");
    return [element("span", {title: `source word ${from} (${wordOf(sides.source, from)}) is aligned with target word ${to} (${wordOf(sides.target, to)})`}, link), " "];
  });
  return [element("div", {class: "line"}, element("span", {class: "side", title}, "word alignment"), element("span", {id: "alignment", class: "quiet"}, links.slice(0, -1)))];
}

// What a classifier predicts: its labels with their probabilities, or its number.
function predictionLine({prediction}) {
  if (!prediction) return [];
  const shown = prediction.map(([name, probability], at) => {
    const share = probability === null ? "" : ` ${number(probability)}`;
    return [at ? " · " : "", element(at ? "span" : "strong", {class: at ? "quiet" : ""}, visible(name) + share)];
  });
  return [element("div", {class: "line"}, element("span", {class: "side", title: "what the model predicts for this text, the most probable first"}, "prediction"), element("span", {id: "prediction"}, shown.flat()))];
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
    const [trace, layer, words] = [app.trace(), app.layer(), app.state.get("words")];
    const names = sidesShown(trace, layer);
    const parts = names.map((name) => this.part(trace.sides[name], words, name, layer));
    const drawn = JSON.stringify([app.state.get("trace"), names, words, layer?.rows, layer?.columns, parts]);
    if (drawn !== this.drawn) {
      this.drawn = drawn;
      this.units.clear();
      this.root.replaceChildren(...names.map((name, at) => this.line(trace.sides[name], name, words, parts[at], layer)), ...alignmentLine(trace), ...predictionLine(trace));
    }
    await this.shadeAll(trace, layer, words);
  }

  // The shown part of a long text, around the selected token.
  part(side, words, name, layer) {
    const count = textsOf(side, words).length;
    if (count <= maxShown) return [0, count];
    const token = (layer?.rows === name ? this.app.state.get("row") : this.app.state.get("column")) ?? 0;
    const half = maxShown / 2;
    const start = Math.max(0, Math.min(count - maxShown, Math.floor(unitAt(side, words, token) / half) * half - half / 2));
    return [start, start + maxShown];
  }

  line(side, name, words, [start, stop], layer) {
    const texts = textsOf(side, words);
    const chooses = layer?.rows === name ? "row" : layer?.columns === name ? "column" : null;
    const found = [];
    const {prompt} = this.app.trace(); // its tokens come first
    const isPrompt = (unit) => tokenAt(side, words, unit) < prompt;
    const seam = (unit) => unit > start && isPrompt(unit - 1) && !isPrompt(unit);
    for (let unit = start; unit < stop; unit++) {
      const token = element(chooses ? "button" : "span", {class: isPrompt(unit) ? "token prompt" : "token", "data-unit": unit},
        tokenWord(texts[unit]));
      if (chooses) token.addEventListener("click", () => this.choose(chooses, side, words, unit));
      found.push(token);
    }
    this.units.set(name, {found, start, chooses});
    const group = element("div", {class: "tokens", role: "group", "aria-label": `${sideTitles[name]}, ${texts.length} ${words ? "words" : "tokens"}`},
      start ? element("span", {class: "more"}, `… ${start.toLocaleString("en")} before`) : null,
      found.flatMap((token, at) => (seam(start + at) ? [element("span", {class: "seam", title: "the prompt ends here; the model generated the rest"}, "generated"), token] : [token])),
      stop < texts.length ? element("span", {class: "more"}, `${(texts.length - stop).toLocaleString("en")} more …`) : null);
    group.addEventListener("keydown", (event) => {
      const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      const next = found[found.indexOf(document.activeElement) + step];
      if (!step || !next) return;
      event.preventDefault();
      next.focus();
      next.click();
    });
    const only = Object.keys(this.app.trace().sides).length === 1;
    return element("div", {class: "line", "data-side": name}, element("span", {class: "side", title: only ? "the text that the model reads" : sideTips[name]}, prompt ? "prompt" : only ? "text" : sideTitles[name]), group);
  }

  choose(what, side, words, unit) {
    const token = tokenAt(side, words, unit);
    const {state} = this.app;
    const now = state.get(what);
    state.set({[what]: now !== null && unitAt(side, words, now) === unit ? null : token});
  }

  async shadeAll(trace, layer, words) {
    const {state} = this.app;
    const row = state.get("row");
    const weights = layer && row !== null ? await this.app.row(row) : null;
    if (weights && (state.get("row") !== row || this.app.layer() !== layer)) return;
    const whole = layer?.weights || this.app.page.live; // else only the top keys are known
    for (const [name, {found, start, chooses}] of this.units) {
      const at = (token) => (token === null ? -1 : unitAt(trace.sides[name], words, token));
      const hasKeys = weights && layer.columns === name;
      const most = hasKeys && state.get("summary") === "norm" ? Math.max(...weights) : 1;
      const chosen = layer?.rows === name ? at(row) : -1;
      const chosenKey = layer?.columns === name ? at(state.get("column")) : -1;
      const pressed = chooses === "row" ? chosen : chosenKey;
      found.forEach((token, index) => {
        const unit = start + index;
        const share = hasKeys ? strength(weights[unit], most) : 0;
        token.style.backgroundColor = share > 0.08 ? shade(share * 0.85) : "";
        token.classList.toggle("strong", share > 0.6);
        token.classList.toggle("chosen", unit === chosen);
        token.classList.toggle("chosen-key", unit === chosenKey);
        if (hasKeys && (whole || weights[unit] > 0)) token.title = number(weights[unit]);
        else token.removeAttribute("title");
        if (!chooses) return;
        token.setAttribute("aria-pressed", unit === pressed ? "true" : "false");
        token.tabIndex = unit === pressed || (pressed < 0 && index === 0) ? 0 : -1;
      });
    }
  }
}
