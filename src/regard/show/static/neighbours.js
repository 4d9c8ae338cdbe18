// Nearest neighbours of a token in the embedding.
import {element, number, visible} from "./dom.js";
import {barChart} from "./plot.js";
import {tokenStrip, tokenWord, within} from "./tokens.js";

function mountNeighbours(root, app) {
  const {state} = app;
  const trace = app.trace();
  const sides = ["source", "decoder_input", "target"].filter((name) => trace.neighbours[name]?.length && trace.sides[name]);
  const titles = {source: "Source", decoder_input: "Decoder input", target: "Target"};
  const strips = sides.map((side) => tokenStrip(titles[side] ?? side, (token) => state.set({side, token})));
  const bars = element("div");
  const title = element("h2");
  root.append(...strips.map((strip, at) => element("section", {"data-side": sides[at]}, element("h3", {}, titles[sides[at]] ?? visible(sides[at])),
    strip.root)), element("section", {class: "neighbours"}, title, bars));

  const current = () => {
    const side = sides.includes(state.get("side")) ? state.get("side") : sides[0];
    const {tokens} = trace.sides[side];
    const token = within(state.get("token"), Math.min(tokens.length, trace.neighbours[side].length));
    return {side, token, tokens, nearest: trace.neighbours[side][token] ?? []};
  };

  let shown = "";
  function update() {
    const {side, token, tokens, nearest} = current();
    strips.forEach((strip, at) => strip.show({tokens: trace.sides[sides[at]].tokens, chosen: sides[at] === side ? token : -1}));
    if (shown === `${side} ${token}`) return;
    shown = `${side} ${token}`;
    title.replaceChildren("Nearest neighbours of ", tokenWord(tokens[token], {class: "boxed"}), element("small", {}, "  cosine similarity in the embedding"));
    bars.replaceChildren(nearest.length ? barChart(`Nearest neighbours of ${tokens[token]}`, nearest.map(([text, value]) => ({text, value})),
      {most: 1}) : element("p", {class: "quiet"}, "This token has no neighbours."));
    app.announce(`${visible(tokens[token])}: nearest ${nearest.slice(0, 3).map(([text, value]) => `${visible(text)} ${number(value)}`).join(", ")}`);
  }

  const drawing = () => bars.querySelector("svg");
  const npz = () => {
    const {nearest} = current();
    return {tokens: nearest.map(([text]) => text), cosines: {shape: [nearest.length], data: Float64Array.from(nearest, ([, value]) => value)}};
  };
  return {update, save: {png: drawing, svg: drawing, npz}};
}

export const neighboursView = {
  name: "neighbours", title: "Nearest neighbours", key: "e",
  about: "The nearest neighbours of a token in the embedding, by cosine similarity.",
  fits: (trace) => Object.entries(trace.neighbours ?? {}).some(([side, list]) => list?.length && trace.sides[side]),
  mount: mountNeighbours,
};
