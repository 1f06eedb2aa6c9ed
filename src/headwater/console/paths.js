// Streams or tables as a tree of their paths, of which only opened folders are asked for, a page at a time. After the
// first path in a folder the list continues behind the folder, so a folder of a million streams costs one request.

import { server } from "./api.js";

const PAGE = 200;
const PEEK = 10; // the page after a folder, which may begin with another folder
const CHILDREN = 200;
const REQUESTS_MAX = 32;
const SCAN_PAGE = 1000;
const LAST = "\u{10FFFF}"; // no path sorts after a prefix and this

const LISTS = {
  stream: async (parameters, signal) => {
    const page = await server.streams(parameters, signal);
    return [page.streams.map((one) => ({ kind: "stream", path: one.path, about: one })), page.next_after];
  },
  table: async (parameters, signal) => {
    const page = await server.tables(parameters, signal);
    return [page.tables.map((one) => ({ kind: "table", path: one.name, about: one })), page.next_after];
  },
};

/** A page of what is directly below a prefix: folders and leaves; and where to continue, or null. `progress` is called
 * with what is known so far. */
export async function children(kind, prefix, after, signal, progress = () => {}) {
  const found = [];
  let folder = null;
  let limit = PAGE;
  for (let requests = 0; requests < REQUESTS_MAX; requests += 1) {
    const [leaves, next] = await LISTS[kind]({ prefix, after, limit }, signal);
    let last = null;
    for (const leaf of leaves) {
      const slash = leaf.path.indexOf("/", prefix.length);
      last = slash < 0 ? null : leaf.path.slice(0, slash + 1);
      if (last === null) found.push(leaf);
      else if (last !== folder) found.push({ kind: "folder", path: last });
      folder = last ?? folder;
    }
    if (next === null) return { found, after: null };
    progress(found);
    after = last === null ? next : last + LAST;
    limit = last === null ? PAGE : PEEK;
    if (found.length >= CHILDREN) break;
  }
  return { found, after };
}

/** A page of all paths that begin with a text. */
export async function beginning(kind, prefix, after, signal) {
  const [found, next] = await LISTS[kind]({ prefix, after, limit: PAGE }, signal);
  return { found, after: next };
}

/** The paths that contain a text, page by page, as {found, examined}. */
export async function* containing(kind, text, signal) {
  const lower = text.toLowerCase();
  let examined = 0;
  for (let after = null; ; ) {
    const [leaves, next] = await LISTS[kind]({ after, limit: SCAN_PAGE }, signal);
    examined += leaves.length;
    yield { found: leaves.filter((leaf) => leaf.path.toLowerCase().includes(lower)), examined };
    if (next === null) return;
    after = next;
  }
}

/** One path, as it is now. */
export async function one(kind, path, signal) {
  const [[leaf]] = await LISTS[kind]({ prefix: path, limit: 1 }, signal);
  return leaf?.path === path ? leaf : null;
}
