// The frame of the page: who is signed in, which view is shown, whether it is live.

import { keep, post, session } from "./api.js";
import { announce, data, dialog, field, h, input, show } from "./dom.js";
import * as dead from "./dead.js";
import * as letter from "./letter.js";
import * as overview from "./overview.js";
import * as replay from "./replay.js";
import * as runs from "./runs.js";

const main = document.getElementById("main");

export const app = {
  session: null,
  can: (right) => Boolean(app.session && app.session.rights.includes(right)),
  offered: (right) => Boolean(app.session && app.session.offered.includes(right)),
  signIn,
  pulse,
  go: (to) => { location.hash = to; },
  again: () => route(false),
};

/** Say whether what is shown is of now. */
export function pulse(state, error) {
  const at = document.getElementById("pulse");
  const text = { live: "live", late: "late", lost: "no answer", idle: "" }[state];
  if (at.dataset.state !== state) {
    at.dataset.state = state;
    show(at, h("span", null, text));
  }
  at.title = error ? error.message : "";
  if (error && error.status === 401) refresh();
}

// ------------------------------------------------------------------------------------------------ sign in

async function refresh() {
  app.session = await session();
  who();
}

function who() {
  const found = app.session;
  const signedIn = found.csrf !== "";
  document.getElementById("group").textContent = found.group;
  const button = signedIn
    ? h("button", { class: "slim", id: "who-button", onclick: account, "aria-haspopup": "dialog", title: "Signed in: your rights" }, data(found.who))
    : h("button", { class: "slim main", id: "who-button", onclick: () => signIn(), "aria-haspopup": "dialog", disabled: found.offered.length === 0 }, "Sign in");
  show(document.getElementById("who"), button);
}

/** Ask for tokens. `right`: what they are wanted for. */
export function signIn(right) {
  const found = app.session;
  const secret = (name) => input(name, { type: "password", autocomplete: "current-password" });
  const wants = (each) => found.offered.includes(each) && !app.can(each);
  dialog({
    title: right === "act" ? "Sign in to act" : "Sign in",
    intro: "Your browser keeps a signed cookie for 8 hours, never the token. What you do is written down with your name.",
    fields: [
      field("Your name", input("who", { required: true, maxlength: 80, autocomplete: "username", value: found.csrf ? found.who : "" })),
      wants("read") && field("Read token", secret("read_token"), "To see dead letters: payloads, headers, errors."),
      wants("act") && field("Act token", secret("act_token"), "To pause, resume and replay."),
    ],
    action: "Sign in",
    async submit(values) {
      app.session = keep(await post("login", values));
      who();
      announce(`Signed in as ${app.session.who}`);
      route(false);
    },
  });
}

function account() {
  const found = app.session;
  const missing = found.offered.filter((right) => !found.rights.includes(right));
  const box = dialog({
    title: "Signed in",
    intro: null,
    fields: [
      h("dl", { class: "facts" },
        h("dt", null, "Name"), h("dd", null, data(found.who)),
        h("dt", null, "May see payloads"), h("dd", null, app.can("read") ? "yes" : "no"),
        h("dt", null, "May act"), h("dd", null, app.can("act") ? "yes" : "no"),
        h("dt", null, "Until"), h("dd", null, found.ends ? new Date(found.ends * 1000).toLocaleTimeString() : "")),
      missing.length > 0 && h("button", { type: "button", onclick: () => { box.close(); signIn(missing[0]); } }, `Add the ${missing.join(" and ")} token`),
    ],
    action: "Sign out",
    tone: "danger",
    async submit() {
      await post("logout");
      await refresh();
      announce("Signed out");
      route(false);
    },
  });
}

/** What stands where a right is missing. */
export function locked(right, what) {
  const offered = app.offered(right);
  return h("div", { class: "card" }, h("div", { class: "empty" },
    h("strong", null, what),
    h("span", null, offered
      ? `Sign in with the ${right} token.`
      : `No control_${right}_token is set on this member, so nobody may. Set control_${right}_token_file and start it again.`),
    offered && h("button", { class: "main", onclick: () => signIn(right) }, "Sign in")));
}

// -------------------------------------------------------------------------------------------------- views

const ROUTES = [
  [/^\/?$/, "overview", overview],
  [/^\/dead$/, "dead", dead],
  [/^\/dead\/group\/([^/]+)$/, "dead", { mount: dead.mountGroup }],
  [/^\/letter\/([^/]+)\/(\d+)\/(\d+)$/, "dead", letter],
  [/^\/replay$/, "dead", replay],
  [/^\/replays$/, "replays", runs],
  [/^\/replays\/([^/]+)$/, "replays", { mount: runs.mountRun }],
];
let unmount = null;

function route(moved = true) {
  const path = location.hash.slice(1);
  const [found, view, module] = ROUTES.map(([pattern, ...rest]) => [pattern.exec(path), ...rest]).find(([match]) => match) || [[], "overview", overview];
  if (unmount) unmount();
  unmount = null;
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  pulse("idle");
  main.replaceChildren();
  let args;
  try {
    args = found.slice(1).map(decodeURIComponent);
  } catch {
    args = found.slice(1);
  }
  unmount = module.mount(main, args, app) || null;
  const heading = main.querySelector("h1");
  document.title = `${heading ? `${heading.textContent} · ` : ""}${app.session.group} · streamloop`;
  if (moved) {
    window.scrollTo(0, 0);
    if (heading) {
      heading.tabIndex = -1;
      heading.focus();
    }
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

async function start() {
  try {
    await refresh();
  } catch (error) {
    show(main, h("div", { class: "note", "data-tone": "bad", role: "alert" }, h("span", null, error.message),
      h("button", { onclick: () => location.reload() }, "Try again")));
    return;
  }
  window.addEventListener("hashchange", () => route());
  route(false);
}

start();
