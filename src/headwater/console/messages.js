// A window of the messages of a stream: a bounded number of them, which moves over the stream and follows its end.
//
// A stream of any length costs the same, because only the part around the window is read. Where to begin before an
// offset is found with split points, which the server computes without reading. A batch is a range of the stream that
// was read at once; batches are dropped as a whole, so the offsets at both ends of the window are always those of the
// server. When the messages of a JSON stream were appended is asked for when they are shown.

import { Problem, events, query, request, server, streamPath } from "./api.js";
import { byteLength, elements } from "./json.js";

const PAGE_BYTES = 128 * 1024;
const ITEMS_MAX = 20_000;
const BYTES_MAX = 16 * 1024 * 1024;
const PARTS = 64;
const FLUSH_MS = 100;
const TIMES_EVERY_MS = 1000;
const BACKOFF_MS = [1000, 2000, 5000, 10_000];

export const BEGINNING = "-1";

/** An offset before another one, at most about `bytes` before it, at which a record begins; and whether it is the first. */
export async function before(path, until, bytes = PAGE_BYTES, signal = undefined) {
  let offset = BEGINNING;
  let isFirst = true;
  for (let step = 0; step < 12; step += 1) {
    const found = await server.splits({ path, offset, until, parts: PARTS }, signal);
    offset = found.offset;
    if (found.bytes <= bytes || !found.splits.length) break;
    // Several parts at the end may be small enough together.
    const parts = Math.max(1, Math.min(found.splits.length, Math.floor((bytes * PARTS) / found.bytes)));
    offset = found.splits.at(-parts);
    isFirst = false;
    if (found.bytes / PARTS <= 2 * bytes) break; // near enough: another request would cost more than the bytes
  }
  return { offset, isFirst };
}

/** The end of the records that begin at an offset and have about this size together. */
async function after(path, offset, bytes = PAGE_BYTES, signal = undefined) {
  const found = await server.splits({ path, offset, bytes, limit: 1 }, signal);
  return { offset: found.offset, until: found.splits[0] ?? found.until, isLast: !found.splits.length };
}

export class MessageWindow {
  /**
   * @param stream its details, as `__ds/details` has them
   * @param changed called with {reset, before, count}: everything is new, or so many messages were added (removed, if
   * negative) at the front
   */
  constructor(stream, changed, status) {
    this.path = stream.path;
    this.kind = kindOf(stream.content_type);
    this.items = [];
    this.atStart = false;
    this.atTail = false;
    this.received = 0;
    this._changed = changed;
    this._status = status;
    this._batches = [];
    this._bytes = 0;
    this._turn = Promise.resolve();
    this._live = null;
    this._pending = [];
    this._flushing = null;
    this._timesAt = 0;
    this._timesWanted = null;
    this._closed = new AbortController();
  }

  close() {
    this.pause();
    this._closed.abort();
    clearTimeout(this._timesWanted);
  }

  get start() {
    return this._batches.length ? this._batches[0].start : this._empty;
  }

  get end() {
    return this._batches.length ? this._batches.at(-1).end : this._empty;
  }

  // Places

  /** Show the newest messages. `place` is where they begin, if that has been asked already. */
  openEnd(place = null) {
    return this._take(async (signal) => {
      const found = await (place ?? before(this.path, "now", PAGE_BYTES, signal));
      await this._open(found.offset, "now", signal);
      this.atStart = found.isFirst;
      this.atTail = true;
    });
  }

  openAt(offset) {
    return this._take(async (signal) => {
      const found = await after(this.path, offset, PAGE_BYTES, signal);
      await this._open(found.offset, found.until, signal);
      this.atStart = offset === BEGINNING;
      this.atTail = found.isLast;
    });
  }

  /** Show what was appended at a time or later. */
  async openTime(at) {
    const found = await server.records({ path: this.path, at, limit: 1 });
    await this.openAt(found.offset);
    if (!this.items.length) throw new Problem(0, "Nothing later", "nothing was appended at this time or later");
  }

  older() {
    if (this.atStart || !this._batches.length) return undefined;
    return this._take(async (signal) => {
      if (this.atStart) return;
      const until = this.start;
      const found = await before(this.path, until, PAGE_BYTES, signal);
      const batches = await this._read(found.offset, until, signal);
      this.atStart = found.isFirst;
      const count = batches.reduce((sum, batch) => sum + batch.items.length, 0);
      this._batches.unshift(...batches);
      this._trim(false);
      this._collect({ before: count });
    });
  }

  newer() {
    if (this.atTail || !this._batches.length) return undefined;
    return this._take(async (signal) => {
      if (this.atTail) return;
      const found = await after(this.path, this.end, PAGE_BYTES, signal);
      this._batches.push(...(await this._read(this.end, found.until, signal)));
      this.atTail = found.isLast;
      this._collect({ before: -this._trim(true) });
    });
  }

