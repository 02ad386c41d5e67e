// How numbers, times and states read. Unknown is a dash, never 0.

export const NONE = "–";
const whole = new Intl.NumberFormat("en");

export function number(value) {
  return typeof value === "number" && Number.isFinite(value) ? whole.format(Math.round(value)) : NONE;
}

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** 0.3 s, 45 s, 5 min 3 s, 2 h 5 min, 3 d 4 h */
export function age(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return NONE;
  const given = Math.max(0, seconds);
  if (given === 0) return "0 s";
  if (given < 10) return `${given.toFixed(1)} s`;
  const rounded = Math.round(given);
  for (const [unit, name, below, lower] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (rounded >= unit) {
      const rest = Math.floor((rounded % unit) / below);
      return `${number(Math.floor(rounded / unit))} ${name}${rest ? ` ${rest} ${lower}` : ""}`;
    }
  }
  return `${rounded} s`;
}

/** Coarse, for what only moves on: 'just now', '5 min ago'. */
export function ago(epoch, now = Date.now() / 1000) {
  if (typeof epoch !== "number") return NONE;
  const seconds = now - epoch;
  if (seconds < -90) return `in ${coarse(-seconds)}`;
  return seconds < 45 ? "just now" : `${coarse(seconds)} ago`;
}

function coarse(seconds) {
  for (const [unit, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= unit) return `${number(Math.floor(seconds / unit))} ${name}`;
  }
  return "1 min";
}

export function duration(seconds) {
  if (typeof seconds !== "number") return NONE;
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  return seconds < 10 ? `${seconds.toFixed(2)} s` : age(seconds);
}

const two = (value) => String(value).padStart(2, "0");

/** In the reader's own time zone: 2026-01-31 08:15:02 */
export function moment(epoch) {
  if (typeof epoch !== "number") return NONE;
  const date = new Date(epoch * 1000);
  if (Number.isNaN(date.getTime())) return NONE;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function utc(epoch) {
  const date = new Date(epoch * 1000);
  return typeof epoch === "number" && !Number.isNaN(date.getTime()) ? date.toISOString() : "";
}

export function bytes(size) {
  if (typeof size !== "number") return NONE;
  let amount = size;
  for (const unit of ["B", "KiB", "MiB"]) {
    if (amount < 1024) return `${unit === "B" || amount >= 100 ? Math.round(amount) : amount.toFixed(1)} ${unit}`;
    amount /= 1024;
  }
  return `${amount.toFixed(1)} GiB`;
}

export function shortClass(name) {
  return name.slice(name.lastIndexOf(".") + 1) || name;
}

/** What holds a partition, in words. */
export const REASONS = {
  watermark: "buffer full",
  gap: "gap limit",
  retry_not_due: "retry not due yet",
  publish_blocked: "can't publish",
  breaker: "dependency unavailable",
  operator: "paused by an operator",
  assigning: "being assigned",
  engine_silent: "engine silent",
  topic_gone: "topic is gone",
  commit_refused: "commit refused",
  dead_letter_rate: "too many dead letters",
};

const CALM = new Set(["retry_not_due", "assigning", "watermark"]);

export function reason(name) {
  return REASONS[name] || name.replaceAll("_", " ");
}

export function tone(name) {
  return CALM.has(name) ? "plain" : name === "operator" ? "accent" : "warn";
}
