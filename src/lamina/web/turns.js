// One turn on the page: the question, and the answer as its events tell it, whether they stream or were stored long ago.
import { path, put as replace } from "./api.js";
import { button, copy, el, fill, note, number, percent, problem, say, seconds, time, toast, told, visible } from "./dom.js";
import { icon } from "./icons.js";
import { link, address } from "./inline.js";
import { Growing } from "./markdown.js";
import { known, phrase, sentence, t } from "./texts.js";

const PICTURE = /^data:image\/(?:png|jpeg|webp|gif);base64,/;
const SHOWN = 20000;

export class Turn {
  constructor(chat, id) {
    Object.assign(this, { chat, id, calls: new Map(), usage: null, answerId: "", answerSeq: 0, userSeq: 0, userText: "", said: "", growing: null, over: false, stopped: false });
    this.asked = el("div", { class: "asked" });
    this.body = el("div", { class: "body" });
    this.foot = el("div", { class: "answer-foot" });
    this.answer = el("div", { class: "answer", role: "group", "aria-label": t("assistant") }, this.body, this.foot);
    this.root = el("article", { class: "turn", data: { turn: id } }, this.asked, this.answer);
  }

  // ---- the question -----------------------------------------------------------------------------------------------

  question(content, message = {}) {
    this.userText = typeof content === "string" ? content : content.filter((part) => part.type === "text").map((part) => part.text).join("\n");
    this.userSeq = message.seq || 0;
    const pictures = typeof content === "string" ? [] : content.filter((part) => part.type === "image_url").map(picture);
    const actions = el(
      "div",
      { class: "asked-foot" },
      time(message.created),
      button(t("copy"), () => copy(this.userText), { sign: "copy" }),
      button(t("edit"), () => this.chat.edit(this), { sign: "pencil" }),
    );
    const bubble = el("div", { class: "bubble", dir: "auto", role: "group", "aria-label": t("you") }, pictures, el("div", { class: "words" }, visible(this.userText)));
    fill(this.asked, bubble, actions);
    if (message.seq) this.asked.dataset.seq = message.seq;
  }

  // ---- the answer -------------------------------------------------------------------------------------------------

  wait() {
    this.said = "";
    this.calls.clear();
    this.growing = null;
    fill(this.body, el("p", { class: "thinking" }, el("span", { class: "dots", "aria-hidden": "true" }, el("i"), el("i"), el("i")), el("span", {}, t("thinking"))));
    fill(this.foot);
    this.answer.setAttribute("aria-busy", "true");
  }

  take(kind, data, live = true) {
    if (kind === "began") this.answerId = data.answer_id || this.answerId;
    else if (kind === "usage") this.count(data);
    else if (kind === "text") this.text(data.text, live);
    else if (kind === "call") this.call(data);
    else if (kind === "result") this.result(data);
    else if (kind === "notice") this.notice(data);
    else if (kind === "ended") this.ended(data, live);
  }

  begin() {
    this.body.querySelector(".thinking")?.remove();
  }

  text(piece, live) {
    if (!piece) return;
    this.begin();
    this.said += piece;
    if (!this.growing) {
      this.growing = new Growing(live ? say : undefined);
      this.body.append(this.growing.root);
    }
    this.growing.add(piece);
  }

  settle() {
    this.growing?.end();
    this.growing = null;
  }

  call({ id, name, arguments: given }) {
    this.begin();
    this.settle();
    const state = el("span", { class: "call-state" }, t("callRuns"));
    const result = el("div", { class: "call-result" });
    const box = el(
      "details",
      { class: "call" },
      el("summary", {}, icon("tool"), el("code", {}, visible(name)), el("span", { class: "call-brief" }, visible(brief(given))), state),
      el("h4", {}, t("callArguments")),
      el("pre", { tabIndex: 0 }, visible(pretty(given))),
      result,
    );
    this.body.append(box);
    this.calls.set(id, { box, state, result });
  }

