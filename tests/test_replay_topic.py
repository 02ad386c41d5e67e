"""What a replayed dead letter meets in the loop: its plan anew, its past kept, its trace gone on with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamloop import Message, Reject, StreamLoop
from streamloop.testing import Harness
from tests.tracing import links, parent_id, span_id, trace_id, use_provider

if TYPE_CHECKING:
    import pytest

DAY = 86_400.0


class Service:
    """A handler that can be mended."""

    def __init__(self, **settings: Any) -> None:
        self.broken = True
        self.seen: list[tuple[str, int, int, int, str | None, int]] = []
        self.loop: StreamLoop[Any] = StreamLoop("billing", brokers="nobody:1")

        @self.loop.consumer("orders", **settings)
        async def charge(value: bytes, message: Message) -> None:
            self.seen.append(
                (
                    message.delivery.topic,
                    message.partition,
                    message.offset,
                    message.attempt,
                    message.replay_id,
                    message.replay_count,
                )
            )
            if self.broken:
                raise ConnectionError("the card service is away")


def test_P4_a_replay_starts_attempts_and_age_anew_and_keeps_where_it_came_from() -> None:
    service = Service(retry_topics=["30s"], in_place_attempts=2, max_age="1h")
    with Harness(service.loop, partitions=2) as kafka:
        kafka.send("orders", b"first", partition=1)
        sent = kafka.send("orders", b"1", key=b"k", headers={"h": b"\xff"}, partition=1)
        kafka.run()
        assert [message[3] for message in service.seen if message[2] == 1] == [1, 2, 3]
        kafka.advance(DAY)  # by its first failure it would be too old for any retry
        service.seen.clear()
        back = kafka.replay()
        assert [(record.topic, record.partition) for record in back] == [("orders.billing.replay", 1)] * 2
        kafka.run()
        mine = [message for message in service.seen if message[2] == sent.offset]
        replay, retry = "orders.billing.replay", "orders.billing.retry.30s"
        assert mine == [
            (replay, 1, 1, 1, "harness", 1),
            (replay, 1, 1, 2, "harness", 1),
            (retry, 1, 1, 3, "harness", 1),
        ]
        dead = next(each for each in kafka.dead_letters()[2:] if each.value == b"1")
        assert (dead.original, dead.attempt, dead.key, dead.value) == (("orders", 1, 1), 3, b"k", b"1")
        assert dead.user_headers == (("h", b"\xff"),)
        assert dead.header("streamloop-replay-count") == "1"
        [before] = [each for each in kafka.dead_letters("orders") if each.value == b"1"][:1]
        place = f"{before.topic}/{before.partition}/{before.offset}"
        assert dead.header("streamloop-replayed-from") == place
        service.broken = False
        kafka.replay()
        kafka.run()
        assert service.seen[-1][:6] == (replay, 1, 1, 1, "harness", 2)
        assert kafka.outcomes("orders")[-1].outcome.value == "acked"
        assert kafka.replay() == []


def test_P4_a_record_put_into_the_replay_topic_by_hand_has_its_whole_plan_too() -> None:
    service = Service(retry_topics=["30s"], in_place_attempts=2, max_attempts=3, max_age="1h")
    with Harness(service.loop, partitions=1) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
        [dead] = kafka.dead_letters()
        kafka.advance(DAY)
        service.seen.clear()
        kafka.send("orders.billing.replay", dead.value, headers=list(dead.headers))  # as kcat would copy it
        kafka.run()
        assert [(message[2], message[3]) for message in service.seen] == [(0, 1), (0, 2), (0, 3)]


def test_a_loop_without_retry_topics_reads_its_replay_topic() -> None:
    service = Service(retry_topics=[], in_place_attempts=1)
    with Harness(service.loop, partitions=1) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
        service.broken = False
        kafka.replay()
        kafka.run()
        assert [message[0] for message in service.seen] == ["orders", "orders.billing.replay"]
        assert kafka.committed("orders.billing.replay") == {0: 1}
        status = service.loop.status()
        assert status is not None
        assert [(intake.group, intake.topics) for intake in status.intakes] == [
            ("billing", ("orders",)),
            ("billing.retry", ("orders.billing.replay",)),
        ]


def test_strict_order_replays_in_place() -> None:
    service = Service(retry_topics=[], strict_order=True, in_place_attempts=3)
    with Harness(service.loop, partitions=1) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
        service.seen.clear()
        kafka.replay()
        kafka.run()
        assert [message[3] for message in service.seen] == [1, 2, 3]
        assert len(kafka.dead_letters()) == 2


def test_a_permanent_failure_of_a_replay_is_dead_at_once() -> None:
    loop: StreamLoop[Any] = StreamLoop("billing", brokers="nobody:1")

    @loop.consumer("orders")
    async def charge(value: bytes) -> None:
        raise Reject("no such customer")

    with Harness(loop, partitions=1) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
        kafka.replay()
        kafka.run()
        first, second = kafka.dead_letters()
        assert first.header("streamloop-replay-id") is None
        assert second.header("streamloop-replay-id") == "harness"


def traced(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[list[Any], list[Any]]:
    """The spans of a message's attempts before and after its replay."""
    spans = use_provider(monkeypatch)
    service = Service(retry_topics=[], in_place_attempts=1)
    headers, _ = spans.produced()
    with Harness(service.loop, partitions=1, **settings) as kafka:
        kafka.send("orders", b"1", headers=headers)
        kafka.run()
        kafka.replay()
        kafka.run()
    return spans.all("process orders"), spans.all("send ")


def test_T1_a_replay_goes_on_in_the_messages_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, again), (sent, _) = traced(monkeypatch)
    assert again.name == "process orders.billing.replay"
    assert trace_id(again) == trace_id(first)
    assert parent_id(again) == span_id(sent)


def test_T1_a_replay_is_a_trace_of_its_own_linked_to_the_messages_when_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (first, again), (sent, dead) = traced(monkeypatch, replay_trace="link")
    assert trace_id(again) != trace_id(first)
    assert again.parent is None
    assert links(again) == [span_id(sent)]
    assert trace_id(dead) == trace_id(again)  # later hops are of the new one
