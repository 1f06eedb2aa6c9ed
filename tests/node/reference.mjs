// The Node reference server: in memory, or file-backed below the directory given as the first argument.
import { DurableStreamTestServer } from "@durable-streams/server";

const dataDir = process.argv[2];
const options = { port: 0, host: "127.0.0.1", webhooks: true, ...(dataDir ? { dataDir } : {}) };
const server = new DurableStreamTestServer(options);
console.log(`reference serving streams at ${await server.start()}/v1/stream/`);
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => process.exit(0));
