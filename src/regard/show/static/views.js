// The views, in the order in which the bar shows them.
import {overviewView} from "./overview.js";
import {headView} from "./head.js";
import {matrixView} from "./matrix.js";
import {neuronView} from "./neuron.js";
import {generationView} from "./generation.js";
import {positionsView} from "./positions.js";
import {bucketsView} from "./buckets.js";
import {ablationView} from "./ablation.js";
import {compareView} from "./compare.js";
import {neighboursView} from "./neighbours.js";
import {walkView} from "./walk.js";
import {explanationView} from "./explanation.js";

// A view is {name, title, key, about, fits(trace, page), mount(root, app)}; mount returns {update(names), save, unmount?}.
// update runs after mounting and after each change of the selection or the size, with the names of the changes.
// A view with `all` shows several traces, and stays when another is selected.
// save: {png(): a canvas or an SVG element, svg(): an SVG element in the page, npz(): {name: {shape, data} or strings}}.
export const views = [
  walkView, overviewView, headView, matrixView, neuronView, generationView, positionsView, bucketsView, explanationView, ablationView, compareView, neighboursView,
];
