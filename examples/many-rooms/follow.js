// Follows many streams of a Headwater server over one connection. A browser opens six connections to a server with HTTP/1.1.
//
//   const follow = new Follow("http://127.0.0.1:4437", (batch) => console.log(batch.stream, batch.messages, batch.nextOffset));
//   follow.add("rooms/1");          // from its beginning
//   follow.add("rooms/2", "now");   // from its tail
//   follow.drop("rooms/1");
//   follow.close();
//
// Every message of a stream is delivered once and in order, also after a lost connection: the next request names the offset that
// each stream has reached. A batch is an event of the server: `messages`, `text` or `base64`, or one of `upToDate`,
// `streamClosed`, `deleted`, `forbidden` and `error`; after each of the last four the stream is not followed any more.

const SILENCE_MS = 45_000;  // the server sends something every 15 s
const FIRST_WAIT_MS = 200;
const LONGEST_WAIT_MS = 10_000;

export class Follow {
  #server; #onBatch; #options; #streams = new Map(); #request = null; #wake = () => {}; #changed = false; #arrived = false; #closed = false;

  // `options`: `headers` for every request, such as an Authorization, and `onState`, which is called with a text.
  constructor(server, onBatch, options = {}) {
    this.#server = server;
    this.#onBatch = onBatch;
    this.#options = options;
    this.#run();
  }

  // The offset of each stream: everything before it was delivered. Keep them to continue after a reload.
  get positions() {
    return Object.fromEntries([...this.#streams].map(([path, stream]) => [path, stream.offset]));
  }

  add(path, offset = "-1") {
    if (this.#streams.has(path)) throw new Error(`${path} is followed already`);
    this.#streams.set(path, { offset });
    this.#change();
  }

  drop(path) {
    if (this.#streams.delete(path)) this.#change();
  }

  close() {
    this.#closed = true;
    this.#request?.abort();
    this.#wake();
  }

  // The next request has the new list. Several changes of one turn need one request, and a connection is not ended before it
  // has delivered something: a page that adds streams one by one gets messages meanwhile.
  #change() {
    if (this.#changed) return;
    this.#changed = true;
    queueMicrotask(() => { if (this.#arrived) this.#request?.abort(); this.#wake(); });
  }

  async #run() {
    let failures = 0;
    while (!this.#closed) {
      if (!this.#streams.size) await this.#pause();
      if (this.#closed) return;
      this.#changed = this.#arrived = false;
      const began_ms = Date.now();
      const request = this.#request = new AbortController();
      const streams = new Map(this.#streams);  // those of this request
      let wait_ms = 0;
      try {
        for await (const event of this.#events(request, streams)) {
          failures = 0;
          this.#arrived = true;
          this.#take(event, streams);
          if (this.#changed) break;
        }
      } catch (error) {
        if (this.#closed || this.#changed) continue;
        wait_ms = Math.max(error.retryAfter_ms ?? 0, Math.random() * Math.min(FIRST_WAIT_MS * 2 ** failures++, LONGEST_WAIT_MS));
        this.#options.onState?.(`connection lost, connecting again: ${error.message}`);
      } finally {
        request.abort();
      }
      if (Date.now() - began_ms < 1000) wait_ms ||= FIRST_WAIT_MS;  // a server that is about to stop ends responses at once
      if (wait_ms && !this.#changed) await this.#pause(wait_ms);
    }
  }

  #pause(ms) {
    return new Promise((resolve) => {
      const timer = ms && setTimeout(resolve, ms);
      this.#wake = () => { clearTimeout(timer); resolve(); };
    });
  }

  // The events of one connection, as objects.
  async *#events(request, streams) {
    const body = new URLSearchParams({ ids: "false" });
    for (const [path, { offset }] of streams) {
      body.append("stream", `${path.split("/").map(encodeURIComponent).join("/")}@${offset}`);
    }
    const quiet = () => { clearTimeout(timer); timer = setTimeout(() => request.abort(new Error("no data arrives")), SILENCE_MS); };
    let timer = setTimeout(() => request.abort(new Error("no response arrives")), SILENCE_MS);
    try {
      const { headers } = this.#options;
      const answer = await fetch(`${this.#server}/v1/stream/__ds/live`, { method: "POST", body, headers, signal: request.signal });
      if (!answer.ok) return void await this.#refused(answer);
      this.#options.onState?.("connected");
      let rest = "";
      for (const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader(); ;) {
        const { value, done } = await reader.read();
        if (done) return;
        quiet();
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          const lines = block.split("\n");
          const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
          if (data) yield JSON.parse(data);
        }
      }
    } finally {
      clearTimeout(timer);
    }
  }

  #take(event, streams) {
    const stream = streams.get(event.stream);
    if (this.#streams.get(event.stream) !== stream) return;  // it was dropped, and perhaps added again
    stream.offset = event.nextOffset;
    if (event.streamClosed || event.deleted || event.forbidden || event.error) this.#streams.delete(event.stream);
    this.#onBatch(event);
  }

  // A refusal names the stream that caused it, if it was one: the others go on without it.
  async #refused(answer) {
    const problem = await answer.json().catch(() => ({}));
    const error = new Error(problem.detail ?? `status ${answer.status}`);
    error.retryAfter_ms = 1000 * Number(answer.headers.get("retry-after") ?? 0);
    if (problem.retryable !== false || !this.#streams.has(problem.stream)) throw error;
    this.#streams.delete(problem.stream);
    this.#onBatch({ stream: problem.stream, error: problem });
  }
}
