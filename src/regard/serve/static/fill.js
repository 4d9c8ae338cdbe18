// Mask filling: the text with its masks filled, and the candidates for each.
import {element, visible, word} from "./dom.js";
import {post} from "./server.js";
import {percent, spaces} from "./words.js";
import {barRows} from "./bars.js";

const masks = /\[MASK\]|<mask>|<extra_id_\d+>/gu;

async function fill(app, {model, text, options, signal}) {
  const answer = await post("v1/fill", {model: model.name, input: text, top: 5, ...options}, signal);
  const found = answer.data[0];
  const chosen = found.masks.map(() => 0);
  const filled = element("p", {class: "words"});
  const lists = element("div", {class: "candidates"});
  const parts = text.split(masks);

  function draw() {
    filled.replaceChildren(...parts.flatMap((part, at) => [spaces(part), at < chosen.length ? word(found.masks[at][chosen[at]].text, {class: "boxed"}) : ""]));
    lists.replaceChildren(...found.masks.map((candidates, at) => element("section", {},
      element("h3", {}, found.masks.length > 1 ? `Mask ${at + 1}` : "Candidates"),
      barRows(candidates.map((one, number) => ({text: one.text, value: one.probability, note: percent(one.probability), marked: number === chosen[at]})),
        (number) => {
          chosen[at] = number;
          draw();
        }))));
  }
  draw();
  app.seen = {text, target: null};
  app.answer([filled, lists]);
  return visible(filled.textContent);
}

export const fillTask = {
  name: "fill", title: "Fill", verb: "Fill", waits: "filling …", placeholder: "Type a text with a mask", inserts: (model) => model.mask,
  options: () => [["top", "candidates", {type: "number", min: 1, max: 20, placeholder: 5}]],
  run: fill,
};
