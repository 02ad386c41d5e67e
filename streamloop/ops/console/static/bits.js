// Small parts that several views show.

import { data, h } from "./dom.js";
import { ago, moment, number, plural, utc } from "./format.js";

export function badge(text, tone) {
  return h("span", { class: "badge", "data-tone": tone }, text);
}

export function note(tone, text, action) {
  return h("div", { class: "note", "data-tone": tone }, h("span", null, text), action && h("span", { class: "push" }, action));
}

export function waiting(label) {
  return h("div", { class: "wait", role: "status", "aria-label": label }, h("i"), h("i"), h("i"));
}

export function empty(title, text, action) {
  return h("div", { class: "empty" }, h("strong", null, title), text && h("span", null, text), action);
}

/** A time: how long ago, with the exact one behind it. */
export function when(epoch) {
  return typeof epoch === "number"
    ? h("time", { datetime: utc(epoch), title: `${moment(epoch)} here, ${utc(epoch)}` }, ago(epoch))
    : h("span", { class: "muted" }, ago(null));
}

export function exact(epoch) {
  return typeof epoch === "number" ? h("time", { datetime: utc(epoch), title: utc(epoch) }, moment(epoch), " ", h("span", { class: "muted" }, `(${ago(epoch)})`)) : ago(null);
}

/** A cell, with its name for the form that a phone shows. */
export function cell(label, content, cls) {
  return h("td", { "data-label": label, class: cls }, content);
}

export function table(heads, rows, props) {
  return h("div", { class: "table" }, h("table", { class: "cards", ...props },
    h("thead", null, h("tr", null, heads.map((head) => (typeof head === "string" ? h("th", { scope: "col" }, head) : head)))),
    h("tbody", null, rows)));
}

export const right = (text) => h("th", { scope: "col", class: "n" }, text);

/** How far a job is. Keeps its room from the beginning. */
export function progress(job, what, stop) {
  const { done, total, records, seconds } = (job && job.progress) || {};
  const known = typeof total === "number" && total > 0;
  const share = known ? Math.min(1, done / total) : null;
  return h("div", { class: "progress" },
    h("div", { class: `progress-line${known ? "" : " open"}`, role: "progressbar", "aria-label": what, "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": known ? Math.round(share * 100) : null },
      h("i", { style: known ? { width: `${(share * 100).toFixed(1)}%` } : {} })),
    h("div", { class: "progress-text" },
      h("span", null, known ? `${what}: ${number(done)} of ${number(total)} offsets` : `${what} …`),
      typeof records === "number" && records > 0 && h("span", null, plural(records, "record")),
      seconds > 2 && h("span", null, `${number(records / seconds)}/s`),
      stop && h("button", { class: "quiet slim", onclick: stop }, "Stop")));
}

export function errorOf(each, cls = "clamp") {
  return [
    h("b", null, each.error_class ? data(each.error_class) : h("span", { class: "muted" }, "no error named")),
    each.error_message && data(each.error_message, `why ${cls}`),
  ];
}
