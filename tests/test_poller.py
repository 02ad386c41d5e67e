"""The poller with a fake Consumer and a fake clock: fetching, holding back, stalls, and how it ends."""

import logging
from typing import Any

import pytest

from streamloop.engine import events as ev
from streamloop.engine.events import Reason, TopicPartition
from streamloop.engine.gate import Capacity
from streamloop.kafka.fetching import MESSAGE_OVERHEAD
from streamloop.kafka.poller import Close, FatalConsumerError, PollerOptions, StopFetching
from tests.fake_consumer import P0, P1, Bench, FakeMessage, commit


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.subscribe()
    return made


# ------------------------------------------------------------------------------------------------- fetching


def test_consecutive_messages_of_a_partition_are_one_event_after_their_assignment(bench: Bench) -> None:
    bench.consumer.broker = {P0: (5, "m"), P1: (0, "")}
    bench.consumer.log = {P0: [5, 6, 8], P1: [0]}
    bench.consumer.assign_now(P0, P1)
    bench.turn()
    kinds = [type(event).__name__ for event in bench.events]
    assert kinds == ["Assigned", "Assigned", "Fetched", "EndOfPartition", "Fetched", "EndOfPartition"]
    first = bench.of(ev.Assigned)[0]
    assert (first.offset, first.committed, first.metadata) == (5, True, "m")
    assert (first.cluster_id, first.topic_id) == ("cluster", "id-1")
    assert [record.offset for record in bench.of(ev.Fetched)[0].records] == [5, 6, 8]
    record = bench.of(ev.Fetched)[0].records[0]
    assert (record.size, record.leader_epoch, record.key) == (1 + MESSAGE_OVERHEAD, -1, None)


def test_the_end_of_a_partition_is_its_position_behind_the_last_message(bench: Bench) -> None:
    bench.assigned(P0, 0, [0, 1])
    bench.consumer.queue.append(FakeMessage("t", 0, 4, error=-191))
    bench.turn()
    assert [event.offset for event in bench.of(ev.EndOfPartition)] == [2, 4]


def test_the_headers_of_a_run_are_prepared_before_it_is_delivered() -> None:
    seen: list[tuple[TopicPartition, list[int]]] = []
    bench = Bench(prepare=lambda name, records: seen.append((name, [r.offset for r in records])))
    bench.subscribe()
    bench.assigned(P0, 0, [0, 1])
    assert seen == [(P0, [0, 1])]


def test_B1_no_more_is_asked_for_than_there_is_room_and_the_buffer_stays_within_high() -> None:
    bench = Bench(capacity=Capacity(30, 1 << 30))
    bench.subscribe()
    bench.assigned(P0, 0, range(100))
    bench.turn(3)
    asked = [count for name, count in bench.consumer.calls if name == "consume"]
    assert asked[0] == 10
    assert bench.capacity.messages == bench.capacity.peak_messages == 30


def test_a_message_of_a_partition_without_an_epoch_is_dropped(bench: Bench) -> None:
    bench.consumer.queue.append(FakeMessage("t", 0, 7))
    bench.turn()
    assert bench.events == []
    assert bench.poller.status().dropped == 1
    assert bench.capacity.messages == 0


def test_R3_what_the_call_that_began_the_epoch_had_already_taken_is_fetched_again(bench: Bench) -> None:
    first = bench.assigned(P0, 0, range(20))
    bench.consumer.lose_now(P0)
    bench.consumer.assign_now(P0)
    bench.consumer.broker[P0] = (12, "")
    # Taken by consume() before it ran the two callbacks: of the epoch before.
    bench.consumer.queue.append(FakeMessage("t", 0, 20))
    bench.turn(3)
    second = bench.of(ev.Assigned)[-1]
    assert second.epoch > first
    again = [r.offset for e in bench.of(ev.Fetched) if e.epoch == second.epoch for r in e.records]
    assert again == list(range(12, 20))


