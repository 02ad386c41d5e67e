"""Members, partitions, holds and waiting retries, as the page shows them: of the group where it is known.

Made of what the control topic tells and, for this member, of values that were computed a moment ago; asking
costs the event loop nothing. Error texts may quote payloads and are left out for who may not see them. Called
by the console's API.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from streamloop.control.link import STARTING
from streamloop.control.trim import QUIET, totals_of
from streamloop.control.view import hide
from streamloop.ops.console.shown import shown_text
from streamloop.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streamloop.control.records import TopicTotals
    from streamloop.control.view import GroupView
    from streamloop.observed import Observed
    from streamloop.ops.observer import Observer
    from streamloop.status import ConsumerStatus, LoopStatus, PartitionStatus

MOST_PARTITIONS: Final = 1_000
"""Shown; what needs attention first. The totals are of all."""
KEPT: Final = 0.5
"""Seconds for which an answer is given again: many pages cost no more than one."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A member: what it does, and what is said of it. ``gone``: since when (epoch seconds)."""

    name: str
    status: LoopStatus | None
    topics: tuple[TopicTotals, ...]
    this: bool = False
    host: str = ""
    version: str = ""
    silent: float = 0.0
    gone: float | None = None
    ended: str = ""
    cut: int = 0
    applied: bool = True


