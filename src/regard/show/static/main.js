// Entry point: read the data, validate the selection, mount the views.
import {element, framed, hideValue, visible} from "./dom.js";
import {forgetColours} from "./colour.js";
import {State} from "./state.js";
import {Store, fromBase64} from "./store.js";
import {chosenMatrix, chosenRow, summariesFor} from "./merge.js";
import {views} from "./views.js";
import {Shell} from "./shell.js";

// The context of every view.
class App {
  constructor(page, blob, state) {
    [this.page, this.state] = [page, state];
    this.store = new Store(page, blob);
  }

  trace() {
    return this.page.traces[this.state.get("trace")];
  }

  // The selected layer, or null for a model without attention.
  layer() {
    return this.trace().layers.find((layer) => layer.name === this.state.get("layer")) ?? null;
  }

  views() {
    return views.filter((view) => view.fits(this.trace(), this.page));
  }

  // The selected head, summary and words.
  choice() {
    return {head: this.state.get("head"), summary: this.state.get("summary"), words: this.state.get("words")};
  }

  // The selected matrix, and a row of it for a token of the layer's rows.
  matrix() {
    return chosenMatrix(this.store, this.trace(), this.layer(), this.choice());
  }

  row(token) {
    return chosenRow(this.store, this.trace(), this.layer(), this.choice(), token);
  }

  // Announce a text to screen readers.
  announce(text) {
    document.getElementById("status").textContent = visible(text);
  }
}

// The cross-attention head of highest confidence; without cross-attention the first head.
function initialHead(trace) {
  let best = {layer: trace.layers[0]?.name ?? "", head: 0, confidence: -1};
  for (const {name, confidence} of trace.layers) {
    (confidence ?? []).forEach((value, head) => {
      if (value > best.confidence) best = {layer: name, head, confidence: value};
    });
  }
  return {layer: best.layer, head: best.head};
}

// The changes that make the selection valid: an address may come from another page.
function corrections(app) {
  const {state, page} = app;
  const within = (value, count) => (Number.isInteger(value) && value >= 0 && value < count ? value : null);
  const changes = {trace: within(state.get("trace"), page.traces.length) ?? state.defaults.trace};
  const trace = page.traces[changes.trace];
  let layer = trace.layers.find(({name}) => name === state.get("layer"));
  if (!layer) Object.assign(changes, initialHead(trace), state.get("head") ? {head: state.get("head")} : {}); // keep a head that the address names
  layer ??= trace.layers.find(({name}) => name === changes.layer);
  if (layer) {
    changes.head = within(changes.head ?? state.get("head"), layer.heads) ?? 0;
    changes.row = within(state.get("row"), layer.queries);
    changes.column = within(state.get("column"), layer.keys);
    if (!layer.weights) changes.words = false; // tiles cannot be merged
    if (!summariesFor(layer).includes(state.get("summary"))) changes.summary = "head";
    const heads = (state.get("heads") ?? []).filter?.((head) => within(head, layer.heads) !== null) ?? [];
    changes.heads = heads.length ? heads : null;
  }
  const fitting = views.filter((view) => view.fits(trace, page));
  if (!fitting.some((view) => view.name === state.get("view"))) changes.view = fitting[0]?.name ?? "";
  if (!["auto", "light", "dark"].includes(state.get("theme"))) changes.theme = "auto";
  return changes;
}

// Mount a page; returns a function that unmounts it.
function mountPage(page, blob, state, request = null) {
  const app = new App(page, blob, state);
  if (page.traces.length > 1 && !state.given) state.set({view: "compare"}); // the view for several traces
  app.request = request; // {text, target} of a live page
  state.set(corrections(app));
  app.replace = (answer, next) => {
    end();
    mountPage(answer.page, (n) => fromBase64(answer.blobs[n]), state, next);
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
    mounted = view ? {view, root, trace: app.trace(), handle: view.mount(root, app)} : null;
    shell.handle = mounted?.handle ?? null;
    if (!view) root.append(element("p", {class: "quiet"}, "This model has no attention layers: there is nothing to show."));
  };
  const update = (names) => {
    const changes = corrections(app);
    if (Object.keys(changes).some((name) => String(changes[name]) !== String(state.get(name)))) return state.set(changes);
    if (names.includes("theme")) applyTheme(state.get("theme"));
    shell.update(names);
    try {
      const other = mounted?.trace !== app.trace() && !mounted?.view.all;
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
  // The typed address, even if a delayed change has overwritten it since.
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
  applyTheme(state.get("theme"));
  update(["view"]);
  document.documentElement.dataset.ready = "yes";
  return end;
}

function applyTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  forgetColours();
}

const given = document.getElementById("regard");
if (given) {
  const inline = [...document.querySelectorAll('script[type="application/octet-stream"]')];
  const texts = new Map(inline.map((node) => [node.id, node]));
  const page = JSON.parse(given.textContent);
  const own = page.slider ? {trace: page.traces.length - 1} : {}; // a film opens on its last checkpoint
  mountPage(page, (n) => fromBase64(texts.get(`blob-${n}`).textContent), new State(location.hash, own));
}
