"""Settings: every layer, where each value came from, what is wrong in sentences, and no secret anywhere."""

from __future__ import annotations

import json
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from streamloop.errors import ConfigurationError
from streamloop.settings import (
    ConsumerSettings,
    Loaded,
    Settings,
    Severity,
    check_sums,
    describe,
    json_schema,
    units,
)
from streamloop.settings.layers import Layer
from streamloop.settings.load import NAMES
from streamloop.settings.model import MASK, MIB, is_secret
from streamloop.settings.reference import write_reference
from streamloop.settings.sums import memory_limit_of_control_group, memory_needed

SECRET = "hunter2-very-secret"


def load(
    keywords: dict[str, object] | None = None,
    env: dict[str, str] | None = None,
    yaml_path: Path | None = None,
    command_line: dict[str, object] | None = None,
) -> Loaded:
    return Settings.load(keywords, env or {}, yaml_path, command_line=command_line)


def refused(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(*args, **kwargs)
    return str(caught.value)


@pytest.fixture
def yaml(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "settings.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


class TestLayers:
    def test_command_line_beats_keyword_beats_environment_beats_yaml_beats_default(self, yaml: Any) -> None:
        layers: list[tuple[str, dict[str, Any], str]] = [
            ("default", {}, "25s"),
            ("settings.yaml:1", {"yaml_path": yaml("drain_timeout: 1s")}, "1s"),
            (
                "environment variable STREAMLOOP_DRAIN_TIMEOUT",
                {"env": {"STREAMLOOP_DRAIN_TIMEOUT": "2s"}},
                "2s",
            ),
            ("keyword drain_timeout", {"keywords": {"drain_timeout": "3s"}}, "3s"),
            ("command line option --drain-timeout", {"command_line": {"drain_timeout": "4s"}}, "4s"),
        ]
        given: dict[str, Any] = {}
        for origin, layer, value in layers:
            given |= layer
            loaded = load(**given)
            assert units.show_duration(loaded.settings.drain_timeout) == value
            assert loaded.origin("drain_timeout").endswith(origin)

    def test_the_file_is_the_given_one_then_the_variable_s_then_the_working_directory_s(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert load().config is None
        for name in ("streamloop.yaml", "named.yaml", "given.yaml"):
            (tmp_path / name).write_text(f"group: {name}")
        assert load().settings.group == "streamloop.yaml"
        assert load(env={"STREAMLOOP_CONFIG": "named.yaml"}).settings.group == "named.yaml"
        loaded = load(env={"STREAMLOOP_CONFIG": "named.yaml"}, yaml_path=Path("given.yaml"))
        assert (loaded.settings.group, loaded.config) == ("given.yaml", Path("given.yaml"))

    def test_kafka_properties_of_several_layers_are_merged_one_by_one(self, yaml: Any) -> None:
        path = yaml("kafka:\n  common:\n    debug: broker\n    ssl: {ca: {location: /ca.pem}}\n")
        loaded = load(
            {"kafka": {"consumer": {"fetch.min.bytes": 10}}},
            {"STREAMLOOP_KAFKA__COMMON__DEBUG": "all", "STREAMLOOP_KAFKA__COMMON__LOG_LEVEL": "3"},
            path,
            {"kafka.consumer.max.poll.interval.ms": "1000"},
        )
        kafka = loaded.settings.kafka
        assert dict(kafka.common) == {"debug": "all", "ssl.ca.location": "/ca.pem", "log_level": "3"}
        assert dict(kafka.consumer) == {"fetch.min.bytes": 10, "max.poll.interval.ms": "1000"}
        assert loaded.origin("kafka.common.debug") == "environment variable STREAMLOOP_KAFKA__COMMON__DEBUG"
        assert loaded.origin(("kafka", "common", "ssl.ca.location")).endswith("settings.yaml:4")

    def test_a_variable_may_hold_json_for_a_whole_section(self) -> None:
        loaded = load(
            env={"STREAMLOOP_KAFKA__PRODUCER": '{"linger.ms": 7}', "STREAMLOOP_TOPICS": '{"a": "b"}'}
        )
        assert dict(loaded.settings.kafka.producer) == {"linger.ms": 7}
        assert dict(loaded.settings.topics) == {"a": "b"}

    def test_an_empty_variable_is_not_set(self) -> None:
        assert load(env={"STREAMLOOP_GROUP": " "}, keywords=None).settings.group == ""
        assert load(env={"STREAMLOOP_GROUP": ""}).settings.origin("group").layer is Layer.DEFAULT

    def test_variables_that_kubernetes_makes_for_a_service_are_left_alone(self) -> None:
        load(
            env={
                "STREAMLOOP_SERVICE_HOST": "10.0.0.1",
                "STREAMLOOP_SERVICE_PORT": "80",
                "STREAMLOOP_SERVICE_PORT_HTTP": "80",
                "STREAMLOOP_PORT": "tcp://10.0.0.1:80",
                "STREAMLOOP_BILLING_PORT_80_TCP_ADDR": "10.0.0.1",
                "STREAMLOOP_BILLING_PORT_80_TCP": "tcp://10.0.0.1:80",
            }
        )

    def test_settings_are_immutable(self) -> None:
        settings = load({"kafka": {"common": {"debug": "all"}}}).settings
        with pytest.raises(ValidationError):
            settings.group = "other"
        with pytest.raises(TypeError):
            settings.kafka.common["debug"] = "x"  # type: ignore[index]
        with pytest.raises(TypeError):
            settings.topics["a"] = "b"  # type: ignore[index]


class TestMistakes:
    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            ({"keywords": {"brokrs": "a"}}, "The keyword brokrs is not a setting: did you mean brokers?"),
            (
                {"env": {"STREAMLOOP_TIMOUT": "1"}},
                "The environment variable STREAMLOOP_TIMOUT is not a setting: did you mean "
                "STREAMLOOP_TIMEOUT?",
            ),
            (
                {"env": {"STREAMLOOP_CONSUMERS__A__CONCURENCY": "1"}},
                "The environment variable STREAMLOOP_CONSUMERS__A__CONCURENCY is not a setting: did you mean "
                "STREAMLOOP_CONSUMERS__A__CONCURRENCY?",
            ),
            (
                {"command_line": {"drain_timeot": "1"}},
                "The command line option --drain-timeot is not a setting: did you mean --drain-timeout?",
            ),
            (
                {"command_line": {"kafka.x.debug": "1"}},
                "The command line option --set kafka.x.debug is not a setting: librdkafka properties belong "
                "below "
                "kafka.common, .consumer, .producer or .admin (--set kafka.common.x.debug).",
            ),
            (
                {"keywords": {"xyzzy": 1}},
                "The keyword xyzzy is not a setting: 'streamloop config' lists the settings.",
            ),
            (
                {"keywords": {"timeout": -1}},
                "timeout is -1 (keyword timeout): give seconds, or a number with a unit such as 500ms, 30s, "
                "5m, 2h or "
                "14d, not below 0 and at most 100 years.",
            ),
            (
                {"env": {"STREAMLOOP_ORDERING": "keys"}},
                "ordering is 'keys' (environment variable STREAMLOOP_ORDERING): give key, partition or none.",
            ),
            (
                {"keywords": {"concurrency": True}},
                "concurrency is True (keyword concurrency): give a whole number.",
            ),
            ({"keywords": {"concurrency": 0}}, "concurrency is 0 (keyword concurrency): give 1 or more."),
            (
                {"keywords": {"low_watermark": 1}},
                "low_watermark is 1 (keyword low_watermark): give less than 1.",
            ),
            (
                {"keywords": {"dead_letter": "maybe"}},
                "dead_letter is 'maybe' (keyword dead_letter): give true or false.",
            ),
            (
                {"keywords": {"group": 7}},
                "group is 7 (keyword group): give a text; in YAML put it in quotes.",
            ),
            (
                {"keywords": {"retry_topics": "30s,30000ms"}},
                "retry_topics is '30s,30000ms' (keyword retry_topics): one delay is there twice: each names "
                "a topic of "
                "its own, so make them differ.",
            ),
            (
                {"keywords": {"retry_topic_name": "{topic}.retry"}},
                "retry_topic_name is '{topic}.retry' (keyword retry_topic_name): it must hold {delay}, or "
                "two different "
                "topics would have one name.",
            ),
            (
                {"keywords": {"dead_letter_topic_name": "{topic.__class__}"}},
                "dead_letter_topic_name is '{topic.__class__}' (keyword dead_letter_topic_name): it may hold "
                "only "
                "{topic}, {group}.",
            ),
            (
                {"keywords": {"brokers": "host:99999"}},
                "brokers is 'host:99999' (keyword brokers): give addresses such as host:9092 or [::1]:9092, "
                "several with "
                "commas between them.",
            ),
            (
                {"keywords": {"kafka": {"common": {"a": [1]}}}},
                "kafka.common.a is [1] (keyword kafka.common.a): give a text, a number, true or false.",
            ),
            (
                {"keywords": {"kafka": "x"}},
                "kafka (keyword kafka) takes no value of its own: it holds the sections common, consumer, "
                "producer and "
                "admin. Write those below it.",
            ),
            (
                {"env": {"STREAMLOOP_KAFKA__COMMON": "{broken"}},
                "The value of environment variable STREAMLOOP_KAFKA__COMMON is not valid JSON; give a JSON "
                "object.",
            ),
        ],
    )
    def test_a_mistake_is_a_sentence_with_name_value_place_and_advice(
        self, given: dict[str, Any], sentence: str
    ) -> None:
        assert refused(**given) == sentence

    @pytest.mark.parametrize(
        "given",
        [
            {"keywords": {"concurrency": 10**400}},
            {"keywords": {"concurrency": "9" * 5000}},
            {"keywords": {"sasl_password_file": "a\0b"}},
            {"keywords": {"group": "\ud800"}},
            {"keywords": {1: 2}},
            {"env": {"STREAMLOOP_": "x"}},
            {"env": {"STREAMLOOP_KAFKA__COMMON__": "x"}},
            {"env": {"STREAMLOOP_CONSUMERS": '{"a": [3]}'}},
            {"command_line": {"kafka.common.": "x"}},
            {"command_line": {"": "x"}},
            {"command_line": {"consumers.a": "x"}},
        ],
    )
    def test_whatever_is_written_is_answered_with_sentences(self, given: dict[str, Any]) -> None:
        assert all(line.endswith((".", "?")) for line in refused(**given).splitlines())

    @given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=3))
    def test_no_environment_makes_anything_but_sentences(self, env: dict[str, str]) -> None:
        try:
            load(env={f"STREAMLOOP_{name}": value for name, value in env.items()})
        except ConfigurationError:
            pass

    def test_all_mistakes_are_told_at_once_a_line_each(self) -> None:
        text = refused({"brokrs": 1, "timeout": "soon", "concurrency": -1}, {"STREAMLOOP_START": "yesterday"})
        assert [line.split(" is ")[0] for line in text.splitlines()] == [
            "The keyword brokrs",
            "concurrency",
            "timeout",
            "start",
        ]

    def test_yaml_mistakes_name_the_file_and_the_line(self, yaml: Any) -> None:
        path = yaml("group: billing\n\ntimout: 5s\nconsumers:\n  charge:\n    concurrency: many\n")
        assert refused(yaml_path=path).splitlines() == [
            f"timout ({path}:3) is not a setting: did you mean timeout?",
            f"consumers.charge.concurrency is 'many' ({path}:6): give a whole number.",
        ]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("group: [", "line 1"),
            ("a: 1\n\tb: 2", "line 2"),
            ("- brokers", "must be a mapping"),
            ("group: a\ngroup: b", "group is given twice"),
            ("group: a\n---\ngroup: b", "not valid YAML"),
            ("brokers:", "brokers (%s:1) has no value"),
            ("kafka: &a\n  common: *a", "give a text, a number, true or false"),
        ],
    )
    def test_yaml_that_can_t_be_read_is_named(self, yaml: Any, text: str, words: str) -> None:
        path = yaml(text)
        assert words.replace("%s", str(path)) in refused(yaml_path=path)

    def test_a_file_that_is_missing_or_no_text_is_named(self, tmp_path: Path) -> None:
        assert "nowhere.yaml can't be read: No such file" in refused(yaml_path=tmp_path / "nowhere.yaml")
        (tmp_path / "latin.yaml").write_bytes(b"group: \xff")
        assert "is not UTF-8" in refused(yaml_path=tmp_path / "latin.yaml")

    def test_what_is_required_is_asked_for_with_all_its_forms(self) -> None:
        loaded = load({"group": "billing"})
        with pytest.raises(ConfigurationError, match=r"brokers is not set.*--brokers.*STREAMLOOP_BROKERS"):
            loaded.require("brokers", "group")
        load({"brokers": "a", "group": "g"}).require("brokers", "group")


