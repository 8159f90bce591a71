// The chat: a session's turns, the one that is being answered, and what can be done with them. A turn continues without the page:
// after a reload or a lost connection all of it is shown.
import { get, path, patch, post, query, question } from "./api.js";
import { Composer } from "./composer.js";
import { busy, button, el, empty, fill, hush, problem, say, skeleton, toast, told } from "./dom.js";
import { icon } from "./icons.js";
import { follow } from "./stream.js";
import { t } from "./texts.js";
import { Turn, replay } from "./turns.js";

const ONCE = 100;
const TURNS = 1000;
const NEAR = 120;
const TITLE = 60;
const GONE = [0, 503];
const RUNNING = ["accepted", "streaming"];
const main = document.getElementById("main");

export function chat(page, id = "", seq = "") {
  const view = new Chat(page, id, Number(seq) || 0);
  view.open();
  return view;
}

// A session is named by its first words until it is given a name. A title holds no U+0000, which words may.
function titled(words) {
  const line = words.replaceAll("\0", "").trim().split("\n")[0].trim();
  const signs = [...line];
  return signs.length > TITLE ? `${signs.slice(0, TITLE - 1).join("")}…` : line;
}

// A skill without apps of its own is for all of them; the others are refused elsewhere.
function supports({ supported_apps: apps = [] }, host) {
  return !apps.length || apps.some((name) => name.toLowerCase() === host.toLowerCase());
}

class Chat {
  constructor(page, id, seq) {
    Object.assign(this, { page, session: id, seq, turns: new Map(), current: null, away: new AbortController(), first: 0, record: null });
    this.choice = { mode: "", skill: "" };
    this.log = el("div", { class: "log" });
    this.more = el("div", { class: "more" });
    this.newer = el("div", { class: "more newer" });
    this.scroll = el("div", { class: "scroll" }, this.more, this.log, this.newer);
    this.latest = button(t("latest"), () => this.down(true), { sign: "down", className: "latest" });
    this.latest.hidden = true;
    this.lost = el("p", { class: "lost", role: "status", hidden: true }, t("lost"));
    this.composer = new Composer({ draft: id || "new", sees: page.me.pictures !== false, send: (content, back) => this.send(content, back), stop: () => this.stop(), preview: () => page.go(`#/s/${this.session}/next`) });
    this.scroll.addEventListener("scroll", () => (this.latest.hidden = this.isNear()), { passive: true });
  }

  // ---- opening ----------------------------------------------------------------------------------------------------

  async open() {
    main.className = "chat";
    if (!this.session) return this.fresh();
    this.draw();
    fill(this.log, skeleton(7));
    try {
      const address = path`/api/sessions/${this.session}`;
      const before = this.seq ? { after: Math.max(0, this.seq - ONCE / 2), limit: ONCE, newest: false } : { newest: true, limit: ONCE };
      const [record, { messages }, { turns }] = await busy(Promise.all([get(address), get(`${address}/messages${query(before)}`), get(`${address}/turns${query({ limit: TURNS, before: this.seq ? this.seq + ONCE : null })}`)]));
      if (this.away.signal.aborted) return;
      this.record = record;
      this.known = new Map(turns.map((turn) => [turn.turn_id, turn]));
      this.draw();
      fill(this.log);
      this.show(messages);
      const rest = record.messages - (messages.at(-1)?.seq ?? record.messages); // an address may lead into the middle
      fill(this.newer, rest > 0 && button(t("latest"), () => this.page.go(`#/s/${this.session}`), { className: "wide" }));
      this.place();
    } catch (error) {
      if (error.name === "AbortError" || this.away.signal.aborted) return;
      if (error.status === 404) this.nowhere();
      else fill(this.log, problem(error, () => this.open()));
    }
  }

  nowhere() {
    const other = button(t("newSession"), () => this.page.go("#/new"), { sign: "plus", text: true, quiet: false });
    fill(main, this.page.head(t("noSession")), empty("search", t("noSession"), t("notFoundWhat"), other));
  }

  draw() {
    const { record } = this;
    const title = record?.title || (this.session ? t("untitled") : t("newSession"));
    const actions = [];
    if (record) {
      if (record.parent_id) actions.push(el("a", { class: "button quiet square", href: `#/s/${record.parent_id}/${record.parent_seq || ""}`.replace(/\/$/, ""), title: t("branchOf"), "aria-label": t("branchOf") }, icon("branch")));
      actions.push(this.modes(record.mode, (mode) => this.change({ mode })));
      actions.push(el("a", { class: "button quiet", href: `#/s/${this.session}/inspect`, title: t("inspectLong") }, icon("layers"), el("span", {}, t("inspect"))));
    }
    this.head = this.page.head(title, actions);
    const top = this.scroll.scrollTop;
    fill(main, this.head, this.scroll, el("div", { class: "dock" }, this.latest, this.lost, this.composer.root));
    this.scroll.scrollTop = top;
    this.composer.busy(!!this.current);
    this.composer.eye.hidden = !this.session;
    if (!matchMedia("(pointer: coarse)").matches) this.composer.field.focus({ preventScroll: true });
  }

