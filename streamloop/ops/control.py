"""The control listener's paths: /status, and /pause and /resume for who has the act token.

/status and /group show no payloads. Error texts may quote one, and are shown to who has the read token only.
/pause and /resume are for the whole group where there is a control topic, and for this member alone
otherwise; the answer says which. Called by waitress's threads; the run's next tick applies what was set.
"""

from __future__ import annotations

import logging
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from streamloop.control.records import LONGEST_REASON, Scope
from streamloop.control.view import hide
from streamloop.control.writes import ControlError
from streamloop.ops.web import Answer, Application, RefusedError, Request, answer_json, json_object
from streamloop.telemetry.logs import printable
from streamloop.version import __version__

if TYPE_CHECKING:
    from streamloop.observed import Observed
    from streamloop.ops.console.application import Console
    from streamloop.ops.guard import Guard
    from streamloop.ops.observer import Observer
    from streamloop.ops.web import Handler
    from streamloop.status import LoopStatus

log = logging.getLogger("streamloop.ops")

GROUP: Final = "group"
MEMBER: Final = "member"
"""How far a pause reaches."""


def control_application(
    run: Observed, observer: Observer, guard: Guard, console: Console | None = None
) -> Application:
    """The application of one run. ``console``: None: it is off."""

    def status(request: Request) -> Answer:
        everything = guard.may_read(request)
        return answer_json(_status(observer, everything=everything))

    def hold(request: Request, *, held: bool) -> Answer:
        guard.require_act(request)
        body = json_object(request, {"topic": str, "partition": int, "scope": str, "reason": str, "by": str})
        scope = scope_of(run, body.get("topic"), body.get("partition"))
        # Whom the token stands for is not known: what is said of it is taken, beside where it came from.
        by = f"{body['by']} ({request.peer})" if body.get("by") else request.peer
        where = apply_hold(run, scope, by, body.get("reason") or "", held=held, where=body.get("scope"))
        return answer_json({"scope": where, "paused": run.operators.status()})

    def group(request: Request) -> Answer:
        everything = guard.may_read(request)
        control = run.control
        if control is None:
            off = run.control_status
            why = off.detail if off is not None else "the run has not begun"
            raise RefusedError(404, f"there is no control topic: {why}")
        view = control.view()
        shown = view if everything else view.without_quotes()
        return answer_json(
            {
                "control": control.status(),
                "error_texts_shown": everything,
                "lag": view.lag,
                "waiting_retry": view.waiting_retry,
                **{each.name: getattr(shown, each.name) for each in fields(shown)},
            }
        )

    routes: dict[str, dict[str, Handler]] = {
        "/status": {"GET": status},
        "/group": {"GET": group},
        "/pause": {"POST": lambda request: hold(request, held=True)},
        "/resume": {"POST": lambda request: hold(request, held=False)},
    }
    if console is not None:
        routes |= console.routes(list(routes))
    return Application(routes, guard.check_host)


def scope_of(run: Observed, topic: str | None, partition: int | None) -> Scope:
    """What is meant. RefusedError for what this loop does not read."""
    known = run.topics
    if topic is not None and topic not in known:
        raise RefusedError(400, f"this loop does not read that topic; it reads {', '.join(known)}")
    if partition is not None and (topic is None or partition < 0):
        raise RefusedError(400, "a partition is a number of 0 or more, and needs its topic")
    return Scope(topic, partition)


def apply_hold(
    run: Observed, scope: Scope, by: str, reason: str, *, held: bool, where: str | None = None
) -> str:
    """Pause or resume it, ``where``: in the group or at this member; None: the group where it has a topic.

    Returns which it was. RefusedError when the group can't be told.
    """
    if where not in (None, GROUP, MEMBER):
        raise RefusedError(400, f"the field scope is {GROUP} or {MEMBER}")
    if where is None:
        where = GROUP if run.control is not None and run.control.on else MEMBER
    if where == GROUP:
        _for_the_group(run, scope, by, reason, held=held)
    if held and where == MEMBER:
        run.operators.hold(scope, by, reason[:LONGEST_REASON])
    elif not held:
        run.operators.release(scope)
        if run.control is not None and not run.control.on:
            run.control.forget(scope)
    log.warning(
        "control: %s %s by %s, for %s",
        "paused" if held else "resumed",
        printable(str(scope)),
        printable(by),
        "the group" if where == GROUP else "this member alone",
        extra={"kind": "operator"},
    )
    return where


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
    return replace(status, partitions=tuple(map(hide, status.partitions)))


def _for_the_group(run: Observed, scope: Scope, by: str, reason: str, *, held: bool) -> None:
    """Write it to the control topic, and wait until this member has read it back, too."""
    control = run.control
    if control is None:
        off = run.control_status
        why = off.detail if off is not None else "the run has not begun"
        raise RefusedError(
            503, f"there is no control topic: {why}. With scope=member it is this member's alone"
        )
    try:
        offset = control.pause(scope, by, reason) if held else control.resume(scope, by)
    except ControlError as error:
        raise RefusedError(503, str(error)) from None
    control.await_read(offset)