class TestSecrets:
    @pytest.mark.parametrize(
        "given",
        [
            {"keywords": {"sasl_password": SECRET}},
            {"env": {"STREAMLOOP_SSL_KEY_PASSWORD": SECRET}},
            {
                "keywords": {
                    "kafka": {"common": {"sasl.oauthbearer.client.secret": SECRET, "ssl.key.pem": SECRET}}
                }
            },
            {"env": {"STREAMLOOP_KAFKA__COMMON__SSL_KEYSTORE_PASSWORD": SECRET}},
            {"keywords": {"kafka": {"common": {"sasl.pasword": SECRET}}}},
        ],
    )
    def test_a_secret_is_in_no_repr_no_text_no_description(self, given: dict[str, Any]) -> None:
        loaded = load(**given)
        rows = describe(loaded)
        shown = [
            repr(loaded),
            str(loaded.settings),
            repr(loaded.settings.assignments()),
            repr(rows),
            json.dumps([[row.name, row.value, row.origin] for row in rows]),
            loaded.settings.model_dump_json(),
        ]
        assert not [text for text in shown if SECRET in text]
        assert MASK in repr(rows)

    @pytest.mark.parametrize(
        "given",
        [
            {"keywords": {"sasl_password": [SECRET]}},
            {"keywords": {"kafka": {"common": {"sasl.password": [SECRET]}}}},
            {"keywords": {"sasl_passwrd": SECRET}},
            {"env": {"STREAMLOOP_SASL_PASSWRD": SECRET}},
            {"command_line": {"sasl_password.x": SECRET}},
        ],
    )
    def test_a_mistake_in_a_secret_does_not_tell_it(self, given: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError) as caught:
            load(**given)
        assert SECRET not in "".join(traceback.format_exception(caught.value))

    @pytest.mark.parametrize(
        "text", ['sasl_password: "%s', "sasl_password: *%s", "sasl_password: !%s x", "x: {%s"]
    )
    def test_broken_yaml_does_not_tell_the_line(self, yaml: Any, text: str) -> None:
        path = yaml(text.replace("%s", SECRET))
        with pytest.raises(ConfigurationError) as caught:
            load(yaml_path=path)
        assert SECRET not in "".join(traceback.format_exception(caught.value))

    def test_a_secret_is_read_from_a_file_without_its_line_end(self, tmp_path: Path) -> None:
        file = tmp_path / "password"
        file.write_text(SECRET + "\n")
        loaded = load(env={"STREAMLOOP_SASL_PASSWORD_FILE": str(file)})
        assert loaded.settings.sasl_password is not None
        assert loaded.settings.sasl_password.get_secret_value() == SECRET
        assert loaded.origin("sasl_password") == (
            f"file {file} (environment variable STREAMLOOP_SASL_PASSWORD_FILE)"
        )

    def test_of_a_secret_and_a_secret_file_the_stronger_layer_wins(self, tmp_path: Path, yaml: Any) -> None:
        file = tmp_path / "password"
        file.write_text("from file")
        path = yaml("sasl_password: from yaml")
        settings = load({"sasl_password_file": file}, yaml_path=path).settings
        assert settings.sasl_password is not None
        assert settings.sasl_password.get_secret_value() == "from file"
        settings = load(
            {"sasl_password": "from keyword"}, {"STREAMLOOP_SASL_PASSWORD_FILE": str(file)}
        ).settings
        assert settings.sasl_password is not None
        assert settings.sasl_password.get_secret_value() == "from keyword"

    def test_a_secret_file_that_helps_nobody_is_named(self, tmp_path: Path) -> None:
        empty = tmp_path / "empty"
        empty.touch()
        assert "which is empty" in refused({"sasl_password_file": empty})
        assert "No such file" in refused({"ssl_key_password_file": tmp_path / "none"})
        both = refused({"sasl_password": SECRET, "sasl_password_file": empty})
        assert "both set" in both
        assert SECRET not in both

    @pytest.mark.parametrize(
        "name", ["ssl.ca.location", "sasl_password_file", "sasl.username", "partitioner", "topics"]
    )
    def test_what_is_no_secret_is_shown(self, name: str) -> None:
        assert not is_secret((name,))


