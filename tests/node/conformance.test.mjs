// The official suite against the server at HEADWATER_URL.
import { runConformanceTests } from "@durable-streams/server-conformance-tests";

runConformanceTests({
  baseUrl: process.env.HEADWATER_URL,
  longPollTimeoutMs: Number(process.env.HEADWATER_LONG_POLL_MS),
  subscriptions: true,
});
