// Several traces: two side by side with their difference, or the checkpoints of a run.
import {element, number, visible, word} from "./dom.js";
import {selectedMatrix, headStatistic, matchingLayer} from "./traces.js";
import {pictured} from "./save.js";
import {joinedCanvas, smallMap} from "./small_map.js";
import {mountCheckpoints} from "./checkpoints.js";
import {statistics} from "./labels.js";
import {chooser, latestCall, within} from "./tokens.js";

const sameTexts = (a, b) => a.length === b.length && a.every((text, at) => text === b[at]);

// Whether two traces have the same tokens, so that their matrices can be subtracted.
function sameTokens(left, right) {
  const pair = [[left.trace.sides[left.layer.rows], right.trace.sides[right.layer.rows]],
    [left.trace.sides[left.layer.columns], right.trace.sides[right.layer.columns]]];
  return left.rows === right.rows && left.columns === right.columns && pair.every(([a, b]) => sameTexts(a.tokens, b.tokens));
}

function mountSideBySide(root, app) {
  const {state, page} = app;
  const startCall = latestCall();
  const names = page.traces.map(({label}) => label);
  const sides = ["left", "right"].map((side) => {
    const left = side === "left";
    const trace = chooser(left ? "left" : "right", (at) => state.set(left ? {trace: at} : {other: at}), {id: `${side}-trace`});
    const layer = chooser("layer", (at) => state.set(left ? {layer: app.trace().layers[at].name} : {otherlayer: page.traces[other()].layers[at].name}),
      {id: `${side}-layer`});
    const map = smallMap(side, app);
    const numbers = element("p", {class: "quiet numbers"});
    const title = element("h3");
    return {trace, layer, map, numbers, title, whole: element("figure", {"data-side": side}, title, element("div", {class: "tools"}, trace.root, layer.root),
      map.canvas, numbers)};
  });
  const difference = smallMap("difference", app, "diverging");
  const summary = element("p", {class: "quiet numbers"});
  const legend = element("div", {class: "tools quiet"}, "blue: more weight on the right; orange: less");
  const third = element("figure", {"data-side": "difference"}, element("h3", {}, "Difference, right − left"), legend, difference.canvas, summary);
  root.append(element("div", {class: "three"}, sides.map(({whole}) => whole), third));
  let found = null;
  const other = () => within(state.get("other"), page.traces.length, state.get("trace") === 0 ? 1 : 0);

  async function update() {
    const isLatest = startCall();
    const traces = [app.trace(), page.traces[other()]];
    const chosen = app.layer();
    const wanted = traces[1].layers.find(({name}) => name === state.get("otherlayer"));
    const layers = [chosen ?? traces[0].layers[0], wanted ?? matchingLayer(traces[1], chosen)];
    const room = Math.max(220, Math.min(560, (root.clientWidth - 72) / (root.clientWidth > 1000 ? 3 : root.clientWidth > 640 ? 2 : 1)));
    const made = await Promise.all(traces.map(async (trace, at) => {
      const layer = layers[at];
      if (!layer) return null;
      const head = within(state.get("head"), layer.heads);
      return {trace, layer, head, ...(await selectedMatrix(app, trace, layer, head))};
    }));
    if (!isLatest()) return;
    const most = Math.max(0.25, ...made.filter(Boolean).map(({data}) => data.reduce((a, b) => Math.max(a, b), 0)));
    sides.forEach((side, at) => {
      const one = made[at];
      side.trace.show(names, at ? other() : state.get("trace"));
      side.layer.root.hidden = !one;
      side.map.canvas.hidden = !one;
      side.title.replaceChildren(word(traces[at].label));
      if (!one) return side.numbers.replaceChildren("This model has no attention.");
      side.layer.show(traces[at].layers.map(({title}) => title), traces[at].layers.indexOf(one.layer));
      side.map.show({...one, most, room});
      const entropy = headStatistic(one.layer, "entropy", one.head, one.summary);
      const confidence = headStatistic(one.layer, "confidence", one.head, one.summary);
      side.numbers.replaceChildren(element("output", {"data-entropy": entropy, title: statistics.entropy}, number(entropy)), " bits of entropy",
        confidence === null ? "" : ", confidence ", confidence === null ? "" : element("output", {"data-confidence": confidence}, number(confidence)));
    });
    const same = made.every(Boolean) && sameTokens(...made);
    found = {made, data: null};
    difference.canvas.hidden = legend.hidden = !same;
    if (!same) {
      summary.textContent = made.every(Boolean) ? "The two have different tokens, so there is no difference to draw." : "There is nothing to subtract.";
      return app.announce(summary.textContent);
    }
    const data = made[1].data.map((value, at) => value - made[0].data[at]);
    found.data = data;
    const widest = data.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
    difference.show({...made[0], data, most: widest, room});
    const maximum = ["the maximum difference is ", element("output", {"data-maximum": widest}, number(widest))];
    // Half the absolute difference is the moved weight only where rows sum to one: not in tiles, and not in every summary.
    const sums = !made[0].pooled && made.every(({summary}) => !["maximum", "norm"].includes(summary));
    const mean = sums ? data.reduce((a, b) => a + Math.abs(b), 0) / 2 / made[0].rows : null;
    const moved = mean === null ? [] : ["a query moves ", element("output", {"data-moved": mean}, number(mean)), " of its weight on average; "];
    summary.replaceChildren(...moved, ...maximum);
    app.announce(`${visible(traces[0].label)} and ${visible(traces[1].label)}, ${visible(layers[0].title)}: ${summary.textContent}`);
  }

  const npz = () => {
    const arrays = {};
    ["left", "right"].forEach((name, at) => found.made[at]
      && (arrays[name] = {shape: [found.made[at].rows, found.made[at].columns], data: found.made[at].data.slice()}));
    if (found.data) arrays.difference = {shape: [found.made[0].rows, found.made[0].columns], data: found.data};
    return arrays;
  };
  const png = () => joinedCanvas([...sides.map(({map}) => map), difference].filter(({canvas}) => !canvas.hidden).map((map) => map.picture()));
  const drawing = () => {
    const picture = png();
    return pictured(picture, picture.width, picture.height);
  };
  return {update, save: {png, svg: drawing, npz}};
}

export const compareView = {
  name: "compare", title: "Compare", key: "c",
  about: "Two models or checkpoints side by side and their difference, or all checkpoints of a run.",
  all: true, // it shows several traces, so it stays when another is selected
  fits: (trace, page) => page.traces.length > 1 && page.traces.some(({layers}) => layers.length),
  mount: (root, app) => (app.page.slider ? mountCheckpoints(root, app) : mountSideBySide(root, app)),
};
