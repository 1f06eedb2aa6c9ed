// A table: its rows, live; its active view; and who follows it.

import { Problem, absolute, events, lines, query, request, server, tablePath as path } from "./api.js";
import { keepingPanel, producersPanel } from "./details.js";
import { badge, copyButton, debounce, facts, field, h, show } from "./dom.js";
import { ago, bytes, count, moment, oneLine, rate, several, time, until } from "./format.js";
import { Grid } from "./grid.js";
import { parse } from "./json.js";
import { announce, heading, panel, problemBox, tabs, tall } from "./shell.js";
import { ofTable, snippetsView } from "./snippets.js";
import { tree } from "./tree.js";

const PAGE = 500;
const ROWS_MAX = 20_000;
const FLUSH_MS = 100;
const COLUMNS = [
  { key: "seqno", label: "SeqNo", width: "5rem", align: "end" },
  { key: "time", label: "Time", width: "8.5rem", wide: true },
  { key: "action", label: "+/−", width: "2rem" },
  { key: "key", label: "Key", width: "minmax(5rem, 0.5fr)" },
  { key: "record", label: "Record", width: "minmax(0, 1fr)", wide: true },
];

export const tableLink = (name, part = "") => `#/table/${encodeURIComponent(name)}${part}`;

export async function tablePage({ names: [name, part] }) {
  const details = await server.table(name).catch((error) => error);
  if (details instanceof Error) return mirrorToCome(name, details);
  const head = await request(path(name), { method: "HEAD" });
  const about = {
    name,
    type: head.headers.get("content-type") ?? "",
    last: Number(head.headers.get("stp-last-seqno") ?? 0),
    mirror: head.headers.get("stp-mirror") === "true",
    closed: head.headers.get("stream-closed") === "true",
    escaped: /escape=backslash/.test(head.headers.get("content-type") ?? ""),
  };
  const current = part ?? "rows";
  const view = current === "about" ? await aboutView(about, details) : new RowsView(about, current === "active");
  const parts = name.split("/");
  const crumbs = parts.slice(0, -1).map((one, index) => [one, `#/?prefix=${encodeURIComponent(`${parts.slice(0, index + 1).join("/")}/`)}`]);
  const element = h(
    "div",
    { class: "page" },
    heading(name, { path: crumbs, beside: [badge("table"), badge(schemaOf(about.type)), about.mirror ? badge("mirror") : null, about.closed ? badge("closed", "warn") : null] }),
    tabs("Parts of the table", [["rows", tableLink(name), "Rows"], ["active", tableLink(name, "/active"), "Active view"], ["about", tableLink(name, "/about"), "About"]], current),
    view.element,
  );
  return { element, close: () => view.close?.(), shown: () => view.begin?.() };
}

/** A mirror is created when its source has answered; until then there is its follower only. */
async function mirrorToCome(name, error) {
  if (!(error instanceof Problem) || error.status !== 404) throw error;
  const follower = (await server.followers()).find((one) => one.name === name);
  if (!follower) throw error;
  const note = h("p", { class: "note" }, "The table does not exist yet: it is created when its source has answered.");
  return { element: h("div", { class: "page" }, heading(name, { beside: [badge("mirror")] }), panel("Where it comes from", note, followerFacts(follower))) };
}

const schemaOf = (type) => type.split(";").slice(1).map((part) => part.trim()).filter((part) => /^(schema|version)=/.test(part)).join(", ");

function rowOf(line) {
  const [seqno, at, action, key, ...record] = line.split("\t");
  return { seqno: Number(seqno), time: at, action, key, record: record.join("\t") };
}

