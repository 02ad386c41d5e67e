"""Topics that others write, make anew or set up wrongly while letters are brought back: nothing doubled or
lost."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from streamloop.dlq import ALL, ReplayPlan, Target
from streamloop.dlq.purge import Purge
from streamloop.dlq.reading import ReadError
from streamloop.dlq.replay import Replay
from streamloop.errors import StreamLoopError
from streamloop.kafka import headers as hd
from tests.realkafka.client import Record, unique_name
from tests.realkafka.waiting import wait_until
from tests.replay.shop import ROOM, Shop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.realkafka import KafkaCluster

NOW = ReplayPlan(canary=0, settle=0)


@contextmanager
def open_transaction(kafka: KafkaCluster, topic: str, partition: int = 0) -> Iterator[None]:
    """Somebody else's transaction, which hides what comes behind it."""
    producer = Producer(kafka.producer_config(**{"transactional.id": unique_name("foreign")}))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"{}", b"foreign", partition=partition)
    assert producer.flush(30) == 0
    yield
    producer.abort_transaction(30)


def recreate(shop: Shop, letters: int) -> None:
    """The dead-letter topic goes, and another one of its name has other letters."""
    kafka = shop.kafka
    kafka.delete_topic(shop.dead)
    wait_until(lambda: not kafka.topic_exists(shop.dead), timeout=30)
    kafka.create_topic(
        shop.partitions, name=shop.dead, config={"max.message.bytes": ROOM, "retention.ms": "-1"}
    )
    shop.die(letters, first=1000)


def test_p3_entries_that_an_open_transaction_hides_are_waited_for_not_taken_for_absent(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamloop.dlq.ledger.HIDDEN_TIMEOUT", 1.0, raising=False)
    shop = Shop(kafka, partitions=1)
    shop.die(2)
    assert shop.letters.replay(plan=NOW).replayed == 2
    shop.die(2, first=2)
    with open_transaction(kafka, shop.ledger):
        with pytest.raises(ReadError, match="open transaction"):  # what it hides may be entries
            shop.letters.replay(plan=NOW)
        assert sum(shop.copies().values()) == 2
    assert shop.letters.replay(plan=NOW).replayed == 2
    shop.entries()
    assert set(shop.copies().values()) == {1}
    assert len(shop.copies()) == 4


def test_p3_a_run_that_wrote_behind_an_open_transaction_is_not_repeated(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamloop.dlq.ledger.HIDDEN_TIMEOUT", 1.0, raising=False)
    shop = Shop(kafka, partitions=1)
    shop.die(3)
    opened: list[object] = []

    def at(point: str) -> None:
        if point == "ledger read":
            foreign = open_transaction(kafka, shop.ledger)
            foreign.__enter__()
            opened.append(foreign)

    first = Replay(shop.settings, [shop.dead], ALL, NOW, by="ada", at=at)
    assert first.run().replayed == 3
    with pytest.raises(StreamLoopError):
        shop.letters.replay(plan=ReplayPlan(canary=0, settle=0, takeover=True))
    assert shop.copies() == {f"{shop.dead}/0/{n}": 1 for n in range(3)}


def test_p3_letters_of_a_topic_made_anew_meanwhile_are_not_replayed_on_the_old_ones_account(
    kafka: KafkaCluster,
) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(2)
    done: list[str] = []

    def at(point: str) -> None:
        if point == "began":
            pass

    replay = Replay(shop.settings, [shop.dead], ALL, NOW, by="ada", at=at)
    send = replay._send

    def sending(items: list[object]) -> None:
        if not done:
            done.append("")
            recreate(shop, 2)
        send(items)  # type: ignore[arg-type]

    replay._send = sending  # type: ignore[assignment,method-assign]
    summary = replay.run()
    assert (summary.state, summary.replayed) == ("failed", 0)
    assert "made anew" in summary.note
    assert not shop.copies()


def test_records_of_a_topic_made_anew_meanwhile_are_not_deleted(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(3)
    purge = Purge(shop.settings, [shop.dead], ALL, by="ada", delete_records=True)
    free = purge._free

    def freeing() -> None:
        recreate(shop, 3)
        free()

    purge._free = freeing  # type: ignore[method-assign]
    summary = purge.run()
    assert summary.purged == 3
    assert kafka.start_offsets(shop.dead) == {0: 0}
    assert not summary.freed


def test_a_replay_topic_that_would_lose_what_is_replayed_gets_nothing(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(2, key=b"the same")
    kafka.set_topic_config(shop.replay, **{"cleanup.policy": "compact"})
    preview = shop.letters.preview()
    assert preview.would_go == 0
    summary = shop.letters.replay(plan=NOW)
    assert (summary.replayed, sum(summary.skipped.values())) == (0, 2)
    assert "cleanup.policy" in next(iter(summary.skipped))
    kafka.set_topic_config(shop.replay, **{"cleanup.policy": "delete"})
    assert shop.letters.replay(plan=NOW).replayed == 2


@pytest.mark.parametrize("target", [Target.SOURCE, Target.TOPIC])
def test_nothing_that_a_letter_says_is_written_to_the_ledger(kafka: KafkaCluster, target: Target) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(1)
    assert shop.letters.replay(plan=NOW).replayed == 1
    forged = Record(
        b'{"state":"purged"}',
        b"x/0/1",
        ((hd.ORIGINAL_TOPIC, shop.ledger), (hd.ORIGINAL_PARTITION, b"0"), (hd.ORIGINAL_OFFSET, b"1")),
        0,
    )
    kafka.produce(shop.dead, [forged])
    before = set(shop.entries())
    to = shop.ledger if target is Target.TOPIC else None
    summary = shop.letters.replay(plan=ReplayPlan(target=target, to_topic=to, canary=0, settle=0))
    assert summary.replayed == 0
    assert set(shop.entries()) == before
