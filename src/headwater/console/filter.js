// A filter of messages: a text that they contain, /a pattern/, or field=value for a member of JSON.

import { parse } from "./json.js";
import { textOf } from "./messages.js";

const PATTERN = /^\/(.+)\/(i?)$/;
const MEMBER = /^([A-Za-z_][\w.-]*)=(.*)$/;
const TEXT_MAX = 1_000_000;

/** A function that tells whether a message matches; null for no filter. SyntaxError if it is no pattern. */
export function compileFilter(text) {
  if (!text) return null;
  const pattern = PATTERN.exec(text);
  if (pattern) {
    const expression = new RegExp(pattern[1], pattern[2]);
    return (item) => expression.test(textOf(item, TEXT_MAX).slice(0, TEXT_MAX));
  }
  const member = MEMBER.exec(text);
  if (member) {
    const [, path, value] = member;
    return (item) => item.text !== undefined && item.text.includes(path.split(".").at(-1)) && shownAt(item.text, path.split(".")) === value;
  }
  const lower = text.toLowerCase();
  return (item) => textOf(item, TEXT_MAX).toLowerCase().includes(lower);
}

function shownAt(text, path) {
  try {
    let node = parse(text);
    for (const key of path) node = node?.kind === "array" ? node.value[Number(key)] : node?.get(key);
    return node?.shown;
  } catch {
    return undefined;
  }
}