class RowsView {
  constructor(about, active) {
    this._about = about;
    this._active = active;
    this._rows = [];
    this._shown = null;
    this._text = "";
    this._pending = [];
    this._received = 0;
    this.grid = new Grid({
      label: `Rows of ${about.name}`,
      columns: COLUMNS,
      cell: (index, column) => this._cell(this._list[index], column),
      onSelect: (index) => this._select(this._list[index]),
      onEdge: (edge) => this._edge(edge),
      empty: active ? "No live keys." : "No rows here.",
    });
    this.grid.canFollow = !active;
    const search = h("input", { type: "search", placeholder: "text in key or record", spellcheck: "false", oninput: debounce(150, () => this._filter(search.value)) });
    const seqno = h("input", { type: "number", min: 1, value: 1 });
    const key = h("input", { type: "text", spellcheck: "false", autocomplete: "off" });
    this._state = h("span", { class: "state" });
    this._liveButton = active ? null : h("button", { type: "button", class: "live", onclick: () => this._toggle() });
    const jump = active
      ? h("form", { class: "inline-form", onsubmit: (event) => { event.preventDefault(); this._only(key.value); } }, field("Key", key, "field inline"), h("button", { type: "submit" }, "Find"))
      : h("form", { class: "inline-form", onsubmit: (event) => { event.preventDefault(); this._at(Number(seqno.value)); } }, field("From SeqNo", seqno, "field inline"), h("button", { type: "submit" }, "Go"));
    this._trouble = h("div", { class: "trouble" });
    this._detail = h("section", { class: "detail", "aria-label": "The selected row" }, h("p", { class: "note" }, "Select a row to see all of it."));
    this._snippets = snippetsView(() => ofTable(about.name, { since: Math.max(0, (this._rows[0]?.seqno ?? 1) - 1), active, live: this._live !== null }));
    this._live = null;
    this.element = h("div", { class: "page" }, h("div", {}, h("div", { class: "toolbar" }, this._liveButton, field("Filter", search, "field inline grow"), jump, this._state), this._trouble, h("div", { class: "split" }, this.grid.element, this._detail)), this._snippets);
    this._showLive();
    this._timer = setInterval(() => this._showRate(), 1000);
  }

  close() {
    clearInterval(this._timer);
    this._stop();
    this._reading?.abort();
    this.grid.close();
  }

  get _list() {
    return this._shown ?? this._rows;
  }

  async begin() {
    await this._try(async () => {
      if (this._active) return this._readActive({ view: "active", timeout: 0 });
      await this._read({ since_id: -PAGE });
      this.grid.follows = true;
      this._changed(0);
      this.grid.toEnd();
      return this._follow();
    });
  }

  async _try(work) {
    show(this._trouble);
    try {
      await work();
    } catch (error) {
      if (error.name === "AbortError") return;
      show(this._trouble, problemBox(error));
      if (!(error instanceof Problem)) throw error;
    }
  }

  async _page(parameters) {
    const text = await (await request(path(this._about.name) + query({ timeout: 0, ...parameters }))).text();
    return text.split("\n").filter(Boolean).map(rowOf);
  }

  async _read(parameters) {
    this._rows = await this._page(parameters);
  }

  /** Rows as they arrive, up to a bound. */
  async _readActive(parameters) {
    this._reading?.abort();
    this._reading = new AbortController();
    this._rows = [];
    this.grid.clearSelection();
    let more = false;
    for await (const part of lines(path(this._about.name) + query(parameters), this._reading.signal)) {
      for (const line of part) if (line) this._rows.push(rowOf(line));
      this._changed(0);
      if (this._rows.length >= ROWS_MAX) {
        more = true;
        break;
      }
    }
    this._changed(0);
    this._state.textContent = more ? `the first ${count(this._rows.length)} live keys; find others by key` : `${count(this._rows.length)} live keys`;
  }

  _only(key) {
    this._try(() => this._readActive(key ? { key, timeout: 0 } : { view: "active", timeout: 0 }));
  }

  async _at(seqno) {
    this._stop();
    await this._try(async () => {
      await this._read({ since_id: Math.max(0, seqno - 1), until_id: seqno - 1 + PAGE });
      this.grid.clearSelection();
      this.grid.follows = false;
      this._changed(0);
      this.grid.toTop();
      announce(`From row ${seqno}.`);
    });
  }

