// Every regular expression of the scripts in a folder, and whether a text of 20,000 characters makes it slow.
// Called by tests/test_regexes.py: node patterns.js FOLDER. Prints JSON.
const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");

const SIZE = 20000, MOST_PUMPS = 50, LIMIT_MS = 60, HANGS_MS = 1000;
const BEFORE = new Set([..."(,=:[!&|?{};+-*%<>~^"]);
const WORDS = /(?:^|[^\w$.])(?:return|typeof|case|in|of|do|else|void|delete)$/;

// The literals of a script, found as a parser would: strings, templates and comments are passed over.
function literals(source) {
  const found = [], braces = [];
  let at = 0, before = "";
  const template = () => {
    for (; at < source.length; at++) {
      if (source[at] === "\\") at++;
      else if (source[at] === "`") { at++; before = "`"; return; }
      else if (source.startsWith("${", at)) { at += 2; braces.push("template"); before = "{"; return; }
    }
  };
  while (at < source.length) {
    const char = source[at];
    if (/\s/.test(char)) at++;
    else if (source.startsWith("//", at)) at = (source.indexOf("\n", at) + 1) || source.length;
    else if (source.startsWith("/*", at)) at = source.indexOf("*/", at) + 2;
    else if (char === '"' || char === "'") {
      for (at++; source[at] !== char; at++) if (source[at] === "\\") at++;
      at++;
      before = char;
    } else if (char === "`") { at++; template(); }
    else if (char === "{") { braces.push("block"); before = char; at++; }
    else if (char === "}") {
      at++;
      before = char;
      if (braces.pop() === "template") template();
    } else if (char === "/" && (!before || BEFORE.has(before.at(-1)) || WORDS.test(before))) {
      const begin = ++at;
      for (let inside = false; inside || source[at] !== "/"; at++) {
        if (source[at] === "\\") at++;
        else if (source[at] === "[") inside = true;
        else if (source[at] === "]") inside = false;
      }
      const pattern = source.slice(begin, at++);
      const flags = /^[a-z]*/.exec(source.slice(at))[0];
      at += flags.length;
      found.push({ pattern, flags, line: source.slice(0, begin).split("\n").length });
      before = "/";
    } else {
      const word = /^[\w$]+/.exec(source.slice(at, at + 80));
      before = word ? ` ${word[0]}` : char;
      at += word ? word[0].length : 1;
    }
  }
  return found;
}

// Texts to repeat: characters that the pattern names, in ones, twos and behind each other.
function pumps(pattern) {
  const named = pattern.replace(/\\[bBdDsSwWpP](?:\{[^}]*\})?|\\u\{?[0-9a-f]+\}?|[\^$.*+?()[\]{}|\\]/g, " ");
  const chars = [...new Set([" ", "a", "-", "1", "\n", "|", ...named.replace(/\s/g, "")])].slice(0, 14);
  const words = named.split(/\s+/).filter((word) => word.length > 1).slice(0, 8);
  const made = [...chars, ...words, ...words.map((word) => `${word} `), "[", "(", "<", "`", '"', "\\", "*", "_", "~", "。"];
  for (const a of chars) for (const b of chars) if (a !== b) made.push(a + b);
  return [...new Set(made)].slice(0, MOST_PUMPS);
}

const context = vm.createContext({ pattern: null, text: "" });
const script = new vm.Script("pattern.lastIndex = 0; text.replace(pattern, '')");

function took(text) {
  context.text = text;
  const began = process.cpuUsage();
  try {
    script.runInContext(context, { timeout: HANGS_MS });
  } catch (error) {
    if (error.code !== "ERR_SCRIPT_EXECUTION_TIMEOUT") throw error;
    return HANGS_MS;
  }
  return process.cpuUsage(began).user / 1000;
}

const results = [];
for (const name of fs.readdirSync(process.argv[2]).filter((each) => each.endsWith(".js")).sort()) {
  for (const { pattern, flags, line } of literals(fs.readFileSync(path.join(process.argv[2], name), "utf8"))) {
    context.pattern = new RegExp(pattern, flags);
    let slow = false, by = "";
    search: for (const pump of pumps(pattern)) {
      for (const [begin, end] of [["", "\0"], ["a", "\n\0"]]) {
        for (const size of [40, 400, SIZE]) {
          const text = begin + pump.repeat(Math.ceil(size / pump.length)) + end;
          if (took(text) > LIMIT_MS && took(text) > LIMIT_MS) {
            slow = true;
            by = `${JSON.stringify(pump)} * ${size}`;
            break search;
          }
        }
      }
    }
    results.push({ where: `${name}:${line}`, pattern, slow, by });
  }
}
process.stdout.write(JSON.stringify(results));
