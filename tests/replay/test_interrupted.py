"""A replay that is killed, stopped, fenced or cut off at each of its steps: nothing lost, nothing doubled.

Each test ends with the same count (``Shop.assert_once``): the copies of each letter that a read_committed
reader sees, against the ledger, both ways; while a live group handles and retries what comes. A negative
control shows that the count can fail.
"""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from streamloop import Message, StreamLoop
from streamloop.dlq.plan import ReplayPlan
from tests.broker.loops.inprocess import QUICK, Running
from tests.realkafka.client import Record
from tests.realkafka.waiting import wait_until
from tests.replay.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.realkafka import KafkaCluster, Member, Members

LETTERS = 24
TAKE_OVER = ReplayPlan(canary=0, settle=0, takeover=True)
POINTS = [
    ("fenced", 1, False),
    ("ledger read", 1, False),
    ("produced", 3, False),
    ("flushed", 4, False),
    ("committing", 4, True),
    ("committed", 4, False),
    ("before progress", 2, False),
]
"""Point, how often it is passed before it counts, and whether the connections are cut there.

The first transactions are the run's own record, and where its outcomes are to be looked for.
"""


def start(members: Members, shop: Shop, folder: Path | None = None, **config: Any) -> Member:
    """A replay in a process of its own."""
    if folder is not None:
        config["gate"] = str(folder / "gate")
    given = {"settings": shop.options, "topics": [shop.dead], **config}
    return members.start_module("tests.replay.replayer", json.dumps(given))


def summary_of(member: Member) -> dict[str, Any]:
    """What it said at its end."""
    match = member.wait_for_line("^SUMMARY (.*)", timeout=60)
    found: dict[str, Any] = json.loads(match[1])
    return found


@contextmanager
def live_group(shop: Shop) -> Iterator[dict[int, int]]:
    """The group that failed, mended: of five messages one fails once more and is retried. Gives what it
    handled to the end, by id."""
    handled: dict[int, int] = {}
    loop: StreamLoop[Any] = StreamLoop(**shop.options, in_place_attempts=1, **QUICK)

    @loop.consumer(shop.source)
    async def charge(value: dict[str, int], message: Message) -> None:
        if value["id"] % 5 == 1 and message.attempt == 1:
            raise ConnectionError("once more")
        handled[value["id"]] = handled.get(value["id"], 0) + 1

    with Running(loop) as running:
        yield handled
        running.until(
            lambda: len(handled) == LETTERS, what=f"{LETTERS} messages, of which {len(handled)} came"
        )


@pytest.mark.parametrize(("point", "times", "cut"), POINTS)
def test_P7_killed_anywhere_the_next_run_goes_on_from_there(
    kafka: KafkaCluster, members: Members, tmp_path: Path, point: str, times: int, cut: bool
) -> None:
    shop = Shop(kafka)
    shop.die(LETTERS)
    with live_group(shop) as handled:
        member = start(members, shop, tmp_path, point=point, times=times, cut=cut)
        member.wait_for_line(f"^AT {point}")
        if cut:
            time.sleep(random.uniform(0, 0.1))  # somewhere within the call
        member.kill()
        summary = shop.letters.replay(plan=TAKE_OVER)
        before = summary.skipped["replayed before"]
        assert (summary.state, summary.replayed) == ("finished", LETTERS - before)
        shop.assert_once(LETTERS)
    assert handled == dict.fromkeys(range(LETTERS), 1)


@pytest.mark.parametrize(("point", "times", "cut"), POINTS)
def test_P7_stopped_anywhere_and_fenced_it_writes_nothing_more(
    kafka: KafkaCluster, members: Members, tmp_path: Path, point: str, times: int, cut: bool
) -> None:
    shop = Shop(kafka)
    shop.die(LETTERS)
    with live_group(shop):
        member = start(members, shop, tmp_path, point=point, times=times, cut=cut)
        member.wait_for_line(f"^AT {point}")
        member.suspend()
        summary = shop.letters.replay(plan=TAKE_OVER, by="grace")
        assert summary.state == "finished"
        (tmp_path / "gate").touch()
        member.resume()
        told = summary_of(member)
        assert member.wait() == 1
        assert told["state"] == "failed"
        assert told["note"].startswith("Taken over by grace on ")
        shop.assert_once(LETTERS)


def test_P7_ten_kills_at_random(kafka: KafkaCluster, members: Members) -> None:
    shop = Shop(kafka)
    count = 600
    shop.die(count)
    luck = random.Random()
    for _ in range(10):
        member = start(members, shop, plan={"takeover": True}, most=3, point="ledger read", gate="/")
        member.wait_for_line("^AT ledger read")  # its gate is open: it goes on
        time.sleep(luck.uniform(0.0, 0.25))
        member.kill()
    summary = shop.letters.replay(plan=TAKE_OVER)
    before = summary.skipped["replayed before"]
    print(f"{before} of {count} letters were replayed by ten runs that were killed")
    assert (summary.state, summary.replayed) == ("finished", count - before)
    shop.assert_once(count)


def test_the_count_fails_when_ledger_and_publish_are_two_transactions(
    kafka: KafkaCluster, members: Members, tmp_path: Path
) -> None:
    shop = Shop(kafka)
    shop.die(LETTERS)
    member = start(members, shop, tmp_path, point="between", times=2, split=True)
    member.wait_for_line("^AT between")
    member.kill()
    shop.letters.replay(plan=TAKE_OVER)
    with pytest.raises(AssertionError, match="replayed more than once"):
        shop.assert_once(LETTERS)


@pytest.mark.parametrize("successor", [True, False])
def test_how_long_a_live_retry_waits_for_a_killed_transaction(
    kafka: KafkaCluster, members: Members, tmp_path: Path, successor: bool
) -> None:
    """The figure is printed (-s); that it ends at all, and by itself, is the statement."""
    shop = Shop(kafka, partitions=1)
    shop.die(3)
    member = start(members, shop, tmp_path, point="flushed", times=4, plan={"target": "retry"}, most=1)
    member.wait_for_line("^AT flushed")
    behind = kafka.produce(shop.retry_topic, [Record(b"a live retry", partition=0)])
    member.kill()
    began = time.monotonic()
    if successor:
        threading.Thread(target=lambda: shop.letters.replay(plan=TAKE_OVER), daemon=True).start()
    seconds = seconds_until_seen(kafka, shop.retry_topic, behind[0][1], began)
    print(f"a live retry behind a killed transaction waited {seconds:.2f} s (successor: {successor})")


def seconds_until_seen(kafka: KafkaCluster, topic: str, offset: int, began: float) -> float:
    """Until a read_committed reader sees the record."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "looker", "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        wait_until(lambda: consumer.poll(0.1) is not None, 60, "the live retry")
        return time.monotonic() - began
    finally:
        consumer.close()
