"""What is recorded of a run that writes the ledger: a replay, a purge or an import.

One record for each run, by its id, in the ledger topic: who, where, when, with which filter, how far, and how
it ended. A run writes it anew every few seconds, so that another one sees that it is alive, and a page can
show it. Plain data that serialises to JSON; read leniently, since another version may have written it.
"""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import re
import secrets
import socket
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

HEARTBEAT: Final = 5.0
"""Seconds between two records of a run."""
FRESH: Final = 30.0
"""A run whose last record is younger than this (seconds) is taken for alive."""

RUNNING, FINISHED, STOPPED, FAILED, INTERRUPTED = "running", "finished", "stopped", "failed", "interrupted"
"""States of a run. STOPPED: by itself or by a signal, before the end. INTERRUPTED: it never said how it
ended."""

KEY: Final = "run/"
"""The keys of runs in the ledger topic begin so; what follows is the run's id."""


@dataclass(slots=True)
class RunRecord:
    """One run. Times are epoch seconds.

    ``kind``: replay, purge or import. ``counts``: letters by what was done (replayed, skipped, refused, ..).
    ``progress``: offsets of the dead-letter topics that were gone through, and all (offsets_done, _total).
    ``outcomes``: of what was replayed (acked, failed_again, dead, unknown), as the run saw it last.
    ``scan_from``: topic, partition and the offset from which outcomes are to be looked for. ``settles``:
    whether outcomes can be told (not of records that were replayed to any topic). ``target_group``: the group
    that handles what was replayed. ``dead_topics``: those of ``scan_from`` that are dead-letter topics.
    """

    run: str
    kind: str
    state: str
    by: str
    host: str
    pid: int
    started_at: float
    heartbeat_at: float
    ended_at: float | None = None
    filter: dict[str, Any] = field(default_factory=dict)
    described: str = ""
    topics: list[str] = field(default_factory=list)
    target: str = ""
    target_group: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    phase: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    progress: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    scan_from: dict[str, dict[str, int]] = field(default_factory=dict)
    dead_topics: list[str] = field(default_factory=list)
    settles: bool = True
    note: str = ""
    """Why it ended, as a sentence."""

    @classmethod
    def new(cls, kind: str, by: str, **what: Any) -> RunRecord:
        """A run that begins now, on this host."""
        now = time.time()
        return cls(new_run_id(now), kind, RUNNING, by, socket.gethostname(), os.getpid(), now, now, **what)

    @property
    def key(self) -> bytes:
        """The key of its record in the ledger topic."""
        return f"{KEY}{self.run}".encode()

    def is_alive(self, now: float) -> bool:
        """Whether it runs, as far as its last record says. ``now``: epoch seconds.

        A record of the future is one of a host whose clock is ahead: alive.
        """
        return self.state == RUNNING and now - self.heartbeat_at < FRESH

    @property
    def whose(self) -> str:
        """Who, where and since when, for a sentence."""
        since = datetime.fromtimestamp(self.started_at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        return f"{self.by} on {self.host} (pid {self.pid}, {self.kind} {self.run}, since {since})"

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return dataclasses.asdict(self)

    def encode(self) -> bytes:
        """The value of its record in the ledger topic."""
        return json.dumps(self.to_json(), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, found: Any) -> RunRecord | None:
        """What ``to_json`` gave, of any version; None when it can't be read. Never raises."""
        if not isinstance(found, dict):
            return None
        known: dict[str, Any] = {}
        for each in dataclasses.fields(cls):
            value = found.get(each.name)
            kinds = _KINDS[each.name]
            if isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds):
                if not _is_plain(value, _DEEPEST) or (kinds is _NUMBER and not _is_time(value)):
                    continue  # what no page can show; NaN is no time either
                known[each.name] = value
        known["scan_from"] = _offsets(known.get("scan_from", {}))
        for name in ("topics", "dead_topics"):
            known[name] = [each for each in known.get(name, ()) if isinstance(each, str)]
        for name in ("counts", "progress", "outcomes"):
            known[name] = {key: each for key, each in known.get(name, {}).items() if type(each) is int}
        try:
            return cls(**known)
        except TypeError:  # one of those that must be there is not
            return None


def _is_time(value: Any) -> bool:
    return bool(0 <= value <= _LAST_SECOND)


def _is_plain(value: Any, deepest: int) -> bool:
    """Whether it is JSON for everybody: numbers of 64 bits, and not nested without end."""
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return deepest > 0 and all(_is_plain(part, deepest - 1) for part in parts)
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _offsets(found: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Offsets by topic and partition, as far as they are any."""
    return {
        topic: {
            partition: offset
            for partition, offset in parts.items()
            if _PARTITION.fullmatch(partition) and type(offset) is int and 0 <= offset < 2**63
        }
        for topic, parts in found.items()
        if isinstance(parts, dict)
    }


_DEEPEST: Final = 8
_LAST_SECOND: Final = 253_402_300_799
"""Of the year 9999."""
_PARTITION: Final = re.compile("[0-9]{1,10}")
_TEXT, _INT, _NUMBER, _DICT = (str,), (int,), (int, float), (dict,)
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "run": _TEXT,
    "kind": _TEXT,
    "state": _TEXT,
    "by": _TEXT,
    "host": _TEXT,
    "pid": _INT,
    "started_at": _NUMBER,
    "heartbeat_at": _NUMBER,
    "ended_at": _NUMBER,
    "filter": _DICT,
    "described": _TEXT,
    "topics": (list,),
    "target": _TEXT,
    "target_group": _TEXT,
    "options": _DICT,
    "phase": _TEXT,
    "counts": _DICT,
    "progress": _DICT,
    "outcomes": _DICT,
    "scan_from": _DICT,
    "dead_topics": (list,),
    "settles": (bool,),
    "note": _TEXT,
}


def new_run_id(now: float) -> str:
    """An id that sorts by time and that nobody else has."""
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def who_am_i() -> str:
    """The user of this process, for the record of a run."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
