"""Whatever fails in whatever order: each request that is still wanted ends in exactly one verdict."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from streamloop.kafka.publishing import ReportKind
from tests.publisher_bench import (
    DENIED,
    FATAL,
    INVALID_RECORD,
    MISSING,
    MSG_SIZE_TOO_LARGE,
    PURGED,
    TIMED_OUT,
    Bench,
    FakeProducer,
    fatal_error,
    request,
)

CODES = [0, 0, MISSING, DENIED, TIMED_OUT, MSG_SIZE_TOO_LARGE, INVALID_RECORD, PURGED, FATAL]
TOPICS = ["a", "b"]
FINAL = {ReportKind.DELIVERED, ReportKind.TOO_LARGE, ReportKind.REFUSED}

submits = st.tuples(st.just("submit"), st.sampled_from(TOPICS), st.integers(-1, 1))
cancels = st.tuples(st.just("cancel"), st.integers(0, 30))
answers = st.tuples(st.just("answer"), st.booleans(), st.sampled_from(CODES), st.integers(1, 4))
breaks = st.tuples(st.just("break"), st.booleans())
rooms = st.tuples(st.just("room"), st.integers(0, 3))
turns = st.tuples(st.just("turn"), st.sampled_from([0.0, 0.5, 5.0, 30.0]))
steps = st.lists(st.one_of(submits, cancels, answers, answers, breaks, rooms, turns), min_size=5, max_size=40)


def current(bench: Bench, *, alone: bool) -> FakeProducer | None:
    """The Producer in use of one kind, if there is one."""
    made = [p for p in bench.producers if (p.config.get("batch.num.messages") == 1) is alone]
    return made[-1] if made and not made[-1].purged else None


class Run:
    """Carries out steps, and keeps what was submitted, cancelled and reported."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.submitted: set[int] = set()
        self.cancelled: set[int] = set()
        self.final: Counter[int] = Counter()
        self.blocked: set[int] = set()

    def step(self, step: tuple[object, ...]) -> None:
        match step:
            case ("submit", str(topic), int(partition)):
                number = len(self.submitted)
                self.submitted.add(number)
                self.bench.publisher.submit([request(number, topic, partition)])
            case ("cancel", int(number)):
                if number in self.submitted:
                    self.cancelled.add(number)
                    self.bench.publisher.cancel([number])
            case ("answer", bool(alone), int(code), int(count)):
                producer = current(self.bench, alone=alone)
                if producer is not None:
                    producer.report(code, count=count)
                self.turn(0.5)
            case ("break", bool(alone)):
                producer = current(self.bench, alone=alone)
                if producer is not None:
                    producer.poll_raises = fatal_error()
            case ("room", int(room)):
                producer = current(self.bench, alone=False)
                if producer is not None:
                    producer.room = room
            case ("turn", float(seconds)):
                self.turn(seconds)

    def turn(self, seconds: float) -> None:
        cancelled_before = set(self.cancelled)
        self.bench.turn(seconds)
        for report in self.bench.reports:
            assert report.id not in cancelled_before, "a report of a cancelled request"
            assert not self.final[report.id], "a report after the verdict"
            if report.kind in FINAL:
                self.final[report.id] += 1
            elif report.kind is ReportKind.BLOCKED:
                assert report.id not in self.blocked, "blocked twice"
                self.blocked.add(report.id)
            else:
                assert report.id in self.blocked, "unblocked without having been blocked"
                self.blocked.discard(report.id)
        for topic in TOPICS:
            self.at_most_one_probe(topic)

    def at_most_one_probe(self, topic: str) -> None:
        blocks = [b for b in self.bench.publisher._blocks._blocks.values() if b.topic == topic]
        assert len({b.partition for b in blocks}) == len(blocks)
        if any(b.partition is None for b in blocks):
            assert len(blocks) == 1, "a block of the topic beside one of its partition"

    def heal(self) -> None:
        """Everything works from now on; half an hour must be enough."""
        for _ in range(60):
            for alone in (False, True):
                producer = current(self.bench, alone=alone)
                if producer is not None:
                    producer.room = 1_000
                    producer.poll_raises = None
                    producer.report()
            self.turn(30.0)


@given(steps)
def test_every_wanted_request_ends_in_one_verdict_and_blocked_and_unblocked_alternate(
    script: list[tuple[object, ...]],
) -> None:
    run = Run()
    for number in range(12):
        run.step(("submit", TOPICS[number % 2], number % 3))
    run.turn(0)
    for step in script:
        run.step(step)
    run.heal()
    assert set(run.final) >= run.submitted - run.cancelled
    assert set(run.final.values()) <= {1}
    assert run.bench.publisher.counters.outstanding == 0
    assert run.bench.publisher.blocked == ()
    assert run.bench.publisher._main.in_flight == {}
    assert run.bench.publisher._solo.in_flight == {}
    assert run.bench.publisher._main.ready == []
    assert run.bench.publisher._solo.ready == []
