// Entry point of the front page: the models, what each can do, the box to type in, the answer, attention and training.
import {element, hideValue, label, visible, word} from "./dom.js";
import {forgetColours} from "./colour.js";
import {get, post} from "./server.js";
import {translateTask} from "./translate.js";
import {generateTask} from "./generate.js";
import {fillTask} from "./fill.js";
import {measureTasks} from "./measure.js";
import {RunPanel} from "./run.js";
import {closeMenu} from "./words.js";

const tasks = [translateTask, generateTask, fillTask, ...measureTasks];
const themes = [["auto", "auto theme"], ["light", "light theme"], ["dark", "dark theme"]];
const themeName = "regard-theme";

function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null; // a browser may forbid storage
  }
}

class Front {
  constructor(models) {
    this.models = models;
    this.seen = null; // {text, target} of the last answer, for its attention
    this.running = null; // the AbortController of the request that is under way
    const wanted = new URLSearchParams(location.hash.slice(1));
    this.model = models.find(({name}) => name === wanted.get("model")) ?? models[0];
    this.build();
    this.choose(this.model, wanted.get("task"));
  }

  build() {
    this.models_ = element("select", {id: "model", "aria-label": "Model", onchange: () => this.choose(this.models[Number(this.models_.value)])},
      this.models.map(({name}, at) => element("option", {value: at}, visible(name))));
    this.theme = element("select", {id: "theme", "aria-label": "Theme", onchange: () => this.setTheme(this.theme.value)},
      themes.map(([value, text]) => element("option", {value}, text)));
    this.about = element("p", {id: "about", class: "quiet"});
    this.tabs = element("nav", {id: "views", "aria-label": "Tasks"});
    this.text = element("textarea", {id: "text", rows: 5, spellcheck: "false", "aria-label": "Text", oninput: () => this.fit(this.text)});
    this.second = element("textarea", {id: "second", rows: 3, spellcheck: "false", oninput: () => this.fit(this.second)});
    this.insert = element("button", {type: "button", id: "insert", onclick: () => this.insertMask()}, "Insert a mask");
    this.go = element("button", {type: "submit", id: "go", class: "primary"});
    this.stop = element("button", {type: "button", id: "stop", hidden: true, onclick: () => this.running?.abort()}, "Stop");
    this.see = element("button", {type: "button", id: "see", hidden: true, onclick: () => this.showAttention("page/attention")}, "Show attention");
    this.fields = element("div", {class: "fields"});
    this.options = element("details", {id: "options"}, element("summary", {}, "Options"), this.fields);
    this.out = element("section", {id: "answer", "aria-label": "Answer", "aria-live": "polite", "aria-busy": "false"});
    this.note = element("p", {id: "note", role: "status"});
    this.attention = element("section", {id: "attention", "aria-label": "Attention", hidden: true});
    this.training = element("div", {id: "training"});
    const form = element("form", {id: "ask"},
      element("div", {class: "columns"},
        element("section", {class: "box"}, this.text, this.second, element("div", {class: "foot"}, this.go, this.stop, this.insert, this.options)),
        element("section", {class: "box given"}, this.out, element("div", {class: "foot"}, this.note, this.see))));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    for (const field of [this.text, this.second]) field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.ask();
    });
    document.body.replaceChildren(
      element("header", {id: "top"}, element("div", {class: "names"}, element("h1", {}, "regard"), this.about),
        element("div", {class: "corner"}, element("label", {class: "pick"}, this.models_), element("label", {class: "pick"}, this.theme))),
      this.tabs, element("main", {id: "view"}, form, this.attention, this.training),
      element("p", {id: "status", class: "visually-hidden", role: "status", "aria-live": "polite"}));
    this.setTheme(stored(themeName) ?? "auto");
  }

  // Show a model, with a task that it can do.
  choose(model, name = this.task?.name) {
    this.running?.abort();
    this.model = model;
    this.models_.value = String(this.models.indexOf(model));
    this.about.replaceChildren(word(model.summary));
    this.fitting = model.can.flatMap((can) => tasks.filter((task) => task.name === can));
    this.tabs.replaceChildren(...this.fitting.map((task) => element("button", {type: "button", id: `tab-${task.name}`, onclick: () => this.chooseTask(task)}, task.title)));
    this.attention.hidden = true;
    this.attention.replaceChildren();
    this.panel?.end();
    this.panel = model.run ? new RunPanel(model, () => this.showAttention("page/film")) : null;
    this.training.replaceChildren(...(this.panel ? [this.panel.root] : []));
    this.chooseTask(this.fitting.find((task) => task.name === name) ?? this.fitting[0]);
  }

  chooseTask(task) {
    this.running?.abort();
    closeMenu();
    [this.task, this.seen] = [task, null];
    for (const tab of this.tabs.children) {
      if (tab.id === `tab-${task.name}`) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    const {model} = this;
    this.text.setAttribute("placeholder", task.placeholder);
    const second = task.second?.(model) ?? null;
    this.second.hidden = !second;
    this.second.setAttribute("placeholder", second ?? "");
    this.second.setAttribute("aria-label", second ?? "Second text");
    this.insert.hidden = !task.inserts;
    this.go.textContent = task.verb;
    const fields = task.options?.(model) ?? [];
    this.options.hidden = !fields.length;
    this.fields.replaceChildren(...fields.map(([name, title, attributes]) => element("label", {}, element("span", {}, title), element("input", {name, step: "any", ...attributes}))));
    this.out.replaceChildren();
    this.note.textContent = "";
    this.see.hidden = true;
    document.body.dataset.task = task.name;
    history.replaceState(null, "", `#${new URLSearchParams({model: model.name, task: task.name})}`);
  }

  // The options that were set; the others are the server's.
  chosenOptions() {
    const found = {};
    for (const field of this.fields.querySelectorAll("input")) {
      if (field.type === "checkbox") {
        if (field.checked) found[field.name] = true;
      } else if (field.value !== "") found[field.name] = field.type === "number" ? Number(field.value) : field.value;
    }
    return found;
  }

  ask() {
    const [text, second] = [this.text.value, this.second.value];
    if (!text.trim() || (!this.second.hidden && !second.trim())) {
      this.say("Type a text first.");
      (text.trim() ? this.second : this.text).focus();
      return;
    }
    closeMenu();
    hideValue();
    const {task, model} = this;
    this.work((signal) => task.run(this, {model, text, second, options: this.chosenOptions(), signal}), task.waits);
  }

  // Do some work that can be stopped; one at a time.
  async work(f, waits) {
    this.running?.abort();
    const running = (this.running = new AbortController());
    this.out.setAttribute("aria-busy", "true");
    this.stop.hidden = false;
    this.say(waits);
    let said = "";
    try {
      this.announce(await f(running.signal));
    } catch (error) {
      said = running.signal.aborted ? "stopped" : visible(error.message);
      if (!running.signal.aborted) this.note.classList.add("problem");
    }
    if (this.running !== running) return;
    this.running = null;
    this.out.setAttribute("aria-busy", "false");
    this.stop.hidden = true;
    this.note.textContent = said;
    this.see.hidden = !this.seen || !this.model.attention;
  }

  answer(nodes) {
    this.out.replaceChildren(...nodes.filter(Boolean));
  }

  say(text) {
    this.note.classList.remove("problem");
    this.note.textContent = text;
  }

  announce(text) {
    document.getElementById("status").textContent = visible(text);
  }

  // The attention page of the answer, or of the text through the checkpoints, in a frame.
  async showAttention(path) {
    const text = this.seen?.text ?? this.text.value.split("\n")[0];
    if (!text.trim()) {
      this.say("Type a text first.");
      this.text.focus();
      return;
    }
    this.attention.hidden = false;
    this.attention.replaceChildren(element("p", {class: "quiet", role: "status"}, path.endsWith("film") ? "tracing the checkpoints …" : "tracing …"));
    this.attention.scrollIntoView({block: "nearest"});
    try {
      const {id} = await post(path, {model: this.model.name, text, target: this.seen?.target ?? null});
      const view = path.endsWith("film") ? "" : "&view=head";
      const address = `attention/${encodeURIComponent(id)}/#theme=${this.theme.value}${view}`;
      const close = element("button", {type: "button", onclick: () => {
        this.attention.hidden = true;
        this.attention.replaceChildren();
      }}, "Close");
      this.attention.replaceChildren(element("div", {class: "head"}, element("h2", {}, path.endsWith("film") ? "Attention through the checkpoints" : "Attention"),
        this.seen?.several ? element("span", {class: "quiet"}, `of “${label(text, 40)}”. For another line, click a word of it first.`) : null,
        element("a", {href: address, target: "_blank", rel: "noopener"}, "open in a new tab"), close),
        element("iframe", {src: address, title: "Attention", id: "frame"}));
    } catch (error) {
      this.attention.replaceChildren(element("p", {class: "problem", role: "alert"}, visible(error.message)));
    }
    this.attention.scrollIntoView({block: "nearest", behavior: "smooth"});
  }

  insertMask() {
    const {text, task} = this;
    text.setRangeText(task.inserts(this.model), text.selectionStart, text.selectionEnd, "end");
    text.focus();
  }

  // A box as high as its text.
  fit(field) {
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight + 2, 480)}px`;
  }

  setTheme(theme) {
    this.theme.value = themes.some(([value]) => value === theme) ? theme : "auto";
    if (this.theme.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = this.theme.value;
    forgetColours();
    try {
      localStorage.setItem(themeName, this.theme.value);
    } catch {
      // It lasts until the page is closed.
    }
  }
}

try {
  const models = await get("page/models");
  if (models.length) new Front(models);
  else document.body.replaceChildren(element("p", {}, "No model is served yet."));
} catch (error) {
  document.body.replaceChildren(element("p", {class: "problem", role: "alert"}, visible(error.message)));
}
document.documentElement.dataset.ready = "yes";
