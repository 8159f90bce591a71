// The page: which view the address names, the keys that work everywhere, theme, language, and signing in.
import { get, whenLocked } from "./api.js";
import { chat } from "./chat.js";
import { collected } from "./collected.js";
import { diff } from "./diff.js";
import { button, dialog, el, empty, fill, hush, problem, skeleton, toast } from "./dom.js";
import { inspector } from "./inspector.js";
import { login } from "./login.js";
import { memories } from "./memories.js";
import { Side } from "./side.js";
import { skills } from "./skills.js";
import { lang, speak, t } from "./texts.js";

const ID = "([\\w.:-]+)";
const VIEWS = [
  [/^#?\/?$/, chat],
  [/^#\/new$/, chat],
  [new RegExp(`^#/s/${ID}(?:/(\\d+))?$`), chat],
  [new RegExp(`^#/s/${ID}/inspect$`), (page, id) => inspector(page, { session: id })],
  [new RegExp(`^#/s/${ID}/next$`), (page, id) => inspector(page, { session: id, next: true })],
  [new RegExp(`^#/t/${ID}/inspect(?:/(\\d+))?$`), (page, id, request) => inspector(page, { turn: id, request })],
  [new RegExp(`^#/diff/${ID}/${ID}$`), diff],
  [/^#\/collected$/, collected],
  [/^#\/memories$/, memories],
  [/^#\/skills$/, skills],
];
const WRONG = "#/login/wrong"; // where the gateway leads who came with a token that it does not know
const main = document.getElementById("main");

function keep(name, value) {
  try {
    localStorage.setItem(`lamina.${name}`, value);
  } catch {
    // storage may be forbidden; then it holds until the page is closed
  }
}

class Page {
  constructor() {
    this.me = null;
    this.view = null;
    this.locked = false;
    this.side = new Side(this);
  }

  async start() {
    document.getElementById("skip").textContent = t("skip");
    document.getElementById("skip").addEventListener("click", (event) => {
      event.preventDefault(); // the address is a view's, not a place on the page
      main.focus();
    });
    whenLocked(() => this.lock());
    addEventListener("hashchange", () => this.show());
    addEventListener("keydown", (event) => this.pressed(event));
    await this.enter();
  }

  async enter() {
    this.locked = false;
    fill(main, skeleton(6));
    try {
      this.me = await get("/api/me");
    } catch (error) {
      if (error.status !== 401) fill(main, problem(error, () => this.enter()));
      return;
    }
    document.body.classList.remove("locked");
    if (location.hash === WRONG) {
      history.replaceState(null, "", "#/new");
      toast(t("tokenWrongInside"));
    }
    this.side.draw();
    this.side.load();
    this.show();
  }

  lock() {
    if (this.locked) return;
    this.locked = true;
    this.leave();
    document.body.classList.add("locked");
    login(main, this, location.hash === WRONG);
  }

  leave() {
    const view = this.view;
    hush(".bad"); // an error of this view does not belong to the next one
    this.view = null;
    view?.leave?.();
  }

  show() {
    if (this.locked || !this.me) return;
    const address = location.hash;
    if (this.view?.stays?.(address)) return;
    this.leave();
    this.side.close();
    for (const [pattern, view] of VIEWS) {
      const found = pattern.exec(address);
      if (!found) continue;
      main.className = "";
      this.view = view(this, ...found.slice(1)) || {};
      this.side.mark();
      if (!main.contains(document.activeElement)) main.focus({ preventScroll: true });
      return;
    }
    fill(main, this.head(t("notFound")), empty("search", t("notFound"), t("notFoundWhat")));
  }

  go(address) {
    if (location.hash === address) this.show();
    else location.hash = address;
  }

  title(text) {
    document.title = text ? `${text} · lamina` : "lamina";
  }

  // The line above each view: the menu on small screens, the title, and what can be done.
  head(text, ...actions) {
    this.title(text);
    const opener = button(t("openMenu"), () => this.side.open(), { sign: "menu", className: "for-small" });
    return el("header", { class: "head" }, opener, el("h1", { title: text }, text), el("div", { class: "row" }, actions));
  }

  theme() {
    return document.documentElement.dataset.theme || "auto";
  }

  nextTheme() {
    const next = { auto: "light", light: "dark", dark: "auto" }[this.theme()];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    keep("theme", next);
    this.side.draw();
  }

  async otherLanguage() {
    await speak(lang() === "zh" ? "en" : "zh");
    keep("lang", lang());
    document.getElementById("skip").textContent = t("skip");
    if (this.locked) login(main, this, location.hash === WRONG);
    else {
      this.side.draw();
      this.leave();
      this.show();
    }
  }

  pressed(event) {
    if (this.locked || document.querySelector("dialog[open]")) return;
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    const chord = event.ctrlKey || event.metaKey;
    if (chord && event.key.toLowerCase() === "k") {
      event.preventDefault();
      this.side.search();
    } else if (event.key === "Escape") {
      const errors = hush();
      if (this.side.isOpen()) this.side.close();
      else if (!errors || this.view?.current) this.view?.escape?.();
    } else if (event.altKey && event.code === "KeyN") {
      event.preventDefault();
      this.go("#/new");
    } else if (event.altKey && event.code === "KeyI") {
      event.preventDefault();
      this.view?.inspect?.();
    } else if (event.key === "?" && !typing && !chord) {
      event.preventDefault();
      this.help();
    }
  }

  help() {
    const mac = /Mac|iPhone|iPad/.test(navigator.platform);
    const keys = [
      [["Enter"], "keySend"], [["Shift", "Enter"], "keyLine"], [["Esc"], "keyStop"], [["Esc"], "keyLeave"], [["Esc"], "keyClose"],
      [[mac ? "⌘" : "Ctrl", "K"], "keySearch"], [["↓"], "keyFound"], [["Alt", "N"], "keyNew"], [["Alt", "I"], "keyInspect"],
      [["←", "→"], "keyTabs"], [["Tab"], "keyRows"], [["↑", "↓"], "keyMenu"], [["?"], "keyHelp"],
    ]; // prettier-ignore
    const rows = keys.map(([names, what]) => el("tr", {}, el("td", {}, names.map((name) => el("kbd", {}, name))), el("td", {}, t(what))));
    return dialog(t("shortcuts"), el("table", { class: "keys" }, el("tbody", {}, rows)), [[t("close"), null, "strong"]]);
  }
}

new Page().start();
