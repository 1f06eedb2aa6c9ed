// A stream: its messages, live; appending; and what it is (producers, forks, retention).

import { Problem, absolute, compactPath, request, server, streamPath } from "./api.js";
import { keepingPanel, producersPanel } from "./details.js";
import { badge, copyButton, debounce, facts, field, h, show } from "./dom.js";
import { ago, bytes, count, hexPreview, localInput, moment, oneLine, rate, time } from "./format.js";
import { Grid } from "./grid.js";
import { BEGINNING, MessageWindow, before, kindOf, textOf } from "./messages.js";
import { compileFilter } from "./filter.js";
import { announce, heading, panel, problemBox, tabs, tall } from "./shell.js";
import { ofStream, snippetsView } from "./snippets.js";
import { content } from "./tree.js";

const COLUMNS = [
  { key: "time", label: "Appended", width: "8.5rem", wide: true },
  { key: "message", label: "Message", width: "minmax(0, 1fr)" },
  { key: "size", label: "Bytes", width: "4.5rem", align: "end", wide: true },
];

export const streamLink = (path, part = "") => `#/stream/${encodeURIComponent(path)}${part}`;

/** The parts that all pages of a stream share. */
export function streamHead(details, current) {
  const parts = details.path.split("/");
  const path = parts.slice(0, -1).map((part, index) => [part, `#/?prefix=${encodeURIComponent(`${parts.slice(0, index + 1).join("/")}/`)}`]);
  const pages = [["messages", streamLink(details.path), "Messages"]];
  if (kindOf(details.content_type) === "json") pages.push(["state", streamLink(details.path, "/state"), "State"]);
  pages.push(["about", streamLink(details.path, "/about"), "About"]);
  return [
    heading(details.path, {
      path,
      beside: [badge(details.content_type), badge(bytes(details.bytes)), details.closed ? badge("closed", "warn") : null, details.forked_from ? badge("fork") : null],
    }),
    tabs("Parts of the stream", pages, current),
  ];
}

export async function streamPage({ names: [path], parameters }) {
  const place = parameters.has("offset") ? null : before(path, "now"); // while the details are asked for
  place?.catch(() => {}); // it is awaited later, or the details fail as well
  const details = await server.details(path);
  const view = new MessagesView(details);
  const element = h("div", { class: "page" }, streamHead(details, "messages"), view.element, details.actions.includes("append") ? appendBox(details, view) : null, view.snippets);
  return {
    element,
    close: () => view.close(),
    shown: () => view.begin(parameters.get("offset"), place),
  };
}

class MessagesView {
  constructor(details) {
    this.details = details;
    this.window = new MessageWindow(details, (change) => this._changed(change), (status, error) => this._status(status, error));
    this._filter = null;
    this._matches = null; // indexes of the items that are shown; null: all
    this._rateAt = performance.now();
    this._rateFrom = 0;
    this.grid = new Grid({
      label: `Messages of ${details.path}`,
      columns: COLUMNS,
      cell: (index, column) => this._cell(index, column),
      onSelect: (index) => this._select(index),
      onOpen: () => this._detail.querySelector("summary, pre, button")?.focus(),
      onEdge: (edge) => this._edge(edge),
      empty: "No messages here.",
    });
    this.grid.canFollow = true;
    this._toolbar();
    this._detail = h("section", { class: "detail", "aria-label": "The selected message" });
    this._trouble = h("div", { class: "trouble" });
    this.element = h("div", {}, this._bar, this._trouble, h("div", { class: "split" }, this.grid.element, this._detail));
    this._noDetail();
    this.snippets = snippetsView(() => ofStream(details.path, { offset: this.window.start ?? BEGINNING, live: this.window.isLive, json: this.window.kind === "json" }));
    this._timer = setInterval(() => this._showRate(), 1000);
  }

  close() {
    clearInterval(this._timer);
    this.window.close();
    this.grid.close();
  }

