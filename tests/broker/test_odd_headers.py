"""A header's name that is not UTF-8: it ends no process, is handled, routed, listed and exported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import confluent_kafka
from click.testing import CliRunner

from streamloop import Message, Reject  # the loop reads the handler's annotations
from streamloop.cli import main as cli
from streamloop.dlq.letter import letter_of
from streamloop.dlq.reading import NoRecord, read_one
from streamloop.kafka.headers import UNREADABLE_NAME, headers_of
from streamloop.settings import Settings
from tests.broker.loops.inprocess import Running, loop_on
from tests.odd_headers import produce_with_header_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.realkafka import KafkaCluster

HEADERS = [(b"a", b"1"), (b"\xff\xfe", b"2"), (b"b", b"3")]
READABLE = [("a", b"1"), (r"\xff\xfe", b"2"), ("b", b"3")]


def test_a_header_name_that_is_not_utf8_ends_no_member_and_loses_no_message(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic(1)
    seen: dict[bytes, list[tuple[str, bytes | None]]] = {}
    loop = loop_on(kafka, group, retry_topics=["200ms"], in_place_attempts=1)

    @loop.consumer(source)
    def handle(value: bytes, message: Message) -> None:
        seen[value] = list(message.headers)
        if value == b"reject":
            raise Reject("no")

    produce_with_header_names(kafka.bootstrap, source, b"good", HEADERS)
    produce_with_header_names(kafka.bootstrap, source, b"reject", HEADERS)
    kafka.produce(source, [b"behind them"])
    with Running(loop) as running:
        running.until(
            lambda: running.counts()["acked"] + running.counts()["dead_lettered"] >= 3, what="all three"
        )
    assert seen == {b"good": READABLE, b"reject": READABLE, b"behind them": []}
    [dead] = kafka.read_all(f"{source}.{group}.dlq")
    assert dead.value == b"reject"
    assert list(dead.headers[:3]) == READABLE


def test_it_is_seen_by_code_that_read_many_others_before(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(1)
    produce_with_header_names(kafka.bootstrap, name, b"value", HEADERS)
    for _ in range(3):
        usual: Any = confluent_kafka.Message(topic=name, partition=0, offset=0, headers=[("a", b"1")])
        for _ in range(100):  # until the interpreter has specialised the calls
            assert headers_of(usual) == [("a", b"1")]
            assert letter_of(usual).exact
        found, _bounds = read_one(Settings(brokers=(kafka.bootstrap,)), name, 0, 0)
        assert headers_of(found) == READABLE
        again, _bounds = read_one(Settings(brokers=(kafka.bootstrap,)), name, 0, 0)
        assert letter_of(again).headers == READABLE


def test_it_is_shown_escaped_and_an_export_says_so(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(1)
    produce_with_header_names(kafka.bootstrap, name, b"value", HEADERS)
    found, _ = read_one(Settings(brokers=(kafka.bootstrap,)), name, 0, 0)
    assert not isinstance(found, NoRecord)
    letter = letter_of(found)
    assert letter.headers == READABLE
    assert not letter.exact
    assert headers_of(found) == READABLE  # whoever asks later
    shown = CliRunner().invoke(cli.main, ["dlq", "show", f"{name}/0/0", "--brokers", kafka.bootstrap])
    assert "a header's name is not UTF-8: it is shown escaped" in shown.stdout
    arguments = ["dlq", "export", "-", "--topic", name, "--brokers", kafka.bootstrap]
    exported = CliRunner().invoke(cli.main, arguments)
    record = json.loads(exported.stdout.splitlines()[1])
    assert record["exact"] is False
    assert [each["name"] for each in record["headers"]] == ["a", r"\xff\xfe", "b"]


def test_of_several_such_names_none_is_told_and_every_value_is_kept(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(1)
    headers = [(b"\xff", b"1"), (b"a", b"2"), (b"\xfe", b"3")]
    produce_with_header_names(kafka.bootstrap, name, b"value", headers)
    found, _ = read_one(Settings(brokers=(kafka.bootstrap,)), name, 0, 0)
    assert headers_of(found) == [(UNREADABLE_NAME, b"1"), ("a", b"2"), (UNREADABLE_NAME, b"3")]
