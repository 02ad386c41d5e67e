"""Puts exported dead letters back into their topics, byte for byte, and never one that is not open.

What the file calls a letter's identity (topic id, partition, offset) is what the ledger knows it by. So a
letter that was replayed or purged since, that was put back before, or that is still there, is left out; the
copy and the ledger's entry that says so are one transaction. Blocking; called by the facade in ``api``.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from streamloop.dlq.course import go_through
from streamloop.dlq.exporting import KIND, VERSION
from streamloop.dlq.ledger import IMPORTED, OPEN, PURGED, REPLAYED, entry_key
from streamloop.dlq.plan import MOST_NAMED, to_json
from streamloop.dlq.reading import ReadError, open_bounds, topic_admin
from streamloop.dlq.runs import FINISHED, RunRecord
from streamloop.dlq.session import Session, entry_value
from streamloop.dlq.writer import (
    MOST_BYTES,
    MOST_RECORDS,
    Entry,
    Placed,
    Publish,
    nowhere,
)
from streamloop.errors import ConfigurationError
from streamloop.kafka import headers as hd

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from streamloop.settings import Settings

WHY: Final = {REPLAYED: "replayed before", PURGED: "purged before", IMPORTED: "imported before"}
STILL_THERE: Final = "still in its topic"
OTHER_TOPIC: Final = "of another topic"
LONGEST_LINE: Final = 256 * 1024 * 1024
"""Bytes of a line at most: a record of 100 MB in base64, and room."""
_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Exported:
    """One record of an export."""

    topic_id: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: hd.RawHeaders
    state: str
    """As the ledger said when it was exported."""

    @property
    def place(self) -> str:
        """topic/partition/offset."""
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(slots=True)
class ImportSummary:
    """What an import did. ``refused``: (place, why) of letters that the topic does not take."""

    run: str
    state: str = ""
    note: str = ""
    records: int = 0
    imported: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[str, str]] = field(default_factory=list)
    refused_count: int = 0
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0: it went through."""
        return 0 if self.state == FINISHED else 1

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return to_json(self)


def read_export(file: BinaryIO, name: str) -> Iterator[Exported]:
    """The records of an export, one after the other. Raises ConfigurationError that names the line."""
    ended = False
    records = 0
    number = 0
    for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE + 1), b""), 1):
        where = f"{name}, line {number}"
        if len(line) > LONGEST_LINE:
            raise ConfigurationError(
                f"{where} is longer than {LONGEST_LINE >> 20} MiB: no record of Kafka's takes that much."
            )
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise ConfigurationError(f"{where} is no JSON: is it a file that 'dlq export' wrote?") from None
        kind = found.get("kind") if isinstance(found, dict) else None
        if number == 1:
            if kind != KIND:
                raise ConfigurationError(f"{name} is no export of dead letters: 'dlq export' writes them.")
            if found.get("version") != VERSION:
                raise ConfigurationError(
                    f"{name} has the version {found.get('version')!r}, and this program reads {VERSION}."
                )
        elif kind == "record" and not ended:
            records += 1
            yield _record(found, where)
        elif kind == "end" and not ended:
            ended = True
            if found.get("records") != records:
                raise ConfigurationError(f"{name} has {records} records, and says {found.get('records')!r}.")
        else:
            raise ConfigurationError(f"{where} is not expected there (kind {str(kind)[:40]!r}).")
    if not ended:
        raise ConfigurationError(
            f"{name} is not whole: {'its last line is missing' if number else 'it is empty'}."
        )


def _record(found: Mapping[str, Any], where: str) -> Exported:
    try:
        identity = found["id"]
        partition, offset = identity["partition"], identity["offset"]
        headers = [(header["name"], _raw(header["value_base64"])) for header in found["headers"]]
        # What is no identity would be no key that the ledger knows again: it would come back twice.
        if not (_is_number(partition, 2**31 - 1) and _is_number(offset, 2**63 - 1)):
            raise ValueError("a partition and an offset are numbers of 0 or more")
        texts = [identity["topic_id"], identity["topic"], *(name for name, _ in headers)]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("topic ids, topics and names of headers are texts")
        if not _TOPIC_ID.fullmatch(identity["topic_id"]) or not _TOPIC.fullmatch(identity["topic"]):
            raise ValueError("that is no topic id, or no name of a topic")
        if not all(hd.is_writable_name(header_name) for header_name, _ in headers):
            raise ValueError("the name of a header is no UTF-8, or holds a null character")
        return Exported(
            identity["topic_id"],
            identity["topic"],
            partition,
            offset,
            _raw(found["key_base64"]),
            _raw(found["value_base64"]),
            headers,
            str(found.get("state") or OPEN),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"{where} can't be read: {str(error)[:200]}.") from None


def _is_number(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _raw(text: Any) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError):
        raise ValueError("its base64 is damaged") from None


