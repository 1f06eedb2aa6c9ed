// What streams and tables have in common beside their content: what is kept of them, and who writes to them.

import { Problem, request } from "./api.js";
import { facts, field, h, show } from "./dom.js";
import { ago, bytes, count, moment, seconds } from "./format.js";
import { announce, panel, problemBox } from "./shell.js";

// Headers of a PATCH, by the field that they change.
const LIMITS = [
  ["seconds", "stream-retain-seconds", () => "Seconds"],
  ["bytes", "stream-retain-bytes", () => "Bytes"],
  ["messages", "stream-retain-messages", (unit) => `${unit[0].toUpperCase()}${unit.slice(1)}`],
];
const COMPACT_AFTER = ["compact_after_s", "stream-compact-after", () => "Compact only what is older, in seconds"];

/**
 * What is kept of a stream or table; who may change that gets a form.
 *
 * @param details as `details` of streams and tables have them
 * @param url of the stream or table
 * @param compaction the URL that compacts it now; null if it cannot be compacted
 * @param again reads the details again
 */
export function keepingPanel({ details, url, compaction, unit, again }) {
  const body = h("div", {});
  const element = panel("Kept", body);
  const result = h("div", { class: "result" });
  const mayChange = details.actions.includes("retain");
  function update(known) {
    show(body, keeping(known, unit), mayChange ? form(known) : null, mayChange && compaction && known.retention?.compact ? compactNow() : null, result);
  }
  async function change(work, done) {
    show(result);
    try {
      const answer = await work();
      update(await again());
      show(result, h("p", { class: "good", role: "status" }, done(answer)));
    } catch (error) {
      show(result, problemBox(error));
      if (!(error instanceof Problem)) throw error;
    }
  }
  function form(known) {
    const kept = known.retention ?? {};
    const inputs = [...LIMITS, ...(compaction ? [COMPACT_AFTER] : [])].map(([name, header, label]) => ({ header, label: label(unit), was: kept[name] ?? null, input: h("input", { type: "number", min: name === "compact_after_s" ? 0 : 1, step: 1, value: kept[name] ?? null, placeholder: name === "compact_after_s" ? "all" : "no limit" }) }));
    const compact = compaction ? h("input", { type: "checkbox", checked: Boolean(kept.compact) }) : null;
    const box = h("details", { class: "fold" },
      h("summary", {}, "Change what is kept"),
      h("form", { class: "keeping", onsubmit: submit },
        inputs.slice(0, 3).map(({ label, input }) => field(label, input)),
        compact ? [h("label", { class: "check" }, compact, " Compact to the current state"), field(inputs[3].label, inputs[3].input, "field wide")] : null,
        h("p", { class: "note" }, "An empty field is no limit. What is not kept any more is removed at once, for good."),
        h("div", { class: "actions" }, h("button", { type: "submit", class: "primary" }, "Save"))));
    async function submit(event) {
      event.preventDefault();
      const changed = Object.fromEntries(inputs.filter(({ input, was }) => input.value !== String(was ?? "")).map(({ header, input }) => [header, input.value]));
      if (compact && compact.checked !== Boolean(kept.compact)) changed["stream-compact"] = String(compact.checked);
      if (!Object.keys(changed).length) {
        show(result, h("p", { class: "note", role: "status" }, "Nothing was changed."));
        return;
      }
      await change(() => request(url, { method: "PATCH", headers: changed }), () => "Saved.");
    }
    return box;
  }
  function compactNow() {
    const button = h("button", { type: "button", onclick: run }, "Compact now");
    async function run() {
      button.disabled = true;
      button.textContent = "Compacting…";
      announce("Compacting.");
      await change(
        async () => (await request(compaction, { method: "POST" })).json(),
        (done) => (done.compacted ? `Compacted: ${bytes(done.before_bytes)} became ${bytes(done.after_bytes)}.` : `Nothing was compacted: ${done.reason}.`),
      );
      button.disabled = false;
      button.textContent = "Compact now";
    }
    return h("div", { class: "actions" }, button);
  }
  update(details);
  return element;
}

function keeping(details, unit) {
  const kept = details.retention;
  if (!kept && !details.expires_at) return h("p", { class: "note" }, "Everything is kept: it has no retention and does not expire.");
  return facts([
    ["Expires", details.expires_at ? `${moment(details.expires_at)} (${ago(details.expires_at)})` : null],
    ["Time to live", details.ttl_seconds === null ? null : `${seconds(details.ttl_seconds)} after the last use`],
    ["Newest", kept?.seconds ? `${seconds(kept.seconds)} of ${unit}` : null],
    ["At most", kept?.bytes ? bytes(kept.bytes) : null],
    ["At least", kept?.messages ? `${count(kept.messages)} ${unit}` : null],
    ["Compaction", kept?.compact ? `to the current state${kept.compact_after_s ? `, of what is older than ${seconds(kept.compact_after_s)}` : ""}` : null],
    ["Trimmed so far", details.trimmed_bytes ? bytes(details.trimmed_bytes) : null],
  ]);
}

export function producersPanel(details) {
  return panel("Producers", producers(details));
}

function producers(details) {
  if (details.producers === null) return h("p", { class: "note" }, "Only tokens that may append see the producers.");
  if (!details.producers.length) return h("p", { class: "note" }, "No producer has appended with a Producer-Id.");
  const rows = details.producers.map((one) => h("tr", {}, h("td", {}, h("code", {}, one.id ?? `(long id) ${one.digest}`)), h("td", { class: "end" }, one.epoch), h("td", { class: "end" }, count(one.seq)), h("td", {}, ago(one.at))));
  const more = details.producer_count - rows.length;
  return [
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Producers" }, h("table", {}, h("thead", {}, h("tr", {}, ["Id", "Epoch", "Seq", "Last request"].map((label, index) => h("th", { scope: "col", class: index === 1 || index === 2 ? "end" : null }, label)))), h("tbody", {}, rows))),
    more > 0 ? h("p", { class: "note" }, `${count(more)} more, which were idle longer.`) : null,
  ];
}
