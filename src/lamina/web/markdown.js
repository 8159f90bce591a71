// Markdown as DOM nodes, block by block, and as it streams: only the last block is ever built again.
// Nothing of it is HTML, nothing of it loads: a tag is text, a picture is a link with a note.
import { button, copy, el, number, put, visible } from "./dom.js";
import { inline } from "./inline.js";
import { t } from "./texts.js";

const FENCE = /^( {0,3})(`{3,}(?!`)|~{3,}(?!~))[ \t]*(?![ \t])([^`\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(.*)|)$/;
const QUOTE = /^ {0,3}> ?/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const DEEPEST = 8;
const ROWS = 200;
const COLUMNS = 60;
const MANY = 12;
const SLOW = 6;

export function markdown(text) {
  const root = el("div", { class: "prose", dir: "auto" });
  return put(root, blocks(lines(text)).map(build));
}

// An answer that grows. `add` may be called at any rate; it draws once a frame. `done` is called with each block that is final.
export class Growing {
  constructor(done = () => {}) {
    Object.assign(this, { text: "", from: 0, pending: false, done });
    this.root = el("div", { class: "prose growing", dir: "auto" });
    this.tail = [];
    this.code = null;
    this.list = null;
    this.rest = 0;
  }

  add(piece) {
    this.text += piece.replaceAll("\r", "");
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => this.frame());
  }

  // A draw that took long lets the next ones wait, so that the page always has most of its time for people.
  frame() {
    if (!this.pending) return;
    const begin = performance.now();
    if (begin < this.rest) return void requestAnimationFrame(() => this.frame());
    this.draw();
    const took = performance.now() - begin;
    if (took > SLOW) this.rest = begin + 4 * took;
  }

  end() {
    this.draw(true);
    this.root.classList.remove("growing");
  }

  draw(last = false) {
    this.pending = false;
    const fresh = this.text.slice(this.from);
    if (this.code && !last && this.extend(fresh)) return;
    if (this.list && !last && this.lengthen()) return;
    this.code = null;
    this.list = null;
    const rows = lines(fresh);
    const found = blocks(rows);
    const open = found.at(-1);
    if (!open) return;
    // a line that is not whole yet may turn out to belong to the block before: "2" becomes "2. and so on"
    const whole = open.first < rows.length - 1;
    const first = last ? found.length : Math.max(0, found.length - (whole ? 1 : 2));
    for (const node of this.tail) node.remove();
    this.tail = [];
    found.forEach((block, place) => {
      const node = build(block);
      this.root.append(node);
      if (place < first) this.done(node.textContent);
      else this.tail.push(node);
    });
    if (last) return;
    this.from += offset(fresh, found[first].first);
    if (open.kind === "list" && whole && open.items.length > MANY) this.list = { node: this.tail[0], from: this.from + offset(fresh.slice(offset(fresh, open.first)), open.lines.at(-2) - open.first), kept: open.items.length - 2 };
    if (open.kind === "code" && open.open && whole) this.code = { size: this.text.length - this.from, text: this.tail[0].querySelector("code") };
  }

  // Of a long list only the last items are built again; when it ends, it is built once more as a whole.
  lengthen() {
    const { node, from, kept } = this.list;
    const fresh = this.text.slice(from);
    const found = blocks(lines(fresh));
    if (found.length !== 1 || found[0].kind !== "list" || found[0].ordered !== (node.localName === "ol")) return false;
    const [{ items, lines: places, loose }] = found;
    while (node.childNodes.length > kept) node.lastChild.remove();
    put(node, items.map((item) => listItem(item, loose)));
    if (items.length > 2) this.list = { node, from: from + offset(fresh, places.at(-2)), kept: kept + items.length - 2 };
    return true;
  }

  // Inside an open code block new text is only appended: its lines may be thousands.
  extend(fresh) {
    const piece = fresh.slice(this.code.size);
    if (piece.includes("`") || piece.includes("~")) return false;
    put(this.code.text, visible(piece));
    this.code.size = fresh.length;
    return true;
  }
}

