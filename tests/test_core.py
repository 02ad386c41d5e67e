"""The core with engine, runners and routing: back-pressure, retry, dead letter, decoding, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack  # type: ignore[import-untyped]
import pytest
from pydantic import BaseModel

from streamloop import ConfigurationError, Fatal, Message, Reject, Retry, StreamLoop, Unavailable
from streamloop.engine.engine import Engine
from streamloop.kafka.headers import headers_size
from streamloop.testing import Harness, HarnessError, Outcome, partition_of
from tests.loops import billing

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamloop import Failure


async def do_nothing(value: bytes) -> None:
    return


async def fail(value: bytes) -> None:
    raise ValueError("bad luck")


# --------------------------------------------------------------------------------- back-pressure and stalls


def test_B6_handlers_of_25_s_stop_neither_intake_nor_commits_nor_other_keys() -> None:
    async def handle(value: str) -> None:
        await asyncio.sleep(25 if value == "slow" else 0.01)

    with Harness(billing(handle), partitions=3) as kafka:
        for partition in range(3):
            kafka.send("orders", "fast", partition=partition, key=f"f{partition}")
            kafka.send("orders", "slow", partition=partition, key=f"s{partition}")
        for second in range(1, 20):
            kafka.advance(1)
            fast = kafka.send("orders", "fast", partition=second % 3, key="another")
            kafka.advance(0.1)
            assert kafka.outcome(fast).outcome is Outcome.ACKED
        assert kafka.committed("orders") == {0: 1, 1: 1, 2: 1}
        assert {each.state for each in kafka.pending()} == {"PROCESSING"}
        kafka.run()
        assert kafka.pending() == []
        assert {each.outcome for each in kafka.outcomes()} == {Outcome.ACKED}


def test_B7_five_percent_that_always_fail_do_not_slow_the_others() -> None:
    async def handle(value: str) -> None:
        if int(value) % 20 == 0:
            raise ValueError("always")

    loop = billing(handle)
    with Harness(loop, high_watermark_messages=200, seed=7) as kafka:
        for number in range(4000):
            kafka.send("orders", str(number), key=str(number))
        kafka.advance(25)
        outcomes = kafka.outcomes()
        healthy = [each for each in outcomes if int(each.value or b"0") % 20]
        assert len(healthy) == 3800
        assert {each.outcome for each in healthy} == {Outcome.ACKED}
        assert max(each.attempts[0].started for each in healthy) < kafka.now - 5
        status = loop.status()
        assert status is not None
        assert status.intakes[0].peak_messages <= 200
        assert status.intakes[0].buffered == 0
        assert len(kafka.retries()) == 200
        kafka.run()
        assert len(kafka.dead_letters()) == 200
        assert kafka.pending() == []


def test_B8_one_slow_key_lets_the_others_go_on_until_the_gap_limit_which_names_it() -> None:
    async def handle(value: str) -> None:
        await asyncio.sleep(600 if value == "slow" else 0)

    loop = billing(handle, timeout=700)
    with Harness(loop, gap_limit=50, partitions=1, high_watermark_messages=20) as kafka:
        kafka.send("orders", "slow", key="s")
        for number in range(200):
            kafka.send("orders", "fast", key=str(number))
        kafka.advance(5)
        acked = [each for each in kafka.outcomes() if each.outcome is Outcome.ACKED]
        assert 50 <= len(acked) <= 50 + 20
        status = loop.status()
        assert status is not None
        [partition] = status.partitions[:1]
        assert "orders/0 takes no new messages: offset 0 (PROCESSING" in partition.held["gap"]
        assert "gap_limit=50" in partition.held["gap"]
        assert partition.holder is not None
        assert (partition.holder.offset, partition.holder.state) == (0, "PROCESSING")
        kafka.run()
        assert {each.outcome for each in kafka.outcomes()} == {Outcome.ACKED}
        assert kafka.committed("orders") == {0: 201}


def test_B1_what_is_buffered_never_exceeds_the_high_watermark() -> None:
    async def handle(value: bytes) -> None:
        await asyncio.sleep(1)

    loop = billing(handle, concurrency=5)
    with Harness(loop, high_watermark_messages=30) as kafka:
        for _ in range(200):
            kafka.send("orders", b"x")
        kafka.run()
        status = loop.status()
        assert status is not None
        assert status.intakes[0].peak_messages == 30
        assert len(kafka.outcomes()) == 200


def test_D10_processing_and_back_off_may_take_longer_than_the_longest_poll_interval() -> None:
    async def handle(value: str) -> None:
        if value == "long":
            await asyncio.sleep(400)
            raise Retry(after=400)

    loop = billing(handle, timeout=1000, in_place_attempts=2, retry_topics=())
    with Harness(loop) as kafka:
        long = kafka.send("orders", "long", key="k")
        for _ in range(10):
            kafka.advance(100)
            other = kafka.send("orders", "short", key="k2")
            kafka.advance(1)
            assert kafka.outcome(other).outcome is Outcome.ACKED
        kafka.run()
        assert len(kafka.outcome(long).attempts) == 2
        assert kafka.exit_code is None


# ---------------------------------------------------------------------------------- retry and dead letter


def test_D3_D4_after_fifty_hops_the_record_is_the_same_and_its_headers_have_not_grown() -> None:
    async def handle(value: bytes | None) -> None:
        raise ValueError("the same every time")

    own = [
        ("b", b"1"),
        ("a", None),
        ("b", b"2"),
        ("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"),
    ]
    delays = tuple(range(1, 51))
    with Harness(billing(handle, in_place_attempts=1, retry_topics=delays)) as kafka:
        kafka.send("orders", b"\x00\xff value", key=b"\x01key", headers=own, partition=3)
        kafka.send("orders", None, key=b"gone", headers=own)
        kafka.run()
        assert len(kafka.retries()) == 100
        assert len(kafka.dead_letters()) == 2
        for value, key in ((b"\x00\xff value", b"\x01key"), (None, b"gone")):
            hops = [each for each in (*kafka.retries(), *kafka.dead_letters()) if each.key == key]
            assert [each.value for each in hops] == [value] * 51
            assert all(list(each.user_headers) == own for each in hops)
            assert [each.attempt for each in hops] == list(range(1, 52))
            # Only the digits of the attempt may differ.
            sizes = {headers_size(each.headers) for each in hops[9:50]}
            assert len(sizes) == 1
            names = [name for name, _ in hops[-1].headers]
            assert names.count("traceparent") == 1
            assert all(names.count(name) == 1 for name in names if name.startswith(("streamloop-", "__dlq")))


@pytest.mark.parametrize("runner", ["auto", "inline"])
def test_D7_an_undecodable_record_is_dead_lettered_once_and_at_once(runner: str) -> None:
    seen: list[dict[str, int]] = []

    def handle(order: dict[str, int]) -> None:
        seen.append(order)

    async def handle_async(order: dict[str, int]) -> None:
        seen.append(order)

    for handler in (handle, handle_async):
        seen.clear()
        options = {"runner": runner} if handler is handle else {}
        with Harness(billing(handler, **options), partitions=1) as kafka:
            broken = kafka.send("orders", b"{not json", key="k")
            null = kafka.send("orders", None, key="k")
            kafka.send("orders", {"id": 1}, key="k")
            kafka.run()
            assert seen == [{"id": 1}]
            assert [each.value for each in kafka.dead_letters()] == [b"{not json", None]
            assert {each.error_class for each in kafka.dead_letters()} == {"streamloop.errors.DecodeError"}
            assert "not json" not in kafka.dead_letters()[0].error_message
            assert kafka.retries() == []
            for sent in (broken, null):
                assert kafka.outcome(sent).attempts == ()
                assert kafka.outcome(sent).path == ("FETCHED", "ROUTING_DEAD", "DEAD_LETTERED", "ACKED")
            assert kafka.committed("orders") == {0: 3}
            assert kafka.elapsed < 5


class CardError(Exception):
    pass


class StolenError(CardError):
    pass


def raised(error: Exception, cause: Exception | None = None) -> Callable[[bytes], Any]:
    async def handle(value: bytes) -> None:
        raise error from cause

    return handle


def test_D8_what_no_class_describes_is_retried_as_transient() -> None:
    with Harness(billing(raised(CardError("?")), in_place_attempts=2, retry_topics=(30,))) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert len(kafka.outcome(sent).attempts) == 3


@pytest.mark.parametrize("error", [CardError("no"), StolenError("a subclass")])
def test_D8_a_listed_permanent_error_goes_straight_to_dead_letter(error: Exception) -> None:
    with Harness(billing(raised(error), permanent=[CardError])) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert len(kafka.outcome(sent).attempts) == 1
        assert kafka.dead_letters()[0].error_class == f"{__name__}.{type(error).__name__}"


def test_D8_the_cause_counts() -> None:
    with Harness(billing(raised(RuntimeError("wrapped"), CardError("no")), permanent=[CardError])) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert len(kafka.outcome(sent).attempts) == 1
        assert kafka.dead_letters()[0].error_class == "builtins.RuntimeError"


def test_D8_a_fatal_error_stops_the_loop_and_commits_nothing_for_that_message() -> None:
    async def handle(value: str) -> None:
        await asyncio.sleep(1)
        if value == "fatal":
            raise CardError("the ledger is corrupt")

    with Harness(billing(handle, fatal=[CardError]), partitions=1) as kafka:
        before = kafka.send("orders", "before", key="a")
        kafka.advance(3)
        fatal = kafka.send("orders", "fatal", key="b")
        beside = kafka.send("orders", "beside", key="c")
        behind = kafka.send("orders", "behind", key="b")
        kafka.run()
        assert kafka.exit_code == 1
        assert kafka.exit_reason.startswith("fatal error at orders/0/1: ")
        assert "the ledger is corrupt" in kafka.exit_reason
        assert [kafka.outcome(each).outcome for each in (before, fatal, beside)] == [
            "acked",
            "halted",
            "acked",
        ]
        assert kafka.outcome(behind).attempts == ()
        assert kafka.committed("orders") == {0: 1}
        # After a restart it comes again, and so does what was behind it; not what was acknowledged beside it.
        kafka.crash()
        kafka.run()
        assert [len(kafka.outcome(each).attempts) for each in (before, fatal, beside)] == [1, 2, 1]


def test_D8_without_a_dead_letter_topic_what_can_not_be_handled_stops_the_loop() -> None:
    with Harness(billing(raised(Reject("never")), dead_letter=False), partitions=1) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
        assert kafka.exit_code == 1
        assert "dead_letter is False" in kafka.exit_reason
        assert kafka.committed("orders") == {0: 0}


def test_D11_a_dead_letter_topic_with_fewer_partitions_takes_all_by_a_stable_rule() -> None:
    loop = billing(raised(Reject("no")))
    with Harness(loop, partitions={"orders": 7, "orders.billing.dlq": 3}) as kafka:
        for partition in range(7):
            kafka.send("orders", b"x", partition=partition, key="the same")
        kafka.run()
        places = {each.original[1]: each.partition for each in kafka.dead_letters()}
        assert places == {partition: partition % 3 for partition in range(7)}


def test_D11_the_rule_is_by_the_originals_partition_after_hops_through_smaller_topics() -> None:
    loop = billing(fail, in_place_attempts=1, retry_topics=(30,))
    sizes = {"orders": 7, "orders.billing.retry.30s": 2, "orders.billing.dlq": 5}
    with Harness(loop, partitions=sizes) as kafka:
        kafka.send("orders", b"x", partition=6)
        kafka.run()
        assert [each.partition for each in kafka.retries()] == [0]
        assert [(each.partition, each.original) for each in kafka.dead_letters()] == [(1, ("orders", 6, 0))]


def test_D12_a_bad_deploy_does_not_flood_the_dead_letter_topic() -> None:
    loop = billing(raised(Reject("broken by the deploy")), dead_letter_max_per_minute=3)
    with Harness(loop, partitions=1) as kafka:
        for number in range(10):
            kafka.send("orders", b"x", key=str(number))
        kafka.advance(30)
        assert len(kafka.dead_letters()) == 3
        assert kafka.committed("orders") == {0: 3}
        status = loop.status()
        assert status is not None
        held = status.partitions[0].held["dead_letter_rate"]
        assert "more than 3 dead letters a minute" in held
        assert "broken by the deploy" in held
        kafka.advance(40)
        assert len(kafka.dead_letters()) == 6
        kafka.run()
        assert len(kafka.dead_letters()) == 10
        assert kafka.committed("orders") == {0: 10}


def test_D13_an_unavailable_dependency_costs_no_attempts_and_no_dead_letters_and_others_go_on() -> None:
    loop: StreamLoop[None] = StreamLoop("billing")
    down = True

    @loop.consumer("orders", in_place_attempts=1, retry_topics=())
    async def charge(value: bytes) -> None:
        if down:
            raise Unavailable("payments", "connection refused")

    @loop.consumer("mails")
    async def mail(value: bytes) -> None:
        return

    with Harness(loop) as kafka:
        sent = [kafka.send("orders", b"x") for _ in range(20)]
        kafka.advance(120)
        status = loop.status()
        assert status is not None
        held = {each.topic for each in status.partitions if "breaker" in each.held}
        assert "orders" in held
        assert "mails" not in held
        assert "payments is unavailable" in next(iter(status.partitions[0].held.values()))
        before = sum(len(kafka.outcome(each).attempts) for each in sent)
        kafka.advance(120)
        # One message probes, at most every 30 s.
        assert sum(len(kafka.outcome(each).attempts) for each in sent) - before <= 30
        other = kafka.send("mails", b"x")
        kafka.advance(1)
        assert kafka.outcome(other).outcome is Outcome.ACKED
        down = False
        kafka.run()
        assert {kafka.outcome(each).outcome for each in sent} == {Outcome.ACKED}
        assert kafka.dead_letters() == []


def test_D14_with_strict_order_later_messages_of_the_key_wait_and_other_keys_go_on() -> None:
    seen: list[str] = []

    async def handle(value: str) -> None:
        seen.append(value)
        if value == "a1" and seen.count("a1") < 5:
            raise ValueError("again")

    loop = billing(handle, strict_order=True, in_place_attempts=10, retry_topics=())
    with Harness(loop, partitions=1) as kafka:
        for value in ("a1", "a2", "b1", "a3", "b2"):
            kafka.send("orders", value, key=value[0])
        kafka.run()
    assert [value for value in seen if value != "a1"] == ["b1", "b2", "a2", "a3"]
    assert seen[-3:] == ["a1", "a2", "a3"]


def test_D14_strict_order_with_retry_topics_is_refused() -> None:
    loop = billing(do_nothing, strict_order=True, retry_topics=(30,))
    with pytest.raises(ConfigurationError, match=r"'charge': strict_order .*retry topics"):
        Harness(loop).start()


@pytest.mark.parametrize("given", ["raises", "nan", "text", "negative", "none"])
def test_D16_a_delay_function_that_gives_nonsense_means_the_default_delay_and_a_log_line(
    given: str, caplog: pytest.LogCaptureFixture
) -> None:
    def delay(attempt: int, failure: Failure) -> Any:
        if given == "raises":
            raise ZeroDivisionError
        return {"nan": float("nan"), "text": "soon", "negative": -1, "none": None}[given]

    loop = billing(fail, delay=delay, in_place_attempts=2, backoff_base=3, retry_topics=())
    with Harness(loop) as kafka, caplog.at_level(logging.WARNING, "streamloop"):
        sent = kafka.send("orders", b"x")
        kafka.run()
        first, second = kafka.outcome(sent).attempts
        assert 0 <= second.started - first.started <= 3
    assert [record for record in caplog.records if "the default delay is used" in record.getMessage()]


def test_D16_a_delay_function_that_gives_a_number_is_obeyed() -> None:
    asked: list[tuple[int, str]] = []

    def delay(attempt: int, failure: Failure) -> float:
        asked.append((attempt, failure.error_class))
        return attempt * 7

    loop = billing(fail, delay=delay, in_place_attempts=3, retry_topics=())
    with Harness(loop) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        starts = [each.started for each in kafka.outcome(sent).attempts]
    assert starts[1] - starts[0] == pytest.approx(7, abs=0.01)
    assert starts[2] - starts[1] == pytest.approx(14, abs=0.01)
    assert asked == [(1, "builtins.ValueError"), (2, "builtins.ValueError")]


FOREIGN = {
    "streamloop-original-topic": "elsewhere",
    "streamloop-original-partition": "9",
    "streamloop-original-offset": "99",
    "streamloop-attempt": "40",
    "streamloop-not-before": "99999999999999",
    "streamloop-first-failed-at": "2001-01-01T00:00:00.000Z",
}


@pytest.mark.parametrize("group", ["another-group", "billing"])
def test_D19_our_headers_in_a_record_of_a_source_topic_influence_nothing(group: str) -> None:
    seen: list[tuple[str, int, int]] = []

    async def handle(value: bytes, message: Message) -> None:
        seen.append((message.topic, message.offset, message.attempt))
        assert not any(name.startswith("streamloop-") for name, _ in message.headers)
        raise ValueError("again")

    with Harness(billing(handle, in_place_attempts=1, retry_topics=(30,), max_age=3600)) as kafka:
        kafka.send("orders", b"x", headers={**FOREIGN, "streamloop-original-group": group, "mine": "1"})
        kafka.run()
        assert seen == [("orders", 0, 1), ("orders", 0, 2)]
        [dead] = kafka.dead_letters()
        assert dead.original == ("orders", 0, 0)
        assert dead.attempt == 2
        assert dead.user_headers == (("mine", b"1"),)


def test_D19_a_record_of_another_group_in_our_retry_topic_is_handled_as_a_new_one() -> None:
    seen: list[tuple[str, int]] = []

    async def handle(value: bytes, message: Message) -> None:
        seen.append((message.topic, message.attempt))

    with Harness(billing(handle, retry_topics=(30,))) as kafka:
        [retry] = kafka.retry_topics("orders")
        kafka.send(retry, b"x", headers={**FOREIGN, "streamloop-original-group": "another-group"})
        kafka.run()
        assert seen == [(retry, 1)]
        assert kafka.elapsed < 5


def test_a_not_before_of_nonsense_waits_no_longer_than_the_topics_delay() -> None:
    async def handle(value: bytes) -> None:
        return

    with Harness(billing(handle, retry_topics=(30,))) as kafka:
        [retry] = kafka.retry_topics("orders")
        kafka.send(retry, b"x", headers={**FOREIGN, "streamloop-original-group": "billing"})
        kafka.run()
        assert 29 < kafka.elapsed < 33
        assert kafka.committed(retry) == {0: 1}


def test_a_wall_clock_that_is_behind_delays_each_of_many_retries_by_no_more_than_the_delay() -> None:
    seen: list[str] = []

    async def handle(value: str) -> None:
        seen.append(value)

    with Harness(billing(handle, retry_topics=(30,)), partitions=1) as kafka:
        [retry] = kafka.retry_topics("orders")
        for number in range(100):
            headers = {
                **FOREIGN,
                "streamloop-original-group": "billing",
                "streamloop-original-offset": str(number),
            }
            kafka.send(retry, str(number), headers=headers)
        kafka.run()
        assert seen == [str(number) for number in range(100)]
        assert kafka.elapsed < 65  # the first fetch takes 10, and what is behind them is seen a delay later


def test_max_attempts_and_max_age_end_the_plan_early() -> None:
    with Harness(billing(fail, max_attempts=4)) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert len(kafka.outcome(sent).attempts) == 4
    with Harness(billing(fail, max_age=60, in_place_attempts=1)) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert kafka.outcome(sent).read_from == ("orders", *kafka.retry_topics("orders")[:2])


# --------------------------------------------------------------------------------------- typed decoding


@dataclass
class Order:
    id: int
    note: str | None = None


class Payment(BaseModel):
    id: int
    amount: float


def taking(annotation: Any) -> tuple[Callable[..., Any], list[Any]]:
    """A handler whose argument is annotated so, and what it is given."""
    seen: list[Any] = []

    async def handle(value: Any) -> None:
        seen.append(value)

    handle.__annotations__["value"] = annotation
    return handle, seen


@pytest.mark.parametrize(
    ("annotation", "codec", "sent", "expected"),
    [
        (bytes, None, b"\xff\x00", b"\xff\x00"),
        (str, None, "grüezi", "grüezi"),
        (dict, None, {"a": [1]}, {"a": [1]}),
        (list, None, [1, "a"], [1, "a"]),
        (dict[str, int], None, {"a": 1}, {"a": 1}),
        (Order, None, {"id": 1}, Order(1)),
        (Payment, None, {"id": 1, "amount": 2.5}, Payment(id=1, amount=2.5)),
        (list[Order], "json", [{"id": 1}, {"id": 2, "note": "x"}], [Order(1), Order(2, "x")]),
        (Order, "msgpack", msgpack.packb({"id": 1}), Order(1)),
        (Any, "msgpack", msgpack.packb([1, b"raw"]), [1, b"raw"]),
        (Order | None, None, {"id": 1}, Order(1)),
        (Order | None, None, None, None),
        (bytes | None, None, None, None),
        (Any, None, None, None),
    ],
)
def test_a_handler_is_given_what_its_annotation_says(
    annotation: Any, codec: str | None, sent: object, expected: object
) -> None:
    handle, seen = taking(annotation)
    loop = billing(handle, batch=False, codec=codec)
    with Harness(loop) as kafka:
        kafka.send("orders", sent)
        kafka.run()
        assert kafka.dead_letters() == []
    assert seen == [expected]


@pytest.mark.parametrize(
    ("annotation", "sent", "said"),
    [
        (str, b"\xff", "not UTF-8"),
        (dict, [1], "of type list"),
        (Order, {"id": "x"}, "id: Input should be a valid integer"),
        (Payment, {"id": 1}, "amount: Field required"),
        (bytes, None, "the value is null"),
        (Order, None, "annotate the first argument of handler charge with '| None'"),
    ],
)
def test_D7_what_does_not_fit_the_annotation_says_why_in_the_dead_letter(
    annotation: Any, sent: object, said: str
) -> None:
    handle, seen = taking(annotation)
    with Harness(billing(handle)) as kafka:
        kafka.send("orders", sent)
        kafka.run()
        [dead] = kafka.dead_letters()
        assert said in dead.error_message
    assert seen == []


def test_a_codec_whose_registry_is_down_is_tried_again_and_no_dead_letter() -> None:
    class Registry:
        calls = 0

        def decode(self, data: bytes, /) -> object:
            self.calls += 1
            if self.calls < 3:
                raise Unavailable("registry")
            return data.decode()

        def encode(self, value: object, /) -> bytes:
            return str(value).encode()

    seen: list[object] = []

    async def handle(value: Any) -> None:
        seen.append(value)

    with Harness(billing(handle, codec=Registry(), in_place_attempts=1, retry_topics=())) as kafka:
        sent = kafka.send("orders", b"x")
        kafka.run()
        assert kafka.outcome(sent).outcome is Outcome.ACKED
        assert len(kafka.outcome(sent).attempts) == 3
    assert seen == ["x"]


# ---------------------------------------------------------------------------------------- several consumers


def test_several_consumers_of_one_loop_have_their_own_plans_and_do_not_disturb_each_other() -> None:
    loop: StreamLoop[None] = StreamLoop("billing")
    seen: list[str] = []

    @loop.consumer("orders", "refunds", in_place_attempts=1, retry_topics=())
    async def charge(value: str, message: Message) -> None:
        seen.append(message.topic)
        if value == "bad":
            raise ValueError("bad")

    @loop.consumer("mails", retry_topics=(60,), in_place_attempts=2, concurrency=1)
    def mail(value: bytes) -> None:
        raise OSError("smtp")

    @loop.consumer("events", batch=True)
    async def store(values: list[str]) -> None:
        await asyncio.sleep(1)

    with Harness(loop) as kafka:
        sent = [
            kafka.send("orders", "bad", key="k"),
            kafka.send("refunds", "good", key="k"),
            kafka.send("mails", b"m"),
            kafka.send("events", "e"),
        ]
        kafka.run()
        assert [str(kafka.outcome(each).outcome) for each in sent] == [
            "dead_lettered",
            "acked",
            "dead_lettered",
            "acked",
        ]
        assert [len(kafka.outcome(each).attempts) for each in sent] == [1, 1, 3, 1]
        assert [each.topic for each in kafka.dead_letters()] == ["orders.billing.dlq", "mails.billing.dlq"]
        status = loop.status()
        assert status is not None
        counts = {each.name: each.counts for each in status.consumers}
        assert counts["charge"]["succeeded"] == 1
        assert counts["charge"]["dead_lettered"] == 1
        assert counts["mail"]["failed_attempts"] == 3
    assert sorted(seen) == ["orders", "refunds"]


# -------------------------------------------------------------------------------------------- middleware


def test_middleware_goes_around_each_attempt_the_first_declared_outermost() -> None:
    loop: StreamLoop[None] = StreamLoop("billing")
    events: list[str] = []

    def middleware(name: str) -> Callable[..., Any]:
        async def around(message: Message, call_next: Callable[[], Any]) -> Any:
            events.append(f"{name} before {message.attempt}")
            try:
                return await call_next()
            finally:
                events.append(f"{name} after")

        return around

    loop.middleware(middleware("outer"))
    loop.middleware(middleware("inner"))

    @loop.consumer("orders", retry_topics=(), in_place_attempts=2)
    async def charge(value: str) -> None:
        events.append(value)
        if len(events) < 6:
            raise ValueError("once")

    with Harness(loop) as kafka:
        kafka.send("orders", "x")
        kafka.run()
    once = ["inner before {0}", "x", "inner after", "outer after"]
    assert events == [each.format(attempt) for attempt in (1, 2) for each in ("outer before {0}", *once)]


def test_middleware_may_decide_and_its_failure_is_the_messages() -> None:
    loop: StreamLoop[None] = StreamLoop("billing")

    @loop.middleware
    async def gate(message: Message, call_next: Callable[[], Any]) -> Any:
        if message.header("forbidden"):
            raise Reject("forbidden")
        if message.header("swallow"):
            try:
                return await call_next()
            except ValueError:
                return None
        return await call_next()

    @loop.consumer("orders", retry_topics=(), in_place_attempts=1)
    async def charge(value: bytes) -> None:
        raise ValueError("bad")

    with Harness(loop) as kafka:
        kafka.send("orders", b"1", headers={"forbidden": "1"})
        kafka.send("orders", b"2", headers={"swallow": "1"})
        kafka.send("orders", b"3")
        kafka.run()
        assert [str(each.outcome) for each in kafka.outcomes()] == ["dead_lettered", "acked", "dead_lettered"]


def test_plain_middleware_goes_around_plain_handlers_and_batches_get_the_list() -> None:
    loop: StreamLoop[None] = StreamLoop("billing")
    seen: list[object] = []

    @loop.middleware
    def around(message: Any, call_next: Callable[[], Any]) -> Any:
        seen.append([each.value for each in message] if isinstance(message, list) else message.value)
        return call_next()

    @loop.consumer("orders")
    def one(value: bytes) -> None:
        return

    @loop.consumer("events")
    def many(messages: list[Message]) -> list[Exception | None]:
        return [Reject("no") for _ in messages]

    with Harness(loop, partitions=1) as kafka:
        kafka.send("orders", b"1")
        kafka.send("events", b"2")
        kafka.send("events", b"3")
        kafka.run()
        assert len(kafka.dead_letters("events")) == 2
        assert kafka.dead_letters("orders") == []
    assert sorted(seen, key=str) == [[b"2", b"3"], b"1"]


# ------------------------------------------------------------------------------------------- failures of ours


def test_a_failure_of_the_engine_decides_and_commits_nothing_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: Engine, event: object) -> None:
        raise ZeroDivisionError("a bug")

    loop = billing(do_nothing)
    kafka = Harness(loop, partitions=1)
    monkeypatch.setattr(Engine, "_finished", broken)
    kafka.start()
    kafka.send("orders", b"x")
    with pytest.raises(HarnessError, match="the engine has failed") as caught:
        kafka.run()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert kafka.committed("orders") == {0: 0}
    kafka.crash(restart=False)


def test_a_routed_message_is_logged_once_with_where_it_goes(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(value: bytes) -> None:
        raise Reject("bad \x1b[31m value")

    with Harness(billing(handle)) as kafka, caplog.at_level(logging.INFO, "streamloop"):
        sent = kafka.send("orders", b"x", key="k")
        kafka.run()
    [record] = [each for each in caplog.records if getattr(each, "kind", "") == "routed"]
    text = record.getMessage()
    assert text.startswith(f"orders/{sent.partition}/0: streamloop.outcomes.Reject: bad")
    assert "\x1b" not in text
    assert text.endswith("to orders.billing.dlq")
    assert sent.partition == partition_of(b"k", 4)


def test_a_fatal_outcome_needs_no_list() -> None:
    with Harness(billing(raised(Fatal("stop")))) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
        assert kafka.exit_code == 1
