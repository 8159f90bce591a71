// What people read, by code, from the catalogue of their language: the same files that Python renders from.
let current = document.documentElement.lang.startsWith("zh") ? "zh" : "en";
let words = {};

async function load(name) {
  const response = await fetch(`/web/messages.${name}.json`, { credentials: "same-origin" });
  return response.ok ? response.json() : {};
}

export const lang = () => current;

export async function speak(name) {
  words = await load(name);
  current = name;
  document.documentElement.lang = name === "zh" ? "zh-CN" : "en";
}

function value(given) {
  if (Array.isArray(given)) return given.map(value).join(current === "zh" ? "、" : ", ");
  return given && typeof given === "object" ? phrase(given) : String(given);
}

function filled(template, values) {
  return template.replace(/\{(\w+)\}/g, (slot, name) => (Object.hasOwn(values, name) ? value(values[name]) : slot));
}

// A text of the page itself. A missing one shows its key: a test looks for that.
export function t(key, values = {}) {
  return filled(words[`page.${key}`] ?? key, values);
}

export const known = (key) => Object.hasOwn(words, `page.${key}`);

// A message of the gateway: a code, its values and the English text, which is used when no catalogue has the code. In
// a value, a phrase is its code with its values beside it.
export function phrase(said) {
  if (!said) return "";
  const { code = "", text, values } = said;
  return Object.hasOwn(words, code) ? filled(words[code], values ?? said) : (text ?? code);
}

// A phrase inside a text of several sentences.
export function sentence(said) {
  const text = phrase(said);
  if (!text || /[.?!。？！]$/.test(text)) return text;
  return current === "zh" ? `${text}。` : `${text[0].toUpperCase()}${text.slice(1)}.`;
}

export const layerWord = (name) => words[`layer.${name}`] ?? name;
export const layerName = (name) => (current === "zh" && `layer.${name}` in words ? `${words[`layer.${name}`]} ${name}` : name);

await speak(current);
