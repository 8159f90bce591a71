// Two requests side by side: how far they are the same, the first byte that differs, whose it is and why.
import { get, path, payload, query } from "./api.js";
import { busy, bytes, el, fill, number, percent, problem, skeleton, visible } from "./dom.js";
import { icon } from "./icons.js";
import { block, layerClass, swatch } from "./payload.js";
import { phrase, t } from "./texts.js";

const KEPT = 360;
const main = document.getElementById("main");

export function diff(page, before, after) {
  const body = el("div", { class: "inspector" }, skeleton(8));
  const view = { session: "", leave: () => (view.gone = true), escape: () => page.go(`#/t/${after}/inspect`) };
  main.className = "inspect";
  fill(main, page.head(t("diff")), body);
  load();
  return view;

  async function load() {
    try {
      const told = await busy(get(path`/api/turns/${before}/diff/${after}`));
      const one = ({ turn_id: id, request }) => Promise.all([get(path`/api/turns/${id}/receipt` + query({ request })), payload(id, request)]);
      const [left, right] = await busy(Promise.all([one(told.before), one(told.after)]));
      const numbers = await busy(placed([left[0].turn, right[0].turn]));
      if (view.gone) return;
      view.session = right[0].turn.session_id;
      page.side.mark();
      const links = [
        el("a", { class: "button quiet", href: `#/diff/${after}/${before}` }, icon("compare"), el("span", {}, t("swap"))),
        el("a", { class: "button quiet", href: `#/t/${after}/inspect` }, icon("left"), el("span", {}, t("inspector"))),
      ];
      const found = byteOf(told);
      fill(main, page.head(t("diff"), links), fill(body, verdict(told, found, right[0].receipt), sides(found, left, right, numbers)));
    } catch (error) {
      fill(body, problem(error, load));
    }
  }

  // A turn is known to people by its place in the session.
  async function placed(turns) {
    const sessions = new Set(turns.map((one) => one.session_id));
    const lists = await Promise.all([...sessions].map((id) => get(path`/api/sessions/${id}/turns` + query({ limit: 1000 }))));
    return new Map(lists.flatMap((list) => list.turns.map((one, n) => [one.turn_id, n + 1])));
  }

  function byteOf(told) {
    return told.same || told.byte === null || told.byte === undefined ? -1 : told.byte;
  }

  function verdict(told, byte, receipt) {
    if (byte < 0) return el("section", { class: "verdict same", role: "status" }, icon("check"), el("p", {}, t("same")));
    const whole = receipt.tokens || 1;
    const shared = told.shared_tokens ?? 0;
    const meter = el("div", { class: "stack meter", role: "img", "aria-label": `${percent(shared, whole)}` }, part("shared", shared, t("sharedTokens", { n: number(shared) })), part("follow", told.tokens_after ?? 0, t("followTokens", { n: number(told.tokens_after ?? 0) })));
    return el(
      "section",
      { class: `verdict ${layerClass(told.layer)}`, role: "status" },
      el("p", { class: "verdict-line" }, icon("compare"), el("b", {}, t(told.extends ? "grows" : "differs", { n: number(byte) })), swatch(told.layer), el("code", { dir: "auto" }, visible(told.source))),
      el("p", { class: "why" }, visible(phrase(told.reason))),
      meter,
    );
  }

  function part(name, tokens, label) {
    const node = el("div", { class: `part ${name}`, title: label }, el("span", {}, label));
    node.style.flexGrow = Math.max(tokens, 1);
    return node;
  }

  function sides(byte, left, right, numbers) {
    const column = (name, [told, sent]) => {
      const { receipt, turn } = told;
      const place = numbers.get(turn.turn_id);
      const named = el("a", { href: `#/t/${turn.turn_id}/inspect` }, place ? t("turnN", { n: place }) : t("inspector"));
      const meta = el("header", {}, el("h2", {}, name), named, el("code", { class: "small-id", title: turn.turn_id }, turn.turn_id.slice(0, 8)), el("span", { class: "muted" }, `${t("tokensOf", { n: number(receipt.tokens) })} · ${bytes(receipt.size)} · ${receipt.hash.slice(0, 12)}`));
      return el("section", { class: "side-of" }, meta, el("div", { class: "payload", dir: "ltr", tabIndex: 0 }, pieces(receipt, sent.bytes, byte)));
    };
    const both = el("div", { class: "columns even" }, column(t("before"), left), column(t("after"), right));
    requestAnimationFrame(() => {
      for (const mark of both.querySelectorAll(".first-byte")) {
        const box = mark.closest(".payload");
        box.scrollTop = mark.getBoundingClientRect().top - box.getBoundingClientRect().top - 120;
      }
    });
    return both;
  }

  // Equal text is replaced by its size; its last lines stay, so that the reader finds the place.
  function pieces(receipt, data, byte) {
    const nodes = [];
    const from = byte < 0 ? 0 : Math.max(0, byte - KEPT);
    if (from) nodes.push(el("p", { class: "shared-part" }, icon("check"), t("sharedPart", { n: number(from) })));
    receipt.segments.forEach((one, place) => {
      if (one.decision === "dropped" || one.end <= from) return;
      let start = Math.max(one.start, from);
      while (start < one.end && (data[start] & 0xc0) === 0x80) start += 1;
      const node = block(data, one, place, { from: start, mark: byte });
      if (byte >= 0 && one.end <= byte) node.classList.add("same");
      nodes.push(node);
    });
    return nodes;
  }
}
