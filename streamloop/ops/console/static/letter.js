// One dead letter, whole: where it is from, why it died, its value, headers and trace.

import { get } from "./api.js";
import { badge, exact, note, table, waiting } from "./bits.js";
import { data, h, show } from "./dom.js";
import { NONE, age, bytes, duration, moment, number, plural } from "./format.js";
import { locked } from "./main.js";
import { choose } from "./replay.js";

export function mount(root, [topic, partition, offset], app) {
  const control = new AbortController();
  const place = `${topic}/${partition}/${offset}`;
  let letter = null;
  let oops = "";
  let trace = null;
  let traceOops = "";
  let raw = false;

  const draw = () => show(root, view());

  function view() {
    const back = letter && letter.fingerprint ? h("a", { class: "back", href: `#/dead/group/${encodeURIComponent(letter.fingerprint)}` }, "← Its group") : h("a", { class: "back", href: "#/dead" }, "← Dead letters");
    const top = [back, h("div", { class: "head" }, h("h1", null, data(place)), letter && badge(letter.state, letter.state === "open" ? "warn" : "ok"),
      letter && h("div", { class: "push" }, h("button", { class: "main", onclick: () => choose({ at: [place] }, `the letter ${place}`, [letter.error_class || place]) }, "Dry run…")))];
    if (!app.can("read")) return [top, locked("read", "Dead letters hold payloads")];
    if (oops) return [top, note("bad", oops)];
    if (!letter) return [top, h("div", { class: "card" }, waiting("Reading the letter"))];
    return [
      top,
      h("section", { class: "card", "aria-labelledby": "h-error" },
        h("header", null, h("h2", { id: "h-error" }, "Why it died")),
        h("div", { class: "in" }, h("b", { class: "error-line" }, data(letter.error_class || "no error is named in its headers")), letter.error_message && h("p", null, data(letter.error_message))),
        h("div", { class: "in" }, facts())),
      h("section", { class: "card", "aria-labelledby": "h-value" },
        h("header", null, h("h2", { id: "h-value" }, "Value "), h("span", { class: "count" }, sizeOf(letter.value)),
          letter.value.raw !== undefined && h("div", { class: "push" }, h("div", { class: "switch", role: "group", "aria-label": "How the value is shown" },
            h("button", { "aria-pressed": String(!raw), onclick: () => { raw = false; draw(); } }, "Indented"),
            h("button", { "aria-pressed": String(raw), onclick: () => { raw = true; draw(); } }, "As it is")))),
        h("div", { class: "in" }, content(letter.value, raw))),
      h("section", { class: "card", "aria-labelledby": "h-headers" },
        h("header", null, h("h2", { id: "h-headers" }, "Headers "), h("span", { class: "count" }, number(letter.headers.length))),
        headers(letter.headers.filter((each) => !isOurs(each)), letter.headers.filter(isOurs))),
      traceCard(),
    ];
  }

  function facts() {
    const rows = [
      ["First failed at", letter.original ? data(letter.original) : "unknown: its headers do not say"],
      ["Group", letter.group ? data(letter.group) : NONE],
      ["Attempts", number(letter.attempts)],
      ["First failure", exact(letter.first_failed_at)],
      ["Died", exact(letter.died_at)],
      ["Key", letter.key.kind === "null" ? "none" : inline(letter.key)],
      ["Replays", letter.replay_count ? `${letter.replay_count}, the last was ${letter.replay_id || "not named"}` : "none"],
      ["Written by", letter.written_by],
      ["Fingerprint", h("code", null, letter.fingerprint)],
      letter.entry && ["Settled by", data(letter.entry)],
    ];
    return h("dl", { class: "facts" }, rows.filter(Boolean).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
  }

  function traceCard() {
    const id = letter.trace_id;
    const link = id && /^[0-9a-f]{32}$/.test(id) && app.session.trace_link ? `${app.session.trace_link}/trace/${id}` : null;
    return h("section", { class: "card", "aria-labelledby": "h-trace" },
      h("header", null, h("h2", { id: "h-trace" }, "Trace "), id && h("code", { class: "muted small" }, id),
        link && h("div", { class: "push" }, h("a", { href: link, target: "_blank", rel: "noopener noreferrer" }, "Open in Jaeger"))),
      !id ? h("div", { class: "in muted" }, "It bears no trace.")
        : !app.session.traces ? h("div", { class: "in muted" }, "Set jaeger_url to see the trace here.")
          : traceOops ? h("div", { class: "in muted" }, traceOops)
            : trace ? waterfall(trace) : waiting("Asking Jaeger"));
  }

  async function load() {
    try {
      letter = await get(`letter?topic=${encodeURIComponent(topic)}&partition=${partition}&offset=${offset}`, control.signal);
      draw();
    } catch (error) {
      if (error.name === "AbortError") return;
      oops = error.message;
      draw();
      return;
    }
    if (!letter.trace_id || !app.session.traces) return;
    try {
      trace = await get(`trace?id=${letter.trace_id}`, control.signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      traceOops = error.message;
    }
    draw();
  }

  draw();
  if (app.can("read")) load();
  return () => control.abort();
}

/** What routers write: it is shown as facts above. */
const isOurs = (each) => each.name.startsWith("streamloop-") || each.name.startsWith("__dlq.");

function headers(own, routers) {
  const rows = (some) => table(["Name", "Value"], some.map((each) => h("tr", null,
    h("td", { class: "fit full mono" }, data(each.name)),
    h("td", { class: "full" }, inline(each.value)))));
  return [
    own.length ? rows(own) : h("div", { class: "in muted" }, "The message itself has none."),
    routers.length > 0 && h("details", { class: "in" }, h("summary", null, `${number(routers.length)} that were written when it failed`), rows(routers)),
  ];
}

function sizeOf(value) {
  if (value.kind === "null") return "null: a tombstone";
  if (value.kind === "empty") return "empty";
  return `${bytes(value.size)}, ${{ json: "JSON", text: "text", hex: "bytes" }[value.kind] || value.kind}${value.codec ? ` (${value.codec})` : ""}`;
}

function content(value, raw) {
  if (value.kind === "null") return h("span", { class: "muted" }, "null: there is no value");
  if (value.kind === "empty") return h("span", { class: "muted" }, "empty: 0 bytes");
  return [
    h("pre", { class: `value${value.kind === "hex" ? " hex" : ""}`, tabindex: "0", role: "region", "aria-label": "What the value holds" }, raw && value.raw !== undefined ? value.raw : value.text),
    value.shown < value.size && h("p", { class: "small muted" }, `The first ${bytes(value.shown)} of ${bytes(value.size)} are shown; 'streamloop dlq show --raw' has all of it.`),
  ];
}

function inline(value) {
  if (value.kind === "null") return h("span", { class: "muted" }, "null");
  if (value.kind === "empty") return h("span", { class: "muted" }, "empty");
  const text = value.raw !== undefined ? value.raw : value.text;
  return [
    value.kind === "hex" ? h("pre", { class: "value hex" }, text) : data(text, "mono"),
    value.shown < value.size && h("span", { class: "why" }, `${bytes(value.shown)} of ${bytes(value.size)}`),
  ];
}

function waterfall(trace) {
  return [
    h("div", { class: "in small muted" }, `${plural(trace.spans, "span")} of `, data(trace.services.join(", ") || "unknown"), `, ${duration(trace.took)} from ${moment(trace.began)}, `,
      trace.failed ? `${number(trace.failed)} failed` : "none failed",
      trace.longest_wait && `. Dotted: a wait, the longest ${age(trace.longest_wait)}`),
    h("div", { class: "fall", role: "list", "aria-label": "Spans" }, trace.rows.map((span) => h("div", { class: "span", role: "listitem" },
      h("div", { class: "span-name", style: { "padding-left": `${span.depth * 14}px` } },
        h("b", null, data(span.name)),
        data([span.service, span.kind, span.attempt !== null && `attempt ${span.attempt}`, span.outcome, span.orphan && "its parent is not in Jaeger"].filter(Boolean).join(", "), "why"),
        span.error && data(span.error, "error-line small")),
      h("div", { class: "span-took" }, duration(span.took)),
      h("div", { class: "span-track", "aria-hidden": "true" },
        trace.waits.map((at) => h("u", { style: { left: `${(at * 100).toFixed(2)}%` } })),
        h("i", { "data-tone": span.failed ? "bad" : "ok", style: { left: `${(span.from * 100).toFixed(2)}%`, width: `${((span.to - span.from) * 100).toFixed(2)}%` } }))))),
    trace.rows.length < trace.spans && h("div", { class: "in small muted" }, `and ${number(trace.spans - trace.rows.length)} more spans`),
  ];
}
