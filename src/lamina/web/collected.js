// The answers that the user has collected.
import { get, path, put as replace, query } from "./api.js";
import { busy, button, copy, el, empty, fill, problem, skeleton, time, toast, told } from "./dom.js";
import { icon } from "./icons.js";
import { markdown } from "./markdown.js";
import { t } from "./texts.js";

const main = document.getElementById("main");

export function collected(page) {
  const list = el("div", { class: "cards" });
  let asked = 0;
  let timer = 0;
  const field = el("input", { type: "search", placeholder: t("searchCollected"), "aria-label": t("searchCollected") });
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(load, 220);
  });
  main.className = "reading";
  fill(main, page.head(t("collected")), el("div", { class: "page" }, el("div", { class: "search", role: "search" }, icon("search"), field), list));

  async function load() {
    const number = (asked += 1);
    if (!list.childNodes.length) fill(list, skeleton(5));
    try {
      const { messages } = await busy(get("/api/collected" + query({ limit: 100, q: field.value.trim() })));
      if (number !== asked) return;
      if (messages.length) fold(fill(list, messages.map(card)));
      else if (field.value.trim()) fill(list, el("p", { class: "hint", role: "status" }, t("nothingFound", { q: field.value.trim() })));
      else fill(list, empty("star", t("noCollected"), t("noCollectedWhat")));
    } catch (error) {
      fill(list, problem(error, load));
    }
  }

  // Known only on the page: a card that is cut says so, and leads to the rest.
  function fold(cards) {
    for (const text of cards.querySelectorAll(".folded")) {
      const long = text.scrollHeight > text.clientHeight + 8;
      text.classList.toggle("long", long);
      text.nextSibling.hidden = !long;
    }
  }

  function card(message) {
    const title = message.session_title ?? message.title ?? message.session?.title ?? "";
    const star = button(t("uncollect"), () => take(message, box, star), { sign: "star", className: "collect", "aria-pressed": "true" });
    const box = el(
      "article",
      { class: "card" },
      el("header", {}, el("a", { href: `#/s/${message.session_id}/${message.seq}`, title: t("goThere"), dir: "auto" }, title || t("untitled")), time(message.created)),
      el("div", { class: "folded" }, markdown(message.text)),
      el("a", { class: "all", href: `#/s/${message.session_id}/${message.seq}`, hidden: true }, t("showAll")),
      el("footer", { class: "row" }, button(t("copy"), () => copy(message.text), { sign: "copy" }), star, message.turn_id && el("a", { href: `#/t/${message.turn_id}/inspect`, class: "button quiet" }, icon("layers"), el("span", {}, t("inspect")))),
    );
    return box;
  }

  async function take(message, box, star) {
    star.disabled = true;
    try {
      await replace(path`/api/messages/${message.message_id}/collected`, { collected: false });
      box.remove();
      toast(t("uncollectedNow"));
      if (!list.childNodes.length) load();
    } catch (error) {
      star.disabled = false;
      told(error);
    }
  }

  load();
  return {};
}
