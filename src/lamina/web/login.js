// Signing in with a key. It goes to the gateway once, in exchange for a cookie that scripts cannot read.
import { button, el, fill, problem } from "./dom.js";
import { t } from "./texts.js";

export function login(main, page, wrong = false) {
  page.title(t("loginTitle"));
  const field = el("input", { type: "password", id: "key", autocomplete: "current-password", required: true, spellcheck: "false" });
  const failed = el("div", {});
  const form = el(
    "form",
    { class: "login" },
    el("img", { src: "/web/icon.svg", alt: "", width: 48, height: 48 }),
    el("h1", {}, t("loginTitle")),
    el("p", {}, t("loginToken"), " ", el("code", {}, "lamina serve"), t("loginToken2")),
    el("p", { class: "muted" }, t("loginWhat"), " ", el("code", {}, "lamina keys new"), t("loginWhen")),
    el("label", { htmlFor: "key" }, t("loginKey")),
    field,
    failed,
    el("button", { type: "submit", class: "strong" }, t("loginGo")),
    button(t("otherLanguage"), () => page.otherLanguage(), { "aria-label": t("language") }),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const options = { method: "POST", body: JSON.stringify({ key: field.value.trim() }), headers: { "Content-Type": "application/json" }, credentials: "same-origin" };
      const response = await fetch("/api/login", options);
      if (!response.ok) {
        const told = (await response.json().catch(() => ({}))).error || {};
        const wrong = response.status === 401;
        fill(failed, problem({ message: wrong ? t("loginWrong") : told.message || t("status", { n: response.status }), hint: wrong ? "" : told.hint }));
        field.select();
        return;
      }
      await page.enter();
    } catch {
      fill(failed, problem({ message: t("unreachable"), hint: t("unreachableHint") }));
    }
  });
  if (wrong) fill(failed, problem({ message: t("tokenWrong"), hint: t("tokenWrongHint") }));
  fill(main, form);
  field.focus();
}
