// The frame around a view: title, texts, the bar, help, saving, and in the live page the form for another text.
import {element, hideValue, visible, word} from "./dom.js";
import {saveNPZ, savePNG, saveSVG} from "./save.js";
import {summaries, summariesFor} from "./merge.js";
import {headOf, headTitle, summaryTips} from "./labels.js";
import {player} from "./tokens.js";
import {Texts} from "./texts.js";

const commonKeys = [
  ["[ ]", "previous or next layer"], [", .", "previous or next head"], ["w", "words or subwords"], ["s", "next summary of heads"],
  ["t", "next theme: system, light, dark"], ["arrows", "in the matrix: move the query and the key"], ["Escape", "clear the selection"], ["?", "this help"],
];

function picker(id, title, change) {
  const list = element("select", {id, title, "aria-label": title, onchange: () => change(list.value)});
  return {list, whole: element("label", {class: "pick"}, list)};
}

// The options of a list, replaced only when they change: [[value, text, enabled], ...].
function fill(list, options, value) {
  const key = JSON.stringify(options);
  if (list.dataset.options !== key) {
    list.dataset.options = key;
    list.replaceChildren(...options.map(([option, text, fits = true]) => element("option", {value: option, disabled: !fits}, visible(text))));
  }
  list.value = String(value);
}

export class Shell {
  constructor(app) {
    this.app = app;
    this.handle = null;
    const {state, page} = app;
    this.texts = new Texts(app);
    this.view = element("main", {id: "view", tabindex: -1});
    this.about = element("p", {class: "quiet", id: "about"});
    this.tabs = element("nav", {id: "views", "aria-label": "Views"});
    this.note = element("p", {id: "note", class: "quiet"});
    this.trace = picker("trace", "model", (value) => state.set({trace: Number(value)}));
    this.layer = picker("layer", "layer", (value) => state.set({layer: value}));
    this.head = picker("head", "head", (value) => state.set({head: Number(value), summary: state.get("summary") === "norm" ? "norm" : "head"}));
    this.summary = picker("summary", "summary of heads", (value) => state.set({summary: value}));
    this.theme = picker("theme", "theme", (value) => state.set({theme: value}));
    this.words = element("input", {type: "checkbox", id: "words", onchange: () => state.set({words: this.words.checked})});
    this.wordsLabel = element("label", {class: "check", title: "merge the subwords of a word: sum over keys, mean over queries"}, this.words, "whole words");
    this.leftOut = element("p", {id: "left-out", class: "quiet"});
    // The checkpoints of a run: one slider for all views.
    app.film = this.film = page.slider ? player("Checkpoint", (trace) => state.set({trace}), 650) : null;
    this.chosen = element("summary", {});
    this.fold = element("details", {id: "fold"}, this.chosen, element("div", {id: "choices", role: "group", "aria-label": "Selection"},
      this.trace.whole, this.layer.whole, this.head.whole, this.summary.whole, this.wordsLabel));
    this.narrow = matchMedia("(max-width: 40rem)"); // a phone: the choices are folded
    this.onnarrow = () => (this.fold.open = !this.narrow.matches);
    this.onnarrow();
    this.narrow.addEventListener("change", this.onnarrow);
    this.help = this.makeHelp();
    this.saving = this.makeSaving();
    this.onkey = (event) => this.key(event);
    this.onclick = (event) => this.saving.contains(event.target) || (this.saving.open = false);
    document.addEventListener("keydown", this.onkey);
    document.addEventListener("click", this.onclick);
    const skip = element("a", {class: "skip", href: "#view"}, "Skip to the view");
    skip.addEventListener("click", (event) => {
      event.preventDefault(); // the hash of the address holds the selection
      this.view.focus();
    });
    const helper = element("button", {id: "open-help", title: "help (?)", "aria-label": "help", onclick: () => this.help.showModal()}, "?");
    this.parts = [
      skip,
      element("header", {id: "top"},
        element("div", {class: "names"}, element("h1", {}, word(page.title)), this.about),
        element("div", {class: "corner"}, this.theme.whole, this.saving, helper)),
      page.live ? this.makeTraceForm() : null,
      this.texts.root,
      element("div", {id: "bar"}, this.tabs, this.fold, this.film?.root),
      this.note,
      this.leftOut,
      this.view,
      element("p", {id: "status", class: "visually-hidden", role: "status", "aria-live": "polite"}),
      this.help,
    ].filter(Boolean);
    document.title = visible(page.title);
  }

