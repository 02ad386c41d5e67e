// Dead letters: the groups of like errors, the letters of one, and what is chosen for a replay.

import { follow } from "./api.js";
import { badge, cell, empty, errorOf, note, progress, right, table, waiting, when } from "./bits.js";
import { data, field, h, input, show } from "./dom.js";
import { number, plural, shortClass } from "./format.js";
import { locked } from "./main.js";
import { choose } from "./replay.js";

/** What stays while one moves between views. It is in memory only: keys and values are nobody's business. */
const kept = { where: {}, job: null, picked: new Set(), form: {} };

/** What was found is of before a replay: read it again when it is looked at. */
export function forget() {
  kept.job = null;
  kept.picked.clear();
}

const FIELDS = [
  ["errors", "Error class", "PaymentRefused", "Whole, or its last part."],
  ["keys", "Message key", "customer-7", "hex:… for bytes, null: for none."],
  ["originals", "First failed at", "orders/3:100-200", "Topic, topic/partition, or a range of offsets."],
  ["at", "Dead letter at", "orders.billing.dlq/0:17-", "The same, in the dead-letter topic."],
  ["values", "Value contains", "\"order\": 7", null],
];

export function whereOf(form) {
  const where = {};
  for (const [name] of FIELDS) {
    const texts = (form[name] || "").split(name === "values" ? "\n" : ",").map((text) => text.trim()).filter(Boolean);
    if (texts.length) where[name] = texts;
  }
  if ((form.header || "").trim()) {
    const [name, ...rest] = form.header.trim().split("=");
    where.headers = [[name, rest.length ? rest.join("=") : null]];
  }
  for (const name of ["since", "until"]) {
    const time = form[name] ? new Date(form[name]).getTime() : NaN;
    if (Number.isFinite(time)) where[name] = time / 1000;
  }
  if (form.replayed === "yes" || form.replayed === "no") where.replayed = form.replayed === "yes";
  return where;
}

