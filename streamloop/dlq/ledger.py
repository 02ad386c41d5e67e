"""The ledger: which dead letters were replayed, purged or imported, by which run.

A compacted topic, ``<group>.replays``. An entry's key is topic id / partition / offset of the dead letter, so
that a topic that was made anew owes nothing to the old one; its value says the state, the run, and where the
original and the replayed record are. The view of it is compact: a bit for each entry, and the runs.

Reading joins no group, commits nothing and creates nothing. Only ``ensure_ledger`` creates the topic, and
only ``writer.py`` writes it. Called by whatever lists, replays, purges or imports dead letters.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from streamloop.dlq.offsets import OffsetSet
from streamloop.dlq.reading import TIMEOUT, BoundedReader, ReadError, open_bounds, topic_admin
from streamloop.dlq.runs import KEY, RUNNING, RunRecord
from streamloop.errors import ConfigurationError, TopicError
from streamloop.kafka.topic_admin import BrokersUnreachableError
from streamloop.kafka.topics import UNKNOWN_ID, PlainTopic, TopicFacts

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Mapping

    from streamloop.dlq.letter import DeadLetter
    from streamloop.dlq.reading import Partition, Progress
    from streamloop.kafka.topic_admin import TopicAdmin
    from streamloop.settings import Settings

OPEN: Final = "open"
REPLAYED: Final = "replayed"
PURGED: Final = "purged"
HIDDEN_TIMEOUT: Final = 20.0
"""Seconds for which entries that an open transaction holds back are waited for."""
IMPORTED: Final = "imported"
"""A copy of it was put back from an export: it is the copy that is open."""

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_KEY: Final = re.compile(r"(?P<topic>.+)/(?P<partition>[0-9]{1,10})/(?P<offset>[0-9]{1,19})")


def ledger_topic(settings: Settings) -> str:
    """The name of the group's ledger. Raises ConfigurationError without a group."""
    if not settings.group:
        raise ConfigurationError(
            "Whose ledger? Give --group (or STREAMLOOP_GROUP): what was replayed is known by group."
        )
    name = f"{settings.group}.replays"
    if not _TOPIC.fullmatch(name):
        raise ConfigurationError(
            f"The group {settings.group!r} makes the topic name {name!r}, which Kafka does not allow: at "
            "most 249 letters, digits, dots, underscores and hyphens."
        )
    return name


def entry_key(topic_id: str, topic: str, partition: int, offset: int) -> bytes:
    """The key of a dead letter's entry. Where the broker has no topic ids, the name stands for it."""
    return f"{identity_of(topic_id, topic)}/{partition}/{offset}".encode()


def identity_of(topic_id: str, topic: str) -> str:
    """What a topic is known by in the ledger."""
    return f"name:{topic}" if topic_id == UNKNOWN_ID else topic_id


@dataclass(slots=True)
class _Entries:
    """The entries of one partition of one dead-letter topic, by state."""

    replayed: OffsetSet = field(default_factory=OffsetSet)
    purged: OffsetSet = field(default_factory=OffsetSet)
    imported: OffsetSet = field(default_factory=OffsetSet)
    times: dict[int, int] = field(default_factory=dict)
    """How often it was replayed, of those for which it was more than once."""

    def of(self, state: str) -> OffsetSet | None:
        """The set of one state; None: a state that this version does not know."""
        return {REPLAYED: self.replayed, PURGED: self.purged, IMPORTED: self.imported}.get(state)

    def forget(self, offset: int) -> None:
        for each in (self.replayed, self.purged, self.imported):
            each.discard(offset)
        self.times.pop(offset, None)


