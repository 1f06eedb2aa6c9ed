// How to ask for what is on the screen with curl, Python and JavaScript. A token is named, never shown.

import { absolute, credentials, query, statePath, streamPath, tablePath } from "./api.js";
import { copyButton, h } from "./dom.js";

const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const literal = (text) => JSON.stringify(text);
const origin = () => absolute("");

function curl(url, live) {
  const token = credentials.present ? ` -H "Authorization: Bearer $TOKEN"` : "";
  return `curl -s${live ? "N" : ""}${token} ${shell(url)}`;
}

function python(lines, name = "Client") {
  const token = credentials.present ? ", token=os.environ[\"TOKEN\"]" : "";
  return [`${token ? "import os\n" : ""}from headwater.client import ${name}\n`, `with ${name}(${literal(origin())}${token}) as client:`, ...lines.map((line) => `    ${line}`)].join("\n");
}

function javascript(lines) {
  return lines.join("\n");
}

const fetchOptions = () => (credentials.present ? ", { headers: { authorization: `Bearer ${token}` } }" : "");

/** Ask for the messages of a stream from an offset on, or for the newest ones, live or not. */
export function ofStream(path, { offset, live, json }) {
  const url = absolute(streamPath(path) + query({ offset, live: live ? "sse" : null }));
  const loop = [`for message in client.stream(${literal(path)}).read(${[offset === "-1" ? "" : `offset=${literal(offset)}`, live ? "live=True" : ""].filter(Boolean).join(", ")}):`, "    print(message)"];
  const data = json ? "JSON.parse(event.data)" : "event.data";
  const js =
    live && !credentials.present
      ? [`const events = new EventSource(${literal(url)});`, `events.addEventListener("data", (event) => console.log(${data}));`]
      : [`const response = await fetch(${literal(absolute(streamPath(path) + query({ offset })))}${fetchOptions()});`, `console.log(await response.${json ? "json" : "text"}(), response.headers.get("stream-next-offset"));`];
  return { curl: curl(url, live), Python: python(loop), JavaScript: javascript(js) };
}

/** Ask for rows of a table after a SeqNo, or for its active view. */
export function ofTable(name, { since, active, live }) {
  const url = absolute(tablePath(name) + query(active ? { view: "active", timeout: 0 } : { since_id: since, timeout: live ? null : 0 }));
  const loop = active
    ? [`for row in client.table(${literal(name)}).active().values():`, "    print(row.key, row.record)"]
    : [`for row in client.table(${literal(name)}).${live ? "follow" : "rows"}(since_id=${since}):`, "    print(row.seqno, row.action, row.key, row.record)"];
  return {
    curl: curl(url, live),
    Python: python(loop),
    JavaScript: javascript([`const response = await fetch(${literal(url)}${fetchOptions()});`, "for (const line of (await response.text()).split(\"\\n\")) console.log(line.split(\"\\t\"));"]),
  };
}

/** Ask for the entities of a type, as they are or were. */
export function ofState(path, type, at) {
  const loop = [
    `rows = Collection(${literal(type || "user")}, dict)  # the entity type, and what a value is`,
    `with StreamDB(client.stream(${literal(path)}), define_state({"rows": rows})${at ? `, at=${literal(at)}` : ""}) as db:`,
    "    db.preload()",
    "    for key, value in db.rows.items():",
    "        print(key, value)",
  ];
  const code = python(loop).replace("from headwater.client import Client\n", "from headwater.client import Client\nfrom headwater.state import Collection, StreamDB, define_state\n");
  const url = absolute(statePath({ path, type: type || null, at }));
  const js = [`const response = await fetch(${literal(url)}${fetchOptions()});`, "for (const { key, value } of (await response.json()).entities) console.log(key, value);"];
  return { curl: curl(url, false), Python: code, JavaScript: javascript(js) };
}

export function snippetsView(make) {
  const body = h("div", { class: "snippets" });
  const details = h("details", { class: "panel fold", ontoggle: update }, h("summary", {}, "As curl, Python or JavaScript"), body);
  function update() {
    if (!details.open) return;
    body.replaceChildren(
      ...Object.entries(make()).map(([name, code]) =>
        h("section", { class: "snippet", "aria-label": name }, h("div", { class: "snippet-head" }, h("h3", {}, name), copyButton(code)), h("pre", { tabindex: 0, "aria-label": `${name} code` }, h("code", {}, code))),
      ),
    );
  }
  details.update = update;
  return details;
}
