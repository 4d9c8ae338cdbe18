// What stands around a view: title, texts, the bar, help, saving, and in the live page the question box.
import {element, hideValue, visible, word} from "./dom.js";
import {saveNPZ, savePNG, saveSVG} from "./save.js";
import {summaries, summariesFor} from "./merge.js";
import {Texts} from "./texts.js";

const commonKeys = [
  ["[ ]", "layer before, layer after"], [", .", "head before, head after"], ["w", "words or subwords"], ["s", "next summary of heads"],
  ["t", "next theme: as the system, light, dark"], ["arrows", "move the row and the column"], ["Escape", "nothing selected"], ["?", "this help"],
];

function picker(id, title, change) {
  const list = element("select", {id, title, "aria-label": title, onchange: () => change(list.value)});
  return {list, whole: element("label", {class: "pick"}, list)};
}

// Options of a list, replaced only when they are others: [[value, text, can be chosen], ...].
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
    this.look = picker("look", "model", (value) => state.set({look: Number(value)}));
    this.layer = picker("layer", "layer", (value) => state.set({layer: value}));
    this.head = picker("head", "head", (value) => state.set({head: Number(value), summary: state.get("summary") === "norm" ? "norm" : "head"}));
    this.summary = picker("summary", "heads as one", (value) => state.set({summary: value}));
    this.theme = picker("theme", "theme", (value) => state.set({theme: value}));
    this.words = element("input", {type: "checkbox", id: "words", onchange: () => state.set({words: this.words.checked})});
    this.wordsLabel = element("label", {class: "check"}, this.words, "whole words");
    this.help = this.makeHelp();
    this.saving = this.makeSaving();
    this.onkey = (event) => this.key(event);
    this.onclick = (event) => this.saving.contains(event.target) || (this.saving.open = false);
    document.addEventListener("keydown", this.onkey);
    document.addEventListener("click", this.onclick);
    const skip = element("a", {class: "skip", href: "#view"}, "Skip to the view");
    skip.addEventListener("click", (event) => {
      event.preventDefault(); // the address holds the selection
      this.view.focus();
    });
    const helper = element("button", {id: "open-help", title: "help (?)", "aria-label": "help", onclick: () => this.help.showModal()}, "?");
    this.parts = [
      skip,
      element("header", {id: "top"},
        element("div", {class: "names"}, element("h1", {}, word(page.title)), this.about),
        element("div", {class: "corner"}, this.theme.whole, this.saving, helper)),
      page.live ? this.makeAsking() : null,
      this.texts.root,
      element("div", {id: "bar"}, this.tabs,
        element("div", {id: "choices", role: "group", "aria-label": "What is shown"},
          this.look.whole, this.layer.whole, this.head.whole, this.summary.whole, this.wordsLabel)),
      this.note,
      this.view,
      element("p", {id: "said", class: "unseen", role: "status", "aria-live": "polite"}),
      this.help,
    ].filter(Boolean);
    document.title = visible(page.title);
  }

  end() {
    document.removeEventListener("keydown", this.onkey);
    document.removeEventListener("click", this.onclick);
  }

  fail(error) {
    this.note.textContent = `This could not be shown: ${visible(error.message)}`;
    this.app.say(this.note.textContent);
  }

  update() {
    const {app} = this;
    const {state, page} = app;
    const [look, layer] = [app.look(), app.layer()];
    this.about.replaceChildren(word(look.label, {class: "label"}), look.label && look.about ? " · " : "", word(look.about));
    const fitting = app.views();
    const current = fitting.find((view) => view.name === state.get("view"));
    if (this.tabs.dataset.names !== fitting.map(({name}) => name).join()) {
      this.tabs.dataset.names = fitting.map(({name}) => name).join();
      this.tabs.replaceChildren(...fitting.map((view) => element("button",
        {id: `tab-${view.name}`, title: `${view.about} (${view.key})`, onclick: () => state.set({view: view.name})}, view.title)));
    }
    for (const tab of this.tabs.children) {
      if (tab.id === `tab-${current?.name}`) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    const without = look.layers.length ? "" : " This model has no attention; these views show what it has instead.";
    this.note.textContent = current ? `${current.about}${without}` : "";
    this.look.whole.hidden = page.looks.length < 2 || page.slider;
    fill(this.look.list, page.looks.map(({label}, at) => [at, label]), state.get("look"));
    for (const part of [this.layer.whole, this.head.whole, this.summary.whole]) part.hidden = !layer;
    const merged = Object.values(look.sides).some((side) => side.words.length < side.tokens.length);
    this.wordsLabel.hidden = !layer?.weights || !merged;
    this.words.checked = state.get("words");
    fill(this.theme.list, [["auto", "auto theme"], ["light", "light"], ["dark", "dark"]], state.get("theme"));
    if (layer) {
      const fits = summariesFor(layer);
      fill(this.layer.list, look.layers.map(({name}) => [name, name]), layer.name);
      fill(this.head.list, Array.from({length: layer.heads}, (_, head) => [head, `head ${head}`]), state.get("head"));
      fill(this.summary.list, Object.entries(summaries).map(([kind, text]) => [kind, text, fits.includes(kind)]), state.get("summary"));
    }
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
      this.app.say(`saved ${name}.${kind}`);
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
    this.app.say(this.note.textContent);
  }

  makeHelp() {
    const row = ([key, text]) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, text)];
    const close = element("button", {onclick: () => dialog.close()}, "Close");
    const dialog = element("dialog", {id: "help", "aria-label": "Help"}, element("h2", {}, "Keys"),
      element("dl", {}, this.app.views().map((view) => row([view.key, `${view.title}: ${view.about}`])), commonKeys.map(row)),
      element("p", {class: "quiet"}, "A row is a token that looks, a column one that is looked at. Weights of a row sum to one."), close);
    return dialog;
  }

  makeAsking() {
    const [text, target] = [element("input", {id: "ask-text", type: "text", placeholder: "another text", "aria-label": "text"}),
      element("input", {id: "ask-target", type: "text", placeholder: "target (or leave it to the model)", "aria-label": "target"})];
    [text.value, target.value] = [this.app.asked?.text ?? "", this.app.asked?.target ?? ""];
    const send = element("button", {type: "submit"}, "Look");
    const crossing = this.app.page.looks[0].shape !== "encoder";
    const form = element("form", {id: "ask"}, text, crossing ? target : null, send);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      send.disabled = true;
      this.note.textContent = "Looking …";
      this.app.say(this.note.textContent);
      try {
        const question = {text: text.value, target: target.value || null};
        this.app.replace(await this.app.store.post("look", question), question);
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
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.('select, textarea, input:not([type="checkbox"])') || this.help.open) return;
    const look = app.look();
    const layer = app.layer();
    const next = (list, value, step) => list[(list.indexOf(value) + step + list.length) % list.length];
    const names = look.layers.map(({name}) => name);
    const view = app.views().find(({key}) => key === event.key);
    const acts = {
      "?": () => this.help.showModal(),
      t: () => state.set({theme: next(["auto", "light", "dark"], state.get("theme"), 1)}),
      Escape: () => state.set({row: null, column: null}),
    };
    if (layer) {
      Object.assign(acts, {
        "[": () => state.set({layer: next(names, layer.name, -1)}),
        "]": () => state.set({layer: next(names, layer.name, 1)}),
        ",": () => state.set({head: (state.get("head") + layer.heads - 1) % layer.heads}),
        ".": () => state.set({head: (state.get("head") + 1) % layer.heads}),
        w: () => state.set({words: !state.get("words")}),
        s: () => state.set({summary: next(summariesFor(layer), state.get("summary"), 1)}),
      });
    }
    const act = view ? () => state.set({view: view.name}) : acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }
}
