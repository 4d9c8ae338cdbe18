// Translation: words shaded by confidence; a click lists alternatives, and choosing one continues from there.
import {element, visible, word} from "./dom.js";
import {post} from "./server.js";
import {alternativesMenu, characters, legend, placed, shadedText} from "./words.js";

// One line of the text with its translation.
class Line {
  constructor(app, model, source) {
    [this.app, this.model, this.source] = [app, model, source];
    [this.text, this.words] = ["", []];
    this.several = false; // whether there are other lines
    this.root = element("p", {class: "words"});
    this.root.addEventListener("focusin", () => (app.seen = this.seen));
  }

  get seen() {
    return {text: this.source, target: this.text, several: this.several};
  }

  show(text, words) {
    [this.text, this.words] = [text, placed(text, words)];
    this.root.replaceChildren(...shadedText(text, this.words, (index, node) => this.ask(index, node)).flat());
  }

  // The alternatives of a word: the words before it are forced, and the rest is searched again.
  ask(index, node) {
    const rows = post("page/alternatives", {model: this.model.name, text: this.source, answer: this.text, start: characters(this.text, this.words[index].start)});
    alternativesMenu(node, rows.then((found) => found.map((row) => ({...row, text: row.word, whole: row.text}))), async (row) => {
      this.show(row.whole, row.words);
      this.app.seen = this.seen;
      this.app.announce(`now: ${row.whole}`);
      this.root.querySelectorAll(".word")[Math.min(index, row.words.length - 1)]?.focus();
    });
  }
}

async function translate(app, {model, text, options, signal}) {
  const lines = text.split("\n").map((source) => new Line(app, model, source));
  const asked = lines.filter(({source}) => source.trim());
  const [source, target] = model.languages ?? ["source", "target"];
  const answer = await post("translate", {q: asked.map((line) => line.source), source, target, format: "text", model: model.name,
    confidence: true, ...options}, signal);
  for (const line of asked) line.several = asked.length > 1;
  asked.forEach((line, at) => line.show(answer.translatedText[at], answer.confidence?.[at] ?? []));
  app.seen = asked[0].seen;
  const others = (answer.alternatives ?? []).flat();
  app.answer([legend(), ...lines.map(({root}) => root), others.length ? element("section", {class: "others"}, element("h3", {}, "Other translations"),
    element("ul", {}, others.map((other) => element("li", {}, word(other))))) : null]);
  return answer.translatedText.map(visible).join(" ");
}

export const translateTask = {
  name: "translate", title: "Translate", verb: "Translate", waits: "translating …", placeholder: "Type a text to translate",
  options: (model) => [
    ["beam", "beam", {type: "number", min: 1, max: 8, placeholder: model.beam}],
    ["alternatives", "other translations", {type: "number", min: 0, max: 7, placeholder: 0}],
    ["split", "split into sentences", {type: "checkbox"}],
  ],
  run: translate,
};