  _toolbar() {
    const search = h("input", { type: "search", placeholder: "text, /pattern/ or field=value", spellcheck: "false", oninput: debounce(150, () => this._setFilter(search.value)) });
    const offset = h("input", { type: "text", placeholder: "offset", spellcheck: "false", autocomplete: "off" });
    const at = h("input", { type: "datetime-local", step: "1", value: localInput(Date.now() - 300_000) });
    const jump = h("details", { class: "menu" },
      h("summary", {}, "Jump"),
      h("div", { class: "menu-body" },
        h("button", { type: "button", onclick: () => go(() => this.window.openAt(BEGINNING), "the beginning") }, "First message"),
        h("button", { type: "button", onclick: () => go(() => this.window.openEnd(), "the end") }, "Newest messages"),
        h("form", { onsubmit: (event) => { event.preventDefault(); go(() => this.window.openAt(offset.value.trim()), "the offset"); } }, field("Offset", offset), h("button", { type: "submit" }, "Go to offset")),
        h("form", { onsubmit: (event) => { event.preventDefault(); go(() => this.window.openTime(new Date(at.value).toISOString()), "the time"); } }, field("Appended since", at), h("button", { type: "submit" }, "Go to time")),
      ));
    const go = async (work, where) => {
      jump.open = false;
      this._pause();
      await this._try(async () => {
        await work();
        this.grid.toTop();
        announce(`At ${where}: ${count(this.window.items.length)} messages loaded.`);
      });
    };
    jump.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        jump.open = false;
        jump.querySelector("summary").focus();
      }
    });
    this._search = search;
    this._liveButton = h("button", { type: "button", class: "live", onclick: () => this._toggleLive() });
    this._state = h("span", { class: "state" });
    this._bar = h("div", { class: "toolbar", role: "group", "aria-label": "What is shown" }, this._liveButton, field("Filter", search, "field inline grow"), jump, this._state);
    this._showLive("paused");
  }

  async begin(offset, place) {
    await this._try(async () => {
      if (offset) return this.window.openAt(offset);
      await this.window.openEnd(place);
      this.grid.follows = true;
      this.grid.toEnd();
      if (!this.details.closed) this.window.follow();
      return this._showLive(this.details.closed ? "closed" : "live");
    });
  }

  async _try(work) {
    show(this._trouble);
    try {
      await work();
    } catch (error) {
      if (error.name === "AbortError") return;
      show(this._trouble, problemBox(error));
      if (!(error instanceof Problem) && !(error instanceof RangeError)) throw error;
    }
  }

  // Live

  async _toggleLive() {
    if (this.window.isLive) {
      this._pause();
      announce("Paused.");
      return;
    }
    await this._try(async () => {
      if (this.window.atTail || this.window.items.length) await this.window.resume();
      else await this.window.openEnd().then(() => this.window.follow());
      this.grid.follows = true;
      this.grid.toEnd();
      this._showLive("live");
      announce("Live.");
    });
  }

  _pause() {
    this.window.pause();
    this._showLive("paused");
  }

  _status(status, error) {
    this._showLive(status, error);
    if (status === "closed") announce("The stream is closed: this is its end.");
    else if (status === "deleted") announce("The stream was deleted.");
    else if (status === "failed") show(this._trouble, problemBox(error));
  }

  _showLive(status, error) {
    const live = this.window.isLive;
    show(this._liveButton, h("span", { class: `dot ${live ? status : "off"}`, "aria-hidden": "true" }), live ? "Pause" : "Follow");
    this._liveButton.setAttribute("aria-pressed", live);
    this._liveButton.disabled = status === "closed" || status === "deleted";
    this._live = { live: "Live", paused: "Paused", held: "Paused while you read older messages", closed: "Closed: this is the end", deleted: "The stream was deleted", failed: "Stopped", waiting: `No connection, trying again (${error?.message ?? ""})` }[status];
    this._showState();
  }

  _showRate() {
    const now = performance.now();
    const received = this.window.received;
    this._perSecond = ((received - this._rateFrom) * 1000) / (now - this._rateAt);
    this._rateAt = now;
    this._rateFrom = received;
    this._showState();
  }

  _showState() {
    const shown = this._matches ? `${count(this._matches.length)} of ${count(this.window.items.length)}` : count(this.window.items.length);
    const speed = this.window.isLive && this._perSecond ? ` · ${rate(this._perSecond, " messages/s")}` : "";
    this._state.textContent = `${this._live}${speed} · ${shown} loaded`;
  }

  // Rows

  _changed({ reset, before = 0 }) {
    const items = this.window.items;
    let shift = before;
    if (this._filter) shift = this._refilter(reset, before);
    if (reset) {
      this.grid.selected = -1;
      shift = 0;
    }
    // Who reads older messages does not lose them to new ones: the window is full, so it stops to move.
    if (before < 0 && !this.grid.follows && this.window.isLive && this.grid.range[0] < 500) {
      this.window.pause();
      this._showLive("held");
    }
    this.grid.setCount(this._matches ? this._matches.length : items.length, shift);
    this._showState();
  }

  /** Compute which items match, again only for new ones; returns how many rows were added or removed at the front. */
  _refilter(reset, before) {
    const { items } = this.window;
    const again = reset || before > 0;
    const known = again ? [] : this._matches;
    const matches = known.map((index) => index + before).filter((index) => index >= 0);
    const shift = again ? 0 : matches.length - known.length;
    for (let index = again ? 0 : this._checked + before; index < items.length; index += 1) {
      if (this._filter(items[index])) matches.push(index);
    }
    const added = before > 0 ? matches.length - this._matches.length : 0;
    this._matches = matches;
    this._checked = items.length;
    return shift + added;
  }

  _setFilter(text) {
    try {
      this._filter = compileFilter(text);
      this._search.removeAttribute("aria-invalid");
    } catch (error) {
      this._search.setAttribute("aria-invalid", "true");
      show(this._trouble, problemBox({ title: "This filter is no pattern", message: error.message }));
      return;
    }
    show(this._trouble);
    this._matches = this._filter ? [] : null;
    this._changed({ reset: true });
    announce(this._filter ? `${count(this._matches.length)} messages match.` : "All messages are shown.");
  }

  _index(row) {
    return this._matches ? this._matches[row] : row;
  }

  _cell(row, column) {
    const index = this._index(row);
    const item = this.window.items[index];
    if (!item) return "";
    if (column.key === "message") return preview(item, this.window.kind);
    if (column.key === "size") return count(item.text === undefined ? item.size : item.size - 1);
    const at = this.window.timeOf(index);
    return at === undefined ? "…" : at === null ? "" : time(at);
  }

  _edge(edge) {
    if (this._loading || (edge === "start" ? this.window.atStart : this.window.atTail)) return;
    this._loading = true;
    this._try(() => (edge === "start" ? this.window.older() : this.window.newer())).finally(() => (this._loading = false));
  }

  // The selected message

  _noDetail() {
    show(this._detail, h("p", { class: "note" }, "Select a message to see all of it."));
  }

  async _select(row) {
    const item = this.window.items[this._index(row)];
    if (!item) return;
    this.grid.follows = false;
    const about = h("div", {});
    show(this._detail, h("h2", {}, "Message"), about, content(item));
    this._selected = item;
    try {
      const record = await this.window.recordOf(item);
      if (this._selected !== item || !record) return;
      show(about, facts([["Appended", `${moment(record.time)} (${ago(record.time)})`], ["Offset", h("span", {}, h("code", {}, record.offset), " ", copyButton(record.offset))], ["Next offset", h("code", {}, record.next_offset)]]));
    } catch (error) {
      if (this._selected === item) show(about, h("p", { class: "note" }, error.message));
      if (!(error instanceof Problem)) throw error;
    }
  }
}

