"""The one writer of the ledger: publishes and their entries in one Kafka transaction.

There is one transactional id for a group, so that whoever begins (``open``) fences and aborts everybody else:
what is read of the ledger after that can't change but by this writer. A transaction begins when its records
are in hand and is committed before anything is waited for: an open one hides what lies behind it from every
read_committed reader of those partitions (FACTS 28).

Nothing here decides what is published. Called by replay, purge and import, on one thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from streamloop.errors import StreamLoopError
from streamloop.kafka.client_log import librdkafka_log
from streamloop.kafka.config import producer_config
from streamloop.kafka.produce_errors import Meaning, meaning_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamloop.kafka.headers import RawHeaders
    from streamloop.settings import Settings

MOST_RECORDS: Final = 500
MOST_BYTES: Final = 4 * 1024 * 1024
"""Publishes of one transaction at most, and their bytes (a larger record goes alone)."""
TRANSACTION_TIMEOUT_MS: Final = 10_000
"""After so long the brokers abort a transaction whose writer has gone."""
DELIVERY_TIMEOUT_MS: Final = 8_000
PATIENCE: Final = 60.0
"""Seconds for which brokers that do not answer are asked again."""
ONE_CALL: Final = 5.0
"""Seconds of one call of the client, so that a signal is seen."""

_FENCED: Final = frozenset(
    {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}  # noqa: SLF001
)
_STATE: Final = KafkaError._STATE  # noqa: SLF001 - its only name


class FencedError(StreamLoopError):
    """Another writer of the same ledger has begun: this one may write nothing any more."""


class UnknownOutcomeError(StreamLoopError):
    """Whether the last transaction was committed is not known: the brokers are away. The ledger will tell."""


class UnavailableError(StreamLoopError):
    """The brokers take nothing. What was not committed was not published."""


class AbortedError(StreamLoopError):
    """The transaction was aborted: nothing of it was published. It may be tried again.

    ``at_commit``: that is what the client says of one that was being committed; the ledger is sure.
    """

    def __init__(self, reason: str, *, at_commit: bool = False) -> None:
        super().__init__(reason)
        self.at_commit = at_commit


class RefusedError(StreamLoopError):
    """The broker refused a batch because of one of its records; the transaction was aborted."""


class Publish(NamedTuple):
    """A record to publish. ``partition`` -1: by its key."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: RawHeaders


class Placed(NamedTuple):
    """Where a record was published."""

    topic: str
    partition: int
    offset: int


class Entry(NamedTuple):
    """A record of the ledger topic; ``value`` None removes it."""

    key: bytes
    value: bytes | None


def nowhere(_point: str) -> None:
    """The hook of the points at which a test stops a writer."""


def _producer(config: dict[str, Any]) -> Any:
    return Producer(config, logger=librdkafka_log)


@dataclass(slots=True)
class _Report:
    """What became of one record."""

    placed: Placed | None = None
    error: KafkaError | None = None


