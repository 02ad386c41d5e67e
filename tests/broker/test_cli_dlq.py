"""`streamloop dlq ls`, `show` and `export` on a real broker: what members and other programs left there."""

from __future__ import annotations

import base64
import json
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from streamloop import Message, Reject  # the loop reads the handler's annotations
from streamloop.cli import main as cli
from streamloop.dlq import DeadLetters, Filter
from streamloop.kafka.topics import shown_id
from tests.broker.loops.inprocess import Running, loop_on
from tests.dead_letters import CONNECT, KAFKA, SPRING, TRACE, TRACEPARENT, own_headers
from tests.realkafka.client import Record, unique_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.realkafka import KafkaCluster


def ask(kafka: KafkaCluster, *arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(
        cli.main, ["dlq", *arguments, "--brokers", kafka.bootstrap], catch_exceptions=False
    )


def answered(kafka: KafkaCluster, *arguments: str) -> str:
    result = ask(kafka, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def lines(kafka: KafkaCluster, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(each) for each in answered(kafka, *arguments).splitlines()]


def letters(kafka: KafkaCluster, topic: str, count: int, **what: Any) -> None:
    records = [
        Record(b"%d" % at, b"key-%d" % at, tuple(own_headers(original=("orders", 0, at), **what)))
        for at in range(count)
    ]
    kafka.produce(topic, records)


def test_what_members_left_is_found_by_the_groups_name_grouped_and_shown(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic(2)
    loop = loop_on(kafka, group, retry_topics=[], in_place_attempts=2, ordering="none")

    @loop.consumer(source)
    def handle(message: Message) -> None:
        if message.value.startswith(b"reject"):  # type: ignore[union-attr]
            raise Reject(f"no such order {message.offset}")
        raise ConnectionError("no \x1b[2Jroute")

    with Running(loop) as running:
        kafka.produce(source, [Record(b"reject", b"k", (("traceparent", TRACEPARENT),), 1)] * 3)
        kafka.produce(source, [Record(b"fail", b"k", (), 0)] * 2)
        running.until(lambda: running.counts()["dead_lettered"] == 5, what="five dead letters")
    before = kafka.topics()
    dead = f"{source}.{group}.dlq"

    said = answered(kafka, "ls", "--group", group)
    assert f"5 dead letters in {dead}: 5 open, 2 groups" in said
    assert r"ConnectionError: no \x1b[2Jroute" in said
    *groups, summary = lines(kafka, "ls", "--group", group, "--json")
    assert [(each["count"], each["open"], each["original_topics"]) for each in groups] == [
        (3, 3, {source: 3}),
        (2, 2, {source: 2}),
    ]
    assert summary["kind"] == "summary"
    assert summary["complete"]
    assert summary["letters"] == 5
    place = groups[0]["sample"]["place"]
    shown = answered(kafka, "show", place, "--group", group, "--jaeger", "localhost:16686")
    assert f"{place} is dead: Reject: no such order 2" in shown
    assert f"{source}/1/2" in shown
    assert "after 1 attempt" in shown
    assert "1 attempts" not in shown
    assert f"http://localhost:16686/trace/{TRACE}" in shown
    assert "reject" in shown
    only = lines(kafka, "ls", "--group", group, "--json", "--error", "Reject", "--original", f"{source}/1/1")
    assert [each["count"] for each in only if each["kind"] == "group"] == [1]
    assert only[-1]["skipped"] == 4

    library = DeadLetters.of(loop)
    assert [each.count for each in library.groups(Filter.parse(since="24h")).groups] == [3, 2]
    assert library.groups(Filter.parse(until="24h")).letters == 0
    assert library.get(dead, *map(int, place.split("/")[1:])).trace_id == TRACE

    # It only looked: nothing was made, joined or committed.
    assert kafka.topics() == before
    assert kafka.members(group) == {}
    assert kafka.committed(group, dead) == {}


def test_letters_of_other_programs_are_listed_and_shown(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    name = topic(1)
    given = [
        Record(b"\0\0\0\0\x2a\x06", b"k", tuple(SPRING)),
        Record(b"not json", None, tuple(CONNECT)),
        Record(None, b"k", tuple(KAFKA)),
        Record(b"\x1b[2J", b"\xff"),
    ]
    kafka.produce(name, given)
    said = answered(kafka, "ls", "--topic", name)
    for part in (
        "IllegalStateException: Listener failed",
        "DataException: no schema",
        "rejected",
        "no error is named",
    ):
        assert part in said
    assert "whether they were replayed is not known without --group" in said
    expected = [
        ["shop/3/77", "shop-group", "perhaps of schema 42"],
        ["source/0/3", "connect-warehouse", "not json"],
        ["jobs/2/41", "workers", "null: a tombstone"],
        ["not known: replay it with --to-topic", r"\x1b[2J", "hex:ff"],
    ]
    for offset, parts in enumerate(expected):
        shown = answered(kafka, "show", name, "0", str(offset))
        for part in parts:
            assert part in shown
        assert "\x1b" not in shown


def test_an_export_is_byte_exact_and_names_the_identity_of_each_record(
    kafka: KafkaCluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(2, config={"max.message.bytes": str(3 * 1024 * 1024)})
    headers = (*own_headers(), ("same", b"1"), ("same", b"2"), ("null", None), ("bytes", b"\xff"))
    given = [
        Record(b"x" * 900_000, b"k", headers, 0),
        Record(None, b"tombstone", headers, 1),
        Record(b"\x80", None, (), 1),
    ]
    kafka.produce(name, given)
    path = tmp_path / "letters.jsonl"
    result = ask(kafka, "export", str(path), "--topic", name)
    assert result.exit_code == 0, result.output
    assert result.stderr == f"Exported 3 dead letters to {path}.\n"
    head, *records, end = [json.loads(each) for each in path.read_text("utf-8").splitlines()]
    topic_id = shown_id(kafka.admin.describe_topics(_collection([name]))[name].result(30).topic_id)
    assert head["topics"] == {name: {"topic_id": topic_id}}
    assert head["version"] == 1
    assert end == {"kind": "end", "records": 3, "complete": True}
    found = {(each["id"]["partition"], each["id"]["offset"]): each for each in records}
    for record, at in zip(given, [(0, 0), (1, 0), (1, 1)], strict=True):
        each = found[at]
        assert each["id"] == {
            "cluster_id": head["cluster_id"],
            "topic_id": topic_id,
            "topic": name,
            "partition": at[0],
            "offset": at[1],
        }
        assert _bytes(each["key_base64"]) == record.key
        assert _bytes(each["value_base64"]) == record.value
        assert (
            tuple((part["name"], _bytes(part["value_base64"])) for part in each["headers"]) == record.headers
        )
    again = ask(kafka, "export", str(path), "--topic", name)
    assert again.exit_code == 2
    assert "give --force to replace it" in again.stderr
    limited = ask(kafka, "export", str(path), "--topic", name, "--limit", "1", "--force")
    assert "Exported 1 dead letters" in limited.stderr
    assert "(--limit 1: there may be more)" in limited.stderr
    assert json.loads(path.read_text("utf-8").splitlines()[-1]) == {
        "kind": "end",
        "records": 1,
        "complete": False,
    }
    assert len(lines(kafka, "export", "-", "--topic", name, "--key", "tombstone")) == 3


def test_raw_is_the_value_and_nothing_else(kafka: KafkaCluster, topic: Callable[..., str]) -> None:
    name = topic(1)
    kafka.produce(name, [Record(bytes(range(256))), Record(None)])
    result = ask(kafka, "show", f"{name}/0/0", "--raw")
    assert result.exit_code == 0
    assert result.stdout_bytes == bytes(range(256))
    tombstone = ask(kafka, "show", f"{name}/0/1", "--raw")
    assert tombstone.exit_code == 1
    assert "has no value: it is null (a tombstone)" in tombstone.stderr


def test_the_loops_own_codec_decodes_the_value(
    kafka: KafkaCluster,
    topic: Callable[..., str],
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = topic(1)
    module = "dlq_app_" + unique_name("m").replace("-", "_")
    tmp_path.joinpath(f"{module}.py").write_text(
        f"""
from dataclasses import dataclass
from streamloop import StreamLoop

@dataclass
class Order:
    id: int

loop = StreamLoop({group!r})

@loop.consumer({source!r}, codec="msgpack", dead_letter_topic_name="broken.{{topic}}")
async def charge(order: Order) -> None: ...
""",
        "utf-8",
    )
    monkeypatch.chdir(tmp_path)
    dead = kafka.create_topic(1, name=f"broken.{source}")
    kafka.produce(dead, [Record(b"\x81\xa2id\x07", b"k", tuple(own_headers(original=(source, 0, 1)))), b"{}"])
    said = answered(kafka, "ls", "--app", f"{module}:loop")
    assert f"2 dead letters in {dead}" in said
    assert f"--app {module}:loop" in said
    shown = answered(kafka, "show", dead, "0", "0", "--app", f"{module}:loop")
    assert "Order, decoded by the loop's codec" in shown
    assert '    "id": 7' in shown
    refused = answered(kafka, "show", dead, "0", "1", "--app", f"{module}:loop")
    assert "JSON, which the loop's codec refuses: can't be decoded as" in refused


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Sends SIGINT, as Ctrl-C does, at the first sign of progress."""

    def interrupt() -> None:
        @contextmanager
        def progress(*_: Any) -> Iterator[Callable[[Any], None]]:
            sent: list[None] = []

            def show(_progress: Any) -> None:
                if not sent:
                    sent.append(None)
                    signal.raise_signal(signal.SIGINT)

            yield show

        monkeypatch.setattr("streamloop.cli.dlq.shown_progress", progress)

    return interrupt


def test_ctrl_c_shows_what_was_read_and_an_export_leaves_no_file(
    kafka: KafkaCluster, topic: Callable[..., str], interrupted: Callable[[], None], tmp_path: Path
) -> None:
    assert threading.current_thread() is threading.main_thread()
    name = topic(1)
    letters(kafka, name, 3_000)
    interrupted()
    result = ask(kafka, "ls", "--topic", name)
    assert result.exit_code == 130
    assert "interrupted: " in result.stdout
    assert "of 3,000 offsets were not read; all numbers are of what was read" in result.stdout
    as_json = ask(kafka, "ls", "--topic", name, "--json")
    assert as_json.exit_code == 130
    summary = json.loads(as_json.stdout.splitlines()[-1])
    assert not summary["complete"]
    assert summary["letters"] + summary["offsets_left"] == 3_000
    path = tmp_path / "letters.jsonl"
    exported = ask(kafka, "export", str(path), "--topic", name)
    assert exported.exit_code == 130
    assert exported.stderr == "Interrupted.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("ls", "--group", "nobody-of-that-name"), 1, "there is no TOPIC.nobody-of-that-name.dlq"),
        (("ls",), 2, "Whose dead letters?"),
        (("ls", "--topic", "no-such-topic"), 1, "The topic no-such-topic does not exist"),
        (("ls", "--topic", "no-such-topic", "--at", "other/0/1"), 1, "does not exist"),
        (("show", "no-such-topic/0/1"), 1, "The topic no-such-topic does not exist"),
        (("show", "orders", "x", "1"), 2, "'x' is no partition: give a number of 0 or more"),
        (("show", "orders"), 2, "Give TOPIC PARTITION OFFSET"),
        (("export", "/no/such/folder/x", "--topic", "no-such-topic"), 1, "does not exist"),
    ],
)
def test_a_mistake_is_a_sentence_and_creates_no_topic(
    kafka: KafkaCluster, arguments: Sequence[str], code: int, said: str
) -> None:
    result = ask(kafka, *arguments)
    assert result.exit_code == code
    assert said in result.stderr
    assert "no-such-topic" not in kafka.topics()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def _collection(names: list[str]) -> Any:
    from confluent_kafka import TopicCollection

    return TopicCollection(names)
