"""Where failed messages go: names, partitions, and what a target that changes or refuses means."""

from __future__ import annotations

from typing import Any

import pytest

from streamloop.engine.consumer import ConsumerSpec, ConsumerState, Intake
from streamloop.engine.events import Route, Target, TopicPartition
from streamloop.engine.gate import Capacity
from streamloop.engine.ledger import Ledger
from streamloop.engine.metadata import Identity
from streamloop.engine.partition import Partition
from streamloop.engine.record import Record
from streamloop.engine.retry import Failure, Kind
from streamloop.errors import TopicError
from streamloop.kafka import headers as hd
from streamloop.kafka.publishing import Report, ReportKind
from streamloop.routing import RetryTopic, Router, SourceTopic, TargetFacts, Topics

GROUP = "billing"
SOURCE = SourceTopic("orders", 0, (RetryTopic("orders.retry.30s", 30.0),), "orders.dlq")
FAILURE = Failure(Kind.TRANSIENT, "shop.Declined", "no", "0123456789abcdef")


class Raw:
    """A broker's record."""

    def __init__(self, topic: str, partition: int, headers: hd.RawHeaders | None = None) -> None:
        self._topic = topic
        self._partition = partition
        self._headers = headers

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return 7

    def key(self) -> bytes | None:
        return b"k"

    def value(self) -> bytes | None:
        return b"v" * 100

    def headers(self) -> hd.RawHeaders | None:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000


def record(topic: str, partition: int, headers: hd.RawHeaders | None = None) -> Record:
    made = Record(7, b"k", 100, 0, Raw(topic, partition, headers))
    intake = Intake(0, Capacity(10, 10_000), retries=False)
    state = ConsumerState(0, ConsumerSpec("charge"))
    made.part = Partition(TopicPartition(topic, partition), 1, intake, state, 0, Ledger(0, Identity()))
    return made


def route(made: Record, target: Target = Target.DEAD_LETTER) -> Route:
    return Route(made, target, 0 if target is Target.RETRY else -1, FAILURE, 1)


def topics(**facts: TargetFacts) -> Topics:
    made = Topics()
    made.add(SOURCE)
    made.facts.update({name.replace("_", "."): each for name, each in facts.items()})
    return made


class TestTopics:
    def test_a_topic_has_one_role(self) -> None:
        made = topics()
        with pytest.raises(TopicError, match="orders is used twice"):
            made.add(SourceTopic("orders", 1))
        with pytest.raises(TopicError, match=r"orders\.retry\.30s is used twice"):
            made.add(SourceTopic("orders.retry.30s", 1))

    def test_a_retry_topic_belongs_to_its_source_and_has_its_hop(self) -> None:
        made = topics()
        assert (made.role("orders").hop, made.role("orders.retry.30s").hop) == (0, 1)
        assert made.delay_of("orders.retry.30s") == 30.0
        assert made.delay_of("orders") == 0.0


class TestPartitions:
    def test_D11_fewer_partitions_than_the_source_a_stable_rule(self) -> None:
        router = Router(topics(orders_dlq=TargetFacts(3)), GROUP)
        chosen = [router.request(n, route(record("orders", n)), 0.0).partition for n in range(7)]
        assert chosen == [0, 1, 2, 0, 1, 2, 0]

    def test_of_a_record_from_a_retry_topic_the_original_partition_counts(self) -> None:
        router = Router(topics(orders_dlq=TargetFacts(10), orders_retry_30s=TargetFacts(2)), GROUP)
        first = router.request(1, route(record("orders", 9), Target.RETRY), 0.0)
        assert first.partition == 1
        again = record("orders.retry.30s", 1, first.headers)
        assert router.request(2, route(again), 0.0).partition == 9

    def test_a_target_with_another_number_of_partitions_gets_what_is_outstanding_anew(self) -> None:
        made = topics(orders_dlq=TargetFacts(4))
        router = Router(made, GROUP)
        for number in range(4):
            router.request(number, route(record("orders", number)), 0.0)
        made.facts["orders.dlq"].partitions = 2
        moved = {request.id: request.partition for request in router.retarget("orders.dlq")}
        assert moved == {2: 0, 3: 1}
        assert router.retarget("orders.dlq") == []
        assert router.fresh(3).partition == 1


class TestRefusals:
    def report(self, kind: ReportKind) -> Report:
        return Report(1, kind, "orders.dlq", 0, -1, 10, "too large")

    def test_D5_headers_go_first_and_the_value_is_never_cut(self) -> None:
        huge: hd.RawHeaders = [("trace", b"x" * 5_000)]
        value: Any = b"v" * 100
        router = Router(topics(orders_dlq=TargetFacts(1, 1_000)), GROUP)
        whole = router.request(1, route(record("orders", 0, huge)), 0.0)
        again = router.refused(self.report(ReportKind.TOO_LARGE))
        assert again.delay == 0.0
        assert again.reason == ""
        assert again.request.value == value
        assert hd.record_size(b"k", value, again.request.headers) <= 1_000
        assert router.fresh(1).headers == whole.headers

    def test_D5_what_can_not_fit_is_held_with_the_setting_to_change_and_tried_again_whole(self) -> None:
        router = Router(topics(orders_dlq=TargetFacts(1, 150)), GROUP)
        whole = router.request(1, route(record("orders", 0)), 0.0)
        again = router.refused(self.report(ReportKind.TOO_LARGE))
        assert "max.message.bytes" in again.reason
        assert again.delay > 0
        assert again.request.headers == whole.headers

    def test_D5_with_an_unknown_limit_less_and_less_is_tried_until_nothing_is_left_to_leave_out(self) -> None:
        router = Router(topics(orders_dlq=TargetFacts(1, None)), GROUP)
        router.request(1, route(record("orders", 0, [("mine", b"x" * 10_000)])), 0.0)
        sizes = []
        for _ in range(60):
            again = router.refused(self.report(ReportKind.TOO_LARGE))
            if again.reason:
                break
            sizes.append(hd.headers_size(again.request.headers))
        assert sizes == sorted(sizes, reverse=True)
        assert "max.message.bytes" in again.reason

    def test_a_refused_record_is_held_and_tried_again(self) -> None:
        router = Router(topics(orders_dlq=TargetFacts(1)), GROUP)
        router.request(1, route(record("orders", 0)), 0.0)
        again = router.refused(self.report(ReportKind.REFUSED))
        assert "orders.dlq refuses this record" in again.reason
        assert again.delay > 0
