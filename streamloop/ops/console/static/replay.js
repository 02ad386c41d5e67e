// A replay step by step: what was chosen, the dry run, how it is to go, its progress, its result.

import { follow } from "./api.js";
import { empty, note, progress, table, cell } from "./bits.js";
import { forget } from "./dead.js";
import { announce, data, field, h, input, show } from "./dom.js";
import { number, plural } from "./format.js";
import { outcomeParts, runFacts, sums } from "./runs.js";

const chosen = { where: null, label: "", names: [] };
/** The replay that was begun here, kept while one looks at other views. */
const begun = { id: "", where: null };

/** Choose what is to be replayed, and go to the dry run. */
export function choose(where, label, names) {
  Object.assign(chosen, { where, label, names });
  location.hash = "#/replay";
}

const value = (text) => (String(text).trim() === "" ? null : Number(text));

function phase(name) {
  return name ? name[0].toUpperCase() + name.slice(1) : "Beginning";
}

export function mount(root, _args, app) {
  let preview = null;
  let job = null;
  let oops = "";
  let following = null;
  let tried = "";
  const options = { rate: "", limit: "", canary: "10", target: "group", topic: "", again: false, takeover: false };

  const draw = () => show(root, view());
  const step = () => (job ? (job.state === "running" ? 3 : 4) : preview && preview.state !== "running" ? 2 : 1);

  function view() {
    const top = [h("a", { class: "back", href: "#/dead" }, "← Dead letters"), h("div", { class: "head" }, h("h1", null, "Replay"))];
    if (!chosen.where) return [top, h("div", { class: "card" }, empty("Nothing is chosen", "Choose groups or a letter under Dead letters.", h("a", { class: "button", href: "#/dead" }, "Dead letters")))];
    return [
      top,
      steps(),
      selection(),
      oops && h("div", { class: "note", "data-tone": "bad", role: "alert" }, h("span", null, oops)),
      job ? run() : [dry(), preview && preview.state !== "running" && (preview.result || preview.state === "failed") && form()],
    ];
  }

  function steps() {
    const now = step();
    return h("ol", { class: "steps", "aria-label": "Steps" }, ["Dry run", "Decide", "Replay", "Result"].map((name, index) =>
      h("li", { "data-n": index + 1, "aria-current": now === index + 1 ? "step" : null, "data-done": now > index + 1 ? "" : null }, name)));
  }

  function selection() {
    return h("section", { class: "card" }, h("div", { class: "in" },
      h("p", null, h("b", null, "Chosen: "), data(chosen.label)),
      chosen.names.length > 0 && h("p", { class: "sub small" }, data(chosen.names.slice(0, 6).join(", ")), chosen.names.length > 6 && ` and ${chosen.names.length - 6} more`)));
  }

  function dry() {
    const running = !oops && (!preview || preview.state === "running");
    const result = preview && preview.result;
    return h("section", { class: "card", "aria-labelledby": "h-dry", "aria-busy": String(running) },
      h("header", null, h("h2", { id: "h-dry" }, "Dry run"), h("span", { class: "sub small" }, "nothing is changed by it"),
        !running && h("div", { class: "push" }, h("button", { class: "slim", onclick: look }, "Again"))),
      running ? h("div", { class: "in" }, progress(preview, "Reading", () => following && following.stop())) : null,
      preview && preview.state === "failed" && h("div", { class: "in" }, note("bad", preview.error)),
      preview && preview.state === "stopped" && h("div", { class: "in" }, note("warn", `Only a part was read: ${preview.stopped_because}.`)),
      result && [
        h("div", { class: "in" }, h("p", null, h("b", null, result.would === 0 ? "Nothing would be replayed." : `${plural(result.would, "message")} would be replayed`), result.would > 0 && result.target && [" to ", data(result.target)])),
        h("div", { class: "in" }, sums(result.counts)),
        result.targets && result.targets.length > 1 && table(["To", "Messages"], result.targets.map((each) => h("tr", null, cell("To", data(each.topic), "full"), cell("Messages", number(each.count), "n")))),
        result.notes.length > 0 && h("div", { class: "in" }, result.notes.map((text) => note("warn", data(text)))),
      ]);
  }

  function form() {
    const would = preview.result ? preview.result.would : 0;
    if (!app.can("act")) {
      return h("section", { class: "card" }, h("div", { class: "in" }, h("p", null, "Replaying needs the act token."),
        app.offered("act") && h("div", { class: "actions" }, h("button", { class: "main", onclick: () => app.signIn("act") }, "Sign in to act"))));
    }
    const set = (name) => (event) => {
      options[name] = event.target.type === "checkbox" ? event.target.checked : event.target.value;
      draw();
    };
    const stale = tried !== JSON.stringify(plan());
    return h("section", { class: "card", "aria-labelledby": "h-how" },
      h("header", null, h("h2", { id: "h-how" }, "How")),
      h("form", { onsubmit: (event) => { event.preventDefault(); if (stale) look(); else begin(); } },
        h("div", { class: "in" }, h("div", { class: "form" },
          field("To", h("select", { id: "o-target", name: "target", value: options.target, onchange: set("target") },
            h("option", { value: "group" }, "the failing group only"),
            h("option", { value: "retry" }, "its first retry topic"),
            h("option", { value: "source" }, "the source topic: every group sees it"),
            h("option", { value: "topic" }, "another topic")), "Only the first two keep it from other groups."),
          options.target === "topic" && field("Topic", input("topic", { id: "o-topic", value: options.topic, required: true, oninput: set("topic") })),
          field("Messages a second", input("rate", { id: "o-rate", type: "number", min: "0.1", step: "any", inputmode: "decimal", value: options.rate, oninput: set("rate") }), "Empty: as fast as it goes."),
          field("At most", input("limit", { id: "o-limit", type: "number", min: 1, inputmode: "numeric", value: options.limit, oninput: set("limit") }), "Empty: all that are open."),
          field("First, and wait for them", input("canary", { id: "o-canary", type: "number", min: 0, inputmode: "numeric", value: options.canary, oninput: set("canary") }), "When too many of these fail again it stops. 0: none go first."))),
        h("div", { class: "in stack" },
          h("label", { class: "check" }, h("input", { type: "checkbox", checked: options.again, onchange: set("again") }), h("span", null, "Again, also what was replayed before", h("span", { class: "why" }, "These can be handled twice."))),
          h("label", { class: "check" }, h("input", { type: "checkbox", checked: options.takeover, onchange: set("takeover") }), h("span", null, "Take over from a replay that runs elsewhere", h("span", { class: "why" }, "It ends, and this one goes on from what it has done.")))),
        h("div", { class: "in actions" },
          stale
            ? h("button", { type: "submit" }, "Dry run with this")
            : h("button", { type: "submit", class: "main", disabled: would === 0 }, `Replay ${plural(would, "message")}`),
          h("span", { class: "sub small" }, stale ? "You changed what would be replayed: look again first." : ["As ", data(app.session.who), "; it is written down with the filter."]))));
  }

  function run() {
    const running = job.state === "running";
    const record = (job.result && job.result.run) || job.progress.run || null;
    const result = job.result || {};
    const ended = job.state === "done" ? result.state || "finished" : job.state;
    const words = result.note || (record && record.note);
    const said = [
      running && progress(job, phase(job.progress.phase)),
      job.state === "failed" && note("bad", data(job.error)),
      job.state === "stopped" && job.stopped_because && note("warn", data(`${job.stopped_because}.`)),
      words && note(ended === "finished" ? "ok" : ended === "failed" ? "bad" : "warn", data(words)),
    ].filter(Boolean);
    return h("section", { class: "card", "aria-labelledby": "h-run", "aria-busy": String(running) },
      h("header", null, h("h2", { id: "h-run" }, running ? "Replaying" : { finished: "Done", stopped: "Stopped", failed: "Failed" }[ended] || ended),
        h("div", { class: "push" }, running
          ? h("button", { class: "danger", onclick: stop }, "Stop")
          : h("button", { onclick: over }, "Dry run again"))),
      said.length > 0 && h("div", { class: "in stack" }, said),
      h("div", { class: "in" }, outcomeParts((record && record.counts) || job.progress.counts || {}, (record && record.outcomes) || job.progress.outcomes || {})),
      record && h("div", { class: "in" }, runFacts(record), h("p", { class: "more" }, h("a", { href: `#/replays/${encodeURIComponent(record.run)}` }, "This replay's record"))));
  }

  /** What changes which letters go where; rate and canary change only how. */
  function plan() {
    return { target: options.target, topic: options.target === "topic" ? options.topic.trim() : null, limit: value(options.limit), again: options.again };
  }

  async function look() {
    if (following) following.end();
    const with_ = plan();
    tried = JSON.stringify(with_);
    preview = null;
    oops = "";
    draw();
    following = follow("preview", { where: chosen.where, plan: with_ }, (each) => { preview = each; draw(); });
    try {
      const ended = await following.done;
      if (ended && ended.result) announce(`Dry run: ${plural(ended.result.would, "message")} would be replayed`);
    } catch (error) {
      oops = error.message;
      draw();
    }
  }

  async function begin() {
    oops = "";
    const how = { ...plan(), rate: value(options.rate), canary: value(options.canary), takeover: options.takeover };
    announce("The replay begins");
    watch(follow("replay", { where: chosen.where, plan: how }, (each) => { job = each; begun.id = each.id; begun.where = chosen.where; draw(); }));
  }

  async function watch(each) {
    following = each;
    try {
      const ended = await each.done;
      forget();
      if (ended) announce(ended.state === "done" ? "The replay is done" : `The replay has ended: ${ended.error || ended.stopped_because}`);
    } catch (error) {
      oops = error.message;
      if (error.status === 404) { begun.id = ""; job = null; look(); }
    }
    draw();
  }

  async function stop() {
    try {
      await following.stop();
      announce("Stopping");
    } catch (error) {
      oops = error.message;
      draw();
    }
  }

  function over() {
    begun.id = "";
    job = null;
    look();
  }

  draw();
  if (chosen.where && app.can("read")) {
    if (begun.id && begun.where === chosen.where) watch(follow(null, { id: begun.id }, (each) => { job = each; draw(); }));
    else look();
  }
  // A replay goes on without its page.
  return () => following && following.end({ leave: Boolean(job) });
}
