"""What is looked at before a loop starts, without a broker: mistakes are sentences that say what to do."""

from __future__ import annotations

import logging
import os
import sys
import textwrap
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from streamloop import StreamLoop, preflight
from streamloop.cli import main as cli
from streamloop.engine.engine import Role
from streamloop.errors import ConfigurationError, TopicError
from streamloop.kafka.topic_admin import BrokersUnreachableError, Outcome
from streamloop.kafka.topics import Commands, TopicFacts, TopicSpec, Untold, check_topic, unknown_facts
from streamloop.preflight import TopicCheck, check_settings, topics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from streamloop.assembly import Assembly
    from streamloop.routing import Topics

DAY_MS = 86_400_000
_numbers = count()


def facts(name: str, **given: Any) -> TopicFacts:
    values: dict[str, Any] = {
        "partitions": 4,
        "replication_factor": 3,
        "cleanup_policy": "delete",
        "retention_ms": 14 * DAY_MS,
        "max_message_bytes": 1_000_000,
        "min_insync_replicas": 2,
    }
    return TopicFacts(name=name, topic_id=f"id of {name}", **{**values, **given})


class FakeAdmin:
    """Topics as a test says they are; creates what it may."""

    def __init__(self, *there: TopicFacts | Untold | tuple[str, Untold], reachable: bool = True) -> None:
        self.topics: dict[str, TopicFacts | Untold] = {}
        for each in there:
            if isinstance(each, TopicFacts):
                self.topics[each.name] = each
            elif isinstance(each, tuple):
                self.topics[each[0]] = each[1]
        self.reachable = reachable
        self.commands = Commands("kafka:9092")
        self.created: list[TopicSpec] = []

    def describe(
        self, names: Iterable[str], timeout: float, *, configs: bool = True
    ) -> dict[str, TopicFacts | Untold | None]:
        if not self.reachable:
            raise BrokersUnreachableError("No Kafka broker answers at kafka:9092.")
        return {name: self.topics.get(name) for name in names}

    def ensure(self, specs: Sequence[TopicSpec], *, create: bool, timeout: float) -> Outcome:
        from streamloop.kafka.topics import Violation

        outcome = Outcome()
        for spec in specs:
            there = self.topics.get(spec.name)
            if there is None and create:
                self.created.append(spec)
                outcome.created.append(spec.name)
                there = self.topics[spec.name] = facts(
                    spec.name,
                    partitions=spec.partitions,
                    retention_ms=spec.retention_ms,
                    max_message_bytes=spec.max_message_bytes,
                )
            if isinstance(there, TopicFacts):
                outcome.facts[spec.name] = there
                outcome.violations += check_topic(spec, there, self.commands)
                outcome.warnings += unknown_facts(spec, there)
            else:
                outcome.violations.append(
                    Violation(
                        spec.name,
                        f"The {spec.purpose.value} topic {spec.name} does not exist.",
                        self.commands.create(spec),
                        missing=True,
                    )
                )
        return outcome


def assembled(**settings: Any) -> tuple[StreamLoop[Any], Assembly]:
    loop: StreamLoop[Any] = StreamLoop("billing", brokers="kafka:9092", **settings)

    @loop.consumer("orders", retry_topics=["30s"])
    async def charge(value: bytes) -> None: ...

    return loop, loop.assemble()


def look(admin: FakeAdmin, *, create: bool = True, **settings: Any) -> tuple[TopicCheck, Any]:
    _, assembly = assembled(**settings)
    topics = topics_of(assembly)
    check = TopicCheck(assembly, topics, admin)  # type: ignore[arg-type]
    check.look(1.0, create=create)
    return check, topics


RETRY, REPLAY, DEAD = "orders.billing.retry.30s", "orders.billing.replay", "orders.billing.dlq"