def test_an_end_reported_in_the_call_that_began_the_epoch_passes_over_nothing(bench: Bench) -> None:
    bench.assigned(P0, 0, range(20))
    bench.consumer.lose_now(P0)
    bench.consumer.assign_now(P0)
    bench.consumer.broker[P0] = (12, "")
    bench.consumer.queue.append(FakeMessage("t", 0, 20, error=-191))
    bench.turn(3)
    epoch = bench.of(ev.Assigned)[-1].epoch
    mine = [event for event in bench.events if getattr(event, "epoch", 0) == epoch]
    assert [type(event).__name__ for event in mine] == ["Assigned", "Fetched", "EndOfPartition"]


# --------------------------------------------------------------------------------------------- holding back


def full(dwell: float = 0.5) -> Bench:
    bench = Bench(PollerOptions(dwell=dwell), Capacity(10, 1 << 30))
    bench.subscribe()
    bench.assigned(P0, 0, range(100))
    bench.turn()
    assert bench.capacity.room() == 0
    return bench


def test_full_is_waited_for_on_the_event_and_not_in_librdkafka() -> None:
    bench = full()
    calls = len(bench.consumer.calls)
    bench.wake.on_wait = lambda: bench.events.append(ev.Tick()) if bench.poller.waiting else None
    bench.turn(3)
    assert len(bench.consumer.calls) == calls
    assert bench.of(ev.Tick)
    assert not bench.poller.waiting


def test_a_release_ends_the_wait_at_once_when_enough_is_free() -> None:
    bench = full()
    bench.wake.on_wait = bench.finish_all
    before = bench.clock.now
    bench.turn(2)
    assert bench.clock.now - before <= 0.1
    assert bench.offsets(P0) == list(range(20))
    assert bench.consumer.count("pause") == 0


def test_full_again_and_again_is_filled_in_pieces_and_not_message_by_message() -> None:
    bench = Bench(capacity=Capacity(160, 1 << 30))
    bench.subscribe()
    bench.assigned(P0, 0, range(2000))
    bench.turn(3)
    assert bench.capacity.room() == 0

    def finish_one() -> None:
        bench.clock.now += 0.001
        bench.capacity.released(1, 1 + MESSAGE_OVERHEAD)
        bench.poller.wake()

    bench.wake.on_wait = finish_one
    fetches = len([1 for name, _ in bench.consumer.calls if name == "consume"])
    bench.turn(40)
    pieces = [count for name, count in bench.consumer.calls if name == "consume"][fetches:]
    assert len(pieces) > 2
    assert min(pieces[1:]) >= 10


def test_full_for_the_dwell_holds_everything_and_callbacks_are_still_served_within_100_ms() -> None:
    bench = full()
    bench.turn(8)
    held = bench.of(ev.HoldChanged)[-1]
    assert (held.partition, held.reason, held.held) == (P0, Reason.WATERMARK, True)
    assert bench.consumer.paused == {P0}
    polls, before = bench.consumer.count("poll"), bench.clock.now
    bench.turn(10)
    assert bench.clock.now - before <= 1.01
    assert bench.consumer.count("poll") - polls >= 10


def test_the_hold_ends_at_the_low_watermark_and_not_before() -> None:
    bench = full()
    bench.turn(8)
    bench.capacity.released(4, 4 * (1 + MESSAGE_OVERHEAD))
    bench.turn(2)
    assert bench.consumer.paused == {P0}
    bench.capacity.released(1, 1 + MESSAGE_OVERHEAD)
    bench.turn(2)
    assert bench.consumer.paused == set()
    assert [event.held for event in bench.of(ev.HoldChanged)] == [True, False]
    assert bench.offsets(P0) == list(range(15))


def test_B2_what_comes_while_full_is_paused_too_and_the_engine_is_told() -> None:
    bench = full()
    bench.turn(8)
    bench.consumer.broker[P1] = (0, "")
    bench.consumer.log[P1] = [0, 1]
    bench.consumer.assign_now(P1)
    bench.turn()
    assert bench.consumer.paused == {P0, P1}
    assert [e.held for e in bench.of(ev.HoldChanged) if e.partition == P1] == [True]
    for _ in range(12):
        bench.finish_all()
        bench.turn(2)
    assert bench.consumer.paused == set()
    assert bench.offsets(P1) == [0, 1]


