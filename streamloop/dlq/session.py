"""One run that writes the ledger. The order in which it does things is what makes it safe:

1. Look for a run that is alive, and refuse to disturb it unless told to. This is courtesy.
2. Fence: whoever else writes the ledger can't from here on, and what they had open is aborted.
3. Only then read the ledger to its end: it can't change any more but by this run.
4. Write, in transactions, with this run's record every few seconds.

2 and 3 are safety: with 1 left out nothing is written twice either. The one that is fenced finds out at its
next transaction, which is aborted, and says who has taken over. Called by replay, purge and import, on one
thread each.
"""

from __future__ import annotations

import contextlib
import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from streamloop.dlq.ledger import LedgerView, ensure_ledger, ledger_topic, read_ledger
from streamloop.dlq.reading import ReadError, topic_admin
from streamloop.dlq.runs import FAILED, HEARTBEAT, INTERRUPTED, RUNNING, RunRecord
from streamloop.dlq.writer import (
    PATIENCE,
    AbortedError,
    Entry,
    FencedError,
    LedgerWriter,
    RefusedError,
    UnavailableError,
    nowhere,
)
from streamloop.errors import StreamLoopError
from streamloop.kafka.topic_admin import BrokersUnreachableError
from streamloop.kafka.topics import TopicFacts, Untold

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from streamloop.dlq.writer import Placed, Publish
    from streamloop.kafka.topic_admin import TopicAdmin
    from streamloop.settings import Settings

T = TypeVar("T")

ROOM: Final = 1024 * 1024
PAUSE: Final = 0.1
"""Seconds before a transaction that was aborted is tried again."""
FIND_OUT: Final = 10.0
"""Seconds for which one that was fenced looks for the record of the one that did it."""


class InProgressError(StreamLoopError):
    """Another run is alive. The sentence says whose, where and since when."""


class TakenOverError(StreamLoopError):
    """Another run has taken over."""


