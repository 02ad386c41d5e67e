"""The poller on a real Kafka: both group protocols go through the same suite."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from streamloop.engine import events as ev
from streamloop.engine.events import Reason, TopicPartition
from streamloop.engine.gate import Capacity
from streamloop.kafka.poller import PollerOptions, ResetTopic, StopFetching
from streamloop.kafka.positions import PositionError, StartPolicy
from streamloop.kafka.topics import shown_id
from tests.polling import Driver
from tests.realkafka import KafkaCluster, Members, wait_until
from tests.realkafka.client import Record as KafkaRecord

PROTOCOLS = ("consumer", "classic")


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def drive(kafka: KafkaCluster, group: str, protocol: Any) -> Any:
    """Starts members of the test's group; all of them leave at its end."""
    started: list[Driver] = []

    def start(topic: str, *, start: Any = "earliest", out_of_range: Any = "earliest", **more: Any) -> Driver:
        policy = StartPolicy(start, out_of_range)
        options = PollerOptions(protocol=protocol, policy=lambda _topic: policy, **more.pop("options", {}))
        driver = Driver(kafka.bootstrap, group, [topic], options=options, **more)
        started.append(driver)
        return driver.__enter__()

    yield start
    for driver in started:
        if not driver.ended.is_set():
            driver.close()


def fill(kafka: KafkaCluster, topic: str, count: int, partition: int = 0, start: int = 0) -> None:
    kafka.produce(topic, [KafkaRecord(b"%d" % (start + n), partition=partition) for n in range(count)])


def test_fetches_everything_in_order_commits_it_and_leaves_lag_0(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, drive: Any
) -> None:
    name = topic(2)
    fill(kafka, name, 1500, 0)
    fill(kafka, name, 700, 1)
    driver = drive(name)
    driver.await_offset(TopicPartition(name, 0), 1499)
    driver.await_offset(TopicPartition(name, 1), 699)
    wait_until(lambda: kafka.lag(group, name) == 0, message="lag 0")
    assert driver.offsets(TopicPartition(name, 0)) == list(range(1500))
    assert driver.offsets(TopicPartition(name, 1)) == list(range(700))
    first = [event for event in driver.events if not isinstance(event, ev.Committed)][:2]
    assert all(isinstance(event, ev.Assigned) for event in first)
    assert {event.cluster_id for event in driver.of(ev.Assigned)} != {"unknown"}
    assert {event.topic_id for event in driver.of(ev.Assigned)} != {"unknown"}


def test_R16_a_partition_that_ends_in_transaction_markers_reports_its_end_beyond_them(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, drive: Any
) -> None:
    name = topic()
    kafka.produce_transaction(name, [KafkaRecord(b"%d" % n, partition=0) for n in range(3)])
    driver = drive(name)
    wait_until(lambda: driver.of(ev.EndOfPartition), message="the end")
    assert driver.offsets(TopicPartition(name, 0)) == [0, 1, 2]
    assert driver.of(ev.EndOfPartition)[-1].offset == 4
    wait_until(lambda: kafka.lag(group, name) == 0, message="lag 0")


def test_R18_a_start_at_latest_is_committed_as_a_number_before_anything_is_fetched(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, drive: Any
) -> None:
    name = topic()
    fill(kafka, name, 40)
    driver = drive(name, start="latest")
    wait_until(lambda: driver.of(ev.Committed), message="the start's commit")
    assert kafka.committed_offsets(group, name) == {0: 40}
    driver.poller.command([StopFetching()])
    driver.finish = False
    fill(kafka, name, 5)
    driver.close()
    again = drive(name, start="latest")
    again.await_offset(TopicPartition(name, 0), 44)
    assert again.offsets(TopicPartition(name, 0)) == [40, 41, 42, 43, 44]
    assert again.of(ev.Assigned)[0].committed