class TestConsumers:
    def test_a_value_for_the_consumer_comes_before_one_for_the_loop(self, yaml: Any) -> None:
        settings = load(
            {"timeout": 1},
            {"STREAMLOOP_CONSUMERS__CHARGE_CARD__CONCURRENCY": "5"},
            yaml("consumers:\n  Charge-Card:\n    timeout: 2s\n    concurrency: 4\n"),
        ).settings
        charge = settings.for_consumer("charge_card")
        assert (charge.timeout, charge.concurrency) == (2.0, 5)
        assert str(charge.origin("timeout")).endswith("settings.yaml:3")
        assert str(charge.origin("concurrency")).endswith("STREAMLOOP_CONSUMERS__CHARGE_CARD__CONCURRENCY")
        other = settings.for_consumer("other")
        assert (other.timeout, other.concurrency) == (1.0, 100)
        assert str(other.origin("timeout")) == "keyword timeout"

    def test_a_declared_keyword_comes_before_the_environment(self) -> None:
        settings = load(env={"STREAMLOOP_CONSUMERS__A__TIMEOUT": "9", "STREAMLOOP_TIMEOUT": "8"}).settings
        consumer = settings.for_consumer("a", {"timeout": 7})
        assert consumer.timeout == 7
        assert str(consumer.origin("timeout")) == "keyword timeout of the consumer 'a'"

    def test_the_command_line_comes_before_a_declared_keyword_for_one_and_for_all(self) -> None:
        settings = load(command_line={"timeout": "6s"}).settings
        assert settings.for_consumer("a", {"timeout": 7}).timeout == 6
        settings = load(command_line={"timeout": "6s", "consumers.a.timeout": "5s"}).settings
        assert settings.for_consumer("a", {"timeout": 7}).timeout == 5

    def test_a_wrong_declaration_names_the_consumer(self) -> None:
        with pytest.raises(ConfigurationError) as caught:
            load().settings.for_consumer("a", {"concurency": 1, "timeout": "soon"})
        lines = str(caught.value).splitlines()
        assert lines[0] == (
            "concurency (keyword of the consumer 'a') is not a setting of a consumer: did you mean "
            "concurrency?"
        )
        assert lines[1].startswith(
            "consumer 'a': timeout is 'soon' (keyword timeout of the consumer 'a'): give"
        )

    def test_D14_strict_order_leaves_the_default_retry_topics_out(self) -> None:
        assert load().settings.for_consumer("a", {"strict_order": True}).retry_topics == ()
        assert load({"strict_order": "true"}).settings.for_consumer("a").retry_topics == ()

    @pytest.mark.parametrize("layer", ["keywords", "env", "declared"])
    def test_D14_strict_order_with_retry_topics_is_refused(self, layer: str) -> None:
        loaded = load(
            {"retry_topics": [30]} if layer == "keywords" else {},
            {"STREAMLOOP_RETRY_TOPICS": "30s"} if layer == "env" else {},
        )
        declared: dict[str, object] = {"strict_order": True}
        if layer == "declared":
            declared["retry_topics"] = ("30s",)
        with pytest.raises(
            ConfigurationError, match=r"strict_order .* can't be used together with retry topics"
        ):
            loaded.settings.for_consumer("a", declared)

    def test_contradictions_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="keeps an order that ordering='none'"):
            load().settings.for_consumer("a", {"strict_order": True, "ordering": None})
        with pytest.raises(
            ConfigurationError, match=r"backoff_cap is 0.1 s .* but backoff_base is 0.2 s \(default\)"
        ):
            load().settings.for_consumer("a", {"backoff_cap": "100ms"})

    def test_settings_for_a_consumer_that_does_not_exist_are_an_error(self) -> None:
        loaded = load(env={"STREAMLOOP_CONSUMERS__CHRAGE__TIMEOUT": "1"})
        with pytest.raises(
            ConfigurationError, match=r"consumers\.chrage .* names no consumer .* did you mean Charge"
        ):
            loaded.require_consumers(["Charge", "refund"])
        loaded.require_consumers(["chrage"])

    def test_settings_built_without_load_work_the_same(self) -> None:
        settings = Settings.model_validate({"timeout": 3, "consumers": {"a": {"concurrency": 2}}})
        consumer = settings.for_consumer("A", {})
        assert (consumer.timeout, consumer.concurrency, consumer.max_age) == (3.0, 2, None)

    def test_a_consumer_s_settings_can_be_sent_to_a_worker_process(self) -> None:
        consumer = load().settings.for_consumer("a", {"retry_topics": ["1s"]})
        assert pickle.loads(pickle.dumps(consumer)) == consumer

    def test_the_retry_plan_is_the_engine_s(self) -> None:
        from streamloop.engine.retry import RetryPlan, validate_plan

        plan = load().settings.for_consumer("a").retry_plan()
        assert plan == RetryPlan()
        assert validate_plan(plan) == []


