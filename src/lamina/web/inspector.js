// The inspector: what the model saw on a turn, byte for byte and layer by layer, and what it did not see and why.
import { get, path, payload, post, query } from "./api.js";
import { chart } from "./chart.js";
import { kept } from "./composer.js";
import { busy, button, bytes, copy, el, empty, fill, number, percent, problem, put, skeleton, visible } from "./dom.js";
import { icon } from "./icons.js";
import { block, decoded, download, layerClass, sha256, swatch } from "./payload.js";
import { known, lang, layerName, layerWord, phrase, t } from "./texts.js";

const main = document.getElementById("main");
let breaks = true;

export function inspector(page, { session = "", turn = "", request = "", next = false }) {
  const view = new Inspector(page, session, turn, Number(request) || null);
  view.next = next;
  view.load();
  return view;
}

class Inspector {
  constructor(page, session, turn, request) {
    Object.assign(this, { page, session, turn, request, gone: false, tab: "layers", marked: -1 });
    this.body = el("div", { class: "inspector" }, skeleton(8));
    main.className = "inspect";
    fill(main, page.head(t("inspector")), this.body);
  }

  leave() {
    this.gone = true;
  }

  escape() {
    if (this.session) this.page.go(`#/s/${this.session}`);
  }

  // The request that the draft would make. Its segments tile it, so their texts are its bytes.
  async preview() {
    const content = kept(`lamina.draft.${this.session}`) || "…";
    const [told, { turns }] = await busy(Promise.all([post(path`/api/sessions/${this.session}/context`, { content }), get(path`/api/sessions/${this.session}/turns` + query({ limit: 1000 }))]));
    Object.assign(this, { told, receipt: told.receipt, data: new TextEncoder().encode(told.texts.join("")), hash: "", turns });
    this.draw();
  }

  async load() {
    try {
      if (this.next) return await this.preview();
      if (!this.turn) {
        this.turns = (await busy(get(path`/api/sessions/${this.session}/turns` + query({ limit: 1000 })))).turns;
        const sent = this.turns.filter((one) => one.requests);
        if (!sent.length) return this.draw(empty("layers", t("noTurns"), t("noTurnsWhat")));
        this.turn = sent.at(-1).turn_id;
      }
      const asked = query({ request: this.request });
      const [told, sent] = await busy(Promise.all([get(path`/api/turns/${this.turn}/receipt` + asked), payload(this.turn, this.request)]));
      Object.assign(this, { told, receipt: told.receipt, data: sent.bytes, hash: sent.hash, session: told.turn.session_id });
      this.turns ||= (await get(path`/api/sessions/${this.session}/turns` + query({ limit: 1000 }))).turns;
      this.draw();
    } catch (error) {
      this.draw(problem(error, () => this.load()));
    }
    return undefined;
  }

  draw(instead) {
    if (this.gone) return;
    this.page.side.mark();
    const back = this.session && el("a", { class: "button quiet", href: `#/s/${this.session}${this.told?.turn ? `/${this.told.turn.user_seq}` : ""}` }, icon("left"), el("span", {}, t("back")));
    fill(main, this.page.head(t("inspector"), back), fill(this.body, instead || this.parts()));
  }

  parts() {
    const place = this.turns.findIndex((one) => one.turn_id === this.turn);
    return [
      this.overview(place),
      el("div", { class: "twin" }, el("section", { class: "panel" }, el("h2", {}, t("perLayer")), this.bar()), el("section", { class: "panel" }, el("h2", {}, t("chartTitle")), chart(this.turns, this.turn))),
      this.cuts(),
      this.tabs(),
      (this.pane = el("div", { class: "pane", role: "tabpanel", "aria-label": t("payload") }, this.layers())),
    ];
  }

  // ---- above ------------------------------------------------------------------------------------------------------

