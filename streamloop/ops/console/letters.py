"""The desk on real dead letters: the library's own functions, with their answers as the page takes them.

What a record holds goes through ``shown``. The ledger is followed, not read anew for each question. Called
from threads of jobs; each question has clients of its own and joins no group.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from streamloop.dlq.api import DeadLetters
from streamloop.dlq.filters import Filter
from streamloop.dlq.ledger import LedgerView, ledger_topic
from streamloop.dlq.letter import letter_of
from streamloop.dlq.listing import read_groups, read_letter
from streamloop.dlq.plan import DEFAULT_CANARY, ReplayPlan
from streamloop.dlq.reading import BoundedReader, NoRecord, ReadError, open_bounds, topic_admin
from streamloop.dlq.targets import Skip, Target
from streamloop.errors import ConfigurationError
from streamloop.ops.console.shown import (
    LONGEST_KEY,
    decoded_value,
    safe,
    safe_object,
    shown_bytes,
    shown_headers,
    shown_key,
    shown_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from streamloop.declare import HandlerBuild
    from streamloop.dlq.letter import DeadLetter
    from streamloop.dlq.plan import Preview, RunProgress
    from streamloop.dlq.reading import Bounds, Progress
    from streamloop.observed import Observed
    from streamloop.ops.console import jobs
    from streamloop.ops.console.desk import Desk
    from streamloop.settings import Settings

MOST_GROUPS: Final = 500
MOST_RUNS: Final = 200
AFRESH: Final = 600.0
"""Seconds after which the ledger is read from its beginning again: its topic may be another one by then."""

_TARGETS: Final = {
    "group": Target.REPLAY,
    "retry": Target.RETRY,
    "source": Target.SOURCE,
    "topic": Target.TOPIC,
}


_WHY_NOT: Final = {
    Skip.NO_ORIGINAL.value: "no original known: choose another topic",
    Skip.OTHER_GROUP.value: "died in another group",
    Skip.NO_TARGET.value: "its target is missing",
    Skip.UNTOLD.value: "its target can't be looked at",
    Skip.NO_RETRY.value: "has no retry topic",
    Skip.LOSES.value: "its target would lose it",
    Skip.FORBIDDEN.value: "its target is never written to",
    Skip.TOO_LARGE.value: "too large",
    Skip.IMPORTED.value: "imported copies",
}
"""Why a letter is not replayed, in the words of the page."""


def desk_of(run: Observed) -> tuple[Desk | None, str]:
    """The desk of this run; None when no handler has a dead-letter topic, and why."""
    builds = run.assembly.consumers
    if not any(build.settings.dead_letter for build in builds):
        return None, "dead_letter is off for every handler of this loop: nothing becomes a dead letter."
    return LettersDesk(run.settings, builds), ""


class LettersDesk:
    """Of one loop: its settings and its handlers."""

    def __init__(
        self,
        settings: Settings,
        builds: Iterable[HandlerBuild],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._builds = list(builds)
        sources = {topic: build.settings for build in self._builds for topic in build.topics}
        self._letters = DeadLetters(settings, sources=sources)
        self._ledger = _Ledger(settings, clock)

    # ------------------------------------------------------------------------------------------- looking

    def groups(
        self, where: Mapping[str, Any], progress: jobs.Progress, stop: threading.Event
    ) -> dict[str, Any]:
        """Dead letters by the fingerprint of their error, with what the ledger says of them."""
        meant = Filter.from_json(where)
        topics = self._letters.topics()
        if not topics:
            return {
                "groups": [],
                "letters": 0,
                "open": 0,
                "others": 0,
                "skipped": 0,
                "topics": [],
                "notes": [],
            }
        bounds = open_bounds(self._settings, topics, meant)
        state_of = self._ledger.states(bounds, stop)
        found = read_groups(
            self._settings,
            topics,
            meant,
            state_of=state_of,
            bounds=bounds,
            most_groups=MOST_GROUPS,
            progress=_reading(progress),
            stop=stop,
        )
        return safe_object({**found.to_json(), "groups": [each.to_json() for each in found.groups]})

    def letters(
        self, where: Mapping[str, Any], limit: int, progress: jobs.Progress, stop: threading.Event
    ) -> dict[str, Any]:
        """The newest of them, in short."""
        meant = Filter.from_json(where)
        topics = self._letters.topics()
        newest: list[tuple[float, int, dict[str, Any]]] = []
        count = itertools.count()
        if topics:
            bounds = open_bounds(self._settings, topics, meant)
            state_of = self._ledger.states(bounds, stop)
            with BoundedReader(self._settings, bounds, progress=_reading(progress), stop=stop) as reader:
                for letter in map(letter_of, itertools.chain.from_iterable(reader)):
                    if not meant.matches(letter):
                        continue
                    died = letter.died_at if letter.died_at is not None else 0.0
                    # Of a letter that is not among the newest nothing is made, and no value is kept.
                    if len(newest) < limit:
                        heapq.heappush(newest, (died, next(count), _short(letter, state_of(letter))))
                    elif died >= newest[0][0]:
                        heapq.heapreplace(newest, (died, next(count), _short(letter, state_of(letter))))
        ordered = [each for _, _, each in sorted(newest, key=lambda each: each[:2], reverse=True)]
        return {"letters": ordered, "complete": not stop.is_set()}

    def letter(self, topic: str, partition: int, offset: int) -> dict[str, Any]:
        """One of them, whole. Only of this group's dead-letter topics: the page is no reader of Kafka."""
        if topic not in self._letters.topics():
            raise ReadError(f"{shown_text(topic, 250)} is no dead-letter topic of this group.")
        found, bounds = read_letter(self._settings, topic, partition, offset)
        if isinstance(found, NoRecord):
            raise ReadError(f"There is no dead letter at {topic}/{partition}/{offset}: {found.reason}.")
        state = self._ledger.states(bounds, None)(found)
        return {
            **_short(found, state),
            "group": shown_text(found.group, 250) if found.group else "",
            "written_by": found.written_by,
            "first_failed_at": found.first_failed_at,
            "replay_id": shown_text(found.replay_id, 100) if found.replay_id else None,
            "replay_count": found.replay_count,
            "trace_id": found.trace_id,
            "key": shown_bytes(found.key, LONGEST_KEY),
            "value": self._value(found),
            "headers": shown_headers(list(found.headers)),
        }

    def _value(self, letter: DeadLetter) -> dict[str, Any]:
        shown = shown_bytes(letter.value)
        source = letter.original.topic if letter.original is not None else None
        build = next((each for each in self._builds if source in each.topics), None)
        if shown["kind"] != "hex" or build is None:
            return shown
        # Bytes that are no text: what the handler's own codec makes of them is more use than a dump.
        return decoded_value(letter.value, build.handler.decoder.decode) or shown

    # ----------------------------------------------------------------------------------------- replaying

    def preview(
        self,
        where: Mapping[str, Any],
        plan: Mapping[str, Any],
        progress: jobs.Progress,
        stop: threading.Event,
    ) -> dict[str, Any]:
        """What a replay would do. Changes nothing."""

        def tell(found: RunProgress) -> None:
            progress(
                {
                    "done": found.offsets_done,
                    "total": found.offsets_total,
                    "records": found.matched,
                    "seconds": found.seconds,
                }
            )

        meant, how = Filter.from_json(where), plan_of(plan)
        return _preview(self._letters.preview(meant, how, progress=tell, stop=stop))

    def replay(
        self,
        where: Mapping[str, Any],
        plan: Mapping[str, Any],
        *,
        by: str,
        progress: jobs.Progress,
        stop: threading.Event,
    ) -> dict[str, Any]:
        """Replay them. Progress and summary are in the run's record, too."""

        def tell(found: RunProgress) -> None:
            progress(
                {
                    "phase": found.phase,
                    "done": found.offsets_done,
                    "total": found.offsets_total,
                    "records": found.matched,
                    "seconds": found.seconds,
                    "counts": {"replayed": found.replayed},
                    "outcomes": found.outcomes.to_json(),
                    "run": safe(replay.record.to_json()),
                }
            )

        replay = self._letters.prepare(
            Filter.from_json(where), plan_of(plan), by=by, progress=tell, stop=stop
        )
        summary = replay.run()
        return safe_object(
            {
                "state": summary.state,
                "note": summary.note,
                "run": replay.record.to_json(),
                "summary": summary.to_json(),
            }
        )

    def runs(self) -> list[dict[str, Any]]:
        """What was replayed, when, by whom; the newest first."""
        now = time.time()
        runs = sorted(self._ledger.runs(), key=lambda run: -run.started_at)[:MOST_RUNS]
        return [safe({**run.to_json(), "scan_from": None, "alive": run.is_alive(now)}) for run in runs]

    def run(self, run: str, progress: jobs.Progress, stop: threading.Event) -> dict[str, Any]:
        """What has become of its messages, as it is now."""
        progress({"phase": "looking"})
        found = self._letters.status(run)
        return safe_object({**found.to_json(), "scan_from": None, "notes": [], "complete": not stop.is_set()})


