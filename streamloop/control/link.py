"""A member's link to its group's control topic: follows it, writes the member's status, writes for operators.

A thread of its own, with a Consumer that is assigned partition 0 and joins no group, and a Producer. It never
blocks the handling and is never waited for without a bound: what the run takes from it is a snapshot that is
replaced whole. Brokers that are away and a topic that may not exist are tried again, with back-off and
jitter. Started and closed by the run.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from streamloop.control.records import (
    BY,
    LONGEST_NAME,
    LONGEST_REASON,
    OperatorHold,
    Scope,
    hold_value,
    status_key,
)
from streamloop.control.reporter import Reporter
from streamloop.control.state import ControlState, Snapshot
from streamloop.control.topic import Away, Found, Off, find, name_of
from streamloop.control.view import GroupView, view_of
from streamloop.control.writes import ControlError, Write, Writes
from streamloop.errors import StreamLoopError
from streamloop.kafka import config
from streamloop.kafka.client_log import librdkafka_log
from streamloop.kafka.headers import headers_of
from streamloop.status import ControlStatus
from streamloop.telemetry.logs import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streamloop.kafka.topic_admin import TopicAdmin
    from streamloop.kafka.topics import TopicFacts
    from streamloop.settings import Settings
    from streamloop.status import LoopStatus

log = logging.getLogger("streamloop.control")

TURN: Final = 0.2
"""Seconds that a turn waits for records."""
BATCH: Final = 100
FLOOD_PAUSE: Final = 0.02
"""Seconds after a full batch, once the topic was read: others' records may not take the processor."""
ADMIN_TIMEOUT: Final = 5.0
LOOK_EVERY: Final = 10.0
"""Seconds between two looks whether the topic is still the same one."""
TIDY_EVERY: Final = 60.0
"""Seconds between two looks for members that are gone for good."""
AWAY_AGAIN: Final = (1.0, 30.0)
"""Seconds until it is tried again: at first, and at most."""
OFF_AGAIN: Final = 60.0
"""Seconds until a topic that may not exist or be used is looked for again."""
LEAVE_WITHIN: Final = 2.0
"""Seconds that leaving waits for its last record to be confirmed."""
LEAVE_MARGIN: Final = 1.0
"""Seconds for the end of a turn and of the clients."""

ON, STARTING, AWAY, OFF = "on", "starting", "away", "off"


