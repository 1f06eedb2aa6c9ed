// The state of a stream of state events: current entities by type, as of any append, and the history of one key.
//
// `FoldedState` reads the events into the page, up to a bound, so that every append can be chosen. `ServedState` asks the
// server, for streams that are larger than the bound, where the server has an API for that.

import { query, request, server, streamPath } from "./api.js";
import { byteLength, elements, parse, unescaped, write } from "./json.js";
import { BEGINNING, before } from "./messages.js";

export const FOLD_BYTES_MAX = 32 * 1024 * 1024;
const SMALL_BYTES = 4 * 1024 * 1024;
const ENTITIES_MAX = 20_000;
const PAGE_ENTITIES = 5000;
const HISTORY_MAX = 200;
const SCAN_BYTES = 1024 * 1024;
const CHANGES = new Set(["insert", "update", "upsert", "delete"]);

/** An entity: its newest value, as the text of the event that set it. It is parsed when it is shown. */
class Entity {
  constructor(key, text, value = undefined) {
    this.key = key;
    this._text = text;
    this._value = value;
  }

  get value() {
    this._value ??= valueOf(this._text);
    return this._value;
  }

  /** Whether key or value contain a text, which is in lower case. */
  contains(lower) {
    if (this.key.toLowerCase().includes(lower)) return true;
    // Most events are ruled out without parsing them.
    if (this._text !== null && !unescaped(this._text).toLowerCase().includes(lower)) return false;
    return Boolean(this.value) && unescaped(write(this.value)).toLowerCase().includes(lower);
  }
}

function valueOf(text) {
  return parse(text).get("value");
}

/** What an event says, or null if it is not a state event, by the rules of the server. */
export function read(text) {
  try {
    const event = JSON.parse(text);
    const { type, key, headers } = event;
    if ("control" in headers) return typeof headers.control === "string" ? { control: headers.control } : null;
    const { operation, txid = "" } = headers;
    const named = typeof type === "string" && type && typeof key === "string" && key;
    const valid = named && CHANGES.has(operation) && typeof txid === "string" && (operation === "delete" || "value" in event);
    return valid ? { type, key, operation } : null;
  } catch {
    return null;
  }
}

/** The events of a range, as {text, end}, page by page. */
async function* pages(path, offset, until, signal) {
  for (let start = offset; ; ) {
    const response = await request(`${streamPath(path)}${query({ offset: start, until })}`, { signal });
    const end = response.headers.get("stream-next-offset");
    const texts = elements(await response.text());
    yield { texts, start, end };
    if (end === until || end === start || response.headers.has("stream-up-to-date")) return;
    start = end;
  }
}

/** Changes of one key, newest first, with the value before each. */
function history(changes) {
  let previous;
  const found = [];
  for (const change of changes) {
    const value = change.operation === "delete" || change.operation === "reset" ? undefined : valueOf(change.text);
    found.push({ ...change, before: previous, after: value });
    previous = value;
  }
  return found.reverse();
}

class FoldedState {
  constructor(details) {
    this.details = details;
    this.path = details.path;
    this.events = [];
    this.invalid = 0;
    this.moments = []; // {time, count}: after each append so many events have happened
    this.isPartial = false;
  }

  /** Read the events. `progress` is called with the bytes read so far. */
  async open(progress, signal) {
    let offset = BEGINNING;
    const until = this.details.tail_offset;
    if (this.details.bytes > FOLD_BYTES_MAX) {
      ({ offset } = await before(this.path, until, FOLD_BYTES_MAX, signal));
      this.isPartial = true;
    }
    const start = offset;
    let bytes = 0;
    for await (const page of pages(this.path, offset, until, signal)) {
      for (const text of page.texts) {
        bytes += byteLength(text) + 1;
        const event = read(text);
        if (event === null) this.invalid += 1;
        this.events.push({ ...event, text, end: bytes });
      }
      progress(bytes);
      await new Promise((resolve) => setTimeout(resolve)); // the page stays responsive
    }
    await this._times(start, until, signal);
  }

  async _times(start, until, signal) {
    let base = 0;
    let next = 0;
    for (let offset = start; this.events.length; ) {
      const page = await server.records({ path: this.path, offset, until, limit: 10_000, compact: true }, signal);
      page.ends.forEach((end, index) => {
        const time = page.times_ms[index];
        while (next < this.events.length && this.events[next].end <= base + end) {
          this.events[next].time = time;
          next += 1;
        }
        this.moments.push({ time, count: next });
      });
      if (page.up_to_date || page.next_offset === until || !page.ends.length) break;
      base += page.ends.at(-1);
      offset = page.next_offset;
    }
  }