class _Ledger:
    """The group's ledger, followed. Any thread may ask; one at a time reads on."""

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.RLock()
        self._view: LedgerView | None = None
        self._began = 0.0

    def states(self, bounds: Bounds, stop: threading.Event | None) -> Callable[[DeadLetter], str]:
        """What it says of a letter, as it is now."""
        view = self._follow(stop)

        def state(letter: DeadLetter) -> str:
            with self._lock:
                return view.state(letter)

        with self._lock:
            view.know(bounds.topic_ids)
        return state

    def runs(self) -> list[Any]:
        """The runs that it knows."""
        view = self._follow(None)
        with self._lock:
            return list(view.runs.values())

    def _follow(self, stop: threading.Event | None) -> LedgerView:
        with self._lock:
            view = self._view
            if view is None or self._clock() - self._began > AFRESH:
                view = LedgerView(ledger_topic(self._settings))
                self._view, self._began = None, self._clock()
            if view.update(self._settings, stop=stop, admin=topic_admin(self._settings)):
                self._view = view
            return view


def plan_of(given: Mapping[str, Any]) -> ReplayPlan:
    """How to replay, as the page says it. Raises ConfigurationError."""
    known = {"target", "topic", "rate", "limit", "canary", "again", "takeover"}
    strange = sorted(set(given) - known)
    if strange:
        raise ConfigurationError(f"The plan has no {strange[0][:80]!r}: it knows {', '.join(sorted(known))}.")
    target = _TARGETS.get(str(given.get("target") or "group"))
    if target is None:
        raise ConfigurationError(f"target is one of {', '.join(_TARGETS)}.")
    topic = given.get("topic")
    if (target is Target.TOPIC) != bool(topic):
        raise ConfigurationError("Name the topic when the target is another topic, and only then.")
    if topic is not None and not isinstance(topic, str):
        raise ConfigurationError("topic is the name of a topic.")
    limit, canary = _count(given, "limit"), _count(given, "canary")
    return ReplayPlan(
        target=target,
        to_topic=topic or None,
        limit=limit,
        rate=_number(given, "rate"),
        canary=DEFAULT_CANARY if canary is None else canary,
        again=_flag(given, "again"),
        takeover=_flag(given, "takeover"),
    )