class _Reopen(Exception):  # noqa: N818 - no error: the topic has to be looked at anew
    """The topic is another one, or can't be read on. ``wait``: seconds until it is tried again."""

    def __init__(self, state: str, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason
        self.wait = wait


class ControlLink:
    """The link of one run. ``status``: what the member does, asked on this thread. ``took``: a new snapshot.

    ``applied``: the snapshot that the run has applied. ``facts``: what is known of the source
    topics, after which a new control topic is made.
    """

    def __init__(
        self,
        settings: Settings,
        admin: TopicAdmin,
        *,
        status: Callable[[], LoopStatus | None],
        took: Callable[[Snapshot], None],
        applied: Callable[[], Snapshot],
        facts: Callable[[], Iterable[TopicFacts]] = tuple,
        consumer_factory: Callable[[dict[str, Any]], Any] | None = None,
        producer_factory: Callable[[dict[str, Any]], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.topic = name_of(settings)
        self.instance = uuid.uuid4().hex[:12]
        self.first_read = threading.Event()
        """The topic was read once, or there is none to read."""
        self.state_word = STARTING
        self.detail = ""
        self.state = ControlState(clock=clock, wall=wall)
        self._admin = admin
        self._took = took
        self._facts = facts
        self._make_consumer = consumer_factory or _consumer
        self._make_producer = producer_factory or _producer
        self._clock = clock
        self._wall = wall
        self._reporter = Reporter(
            settings, self.instance, status=status, applied=applied, clock=clock, wall=wall
        )
        self._thread = threading.Thread(target=self._run, name="streamloop-control", daemon=True)
        self._stop = threading.Event()
        self._ended = ""
        self._within = LEAVE_WITHIN
        self._topic_id = ""
        self._consumer: Any = None
        self._producer: Any = None
        self._published = Snapshot({})
        self._writes = Writes()
        self._said: set[str] = set()
        self._ignored_said = False
        self._cannot_write = ""
        self._backoff = AWAY_AGAIN[0]
        self._own_key = status_key(settings.member)
        self._next_look = 0.0
        self._next_tidy = 0.0

    # ------------------------------------------------------------------------------------ from any thread

    def start(self) -> None:
        """Begin. Returns at once."""
        self._thread.start()

    def close(self, ended: str = "", within: float = LEAVE_WITHIN) -> None:
        """Leave: a null in the place of the status, or the status with the error that ended the run.

        ``within``: seconds that the broker gets to confirm it.
        """
        self._ended = ended
        self._within = within
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(within + LEAVE_MARGIN)

    @property
    def on(self) -> bool:
        """Whether the topic is there, read and written."""
        return self.state_word == ON and not self._cannot_write

    def status(self) -> ControlStatus:
        """The topic as this member sees it."""
        return ControlStatus(self.topic, self.state_word, self.detail or self._cannot_write)

    def view(self) -> GroupView:
        """The group as it is now."""
        return view_of(
            self.state,
            group=self.settings.group,
            topic=self.topic,
            wall=self._wall(),
        )

    def pause(self, scope: Scope, by: str, reason: str = "", *, timeout: float = 5.0) -> int:
        """Hold it in the whole group. Returns the record's offset, when the broker has confirmed it.

        Raises ControlError.
        """
        hold = OperatorHold(scope, by[:LONGEST_NAME], self._wall(), reason[:LONGEST_REASON])
        return self._write([Write(scope.key, hold_value(hold))], timeout)

    def resume(self, scope: Scope, by: str, *, timeout: float = 5.0) -> int:
        """End what was held with the same scope in the whole group; everything: all of it. As ``pause``."""
        scopes = {scope} | (set(self._published.holds) if scope == Scope() else set())
        who = [(BY, by[:LONGEST_NAME].encode("utf-8", "replace"))]
        return self._write([Write(each.key, None, who) for each in sorted(scopes, key=str)], timeout)

    def await_first_read(self, timeout: float) -> None:
        """Until the topic was read once, there is none to read, or the run ends."""
        until = time.monotonic() + timeout
        while time.monotonic() < until and not self._stop.is_set() and not self.first_read.wait(0.05):
            pass

    def await_read(self, offset: int, timeout: float = 2.0) -> bool:
        """Until this member has read the operator's record at this offset. False: not within ``timeout``."""
        until = time.monotonic() + timeout
        while self._published.applied < offset and time.monotonic() < until and not self._stop.wait(0.02):
            pass
        return self._published.applied >= offset

    def forget(self, scope: Scope) -> None:
        """Without the topic: what was held in the group is released at this member."""
        kept = {} if scope == Scope() else {k: v for k, v in self._published.holds.items() if k != scope}
        self._publish(replace(self._published, holds=kept))

    def _write(self, writes: list[Write], timeout: float) -> int:
        if not self.on:
            raise ControlError(
                f"the control topic {self.topic} is not in use here "
                f"({self._cannot_write or self.detail or self.state_word}): only this member can be told"
            )
        return self._writes.put_and_wait(writes, self.topic, timeout)

    # ----------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._open()
                while not self._stop.is_set():
                    self._turn()
            except _Reopen as why:
                self._not_on(why.state, why.reason)
                wait = why.wait
            except Exception as error:
                # Whatever this meets, the handling goes on; the next attempt begins from nothing.
                log.exception("the control topic: an error that nothing expected", extra={"kind": "control"})
                self._not_on(AWAY, f"{type(error).__name__}")
                wait = self._later()
            else:
                wait = 0.0
            if self._stop.is_set():
                self._leave()
            self._close_clients()
            if wait:
                self._stop.wait(wait * random.uniform(0.75, 1.25))  # noqa: S311 - so that members differ

    def _later(self) -> float:
        wait, self._backoff = self._backoff, min(AWAY_AGAIN[1], 2 * self._backoff)
        return wait

    def _not_on(self, state: str, reason: str) -> None:
        self.state_word, self.detail = state, reason
        self._writes.fail(reason)
        if state == OFF:
            self._say(
                logging.WARNING,
                f"{reason}. This member is on its own: the others do not see it, and a pause is this "
                "member's alone. It is looked for again.",
            )
            self.first_read.set()
        elif state == AWAY:
            log.debug("the control topic %s: %s; it is tried again", self.topic, reason)

    def _say(self, level: int, sentence: str) -> None:
        """Once, until it works again."""
        if sentence not in self._said:
            self._said.add(sentence)
            log.log(level, "the control topic: %s", printable(sentence), extra={"kind": "control"})

    def _open(self) -> None:
        try:
            found = find(
                self._admin,
                self.topic,
                create=self.settings.create_topics,
                sources=self._facts(),
                replication_factor=self.settings.replication_factor,
                timeout=ADMIN_TIMEOUT,
            )
        except StreamLoopError as error:
            raise _Reopen(AWAY, str(error), self._later()) from None
        if isinstance(found, Off):
            forbidden = "" if self.settings.create_topics else " (create_topics is off)"
            raise _Reopen(OFF, f"{found.reason}{forbidden}", OFF_AGAIN)
        if isinstance(found, Away):
            raise _Reopen(AWAY, found.reason, self._later())
        assert isinstance(found, Found)
        for warning in found.warnings:
            self._say(logging.WARNING, warning)
        if found.created:
            log.info("created the topic %s", self.topic, extra={"kind": "topic_created", "topic": self.topic})
        if self._topic_id and found.topic_id != self._topic_id:
            self._say(logging.WARNING, f"{self.topic} is another topic now: it is read from its beginning")
        self._topic_id = found.topic_id
        self.state = ControlState(clock=self._clock, wall=self._wall, topic_id=found.topic_id)
        self._consumer = self._make_consumer(config.control_consumer_config(self.settings))
        self._producer = self._make_producer(config.control_producer_config(self.settings))
        self._consumer.assign([TopicPartition(self.topic, 0, confluent_kafka.OFFSET_BEGINNING)])
        self._next_look = self._clock() + LOOK_EVERY
        self._cannot_write = ""
        self._reporter.begin()

    def _turn(self) -> None:
        first = self._consumer.poll(TURN)
        if first is not None:
            messages = [first, *self._consumer.consume(BATCH - 1, 0)]
            for message in messages:
                self._take(message)
            if len(messages) == BATCH and self.state.complete:
                self._stop.wait(FLOOD_PAUSE)
        if self.state.ignored and self.state.complete and not self._ignored_said:
            self._ignored_said = True
            log.warning(
                "the control topic: %s has records that are not for this version of streamloop (%s); they "
                "are ignored",
                self.topic,
                ", ".join(sorted(self.state.ignored)),
                extra={"kind": "control"},
            )
        self._producer.poll(0)
        self._send_writes()
        now = self._clock()
        if self.state.complete:
            self._send_status(now)
            self._tidy(now)
        if now >= self._next_look:
            self._next_look = now + LOOK_EVERY
            self._look()

    # -------------------------------------------------------------------------------------------- reading

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            self._failed(error)
            return
        key = message.key()
        said = self.state.take(
            key, message.value(), _timestamp(message), message.offset(), headers_of(message) or ()
        )
        if key == self._own_key:
            self._own_record(message.value())
        if self.state.complete:
            self._works()
            if self.state.snapshot is not self._published:
                self._publish(self.state.snapshot)
                if said:
                    log.warning("control: %s", printable(said), extra={"kind": "operator"})

    def _own_record(self, value: bytes | None) -> None:
        entry = self.state.members.get(self.settings.member)
        if value is None:
            self._reporter.again()  # somebody took this member for gone
        elif self.state.complete and entry is not None:
            record = entry.record()
            if (
                record is not None
                and record.instance != self.instance
                and record.at > self._reporter.started_at + 1
            ):
                self._say(
                    logging.WARNING,
                    f"another process of this group ({record.host}, pid {record.pid}) has the name "
                    f"{self.settings.member} too: give each member a name of its own (setting member), or "
                    "only one of them is seen",
                )

    def _failed(self, error: Any) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001 - it has no other name
            if not self.state.complete:
                self._read_once()
            return
        if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED):
            raise _Reopen(OFF, f"{self.topic} may not be read here ({error.str()})", OFF_AGAIN)
        if code in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
            KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
            KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
            KafkaError.OFFSET_OUT_OF_RANGE,
            KafkaError.UNKNOWN_TOPIC_ID,
        ):
            raise _Reopen(AWAY, f"{self.topic}: {error.str()}", self._later())
        if error.fatal():
            raise _Reopen(AWAY, f"{self.topic}: {error.str()}", self._later())
        if code == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self.state_word, self.detail = AWAY, "no broker answers"

    def _read_once(self) -> None:
        """The end that the topic had when it was opened was reached."""
        self.state.complete = True
        before = self._published
        missing = {
            scope: hold
            for scope, hold in before.holds.items()
            if scope not in self.state.seen and before.topic_id != self._topic_id
        }
        if missing:
            # The topic was deleted and made again. What an operator holds stays held until he resumes it.
            names = ", ".join(sorted(map(str, missing)))
            self._say(
                logging.WARNING, f"{self.topic} was made anew without what is held ({names}): written again"
            )
            self.state.adopt(missing)
            for scope, hold in missing.items():
                self._writes.put(Write(scope.key, hold_value(hold)))
        for hold in self.state.snapshot.holds.values():
            sentence = f"{hold.scope} is paused by {hold.by}"
            log.warning("control: %s", printable(sentence), extra={"kind": "operator"})
        self._publish(self.state.snapshot)
        self._works()
        self.first_read.set()

    def _works(self) -> None:
        if self.state_word != ON:
            self.state_word, self.detail = ON, ""
            self._backoff = AWAY_AGAIN[0]
            self._said.clear()

    def _publish(self, snapshot: Snapshot) -> None:
        self._published = snapshot
        self._took(snapshot)

    def _look(self) -> None:
        """Whether the topic is still the one that is read: a new one of its name may have grown past us."""
        try:
            facts = self._admin.describe([self.topic], ADMIN_TIMEOUT, configs=False).get(self.topic)
        except StreamLoopError:
            return
        topic_id = getattr(facts, "topic_id", None)
        if facts is None or (topic_id is not None and topic_id != self._topic_id):
            raise _Reopen(AWAY, f"{self.topic} was deleted, or made anew", 0.1)

    # -------------------------------------------------------------------------------------------- writing

    def _send_writes(self) -> None:
        for write in self._writes.take():

            def report(error: Any, message: Any, write: Write = write) -> None:
                if error is not None:
                    self._write_failed(error)
                write.report(error, message)

            self._produce(write.key, write.value, write.headers, report)

    def _produce(
        self, key: bytes, value: bytes | None, headers: list[tuple[str, bytes]], report: Callable[..., None]
    ) -> None:
        try:
            self._producer.produce(
                self.topic, value=value, key=key, partition=0, headers=headers, on_delivery=report
            )
        except (BufferError, KafkaException) as error:
            found = error.args[0] if isinstance(error, KafkaException) else None
            report(found or KafkaError(KafkaError._QUEUE_FULL), None)  # noqa: SLF001
        self._producer.poll(0)

    def _write_failed(self, error: Any) -> None:
        """In a delivery callback: remembers, and does nothing else."""
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._cannot_write = f"{self.topic} may not be written here ({error.str()})"

    def _send_status(self, now: float) -> None:
        value = self._reporter.due(now, self._topic_id)
        if value is not None:
            self._produce(self._own_key, value, [], self._status_sent)

    def _status_sent(self, error: Any, _message: Any) -> None:
        self._reporter.sent(error)
        if error is None:
            self._cannot_write = ""
            self._works()
            return
        self._write_failed(error)
        if self._cannot_write:
            self._say(
                logging.WARNING,
                f"{self._cannot_write}: what is held in the group is applied, but the others do not see this "
                "member, and a pause here is this member's alone",
            )

    def _tidy(self, now: float) -> None:
        if now < self._next_tidy or self.settings.member not in self.state.members:
            return
        self._next_tidy = now + TIDY_EVERY
        for name in self.state.forgotten(self.settings.member):
            self._produce(status_key(name), None, [], lambda _error, _message: None)

    def _leave(self) -> None:
        """On the way out: what the others are to know."""
        if self._producer is None or self.state_word != ON:
            return
        try:
            entry = self.state.members.get(self.settings.member)
            record = entry.record() if entry is not None else None
            if record is not None and record.instance != self.instance:
                return  # another process has this name by now
            value = None
            if self._ended:
                value = self._reporter.last_words(self._topic_id, self._ended)
            self._produce(self._own_key, value, [], lambda _error, _message: None)
            self._producer.flush(self._within)
        except Exception:
            log.exception("leaving the control topic failed", extra={"kind": "control"})

    def _close_clients(self) -> None:
        consumer, self._consumer, self._producer = self._consumer, None, None
        if consumer is not None:
            try:
                consumer.close()
            except (KafkaException, RuntimeError):
                log.debug("closing the reader of the control topic failed", exc_info=True)


def _timestamp(message: Any) -> int | None:
    kind, stamp = message.timestamp()
    return stamp if kind != confluent_kafka.TIMESTAMP_NOT_AVAILABLE else None


def _consumer(properties: dict[str, Any]) -> Any:
    return confluent_kafka.Consumer(properties, logger=librdkafka_log)


def _producer(properties: dict[str, Any]) -> Any:
    return confluent_kafka.Producer(properties, logger=librdkafka_log)
