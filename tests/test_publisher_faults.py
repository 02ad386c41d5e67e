"""What a publisher does when requests are cancelled, its Producer breaks, or it is closed."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from streamloop.kafka.publisher import Publisher
from tests.publisher_bench import (
    BLOCKED,
    DELIVERED,
    FATAL,
    MISSING,
    PURGED,
    TIMED_OUT,
    UNBLOCKED,
    Bench,
    Delivered,
    FakeProducer,
    fatal_error,
    request,
)

if TYPE_CHECKING:
    from streamloop.kafka.publishing import Report


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ------------------------------------------------------------------------------------------ cancel


def test_a_cancelled_request_that_was_not_produced_never_is(bench: Bench) -> None:
    bench.submit(0)
    bench.main.room = 1
    bench.submit(1, 2)
    bench.publisher.cancel([1])
    bench.main.room = 9
    bench.turn()
    assert bench.in_hand() == [0, 2]
    assert bench.publisher.counters.outstanding == 2


def test_a_late_report_of_a_cancelled_request_is_dropped_and_counted(bench: Bench) -> None:
    bench.submit(1, 2)
    bench.publisher.cancel([1, 99])
    bench.turn()
    bench.main.report()
    assert bench.turn() == [(2, DELIVERED)]
    assert bench.publisher.counters.late_reports == 1


def test_a_cancelled_request_is_dropped_from_its_block_and_the_last_one_ends_it(bench: Bench) -> None:
    bench.submit(1, 2)
    bench.main.report(MISSING)
    bench.turn()
    bench.publisher.cancel([1])
    bench.turn(0.5)
    assert bench.in_hand() == [2]
    bench.main.report(MISSING)
    bench.turn()
    bench.publisher.cancel([2])
    assert bench.turn() == []
    assert bench.publisher.blocked == ()
    assert bench.turn(30) == []
    assert bench.in_hand() == []


def test_a_cancelled_probe_is_followed_by_another(bench: Bench) -> None:
    bench.submit(1, 2)
    bench.main.report(MISSING)
    bench.turn()
    bench.turn(0.5)
    bench.publisher.cancel([1])
    bench.turn()
    bench.main.report(MISSING)
    assert bench.turn() == []
    bench.turn(1.0)
    assert bench.in_hand() == [2]


def test_a_cancelled_probe_that_gets_through_lets_the_others_flow(bench: Bench) -> None:
    bench.submit(1, 2)
    bench.main.report(MISSING)
    bench.turn()
    bench.turn(0.5)
    bench.publisher.cancel([1])
    bench.turn()
    bench.main.report()
    assert bench.turn() == [(2, UNBLOCKED)]


def test_a_cancelled_record_that_fails_blocks_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.submit(1)
    bench.publisher.cancel([1])
    bench.turn()
    bench.main.report(MISSING)
    assert bench.turn() == []
    assert caplog.text == ""
    bench.submit(2)
    assert bench.in_hand() == [2]


def test_an_id_submitted_twice_has_one_report(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.submit(1)
    bench.submit(1)
    bench.main.report()
    assert bench.turn() == [(1, DELIVERED)]
    assert "submitted twice" in caplog.text


# ---------------------------------------------------------------------------------- a broken Producer


def test_D18_a_fatal_error_replaces_the_producer_and_everything_unreported_is_sent_again(
    bench: Bench,
) -> None:
    bench.submit(1, 2, 3)
    old = bench.main
    old.report(count=1)
    old.poll_raises = fatal_error()
    assert bench.turn() == [(1, DELIVERED)]
    assert old.purged
    bench.turn(0.49)
    assert bench.main is old, "replaced without back-off"
    bench.turn(0.01)
    assert bench.main is not old
    assert bench.in_hand() == [2, 3]
    bench.main.report()
    assert bench.turn() == [(2, DELIVERED), (3, DELIVERED)]
    assert bench.publisher.counters.replaced_producers == 1


@pytest.mark.parametrize("error", [SystemError("returned a result with an exception set"), fatal_error()])
def test_D18_whatever_poll_raises_no_report_of_that_producer_is_a_verdict(
    bench: Bench, error: Exception
) -> None:
    bench.submit(1, 2)
    bench.main.report(45)
    bench.main.poll_raises = error
    assert bench.turn() == []
    bench.turn(0.5)
    assert bench.in_hand() == [1, 2]


def test_D18_reports_that_the_broken_producer_still_holds_are_read_before_it_goes(bench: Bench) -> None:
    bench.submit(1, 2)
    old = bench.main
    old.poll_raises = fatal_error()
    old.raises_before_reports = 2
    old.report(count=1)
    assert bench.turn() == [(1, DELIVERED)]
    bench.turn(0.5)
    assert bench.in_hand() == [2]


def test_D18_produce_that_raises_a_fatal_error_replaces_the_producer(bench: Bench) -> None:
    bench.submit(1)
    bench.main.raising["dead"] = KafkaException(KafkaError(FATAL))
    bench.submit(2)
    bench.turn(0.5)
    assert len(bench.producers) == 2
    assert bench.in_hand() == [1, 2]


def test_D18_a_fatal_report_replaces_the_producer(bench: Bench) -> None:
    bench.submit(1, 2)
    bench.main.report(FATAL, count=1)
    assert bench.turn() == []
    bench.turn(0.5)
    assert bench.in_hand() == [1, 2]


def test_D18_a_late_report_of_a_replaced_producer_counts_for_nothing(bench: Bench) -> None:
    bench.submit(1)
    old = bench.main
    (record,) = old.sent
    old.poll_raises = fatal_error()
    bench.turn()
    bench.turn(0.5)
    record.on_delivery(None, Delivered(0, 0))
    assert bench.turn() == []
    assert bench.publisher.counters.late_reports == 1
    bench.main.report()
    assert bench.turn() == [(1, DELIVERED)]


def test_D18_a_cancelled_request_is_not_sent_again_by_the_next_producer(bench: Bench) -> None:
    bench.submit(1, 2)
    bench.publisher.cancel([1])
    bench.turn()
    bench.main.poll_raises = fatal_error()
    bench.turn()
    bench.turn(0.5)
    assert bench.in_hand() == [2]


def test_D18_a_probe_in_a_broken_producer_stays_the_only_one(bench: Bench) -> None:
    bench.submit(1, 2)
    bench.main.report(MISSING)
    bench.turn()
    bench.turn(0.5)
    bench.main.poll_raises = fatal_error()
    bench.turn()
    bench.turn(0.5)
    assert bench.in_hand() == [1]


def test_D18_producers_that_break_one_after_the_other_block_with_growing_pauses(bench: Bench) -> None:
    bench.submit(1)
    for pause in (0.5, 1, 2, 4, 8, 16, 30, 30):
        bench.main.poll_raises = fatal_error()
        reported = bench.turn()
        assert reported == ([(1, BLOCKED)] if pause == 1 else []), (
            "one break is no block, the second is, once"
        )
        made = len(bench.producers)
        bench.turn(pause - 0.01)
        assert len(bench.producers) == made
        bench.turn(0.01)
        assert len(bench.producers) == made + 1
    bench.submit(2)
    bench.main.report(count=1)
    assert bench.turn() == [(1, DELIVERED)]
    bench.main.poll_raises = fatal_error()
    bench.turn()
    made = len(bench.producers)
    bench.turn(0.5)
    assert len(bench.producers) == made + 1, "a delivery ends the growth"
    assert bench.in_hand() == [2]


def test_what_waits_for_a_producer_that_breaks_again_is_blocked_and_then_unblocked(bench: Bench) -> None:
    bench.submit(1)
    for _ in range(2):
        bench.main.poll_raises = fatal_error()
        bench.turn()
        bench.turn(0.5)
    bench.publisher.submit([request(2)])
    assert bench.turn() == [(2, BLOCKED)]
    bench.turn(0.5)
    bench.main.report(count=1)
    assert bench.turn() == [(1, DELIVERED), (2, UNBLOCKED)]


def test_a_cancelled_request_is_not_reported_when_producers_break(bench: Bench) -> None:
    bench.submit(1)
    for _ in range(2):
        bench.main.poll_raises = fatal_error()
        bench.turn()
        bench.turn(0.5)
    bench.publisher.submit([request(2), request(3)])
    bench.publisher.cancel([2])
    assert bench.turn() == [(3, BLOCKED)]


def test_a_partitions_probe_cancelled_while_its_producer_is_replaced_is_followed_by_another(
    bench: Bench,
) -> None:
    bench.submit(1, 2, partition=0)
    bench.submit(3, partition=1)
    bench.main.report(TIMED_OUT, count=2)
    bench.turn()
    bench.turn(0.5)
    bench.main.report(count=1)
    bench.main.poll_raises = fatal_error()
    assert bench.turn() == [(3, DELIVERED)]
    bench.publisher.cancel([1])
    bench.turn(0.5)
    bench.turn()
    assert bench.in_hand() == [2]


def test_D18_a_fatal_error_told_to_the_error_callback_replaces_the_producer(bench: Bench) -> None:
    bench.submit(1)
    bench.main.config["error_cb"](KafkaError(FATAL, "fenced", fatal=True))
    bench.turn()
    bench.turn(0.5)
    assert len(bench.producers) == 2
    assert bench.in_hand() == [1]


def test_a_producer_that_can_not_be_made_is_tried_again_and_reported(bench: Bench) -> None:
    bench.refuse_to_make = [KafkaException(KafkaError(-186, "ssl.ca.location: no such file"))] * 2
    bench.submit(1)
    assert bench.turn() == []
    bench.reports.clear()
    assert bench.turn(0.5) == [(1, BLOCKED)]
    assert "ssl.ca.location" in bench.reports[0].reason
    bench.turn(1.0)
    assert bench.in_hand() == [1]


def test_a_record_purged_by_the_client_is_sent_again(bench: Bench) -> None:
    bench.submit(1)
    bench.main.report(PURGED)
    assert bench.turn() == []
    bench.turn()
    assert bench.in_hand() == [1]


# --------------------------------------------------------------------------------- the thread and its end


def test_close_returns_the_ids_without_a_report(bench: Bench) -> None:
    bench.submit(1, 2, 3)
    bench.main.report(count=1)
    bench.turn()
    bench.publisher.submit([request(4)])
    assert bench.publisher.close(0) == [2, 3, 4]
    with pytest.raises(RuntimeError, match="closed"):
        bench.publisher.submit([request(5)])


def test_the_end_waits_for_requests_just_submitted_and_for_a_probe_on_its_way(bench: Bench) -> None:
    publisher = bench.publisher
    publisher._close_at = bench.clock.now + 10
    publisher._inbox.append(([request(1), request(2)], ()))
    assert not publisher._is_finished()
    publisher.turn()
    assert not publisher._is_finished()
    bench.main.report(MISSING)
    publisher.turn()
    assert publisher._is_finished(), "all that is left is blocked"
    bench.turn(0.5)
    assert not publisher._is_finished()
    bench.clock.now += 10
    assert publisher._is_finished()


class Threaded:
    """A publisher with its thread, on a Producer that reports each record in the next poll."""

    def __init__(self, deliver: Any = None) -> None:
        self.received: list[Report] = []
        self.arrived = threading.Condition()
        self.delivering_thread: str | None = None
        self.answer: int | None = 0
        self.publisher = Publisher({}, deliver=deliver or self._deliver, producer_factory=self._make)
        self.publisher.start()

    def _make(self, config: dict[str, Any]) -> FakeProducer:
        producer = FakeProducer(config)
        plain_poll = producer.poll

        def poll(timeout: float) -> int:
            if self.answer is not None:
                producer.report(self.answer)
            return plain_poll(timeout)

        producer.poll = poll  # type: ignore[method-assign]
        return producer

    def _deliver(self, reports: list[Report]) -> None:
        with self.arrived:
            self.delivering_thread = threading.current_thread().name
            self.received.extend(reports)
            self.arrived.notify_all()

    def wait_for(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.received) >= count, timeout=20)


def test_the_thread_reports_on_what_any_thread_submits() -> None:
    threaded = Threaded()
    submitters = [
        threading.Thread(
            target=lambda first=first: threaded.publisher.submit([request(first + i) for i in range(50)])
        )
        for first in (0, 100, 200)
    ]
    for submitter in submitters:
        submitter.start()
    for submitter in submitters:
        submitter.join()
    threaded.wait_for(150)
    assert threaded.publisher.close(10) == []
    assert {r.id for r in threaded.received} == {f + i for f in (0, 100, 200) for i in range(50)}
    assert threaded.delivering_thread == "streamloop-publisher"
    assert not threaded.publisher.is_alive


def test_close_waits_for_reports_still_due() -> None:
    threaded = Threaded()
    threaded.publisher.submit([request(i) for i in range(100)])
    assert threaded.publisher.close(20) == []
    assert len(threaded.received) == 100


def test_close_is_bounded_when_nothing_is_ever_reported() -> None:
    threaded = Threaded()
    threaded.answer = None
    threaded.publisher.submit([request(1)])
    assert threaded.publisher.close(0.05) == [1]
    assert not threaded.publisher.is_alive


def test_close_does_not_wait_for_what_is_blocked() -> None:
    threaded = Threaded()
    threaded.answer = MISSING
    threaded.publisher.submit([request(1)])
    threaded.wait_for(1)
    closer = threading.Thread(target=threaded.publisher.close, args=(600,))
    closer.start()
    closer.join(20)
    assert not closer.is_alive()


def test_a_receiver_that_raises_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Event()

    def deliver(reports: list[Report]) -> None:
        called.set()
        raise RuntimeError("Event loop is closed")

    with caplog.at_level(logging.ERROR):
        threaded = Threaded(deliver)
        threaded.publisher.submit([request(1)])
        assert called.wait(20)
        called.clear()
        threaded.publisher.submit([request(2)])
        assert called.wait(20)
        threaded.publisher.close(10)
    assert "could not be passed on" in caplog.text


def test_a_thread_that_dies_says_so_and_takes_no_more() -> None:
    threaded = Threaded()

    class NoRequest:
        id = 1

    threaded.publisher.submit([NoRequest()])  # type: ignore[list-item]
    thread = threaded.publisher._thread
    assert thread is not None
    thread.join(20)
    assert isinstance(threaded.publisher.failure, AttributeError)
    with pytest.raises(RuntimeError, match="died"):
        threaded.publisher.submit([request(2)])
    assert threaded.publisher.close(1) == [1]


def test_start_twice_is_refused() -> None:
    threaded = Threaded()
    with pytest.raises(RuntimeError, match="started already"):
        threaded.publisher.start()
    threaded.publisher.close(5)
