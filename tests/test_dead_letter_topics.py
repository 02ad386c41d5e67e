"""Which topics are a group's dead-letter topics: by name, by the loop, or as they are named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streamloop.dlq.reading import ReadError
from streamloop.dlq.topics import DeadTopic, dead_letter_topics, matching
from streamloop.errors import ConfigurationError
from streamloop.settings import Settings


def found(*there: str, settings: Settings | None = None, **options: Any) -> list[DeadTopic]:
    asked = []

    class Client:
        def __init__(self, config: dict[str, Any]) -> None:
            assert config["bootstrap.servers"] == "kafka:9092"

        def list_topics(self, *names: str, timeout: float) -> Any:
            asked.append(names)
            return SimpleNamespace(topics=dict.fromkeys(there))

    given = settings or Settings(brokers=("kafka:9092",), group="billing")
    answer = dead_letter_topics(given, client_factory=Client, **options)
    assert asked == [()]  # never by name: some brokers would create it
    return answer


def test_topics_of_the_group_by_their_names() -> None:
    assert found(
        "orders",
        "orders.billing.dlq",
        "payments.billing.dlq",
        "orders.billing.retry.30s",
        "orders.other.dlq",
        "x.billing.dlq.more",
    ) == [DeadTopic("orders.billing.dlq", "orders"), DeadTopic("payments.billing.dlq", "payments")]


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (["orders", "orders.eu.billing.dlq"], []),  # of orders and the group eu.billing
        (["orders.eu", "orders.eu.billing.dlq"], [("orders.eu.billing.dlq", "orders.eu")]),
        (["orders", "orders.eu", "orders.eu.billing.dlq"], [("orders.eu.billing.dlq", "orders.eu")]),
        (["orders.eu.billing.dlq"], [("orders.eu.billing.dlq", "orders.eu")]),
    ],
)
def test_a_name_that_two_groups_could_have_is_told_by_the_source_that_exists(
    there: list[str], expected: list[tuple[str, str]]
) -> None:
    assert matching("{topic}.{group}.dlq", "billing", there) == expected


def test_other_templates() -> None:
    assert matching("dead-{group}", "billing", ["dead-billing"]) == [("dead-billing", None)]
    assert matching("dead-{group}", "billing", ["dead-other"]) == []
    assert matching("dlq.{topic}", "billing", ["dlq.a", "dlq."]) == [("dlq.a", "a")]
    assert matching("{topic}-{topic}.dlq", "g", ["a-a.dlq", "a-b.dlq"]) == [("a-a.dlq", "a")]
    assert matching("{topic}", "g", ["orders"]) == []
    assert matching("a+{topic}.{group}", "g.", ["a+b.g.", "aab.gx"]) == [("a+b.g.", "b")]


def test_consumers_with_names_of_their_own_are_known_from_the_settings() -> None:
    settings = Settings(
        brokers=("kafka:9092",),
        group="billing",
        consumers={"charge": {"dead_letter_topic_name": "broken.{topic}"}},
    )
    assert found("broken.orders", "orders.billing.dlq", settings=settings) == [
        DeadTopic("broken.orders", "orders"),
        DeadTopic("orders.billing.dlq", "orders"),
    ]


def test_of_a_loop_only_its_consumers_topics_that_exist() -> None:
    sources = [("orders", "orders.billing.dlq"), ("refunds", "refunds.billing.dlq")]
    assert found("orders.billing.dlq", "payments.billing.dlq", sources=sources) == [
        DeadTopic("orders.billing.dlq", "orders")
    ]


def test_topics_that_are_named_need_no_group_but_have_to_exist() -> None:
    settings = Settings(brokers=("kafka:9092",))
    assert found("connect-dlq", settings=settings, named=["connect-dlq", "connect-dlq"]) == [
        DeadTopic("connect-dlq")
    ]
    with pytest.raises(ReadError, match="The topic nothing does not exist on kafka:9092"):
        found("connect-dlq", settings=settings, named=["nothing"])
    with pytest.raises(ConfigurationError, match="Whose dead letters"):
        dead_letter_topics(settings)
