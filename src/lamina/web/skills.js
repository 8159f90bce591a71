// Skills, scenario prompts and the files of rules: what is in the prompt although the user did not write it.
import { get, path, put as replace, query } from "./api.js";
import { busy, bytes, el, fill, number, problem, skeleton, told, visible } from "./dom.js";
import { t } from "./texts.js";

const FIELDS = ["name", "content", "scenario", "is_skill", "supported_apps", "enabled", "priority", "sort", "description"];
const main = document.getElementById("main");

export function skills(page) {
  const own = el("div", {}, skeleton(4));
  const prompts = el("div", {});
  const rules = el("div", {}, skeleton(3));
  const which = el("span", { class: "muted" });
  main.className = "reading";
  fill(
    main,
    page.head(t("skills")),
    el("div", { class: "page" }, el("section", {}, el("h2", {}, t("skillList")), own), el("section", {}, el("h2", {}, t("rulesList"), " ", which), rules), el("section", {}, el("h2", {}, t("scenarioList")), prompts)),
  );
  load();
  inForce();

  async function load() {
    try {
      const { templates } = await busy(get("/api/templates"));
      const shown = (wanted, none) => {
        const found = templates.filter((one) => one.is_skill === wanted);
        return found.length ? el("ul", { class: "cards" }, found.map(card)) : el("p", { class: "hint" }, none);
      };
      fill(own, shown(true, t("noSkills", { user: page.me.user })));
      fill(prompts, shown(false, t("noScenarios")));
    } catch (error) {
      fill(own, problem(error, load));
    }
  }

  function card(template) {
    const state = el("span", {}, t(template.enabled ? "on" : "off"));
    const box = el("input", { type: "checkbox", role: "switch", checked: template.enabled, disabled: template.shared, "aria-label": `${template.name}: ${t("on")}` });
    box.addEventListener("change", async () => {
      box.disabled = true;
      try {
        const values = Object.fromEntries(FIELDS.filter((name) => name in template).map((name) => [name, template[name]]));
        Object.assign(template, await busy(replace(path`/api/templates/${template.template_id}`, { ...values, enabled: box.checked })));
      } catch (error) {
        told(error);
      }
      box.disabled = false;
      box.checked = template.enabled;
      state.textContent = t(template.enabled ? "on" : "off");
    });
    const apps = template.supported_apps?.length ? template.supported_apps.join(", ") : t("allApps");
    return el(
      "li",
      { class: "card" },
      el("header", {}, el("b", { dir: "auto" }, template.name), template.shared && el("span", { class: "chip" }, t("shared")), el("label", { class: "switch" }, box, state)),
      template.description && el("p", { dir: "auto" }, visible(template.description)),
      el("div", { class: "fact-foot" }, el("span", { class: "chip" }, template.scenario), el("span", { class: "chip" }, apps)),
      el("details", {}, el("summary", {}, t("show")), el("pre", { class: "source", dir: "auto", tabIndex: 0 }, visible(template.content))),
    );
  }

  async function inForce() {
    try {
      const { sessions } = await get("/api/sessions" + query({ limit: 1 }));
      if (!sessions.length) return fill(rules, el("p", { class: "hint" }, t("rulesNeedSession")));
      const { files } = await get(path`/api/sessions/${sessions[0].session_id}/rules`);
      which.textContent = t("rulesOf", { title: sessions[0].title || t("untitled") });
      const missing = !files.some((file) => file.kind === "rules") && el("p", { class: "hint" }, t("noRules"));
      const head = ["file", "kind", "size", "tokens", "hash", "lastSeen"].map((name) => el("th", { scope: "col" }, t(name)));
      fill(rules, missing, el("div", { class: "table", tabIndex: 0 }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, files.map(line)))));
    } catch (error) {
      fill(rules, problem(error, inForce));
    }
    return undefined;
  }

  function line(file) {
    const seen = file.last_injected === null || file.last_injected === undefined ? t("never") : t("turnN", { n: file.last_injected });
    return el(
      "tr",
      {},
      el("td", {}, el("code", {}, visible(file.path)), file.includes?.length > 0 && el("small", {}, ` + ${file.includes.join(", ")}`)),
      el("td", {}, file.kind),
      el("td", { class: "end" }, bytes(file.size)),
      el("td", { class: "end" }, number(file.tokens)),
      el("td", {}, el("code", { title: file.hash }, file.hash.slice(0, 12))),
      el("td", {}, seen, file.changed_since && el("span", { class: "chip strong-chip" }, t("changed"))),
    );
  }

  return {};
}
