// A run folder: its training curves, drawn again as lines come, and the film of a text through its checkpoints.
import {element, number, visible} from "./dom.js";
import {linePlot} from "./plot.js";
import {get} from "./server.js";

const pause = 2000; // milliseconds between two questions for new lines
const live = 60; // seconds after its last line in which a run counts as training, or longer if its lines are further apart
const shownPoints = 400; // of a curve
const titles = {loss: "training", valid_loss: "validation", valid_bleu: "BLEU", valid_chrf: "chrF", valid_exact: "exact, %", valid_bits_per_byte: "bits per byte",
  valid_perplexity: "perplexity", valid_accuracy: "accuracy", valid_f1: "F1"};

// Points of each curve by step; a line of a step that was written before replaces it.
class Metrics {
  constructor() {
    this.curves = new Map();
    this.last = {};
  }

  add(line) {
    const {step, ...values} = line;
    for (const [name, value] of Object.entries(values)) {
      if (!this.curves.has(name)) this.curves.set(name, new Map());
      this.curves.get(name).set(step, value);
    }
    Object.assign(this.last, line);
  }

  // Seconds between the last two lines of training.
  interval() {
    const [before, after] = [...(this.curves.get("seconds")?.values() ?? [])].slice(-2);
    return after - before || 0;
  }

  // Curves over their common steps, thinned out; a curve has no value at the steps of the others.
  over(names) {
    const known = names.filter((name) => this.curves.has(name)).map((name) => [name, thinned([...this.curves.get(name)])]);
    const x = [...new Set(known.flatMap(([, points]) => points.map(([step]) => step)))].sort((a, b) => a - b);
    return {x, lines: known.map(([name, points]) => ({name, values: x.map((step) => new Map(points).get(step) ?? NaN)}))};
  }
}

function thinned(points) {
  const every = Math.ceil(points.length / shownPoints);
  return points.filter((_, at) => at % every === 0 || at === points.length - 1);
}

export class RunPanel {
  constructor(model, film) {
    this.model = model;
    this.metrics = new Metrics();
    this.after = "";
    this.state = element("span", {id: "run-state", class: "quiet"});
    this.plots = element("div", {class: "plots root"});
    this.button = element("button", {type: "button", id: "film", disabled: true, title: "the attention of this text through the checkpoints", onclick: film}, "Film of this text");
    this.root = element("section", {id: "run", "aria-label": "Training"}, element("div", {class: "head"}, element("h2", {}, "Training"), this.state, this.button), this.plots);
    this.poll();
  }

  end() {
    clearTimeout(this.timer);
    this.ended = true;
  }

  async poll() {
    let wait = pause;
    try {
      if (!document.hidden || !this.after) {
        const found = await get("page/run", {model: this.model.name, after: this.after});
        if (this.ended) return;
        if (found.more) wait = 0;
        this.take(found);
      }
    } catch (error) {
      if (this.ended) return;
      this.state.textContent = visible(error.message);
      wait = 5 * pause;
    }
    this.timer = setTimeout(() => this.poll(), wait);
  }

  take(found) {
    if (found.restart) this.metrics = new Metrics();
    for (const line of found.lines) this.metrics.add(line);
    this.after = found.after;
    const {step, loss, tokens_per_second: speed, last} = this.metrics.last;
    const training = found.age < Math.max(live, 4 * this.metrics.interval()) && !last;
    this.root.toggleAttribute("data-training", training);
    this.root.dataset.step = String(step ?? 0);
    this.state.textContent = step === undefined ? "no step yet" : [`step ${number(step)}${found.steps ? ` of ${number(found.steps)}` : ""}`,
      loss === undefined ? "" : `loss ${number(loss)}`, training && speed ? `${number(speed)} tokens/s` : ""].filter(Boolean).join(" · ");
    this.button.disabled = !found.checkpoints.length;
    this.button.title = `the attention of the text above through ${found.checkpoints.length} checkpoints`;
    if (found.lines.length || found.restart) this.draw();
  }

  draw() {
    const {curves} = this.metrics;
    const score = ["valid_bleu", "valid_bits_per_byte", "valid_accuracy", "valid_exact", "valid_perplexity"].find((name) => curves.has(name));
    const wanted = [["Loss", ["loss", "valid_loss"]], ...(score ? [[titles[score], score === "valid_bleu" && curves.has("valid_exact") ? [score, "valid_exact"] : [score]]] : []),
      ["Learning rate", ["learning_rate"]]];
    const colours = ["var(--accent)", "var(--mark)"];
    this.plots.replaceChildren(...wanted.filter(([, names]) => names.some((name) => curves.has(name))).map(([title, names]) => {
      const {x, lines} = this.metrics.over(names);
      lines.forEach((line, at) => Object.assign(line, {name: titles[line.name] ?? line.name.replaceAll("_", " "), colour: colours[at]}));
      return element("figure", {"data-curve": names[0]}, element("figcaption", {}, title), linePlot({title, x, lines, across: "step", up: "", width: 380, height: 190}));
    }));
  }
}
