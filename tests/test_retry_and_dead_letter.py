"""What becomes of messages that fail: in place, retry topics, dead letter, a halt; in virtual time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from streamloop import ConfigurationError, Fatal, Message, Reject, StreamLoop, Unavailable
from streamloop.kafka.headers import headers_size
from streamloop.testing import Harness, Outcome
from tests.loops import billing

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamloop import Failure


async def do_nothing(value: bytes) -> None:
    return


async def fail(value: bytes) -> None:
    raise ValueError("bad luck")


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


def test_a_fatal_outcome_needs_no_list() -> None:
    with Harness(billing(raised(Fatal("stop")))) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
        assert kafka.exit_code == 1
