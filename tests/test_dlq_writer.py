"""The writer of the ledger against a client that answers as brokers do at their worst."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from streamloop.dlq.writer import (
    AbortedError,
    Entry,
    FencedError,
    LedgerWriter,
    Placed,
    Publish,
    RefusedError,
    UnavailableError,
    UnknownOutcomeError,
    writer_config,
)
from streamloop.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SETTINGS = Settings.load({"brokers": ["nobody:1"], "group": "billing"}, env={}).settings
FENCED = KafkaError._FENCED
LATE = KafkaError._TIMED_OUT


def problem(
    code: int, *, fatal: bool = False, retriable: bool = False, abort: bool = False
) -> KafkaException:
    return KafkaException(KafkaError(code, "said", fatal, retriable, abort))


class Message:
    def __init__(self, topic: str, partition: int, offset: int) -> None:
        self._place = (topic, partition, offset)

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._place[2]


class Client:
    """A transactional Producer. ``raises``: for each call, what it raises, one after the other (None: it does
    not). ``refuses``: a value that a broker does not take, with the code for its whole batch."""

    def __init__(self, **raises: Sequence[KafkaException | None]) -> None:
        self.raises = {name: list(each) for name, each in raises.items()}
        self.refuses: tuple[bytes, int] | None = None
        self.committed: list[list[tuple[str, Any]]] = []
        self.calls: list[str] = []
        self._open: list[tuple[str, Any]] = []
        self._waiting: list[tuple[bytes | None, Callable[..., None], Message]] = []
        self._offset = 0

    def _call(self, name: str) -> None:
        self.calls.append(name)
        planned = self.raises.get(name)
        if planned:
            error = planned.pop(0)
            if error is not None:
                raise error

    def init_transactions(self, _timeout: float) -> None:
        self._call("init")

    def begin_transaction(self) -> None:
        self._call("begin")
        self._open = []

    def produce(self, topic: str, value: bytes | None, _key: bytes | None, **more: Any) -> None:
        self._call("produce")
        self._offset += 1
        self._open.append((topic, value))
        self._waiting.append((value, more["on_delivery"], Message(topic, 0, self._offset)))

    def poll(self, _timeout: float) -> None: ...

    def flush(self, _timeout: float) -> None:
        self._call("flush")
        waiting, self._waiting = self._waiting, []
        refused = self.refuses is not None and any(value == self.refuses[0] for value, _, _ in waiting)
        for _, report, message in waiting:
            assert self.refuses is not None or not refused
            report(KafkaError(self.refuses[1]) if refused and self.refuses else None, message)

    def commit_transaction(self, _timeout: float) -> None:
        self._call("commit")
        self.committed.append(self._open)

    def abort_transaction(self, _timeout: float) -> None:
        self._call("abort")
        self._open = []


def writer(client: Client, **options: Any) -> LedgerWriter:
    return LedgerWriter(
        SETTINGS, "billing.replays", producer_factory=lambda _config: client, **{"patience": 0.2, **options}
    )


def publishes(*values: bytes) -> list[Publish]:
    return [Publish("replay", 0, b"k", value, []) for value in values]


def entries(placed: list[Placed]) -> list[Entry]:
    return [Entry(b"%d" % each.offset, b"e") for each in placed]


def test_records_and_entries_are_one_transaction_and_the_entries_know_where_the_records_are() -> None:
    client = Client()
    points: list[str] = []
    placed = writer(client, at=points.append).transact(publishes(b"1", b"2"), entries)
    assert placed == [Placed("replay", 0, 1), Placed("replay", 0, 2)]
    assert client.committed == [
        [("replay", b"1"), ("replay", b"2"), ("billing.replays", b"e"), ("billing.replays", b"e")]
    ]
    assert points == ["produced", "flushed", "committing", "committed"]


@pytest.mark.parametrize("call", ["begin", "produce", "flush", "commit"])
def test_whoever_is_fenced_at_any_call_has_published_nothing(call: str) -> None:
    client = Client(**{call: [problem(FENCED, fatal=True)]})
    with pytest.raises(FencedError):
        writer(client).transact(publishes(b"1"), entries)
    assert client.committed == []


def test_a_record_that_spoils_its_batch_aborts_all_of_it() -> None:
    client = Client()
    client.refuses = (b"2", KafkaError.INVALID_RECORD)
    with pytest.raises(RefusedError):
        writer(client).transact(publishes(b"1", b"2"), entries)
    assert (client.committed, client.calls[-1]) == ([], "abort")


def test_what_says_nothing_about_a_record_is_tried_again_by_the_caller() -> None:
    client = Client()
    client.refuses = (b"1", KafkaError.NOT_ENOUGH_REPLICAS)
    with pytest.raises(AbortedError) as raised:
        writer(client).transact(publishes(b"1"), entries)
    assert not raised.value.at_commit


def test_a_commit_without_an_answer_is_asked_again_and_then_told_as_not_known() -> None:
    late = problem(LATE, retriable=True)
    client = Client(commit=[late, late])
    writer(client).transact(publishes(b"1"), entries)
    assert len(client.committed) == 1
    client = Client(commit=[late] * 1_000_000)
    with pytest.raises(UnknownOutcomeError):
        writer(client, patience=0.0).transact(publishes(b"1"), entries)


def test_a_commit_that_the_client_takes_for_aborted_is_the_ledger_s_to_tell() -> None:
    client = Client(commit=[problem(KafkaError.INVALID_TXN_STATE, abort=True)])
    with pytest.raises(AbortedError) as raised:
        writer(client).transact(publishes(b"1"), entries)
    assert raised.value.at_commit


def test_brokers_that_do_not_answer_are_asked_for_a_while() -> None:
    client = Client(init=[problem(LATE, retriable=True), None])
    writer(client, patience=5.0).open()
    assert client.calls == ["init", "init"]
    with pytest.raises(UnavailableError, match=r"^The ledger billing\.replays can't be written: said"):
        writer(Client(init=[problem(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, fatal=True)])).open()


def test_its_properties() -> None:
    config = writer_config(SETTINGS, 5_000_000)
    assert config["transactional.id"] == "billing.streamloop-replay"
    assert config["transaction.timeout.ms"] == 10_000
    assert config["delivery.timeout.ms"] <= config["transaction.timeout.ms"]
    assert config["enable.idempotence"] is True
    assert config["message.max.bytes"] == 5_000_000
