// Replays that were made: who, when, which, and what became of them.

import { follow, get, poll, post } from "./api.js";
import { badge, cell, empty, exact, note, right, table, waiting, when } from "./bits.js";
import { announce, data, h, show } from "./dom.js";
import { NONE, age, number } from "./format.js";
import { locked } from "./main.js";

const TONES = { running: "accent", finished: "ok", stopped: "warn", failed: "bad", interrupted: "warn" };
const NAMES = {
  would: "would be replayed", replayed: "replayed", skipped: "skipped", already: "replayed before", matched: "matched", purged: "purged", expired: "expired",
  refused: "refused", too_large: "too large", no_original: "no original", acked: "handled", failed_again: "failed again", dead: "dead again",
  unknown: "not known yet", already_done: "already done", open: "open", imported: "imported",
};
const OUTCOME_TONES = { acked: "ok", failed_again: "warn", dead: "bad", unknown: "accent", already_done: "ok" };

const name = (key) => NAMES[key] || key.replaceAll("_", " ");

/** Counts as figures. */
export function sums(counts) {
  const all = Object.entries(counts || {}).filter(([, value]) => typeof value === "number");
  return all.length ? h("dl", { class: "sums" }, all.map(([key, value]) => h("div", { "data-key": key }, h("dt", null, name(key)), h("dd", null, number(value))))) : h("p", { class: "muted" }, "Nothing yet");
}

/** What was done, and what became of it, as figures and a bar. */
export function outcomeParts(counts, outcomes) {
  const parts = Object.entries(outcomes || {}).filter(([, value]) => value > 0);
  const total = parts.reduce((sum, [, value]) => sum + value, 0);
  return h("div", { class: "stack" },
    h("h3", null, "What was done"), sums(counts),
    total > 0 && h("h3", null, "What became of it"),
    total > 0 && h("div", { class: "parts", role: "img", "aria-label": parts.map(([key, value]) => `${name(key)} ${value}`).join(", ") },
      parts.map(([key, value]) => h("i", { "data-tone": OUTCOME_TONES[key] || "accent", style: { width: `${(100 * value / total).toFixed(2)}%` } }))),
    total > 0 && sums(outcomes));
}

export function runFacts(run) {
  const rows = [
    ["By", data(run.by), run.host && [" on ", data(run.host)]],
    ["Began", exact(run.started_at)],
    ["Ended", run.ended_at ? exact(run.ended_at) : run.state === "running" ? "runs" : NONE],
    ["Which", data(run.described || "all dead letters")],
    ["From", data((run.topics || []).join(", ") || NONE)],
    ["To", data(run.target || NONE)],
    ["Run", h("code", null, run.run)],
  ];
  return h("dl", { class: "facts" }, rows.map(([label, ...value]) => [h("dt", null, label), h("dd", null, value)]));
}

function state(run) {
  return badge(run.alive === false && run.state === "running" ? "silent" : run.state === "running" && run.phase ? `running: ${run.phase}` : run.state, run.alive === false && run.state === "running" ? "warn" : TONES[run.state]);
}