def test_a_start_at_a_time_is_the_first_record_of_that_time(
    kafka: KafkaCluster, topic: Callable[..., str], drive: Any
) -> None:
    name = topic(config={"retention.ms": "-1"})
    times = [1_000_000 + 1000 * n for n in range(10)]
    kafka.produce(name, [KafkaRecord(b"x", partition=0, timestamp=time) for time in times])
    driver = drive(name, start=times[6] + 1)
    driver.await_offset(TopicPartition(name, 0), 9)
    assert driver.offsets(TopicPartition(name, 0)) == [7, 8, 9]


def test_start_stop_without_a_committed_offset_ends_the_poller_with_a_sentence(
    topic: Callable[..., str], drive: Any
) -> None:
    driver = drive(topic(), start="stop")
    assert driver.ended.wait(20)
    assert isinstance(driver.failure, PositionError)
    assert "start is stop" in str(driver.failure)


def test_R12_a_partition_that_appears_later_starts_at_its_beginning_whatever_start_says(
    kafka: KafkaCluster, topic: Callable[..., str], drive: Any
) -> None:
    name = topic()
    driver = drive(name, start="latest")
    driver.await_assigned(TopicPartition(name, 0))
    kafka.add_partitions(name, 2)
    fill(kafka, name, 20, 1)
    driver.await_offset(TopicPartition(name, 1), 19, timeout=60)
    assert driver.offsets(TopicPartition(name, 1)) == list(range(20))


def test_R7_what_is_finished_while_it_leaves_is_committed_and_the_next_owner_goes_on_there(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, drive: Any
) -> None:
    name = topic(2)
    fill(kafka, name, 100, 0)
    fill(kafka, name, 100, 1)
    one = drive(name, finish=False, options={"revoke_wait": 20.0})
    one.quiet = False
    one.await_offset(TopicPartition(name, 0), 99)
    one.await_offset(TopicPartition(name, 1), 99)
    two = drive(name, finish=False)
    revoking = wait_until(lambda: one.of(ev.Revoking), message="a revoke")
    for tp, epoch in revoking[0].partitions:
        one.commit(tp, 42, "what else is done")
        one.poller.command([ev.Quiet(0, tp, epoch)])
    moved = [tp for tp, _ in revoking[0].partitions]
    two.await_assigned(*moved)
    assigned = [event for event in two.of(ev.Assigned) if event.partition in moved]
    assert [(event.offset, event.committed, event.metadata) for event in assigned] == [
        (42, True, "what else is done") for _ in moved
    ]
    closed = one.of(ev.Closed)[0]
    assert closed.partitions == revoking[0].partitions
    assert not closed.lost
    assert one.events.index(revoking[0]) < one.events.index(closed)


def test_R7_the_wait_for_running_handlers_is_bounded(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, drive: Any
) -> None:
    name = topic(2)
    fill(kafka, name, 10, 0)
    fill(kafka, name, 10, 1)
    one = drive(name, finish=False, options={"revoke_wait": 1.0})
    one.quiet = False
    one.await_offset(TopicPartition(name, 0), 9)
    two = drive(name, finish=False)
    wait_until(lambda: len(two.assigned()) == 1, message="the second member's partition")
    assert not one.of(ev.Closed)[0].lost
    one.quiet = True


def test_R3_a_commit_of_an_epoch_that_ended_is_never_sent(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, drive: Any
) -> None:
    name = topic(2)
    fill(kafka, name, 50, 0)
    fill(kafka, name, 50, 1)
    one = drive(name)
    wait_until(lambda: kafka.lag(group, name) == 0, message="lag 0")
    two = drive(name)
    closed = wait_until(lambda: one.of(ev.Closed), message="a partition that left")[0]
    tp, epoch = closed.partitions[0]
    two.await_assigned(tp)
    one.commit(tp, 3, epoch=epoch)
    wait_until(lambda: one.poller.stats.commits["stale"], message="the stale commit dropped")
    assert kafka.committed_offsets(group, name)[tp.partition] == 50


