// A browser that is told what to do: one JSON command per line on standard input, one answer per line on standard output.
// Without a browser it says so and ends with code 3.
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const INSTALLED = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  // Names that resolve to this machine, as the name of any page can.
  "--host-resolver-rules=MAP *.example 127.0.0.1",
];

async function launch() {
  const found = [process.env.HEADWATER_BROWSER, ...INSTALLED].find((path) => path && existsSync(path));
  if (found) return chromium.launch({ executablePath: found, args: FLAGS });
  // From npm, where the system has none. Its own flags turn off what is tested here, web security first of all.
  const packed = (await import("@sparticuz/chromium")).default;
  return chromium.launch({ executablePath: await packed.executablePath(), args: ["--no-zygote", ...FLAGS] });
}

function late() {
  return new Promise((_, reject) => setTimeout(() => reject(new Error("nothing came of it in 30 s")), 30_000).unref());
}

const browser = await launch().catch((error) => {
  console.log(JSON.stringify({ missing: String(error).split("\n")[0] }));
  process.exit(3);
});
const contexts = new Map();
const pages = new Map();
const said = new Map();

async function opened(name, context) {
  if (!contexts.has(context)) contexts.set(context, await browser.newContext({ viewport: { width: 800, height: 560 }, ignoreHTTPSErrors: true }));
  const page = await contexts.get(context).newPage();
  pages.set(name, page);
  const heard = [];
  said.set(name, heard);
  page.on("console", (message) => heard.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => heard.push(`error: ${error}`));
}

// What a test does as a person would: by what is on the page, with mouse and keyboard.
const ACTS = {
  click: (page, { selector }) => page.click(selector),
  fill: (page, { selector, text }) => page.fill(selector, text),
  press: (page, { keys }) => keys.reduce((before, key) => before.then(() => page.keyboard.press(key)), Promise.resolve()),
  // Each change of a slider that is dragged is an event.
  slide: (page, { selector, value }) => page.locator(selector).fill(String(value)),
  viewport: (page, { width, height }) => page.setViewportSize({ width, height }),
  media: (page, { colorScheme }) => page.emulateMedia({ colorScheme }),
  reload: (page) => page.reload().then(() => null),
  // What the page has said in the console of the browser since it was opened.
  said: (page, _, name) => said.get(name),
  // Address and text of each frame of the page; a frame that a policy has refused shows an error page of the browser.
  frames: (page) => Promise.all(page.frames().map(async (frame) => [frame.url(), await frame.evaluate("document.body.textContent").catch(() => "")])),
  // The violations that axe-core finds.
  async axe(page) {
    await page.evaluate(await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8"));
    const { violations } = await page.evaluate("axe.run(document, { resultTypes: ['violations'] })");
    return violations.map(({ id, impact, nodes }) => ({ id, impact, nodes: nodes.map((node) => `${node.target}: ${node.failureSummary}`) }));
  },
  // The memory of the page after a garbage collection, in bytes.
  async heap(page) {
    const session = await page.context().newCDPSession(page);
    await session.send("HeapProfiler.collectGarbage");
    const { usedSize } = await session.send("Runtime.getHeapUsage");
    await session.detach();
    return usedSize;
  },
};

console.log(JSON.stringify({ version: browser.version() }));

for await (const line of createInterface({ input: process.stdin })) {
  const { page: name, context, goto, run, screenshot, close, act, with: more } = JSON.parse(line);
  try {
    if (!pages.has(name)) await opened(name, context ?? name);
    const page = pages.get(name);
    const doing = goto
      ? page.goto(goto).then((answer) => answer?.status())
      : screenshot
        ? page.screenshot({ path: screenshot }).then(() => null)
        : close
          ? page.close().then(() => pages.delete(name))
          : act
            ? ACTS[act](page, more ?? {}, name)
            : page.evaluate(run);
    const result = await Promise.race([doing, late()]);
    console.log(JSON.stringify({ result: result ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
await browser.close();
