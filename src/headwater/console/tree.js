// A message: JSON as a tree of native disclosure elements, made when they are opened; text; bytes as a hex dump.

import { copyButton, h, show } from "./dom.js";
import { bytes, count, hexLines } from "./format.js";
import { differences, parse, write } from "./json.js";

const CHILDREN = 200;
const OPEN_DEPTH = 2;
const TEXT_MAX = 100_000;
const HEX_MAX = 16 * 1024;

export function tree(node) {
  return h("div", { class: "tree" }, branch(null, node, 0));
}

function branch(key, node, depth) {
  const label = key === null ? null : h("span", { class: "key" }, key, ": ");
  if (node.kind !== "object" && node.kind !== "array") return h("div", { class: "leaf" }, label, leaf(node));
  const children = node.kind === "object" ? node.value : node.value.map((one, index) => [String(index), one]);
  const [left, right] = node.kind === "object" ? "{}" : "[]";
  if (!children.length) return h("div", { class: "leaf" }, label, h("span", { class: "mark" }, left + right));
  const body = h("div", { class: "children" });
  const details = h("details", { ontoggle: fill }, h("summary", {}, label, h("span", { class: "mark" }, `${left}…${right} ${count(children.length)}`)), body);
  function fill() {
    if (details.open && !body.childNodes.length) more(0);
  }
  function more(from) {
    for (const [name, one] of children.slice(from, from + CHILDREN)) body.append(branch(name, one, depth + 1));
    const left = children.length - from - CHILDREN;
    if (left <= 0) return;
    const button = h("button", { type: "button", class: "quiet", onclick: () => { button.remove(); more(from + CHILDREN); } }, `${count(left)} more`);
    body.append(button);
  }
  if (depth < OPEN_DEPTH && children.length <= CHILDREN) {
    details.open = true;
    more(0);
  }
  return details;
}

function leaf(node) {
  if (node.kind === "string") {
    const long = node.value.length > TEXT_MAX;
    return h("span", { class: "string" }, JSON.stringify(long ? node.value.slice(0, TEXT_MAX) : node.value), long ? ` … ${count(node.value.length)} characters` : null);
  }
  return h("span", { class: node.kind }, node.value);
}

/** What a message is: a tree if it is JSON, otherwise text and bytes. */
export function content(item) {
  if (item.text !== undefined) {
    const raw = () => item.text;
    try {
      return h("div", {}, tree(parse(item.text)), h("div", { class: "actions" }, copyButton(raw, "Copy JSON")));
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      return h("div", {}, h("p", { class: "note" }, `Shown as text: ${error.message}.`), plain(item.text));
    }
  }
  const text = decode(item.data);
  return h("div", {}, text === null ? null : plain(text), hexDump(item.data, text === null));
}

function decode(data) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data.subarray(0, TEXT_MAX));
  } catch {
    return null;
  }
}

function plain(text) {
  const part = text.length > TEXT_MAX ? text.slice(0, TEXT_MAX) : text;
  return h("pre", { class: "plain", tabindex: 0, "aria-label": "Text" }, part, part.length < text.length ? `\n… ${count(text.length)} characters in all` : null);
}

function hexDump(data, open) {
  const body = h("pre", { class: "hex", tabindex: 0, "aria-label": "Bytes" });
  const details = h("details", { open, ontoggle: fill }, h("summary", {}, `Bytes (${bytes(data.length)})`), body);
  function fill() {
    if (!details.open || body.childNodes.length) return;
    const note = data.length > HEX_MAX ? [`… the first ${bytes(HEX_MAX)} of ${bytes(data.length)}`] : [];
    show(body, [...hexLines(data, HEX_MAX), ...note].join("\n"));
  }
  if (open) fill();
  return details;
}

/** A list of the differences between two values; undefined is the value of a key that does not exist. */
export function differenceList(before, after) {
  if (before === undefined && after === undefined) return h("p", { class: "note" }, "The key did not exist.");
  const found = differences(before, after);
  if (!found.length) return h("p", { class: "note" }, "No difference.");
  return h(
    "ul",
    { class: "differences" },
    found.slice(0, 100).map(([path, was, is]) => {
      const kind = was === undefined ? "added" : is === undefined ? "removed" : "changed";
      return h(
        "li",
        { class: kind },
        h("span", { class: "kind" }, kind),
        h("code", { class: "path" }, path || "value"),
        was === undefined ? null : h("del", {}, shortened(was)),
        is === undefined ? null : h("ins", {}, shortened(is)),
      );
    }),
  );
}

function shortened(node) {
  const text = write(node);
  return text.length > 300 ? `${text.slice(0, 300)}…` : text;
}
