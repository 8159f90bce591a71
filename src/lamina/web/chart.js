// Prompt tokens and the cached share of them, turn by turn: of the last request, where tools made it several.
// Drawn here; each bar leads to its turn.
import { el, number, percent } from "./dom.js";
import { shape } from "./icons.js";
import { t } from "./texts.js";

const HEIGHT = 112;
const BOTTOM = 18;
const AXIS = 44;
const SLOT = 26;
const MOST = 120;
const WIDTH = 412;
const FEW = 200; // wide, where there are hardly any bars: a phone has as much beside both axes

function round(value) {
  const size = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 2, 2.5, 5, 10].map((step) => step * size).find((top) => top >= value);
}

export function chart(turns, current) {
  const all = turns.map((turn, place) => {
    const [prompt, cached] = turn.usage?.requests?.at(-1) ?? [turn.usage?.prompt ?? 0, turn.usage?.cached ?? 0];
    return { turn, number: place + 1, prompt, cached }; // every request has tokens: 0 means that they were not counted
  });
  const rows = all.slice(-MOST);
  if (!rows.some((row) => row.prompt)) return el("p", { class: "hint" }, t("noUsage"));
  const top = round(Math.max(...rows.map((row) => row.prompt)));
  const slot = Math.min(84, Math.max(SLOT, WIDTH / rows.length));
  const width = Math.max(rows.length < 5 ? FEW : WIDTH, rows.length * slot);
  const y = (value, most) => 8 + HEIGHT * (1 - value / most);
  const svg = drawing(width, { class: "chart-svg", role: "group", "aria-label": t("chartTitle") });
  const [left, right] = [0, 1].map(() => drawing(AXIS, { class: "chart-svg axis", "aria-hidden": "true" }));
  for (const part of [0, 0.5, 1]) {
    svg.append(shape("line", { x1: 0, x2: width, y1: y(part, 1), y2: y(part, 1), class: "grid" }));
    left.append(words(AXIS - 6, y(part, 1) + 4, short(top * part), "end"));
    right.append(words(6, y(part, 1) + 4, `${part * 100}%`, "start", "share-label"));
  }
  rows.forEach((row, place) => svg.append(bar(row, place * slot, slot, top, y, row.turn.turn_id === current)));
  const lines = [[]];
  rows.forEach((row, place) => {
    if (!row.prompt) lines.push([]);
    else lines.at(-1).push(`${place * slot + slot / 2},${y(row.cached / row.prompt, 1)}`);
  });
  for (const points of lines) if (points.length > 1) svg.append(shape("polyline", { points: points.join(" "), class: "share-line" }));
  for (const point of lines.flat()) svg.append(shape("circle", { cx: point.split(",")[0], cy: point.split(",")[1], r: 2.6, class: "share-dot" }));
  const key = (name, label) => el("span", { class: "key" }, el("i", { class: name, "aria-hidden": "true" }), label);
  const legend = el("div", { class: "chart-keys" }, key("prompt", t("prompt")), key("cached", t("cached")), key("share", t("share")));
  const scroll = el("div", { class: "chart-scroll" }, svg);
  const here = rows.findIndex((row) => row.turn.turn_id === current);
  const middle = here < 0 ? width : (here + 0.5) * slot;
  requestAnimationFrame(() => (scroll.scrollLeft = middle - scroll.clientWidth / 2));
  return el("div", { class: "chart" }, el("div", { class: "chart-row" }, left, scroll, right), legend);
}

function drawing(width, options) {
  const height = HEIGHT + BOTTOM + 10;
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, ...options });
}

function bar({ turn, number: place, prompt, cached }, x, slot, top, y, current) {
  const label = !prompt ? t("chartNone", { n: place }) : t("chartTurn", { n: place, prompt: number(prompt), share: percent(cached, prompt) });
  const anchor = shape("a", { href: `#/t/${turn.turn_id}/inspect`, class: `bar ${current ? "current" : ""}`, "aria-label": label, ...(current ? { "aria-current": "true" } : {}) });
  const title = shape("title");
  title.textContent = label;
  const width = Math.min(slot - 6, 28);
  const left = x + (slot - width) / 2;
  const parts = [
    title,
    shape("rect", { x, y: 4, width: slot, height: HEIGHT + BOTTOM, class: "hit-area" }),
    prompt && shape("rect", { x: left, y: y(prompt, top), width, height: Math.max(0, 8 + HEIGHT - y(prompt, top)), rx: 2, class: "prompt" }),
    prompt && shape("rect", { x: left, y: y(cached, top), width, height: Math.max(0, 8 + HEIGHT - y(cached, top)), rx: 2, class: "cached" }),
    words(x + slot / 2, HEIGHT + BOTTOM + 5, String(place), "middle"),
  ];
  anchor.append(...parts.filter(Boolean));
  return anchor;
}

function words(x, y, text, anchor, name = "") {
  const node = shape("text", { x, y, "text-anchor": anchor, class: name });
  node.textContent = text;
  return node;
}

const short = (value) => (value >= 10000 ? `${Math.round(value / 1000)}k` : value >= 1000 ? `${Number((value / 1000).toFixed(2))}k` : String(Math.round(value)));
