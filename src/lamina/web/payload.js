// The bytes of a request as people can read them: one block for each segment, in its layer's colour and with its name.
import { button, bytes, el, number, put, visible } from "./dom.js";
import { layerName, t } from "./texts.js";

const LONG = 3000;
const KNOWN = ["identity", "instructions", "rules", "scenario", "skill", "mode", "tools", "session", "memory", "collected", "summary", "context", "state", "history", "user"];
const decoder = new TextDecoder();

export const layerClass = (layer) => (KNOWN.includes(layer) ? `layer-${layer}` : "layer-other");
export const decoded = (data, start, end) => decoder.decode(data.subarray(start, end));

export function swatch(layer) {
  return el("span", { class: `layer ${layerClass(layer)}` }, el("i", { "aria-hidden": "true" }), el("span", {}, layerName(layer)));
}

// A character of several bytes is never cut in two: the place of its first byte.
export function wholeCharacter(data, at) {
  let place = Math.min(at, data.length);
  while (place > 0 && place < data.length && (data[place] & 0xc0) === 0x80) place -= 1;
  return place;
}

// The text as it was sent. Escaped line ends may begin a new line for the eye; the escape itself stays there to see.
export function shown(text, breaks) {
  if (text.length > LONG && /[A-Za-z0-9+/=]{2500}/.test(text)) return folded(text, breaks);
  if (!breaks) return visible(text);
  const nodes = [];
  text.split(/(?<!\\)((?:\\\\)*\\n)/).forEach((piece, place) => {
    if (place % 2) nodes.push(el("span", { class: "escape" }, piece), el("br"));
    else if (piece) nodes.push(...visible(piece));
  });
  return nodes;
}

// A picture in base64 is long: only its beginning is shown until the user asks for all of it.
function folded(text, breaks) {
  const found = /[A-Za-z0-9+/=]{2500,}/.exec(text);
  const run = found[0];
  const rest = el("span", {});
  const more = button(t("longRun", { n: number(run.length - 60) }), () => rest.replaceChildren(...visible(run.slice(60))), { className: "inline" });
  put(rest, more);
  return [...shown(text.slice(0, found.index), breaks), ...visible(run.slice(0, 60)), rest, ...shown(text.slice(found.index + run.length), breaks)];
}

export function block(data, segment, place, { breaks = true, from = segment.start, to = segment.end, mark = -1, label = true } = {}) {
  const body = el("div", { class: "seg-text" });
  if (mark >= from && mark < to) {
    const begin = wholeCharacter(data, mark);
    let end = begin + 1;
    while (end < data.length && (data[end] & 0xc0) === 0x80) end += 1;
    put(body, shown(decoded(data, from, begin), breaks), el("mark", { class: "first-byte", title: t("firstByte"), id: "first-byte" }, decoded(data, begin, end)), shown(decoded(data, end, to), breaks));
  } else put(body, shown(decoded(data, from, to), breaks));
  const head = el("div", { class: "seg-head" }, swatch(segment.layer), el("span", { class: "seg-source", dir: "auto" }, visible(segment.source)), el("span", { class: "seg-size" }, `${number(segment.start)}–${number(segment.end)} · ${bytes(segment.end - segment.start)}`));
  return el("div", { class: `seg ${layerClass(segment.layer)}`, data: { place }, tabIndex: 0, role: "group", "aria-label": `${layerName(segment.layer)}, ${segment.source}` }, label && head, body);
}

export async function sha256(data) {
  if (!crypto.subtle) return ""; // only on https and on this machine itself
  const found = await crypto.subtle.digest("SHA-256", data);
  return Array.from(new Uint8Array(found), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function download(data, name) {
  const url = URL.createObjectURL(new Blob([data], { type: "application/json" }));
  const anchor = el("a", { href: url, download: name });
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