def test_B4_clearing_one_reason_leaves_the_others(bench: Bench) -> None:
    epoch = bench.assigned(P0, 0)
    bench.tell(ev.Hold(0, P0, epoch, frozenset({Reason.BREAKER, Reason.OPERATOR})))
    bench.turn()
    assert bench.consumer.paused == {P0}
    bench.tell(ev.Hold(0, P0, epoch, frozenset({Reason.OPERATOR})))
    bench.turn()
    assert bench.consumer.paused == {P0}
    bench.tell(ev.Hold(0, P0, epoch, frozenset()))
    bench.turn()
    assert bench.consumer.paused == set()


def test_a_hold_of_an_ended_epoch_holds_nothing(bench: Bench) -> None:
    epoch = bench.assigned(P0, 0)
    bench.tell(ev.Hold(0, P0, epoch - 1, frozenset({Reason.OPERATOR})))
    bench.turn()
    assert bench.consumer.paused == set()


def test_B3_a_pause_that_survived_in_the_client_is_resumed_when_nothing_holds_the_new_epoch(
    bench: Bench,
) -> None:
    epoch = bench.assigned(P0, 0)
    bench.tell(ev.Hold(0, P0, epoch, frozenset({Reason.RETRY_NOT_DUE})))
    bench.turn()
    bench.consumer.lose_now(P0)
    bench.turn()
    assert bench.consumer.paused == {P0}
    bench.assigned(P0, 0, [0])
    bench.turn()
    assert bench.consumer.paused == set()
    assert bench.offsets(P0) == [0]


def test_after_an_assignment_the_client_is_not_believed_to_have_paused_what_was_paused(bench: Bench) -> None:
    epoch = bench.assigned(P0, 0)
    bench.tell(ev.Hold(0, P0, epoch, frozenset({Reason.OPERATOR})))
    bench.turn()
    bench.consumer.paused.clear()
    bench.assigned(P1, 0)
    assert bench.consumer.paused == {P0}


def test_a_partition_that_an_error_stopped_while_paused_is_started_again_when_it_resumes(
    bench: Bench,
) -> None:
    epoch = bench.assigned(P0, 0, [0, 1, 2])
    bench.tell(ev.Hold(0, P0, epoch, frozenset({Reason.GAP})))
    bench.turn()
    bench.consumer.stopped.add(P0)
    bench.consumer.log[P0] = [0, 1, 2, 3]
    bench.tell(ev.Hold(0, P0, epoch, frozenset()))
    bench.turn(2)
    assert bench.offsets(P0) == [0, 1, 2, 3]


def test_a_silent_engine_pauses_everything_and_fetching_goes_on_with_its_heartbeat(bench: Bench) -> None:
    bench.assigned(P0, 0)
    bench.stamp = bench.clock.now
    bench.clock.now += 2.1
    bench.turn()
    held = bench.of(ev.HoldChanged)[-1]
    assert (held.reason, held.held) == (Reason.ENGINE_SILENT, True)
    bench.consumer.log[P0] = [0]
    bench.turn(3)
    assert bench.offsets(P0) == []
    bench.stamp = None
    bench.turn(2)
    assert bench.of(ev.HoldChanged)[-1].held is False
    assert bench.offsets(P0) == [0]


def test_after_a_second_with_all_paused_librdkafka_is_woken_by_a_request(bench: Bench) -> None:
    epoch = bench.assigned(P0, 0)
    for wait, woken in ((0.5, 0), (1.5, 1)):
        bench.tell(ev.Hold(0, P0, epoch, frozenset({Reason.OPERATOR})))
        bench.turn()
        bench.clock.now += wait
        bench.tell(ev.Hold(0, P0, epoch, frozenset()))
        bench.turn()
        assert bench.consumer.count("wake") == woken


def test_stop_fetching_fetches_nothing_more_and_stays(bench: Bench) -> None:
    bench.assigned(P0, 0)
    bench.tell(StopFetching())
    bench.consumer.log[P0] = [0]
    bench.turn(3)
    assert bench.offsets(P0) == []
    assert bench.of(ev.HoldChanged) == []
    assert not bench.consumer.closed


