"""Members, partitions, holds and waiting retries, as the page shows them: of the group where it is known.

Made of values that were computed before. Error texts may quote payloads and are left out for who may not see
them. Called by the console's API.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from streamloop.ops.console.shown import shown_text
from streamloop.ops.control import HIDDEN, QUOTING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamloop.lifecycle import Run
    from streamloop.ops.observer import Observer
    from streamloop.status import LoopStatus

MOST_PARTITIONS: Final = 2_000
"""Shown; those that are held or far behind first. The totals are of all."""


def overview(run: Run, observer: Observer, *, may_read: bool) -> dict[str, Any]:
    """The whole of it."""
    probes = observer.probes()
    status = observer.status
    now = time.time()
    members: list[dict[str, Any]] = []
    partitions: list[dict[str, Any]] = []
    consumers: list[dict[str, Any]] = []
    if status is not None:
        members.append(_member(status, probes.live, probes.why_not_live, now))
        partitions += [
            _partition(each, status.member, may_read=may_read) for each in map(asdict, status.partitions)
        ]
        consumers += [_consumer(asdict(each), status.member) for each in status.consumers]
    holds = [
        {
            "topic": topic,
            "partition": partition,
            "who": "",
            "since": None,
            "reason": "",
            "waiting": "",
        }
        for topic, partition in sorted(run.paused, key=repr)
    ]
    return {
        "at": now,
        "source": "member",
        "source_detail": "this member only: there is no control topic that would carry what the others know",
        "state": status.state if status is not None else probes.phase,
        "texts_shown": may_read,
        "topics": {"sources": sorted(run.sources), "retries": sorted(set(run.topics) - run.sources)},
        **summed(members, partitions, consumers, holds, run.sources),
    }


def summed(
    members: list[dict[str, Any]],
    partitions: list[dict[str, Any]],
    consumers: list[dict[str, Any]],
    holds: list[dict[str, Any]],
    sources: Iterable[str],
) -> dict[str, Any]:
    """The lists in the order in which they matter, with their totals."""
    for each in partitions:
        each["retry"] = each["topic"] not in sources
    partitions.sort(key=_worst_first)
    own = [each for each in partitions if not each["retry"]]
    retries = [each for each in partitions if each["retry"]]
    return {
        "members": members,
        "partitions": partitions[:MOST_PARTITIONS],
        "partitions_left_out": max(0, len(partitions) - MOST_PARTITIONS),
        "consumers": consumers,
        "holds": holds,
        "totals": {
            "members": sum(not each["gone"] for each in members),
            "gone": sum(bool(each["gone"]) for each in members),
            "partitions": len(own),
            "held": sum(bool(each["held"]) for each in partitions),
            "held_by": _reasons(partitions),
            "lag": _sum(each["lag"] for each in own),
            "lag_unknown": sum(each["lag"] is None for each in own),
            "lag_seconds": max((e["lag_seconds"] for e in own if e["lag_seconds"] is not None), default=None),
            "buffered": sum(each["buffered"] for each in partitions),
            "running": sum(each["running"] for each in partitions),
            "retries_waiting": _sum(each["lag"] for each in retries),
            "waiting_in_place": sum(each["waiting"] for each in consumers),
        },
    }


def _worst_first(each: dict[str, Any]) -> tuple[Any, ...]:
    return (not each["held"], each["retry"], -(each["lag"] or 0), each["topic"], each["partition"])


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _reasons(partitions: list[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in partitions:
        for reason in each["held"]:
            found[reason] = found.get(reason, 0) + 1
    return found


def _member(status: LoopStatus, live: bool, why: tuple[str, ...], now: float) -> dict[str, Any]:
    return {
        "member": shown_text(status.member, 200),
        "this": True,
        "host": "",
        "version": "",
        "state": status.state,
        "live": live,
        "trouble": [shown_text(each) for each in why],
        "uptime": status.uptime,
        "heard": now,
        "gone": None,
        "partitions": len(status.partitions),
        "lag": _sum(each.lag for each in status.partitions),
        "buffered": sum(each.buffered for each in status.intakes),
        "running": sum(each.running for each in status.consumers),
        "publishing": status.publishing,
        "blocked": [shown_text(each) for each in status.blocked_targets],
        "intakes": [
            {
                "name": each.name,
                "group": each.group,
                "protocol": each.protocol,
                "buffered": each.buffered,
                "high": each.high_watermark_messages,
                "detail": shown_text(each.detail),
            }
            for each in status.intakes
        ],
    }


def _partition(each: dict[str, Any], member: str, *, may_read: bool) -> dict[str, Any]:
    each["member"] = shown_text(member, 200)
    each["held"] = {
        reason: shown_text(str(text)) if may_read or reason not in QUOTING else HIDDEN
        for reason, text in each["held"].items()
    }
    return each


def _consumer(each: dict[str, Any], member: str) -> dict[str, Any]:
    counts = each["counts"]
    return {
        "name": each["name"],
        "member": shown_text(member, 200),
        "topics": list(each["topics"]),
        "running": each["running"],
        "concurrency": each["concurrency"],
        "waiting": each["waiting"],
        "slowest": each["slowest"],
        "acked": counts.get("acked", 0),
        "failed": counts.get("failed_attempts", 0),
        "routed": counts.get("routed", 0),
        "dead_lettered": counts.get("dead_lettered", 0),
    }
