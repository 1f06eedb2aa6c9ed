// A filter of messages: a text that they contain, /a pattern/, or field=value for a member of JSON.

import { parse, unescaped } from "./json.js";
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
    return (item) => expression.test(searched(item));
  }
  const member = MEMBER.exec(text);
  if (member) {
    const [, path, value] = member;
    return (item) => item.text !== undefined && item.text.includes(path.split(".").at(-1)) && shownAt(item.text, path.split(".")) === value;
  }
  const lower = text.toLowerCase();
  return (item) => searched(item).toLowerCase().includes(lower);
}

/** The text of a message, without the escapes that JSON may have in place of characters. */
function searched(item) {
  const text = textOf(item, TEXT_MAX).slice(0, TEXT_MAX);
  return item.text === undefined ? text : unescaped(text);
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