  async _edge(edge) {
    if (this._active || this._loading || !this._rows.length) return;
    const first = this._rows[0].seqno;
    const last = this._rows.at(-1).seqno;
    if (edge === "start" ? first <= 1 || this._noneBefore === first : this._live || this._noneAfter === last) return;
    this._loading = true;
    await this._try(async () => {
      const page = await this._page(edge === "start" ? { since_id: Math.max(0, first - 1 - PAGE), until_id: first - 1 } : { since_id: last, until_id: last + PAGE });
      if (!page.length) this[edge === "start" ? "_noneBefore" : "_noneAfter"] = edge === "start" ? first : last;
      if (edge === "start") this._rows = [...page, ...this._rows].slice(0, this._live ? undefined : ROWS_MAX);
      else this._rows.push(...page);
      const dropped = edge === "end" ? this._trim() : 0;
      this._changed(edge === "start" ? page.length : -dropped);
    });
    this._loading = false;
  }

  _trim() {
    const dropped = Math.max(0, this._rows.length - ROWS_MAX);
    if (dropped > ROWS_MAX / 10) this._rows.splice(0, dropped);
    else return 0;
    return dropped;
  }

  // Live

  async _toggle() {
    if (this._live) {
      this._stop();
      announce("Paused.");
      return;
    }
    await this._try(async () => {
      await this._read({ since_id: -PAGE });
      this.grid.follows = true;
      this._changed(0);
      this.grid.toEnd();
      this._follow();
      announce("Live.");
    });
  }

  _stop() {
    this._live?.abort();
    this._live = null;
    this._showLive();
  }

