"""Makes a member's status small enough for the control topic, and tells when it has changed. Pure.

What is left out first is what needs attention least: partitions that flow, with the smallest lag. The totals
are made before, so that the group's sums are right. Called by the member's control thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from streamloop.control.records import LONGEST_STATUS, MemberRecord, TopicTotals, status_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streamloop.status import ConsumerStatus, LoopStatus, PartitionStatus

LONGEST_DETAIL: Final = 300
"""Characters of why a partition is held."""
MOST_TEXTS: Final = 10
"""Entries of a list of texts (blocked targets, hanging handlers)."""
MOST_TYPES: Final = 20
"""Error types of a handler."""
QUIET: Final = frozenset({"retry_not_due", "assigning"})
"""Reasons that are part of a healthy day."""


def totals_of(status: LoopStatus) -> tuple[TopicTotals, ...]:
    """The totals of each topic that the member reads, those without a partition of its own too."""
    kinds = {topic: intake.name for intake in status.intakes for topic in intake.topics}
    totals = {topic: TopicTotals(topic, kind) for topic, kind in kinds.items()}
    for part in status.partitions:
        one = TopicTotals(
            part.topic,
            kinds.get(part.topic, "source"),
            partitions=1,
            held=bool(part.held),
            buffered=part.buffered,
            lag=part.lag or 0,
            lag_unknown=part.lag is None,
            lag_seconds=part.lag_seconds,
        )
        before = totals.get(part.topic)
        totals[part.topic] = one if before is None else before.and_(one)
    return tuple(totals.values())


def urgency(part: PartitionStatus) -> tuple[Any, ...]:
    """What needs attention most comes first: held, then the largest lag."""
    return (QUIET.issuperset(part.held), -(part.lag or 0), part.topic, part.partition)


def bounded(record: MemberRecord, longest: int = LONGEST_STATUS) -> tuple[MemberRecord, bytes]:
    """The record with its totals, and its value of at most ``longest`` bytes."""
    status = record.status
    parts = sorted(status.partitions, key=urgency)
    lean = replace(
        status,
        partitions=(),
        consumers=tuple(map(_lean_consumer, status.consumers)),
        blocked_targets=_texts(status.blocked_targets),
        hanging=_texts(status.hanging),
    )
    topics = totals_of(status)
    record = replace(record, status=lean, topics=topics, partitions_cut=len(parts), ended=_cut(record.ended))
    room = longest - len(status_value(record))
    if room < 0:
        # Thousands of topics: their totals go before the member's own state does.
        lean = _barest(lean)
        record = replace(record, status=lean, topics=())
        room = longest - len(status_value(record))
    kept: list[PartitionStatus] = []
    for whole in parts:
        part = replace(whole, held={reason: _cut(why) for reason, why in whole.held.items()})
        room -= len(orjson.dumps(part)) + 1
        if room < 0:
            break
        kept.append(part)
    record = replace(
        record, status=replace(lean, partitions=tuple(kept)), partitions_cut=len(parts) - len(kept)
    )
    return record, status_value(record)


def _barest(status: LoopStatus) -> LoopStatus:
    """Without the lists of topics, and with some of the handlers."""
    return replace(
        status,
        intakes=tuple(replace(each, topics=()) for each in status.intakes),
        consumers=tuple(replace(each, topics=()) for each in status.consumers[:MOST_TYPES]),
    )


def _lean_consumer(consumer: ConsumerStatus) -> ConsumerStatus:
    most = sorted(consumer.failed_by_type.items(), key=lambda each: -each[1])[:MOST_TYPES]
    return replace(consumer, failed_by_type=dict(most))


def _texts(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(_cut(text) for text in texts[:MOST_TEXTS])


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_DETAIL else text[: LONGEST_DETAIL - 1] + "…"


def fingerprint(record: MemberRecord) -> object:
    """What of a record says that something has happened: two equal ones differ in nothing but ages."""
    status = record.status
    return (
        status.state,
        record.applied,
        record.ended,
        tuple(_moving(part) for part in status.partitions),
        tuple(
            (each.name, each.running, each.waiting, tuple(each.counts.items())) for each in status.consumers
        ),
        tuple((each.name, each.protocol, each.detail) for each in status.intakes),
        status.paused,
        status.blocked_targets,
        status.hanging,
        tuple(status.listening.items()),
    )


def _moving(part: PartitionStatus) -> Iterable[object]:
    return (
        part.topic,
        part.partition,
        part.epoch,
        part.committable,
        part.position,
        part.buffered,
        tuple(part.held),
        part.holder.offset if part.holder is not None else None,
        part.lag,
    )