export function mount(root, _args, app) {
  let job = kept.job;
  let following = null;
  let oops = "";
  let asked = Boolean(job);

  const draw = () => show(root, view());

  function view() {
    const head = h("div", { class: "head" }, h("h1", null, "Dead letters"));
    if (!app.can("read")) return [head, locked("read", "Dead letters hold payloads")];
    if (!app.session.dead_letters) return [head, h("div", { class: "card" }, empty("There are no dead letters to see here", app.session.why_no_dead_letters))];
    const running = asked && (!job || job.state === "running");
    return [
      head,
      filterCard(),
      oops && note("bad", oops),
      job && job.state === "failed" && note("bad", job.error),
      job && job.state === "stopped" && note("warn", `Only a part was read: ${job.stopped_because}. What follows is of that part.`),
      h("section", { class: "card", "aria-labelledby": "h-groups", "data-key": "groups", "aria-busy": String(running) },
        h("header", null,
          h("h2", { id: "h-groups" }, "By error "),
          job && job.result && h("span", { class: "count" }, summary(job.result)),
          !running && h("div", { class: "push" }, h("button", { class: "slim", onclick: search }, "Read again"))),
        running ? [h("div", { class: "in" }, progress(job, "Reading", () => following && following.stop())), waiting("Reading dead letters")] : groups(job && job.result)),
      notesOf(job && job.result),
      tray(),
    ];
  }

  function summary(result) {
    return `${plural(result.groups.length, "group")}, ${plural(result.letters, "letter")}, ${number(result.open)} open`;
  }

  function filterCard() {
    const form = h("form", { class: "form", onsubmit: (event) => { event.preventDefault(); apply(event.target); } },
      FIELDS.map(([name, label, example, hint]) => field(label, input(name, { id: `f-${name}`, placeholder: example, value: kept.form[name] || "" }), hint)),
      field("Header", input("header", { id: "f-header", placeholder: "tenant=north", value: kept.form.header || "" }), "A name, or name=value."),
      field("Died at or after", input("since", { id: "f-since", type: "datetime-local", value: kept.form.since || "" })),
      field("Died before", input("until", { id: "f-until", type: "datetime-local", value: kept.form.until || "" })),
      field("Came back after a replay", h("select", { name: "replayed", id: "f-replayed", value: kept.form.replayed || "" },
        h("option", { value: "" }, "either"), h("option", { value: "yes" }, "yes: dead again"), h("option", { value: "no" }, "no: never replayed"))),
      h("div", { class: "field" }, h("span", { "aria-hidden": "true" }, " "),
        h("div", { class: "actions" }, h("button", { type: "submit", class: "main" }, "Search"), h("button", { type: "button", onclick: clear }, "Clear"))));
    const count = Object.keys(kept.where).length;
    return h("section", { class: "card", "data-key": "filter" }, h("div", { class: "in" },
      h("details", { "data-key": "details" }, h("summary", null, count ? `Filter: ${plural(count, "condition")}` : "Filter"), h("div", { class: "in" }, form))));
  }

  function apply(form) {
    kept.form = Object.fromEntries(new FormData(form));
    kept.where = whereOf(kept.form);
    search();
  }

  function clear() {
    kept.form = {};
    kept.where = {};
    root.replaceChildren();
    search();
  }

  function groups(result) {
    if (!result) return h("div", { class: "in" }, " ");
    if (!result.groups.length) {
      return Object.keys(kept.where).length
        ? empty("No dead letter matches the filter", `${plural(result.skipped || 0, "letter")} did not match.`)
        : empty("No dead letters", result.topics.length ? ["Read: ", data(result.topics.join(", "))] : "There is no dead-letter topic yet: it comes with the first start of the group.");
    }
    return table([h("th", { scope: "col" }, h("span", { class: "unseen" }, "Choose")), "Error", right("Open"), right("Replayed"), right("In all"), "Topics", "Last", "First"],
      result.groups.map((each) => row(each)));
  }

  function row(each) {
    const picked = kept.picked.has(each.fingerprint);
    const name = each.error_class || "no error named";
    return h("tr", { "data-key": each.fingerprint, "aria-selected": String(picked) },
      h("td", { class: "fit" }, h("label", { class: "pick" }, h("span", { class: "unseen" }, `Choose ${name}`), h("input", { type: "checkbox", checked: picked, onchange: (event) => pick(each.fingerprint, event.target.checked) }))),
      cell("Error", [h("a", { class: "row", href: `#/dead/group/${encodeURIComponent(each.fingerprint)}`, title: name }, data(shortClass(name))), each.error_message && data(each.error_message, "why clamp"), h("code", { class: "muted small" }, each.fingerprint.slice(0, 12))], "full wide"),
      cell("Open", h("b", null, number(each.open)), "n"),
      cell("Replayed", number(each.states.replayed || 0), "n"),
      cell("In all", number(each.count), "n"),
      cell("Topics", data(Object.keys(each.original_topics).map((topic) => topic || "unknown").join(", "))),
      cell("Last", when(each.last_seen)),
      cell("First", when(each.first_seen)));
  }

  function notesOf(result) {
    if (!result) return null;
    return [
      result.others > 0 && note(null, `${plural(result.others, "letter")} more in groups beyond those that are listed: narrow the filter to see them.`),
      (result.notes || []).map((text) => note("warn", data(text))),
    ];
  }

  function pick(fingerprint, on) {
    if (on) kept.picked.add(fingerprint);
    else kept.picked.delete(fingerprint);
    draw();
  }

  function tray() {
    const result = job && job.result;
    if (!result || !kept.picked.size) return null;
    const picked = result.groups.filter((each) => kept.picked.has(each.fingerprint));
    if (!picked.length) return null;
    const open = picked.reduce((sum, each) => sum + each.open, 0);
    return h("div", { class: "tray", "data-key": "tray", role: "region", "aria-label": "Chosen" },
      h("span", null, h("b", null, plural(picked.length, "group")), `, ${plural(open, "open letter")}`),
      h("div", { class: "push" },
        h("button", { onclick: () => { kept.picked.clear(); draw(); } }, "Choose none"),
        h("button", { class: "main", onclick: () => choose({ ...kept.where, fingerprints: picked.map((each) => each.fingerprint) }, `${plural(picked.length, "group")} of errors`, picked.map((each) => each.error_class || each.fingerprint.slice(0, 12))) }, "Dry run…")));
  }

  async function search() {
    if (following) following.end();
    oops = "";
    job = kept.job = null;
    asked = true;
    draw();
    const mine = following = follow("groups", { where: kept.where }, (step) => {
      job = step;
      draw();
    });
    try {
      const ended = await mine.done;
      if (!ended) return;
      kept.job = job = ended;
      const known = new Set((ended.result ? ended.result.groups : []).map((each) => each.fingerprint));
      for (const each of [...kept.picked]) if (!known.has(each)) kept.picked.delete(each);
      app.pulse("live");
    } catch (error) {
      asked = false;
      oops = error.message;
      if (error.status === 401) app.again();
    }
    draw();
  }

  draw();
  if (app.can("read") && app.session.dead_letters && !job) search();
  return () => following && following.end();
}

