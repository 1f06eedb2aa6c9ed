// A browser that is told what to do: one JSON command per line on standard input, one answer per line on standard output.
// Without a browser it says so and ends with code 3.
import { existsSync } from "node:fs";
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

async function opened(name, context) {
  if (!contexts.has(context)) contexts.set(context, await browser.newContext({ viewport: { width: 800, height: 560 } }));
  pages.set(name, await contexts.get(context).newPage());
}

console.log(JSON.stringify({ version: browser.version() }));

for await (const line of createInterface({ input: process.stdin })) {
  const { page: name, context, goto, run, screenshot, close } = JSON.parse(line);
  try {
    if (!pages.has(name)) await opened(name, context ?? name);
    const page = pages.get(name);
    const doing = goto
      ? page.goto(goto).then((answer) => answer?.status())
      : screenshot
        ? page.screenshot({ path: screenshot }).then(() => null)
        : close
          ? page.close().then(() => pages.delete(name))
          : page.evaluate(run);
    const result = await Promise.race([doing, late()]);
    console.log(JSON.stringify({ result: result ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error) }));
  }
}
await browser.close();
