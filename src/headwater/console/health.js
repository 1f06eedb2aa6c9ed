// What is wrong right now, from what the server says of itself. The bounds are those of the alerts in deploy/prometheus.

import { count, seconds, several } from "./format.js";
import { parseMetrics, total } from "./metrics.js";

const BACKUP_AGE_S = 900;
const LAG_ROWS = 100_000;

/** A list of {text, bad, href}; bad ones first. */
export function troubles({ ready, followers, views, subscriptions, metrics }) {
  const found = [];
  const add = (text, bad = false, href = null) => found.push({ text, bad, href });
  if (ready.error) add(ready.error.status === 503 ? `The server is not ready: ${ready.error.detail}.` : ready.error.message, true);
  else for (const line of ready.text.split("\n")) if (line.startsWith("warning: ")) add(line.slice(9));
  if (metrics) ofMetrics(parseMetrics(metrics), add);
  for (const one of followers) {
    const href = `#/table/${encodeURIComponent(one.name)}/about`;
    if (one.state !== "following") add(`The follower of ${one.name} is ${one.state}${one.last_error ? `: ${one.last_error}` : ""}.`, one.state === "stopped", href);
    else if (one.lag_rows > LAG_ROWS) add(`The follower of ${one.name} is ${count(one.lag_rows)} rows behind.`, false, href);
  }
  for (const one of views) if (one.state === "retrying") add(`The view ${one.name} is stuck${one.last_error ? `: ${one.last_error}` : ""}.`, true);
  for (const one of subscriptions) {
    if (one.status === "failed") add(`The ${one.webhook ? "webhook of" : "wake stream of"} subscription ${one.id} fails (${several(one.failures, "time")} in a row): ${one.last_failure ?? "for an unknown reason"}.`, true, `#/subscription/${encodeURIComponent(one.id)}`);
  }
  return found.sort((one, other) => other.bad - one.bad);
}

function ofMetrics(samples, add) {
  const value = (name) => total(samples, `headwater_${name}`) ?? 0;
  if (value("disk_full")) add("The disk is full: writes are refused.", true, "#/server");
  if (value("memory_short")) add("Memory is short: writes are refused.", true, "#/server");
  if (value("fold_behind")) add("The fold of the journal is behind.", false, "#/server");
  if (value("damaged_reads_total")) add(`Damaged data was read ${several(value("damaged_reads_total"), "time")} since the start.`, true, "#/server");
  if (value("backups_failing")) add(`${several(value("backups_failing"), "backup")} failed at the last attempt.`, true);
  const age = value("backup_age_seconds");
  if (age > BACKUP_AGE_S) add(`The oldest backup is ${seconds(age)} old.`);
  if (samples.has("headwater_lease_held") && !value("lease_held")) add("The server does not hold its lease.", true);
  const waiting = total(samples, "headwater_notify_nurls", { state: "waiting" });
  if (waiting) add(`${several(waiting, "NURL does not answer and is", "NURLs do not answer and are")} tried again.`);
  for (const { labels, value: failed } of samples.get("headwater_reload_failed") ?? []) if (failed) add(`${labels.file} could not be loaded again; its previous content is in use.`);
}
