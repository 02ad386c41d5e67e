"""Purges dead letters: they are put away for good, and the ledger says by whom and why.

A purged letter is neither listed nor replayed any more; it stays in its topic. Only ``delete_records`` frees
disk, and only of a prefix of each partition in which nothing is open. The ledger keeps what it knows also of
letters that are gone, since an export made earlier may come back by an import; ``forget`` drops that, too.
Blocking; called by the facade in ``api``.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from streamloop.dlq.course import go_through
from streamloop.dlq.ledger import IMPORTED, OPEN, PURGED, REPLAYED, entry_key
from streamloop.dlq.letter import letter_of
from streamloop.dlq.plan import to_json
from streamloop.dlq.reading import (
    BoundedReader,
    ReadError,
    narrowed,
    open_bounds,
    refuse_recreated,
    topic_admin,
)
from streamloop.dlq.runs import FINISHED, RunRecord
from streamloop.dlq.session import Session, entry_value
from streamloop.dlq.targets import Skip
from streamloop.dlq.writer import MOST_RECORDS, Entry, nowhere
from streamloop.kafka.config import admin_config

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from streamloop.dlq.filters import Filter
    from streamloop.dlq.reading import Bounds, Partition, Progress
    from streamloop.settings import Settings

DELETE_TIMEOUT: Final = 30.0
WHY: Final = {REPLAYED: Skip.REPLAYED.value, PURGED: Skip.PURGED.value, IMPORTED: Skip.IMPORTED.value}


@dataclass(slots=True)
class PurgeSummary:
    """What a purge did. ``freed``: offsets that were deleted, by topic/partition. ``forgotten``: entries that
    the ledger dropped.
    """

    run: str
    state: str = ""
    note: str = ""
    described: str = ""
    matched: int = 0
    purged: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    freed: dict[str, int] = field(default_factory=dict)
    forgotten: int = 0
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0: it went through."""
        return 0 if self.state == FINISHED else 1

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return to_json(self)


class Purge:
    """One purge; ``run`` does it. ``by``: who, for the record.

    ``within``: what somebody has looked at, and agreed to; what died since is left alone.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Sequence[str],
        where: Filter,
        *,
        by: str,
        delete_records: bool = False,
        forget: bool = False,
        takeover: bool = False,
        within: Bounds | None = None,
        progress: Callable[[Progress], None] | None = None,
        stop: threading.Event | None = None,
        at: Callable[[str], None] = nowhere,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._where = where
        self._delete_records = delete_records
        self._forget = forget
        self._courteous = not takeover
        self._within = within
        self._progress = progress
        self._stop = stop
        self._at = at
        self._admin = topic_admin(settings)
        self._session: Session
        self.record = RunRecord.new(
            "purge", by, filter=where.to_json(), described=where.describe(), settles=False
        )
        self.summary = PurgeSummary(self.record.run, described=where.describe())

    def run(self) -> PurgeSummary:
        """Purge; what ends it early is in the summary.

        Raises InProgressError, ReadError, ConfigurationError.
        """
        began = time.monotonic()
        session = Session.for_topics(
            self._settings,
            self.record,
            self._topics,
            self._admin,
            courteous=self._courteous,
            at=self._at,
            stop=self._stop,
        )
        go_through(session, self.summary, self._work, began=began)
        return self.summary

    def _work(self, session: Session) -> bool:
        self._session = session
        complete = self._purge()
        if complete and self._delete_records:
            self._free()
        self.record.counts = {"matched": self.summary.matched, "purged": self.summary.purged}
        return complete

    def _beat(self, progress: Progress) -> None:
        self._session.beat()
        if self._progress is not None:
            self._progress(progress)

    def _purge(self) -> bool:
        session, summary = self._session, self.summary
        bounds = open_bounds(self._settings, self.record.topics, self._where, admin=self._admin)
        if self._within is not None:
            bounds = narrowed(bounds, self._within)
        session.view.know(bounds.topic_ids)
        pending: list[Entry] = []

        def write() -> None:
            if pending:
                session.write(*pending)
                for entry in pending:
                    session.view.take(entry.key, entry.value)
                summary.purged += len(pending)
                pending.clear()

        with BoundedReader(self._settings, bounds, progress=self._beat, stop=self._stop) as reader:
            for batch in reader:
                for message in batch:
                    letter = letter_of(message)
                    if not self._where.matches(letter):
                        continue
                    summary.matched += 1
                    state = session.view.state(letter)
                    if state != OPEN:
                        summary.skipped[WHY[state]] += 1
                        continue
                    key = entry_key(
                        bounds.topic_ids[letter.topic], letter.topic, letter.partition, letter.offset
                    )
                    pending.append(Entry(key, entry_value(PURGED, self.record, **{"from": letter.place})))
                    if len(pending) >= MOST_RECORDS:
                        write()
            write()
            return reader.complete

    # -------------------------------------------------------------------------------------- freeing disk

    def _free(self) -> None:
        """Delete the records before the first open letter of each partition."""
        session = self._session
        self.record.phase = "deleting records"
        bounds = open_bounds(self._settings, self.record.topics, admin=self._admin)
        session.view.know(bounds.topic_ids)  # of a topic that was made anew meanwhile all letters are open
        first_open: dict[Partition, int] = {}
        with BoundedReader(self._settings, bounds, progress=self._beat, stop=self._stop) as reader:
            for batch in reader:
                for message in batch:
                    place = (message.topic(), message.partition())
                    if place not in first_open and session.view.is_open(letter_of(message)):
                        first_open[place] = message.offset()
            if not reader.complete:
                return
        upto = {
            place: min(first_open.get(place, each.log_end), each.log_end)
            for place, each in bounds.ranges.items()
        }
        wanted = {place: offset for place, offset in upto.items() if offset > bounds.ranges[place].log_start}
        if not wanted:
            return
        client: Any = AdminClient(admin_config(self._settings))
        refuse_recreated(self._settings, bounds, admin=self._admin)
        asked = [TopicPartition(topic, partition, offset) for (topic, partition), offset in wanted.items()]
        futures = client.delete_records(asked, operation_timeout=DELETE_TIMEOUT)
        for part, future in futures.items():
            name = f"{part.topic}/{part.partition}"
            try:
                low = future.result(DELETE_TIMEOUT).low_watermark
            except KafkaException as error:
                raise ReadError(
                    f"The records of {name} could not be deleted: {error.args[0].str()}. They are purged, "
                    "and stay in the topic."
                ) from None
            except TimeoutError:
                raise ReadError(
                    f"The brokers did not say in time that records of {name} are deleted."
                ) from None
            self.summary.freed[name] = low - bounds.ranges[part.topic, part.partition].log_start
            if self._forget:
                self._forget_below(bounds.topic_ids[part.topic], part.topic, part.partition, low)

    def _forget_below(self, topic_id: str, topic: str, partition: int, low: int) -> None:
        session = self._session
        gone = [
            Entry(entry_key(topic_id, topic, partition, offset), None)
            for offset in session.view.closed(topic_id, topic, partition)
            if offset < low
        ]
        for at in range(0, len(gone), MOST_RECORDS):
            session.write(*gone[at : at + MOST_RECORDS])
            session.beat()
        self.summary.forgotten += len(gone)