class TestTopicNames:
    def consumer(self, **keywords: object) -> ConsumerSettings:
        return load({"group": "billing"}).settings.for_consumer("a", keywords)

    def test_names_of_retry_and_dead_letter_topics(self) -> None:
        consumer = self.consumer(retry_topics=[0.5, 30, 5400, 86400])
        assert consumer.retry_topic_names("orders") == (
            "orders.billing.retry.500ms",
            "orders.billing.retry.30s",
            "orders.billing.retry.90m",
            "orders.billing.retry.1d",
        )
        assert consumer.dead_letter_topic("orders") == "orders.billing.dlq"
        assert self.consumer(dead_letter_topic_name="dead").dead_letter_topic("orders") == "dead"

    @pytest.mark.parametrize("group", ["a b", "x" * 200])
    def test_a_name_that_kafka_does_not_allow_is_refused(self, group: str) -> None:
        consumer = load({"group": group}).settings.for_consumer("a")
        with pytest.raises(ConfigurationError, match="which Kafka does not allow"):
            consumer.dead_letter_topic("o" * 100)


class TestUnits:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            (5, 5),
            ("5", 5),
            (0.5, 0.5),
            ("500ms", 0.5),
            ("1h30m", 5400),
            ("1.5 s".replace(" ", ""), 1.5),
            ("14d", 1209600),
        ],
    )
    def test_durations(self, text: object, seconds: float) -> None:
        assert units.duration(text) == seconds

    @pytest.mark.parametrize(
        "wrong",
        ["", "s", "5x", "-1", "-5s", "nan", float("inf"), True, None, [], "1h 30", "9" * 400, 10**400],
    )
    def test_wrong_durations(self, wrong: object) -> None:
        with pytest.raises(ValueError, match="give seconds"):
            units.duration(wrong)

    @given(st.integers(1, 400 * 86_400_000))
    def test_a_shown_duration_is_read_back_the_same(self, milliseconds: int) -> None:
        assert round(units.duration(units.show_duration(milliseconds / 1000)) * 1000) == milliseconds

    @given(st.integers(0, 2**50))
    def test_a_shown_size_is_read_back_the_same(self, size: int) -> None:
        assert units.size(units.show_size(size)) == size

    @pytest.mark.parametrize(
        ("text", "size"),
        [
            (7, 7),
            ("64MiB", 64 * MIB),
            ("64Mi", 64 * MIB),
            ("1GB", 10**9),
            ("6.7108864e+07", 64 * MIB),
            ("1 KiB", 1024),
        ],
    )
    def test_sizes(self, text: object, size: int) -> None:
        assert units.size(text) == size

    @pytest.mark.parametrize("wrong", ["", "MiB", "5 apples", True, None, 1.5, "1.5", 10**400, "9" * 400])
    def test_wrong_sizes(self, wrong: object) -> None:
        with pytest.raises(ValueError, match="give bytes"):
            units.size(wrong)

    @pytest.mark.parametrize(
        ("text", "number"), [("1e+06", 1_000_000), ("20000", 20_000), (3.0, 3), (" 7 ", 7)]
    )
    def test_counts_as_helm_writes_them(self, text: object, number: int) -> None:
        assert units.count(text) == number

    @pytest.mark.parametrize(
        ("text", "start"),
        [
            ("Latest", "latest"),
            ("2026-01-31T08:00:00Z", 1_769_846_400_000),
            ("2026-01-31T09:00:00+01:00", 1_769_846_400_000),
            ("1769846400000", 1_769_846_400_000),
            (1_769_846_400_000, 1_769_846_400_000),
        ],
    )
    def test_starts(self, text: object, start: object) -> None:
        assert units.start(text) == start

    def test_a_time_in_yaml_is_a_start(self, yaml: Any) -> None:
        assert load(yaml_path=yaml("start: 2026-01-31T08:00:00Z")).settings.start == 1_769_846_400_000

    @pytest.mark.parametrize(
        "wrong", ["2026-01-31T08:00:00", "tomorrow", -1, True, None, 1.5, 1_769_846_400, 10**40]
    )
    def test_wrong_starts(self, wrong: object) -> None:
        with pytest.raises(ValueError, match="earliest, latest, stop"):
            units.start(wrong)

    @pytest.mark.parametrize(
        ("text", "delays"),
        [
            ("30s,5m", (30, 300)),
            ('["30s", 5]', (30, 5)),
            ([1, "2s"], (1, 2)),
            ("none", ()),
            ("[]", ()),
            (60, (60,)),
        ],
    )
    def test_lists(self, text: object, delays: tuple[float, ...]) -> None:
        assert load({"retry_topics": text}).settings.retry_topics == delays

    def test_none_is_a_value_where_it_is_allowed(self, yaml: Any) -> None:
        settings = load({"max_age": 5}, {}, None, {"max_age": "none"}).settings
        assert settings.max_age is None
        assert settings.origin("max_age").layer is Layer.COMMAND_LINE

    def test_brokers_and_topics(self) -> None:
        settings = load(
            {"brokers": "a:9092, SASL_SSL://b, [::1]:9093", "topics": "orders=orders-v2, x=y"}
        ).settings
        assert settings.brokers == ("a:9092", "SASL_SSL://b", "[::1]:9093")
        assert dict(settings.topics) == {"orders": "orders-v2", "x": "y"}
        assert "give pairs" in refused({"topics": "orders"})