function preview(item, kind) {
  item.preview ??= kind === "bytes" ? hexPreview(item.data) : oneLine(textOf(item, 400));
  return item.preview;
}

// Appending

function appendBox(details, view) {
  const json = kindOf(details.content_type) === "json";
  const input = h("textarea", { rows: 3, spellcheck: "false", "aria-describedby": "append-note", onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(); } });
  const result = h("div", { class: "result" });
  const button = h("button", { type: "submit", class: "primary" }, "Append");
  const note = json ? "One message as JSON, or an array of them. Ctrl+Enter appends." : `The text is appended as it is, as ${details.content_type}. Ctrl+Enter appends.`;
  const form = h("form", { class: "append", onsubmit: submit }, field("Append", input), h("p", { class: "note", id: "append-note" }, note), h("div", { class: "actions" }, button), result);
  async function submit(event) {
    event.preventDefault();
    button.disabled = true;
    try {
      const response = await request(streamPath(details.path), { method: "POST", headers: { "content-type": details.content_type }, body: input.value });
      show(result, h("p", { class: "good", role: "status" }, "Appended. The stream ends at ", h("code", {}, response.headers.get("stream-next-offset") ?? ""), "."));
      input.value = "";
      if (!view.window.isLive) await view._try(async () => view.window.newer());
    } catch (error) {
      show(result, problemBox(error));
      if (!(error instanceof Problem)) throw error;
    } finally {
      button.disabled = false;
    }
  }
  return h("section", { class: "panel" }, form);
}

