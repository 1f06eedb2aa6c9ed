// Subscriptions: who is behind, who holds a lease, what fails; and for one of them its streams and last wakes.

import { Problem, request, server, streamPath } from "./api.js";
import { badge, facts, h, show } from "./dom.js";
import { ago, bytes, count, moment, oneLine, until } from "./format.js";
import { Grid } from "./grid.js";
import { elements } from "./json.js";
import { before } from "./messages.js";
import { heading, panel, problemBox } from "./shell.js";
import { streamLink } from "./stream.js";

const EVERY_MS = 3000;
const SHOWN_MAX = 5000;
const WAKES = 20;
const COLUMNS = [
  { key: "id", label: "Subscription", width: "minmax(8rem, 1.4fr)" },
  { key: "status", label: "State", width: "6.5rem" },
  { key: "what", label: "Streams", width: "minmax(6rem, 1.2fr)", wide: true },
  { key: "lag", label: "Behind", width: "7rem", align: "end" },
  { key: "pending", label: "Pending", width: "6rem", align: "end", wide: true },
  { key: "lease", label: "Lease", width: "minmax(7rem, 1fr)", wide: true },
  { key: "retry", label: "Retries", width: "minmax(7rem, 1.2fr)", wide: true },
];

const link = (id) => `#/subscription/${encodeURIComponent(id)}`;

export async function subscriptionsPage() {
  let rows = [];
  const trouble = h("div", { class: "trouble" });
  const note = h("p", { class: "note" });
  const grid = new Grid({
    label: "Subscriptions",
    columns: COLUMNS,
    cell: (index, column) => cell(rows[index], column.key),
    onOpen: (index) => (location.hash = link(rows[index].id)),
    empty: "There are no subscriptions that your token may see.",
  });
  async function load() {
    if (document.hidden) return;
    try {
      const found = [];
      for (let after = null; found.length < SHOWN_MAX; ) {
        const page = await server.subscriptions({ after, limit: 1000 });
        found.push(...page.subscriptions);
        after = page.next_after;
        if (after === null) break;
      }
      rows = found;
      note.textContent = rows.length >= SHOWN_MAX ? `The first ${count(rows.length)} subscriptions.` : "";
      grid.setCount(rows.length);
      show(trouble);
    } catch (error) {
      show(trouble, problemBox(error));
      if (!(error instanceof Problem)) throw error;
    }
  }
  const timer = setInterval(load, EVERY_MS);
  return {
    element: h("div", { class: "page" }, heading("Subscriptions"), trouble, note, grid.element),
    shown: load,
    close() {
      clearInterval(timer);
      grid.close();
    },
  };
}

function cell(one, key) {
  if (!one) return "";
  switch (key) {
    case "id":
      return h("a", { href: link(one.id), tabindex: -1 }, one.id);
    case "status":
      return badge(one.status === "failed" ? "failing" : one.status, one.status === "failed" ? "bad" : "good");
    case "what":
      return one.pattern ?? `${count(one.stream_count)} by name`;
    case "lag":
      return one.lag_bytes === null ? "not known" : bytes(one.lag_bytes);
    case "pending":
      return count(one.pending_count);
    case "lease":
      return lease(one) ?? "";
    default:
      return retries(one) ?? "";
  }
}

function lease(one) {
  if (one.lease_expires_at === null) return null;
  return `${one.holder ?? "held"}, ends ${ago(one.lease_expires_at)}`;
}

function retries(one) {
  return one.failures ? `${count(one.failures)} failed, next ${until(one.next_attempt_at)}` : null;
}