/** The letters of one group. */
export function mountGroup(root, [fingerprint], app) {
  const where = { ...kept.where, fingerprints: [fingerprint] };
  const known = kept.job && kept.job.result ? kept.job.result.groups.find((each) => each.fingerprint === fingerprint) : null;
  let job = null;
  let oops = "";
  let following = null;

  const draw = () => show(root, view());

  function view() {
    const letters = job && job.result ? job.result.letters : [];
    const first = known || letters[0] || {};
    const title = first.error_class || "Dead letters of one group";
    const top = [h("a", { class: "back", href: "#/dead" }, "← Dead letters"), h("div", { class: "head" }, h("h1", null, data(title)),
      app.can("read") && h("div", { class: "push" }, h("button", { class: "main", onclick: () => choose(where, `the group ${fingerprint.slice(0, 12)}`, [title]) }, "Dry run…")))];
    if (!app.can("read")) return [top, locked("read", "Dead letters hold payloads")];
    const running = !oops && (!job || job.state === "running");
    return [
      top,
      known && h("p", { class: "sub" }, data(known.error_message)),
      h("p", { class: "sub small" }, "Fingerprint ", h("code", null, fingerprint), known && `, ${plural(known.count, "letter")}, ${number(known.open)} open`),
      oops && note("bad", oops),
      job && job.state === "failed" && note("bad", job.error),
      h("section", { class: "card", "aria-busy": String(running) },
        h("header", null, h("h2", null, "Letters "), h("span", { class: "count" }, job && job.result ? `the newest ${number(letters.length)}` : " ")),
        running
          ? [h("div", { class: "in" }, progress(job, "Reading", () => following && following.stop())), waiting("Reading letters")]
          : letters.length ? table(["Dead letter", "Original", "Key", "State", right("Attempts"), "Died", "Error"], letters.map(row)) : empty("No letter of this group is there any more")),
    ];
  }

  function row(each) {
    return h("tr", { "data-key": each.place },
      cell("Dead letter", h("a", { class: "row", href: `#/letter/${encodeURIComponent(each.topic)}/${each.partition}/${each.offset}` }, data(each.place)), "full"),
      cell("Original", data(each.original || "unknown"), "full"),
      cell("Key", each.key === null ? h("span", { class: "muted" }, "none") : data(each.key)),
      cell("State", badge(each.state, each.state === "open" ? "warn" : "ok")),
      cell("Attempts", number(each.attempts), "n"),
      cell("Died", when(each.died_at)),
      cell("Error", errorOf(each).slice(1), "full wide"));
  }

  draw();
  if (app.can("read")) {
    following = follow("letters", { where, limit: 200 }, (step) => { job = step; draw(); });
    following.done.catch((error) => { oops = error.message; draw(); });
  }
  return () => following && following.end();
}
