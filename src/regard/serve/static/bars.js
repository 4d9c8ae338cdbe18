// Bars of probability, one per row; a table of similarities.
import {element, number, visible, word} from "./dom.js";
import {shade} from "./colour.js";
import {seenWord} from "./words.js";

// rows: [{text, value, note, marked}], values from 0 to 1; choose(index) makes each row a button.
export function barRows(rows, choose = null) {
  return element("ul", {class: "shares"}, rows.map((row, at) => {
    const line = element(choose ? "button" : "span", {type: choose ? "button" : null, class: row.marked ? "share marked" : "share", "data-value": row.value,
      "aria-pressed": choose ? String(Boolean(row.marked)) : null, onclick: choose ? () => choose(at) : null},
      seenWord(row.text), element("small", {}, row.note));
    line.style.setProperty("--share", `${(100 * Math.max(0, Math.min(1, row.value))).toFixed(1)}%`);
    return element("li", {}, line);
  }));
}

// The cosine similarities of vectors, lines by lines.
export function similarityTable(lines, vectors) {
  const norms = vectors.map((vector) => Math.hypot(...vector) || 1);
  const cosine = (a, b) => vectors[a].reduce((sum, value, at) => sum + value * vectors[b][at], 0) / (norms[a] * norms[b]);
  const values = lines.map((_, a) => lines.map((_, b) => cosine(a, b)));
  const low = Math.min(0, ...values.flat());
  return element("table", {class: "similar"}, element("caption", {class: "visually-hidden"}, "Cosine similarity of each pair of lines"),
    element("thead", {}, element("tr", {}, element("td", {}), lines.map((text, at) => element("th", {scope: "col", title: visible(text)}, String(at + 1))))),
    element("tbody", {}, lines.map((text, a) => element("tr", {}, element("th", {scope: "row"}, element("small", {}, String(a + 1)), " ", word(text)),
      lines.map((_, b) => {
        const share = (values[a][b] - low) / (1 - low || 1);
        const cell = element("td", {"data-value": values[a][b], class: share > 0.62 ? "strong" : null}, number(Number(values[a][b].toFixed(2))));
        cell.style.backgroundColor = shade(share * 0.85);
        return cell;
      })))));
}
