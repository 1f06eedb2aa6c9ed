// What is around every page: navigation, the colours, who is signed in, and announcements for screen readers.

import { badge, h, show } from "./dom.js";

const THEME = "headwater-theme";
const NAVIGATION = [
  ["overview", "#/", "Overview"],
  ["subscriptions", "#/subscriptions", "Subscriptions"],
  ["server", "#/server", "Server"],
];

const polite = h("div", { class: "unseen", role: "status", "aria-live": "polite" });

/** Tell people who do not see the page. Only what someone waits for: not every message of a stream. */
export function announce(text) {
  polite.textContent = text;
}

export function applyTheme(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

export class Shell {
  constructor(container, onSignOut) {
    this._onSignOut = onSignOut;
    this.main = h("main", { id: "main", tabindex: -1 });
    this._who = h("div", { class: "who" });
    this._links = h("ul", {});
    show(
      container,
      h(
        "header",
        { class: "bar" },
        h("a", { class: "brand", href: "#/" }, h("span", { class: "mark", "aria-hidden": "true" }, "≋"), " Headwater"),
        h("nav", { "aria-label": "Main" }, this._links),
        h("div", { class: "bar-end" }, this._who, themeSwitch()),
      ),
      this.main,
      polite,
    );
  }

  showPlace(name, title) {
    document.title = `${title} · Headwater`;
    show(
      this._links,
      NAVIGATION.map(([key, href, label]) => h("li", {}, h("a", { href, "aria-current": key === name ? "page" : null }, label))),
    );
  }

  showCaller(caller, hasToken) {
    const name = caller?.name ? badge(caller.name) : null;
    const button = hasToken ? h("button", { type: "button", class: "quiet", onclick: this._onSignOut }, "Forget the token") : null;
    show(this._who, name, button);
  }

  /** Without a token, some of the server can be seen; with one, more. */
  offerToken(ask) {
    this._who.append(h("button", { type: "button", class: "quiet", onclick: ask }, "Use a token"));
  }
}

function themeSwitch() {
  const stored = localStorage.getItem(THEME) ?? "system";
  applyTheme(stored);
  const select = h(
    "select",
    { "aria-label": "Theme", onchange: () => { localStorage.setItem(THEME, select.value); applyTheme(select.value); } },
    ["system", "light", "dark"].map((name) => h("option", { value: name, selected: name === stored }, { system: "Theme: system", light: "Light", dark: "Dark" }[name])),
  );
  return select;
}

/** The title of a page, with what leads to it and what belongs beside it. */
export function heading(title, { path = [], beside = [] } = {}) {
  return h(
    "div",
    { class: "heading" },
    h("nav", { class: "crumbs", "aria-label": "Path" }, h("ol", {}, h("li", {}, h("a", { href: "#/" }, "Overview")), path.map(([label, href]) => h("li", {}, href ? h("a", { href }, label) : label)))),
    h("div", { class: "title" }, h("h1", {}, title), h("div", { class: "beside" }, beside)),
  );
}

/** Links to the parts of a page. */
export function tabs(label, parts, current) {
  return h("nav", { class: "tabs", "aria-label": label }, parts.map(([key, href, text]) => h("a", { href, "aria-current": key === current ? "page" : null }, text)));
}

export function panel(title, ...children) {
  return h("section", { class: "panel" }, h("h2", {}, title), children);
}

/** A panel beside which several others fit. */
export function tall(title, ...children) {
  const element = panel(title, ...children);
  element.classList.add("tall");
  return element;
}

/** An error in the words of the server. */
export function problemBox(error) {
  return h("div", { class: "problem", role: "alert" }, h("strong", {}, error.title ?? "Something went wrong"), h("p", {}, error.message), error.requestId ? h("p", { class: "note" }, `Request ${error.requestId}`) : null);
}