export async function subscriptionPage({ names: [id] }) {
  const about = h("div", { class: "columns" });
  const streams = h("div", {});
  const wakes = h("div", {});
  const trouble = h("div", { class: "trouble" });
  let after = null;
  const shown = await server.subscription(id, { limit: 100 });
  show(streams, streamTable(shown.streams));
  const moreStreams = h("button", { type: "button", class: "quiet", onclick: more }, "More streams");
  after = shown.streams_next_after;
  moreStreams.hidden = after === null;
  async function more() {
    try {
      const page = await server.subscription(id, { limit: 100, after });
      after = page.streams_next_after;
      moreStreams.hidden = after === null;
      streams.querySelector("tbody").append(...page.streams.map(streamRow));
    } catch (error) {
      show(trouble, problemBox(error));
    }
  }
  async function look() {
    if (document.hidden) return;
    try {
      const page = await server.subscriptions({ prefix: id, limit: 1 });
      const one = page.subscriptions.find((listed) => listed.id === id);
      if (one) show(about, panel("Now", nowFacts(one)), panel("Configuration", configuration(one)));
      if (shown.wake_stream) await lastWakes(shown.wake_stream, id, wakes);
      else if (one) show(wakes, webhookWakes(one));
      show(trouble);
    } catch (error) {
      show(trouble, problemBox(error));
      if (!(error instanceof Problem)) throw error;
    }
  }
  const timer = setInterval(look, EVERY_MS);
  return {
    element: h("div", { class: "page" }, heading(id, { path: [["Subscriptions", "#/subscriptions"]], beside: [badge(shown.type)] }), trouble, about, panel("Last wakes", wakes), panel("Streams", streams, moreStreams)),
    shown: look,
    close: () => clearInterval(timer),
  };
}

function nowFacts(one) {
  return facts([
    ["State", badge(one.status === "failed" ? "failing" : one.status, one.status === "failed" ? "bad" : "good")],
    ["Behind", one.lag_bytes === null ? "not known: too many streams" : bytes(one.lag_bytes)],
    ["Pending streams", count(one.pending_count)],
    ["Lease", lease(one) ?? "nobody holds it"],
    ["Wake", one.wake_id ? h("code", {}, one.wake_id) : "none"],
    ["Wakes so far", count(one.generation)],
    ["Failures in a row", count(one.failures)],
    ["Last failure", one.last_failure],
    ["Next attempt", one.next_attempt_at ? `${moment(one.next_attempt_at)} (${ago(one.next_attempt_at)})` : null],
  ]);
}

function configuration(one) {
  return facts([
    ["Type", one.type],
    ["Pattern", one.pattern],
    ["Webhook", one.webhook?.url],
    ["Wake stream", one.wake_stream ? h("a", { href: streamLink(one.wake_stream) }, one.wake_stream) : null],
    ["Lease", `${count(one.lease_ttl_ms)} ms`],
    ["Created", `${moment(one.created_at)}${one.created_by ? ` by ${one.created_by}` : ""}`],
    ["Description", one.description],
  ]);
}

function streamRow(stream) {
  return h("tr", {}, h("td", {}, h("a", { href: streamLink(stream.path) }, stream.path)), h("td", {}, stream.link_type === "glob" ? "by the pattern" : "by name"), h("td", {}, h("code", {}, stream.acked_offset)));
}

function streamTable(streams) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Streams of the subscription" }, h("table", {}, h("thead", {}, h("tr", {}, ["Stream", "Linked", "Acked offset"].map((label) => h("th", { scope: "col" }, label)))), h("tbody", {}, streams.map(streamRow))));
}

/** The newest wake events of a pull-wake subscription are messages of its wake stream. */
async function lastWakes(path, id, element) {
  const details = await server.details(path);
  const found = await before(path, details.tail_offset, 64 * 1024);
  const text = await (await request(`${streamPath(path)}?offset=${encodeURIComponent(found.offset)}&until=${encodeURIComponent(details.tail_offset)}`)).text();
  const events = elements(text).filter((message) => message.includes(JSON.stringify(id))).slice(-WAKES).reverse();
  show(element, events.length ? h("ol", { class: "wakes" }, events.map((event) => h("li", {}, h("code", {}, oneLine(event, 300))))) : h("p", { class: "note" }, "No wake yet."));
}

function webhookWakes(one) {
  return h("p", { class: "note" }, one.generation ? `The webhook was woken ${count(one.generation)} times. ${one.failures ? `The last ${count(one.failures)} deliveries failed: ${one.last_failure}.` : "The last delivery succeeded or is running."}` : "No wake yet.");
}