# -------------------------------------------------------------------------------------------- after a stall


def stalled(bench: Bench) -> int:
    epoch = bench.assigned(P0, 0, range(3))
    bench.clock.now += 11
    bench.consumer.log[P0] = list(range(6))
    return epoch


def test_R15_after_a_stall_nothing_is_delivered_or_committed_until_the_coordinator_has_answered_twice(
    bench: Bench,
) -> None:
    epoch = stalled(bench)
    bench.consumer.queue.append(FakeMessage("t", 0, 3))
    bench.consumer.committed_error = -185
    bench.tell(commit(P0, epoch, 2, 2))
    assert not bench.poller.may_start(bench.clock.now)
    bench.turn(3)
    assert bench.poller.stalled
    assert not bench.poller.may_start(bench.clock.now)
    assert bench.offsets(P0) == [0, 1, 2]
    assert bench.consumer.count("commit") == 0
    bench.consumer.committed_error = 0
    bench.turn()
    assert bench.poller.stalled
    bench.turn(3)
    assert not bench.poller.stalled
    assert bench.poller.may_start(bench.clock.now)
    assert bench.offsets(P0) == [0, 1, 2, 3, 4, 5]
    assert bench.consumer.count("commit") == 1
    assert bench.poller.stats.stalls == 1


def test_R15_a_loss_that_comes_with_the_answer_ends_the_epoch_before_anything_stale_is_handled(
    bench: Bench,
) -> None:
    epoch = stalled(bench)
    bench.consumer.queue.append(FakeMessage("t", 0, 3))
    bench.tell(commit(P0, epoch, 3, 3))
    bench.turn()
    bench.consumer.lose_now(P0)
    bench.turn(3)
    assert bench.of(ev.Closed) == [ev.Closed([(P0, epoch)], lost=True)]
    assert bench.offsets(P0) == [0, 1, 2]
    assert bench.consumer.count("commit") == 0
    assert not bench.poller.stalled


def test_R15_a_stall_in_the_middle_of_a_fetch_delivers_nothing_of_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.assigned(P0, 0, range(3))
    bench.consumer.log[P0] = list(range(6))
    original = bench.consumer.consume

    def slow(count: int, timeout: float) -> list[FakeMessage]:
        bench.clock.now += 11
        return original(count, timeout)

    monkeypatch.setattr(bench.consumer, "consume", slow)
    bench.turn()
    monkeypatch.undo()
    assert bench.poller.stalled
    assert bench.offsets(P0) == [0, 1, 2]
    bench.turn(4)
    assert bench.offsets(P0) == list(range(6))


def test_a_long_callback_is_no_stall(bench: Bench) -> None:
    bench.consumer.committed_takes = 4.9
    bench.assigned(P0, 0, range(3))
    bench.clock.now += 6
    bench.turn()
    assert not bench.poller.stalled


# ------------------------------------------------------------------------------------ protocol, errors, end

UNSUPPORTED = "ConsumerGroupHeartbeat is not supported: API version not supported"


def test_auto_falls_back_to_classic_with_a_new_consumer_on_the_first_unsupported_error() -> None:
    bench = Bench()
    first = bench.subscribe()
    first.queue.append(FakeMessage("t", 0, None, error=-150, text=UNSUPPORTED))
    bench.turn()
    assert bench.protocols == ["consumer", "classic"]
    assert first.closed
    assert bench.poller.protocol == "classic"
    bench.assigned(P0, 0, [0])
    assert bench.offsets(P0) == [0]


def test_an_unreachable_broker_postpones_the_choice(bench: Bench) -> None:
    bench.turn(20)
    bench.consumer.queue.append(FakeMessage("t", 0, None, error=-150, text=UNSUPPORTED))
    bench.turn()
    assert bench.protocols == ["consumer", "classic"]