  overview(place) {
    const { receipt, told } = this;
    const fact = (name, value, more) => el("div", { class: "fact-cell" }, el("dt", {}, t(name)), el("dd", {}, value, more && el("small", {}, " ", more)));
    const limited = Number.isFinite(receipt.budget) && receipt.budget > 0;
    const budget = limited ? t("budgetOf", { n: number(receipt.budget), share: percent(receipt.tokens, receipt.budget) }) : "";
    return el(
      "section",
      { class: "overview" },
      el(
        "div",
        { class: "row wrap" },
        this.next ? el("p", { class: "chip strong-chip" }, t("previewTitle")) : this.picker(place),
        told.requests > 1 && this.requests(),
        place > 0 && el("a", { class: "button quiet", href: `#/diff/${this.turns[place - 1].turn_id}/${this.turn}` }, icon("compare"), el("span", {}, t("comparePrevious"))),
        !this.next && this.turns.length > 1 && this.comparer(place),
      ),
      el(
        "dl",
        { class: "facts-row" },
        fact("tokens", number(receipt.tokens), receipt.over_budget ? t("overBudget") : budget),
        fact("size", bytes(receipt.size)),
        fact("leftOut", this.leftOut()),
        fact("grammar", receipt.grammar),
        fact("layout", receipt.layout, receipt.epoch ? `${t("epoch").toLowerCase()} ${receipt.epoch}${receipt.epoch_reason ? `: ${phrase(receipt.epoch_reason)}` : ""}` : ""),
        receipt.triggers.length > 0 && fact("injected", receipt.triggers.map((code) => t(`trigger${code}`)).join(lang() === "zh" ? "、" : ", ")),
        told.prefix && fact("prefix", number(told.prefix.predicted), t("prefixCached", { n: number(told.prefix.cached) })),
        fact("counter", receipt.counter),
        fact("hash", el("code", { title: receipt.hash }, receipt.hash.slice(0, 12))),
      ),
    );
  }

  // Messages by their number, other layers by their names: the same that the list of cuts has.
  leftOut() {
    const { dropped, segments } = this.receipt;
    const layers = new Set(segments.filter((one) => one.decision === "dropped" && one.layer !== "history").map((one) => layerName(one.layer)));
    const messages = dropped.count ? [t("leftOutWhat", { n: number(dropped.count), tokens: number(dropped.tokens) })] : [];
    return [...messages, ...layers].join(lang() === "zh" ? "、" : ", ") || t("nothingLeftOut");
  }

  picker(place) {
    const options = this.turns.map((one, n) => el("option", { value: one.turn_id, selected: n === place }, t("turnN", { n: n + 1 })));
    const select = el("select", { "aria-label": t("inspector"), onchange: () => this.page.go(`#/t/${select.value}/inspect`) }, options);
    const step = (to, sign) => {
      const node = button(t("turnN", { n: to + 1 }), () => this.page.go(`#/t/${this.turns[to].turn_id}/inspect`), { sign });
      node.disabled = to < 0 || to >= this.turns.length;
      return node;
    };
    return el("div", { class: "joined" }, step(place - 1, "left"), select, step(place + 1, "right"));
  }

  requests() {
    const { request, requests } = this.told;
    const one = (n) => el("a", { href: `#/t/${this.turn}/inspect/${n}`, class: `step ${n === request ? "here" : ""}`, "aria-current": n === request ? "true" : null, "aria-label": t("requestN", { n, of: requests }) }, String(n));
    return el("div", { class: "steps", role: "group", "aria-label": t("requestsWhat"), title: t("requestsWhat") }, el("span", { class: "muted" }, t("request")), Array.from({ length: requests }, (_, n) => one(n + 1)));
  }

  comparer(place) {
    const select = el("select", { "aria-label": t("compareWith"), onchange: () => select.value && this.page.go(`#/diff/${select.value}/${this.turn}`) });
    const others = this.turns.map((one, n) => n !== place && el("option", { value: one.turn_id }, t("turnN", { n: n + 1 })));
    return put(select, el("option", { value: "" }, `${t("compareWith")} …`), others);
  }