class TestTopicCheck:
    def test_what_is_missing_is_created_as_planned_and_known_from_then_on(self) -> None:
        admin = FakeAdmin(facts("orders"))
        check, topics = look(admin)
        assert [(spec.name, spec.partitions) for spec in admin.created] == [
            (RETRY, 4),
            (REPLAY, 4),
            (DEAD, 4),
        ]
        assert {name: known.partitions for name, known in topics.facts.items()} == {
            RETRY: 4,
            REPLAY: 4,
            DEAD: 4,
        }
        assert topics.facts[DEAD].max_message_bytes == 1_000_000 + 64 * 1024
        assert set(check.known) == {"orders", RETRY, REPLAY, DEAD}
        assert (check.missing, check.violations) == ([], [])

    def test_what_may_not_be_created_is_raised_with_every_command(self) -> None:
        with pytest.raises(TopicError) as raised:
            look(FakeAdmin(facts("orders")), create=False)
        said = str(raised.value)
        for name in (RETRY, REPLAY, DEAD):
            assert f"kafka-topics.sh --bootstrap-server kafka:9092 --create --topic {name}" in said
        assert raised.value.exit_code == 2

    def test_a_topic_that_would_lose_messages_is_raised_with_the_command_that_mends_it(self) -> None:
        admin = FakeAdmin(
            facts("orders"),
            facts(RETRY, cleanup_policy="compact", max_message_bytes=2_000_000),
            facts(DEAD, max_message_bytes=2_000_000, retention_ms=-1),
        )
        with pytest.raises(TopicError, match=f"The retry topic {RETRY} has cleanup.policy=compact") as raised:
            look(admin)
        assert f"--entity-name {RETRY} --add-config cleanup.policy=delete" in str(raised.value)

    def test_a_missing_source_is_no_error_here_and_its_own_topics_are_not_looked_at(self) -> None:
        admin = FakeAdmin()
        check, topics = look(admin)
        assert check.missing == ["orders"]
        assert admin.created == []
        assert topics.facts == {}
        assert check.sentence_about_missing().startswith("The topic orders does not exist. Create it")

    def test_what_can_t_be_told_is_a_warning(self) -> None:
        check, _ = look(FakeAdmin(("orders", Untold("no right to describe it"))))
        assert check.warnings == [
            "Whether the topic orders exists could not be told: no right to describe it"
        ]
        assert check.missing == []

    def test_settings_of_the_check_reach_the_plan(self) -> None:
        admin = FakeAdmin(facts("orders"))
        look(admin, retry_topic_retention="20d", replication_factor=5)
        assert [(spec.retention_ms, spec.replication_factor) for spec in admin.created] == [
            (20 * DAY_MS, 5),
            (20 * DAY_MS, 5),
            (-1, 5),
        ]


class TestTopicsOf:
    def test_names_come_from_the_settings(self) -> None:
        _, assembly = assembled(
            retry_topic_name="{group}.{topic}.again.{delay}",
            dead_letter_topic_name="dead.{topic}",
            replay_topic_name="back.{topic}",
        )
        topics = topics_of(assembly)
        assert topics.retry_names == ["billing.orders.again.30s"]
        assert topics.dead_names == ["dead.orders"]
        assert topics.own_names == ["billing.orders.again.30s", "back.orders"]

    def test_a_replay_topic_is_there_without_retry_topics_and_not_without_dead_letters(self) -> None:
        def topics_with(**settings: Any) -> Topics:
            loop: StreamLoop[Any] = StreamLoop("billing", brokers="kafka:9092")

            @loop.consumer("orders", retry_topics=[], **settings)
            async def charge(value: bytes) -> None: ...

            return topics_of(loop.assemble())

        topics = topics_with()
        assert topics.own_names == [REPLAY]
        assert topics.retry_names == []
        assert topics.delay_of(REPLAY) == 0
        assert topics.role(REPLAY) == Role(0, 0, own=True)
        assert (topics.is_replay(REPLAY), topics.is_source(REPLAY)) == (True, False)
        assert topics_with(dead_letter=False).own_names == []

    def test_a_topic_in_two_roles_is_a_mistake(self) -> None:
        loop: StreamLoop[Any] = StreamLoop("billing", brokers="kafka:9092")

        @loop.consumer("orders", retry_topics=["30s"])
        async def charge(value: bytes) -> None: ...

        @loop.consumer(RETRY, retry_topics=[])
        async def again(value: bytes) -> None: ...

        with pytest.raises(ConfigurationError, match=f"topic {RETRY} is used twice"):
            topics_of(loop.assemble())

    def test_another_name_of_a_topic_names_its_retry_topics_too(self) -> None:
        _, assembly = assembled(topics={"orders": "orders-eu"})
        topics = topics_of(assembly)
        assert list(topics.sources) == ["orders-eu"]
        assert topics.dead_names == ["orders-eu.billing.dlq"]


