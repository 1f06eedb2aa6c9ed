// A table of any length: only the rows that are in view are elements. It is one stop of the Tab key; arrows, Page Up,
// Page Down, Home and End move the selection, Enter opens it.

import { h } from "./dom.js";

const OVERSCAN = 6;
const NARROW = matchMedia("(max-width: 700px)");
let grids = 0;

export class Grid {
  /**
   * @param options.columns {key, label, width, align, sortable, wide (left out on a phone)}
   * @param options.cell (index, column) → text or a node
   * @param options.row (index) → {level, expanded, className} of a row
   */
  constructor({ label, columns, cell, row = () => ({}), role = "grid", rowHeight = 32, onSelect, onOpen, onSort, onEdge, onToggle, empty = "Nothing here." }) {
    Object.assign(this, { columns, cell, row, rowHeight, onSelect, onOpen, onSort, onEdge, onToggle });
    this.count = 0;
    this.selected = -1;
    this.sort = null;
    this.follows = false;
    this._id = `grid${(grids += 1)}`;
    this._rows = [];
    this._frame = 0;
    this._space = h("div", { role: "rowgroup", class: "grid-space" });
    this._head = h("div", { role: "row", class: "grid-row grid-head", "aria-rowindex": 1 });
    this._empty = h("p", { class: "grid-empty" }, empty);
    this._scroll = h(
      "div",
      { role, class: "grid", tabindex: 0, "aria-label": label, "aria-rowcount": 1, onkeydown: (event) => this._key(event), onscroll: () => this._scrolled(), onclick: (event) => this._click(event), ondblclick: () => this.selected >= 0 && this.onOpen?.(this.selected) },
      h("div", { role: "rowgroup", class: "grid-top" }, this._head),
      this._space,
    );
    this.element = h("div", { class: "grid-frame" }, this._scroll, this._empty);
    this._observer = new ResizeObserver(() => this.refresh());
    this._observer.observe(this._scroll);
    NARROW.addEventListener("change", (this._narrowed = () => this.setColumns(this.columns)));
    this.setColumns(columns);
  }

  close() {
    this._observer.disconnect();
    NARROW.removeEventListener("change", this._narrowed);
    cancelAnimationFrame(this._frame);
  }

  setColumns(columns) {
    this.columns = columns;
    this._shown = columns.filter((column) => !(NARROW.matches && column.wide));
    this._scroll.style.setProperty("--columns", this._shown.map((column) => column.width ?? "1fr").join(" "));
    this._head.replaceChildren(...this._shown.map((column) => this._header(column)));
    for (const row of this._rows) row.element.remove();
    this._rows = [];
    this.refresh();
  }

  _header(column) {
    const sorted = this.sort?.key === column.key ? (this.sort.descending ? "descending" : "ascending") : null;
    const attributes = { role: "columnheader", class: column.align === "end" ? "end" : null, "aria-sort": column.sortable ? (sorted ?? "none") : null };
    if (!column.sortable) return h("div", attributes, column.label);
    const arrow = sorted === null ? "" : sorted === "ascending" ? " ↑" : " ↓";
    return h("div", attributes, h("button", { type: "button", class: "sort", onclick: () => this._sortBy(column.key) }, column.label, h("span", { "aria-hidden": "true" }, arrow)));
  }

  _sortBy(key) {
    this.sort = { key, descending: this.sort?.key === key ? !this.sort.descending : false };
    this.onSort?.(this.sort);
    this._head.replaceChildren(...this._shown.map((column) => this._header(column)));
    this.refresh();
  }

  /** The number of rows has changed. `before`: how many of them were added (removed, if negative) at the front. */
  setCount(count, before = 0) {
    const kept = this._scroll.scrollTop;
    this.count = count;
    if (before && this.selected >= 0) this.selected = Math.max(-1, this.selected + before);
    if (this.selected >= count) this.selected = count - 1;
    this._scroll.setAttribute("aria-rowcount", count + 1);
    this._empty.hidden = count > 0;
    this._space.style.height = `${count * this.rowHeight}px`;
    if (this.follows) this.toEnd();
    else if (before) this._scroll.scrollTop = Math.max(0, kept + before * this.rowHeight);
    this.refresh();
  }

  get atEnd() {
    return this._scroll.scrollTop + this._scroll.clientHeight >= this._scroll.scrollHeight - this.rowHeight;
  }

  toEnd() {
    this._scroll.scrollTop = this._scroll.scrollHeight;
    this._top = this._scroll.scrollTop;
  }

  toTop() {
    this._scroll.scrollTop = 0;
  }

