// Following a turn by server-sent events. The position is remembered: a connection that breaks continues where it broke.
import { answered, path } from "./api.js";

const SILENCE = 30000; // the gateway pings every ten seconds: three missed pings are a dead line
const FIRST_WAIT = 400;
const LONGEST_WAIT = 8000;

export class EventReader {
  constructor() {
    this.rest = "";
    this.id = "";
    this.fields = { event: "", data: [] };
  }

  // Pieces end anywhere, in mid-line too; only whole lines are read.
  read(piece) {
    const events = [];
    const lines = (this.rest + piece).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this.fields.data.length) events.push({ id: this.id, event: this.fields.event || "message", data: this.fields.data.join("\n") });
        this.fields = { event: "", data: [] };
        continue;
      }
      const colon = line.indexOf(":");
      if (colon === 0) continue;
      const name = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (name === "data") this.fields.data.push(value);
      else if (name === "event") this.fields.event = value;
      else if (name === "id") this.id = value;
    }
    return events;
  }
}

// Resolves when the turn is over, rejects on what no waiting mends. `take(event, data)` gets each event once.
export async function follow(turnId, { take, lost = () => {}, signal, after = "" }) {
  let position = after;
  let wait = FIRST_WAIT;
  while (!signal.aborted) {
    try {
      const over = await listen(turnId, position, signal, (event) => {
        if (event.id) position = event.id;
        wait = FIRST_WAIT;
        lost(false);
        take(event.event, JSON.parse(event.data));
        return event.event === "ended";
      });
      if (over) return;
    } catch (error) {
      if (signal.aborted) return;
      if (error.status && error.status < 500 && error.status !== 429) throw error;
    }
    lost(true);
    await pause(wait, signal);
    wait = Math.min(LONGEST_WAIT, wait * 2);
  }
}

async function listen(turnId, position, signal, take) {
  const line = new AbortController();
  const give = () => line.abort();
  signal.addEventListener("abort", give, { once: true });
  let timer = setTimeout(give, SILENCE);
  try {
    const headers = { Accept: "text/event-stream", ...(position ? { "Last-Event-ID": position } : {}) };
    const options = { headers, credentials: "same-origin", cache: "no-store", signal: line.signal };
    const response = await answered(await fetch(path`/api/turns/${turnId}/events`, options));
    if (response.status === 204) return true;
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    const events = new EventReader();
    for (;;) {
      const { done, value } = await reader.read();
      clearTimeout(timer);
      timer = setTimeout(give, SILENCE);
      if (done) return false;
      for (const event of events.read(decoder.decode(value, { stream: true }))) if (take(event)) return true;
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", give);
    line.abort();
  }
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(done, milliseconds);
    function done() {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      window.removeEventListener("online", done);
      resolve();
    }
    signal.addEventListener("abort", done);
    window.addEventListener("online", done);
  });
}
