// One layer matched across several traces.
import {chosenMatrix, summariesFor, textsOf} from "./merge.js";

// The layer of a trace that matches another trace's: the same name, else the last between the same sides, else the first.
export function matchingLayer(trace, layer) {
  return trace.layers.find(({name}) => name === layer?.name)
    ?? trace.layers.findLast(({rows, columns}) => rows === layer?.rows && columns === layer?.columns) ?? trace.layers[0] ?? null;
}

// The selected matrix of a trace with its texts; a layer without the selected summary falls back to a single head.
export async function selectedMatrix(app, trace, layer, head) {
  const choice = app.choice();
  const summary = summariesFor(layer).includes(choice.summary) ? choice.summary : "head";
  const made = await chosenMatrix(app.store, trace, layer, {...choice, head, summary});
  const texts = (side) => (made.pooled ? null : textsOf(trace.sides[side], choice.words));
  return {...made, rowTexts: texts(layer.rows), columnTexts: texts(layer.columns), summary};
}

// A statistic of a head, or its mean over heads for a summary of heads.
export function headStatistic(layer, name, head, summary) {
  const list = layer[name];
  if (!list) return null;
  return summary === "head" || summary === "norm" ? list[head] : list.reduce((a, b) => a + b, 0) / list.length;
}
