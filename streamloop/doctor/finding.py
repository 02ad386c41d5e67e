"""What was found: one thing that was looked at, how it is, what that means, and what to do.

Plain data that JSON can hold. A finding that is not OK always says what it means and what to do.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any


class Level(enum.Enum):
    """How a thing is."""

    OK = "ok"
    WARN = "warn"
    """It works now, and something will go wrong, or nothing speaks for it."""
    ERROR = "error"
    """It does not work, or loses messages."""
    UNKNOWN = "unknown"
    """It could not be told; why not is said."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing. ``check``: its name, the same in every version (``topic.retention``). ``about``: which one.

    ``found``: a sentence. ``means`` and ``do``: sentences; ``commands``: ready to be pasted.
    """

    level: Level
    check: str
    about: str
    found: str
    means: str = ""
    do: str = ""
    commands: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "level": self.level.value, "commands": list(self.commands)}


def ok(check: str, about: str, found: str) -> Finding:
    """It is as it has to be."""
    return Finding(Level.OK, check, about, found)


def warn(check: str, about: str, found: str, means: str, do: str, *commands: str) -> Finding:
    """It works now, and something will go wrong."""
    return Finding(Level.WARN, check, about, found, means, do, commands)


def error(check: str, about: str, found: str, means: str, do: str, *commands: str) -> Finding:
    """It does not work, or loses messages."""
    return Finding(Level.ERROR, check, about, found, means, do, commands)


def unknown(check: str, about: str, found: str, means: str = "", do: str = "") -> Finding:
    """It could not be told."""
    return Finding(Level.UNKNOWN, check, about, found, means, do)


@dataclass(slots=True)
class Report:
    """All that was found, in the order in which it was looked at."""

    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    def count(self, level: Level) -> int:
        """How many findings have this level."""
        return sum(1 for each in self.findings if each.level is level)

    def of(self, check: str) -> list[Finding]:
        """The findings of one check."""
        return [each for each in self.findings if each.check == check]

    def exit_code(self, *, strict: bool = False) -> int:
        """0: no error. 1: an error; with ``strict`` a warning, too. What is unknown is no error."""
        wrong = self.count(Level.ERROR) + (self.count(Level.WARN) if strict else 0)
        return 1 if wrong else 0

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "counts": {level.value: self.count(level) for level in Level},
            "seconds": round(self.seconds, 3),
            "findings": [each.to_json() for each in self.findings],
        }