  end() {
    this.film?.stop();
    this.narrow.removeEventListener("change", this.onnarrow);
    document.removeEventListener("keydown", this.onkey);
    document.removeEventListener("click", this.onclick);
  }

  fail(error) {
    this.note.textContent = `This could not be shown: ${visible(error.message)}`;
    this.app.announce(this.note.textContent);
  }

  update() {
    const {app} = this;
    const {state, page} = app;
    const [trace, layer] = [app.trace(), app.layer()];
    this.about.replaceChildren(word(trace.label, {class: "label"}), trace.label && trace.model ? " · " : "", word(trace.model));
    const fitting = app.views();
    const current = fitting.find((view) => view.name === state.get("view"));
    if (this.tabs.dataset.names !== fitting.map(({name}) => name).join()) {
      this.tabs.dataset.names = fitting.map(({name}) => name).join();
      this.tabs.replaceChildren(...fitting.map((view) => element("button",
        {id: `tab-${view.name}`, title: `${view.about} (${view.key})`, onclick: () => state.set({view: view.name})}, view.title)));
    }
    for (const tab of this.tabs.children) {
      if (tab.id === `tab-${current?.name}`) {
        tab.setAttribute("aria-current", "page");
        this.tabs.scrollLeft = tab.offsetLeft - this.tabs.offsetLeft - 40; // in sight where the tabs scroll
      } else tab.removeAttribute("aria-current");
    }
    const noAttention = trace.layers.length ? "" : " This model has no attention; these views show what it has instead.";
    this.note.textContent = current ? `${current.about}${noAttention}` : "";
    this.trace.whole.hidden = page.traces.length < 2 || page.slider;
    fill(this.trace.list, page.traces.map(({label}, at) => [at, label]), state.get("trace"));
    for (const part of [this.layer.whole, this.head.whole, this.summary.whole]) part.hidden = !layer;
    const merged = Object.values(trace.sides).some((side) => side.word_spans.length < side.tokens.length);
    this.wordsLabel.hidden = !layer?.weights || !merged;
    this.words.checked = state.get("words");
    fill(this.theme.list, [["auto", "auto theme"], ["light", "light theme"], ["dark", "dark theme"]], state.get("theme"));
    if (layer) {
      const fits = summariesFor(layer);
      fill(this.layer.list, trace.layers.map(({name, title}) => [name, title]), layer.name);
      this.layer.list.title = visible(layer.tip);
      fill(this.head.list, Array.from({length: layer.heads}, (_, head) => [head, headTitle(head)]), state.get("head"));
      this.head.list.title = "an attention head: its own queries, keys and values";
      fill(this.summary.list, Object.entries(summaries).map(([kind, text]) => [kind, text, fits.includes(kind)]), state.get("summary"));
      this.summary.list.title = summaryTips[state.get("summary")];
      const single = state.get("summary") === "head";
      this.chosen.replaceChildren(word(single ? headOf(layer, state.get("head")) : `${layer.title}, ${summaries[state.get("summary")]}`));
    }
    this.fold.hidden = !layer && this.trace.whole.hidden;
    this.film?.show(page.traces.length, state.get("trace"), visible(trace.label));
    this.leftOut.hidden = !trace.left_out.length;
    const long = trace.left_out.some(([, why]) => !why.startsWith("stopped"));
    const exact = trace.layers.every(({weights}) => weights) || page.live ? "" : "; without --out, it computes the exact weights of what is zoomed to";
    this.leftOut.textContent = `Not on this page: ${trace.left_out.map(([what, why]) => visible(`${what} (${why})`)).join("; ")}.${long ? ` To see them, run regard show with a part of the text${exact}.` : ""}`;
    this.texts.update().catch((error) => this.fail(error));
  }

