"""``streamloop topics``: what its file may say, what it finds, and that it changes nothing that exists."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from streamloop.cli.main import main
from streamloop.errors import ConfigurationError, TopicError
from streamloop.kafka.source_topics import create_missing, read_topics
from streamloop.kafka.topics import PlainTopic, TopicFacts, Untold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from streamloop.kafka.topic_admin import NewlyMade


def file(folder: Path, text: str) -> Path:
    path = folder / "topics.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_lists_topics_with_partitions_replicas_and_configuration(tmp_path: Path) -> None:
    text = """
topics:
  - {name: orders, partitions: 12, replicationFactor: 3,
     config: {retention.ms: 604800000, cleanup.policy: delete, preallocate: true, min.insync.replicas: 2.0}}
  - {name: refunds}
  - {name: audit, partitions: 1e+01}
"""
    orders, refunds, audit = read_topics(file(tmp_path, text))
    assert orders == PlainTopic(
        "orders",
        12,
        3,
        {
            "retention.ms": "604800000",
            "cleanup.policy": "delete",
            "preallocate": "true",
            "min.insync.replicas": "2",
        },
    )
    assert refunds == PlainTopic("refunds", -1, -1, {})
    assert audit.partitions == 10


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- orders", "has no list 'topics'"),
        ("topics: orders", "has no list 'topics'"),
        ("topics: [orders]", "topic 1 is not a mapping"),
        ("topics: [{partitions: 1}]", "topic 1: its name is None"),
        ("topics: [{name: 'a b'}]", "its name is 'a b'"),
        ("topics: [{name: a, partitions: 0}]", "partitions is 0: give 1 or more"),
        ("topics: [{name: a, replicationFactor: two}]", "replicationFactor is 'two': give a whole number"),
        ("topics: [{name: a, partition: 3}]", "topic 1 has partition, which is not known here"),
        ("topics: [{name: a, config: x}]", "config is not a mapping"),
        ("topics: [{name: a}, {name: a}]", "lists a more than once"),
        ("topics: [", "is not valid YAML"),
    ],
)
def test_what_a_file_says_wrong_is_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as wrong:
        read_topics(file(tmp_path, text))
    assert said in str(wrong.value)
    assert "topics.yaml" in str(wrong.value)


def test_everything_that_is_wrong_with_a_file_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as wrong:
        read_topics(file(tmp_path, "topics: [{name: ''}, {name: a, partitions: no}]"))
    assert len(str(wrong.value).splitlines()) == 2


class Brokers:
    """The questions and the one act of TopicAdmin, with what brokers would answer."""

    def __init__(self, there: dict[str, TopicFacts | Untold], refused: dict[str, str] | None = None) -> None:
        self.there = there
        self.refused = refused or {}
        self.made: list[str] = []

    def describe(
        self, names: Iterable[str], timeout: float, *, configs: bool
    ) -> dict[str, TopicFacts | Untold | None]:
        return {name: self.there.get(name) for name in names}

    def create(self, topics: Sequence[NewlyMade], timeout: float) -> dict[str, str]:
        self.made += [topic.name for topic in topics if topic.name not in self.refused]
        return self.refused


def created(brokers: Brokers, *wanted: PlainTopic, create: bool = True) -> list[str]:
    return create_missing(brokers, list(wanted), 1, create=create)  # type: ignore[arg-type]  # a double


ORDERS = PlainTopic("orders", 12, 3, {"retention.ms": "1"})


def test_missing_topics_are_created_and_those_that_exist_are_left_alone() -> None:
    brokers = Brokers({"refunds": TopicFacts("refunds", "id", 4)})
    assert created(brokers, ORDERS, PlainTopic("refunds"), PlainTopic("audit")) == [
        "created orders (12 partitions, 3 replicas, retention.ms=1)",
        "refunds is there (4 partitions)",
        "created audit",
    ]
    assert brokers.made == ["orders", "audit"]


def test_another_number_of_partitions_is_told_and_not_changed() -> None:
    brokers = Brokers({"orders": TopicFacts("orders", "id", 6)})
    [line] = created(brokers, ORDERS)
    assert "orders is there with 6 partitions, not 12" in line
    assert brokers.made == []


def test_a_dry_run_says_what_it_would_do_and_does_nothing() -> None:
    brokers = Brokers({})
    [line] = created(brokers, ORDERS, create=False)
    assert line.startswith("would create orders")
    assert brokers.made == []


def test_what_can_not_be_created_or_told_is_an_error_that_names_the_topic_and_the_others_are_made() -> None:
    brokers = Brokers({"secret": Untold("not authorized")}, {"orders": "Cluster authorization failed"})
    with pytest.raises(TopicError) as wrong:
        created(brokers, ORDERS, PlainTopic("audit"), PlainTopic("secret"))
    said = str(wrong.value)
    assert "The topic orders could not be created: Cluster authorization failed." in said
    assert "Whether the topic secret exists could not be told: not authorized." in said
    assert brokers.made == ["audit"]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("STREAMLOOP_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["topics", *arguments])

    return run


class TestCommand:
    def test_without_a_file_and_a_loop_there_is_nothing_to_do(self, invoke: Callable[..., Result]) -> None:
        result = invoke()
        assert result.exit_code == 2
        assert "Give --file, or MODULE:LOOP, or both." in result.output

    def test_without_brokers_it_names_the_setting(
        self, invoke: Callable[..., Result], tmp_path: Path
    ) -> None:
        result = invoke("--file", str(file(tmp_path, "topics: [{name: orders}]")))
        assert result.exit_code == 2
        assert "brokers is not set" in result.output

    def test_without_a_broker_it_ends_in_its_time_with_1(
        self, invoke: Callable[..., Result], tmp_path: Path
    ) -> None:
        path = file(tmp_path, "topics: [{name: orders}]")
        result = invoke("--file", str(path), "--brokers", "127.0.0.1:1", "--wait", "200ms")
        assert result.exit_code == 1
        assert "No Kafka broker answers at 127.0.0.1:1" in result.output
