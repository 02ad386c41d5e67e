"""The properties of our Kafka clients: what is set, what is refused and why, and what librdkafka itself
refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from streamloop.build import make_consumer, stall_after
from streamloop.errors import ConfigurationError
from streamloop.kafka import config
from streamloop.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hunter2-very-secret"


def settings(keywords: dict[str, object] | None = None, **env: str) -> Settings:
    given = {"brokers": "a:9092,b:9092", "group": "billing", "member": "pod-1", **(keywords or {})}
    return Settings.load(given, env).settings


def passing(section: str, **properties: object) -> Settings:
    return settings(
        {"kafka": {section: {name.replace("_", "."): value for name, value in properties.items()}}}
    )


def refusal(given: Settings) -> str:
    with pytest.raises(ConfigurationError) as caught:
        config.check_properties(given)
    return str(caught.value)


class TestConsumers:
    @pytest.mark.parametrize("protocol", ["consumer", "classic"])
    def test_a_consumer_commits_nothing_and_jumps_nowhere_by_itself(
        self, protocol: Literal["consumer", "classic"]
    ) -> None:
        made = config.consumer_config(settings(), protocol)
        assert {
            "bootstrap.servers": "a:9092,b:9092",
            "group.id": "billing",
            "client.id": "pod-1",
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,
            "queued.max.messages.kbytes": 16384,
        }.items() <= made.items()

    def test_the_classic_protocol_is_cooperative_and_the_new_one_has_no_classic_properties(self) -> None:
        given = passing("consumer", session_timeout_ms=10_000, heartbeat_interval_ms=1_000)
        classic = config.consumer_config(given, "classic")
        assert classic["partition.assignment.strategy"] == "cooperative-sticky"
        assert (classic["session.timeout.ms"], classic["heartbeat.interval.ms"]) == (10_000, 1_000)
        assert not config.CLASSIC_ONLY & config.consumer_config(given, "consumer").keys()

    def test_retry_topics_are_read_by_a_group_of_their_own(self) -> None:
        made = config.retry_consumer_config(settings(), "consumer")
        assert (made["group.id"], made["client.id"]) == ("billing.retry", "pod-1-retry")

    @pytest.mark.parametrize("protocol", ["consumer", "classic"])
    def test_librdkafka_takes_every_config_we_make(self, protocol: Literal["consumer", "classic"]) -> None:
        given = settings()
        for make in (config.consumer_config, config.retry_consumer_config):
            client = Consumer({**make(given, protocol), "bootstrap.servers": "", "log_level": 0})
            client.close()
        for made in (
            config.producer_config(given),
            config.solo_producer_config(given, message_max_bytes=50_000_000),
        ):
            Producer({**made, "bootstrap.servers": "", "log_level": 0})
        AdminClient({**config.admin_config(given), "bootstrap.servers": "", "log_level": 0})

    def test_what_is_passed_for_all_and_for_one_kind_arrives_there(self) -> None:
        given = settings(
            {
                "kafka": {
                    "common": {"socket.keepalive.enable": True, "fetch.queue.backoff.ms": 7},
                    "consumer": {"fetch.message.max.bytes": 10},
                    "producer": {"queue.buffering.max.ms": 1},
                    "admin": {"request.timeout.ms": 9},
                }
            }
        )
        consumer = config.consumer_config(given, "classic")
        assert consumer["fetch.queue.backoff.ms"] == 7
        assert consumer["max.partition.fetch.bytes"] == 10
        assert consumer["socket.keepalive.enable"] == "true"
        assert "linger.ms" not in consumer
        assert config.producer_config(given)["linger.ms"] == 1
        assert "queue.buffering.max.ms" not in config.producer_config(given)
        assert config.admin_config(given)["request.timeout.ms"] == 9


class TestProducers:
    def test_the_producer_is_idempotent_and_places_keys_as_java_does(self) -> None:
        made = config.producer_config(settings(), message_max_bytes=2_000_000)
        assert {
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "delivery.timeout.ms": 30_000,
            "queue.buffering.max.kbytes": 32_768,
            "message.max.bytes": 2_000_000,
            "client.id": "pod-1-producer",
        }.items() <= made.items()
        assert "message.max.bytes" not in config.producer_config(settings())

    def test_D17_the_solo_producer_sends_each_record_alone(self) -> None:
        made = config.solo_producer_config(passing("producer", batch_num_messages=500))
        assert (made["batch.num.messages"], made["linger.ms"]) == (1, 0)
        assert made["enable.idempotence"] is True


class TestSecurity:
    def test_security_settings_become_properties(self) -> None:
        given = settings(
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "SCRAM-SHA-512",
                "sasl_username": "me",
                "ssl_ca_location": "/ca.pem",
            },
            STREAMLOOP_SASL_PASSWORD=SECRET,
            STREAMLOOP_KAFKA__COMMON__SSL_KEYSTORE_PASSWORD=SECRET,
        )
        for made in (
            config.consumer_config(given, "consumer"),
            config.producer_config(given),
            config.admin_config(given),
        ):
            assert {
                "security.protocol": "sasl_ssl",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "me",
                "sasl.password": SECRET,
                "ssl.ca.location": "/ca.pem",
                "ssl.keystore.password": SECRET,
            }.items() <= made.items()

    def test_one_thing_said_twice_is_refused_without_telling_it(self) -> None:
        given = settings({"sasl_password": SECRET, "kafka": {"common": {"sasl.password": SECRET + "2"}}})
        assert refusal(given) == (
            "kafka.common.sasl.password (keyword kafka.common.sasl.password) is refused: the setting "
            "sasl_password "
            "(keyword sasl_password) says the same; keep one of them."
        )

    def test_certificates_that_are_missing_are_found_without_a_broker(self, tmp_path: Path) -> None:
        missing = tmp_path / "ca.pem"
        text = refusal(settings({"security_protocol": "sasl_ssl", "ssl_ca_location": missing}))
        assert text.startswith(
            "ssl_ca_location (keyword ssl_ca_location) is not valid: ssl.ca.location failed"
        )

    def test_checking_logs_in_nowhere_and_needs_no_token(self) -> None:
        config.check_properties(
            settings(
                {
                    "security_protocol": "sasl_plaintext",
                    "sasl_mechanism": "OAUTHBEARER",
                    "kafka": {
                        "common": {
                            "sasl.oauthbearer.method": "oidc",
                            "sasl.oauthbearer.client.id": "me",
                            "sasl.oauthbearer.client.secret": SECRET,
                            "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token",
                        }
                    },
                }
            )
        )


class TestRefused:
    @pytest.mark.parametrize(
        ("section", "name", "value", "words"),
        [
            ("consumer", "enable.auto.commit", True, "committed only after its message is acknowledged"),
            ("common", "enable.auto.commit", "true", "committed only after its message is acknowledged"),
            ("consumer", "auto.commit.enable", "true", "committed only after its message is acknowledged"),
            ("consumer", "enable.auto.offset.store", 1, "committed only after its message is acknowledged"),
            ("consumer", "auto.offset.reset", "earliest", "use start and out_of_range"),
            ("consumer", "isolation.level", "read_uncommitted", "aborted transactions"),
            ("consumer", "enable.partition.eof", False, "it must be true"),
            ("consumer", "partition.assignment.strategy", "range,roundrobin", "takes every partition away"),
            ("consumer", "group.id", "x", "use the setting group instead"),
            ("consumer", "group.protocol", "classic", "use the setting group_protocol instead"),
            ("common", "bootstrap.servers", "x:1", "use the setting brokers instead"),
            ("common", "metadata.broker.list", "x:1", "use the setting brokers instead"),
            ("common", "client.id", "x", "use the setting client_id instead"),
            ("consumer", "queued.max.messages.kbytes", 1, "use the setting prefetch_bytes instead"),
            ("producer", "queue.buffering.max.kbytes", 1, "use the setting producer_queue_bytes instead"),
            ("producer", "acks", 1, "all in-sync replicas"),
            ("producer", "request.required.acks", 0, "all in-sync replicas"),
            ("producer", "enable.idempotence", False, "duplicate and reorder"),
            ("producer", "max.in.flight.requests.per.connection", 6, "at most 5 requests in flight"),
            ("producer", "partitioner", "consistent_random", "Java clients"),
            ("producer", "delivery.timeout.ms", 100, "at least 5000"),
            ("producer", "message.timeout.ms", 0, "at least 5000"),
            ("producer", "transactional.id", "x", "fence the other members"),
            ("producer", "message.max.bytes", 5_000_000, "the broker decides what fits"),
            ("producer", "delivery.report.only.error", True, "report of its delivery"),
            ("common", "error_cb", "x", "owns the callbacks"),
            ("common", "oauth_cb", "x", "gets the token"),
        ],
    )
    def test_what_would_break_a_promise_is_refused_with_the_reason(
        self, section: str, name: str, value: object, words: str
    ) -> None:
        given = settings({"kafka": {section: {name: value}}})
        text = refusal(given)
        assert text.startswith(f"kafka.{section}.{name} (keyword kafka.{section}.{name}) is refused: ")
        assert words in text
        if section != "producer":
            with pytest.raises(ConfigurationError):
                config.consumer_config(given, "consumer")
        else:
            with pytest.raises(ConfigurationError):
                config.producer_config(given)

    def test_a_value_that_is_already_ours_is_accepted(self) -> None:
        given = settings(
            {
                "kafka": {
                    "consumer": {
                        "enable.auto.commit": False,
                        "enable.partition.eof": "true",
                        "isolation.level": "READ_COMMITTED",
                        "partition.assignment.strategy": "cooperative-sticky",
                    },
                    "producer": {"acks": -1, "enable.idempotence": True, "max.in.flight": 5},
                }
            }
        )
        config.check_properties(given)
        assert config.producer_config(given)["acks"] == "all"

    @pytest.mark.parametrize("name", ["session.timeout.ms", "heartbeat.interval.ms"])
    def test_with_the_new_protocol_the_broker_decides_the_session(self, name: str) -> None:
        given = settings({"group_protocol": "consumer", "kafka": {"consumer": {name: 9_000}}})
        assert f"the broker decides it (group.consumer.{name}" in refusal(given)
        for protocol in ("auto", "classic"):
            config.check_properties(
                settings({"group_protocol": protocol, "kafka": {"consumer": {name: 9_000}}})
            )

    def test_a_short_poll_interval_is_refused_where_the_classic_protocol_was_asked_for_only(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        short: dict[str, object] = {"kafka": {"consumer": {"max.poll.interval.ms": 30_000}}}
        assert "max.poll.interval.ms" in refusal(settings({**short, "group_protocol": "classic"}))
        config.check_properties(settings({**short, "group_protocol": "consumer"}))
        automatic = settings(short)
        config.check_properties(automatic)
        # Where the broker has only the classic protocol, its session is as short, and that is said.
        assert config.consumer_config(automatic, "classic")["session.timeout.ms"] == 30_000
        assert "session.timeout.ms" not in config.consumer_config(automatic, "consumer")
        with caplog.at_level("WARNING"):
            make_consumer(automatic, config.consumer_config, "consumer", {}).close()
            assert "session.timeout.ms" not in caplog.text
            make_consumer(automatic, config.consumer_config, "classic", {}).close()
        assert "30000 is used instead of the default 45000" in caplog.text
        # A member that stood still for half of it is no longer sure of its partitions.
        assert stall_after(automatic) == 10
        shorter = settings({"kafka": {"consumer": {"max.poll.interval.ms": "8000"}}})
        assert stall_after(shorter) == 4
        # What the user says of the session stands, and is refused where it contradicts.
        kept = {"max.poll.interval.ms": 30_000, "session.timeout.ms": 20_000}
        assert (
            config.consumer_config(settings({"kafka": {"consumer": kept}}), "classic")["session.timeout.ms"]
            == 20_000
        )
        assert "session.timeout.ms" in refusal(
            settings({"kafka": {"consumer": {**kept, "session.timeout.ms": 40_000}}})
        )

    def test_static_membership_is_allowed(self) -> None:
        config.check_properties(passing("consumer", group_instance_id="pod-0"))


class TestLibrdkafka:
    @pytest.mark.parametrize(
        ("section", "name", "value", "words"),
        [
            (
                "consumer",
                "max.poll.intervall.ms",
                1,
                "is not a librdkafka property: did you mean max.poll.interval.ms?",
            ),
            ("common", "xyzzy", 1, "is not a librdkafka property: see librdkafka's CONFIGURATION.md."),
            (
                "consumer",
                "max.poll.interval.ms",
                "soon",
                "is not valid: Invalid value for configuration property",
            ),
            ("producer", "compression.codec", "best", "is not valid: Invalid value"),
            ("consumer", "max.poll.interval.ms", 1_000, "must be >= `session.timeout.ms`"),
            ("admin", "socket.timeout.ms", 1, "is not valid"),
        ],
    )
    def test_what_librdkafka_does_not_take_is_named_with_its_place(
        self, section: str, name: str, value: object, words: str
    ) -> None:
        text = refusal(settings({"kafka": {section: {name: value}}}))
        assert text.startswith(f"kafka.{section}.{name} (keyword kafka.{section}.{name}) ")
        assert words in text
        assert len(text.splitlines()) <= 2

    def test_a_secret_with_a_wrong_name_is_not_told(self) -> None:
        text = refusal(settings({"kafka": {"common": {"sasl.pasword": SECRET}}}))
        assert "did you mean sasl.password?" in text
        assert SECRET not in text

    def test_librdkafka_s_words_do_not_tell_a_secret(self) -> None:
        given = settings({"security_protocol": "ssl", "kafka": {"common": {"ssl.key.pem": SECRET}}})
        assert SECRET not in refusal(given)

    def test_without_brokers_there_is_no_config(self) -> None:
        with pytest.raises(ConfigurationError, match="brokers is not set"):
            config.consumer_config(Settings.load({"group": "g"}, {}).settings, "classic")

    def test_properties_can_be_checked_before_brokers_and_group_are_known(self) -> None:
        config.check_properties(Settings.load({}, {}).settings)

    def test_no_builder_changes_what_another_gets(self) -> None:
        given = settings()
        first: dict[str, Any] = config.consumer_config(given, "classic")
        first["group.id"] = "changed"
        assert config.consumer_config(given, "classic")["group.id"] == "billing"