class Overview:
    """Of one run."""

    def __init__(
        self, run: Observed, observer: Observer, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run = run
        self._observer = observer
        self._clock = clock
        self._lock = threading.Lock()
        self._made: dict[bool, tuple[float, dict[str, Any]]] = {}

    def of(self, *, may_read: bool) -> dict[str, Any]:
        """All of it, as JSON. ``may_read``: with error texts."""
        with self._lock:
            made = self._made.get(may_read)
            if made is None or self._clock() - made[0] >= KEPT:
                made = self._clock(), self._make(may_read=may_read)
                self._made[may_read] = made
            return made[1]

    def forget(self) -> None:
        """Something has changed: the next answer is made anew."""
        with self._lock:
            self._made.clear()

    def _make(self, *, may_read: bool) -> dict[str, Any]:
        now = time.time()
        run, observer = self._run, self._observer
        status = observer.status
        own = _Member(
            run.settings.member,
            status,
            totals_of(status) if status is not None else (),
            this=True,
            host=socket.gethostname(),
            version=__version__,
        )
        view, source = self._group()
        members = [own] if view is None else _members(view, own)
        here = [each for each in members if each.gone is None]
        partitions = sorted(_table(here, may_read=may_read), key=_worst_first)
        probes = observer.probes()
        return {
            "at": now,
            **source,
            "state": probes.phase,
            "texts_shown": may_read,
            "topics": {"sources": sorted(run.sources), "retries": sorted(set(run.topics) - run.sources)},
            "members": [
                _member(
                    each,
                    now,
                    trouble=probes.why_not_live if each.this else (),
                    applied_matters=view is not None and bool(view.holds),
                    may_read=may_read,
                )
                for each in members
            ],
            "unreadable": [shown_text(each, 200) for each in view.unreadable] if view is not None else [],
            "partitions": partitions[:MOST_PARTITIONS],
            "partitions_left_out": max(0, len(partitions) - MOST_PARTITIONS) + sum(m.cut for m in here),
            "consumers": [
                _consumer(consumer, each.name)
                for each in here
                for consumer in (each.status.consumers if each.status is not None else ())
            ],
            "holds": self._holds(here if view is not None else []),
            "totals": _totals(here, len(members) - len(here), partitions),
        }

    def _group(self) -> tuple[GroupView | None, dict[str, Any]]:
        """The group's view, where the control topic gives one; and what to say of it."""
        control = self._run.control
        if control is not None and control.on:
            view = control.view()
            if view.complete:
                return view, {"source": "group", "source_detail": ""}
        known = self._run.control_status
        if known is None or known.state in ("on", STARTING):
            why = "the control topic is being read"
        else:
            why = known.detail or f"the control topic {known.topic} is {known.state}"
        return None, {"source": "member", "source_detail": f"this member only, since {shown_text(why)}"}

    def _holds(self, members: Iterable[_Member]) -> list[dict[str, Any]]:
        """What operators hold here and in the group. ``waiting``: members that have not applied all yet."""
        waiting = [each.name for each in members if not each.applied and not each.this]
        return [
            {
                "scope": each.scope,
                "topic": each.topic,
                "partition": each.partition,
                "who": shown_text(each.by, 200),
                "since": each.since,
                "reason": shown_text(each.reason, 500),
                "waiting": shown_text(", ".join(waiting), 300) if each.scope == "group" else "",
            }
            for each in self._run.operators.status()
        ]


def _members(view: GroupView, own: _Member) -> list[_Member]:
    """The group's members, this one first and as it is now."""
    others = [
        _Member(
            each.name,
            each.record.status,
            each.record.topics,
            host=each.record.host,
            version=each.record.version,
            silent=each.silent,
            gone=each.gone_since,
            ended=each.record.ended,
            cut=each.record.partitions_cut,
            applied=each.applied_all,
        )
        for each in view.members
        if each.name != own.name
    ]
    return [own, *others]


def _table(members: Iterable[_Member], *, may_read: bool) -> list[dict[str, Any]]:
    """One row for each partition: of two members that name one, the one heard last has it."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for member in sorted(members, key=lambda each: -each.silent):
        if member.status is None:
            continue
        retries = _retry_topics(member.status)
        for part in member.status.partitions:
            shown = part if may_read else hide(part)
            found[part.topic, part.partition] = _partition(shown, member.name, retry=part.topic in retries)
    return list(found.values())


def _retry_topics(status: LoopStatus) -> frozenset[str]:
    return frozenset(topic for intake in status.intakes if intake.name == "retry" for topic in intake.topics)


def _worst_first(each: dict[str, Any]) -> tuple[Any, ...]:
    return (
        QUIET.issuperset(each["held"]),
        not each["held"],
        -(each["lag"] or 0),
        each["topic"],
        each["partition"],
    )


def _totals(members: list[_Member], gone: int, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    topics = [each for member in members for each in member.topics]
    sources = [each for each in topics if each.kind == "source"]
    retries = [each for each in topics if each.kind != "source"]
    reasons: dict[str, int] = {}
    for each in partitions:
        for reason in each["held"]:
            reasons[reason] = reasons.get(reason, 0) + 1
    consumers = [each for member in members if member.status for each in member.status.consumers]
    return {
        "members": len(members),
        "gone": gone,
        "partitions": sum(each.partitions for each in sources),
        "held": sum(each.held for each in topics),
        "held_by": reasons,
        "lag": _lag(sources),
        "lag_unknown": sum(each.lag_unknown for each in sources),
        "lag_seconds": max(
            (each.lag_seconds for each in sources if each.lag_seconds is not None), default=None
        ),
        "buffered": sum(each.buffered for each in topics),
        "running": sum(each.running for each in consumers),
        "retries_waiting": _lag(retries),
        "waiting_in_place": sum(each.waiting for each in consumers),
        "dead_letters": _dead_letters(members),
    }


def _dead_letters(members: Iterable[_Member]) -> int | None:
    """Open ones, as far as somebody has counted them; None: nobody has."""
    counted: dict[str, int] = {}
    for member in members:
        if member.status is not None:
            counted |= member.status.open_dead_letters
    return sum(counted.values()) if counted else None


def _lag(topics: Iterable[TopicTotals]) -> int | None:
    """The sum of what is known; None where nothing is: unknown is never 0."""
    known = [each for each in topics if each.partitions > each.lag_unknown]
    return sum(each.lag for each in known) if known else None


def _member(
    member: _Member, now: float, *, trouble: tuple[str, ...], applied_matters: bool, may_read: bool
) -> dict[str, Any]:
    status = member.status
    ended = member.ended if may_read or not member.ended else "it has ended with an error"
    return {
        "member": shown_text(member.name, 200),
        "this": member.this,
        "host": shown_text(member.host, 200),
        "version": shown_text(member.version, 50),
        "state": shown_text(status.state if status is not None else "starting", 60),
        "live": not trouble,
        "trouble": [shown_text(each) for each in trouble],
        "ended": shown_text(ended),
        "uptime": status.uptime if status is not None else None,
        "heard": now - member.silent,
        "gone": member.gone,
        "applied": member.applied or not applied_matters,
        "partitions": sum(each.partitions for each in member.topics),
        "lag": _lag(member.topics),
        "buffered": sum(each.buffered for each in member.topics),
        "running": sum(each.running for each in status.consumers) if status is not None else 0,
        "publishing": status.publishing if status is not None else 0,
        "blocked": [shown_text(each) for each in status.blocked_targets[:10]] if status is not None else [],
        "protocol": shown_text(status.intakes[0].protocol, 40)
        if status is not None and status.intakes
        else "",
    }


def _partition(part: PartitionStatus, member: str, *, retry: bool) -> dict[str, Any]:
    return {
        "topic": shown_text(part.topic, 250),
        "partition": part.partition,
        "member": shown_text(member, 200),
        "retry": retry,
        "lag": part.lag,
        "lag_seconds": part.lag_seconds,
        "buffered": part.buffered,
        "running": part.running,
        "held": {shown_text(reason, 60): shown_text(text) for reason, text in part.held.items()},
        "holder": asdict(part.holder) if part.holder is not None else None,
    }


def _consumer(consumer: ConsumerStatus, member: str) -> dict[str, Any]:
    counts = consumer.counts
    return {
        "name": shown_text(consumer.name, 200),
        "member": shown_text(member, 200),
        "topics": [shown_text(each, 250) for each in consumer.topics[:20]],
        "running": consumer.running,
        "concurrency": consumer.concurrency,
        "waiting": consumer.waiting,
        "slowest": consumer.slowest,
        "acked": counts.get("acked", 0),
        "failed": counts.get("failed_attempts", 0),
        "routed": counts.get("routed", 0),
        "dead_lettered": counts.get("dead_lettered", 0),
    }