  result({ id, text, state, seconds: took }) {
    const call = this.calls.get(id);
    if (!call) return;
    call.box.classList.add(state);
    fill(call.state, known(`call${state}`) ? t(`call${state}`) : state, took ? ` · ${seconds(took)}` : "");
    const shown = text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text;
    fill(call.result, el("h4", {}, t("callResult")), el("pre", { tabIndex: 0, dir: "auto" }, visible(shown)));
  }

  notice({ kind, phrase: said }) {
    if (kind === "rules") return; // for those who run the gateway: it is in their log
    this.noticed = kind;
    this.begin();
    this.settle();
    const idle = said.code === "notice.not_compacted";
    this.body.append(note("warning", visible(phrase(said)), t(idle ? "noticeidle" : `notice${kind}`)));
  }

  count({ prompt, cached, completion }) {
    const sum = this.usage || { prompt: 0, cached: 0, completion: 0 };
    this.usage = { prompt: sum.prompt + prompt, cached: sum.cached + cached, completion: sum.completion + completion };
  }

  ended({ state, error, hint, reason }, live) {
    this.begin();
    this.settle();
    this.over = true;
    this.answer.removeAttribute("aria-busy");
    if (state === "complete" && reason === "length") {
      this.cutShort();
      if (live) say(t("cutShort"));
      live = false; // it has ended but is not complete, so it is not announced as complete
    }
    if (state === "failed") this.body.append(problem({ message: phrase(error) || t("answerFailed"), hint: phrase(hint) }));
    else if (state === "interrupted") this.body.append((this.why = note("stop", visible(this.endedBy(error, hint, live)))));
    else if (!this.said.trim() && !this.calls.size) this.body.append(el("p", { class: "hint" }, t("emptyAnswer")));
    if (live) say(state === "complete" ? t("answered") : state === "interrupted" ? this.endedBy(error, hint, live) : phrase(error) || t("answerFailed"));
    this.footer();
  }

  // A notice is not stored, so the same line is shown to those who watched and to those who come later.
  cutShort() {
    if (this.noticed === "limit" && this.body.lastChild?.matches(".notice")) this.body.lastChild.remove();
    this.body.append(el("p", { class: "hint cut-short", role: "note" }, t("cutShort")));
  }

  // A stop is stored without who stopped it: only the page on which the button was pressed says that the user did.
  endedBy(error, hint, live) {
    if (error && error.code !== "turn.cancelled") return [t("endedEarly"), sentence(error), sentence(hint)].filter(Boolean).join(" ");
    return t(this.stopped ? "interrupted" : live ? "endedElsewhere" : "endedEarly");
  }

  // The gateway is gone: what is on the page stays, and the user has not stopped it.
  gatewayEnded() {
    const said = note("warning", visible(t("gatewayEnded")));
    if (this.why) this.why.replaceWith(said);
    else this.body.append(said);
    this.why = said;
    say(t("gatewayEnded"));
  }

  // What is known only when the turn is stored: numbers, seconds, and the places to branch from.
  stored(turn) {
    this.answerSeq = turn.answer_seq;
    this.userSeq = turn.user_seq;
    this.answerId = turn.answer_message_id || this.answerId;
    this.asked.dataset.seq = turn.user_seq;
    this.answer.dataset.seq = turn.answer_seq;
    if (turn.usage?.prompt !== undefined) this.usage = turn.usage;
    this.seconds = turn.seconds;
    this.turn = turn;
    if (this.over) this.footer();
  }