class TestSums:
    def problems(
        self,
        keywords: dict[str, object] | None = None,
        declared: dict[str, object] | None = None,
        limit: int | None = None,
    ) -> list[tuple[Severity, str]]:
        settings = load({"group": "g", **(keywords or {})}).settings
        consumers = [settings.for_consumer("a", declared or {})]
        found = check_sums(settings, consumers, lambda: limit)
        assert all(problem.sentence.endswith(".") for problem in found)
        return [(problem.severity, problem.setting) for problem in found]

    def test_the_defaults_add_up(self) -> None:
        assert self.problems() == []
        assert self.problems(limit=512 * MIB) == []

    @pytest.mark.parametrize(
        ("keywords", "declared", "expected"),
        [
            ({"revoke_wait": 101}, {}, (Severity.ERROR, "revoke_wait")),
            ({"dwell": 31}, {}, (Severity.ERROR, "dwell")),
            ({"termination_grace": 25}, {}, (Severity.ERROR, "drain_timeout")),
            ({"termination_grace": 29}, {}, (Severity.WARNING, "drain_timeout")),
            ({}, {"timeout": 31}, (Severity.WARNING, "timeout")),
            ({}, {"concurrency": 2001}, (Severity.WARNING, "high_watermark_messages")),
            ({"retry_topic_retention": "7d"}, {}, (Severity.ERROR, "retry_topic_retention")),
            ({}, {"max_attempts": 2}, (Severity.WARNING, "max_attempts")),
            ({}, {"max_age": "10m"}, (Severity.WARNING, "max_age")),
            ({}, {"retry_topic_name": "r.{topic}.{delay}"}, (Severity.WARNING, "retry_topic_name")),
            (
                {},
                {"dead_letter": False, "dead_letter_max_per_minute": 5},
                (Severity.WARNING, "dead_letter_max_per_minute"),
            ),
            (
                {"kafka": {"consumer": {"group.instance.id": "pod-0"}}},
                {},
                (Severity.WARNING, "kafka.consumer.group.instance.id"),
            ),
        ],
    )
    def test_what_does_not_add_up_is_found(
        self, keywords: dict[str, object], declared: dict[str, object], expected: tuple[Severity, str]
    ) -> None:
        assert self.problems(keywords, declared) == [expected]

    def test_a_longer_poll_interval_allows_a_longer_wait(self) -> None:
        assert (
            self.problems({"revoke_wait": 200, "kafka": {"consumer": {"max.poll.interval.ms": 600_000}}})
            == []
        )

    def test_a_grace_period_that_fits_is_fine(self) -> None:
        assert self.problems({"termination_grace": 30}) == []

    def test_memory_is_compared_with_the_limit_of_setting_or_control_group(self) -> None:
        settings = load().settings
        needed = memory_needed(settings, second_consumer=True)
        assert needed == (80 + 32 + 2 * (64 + 16 + 50)) * MIB
        assert memory_needed(settings, second_consumer=False) == (80 + 32 + 64 + 16 + 50) * MIB
        assert self.problems(limit=needed) == []
        assert self.problems(limit=needed - 1) == [(Severity.WARNING, "high_watermark_bytes")]
        assert self.problems(limit=128 * MIB) == [(Severity.ERROR, "high_watermark_bytes")]
        assert self.problems({"memory_limit": "1GiB"}, limit=1) == []
        assert self.problems({"memory_limit": "300MiB"}) == [(Severity.WARNING, "high_watermark_bytes")]
        assert self.problems({"memory_limit": "300MiB"}, {"retry_topics": [], "dead_letter": False}) == []

    def test_errors_come_first(self) -> None:
        found = self.problems({"revoke_wait": 101}, {"concurrency": 2001, "max_attempts": 1})
        assert [severity for severity, _ in found] == [Severity.ERROR, Severity.WARNING, Severity.WARNING]

    @pytest.mark.parametrize(
        ("files", "limit"),
        [
            ({}, None),
            ({"sys/fs/cgroup/memory.max": "536870912\n"}, 536_870_912),
            ({"sys/fs/cgroup/memory.max": "max\n"}, None),
            (
                {
                    "proc/self/cgroup": "0::/pods/one\n",
                    "sys/fs/cgroup/pods/one/memory.max": "max",
                    "sys/fs/cgroup/pods/memory.max": "1000000",
                },
                1_000_000,
            ),
            (
                {
                    "proc/self/cgroup": "5:cpu:/\n4:memory,hugetlb:/docker/x\n",
                    "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "2000000",
                    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                },
                2_000_000,
            ),
            ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "3000000"}, 3_000_000),
        ],
    )
    def test_the_control_group_s_limit_v1_and_v2(
        self, tmp_path: Path, files: dict[str, str], limit: int | None
    ) -> None:
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        assert memory_limit_of_control_group(tmp_path) == limit


