// The state of a stream: its entities as a table, as of any append, and the history of one of them.

import { Problem, server } from "./api.js";
import { debounce, field, h, show } from "./dom.js";
import { FOLD_BYTES_MAX, stateOf } from "./fold.js";
import { ago, bytes, count, oneLine, several, time } from "./format.js";
import { Grid } from "./grid.js";
import { announce, problemBox } from "./shell.js";
import { ofState, snippetsView } from "./snippets.js";
import { streamHead } from "./stream.js";
import { differenceList, tree } from "./tree.js";

const FIELDS_MAX = 8;
const FIELDS_FROM = 200;
const SORTED_MAX = 50_000;

export async function statePage({ names: [path], parameters }) {
  const [details, index] = await Promise.all([server.details(path), server.index()]);
  const type = parameters.get("type");
  const view = new StateView(details, stateOf(details, index.routes, type), type);
  return {
    element: h("div", { class: "page" }, streamHead(details, "state"), view.element, view.snippets),
    close: () => view.close(),
    shown: () => view.begin(),
  };
}

class StateView {
  constructor(details, state, type) {
    this.state = state;
    this._details = details;
    this._type = type;
    this._types = new Map();
    this._rows = [];
    this._text = "";
    this._aborting = new AbortController();
    this._turn = 0;
    this.grid = new Grid({
      label: `Entities of ${details.path}`,
      columns: [{ key: "", label: "Key" }],
      cell: (index, column) => this._cell(this._rows[index], column),
      onSelect: (index) => this._select(this._rows[index]),
      onSort: () => this._arrange(),
      empty: "No entities.",
    });
    this._kinds = h("div", { class: "kinds", role: "group", "aria-label": "Entity types" });
    this._slider = h("input", { type: "range", min: 0, max: 0, value: 0, disabled: true, oninput: () => this._moved(), "aria-label": "As of" });
    this._moment = h("output", { class: "moment" });
    this._now = h("button", { type: "button", onclick: () => this._toNow() }, "Now");
    const search = h("input", { type: "search", placeholder: "text in key or value", spellcheck: "false", oninput: debounce(150, () => this._search(search.value)) });
    this._note = h("p", { class: "note" });
    this._trouble = h("div", { class: "trouble" });
    this._detail = h("section", { class: "detail", "aria-label": "The selected entity" });
    this.element = h(
      "div",
      {},
      h("div", { class: "toolbar" }, field("Search", search, "field inline grow"), h("div", { class: "travel", role: "group", "aria-label": "Time travel" }, h("span", { class: "label" }, "As of"), this._slider, this._moment, this._now)),
      this._kinds,
      this._note,
      this._trouble,
      h("div", { class: "split" }, this.grid.element, this._detail),
    );
    this.snippets = snippetsView(() => ofState(details.path, this._type, this._isNow ? null : this.state.atOf(this._position)));
    this._noDetail();
    this._load = debounce(40, () => this._show());
  }

  close() {
    this._aborting.abort();
    this.grid.close();
  }

  get _position() {
    return Number(this._slider.value);
  }

  get _isNow() {
    return this._position >= this.state.length - 1;
  }

  async begin() {
    await this._try(async () => {
      this._note.textContent = "Reading the events…";
      await this.state.open((read) => (this._note.textContent = `Reading the events… ${bytes(read)}`), this._aborting.signal);
      this._slider.max = Math.max(0, this.state.length - 1);
      this._slider.value = this._slider.max;
      this._slider.disabled = this.state.length < 2;
      await this._show();
    });
  }

  async _try(work) {
    show(this._trouble);
    try {
      await work();
    } catch (error) {
      if (error.name === "AbortError") return;
      show(this._trouble, problemBox(error));
      this._note.textContent = "";
      if (!(error instanceof Problem)) throw error;
    }
  }

  // Time

  _moved() {
    this._showMoment();
    this._load();
  }

  _toNow() {
    this._slider.value = this._slider.max;
    this._moved();
    announce("The newest state.");
  }

  _showMoment() {
    const at = this.state.timeOf(this._position);
    this._moment.textContent = at === null ? "" : `${time(at)}${this._isNow ? " (newest)" : ""}`;
    this._slider.setAttribute("aria-valuetext", this._moment.textContent);
    this._now.disabled = this._isNow;
  }

  async _show() {
    const mine = (this._turn += 1);
    await this._try(async () => {
      const types = await this.state.at(this._position);
      if (mine !== this._turn) return;
      this._types = types;
      if (!types.has(this._type)) this._type = [...types.keys()].sort()[0] ?? this._type;
      this._showMoment();
      this._showTypes();
      this._showColumns();
      this._arrange();
      this._showNote();
      if (this._selected) this._selectAgain();
    });
  }

