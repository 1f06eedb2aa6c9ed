// The official state package at work on a stream: `write URL` appends events, `fold URL` prints the state they make.
import { DurableStream, stream } from "@durable-streams/client";
import { MaterializedState, createStateSchema, isChangeEvent, isControlEvent } from "@durable-streams/state";

const anything = { "~standard": { version: 1, vendor: "test", validate: (value) => ({ value }) } };
const schema = createStateSchema({
  users: { schema: anything, type: "user", primaryKey: "id" },
  orders: { schema: anything, type: "order", primaryKey: "no" },
});
const [mode, url] = process.argv.slice(2);

if (mode === "write") {
  const handle = await DurableStream.create({ url, contentType: "application/json" });
  const events = [
    schema.users.insert({ value: { id: "1", name: "Ann", tags: ["a", "é"] } }),
    schema.users.insert({ value: { id: "2", name: "Bo" }, headers: { txid: "t1" } }),
    schema.users.update({ value: { id: "1", name: "Anna" }, oldValue: { id: "1", name: "Ann" } }),
    schema.orders.upsert({ value: { no: 7, total: 1.5 } }),
    schema.users.delete({ key: "2" }),
    schema.orders.upsert({ value: { no: 7, total: 2.5 }, headers: { timestamp: "2030-01-01T00:00:00Z" } }),
    schema.orders.insert({ value: { no: 8, total: null } }),
    schema.orders.delete({ oldValue: { no: 8 } }),
    { headers: { control: "snapshot-start" } },
    schema.users.insert({ value: { id: "3", name: "Cy" } }),
    { headers: { control: "snapshot-end" } },
  ];
  for (const event of events) await handle.append(JSON.stringify(event));
} else {
  const state = new MaterializedState();
  // Up to the tail: with `live: false` the client reads one response only.
  const response = await stream({ url, offset: "-1", live: true });
  for (const event of await response.json()) {
    if (isChangeEvent(event)) state.apply(event);
    else if (isControlEvent(event) && event.headers.control === "reset") state.clear();
  }
  const found = {};
  for (const type of state.types) found[type] = Object.fromEntries(state.getType(type));
  console.log(JSON.stringify(found));
}
