// Building the page node by node. Text is always a text node: nothing that a person or a model wrote is ever read as HTML.
import { icon } from "./icons.js";
import { lang, t } from "./texts.js";

export function el(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in PROPERTIES) node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  return put(node, ...children);
}

const PROPERTIES = { value: 1, disabled: 1, checked: 1, hidden: 1, htmlFor: 1, tabIndex: 1, open: 1, selected: 1 };

export function put(node, ...children) {
  for (const child of children.flat(3)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export function fill(node, ...children) {
  node.replaceChildren();
  return put(node, ...children);
}

export function button(label, onclick, { sign, quiet = true, className = "", text = !sign, ...more } = {}) {
  const about = text ? {} : { "aria-label": label, title: label };
  return el(
    "button",
    { type: "button", class: `${quiet ? "quiet" : "strong"} ${sign && !text ? "square" : ""} ${className}`, onclick, ...about, ...more },
    sign && icon(sign),
    text && el("span", {}, label),
  );
}

// ---- what people read -------------------------------------------------------------------------------------------

export const number = (value) => new Intl.NumberFormat(lang() === "zh" ? "zh-CN" : "en").format(value);
export const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)}%` : "0%");

export function bytes(value) {
  if (value < 1024) return t("bytes", { n: number(value) });
  return value < 1024 * 1024 ? `${number(Math.round(value / 102.4) / 10)} kB` : `${number(Math.round(value / 104857.6) / 10)} MB`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 0.95) return t("milliseconds", { n: Math.max(1, Math.round(value * 1000)) });
  return t("seconds", { n: value < 10 ? value.toFixed(1) : Math.round(value) });
}

export function when(stamp) {
  if (!stamp) return "";
  const date = new Date(stamp * 1000);
  const today = new Date();
  const locale = lang() === "zh" ? "zh-CN" : "en-GB";
  const clock = date.toLocaleTimeString(locale, { hour: "2-digit", minute: "2-digit" });
  if (date.toDateString() === today.toDateString()) return clock;
  const year = date.getFullYear() === today.getFullYear() ? undefined : "numeric";
  return date.toLocaleDateString(locale, { day: "numeric", month: "short", year });
}

export function time(stamp) {
  if (!stamp) return null;
  const date = new Date(stamp * 1000);
  return el("time", { datetime: date.toISOString(), title: date.toLocaleString(lang() === "zh" ? "zh-CN" : "en-GB") }, when(stamp));
}

export function day(stamp) {
  const midnight = new Date();
  midnight.setHours(0, 0, 0, 0);
  const ago = midnight / 1000 - stamp;
  if (ago <= 0) return t("today");
  if (ago <= 86400) return t("yesterday");
  return ago <= 6 * 86400 ? t("thisWeek") : t("earlier");
}

// Invisible characters, and those that change the direction of a line, are shown by their number. Joiners of emoji stay.
const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

export function visible(text) {
  if (text.search(UNSEEN) < 0) return [document.createTextNode(text)];
  const nodes = [];
  let at = 0;
  for (const found of text.matchAll(UNSEEN)) {
    if (found.index > at) nodes.push(document.createTextNode(text.slice(at, found.index)));
    const code = found[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    nodes.push(el("span", { class: "unseen", title: t("unseen") }, `U+${code}`));
    at = found.index + found[0].length;
  }
  if (at < text.length) nodes.push(document.createTextNode(text.slice(at)));
  return nodes;
}

// Where words of a query stand in a piece of text; the server's search folds case, and so does this.
export function marked(text, query) {
  const words = query.toLowerCase().match(/[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]+|[\p{L}\p{N}_]+/gu) || [];
  const line = text.toLowerCase();
  if (!words.length || line.length !== text.length) return visible(text);
  const nodes = [];
  let at = 0;
  while (at < text.length) {
    let first = -1;
    let size = 0;
    for (const word of words) {
      const place = line.indexOf(word, at);
      if (place >= 0 && (first < 0 || place < first)) [first, size] = [place, word.length];
    }
    if (first < 0) break;
    nodes.push(...visible(text.slice(at, first)), el("mark", {}, text.slice(first, first + size)));
    at = first + size;
  }
  return [...nodes, ...visible(text.slice(at))];
}

// Without a pointer that hovers there is hardly a keyboard either: nothing is said of its keys.
export const touch = () => matchMedia("(hover: none)").matches;

// ---- waiting, telling, asking -----------------------------------------------------------------------------------

export function skeleton(lines = 4) {
  const rows = Array.from({ length: lines }, (_, n) => el("span", { class: `bone w${(n * 7) % 4}` }));
  return el("div", { class: "skeleton", role: "status", "aria-label": t("loading") }, rows);
}

let waiting = 0;
export async function busy(work) {
  const bar = document.getElementById("bar");
  bar.hidden = false;
  waiting += 1;
  try {
    return await work;
  } finally {
    waiting -= 1;
    if (!waiting) bar.hidden = true;
  }
}

export function problem(error, again) {
  return el(
    "div",
    { class: "problem", role: "alert" },
    icon("warning"),
    el("div", {}, el("p", {}, visible(error.message || t("failed"))), error.hint && el("p", { class: "hint" }, visible(error.hint))),
    again && button(t("again"), again, { sign: "retry", text: true }),
  );
}

// One line beside an answer: a sign, perhaps a word for it, and what there is to say.
export function note(sign, text, head) {
  return el("p", { class: "notice", role: "note" }, icon(sign), head && el("b", {}, head), el("span", {}, text));
}

export function empty(sign, title, what, ...more) {
  return el("div", { class: "empty" }, icon(sign), el("h2", {}, title), el("p", {}, what), more);
}

export function toast(text, kind = "") {
  const node = el("div", { class: `toast ${kind}`, role: kind === "bad" ? "alert" : null }, el("span", {}, visible(text)), button(t("close"), () => node.remove(), { sign: "close" }));
  document.getElementById("toasts").append(node);
  setTimeout(() => node.remove(), kind === "bad" ? 9000 : 3500);
}

// Removes them; returns whether one of them was an error, which the user may have been reading.
export function hush(which = ".toast") {
  const nodes = [...document.querySelectorAll(`#toasts ${which}`)];
  for (const node of nodes) node.remove();
  return nodes.some((node) => node.classList.contains("bad"));
}