  async _open(offset, until, signal) {
    const batches = await this._read(offset, until, signal);
    this._batches = batches.length ? batches : [];
    this._empty = batches.length ? null : this._next;
    this._trim(true);
    this._collect({ reset: true });
  }

  /** One change of the window at a time. */
  _take(work) {
    const done = this._turn.then(() => work(this._closed.signal));
    this._turn = done.catch(() => {});
    return done;
  }

  /** Read a range, as batches. */
  async _read(offset, until, signal) {
    const batches = [];
    let bytes = 0;
    for (let start = offset; ; ) {
      const response = await request(`${streamPath(this.path)}${query({ offset: start, until: until === "now" ? null : until })}`, { signal });
      const end = response.headers.get("stream-next-offset");
      this._next = end;
      const batch = await this._batch(start, end, response, signal);
      if (batch.items.length) batches.push(batch);
      bytes += batch.size;
      if (end === until || end === start || response.headers.has("stream-up-to-date") || bytes > BYTES_MAX) return batches;
      start = end;
    }
  }

  async _batch(start, end, response, signal) {
    if (this.kind === "json") return jsonBatch(start, end, await response.text());
    const data = new Uint8Array(await response.arrayBuffer());
    return data.length ? this._recordBatch(start, end, data, signal) : { start, end, items: [], size: 0 };
  }

  /** Bytes are divided into what was appended at once. */
  async _recordBatch(start, end, data, signal) {
    const batch = { start, end, items: [], size: data.length, timed: true };
    let from = 0;
    for await (const [stop, time] of this._records(start, end, signal)) {
      batch.items.push({ data: data.subarray(from, stop), size: stop - from, end: stop, time, batch });
      from = stop;
    }
    return batch;
  }

  /** The end, counted from the start, and the time of each record of a range. */
  async *_records(start, end, signal) {
    let base = 0;
    for (let offset = start; ; ) {
      const page = await server.records({ path: this.path, offset, until: end, limit: 10_000, compact: true }, signal);
      for (let index = 0; index < page.ends.length; index += 1) yield [base + page.ends[index], page.times_ms[index]];
      if (page.up_to_date || page.next_offset === end || !page.ends.length) return;
      base += page.ends.at(-1);
      offset = page.next_offset;
    }
  }

  _collect(change) {
    this.items = this._batches.length === 1 ? this._batches[0].items : this._batches.flatMap((batch) => batch.items);
    this._changed(change);
  }

  /** Drop batches until the window is small enough; returns how many messages were dropped at the front. */
  _trim(front) {
    let items = 0;
    let bytes = 0;
    for (const batch of this._batches) {
      items += batch.items.length;
      bytes += batch.size;
    }
    let dropped = 0;
    while (this._batches.length > 1 && (items > ITEMS_MAX || bytes > BYTES_MAX)) {
      const batch = front ? this._batches.shift() : this._batches.pop();
      items -= batch.items.length;
      bytes -= batch.size;
      if (front) {
        dropped += batch.items.length;
        this.atStart = false;
      } else this.atTail = false;
    }
    return dropped;
  }

  // Live

  get isLive() {
    return this._live !== null;
  }

  /** Follow the end of the stream, from the end of the window. */
  follow() {
    if (this._live) return;
    this._live = new AbortController();
    this._run(this._live.signal);
  }

  pause() {
    this._live?.abort();
    this._live = null;
    clearTimeout(this._flushing);
    this._flushing = null;
    this._pending = [];
  }

  /** Continue where it was paused; far behind, at the end. */
  async resume() {
    const left = await server.splits({ path: this.path, offset: this.end, parts: 1 });
    if (left.bytes > 8 * PAGE_BYTES) await this.openEnd();
    else while (!this.atTail) await this.newer();
    this.follow();
  }

