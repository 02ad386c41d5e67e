// Asks the member that served the page, and nobody else.

let csrf = "";
const tags = new Map();

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const later = (ms) => new Promise((done) => { setTimeout(done, ms); });

async function ask(path, options, tries = 8) {
  let answer;
  try {
    answer = await fetch(`api/${path}`, { cache: "no-store", credentials: "same-origin", redirect: "error", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "This member does not answer: it may have ended, or the connection is gone.");
  }
  if (answer.status === 503 && answer.headers.has("retry-after") && tries > 0) {
    await later(500 + 400 * (8 - tries));
    return ask(path, options, tries - 1);
  }
  if (answer.status === 304) return { answer, body: null };
  let body = null;
  try {
    body = await answer.json();
  } catch {
    throw new ApiError(answer.status, `An answer that can't be read (HTTP ${answer.status}): is a proxy in between?`);
  }
  if (!answer.ok) throw new ApiError(answer.status, (body && body.error) || `HTTP ${answer.status}`);
  return { answer, body };
}

/** GET. What has not changed is not sent again. */
export async function get(path, signal) {
  const known = tags.get(path);
  const { answer, body } = await ask(path, { signal, headers: known ? { "If-None-Match": known.tag } : {} });
  if (body === null) return known.body;
  if (tags.size > 40) tags.clear();
  tags.set(path, { tag: answer.headers.get("etag"), body });
  return body;
}

export async function post(path, body = {}) {
  const headers = { "Content-Type": "application/json", "X-Streamloop-Csrf": path === "login" ? "login" : csrf };
  return (await ask(path, { method: "POST", headers, body: JSON.stringify(body) })).body;
}

/** The session as the server knows it; what was read with another one is forgotten. */
export async function session() {
  return keep(await get("session"));
}

export function keep(found) {
  if (found.csrf !== csrf) tags.clear();
  csrf = found.csrf || "";
  return found;
}

/** Call `look` again and again, `ms` apart: slower while nobody sees the page, or nobody answers. */
export function poll(look, ms, onState = () => {}) {
  const control = new AbortController();
  let timer = 0;
  let failures = 0;
  let running = false;

  async function turn() {
    clearTimeout(timer);
    if (running || control.signal.aborted) return;
    running = true;
    try {
      await look(control.signal);
      failures = 0;
      onState("live");
    } catch (error) {
      if (control.signal.aborted) return;
      failures += 1;
      onState(failures > 2 ? "lost" : "late", error);
    } finally {
      running = false;
    }
    if (control.signal.aborted) return;
    const wait = (document.hidden ? 15 * ms : ms) * Math.min(15, 2 ** failures);
    timer = setTimeout(turn, Math.min(wait, 60_000));
  }
  function seen() {
    if (!document.hidden) turn();
  }
  document.addEventListener("visibilitychange", seen);
  turn();
  return {
    now: turn,
    end() {
      control.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    },
  };
}

/** Begin a job and follow it to its end; `onJob` sees each step. `end()` stops it when nobody waits any more. */
export function follow(path, body, onJob) {
  let id = "";
  let over = false;
  let timer = 0;
  const done = (async () => {
    if (path) id = (await post(path, body)).job;
    else id = body.id;
    for (let wait = 150; ; wait = Math.min(1000, wait * 1.4)) {
      if (over) return null;
      const job = await get(`job?id=${encodeURIComponent(id)}`);
      if (over) return null;
      onJob(job);
      if (job.state !== "running") {
        over = true;
        return job;
      }
      await new Promise((go) => { timer = setTimeout(go, document.hidden ? 5000 : wait); });
    }
  })();
  return {
    done,
    get id() { return id; },
    async stop() { if (id && !over) await post("stop", { id }); },
    end({ leave } = {}) {
      const running = !over;
      over = true;
      clearTimeout(timer);
      if (running && id && !leave) post("stop", { id }).catch(() => {});
    },
  };
}