  async fresh() {
    this.record = null;
    this.draw();
    const skills = el("select", { "aria-label": t("skill"), hidden: true, onchange: () => (this.choice.skill = skills.value) });
    this.welcome = el(
      "div",
      { class: "welcome" },
      el("img", { src: "/web/icon.svg", alt: "", width: 56, height: 56 }),
      el("h2", {}, t("hello")),
      el("p", {}, t("helloWhat")),
      el("div", { class: "row" }, this.modes("", (mode) => (this.choice.mode = mode)), skills),
    );
    fill(this.log, this.welcome);
    try {
      const { templates } = await get("/api/templates" + query({ skill: true }));
      const usable = templates.filter((one) => one.is_skill && one.enabled && supports(one, this.page.me.app));
      fill(skills, el("option", { value: "" }, t("noSkill")), usable.map((one) => el("option", { value: one.name }, one.name)));
      skills.hidden = !usable.length;
    } catch {
      skills.hidden = true; // a key that may only talk sees no skills, and needs none
    }
  }

  modes(now, change) {
    const names = ["ask", "plan", "agent"];
    const without = (name) => (name === "ask" || this.page.me.tools ? "" : t("withoutTools"));
    const options = names.map((name) => el("option", { value: name, selected: name === (now || "ask") }, t(`mode${name}`) + without(name)));
    const title = this.page.me.tools ? t("mode") : t("noTools");
    const select = el("select", { "aria-label": t("mode"), title, class: "mode", onchange: () => change(select.value) }, options);
    return select;
  }

  async change(values) {
    try {
      this.record = await patch(path`/api/sessions/${this.session}`, values);
    } catch (error) {
      told(error);
    }
  }

  renamed(record) {
    this.record = record;
    this.head.querySelector("h1").textContent = record.title;
    this.page.title(record.title);
  }

  // ---- what was said ----------------------------------------------------------------------------------------------

  show(messages) {
    const groups = [];
    for (const row of messages) {
      const last = groups.at(-1);
      const same = last && (row.turn_id ? last.id === row.turn_id : row.role !== "user");
      if (same) last.rows.push(row);
      else groups.push({ id: row.turn_id || row.message_id, rows: [row] });
    }
    this.first = messages[0]?.seq ?? 0;
    const nodes = [];
    for (const { id, rows } of groups) {
      const turn = this.turns.get(id) || new Turn(this, id);
      if (this.turns.has(id)) continue;
      this.turns.set(id, turn);
      const record = this.known.get(id);
      const runs = RUNNING.includes(record?.state);
      replay(turn, runs ? rows.filter((row) => row.role === "user") : rows);
      if (runs) this.follow(turn);
      else {
        if (record) turn.stored(record);
        turn.ended({ state: record?.state || "complete", error: record?.error, hint: record?.hint, reason: record?.reason }, false);
        if (!rows[0].turn_id) turn.foot.querySelectorAll(".inspect").forEach((node) => node.remove());
      }
      nodes.push(turn.root);
    }
    this.log.prepend(...nodes);
    fill(this.more, this.first > 1 && button(t("older"), () => this.older(), { className: "wide" }));
  }

  async older() {
    try {
      const address = path`/api/sessions/${this.session}`;
      const [{ messages }, { turns }] = await busy(Promise.all([get(`${address}/messages${query({ before: this.first, newest: true, limit: ONCE })}`), get(`${address}/turns${query({ before: this.first, limit: ONCE })}`)]));
      for (const turn of turns) this.known.set(turn.turn_id, turn);
      const height = this.scroll.scrollHeight;
      this.show(messages);
      this.scroll.scrollTop += this.scroll.scrollHeight - height;
    } catch (error) {
      told(error);
    }
  }

  place() {
    const node = this.seq && this.log.querySelector(`[data-seq="${this.seq}"]`);
    if (!node) return this.down(true);
    node.scrollIntoView({ block: "center" });
    node.classList.add("found");
    node.tabIndex = -1;
    node.focus({ preventScroll: true });
  }

  isNear() {
    return this.scroll.scrollHeight - this.scroll.scrollTop - this.scroll.clientHeight < NEAR;
  }

  down(sure = false) {
    if (!sure && !this.stick) return;
    this.scroll.scrollTop = this.scroll.scrollHeight;
    this.latest.hidden = true;
  }

  // ---- asking -----------------------------------------------------------------------------------------------------