  async _follow() {
    if (this._about.closed) return this._showLive("Closed: this is the end");
    const live = (this._live = new AbortController());
    this._showLive();
    for (let wait = 1000; !live.signal.aborted; wait = Math.min(10_000, wait * 2)) {
      try {
        const since = this._pending.at(-1)?.seqno ?? this._rows.at(-1)?.seqno ?? 0;
        for await (const event of events(path(this._about.name) + query({ since_id: since, live: "sse" }), live.signal)) {
          if (live.signal.aborted) return undefined;
          if (event.id === null || !event.data.includes("\t")) continue;
          this._pending.push(rowOf(event.data));
          this._flushing ??= setTimeout(() => this._flush(), FLUSH_MS);
          wait = 500;
        }
      } catch (error) {
        if (live.signal.aborted) return undefined;
        if (error instanceof Problem && error.status >= 400 && error.status < 500) {
          show(this._trouble, problemBox(error));
          this._stop();
          return undefined;
        }
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
    return undefined;
  }

  _flush() {
    this._flushing = null;
    const rows = this._pending;
    this._pending = [];
    if (!this._live) return;
    this._received += rows.length;
    for (const row of rows) this._rows.push(row);
    this._changed(-this._trim());
  }

  _showLive(text) {
    if (!this._liveButton) return;
    show(this._liveButton, h("span", { class: `dot ${this._live ? "live" : "off"}`, "aria-hidden": "true" }), this._live ? "Pause" : "Follow");
    this._liveButton.setAttribute("aria-pressed", this._live !== null);
    this._liveButton.disabled = Boolean(text);
    this._liveText = text ?? (this._live ? "Live" : "Paused");
    this._showState(0);
  }

  _showRate() {
    const received = this._received;
    this._received = 0;
    if (!this._active) this._showState(received);
  }

  _showState(perSecond) {
    if (!this._active) this._state.textContent = `${this._liveText}${perSecond ? ` · ${rate(perSecond, " rows/s")}` : ""} · ${count(this._list.length)} loaded`;
  }

  // Rows

  _filter(text) {
    this._text = text.toLowerCase();
    this.grid.clearSelection();
    this._changed(0);
    announce(`${count(this._list.length)} rows.`);
  }

  _changed(before) {
    const text = this._text;
    const known = this._shown?.length ?? 0;
    this._shown = text ? this._rows.filter((row) => row.key.toLowerCase().includes(text) || row.record.toLowerCase().includes(text)) : null;
    this.grid.setCount(this._list.length, text ? (before > 0 ? this._list.length - known : 0) : before);
    this._showState(0);
  }

  _cell(row, column) {
    if (!row) return "";
    if (column.key === "seqno") return count(row.seqno);
    if (column.key === "time") return time(Date.parse(row.time));
    return oneLine(row[column.key], 300);
  }

  _select(row) {
    if (!row) return;
    this.grid.follows = false;
    show(
      this._detail,
      h("h2", {}, row.key),
      facts([["SeqNo", count(row.seqno)], ["Time", `${moment(row.time)} (${ago(row.time)})`], ["Action", row.action === "-" ? "- (deleted)" : "+ (added or replaced)"]]),
      h("h3", {}, "Record"),
      recordView(row.record),
    );
  }
}

function recordView(record) {
  if (!record) return h("p", { class: "note" }, "Empty.");
  try {
    const node = parse(record);
    if (node.kind === "object" || node.kind === "array") return tree(node);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
  return h("pre", { class: "plain", tabindex: 0, "aria-label": "Record" }, record);
}

// About

async function aboutView(about, details) {
  const surl = absolute(path(about.name));
  const isAdmin = details.actions.includes("admin");
  const [followers, views, nurls] = await Promise.all([server.followers(), server.views(), isAdmin ? server.nurls(about.name) : null]);
  const follower = followers.find((one) => one.name === about.name);
  const own = views.filter((view) => (view.direction === "table" && view.name === about.name) || view.source === `/v1/table/${about.name}`);
  const element = h(
    "div",
    { class: "page" },
    h(
      "div",
      { class: "columns" },
      tall(
        "Give this to a partner",
        h("p", {}, "The State URL (SURL) of the table. Who has it, and may read it, can follow the table:"),
        h("p", { class: "copy" }, h("code", {}, surl), " ", copyButton(surl, "Copy SURL")),
        h("p", { class: "copy" }, h("code", {}, `headwater follow ${surl}`), " ", copyButton(`headwater follow ${surl}`)),
        facts([["Content type", about.type], ["Rows", `${count(details.first_seqno)} to ${count(details.last_seqno)}`], ["Bytes", bytes(details.bytes)], ["Live readers", count(details.live_readers)], ["Closed", about.closed ? "yes" : "no"]]),
      ),
      panel(
        "Where it comes from",
        follower
          ? followerFacts(follower)
          : h("p", { class: "note" }, about.mirror ? "A mirror that a program elsewhere writes." : "Its rows are written to this server."),
        own.map((view) => facts([["View", view.name], ["Source", view.source], ["State", view.state], ["Lag", bytes(view.lag_bytes)], ["Last error", view.last_error]])),
      ),
      panel("Who is told of new rows", nurls === null ? h("p", { class: "note" }, "Only tokens with admin on this table see the NURLs.") : nurlTable(nurls)),
      producersPanel(details),
      keepingPanel({ details, url: path(about.name), compaction: `${path(about.name)}/compact`, unit: "rows", again: () => server.table(about.name) }),
    ),
    snippetsView(() => ofTable(about.name, { since: 0, live: true })),
  );
  return { element };
}

function followerFacts(follower) {
  return facts([
    ["Mirror of", h("code", {}, follower.surl)],
    ["State", badge(follower.state, follower.state === "following" ? "good" : "warn")],
    ["Lag", follower.lag_rows === null ? "not known" : `${count(follower.lag_rows)} rows`],
    ["Last error", follower.last_error],
    ["Since", ago(follower.since)],
    ["Notify", follower.notify],
  ]);
}

function nurlTable(nurls) {
  if (!nurls.length) return h("p", { class: "note" }, "No NURL is advertised for this table. A follower advertises one to be told of new rows.");
  const row = (one) =>
    h(
      "tr",
      {},
      h("td", {}, h("code", {}, one.url), h("div", { class: "note" }, one.event)),
      h("td", {}, badge(one.failures ? "failing" : one.state, one.failures ? "bad" : "good")),
      h("td", { class: "end" }, count(one.lag_rows)),
      h("td", {}, one.last_answer ? `${one.last_answer}, ${ago(one.last_answer_at)}` : "none since the start", one.failures ? h("div", { class: "note" }, `${several(one.failures, "failure")}; next ${until(one.next_attempt_at)}`) : null),
    );
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "NURLs" }, h("table", {}, h("thead", {}, h("tr", {}, ["NURL", "State", "Rows behind", "Last answer"].map((label, index) => h("th", { scope: "col", class: index === 2 ? "end" : null }, label)))), h("tbody", {}, nurls.map(row))));
}
