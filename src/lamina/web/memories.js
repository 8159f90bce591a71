// What is remembered about the user: where each fact came from, and how to change or forget it.
import { get, patch, path, post, query, remove } from "./api.js";
import { busy, button, el, empty, fill, marked, problem, put, skeleton, sure, time, toast, told, visible } from "./dom.js";
import { icon } from "./icons.js";
import { known, phrase, t } from "./texts.js";

const KINDS = ["fact", "preference", "event", "instruction"];
const ONCE = 60;
const main = document.getElementById("main");

const word = (prefix, name) => (known(prefix + name) ? t(prefix + name) : name);
const kinds = (now) => el("select", { "aria-label": t("kind") }, KINDS.map((kind) => el("option", { value: kind, selected: kind === now }, word("kind", kind))));

export function memories(page) {
  const view = new Memories(page);
  view.draw();
  view.load();
  return view;
}

class Memories {
  constructor(page) {
    Object.assign(this, { page, asked: 0, timer: 0, next: null });
    this.list = el("ul", { class: "cards facts" });
    this.more = el("div", {});
    this.field = el("input", { type: "search", placeholder: t("searchMemories"), "aria-label": t("searchMemories") });
    this.field.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.load(), 220);
    });
  }

  draw() {
    const text = el("input", { type: "text", placeholder: t("addMemoryHint"), "aria-label": t("addMemory"), maxlength: 2000, required: true, dir: "auto" });
    const kind = kinds("fact");
    const form = el("form", { class: "add" }, text, kind, el("button", { type: "submit", class: "strong" }, icon("plus"), el("span", {}, t("remember"))));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        const made = await busy(post("/api/memories", { text: text.value.trim(), kind: kind.value }));
        toast(t(made.known ? "known" : "remembered"));
        text.value = "";
        this.field.value = "";
        await this.load();
      } catch (error) {
        told(error);
      }
    });
    main.className = "reading";
    fill(main, this.page.head(t("memories")), el("div", { class: "page" }, form, el("div", { class: "search", role: "search" }, icon("search"), this.field), this.list, this.more));
  }

  async load(before) {
    const number = (this.asked += 1);
    const words = this.field.value.trim();
    if (!this.list.childNodes.length) fill(this.list, el("li", {}, skeleton(5)));
    try {
      const found = await busy(get(words ? "/api/memories/search" + query({ q: words, limit: ONCE }) : "/api/memories" + query({ limit: ONCE, before, state: "active" })));
      if (number !== this.asked) return;
      const rows = (found.memories ?? found.found ?? []).map((one) => this.row(one.memory ?? one, words, one.why));
      if (before) put(this.list, rows);
      else if (rows.length) fill(this.list, rows);
      else fill(this.list, el("li", {}, words ? el("p", { class: "hint", role: "status" }, t("nothingFound", { q: words })) : empty("memory", t("noMemories"), t("noMemoriesWhat"))));
      fill(this.more, !words && found.next && button(t("older"), () => this.load(found.next), { className: "wide" }));
    } catch (error) {
      fill(this.list, el("li", {}, problem(error, () => this.load())));
    }
  }

  row(memory, words = "", why = null) {
    const item = el("li", { class: `card fact ${memory.pinned ? "pinned" : ""}`, data: { memory: memory.memory_id } });
    const again = (changed) => item.replaceWith(this.row(changed, words, why));
    const { origin } = memory;
    const pin = button(t(memory.pinned ? "unpin" : "pin"), () => this.change(memory, { pinned: !memory.pinned }, again), { sign: "pin", className: "collect", "aria-pressed": String(memory.pinned) });
    return put(
      item,
      el("p", { class: "fact-text", dir: "auto" }, words ? marked(memory.text, words) : visible(memory.text)),
      el(
        "div",
        { class: "fact-foot" },
        el("span", { class: "chip" }, word("kind", memory.kind)),
        memory.pinned && el("span", { class: "chip strong-chip" }, t("pinned")),
        el("span", { class: "chip" }, word("trust", memory.trust)),
        time(memory.happened || memory.created),
        why && el("span", { class: "hint why" }, visible(phrase(why))),
        el(
          "span",
          { class: "row tools" },
          pin,
          button(t("editMemory"), () => this.edit(memory, item, again), { sign: "pencil" }),
          button(t("forget"), () => this.forget(memory, item), { sign: "trash" }),
        ),
      ),
      origin
        ? el("a", { class: "origin", href: `#/s/${origin.session_id}/${origin.seq}` }, icon("chat"), el("span", { dir: "auto" }, el("b", {}, t("from", { title: origin.title || t("untitled") })), origin.excerpt && el("q", {}, visible(origin.excerpt))))
        : el("p", { class: "origin" }, icon("pencil"), el("span", {}, t("byHand"))),
    );
  }

  async change(memory, values, again) {
    try {
      const changed = await busy(patch(path`/api/memories/${memory.memory_id}`, values));
      again(changed.memory ?? changed);
    } catch (error) {
      told(error);
    }
  }

  edit(memory, item, again) {
    const text = el("textarea", { rows: 2, value: memory.text, "aria-label": t("editMemory"), maxlength: 2000, dir: "auto" });
    const kind = kinds(memory.kind);
    const save = () => this.change(memory, { text: text.value.trim(), kind: kind.value }, again);
    const form = el("form", { class: "edit" }, text, el("div", { class: "row end" }, kind, button(t("cancel"), () => again(memory)), el("button", { type: "submit", class: "strong" }, t("save"))));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      save();
    });
    form.addEventListener("keydown", (event) => event.key === "Escape" && (event.stopPropagation(), again(memory)));
    fill(item, form);
    text.focus();
  }

  async forget(memory, item) {
    const text = memory.text.length > 120 ? `${memory.text.slice(0, 120)}…` : memory.text;
    if (!(await sure(t("removeMemory"), t("removeMemoryWhat", { text }), t("forget")))) return;
    try {
      await busy(remove(path`/api/memories/${memory.memory_id}`));
      item.remove();
      if (!this.list.childNodes.length) this.load();
    } catch (error) {
      told(error);
    }
  }
}