def test_B3_a_hold_ends_with_the_epoch_and_the_partition_flows_for_its_next_owner_and_back(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, drive: Any
) -> None:
    name = topic(2)
    one = drive(name)
    both = {TopicPartition(name, 0), TopicPartition(name, 1)}
    wait_until(lambda: len(one.of(ev.Committed)) == 2, message="the starts")
    for tp in both:
        one.hold(tp, Reason.RETRY_NOT_DUE)
    two = drive(name)
    wait_until(lambda: len(two.assigned()) == 1, message="the second member's partition")
    (moved,) = two.assigned()
    fill(kafka, name, 10, moved.partition)
    two.await_offset(moved, 9)
    two.close()
    one.await_assigned(*both)
    fill(kafka, name, 10, moved.partition)
    one.await_offset(moved, 19)
    (stayed,) = both - {moved}
    fill(kafka, name, 1, stayed.partition)
    assert one.poller.status().held == {f"{name}/{stayed.partition}": ("retry_not_due",)}
    one.hold(stayed)
    one.await_offset(stayed, 0)


def test_B2_full_when_partitions_come_they_stay_paused_and_resume_below_the_low_watermark(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, drive: Any
) -> None:
    name = topic(2)
    fill(kafka, name, 300, 0)
    fill(kafka, name, 300, 1)
    two = drive(name, finish=False)
    one = drive(name, finish=False, capacity=Capacity(50, 1 << 30), options={"dwell": 0.1})
    wait_until(lambda: len(one.assigned()) == 1, message="one partition each")
    wait_until(
        lambda: any(e.reason is Reason.WATERMARK and e.held for e in one.of(ev.HoldChanged)),
        message="the hold",
    )
    two.close()
    one.await_assigned(TopicPartition(name, 0), TopicPartition(name, 1))
    wait_until(lambda: one.poller.stats.turns, message="a turn")
    assert one.capacity.peak_messages <= 50
    fetched = one.of(ev.Fetched)
    one.finish = True
    one.release([record for event in fetched for record in event.records])
    one.poller.wake()
    one.await_offset(TopicPartition(name, 0), 299)
    one.await_offset(TopicPartition(name, 1), 299)
    assert one.capacity.peak_messages <= 50


def test_B5_everything_held_for_longer_than_max_poll_interval_stays_in_the_group(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, drive: Any
) -> None:
    name = topic()
    fill(kafka, name, 300)
    interval = {"max.poll.interval.ms": 6000}
    driver = drive(name, finish=False, capacity=Capacity(50, 1 << 30), **interval)
    driver.await_offset(TopicPartition(name, 0), 49)
    turns = driver.poller.stats.turns
    wait_until(lambda: driver.poller.stats.turns > turns + 80, timeout=30, message="8 s of turns")
    assert driver.of(ev.Closed) == []
    driver.finish = True
    driver.release([record for event in driver.of(ev.Fetched) for record in event.records])
    driver.poller.wake()
    driver.await_offset(TopicPartition(name, 0), 299)
    assert driver.offsets(TopicPartition(name, 0)) == list(range(300))


def test_a_silent_engine_stops_the_fetching_and_the_member_stays(
    kafka: KafkaCluster, topic: Callable[..., str], drive: Any
) -> None:
    name = topic()
    driver = drive(name, options={"engine_silent_after": 0.5})
    tp = TopicPartition(name, 0)
    wait_until(lambda: driver.of(ev.EndOfPartition), message="the end")
    driver.beat.stamp = driver.beat.stamp
    wait_until(
        lambda: any(e.reason is Reason.ENGINE_SILENT and e.held for e in driver.of(ev.HoldChanged)),
        message="ENGINE_SILENT",
    )
    fill(kafka, name, 5)
    turns = driver.poller.stats.turns
    wait_until(lambda: driver.poller.stats.turns > turns + 10, message="turns without a fetch")
    assert driver.offsets(tp) == []
    driver.beat.stopped_at = None
    driver.await_offset(tp, 4)


