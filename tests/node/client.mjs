// The official TypeScript client against the stream root given: one line of JSON for each thing it saw.
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client";

const root = process.argv[2];
const say = (step, seen) => console.log(JSON.stringify({ step, seen }));
const json = { contentType: "application/json" };

const handle = await DurableStream.create({ url: `${root}/ts/basic`, ...json });
await handle.append(JSON.stringify({ n: 1 }));
await handle.append(JSON.stringify({ n: 2 }));
say("catch-up", await (await stream({ url: handle.url, offset: "-1", live: false, json: true })).json());
say("head", (await handle.head()).offset);

for (const live of ["long-poll", "sse"]) {
  const tail = await DurableStream.create({ url: `${root}/ts/${live}`, ...json });
  const seen = [];
  const done = new Promise((resolve) => {
    stream({ url: tail.url, offset: "-1", live, json: true }).then((response) => {
      response.subscribeJson(async (batch) => {
        seen.push(...batch.items.map((item) => item.n));
        if (seen.length >= 5) {
          response.cancel();
          resolve();
        }
      });
    });
  });
  for (let n = 0; n < 5; n += 1) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    await tail.append(JSON.stringify({ n }));
  }
  await done;
  say(live, seen);
}

const target = await DurableStream.create({ url: `${root}/ts/producer`, ...json });
const producer = new IdempotentProducer(target, "ts-producer", { autoClaim: true });
for (let n = 0; n < 100; n += 1) producer.append(JSON.stringify(n));
await producer.flush();
await producer.close();
say("producer", await (await stream({ url: target.url, offset: "-1", live: false, json: true })).json());
await handle.delete();
say("deleted", (await fetch(handle.url)).status);
process.exit(0);
