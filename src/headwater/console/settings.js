// The settings of the server: options and limits with the source of each.

import { Problem, server } from "./api.js";
import { field, h, show } from "./dom.js";
import { count, several } from "./format.js";
import { announce, panel, problemBox } from "./shell.js";

const DEFAULT = "default";

export function settingsPanel({ sees_settings: isShown }) {
  const body = h("div", {});
  const element = panel("Settings", body);
  if (!isShown) show(body, h("p", { class: "note" }, "Only tokens with the scope settings:** see the settings."));
  async function load() {
    try {
      const shown = await server.settings();
      showSettings(body, [...shown.options, ...shown.limits]);
    } catch (error) {
      show(body, problemBox(error));
      if (!(error instanceof Problem)) throw error;
    }
  }
  return { element, load: () => (isShown ? load() : null) };
}

function showSettings(body, settings) {
  const search = h("input", { type: "search", placeholder: "name or meaning", spellcheck: "false", oninput: update });
  const all = h("input", { type: "checkbox", onchange: update });
  const rows = h("tbody", {});
  const note = h("p", { class: "note" });
  function update() {
    const text = search.value.trim().toLowerCase();
    const fitting = settings.filter((one) => (all.checked || text || one.source !== DEFAULT) && `${one.name} ${one.about}`.toLowerCase().includes(text));
    show(rows, fitting.map(row));
    note.textContent = fitting.length || all.checked || text ? "" : "All settings have their defaults.";
    if (text) announce(`${several(fitting.length, "setting")}.`);
  }
  show(
    body,
    h("div", { class: "toolbar" }, field("Search", search, "field inline grow"), h("label", { class: "check" }, all, " Defaults too")),
    h("div", { class: "scroll settings", tabindex: 0, role: "region", "aria-label": "Settings" }, h("table", {}, h("thead", {}, h("tr", {}, ["Setting", "Value", "From"].map((label) => h("th", { scope: "col" }, label)))), rows)),
    note,
    h("p", { class: "note" }, "They are set when the server starts. ", h("code", {}, "headwater serve --print-config"), " prints them as a file."),
  );
  update();
}

function row(one) {
  return h("tr", {}, h("td", {}, h("code", {}, one.name), h("div", { class: "note" }, one.about)), h("td", {}, valueOf(one)), h("td", {}, one.source));
}

function valueOf({ value }) {
  if (value === null || (Array.isArray(value) && !value.length)) return h("span", { class: "note" }, "not set");
  if (Array.isArray(value)) return h("ul", { class: "plain" }, value.map((part) => h("li", {}, h("code", {}, part))));
  if (typeof value === "boolean") return value ? "on" : "off";
  return h("code", {}, typeof value === "number" ? count(value) : value);
}
