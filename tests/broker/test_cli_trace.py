"""`streamloop trace` on a real broker: it finds a message wherever it is, and joins no group."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from streamloop import Message  # noqa: TC001  # the loop reads the handler's annotations
from streamloop.cli import main as cli
from tests.broker.loops.inprocess import Running, loop_on
from tests.realkafka.client import Record, unique_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.realkafka import KafkaCluster

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01".encode()
OK, DOOMED, HANGING, ONCE, BEYOND = range(5)


def ask(kafka: KafkaCluster, *arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "400"}).invoke(
        cli.main, ["trace", *arguments, "--brokers", kafka.bootstrap]
    )


def found(kafka: KafkaCluster, *arguments: str) -> str:
    result = ask(kafka, *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_message_is_found_wherever_it_is(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic(2)
    release = threading.Event()
    loop = loop_on(kafka, group, retry_topics=["200ms"], in_place_attempts=1, ordering="none")

    @loop.consumer(source)
    def handle(message: Message) -> None:
        if message.offset == DOOMED or (message.offset == ONCE and message.attempt == 1):
            raise ConnectionError("no \x1b[2Jroute")
        if message.offset == HANGING:
            release.wait(30)

    retry, dead = f"{source}.{group}.retry.200ms", f"{source}.{group}.dlq"
    with Running(loop) as running:
        records = [Record(b"%d" % number, b"key-%d" % number, (), 1) for number in range(5)]
        records[DOOMED] = Record(b"doomed", b"key", (("traceparent", TRACEPARENT),), 1)
        kafka.produce(source, records)
        running.until(lambda: running.counts()["dead_lettered"] == 1, what="the dead letter")
        running.until(lambda: running.counts()["acked"] >= 6, what="all but the one that hangs")
        running.until(
            lambda: kafka.committed_offsets(group, source).get(1) == HANGING, what="the commit before it"
        )
        running.until(lambda: kafka.lag(f"{group}.retry", retry) == 0, what="the retry group's commit")
        running.until(
            lambda: "metadata acknowledges this" in found(kafka, source, "1", str(BEYOND), "--group", group),
            what="the newest metadata",
        )

        # The group is found by its topics.
        text = found(kafka, source, "1", str(DOOMED))
        assert (
            f"{source}/1/{DOOMED} is a dead letter, at {dead}/1/0, after 2 attempts: ConnectionError: no"
            in text
        )
        assert "\x1b" not in text
        assert "\\x1b[2Jroute" in text
        hops = re.findall(rf"({re.escape(source)}\.\S+/1/\d+) +(\d+) +ConnectionError", text)
        assert hops == [(f"{retry}/1/0", "1"), (f"{dead}/1/0", "2")]
        assert ", handled" in text
        assert "it stays there" in text
        assert f"{TRACE}   (sampled)" in text
        assert "past it" in text

        # A place in the dead-letter topic, as a log line has it, leads to the original.
        assert f"{source}/1/{DOOMED} is a dead letter" in found(kafka, f"{dead}/1/0")

        text = found(kafka, source, "1", str(OK))
        assert f"{source}/1/{OK} is acknowledged: the commit position {HANGING} is past it" in text
        assert "none: no record of it has a traceparent" in text
        text = found(kafka, source, "1", str(ONCE))
        assert f"{source}/1/{ONCE} is acknowledged: attempt 2, read from {retry}/1/1, was handled." in text
        text = found(kafka, source, "1", str(BEYOND))
        assert f"is acknowledged beyond the commit position {HANGING}, which another message holds" in text
        text = found(kafka, source, "1", str(HANGING))
        assert f"{source}/1/{HANGING} is not acknowledged and holds the commit position" in text
        assert running.metric("loop_rebalances_total", event="revoked") == 0  # it joined nothing
        release.set()
        running.until(lambda: kafka.committed_offsets(group, source).get(1) == 5, what="the last commit")
        assert running.stop().exit_code == 0

    # Written after the members have gone.
    kafka.produce(source, [Record(b"late", None, (), 1), Record(b"later", None, (), 1)])
    assert "not acknowledged and holds the commit position" in found(kafka, source, "1", "5")
    assert "the commit position 5 is 1 offsets before it" in found(kafka, source, "1", "6")
    result = ask(kafka, source, "1", "7")
    assert result.exit_code == 1
    assert "has no offset 7 yet: its last offset is 6" in result.output


def test_a_search_that_is_ended_by_its_bound_says_so_and_concludes_nothing(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.create_topic(1, name=f"{source}.{group}.dlq")
    kafka.produce(source, [b"x"])
    kafka.commit(group, source, {0: (1, "")})
    kafka.produce(f"{source}.{group}.dlq", [b"of another"] * 30)
    text = found(kafka, source, "0", "0", "--max-records", "10")
    assert "were not read to the end (--max-records 10): it may be there" in text
    assert "ended early by --max-records 10: up to 20 records were not read" in text
    assert "not read to the end" not in found(kafka, source, "0", "0")


def test_what_is_not_there_is_a_sentence(kafka: KafkaCluster, topic: Callable[..., str], group: str) -> None:
    source = topic()
    kafka.produce(source, [b"x"])
    for arguments, code, said in (
        (
            (source, "0", "0"),
            2,
            f"Which group? Give --group: none has retry or dead-letter topics of {source}",
        ),
        ((unique_name("no"), "0", "0", "--group", group), 1, "does not exist"),
        ((source, "7", "0", "--group", group), 1, "has the partitions 0 to 0, not 7"),
        ((source, "0", "0", "--group", group, "--also", "nowhere"), 1, "nowhere (--also) does not exist"),
    ):
        result = ask(kafka, *arguments)
        assert (result.exit_code, said in result.output) == (code, True), result.output
    assert f"group {group} has committed nothing for its partition" in found(
        kafka, source, "0", "0", "--group", group
    )


@pytest.mark.timeout(60)
def test_brokers_that_can_not_be_reached_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamloop.cli.find.TIMEOUT", 0.5)
    for more in ((), ("--group", "billing")):
        result = CliRunner().invoke(
            cli.main, ["trace", "orders", "0", "0", "--brokers", "127.0.0.1:1", *more]
        )
        assert result.exit_code == 1
        assert "127.0.0.1:1" in result.output
        assert "Traceback" not in result.output


def test_a_dead_letter_whose_original_is_gone_is_shown_with_what_is_left(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    dead = kafka.create_topic(1, name=f"{source}.{group}.dlq")
    headers = {
        "original-topic": source,
        "original-partition": "0",
        "original-offset": "5",
        "original-group": group,
        "attempt": "3",
        "error-class": "shop.DeclinedError",
    }
    given = tuple((f"streamloop-{name}", value.encode()) for name, value in headers.items())
    kafka.produce(dead, [Record(b"x", None, given, 0)])
    # The source has no offset 5; then it does not even exist.
    text = found(kafka, dead, "0", "0", "--group", group)
    assert f"{source}/0/5 is a dead letter, at {dead}/0/0, after 3 attempts: DeclinedError" in text
    assert f"{source}/0 has no offset 5 yet" in text
    kafka.delete_topic(source)
    text = found(kafka, dead, "0", "0", "--group", group)
    assert f"{source}/0/5 is a dead letter" in text
    assert f"The topic {source} does not exist" in text
    # The headers of a record elsewhere lead nowhere: anybody may have written them.
    other = topic()
    kafka.produce(other, [Record(b"x", None, given, 0)])
    assert f"{other}/0/0 is not acknowledged" in found(kafka, other, "0", "0", "--group", group)
