// Begins: asks for a token if the server wants one, and shows the page that the address names.

import { Problem, credentials, server } from "./api.js";
import { field, h, show } from "./dom.js";
import { overviewPage } from "./overview.js";
import { serverPage } from "./server.js";
import { Shell, announce, applyTheme, problemBox } from "./shell.js";
import { statePage } from "./state.js";
import { aboutPage, streamPage } from "./stream.js";
import { subscriptionPage, subscriptionsPage } from "./subscriptions.js";
import { tablePage } from "./table.js";

const container = document.getElementById("app");
// The page says whether the server wants a token, so that it is not asked before it is known.
const TOKEN = document.documentElement.dataset.token;
const context = { caller: null };
let shell = null;
let open = null; // the page that is shown
let turn = 0;

// Where access is not checked, there is no need to ask who one is.
const EVERYONE = { name: null, scopes: null, administers: true, sees_settings: true, expires_at: null };

const PAGES = [
  [/^$/, "overview", "Overview", overviewPage],
  [/^stream\/([^/]+)$/, "overview", null, streamPage],
  [/^stream\/([^/]+)\/state$/, "overview", null, statePage],
  [/^stream\/([^/]+)\/about$/, "overview", null, aboutPage],
  [/^table\/([^/]+)(?:\/(active|about))?$/, "overview", null, tablePage],
  [/^subscriptions$/, "subscriptions", "Subscriptions", subscriptionsPage],
  [/^subscription\/([^/]+)$/, "subscriptions", null, subscriptionPage],
  [/^server$/, "server", "Server", serverPage],
];

async function route() {
  if (!shell) return;
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const mine = (turn += 1);
  open?.close?.();
  open = null;
  for (const [pattern, place, title, make] of PAGES) {
    const found = pattern.exec(path);
    if (!found) continue;
    const names = found.slice(1).map((part) => part && decodeURIComponent(part));
    shell.showPlace(place, title ?? names[0]);
    shell.main.setAttribute("aria-busy", "true");
    try {
      const page = await make({ ...context, names, parameters: new URLSearchParams(search ?? "") });
      if (mine !== turn) return page.close?.();
      open = page;
      show(shell.main, page.element);
      // What had the focus is gone with the page before: the next Tab goes into this one.
      if (mine > 1 && document.activeElement === document.body) shell.main.focus({ preventScroll: true });
      page.shown?.();
    } catch (error) {
      if (mine === turn) show(shell.main, h("h1", { class: "unseen" }, title ?? names[0]), problemBox(error));
      if (!(error instanceof Problem)) throw error;
    } finally {
      shell.main.removeAttribute("aria-busy");
    }
    return;
  }
  show(shell.main, h("h1", {}, "No such page"), h("p", {}, h("a", { href: "#/" }, "Go to the overview")));
}

function signIn(reason) {
  open?.close?.();
  open = shell = null;
  applyTheme(localStorage.getItem("headwater-theme") ?? "system");
  document.title = "Token · Headwater";
  const input = h("input", { type: "password", name: "token", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "token-note" });
  const trouble = h("div", { class: "trouble" });
  const form = h(
    "form",
    { class: "sign-in", onsubmit: submit },
    h("h1", {}, "Headwater"),
    h("p", { id: "token-note" }, "This server needs a token. It stays in this tab, and the console shows what it allows."),
    field("Token", input),
    trouble,
    h("button", { type: "submit", class: "primary" }, "Continue"),
  );
  async function submit(event) {
    event.preventDefault();
    if (!credentials.fits(input.value)) {
      show(trouble, problemBox({ title: "This is not a token", message: "A token has no spaces and no special characters." }));
      return;
    }
    credentials.use(input.value);
    await begin();
  }
  show(container, h("main", { id: "main", tabindex: -1 }, form));
  if (reason) show(trouble, problemBox(reason));
  input.focus();
}

async function begin() {
  try {
    if (TOKEN === "required" && !credentials.present) return signIn(null);
    context.caller = TOKEN === "none" ? EVERYONE : await server.caller();
  } catch (error) {
    if (error.status === 401) return; // `onRefused` has asked for another token
    show(container, h("main", { id: "main", tabindex: -1 }, h("h1", {}, "Headwater"), problemBox(error), h("button", { type: "button", onclick: begin }, "Try again")));
    if (!(error instanceof Problem)) throw error;
    return;
  }
  shell = new Shell(container, () => {
    credentials.use("");
    begin();
  });
  shell.showCaller(context.caller, credentials.present);
  if (TOKEN === "optional" && !credentials.present) shell.offerToken(() => signIn(null));
  await route();
}

credentials.onRefused((problem) => {
  if (!credentials.present && TOKEN !== "required") return;
  credentials.use("");
  signIn(problem);
  announce("The server refused the token.");
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment is the address of the page
  document.getElementById("main")?.focus();
});
window.addEventListener("hashchange", route);
begin();
