// Requests to the server: the public API, with the token of whoever looks. The token is in the session storage of this
// tab and in the header Authorization, nowhere else.

import { parse } from "./json.js";

const TOKEN = "headwater-token";
// The console is at /console below the mount point of the server.
export const mount = location.pathname.replace(/\/console$/, "");

/** An error of the server, in its own words, or of the connection. */
export class Problem extends Error {
  constructor(status, title, detail, requestId = "") {
    super(detail || title);
    this.status = status;
    this.title = title;
    this.detail = detail;
    this.requestId = requestId;
  }
}

let token = sessionStorage.getItem(TOKEN) ?? "";
let refused = () => {};

export const credentials = {
  get present() {
    return token !== "";
  },
  use(text) {
    token = text.trim();
    if (token) sessionStorage.setItem(TOKEN, token);
    else sessionStorage.removeItem(TOKEN);
  },
  /** Whether it can be a token: others cannot be sent in a header. */
  fits: (text) => /^[\x21-\x7e]+$/.test(text.trim()),
  /** Call this when the server refuses the token. */
  onRefused(call) {
    refused = call;
  },
};

export async function request(path, { method = "GET", headers = {}, body, signal } = {}) {
  const sent = token ? { ...headers, authorization: `Bearer ${token}` } : headers;
  let response;
  try {
    response = await fetch(mount + path, { method, headers: sent, body, signal, credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "No connection", `the server does not answer: ${error.message}`);
  }
  if (response.ok) return response;
  const problem = await problemOf(response);
  if (response.status === 401) refused(problem);
  throw problem;
}

async function problemOf(response) {
  const text = await response.text().catch(() => "");
  try {
    const document = JSON.parse(text);
    return new Problem(response.status, document.title ?? response.statusText, document.detail ?? "", document.request_id);
  } catch {
    return new Problem(response.status, response.statusText || `status ${response.status}`, text.slice(0, 300));
  }
}

export async function json(path, options) {
  return (await request(path, options)).json();
}

export function query(parameters) {
  const known = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return known.length ? `?${new URLSearchParams(known)}` : "";
}

const CONTROL = "/v1/stream/__ds/";
const TABLE_CONTROL = "/v1/table/__stp/";
export const quote = (path) => path.split("/").map(encodeURIComponent).join("/");
export const streamPath = (path) => `/v1/stream/${quote(path)}`;
export const statePath = (parameters) => `${CONTROL}state${query(parameters)}`;
export const compactPath = (path) => `${CONTROL}compact${query({ path })}`;
export const tablePath = (name) => `/v1/table/${quote(name)}`;
export const absolute = (path) => location.origin + mount + path;

export const server = {
  index: () => json("/"),
  caller: () => json(`${CONTROL}caller`),
  ready: async () => (await request("/readyz")).text(),
  metrics: async () => (await request("/metrics", { headers: { accept: "text/plain" } })).text(),
  top: (parameters) => json(`${CONTROL}top${query(parameters)}`),
  streams: (parameters, signal) => json(`${CONTROL}streams${query(parameters)}`, { signal }),
  tables: (parameters, signal) => json(`${TABLE_CONTROL}tables${query(parameters)}`, { signal }),
  followers: async () => (await json(`${TABLE_CONTROL}followers`)).followers,
  table: (name) => json(`${TABLE_CONTROL}details${query({ name })}`),
  settings: () => json(`${CONTROL}settings`),
  views: async () => (await json(`${TABLE_CONTROL}views`)).views,
  nurls: async (name) => (await json(`${TABLE_CONTROL}nurls${query({ name })}`)).nurls,
  subscriptions: (parameters) => json(`${CONTROL}subscriptions${query(parameters)}`),
  subscription: (id, parameters) => json(`${CONTROL}subscriptions/${encodeURIComponent(id)}${query(parameters)}`),
  details: (path) => json(`${CONTROL}details${query({ path })}`),
  forks: (path, after) => json(`${CONTROL}forks${query({ path, after })}`),
  splits: (parameters, signal) => json(`${CONTROL}splits${query(parameters)}`, { signal }),
  records: (parameters, signal) => json(`${CONTROL}records${query(parameters)}`, { signal }),
  async state(parameters, signal) {
    const text = await (await request(statePath(parameters), { signal })).text();
    return parse(text);
  },
};

/** The events of a response of server-sent events, as {name, data, id}, until it ends. EventSource cannot send a token. */
export async function* events(path, signal) {
  const response = await request(path, { headers: { accept: "text/event-stream" }, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      let end = rest.indexOf("\n\n");
      let start = 0;
      while (end >= 0) {
        const event = eventOf(rest.slice(start, end));
        if (event) yield event;
        start = end + 2;
        end = rest.indexOf("\n\n", start);
      }
      rest = rest.slice(start);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function eventOf(block) {
  const event = { name: "message", data: null, id: null };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const value = line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    const name = line.slice(0, colon);
    if (name === "event") event.name = value;
    else if (name === "id") event.id = value;
    else if (name === "data") event.data = event.data === null ? value : `${event.data}\n${value}`;
  }
  return event.data === null ? null : event;
}

/** The lines of a response as they arrive, in lists. */
export async function* lines(path, signal) {
  const response = await request(path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      if (parts.length) yield parts;
    }
    if (rest) yield [rest];
  } finally {
    reader.cancel().catch(() => {});
  }
}
