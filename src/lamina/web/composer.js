// Where people write: a field that grows, pictures by paste, drop or file, Enter sends. Drafts survive a reload.
import { button, el, fill, toast, touch } from "./dom.js";
import { icon } from "./icons.js";
import { t } from "./texts.js";

const KINDS = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const LARGE = 900 * 1024;
const EDGE = 1600;

export class Composer {
  constructor({ draft, send, stop, preview, sees = true }) {
    Object.assign(this, { draft: `lamina.draft.${draft}`, onsend: send, onstop: stop, pictures: [], answering: false, sees });
    const hint = touch() || matchMedia("(max-width: 720px)").matches ? t("askShort") : t("askHint");
    this.field = el("textarea", { id: "ask", rows: 1, placeholder: hint, "aria-label": t("ask"), dir: "auto", value: kept(this.draft), enterkeyhint: "send" });
    this.waits = el("p", { class: "waits", role: "status", hidden: true }, t(touch() ? "waitsTouch" : "waits"));
    this.previews = el("div", { class: "previews", hidden: true });
    const files = el("input", { type: "file", accept: KINDS.join(","), multiple: true, hidden: true, onchange: () => this.add([...files.files]).then(() => (files.value = "")) });
    this.eye = button(t("preview"), () => (this.field.value.trim() ? preview() : toast(t("previewEmpty"))), { sign: "layers", className: "eye" });
    this.go = button(t("send"), () => (this.answering ? this.onstop() : this.send()), { sign: "send", quiet: false, className: "go" });
    this.root = el(
      "form",
      { class: "composer", "aria-label": t("ask") },
      this.previews,
      this.waits,
      el("div", { class: "line" }, button(t(sees ? "addPicture" : "noPictures"), () => files.click(), { sign: "picture", className: "picture", disabled: !sees }), files, this.field, this.eye, this.go),
    );
    this.listen();
    requestAnimationFrame(() => this.grow());
  }

  listen() {
    const { field, root } = this;
    root.addEventListener("submit", (event) => event.preventDefault());
    field.addEventListener("input", () => {
      this.grow();
      keep(this.draft, field.value);
    });
    field.addEventListener("keydown", (event) => {
      // Enter also ends a word in a Chinese input method: that one is not for us
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      event.preventDefault();
      this.send();
    });
    field.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files || [])];
      if (!files.length) return;
      event.preventDefault();
      this.add(files);
    });
    root.addEventListener("dragover", (event) => event.preventDefault());
    root.addEventListener("drop", (event) => {
      event.preventDefault();
      this.add([...event.dataTransfer.files]);
    });
  }

  grow() {
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight, innerHeight * 0.4)}px`;
  }

  set(text) {
    this.field.value = text;
    this.grow();
    keep(this.draft, text);
    this.field.focus();
  }

  busy(on) {
    this.answering = on;
    if (!on) this.waits.hidden = true;
    const label = on ? t(touch() ? "stopShort" : "stop") : t("send");
    fill(this.go, icon(on ? "stop" : "send"));
    this.go.setAttribute("aria-label", label);
    this.go.title = label;
    this.go.classList.toggle("stop", on);
  }

  async add(files) {
    if (!this.sees && files.length) return toast(t("noPictures"), "bad");
    for (const file of files) {
      if (!KINDS.includes(file.type)) toast(t("notPicture", { name: file.name }), "bad");
      else this.pictures.push(await fitted(file));
    }
    this.preview();
    this.field.focus();
    return undefined;
  }

  preview() {
    this.previews.hidden = !this.pictures.length;
    fill(
      this.previews,
      this.pictures.map((url, place) =>
        el(
          "div",
          { class: "preview" },
          el("img", { src: url, alt: t("picture") }),
          button(t("removePicture"), () => (this.pictures.splice(place, 1), this.preview()), { sign: "close" }),
        ),
      ),
    );
  }

  content() {
    const text = this.field.value.trim();
    if (!this.pictures.length) return text;
    const parts = this.pictures.map((url) => ({ type: "image_url", image_url: { url } }));
    return text ? [{ type: "text", text }, ...parts] : parts;
  }

  send() {
    const content = this.content();
    if (!content.length) return;
    if (this.answering) {
      this.waits.hidden = false; // what was written stays where it is
      return;
    }
    const written = this.field.value;
    const pictures = this.pictures;
    this.pictures = [];
    this.set("");
    this.preview();
    this.onsend(content, () => {
      this.pictures = pictures; // it was not taken: nothing that was written is lost
      this.preview();
      this.set(written);
    });
  }
}

export function kept(name) {
  try {
    return sessionStorage.getItem(name) || "";
  } catch {
    return "";
  }
}

function keep(name, text) {
  try {
    if (text) sessionStorage.setItem(name, text);
    else sessionStorage.removeItem(name);
  } catch {
    // without storage a draft lives as long as the page
  }
}

// A picture as a data URL; a large one is drawn smaller first, as models read it small anyway.
async function fitted(file) {
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
  if (file.size <= LARGE) return url;
  const picture = new Image();
  picture.src = url;
  await picture.decode();
  const scale = Math.min(1, EDGE / Math.max(picture.naturalWidth, picture.naturalHeight));
  const canvas = el("canvas", { width: Math.round(picture.naturalWidth * scale), height: Math.round(picture.naturalHeight * scale) });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.85);
}
