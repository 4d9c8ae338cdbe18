// One layer followed across several looks.
import {chosenMatrix, summariesFor, textsOf} from "./merge.js";

// The layer of a look that is most like another look's: the same name, else the last between the same sides, else the first.
export function likeLayer(look, layer) {
  return look.layers.find(({name}) => name === layer?.name)
    ?? look.layers.findLast(({rows, columns}) => rows === layer?.rows && columns === layer?.columns) ?? look.layers[0] ?? null;
}

// A matrix of a look as it is chosen, with its texts; what a layer cannot be summed up as is shown as a single head.
export async function chosenOf(app, look, layer, head) {
  const asked = app.choice();
  const summary = summariesFor(layer).includes(asked.summary) ? asked.summary : "head";
  const made = await chosenMatrix(app.store, look, layer, {...asked, head, summary});
  const texts = (side) => (made.pooled ? null : textsOf(look.sides[side], asked.words));
  return {...made, along: texts(layer.rows), across: texts(layer.columns), summary};
}

// A number of a head, or the mean over heads where they are shown as one.
export function headNumber(layer, name, head, summary) {
  const list = layer[name];
  if (!list) return null;
  return summary === "head" || summary === "norm" ? list[head] : list.reduce((a, b) => a + b, 0) / list.length;
}
