"""Groups of dead letters that died of the same error: how many, since when, of which topics, one to look at.

Bounded: once there are as many groups as are kept, letters of further fingerprints are only counted, and the
result says so. Of a letter no value is kept. Plain data that serialises to JSON; no I/O. Called by
``streamloop dlq ls``, the library and the console.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from streamloop.dlq.bounds import Bounds
    from streamloop.dlq.letter import DeadLetter

OPEN: Final = "open"
"""The state of a letter that was neither replayed nor purged."""
MOST_GROUPS: Final = 5_000
MOST_NAMES: Final = 20
"""Original topics, and groups that failed, that are named in one group; others are only counted."""
LONGEST_MESSAGE: Final = 1_000
"""Characters of an error message that are kept."""
LONGEST_NAME: Final = 300


class Sample(NamedTuple):
    """The newest letter of a group (of those that are open, if any is)."""

    topic: str
    partition: int
    offset: int
    error_message: str
    original: str
    """topic/partition/offset; '' when nobody says."""
    died_at: float | None
    attempts: int | None
    trace_id: str | None

    @property
    def place(self) -> str:
        """topic/partition/offset of the dead letter."""
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(slots=True)
class Group:
    """Letters with one fingerprint. Times are epoch seconds, None where no letter says.

    ``states``: letters by state (open, replayed, purged). ``originals``: letters by the topic where they
    first failed, '' where nobody says. ``groups``: by the consumer group that failed.
    """

    fingerprint: str
    error_class: str
    sample: Sample
    written_by: str
    count: int = 0
    first_seen: float | None = None
    last_seen: float | None = None
    states: dict[str, int] = field(default_factory=dict)
    originals: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    other_names: int = 0
    """Letters of original topics or groups beyond those that are named."""

    @property
    def open(self) -> int:
        """Letters that were neither replayed nor purged."""
        return self.states.get(OPEN, 0)

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        sample = self.sample
        return {
            "fingerprint": self.fingerprint,
            "error_class": self.error_class,
            "error_message": sample.error_message,
            "written_by": self.written_by,
            "count": self.count,
            "open": self.open,
            "states": self.states,
            "first_seen": self.first_seen,
            "last_seen": self.last_seen,
            "original_topics": self.originals,
            "groups": self.groups,
            "dead_letter_topics": self.topics,
            "sample": {**sample._asdict(), "place": sample.place},
        }


@dataclass(slots=True)
class Groups:
    """What was found. ``groups``: the most open letters first.

    ``letters`` were grouped; ``others`` more have fingerprints beyond the groups that are kept; ``skipped``
    did not match the filter. ``complete``: everything within the bounds was read; otherwise
    ``offsets_left`` of ``offsets`` were not.
    """

    groups: list[Group]
    letters: int
    others: int
    skipped: int
    complete: bool
    offsets: int
    offsets_left: int
    seconds: float
    topics: list[str]
    states: dict[str, int]
    notes: list[str] = field(default_factory=list)
    """Sentences: what retention removed, what an open transaction holds back."""
    bounds: Bounds | None = None
    """What was looked at: what comes later is not among them."""

    @property
    def open(self) -> int:
        """Letters that were neither replayed nor purged, those beyond the groups included."""
        return self.states.get(OPEN, 0)

    def to_json(self) -> dict[str, Any]:
        """All but the groups, as JSON has it."""
        return {
            "groups": len(self.groups),
            "letters": self.letters,
            "open": self.open,
            "states": self.states,
            "others": self.others,
            "skipped": self.skipped,
            "complete": self.complete,
            "offsets": self.offsets,
            "offsets_left": self.offsets_left,
            "seconds": round(self.seconds, 3),
            "topics": self.topics,
            "notes": self.notes,
        }


class Grouper:
    """Takes letters one by one. ``most``: groups that are kept."""

    def __init__(self, most: int = MOST_GROUPS) -> None:
        self._most = most
        self._groups: dict[str, Group] = {}
        self.letters = 0
        self.others = 0
        self.states: dict[str, int] = {}

    def add(self, letter: DeadLetter, state: str = OPEN) -> None:
        """Count a letter in its group."""
        self.letters += 1
        states = self.states
        states[state] = states.get(state, 0) + 1
        group = self._groups.get(letter.fingerprint)
        died = letter.died_at
        if group is None:
            if len(self._groups) >= self._most:
                self.others += 1
                return
            group = Group(
                letter.fingerprint,
                letter.error_class[:LONGEST_NAME],
                _sample(letter, died),
                letter.written_by,
                first_seen=died,
                last_seen=died,
            )
            self._groups[letter.fingerprint] = group
        elif self._is_better(group, died, state):
            group.sample = _sample(letter, died)
        group.count += 1
        states = group.states
        states[state] = states.get(state, 0) + 1
        if died is not None:
            if group.first_seen is None or died < group.first_seen:
                group.first_seen = died
            if group.last_seen is None or died > group.last_seen:
                group.last_seen = died
        original = letter.original
        _count(group, group.originals, "" if original is None else original.topic)
        _count(group, group.topics, letter.topic)
        if letter.group is not None:
            _count(group, group.groups, letter.group)

    def found(self) -> list[Group]:
        """The groups: most open letters first, then most letters."""
        return sorted(self._groups.values(), key=lambda each: (-each.open, -each.count, each.fingerprint))

    @staticmethod
    def _is_better(group: Group, died: float | None, state: str) -> bool:
        if (state == OPEN) != bool(group.states.get(OPEN)):
            return state == OPEN  # the first open one replaces any other; no other replaces an open one
        newest = group.sample.died_at
        return died is not None and (newest is None or died >= newest)


def _sample(letter: DeadLetter, died: float | None) -> Sample:
    original = letter.original
    return Sample(
        letter.topic,
        letter.partition,
        letter.offset,
        letter.error_message[:LONGEST_MESSAGE],
        "" if original is None else f"{original.topic}/{original.partition}/{original.offset}"[:LONGEST_NAME],
        died,
        letter.attempts,
        letter.trace_id,
    )


def _count(group: Group, names: dict[str, int], name: str) -> None:
    found = names.get(name)
    if found is not None:
        names[name] = found + 1
    elif len(names) < MOST_NAMES:
        names[name[:LONGEST_NAME]] = names.get(name[:LONGEST_NAME], 0) + 1
    else:
        group.other_names += 1