  get length() {
    return this.moments.length;
  }

  timeOf(position) {
    return this.moments[position]?.time ?? null;
  }

  /** What to ask the server for as `at`: it leaves out what was appended at a time or after it. */
  atOf(position) {
    const time = this.timeOf(position);
    return time === null ? null : new Date(time + 1).toISOString();
  }

  /** The entities by type after the append at a position. */
  async at(position) {
    const types = new Map();
    const count = this.moments[position]?.count ?? 0;
    for (let index = 0; index < count; index += 1) {
      const event = this.events[index];
      if (event.control === "reset") types.clear();
      if (!event.type) continue;
      let entities = types.get(event.type);
      if (!entities) types.set(event.type, (entities = new Map()));
      if (event.operation === "delete") entities.delete(event.key);
      else entities.set(event.key, new Entity(event.key, event.text));
    }
    return new Map([...types].map(([type, entities]) => [type, [...entities.values()]]));
  }

  async history(type, key, position) {
    const changes = [];
    const count = this.moments[position]?.count ?? 0;
    for (let index = 0; index < count; index += 1) {
      const event = this.events[index];
      if (event.type === type && event.key === key) changes.push({ operation: event.operation, text: event.text, time: event.time });
      else if (event.control === "reset" && changes.length) changes.push({ operation: "reset", time: event.time });
    }
    return { changes: history(changes).slice(0, HISTORY_MAX), isPartial: this.isPartial || changes.length > HISTORY_MAX };
  }
}

const STEPS = 1000;

class ServedState {
  constructor(details, type) {
    this.details = details;
    this.path = details.path;
    this._type = type; // null: all
    this.invalid = 0;
    this.isPartial = false;
    this.length = 0;
  }

  async open() {
    const [first] = (await server.records({ path: this.path, limit: 1 })).records;
    const near = await before(this.path, this.details.tail_offset, 1);
    const last = (await server.records({ path: this.path, offset: near.offset, limit: 10_000 })).records.at(-1);
    if (!first || !last) return;
    this._first = Date.parse(first.time) + 1; // `at` is the state before a time
    this._last = Date.parse(last.time) + 1;
    this.length = STEPS + 1;
  }

  timeOf(position) {
    return Math.round(this._first + ((this._last - this._first) * position) / STEPS);
  }

  atOf(position) {
    return position >= STEPS ? null : new Date(this.timeOf(position)).toISOString();
  }

  async at(position) {
    const types = new Map();
    let found = 0;
    let at = this.atOf(position);
    for (let after = null; found < ENTITIES_MAX; ) {
      const page = await server.state({ path: this.path, type: this._type, at, after, limit: PAGE_ENTITIES });
      const entities = page.get("entities").value;
      at = page.get("offset").value; // all pages are those of one state
      this.invalid = Number(page.get("skipped")?.value ?? 0);
      for (const one of entities) {
        const type = one.get("type").value;
        if (!types.has(type)) types.set(type, []);
        types.get(type).push(new Entity(one.get("key").value, null, one.get("value")));
      }
      found += entities.length;
      after = page.get("next").kind === "string" ? page.get("next").value : null;
      this.isPartial = after !== null;
      if (after === null) break;
    }
    return types;
  }

  /** Look back from the end for the changes of a key, through a bounded part of the stream. */
  async history(type, key, position) {
    const at = this.atOf(position);
    let until = at === null ? this.details.tail_offset : (await server.records({ path: this.path, at, limit: 1 })).offset;
    const changes = [];
    let bytes = 0;
    for (;;) {
      const found = await before(this.path, until, SCAN_BYTES);
      const part = [];
      for await (const page of pages(this.path, found.offset, until)) {
        for (const text of page.texts) {
          const event = read(text);
          if (event?.type === type && event.key === key) part.push({ operation: event.operation, text });
        }
      }
      changes.unshift(...part);
      bytes += SCAN_BYTES;
      if (found.isFirst) return { changes: history(changes), isPartial: false };
      if (changes.length > HISTORY_MAX || bytes >= FOLD_BYTES_MAX) return { changes: history(changes).slice(0, HISTORY_MAX), isPartial: true };
      until = found.offset;
    }
  }
}

export function stateOf(details, routes, type) {
  return details.bytes > SMALL_BYTES && routes.includes("GET /v1/stream/__ds/state") ? new ServedState(details, type) : new FoldedState(details);
}
