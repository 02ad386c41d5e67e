"""Replays dead letters: each that is meant and open goes back once, and what became of it is told.

Where a letter goes is ``targets``', who may write is ``session``'s, how it is written ``writer``'s, what
became of it ``settle``'s. Here is the course of it: bounded by the ends at the start, a canary first, no
faster than asked, stopped by itself when what was replayed comes back dead, stopped cleanly when told to.
Blocking; called by the facade in ``api`` on a thread of the caller's.
"""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any, Final

from streamloop.dlq.choosing import Chooser, Item
from streamloop.dlq.ledger import REPLAYED, entry_key
from streamloop.dlq.letter import DeadLetter, letter_of
from streamloop.dlq.plan import MOST_NAMED, ReplayPlan, ReplaySummary, RunProgress
from streamloop.dlq.reading import (
    BoundedReader,
    Bounds,
    ReadError,
    open_bounds,
    refuse_recreated,
    topic_admin,
)
from streamloop.dlq.runs import FAILED, FINISHED, STOPPED, RunRecord
from streamloop.dlq.session import Session, TakenOverError, entry_value
from streamloop.dlq.settle import Outcomes, Settling
from streamloop.dlq.targets import Skip, Target, Targets, describe_target
from streamloop.dlq.traced import ReplayTraces
from streamloop.dlq.writer import (
    MOST_BYTES,
    MOST_RECORDS,
    Entry,
    Placed,
    UnknownOutcomeError,
    nowhere,
)
from streamloop.errors import ConfigurationError, StreamLoopError
from streamloop.kafka import headers as hd
from streamloop.kafka.config import retry_group

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from streamloop.dlq.filters import Filter
    from streamloop.settings import ConsumerSettings, Settings

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at what became of the replayed letters, while that is waited for."""
WATCH_EVERY: Final = 2.0
"""Seconds between two looks at whether they come back, while the replay goes on."""
LEAST_BAD: Final = 5
"""Letters that come back before a replay stops after its canary."""
COLLECT: Final = 1.0
"""Seconds after which letters are replayed although more would fit into the transaction."""
STOPPED_FROM_OUTSIDE: Final = "It was told to stop (by a signal, or by its caller)."


class _Stop(Exception):  # noqa: N818 - it is no error
    """The replay is to end, and why."""

    def __init__(self, note: str) -> None:
        super().__init__(note)
        self.note = note


class Replay:
    """One replay; ``run`` does it. ``by``: who, for the record.

    ``at`` is called at named points, for tests.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Sequence[str],
        where: Filter,
        plan: ReplayPlan,
        *,
        by: str,
        sources: Mapping[str, ConsumerSettings] | None = None,
        progress: Callable[[RunProgress], None] | None = None,
        stop: threading.Event | None = None,
        courteous: bool = True,
        at: Callable[[str], None] = nowhere,
    ) -> None:
        if plan.edit is not None and not _is_one(where):
            raise ConfigurationError("an edit is of a single letter: name its topic, partition and offset")
        self._settings = settings
        self._topics = list(topics)
        self._where = where
        self._plan = plan
        self._sources = sources or {}
        self._progress = progress
        self._stop = stop
        self._courteous = courteous and not plan.takeover
        self._at = at
        self._admin = topic_admin(settings)
        self._targets = Targets(settings, self._admin, plan.target, plan.to_topic, self._sources)
        self._chooser = Chooser(self._targets, where, plan)
        self._began = time.monotonic()
        self._next_at = self._began
        self._watch_at = self._began
        self._watched: set[str] = set()
        self._traces = ReplayTraces(settings)
        self._started = False
        self._canary_left = 0
        self._is_through = False
        """All that is meant was sent, or as much as the limit allows."""
        self._session: Session
        self._settling: Settling
        self._reader: BoundedReader | None = None
        self._bounds: Bounds
        self._looks = Outcomes()
        target = describe_target(plan.target, plan.to_topic, settings)
        group = settings.group if plan.target is Target.SOURCE else retry_group(settings)
        self.record = RunRecord.new(
            "replay",
            by,
            filter=where.to_json(),
            described=where.describe(),
            topics=self._topics,
            target=target,
            target_group="" if plan.target is Target.TOPIC else group,
            options=plan.to_json(),
            settles=plan.target is not Target.TOPIC,
        )
        self.summary = ReplaySummary(
            self.record.run,
            described=self.record.described,
            target=target,
            settles=self.record.settles,
        )

    def run(self) -> ReplaySummary:
        """Replay, and tell what became of it. Blocks.

        What ends it early is told in the summary (its ``state`` and ``note``). Raises InProgressError, and
        ConfigurationError or ReadError for what kept it from beginning.
        """
        summary = self.summary
        try:
            with Session.for_topics(
                self._settings,
                self.record,
                self._topics,
                self._admin,
                courteous=self._courteous,
                at=self._at,
                stop=self._stop,
            ) as session:
                self._session = session
                self._topics = self.record.topics
                self._go_on()
        except TakenOverError as error:
            summary.state, summary.note = FAILED, str(error)
        except StreamLoopError as error:
            if not self._started:
                raise
            summary.state, summary.note = FAILED, str(error)
        finally:
            self._traces.close()
        self._count()
        summary.seconds = time.monotonic() - self._began
        return summary

    # ----------------------------------------------------------------------------------------- the course

    def _go_on(self) -> None:
        session, plan, summary = self._session, self._plan, self.summary
        self._settling = Settling(
            self._settings,
            self.record.run,
            group=self.record.target_group or self._settings.group,
            admin=self._admin,
        )
        self._bounds = open_bounds(self._settings, self._topics, self._where, admin=self._admin)
        self._started = True
        session.view.know(self._bounds.topic_ids)
        summary.expired_notes = list(self._bounds.expired)
        summary.hidden = sum(self._bounds.hidden.values())
        state, note = FINISHED, ""
        try:
            self._canary_left = self._canary()
            for items in self._chunks():
                self._wait_for_rate(len(items))
                before = summary.replayed
                self._send(items)
                if self._canary_left > 0:
                    # Those that the brokers refuse say nothing of how the others will fare.
                    self._canary_left -= summary.replayed - before
                    if self._canary_left <= 0:
                        self._after_canary()
                elif plan.threshold < 1:
                    self._watch()
            if not self._is_through:
                raise _Stop(STOPPED_FROM_OUTSIDE)
            self._settle_last()
        except _Stop as stop:
            state, note = STOPPED, stop.note
            self._look_once()
        finally:
            self._settling.close()
            if self._reader is not None:
                summary.expired = sum(self._reader.expired.values())
                self._reader.close()
        self._count()
        summary.state, summary.note = state, note
        session.end(state, note)

    def _canary(self) -> int:
        if not self.record.settles or not self._plan.canary or self._plan.settle <= 0:
            return 0
        if self._plan.canary >= 1:
            return int(self._plan.canary)
        self._phase("counting")
        counted = 0
        with BoundedReader(self._settings, self._bounds, stop=self._stop, progress=self._beat) as reader:
            for batch in reader:
                for message in batch:
                    chosen = self._chooser.choose(letter_of(message), self._session.view, self.record.run, 0)
                    counted += isinstance(chosen, Item)
        return max(1, int(counted * self._plan.canary))

    def _chunks(self) -> Iterator[list[Item]]:
        """The letters that go, as many at once as go into one transaction."""
        self._phase("replaying")
        plan, summary = self._plan, self.summary
        self._reader = BoundedReader(self._settings, self._bounds, stop=self._stop, progress=self._beat)
        pending: list[Item] = []
        size = 0
        since = 0.0
        for batch in self._reader:
            for message in batch:
                if plan.limit is not None and summary.replayed + len(pending) >= plan.limit:
                    break
                letter = letter_of(message)
                item = self._chooser.choose(
                    letter, self._session.view, self.record.run, int(time.time() * 1000)
                )
                if item is None:
                    continue
                summary.matched += 1
                if isinstance(item, Skip):
                    self._skip(letter, item)
                    continue
                weight = hd.record_size(item.publish.key, item.publish.value, item.publish.headers)
                if pending and size + weight > MOST_BYTES:
                    yield pending
                    pending, size = [], 0
                if not pending:
                    since = time.monotonic()
                pending.append(item)
                size += weight
                if len(pending) >= self._most_at_once():
                    yield pending
                    pending, size = [], 0
                if self._is_stopped():
                    return
            full = plan.limit is not None and summary.replayed + len(pending) >= plan.limit
            if pending and (full or time.monotonic() - since >= COLLECT):
                yield pending
                pending, size = [], 0
            if full and not pending:
                self._is_through = True
                return
        if self._is_stopped():
            self._is_through = self._reader.complete and not pending
            return
        if pending:
            yield pending
        self._is_through = self._reader.complete

    def _most_at_once(self) -> int:
        most = MOST_RECORDS
        if self._canary_left > 0:
            most = min(most, self._canary_left)
        if self._plan.rate is not None:
            most = min(most, max(1, int(self._plan.rate)))
        return most

    def _skip(self, letter: DeadLetter, why: Skip) -> None:
        if why is Skip.TOO_LARGE:
            self._refused(letter, why.value)
        else:
            self.summary.skipped[why.value] += 1

    def _refused(self, letter: DeadLetter, why: str) -> None:
        self.summary.refused_count += 1
        if len(self.summary.refused) < MOST_NAMED:
            self.summary.refused.append((letter.place, why))

    def _wait_for_rate(self, count: int) -> None:
        """Between transactions, never within one."""
        if self._plan.rate is None:
            return
        while (wait := self._next_at - time.monotonic()) > 0:
            self._pause(min(wait, 0.5))
        self._next_at = max(self._next_at, time.monotonic()) + count / self._plan.rate

    def _pause(self, seconds: float) -> None:
        if self._stop is None:
            time.sleep(seconds)
        elif self._stop.wait(seconds):
            raise _Stop(STOPPED_FROM_OUTSIDE)
        self._session.beat()

    def _is_stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    # -------------------------------------------------------------------------------------------- sending

    def _send(self, items: list[Item]) -> None:
        """All of them, or what of them the brokers take."""
        # The ledger knows letters by their topic's id: those of another topic must not go by the old one.
        refuse_recreated(self._settings, self._bounds, admin=self._admin)
        self._watch_targets(items)
        for item in items:
            item.number, item.publish = self._traces.begin(item.publish)
        try:
            for part, placed in self._session.send(
                items,
                lambda item: item.publish,
                self._entries,
                place=lambda item: item.letter.place,
                refused=self._not_taken,
            ):
                self.summary.replayed += len(part)
                for item, at in zip(part, placed or (), strict=placed is not None):
                    letter = item.letter
                    self._settling.sent(letter.topic, letter.partition, letter.offset, at)
                    self._traces.placed(item.number, at)
        except UnknownOutcomeError:
            self.summary.unsure = len(items)
            raise
        self._at("before progress")
        self._tell()

    def _not_taken(self, item: Item, why: str) -> None:
        self._traces.gave_up(item.number)
        self._refused(item.letter, why)

    def _entries(self, items: Sequence[Item], placed: list[Placed]) -> list[Entry]:
        ids = self._bounds.topic_ids
        found = []
        for item, at in zip(items, placed, strict=True):
            letter = item.letter
            more: dict[str, Any] = {"from": letter.place, "to": f"{at.topic}/{at.partition}/{at.offset}"}
            if item.times > 1:
                more["times"] = item.times
            if letter.original is not None:
                more["original"] = "/".join(map(str, letter.original[:3]))
            if self._plan.edit is not None:
                more["edited"] = _kept(letter)
            key = entry_key(ids[letter.topic], letter.topic, letter.partition, letter.offset)
            found.append(Entry(key, entry_value(REPLAYED, self.record, **more)))
        return found

    def _watch_targets(self, items: Sequence[Item]) -> None:
        """Before the first letter of a source topic goes: from where its return is to be looked for."""
        if not self.record.settles:
            return
        new = {each.letter.original.topic for each in items if each.letter.original} - self._watched
        for source in sorted(new):
            self._watched.add(source)
            consumer = self._targets.consumer(source)
            dead = consumer.dead_letter_topic(source)
            begins = self._settling.watch(consumer.retry_topic_names(source), [dead])
            self.record.scan_from.update(begins)
            self.record.dead_topics.append(dead)
        if new:
            self._session.say()

    # ------------------------------------------------------------------------------------------- settling

    def _after_canary(self) -> None:
        """Wait until it is known what became of the first ones; stop when too many failed again."""
        self._phase("waiting for the canary")
        plan = self._plan
        self._settle(plan.settle, stop_at=plan.threshold)
        self._count()
        looks = self.summary.outcomes
        if looks.total == looks.unknown:
            raise _Stop(
                f"Of the first {looks.total} nothing is known after {plan.settle:g} s: is a member of "
                f"{self.record.target_group} running? The rest was not replayed; --canary 0 does not wait."
            )
        if looks.share_bad > plan.threshold:
            raise _Stop(
                f"{looks.bad} of the first {looks.total} failed again ({looks.dead} are dead), more than "
                f"{plan.threshold:.0%}: the rest was not replayed."
            )
        self._phase("replaying")

    def _watch(self) -> None:
        """While it goes on: stop when what was replayed comes back."""
        now = time.monotonic()
        if not self.record.settles or now < self._watch_at:
            return
        self._watch_at = now + WATCH_EVERY
        try:
            bad = self._settling.scan(stop=self._stop, progress=self._beat)
        except ReadError:
            return  # asked again in a moment; what can't be written will say so
        replayed = self.summary.replayed
        if bad >= LEAST_BAD and bad > self._plan.threshold * replayed:
            raise _Stop(
                f"{bad} of {replayed} failed again ({self._settling.dead} are dead), more than "
                f"{self._plan.threshold:.0%}: the rest was not replayed."
            )

    def _settle_last(self) -> None:
        if self.record.settles and self.summary.replayed and self._plan.settle > 0:
            self._phase("waiting for outcomes")
            self._settle(self._plan.settle)

    def _settle(self, seconds: float, *, stop_at: float = 1.0) -> Outcomes:
        """Wait until all outcomes are known, or more than the share ``stop_at`` of all has failed again."""
        until = time.monotonic() + seconds
        while True:
            try:
                self._looks = self._settling.look(stop=self._stop, progress=self._beat)
            except ReadError:
                if time.monotonic() >= until:
                    return self._looks  # the rest is not known, and is told so
            else:
                self._tell()
                looks = self._looks
                over = looks.bad > stop_at * looks.total
                if over or not looks.unknown or time.monotonic() >= until:
                    return looks
            self._pause(min(LOOK_EVERY, max(0.05, until - time.monotonic())))

    def _look_once(self) -> None:
        """What is known when it is stopped; not when the brokers can't tell."""
        if self.record.settles and self.summary.replayed:
            try:
                self._looks = self._settling.look()
            except StreamLoopError:
                return

    # ------------------------------------------------------------------------------------------- progress

    def _phase(self, phase: str) -> None:
        self.record.phase = phase
        self._tell()

    def _beat(self, _progress: object) -> None:
        self._session.beat()
        self._tell()

    def _count(self) -> None:
        summary = self.summary
        replayed = summary.replayed
        known = self._looks
        # Those that were replayed since the last look are not known yet.
        unknown = replayed - known.acked - known.failed_again - known.dead
        looks = Outcomes(known.acked, known.failed_again, known.dead, unknown)
        summary.outcomes = looks
        self.record.counts = {
            "matched": summary.matched,
            "replayed": replayed,
            "skipped": sum(summary.skipped.values()),
            "refused": summary.refused_count,
            "expired": summary.expired,
        }
        self.record.outcomes = looks.to_json()
        if self._started:
            left = self._bounds.offsets if self._reader is None else self._reader.offsets_left
            self.record.progress = {
                "offsets_done": self._bounds.offsets - left,
                "offsets_total": self._bounds.offsets,
            }

    def _tell(self) -> None:
        self._count()
        if self._progress is None:
            return
        self._progress(
            RunProgress(
                self.record.run,
                self.record.phase,
                self.summary.matched,
                self.summary.replayed,
                self.record.progress["offsets_done"],
                self.record.progress["offsets_total"],
                self.summary.outcomes,
                time.monotonic() - self._began,
            )
        )


def _is_one(where: Filter) -> bool:
    return len(where.at) == 1 and where.at[0].partition is not None and where.at[0].first == where.at[0].last


def _kept(letter: DeadLetter) -> dict[str, Any]:
    """What an edit replaced, byte for byte."""

    def text(raw: bytes | None) -> str | None:
        return None if raw is None else base64.b64encode(raw).decode()

    return {
        "value": text(letter.value),
        "headers": [[name, text(value)] for name, value in hd.user_headers(letter.headers)],
    }
