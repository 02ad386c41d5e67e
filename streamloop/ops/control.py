"""The control listener's paths: /status, and /pause and /resume for who has the act token.

/status shows no payloads. Error texts may quote one, and are shown to who has the read token only. Called by
waitress's threads; /pause and /resume set what the run's next tick applies.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from streamloop.engine.events import Reason
from streamloop.ops.web import Answer, Application, RefusedError, Request, answer_json, json_object
from streamloop.telemetry.logs import printable
from streamloop.version import __version__

if TYPE_CHECKING:
    from streamloop.lifecycle import Run
    from streamloop.ops.console.application import Console
    from streamloop.ops.guard import Guard
    from streamloop.ops.observer import Observer
    from streamloop.ops.web import Handler
    from streamloop.status import LoopStatus

log = logging.getLogger("streamloop.ops")

QUOTING: Final = frozenset({Reason.BREAKER.value, Reason.DEAD_LETTER_RATE.value})
"""Reasons whose details quote the error of a handler."""
HIDDEN: Final = "(the read token shows it)"


def control_application(
    run: Run, observer: Observer, guard: Guard, console: Console | None = None
) -> Application:
    """The application of one run. ``console``: None: it is off."""
    lock = threading.Lock()

    def status(request: Request) -> Answer:
        everything = guard.may_read(request)
        return answer_json(_status(observer, everything=everything))

    def hold(request: Request, *, held: bool) -> Answer:
        guard.require_act(request)
        body = json_object(request, {"topic": str, "partition": int})
        topic, partition = body.get("topic"), body.get("partition")
        known = run.topics
        if topic is not None and topic not in known:
            raise RefusedError(400, f"this loop does not read that topic; it reads {', '.join(known)}")
        if partition is not None and (topic is None or partition < 0):
            raise RefusedError(400, "a partition is a number of 0 or more, and needs its topic")
        with lock:
            run.operator(topic, partition, held=held)
        log.warning(
            "control: %s %s by %s",
            "paused" if held else "resumed",
            "everything"
            if topic is None
            else printable(topic if partition is None else f"{topic}/{partition}"),
            printable(request.peer),
            extra={"kind": "operator"},
        )
        paused = sorted(run.paused, key=repr)
        return answer_json({"paused": [{"topic": each[0], "partition": each[1]} for each in paused]})

    routes: dict[str, dict[str, Handler]] = {
        "/status": {"GET": status},
        "/pause": {"POST": lambda request: hold(request, held=True)},
        "/resume": {"POST": lambda request: hold(request, held=False)},
    }
    if console is not None:
        routes |= console.routes(list(routes))
    return Application(routes, guard.check_host)


def _status(observer: Observer, *, everything: bool) -> dict[str, Any]:
    probes = observer.probes()
    shown: dict[str, Any] = {
        "version": __version__,
        "at": time.time(),
        "probes": probes,
        "error_texts_shown": everything,
    }
    status = observer.status
    if status is None:
        return {**shown, "state": probes.phase}
    if not everything:
        status = _without_quotes(status)
    return {**shown, **{each.name: getattr(status, each.name) for each in fields(status)}}


def _without_quotes(status: LoopStatus) -> LoopStatus:
    partitions = tuple(
        replace(each, held={r: HIDDEN if r in QUOTING else text for r, text in each.held.items()})
        if not QUOTING.isdisjoint(each.held)
        else each
        for each in status.partitions
    )
    return replace(status, partitions=partitions)