class LedgerView:
    """What the ledger said when it was last read.

    ``topic_ids``: the present ids of the dead-letter topics, by which letters are known; ``know`` adds more.
    """

    def __init__(self, topic: str, topic_ids: Mapping[str, str] | None = None) -> None:
        self.topic = topic
        self.exists = False
        """Whether there is a ledger topic at all."""
        self.runs: dict[str, RunRecord] = {}
        """By id, in no order."""
        self.strange = 0
        """Entries that this version can't read: they hold nothing back."""
        self._ids = dict(topic_ids or {})
        self._entries: dict[tuple[str, int], _Entries] = {}
        self._reached: dict[Partition, int] = {}

    def know(self, topic_ids: Mapping[str, str]) -> None:
        """These are the present ids of dead-letter topics."""
        self._ids.update(topic_ids)

    def state_at(self, topic_id: str, topic: str, partition: int, offset: int) -> str:
        """The state of a dead letter: open, replayed, purged or imported."""
        entries = self._entries.get((identity_of(topic_id, topic), partition))
        if entries is None:
            return OPEN
        if offset in entries.purged:
            return PURGED
        if offset in entries.imported:
            return IMPORTED
        return REPLAYED if offset in entries.replayed else OPEN

    def state(self, letter: DeadLetter) -> str:
        """The same of a letter. A topic whose id was not told is known by its name."""
        return self.state_at(
            self._ids.get(letter.topic, UNKNOWN_ID), letter.topic, letter.partition, letter.offset
        )

    def is_open(self, letter: DeadLetter) -> bool:
        """Whether it was neither replayed nor purged nor put back as a copy."""
        return self.state(letter) == OPEN

    def times(self, letter: DeadLetter) -> int:
        """How often it was replayed."""
        identity = identity_of(self._ids.get(letter.topic, UNKNOWN_ID), letter.topic)
        entries = self._entries.get((identity, letter.partition))
        if entries is None or letter.offset not in entries.replayed:
            return 0
        return entries.times.get(letter.offset, 1)

    def closed(self, topic_id: str, topic: str, partition: int) -> Iterable[int]:
        """The offsets of one partition that have an entry, in order."""
        entries = self._entries.get((identity_of(topic_id, topic), partition))
        if entries is None:
            return ()
        return sorted({*entries.replayed, *entries.purged, *entries.imported})

    @property
    def counts(self) -> dict[str, int]:
        """Entries by state."""
        found = {REPLAYED: 0, PURGED: 0, IMPORTED: 0}
        for entries in self._entries.values():
            found[REPLAYED] += len(entries.replayed)
            found[PURGED] += len(entries.purged)
            found[IMPORTED] += len(entries.imported)
        return found

    def open_runs(self) -> list[RunRecord]:
        """Runs that did not say how they ended, the newest first."""
        found = [run for run in self.runs.values() if run.state == RUNNING]
        return sorted(found, key=lambda run: -run.started_at)

    # ------------------------------------------------------------------------------------------ filling it

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """One record of the ledger topic. Never raises."""
        text = (key or b"").decode("utf-8", "replace")
        if text.startswith(KEY):
            self._take_run(text.removeprefix(KEY), value)
            return
        match = _KEY.fullmatch(text)
        if match is None:
            self.strange += 1
            return
        place = (match["topic"], int(match["partition"]))
        offset = int(match["offset"])
        entries = self._entries.get(place)
        if value is None:
            if entries is not None:
                entries.forget(offset)
            return
        found = _json(value)
        state = str(found.get("state"))
        if entries is None:
            entries = self._entries[place] = _Entries()
        offsets = entries.of(state)
        if offsets is None:
            self.strange += 1
            return
        if state != PURGED:
            entries.purged.discard(offset)
        offsets.add(offset)
        times = found.get("times")
        if isinstance(times, int) and times > 1:
            entries.times[offset] = times

    def _take_run(self, run_id: str, value: bytes | None) -> None:
        record = RunRecord.from_json(_json(value)) if value is not None else None
        if record is not None and record.run == run_id:
            self.runs[run_id] = record
        else:
            self.runs.pop(run_id, None)

    def update(
        self,
        settings: Settings,
        *,
        stop: threading.Event | None = None,
        progress: Callable[[Progress], None] | None = None,
        admin: TopicAdmin | None = None,
        each: Callable[[bytes, Mapping[str, Any]], None] | None = None,
        timeout: float = TIMEOUT,
        whole: bool = False,
    ) -> bool:
        """Read on from where it was read to; False when ``stop`` ended it before the end.

        ``each`` sees key and value of every entry, for what the view does not keep. ``whole``: entries that
        somebody's open transaction holds back are waited for (HIDDEN_TIMEOUT), never taken for absent; for
        whoever is to act on what the ledger says. Raises ReadError.
        """
        admin = admin or topic_admin(settings)
        if not self.exists and _facts(admin, self.topic, timeout) is None:
            return True
        until = time.monotonic() + HIDDEN_TIMEOUT
        while True:
            bounds = open_bounds(settings, [self.topic], starts=self._reached, admin=admin, timeout=timeout)
            if not (whole and bounds.hidden):
                break
            if time.monotonic() >= until:
                raise ReadError(_held_back(self.topic, bounds.hidden))
            time.sleep(0.1)
        self.exists = True
        with BoundedReader(settings, bounds, progress=progress, stop=stop) as reader:
            for batch in reader:
                for message in batch:
                    key, value = message.key(), message.value()
                    self.take(key, value)
                    if each is not None and key is not None and value is not None:
                        each(key, _json(value))
            self._reached = reader.reached
            return reader.complete