  async _run(signal) {
    for (let failures = 0; !signal.aborted; ) {
      try {
        this._status("live");
        const ended = this.kind === "json" ? await this._events(signal) : await this._polls(signal);
        if (ended) {
          this._flush();
          this._live = null;
          this._status(ended);
          return;
        }
        failures = 0;
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof Problem && error.status >= 400 && error.status < 500 && error.status !== 429) {
          this._live = null;
          this._status("failed", error);
          return;
        }
        this._status("waiting", error);
        await new Promise((resolve) => setTimeout(resolve, BACKOFF_MS[Math.min(failures, BACKOFF_MS.length - 1)]));
        failures += 1;
      }
    }
  }

  async _events(signal) {
    const from = this._pending.length ? this._pending.at(-1).end : this.end;
    for await (const event of events(`${streamPath(this.path)}${query({ offset: from, live: "sse" })}`, signal)) {
      if (signal.aborted) return null;
      if (event.name === "data") this._receive({ text: event.data, end: event.id });
      else if (event.name === "control") {
        const control = JSON.parse(event.data);
        if (control.streamClosed) return "closed";
        if (control.streamDeleted) return "deleted";
      }
    }
    return null;
  }

  /** Bytes and text as they are, which server-sent events cannot carry. */
  async _polls(signal) {
    let cursor = null;
    while (!signal.aborted) {
      const start = this.end;
      const response = await request(`${streamPath(this.path)}${query({ offset: start, live: "long-poll", cursor })}`, { signal });
      cursor = response.headers.get("stream-cursor");
      const end = response.headers.get("stream-next-offset");
      if (response.status !== 204) {
        const batch = await this._batch(start, end, response, signal);
        if (signal.aborted) return null;
        if (batch.items.length) this._add(batch);
      }
      if (response.headers.get("stream-closed") === "true") return "closed";
    }
    return null;
  }

  _receive(part) {
    this._pending.push(part);
    if (!this._flushing) this._flushing = setTimeout(() => this._flush(), FLUSH_MS);
    // A page in the background has slow timers.
    if (this._pending.length > 2000) this._flush();
  }

  _flush() {
    clearTimeout(this._flushing);
    this._flushing = null;
    const parts = this._pending;
    this._pending = [];
    if (!parts.length) return;
    const batch = { start: this.end, end: parts.at(-1).end, items: [], size: 0 };
    for (const part of parts) addMessages(batch, part.text);
    this._add(batch);
  }

  _add(batch) {
    this._batches.push(batch);
    this.received += batch.items.length;
    this._empty = null;
    const dropped = this._trim(true);
    // Not `_collect`: a copy of the whole window ten times a second would be most of the work of a live tail.
    if (dropped) this.items.splice(0, dropped);
    if (this.items === this._batches[0].items) this.items = this.items.slice();
    for (const item of batch.items) this.items.push(item);
    this._changed({ before: -dropped });
  }

  // Times

  /** When an item was appended, in milliseconds; undefined until that is known, which is asked for. */
  timeOf(index) {
    const item = this.items[index];
    if (item.time === undefined && !this._timesWanted) {
      const wait = Math.max(50, this._timesAt + TIMES_EVERY_MS - performance.now());
      this._timesWanted = setTimeout(() => this._loadTimes(item.batch), this._timesAt ? wait : 0);
    }
    return item.time;
  }

  async _loadTimes(first) {
    this._timesAt = performance.now();
    try {
      const from = this._batches.indexOf(first);
      if (from < 0 || first.timed) return;
      let to = from;
      while (to + 1 < this._batches.length && !this._batches[to + 1].timed && this._batches[to].end === this._batches[to + 1].start) to += 1;
      const batches = this._batches.slice(from, to + 1);
      const records = [];
      for await (const record of this._records(batches[0].start, batches.at(-1).end, this._closed.signal)) records.push(record);
      let base = 0;
      let next = 0;
      for (const batch of batches) {
        for (const item of batch.items) {
          while (next < records.length - 1 && records[next][0] < base + item.end) next += 1;
          item.time = records[next]?.[1] ?? null;
        }
        batch.timed = true;
        base += batch.size;
      }
    } catch (error) {
      first.timed = true; // the messages are shown without times
      for (const item of first.items) item.time ??= null;
      if (error.name !== "AbortError" && !(error instanceof Problem)) throw error;
    } finally {
      this._timesWanted = null;
      this._changed({ before: 0 });
    }
  }

  /** The append that a message is part of: its offset, the next one and its time. */
  async recordOf(item) {
    let base = 0;
    for (let offset = item.batch.start; ; ) {
      const page = await server.records({ path: this.path, offset, until: item.batch.end, limit: 10_000, compact: true });
      const index = page.ends.findIndex((end) => base + end >= item.end);
      if (index >= 0) {
        const start = index ? await this._skip(offset, item.batch.end, index) : offset;
        return (await server.records({ path: this.path, offset: start, until: item.batch.end, limit: 1 })).records[0];
      }
      if (page.up_to_date || !page.ends.length) return null;
      base += page.ends.at(-1);
      offset = page.next_offset;
    }
  }

  async _skip(offset, until, records) {
    const page = await server.records({ path: this.path, offset, until, limit: records, compact: true });
    return page.next_offset;
  }
}

export function kindOf(contentType) {
  const type = contentType.split(";")[0].trim().toLowerCase();
  if (type === "application/json") return "json";
  return type.startsWith("text/") || type === "application/xml" || type === "application/javascript" ? "text" : "bytes";
}

function jsonBatch(start, end, text) {
  const batch = { start, end, items: [], size: 0 };
  addMessages(batch, text);
  return batch;
}

/** Add the messages of an array. The server keeps each with one byte after it. */
function addMessages(batch, text) {
  for (const message of elements(text)) {
    const size = byteLength(message) + 1;
    batch.size += size;
    batch.items.push({ text: message, size, end: batch.size, time: undefined, batch });
  }
}

const decoder = new TextDecoder();

/** A message of any kind as text. */
export function textOf(item, most = Infinity) {
  if (item.text !== undefined) return item.text;
  return decoder.decode(most < item.data.length ? item.data.subarray(0, most) : item.data);
}