  bar() {
    const sent = this.told.layers.filter((one) => one.tokens > 0);
    const total = sent.reduce((sum, one) => sum + one.tokens, 0) || 1;
    const part = ({ layer, tokens }) => {
      const label = `${layerName(layer)}: ${number(tokens)} (${percent(tokens, total)})`;
      const node = el("div", { class: `part ${layerClass(layer)}`, title: label, data: { layer } }, tokens / total > 0.07 && el("span", {}, layerWord(layer)));
      node.style.flexGrow = tokens;
      node.addEventListener("pointerenter", () => this.light(layer));
      node.addEventListener("pointerleave", () => this.light(""));
      return node;
    };
    const legend = this.told.layers.map(({ layer, tokens, left_out: out }) =>
      el("li", {}, swatch(layer), el("b", {}, number(tokens)), el("span", { class: "muted" }, percent(tokens, total)), out > 0 && el("span", { class: "muted" }, `(${t("leftOut")}: ${number(out)})`)),
    );
    return el("div", {}, el("div", { class: "stack", role: "img", "aria-label": `${t("perLayer")}: ${sent.map((one) => `${layerName(one.layer)} ${one.tokens}`).join(", ")}` }, sent.map(part)), el("ul", { class: "legend" }, legend));
  }

  light(layer) {
    for (const node of this.pane.querySelectorAll("[data-place]")) {
      const other = layer && this.receipt.segments[node.dataset.place].layer !== layer;
      node.classList.toggle("dim", !!other);
    }
  }

  cuts() {
    const cut = this.receipt.segments.map((one, place) => [one, place]).filter(([one]) => one.decision !== "kept");
    if (!cut.length) return null;
    const rows = cut.map(([one, place]) =>
      el("li", {}, swatch(one.layer), el("span", { class: `chip decision-${one.decision}` }, word("decision", one.decision)), el("span", { class: "seg-source", dir: "auto" }, visible(one.source)), el("b", {}, `${number(one.tokens)} ${t("tokens").toLowerCase()}`), el("span", {}, visible(phrase(one.reason))), el("button", { type: "button", class: "quiet inline", onclick: () => this.point(place, true) }, t("segments"))),
    );
    return el("section", { class: "panel" }, el("h2", {}, t("cutTitle")), el("ul", { class: "cuts" }, rows));
  }

