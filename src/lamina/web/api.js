// Asking the gateway. Everything that goes wrong is an ApiError with a message and a hint for people.
import { phrase, t } from "./texts.js";

export class ApiError extends Error {
  constructor(status, message, hint = "", type = "") {
    super(message);
    Object.assign(this, { name: "ApiError", status, hint, type });
  }
}

let onLocked = () => {};
export const whenLocked = (act) => (onLocked = act);

export async function answered(response) {
  if (response.ok) return response;
  let told = {};
  try {
    told = (await response.json()).error || {};
  } catch {
    // not from the gateway itself: its status must do
  }
  if (response.status === 401) onLocked();
  const message = phrase({ code: told.code, values: told.values, text: told.message });
  const hint = phrase({ code: told.next?.code, values: told.next?.values, text: told.hint });
  throw new ApiError(response.status, message || t("status", { n: response.status }), hint, told.type || "");
}

export async function send(method, path, body, { headers = {}, signal } = {}) {
  const options = { method, headers: { Accept: "application/json", ...headers }, credentials: "same-origin", cache: "no-store", signal };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, t("unreachable"), t("unreachableHint"));
  }
  return answered(response);
}

async function value(response) {
  return response.status === 204 ? null : response.json();
}

export const get = async (path, options) => value(await send("GET", path, undefined, options));
export const post = async (path, body = {}, options) => value(await send("POST", path, body, options));
export const put = async (path, body) => value(await send("PUT", path, body));
export const patch = async (path, body) => value(await send("PATCH", path, body));
export const remove = async (path) => value(await send("DELETE", path));

export const path = (strings, ...parts) => String.raw({ raw: strings }, ...parts.map((part) => encodeURIComponent(part)));

export function query(values) {
  const given = Object.entries(values).filter(([, one]) => one !== undefined && one !== null && one !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export async function payload(turnId, request) {
  const response = await send("GET", path`/api/turns/${turnId}/payload` + query({ request }), undefined, { headers: { Accept: "*/*" } });
  return { bytes: new Uint8Array(await response.arrayBuffer()), hash: response.headers.get("X-Lamina-Payload-SHA256") || "" };
}

export function key() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// A question is asked once, however often the line breaks: the key says that it is the same one.
export async function question(sessionId, content) {
  const headers = { "Idempotency-Key": key() };
  for (let wait = 400; ; wait *= 2) {
    try {
      return await post(path`/api/sessions/${sessionId}/messages`, { content }, { headers });
    } catch (error) {
      if (error.status !== 0 || wait > 4000) throw error;
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }
}
