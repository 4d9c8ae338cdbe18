// The words nearest to a token in the embedding.
import {element, number, visible} from "./dom.js";
import {barChart} from "./plot.js";
import {tokenStrip, tokenWord, within} from "./tokens.js";

function mountNear(root, app) {
  const {state} = app;
  const look = app.look();
  const sides = ["source", "read", "said"].filter((name) => look.near[name]?.length && look.sides[name]);
  const titles = {source: "Source", read: "Read", said: "Said"};
  const strips = sides.map((side) => tokenStrip(titles[side] ?? side, (token) => state.set({side, token})));
  const bars = element("div");
  const title = element("h2");
  root.append(...strips.map((strip, at) => element("section", {"data-side": sides[at]}, element("h3", {}, titles[sides[at]] ?? visible(sides[at])),
    strip.root)), element("section", {class: "nearest"}, title, bars));

  const current = () => {
    const side = sides.includes(state.get("side")) ? state.get("side") : sides[0];
    const {tokens} = look.sides[side];
    const token = within(state.get("token"), Math.min(tokens.length, look.near[side].length));
    return {side, token, tokens, nearest: look.near[side][token] ?? []};
  };

  let shown = "";
  function update() {
    const {side, token, tokens, nearest} = current();
    strips.forEach((strip, at) => strip.show({tokens: look.sides[sides[at]].tokens, chosen: sides[at] === side ? token : -1}));
    if (shown === `${side} ${token}`) return;
    shown = `${side} ${token}`;
    title.replaceChildren("Nearest to ", tokenWord(tokens[token], {class: "said"}), element("small", {}, "  cosine in the embedding"));
    bars.replaceChildren(nearest.length ? barChart(`Nearest to ${tokens[token]}`, nearest.map(([text, value]) => ({text, value})),
      {most: 1}) : element("p", {class: "quiet"}, "No word is known to be near this token."));
    app.say(`${visible(tokens[token])}: nearest ${nearest.slice(0, 3).map(([text, value]) => `${visible(text)} ${number(value)}`).join(", ")}`);
  }

  const drawing = () => bars.querySelector("svg");
  const npz = () => {
    const {nearest} = current();
    return {words: nearest.map(([text]) => text), cosines: {shape: [nearest.length], data: Float64Array.from(nearest, ([, value]) => value)}};
  };
  return {update, save: {png: drawing, svg: drawing, npz}};
}

export const nearView = {
  name: "near", title: "Nearest words", key: "e",
  about: "The words nearest to a token in the embedding.",
  fits: (look) => Object.entries(look.near ?? {}).some(([side, list]) => list?.length && look.sides[side]),
  mount: mountNear,
};