class TestDescription:
    def test_every_setting_is_described_once_with_its_origin(self) -> None:
        loaded = load(
            {"brokers": "a,b", "kafka": {"consumer": {"debug": "all"}}},
            {"STREAMLOOP_TIMEOUT": "90s", "STREAMLOOP_CONSUMERS__OTHER__CONCURRENCY": "3"},
        )
        consumer = loaded.settings.for_consumer("charge", {"concurrency": 7})
        rows = {row.name: row for row in describe(loaded, [consumer])}
        assert set(rows) == NAMES.settings | {
            "kafka.consumer.debug",
            "consumers.charge.concurrency",
            "consumers.other.concurrency",
        }
        assert (rows["brokers"].value, rows["brokers"].text) == (["a", "b"], "a, b")
        assert (rows["timeout"].value, rows["timeout"].text) == (90.0, "90s")
        assert rows["timeout"].origin == "environment variable STREAMLOOP_TIMEOUT"
        assert rows["high_watermark_bytes"].text == "64MiB"
        assert rows["retry_topics"].text == "30s, 5m, 30m"
        assert rows["group_protocol"].origin == "default"
        assert rows["consumers.charge.concurrency"].origin == "keyword concurrency of the consumer 'charge'"
        json.dumps([row.value for row in rows.values()])

    def test_a_text_that_is_shown_is_read_back_the_same(self) -> None:
        shown = {row.name: row.text for row in describe(load()) if row.text and not is_secret((row.name,))}
        again = load(command_line=dict(shown)).settings
        assert again.model_dump() == load({"member": shown["member"]}).settings.model_dump()

    def test_the_schema_knows_every_setting_and_nothing_else(self) -> None:
        schema = json_schema()
        assert set(schema["properties"]) == NAMES.settings | {"kafka", "consumers"}
        assert schema["additionalProperties"] is False
        overrides = schema["$defs"]["ConsumerOverrides"]["properties"]
        assert set(overrides) == NAMES.consumer
        assert not [name for name, each in overrides.items() if "default" in each]
        assert all(each.get("description") for each in schema["properties"].values())
        assert '"ge"' not in json.dumps(schema)

    def test_the_documentation_s_table_is_the_model_s(self, tmp_path: Path) -> None:
        page = Path(__file__).parents[1] / "docs" / "settings.md"
        copy = tmp_path / "settings.md"
        copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
        assert not write_reference(copy), "run: python -m streamloop.settings.reference docs/settings.md"