def test_after_the_first_rebalance_it_never_falls_back(bench: Bench) -> None:
    bench.assigned(P0, 0)
    bench.consumer.queue.append(FakeMessage("t", 0, None, error=-150, text=UNSUPPORTED))
    with pytest.raises(FatalConsumerError, match="group_protocol"):
        bench.turn()
    assert bench.protocols == ["consumer"]


def test_with_group_protocol_consumer_it_does_not_fall_back() -> None:
    bench = Bench(PollerOptions(protocol="consumer"))
    bench.subscribe().queue.append(FakeMessage("t", 0, None, error=-150, text=UNSUPPORTED))
    with pytest.raises(FatalConsumerError):
        bench.turn()


def test_a_group_of_another_strategy_is_told_once_with_both_ways_out_until_it_assigns(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        bench.consumer.queue.append(FakeMessage("t", 0, None, error=23))
    bench.turn(3)
    assert "cooperative-sticky" in bench.poller.detail
    assert "group_protocol=consumer" in bench.poller.detail
    assert len([r for r in caplog.records if r.kind == "inconsistent_group_protocol"]) == 1  # type: ignore[attr-defined]
    bench.assigned(P0, 0)
    assert bench.poller.detail == ""


def test_errors_that_cure_themselves_are_counted_and_logged_once_a_minute(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka import KafkaError

    with caplog.at_level(logging.INFO):
        for _ in range(5):
            bench.consumer.config["error_cb"](KafkaError(-195, "refused"))
        assert len(caplog.records) == 1
        bench.clock.now += 61
        bench.consumer.config["error_cb"](KafkaError(-195, "refused"))
    assert len(caplog.records) == 2
    assert bench.poller.stats.errors == {"_TRANSPORT": 6}


def running(bench: Bench, *names: TopicPartition) -> None:
    """Have the thread's Consumer begin with these partitions."""
    original = bench.poller._make_consumer

    def make(protocol: Any, callbacks: Any) -> Any:
        consumer = original(protocol, callbacks)
        for name in names:
            consumer.broker[name] = (0, "")
        consumer.log = {name: [0, 1] for name in names}
        consumer.assign_now(*names)
        return consumer

    bench.poller._make_consumer = make


def test_H1_close_commits_what_is_acknowledged_leaves_and_says_so() -> None:
    bench = Bench()
    running(bench, P0)

    def engine(event: ev.Event) -> None:
        match event:
            case ev.Fetched():
                bench.tell(commit(P0, event.epoch, 2, 1), StopFetching(), Close())
            case ev.Revoking():
                bench.tell(commit(P0, event.partitions[0][1], 2, 2, "last"))
                bench.tell(ev.Quiet(0, P0, event.partitions[0][1]))

    bench.on_event = engine
    bench.run()
    assert bench.exits == [None]
    assert bench.consumer.closed
    assert bench.consumer.last("commit") == {P0: (2, "last")}
    assert not bench.of(ev.Closed)[-1].lost


def test_H4_an_unexpected_error_leaves_the_group_and_is_told() -> None:
    bench = Bench()
    running(bench, P0)

    def engine(event: ev.Event) -> None:
        match event:
            case ev.Fetched():
                raise ZeroDivisionError
            case ev.Revoking():
                bench.tell(ev.Quiet(0, P0, event.partitions[0][1]))

    bench.on_event = engine
    bench.run()
    assert isinstance(bench.exits[0], ZeroDivisionError)
    assert bench.poller.failure is bench.exits[0]
    assert bench.consumer.closed
    assert bench.of(ev.Closed)


def test_a_fatal_error_ends_every_epoch_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    running(bench, P0)

    def engine(event: ev.Event) -> None:
        if isinstance(event, ev.Fetched):
            # After a fatal error the client unassigns by itself, and runs no callback.
            monkeypatch.setattr(bench.consumer, "close", lambda: None)
            bench.consumer.queue.append(FakeMessage("t", 0, None, error=-150, text="fenced instance id"))

    bench.on_event = engine
    bench.run()
    assert isinstance(bench.exits[0], FatalConsumerError)
    assert "group.instance.id" in str(bench.exits[0])
    assert bench.of(ev.Closed)[-1].lost