class TestCheckLoop:
    def report(self, monkeypatch: pytest.MonkeyPatch, admin: FakeAdmin, **settings: Any) -> Any:
        monkeypatch.setattr(preflight, "make_admin", lambda _settings: admin)
        loop, _ = assembled(**settings)
        report = loop.check(timeout=3)
        assert admin.created == []  # a check makes nothing
        return report

    def test_all_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        admin = FakeAdmin(
            facts("orders"),
            facts(RETRY, max_message_bytes=2_000_000),
            facts(REPLAY, max_message_bytes=2_000_000),
            facts(DEAD, max_message_bytes=2_000_000, retention_ms=-1),
        )
        report = self.report(monkeypatch, admin)
        assert (report.ok, report.problems) == (True, [])

    def test_what_run_would_create_is_said_and_no_obstacle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        report = self.report(monkeypatch, FakeAdmin(facts("orders")))
        assert report.ok
        assert report.problems == [
            f"The topic {name} does not exist yet: streamloop run creates it (create_topics)."
            for name in (RETRY, REPLAY, DEAD)
        ]

    def test_what_run_would_not_create_is_an_obstacle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        report = self.report(monkeypatch, FakeAdmin(facts("orders")), create_topics=False)
        assert not report.ok
        assert all("--create --topic" in problem for problem in report.problems)

    def test_a_missing_topic_that_would_be_created_does_not_hide_one_that_is_wrong(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        admin = FakeAdmin(facts("orders"), facts(RETRY, retention_ms=1000, max_message_bytes=2_000_000))
        report = self.report(monkeypatch, admin)
        assert not report.ok
        assert any("retention.ms=1000" in problem for problem in report.problems)
        assert any("streamloop run creates it" in problem for problem in report.problems)

    def test_no_broker_and_a_missing_source(self, monkeypatch: pytest.MonkeyPatch) -> None:
        report = self.report(monkeypatch, FakeAdmin(reachable=False))
        assert (report.ok, report.problems) == (
            False,
            ["No Kafka broker answers at kafka:9092. (gave up after 3 s)"],
        )
        report = self.report(monkeypatch, FakeAdmin())
        assert not report.ok
        assert report.problems[0].startswith("The topic orders does not exist.")

    def test_settings_that_contradict_each_other_are_told_before_a_broker_is_asked(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        report = self.report(monkeypatch, FakeAdmin(reachable=False), revoke_wait=200, dwell=60)
        assert not report.ok
        [problem] = report.problems
        assert "revoke_wait is 200s" in problem
        assert "dwell is 1m" in problem

    def test_warnings_about_settings_are_no_obstacle(self) -> None:
        _, assembly = assembled(high_watermark_messages=10)
        assert any("high_watermark_messages is 10" in warning for warning in check_settings(assembly))


# ------------------------------------------------------------------------- a user's mistakes, by the command


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Write a module and start ``streamloop run`` on it, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", os.getcwd())])
    monkeypatch.setattr(cli, "leave", sys.exit)
    before = logging.root.handlers[:], logging.root.level

    def call(text: str, *arguments: str) -> Result:
        name = f"mistaken_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        result = CliRunner().invoke(cli.main, ["run", f"{name}:loop", "--brokers", "127.0.0.1:9", *arguments])
        assert isinstance(result.exception, SystemExit)
        return result

    yield call
    logging.root.handlers[:], level = before[0], before[1]
    logging.root.setLevel(level)


HEAD = "from streamloop import Message, StreamLoop\nloop = StreamLoop('billing')\n"


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("@loop.consumer('orders')\nasync def handle(a, b, c): ...", "handler handle .* needs 3 arguments"),
        ("@loop.consumer('orders')\nasync def handle(): ...", "handler handle .* takes no argument"),
        ("@loop.consumer('orders')\nasync def handle(order: 'Ordr'): ...", "the name 'Ordr'"),
        ("@loop.consumer('orders')\nasync def handle(order):\n    yield 1", "handle .* is a generator"),
        ("@loop.consumer\nasync def handle(order): ...", r"write @loop\.consumer\('orders'\)"),
        ("@loop.consumer('orders', concurency=5)\nasync def handle(order): ...", "concurency"),
        ("@loop.consumer('orders', timeout='soon')\nasync def handle(order): ...", "timeout is 'soon'"),
        ("@loop.consumer('orders', runner='inline')\nasync def handle(order): ...", "runner='inline'"),
        ("@loop.consumer('orders', permanent=['x'])\nasync def handle(order): ...", "permanent lists 'x'"),
        (
            "@loop.consumer('orders', strict_order=True, retry_topics=['1m'])\nasync def handle(order): ...",
            "strict_order",
        ),
        ("@loop.consumer('^orders.*')\nasync def handle(order): ...", "patterns are refused, because"),
        (
            "@loop.consumer('a')\nasync def one(order): ...\n@loop.consumer('a')\nasync def two(order): ...",
            "topic a has two handlers in this loop, one and two",
        ),
        (
            "@loop.middleware\ndef around(message, call_next): ...\n"
            "@loop.consumer('a')\nasync def one(order): ...",
            "middleware 'around' can't go around handler one",
        ),
        ("@loop.on_startup\ndef connect(): ...", r"@loop\.on_startup decorates an async def"),
        ("import nowhere_to_be_found", "can't be imported: ModuleNotFoundError"),
        ("", "this loop has no handler"),
    ],
)
def test_a_mistake_in_the_module_is_a_sentence_that_names_it(
    run: Callable[..., Result], declared: str, words: str
) -> None:
    import re

    result = run(HEAD + declared)
    assert result.exit_code == 2
    assert re.search(words, result.stderr), result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("STREAMLOOP_HIGH_WATERMARK_MESSAGES", "many", "high_watermark_messages is 'many'"),
        ("STREAMLOOP_KAFKA__CONSUMER__ENABLE_AUTO_COMMIT", "true", "is refused: it must be false"),
        ("STREAMLOOP_KAFKA__COMMON__SOCKET_TIMEOUT_MS", "soon", "is not valid"),
        ("STREAMLOOP_REVOKE_WAIT", "1h", "more than a third of max.poll.interval.ms"),
        ("STREAMLOOP_TIMEOT", "1", "did you mean"),
    ],
)
def test_a_wrong_setting_is_a_sentence_with_its_origin(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    result = run(HEAD + "@loop.consumer('orders')\nasync def handle(order): ...")
    assert result.exit_code == 2
    assert words in result.stderr
    assert name in result.stderr
    assert "Traceback" not in result.stderr