class Session:
    """A run that may write the ledger; use it with ``with``.

    ``like``: the facts of a dead-letter topic, than which the ledger must not be less safe. ``topic_ids``: of
    all dead-letter topics that it is about. ``courteous``: whether a run that is alive is left alone.
    """

    def __init__(
        self,
        settings: Settings,
        record: RunRecord,
        *,
        like: TopicFacts,
        topic_ids: Mapping[str, str],
        courteous: bool = True,
        admin: TopicAdmin | None = None,
        message_max_bytes: int | None = None,
        at: Callable[[str], None] = nowhere,
        on_record: Callable[[RunRecord], None] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.settings = settings
        self.record = record
        self.admin = admin or topic_admin(settings)
        self.view = LedgerView(ledger_topic(settings), topic_ids)
        self._like = like
        self._topic_ids = topic_ids
        self._courteous = courteous
        self._message_max_bytes = message_max_bytes
        self._at = at
        self._on_record = on_record
        self._stop = stop
        self._writer: LedgerWriter | None = None
        self._beat_at = 0.0

    @classmethod
    def for_topics(
        cls, settings: Settings, record: RunRecord, topics: Sequence[str], admin: TopicAdmin, **options: Any
    ) -> Session:
        """A session about these dead-letter topics; those that do not exist are left out of its record.

        Raises ReadError when there is none.
        """
        facts = facts_of(admin, topics)
        record.topics = list(facts)
        limits = [each.max_message_bytes for each in facts.values() if each.max_message_bytes]
        return cls(
            settings,
            record,
            like=next(iter(facts.values())),
            topic_ids={name: each.topic_id for name, each in facts.items()},
            admin=admin,
            # A target takes more than the dead-letter topic, or refuses by itself; an entry may hold an
            # original in base64.
            message_max_bytes=max(limits) * 3 // 2 + ROOM if limits else None,
            **options,
        )

    def __enter__(self) -> Self:
        settings = self.settings
        if self._courteous:
            refuse_if_busy(read_ledger(settings, admin=self.admin), time.time())
        self._at("looked")
        ensure_ledger(settings, self._like, admin=self.admin)
        writer = LedgerWriter(
            settings, self.view.topic, message_max_bytes=self._message_max_bytes, at=self._at
        )
        try:
            writer.open()
            self._writer = writer
            self._at("fenced")
            self.view = read_ledger(settings, self._topic_ids, admin=self.admin, whole=True)
            self._at("ledger read")
            former = self.view.open_runs()
            for each in former:
                each.state = INTERRUPTED
                each.ended_at = time.time()
                each.note = f"it did not say how it ended, and {self.record.whose} began"
            self.record.heartbeat_at = time.time()
            self.write(*(Entry(each.key, each.encode()) for each in (*former, self.record)))
        except FencedError as error:
            writer.close()
            raise self._taken_over(error) from None
        except BaseException:
            writer.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _where: object) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.close()
        if kind is not None and self.record.state == RUNNING and not issubclass(kind, TakenOverError):
            # What it says of itself is better than nothing; when it can't be written, the next run says so.
            self.record.state, self.record.note = FAILED, str(error)
            self.record.ended_at = time.time()
            try:
                writer.write(Entry(self.record.key, self.record.encode()))
            except StreamLoopError:
                return

    # -------------------------------------------------------------------------------------------- writing

    def transact(
        self, publishes: Sequence[Publish], entries: Callable[[list[Placed]], Sequence[Entry]]
    ) -> list[Placed]:
        """One transaction. Raises TakenOverError, and what LedgerWriter.transact() raises."""
        assert self._writer is not None
        try:
            return self._writer.transact(publishes, entries)
        except FencedError as error:
            raise self._taken_over(error) from None

    def send(
        self,
        items: Sequence[T],
        publish: Callable[[T], Publish],
        entries: Callable[[Sequence[T], list[Placed]], Sequence[Entry]],
        *,
        place: Callable[[T], str],
        refused: Callable[[T, str], None],
    ) -> Iterator[tuple[list[T], list[Placed] | None]]:
        """Publish all of them, or what of them the brokers take: gives what is committed, and where it is.

        A transaction that is refused because of one record is tried again in halves; that record goes to
        ``refused``. ``place``: the dead letter that an item is about, as its entry says ``from``. None for
        the places: the client took it for aborted, and the ledger says that it was committed. Raises
        TakenOverError, UnavailableError, UnknownOutcomeError.
        """
        until = time.monotonic() + PATIENCE
        todo = [list(items)]
        while todo:
            part = todo.pop()
            try:
                placed = self.transact([publish(each) for each in part], partial(entries, part))
            except RefusedError as error:
                if len(part) == 1:
                    refused(part[0], str(error))
                else:
                    half = len(part) // 2
                    todo += [part[half:], part[:half]]
                continue
            except TakenOverError:
                # It may have been committed before that; from now on it can't be any more. What the other one
                # has open comes behind it.
                with contextlib.suppress(ReadError):
                    written, _ = self._by_the_ledger(part, place, whole=False)
                    if written:
                        yield written, None
                raise
            except AbortedError as error:
                if error.at_commit:
                    written, part = self._by_the_ledger(part, place)
                    if written:
                        yield written, None
                if time.monotonic() >= until or (self._stop is not None and self._stop.is_set()):
                    raise UnavailableError(f"The brokers take nothing: {error}.") from None
                if part:
                    todo.append(part)
                time.sleep(PAUSE)
                continue
            yield part, placed

    def _by_the_ledger(
        self, items: list[T], place: Callable[[T], str], *, whole: bool = True
    ) -> tuple[list[T], list[T]]:
        """What of them this run has written, and what not: its word is final."""
        mine: set[str] = set()

        def see(_key: bytes, value: Mapping[str, Any]) -> None:
            if value.get("run") == self.record.run:
                mine.add(str(value.get("from")))

        self.view.update(self.settings, admin=self.admin, each=see, whole=whole)
        return (
            [each for each in items if place(each) in mine],
            [each for each in items if place(each) not in mine],
        )

    def write(self, *entries: Entry) -> None:
        """Entries alone, in transactions of their own."""
        assert self._writer is not None
        try:
            self._writer.write(*entries)
        except FencedError as error:
            raise self._taken_over(error) from None
        self._beat_at = time.monotonic() + HEARTBEAT

    def beat(self) -> None:
        """Say that the run is alive, when it is time to."""
        if self._writer is not None and time.monotonic() >= self._beat_at:
            self.say()

    def say(self) -> None:
        """Write the run's record as it is now."""
        self.record.heartbeat_at = time.time()
        self.write(Entry(self.record.key, self.record.encode()))
        if self._on_record is not None:
            self._on_record(self.record)

    def end(self, state: str, note: str = "") -> None:
        """The run has ended so."""
        self.record.state, self.record.note = state, note
        self.record.ended_at = time.time()
        self.record.phase = ""
        self.say()

    def _taken_over(self, error: FencedError) -> TakenOverError:
        """Who has. It writes its record only after it has read the ledger, so it may take a moment."""
        until = time.monotonic() + FIND_OUT
        while True:
            try:
                view = read_ledger(self.settings, admin=self.admin)
            except ReadError:
                return TakenOverError(f"Another run of this group has taken over ({error}).")
            mine = view.runs.get(self.record.run)
            others = [run for run in view.runs.values() if run.run != self.record.run]
            if mine is None:  # fenced before it was written: whoever was heard of since this one began
                others = [run for run in others if run.heartbeat_at >= self.record.started_at]
            newest = max(others, key=lambda run: run.heartbeat_at, default=None)
            if newest is not None and (mine is None or mine.state != RUNNING):
                return TakenOverError(f"Taken over by {newest.whose}.")
            if time.monotonic() >= until or (self._stop is not None and self._stop.is_set()):
                return TakenOverError(
                    f"Stopped: {error}, and no other run is in the ledger. So its transaction took longer "
                    "than the brokers allow (was this process stopped?): what of it the ledger does not have "
                    "was not published."
                )
            time.sleep(0.2)


def facts_of(admin: TopicAdmin, topics: Sequence[str]) -> dict[str, TopicFacts]:
    """What is known of the topics that exist. Raises ReadError when none does, or none can be looked at."""
    try:
        described = admin.describe(topics, 30.0)
    except BrokersUnreachableError as error:
        raise ReadError(str(error)) from None
    for name, each in described.items():
        if isinstance(each, Untold):  # left out it would look as if nothing were open there
            raise ReadError(f"What the topic {name} is can't be told: {each.reason}. Try again.")
    facts = {name: each for name, each in described.items() if isinstance(each, TopicFacts)}
    if not facts:
        raise ReadError(f"There is no dead-letter topic ({', '.join(topics) or 'none was found'}).")
    return facts


def refuse_if_busy(view: LedgerView, now: float) -> None:
    """Raise InProgressError when a run is alive. ``now``: epoch seconds."""
    for run in view.open_runs():
        if run.is_alive(now):
            raise InProgressError(
                f"Not started: {run.whose} is at work, and was heard of "
                f"{max(0.0, now - run.heartbeat_at):.0f} s ago. Wait until it ends ('streamloop dlq status' "
                "shows it), or take over with --takeover: it then stops, and nothing is replayed twice."
            )


def entry_value(state: str, record: RunRecord, **more: Any) -> bytes:
    """The value of an entry: what was done with a dead letter, by which run and when."""
    found = {"state": state, "run": record.run, "by": record.by, "at": int(time.time() * 1000), **more}
    return json.dumps(found, separators=(",", ":")).encode()