export function mount(root, _args, app) {
  let seen = null;
  let polling = null;

  const draw = () => show(root, view());

  function view() {
    const head = h("div", { class: "head" }, h("h1", null, "Replays"));
    if (!app.can("read")) return [head, locked("read", "The record of replays names filters, which may hold keys")];
    if (!app.session.dead_letters) return [head, h("div", { class: "card" }, empty("There are no dead letters to replay here", app.session.why_no_dead_letters))];
    if (!seen) return [head, h("div", { class: "card" }, waiting("Reading the record of replays"))];
    return [
      head,
      seen.error && note("bad", seen.error),
      seen.here && seen.here.state === "running" && note("warn", ["A replay by ", data(seen.here.by), " runs on this member."],
        app.can("act") && h("button", { class: "danger slim", onclick: () => stop(seen.here.id) }, "Stop it")),
      h("section", { class: "card" }, seen.runs === null
        ? (seen.error ? null : waiting("Reading the record of replays"))
        : seen.runs.length === 0 ? empty("Nothing was replayed yet", "A replay, a purge or an import is written down here: who, when, which, and what became of it.")
          : table(["Began", "By", "Which", "State", right("Replayed"), right("Handled"), right("Failed again"), right("Took")], seen.runs.map(row))),
    ];
  }

  async function stop(id) {
    try {
      await post("stop", { id });
      announce("Stopping");
    } catch (error) {
      announce(error.message);
    }
    polling.now();
  }

  function row(run) {
    const outcomes = run.outcomes || {};
    return h("tr", { "data-key": run.run },
      cell("Began", [h("a", { class: "row", href: `#/replays/${encodeURIComponent(run.run)}` }, when(run.started_at)), run.kind !== "replay" && h("span", { class: "why" }, run.kind)]),
      cell("By", data(run.by)),
      cell("Which", data(run.described || "all dead letters", "clamp"), "full wide"),
      cell("State", state(run)),
      cell("Replayed", number((run.counts || {}).replayed), "n"),
      cell("Handled", number(outcomes.acked), "n"),
      cell("Failed again", number(typeof outcomes.failed_again === "number" || typeof outcomes.dead === "number" ? (outcomes.failed_again || 0) + (outcomes.dead || 0) : null), "n"),
      cell("Took", run.ended_at ? age(run.ended_at - run.started_at) : NONE, "n"));
  }

  draw();
  if (app.can("read") && app.session.dead_letters) {
    polling = poll(async (signal) => { seen = await get("runs", signal); draw(); }, 2000, (to, error) => {
      app.pulse(to, error);
      if (error && !seen) { seen = { runs: null, error: error.message }; draw(); }
    });
  }
  return () => polling && polling.end();
}

/** One of them. */
export function mountRun(root, [id], app) {
  let run = null;
  let job = null;
  let oops = "";
  let following = null;
  let polling = null;

  const draw = () => show(root, view());

  function view() {
    const settled = job && job.result;
    const top = [h("a", { class: "back", href: "#/replays" }, "← Replays"), h("div", { class: "head" }, h("h1", null, run && run.kind !== "replay" ? `A run: ${run.kind}` : "A replay"), run && state(run))];
    if (!app.can("read")) return [top, locked("read", "The record of replays names filters, which may hold keys")];
    if (oops) return [top, note("bad", oops)];
    if (!run) return [top, h("div", { class: "card" }, waiting("Reading the record"))];
    const looking = job && job.state === "running";
    return [
      top,
      run.note && note(run.state === "finished" ? "ok" : "warn", data(run.note)),
      job && job.state === "failed" && note("bad", data(job.error)),
      h("section", { class: "card" }, h("div", { class: "in" }, runFacts(run))),
      h("section", { class: "card" },
        h("header", null, h("h2", null, settled ? "As it is now" : "As the run saw it last"),
          run.kind === "replay" && h("div", { class: "push" }, h("button", { class: "slim", disabled: looking, onclick: look }, looking ? "Looking …" : "Look again"))),
        h("div", { class: "in" }, outcomeParts(run.counts, (settled && settled.outcomes) || run.outcomes)),
        settled && settled.notes && settled.notes.length > 0 && h("div", { class: "in" }, settled.notes.map((text) => note("warn", data(text))))),
    ];
  }

  function look() {
    following = follow("run", { run: id }, (each) => { job = each; draw(); });
    following.done.catch((error) => { oops = error.message; draw(); });
  }

  draw();
  if (app.can("read")) {
    polling = poll(async (signal) => {
      const seen = await get("runs", signal);
      const found = (seen.runs || []).find((each) => each.run === id);
      if (found) run = found;
      else if (seen.runs) oops = seen.error || "This replay is not in the record (any more).";
      draw();
    }, 2000, app.pulse);
  }
  return () => {
    if (polling) polling.end();
    if (following) following.end();
  };
}
