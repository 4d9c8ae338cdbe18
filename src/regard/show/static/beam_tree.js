// The tree of a beam search, steps from left to right.
import {hideValue, number, showValue, svg, visible} from "./dom.js";
import {drawnLabel} from "./plot.js";

const treeStep = 104;
const treeLine = 21;

// The coordinates of each node: kept nodes of a step first, the best on top, pruned ones below.
function treeLayout(nodes) {
  const steps = [];
  nodes.forEach((node, at) => (steps[node.step] ??= []).push(at));
  const points = new Array(nodes.length);
  steps.forEach((list, step) => {
    list.sort((a, b) => nodes[b].kept - nodes[a].kept || nodes[b].best - nodes[a].best || nodes[b].score - nodes[a].score);
    list.forEach((at, rank) => (points[at] = {x: 58 + step * treeStep, y: 20 + rank * treeLine, rank}));
  });
  return {steps, points};
}

function linkPath(from, to) {
  const middle = from.x + 80;
  return `M${from.x + 76} ${from.y}C${middle + 14} ${from.y} ${to.x - 18} ${to.y} ${to.x - 4} ${to.y}`;
}

// An SVG of the nodes; pick(step) is called with the step of a node that is clicked. Arrow keys walk to parent, child and neighbours.
export function beamTree(nodes, pick) {
  const {steps, points} = treeLayout(nodes);
  const tallest = Math.max(...steps.map((list) => list?.length ?? 0));
  const [width, height] = [58 + steps.length * treeStep, 26 + tallest * treeLine];
  const root = svg("svg", {class: "tree", viewBox: `0 0 ${width} ${height}`, width, height, role: "tree",
    "aria-label": "Beam search, steps from left to right"});
  const start = {x: -40, y: 20};
  const [faint, strong, labels] = [svg("g", {class: "faint"}), svg("g", {class: "strong"}), svg("g")];
  root.append(faint, strong, svg("circle", {class: "start", cx: 36, cy: 20, r: 3}), labels);
  const drawn = nodes.map((node, at) => {
    const to = points[at];
    const path = svg("path", {class: node.best ? "best" : node.kept ? "kept" : "pruned", d: linkPath(node.parent >= 0 ? points[node.parent] : start, to)});
    (node.kept ? strong : faint).append(path);
    const one = svg("g", {
      class: `node ${node.best ? "best" : node.kept ? "kept" : "pruned"}`, role: "treeitem", tabindex: -1, "data-node": at, "data-step": node.step,
      "data-parent": node.parent, "data-value": node.score, "aria-level": node.step + 1,
      "aria-label": `${visible(node.text)}, score ${number(node.score)}${node.best ? ", in the best hypothesis" : node.kept ? ", kept" : ", pruned"}`,
      transform: `translate(${to.x} ${to.y})`,
    },
    svg("rect", {x: -2, y: -treeLine / 2 + 1, width: 80, height: treeLine - 2, rx: 3}),
    svg("text", {x: 3, dy: ".34em"}, drawnLabel(node.text, 10)));
    labels.append(one);
    return one;
  });
  const first = nodes.findIndex((node) => node.best);
  if (drawn.length) drawn[Math.max(0, first)].tabIndex = 0;

  const nodeOf = (event) => {
    const one = event.target.closest?.("[data-node]");
    return one ? Number(one.dataset.node) : null;
  };
  function showNode(at, x, y) {
    const node = nodes[at];
    const before = node.parent >= 0 ? nodes[node.parent].score : 0;
    const status = node.best ? "in the best hypothesis" : node.kept ? "kept" : "pruned";
    const lines = [node.text, `log-probability ${number(node.score)}`, `this token: probability ${number(Math.exp(node.score - before))}`, status];
    showValue(x, y, lines, {row: node.step, column: at, value: node.score});
  }
  function mark(step) {
    for (const one of drawn) one.classList.toggle("now", Number(one.dataset.step) === step);
  }
  function focus(at) {
    for (const one of drawn) one.tabIndex = -1;
    drawn[at].tabIndex = 0;
    drawn[at].focus();
  }
  root.addEventListener("pointermove", (event) => {
    const at = nodeOf(event);
    if (at === null) hideValue();
    else showNode(at, event.clientX, event.clientY);
  });
  root.addEventListener("pointerleave", hideValue);
  root.addEventListener("focusin", (event) => {
    const at = nodeOf(event);
    if (at === null || !drawn[at].matches(":focus-visible")) return;
    const box = drawn[at].getBoundingClientRect();
    showNode(at, box.left, box.bottom - 8);
  });
  root.addEventListener("focusout", hideValue);
  root.addEventListener("click", (event) => {
    const at = nodeOf(event);
    if (at !== null) pick(nodes[at].step);
  });
  root.addEventListener("keydown", (event) => {
    const at = nodeOf(event);
    if (at === null) return;
    const list = steps[nodes[at].step];
    const children = nodes.map((node, child) => (node.parent === at ? child : -1)).filter((child) => child >= 0);
    children.sort((a, b) => points[a].rank - points[b].rank);
    const to = {ArrowLeft: nodes[at].parent, ArrowRight: children[0], ArrowUp: list[points[at].rank - 1], ArrowDown: list[points[at].rank + 1]}[event.key];
    if (event.key === "Enter") pick(nodes[at].step);
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    event.stopPropagation();
    if (to !== undefined && to >= 0) focus(to);
  });
  return {root, mark};
}
