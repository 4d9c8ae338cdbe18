// Continuation: tokens appear as the model generates them; a stop button; alternatives for each word.
import {element, framed} from "./dom.js";
import {post, stream} from "./server.js";
import {alternativesMenu, characters, closeMenu, legend, shadedText, spaces, wordsOf} from "./words.js";

// The tokens of a chunk with their log-probabilities; without them, its text.
function piecesOf({text, logprobs}) {
  const tokens = logprobs?.tokens ?? [];
  if (tokens.join("") !== text) return text ? [{text, logprob: mean(logprobs?.token_logprobs)}] : [];
  return tokens.map((token, at) => ({text: token, logprob: logprobs.token_logprobs[at]}));
}

function mean(values) {
  const known = (values ?? []).filter(Number.isFinite);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : NaN;
}

// What is shown so far: the prompt, and the pieces that follow it.
class Continuation {
  constructor(app, request) {
    [this.app, this.request, this.pieces] = [app, request, []];
    this.prompt = element("span", {class: "prompt"}, spaces(request.text));
    this.rest = element("span", {class: "generated"});
    this.draw = framed(() => this.done || this.drawNow()); // a late frame does not replace words that were clicked
    app.answer([legend(), element("p", {class: "words"}, this.prompt, this.rest)]);
  }

  drawNow() {
    const {text, words} = wordsOf(this.pieces);
    const glued = words[0]?.start === 0 && /\S$/u.test(this.request.text); // the first word begins in the prompt
    const choose = this.done ? (index, node) => this.ask(index, node, words, text) : null;
    this.rest.replaceChildren(...shadedText(text, words, choose, glued ? 1 : 0).flat());
    this.app.seen = {text: this.request.text, target: text};
  }

  // Generate after the pieces that are kept.
  async run(signal) {
    const {model, text, options} = this.request;
    const kept = this.pieces.map((piece) => piece.text).join("");
    this.done = false;
    try {
      await stream("v1/completions", {max_tokens: 60, ...options, model: model.name, prompt: text + kept, logprobs: 1}, signal, (chunk) => {
        for (const choice of chunk.choices ?? []) this.pieces.push(...piecesOf(choice));
        this.draw();
      });
    } finally {
      this.done = true;
      this.drawNow();
    }
    return this.pieces.map((piece) => piece.text).join("");
  }

  ask(index, node, words, text) {
    const rows = post("page/alternatives", {model: this.request.model.name, text: this.request.text, answer: text, start: characters(text, words[index].start)});
    alternativesMenu(node, rows.then((found) => found.map((row) => ({...row, text: row.word}))), (row) => {
      const before = [];
      let at = 0;
      for (const piece of this.pieces) {
        if (at >= words[index].start) break;
        before.push({...piece, text: piece.text.slice(0, words[index].start - at)});
        at += piece.text.length;
      }
      this.pieces = [...before, {text: row.text, logprob: Math.log(row.probability)}];
      this.app.work((signal) => this.run(signal), "generating …");
    });
  }
}

export const generateTask = {
  name: "generate", title: "Continue", verb: "Continue", waits: "generating …", placeholder: "Type the beginning of a text", streams: true,
  options: (model) => [
    ["max_tokens", "max tokens", {type: "number", min: 1, max: 4096, placeholder: 60}],
    ["temperature", "temperature", {type: "number", min: 0, max: 2, step: 0.1, placeholder: 1}],
    ["top_p", "top p", {type: "number", min: 0, max: 1, step: 0.05, placeholder: 1}],
    ["seed", "seed", {type: "number", min: 0, step: 1, placeholder: "random"}],
    ["stop", "stop at", {type: "text", placeholder: "a text"}],
  ],
  run: (app, request) => {
    closeMenu();
    return new Continuation(app, request).run(request.signal);
  },
};
