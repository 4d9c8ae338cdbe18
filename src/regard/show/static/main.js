// Read the data, settle what is selected, mount the views.
import {element, framed, hideValue, visible} from "./dom.js";
import {forgetColours} from "./colour.js";
import {State} from "./state.js";
import {Store, fromBase64} from "./store.js";
import {chosenMatrix, chosenRow, summariesFor} from "./merge.js";
import {views} from "./views.js";
import {Shell} from "./shell.js";

// What every view is given.
class App {
  constructor(page, blob, state) {
    [this.page, this.state] = [page, state];
    this.store = new Store(page, blob);
  }

  look() {
    return this.page.looks[this.state.get("look")];
  }

  // The selected layer, or null for a model without attention.
  layer() {
    return this.look().layers.find((layer) => layer.name === this.state.get("layer")) ?? null;
  }

  views() {
    return views.filter((view) => view.fits(this.look(), this.page));
  }

  // Head, summary and words, as they are chosen.
  choice() {
    return {head: this.state.get("head"), summary: this.state.get("summary"), words: this.state.get("words")};
  }

  // What the choice means: the matrix of the selected layer, and a row of it for a token of the layer's rows.
  matrix() {
    return chosenMatrix(this.store, this.look(), this.layer(), this.choice());
  }

  row(token) {
    return chosenRow(this.store, this.look(), this.layer(), this.choice(), token);
  }

  // Tell a screen reader.
  say(text) {
    document.getElementById("said").textContent = visible(text);
  }
}

// The head that aligns best, where one does; else the first of all.
function tellingHead(look) {
  let best = {layer: look.layers[0]?.name ?? "", head: 0, alignment: -1};
  for (const {name, alignment} of look.layers) {
    (alignment ?? []).forEach((value, head) => {
      if (value > best.alignment) best = {layer: name, head, alignment: value};
    });
  }
  return {layer: best.layer, head: best.head};
}

// What must change for the selection to exist: an address may come from another page.
function settled(app) {
  const {state, page} = app;
  const within = (value, count) => (Number.isInteger(value) && value >= 0 && value < count ? value : null);
  const changes = {look: within(state.get("look"), page.looks.length) ?? 0};
  const look = page.looks[changes.look];
  let layer = look.layers.find(({name}) => name === state.get("layer"));
  if (!layer) Object.assign(changes, tellingHead(look), state.get("head") ? {head: state.get("head")} : {}); // a head that the address names stays
  layer ??= look.layers.find(({name}) => name === changes.layer);
  if (layer) {
    changes.head = within(changes.head ?? state.get("head"), layer.heads) ?? 0;
    changes.row = within(state.get("row"), layer.queries);
    changes.column = within(state.get("column"), layer.keys);
    if (!layer.weights) changes.words = false; // tiles cannot be merged
    if (!summariesFor(layer).includes(state.get("summary"))) changes.summary = "head";
    const heads = (state.get("heads") ?? []).filter?.((head) => within(head, layer.heads) !== null) ?? [];
    changes.heads = heads.length ? heads : null;
  }
  const fitting = views.filter((view) => view.fits(look, page));
  if (!fitting.some((view) => view.name === state.get("view"))) changes.view = fitting[0]?.name ?? "";
  if (!["auto", "light", "dark"].includes(state.get("theme"))) changes.theme = "auto";
  return changes;
}

// Show a page; returns a function that takes it away again.
function shown(page, blob, state, asked = null) {
  const app = new App(page, blob, state);
  if (page.looks.length > 1 && !state.given) state.set({view: "compare"}); // what several looks are there for
  app.asked = asked; // {text, target} in a live page
  state.set(settled(app));
  app.replace = (answer, question) => {
    end();
    shown(answer.page, (n) => fromBase64(answer.blobs[n]), state, question);
  };
  const shell = new Shell(app);
  for (const node of [...document.body.children]) if (node.localName !== "script") node.remove(); // the data stays
  document.body.prepend(...shell.parts);
  let mounted = null;

  const failed = (error) => shell.fail(error);
  const mount = () => {
    mounted?.handle.unmount?.();
    hideValue();
    const view = app.views().find(({name}) => name === state.get("view"));
    const root = element("div", {class: "root", "data-view": view?.name ?? "none"});
    shell.view.replaceChildren(root);
    mounted = view ? {view, root, look: app.look(), handle: view.mount(root, app)} : null;
    shell.handle = mounted?.handle ?? null;
    if (!view) root.append(element("p", {class: "quiet"}, "This model has no attention: there is nothing to see."));
  };
  const update = (names) => {
    const changes = settled(app);
    if (Object.keys(changes).some((name) => String(changes[name]) !== String(state.get(name)))) return state.set(changes);
    if (names.includes("theme")) dress(state.get("theme"));
    shell.update(names);
    try {
      const other = mounted?.look !== app.look() && !mounted?.view.all;
      if (mounted?.view.name !== state.get("view") || other) mount();
      Promise.resolve(mounted?.handle.update(names)).catch(failed);
    } catch (error) {
      failed(error);
    }
  };
  const resized = framed(() => update(["size"]));
  const repainted = () => {
    forgetColours();
    update(["theme"]);
  };
  const [dark, paper] = [matchMedia("(prefers-color-scheme: dark)"), matchMedia("print")];
  // What was typed, even if a change that waited for its turn has been written over it since.
  const addressed = (event) => state.read(new URL(event.newURL).hash);
  const unwatch = state.watch(update);
  window.addEventListener("resize", resized);
  window.addEventListener("hashchange", addressed);
  dark.addEventListener("change", repainted);
  paper.addEventListener("change", repainted);
  const end = () => {
    unwatch();
    shell.end();
    window.removeEventListener("resize", resized);
    window.removeEventListener("hashchange", addressed);
    dark.removeEventListener("change", repainted);
    paper.removeEventListener("change", repainted);
    mounted?.handle.unmount?.();
  };
  dress(state.get("theme"));
  update(["view"]);
  document.documentElement.dataset.ready = "yes";
  return end;
}

function dress(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  forgetColours();
}

const given = document.getElementById("regard");
if (given) {
  const inline = [...document.querySelectorAll('script[type="application/octet-stream"]')];
  const texts = new Map(inline.map((node) => [node.id, node]));
  shown(JSON.parse(given.textContent), (n) => fromBase64(texts.get(`blob-${n}`).textContent), new State(location.hash));
}