// Markdown without its marks, where there is room for one line only. The line ends are already removed.
export function bare(text) {
  return text
    .replace(/\s+/g, " ")
    .replace(/!?\[([^[\]]*)\]\([^()\s]*\)/g, "$1")
    .replace(/(^|\s)#{1,6}(?=\s)/g, "$1")
    .replace(/(^|\s)[-*+] \[[ xX]\](?=\s)/g, "$1")
    .replace(/(^…?|[.!?:。！？：]\s?)[>*+-](?=\s)/g, "$1")
    .replace(/\|? ?:?-{3,}:? ?(?:\| ?:?-{3,}:? ?)*\|?/g, " | ")
    .replace(/\*{1,3}(?=\S)|(?<=\S)\*{1,3}|`+|~~+|(?<![\p{L}\p{N}])_{1,3}(?=\S)|(?<=\S)_{1,3}(?![\p{L}\p{N}])/gu, "")
    .replace(/\s+/g, " ")
    .replace(/ ?\|(?: ?\|)* ?/g, " · ")
    .replace(/\s+/g, " ")
    .replace(/^[ ·]+|(?<![ ·])[ ·]+$/g, "");
}

const lines = (text) => text.replace(/\r\n?/g, "\n").split("\n");

function offset(text, line) {
  let at = 0;
  for (let n = 0; n < line; n += 1) at = text.indexOf("\n", at) + 1;
  return at;
}

// ---- lines to blocks ----------------------------------------------------------------------------------------------

function blocks(rows, depth = 0) {
  const found = [];
  let at = 0;
  while (at < rows.length) {
    if (!rows[at].trim()) {
      at += 1;
      continue;
    }
    const [block, next] = take(rows, at, depth);
    found.push({ ...block, first: at });
    at = next;
  }
  return found;
}

function take(rows, at, depth) {
  const row = rows[at];
  const fence = FENCE.exec(row);
  if (fence) return fenced(rows, at, fence);
  const heading = HEADING.exec(row);
  if (heading) return [{ kind: "heading", level: heading[1].length, text: title(row.slice(heading[0].length)) }, at + 1];
  if (RULE.test(row)) return [{ kind: "rule" }, at + 1];
  if (depth < DEEPEST) {
    if (QUOTE.test(row)) return quoted(rows, at, depth);
    if (ITEM.test(row)) return listed(rows, at, depth);
    if (row.includes("|") && DIVIDER.test(rows[at + 1] ?? "") && cells(row).length === cells(rows[at + 1]).length) return tabled(rows, at);
  }
  let end = at + 1;
  while (end < rows.length && rows[end].trim() && !interrupts(rows, end, depth)) end += 1;
  return [{ kind: "text", text: rows.slice(at, end).map((one) => one.replace(/^ {0,3}/, "")).join("\n").trimEnd() }, end];
}

function title(row) {
  const text = row.trim();
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  return end === 0 || /[ \t]/.test(text[end - 1]) ? text.slice(0, end).trim() : text;
}

function interrupts(rows, at, depth) {
  const row = rows[at];
  if (FENCE.test(row) || HEADING.test(row) || RULE.test(row)) return true;
  if (depth >= DEEPEST) return false;
  const item = ITEM.exec(row);
  if (QUOTE.test(row) || (item && item[4] && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1))) return true;
  return row.includes("|") && DIVIDER.test(rows[at + 1] ?? "") && cells(row).length === cells(rows[at + 1]).length;
}

function fenced(rows, at, [, indent, marks, info]) {
  const inner = [];
  let end = at + 1;
  for (; end < rows.length; end += 1) {
    const close = /^ {0,3}(`{3,}|~{3,})[ \t]*$/.exec(rows[end]);
    if (close && close[1][0] === marks[0] && close[1].length >= marks.length) break;
    inner.push(indent ? rows[end].replace(new RegExp(`^ {0,${indent.length}}`), "") : rows[end]);
  }
  const open = end >= rows.length;
  return [{ kind: "code", language: info.trim().split(/\s/)[0].slice(0, 40), text: inner.join("\n"), open }, end + 1];
}

function quoted(rows, at, depth) {
  const inner = [];
  let end = at;
  while (end < rows.length && (QUOTE.test(rows[end]) || (rows[end].trim() && inner.at(-1)?.trim() && !interrupts(rows, end, depth)))) {
    inner.push(rows[end].replace(QUOTE, ""));
    end += 1;
  }
  return [{ kind: "quote", blocks: blocks(inner, depth + 1) }, end];
}

function listed(rows, at, depth) {
  const head = ITEM.exec(rows[at]);
  const base = head[1].length;
  const ordered = /\d/.test(head[2]);
  const items = [];
  const places = [];
  let loose = false;
  let end = at;
  while (end < rows.length) {
    const item = ITEM.exec(rows[end]);
    if (!item || item[1].length < base || item[1].length > base + 1 || /\d/.test(item[2]) !== ordered || RULE.test(rows[end])) break;
    const [inner, next] = belonging(rows, end, item);
    items.push(inner);
    places.push(end);
    end = next;
    let blank = end;
    while (blank < rows.length && !rows[blank].trim()) blank += 1;
    const follows = blank < rows.length && blank > end && ITEM.exec(rows[blank]);
    if (follows && follows[1].length >= base && follows[1].length <= base + 1 && /\d/.test(follows[2]) === ordered) [loose, end] = [true, blank];
  }
  const made = items.map((inner) => blocks(inner, depth + 1));
  return [{ kind: "list", ordered, start: ordered ? parseInt(head[2], 10) : 1, items: made, lines: places, loose }, end];
}