// About

export async function aboutPage({ names: [path] }) {
  const details = await server.details(path);
  const json = kindOf(details.content_type) === "json";
  const forks = h("div", {});
  const element = h(
    "div",
    { class: "page" },
    streamHead(details, "about"),
    h(
      "div",
      { class: "columns" },
      tall(
        "Stream",
        facts([
          ["URL", h("span", {}, h("code", {}, absolute(streamPath(path))), " ", copyButton(absolute(streamPath(path))))],
          ["Content type", details.content_type],
          ["Bytes", `${count(details.bytes)} (${bytes(details.bytes)})`],
          ["First offset", h("code", {}, details.first_offset)],
          ["Tail offset", h("code", {}, details.tail_offset)],
          ["Created", `${moment(details.created_at)} (${ago(details.created_at)})`],
          ["Closed", details.closed ? "yes: nothing can be appended" : "no"],
          ["Live readers", count(details.live_readers)],
          ["You may", details.actions.join(", ")],
        ]),
      ),
      keepingPanel({ details, url: streamPath(path), compaction: json ? compactPath(path) : null, unit: "messages", again: () => server.details(path) }),
      producersPanel(details),
      panel("Forks", forks),
    ),
    snippetsView(() => ofStream(path, { offset: BEGINNING, live: true, json })),
  );
  showForks(details, forks);
  return { element };
}

async function showForks(details, element) {
  const source = details.forked_from;
  const own = h("li", {}, h("strong", {}, details.path));
  show(element, source ? h("ul", { class: "forks" }, h("li", {}, source.path ? h("a", { href: streamLink(source.path, "/about") }, source.path) : "a stream that your token may not read", h("span", { class: "note" }, ` at ${source.offset}`), h("ul", {}, own))) : h("ul", { class: "forks" }, own));
  if (!details.fork_count) {
    if (!source) show(element, h("p", { class: "note" }, "It is no fork, and has none."));
    return;
  }
  await forkList(details.path, own);
}

/** The forks of a stream below its name; those of forks when they are opened. */
async function forkList(path, item, after = null) {
  try {
    const page = await server.forks(path, after);
    const list = item.querySelector(":scope > ul") ?? h("ul", {});
    item.append(list);
    for (const fork of page.forks) {
      const one = h("li", {}, h("a", { href: streamLink(fork.path, "/about") }, fork.path), h("span", { class: "note" }, ` at ${fork.forked_from.offset} · ${bytes(fork.bytes)} `));
      const open = h("button", { type: "button", class: "quiet", onclick: () => { open.remove(); forkList(fork.path, one); } }, "Its forks");
      one.append(open);
      list.append(one);
    }
    if (page.next_after !== null) {
      const more = h("button", { type: "button", class: "quiet", onclick: () => { more.remove(); forkList(path, item, page.next_after); } }, "Look further for forks");
      item.append(more);
    } else if (!page.forks.length && after === null) item.append(h("span", { class: "note" }, " has no forks that your token may read"));
  } catch (error) {
    item.append(problemBox(error));
    if (!(error instanceof Problem)) throw error;
  }
}