  makeSaving() {
    const items = [["png", "PNG, a picture"], ["svg", "SVG, a drawing"], ["npz", "NPZ, for numpy"]].map(([kind, title]) =>
      element("button", {id: `save-${kind}`, onclick: () => this.save(kind)}, title));
    const addressed = location.protocol !== "about:"; // a page inside a notebook has no address of its own
    const link = addressed ? element("button", {id: "save-link", onclick: () => this.copy()}, "Link to this view") : null;
    const menu = element("details", {id: "save"}, element("summary", {}, "Save"), element("div", {class: "menu"}, items, link));
    menu.addEventListener("toggle", () => {
      for (const item of items) item.disabled = !this.handle?.save?.[item.id.slice(5)];
    });
    return menu;
  }

  async save(kind) {
    this.saving.open = false;
    hideValue();
    const {state} = this.app;
    const name = [state.get("view"), state.get("layer"),
      state.get("summary") === "head" ? `head-${state.get("head")}` : state.get("summary")].filter(Boolean).join("-");
    try {
      const made = await this.handle.save[kind]();
      await {png: savePNG, svg: saveSVG, npz: saveNPZ}[kind](name, made);
      this.app.announce(`saved ${name}.${kind}`);
    } catch (error) {
      this.fail(error);
    }
  }

  async copy() {
    this.saving.open = false;
    const link = this.app.state.link();
    try {
      await navigator.clipboard.writeText(link);
      this.note.textContent = "The link is on the clipboard.";
    } catch {
      this.note.textContent = link; // a page opened from a file may have no clipboard
    }
    this.app.announce(this.note.textContent);
  }

  makeHelp() {
    const row = ([key, text]) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, text)];
    const close = element("button", {onclick: () => dialog.close()}, "Close");
    const dialog = element("dialog", {id: "help", "aria-label": "Help"}, element("h2", {}, "Keys"),
      element("dl", {}, this.app.views().map((view) => row([view.key, `${view.title}: ${view.about}`])), commonKeys.map(row)),
      element("p", {class: "quiet"}, "Rows are queries, columns are keys. The weights of a query sum to one."), close);
    return dialog;
  }

  makeTraceForm() {
    const [text, target] = [element("input", {id: "trace-text", type: "text", placeholder: "another text", "aria-label": "text"}),
      element("input", {id: "trace-target", type: "text", placeholder: "target (default: the model generates it)", "aria-label": "target"})];
    [text.value, target.value] = [this.app.request?.text ?? "", this.app.request?.target ?? ""];
    const send = element("button", {type: "submit"}, "Trace");
    const hasTarget = this.app.page.traces[0].shape !== "encoder";
    const form = element("form", {id: "trace-form"}, text, hasTarget ? target : null, send);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      send.disabled = true;
      this.note.textContent = "Tracing …";
      this.app.announce(this.note.textContent);
      try {
        const request = {text: text.value, target: target.value || null};
        this.app.replace(await this.app.store.post("trace", request), request);
      } catch (error) {
        this.fail(error);
        send.disabled = false;
      }
    });
    return form;
  }

  key(event) {
    const {app} = this;
    const {state} = app;
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.('select, textarea, input:not([type="checkbox"])') || this.help.open) return;
    const trace = app.trace();
    const layer = app.layer();
    const next = (list, value, step) => list[(list.indexOf(value) + step + list.length) % list.length];
    const names = trace.layers.map(({name}) => name);
    const view = app.views().find(({key}) => key === event.key);
    const actions = {
      "?": () => this.help.showModal(),
      t: () => state.set({theme: next(["auto", "light", "dark"], state.get("theme"), 1)}),
      Escape: () => state.set({row: null, column: null}),
    };
    if (layer) {
      Object.assign(actions, {
        "[": () => state.set({layer: next(names, layer.name, -1)}),
        "]": () => state.set({layer: next(names, layer.name, 1)}),
        ",": () => state.set({head: (state.get("head") + layer.heads - 1) % layer.heads}),
        ".": () => state.set({head: (state.get("head") + 1) % layer.heads}),
        w: () => state.set({words: !state.get("words")}),
        s: () => state.set({summary: next(summariesFor(layer), state.get("summary"), 1)}),
      });
    }
    const act = view ? () => state.set({view: view.name}) : actions[event.key];
    if (!act) return event.target.closest?.("#texts, .player") ? undefined : this.handle?.press?.(event); // arrow keys of the matrix
    event.preventDefault();
    return act();
  }
}