// The lines of one item: its own, those indented below it, and those that only go on with its paragraph.
function belonging(rows, at, item) {
  const marker = item[1].length + item[2].length;
  const width = Math.min(marker + Math.min(item[3]?.length ?? 1, 4), marker + 4);
  const inner = [item[4] || ""];
  let end = at + 1;
  while (end < rows.length) {
    const row = rows[end];
    const indent = row.length - row.trimStart().length;
    if (!row.trim()) {
      const next = rows.slice(end + 1, end + 4).find((one) => one.trim());
      if (next === undefined || next.length - next.trimStart().length < Math.min(width, item[1].length + 2)) break;
      inner.push("");
    } else if (indent >= Math.min(width, item[1].length + 2)) inner.push(row.slice(Math.min(indent, width)));
    else if (ITEM.test(row) || interrupts(rows, end, 0) || !inner.at(-1).trim()) break;
    else inner.push(row.trimStart());
    end += 1;
  }
  return [inner, end];
}

function cells(row) {
  const found = [];
  let cell = "";
  let ticks = false;
  const body = row.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  for (let at = 0; at < body.length; at += 1) {
    if (body[at] === "\\" && body[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (body[at] === "|" && !ticks) {
      found.push(cell.trim());
      cell = "";
    } else {
      if (body[at] === "`") ticks = !ticks && body.indexOf("`", at + 1) > 0;
      cell += body[at];
    }
  }
  return [...found, cell.trim()];
}

function tabled(rows, at) {
  const head = cells(rows[at]).slice(0, COLUMNS);
  const sides = cells(rows[at + 1]).map((one) => (one.endsWith(":") ? (one.startsWith(":") ? "middle" : "end") : ""));
  const body = [];
  let end = at + 2;
  for (; end < rows.length && rows[end].trim() && rows[end].includes("|"); end += 1) body.push(rows[end]);
  return [{ kind: "table", head, sides, body }, end];
}

// ---- blocks to nodes ----------------------------------------------------------------------------------------------

function build(block) {
  switch (block.kind) {
    case "heading":
      return el(`h${Math.min(6, block.level + 2)}`, { class: `h${block.level}` }, inline(block.text));
    case "rule":
      return el("hr");
    case "quote":
      return el("blockquote", {}, block.blocks.map(build));
    case "code":
      return code(block);
    case "list":
      return el(block.ordered ? "ol" : "ul", { start: block.start === 1 ? null : block.start }, block.items.map((item) => listItem(item, block.loose)));
    case "table":
      return table(block);
    default:
      return el("p", {}, inline(block.text));
  }
}

function listItem(item, loose) {
  const [first, ...rest] = item;
  if (first?.kind !== "text") return el("li", {}, item.map(build));
  const task = /^\[([ xX])\] (.*)$/s.exec(first.text);
  const words = task ? [el("span", { class: `task ${task[1] === " " ? "" : "ticked"}`, role: "img", "aria-label": t(task[1] === " " ? "open" : "ticked") }), inline(task[2])] : inline(first.text);
  return el("li", { class: task ? "has-task" : null }, loose ? el("p", {}, words) : words, rest.map(build));
}

export function code({ language, text }) {
  const body = el("code", {}, visible(text));
  const head = el("div", { class: "code-head" }, el("span", {}, language || t("text")), button(t("copy"), () => copy(plain(body)), { sign: "copy", text: true }));
  return el("div", { class: "code" }, head, el("pre", { tabIndex: 0, dir: "ltr" }, body));
}

// The text with its unseen characters as they were, not as they are shown.
function plain(node) {
  return [...node.childNodes].map((one) => (one.nodeType === Node.TEXT_NODE ? one.data : String.fromCodePoint(parseInt(one.textContent.slice(2), 16)))).join("");
}

function table({ head, sides, body }) {
  const cell = (tag, text, place) => el(tag, { class: sides[place] || null }, inline(text));
  const line = (row) => {
    const given = cells(row);
    return el("tr", {}, head.map((_, place) => cell("td", given[place] ?? "", place)));
  };
  const rows = el("tbody", {}, body.slice(0, ROWS).map(line));
  const whole = el("table", {}, el("thead", {}, el("tr", {}, head.map((text, place) => cell("th", text, place)))), rows);
  const box = el("div", { class: "table", tabIndex: 0, role: "region", "aria-label": t("table") }, whole);
  if (body.length > ROWS) {
    const more = button(t("moreRows", { n: number(body.length - ROWS) }), () => (more.remove(), put(rows, body.slice(ROWS, ROWS + 5000).map(line))));
    box.append(more);
  }
  return box;
}
