// The overview: what is wrong right now, streams and tables as a tree with rates, and what runs beside them.

import { Problem, server } from "./api.js";
import { badge, debounce, h, show } from "./dom.js";
import { bytes, count, rate } from "./format.js";
import { Grid } from "./grid.js";
import { troubles } from "./health.js";
import { beginning, children, containing, one } from "./paths.js";
import { announce, panel, problemBox } from "./shell.js";
import { streamLink } from "./stream.js";
import { tableLink } from "./table.js";

const EVERY_MS = 4000;
const FOUND_MAX = 20_000;
const COLUMNS = [
  { key: "name", label: "Path", width: "minmax(0, 1fr)" },
  { key: "type", label: "Content", width: "11rem", wide: true },
  { key: "size", label: "Size", width: "5.5rem", align: "end" },
  { key: "rate", label: "Now", width: "6rem", align: "end", wide: true },
];

export async function overviewPage({ caller, parameters }) {
  const browser = new Browser(caller, parameters.get("prefix") ?? "");
  const side = new Side(caller);
  return {
    element: h("div", { class: "page" }, h("h1", { class: "unseen" }, "Overview"), side.health, h("div", { class: "overview" }, browser.element, side.element)),
    close() {
      browser.close();
      side.close();
    },
    shown() {
      browser.begin();
      side.begin();
    },
  };
}

// Streams and tables

class Browser {
  constructor(caller, prefix) {
    this._caller = caller;
    this._kind = "stream";
    this._rows = [];
    this._rates = new Map();
    this._seen = new Map(); // path → {at, amount} at the last look
    this._aborting = new AbortController();
    this._search = h("input", { type: "search", placeholder: "beginning of a path", spellcheck: "false", value: prefix, oninput: debounce(200, () => this.reload()) });
    this._kinds = h("div", { class: "kinds", role: "group", "aria-label": "What is listed" });
    this._anywhere = h("div", { class: "anywhere" });
    this._trouble = h("div", { class: "trouble" });
    this.grid = new Grid({
      label: "Streams and tables",
      role: "treegrid",
      columns: COLUMNS,
      cell: (index, column) => this._cell(this._rows[index], column),
      row: (index) => ({ level: (this._rows[index]?.level ?? 0) + 1, expanded: this._rows[index]?.kind === "folder" ? String(Boolean(this._rows[index].open)) : null }),
      onOpen: (index) => this._open(index),
      onToggle: (index, wanted) => this._toggle(index, wanted),
      onSelect: (index) => this._rows[index]?.kind === "more" && this._open(index),
      onEdge: (edge) => edge === "end" && this._more(),
      empty: "Nothing that your token may read.",
    });
    this.element = h("section", { class: "panel browser", "aria-label": "Streams and tables" }, h("div", { class: "toolbar" }, this._kinds, field(this._search)), this._anywhere, this._trouble, this.grid.element);
    this._showKinds();
  }

  close() {
    this._aborting.abort();
    this._scan?.abort();
    clearInterval(this._timer);
    this.grid.close();
  }

  begin() {
    this.reload();
    this._timer = setInterval(() => this._look(), EVERY_MS);
    this._look();
  }

  _showKinds() {
    show(this._kinds, [["stream", "Streams"], ["table", "Tables"]].map(([kind, label]) => h("button", { type: "button", "aria-pressed": kind === this._kind, onclick: () => this._choose(kind) }, label)));
  }

  _choose(kind) {
    this._kind = kind;
    this._showKinds();
    this._kinds.querySelector("[aria-pressed=true]").focus();
    this.reload();
  }

  async _try(work) {
    try {
      await work();
    } catch (error) {
      if (error.name === "AbortError") return;
      show(this._trouble, problemBox(error));
      if (!(error instanceof Problem)) throw error;
    }
  }

  /** The tree, or the paths that begin with what is searched. */
  async reload() {
    this._scan?.abort();
    show(this._trouble);
    show(this._anywhere);
    const text = this._search.value.trim();
    const mine = (this._turn = (this._turn ?? 0) + 1);
    await this._try(async () => {
      let begun = false;
      const display = (page) => {
        if (mine !== this._turn) return;
        this._flat = text ? { after: page.after, prefix: text } : null;
        // Folders that someone has opened while the others were asked for stay open.
        const known = new Map((begun ? this._rows : []).filter((row) => row.level === 0).map((row) => [row.path, row]));
        const below = (row) => (known.get(row.path)?.open ? this._below(known.get(row.path)) : [row]);
        this._rows = text ? this._listed(page, 0, "") : this._listed(page, 0, "").flatMap(below);
        if (!begun) this.grid.clearSelection();
        begun = true;
        this.grid.setCount(this._rows.length);
      };
      const { signal } = this._aborting;
      const page = text ? await beginning(this._kind, text, null, signal) : await children(this._kind, "", null, signal, (found) => display({ found, after: null }));
      display(page);
      if (!text || mine !== this._turn) return;
      show(this._anywhere, h("button", { type: "button", class: "quiet", onclick: () => this._find(text) }, `Find “${text}” anywhere in a path`));
      announce(`${count(this._rows.length)}${page.after === null ? "" : " or more"} paths begin with this.`);
    });
  }

