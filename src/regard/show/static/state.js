// The selection, shared by all views and stored in the address: #view=matrix&layer=decoder.0.cross&head=2

const defaults = {
  trace: 0, view: "overview", layer: "", head: 0, row: null, column: null, // row and column: tokens of the layer's sides
  words: false, heads: null, summary: "head", theme: "auto", // heads: those drawn in the head view, null for all
};
const booleans = ["words"];
const addressPause = 200; // milliseconds

// "a=1&b=x" as an object of strings, numbers, lists of numbers and booleans.
export function parsed(hash) {
  const found = {};
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (!/^[a-z]+$/.test(name) || text === "") continue;
    if (booleans.includes(name)) found[name] = text === "yes";
    else if (name === "heads") found[name] = text.split(".").filter((part) => /^\d+$/.test(part)).map(Number);
    else found[name] = /^-?\d+(\.\d+)?$/.test(text) && name !== "layer" ? Number(text) : text;
  }
  return found;
}

// The inverse; defaults are left out, so that addresses stay short.
export function written(values, usual = defaults) {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || String(value) === String(usual[name])) continue;
    parts.set(name, value === true ? "yes" : value === false ? "no" : Array.isArray(value) ? value.join(".") : value);
  }
  return parts.toString();
}

// The selection. Any further name (step, other, sort, ...) may be set: a number, a text, or null for none.
export class State {
  // own: defaults of this page, such as the last of its checkpoints.
  constructor(hash, own = {}) {
    const given = parsed(hash);
    this.defaults = {...defaults, ...own};
    this.given = "view" in given; // whether the address names a view
    this.values = {...this.defaults, ...given};
    this.watchers = new Set();
  }

  get(name) {
    return this.values[name] ?? null;
  }

  // Change some values; watchers are called once, and only if something differs.
  set(changes) {
    const different = Object.keys(changes).filter((name) => String(changes[name]) !== String(this.values[name]));
    if (!different.length) return;
    Object.assign(this.values, changes);
    this.given ||= "view" in changes;
    this.address();
    for (const watcher of [...this.watchers]) watcher(different);
  }

  // Write the selection into the address a few times per second at most: browsers ignore more frequent changes.
  address() {
    if (this.waiting) {
      this.late = true;
      return;
    }
    this.waiting = setTimeout(() => {
      this.waiting = null;
      if (this.late) this.address();
      this.late = false;
    }, addressPause);
    try {
      history.replaceState(null, "", `#${written(this.values, this.defaults)}`);
    } catch {
      // A page inside a notebook has no address of its own.
    }
  }

  // Read an address that was typed or navigated to.
  read(hash) {
    if (!hash.includes("=")) return;
    const none = Object.fromEntries(Object.keys(this.values).map((name) => [name, null]));
    this.set({...none, ...this.defaults, ...parsed(hash)});
  }

  // Call f(names of the changed values) after each change; returns a function that stops it.
  watch(f) {
    this.watchers.add(f);
    return () => this.watchers.delete(f);
  }

  // The address that restores this view.
  link() {
    return `${location.href.split("#")[0]}#${written(this.values, this.defaults)}`;
  }
}