class LedgerWriter:
    """Writes transactions. ``at``: called at named points, for tests.

    ``message_max_bytes``: the largest target's limit and some more.
    """

    def __init__(
        self,
        settings: Settings,
        ledger: str,
        *,
        message_max_bytes: int | None = None,
        at: Callable[[str], None] = nowhere,
        producer_factory: Callable[[dict[str, Any]], Any] = _producer,
        patience: float = PATIENCE,
    ) -> None:
        self._ledger = ledger
        self._at = at
        self._patience = patience
        self._producer = producer_factory(writer_config(settings, message_max_bytes))

    def open(self) -> None:
        """Fence and abort every other writer. Raises UnavailableError, FencedError."""
        until = time.monotonic() + self._patience
        while True:
            try:
                self._producer.init_transactions(ONE_CALL)
                return
            except KafkaException as error:
                problem = error.args[0]
                if is_fenced(problem):
                    raise FencedError("another writer of the ledger began at the same time") from None
                if problem.fatal() or not _may_pass(problem) or time.monotonic() >= until:
                    raise UnavailableError(
                        f"The ledger {self._ledger} can't be written: {said(problem)}."
                    ) from None
            time.sleep(0.05)  # some of these errors come back at once

    def transact(
        self, publishes: Sequence[Publish], entries: Callable[[list[Placed]], Sequence[Entry]]
    ) -> list[Placed]:
        """Publish the records and write their entries, all or nothing. Returns where the records are.

        ``entries``: makes the entries when it is known where the records are. Raises FencedError,
        RefusedError (one of the records spoils it), AbortedError (try again), UnknownOutcomeError,
        UnavailableError.
        """
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._broken(error.args[0]) from None
        placed = self._produce(publishes, "produced")
        self._produce([Publish(self._ledger, -1, key, value, []) for key, value in entries(placed)], "")
        self._at("flushed")
        self._commit()
        self._at("committed")
        return placed

    def write(self, *entries: Entry) -> None:
        """Entries alone. Raises as ``transact`` does; an aborted one is tried again here."""
        until = time.monotonic() + self._patience
        while True:
            try:
                self.transact([], lambda _placed: entries)
                return
            except AbortedError as error:
                if time.monotonic() >= until:
                    raise UnavailableError(f"The ledger {self._ledger} can't be written: {error}") from None

    def close(self) -> None:
        """Abort what is open; bounded, and raises nothing."""
        try:
            self._producer.abort_transaction(ONE_CALL)
        except KafkaException:
            return  # nothing was open, or somebody else has seen to it

    # ------------------------------------------------------------------------------------------- one step

    def _produce(self, publishes: Sequence[Publish], point: str) -> list[Placed]:
        reports = [_Report() for _ in publishes]
        problem: KafkaError | None = None
        for publish, report in zip(publishes, reports, strict=True):
            problem = self._enqueue(publish, report)
            if problem is not None:
                break
        if point:
            self._at(point)
        until = time.monotonic() + TRANSACTION_TIMEOUT_MS / 1000
        while problem is None and any(r.placed is None and r.error is None for r in reports):
            if time.monotonic() >= until:
                self._abort()
                raise AbortedError("the brokers did not confirm its records in time")
            try:
                self._producer.flush(0.5)
            except KafkaException as error:
                problem = error.args[0]
        problem = problem or next((r.error for r in reports if r.error is not None), None)
        if problem is not None:
            self._abort()
            if is_fenced(problem) or problem.fatal():
                raise self._broken(problem)
            if meaning_of(problem.code()) in (Meaning.BATCH_REFUSED, Meaning.BATCH_TOO_LARGE):
                raise RefusedError(said(problem))
            raise AbortedError(said(problem))
        return [report.placed for report in reports if report.placed is not None]

    def _enqueue(self, publish: Publish, report: _Report) -> KafkaError | None:
        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                report.error = error
            else:
                report.placed = Placed(message.topic(), message.partition(), message.offset())

        given: dict[str, Any] = {"headers": publish.headers, "on_delivery": delivered}
        if publish.partition >= 0:
            given["partition"] = publish.partition
        until = time.monotonic() + TRANSACTION_TIMEOUT_MS / 1000
        while True:
            try:
                self._producer.produce(publish.topic, publish.value, publish.key, **given)
                self._producer.poll(0)
                return None
            except BufferError:  # its queue is full
                self._producer.poll(0.1)
                if time.monotonic() >= until:  # the brokers confirm nothing of what fills it
                    return KafkaError(KafkaError._QUEUE_FULL)  # noqa: SLF001 - its only name
            except KafkaException as error:
                problem: KafkaError = error.args[0]
                return problem

    def _commit(self) -> None:
        until = time.monotonic() + self._patience
        while True:
            try:
                self._at("committing")
                self._producer.commit_transaction(ONE_CALL)
                return
            except KafkaException as error:
                problem = error.args[0]
                if is_fenced(problem) or problem.fatal():
                    raise self._broken(problem) from None
                if problem.txn_requires_abort():
                    self._abort()
                    raise AbortedError(said(problem), at_commit=True) from None
                if time.monotonic() >= until or not _may_pass(problem):
                    raise UnknownOutcomeError(
                        f"Whether the last transaction was committed is not known: {said(problem)}"
                    ) from None

    def _abort(self) -> None:
        until = time.monotonic() + self._patience
        while True:
            try:
                self._producer.abort_transaction(ONE_CALL)
                return
            except KafkaException as error:
                problem = error.args[0]
                if is_fenced(problem) or problem.fatal():
                    raise self._broken(problem) from None
                if time.monotonic() >= until or not _may_pass(problem):
                    raise UnavailableError(f"The brokers take nothing: {said(problem)}.") from None

    def _broken(self, problem: KafkaError) -> StreamLoopError:
        if is_fenced(problem):
            return FencedError("another writer of the ledger has begun")
        if problem.code() == _STATE:
            # What the client says of every call after a fatal error.
            return FencedError(f"the writer of the ledger is at its end: {said(problem)}")
        return UnavailableError(f"The ledger {self._ledger} can't be written: {said(problem)}.")


def writer_config(settings: Settings, message_max_bytes: int | None = None) -> dict[str, Any]:
    """Properties of the transactional Producer."""
    config = producer_config(settings, message_max_bytes=message_max_bytes)
    # The client takes no record that is larger than its queue, however empty it is.
    room = config["queue.buffering.max.kbytes"]
    most = (message_max_bytes or 0) // 1024 + MOST_BYTES // 1024
    return {
        **config,
        "queue.buffering.max.kbytes": max(int(room), most),
        "transactional.id": transactional_id(settings),
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
        "linger.ms": 5,
        "log_level": 0,  # what it can't do is raised and told in a sentence
    }


def transactional_id(settings: Settings) -> str:
    """The same for everything that writes the group's ledger: the newest fences all others."""
    return f"{settings.group}.streamloop-replay"


def is_fenced(error: KafkaError) -> bool:
    """Whether another writer has taken over."""
    return error.code() in _FENCED


def said(error: KafkaError) -> str:
    """Its text, without a full stop."""
    return str(error.str()).rstrip(".")


def _may_pass(error: KafkaError) -> bool:
    return bool(error.retriable()) or error.code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)  # noqa: SLF001