export const told = (error) => {
  if (error.name !== "AbortError") toast([error.message, error.hint].filter(Boolean).join(lang() === "zh" ? "：" : ": "), "bad");
};

export function say(text) {
  document.getElementById("live").append(el("p", {}, text));
  const live = document.getElementById("live");
  while (live.childNodes.length > 12) live.firstChild.remove();
}

export function dialog(title, body, actions) {
  return new Promise((resolve) => {
    const box = el("dialog", { class: "dialog", "aria-labelledby": "dialog-title" });
    const done = (value) => {
      box.close();
      box.remove();
      resolve(value);
    };
    box.addEventListener("cancel", (event) => {
      event.preventDefault();
      done(null);
    });
    box.addEventListener("click", (event) => event.target === box && done(null));
    const row = actions.map(([label, value, kind]) =>
      button(label, () => done(typeof value === "function" ? value() : value), { quiet: kind !== "strong" && kind !== "bad", className: kind === "bad" ? "bad" : "" }),
    );
    const form = el("form", { method: "dialog" }, el("h2", { id: "dialog-title" }, title), body, el("div", { class: "row end" }, row));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      row.at(-1).click();
    });
    document.body.append(put(box, form));
    box.showModal();
    (box.querySelector("input, textarea") || row.at(-1)).focus();
  });
}

export const sure = (title, what, action) => dialog(title, el("p", {}, what), [[t("cancel"), false], [action, true, "bad"]]);

export async function ask(title, label, value = "") {
  const field = el("input", { type: "text", value, maxlength: 200, "aria-label": label });
  return dialog(title, field, [[t("cancel"), null], [t("save"), () => field.value.trim(), "strong"]]);
}

export function menu(label, sign, items, className = "") {
  const list = el("div", { class: "menu", role: "menu", hidden: true });
  const opener = button(label, () => (list.hidden ? open() : close()), { sign, "aria-haspopup": "menu", "aria-expanded": "false", className });
  const holder = el("div", { class: "holder" }, opener, list);
  const away = (event) => !holder.contains(event.target) && close();
  function open() {
    fill(
      list,
      items().map(([text, act, mark, kind]) =>
        el("button", { type: "button", role: "menuitem", class: kind || "", onclick: () => (close(), opener.focus(), act()) }, icon(mark), el("span", {}, text)),
      ),
    );
    list.hidden = false;
    const low = opener.getBoundingClientRect().bottom + list.offsetHeight + 8 > innerHeight;
    list.classList.toggle("up", low);
    opener.setAttribute("aria-expanded", "true");
    document.addEventListener("pointerdown", away);
    list.firstChild.focus();
  }
  function close() {
    list.hidden = true;
    opener.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", away);
  }
  holder.addEventListener("keydown", (event) => {
    const buttons = [...list.children];
    const at = buttons.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape" && !list.hidden) {
      event.stopPropagation();
      close();
      opener.focus();
    } else if (step && !list.hidden) {
      event.preventDefault();
      buttons[(at + step + buttons.length) % buttons.length].focus();
    }
  });
  return holder;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = el("textarea", { value: text, class: "unseen-field", "aria-hidden": "true" });
    document.body.append(field); // plain http away from this machine has no clipboard of its own
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  toast(t("copied"));
  say(t("copied"));
}
