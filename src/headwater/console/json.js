// JSON as it was written: numbers keep their digits, objects their order, and a text is cut into messages without
// parsing them. JSON.parse would round 12345678901234567890.

/** A value of JSON. `kind`: object (value: [key, node] pairs), array, string, number (its digits), literal. */
export class Json {
  constructor(kind, value) {
    this.kind = kind;
    this.value = value;
  }

  get(key) {
    if (this.kind !== "object") return undefined;
    for (let index = this.value.length - 1; index >= 0; index -= 1) {
      if (this.value[index][0] === key) return this.value[index][1]; // the last one counts, as in JSON.parse
    }
    return undefined;
  }

  /** What it says in one cell of a table. */
  get shown() {
    return this.kind === "string" || this.kind === "number" || this.kind === "literal" ? this.value : write(this);
  }
}

const SPACE = /[ \t\n\r]*/y;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const LITERAL = /true|false|null/y;
const DEPTH_MAX = 500;

/** Parse a text. Throws SyntaxError, also where it is nested too deeply to be shown. */
export function parse(text) {
  let at = 0;

  function fail() {
    throw new SyntaxError(`not JSON at ${at}`);
  }
  function space() {
    SPACE.lastIndex = at;
    SPACE.test(text);
    at = SPACE.lastIndex;
  }
  function match(pattern) {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found === null) fail();
    at = pattern.lastIndex;
    return found[0];
  }
  function string() {
    const end = stringEnd(text, at);
    if (end < 0) fail();
    const raw = text.slice(at, end);
    at = end;
    return raw.includes("\\") ? JSON.parse(raw) : raw.slice(1, -1);
  }
  function value(depth) {
    if (depth > DEPTH_MAX) throw new SyntaxError("nested too deeply to be shown");
    space();
    const first = text[at];
    if (first === '"') return new Json("string", string());
    if (first === "{") return new Json("object", members("}", depth, true));
    if (first === "[") return new Json("array", members("]", depth, false));
    return first === "t" || first === "f" || first === "n" ? new Json("literal", match(LITERAL)) : new Json("number", match(NUMBER));
  }
  function members(end, depth, keyed) {
    const found = [];
    at += 1;
    space();
    if (text[at] === end) {
      at += 1;
      return found;
    }
    for (;;) {
      if (keyed) {
        space();
        if (text[at] !== '"') fail();
        const key = string();
        space();
        if (text[at] !== ":") fail();
        at += 1;
        found.push([key, value(depth + 1)]);
      } else found.push(value(depth + 1));
      space();
      const next = text[at];
      at += 1;
      if (next === end) return found;
      if (next !== ",") fail();
    }
  }

  const whole = value(0);
  space();
  if (at !== text.length) fail();
  return whole;
}

export function write(node) {
  switch (node.kind) {
    case "object":
      return `{${node.value.map(([key, one]) => `${JSON.stringify(key)}:${write(one)}`).join(",")}}`;
    case "array":
      return `[${node.value.map(write).join(",")}]`;
    case "string":
      return JSON.stringify(node.value);
    default:
      return node.value;
  }
}

/** Where the string that begins at `start` ends; -1 if it does not. */
function stringEnd(text, start) {
  let end = start;
  for (;;) {
    end = text.indexOf('"', end + 1);
    if (end < 0) return -1;
    let escapes = 0;
    while (text[end - 1 - escapes] === "\\") escapes += 1;
    if (escapes % 2 === 0) return end + 1;
  }
}

/** The elements of an array as texts. */
export function elements(text) {
  const found = [];
  let depth = 0;
  let start = text.indexOf("[") + 1;
  for (let at = start; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    if (code === 34) {
      at = stringEnd(text, at) - 1;
      if (at < 0) break;
    } else if (code === 123 || code === 91) depth += 1;
    else if (code === 44 && depth === 0) {
      found.push(text.slice(start, at));
      start = at + 1;
    } else if (code === 125 || code === 93) {
      if (depth === 0) {
        if (text.slice(start, at).trim()) found.push(text.slice(start, at));
        break;
      }
      depth -= 1;
    }
  }
  return found;
}

const ESCAPE = /\\u([0-9a-fA-F]{4})/g;

/** A text of JSON with characters in place of their escapes, to search in it. */
export function unescaped(text) {
  return text.includes("\\u") ? text.replace(ESCAPE, (_, code) => String.fromCharCode(parseInt(code, 16))) : text;
}

/** How many bytes a text has in UTF-8. */
export function byteLength(text) {
  let length = text.length;
  for (let at = 0; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    if (code < 0x80) continue;
    if (code < 0x800) length += 1;
    else {
      length += 2;
      if (code >= 0xd800 && code < 0xdc00) at += 1; // a pair is two units, and four bytes
    }
  }
  return length;
}

/** What differs between two values, as [path, before, after]; one of both is undefined if it was added or removed. */
export function differences(before, after, path = "", found = []) {
  if (before?.kind === "object" && after?.kind === "object") {
    const keys = new Set([...before.value, ...after.value].map(([key]) => key));
    for (const key of keys) differences(before.get(key), after.get(key), path ? `${path}.${key}` : key, found);
  } else if (before?.kind === "array" && after?.kind === "array") {
    const length = Math.max(before.value.length, after.value.length);
    for (let index = 0; index < length && found.length < 100; index += 1) {
      differences(before.value[index], after.value[index], `${path}[${index}]`, found);
    }
  } else if ((before && write(before)) !== (after && write(after))) found.push([path, before, after]);
  return found;
}