  _showNote() {
    const notes = [];
    if (!this.state.length) notes.push("The stream has no events.");
    if (this.state.invalid) notes.push(`${several(this.state.invalid, "message is no state event", "messages are no state events")}.`);
    if (this.state.isPartial) {
      notes.push(this.state.events ? `This is the state that the newest ${bytes(FOLD_BYTES_MAX)} of the stream give; entities that did not change in them are missing.` : "These are the first entities; there are more.");
    }
    this._note.textContent = notes.join(" ");
  }

  _showTypes() {
    const names = [...this._types.keys()].sort();
    show(
      this._kinds,
      names.map((name) =>
        h("button", { type: "button", "aria-pressed": name === this._type, onclick: () => this._choose(name) }, name, h("span", { class: "number" }, count(this._types.get(name).length))),
      ),
    );
  }

  _choose(type) {
    this._type = type;
    this._selected = null;
    this._noDetail();
    this.grid.clearSelection();
    this.grid.sort = null;
    this._showTypes();
    this._showColumns();
    this._arrange();
    this._kinds.querySelector("[aria-pressed=true]")?.focus();
  }

  // Rows

  _showColumns() {
    const entities = this._types.get(this._type) ?? [];
    const names = [];
    let plain = false;
    for (const entity of entities.slice(0, FIELDS_FROM)) {
      if (entity.value?.kind !== "object") plain = true;
      else for (const [name] of entity.value.value) if (!names.includes(name)) names.push(name);
    }
    const fields = names.slice(0, FIELDS_MAX);
    const columns = [
      { key: "", label: "Key", width: "minmax(7rem, 14rem)", sortable: true },
      ...fields.map((name, index) => ({ key: name, field: name, label: name, width: "minmax(5rem, 1fr)", sortable: true, wide: index > 1 })),
    ];
    if (plain || !fields.length) columns.push({ key: "\u0000value", whole: true, label: "Value", width: "minmax(8rem, 1fr)", sortable: true });
    const same = columns.map((column) => column.key).join("\n");
    if (same !== this._columns) this.grid.setColumns(columns);
    this._columns = same;
  }

  _cell(entity, column) {
    if (!entity) return "";
    if (column.whole) return oneLine(entity.value?.shown ?? "", 200);
    if (column.field === undefined) return entity.key;
    return oneLine(entity.value?.get(column.field)?.shown ?? "", 200);
  }

  _search(text) {
    this._text = text.toLowerCase();
    this._arrange();
    announce(`${count(this._rows.length)} entities.`);
  }

  _arrange() {
    const entities = this._types.get(this._type) ?? [];
    const text = this._text;
    const rows = text ? entities.filter((one) => one.contains(text)) : entities.slice();
    const { sort } = this.grid;
    if (sort && rows.length <= SORTED_MAX) {
      const column = this.grid.columns.find((one) => one.key === sort.key) ?? this.grid.columns[0];
      const keys = new Map(rows.map((row) => [row, sortKey(this._cell(row, column))]));
      rows.sort((one, other) => compare(keys.get(one), keys.get(other)) * (sort.descending ? -1 : 1));
    }
    this._rows = rows;
    this.grid.setCount(rows.length);
  }

  // The selected entity

  _noDetail() {
    show(this._detail, h("p", { class: "note" }, "Select an entity to see its value and its history."));
  }

  _selectAgain() {
    const index = this._rows.findIndex((row) => row.key === this._selected);
    if (index >= 0) this.grid.select(index);
    else this._select({ key: this._selected, value: undefined });
  }

  async _select(entity) {
    if (!entity) return;
    const position = this._position;
    this._selected = entity.key;
    const changes = h("div", {}, h("p", { class: "note" }, "Looking for its changes…"));
    show(
      this._detail,
      h("h2", {}, entity.key),
      entity.value === undefined ? h("p", { class: "note" }, "It does not exist at this time.") : tree(entity.value),
      h("h3", {}, "History"),
      changes,
    );
    try {
      const found = await this.state.history(this._type, entity.key, position);
      if (this._selected !== entity.key || this._position !== position) return;
      show(
        changes,
        h("ol", { class: "history", reversed: true }, found.changes.map((change) =>
          h("li", {}, h("div", { class: "when" }, h("strong", {}, change.operation), change.time ? ` ${time(change.time)} (${ago(new Date(change.time).toISOString())})` : null), differenceList(change.before, change.after)),
        )),
        found.isPartial ? h("p", { class: "note" }, "Older changes are not shown.") : null,
      );
    } catch (error) {
      show(changes, problemBox(error));
      if (!(error instanceof Problem)) throw error;
    }
  }
}

function sortKey(text) {
  const number = text === "" ? NaN : Number(text);
  return Number.isNaN(number) ? text.toLowerCase() : number;
}

/** Numbers before texts, both in their order. */
function compare(one, other) {
  if (typeof one === typeof other) return one < other ? -1 : one > other ? 1 : 0;
  return typeof one === "number" ? -1 : 1;
}
