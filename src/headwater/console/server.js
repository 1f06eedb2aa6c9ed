// The server: charts from its metrics, and what it is.

import { Problem, server } from "./api.js";
import { Chart } from "./chart.js";
import { facts, h, show } from "./dom.js";
import { bytes, count, rate, seconds } from "./format.js";
import { parseMetrics, quantile, total } from "./metrics.js";
import { settingsPanel } from "./settings.js";
import { heading, panel, problemBox } from "./shell.js";

const EVERY_MS = 2000;
const KEPT_MS = 10 * 60 * 1000;

// What each chart shows, from two looks at the metrics.
const CHARTS = [
  ["Appends", (number) => rate(number), (now, last, passed) => change(now, last, "headwater_commit_batch_records_sum", passed)],
  ["Commit latency, p99", seconds, (now, last) => quantile(now, last, "headwater_commit_duration_seconds", 0.99)],
  ["Appends per commit", (number) => count(Math.round(number * 10) / 10), (now, last) => mean(now, last, "headwater_commit_batch_records")],
  ["Live readers", count, (now) => total(now, "headwater_live_readers")],
  ["Connections", count, (now) => total(now, "headwater_http_connections")],
  ["Sent", (number) => `${bytes(number)}/s`, (now, last, passed) => change(now, last, "headwater_http_sent_bytes_total", passed)],
  ["Memory", bytes, (now, last, passed, top) => top?.memory_bytes ?? null],
  ["Journal, not folded", bytes, (now) => total(now, "headwater_journal_unfolded_bytes")],
  ["Fold, mean time", seconds, (now, last) => mean(now, last, "headwater_fold_duration_seconds")],
  ["Loop delay, p99", seconds, (now, last) => quantile(now, last, "headwater_loop_delay_seconds", 0.99)],
];

function change(now, last, name, passed) {
  const value = total(now, name);
  const before = last && total(last, name);
  return value === null || before === null || !passed ? null : Math.max(0, value - before) / passed;
}

function mean(now, last, name) {
  const counted = total(now, `${name}_count`);
  const before = last && total(last, `${name}_count`);
  if (counted === null || before === null || counted <= before) return null;
  return (total(now, `${name}_sum`) - total(last, `${name}_sum`)) / (counted - before);
}

export async function serverPage({ caller }) {
  const { version } = await server.index();
  const charts = CHARTS.map(([title, format, value]) => ({ chart: new Chart(title, format), value, points: [] }));
  const about = h("div", {});
  const trouble = h("div", { class: "trouble" });
  let last = null;
  let lastAt = 0;
  let busy = false;
  async function look() {
    if (document.hidden || busy) return;
    busy = true;
    try {
      const [text, top] = await Promise.all([server.metrics(), caller.administers ? server.top({ limit: 1 }) : null]);
      const now = parseMetrics(text);
      const at = Date.now();
      for (const { chart, value, points } of charts) {
        points.push({ at, value: value(now, last, (at - lastAt) / 1000, top) });
        while (points[0].at < at - KEPT_MS) points.shift();
        chart.show(points, Math.min(points[0].at, at - 60_000), at);
      }
      last = now;
      lastAt = at;
      show(about, serverFacts(now, top, version));
      show(trouble);
    } catch (error) {
      show(trouble, problemBox(error));
      if (error.status === 403) clearInterval(timer);
      if (!(error instanceof Problem)) throw error;
    } finally {
      busy = false;
    }
  }
  const timer = setInterval(look, EVERY_MS);
  const settings = settingsPanel(caller);
  return {
    element: h("div", { class: "page" }, heading("Server"), trouble, h("div", { class: "charts" }, charts.map(({ chart }) => chart.element)), panel("Server", about), settings.element),
    shown() {
      look();
      return settings.load();
    },
    close: () => clearInterval(timer),
  };
}

function serverFacts(now, top, version) {
  const value = (name, format = count) => {
    const found = total(now, `headwater_${name}`);
    return found === null ? null : format(found);
  };
  return facts([
    ["Version", version],
    ["Store", now.get("headwater_info")?.[0]?.labels.store],
    ["Ready", total(now, "headwater_ready") ? "yes" : "no"],
    ["Streams and tables", value("streams")],
    ["In memory", value("streams_loaded")],
    ["Index", value("index_bytes", bytes)],
    ["Journal", value("journal_bytes", bytes)],
    ["Free disk", value("disk_free_bytes", bytes)],
    ["Failed commits", value("commit_failures_total")],
    ["Failed folds", value("fold_failures_total")],
    ["Backups", value("backups")],
    ["Oldest backup", value("backup_age_seconds", seconds)],
    ["Writes refused", top?.refusing ?? top?.full ?? null],
  ]);
}
