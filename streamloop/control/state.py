"""What the control topic says, record by record: members and what operators hold. Pure, and bounded.

Whatever stands in the topic, this holds at most MOST_MEMBERS members of together MOST_BYTES and MOST_HOLDS
holds. A member's record is kept as bytes and read when somebody looks. Ages are by the reader's own clock
from when a record came, so that members whose clocks differ are not taken for gone; only for records that
were there before the reader began are the broker's times asked. Called by the member's control thread and by
the reader of the command line.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from streamloop.control.records import (
    BY,
    LONGEST_NAME,
    LONGEST_RECORD,
    OPERATOR,
    STATUS,
    MemberRecord,
    OperatorHold,
    Scope,
    is_known,
    member_of_key,
    read_hold,
    read_status,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MOST_MEMBERS: Final = 1_000
MOST_BYTES: Final = 32 * 1024 * 1024
"""Bytes of all members' records together: those silent for longest are left out."""
MOST_HOLDS: Final = 2_000
GONE_AFTER: Final = 45.0
"""Seconds of silence after which a member counts as gone: three heartbeats, and as long as a session."""
FORGOTTEN_AFTER: Final = 3_600.0
"""Seconds after which a member that is gone is taken out of the topic."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What operators hold. ``applied``: the offset of the newest operator's record, -1: none.

    ``topic_id``: of the control topic that says so; offsets of another one mean nothing in it.
    """

    holds: Mapping[Scope, OperatorHold]
    applied: int = -1
    topic_id: str = ""


@dataclass(slots=True)
class MemberEntry:
    """A member's newest record. ``heard``: when it came (the reader's monotonic clock)."""

    value: bytes
    heard: float
    offset: int
    _read: bool = False
    _record: MemberRecord | None = None

    def record(self) -> MemberRecord | None:
        """What it says; None: this version can't read it."""
        if not self._read:
            self._record = read_status(self.value)
            self._read = True
        return self._record


class ControlState:
    """The newest record of each key. ``clock``: monotonic. ``wall``: epoch seconds.

    ``topic_id``: of the topic that is read.
    """

    def __init__(self, *, clock: Callable[[], float], wall: Callable[[], float], topic_id: str = "") -> None:
        self.topic_id = topic_id
        self.members: dict[str, MemberEntry] = {}
        self.snapshot = Snapshot({}, topic_id=topic_id)
        """Replaced whole: any thread may read it."""
        self.complete = False
        """The topic was read to the end that it had at the beginning."""
        self.next_offset = 0
        """The offset after the newest record that was taken."""
        self.seen: set[Scope] = set()
        """Scopes of which the topic has had a record, a null included."""
        self.ignored: Counter[str] = Counter()
        """Records that were ignored, by why."""
        self._clock = clock
        self._wall = wall
        self._bytes = 0

    def take(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int | None,
        offset: int,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> str:
        """Take one record. Returns the sentence about a change of what is held, or ''. Never raises."""
        self.next_offset = max(self.next_offset, offset + 1)
        if key is None or len(key) > 4 * LONGEST_NAME + len(OPERATOR):
            self.ignored["no key of ours"] += 1
        elif key.startswith(STATUS):
            self._take_member(member_of_key(key), value, timestamp_ms, offset)
        elif key.startswith(OPERATOR):
            return self._take_hold(Scope.of_key(key), value, offset, headers)
        else:
            self.ignored["no key of ours"] += 1
        return ""

    # --------------------------------------------------------------------------------------------- members

    def _take_member(self, name: str, value: bytes | None, timestamp_ms: int | None, offset: int) -> None:
        if value is not None and not is_known(value):
            self.ignored["too large" if len(value) > LONGEST_RECORD else "another version"] += 1
            return
        before = self.members.pop(name, None)
        if before is not None:
            self._bytes -= len(before.value)
        if value is None:
            return
        heard = self._clock()
        if not self.complete and timestamp_ms is not None:
            heard -= max(0.0, self._wall() - timestamp_ms / 1000)
        self.members[name] = MemberEntry(value, heard, offset)
        self._bytes += len(value)
        while len(self.members) > MOST_MEMBERS or self._bytes > MOST_BYTES:
            oldest = min(self.members, key=lambda each: self.members[each].heard)
            self._bytes -= len(self.members.pop(oldest).value)
            self.ignored["too many members"] += 1

    def silent_for(self, entry: MemberEntry) -> float:
        """Seconds since the member was heard of."""
        return max(0.0, self._clock() - entry.heard)

    def forgotten(self, own: str) -> list[str]:
        """Members to take out of the topic, when ``own`` is the one to do it: the first of those alive."""
        alive = [name for name, entry in self.members.items() if self.silent_for(entry) <= GONE_AFTER]
        if not alive or min(alive) != own:
            return []
        return [name for name, entry in self.members.items() if self.silent_for(entry) > FORGOTTEN_AFTER]

    # ---------------------------------------------------------------------------------------------- holds

    def _take_hold(
        self,
        scope: Scope | None,
        value: bytes | None,
        offset: int,
        headers: Iterable[tuple[str, bytes | None]],
    ) -> str:
        if scope is None:
            self.ignored["no key of ours"] += 1
            return ""
        if len(self.seen) < MOST_HOLDS:
            self.seen.add(scope)
        holds = dict(self.snapshot.holds)
        before = holds.pop(scope, None)
        said = ""
        if value is None:
            if before is not None:
                said = f"{scope} resumed by {_who(headers)} (was paused by {before.by})"
        else:
            hold = read_hold(scope, value)
            if hold is None:
                # What an unknown version means is not known: what was held stays held.
                self.ignored["another version"] += 1
                return ""
            if before is None and len(holds) >= MOST_HOLDS:
                self.ignored["too many holds"] += 1
                return ""
            holds[scope] = hold
            if hold != before:
                said = f"{scope} paused by {hold.by}" + (f": {hold.reason}" if hold.reason else "")
        self.snapshot = Snapshot(holds, offset, self.topic_id)
        return said

    def adopt(self, holds: Mapping[Scope, OperatorHold]) -> None:
        """Hold these too: their records are on their way."""
        self.snapshot = replace(self.snapshot, holds={**holds, **self.snapshot.holds})


def _who(headers: Iterable[tuple[str, bytes | None]]) -> str:
    for name, value in headers:
        if name == BY and value:
            return value[: 4 * LONGEST_NAME].decode("utf-8", "backslashreplace")[:LONGEST_NAME]
    return "somebody"