  /** An opened folder with what is shown below it. */
  _below(folder) {
    const start = this._rows.indexOf(folder);
    let end = start + 1;
    while (end < this._rows.length && this._rows[end].level > folder.level) end += 1;
    return this._rows.slice(start, end);
  }

  _listed(page, level, prefix) {
    const rows = page.found.map((leaf) => ({ ...leaf, level, name: this._flat ? leaf.path : leaf.path.slice(prefix.length) }));
    if (page.after !== null && !this._flat) rows.push({ kind: "more", level, path: prefix, after: page.after, name: "More…" });
    return rows;
  }

  /** More of what was searched, when someone scrolls to its end. */
  async _more() {
    const flat = this._flat;
    if (!flat || flat.after === null || flat.loading || this._rows.length >= FOUND_MAX) return;
    flat.loading = true;
    await this._try(async () => {
      const page = await beginning(this._kind, flat.prefix, flat.after, this._aborting.signal);
      if (flat !== this._flat) return;
      flat.after = page.after;
      this._rows.push(...this._listed(page, 0, ""));
      this.grid.setCount(this._rows.length);
    });
    flat.loading = false;
  }

  async _find(text) {
    this._scan = new AbortController();
    const { signal } = this._scan;
    const progress = h("span", { class: "note" });
    show(this._anywhere, progress, " ", h("button", { type: "button", class: "quiet", onclick: () => this._scan.abort() }, "Stop"));
    this._flat = { after: null, prefix: text };
    this._rows = [];
    this.grid.setCount(0);
    let done = "";
    await this._try(async () => {
      for await (const page of containing(this._kind, text, signal)) {
        if (signal.aborted) return;
        this._rows.push(...this._listed({ found: page.found, after: null }, 0, ""));
        this.grid.setCount(this._rows.length);
        done = `${count(this._rows.length)} of ${count(page.examined)} paths contain it`;
        progress.textContent = `${done} so far`;
        if (this._rows.length >= FOUND_MAX) return;
      }
    });
    if (!this._aborting.signal.aborted && done) {
      show(this._anywhere, h("span", { class: "note" }, `${done}.`));
      announce(done);
    }
  }

  // Rows

  _open(index) {
    const row = this._rows[index];
    if (row.kind === "stream") location.hash = streamLink(row.path);
    else if (row.kind === "table") location.hash = tableLink(row.path);
    else if (row.kind === "folder") this._toggle(index, !row.open);
    else this._fill(index, row.path, row.after, row.level, 1);
  }

  _toggle(index, wanted) {
    const row = this._rows[index];
    if (row?.kind !== "folder") return;
    const open = wanted ?? !row.open;
    if (open === Boolean(row.open)) return;
    row.open = open;
    if (open) {
      this._fill(index + 1, row.path, null, row.level + 1, 0);
      return;
    }
    this._rows.splice(index + 1, this._below(row).length - 1);
    this.grid.setCount(this._rows.length);
  }

  /** Put a page of children at an index, in place of so many rows. */
  async _fill(index, prefix, after, level, replaced) {
    const before = this._rows[index - 1];
    await this._try(async () => {
      const page = await children(this._kind, prefix, after, this._aborting.signal);
      const at = before ? this._rows.indexOf(before) + 1 : index;
      if (before && !at) return; // closed meanwhile
      this._rows.splice(at, replaced, ...this._listed(page, level, prefix));
      this.grid.setCount(this._rows.length);
    });
  }

  _cell(row, column) {
    if (!row) return "";
    if (column.key === "name") return this._name(row);
    if (!row.about) return "";
    if (column.key === "type") return row.kind === "table" ? `${row.about.schema}, version ${row.about.version}` : row.about.content_type;
    if (column.key === "size") return row.kind === "table" ? `${count(row.about.last_seqno)} rows` : bytes(row.about.bytes);
    return this._rates.get(row.path) ?? (row.about.closed ? "closed" : "");
  }

  _name(row) {
    const indent = h("span", { class: `indent level${Math.min(row.level, 8)}` });
    if (row.kind === "folder") return h("span", { class: "name" }, indent, h("span", { class: "twist", "aria-hidden": "true" }, row.open ? "▾" : "▸"), row.name);
    if (row.kind === "more") return h("span", { class: "name more" }, indent, row.name);
    return h("span", { class: "name" }, indent, h("a", { href: row.kind === "table" ? tableLink(row.path) : streamLink(row.path), tabindex: -1 }, row.name));
  }

  // Rates

  /** Who administers the server gets all rates in one answer; others look at what is in view. */
  async _look() {
    if (document.hidden || this._looking) return;
    this._looking = true;
    await this._try(() => (this._caller.administers ? this._lookAtTop() : this._lookAtRows()));
    this._looking = false;
    this.grid.refresh();
  }

