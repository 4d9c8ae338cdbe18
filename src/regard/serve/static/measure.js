// What a model finds in texts: labels, tags and numbers, vectors and their similarity, log-probabilities.
import {element, number, scrollBox, visible, word} from "./dom.js";
import {post} from "./server.js";
import {barRows, similarityTable} from "./bars.js";
import {legend, percent, shadedText} from "./words.js";

const linesOf = (text) => text.split("\n").filter((line) => line.trim());

function prediction(one) {
  if (one.probabilities) {
    const sorted = Object.entries(one.probabilities).sort((a, b) => b[1] - a[1]);
    return barRows(sorted.slice(0, 12).map(([text, value], at) => ({text, value, note: percent(value), marked: !at})));
  }
  if (one.words) return element("p", {class: "tags"}, one.words.map(([text, tag]) => element("span", {class: "tagged"}, word(text), element("small", {}, visible(tag)))));
  return element("p", {class: "sum"}, element("output", {"data-value": one.number}, number(one.number)));
}

async function classify(app, {model, text, second, signal}) {
  const texts = model.pairs ? [[text, second]] : linesOf(text);
  const answer = await post("v1/classify", {model: model.name, input: texts}, signal);
  app.seen = {text: model.pairs ? text : texts[0], target: null};
  app.answer(answer.data.map((one, at) => element("section", {class: "found"}, texts.length > 1 ? element("h3", {}, word(texts[at])) : null, prediction(one))));
  return answer.data.map((one) => one.label ?? one.number ?? one.words?.map(([, tag]) => tag).join(" ") ?? "").join(", ");
}

async function embed(app, {model, text, signal}) {
  const lines = linesOf(text);
  const answer = await post("v1/embeddings", {model: model.name, input: lines, encoding_format: "float"}, signal);
  const vectors = answer.data.map((one) => one.embedding);
  app.seen = {text: lines[0], target: null};
  const about = `${lines.length === 1 ? "One vector" : `${lines.length} vectors`} of ${vectors[0].length} numbers.`;
  const single = lines.length === 1 ? element("p", {class: "quiet"}, "Type several lines to compare them.") : scrollBox({}, similarityTable(lines, vectors));
  app.answer([element("p", {class: "quiet"}, lines.length > 1 ? `${about} Cosine similarity of each pair of lines:` : about), single]);
  return about;
}

async function score(app, {model, text, second, signal}) {
  const pairs = model.shape === "encoder-decoder";
  const answer = await post("v1/score", {model: model.name, ...(pairs ? {input: [text], target: [second]} : {input: linesOf(text)})}, signal);
  app.seen = {text: pairs ? text : linesOf(text)[0], target: pairs ? second : null};
  app.answer([legend(), ...answer.data.map((one) => element("section", {class: "found"},
    element("p", {class: "words"}, scored(one.tokens)),
    element("p", {class: "quiet"}, "log-probability ", element("output", {"data-value": one.score}, number(one.score)),
      `, perplexity ${number(Math.exp(-one.score / Math.max(1, one.tokens.length)))} per token, ${one.tokens.length} tokens`)))]);
  return answer.data.map((one) => number(one.score)).join(", ");
}

// The tokens of a scored text, each shaded on its own.
function scored(tokens) {
  return tokens.flatMap(({token, logprob}) => [...shadedText(token, [{text: token, start: 0, end: token.length, probability: Math.exp(logprob)}]).flat(), " "]);
}

export const measureTasks = [
  {name: "classify", title: "Classify", verb: "Classify", waits: "classifying …", placeholder: "Type texts, one per line", run: classify,
    second: (model) => (model.pairs ? "Second text" : null)},
  {name: "embed", title: "Embed", verb: "Compare", waits: "embedding …", placeholder: "Type texts to compare, one per line", run: embed},
  {name: "score", title: "Score", verb: "Score", waits: "scoring …", placeholder: "Type a text", run: score,
    second: (model) => (model.shape === "encoder-decoder" ? "Target" : null)},
];
