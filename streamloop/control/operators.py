"""What operators hold of a member's partitions: in the group, by its control topic, or at this member alone.

``hold`` and ``release`` come from any thread; ``changes`` and ``why`` are asked on the event loop. Nothing
here waits. Called by the run.
"""

from __future__ import annotations

import datetime as dt
import threading
from typing import TYPE_CHECKING, Final

from streamloop.control.records import OperatorHold, Scope
from streamloop.control.state import Snapshot
from streamloop.engine.events import HoldChanged, Reason
from streamloop.status import PausedStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamloop.engine.events import TopicPartition
    from streamloop.engine.partition import Partition

LOOK_AGAIN: Final = 1.0
"""Seconds after which all partitions are compared again, though nothing changed."""


class Operators:
    """Both kinds of holds of one member. ``wall``: epoch seconds."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self.group = Snapshot({})
        """What is held in the whole group; replaced whole by the control thread."""
        self.applied = self.group
        """What of it the engine has been told."""
        self._wall = wall
        self._lock = threading.Lock()
        self._own: dict[Scope, OperatorHold] = {}
        self._done: tuple[Snapshot, Mapping[Scope, OperatorHold]] | None = None
        self._again = 0.0

    # ----------------------------------------------------------------------------------- from any thread

    def take(self, group: Snapshot) -> None:
        """From the control thread: this is held in the group now."""
        self.group = group

    def hold(self, scope: Scope, by: str = "", reason: str = "") -> None:
        """Hold it at this member."""
        with self._lock:
            self._own = {**self._own, scope: OperatorHold(scope, by, self._wall(), reason)}

    def release(self, scope: Scope) -> None:
        """Release at this member what was held with the same scope; everything: all of it."""
        with self._lock:
            everything = scope == Scope()
            self._own = {k: hold for k, hold in self._own.items() if k != scope and not everything}

    @property
    def own(self) -> frozenset[Scope]:
        """What is held at this member alone."""
        return frozenset(self._own)

    def why(self, topic: str, partition: int) -> str:
        """Who holds the partition, since when and why; '' when nobody does."""
        group, own = self.group.holds, self._own
        if not group and not own:
            return ""
        found = [
            _said(holds[scope], where)
            for holds, where in ((group, ""), (own, " at this member"))
            for scope in (Scope(), Scope(topic), Scope(topic, partition))
            if scope in holds
        ]
        return "; ".join(found)

    def status(self) -> tuple[PausedStatus, ...]:
        """All holds."""
        return tuple(
            PausedStatus(kind, hold.topic, hold.partition, hold.by, hold.since, hold.reason)
            for kind, holds in (("group", self.group.holds), ("member", self._own))
            for _, hold in sorted(holds.items(), key=lambda each: str(each[0]))
        )

    # -------------------------------------------------------------------------------- on the event loop

    def changes(self, parts: Mapping[TopicPartition, Partition], now: float) -> list[HoldChanged]:
        """What the engine has to be told. Looks through the partitions when something has changed."""
        group, own = self.group, self._own
        if self._done is not None and self._done == (group, own) and now < self._again:
            return []
        self._again = now + LOOK_AGAIN
        events = []
        for name, part in parts.items():
            why = self.why(name.topic, name.partition)
            present = part.outside.get(Reason.OPERATOR)
            if (present.detail if present is not None else "") != why:
                events.append(HoldChanged(name, part.epoch, Reason.OPERATOR, bool(why), why))
        self._done = (group, own)
        self.applied = group
        return events


def _said(hold: OperatorHold, where: str) -> str:
    by = f" by {hold.by}" if hold.by else ""
    reason = f": {hold.reason}" if hold.reason else ""
    return f"{hold.scope} was paused{where}{by} {_moment(hold.since)}{reason}"


def _moment(at: float) -> str:
    try:
        return f"at {dt.datetime.fromtimestamp(at, dt.UTC):%Y-%m-%d %H:%M:%S}Z"
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"
