"""The questions of the page, and their answers in JSON.

Looking at members needs no token, as for /status. Dead letters hold payloads: seeing anything of them, a
filter's result included, needs the read token; acting needs the act token. What takes long is begun here and
asked for later (``jobs``). Called by waitress's threads, of which there are few: at most one answer at a time
waits for Kafka or Jaeger.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import threading
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import orjson

from streamloop.errors import StreamLoopError
from streamloop.ops.console import jobs as jb
from streamloop.ops.console.overview import Overview
from streamloop.ops.console.pages import HEADERS
from streamloop.ops.console.recent import Recent
from streamloop.ops.console.session import LONGEST_NAME
from streamloop.ops.console.traces import trace_of
from streamloop.ops.control import apply_hold, scope_of
from streamloop.ops.web import JSON, Answer, RefusedError, json_object
from streamloop.telemetry.logs import printable
from streamloop.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamloop.observed import Observed
    from streamloop.ops.console.access import Access, Viewer
    from streamloop.ops.console.desk import Desk
    from streamloop.ops.observer import Observer
    from streamloop.ops.web import Handler, Request

log = logging.getLogger("streamloop.ops")

T = TypeVar("T")
Answerer: TypeAlias = "Callable[[Request], Any]"

MOST_LETTERS: Final = 500
RUNS_EVERY: Final = 2.0
_LARGEST: Final = 2**63 - 1
_MOST: Final = 1_000_000_000


class Api:
    """The API of one member. ``desk``: None where there are no dead letters to look at, with ``why_none``."""

    def __init__(
        self,
        run: Observed,
        observer: Observer,
        access: Access,
        desk: Desk | None,
        jobs: jb.Jobs,
        *,
        why_none: str = "",
    ) -> None:
        self._run = run
        self._overview_of = Overview(run, observer)
        self._access = access
        self._desk = desk
        self._jobs = jobs
        self._why_none = why_none
        self._slow = threading.Semaphore(1)
        self._runs: Recent[list[dict[str, Any]]] | None = (
            Recent(desk.runs, every=RUNS_EVERY) if desk is not None else None
        )

    def routes(self, base: str) -> dict[str, dict[str, Handler]]:
        """By path, then by method."""
        get: dict[str, Answerer] = {
            "session": self._session,
            "overview": self._overview,
            "letter": self._letter,
            "trace": self._trace,
            "job": self._job,
            "runs": self._run_list,
        }
        post: dict[str, Answerer] = {
            "login": self._login,
            "logout": self._logout,
            "pause": functools.partial(self._hold, held=True),
            "resume": functools.partial(self._hold, held=False),
            "groups": self._groups,
            "letters": self._letters,
            "preview": self._preview,
            "replay": self._replay,
            "run": self._one_run,
            "stop": self._stop,
        }
        return {
            **{f"{base}/{name}": {"GET": _answering(answerer)} for name, answerer in get.items()},
            **{f"{base}/{name}": {"POST": _answering(answerer)} for name, answerer in post.items()},
        }

    # ------------------------------------------------------------------------------------------- who asks

    def _session(self, request: Request) -> dict[str, Any]:
        return self._session_of(self._access.viewer(request))

    def _session_of(self, viewer: Viewer) -> dict[str, Any]:
        settings = self._run.settings
        session = viewer.session
        return {
            "group": settings.group,
            "member": settings.member,
            "version": __version__,
            "who": viewer.who,
            "rights": sorted(viewer.rights),
            "offered": sorted(self._access.guard.offered),
            "csrf": self._access.sessions.csrf(session) if session is not None else "",
            "ends": session.ends if session is not None else None,
            "dead_letters": self._desk is not None,
            "why_no_dead_letters": self._why_none,
            "traces": settings.jaeger_url is not None,
            "trace_link": settings.jaeger_link or "",
        }

    def _login(self, request: Request) -> Answer:
        access = self._access
        access.check_login(request)
        body = json_object(request, {"who": str, "read_token": str, "act_token": str})
        who = " ".join((body.get("who") or "").split())
        if not who or len(who) > LONGEST_NAME or printable(who) != who:
            raise RefusedError(
                400, f"give your name, 1 to {LONGEST_NAME} characters: it is written down with what you do"
            )
        rights: frozenset[str] = frozenset()
        for right in ("read", "act"):
            token = (body.get(f"{right}_token") or "").strip()
            if not token:
                continue
            if right not in access.guard.offered:
                raise RefusedError(403, f"no control_{right}_token is set: leave that field empty")
            found = access.guard.rights(request, token)
            if right not in found:
                raise RefusedError(403, f"that is not the {right} token, but the other one")
            rights |= {right}
        if not rights:
            raise RefusedError(400, "give the read token, the act token, or both")
        known = access.sessions.of(request.headers.get("cookie", ""))
        if known is not None and known.who == who:
            rights |= known.rights
        session = access.sessions.open(who, rights)
        log.info(
            "console: %s has signed in from %s, may %s",
            who,
            printable(request.peer),
            " and ".join(sorted(rights, reverse=True)),
            extra={"kind": "console"},
        )
        from streamloop.ops.console.access import Viewer

        shown = self._session_of(Viewer(who, rights, session))
        return _json(shown, ("Set-Cookie", access.sessions.cookie(session)))

    def _logout(self, request: Request) -> Answer:
        viewer = self._access.poster(request)
        log.info(
            "console: %s has signed out from %s",
            viewer.who,
            printable(request.peer),
            extra={"kind": "console"},
        )
        return _json({"who": ""}, ("Set-Cookie", self._access.sessions.ended()))

    # ------------------------------------------------------------------------------------ members and holds

    def _overview(self, request: Request) -> dict[str, Any]:
        viewer = self._access.viewer(request)
        return self._overview_of.of(may_read=viewer.may_read)

    def _hold(self, request: Request, *, held: bool) -> dict[str, Any]:
        viewer = self._access.actor(request)
        body = json_object(request, {"topic": str, "partition": int, "reason": str})
        scope = scope_of(self._run, body.get("topic"), body.get("partition"))
        by = f"{viewer.who} ({request.peer})" if viewer.session is not None else viewer.who
        where = apply_hold(self._run, scope, by, body.get("reason") or "", held=held)
        self._overview_of.forget()
        return {"done": True, "scope": where}

    # ---------------------------------------------------------------------------------------- dead letters

    def _desk_of(self) -> Desk:
        if self._desk is None:
            raise RefusedError(404, self._why_none or "this loop has no dead-letter topic")
        return self._desk

    def _groups(self, request: Request) -> dict[str, Any]:
        viewer = self._access.reading_poster(request)
        desk, where = self._desk_of(), _where(request)
        return self._begin(
            jb.LOOK,
            "a search of dead letters",
            lambda progress, stop: desk.groups(where, progress, stop),
            viewer,
        )

    def _letters(self, request: Request) -> dict[str, Any]:
        viewer = self._access.reading_poster(request)
        body = json_object(request, {"where": dict, "limit": int})
        desk, where, limit = self._desk_of(), body.get("where") or {}, body.get("limit")
        limit = MOST_LETTERS if limit is None else limit
        if not 1 <= limit <= MOST_LETTERS:
            raise RefusedError(400, f"limit is a number from 1 to {MOST_LETTERS}")
        return self._begin(
            jb.LOOK,
            "a list of dead letters",
            lambda progress, stop: desk.letters(where, limit, progress, stop),
            viewer,
        )

    def _preview(self, request: Request) -> dict[str, Any]:
        viewer = self._access.reading_poster(request)
        body = json_object(request, {"where": dict, "plan": dict})
        desk, where, plan = self._desk_of(), body.get("where") or {}, body.get("plan") or {}
        return self._begin(
            jb.LOOK, "a dry run", lambda progress, stop: desk.preview(where, plan, progress, stop), viewer
        )

    def _replay(self, request: Request) -> dict[str, Any]:
        viewer = self._access.actor(request)
        body = json_object(request, {"where": dict, "plan": dict})
        desk, where, plan = self._desk_of(), body.get("where") or {}, body.get("plan") or {}
        try:
            written = printable(orjson.dumps({"where": where, "plan": plan}).decode())
        except TypeError:  # nothing is begun that can't be written down
            raise RefusedError(400, "the filter or the plan is nested too deeply") from None

        def work(progress: jb.Progress, stop: threading.Event) -> dict[str, Any]:
            try:
                return desk.replay(where, plan, by=viewer.who, progress=progress, stop=stop)
            finally:
                if self._runs is not None:
                    self._runs.soon()

        answer = self._begin(jb.REPLAY, "a replay", work, viewer)
        log.warning(
            "console: a replay was begun by %s from %s: %s",
            viewer.who,
            printable(request.peer),
            written,
            extra={"kind": "operator"},
        )
        if self._runs is not None:
            self._runs.soon()
        return answer

    def _begin(self, kind: str, what: str, work: jb.Work, viewer: Viewer) -> dict[str, Any]:
        return {"job": self._jobs.start(kind, what, work, by=viewer.who).id}

    def _job(self, request: Request) -> dict[str, Any]:
        viewer = self._access.viewer(request)
        if not viewer.rights:
            self._access.reader(request)
        job = self._jobs.get(request.query.get("id", ""))
        if job.kind != jb.REPLAY:
            self._access.reader(request)
        shown = job.shown()
        if not viewer.may_read:  # who may act only sees counts
            shown["result"] = None
        return shown

    def _stop(self, request: Request) -> dict[str, Any]:
        viewer = self._access.poster(request)
        key = json_object(request, {"id": str}).get("id") or ""
        if self._jobs.get(key).kind == jb.REPLAY:
            self._access.actor(request)
        else:
            self._access.reading_poster(request)
        job = self._jobs.stop(key, f"stopped by {viewer.who}")
        log.warning(
            "console: %s was stopped by %s from %s",
            job.what,
            viewer.who,
            printable(request.peer),
            extra={"kind": "operator"},
        )
        return job.shown() if viewer.may_read else {"id": job.id, "state": job.state}

    def _letter(self, request: Request) -> dict[str, Any]:
        self._access.reader(request)
        desk = self._desk_of()
        topic = request.query.get("topic", "")
        partition, offset = _number(request, "partition", 2**31 - 1), _number(request, "offset", _LARGEST)
        return self._slowly(lambda: desk.letter(topic, partition, offset))

    def _run_list(self, request: Request) -> dict[str, Any]:
        self._access.reader(request)
        self._desk_of()
        assert self._runs is not None
        runs, error = self._runs.get()
        here = self._jobs.replaying()
        return {"runs": runs, "error": error, "here": here.shown() if here is not None else None}

    def _one_run(self, request: Request) -> dict[str, Any]:
        viewer = self._access.reading_poster(request)
        desk, key = self._desk_of(), json_object(request, {"run": str}).get("run") or ""
        return self._begin(
            jb.LOOK, "a look at a replay", lambda progress, stop: desk.run(key, progress, stop), viewer
        )

    def _trace(self, request: Request) -> dict[str, Any]:
        self._access.reader(request)
        url = self._run.settings.jaeger_url
        if url is None:
            raise RefusedError(404, "jaeger_url is not set: this member knows no Jaeger to ask")
        return self._slowly(lambda: trace_of(url, request.query.get("id", "")))

    def _slowly(self, look: Callable[[], T]) -> T:
        """One at a time: the other threads go on answering. The page tries again by itself."""
        if not self._slow.acquire(blocking=False):
            raise RefusedError(503, "another question is being answered: try again", ("Retry-After", "1"))
        try:
            return look()
        except StreamLoopError as error:
            raise RefusedError(502, str(error)) from None
        finally:
            self._slow.release()


def _where(request: Request) -> Mapping[str, Any]:
    where = json_object(request, {"where": dict}).get("where") or {}
    assert isinstance(where, dict)
    return where


def _number(request: Request, name: str, most: int) -> int:
    text = request.query.get(name, "")
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > most:
        raise RefusedError(400, f"{name} is a number of 0 or more")
    return int(text)


def _answering(answerer: Answerer) -> Handler:
    def answer(request: Request) -> Answer:
        try:
            found = answerer(request)
        except RefusedError as error:
            raise RefusedError(error.status, error.sentence, *error.headers, *HEADERS) from None
        if isinstance(found, Answer):
            return found
        answer = _json(found)
        tag = f'"{hashlib.sha256(answer.body).hexdigest()[:24]}"'
        if request.method == "GET" and request.headers.get("if-none-match") == tag:
            return Answer(304, b"", JSON, (("ETag", tag), *HEADERS))
        return Answer(200, answer.body, JSON, (("ETag", tag), *answer.headers))

    return answer


def _json(value: Any, *headers: tuple[str, str]) -> Answer:
    body = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE)
    return Answer(200, body, JSON, (*headers, *HEADERS))
