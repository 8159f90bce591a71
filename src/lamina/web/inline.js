// What is inside a line of Markdown: code, emphasis, links. One pass, linear whatever the text; HTML stays text.
import { el, visible } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./texts.js";

const SPECIAL = /[\\`*_~[\]!<h\n]/;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const DEEPEST = 64;
const BARE = /https?:\/\/[^\s<>"'`\\^{}|，。；：！？、（）「」『』【】《》]+/iy;
const ANGLED = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/iy;
// A run of blanks is taken whole or not at all: `(?!\s)` behind it keeps a long one from being tried at every length.
const TARGET = /\(\s*(?!\s)(?:<([^<>\n]*)>|([^\s()]*(?:\([^\s()]*\)[^\s()]*)*))(?:\s+(?!\s)(?:"[^"\n]*"|'[^'\n]*'))?\s*(?!\s)\)/y;

export function inline(text, links = true) {
  return new Line(text, links).nodes();
}

// The address if a click may lead there, else null. What the browser makes of it counts, not what is written.
export function address(written) {
  let url;
  try {
    url = new URL(written.trim());
  } catch {
    return null;
  }
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url : null;
}

export function link(url, nodes, written = "") {
  const host = url.protocol === "mailto:" ? url.pathname : url.host;
  const anchor = el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer", referrerpolicy: "no-referrer" }, nodes);
  return written && address(written)?.host === url.host ? anchor : el("span", { class: "link" }, anchor, el("span", { class: "host" }, ` (${host})`));
}

class Line {
  constructor(text, links) {
    Object.assign(this, { text, links, at: 0, plain: "", out: [], open: [], noCode: new Set() });
    this.closing = links ? brackets(text) : new Map();
  }

  nodes() {
    const { text } = this;
    while (this.at < text.length) {
      const char = text[this.at];
      if (!SPECIAL.test(char) || !this.special(char)) {
        this.plain += char;
        this.at += 1;
      }
    }
    this.flush();
    return this.out.map((one) => (one.run ? document.createTextNode(one.run) : one));
  }

  flush() {
    if (this.plain) this.out.push(...visible(this.plain));
    this.plain = "";
  }

  add(node, size) {
    this.flush();
    this.out.push(node);
    this.at += size;
    return true;
  }

  special(char) {
    const { text, at } = this;
    if (char === "\n") {
      this.plain = without(this.plain, " ");
      return this.add(el("br"), 1);
    }
    if (char === "\\") return this.escape();
    if (char === "`") return this.code();
    if (char === "*" || char === "_" || char === "~") return this.emphasis(char);
    if (!this.links) return false;
    if (char === "!" && text[at + 1] === "[") return this.target(at + 1, true);
    if (char === "[") return this.target(at, false);
    if (char === "<") return this.angled();
    return char === "h" ? this.bare() : false;
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === "\n") return this.add(el("br"), 2);
    if (!next || !/[!-/:-@[-`{-~]/.test(next)) return false;
    this.plain += next;
    this.at += 2;
    return true;
  }

  code() {
    const { text, at } = this;
    let end = at;
    while (text[end] === "`") end += 1;
    const size = end - at;
    const ticks = text.slice(at, end);
    if (!this.noCode.has(size)) {
      for (let place = text.indexOf(ticks, end); place >= 0; ) {
        let last = place + size;
        while (text[last] === "`") last += 1;
        if (last - place === size) {
          const inner = text.slice(end, place).replaceAll("\n", " ");
          const trimmed = /^ .* $/.test(inner) && inner.trim() ? inner.slice(1, -1) : inner;
          return this.add(el("code", {}, visible(trimmed)), place + size - at);
        }
        place = text.indexOf(ticks, last);
      }
      this.noCode.add(size); // nothing further on closes a run of this length either
    }
    this.plain += ticks;
    this.at = end;
    return true;
  }

  emphasis(char) {
    const { text, at } = this;
    let end = at;
    while (text[end] === char) end += 1;
    let size = end - at;
    const before = at ? text[at - 1] : " ";
    const after = end < text.length ? text[end] : " ";
    const [blankBefore, blankAfter] = [/\s/.test(before), /\s/.test(after)];
    const left = !blankAfter && (!PUNCTUATION.test(after) || blankBefore || PUNCTUATION.test(before));
    const right = !blankBefore && (!PUNCTUATION.test(before) || blankAfter || PUNCTUATION.test(after));
    const cjk = char === "*" && (wide(before) || wide(after)); // Chinese writes no blanks around words
    const opens = char === "_" ? left && (!right || PUNCTUATION.test(before)) : left || (cjk && !blankAfter);
    const closes = char === "_" ? right && (!left || PUNCTUATION.test(after)) : right || (cjk && !blankBefore);
    this.at = end;
    this.flush();
    if (size > 3 || (char === "~" && size !== 2)) {
      this.plain += text.slice(at, end);
      return true;
    }
    if (closes) size = this.close(char, size);
    if (size && opens && this.open.length < DEEPEST) {
      for (const run of size === 3 ? [2, 1] : [size]) {
        this.open.push({ char, run, place: this.out.length });
        this.out.push({ run: char.repeat(run) });
      }
    } else this.plain += char.repeat(size);
    return true;
  }

  close(char, size) {
    for (let found = this.open.length - 1; found >= 0 && size; found -= 1) {
      const opener = this.open[found];
      if (opener.char !== char || opener.run > size) continue;
      const inner = this.out.splice(opener.place).slice(1);
      const tag = char === "~" ? "del" : opener.run === 2 ? "strong" : "em";
      this.out.push(el(tag, {}, inner.map((one) => (one.run ? one.run : one))));
      this.open.length = found;
      size -= opener.run;
    }
    return size;
  }

  target(bracket, picture) {
    const { text, at } = this;
    const end = this.closing.get(bracket);
    if (end === undefined || text[end + 1] !== "(") return false;
    TARGET.lastIndex = end + 1;
    const found = TARGET.exec(text);
    if (!found) return false;
    const label = text.slice(bracket + 1, end);
    const url = address(found[1] ?? found[2] ?? "");
    const size = TARGET.lastIndex - at;
    if (!url) {
      const node = el("span", { class: "no-link", title: t("linkRefused") }, label ? inline(label, false) : visible(found[0]));
      return this.add(node, size);
    }
    if (!picture) return this.add(link(url, label.trim() ? inline(label, false) : visible(url.href), label), size);
    const shown = link(url, visible(label.trim() || t("picture")));
    return this.add(el("span", { class: "unloaded", title: t("pictureHint") }, icon("picture"), shown, el("span", { class: "host" }, ` · ${t("notLoaded")}`)), size);
  }

  angled() {
    ANGLED.lastIndex = this.at;
    const found = ANGLED.exec(this.text);
    const url = found && address(found[1]);
    return url ? this.add(link(url, visible(found[1]), found[1]), found[0].length) : false;
  }

  bare() {
    const before = this.at ? this.text[this.at - 1] : " ";
    if (/[A-Za-z0-9_]/.test(before)) return false;
    BARE.lastIndex = this.at;
    let found = without(BARE.exec(this.text)?.[0] || "", ".,;:!?*_~");
    let extra = found.split(")").length - found.split("(").length;
    for (; extra > 0 && found.endsWith(")"); extra -= 1) found = found.slice(0, -1);
    const url = found && address(found);
    if (url) return this.add(link(url, visible(found), found), found.length);
    this.plain += found; // refused as a whole: what is in it is not tried again, one character further on each time
    this.at += found.length;
    return found.length > 0;
  }
}

const wide = (char) => /[\u3000-\u9fff\uf900-\ufaff\uff00-\uffef]/.test(char);

// A text without these characters at its end. A pattern would look for them at every place of a long run.
function without(text, characters) {
  let end = text.length;
  while (end && characters.includes(text[end - 1])) end -= 1;
  return text.slice(0, end);
}

// Which bracket closes which, in one walk; those in code do not count.
function brackets(text) {
  const closing = new Map();
  const open = [];
  for (let at = 0; at < text.length; at += 1) {
    const char = text[at];
    if (char === "\\") at += 1;
    else if (char === "[") open.push(at);
    else if (char === "]" && open.length) closing.set(open.pop(), at);
  }
  return closing;
}
