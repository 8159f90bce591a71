// The list of sessions, the search through all of them, and the way to everything else. A drawer on small screens.
import { get, patch, path, post, query, remove } from "./api.js";
import { ask, busy, button, day, el, fill, marked, menu, problem, put, skeleton, sure, time, told, touch } from "./dom.js";
import { icon } from "./icons.js";
import { bare } from "./markdown.js";
import { lang, t } from "./texts.js";

const ONCE = 50;
const TYPED = 220;
const side = document.getElementById("side");
const shade = document.getElementById("shade");

export class Side {
  constructor(page) {
    Object.assign(this, { page, sessions: [], next: null, asked: 0, list: el("div", { class: "sessions" }), note: el("p", { class: "side-note", role: "status", hidden: true }) });
    shade.addEventListener("click", () => this.close());
    side.addEventListener("keydown", (event) => event.key === "Tab" && this.isOpen() && this.hold(event));
  }

  draw() {
    const { page } = this;
    const words = this.field?.value || "";
    this.field = el("input", { type: "search", placeholder: touch() ? t("search") : t("searchHint", { key: /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘K" : "Ctrl K" }), "aria-label": t("search"), value: words, oninput: () => this.typed(), autocomplete: "off" });
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.field.value) {
        event.stopPropagation();
        this.field.value = "";
        this.typed();
      } else if (event.key === "ArrowDown") this.list.querySelector("a")?.focus();
    });
    const view = (address, sign, name) => el("a", { href: address, class: "place", data: { address } }, icon(sign), el("span", {}, t(name)));
    const theme = page.theme();
    fill(
      side,
      el(
        "div",
        { class: "brand" },
        el("a", { href: "#/new", class: "logo" }, el("img", { src: "/web/icon.svg", alt: "", width: 26, height: 26 }), el("span", {}, "lamina")),
        button(t("closeMenu"), () => this.close(), { sign: "close", className: "for-small" }),
      ),
      el("a", { href: "#/new", class: "new strong", role: "button", onclick: () => page.go("#/new") }, icon("plus"), el("span", {}, t("newSession"))),
      el("div", { class: "search", role: "search" }, icon("search"), this.field),
      this.note,
      el("nav", { class: "lists", "aria-label": t("sessions") }, this.list),
      el("nav", { class: "places", "aria-label": t("main") }, view("#/collected", "star", "collected"), view("#/memories", "memory", "memories"), view("#/skills", "skill", "skills")),
      el(
        "div",
        { class: "foot" },
        el("span", { class: "who", title: `${page.me.user} · ${page.me.model || page.me.provider}` }, el("b", {}, page.me.user), el("small", {}, page.me.model || page.me.provider)),
        button(t("theme", { name: t(`theme${theme}`) }), () => page.nextTheme(), { sign: { auto: "auto", light: "sun", dark: "moon" }[theme], className: "theme" }),
        button(t("language"), () => page.otherLanguage(), { sign: "globe", className: "language", lang: lang() === "zh" ? "en" : "zh-CN" }),
        button(t("shortcuts"), () => page.help(), { sign: "help", className: "for-keys" }),
        button(t("signOut"), () => this.leave(), { sign: "leave", className: "sign-out" }),
      ),
    );
    this.show();
    this.mark();
    if (words.trim()) this.look(words.trim(), (this.asked += 1)); // in the language that was chosen
  }

  async leave() {
    try {
      await post("/api/logout");
    } catch (error) {
      told(error);
      return;
    }
    this.page.lock();
  }

  async load() {
    if (!this.sessions.length) fill(this.list, skeleton(5));
    try {
      const found = await get("/api/sessions" + query({ limit: ONCE }));
      const known = new Set(found.sessions.map((one) => one.session_id));
      const rest = this.sessions.length > ONCE ? this.sessions.slice(ONCE).filter((one) => !known.has(one.session_id)) : [];
      this.sessions = [...found.sessions, ...rest];
      if (!rest.length) this.next = found.next;
    } catch (error) {
      if (error.status !== 401) this.failed(error);
      return;
    }
    this.note.hidden = true;
    if (!this.field.value.trim()) this.show();
  }

  // The list that is there stays: it is still right, only perhaps not the newest.
  failed(error) {
    if (!this.sessions.length) return fill(this.list, problem(error, () => this.load()));
    fill(this.note, icon("warning"), el("span", {}, t("listOld")), button(t("again"), () => this.load(), { sign: "retry" }));
    this.note.title = error.message;
    this.note.hidden = false;
    return undefined;
  }

  async older() {
    try {
      const found = await busy(get("/api/sessions" + query({ limit: ONCE, before: this.next })));
      this.sessions.push(...found.sessions);
      this.next = found.next;
      this.show();
    } catch (error) {
      told(error);
    }
  }

  show() {
    if (this.field.value.trim()) return;
    fill(this.list);
    if (!this.sessions.length) return put(this.list, el("p", { class: "hint" }, t("noSessions")));
    let last = "";
    for (const session of this.sessions) {
      const name = day(session.updated || session.created);
      if (name !== last) this.list.append(el("h2", {}, name));
      last = name;
      this.list.append(this.row(session));
    }
    if (this.next) this.list.append(button(t("older"), () => this.older(), { className: "wide" }));
    this.mark();
  }

  row(session) {
    const name = session.title || t("untitled");
    const address = `#/s/${session.session_id}`;
    const actions = () => [
      [t("rename"), () => this.rename(session), "pencil"],
      [t("inspect"), () => this.page.go(`${address}/inspect`), "layers"],
      [t("remove"), () => this.remove(session), "trash", "bad"],
    ];
    return el(
      "div",
      { class: "session", data: { session: session.session_id } },
      el("a", { href: address, class: "place", title: name }, session.parent_id && icon("branch"), el("span", { dir: "auto" }, name)),
      menu(t("moreOf", { name }), "dots", actions),
    );
  }

  mark() {
    const id = this.page.view?.session || "";
    for (const node of side.querySelectorAll(".session, .places a")) {
      const here = node.dataset.session ? node.dataset.session === id : location.hash === node.dataset.address;
      node.classList.toggle("here", here);
      const anchor = node.matches("a") ? node : node.querySelector("a");
      if (here) anchor.setAttribute("aria-current", "page");
      else anchor.removeAttribute("aria-current");
    }
  }

  async rename(session) {
    const title = await ask(t("rename"), t("title"), session.title);
    if (!title) return;
    try {
      Object.assign(session, await patch(path`/api/sessions/${session.session_id}`, { title }));
      this.page.view?.renamed?.(session);
      this.load();
    } catch (error) {
      told(error);
    }
  }

  async remove(session) {
    const what = t("removeSessionWhat", { name: session.title || t("untitled") });
    if (!(await sure(t("removeSession"), what, t("remove")))) return;
    try {
      await busy(remove(path`/api/sessions/${session.session_id}`));
    } catch (error) {
      return told(error);
    }
    this.sessions = this.sessions.filter((one) => one.session_id !== session.session_id);
    this.show();
    if (this.page.view?.session === session.session_id) this.page.go("#/new");
  }

  // ---- search -----------------------------------------------------------------------------------------------------

  search() {
    this.open();
    this.field.focus();
    this.field.select();
  }

  typed() {
    clearTimeout(this.timer);
    const words = this.field.value.trim();
    this.asked += 1;
    if (!words) return this.show();
    this.timer = setTimeout(() => this.look(words, this.asked), TYPED);
  }

  async look(words, number) {
    try {
      const { found, complete, reason } = await busy(get("/api/sessions/search" + query({ q: words, limit: 30 })));
      if (number !== this.asked) return; // something else has been typed in the meantime
      const notice = complete ? [] : [el("p", { class: "hint", role: "status" }, t(reason === "time_limit" ? "searchTimeLimit" : "searchIncomplete"))];
      if (!found.length) return fill(this.list, notice, el("p", { class: "hint", role: "status" }, t("nothingFound", { q: words })));
      const rows = found.map(({ session, message, snippet }) =>
        el(
          "a",
          { href: `#/s/${session.session_id}/${message.seq}`, class: "hit" },
          el("span", { class: "hit-title" }, el("b", { dir: "auto" }, session.title || t("untitled")), time(message.created)),
          el("span", { class: "snippet", dir: "auto" }, marked(bare(snippet), words)),
        ),
      );
      fill(this.list, notice, el("h2", { role: "status" }, t("found", { n: found.length })), rows);
    } catch (error) {
      if (number === this.asked) fill(this.list, problem(error));
    }
  }

  // ---- the drawer -------------------------------------------------------------------------------------------------

  isOpen() {
    return document.body.classList.contains("drawn");
  }

  open() {
    if (getComputedStyle(side).position !== "fixed") return;
    document.body.classList.add("drawn");
    shade.hidden = false;
    side.querySelector(".brand button").focus(); // not the field: that would raise the keyboard of a phone
  }

  close() {
    if (!this.isOpen()) return;
    document.body.classList.remove("drawn");
    shade.hidden = true;
    document.querySelector(".head .for-small")?.focus();
  }

  hold(event) {
    const inside = [...side.querySelectorAll("a, button, input")].filter((node) => node.offsetParent);
    const [first, last] = [inside[0], inside.at(-1)];
    if (event.shiftKey && document.activeElement === first) last.focus();
    else if (!event.shiftKey && document.activeElement === last) first.focus();
    else return;
    event.preventDefault();
  }
}