  async _lookAtTop() {
    const top = await server.top({ limit: 100 });
    this._rates.clear();
    for (const stream of top.streams) {
      if (stream.kind === this._kind && stream.appends_per_s) this._rates.set(stream.name, `${rate(stream.appends_per_s)}`);
    }
  }

  async _lookAtRows() {
    const [first, last] = this.grid.range;
    const leaves = this._rows.slice(first, last + 1).filter((row) => row.about).slice(0, 40);
    const looks = await Promise.all(leaves.map((row) => one(this._kind, row.path, this._aborting.signal)));
    const at = performance.now();
    leaves.forEach((row, index) => {
      const look = looks[index];
      if (!look) return;
      row.about = look.about;
      const amount = row.kind === "table" ? look.about.last_seqno : look.about.bytes;
      const seen = this._seen.get(row.path);
      if (seen) {
        const perSecond = ((amount - seen.amount) * 1000) / (at - seen.at);
        this._rates.set(row.path, perSecond > 0 ? (row.kind === "table" ? rate(perSecond, " rows/s") : `${bytes(perSecond)}/s`) : "");
      }
      this._seen.set(row.path, { at, amount });
    });
    if (this._seen.size > 5000) this._seen.clear();
  }
}

function field(search) {
  return h("label", { class: "field inline grow" }, h("span", { class: "label" }, "Search"), search);
}

// Beside them

class Side {
  constructor(caller) {
    this._caller = caller;
    this.health = h("section", { class: "health", "aria-label": "Right now" });
    this._busiest = h("div", {});
    this._subscriptions = h("div", {});
    this._views = h("div", {});
    this._followers = h("div", {});
    this.element = h(
      "div",
      { class: "side" },
      caller.administers ? panel("Busiest now", this._busiest) : null,
      panel("Subscriptions", this._subscriptions),
      panel("Views", this._views),
      panel("Followers", this._followers),
    );
  }

  close() {
    clearInterval(this._timer);
  }

  begin() {
    this._look();
    this._timer = setInterval(() => this._look(), EVERY_MS);
  }

  async _look() {
    if (document.hidden || this._looking) return;
    this._looking = true;
    try {
      const facts = await gather(this._caller);
      this._show(facts);
    } catch (error) {
      show(this.health, problemBox(error));
      if (!(error instanceof Problem)) throw error;
    } finally {
      this._looking = false;
    }
  }

  _show(facts) {
    const found = troubles(facts);
    const told = found.map((one) => one.text).join("\n");
    if (told !== this._told) {
      show(
        this.health,
        found.length
          ? h("ul", { class: "troubles" }, found.map((one) => h("li", { class: one.bad ? "bad" : "warn" }, h("span", { class: "dot", "aria-hidden": "true" }), one.href ? h("a", { href: one.href }, one.text) : one.text)))
          : h("p", { class: "all-good" }, h("span", { class: "dot", "aria-hidden": "true" }), "Nothing is wrong right now."),
      );
      if (this._told !== undefined) announce(found.length ? `Something is wrong: ${told}` : "Nothing is wrong right now.");
      this._told = told;
    }
    if (facts.top) list(this._busiest, facts.top.streams.filter((one) => one.appends_per_s > 0).slice(0, 8), (one) => [h("a", { href: one.kind === "table" ? tableLink(one.name) : streamLink(one.name) }, one.name), `${rate(one.appends_per_s)} · ${count(one.readers)} live`], "Nothing is appended.");
    const subscriptions = facts.subscriptions;
    list(this._subscriptions, subscriptions.slice(0, 8), (one) => [h("a", { href: `#/subscription/${encodeURIComponent(one.id)}` }, one.id), one.status === "failed" ? badge("failing", "bad") : one.lag_bytes ? `${bytes(one.lag_bytes)} behind` : "up to date"], "None.");
    list(this._views, facts.views.slice(0, 8), (one) => [h("a", { href: one.direction === "table" ? tableLink(one.name) : streamLink(one.name) }, one.name), `${one.state} · of ${one.source.replace(/^.*\/v1\/(stream|table)\//, "")}`], "None.");
    list(this._followers, facts.followers.slice(0, 8), (one) => [h("a", { href: tableLink(one.name, "/about") }, one.name), one.lag_rows ? `${count(one.lag_rows)} rows behind` : one.state], "None.");
  }
}

function list(element, rows, make, none) {
  show(element, rows.length ? h("ul", { class: "plain-list" }, rows.map((row) => h("li", {}, make(row).map((part, index) => h("span", { class: index ? "note" : "name" }, part))))) : h("p", { class: "note" }, none));
}

async function gather(caller) {
  const [ready, followers, views, subscriptions, top, metrics] = await Promise.all([
    server.ready().then((text) => ({ text }), (error) => ({ error })),
    server.followers(),
    server.views(),
    server.subscriptions({ limit: 100 }).then((page) => page.subscriptions),
    caller.administers ? server.top({ limit: 20 }) : null,
    caller.administers ? server.metrics() : null,
  ]);
  return { ready, followers, views, subscriptions, top, metrics };
}