  /** Show a row and select it. */
  select(index, told = true) {
    if (!this.count) return;
    this.selected = Math.min(this.count - 1, Math.max(0, index));
    const top = this.selected * this.rowHeight;
    const head = this._head.offsetHeight;
    const { scrollTop, clientHeight } = this._scroll;
    if (top < scrollTop) this._scroll.scrollTop = top;
    else if (top + this.rowHeight + head > scrollTop + clientHeight) this._scroll.scrollTop = top + this.rowHeight + head - clientHeight;
    this.refresh();
    if (told) this.onSelect?.(this.selected);
  }

  clearSelection() {
    this.selected = -1;
    this.refresh();
  }

  focus() {
    this._scroll.focus();
  }

  /** First and last row in view. */
  get range() {
    const first = Math.floor(this._scroll.scrollTop / this.rowHeight);
    return [first, Math.min(this.count - 1, first + Math.ceil(this._scroll.clientHeight / this.rowHeight))];
  }

  refresh() {
    if (!this._frame) this._frame = requestAnimationFrame(() => this._render());
  }

  _scrolled() {
    const top = this._scroll.scrollTop;
    // Rows that are dropped at the front make the list shorter, and move its end up: that is no scrolling back.
    if (this.atEnd) this.follows = Boolean(this.canFollow);
    else if (top < this._top - 2) this.follows = false;
    this._top = top;
    this.refresh();
    const [first, last] = this.range;
    if (first < 20 && top < (this._edgeTop ?? Infinity)) this.onEdge?.("start");
    else if (last > this.count - 20) this.onEdge?.("end");
    this._edgeTop = top;
  }

  _render() {
    this._frame = 0;
    const [first, last] = this.range;
    const from = Math.max(0, first - OVERSCAN);
    const to = Math.min(this.count - 1, last + OVERSCAN);
    while (this._rows.length < to - from + 1) this._rows.push(this._make(this._rows.length));
    this._rows.forEach((row, slot) => {
      const index = from + slot;
      row.element.hidden = index > to;
      if (index <= to) this._fill(row, index);
    });
    const active = this._rows.find((row) => !row.element.hidden && row.index === this.selected);
    if (active) this._scroll.setAttribute("aria-activedescendant", active.element.id);
    else this._scroll.removeAttribute("aria-activedescendant");
  }

  _make(slot) {
    const cells = this._shown.map((column) => h("div", { role: "gridcell", class: column.align === "end" ? "end" : null }));
    const element = h("div", { role: "row", class: "grid-row", id: `${this._id}-${slot}` }, cells);
    this._space.append(element);
    return { element, cells, index: -1, contents: [] };
  }

  _fill(row, index) {
    row.index = index;
    const { element } = row;
    element.style.transform = `translateY(${index * this.rowHeight}px)`;
    element.style.height = `${this.rowHeight}px`;
    element.setAttribute("aria-rowindex", index + 2);
    element.setAttribute("aria-selected", index === this.selected);
    const about = this.row(index);
    element.className = `grid-row ${about.className ?? ""}`;
    setOrRemove(element, "aria-level", about.level);
    setOrRemove(element, "aria-expanded", about.expanded);
    this._shown.forEach((column, number) => {
      const content = this.cell(index, column) ?? "";
      if (row.contents[number] === content) return;
      row.contents[number] = content;
      row.cells[number].replaceChildren(content);
    });
  }

  _click(event) {
    const element = event.target.closest("[role=row]");
    const row = this._rows.find((one) => one.element === element);
    if (!row) return;
    if (event.target.closest(".twist")) this.onToggle?.(row.index);
    else this.select(row.index);
  }

  _key(event) {
    if (event.target !== this._scroll) return;
    const page = Math.max(1, Math.floor(this._scroll.clientHeight / this.rowHeight) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in moves) {
      if (event.key === "End" && this.canFollow) this.follows = true;
      else if (moves[event.key] < 0) this.follows = false;
      const isFirst = this.selected < 0 && Number.isFinite(moves[event.key]);
      this.select(isFirst ? this.range[moves[event.key] > 0 ? 0 : 1] : this.selected + moves[event.key]);
    } else if (event.key === "Enter" && this.selected >= 0) this.onOpen?.(this.selected);
    else if ((event.key === "ArrowRight" || event.key === "ArrowLeft") && this.selected >= 0 && this.onToggle) this.onToggle(this.selected, event.key === "ArrowRight");
    else return;
    event.preventDefault();
  }
}

function setOrRemove(element, name, value) {
  if (value === undefined || value === null) element.removeAttribute(name);
  else element.setAttribute(name, value);
}
