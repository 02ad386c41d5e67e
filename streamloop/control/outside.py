"""The control topic for who is no member: reads it to its end, writes for an operator, sees who applied it.

Blocks, within the time-outs it is given. It creates nothing: a group whose members have not made the topic
has none. Called by ``streamloop pause`` and ``resume``; for services, too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Self

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from streamloop.control.records import BY, LONGEST_NAME, LONGEST_REASON, OperatorHold, Scope, hold_value
from streamloop.control.state import ControlState
from streamloop.control.topic import CONFIG, Found, find, name_of, unusable
from streamloop.control.view import GroupView, MemberView, view_of
from streamloop.control.writes import ControlError
from streamloop.kafka import config
from streamloop.kafka.client_log import librdkafka_log
from streamloop.kafka.headers import headers_of
from streamloop.preflight import make_admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamloop.settings import Settings

BATCH: Final = 100


class GroupControl:
    """One group's control topic, as a context manager. ``timeout``: seconds to reach and read it.

    Raises ControlError: there is none, it may not be used, or brokers are away; BrokersUnreachableError.
    Belongs to one thread.
    """

    def __init__(self, settings: Settings, *, timeout: float = 10.0) -> None:
        self.settings = settings
        self.topic = name_of(settings)
        self._timeout = timeout
        self._state = ControlState(clock=time.monotonic, wall=time.time)
        self._topic_id = ""
        self._consumer: Any = None
        self._producer: Any = None

    def __enter__(self) -> Self:
        why = unusable(self.settings)
        if why:
            raise ControlError(f"There is no control topic: {why}.")
        admin = make_admin(self.settings)
        found = find(
            admin, self.topic, create=False, sources=(), replication_factor=None, timeout=self._timeout
        )
        if not isinstance(found, Found):
            configs = " ".join(f"--config {name}={value}" for name, value in CONFIG.items())
            make = f"{admin.commands.create_source(self.topic)} --partitions 1 {configs}"
            raise ControlError(
                f"There is no control topic for the group {self.settings.group}: {found.reason}. Its members "
                f"make it when they start and may; or make it with:\n    {make}"
            )
        self._topic_id = self._state.topic_id = found.topic_id
        properties = {**config.control_consumer_config(self.settings), "fetch.wait.max.ms": 50}
        self._consumer = confluent_kafka.Consumer(properties, logger=librdkafka_log)
        try:
            self._consumer.assign([TopicPartition(self.topic, 0, confluent_kafka.OFFSET_BEGINNING)])
            if not self._read(self._timeout, lambda: self._state.complete):
                raise ControlError(f"{self.topic} could not be read to its end in {self._timeout:g} s.")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the clients. May be called more than once."""
        consumer, self._consumer, self._producer = self._consumer, None, None
        if consumer is not None:
            consumer.close()

    def view(self) -> GroupView:
        """The group, by what was read so far; ``read`` reads on."""
        return view_of(self._state, group=self.settings.group, topic=self.topic, wall=time.time())

    def read(self, seconds: float) -> None:
        """Read on for so long."""
        self._read(seconds, lambda: False)

    def pause(self, scope: Scope, by: str, reason: str = "") -> int:
        """Hold it in the whole group. Returns the record's offset, when the broker has confirmed it."""
        hold = OperatorHold(scope, by[:LONGEST_NAME], time.time(), reason[:LONGEST_REASON])
        return self._write([(scope.key, hold_value(hold))], by)

    def resume(self, scope: Scope, by: str) -> int:
        """End what was held with the same scope; everything: all of it. As ``pause``."""
        scopes = {scope} | (set(self._state.snapshot.holds) if scope == Scope() else set())
        return self._write([(each.key, None) for each in sorted(scopes, key=str)], by)

    def await_applied(self, offset: int, timeout: float) -> tuple[list[MemberView], list[MemberView]]:
        """The members that have applied the record at ``offset``, and those that have not in ``timeout``."""

        def split() -> tuple[list[MemberView], list[MemberView]]:
            here = self.view().here
            done = [each for each in here if self._has_applied(each, offset)]
            return done, [each for each in here if each not in done]

        self._read(timeout, lambda: self._state.snapshot.applied >= offset and not split()[1])
        return split()

    def _has_applied(self, member: MemberView, offset: int) -> bool:
        return member.record.topic_id == self._topic_id and member.record.applied >= offset

    # ------------------------------------------------------------------------------------------- the clients

    def _read(self, seconds: float, done: Callable[[], bool]) -> bool:
        """Read until ``done`` says so, looked at when something came; False: the time is over."""
        until = time.monotonic() + seconds
        while not (finished := done()) and (left := until - time.monotonic()) > 0:
            first = self._consumer.poll(min(0.2, left))
            if first is None:
                continue
            for message in (first, *self._consumer.consume(BATCH - 1, 0)):
                self._take(message)
        return finished

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is None:
            kind, stamp = message.timestamp()
            known = stamp if kind != confluent_kafka.TIMESTAMP_NOT_AVAILABLE else None
            headers = headers_of(message) or ()
            self._state.take(message.key(), message.value(), known, message.offset(), headers)
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - it has no other name
            self._state.complete = True
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED or error.fatal():
            raise ControlError(f"{self.topic} can't be read: {error.str()}.")

    def _write(self, records: list[tuple[bytes, bytes | None]], by: str) -> int:
        if self._producer is None:
            properties = config.control_producer_config(self.settings)
            self._producer = confluent_kafka.Producer(properties, logger=librdkafka_log)
        who = [(BY, by[:LONGEST_NAME].encode("utf-8", "replace"))]
        offsets: list[int] = []
        failed: list[str] = []

        def report(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(str(error.str()))
            else:
                offsets.append(message.offset())

        try:
            for key, value in records:
                self._producer.produce(
                    self.topic, value=value, key=key, partition=0, headers=who, on_delivery=report
                )
            left = self._producer.flush(self._timeout)
        except (BufferError, KafkaException) as error:
            raise ControlError(f"{self.topic} does not take it: {error}.") from None
        if failed:
            raise ControlError(f"{self.topic} does not take it: {failed[0]}.")
        if left or len(offsets) < len(records):
            raise ControlError(
                f"{self.topic}: the broker did not confirm it in {self._timeout:g} s. It may still come into "
                "force: look at /status, or do it again."
            )
        return max(offsets)
