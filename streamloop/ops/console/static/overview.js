// Members, partitions, what is held and why, what waits for a retry; pause and resume.

import { get, poll, post } from "./api.js";
import { badge, cell, empty, note, right, table, waiting, when } from "./bits.js";
import { announce, data, dialog, field, h, input, show } from "./dom.js";
import { NONE, age, ago, number, plural, reason, tone } from "./format.js";

const FIRST = 30;

export function mount(root, _args, app) {
  let seen = null;
  let only = "all";
  let more = false;
  let polling = null;

  const draw = () => show(root, view());

  function view() {
    if (!seen) return [h("div", { class: "head" }, h("h1", null, "Overview")), h("div", { class: "card" }, waiting("Asking the member"))];
    return [
      head(),
      notes(),
      tiles(),
      partitions(),
      members(),
      handlers(),
    ];
  }

  function head() {
    const held = seen.holds.length > 0;
    return h("div", { class: "head", "data-key": "head" },
      h("h1", null, "Overview"),
      badge(data(seen.state), seen.state === "running" ? "ok" : "warn"),
      h("div", { class: "push" },
        h("button", { onclick: () => pause() }, "Pause…"),
        held && seen.holds.length > 1 && h("button", { onclick: () => resume(null, null) }, "Resume all")));
  }

  function notes() {
    const gone = seen.members.filter((each) => each.gone);
    const found = [];
    if (seen.unreadable.length) found.push(h("div", { class: "note", "data-tone": "warn", "data-key": "unreadable" }, h("span", null, "Of another version, and not shown: ", data(seen.unreadable.join(", ")))));
    if (seen.source !== "group") found.push(h("p", { class: "sub small", "data-key": "source" }, `Shown: ${seen.source_detail}.`));
    for (const hold of seen.holds) {
      const place = hold.topic === null ? "Everything" : hold.partition === null ? hold.topic : `${hold.topic}/${hold.partition}`;
      found.push(h("div", { class: "note", "data-tone": "warn", "data-key": `hold-${hold.scope}-${place}` },
        h("span", null, h("b", null, data(place)), hold.scope === "member" ? " is paused at this member" : " is paused",
          hold.who && [" by ", data(hold.who)], hold.since && [", ", when(hold.since)],
          hold.reason && [": ", data(hold.reason)],
          hold.waiting && h("span", { class: "why" }, "not applied yet by ", data(hold.waiting))),
        h("span", { class: "push" }, h("button", { class: "slim", onclick: () => resume(hold.topic, hold.partition) }, "Resume"))));
    }
    if (gone.length) found.push(h("div", { class: "note", "data-tone": "bad", "data-key": "gone" }, h("span", null, `${plural(gone.length, "member")} not heard of any more: `, data(gone.map((each) => each.member).join(", ")))));
    for (const each of seen.members) {
      for (const text of each.trouble) found.push(h("div", { class: "note", "data-tone": "bad", "data-key": `trouble-${each.member}-${text}` }, h("span", null, data(each.member), ": ", data(text))));
      for (const text of each.blocked) found.push(h("div", { class: "note", "data-tone": "warn", "data-key": `blocked-${each.member}-${text}` }, h("span", null, data(each.member), " can't publish to ", data(text))));
    }
    return found;
  }

  function tile(label, value, under, tone) {
    return h("div", { class: "tile", "data-tone": tone }, h("dt", null, label), h("dd", null, h("b", null, value), h("span", { class: "small" }, under || " ")));
  }

  function tiles() {
    const sums = seen.totals;
    const reasons = Object.entries(sums.held_by).map(([name, count]) => `${count} ${reason(name)}`).join(", ");
    const busy = Object.keys(sums.held_by).some((name) => tone(name) !== "plain");
    return h("dl", { class: "tiles", "data-key": "tiles" },
      tile("Members", number(sums.members), sums.gone ? `${sums.gone} gone` : plural(sums.partitions, "source partition"), sums.gone ? "bad" : null),
      tile("Lag", number(sums.lag), sums.lag_unknown ? `${plural(sums.lag_unknown, "partition")} not known` : `the oldest waits ${age(sums.lag_seconds)}`),
      tile("Held partitions", number(sums.held), reasons || "nothing is held", busy ? "warn" : null),
      tile("Wait for a retry", number(sums.retries_waiting), `${number(sums.waiting_in_place)} more in place`),
      tile("Open dead letters", number(sums.dead_letters), sums.dead_letters === null ? "not counted (yet)" : h("a", { href: "#/dead" }, "look at them"), sums.dead_letters > 0 ? "warn" : null),
      tile("In the process", number(sums.buffered), `${number(sums.running)} with a handler`));
  }

  function partitions() {
    const counts = { all: seen.partitions.length, held: seen.partitions.filter((e) => Object.keys(e.held).length).length, retry: seen.partitions.filter((e) => e.retry).length };
    const chosen = seen.partitions.filter((each) => only === "all" || (only === "held" ? Object.keys(each.held).length : each.retry));
    const shown = more ? chosen : chosen.slice(0, FIRST);
    const choice = (name, label) => h("button", { "aria-pressed": String(only === name), onclick: () => { only = name; more = false; draw(); } }, `${label} ${number(counts[name])}`);
    return h("section", { class: "card", "aria-labelledby": "h-partitions", "data-key": "partitions" },
      h("header", null,
        h("h2", { id: "h-partitions" }, "Partitions"),
        h("div", { class: "push" }, h("div", { class: "switch", role: "group", "aria-label": "Which partitions" }, choice("all", "All"), choice("held", "Held"), choice("retry", "Retries")))),
      shown.length === 0
        ? empty(only === "held" ? "Nothing is held" : only === "retry" ? "No retry topic is assigned" : "No partition is assigned", only === "all" ? "Another member may have them all, or the group is being balanced." : null)
        : table([h("th", { scope: "col" }, "Partition"), h("th", { scope: "col" }, "Member"), right("Lag"), right("Oldest"), right("Buffered"), h("th", { scope: "col" }, "Held, and why"), h("th", { scope: "col" }, h("span", { class: "unseen" }, "Pause or resume"))],
          shown.map(row)),
      chosen.length > shown.length && h("div", { class: "in" }, h("button", { class: "quiet", onclick: () => { more = true; draw(); } }, `Show all ${number(chosen.length)}`)),
      seen.partitions_left_out > 0 && h("div", { class: "in muted small" }, `${number(seen.partitions_left_out)} more partitions need no attention and are left out here; the totals have them.`));
  }

  function row(each) {
    const held = Object.entries(each.held);
    const operator = "operator" in each.held;
    const own = seen.holds.some((hold) => hold.topic === each.topic && hold.partition === each.partition);
    const place = `${each.topic}/${each.partition}`;
    return h("tr", { "data-key": place },
      cell("Partition", [data(each.topic), h("span", { class: "muted" }, "/"), String(each.partition)], "full name"),
      cell("Member", data(each.member), "muted"),
      cell("Lag", number(each.lag), "n"),
      cell("Oldest", age(each.lag_seconds), "n"),
      cell("Buffered", number(each.buffered), "n"),
      cell("Held, and why", held.length ? held.map(([name, text]) => h("div", null, badge(reason(name), tone(name)), text && data(text, "why"))).concat(holder(each)) : h("span", { class: "muted" }, "flows"), held.length ? "full wide" : "wide none"),
      h("td", { class: "fit" }, operator
        ? own && h("button", { class: "slim", "aria-label": `Resume ${place}`, onclick: () => resume(each.topic, each.partition) }, "Resume")
        : h("button", { class: "slim quiet", "aria-label": `Pause ${place}`, onclick: () => pause(each.topic, each.partition) }, "Pause")));
  }

  function holder(each) {
    const found = each.holder;
    return found ? [h("span", { class: "why" }, `offset ${number(found.offset)} holds the commit: ${found.state.toLowerCase()}, attempt ${found.attempt}${found.age === null ? "" : `, here for ${age(found.age)}`}`)] : [];
  }

  function members() {
    return h("section", { class: "card", "aria-labelledby": "h-members", "data-key": "members" },
      h("header", null, h("h2", { id: "h-members" }, "Members "), h("span", { class: "count" }, number(seen.members.length))),
      seen.members.length === 0 ? empty("No member has told how it is yet") : table(["Member", "State", right("Up for"), right("Partitions"), right("Lag"), right("In process"), "Protocol", right("Heard")],
        seen.members.map((each) => h("tr", { "data-key": each.member },
          cell("Member", [data(each.member), each.this && [" ", badge("shows this page")], each.host && data(each.host + (each.version ? `, ${each.version}` : ""), "why")], "full"),
          cell("State", each.gone ? badge(`gone, ${ago(each.gone)}`, "bad") : badge(each.live === false ? `${each.state}, stuck` : each.state, each.live === false ? "bad" : each.state === "running" ? "ok" : "warn")),
          cell("Up for", age(each.uptime), "n"),
          cell("Partitions", number(each.partitions), "n"),
          cell("Lag", number(each.lag), "n"),
          cell("In process", number(each.buffered), "n"),
          cell("Protocol", data(each.protocol || NONE)),
          cell("Heard", ago(each.heard), "n")))));
  }

  function handlers() {
    if (!seen.consumers.length) return null;
    return h("section", { class: "card", "aria-labelledby": "h-handlers", "data-key": "handlers" },
      h("header", null, h("h2", { id: "h-handlers" }, "Handlers"), h("span", { class: "sub small" }, "counted since each member started")),
      table(["Handler", "Member", right("Running"), right("Slowest"), right("Wait in place"), right("Acknowledged"), right("Failed attempts"), right("To retry"), right("Dead letters")],
        seen.consumers.map((each) => h("tr", { "data-key": `${each.member} ${each.name}` },
          cell("Handler", [data(each.name), data(each.topics.join(", "), "why")], "full"),
          cell("Member", data(each.member), "muted"),
          cell("Running", `${number(each.running)} of ${number(each.concurrency)}`, "n"),
          cell("Slowest", each.running ? age(each.slowest) : NONE, "n"),
          cell("Wait in place", number(each.waiting), "n"),
          cell("Acknowledged", number(each.acked), "n"),
          cell("Failed attempts", number(each.failed), "n"),
          cell("To retry", number(each.routed), "n"),
          cell("Dead letters", number(each.dead_lettered), "n")))));
  }

  // --------------------------------------------------------------------------------------------- acting

  function pause(topic = null, partition = null) {
    if (!app.can("act")) return app.signIn("act");
    const places = [["", "Everything that the group reads"], ...[...seen.topics.sources, ...seen.topics.retries].map((each) => [each, each])];
    const fixed = topic !== null;
    const place = fixed ? `${topic}/${partition}` : "";
    return dialog({
      title: fixed ? `Pause ${place}` : "Pause",
      intro: "Handlers that run go on to their end; nothing new starts until somebody resumes.",
      fields: [
        !fixed && field("What", h("select", { name: "topic" }, places.map(([value, label]) => h("option", { value }, label)))),
        !fixed && field("Only one partition", input("partition", { type: "number", min: 0, inputmode: "numeric" }), "Empty: all of the topic."),
        field("Why", input("reason", { maxlength: 200 }), "Others see it. May stay empty."),
      ],
      action: "Pause",
      async submit(values) {
        const body = fixed ? { topic, partition } : { topic: values.topic || null, partition: values.partition === "" ? null : Number(values.partition) };
        await act("pause", { ...body, reason: values.reason || null });
        announce("Paused");
      },
    });
  }

  async function resume(topic, partition) {
    if (!app.can("act")) return app.signIn("act");
    try {
      await act("resume", { topic, partition });
      announce("Resumed");
    } catch (error) {
      announce(error.message);
    }
    return null;
  }

  async function act(path, body) {
    await post(path, body);
    setTimeout(() => polling.now(), 700);
    polling.now();
  }

  draw();
  polling = poll(async (signal) => {
    seen = await get("overview", signal);
    draw();
  }, 2000, (state, error) => {
    app.pulse(state, error);
    if (!seen && error) show(root, h("div", { class: "head" }, h("h1", null, "Overview")), note("bad", error.message));
  });
  return () => polling.end();
}