def read_ledger(
    settings: Settings,
    topic_ids: Mapping[str, str] | None = None,
    *,
    stop: threading.Event | None = None,
    progress: Callable[[Progress], None] | None = None,
    admin: TopicAdmin | None = None,
    each: Callable[[bytes, Mapping[str, Any]], None] | None = None,
    whole: bool = False,
) -> LedgerView:
    """The ledger as it is now, to its end; empty where there is none. Raises ReadError.

    ``topic_ids``: of the dead-letter topics whose letters it will be asked about. ``whole``: see ``update``.
    """
    view = LedgerView(ledger_topic(settings), topic_ids)
    view.update(settings, stop=stop, progress=progress, admin=admin, each=each, whole=whole)
    return view


def _held_back(topic: str, hidden: Mapping[Partition, int]) -> str:
    (_, partition), count = next(iter(hidden.items()))
    return (
        f"An open transaction of somebody else in the ledger {topic} (partition {partition}) holds back up "
        f"to {count} offsets of it: they may say what was replayed, so nothing is replayed before they are "
        "read. Nobody but streamloop should write there. It ends by itself after its transaction.timeout.ms; "
        f"'kafka-transactions.sh find-hanging --topic {topic}' shows one that does not."
    )


def ensure_ledger(
    settings: Settings, like: TopicFacts, *, admin: TopicAdmin | None = None, timeout: float = TIMEOUT
) -> TopicFacts:
    """The ledger topic, made if it is missing and may be made.

    ``like``: a dead-letter topic, than which it must not be less safe. Raises TopicError with the command
    that mends it when it would lose entries: then dead letters would be replayed twice.
    """
    admin = admin or topic_admin(settings)
    name = ledger_topic(settings)
    facts = _facts(admin, name, timeout)
    factor = max(settings.replication_factor or -1, like.replication_factor or -1)
    values = {"cleanup.policy": "compact"}
    if like.min_insync_replicas is not None:
        values["min.insync.replicas"] = str(like.min_insync_replicas)
    if like.max_message_bytes is not None:
        # An edited record's original is kept in its entry, as base64.
        values["max.message.bytes"] = str(like.max_message_bytes * 3 // 2 + 64 * 1024)
    brokers = ",".join(settings.brokers)
    if facts is None:
        command = f"kafka-topics.sh --bootstrap-server {brokers} --create --topic {name} --partitions 1" + (
            f" --replication-factor {factor}" if factor > 0 else ""
        )
        command += "".join(f" --config {setting}={value}" for setting, value in values.items())
        if not settings.create_topics:
            raise TopicError(
                f"The ledger topic {name} does not exist, and create_topics is off. Create it:\n    {command}"
            )
        facts = _create(admin, PlainTopic(name, 1, factor, values), command, timeout)
    if facts.cleanup_policy is not None and facts.cleanup_policy != "compact":
        raise TopicError(
            f"The ledger topic {name} has cleanup.policy={facts.cleanup_policy}: what it says would be "
            "deleted, and dead letters replayed twice. It must be compact. Mend it with:\n"
            f"    kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type topics --entity-name "
            f"{name} --add-config cleanup.policy=compact"
        )
    return facts


def _create(admin: TopicAdmin, topic: PlainTopic, command: str, timeout: float) -> TopicFacts:
    try:
        refused = admin.create([topic], timeout).get(topic.name)
    except BrokersUnreachableError as error:
        raise ReadError(str(error)) from None
    if refused is not None:
        raise TopicError(
            f"The ledger topic {topic.name} does not exist and could not be created ({refused}). Create it:\n"
            f"    {command}"
        )
    facts = _facts(admin, topic.name, timeout, wait=True)
    if facts is None:
        raise TopicError(f"The ledger topic {topic.name} was created but is not listed yet: start again.")
    return facts


def _facts(admin: TopicAdmin, name: str, timeout: float, *, wait: bool = False) -> TopicFacts | None:
    """The topic; None when it does not exist. ``wait``: it was just made, and not every broker knows it."""
    until = time.monotonic() + timeout
    while True:
        try:
            found = admin.describe([name], max(0.1, until - time.monotonic()))[name]
        except BrokersUnreachableError as error:
            raise ReadError(str(error)) from None
        if isinstance(found, TopicFacts):
            return found
        if found is None and not wait:
            return None
        if time.monotonic() >= until:
            if found is None:
                return None
            raise ReadError(f"Whether the topic {name} exists can't be told: {found.reason}.")
        time.sleep(0.05)


def _json(value: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


__all__ = [
    "IMPORTED",
    "OPEN",
    "PURGED",
    "REPLAYED",
    "LedgerView",
    "ensure_ledger",
    "entry_key",
    "identity_of",
    "ledger_topic",
    "read_ledger",
]
