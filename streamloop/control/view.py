"""The group as its control topic shows it: members, their partitions in one table, what operators hold. Pure.

Plain data that turn into JSON. A member that has not been heard of for 45 s is gone, and its partitions are
another's by then: they are not in the table. Called by whoever shows a group (the console, the command line).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from streamloop.control.state import GONE_AFTER
from streamloop.control.trim import urgency

if TYPE_CHECKING:
    from streamloop.control.records import MemberRecord, OperatorHold, TopicTotals
    from streamloop.control.state import ControlState
    from streamloop.status import PartitionStatus

QUOTING: Final = frozenset({"breaker", "dead_letter_rate"})
"""Reasons whose details quote the error of a handler."""
HIDDEN: Final = "(the read token shows it)"


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member. ``silent``: seconds since it was heard of.

    ``gone_since``: epoch seconds; None while it is there. ``applied_all``: it has
    applied everything that operators hold and resumed.
    """

    record: MemberRecord
    silent: float
    gone_since: float | None
    applied_all: bool

    @property
    def name(self) -> str:
        """The member's name."""
        return self.record.member


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A partition and the member that has it."""

    member: str
    status: PartitionStatus


@dataclass(frozen=True, slots=True)
class GroupView:
    """A consumer group at ``at`` (epoch seconds).

    ``complete``: the topic was read to its end; before that members may be missing. ``partitions``: those of
    members that are there, what needs attention first. ``topics``: totals over them, also of partitions that
    a member had no room for (``partitions_cut``). ``unreadable``: members whose records this version can't
    read.
    """

    group: str
    topic: str
    at: float
    complete: bool
    members: tuple[MemberView, ...] = ()
    holds: tuple[OperatorHold, ...] = ()
    partitions: tuple[GroupPartition, ...] = ()
    topics: tuple[TopicTotals, ...] = ()
    partitions_cut: int = 0
    unreadable: tuple[str, ...] = ()

    @property
    def here(self) -> tuple[MemberView, ...]:
        """The members that are not gone."""
        return tuple(each for each in self.members if each.gone_since is None)

    @property
    def lag(self) -> int:
        """Offsets from the commit positions to the ends, of the source topics' partitions that are known."""
        return sum(each.lag for each in self.topics if each.kind == "source")

    @property
    def waiting_retry(self) -> int:
        """The same of the retry topics: what waits for its retry."""
        return sum(each.lag for each in self.topics if each.kind == "retry")

    def without_quotes(self) -> GroupView:
        """The same without what may quote a handler's error, for who has no read token."""
        return replace(
            self,
            members=tuple(replace(each, record=_hide_record(each.record)) for each in self.members),
            partitions=tuple(replace(each, status=hide(each.status)) for each in self.partitions),
        )


def view_of(state: ControlState, *, group: str, topic: str, wall: float) -> GroupView:
    """The group as this state shows it now."""
    snapshot = state.snapshot
    members: list[MemberView] = []
    unreadable: list[str] = []
    for name, entry in sorted(state.members.items(), key=lambda each: each[0]):
        record = entry.record()
        if record is None or record.member != name:
            unreadable.append(name)
            continue
        silent = state.silent_for(entry)
        members.append(
            MemberView(
                record,
                round(silent, 3),
                wall - silent if silent > GONE_AFTER or record.ended else None,
                record.topic_id == state.topic_id and record.applied >= snapshot.applied,
            )
        )
    here = [each for each in members if each.gone_since is None]
    return GroupView(
        group=group,
        topic=topic,
        at=wall,
        complete=state.complete,
        members=tuple(members),
        holds=tuple(snapshot.holds[scope] for scope in sorted(snapshot.holds, key=str)),
        partitions=_table(here),
        topics=_sum(here),
        partitions_cut=sum(each.record.partitions_cut for each in here),
        unreadable=tuple(unreadable),
    )


def _table(members: list[MemberView]) -> tuple[GroupPartition, ...]:
    """One row for each partition: of two members that name one, the one heard last has it."""
    found: dict[tuple[str, int], GroupPartition] = {}
    for member in sorted(members, key=lambda each: -each.silent):
        for part in member.record.status.partitions:
            found[part.topic, part.partition] = GroupPartition(member.name, part)
    return tuple(sorted(found.values(), key=lambda each: urgency(each.status)))


def _sum(members: list[MemberView]) -> tuple[TopicTotals, ...]:
    totals: dict[tuple[str, str], TopicTotals] = {}
    for member in members:
        for one in member.record.topics:
            before = totals.get((one.kind, one.topic))
            totals[one.kind, one.topic] = one if before is None else before.and_(one)
    return tuple(totals[key] for key in sorted(totals, key=lambda key: (key[0] != "source", key[1])))


def hide(part: PartitionStatus) -> PartitionStatus:
    """The partition without what may quote a handler's error."""
    if QUOTING.isdisjoint(part.held):
        return part
    return replace(part, held={r: HIDDEN if r in QUOTING else text for r, text in part.held.items()})


def _hide_record(record: MemberRecord) -> MemberRecord:
    status = replace(
        record.status,
        partitions=tuple(map(hide, record.status.partitions)),
        hanging=tuple(HIDDEN for _ in record.status.hanging),
    )
    return replace(record, status=status, ended=HIDDEN if record.ended else "")