  tabs() {
    const names = [["layers", t("tabLayers")], ["raw", t("tabRaw")]];
    const nodes = names.map(([name, label]) => el("button", { type: "button", role: "tab", data: { tab: name }, "aria-selected": String(name === this.tab), tabIndex: name === this.tab ? 0 : -1, onclick: () => show(name) }, label));
    const show = (name) => {
      this.tab = name;
      for (const node of nodes) {
        node.setAttribute("aria-selected", String(node.dataset.tab === name));
        node.tabIndex = node.dataset.tab === name ? 0 : -1;
      }
      fill(this.pane, name === "raw" ? this.raw() : this.layers());
    };
    const row = el("div", { class: "tabs", role: "tablist" }, nodes);
    row.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
      const other = nodes.find((node) => node.dataset.tab !== this.tab);
      show(other.dataset.tab);
      other.focus();
    });
    return row;
  }

  // ---- layers: the table and the bytes, each pointing at the other ------------------------------------------------

  layers() {
    const box = el("input", { type: "checkbox", checked: breaks, onchange: () => ((breaks = box.checked), fill(this.pane, this.layers())) });
    const table = el("div", { class: "segments", tabIndex: -1 }, this.table());
    const sent = this.receipt.segments.map((one, place) => one.decision !== "dropped" && block(this.data, one, place, { breaks }));
    const text = el("div", { class: "payload", dir: "ltr" }, sent);
    const both = el(
      "div",
      { class: "columns" },
      el("section", {}, el("h2", {}, t("segments"), " ", el("span", { class: "count" }, number(this.receipt.segments.length))), el("p", { class: "hint for-keys" }, t("segmentsWhat")), table),
      el("section", {}, el("h2", {}, t("payload"), el("label", { class: "switch" }, box, el("span", {}, t("breaks")))), text),
    );
    for (const kind of ["pointermove", "focusin"]) { // what is laid out or scrolled under a pointer that rests is not pointed at
      both.addEventListener(kind, (event) => {
        const node = event.target.closest("[data-place]");
        if (node && !node.classList.contains("pointed")) this.point(Number(node.dataset.place), false, node);
      });
    }
    return both;
  }

  table() {
    const names = ["layer", "source", "hash", "owner", "trust", "tokens", "decisionAndReason"];
    const head = names.map((name) => el("th", { scope: "col", class: name === "tokens" ? "end" : null }, t(name)));
    const line = (one, place) =>
      el(
        "tr",
        { data: { place }, tabIndex: 0, class: `${layerClass(one.layer)} ${one.decision}` },
        el("td", {}, swatch(one.layer)),
        el("td", { dir: "auto", title: one.source }, el("div", { class: "clamp" }, visible(one.source))),
        el("td", {}, el("code", { title: one.hash }, one.hash ? one.hash.slice(0, 8) : "–")),
        el("td", {}, visible(one.owner || "–")),
        el("td", { class: "trust" }, phrase({ code: `trust.${one.trust}`, text: one.trust })),
        el("td", { class: "end" }, number(one.tokens)),
        el("td", { class: "reason" }, el("span", { class: `chip decision-${one.decision}` }, word("decision", one.decision)), " ", el("span", {}, visible(phrase(one.reason)))),
      );
    return el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, this.receipt.segments.map(line)));
  }

  point(place, move = false, from = null) {
    if (this.tab !== "layers") return;
    for (const node of this.pane.querySelectorAll(".pointed")) node.classList.remove("pointed");
    const nodes = [...this.pane.querySelectorAll(`[data-place="${place}"]`)];
    for (const node of nodes) {
      node.classList.add("pointed");
      const other = !from || (from.matches("tr") !== node.matches("tr"));
      if (other) within(node);
    }
    if (move) nodes[0]?.focus();
  }

  // ---- raw --------------------------------------------------------------------------------------------------------

  raw() {
    const state = el("p", { class: "hint", role: "status" });
    const name = `lamina-${this.turn.slice(0, 8) || "next"}-${this.told.request}.json`;
    sha256(this.data).then((found) => {
      if (!found) return;
      const right = found === this.receipt.hash && (!this.hash || this.hash === found);
      fill(state, icon(right ? "check" : "warning"), t(right ? "checked" : "unchecked"));
      state.classList.toggle("bad", !right);
    });
    const text = decoded(this.data, 0, this.data.length);
    return el(
      "section",
      { class: "raw" },
      el("div", { class: "row wrap" }, el("code", { class: "sha" }, `SHA-256 ${this.hash || this.receipt.hash}`), el("span", { class: "muted" }, t("bytes", { n: number(this.data.length) })), button(t("copy"), () => copy(text), { sign: "copy", text: true }), button(t("download"), () => download(this.data, name), { sign: "download", text: true })),
      state,
      el("pre", { tabIndex: 0, dir: "ltr" }, visible(text)),
    );
  }
}

const word = (prefix, name) => (known(prefix + name) ? t(prefix + name) : name);

// Into sight within its own box; the page itself stays where it is.
function within(node) {
  const box = node.closest(".payload, .segments");
  const [inner, outer] = [node.getBoundingClientRect(), box.getBoundingClientRect()];
  if (box.scrollHeight <= box.clientHeight) return;
  if (inner.top < outer.top + 30) box.scrollTop -= outer.top + 30 - inner.top;
  else if (inner.bottom > outer.bottom) box.scrollTop += Math.min(inner.bottom - outer.bottom + 12, inner.top - outer.top - 30);
}