class Import:
    """One import; ``run`` does it.

    ``file`` is read twice, so that nothing is written of a file that is not whole. ``topics``: only letters
    of these; empty: of all that are there. ``by``: who, for the record.
    """

    def __init__(
        self,
        settings: Settings,
        file: BinaryIO,
        name: str,
        *,
        by: str,
        topics: Sequence[str] = (),
        takeover: bool = False,
        stop: threading.Event | None = None,
        at: Callable[[str], None] = nowhere,
    ) -> None:
        self._settings = settings
        self._file = file
        self._name = name
        self._topics = set(topics)
        self._courteous = not takeover
        self._stop = stop
        self._at = at
        self._admin = topic_admin(settings)
        self._session: Session
        self._wanted: list[str] = []
        self._ids: Mapping[str, str] = {}
        self._log: dict[tuple[str, int], tuple[int, int]] = {}
        self.record = RunRecord.new("import", by, described=f"from {name}", settles=False)
        self.summary = ImportSummary(self.record.run)

    def run(self) -> ImportSummary:
        """Import; what ends it early is in the summary.

        Raises InProgressError, ReadError, ConfigurationError.
        """
        began = time.monotonic()
        summary = self.summary
        names = {each.topic for each in self._records()}
        self._wanted = sorted(names & self._topics if self._topics else names)
        if not self._wanted:
            summary.state, summary.note = FINISHED, "There is nothing in it to import."
            return summary
        session = Session.for_topics(
            self._settings,
            self.record,
            self._wanted,
            self._admin,
            courteous=self._courteous,
            at=self._at,
            stop=self._stop,
        )
        go_through(session, summary, self._work, began=began)
        return summary

    def _work(self, session: Session) -> bool:
        self._session = session
        missing = sorted(set(self._wanted) - set(self.record.topics))
        if missing:
            raise ReadError(
                f"The topic {missing[0]} does not exist: create it, or leave its letters out (--topic)."
            )
        self._look()
        complete = self._import()
        self.record.counts = {"records": self.summary.records, "imported": self.summary.imported}
        return complete

    def _records(self) -> Iterator[Exported]:
        self._file.seek(0)
        return read_export(self._file, self._name)

    def _look(self) -> None:
        bounds = open_bounds(self._settings, self.record.topics, admin=self._admin)
        self._ids = bounds.topic_ids
        self._session.view.know(bounds.topic_ids)
        self._log = {place: (each.log_start, each.hidden_end) for place, each in bounds.ranges.items()}

    def _import(self) -> bool:
        pending: list[Exported] = []
        taken: set[bytes] = set()
        size = 0
        for record in self._records():
            if self._stop is not None and self._stop.is_set():
                return False
            self.summary.records += 1
            self._session.beat()
            key = entry_key(record.topic_id, record.topic, record.partition, record.offset)
            why = "twice in the file" if key in taken else self._left_out(record)
            if why:
                self.summary.skipped[why] += 1
                continue
            weight = hd.record_size(record.key, record.value, record.headers)
            if pending and (len(pending) >= MOST_RECORDS or size + weight > MOST_BYTES):
                self._send(pending)
                pending, size = [], 0
            pending.append(record)
            taken.add(key)
            size += weight
        if pending:
            self._send(pending)
        return True

    def _left_out(self, record: Exported) -> str:
        """Why a record is not put back; '' when it is."""
        if self._topics and record.topic not in self._topics:
            return OTHER_TOPIC
        state = self._session.view.state_at(record.topic_id, record.topic, record.partition, record.offset)
        if state != OPEN:
            return WHY[state]
        if record.state in WHY:
            return WHY[record.state]
        start, end = self._log.get((record.topic, record.partition), (0, 0))
        if record.topic_id == self._ids[record.topic] and start <= record.offset < end:
            return STILL_THERE
        return ""

    def _send(self, records: list[Exported]) -> None:
        for part, _ in self._session.send(
            records,
            self._publish,
            self._entries,
            place=lambda record: record.place,
            refused=self._refused,
        ):
            self.summary.imported += len(part)
        self._session.beat()

    def _publish(self, record: Exported) -> Publish:
        count = sum(1 for topic, _ in self._log if topic == record.topic)
        return Publish(record.topic, record.partition % count, record.key, record.value, record.headers)

    def _entries(self, records: Sequence[Exported], placed: list[Placed]) -> list[Entry]:
        return [
            Entry(
                entry_key(record.topic_id, record.topic, record.partition, record.offset),
                entry_value(
                    IMPORTED,
                    self.record,
                    **{"from": record.place, "to": f"{at.topic}/{at.partition}/{at.offset}"},
                ),
            )
            for record, at in zip(records, placed, strict=True)
        ]

    def _refused(self, record: Exported, why: str) -> None:
        self.summary.refused_count += 1
        if len(self.summary.refused) < MOST_NAMED:
            self.summary.refused.append((record.place, why))
