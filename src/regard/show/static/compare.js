// Several looks: two side by side with their difference, or the checkpoints of a run in time.
import {element, number, visible, word} from "./dom.js";
import {chosenOf, headNumber, likeLayer} from "./across.js";
import {pictured} from "./save.js";
import {joinedCanvas, smallMap} from "./small.js";
import {mountTime} from "./time.js";
import {chooser, turns, within} from "./tokens.js";

const sameTexts = (a, b) => a.length === b.length && a.every((text, at) => text === b[at]);

// Whether two looks read the same tokens, so that their matrices can be subtracted.
function alike(left, right) {
  const pair = [[left.look.sides[left.layer.rows], right.look.sides[right.layer.rows]],
    [left.look.sides[left.layer.columns], right.look.sides[right.layer.columns]]];
  return left.rows === right.rows && left.columns === right.columns && pair.every(([a, b]) => sameTexts(a.tokens, b.tokens));
}

function mountBeside(root, app) {
  const {state, page} = app;
  const turn = turns();
  const names = page.looks.map(({label}) => label);
  const sides = ["left", "right"].map((side) => {
    const left = side === "left";
    const look = chooser(left ? "left" : "right", (at) => state.set(left ? {look: at} : {other: at}), {id: `${side}-look`});
    const layer = chooser("layer", (at) => state.set(left ? {layer: app.look().layers[at].name} : {otherlayer: page.looks[other()].layers[at].name}),
      {id: `${side}-layer`});
    const map = smallMap(side, app);
    const numbers = element("p", {class: "quiet numbers"});
    const title = element("h3");
    return {look, layer, map, numbers, title, whole: element("figure", {"data-side": side}, title, element("div", {class: "tools"}, look.root, layer.root),
      map.canvas, numbers)};
  });
  const difference = smallMap("difference", app, "diverging");
  const apart = element("p", {class: "quiet numbers"});
  const legend = element("div", {class: "tools quiet"}, "blue: more on the right; orange: less");
  const third = element("figure", {"data-side": "difference"}, element("h3", {}, "Difference, right − left"), legend, difference.canvas, apart);
  root.append(element("div", {class: "three"}, sides.map(({whole}) => whole), third));
  let found = null;
  const other = () => within(state.get("other"), page.looks.length, state.get("look") === 0 ? 1 : 0);

  async function update() {
    const mine = turn();
    const looks = [app.look(), page.looks[other()]];
    const chosen = app.layer();
    const wanted = looks[1].layers.find(({name}) => name === state.get("otherlayer"));
    const layers = [chosen ?? looks[0].layers[0], wanted ?? likeLayer(looks[1], chosen)];
    const room = Math.max(220, Math.min(560, (root.clientWidth - 72) / (root.clientWidth > 1000 ? 3 : root.clientWidth > 640 ? 2 : 1)));
    const made = await Promise.all(looks.map(async (look, at) => {
      const layer = layers[at];
      if (!layer) return null;
      const head = within(state.get("head"), layer.heads);
      return {look, layer, head, ...(await chosenOf(app, look, layer, head))};
    }));
    if (!mine()) return;
    const most = Math.max(0.25, ...made.filter(Boolean).map(({data}) => data.reduce((a, b) => Math.max(a, b), 0)));
    sides.forEach((side, at) => {
      const one = made[at];
      side.look.show(names, at ? other() : state.get("look"));
      side.layer.root.hidden = !one;
      side.map.canvas.hidden = !one;
      side.title.replaceChildren(word(looks[at].label));
      if (!one) return side.numbers.replaceChildren("This model has no attention.");
      side.layer.show(looks[at].layers.map(({name}) => name), looks[at].layers.indexOf(one.layer));
      side.map.show({...one, most, room});
      const entropy = headNumber(one.layer, "entropy", one.head, one.summary);
      const alignment = headNumber(one.layer, "alignment", one.head, one.summary);
      side.numbers.replaceChildren("entropy ", element("output", {"data-entropy": entropy}, number(entropy)), " bits",
        alignment === null ? "" : ", alignment ", alignment === null ? "" : element("output", {"data-alignment": alignment}, number(alignment)));
    });
    const same = made.every(Boolean) && alike(...made);
    found = {made, data: null};
    difference.canvas.hidden = legend.hidden = !same;
    if (!same) {
      apart.textContent = made.every(Boolean) ? "The two read different tokens, so there is no difference to draw." : "There is nothing to subtract.";
      return app.say(apart.textContent);
    }
    const data = made[1].data.map((value, at) => value - made[0].data[at]);
    found.data = data;
    const widest = data.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
    difference.show({...made[0], data, most: widest, room});
    const greatest = ["the greatest difference is ", element("output", {"data-greatest": widest}, number(widest))];
    // Only where rows sum to one does what they lose here come back there: not in tiles, and not in every summary.
    const sums = !made[0].pooled && made.every(({summary}) => !["maximum", "norm"].includes(summary));
    const mean = sums ? data.reduce((a, b) => a + Math.abs(b), 0) / 2 / made[0].rows : null;
    const moves = mean === null ? [] : ["a row moves ", element("output", {"data-moved": mean}, number(mean)), " of its weight on average; "];
    apart.replaceChildren(...moves, ...greatest);
    app.say(`${visible(looks[0].label)} beside ${visible(looks[1].label)}, ${visible(layers[0].name)}: ${apart.textContent}`);
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
  about: "Two models or checkpoints side by side, and what differs; or a run in time.",
  all: true, // it shows several looks, so it stays when another is selected
  fits: (look, page) => page.looks.length > 1 && page.looks.some(({layers}) => layers.length),
  mount: (root, app) => (app.page.slider ? mountTime(root, app) : mountBeside(root, app)),
};
