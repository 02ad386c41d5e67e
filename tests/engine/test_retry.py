"""What follows from a failure: again in place, a retry topic, dead letter, wait, or stop."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamloop.engine.retry import (
    MAX_DELAY,
    Decision,
    Failure,
    Kind,
    RetryPlan,
    Step,
    decide,
    next_step_early,
    validate_plan,
)

TRANSIENT = Failure(Kind.TRANSIENT, "builtins.ValueError", "bad", "0" * 16)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def step(
    plan: RetryPlan,
    failure: Failure = TRANSIENT,
    *,
    attempt: int = 1,
    in_place: int = 1,
    hop: int = 0,
    age: float = 0.0,
    unavailable_in_a_row: int = 1,
    uniform: float = 0.5,
) -> Decision:
    return decide(
        plan,
        failure,
        attempt=attempt,
        in_place=in_place,
        hop=hop,
        age=age,
        unavailable_in_a_row=unavailable_in_a_row,
        uniform=lambda: uniform,
    )


def test_in_place_first_then_each_retry_topic_then_dead_letter() -> None:
    plan = RetryPlan()
    steps = [
        step(plan, in_place=1, attempt=1),
        step(plan, in_place=2, attempt=2),
        step(plan, in_place=3, attempt=3),
        step(plan, in_place=1, attempt=4, hop=1),
        step(plan, in_place=1, attempt=5, hop=2),
        step(plan, in_place=1, attempt=6, hop=3),
    ]
    assert [(each.step, each.retry_index) for each in steps] == [
        (Step.AGAIN, -1),
        (Step.AGAIN, -1),
        (Step.RETRY_TOPIC, 0),
        (Step.RETRY_TOPIC, 1),
        (Step.RETRY_TOPIC, 2),
        (Step.DEAD_LETTER, -1),
    ]
    assert [each.delay for each in steps] == [0.1, 0.2, 30.0, 300.0, 1800.0, 0.0]


@pytest.mark.parametrize(("in_place", "ceiling"), [(1, 0.2), (2, 0.4), (5, 3.2), (6, 5.0), (5_000, 5.0)])
def test_back_off_doubles_to_its_cap_with_full_jitter(in_place: int, ceiling: float) -> None:
    plan = RetryPlan(in_place_attempts=10_000)
    assert step(plan, in_place=in_place, uniform=0.0).delay == 0.0
    assert step(plan, in_place=in_place, uniform=0.5).delay == pytest.approx(ceiling / 2)


def test_each_step_of_the_plan_may_be_left_out() -> None:
    assert step(RetryPlan(in_place_attempts=1)).step is Step.RETRY_TOPIC
    assert step(RetryPlan(in_place_attempts=1, retry_delays=())).step is Step.DEAD_LETTER
    halted = step(RetryPlan(in_place_attempts=1, retry_delays=(), dead_letter=False))
    assert halted.step is Step.HALT
    assert "dead_letter" in halted.note


def test_a_permanent_error_goes_to_dead_letter_at_once_or_halts_naming_the_setting() -> None:
    permanent = replace(TRANSIENT, kind=Kind.PERMANENT)
    assert step(RetryPlan(), permanent).step is Step.DEAD_LETTER
    halted = step(RetryPlan(dead_letter=False), permanent)
    assert halted.step is Step.HALT
    assert "dead_letter=True" in halted.note


def test_D8_a_fatal_error_halts_and_a_skip_acknowledges() -> None:
    assert step(RetryPlan(), replace(TRANSIENT, kind=Kind.FATAL)).step is Step.HALT
    assert step(RetryPlan(), replace(TRANSIENT, kind=Kind.SKIP)).step is Step.ACK


def test_retry_after_is_the_delay_in_place_and_gives_way_to_the_retry_topics() -> None:
    asked = replace(TRANSIENT, after=12.5)
    assert step(RetryPlan(), asked) == Decision(Step.AGAIN, 12.5)
    assert step(RetryPlan(), replace(TRANSIENT, after=1e9)).delay == MAX_DELAY
    assert step(RetryPlan(), asked, in_place=3) == Decision(Step.RETRY_TOPIC, 30.0, 0)
    assert step(RetryPlan(), asked, in_place=1, hop=1) == Decision(Step.RETRY_TOPIC, 300.0, 1)


def test_budgets_of_attempts_and_age_make_dead_letter_the_next_step() -> None:
    assert step(RetryPlan(max_attempts=2), attempt=1).step is Step.AGAIN
    assert step(RetryPlan(max_attempts=2), attempt=2, in_place=2).step is Step.DEAD_LETTER
    assert step(RetryPlan(max_age=60.0), age=59.9).step is Step.AGAIN
    assert step(RetryPlan(max_age=60.0), age=60.0).step is Step.DEAD_LETTER
    assert "max_age" in step(RetryPlan(max_age=60.0), age=61.0, hop=2).note


def test_unavailable_waits_with_back_off_to_its_cap_whatever_the_counts() -> None:
    down = replace(TRANSIENT, kind=Kind.UNAVAILABLE)
    plan = RetryPlan(max_attempts=1, max_age=1.0, unavailable_cap=30.0)
    for attempt in (1, 50):
        assert step(plan, down, attempt=attempt, in_place=attempt, age=1e6, hop=3).step is Step.WAIT
    delays = [step(plan, down, unavailable_in_a_row=n).delay for n in range(1, 2_000)]
    assert delays == sorted(delays)
    assert delays[0] == pytest.approx(0.1)
    assert delays[-1] == 15.0
    assert step(plan, replace(down, after=4.0)).delay == 4.0


def test_waiting_for_something_unavailable_does_not_spin_when_the_plan_has_no_back_off() -> None:
    down = replace(TRANSIENT, kind=Kind.UNAVAILABLE)
    assert step(RetryPlan(backoff_base=0.0), down).delay > 0


def test_D14_strict_order_does_the_whole_plan_in_place_then_dead_letter() -> None:
    plan = RetryPlan(strict_order=True, retry_delays=(), in_place_attempts=3)
    assert validate_plan(plan) == []
    assert [step(plan, in_place=n, attempt=n).step for n in (1, 2, 3)] == [
        Step.AGAIN,
        Step.AGAIN,
        Step.DEAD_LETTER,
    ]
    assert step(plan, in_place=1, hop=2).step is Step.AGAIN
    assert next_step_early(plan, 0).step is Step.WAIT


def test_D14_strict_order_together_with_retry_topics_is_refused() -> None:
    (problem,) = validate_plan(RetryPlan(strict_order=True))
    assert "strict_order" in problem
    assert "retry_delays" in problem
    assert step(RetryPlan(strict_order=True), in_place=3).step is Step.DEAD_LETTER


@pytest.mark.parametrize("hop", [4, 9, 1_000])
def test_a_record_of_a_retry_topic_that_the_plan_no_longer_has_goes_to_dead_letter(hop: int) -> None:
    assert step(RetryPlan(), hop=hop).step is Step.DEAD_LETTER


def test_the_next_step_taken_early_is_the_retry_topic_or_holding_on() -> None:
    plan = RetryPlan(retry_delays=(30.0, 300.0))
    assert [(d.step, d.retry_index, d.delay) for d in (next_step_early(plan, hop) for hop in range(3))] == [
        (Step.RETRY_TOPIC, 0, 30.0),
        (Step.RETRY_TOPIC, 1, 300.0),
        (Step.WAIT, -1, 0.0),
    ]


def test_a_delay_function_replaces_the_back_off() -> None:
    seen: list[tuple[int, Failure]] = []

    def delay(attempt: int, failure: Failure) -> float:
        seen.append((attempt, failure))
        return 3

    assert step(RetryPlan(delay=delay), attempt=2, in_place=2) == Decision(Step.AGAIN, 3.0)
    assert seen == [(2, TRANSIENT)]


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no")


async def _asynchronous(_attempt: int, _failure: Failure) -> float:
    return 1.0


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, -0.1, MAX_DELAY + 1, 10**6000, "3", None, True, Odd(), [1.0], 1j],
    ids=lambda value: type(value).__name__,
)
def test_D16_a_delay_function_that_returns_nonsense_gets_the_default_delay_and_a_note(value: Any) -> None:
    decision = step(RetryPlan(delay=lambda _attempt, _failure: value))
    assert (decision.step, decision.delay) == (Step.AGAIN, step(RetryPlan()).delay)
    assert "delay function returned" in decision.note
    assert len(decision.note) < 300


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, Unprintable])
def test_D16_a_delay_function_that_raises_gets_the_default_delay_and_a_note(
    error: type[BaseException],
) -> None:
    def delay(_attempt: int, _failure: Failure) -> float:
        raise error

    decision = step(RetryPlan(delay=delay))
    assert (decision.step, decision.delay) == (Step.AGAIN, step(RetryPlan()).delay)
    assert error.__name__ in decision.note


def test_D16_an_asynchronous_delay_function_is_refused_and_harmless() -> None:
    plan = RetryPlan(delay=_asynchronous)  # type: ignore[arg-type]
    assert "delay" in validate_plan(plan)[0]
    assert "coroutine" in step(plan).note  # and no "never awaited" warning: warnings are errors here


@pytest.mark.parametrize(
    ("plan", "setting"),
    [
        (RetryPlan(in_place_attempts=0), "in_place_attempts"),
        (RetryPlan(in_place_attempts=True), "in_place_attempts"),
        (RetryPlan(in_place_attempts=1.5), "in_place_attempts"),  # type: ignore[arg-type]
        (RetryPlan(backoff_base=-1), "backoff_base"),
        (RetryPlan(backoff_factor=0.5), "backoff_factor"),
        (RetryPlan(backoff_cap=math.nan), "backoff_cap"),
        (RetryPlan(unavailable_cap=math.inf), "unavailable_cap"),
        (RetryPlan(retry_delays=(30.0, 0.0)), "retry_delays"),
        (RetryPlan(retry_delays=(30.0, 30)), "retry_delays"),
        (RetryPlan(retry_delays=("30s",)), "retry_delays"),  # type: ignore[arg-type]
        (RetryPlan(max_attempts=0), "max_attempts"),
        (RetryPlan(max_age=-5.0), "max_age"),
        (RetryPlan(delay=5), "delay"),  # type: ignore[arg-type]
    ],
)
def test_a_plan_that_can_not_work_is_named_by_its_setting(plan: RetryPlan, setting: str) -> None:
    (problem,) = validate_plan(plan)
    assert problem.startswith(setting)


def test_the_default_plan_is_valid() -> None:
    assert validate_plan(RetryPlan()) == []


# --- what holds for every plan

seconds = st.floats(min_value=0.001, max_value=10_000.0)
plans = st.builds(
    RetryPlan,
    in_place_attempts=st.integers(1, 6),
    backoff_base=st.floats(0, 100),
    backoff_factor=st.floats(1, 1e4),
    backoff_cap=st.floats(0, 1_000),
    retry_delays=st.lists(seconds, max_size=4, unique=True).map(tuple),
    dead_letter=st.booleans(),
    max_attempts=st.none() | st.integers(1, 10),
    max_age=st.none() | st.floats(0.1, 1e6),
    unavailable_cap=st.floats(0.1, 1_000),
    delay=st.none()
    | st.sampled_from([lambda _a, _f: math.nan, lambda _a, _f: 2.0, lambda _a, _f: 1 / 0, lambda a, _f: -a]),
) | st.builds(
    RetryPlan, strict_order=st.just(True), retry_delays=st.just(()), in_place_attempts=st.integers(1, 6)
)
failures = st.builds(
    Failure,
    kind=st.sampled_from(Kind),
    error_class=st.just("m.E"),
    message=st.just("bad"),
    fingerprint=st.just("0" * 16),
    after=st.none() | st.floats(0, 1e9),
)


@given(
    plans,
    failures,
    st.integers(1, 50),
    st.integers(1, 50),
    st.integers(0, 9),
    st.floats(0, 1e9),
    st.integers(0, 10_000),
    st.floats(0, 1, exclude_max=True),
)
def test_every_decision_keeps_its_bounds(
    plan: RetryPlan,
    failure: Failure,
    attempt: int,
    in_place: int,
    hop: int,
    age: float,
    in_a_row: int,
    uniform: float,
) -> None:
    assert validate_plan(plan) == []
    decision = step(
        plan,
        failure,
        attempt=attempt,
        in_place=in_place,
        hop=hop,
        age=age,
        unavailable_in_a_row=in_a_row,
        uniform=uniform,
    )
    assert 0 <= decision.delay <= MAX_DELAY
    assert (decision.retry_index == -1) == (decision.step is not Step.RETRY_TOPIC)
    match decision.step:
        case Step.AGAIN:
            assert failure.kind is Kind.TRANSIENT
            assert in_place < plan.in_place_attempts
            assert hop == 0 or plan.strict_order
            assert plan.max_attempts is None or attempt < plan.max_attempts
            if failure.after is None and plan.delay is None:
                assert decision.delay <= plan.backoff_cap
        case Step.RETRY_TOPIC:
            assert decision.retry_index == hop
            assert decision.delay == plan.retry_delays[hop]
        case Step.DEAD_LETTER:
            assert plan.dead_letter
            assert failure.kind in (Kind.TRANSIENT, Kind.PERMANENT)
        case Step.HALT:
            assert failure.kind is Kind.FATAL or not plan.dead_letter
            assert decision.note
        case Step.WAIT:
            assert failure.kind is Kind.UNAVAILABLE
            if failure.after is None:
                assert decision.delay <= plan.unavailable_cap
        case Step.ACK:
            assert failure.kind is Kind.SKIP


@given(plans, st.floats(0, 1, exclude_max=True))
def test_a_message_that_always_fails_comes_to_an_end_after_the_attempts_of_its_plan(
    plan: RetryPlan, uniform: float
) -> None:
    attempt, in_place, hop = 1, 1, 0
    most = plan.in_place_attempts + len(plan.retry_delays)
    visited: list[int] = []
    while True:
        decision = step(plan, attempt=attempt, in_place=in_place, hop=hop, uniform=uniform)
        if decision.step is Step.AGAIN:
            in_place += 1
        elif decision.step is Step.RETRY_TOPIC:
            visited.append(decision.retry_index)
            in_place, hop = 1, decision.retry_index + 1
        else:
            break
        attempt += 1
        assert attempt <= most
    assert decision.step is (Step.DEAD_LETTER if plan.dead_letter else Step.HALT)
    assert attempt == min(most, plan.max_attempts or most)
    assert visited == sorted(set(visited))


@given(plans, st.integers(1, 2_000))
def test_the_longest_back_off_never_shrinks_with_more_failures(plan: RetryPlan, count: int) -> None:
    down = replace(TRANSIENT, kind=Kind.UNAVAILABLE)
    one, more = (step(plan, down, unavailable_in_a_row=n, uniform=0.999).delay for n in (count, count + 1))
    assert one <= more


@given(plans, st.integers(0, 9))
def test_the_early_step_never_drops_a_message(plan: RetryPlan, hop: int) -> None:
    assert next_step_early(plan, hop).step in (Step.RETRY_TOPIC, Step.WAIT)