  async send(content, back) {
    if (this.current) return;
    const turn = new Turn(this, "");
    this.current = turn;
    this.composer.busy(true);
    if (!this.session) fill(this.log);
    turn.question(content);
    turn.wait();
    this.log.append(turn.root);
    this.down(true);
    try {
      if (!this.session) await this.begin(turn.userText);
      const asked = await question(this.session, content);
      this.started(turn, asked);
    } catch (error) {
      this.current = null;
      turn.root.remove();
      this.composer.busy(false);
      back();
      if (!this.session) fill(this.log, this.welcome); // nothing was started, so another choice is possible
      if (error.name !== "AbortError") this.log.append(problem(error));
    }
  }

  async begin(words) {
    const title = titled(words);
    const given = Object.fromEntries(Object.entries({ ...this.choice, title }).filter(([, value]) => value));
    this.record = await post("/api/sessions", given);
    this.session = this.record.session_id;
    this.known = new Map();
    this.composer.draft = `lamina.draft.${this.session}`;
    history.replaceState(null, "", `#/s/${this.session}`);
    this.draw();
    this.page.side.load().then(() => this.page.side.mark());
  }

  started(turn, asked) {
    turn.id = asked.turn_id;
    turn.answerId = asked.answer_id;
    turn.root.dataset.turn = asked.turn_id;
    this.turns.set(asked.turn_id, turn);
    this.follow(turn);
  }

  async follow(turn) {
    this.current = turn;
    this.composer.busy(true);
    turn.wait();
    say(t("answering"));
    const tick = () => {
      if (this.current !== turn) return;
      this.down();
      requestAnimationFrame(tick);
    };
    this.stick = true;
    const left = () => (this.stick = this.isNear());
    this.scroll.addEventListener("scroll", left, { passive: true });
    requestAnimationFrame(tick);
    try {
      const take = (kind, data) => turn.take(kind, data);
      await follow(turn.id, { take, lost: (is) => (this.lost.hidden = !is), signal: this.away.signal });
      if (this.away.signal.aborted) return;
      if (!turn.over) await this.reread(turn);
    } catch (error) {
      turn.take("ended", { state: "failed", error: { text: error.message }, hint: { text: error.hint } });
    } finally {
      this.scroll.removeEventListener("scroll", left);
    }
    await this.finish(turn);
  }

  // The turn was over before we came: its rows say how.
  async reread(turn) {
    const record = await get(path`/api/turns/${turn.id}`);
    const { messages } = await get(path`/api/sessions/${turn.chat.session}/messages` + query({ after: record.user_seq - 1, limit: ONCE, newest: false }));
    fill(turn.body);
    replay(turn, messages.filter((row) => row.turn_id === turn.id));
    turn.ended({ state: record.state, error: record.error, hint: record.hint, reason: record.reason }, false);
  }

  async finish(turn) {
    hush(".stopping");
    if (this.away.signal.aborted) return;
    this.lost.hidden = true;
    this.current = null;
    this.composer.busy(false);
    try {
      const record = await get(path`/api/turns/${turn.id}`);
      this.known?.set(turn.id, record);
      turn.stored(record);
    } catch (error) {
      if (GONE.includes(error.status)) turn.gatewayEnded();
      else told(error);
    }
    if (this.stick) this.down(true);
    await this.page.side.load();
    const found = this.page.side.sessions.find((one) => one.session_id === this.session);
    if (found?.title && found.title !== this.record?.title) this.renamed(found);
  }

  async stop() {
    const turn = this.current;
    if (!turn?.id) return;
    turn.stopped = true;
    toast(t("stopping"), "stopping");
    try {
      await post(path`/api/turns/${turn.id}/cancel`);
    } catch (error) {
      turn.stopped = false;
      hush(".stopping");
      told(error);
    }
  }

  escape() {
    if (this.current) this.stop();
  }

  inspect() {
    const last = [...this.turns.values()].at(-1);
    if (last?.id) this.page.go(`#/t/${last.id}/inspect`);
  }

  // ---- other ways on ----------------------------------------------------------------------------------------------

  async retry(turn) {
    try {
      const asked = await busy(post(path`/api/turns/${turn.id}/retry`));
      this.page.side.load();
      this.page.go(`#/s/${asked.session_id}`);
    } catch (error) {
      told(error);
    }
  }

  async branch(turn, seq = turn.answerSeq) {
    try {
      const made = await busy(post(path`/api/sessions/${this.session}/branch`, { seq }));
      toast(t("branched"));
      this.page.side.load();
      this.page.go(`#/s/${made.session_id}`);
      return made;
    } catch (error) {
      told(error);
    }
    return null;
  }

  async edit(turn) {
    const text = turn.userText;
    if (!turn.userSeq) return this.composer.set(text);
    if (turn.userSeq === 1) this.page.go("#/new");
    else if (!(await this.branch(turn, turn.userSeq - 1))) return;
    setTimeout(() => this.page.view?.composer?.set(text), 60);
  }

  stays(address) {
    return !!this.session && address === `#/s/${this.session}` && !this.seq && !!this.record;
  }

  leave() {
    this.away.abort(); // we leave; the turn goes on
    this.current = null;
  }
}