def test_after_a_seek_the_next_thing_fetched_is_the_wanted_offset(
    kafka: KafkaCluster, topic: Callable[..., str], drive: Any
) -> None:
    name = topic()
    fill(kafka, name, 5000)
    driver = drive(name)
    tp = TopicPartition(name, 0)
    for token, (wait_for, offset) in enumerate([(10, 4000), (4999, 17), (100, 2000), (2100, 0)], start=1):
        driver.await_offset(tp, wait_for)
        before = len(driver.events)
        driver.poller.command([ev.Seek(0, tp, driver.epoch(tp), offset, token)])
        said = ev.Sought(tp, driver.epoch(tp), token)
        wait_until(lambda said=said: said in driver.events, message="the seek")  # type: ignore[misc]
        at = driver.events.index(said, before)
        wait_until(lambda at=at: _fetches(driver, at), message="a fetch")  # type: ignore[misc]
        assert _fetches(driver, at)[0].records[0].offset == offset


def _fetches(driver: Driver, after: int) -> list[ev.Fetched]:
    return [event for event in driver.events[after:] if isinstance(event, ev.Fetched)]


@pytest.mark.parametrize(
    ("policy", "committed", "start"), [("earliest", 10, 60), ("latest", 10, 100), ("earliest", 5000, 60)]
)
def test_R10_a_position_that_is_out_of_range_is_decided_by_the_policy(
    kafka: KafkaCluster,
    topic: Callable[..., str],
    group: str,
    drive: Any,
    policy: str,
    committed: int,
    start: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = topic()
    fill(kafka, name, 100)
    kafka.delete_records(name, {0: 60})
    kafka.commit(group, name, {0: (committed, "")})
    driver = drive(name, out_of_range=policy)
    tp = TopicPartition(name, 0)
    wait_until(lambda: sum(driver.poller.stats.out_of_range.values()) == 1, message="the decision")
    fill(kafka, name, 3)
    driver.await_offset(tp, 102)
    assert driver.offsets(tp) == list(range(start, 103))
    assert f"the position {committed} of {name}/0 is not in its log, which has 60 to 100" in caplog.text
    wait_until(lambda: kafka.committed_offsets(group, name) == {0: 103}, message="the commit")


def test_R10_out_of_range_stop_ends_the_poller_with_a_sentence(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, drive: Any
) -> None:
    name = topic()
    fill(kafka, name, 10)
    kafka.delete_records(name, {0: 5})
    kafka.commit(group, name, {0: (2, "")})
    driver = drive(name, out_of_range="stop")
    assert driver.ended.wait(20)
    assert isinstance(driver.failure, PositionError)
    assert f"the position 2 of {name}/0 is not in its log" in str(driver.failure)
    assert kafka.committed_offsets(group, name) == {0: 2}


def test_R10_records_deleted_under_a_running_consumer_are_skipped_and_what_it_has_is_kept(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, drive: Any
) -> None:
    name = topic()
    fill(kafka, name, 100)
    driver = drive(name, finish=False, capacity=Capacity(10, 1 << 30), options={"dwell": 0.1})
    tp = TopicPartition(name, 0)
    wait_until(
        lambda: any(e.reason is Reason.WATERMARK for e in driver.of(ev.HoldChanged)), message="the hold"
    )
    kafka.delete_records(name, {0: 60})
    driver.finish = True
    driver.release([record for event in driver.of(ev.Fetched) for record in event.records])
    driver.poller.wake()
    driver.await_offset(tp, 99)
    assert driver.offsets(tp) == [*range(10), *range(60, 100)]
    assert driver.of(ev.Closed) == []
    assert driver.poller.stats.out_of_range == {"skip ahead": 1}


@pytest.mark.parametrize("told", [True, False])
def test_R13_a_topic_recreated_while_running_is_read_from_its_beginning(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, drive: Any, told: bool
) -> None:
    name = topic()
    fill(kafka, name, 100)
    driver = drive(name, start="latest")
    tp = TopicPartition(name, 0)
    driver.await_assigned(tp)
    fill(kafka, name, 50)
    driver.await_offset(tp, 149)
    first = driver.of(ev.Assigned)[0]
    kafka.delete_topic(name)
    topic(name=name)
    fill(kafka, name, 20)
    # A position of the old topic that was still to be committed: the broker takes it for one of the new.
    driver.commit(tp, 150, epoch=first.epoch)
    if told:
        topic_id = shown_id(kafka.admin.describe_topics(_collection(name))[name].result(10).topic_id)
        driver.poller.command([ResetTopic(name, topic_id)])

    def read() -> set[int]:
        fresh = [each for each in driver.of(ev.Assigned) if each.topic_id != first.topic_id]
        return {offset for each in fresh for offset in driver.offsets(tp, each.epoch)}

    wait_until(lambda: read() == set(range(20)), timeout=60, message=lambda: f"the new records: {read()}")
    assert driver.of(ev.Closed)[0].partitions == [(tp, first.epoch)]
    wait_until(lambda: kafka.committed_offsets(group, name) == {0: 20}, message="the commit")


def _collection(name: str) -> Any:
    from confluent_kafka import TopicCollection

    return TopicCollection([name])


def test_a_topic_that_goes_and_comes_back_is_consumed_again(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, drive: Any
) -> None:
    name = topic()
    fill(kafka, name, 10)
    driver = drive(name)
    tp = TopicPartition(name, 0)
    driver.await_offset(tp, 9)
    epoch = driver.epoch(tp)
    kafka.delete_topic(name)
    wait_until(
        lambda: driver.of(ev.Closed) or any(e.reason is Reason.TOPIC_GONE for e in driver.of(ev.HoldChanged)),
        timeout=60,
        message="the loss of the topic",
    )
    topic(name=name)
    fill(kafka, name, 7)
    wait_until(
        lambda: driver.epoch(tp) != epoch and 6 in driver.offsets(tp, driver.epoch(tp)),
        timeout=90,
        message=lambda: f"the new records: {driver.events[-6:]} {driver.poller.status()}",
    )
    assert driver.offsets(tp, driver.epoch(tp)) == list(range(7))


def test_R17_metadata_that_is_too_large_costs_only_the_metadata_of_its_partition(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, drive: Any
) -> None:
    name = topic(2)
    driver = drive(name, finish=False)
    zero, one = TopicPartition(name, 0), TopicPartition(name, 1)
    driver.await_assigned(zero, one)
    wait_until(lambda: len(driver.of(ev.Committed)) == 2, message="the starts")
    fill(kafka, name, 9, 0)
    fill(kafka, name, 9, 1)
    driver.commit(zero, 5, "x" * 5000)
    driver.commit(one, 6, "kept")
    wait_until(lambda: kafka.committed_offsets(group, name) == {0: 5, 1: 6}, message="both commits")
    committed = kafka.committed(group, name)
    assert (committed[0].metadata, committed[1].metadata) == ("", "kept")
    wait_until(
        lambda: {(zero, 5), (one, 6)} <= {(each.partition, each.offset) for each in driver.of(ev.Committed)},
        message="both confirmed",
    )


def test_H4_an_error_in_the_thread_leaves_the_group_and_is_told(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, drive: Any
) -> None:
    name = topic()
    driver = drive(name)
    driver.await_assigned(TopicPartition(name, 0))
    driver.poller.command([object()])  # what no poller knows
    driver.poller._starts.resolve = _broken
    assert driver.ended.wait(20)
    assert isinstance(driver.failure, ZeroDivisionError)
    assert driver.poller.failure is driver.failure
    wait_until(lambda: not kafka.members(group), message="the member gone")
    assert driver.assigned() == set()


def _broken(_consumer: object) -> None:
    raise ZeroDivisionError


def test_H5_a_broker_that_is_not_there_yet_is_waited_for(fresh_kafka: KafkaCluster, group: str) -> None:
    name = fresh_kafka.create_topic(1, prefix="late")
    fill(fresh_kafka, name, 5)
    (node,) = fresh_kafka.nodes
    node.stop()
    with Driver(fresh_kafka.bootstrap, group, [name], options=PollerOptions(protocol="auto")) as driver:
        wait_until(lambda: driver.poller.stats.errors["_ALL_BROKERS_DOWN"], message="the broker missed")
        assert driver.poller.is_alive()
        fresh_kafka.restart(node)
        driver.await_offset(TopicPartition(name, 0), 4, timeout=60)
        assert driver.poller.protocol == "consumer"


def test_a_broker_without_the_new_protocol_gets_a_classic_member(group: str) -> None:
    with KafkaCluster(properties={"group.coordinator.rebalance.protocols": "classic"}) as old:
        name = old.create_topic(1, prefix="old")
        fill(old, name, 5)
        with Driver(old.bootstrap, group, [name]) as driver:
            driver.await_offset(TopicPartition(name, 0), 4)
            assert driver.poller.protocol == "classic"
        with Driver(old.bootstrap, group, [name], options=PollerOptions(protocol="consumer")) as refused:
            assert refused.ended.wait(20)
            assert "set group_protocol to auto or classic" in str(refused.failure)


def test_a_commit_that_the_broker_could_not_take_is_sent_when_it_is_back(
    fresh_kafka: KafkaCluster, group: str
) -> None:
    name = fresh_kafka.create_topic(1, prefix="away")
    tp = TopicPartition(name, 0)
    fill(fresh_kafka, name, 5)
    (node,) = fresh_kafka.nodes
    with Driver(fresh_kafka.bootstrap, group, [name]) as driver:
        wait_until(lambda: 5 in [event.offset for event in driver.of(ev.Committed)], message="the commit")
        driver.finish = False  # an end that is seen again would be a newer position
        node.suspend()
        driver.commit(tp, 3, "while away")
        wait_until(lambda: driver.poller.status().dirty_commits == 1, message="the commit waiting")
        node.resume()
        wait_until(
            lambda: fresh_kafka.committed(group, name)[0].metadata == "while away",
            timeout=90,
            message="the commit after all",
        )
        assert driver.poller.is_alive()


def test_a_group_of_another_strategy_is_named_with_both_ways_out(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    from confluent_kafka import Consumer

    name = topic()
    other = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": group, "partition.assignment.strategy": "range"}
    )
    came: list[Any] = []
    other.subscribe([name], on_assign=lambda *_: came.append(1))
    try:
        wait_until(lambda: other.poll(0.1) is None and came, message="the other member")
        with Driver(kafka.bootstrap, group, [name], options=PollerOptions(protocol="classic")) as driver:
            wait_until(lambda: driver.poller.detail, message="the reason")
            assert "cooperative-sticky" in driver.poller.detail
            assert "group_protocol=consumer" in driver.poller.detail
            assert driver.poller.is_alive()
    finally:
        other.close()


CHILD = """
import sys, time
from streamloop.engine import events as ev
from streamloop.engine.gate import Capacity
from streamloop.kafka.poller import PollerOptions
from tests.polling import Driver
bootstrap, group, topic, protocol = sys.argv[1:]

def watch(event):
    now = time.monotonic()
    if isinstance(event, ev.Fetched) and driver.poller.may_start(now):
        print("handled", event.epoch, event.records[0].offset, event.records[-1].offset, now, flush=True)
    elif isinstance(event, ev.Closed):
        print("closed", event.lost, flush=True)

driver = Driver(
    bootstrap, group, [topic], watch=watch, capacity=Capacity(10, 1 << 30),
    options=PollerOptions(protocol=protocol, stall_after=3.0),
)
with driver:
    driver.ended.wait()
"""


def test_R15_a_member_that_was_stopped_handles_nothing_stale_and_rewinds_nobody(
    kafka: KafkaCluster,
    topic: Callable[..., str],
    group: str,
    protocol: Any,
    drive: Any,
    members: Members,
) -> None:
    name = topic()
    fill(kafka, name, 20000)
    child = members.start_script(CHILD, kafka.bootstrap, group, name, protocol)
    child.wait_for_line(r"^handled 1 ")
    child.suspend()
    driver = drive(name, start="stop")
    driver.await_offset(TopicPartition(name, 0), 19999, timeout=60)
    wait_until(lambda: kafka.committed_offsets(group, name) == {0: 20000}, message="everything committed")
    resumed = time.monotonic()
    child.resume()
    child.wait_for_line(r"^closed True")
    # A handler that had been called before the stop may end after it; none of the old epoch starts then.
    handled = [line.split() for line in child.lines if line.startswith("handled 1 ")]
    assert [words for words in handled if float(words[4]) > resumed] == []
    assert kafka.committed_offsets(group, name) == {0: 20000}