def _number(given: Mapping[str, Any], name: str) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{name} is a number, or empty.")
    return float(value)


def _count(given: Mapping[str, Any], name: str) -> int | None:
    value = _number(given, name)
    if value is None:
        return None
    if not value.is_integer():
        raise ConfigurationError(f"{name} is a whole number, or empty.")
    return int(value)


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name)
    if value not in (None, True, False):
        raise ConfigurationError(f"{name} is true or false.")
    return bool(value)


def _reading(progress: jobs.Progress) -> Callable[[Progress], None]:
    def tell(found: Progress) -> None:
        progress(
            {
                "done": found.offsets_done,
                "total": found.offsets_total,
                "records": found.records,
                "seconds": found.seconds,
            }
        )

    return tell


def _short(letter: DeadLetter, state: str) -> dict[str, Any]:
    original = letter.original
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "place": letter.place,
        "original": shown_text(f"{original.topic}/{original.partition}/{original.offset}", 300)
        if original is not None
        else "",
        "key": shown_key(letter.key),
        "state": state,
        "attempts": letter.attempts,
        "died_at": letter.died_at,
        "error_class": shown_text(letter.error_class, 300),
        "error_message": shown_text(letter.error_message),
        "fingerprint": shown_text(letter.fingerprint, 64),
    }


def _preview(found: Preview) -> dict[str, Any]:
    notes = list(found.expired_notes)
    if found.busy:
        notes.append(f"A run is at work now: {found.busy}. This one would be refused, or take over.")
    if found.hidden:
        notes.append(f"Up to {found.hidden:,} offsets are held back by an open transaction: not looked at.")
    notes += [
        f"{topic} is read by other groups, too: {', '.join(groups)}."
        for topic, groups in found.readers.items()
    ]
    counts = {"matched": found.matched, "would": found.would_go}
    counts |= {_WHY_NOT.get(why, why): count for why, count in found.skipped.items()}
    if found.expired:
        counts["expired"] = found.expired
    targets = [{"topic": topic, "count": count} for topic, count in found.targets.most_common(50)]
    return safe_object(
        {
            "would": found.would_go,
            "described": found.described,
            "target": found.target if len(targets) != 1 else f"the topic {targets[0]['topic']}",
            "counts": counts,
            "targets": targets,
            "bytes": found.bytes,
            "samples": found.samples,
            "notes": notes,
            "complete": found.complete,
        }
    )
