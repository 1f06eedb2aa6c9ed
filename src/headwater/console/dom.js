// Makes elements. Text goes into the page as text only: there is no way here to make markup from a string.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children. `onclick` and the like are listeners; null children are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || (value === false && !name.startsWith("aria-"))) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true && !name.startsWith("aria-")) element.setAttribute(name, "");
    else element.setAttribute(name, String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replace what is in an element. */
export function show(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/** A label with a control below or beside it. */
export function field(label, control, className = "field") {
  return h("label", { class: className }, h("span", { class: "label" }, label), control);
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

/** A button that copies a text. */
export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", class: "quiet", onclick: copy }, label);
  async function copy() {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select the text to copy it";
    }
    setTimeout(() => (button.textContent = label), 2000);
  }
  return button;
}

/** Terms and what they are; rows whose value is null are left out. */
export function facts(rows) {
  return h(
    "dl",
    { class: "facts" },
    rows.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]),
  );
}

/** Call a function at most once in a while, with the newest arguments. */
export function debounce(wait_ms, call) {
  let timer = null;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), wait_ms);
  };
}