  footer() {
    const { usage } = this;
    const star = button(t("collect"), () => this.collect(star), { sign: "star", className: "collect", "aria-pressed": String(!!this.isCollected) });
    this.marked(star);
    const numbers = [];
    if (usage?.prompt !== undefined) {
      const cached = usage.cached ? ` (${percent(usage.cached, usage.prompt)})` : "";
      numbers.push(t("inTokens", { n: number(usage.prompt) }), t("cachedTokens", { n: number(usage.cached) }) + cached, t("outTokens", { n: number(usage.completion) }));
    }
    if (this.seconds) numbers.push(seconds(this.seconds));
    const held = this.foot.contains(document.activeElement) && document.activeElement.querySelector(".icon")?.getAttribute("class");
    fill(
      this.foot,
      el(
        "div",
        { class: "row tools" },
        button(t("copy"), () => copy(this.said), { sign: "copy" }),
        this.answerId && (this.said || this.isCollected) && star,
        button(t("retry"), () => this.chat.retry(this), { sign: "retry" }),
        this.answerSeq > 0 && button(t("branch"), () => this.chat.branch(this), { sign: "branch" }),
        el("a", { href: `#/t/${this.id}/inspect`, class: "button quiet inspect", title: t("inspectLong") }, icon("layers"), el("span", {}, t("inspect"))),
      ),
      el("span", { class: "numbers", title: usage ? t("usage", usage) : null }, numbers.join(" · ")),
    );
    if (held) this.foot.querySelector(`.${held.replace(" ", ".")}`)?.closest("button, a").focus(); // keeps the focus where it was
  }

  marked(star) {
    const label = t(this.isCollected ? "uncollect" : "collect");
    star.setAttribute("aria-pressed", String(!!this.isCollected));
    star.setAttribute("aria-label", label);
    star.title = label;
  }

  async collect(star) {
    star.disabled = true;
    try {
      const message = await replace(path`/api/messages/${this.answerId}/collected`, { collected: !this.isCollected });
      this.isCollected = message.is_collected;
      toast(t(this.isCollected ? "collectedNow" : "uncollectedNow"));
    } catch (error) {
      told(error);
    } finally {
      star.disabled = false;
      this.marked(star);
      star.focus();
    }
  }
}

// The rows of one turn as the events that they came from.
export function replay(turn, rows) {
  for (const row of rows) {
    if (row.role === "user") turn.question(row.content ?? "", row);
    else if (row.role === "tool") turn.take("result", outcome(row), false);
    else if (row.role === "assistant") {
      turn.answerId = row.message_id;
      turn.answerSeq = row.seq;
      turn.isCollected = row.is_collected;
      turn.answer.dataset.seq = row.seq;
      turn.text(row.text, false);
      for (const call of row.calls || []) turn.take("call", { id: call.id, name: call.name ?? call.function?.name ?? "", arguments: call.arguments ?? call.function?.arguments ?? "" }, false);
    }
  }
}

// The output of a tool is in a fence for the model; how it ended is only in its text.
function outcome({ tool_call_id: id, text }) {
  const said = /^<(data-[a-z0-9]+(?:\.[0-9]+\.)?)[^>]*>\n([\s\S]*?)\n<\/\1>/.exec(text)?.[2] ?? text;
  let state = "done";
  if (/^The user said no to this call of |^\S+ was not run, since it needs a yes/.test(said)) state = "refused";
  else if (/^\S+ was blocked/.test(said)) state = "blocked";
  else if (/^\S+ was (not run|ended)/.test(said)) state = "failed";
  return { id, text: said, state, seconds: 0 };
}

function picture(part) {
  const url = part.image_url?.url || "";
  if (PICTURE.test(url)) return el("img", { class: "sent", src: url, alt: t("picture") });
  const safe = address(url);
  return el("p", { class: "unloaded" }, icon("picture"), safe ? link(safe, visible(url)) : visible(url.slice(0, 60)));
}

function pretty(given) {
  try {
    return JSON.stringify(JSON.parse(given), null, 2);
  } catch {
    return String(given);
  }
}

function brief(given) {
  try {
    return Object.values(JSON.parse(given)).map((one) => (typeof one === "string" ? one : JSON.stringify(one))).join(" ").slice(0, 120);
  } catch {
    return String(given).slice(0, 120);
  }
}
