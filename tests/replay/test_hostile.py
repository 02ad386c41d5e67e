"""Topics that others write, make anew or set up wrongly while letters are brought back: nothing doubled or
lost."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from streamloop.cli.main import main
from streamloop.dlq import ALL, ReplayPlan, Target
from streamloop.dlq.purge import Purge
from streamloop.dlq.reading import ReadError, topic_admin
from streamloop.dlq.replay import Replay
from streamloop.dlq.session import Session
from streamloop.dlq.settle import Settling
from streamloop.dlq.writer import FencedError, LedgerWriter, Placed
from streamloop.errors import StreamLoopError
from streamloop.kafka import headers as hd
from tests.realkafka.client import Record, unique_name
from tests.realkafka.waiting import wait_until
from tests.replay.shop import ROOM, Shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    replay = Replay(shop.settings, [shop.dead], ALL, NOW, by="ada")
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
        (
            (hd.ORIGINAL_TOPIC, shop.ledger.encode()),
            (hd.ORIGINAL_PARTITION, b"0"),
            (hd.ORIGINAL_OFFSET, b"1"),
        ),
        0,
    )
    kafka.produce(shop.dead, [forged])
    before = set(shop.entries())
    to = shop.ledger if target is Target.TOPIC else None
    summary = shop.letters.replay(plan=ReplayPlan(target=target, to_topic=to, canary=0, settle=0))
    assert summary.replayed == 0
    assert set(shop.entries()) == before


def failed_again(shop: Shop) -> Settling:
    """One letter was replayed, handled and committed, and is to be tried again: its hop is written after this
    looks."""
    settling = Settling(shop.settings, "r1", group=f"{shop.group}.retry", admin=topic_admin(shop.settings))
    shop.kafka.produce(shop.replay, [Record(b"v", b"k", partition=0)])
    settling.watch([shop.retry_topic], [shop.dead])
    settling.sent(shop.dead, 0, 0, Placed(shop.replay, 0, 0))
    shop.kafka.commit(f"{shop.group}.retry", shop.replay, {0: (1, "")})
    return settling


def hop(shop: Shop) -> Record:
    place = f"{shop.dead}/0/0".encode()
    return Record(b"v", b"k", ((hd.REPLAY_ID, b"r1"), (hd.REPLAYED_FROM, place)), 0)


def test_p6_a_look_that_was_stopped_calls_nothing_acknowledged(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    settling = failed_again(shop)
    kafka.produce(shop.retry_topic, [hop(shop)])
    stop = threading.Event()
    stop.set()
    stopped = settling.look(stop=stop)
    assert (stopped.acked, stopped.unknown) == (0, 1)
    assert settling.look().failed_again == 1
    settling.close()


def test_p6_what_an_open_transaction_hides_is_not_acknowledged(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    settling = failed_again(shop)
    with open_transaction(kafka, shop.retry_topic):
        kafka.produce(shop.retry_topic, [hop(shop)])
        hidden = settling.look()
        assert (hidden.acked, hidden.unknown) == (0, 1)
    wait_until(lambda: settling.look().failed_again == 1, 20, "the hop")
    settling.close()


def test_p6_a_canary_of_letters_that_are_refused_says_nothing_of_the_others(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(6)
    send = Session.send
    calls: list[int] = []

    def sending(
        self: Session, items: list[Any], *given: Any, refused: Callable[..., None], **more: Any
    ) -> Any:
        calls.append(len(items))
        if len(calls) > 1:
            yield from send(self, items, *given, refused=refused, **more)
            return
        for item in items:
            refused(item, "no")

    monkeypatch.setattr(Session, "send", sending)
    summary = shop.letters.replay(plan=ReplayPlan(canary=2, settle=0.1))
    assert calls == [2, 2]
    assert (summary.state, summary.replayed, summary.refused_count) == ("stopped", 2, 2)
    assert summary.note.startswith("Of the first 2 nothing is known")


def test_p7_one_that_is_fenced_after_its_commit_says_what_the_ledger_has(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamloop.dlq.session.FIND_OUT", 0.1)
    shop = Shop(kafka, partitions=1)
    shop.die(3)
    commit = LedgerWriter._commit

    def committing(self: LedgerWriter) -> None:
        commit(self)  # its answer is lost, and another has begun when it asks again
        if shop.copies():
            raise FencedError("another writer of the ledger has begun")

    monkeypatch.setattr(LedgerWriter, "_commit", committing)
    summary = shop.letters.replay(plan=NOW)
    assert (summary.state, summary.replayed) == ("failed", 3)
    shop.assert_once(3)


def test_what_died_after_the_count_was_agreed_to_is_not_purged(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(kafka)
    shop.die(4)
    counts: list[int] = []

    def agreed(count: int, *_given: object) -> None:
        counts.append(count)
        shop.die(6, first=4)  # while the person types

    monkeypatch.setattr("streamloop.cli.dlq_replay._confirm", agreed)
    ran = CliRunner().invoke(
        main, ["dlq", "purge", "--all", "--brokers", kafka.bootstrap, "--group", shop.group, "--json"]
    )
    assert ran.exit_code == 0, ran.output
    assert counts == [4]
    assert shop.letters.groups().states == {"purged": 4, "open": 6}


def test_status_of_a_run_whose_entries_name_no_place_is_told(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(1)
    run = shop.letters.replay(plan=NOW).run
    places = [("x", "y"), ("a/b/c", "t/0/0"), ("t/0/0", "t/0/9999999999999999999"), ("t/1/9" * 999, "t/0/0")]
    for number, (source, target) in enumerate(places):
        value = json.dumps({"state": "replayed", "run": run, "from": source, "to": target}).encode()
        kafka.produce(shop.ledger, [Record(value, f"x/0/{number}".encode(), partition=0)])
    outcomes = shop.letters.status(run).outcomes
    assert outcomes is not None
    assert outcomes.total == 1
