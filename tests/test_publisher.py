"""The publisher's verdicts and blocks: what an error says about a record, and what waits for a topic."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from streamloop.kafka.produce_errors import MEANINGS, REMEMBERED, Meaning, meaning_of
from streamloop.kafka.publishing import PublishRequest, Report, ReportKind
from tests.publisher_bench import (
    BLOCKED,
    DELIVERED,
    DENIED,
    DISK,
    INVALID_RECORD,
    MISSING,
    MSG_SIZE_TOO_LARGE,
    NOT_ENOUGH_REPLICAS,
    POLICY_VIOLATION,
    RECORD_LIST_TOO_LARGE,
    REFUSED,
    TIMED_OUT,
    TOO_LARGE,
    UNBLOCKED,
    Bench,
    request,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ------------------------------------------------------------------------------------------ the plain way


def test_a_record_goes_out_as_it_is_and_is_reported_once_delivered(bench: Bench) -> None:
    headers = [("h", b"\xff\x00"), ("h", None)]
    bench.publisher.submit([PublishRequest(7, "dead", 3, None, None, headers)])
    bench.publisher.turn()
    (sent,) = bench.main.sent
    assert (sent.topic, sent.partition, sent.key, sent.value, sent.headers) == (
        "dead",
        3,
        None,
        None,
        headers,
    )
    assert bench.turn() == []
    bench.main.report()
    assert bench.turn() == [(7, DELIVERED)]
    assert bench.reports[0] == Report(7, DELIVERED, "dead", 3, 0, 0, "")
    assert bench.publisher.counters.published == 1
    assert bench.publisher.counters.outstanding == 0


def test_records_are_sent_in_the_order_of_submission(bench: Bench) -> None:
    bench.publisher.submit([request(5), request(3)])
    bench.publisher.submit([request(4), request(1)])
    bench.publisher.turn()
    assert bench.in_hand() == [5, 3, 4, 1]


def test_a_full_queue_is_polled_and_tried_again_in_order(bench: Bench) -> None:
    bench.submit()
    bench.publisher.submit([request(i) for i in range(5)])
    bench.publisher.turn()
    bench.main.report()
    bench.turn()
    bench.main.room = 2
    bench.submit(5, 6, 7, 8, 9)
    assert bench.in_hand() == [5, 6]
    bench.main.report(count=1)
    assert bench.turn() == [(5, DELIVERED)]
    bench.turn()
    assert bench.in_hand() == [6, 7]
    bench.main.room = 10
    bench.turn()
    assert bench.in_hand() == [6, 7, 8, 9]


def test_the_second_producer_is_made_only_when_needed_and_sends_batches_of_one(bench: Bench) -> None:
    bench.submit(1, 2)
    assert len(bench.producers) == 1
    bench.main.report(MSG_SIZE_TOO_LARGE)
    bench.turn()
    bench.turn()
    assert len(bench.producers) == 2
    assert bench.solo.config["batch.num.messages"] == 1
    assert bench.solo.config["bootstrap.servers"] == "broker:9092"
    assert bench.in_hand(bench.solo) == [1, 2]


# -------------------------------------------------------------------------- one record spoils its batch


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (MSG_SIZE_TOO_LARGE, TOO_LARGE),
        (RECORD_LIST_TOO_LARGE, TOO_LARGE),
        (POLICY_VIOLATION, REFUSED),
        (INVALID_RECORD, REFUSED),
    ],
)
def test_D17_an_error_of_a_batch_is_a_verdict_only_on_the_record_that_failed_alone(
    bench: Bench, code: int, verdict: ReportKind
) -> None:
    bench.submit(1, 2, 3)
    bench.main.report(code)
    assert bench.turn() == []
    bench.turn()
    assert bench.in_hand(bench.solo) == [1, 2, 3]
    bench.solo.report(count=1)
    bench.solo.report(code, count=1)
    bench.solo.report(count=1)
    assert bench.turn() == [(1, DELIVERED), (2, verdict), (3, DELIVERED)]
    assert bench.reports[1].code == code
    assert bench.publisher.counters.failures == {code: 4}
    assert bench.publisher.counters.sent_alone == 3


def test_D5_a_shrunk_record_may_be_submitted_again_under_its_id(bench: Bench) -> None:
    bench.submit(1)
    bench.main.report(MSG_SIZE_TOO_LARGE)
    bench.turn()
    bench.turn()
    bench.solo.report(MSG_SIZE_TOO_LARGE)
    assert bench.turn() == [(1, TOO_LARGE)]
    bench.submit(1)
    bench.main.report()
    assert bench.turn() == [(1, DELIVERED)]


def test_a_record_above_the_clients_own_limit_is_too_large_and_stops_nobody(bench: Bench) -> None:
    bench.submit()
    bench.publisher.submit([request(0)])
    bench.publisher.turn()
    bench.main.raising["big"] = KafkaException(KafkaError(MSG_SIZE_TOO_LARGE))
    bench.publisher.submit([request(1, "big"), request(2)])
    assert bench.turn() == [(1, TOO_LARGE)]
    assert bench.in_hand() == [0, 2]


def test_what_the_client_can_not_encode_is_refused_with_the_reason(bench: Bench) -> None:
    bench.submit(0)
    bench.main.raising["odd"] = TypeError("headers must be a list of (str, bytes)")
    bench.publisher.submit([request(1, "odd"), request(2)])
    assert bench.turn() == [(1, REFUSED)]
    assert "headers must be" in bench.reports[0].reason
    assert bench.in_hand() == [0, 2]


# ------------------------------------------------------------------------------------------ blocked


@pytest.mark.parametrize(
    "code", [MISSING, DENIED, 30, 31, NOT_ENOUGH_REPLICAS, 20, DISK, TIMED_OUT, 89, -188, -195, 9999]
)
def test_D2_what_is_no_verdict_blocks_and_is_tried_for_ever(bench: Bench, code: int) -> None:
    bench.submit(1)
    bench.main.report(code)
    assert bench.turn() == [(1, BLOCKED)]
    assert bench.reports[0].code == code
    assert bench.reports[0].reason
    for _ in range(12):
        assert bench.turn(30.0) == []
        assert bench.in_hand() == [1], "no probe within 30 s"
        bench.main.report(code)
        assert bench.turn() == [], "blocked is reported once"
    bench.turn(30.0)
    bench.main.report()
    assert bench.turn() == [(1, DELIVERED)]
    assert bench.publisher.blocked == ()


def test_D2_only_the_topic_that_failed_is_blocked(bench: Bench) -> None:
    bench.submit(1, topic="missing")
    bench.main.report(MISSING)
    bench.turn()
    bench.submit(2, topic="missing")
    bench.submit(3, topic="there")
    assert bench.in_hand() == [3]
    bench.main.report()
    assert bench.turn() == [(3, DELIVERED)]
    (target,) = bench.publisher.blocked
    assert (target.topic, target.partition, target.code, target.waiting) == ("missing", None, MISSING, 2)


def test_one_probe_goes_while_the_others_of_its_topic_wait_without_being_produced(bench: Bench) -> None:
    bench.submit(1, 2, 3)
    bench.main.report(MISSING, count=1)
    assert bench.turn() == [(1, BLOCKED)]
    bench.main.report(MISSING)
    assert bench.turn() == [(2, BLOCKED), (3, BLOCKED)]
    bench.publisher.submit([request(4)])
    assert bench.turn() == [(4, BLOCKED)]
    assert bench.in_hand() == []
    bench.turn(0.5)
    assert bench.in_hand() == [1]
    bench.turn(60.0)
    assert bench.in_hand() == [1], "a second probe while one is on its way"
    assert bench.publisher.counters.probes == 1


def test_when_the_probe_gets_through_all_flow_in_order(bench: Bench) -> None:
    bench.submit(1, 2, 3)
    bench.main.report(MISSING)
    bench.turn()
    bench.turn(0.5)
    bench.main.report()
    assert bench.turn() == [(1, DELIVERED), (2, UNBLOCKED), (3, UNBLOCKED)]
    bench.submit(4)
    assert bench.in_hand() == [2, 3, 4]
    bench.main.report()
    assert bench.turn() == [(2, DELIVERED), (3, DELIVERED), (4, DELIVERED)]


def test_a_record_that_is_blocked_again_is_reported_again(bench: Bench) -> None:
    bench.submit(1, 2)
    bench.main.report(MISSING)
    bench.turn()
    bench.turn(0.5)
    bench.main.report()
    assert bench.turn() == [(1, DELIVERED), (2, UNBLOCKED)]
    bench.turn()
    bench.main.report(MISSING)
    assert bench.turn() == [(2, BLOCKED)]


def test_probes_back_off_by_doubling_up_to_30_s_with_jitter() -> None:
    jitter = [1.0]
    bench = Bench()
    bench.publisher._jitter = lambda: jitter[0]
    bench.submit(1)
    bench.main.report(DENIED)
    bench.turn()
    for pause in (0.5, 1, 2, 4, 8, 16, 30, 30, 30):
        bench.turn(pause - 0.01)
        assert bench.in_hand() == []
        bench.turn(0.01)
        assert bench.in_hand() == [1]
        bench.main.report(DENIED)
        bench.turn()
    jitter[0] = 0.0
    bench.turn(30)
    bench.main.report(DENIED)
    bench.turn()
    bench.turn(15)
    assert bench.in_hand() == [1], "the jitter shortens a pause to its half"


def test_a_topic_denied_at_once_by_the_client_is_blocked_and_asked_about_before_each_probe(
    bench: Bench,
) -> None:
    bench.submit(1)
    bench.main.report(DENIED)
    bench.turn()
    bench.main.raising["dead"] = KafkaException(KafkaError(DENIED))
    bench.publisher.submit([request(2), request(3, "other")])
    assert bench.turn() == [(2, BLOCKED)]
    assert bench.turn(0.5) == []
    assert bench.in_hand() == [3]
    assert bench.main.metadata_asked == ["dead"]
    del bench.main.raising["dead"]
    bench.turn(1.0)
    assert bench.main.metadata_asked == ["dead", "dead"]
    assert bench.in_hand() == [3, 1]


def test_a_broker_that_does_not_answer_about_one_topic_is_not_asked_about_the_next_in_that_turn(
    bench: Bench,
) -> None:
    bench.submit(1, topic="a")
    bench.submit(2, topic="b")
    bench.main.report(MISSING)
    bench.turn()
    bench.main.metadata_raises = KafkaException(KafkaError(-195))
    bench.turn(0.5)
    assert bench.main.metadata_asked == ["a"]
    assert bench.in_hand() == [1, 2]


def test_a_probe_that_is_refused_by_itself_shows_that_the_topic_answers(bench: Bench) -> None:
    bench.submit(1, 2)
    bench.main.report(TIMED_OUT)
    bench.turn()
    bench.turn(0.5)
    bench.main.report(INVALID_RECORD)
    assert bench.turn() == []
    bench.turn()
    assert bench.in_hand(bench.solo) == [1]
    assert bench.in_hand() == [], "the block goes on until the verdict"
    bench.solo.report(INVALID_RECORD)
    assert bench.turn() == [(1, REFUSED), (2, UNBLOCKED)]


def test_a_probe_that_only_the_client_refuses_shows_nothing(bench: Bench) -> None:
    bench.submit(1, 2)
    bench.main.report(TIMED_OUT)
    bench.turn()
    bench.main.raising["dead"] = KafkaException(KafkaError(MSG_SIZE_TOO_LARGE))
    assert bench.turn(0.5) == [(1, TOO_LARGE)]
    assert bench.publisher.blocked[0].waiting == 1
    bench.main.raising.clear()
    bench.turn()
    assert bench.in_hand() == [2]


def test_a_topic_missing_for_records_sent_alone_blocks_them_too(bench: Bench) -> None:
    bench.submit(1, 2)
    bench.main.report(INVALID_RECORD)
    bench.turn()
    bench.turn()
    bench.solo.report(MISSING)
    assert bench.turn() == [(1, BLOCKED), (2, BLOCKED)]
    bench.turn(0.5)
    assert bench.in_hand(bench.solo) == [1]
    bench.solo.report()
    assert bench.turn() == [(1, DELIVERED), (2, UNBLOCKED)]


def test_a_time_out_names_what_the_client_saw_last(bench: Bench) -> None:
    bench.submit(1)
    bench.main.config["error_cb"](KafkaError(-195, "127.0.0.1:9092: Connect failed"))
    bench.main.report(TIMED_OUT)
    bench.turn()
    assert "Connect failed" in bench.reports[0].reason


# ---------------------------------------------------------------------- one partition of a topic


def test_one_partition_without_a_leader_does_not_stop_the_others_of_its_topic(bench: Bench) -> None:
    bench.submit(1, 2, partition=0)
    bench.submit(3, 4, partition=1)
    bench.main.report(TIMED_OUT, count=2)
    bench.main.report(count=1)
    assert bench.turn() == [(1, BLOCKED), (2, BLOCKED), (3, DELIVERED)]
    (target,) = bench.publisher.blocked
    assert (target.topic, target.partition, target.waiting) == ("dead", 0, 2)
    bench.main.report()
    bench.turn()
    bench.submit(5, partition=1)
    assert bench.in_hand() == [1, 5], "one probe for the partition, and what goes to the other one"
    bench.main.report(count=1)
    assert bench.turn() == [(1, DELIVERED), (2, UNBLOCKED)]


def test_a_probe_of_another_partition_takes_its_turn(bench: Bench) -> None:
    bench.submit(1, 2, partition=0)
    bench.submit(3, partition=1)
    bench.submit(4, partition=2)
    bench.main.report(TIMED_OUT)
    bench.turn()
    probes = []
    for _ in range(6):
        bench.turn(30)
        probes += bench.in_hand()
        bench.main.report(TIMED_OUT)
        bench.turn()
    assert probes == [1, 3, 4, 1, 3, 4]


def test_after_a_probe_got_through_each_partition_that_failed_is_probed_at_once(bench: Bench) -> None:
    for partition in range(3):
        bench.submit(10 + partition, 20 + partition, partition=partition)
    bench.main.report(TIMED_OUT)
    bench.turn()
    bench.turn(0.5)
    bench.main.report()
    assert bench.turn() == [(10, DELIVERED), (20, UNBLOCKED)]
    bench.turn()
    assert sorted(bench.in_hand()) == [11, 12, 20]
    bench.main.report()
    assert set(bench.turn()) == {
        (20, DELIVERED),
        (11, DELIVERED),
        (12, DELIVERED),
        (21, UNBLOCKED),
        (22, UNBLOCKED),
    }


def test_a_success_in_the_partition_that_failed_was_sent_before_and_does_not_end_its_block(
    bench: Bench,
) -> None:
    bench.submit(1, 2)
    bench.main.report(TIMED_OUT, count=1)
    bench.main.report(count=1)
    assert bench.turn() == [(1, BLOCKED), (2, DELIVERED)]
    assert bench.publisher.blocked[0].waiting == 1
    assert bench.turn() == []
    assert bench.in_hand() == []


def test_a_probe_on_its_way_goes_on_as_that_of_its_own_partition(bench: Bench) -> None:
    bench.submit(1, 2, partition=0)
    bench.submit(3, partition=1)
    bench.main.report(TIMED_OUT, count=2)
    bench.turn()
    bench.turn(0.5)
    assert bench.in_hand() == [3, 1]
    bench.main.report(count=1)
    assert bench.turn() == [(3, DELIVERED)]
    (target,) = bench.publisher.blocked
    assert (target.partition, target.waiting) == (0, 2)
    bench.turn()
    assert bench.in_hand() == [1]
    bench.main.report(TIMED_OUT)
    bench.turn()
    bench.turn(1.0)
    bench.main.report()
    assert bench.turn() == [(1, DELIVERED), (2, UNBLOCKED)]


def test_a_blocked_partition_whose_topic_turns_out_missing_becomes_a_block_of_the_topic(bench: Bench) -> None:
    bench.submit(1, 2, partition=0)
    bench.submit(3, partition=1)
    bench.main.report(TIMED_OUT, count=2)
    bench.main.report()
    bench.turn()
    bench.turn()
    assert bench.in_hand() == [1]
    bench.main.report(MISSING)
    bench.turn()
    (target,) = bench.publisher.blocked
    assert (target.partition, target.code, target.waiting) == (None, MISSING, 2)
    bench.publisher.submit([request(4, partition=1)])
    assert bench.turn() == [(4, BLOCKED)]


def test_a_topic_that_goes_missing_takes_its_blocked_partitions_in(bench: Bench) -> None:
    bench.submit(1, 2, partition=0)
    bench.submit(3, 4, partition=1)
    bench.main.report(TIMED_OUT, count=2)
    bench.main.report(count=1)
    bench.turn()
    bench.turn()
    assert bench.in_hand() == [4, 1]
    bench.main.report(MISSING, count=1)
    bench.main.report(MISSING, count=1)
    assert bench.turn() == [(4, BLOCKED)]
    (target,) = bench.publisher.blocked
    assert (target.partition, target.waiting) == (None, 3)
    bench.turn(30)
    assert bench.in_hand() == [1]
    bench.main.report()
    assert bench.turn() == [(1, DELIVERED), (2, UNBLOCKED), (4, UNBLOCKED)]


def test_what_was_sent_before_a_topic_was_denied_does_not_end_its_block(bench: Bench) -> None:
    bench.submit(1, partition=0)
    bench.submit(2, partition=1)
    bench.main.report(DENIED, count=1)
    bench.main.report(count=1)
    assert bench.turn() == [(1, BLOCKED), (2, DELIVERED)]
    assert bench.publisher.blocked[0].partition is None


# ------------------------------------------------------------------------------------------ the table


def test_only_four_codes_can_be_a_verdict_and_an_unknown_one_never_is() -> None:
    verdicts = {c for c, m in MEANINGS.items() if m in (Meaning.BATCH_TOO_LARGE, Meaning.BATCH_REFUSED)}
    assert verdicts == {10, 18, 44, 87}
    assert meaning_of(12345) is Meaning.TOPIC_BLOCKED
    assert all(meaning_of(code) in (Meaning.TOPIC_BLOCKED, Meaning.PARTITION_BLOCKED) for code in REMEMBERED)
