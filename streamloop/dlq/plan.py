"""How to replay, how far a replay is and what it did: plain data that serialises to JSON.

Made by callers (the plan) and by ``replay`` and ``choosing`` (the rest); shown by the command line and by the
console.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from streamloop.dlq.runs import FINISHED
from streamloop.dlq.settle import Outcomes
from streamloop.dlq.targets import Edit, Target
from streamloop.errors import ConfigurationError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

DEFAULT_CANARY: Final = 10
DEFAULT_THRESHOLD: Final = 0.1
DEFAULT_SETTLE: Final = 60.0
MOST_NAMED: Final = 20
"""Letters that are named; others are counted."""


_MOST: Final = 2**63
"""What is larger than 64 bits is no JSON for everybody who reads a run's record."""


def to_json(summary: DataclassInstance) -> dict[str, Any]:
    """All fields of what is told of a run, as JSON holds them."""
    return {each.name: _plain(getattr(summary, each.name)) for each in fields(summary)}


def _plain(value: Any) -> Any:
    if isinstance(value, Counter):
        return dict(value)
    if isinstance(value, list):
        return [list(each) if isinstance(each, tuple) else each for each in value]
    return value.to_json() if isinstance(value, Outcomes) else value


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """How to replay.

    ``limit``: letters at most. ``rate``: letters a second. ``again``: also those that were replayed before.
    ``canary``: so many first (below 1: that share of what the filter means; 0: none), and the rest only if at
    most ``threshold`` of them fail again. ``settle``: seconds to wait for what becomes of them, after the
    canary and at the end. ``takeover``: end another run that is alive. ``edit``: of a single letter.
    """

    target: Target = Target.REPLAY
    to_topic: str | None = None
    limit: int | None = None
    rate: float | None = None
    again: bool = False
    canary: float = DEFAULT_CANARY
    threshold: float = DEFAULT_THRESHOLD
    settle: float = DEFAULT_SETTLE
    takeover: bool = False
    edit: Edit | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("limit", self.limit, 1),
            ("rate", self.rate, 0.001),
            ("canary", self.canary, 0),
            ("settle", self.settle, 0),
            ("threshold", self.threshold, 0),
        ):
            if value is not None and not least <= value < _MOST:
                raise ConfigurationError(f"{name} is {value!r}: give a number of {least} or more")

    def to_json(self) -> dict[str, Any]:
        """What is not at its default."""
        found = {
            name: getattr(self, name)
            for name in ("to_topic", "limit", "rate", "again", "canary", "threshold", "settle", "takeover")
            if getattr(self, name) != getattr(DEFAULT, name)
        }
        return found | ({"edited": True} if self.edit is not None else {})


DEFAULT: Final = ReplayPlan()


@dataclass(slots=True)
class Preview:
    """What a replay would do, and does not.

    ``matched``: letters that the filter means; ``would_go`` of them would be replayed, by ``targets``
    (topic). ``skipped``: the others, by why. ``expired``: offsets that were asked for and are no longer in
    the log. ``samples``: places of the first that would go. ``readers``: groups that read where it would go,
    when those are others than the one that failed. ``busy``: whose run is at work now.
    """

    described: str
    target: str
    matched: int = 0
    would_go: int = 0
    bytes: int = 0
    targets: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    expired: int = 0
    expired_notes: list[str] = field(default_factory=list)
    hidden: int = 0
    samples: list[str] = field(default_factory=list)
    readers: dict[str, list[str]] = field(default_factory=dict)
    waiting: str = ""
    """A sentence, when no member is there that would handle what is replayed."""
    busy: str = ""
    complete: bool = True

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return to_json(self)


@dataclass(slots=True)
class RunProgress:
    """How far a replay is. ``offsets_*``: of the dead-letter topics; not each of them has a record."""

    run: str
    phase: str
    matched: int = 0
    replayed: int = 0
    offsets_done: int = 0
    offsets_total: int = 0
    outcomes: Outcomes = field(default_factory=Outcomes)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return to_json(self)


@dataclass(slots=True)
class ReplaySummary:
    """What a replay did. ``state``: finished, stopped or failed; ``note``: why, as a sentence."""

    run: str
    state: str = ""
    note: str = ""
    described: str = ""
    target: str = ""
    matched: int = 0
    replayed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[str, str]] = field(default_factory=list)
    """(place, why) of letters that the target does not take: they stay open."""
    refused_count: int = 0
    expired: int = 0
    expired_notes: list[str] = field(default_factory=list)
    settles: bool = True
    outcomes: Outcomes = field(default_factory=Outcomes)
    seconds: float = 0.0
    hidden: int = 0
    """Offsets at the ends that an open transaction held back: not looked at."""
    unsure: int = 0
    """Letters of a transaction of which it is not known whether it was committed; the next run knows."""

    @property
    def exit_code(self) -> int:
        """0: it went through; 1: it stopped before its end, or failed."""
        return 0 if self.state == FINISHED else 1

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return to_json(self)
