"""A plan's figures: they keep to their limits, pass the check that every start makes, and say what is
impossible."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from streamloop.engine.retry import Failure, Kind, RetryPlan, Step, decide
from streamloop.errors import ConfigurationError
from streamloop.plan.calculate import calculate, rounded_up
from streamloop.plan.figures import ImpossibleError, Plan
from streamloop.plan.inputs import HandlerKind, Inputs
from streamloop.plan.members import MOST_HANDLERS, UTILISATION, load_of
from streamloop.plan.retries import LADDER, Retries, within
from streamloop.settings import Settings, check_sums
from streamloop.settings.sums import RETRY_RETENTION_MARGIN
from streamloop.shutdown import longest

if TYPE_CHECKING:
    from collections.abc import Callable

USUAL = Inputs(handler_mean=0.02, handler_p99=0.2, rate=5_000, partitions=24, cpu_per_message=400e-6)


@st.composite
def inputs(draw: st.DrawFn) -> Inputs:
    mean = draw(st.floats(1e-4, 30))
    return Inputs(
        handler_mean=mean,
        handler_p99=mean * draw(st.floats(1, 20)),
        rate=draw(st.floats(0.01, 20_000)),
        partitions=draw(st.integers(1, 200)),
        kind=draw(st.sampled_from(HandlerKind)),
        ordering=draw(st.sampled_from(["key", "partition", "none"])),
        message_bytes=draw(st.integers(1, 200_000)),
        largest_message_bytes=draw(st.integers(1, 8 * 1024 * 1024)),
        downstream_calls=draw(st.none() | st.integers(1, 5_000)),
        downstream_rate=draw(st.none() | st.floats(0.1, 50_000)),
        retry_budget=draw(st.none() | st.floats(0.1, 10 * 86_400)),
        cpu_per_message=draw(st.none() | st.floats(1e-6, 0.1)),
        min_replicas=draw(st.integers(1, 6)),
    )


def possible(each: Inputs) -> Plan:
    try:
        return calculate(each)
    except ImpossibleError:
        assume(False)
        raise


def settings_of(plan: Plan) -> Settings:
    return Settings.load({"group": "billing", **plan.settings}, env={}, yaml_path=None).settings


class TestWhateverIsAsked:
    @given(inputs())
    def test_a_plan_passes_the_check_of_the_sums_with_its_own_memory_and_grace_period(
        self, each: Inputs
    ) -> None:
        plan = possible(each)
        settings = settings_of(plan)
        problems = check_sums(settings, [settings.for_consumer("charge")], lambda: plan.resources.memory)
        assert [str(problem) for problem in problems] == []

    @given(inputs())
    def test_replicas_and_handlers_keep_to_their_limits(self, each: Inputs) -> None:
        plan = possible(each)
        concurrency = plan.settings["concurrency"]
        assert 1 <= plan.replicas <= each.partitions
        assert 1 <= concurrency <= MOST_HANDLERS[each.kind]
        if each.downstream_calls is not None:
            assert plan.replicas * concurrency <= each.downstream_calls
        # It keeps up: the busiest member has a handler for each that is busy on average, and CPU for them.
        busiest = load_of(each, plan.replicas)
        assert busiest.busy <= concurrency * (1 + 1e-9)
        assert busiest.cpu <= UTILISATION
        assert plan.settings["high_watermark_messages"] >= concurrency / 0.5

    @given(inputs(), st.floats(1, 20))
    def test_more_messages_never_mean_fewer_replicas_and_what_was_impossible_stays_so(
        self, each: Inputs, factor: float
    ) -> None:
        each = replace(each, downstream_calls=None, downstream_rate=None)
        more = replace(each, rate=each.rate * factor)
        try:
            few = calculate(each)
        except ImpossibleError:
            with pytest.raises(ImpossibleError):
                calculate(more)
            return
        try:
            many = calculate(more)
        except ImpossibleError:
            return
        assert few.replicas <= many.replicas

    @given(inputs(), st.floats(1, 20))
    def test_slower_handlers_never_mean_fewer_replicas_or_a_shorter_grace_period(
        self, each: Inputs, factor: float
    ) -> None:
        each = replace(each, downstream_calls=None, downstream_rate=None, cpu_per_message=1e-4)
        slower = replace(each, handler_mean=each.handler_mean * factor, handler_p99=each.handler_p99 * factor)
        plan = possible(each)
        slow = possible(slower)
        assert plan.replicas <= slow.replicas
        assert plan.grace <= slow.grace

    @given(inputs())
    def test_every_figure_has_a_formula_with_its_numbers_and_every_setting_a_value_of_the_plan(
        self, each: Inputs
    ) -> None:
        plan = possible(each)
        assert len({figure.name for figure in plan.figures}) == len(plan.figures)
        for figure in plan.figures:
            assert figure.formula
            assert figure.filled
            if figure.setting not in ("", "retry_topics"):
                assert plan.settings[figure.setting] == figure.value

    @given(st.floats(0.1, 30 * 86_400), st.floats(0.1, 600))
    def test_retries_end_within_their_budget_as_the_engine_makes_them(
        self, budget: float, timeout: float
    ) -> None:
        retries = within(budget, timeout)
        assert retries.total <= budget
        slowest = engine_time(retries, timeout)
        # The jitter is below its bound, never at it.
        assert slowest <= retries.total + 1e-6
        assert slowest >= retries.total * 0.98 - 1e-6

    @given(st.floats(0.1, 30 * 86_400), st.floats(1, 100), st.floats(0.1, 600))
    def test_a_longer_budget_never_means_fewer_attempts(
        self, budget: float, factor: float, timeout: float
    ) -> None:
        assert within(budget, timeout).attempts <= within(budget * factor, timeout).attempts

    @given(st.floats(0.001, 1e9))
    def test_rounding_up_adds_at_most_a_tenth_and_a_one(self, value: float) -> None:
        assert value <= rounded_up(value) <= math.ceil(value) * 1.1 + 1


def engine_time(retries: Retries, timeout: float) -> float:
    """How long the engine's own decisions take, with the longest jitter and each attempt as long as it may
    be."""
    plan = RetryPlan(in_place_attempts=retries.in_place_attempts, retry_delays=retries.retry_topics)
    failure = Failure(Kind.TRANSIENT, "E", "", "")
    age, attempt, in_place, hop = 0.0, 1, 1, 0
    while True:
        decision = decide(
            plan,
            failure,
            attempt=attempt,
            in_place=in_place,
            hop=hop,
            age=age,
            unavailable_in_a_row=0,
            uniform=lambda: 1 - 1e-9,
        )
        if decision.step is Step.DEAD_LETTER:
            return age
        attempt += 1
        if decision.step is Step.AGAIN:
            in_place += 1
        else:
            assert decision.step is Step.RETRY_TOPIC
            in_place, hop = 1, decision.retry_index + 1
        age += decision.delay + timeout


def test_the_usual_case_by_hand() -> None:
    plan = calculate(replace(USUAL, retry_budget=3_600))
    # 24 partitions over 4 replicas; with one away 8 of 24: 1,667/s x 0.4 ms = 0.67 cores. With 3: 12, and
    # 1.0.
    assert plan.replicas == 4
    # 1,666.7/s x 0.2 s.
    assert plan.settings["concurrency"] == 334
    # (334 + 1,666.7 x 0.5) / 0.5 = 2,334.7
    assert plan.settings["high_watermark_messages"] == 2_400
    assert plan.settings["retry_topics"] == (30.0, 300.0, 1_800.0)
    assert plan.figure("time until dead letter").value == pytest.approx(2.6 + 30 + 300 + 1_800 + 3)
    assert plan.settings["max_age"] == 3_600
    assert (plan.settings["timeout"], plan.settings["drain_timeout"]) == (1.0, 2.0)
    assert plan.resources.cpu_request == 0.5  # 1,250/s x 0.4 ms
    assert plan.warnings == ()


def test_the_grace_period_is_what_a_shutdown_may_take() -> None:
    plan = calculate(replace(USUAL, handler_p99=10.0, cpu_per_message=1e-5))
    needed = longest(settings_of(plan)).grace
    assert needed <= plan.grace < needed + 1


def test_a_day_of_retries_has_delays_and_a_retention_for_them() -> None:
    plan = calculate(replace(USUAL, retry_budget=3 * 86_400))
    assert plan.settings["retry_topics"] == LADDER
    assert plan.settings["retry_topic_retention"] >= max(LADDER) + RETRY_RETENTION_MARGIN


def test_a_budget_shorter_than_an_attempt_leaves_no_retry_and_says_so() -> None:
    plan = calculate(replace(USUAL, retry_budget=0.5))
    assert (plan.settings["in_place_attempts"], plan.settings["retry_topics"]) == (1, ())
    assert any("there is no retry at all" in warning for warning in plan.warnings)


def test_what_is_called_bounds_the_handlers_and_the_plan_says_when_that_costs_lag() -> None:
    plan = calculate(replace(USUAL, downstream_calls=120))
    assert plan.settings["concurrency"] * plan.replicas <= 120
    assert any("While one of 4 replicas is away" in warning for warning in plan.warnings)
    assert any("83% of what is called" in warning for warning in plan.warnings)


def test_calls_a_second_bound_the_handlers_by_how_long_a_call_takes() -> None:
    plan = calculate(replace(USUAL, downstream_rate=6_000))
    # 6,000/s x 20 ms: so many that are always busy make 6,000 calls a second.
    assert plan.settings["concurrency"] * plan.replicas == 120


def test_a_handler_that_computes_gets_one_at_a_time_and_a_core() -> None:
    plan = calculate(
        replace(
            USUAL, kind=HandlerKind.CPU, cpu_per_message=None, rate=100, handler_mean=0.02, handler_p99=0.05
        )
    )
    assert plan.settings["concurrency"] == 1
    # Its own time is CPU time, whatever else is said.
    assert calculate(replace(plan.inputs, cpu_per_message=1e-3)).replicas == plan.replicas
    assert load_of(plan.inputs, plan.replicas - 1).cpu <= UTILISATION


def test_uneven_partitions_and_a_single_replica_are_said() -> None:
    uneven = calculate(replace(USUAL, partitions=10, rate=1_000, min_replicas=3))
    assert any("10 partitions do not divide evenly by 3 replicas" in each for each in uneven.warnings)
    single = calculate(replace(USUAL, partitions=1, rate=10))
    assert single.replicas == 1
    assert any("The topic has one partition" in each for each in single.warnings)


def test_a_message_that_hangs_long_enough_to_hold_its_partition_is_said() -> None:
    plan = calculate(replace(USUAL, partitions=1, rate=1_900, handler_mean=0.01, handler_p99=4.0))
    assert any("gap_limit" in each for each in plan.warnings)


IMPOSSIBLE: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"downstream_calls": 80},
        [
            "5,000 messages/s x 20 ms keep 100 handlers busy",
            "takes 80 at once",
            "Raise the limit to 125",
            "below 16 ms",
        ],
    ),
    ({"downstream_rate": 4_000}, ["takes 4,000/s", "lag would grow by 1,000/s"]),
    (
        {"cpu_per_message": 0.01},
        [
            "24 partitions take at most 24 replicas",
            "416.7/s x 10 ms of CPU = 4.167 cores",
            "about 125 partitions",
        ],
    ),
    (
        {"ordering": "partition"},
        ["ordering=partition", "100 handlers busy", "ordering=key, at least 125 partitions"],
    ),
    (
        {"kind": HandlerKind.THREAD, "rate": 50_000, "handler_mean": 0.1, "cpu_per_message": 1e-6},
        ["200 is the most that is planned for thread handlers", "async def"],
    ),
    (
        {"downstream_calls": 101, "partitions": 3, "cpu_per_message": 1e-5},
        ["leaves 50 handlers to each of 2 replicas", "2 of 3 partitions"],
    ),
    ({"rate": 10, "downstream_calls": 1, "cpu_per_message": 0.2}, ["takes 1 (--downstream-limit)"]),
    ({"memory_limit": 200 * 1024 * 1024}, ["--memory-limit is 200 MiB", "More replicas"]),
]


@pytest.mark.parametrize(("changes", "said"), IMPOSSIBLE, ids=[str(list(each[0])) for each in IMPOSSIBLE])
def test_what_is_impossible_names_the_limit_and_what_would_help(
    changes: dict[str, Any], said: list[str]
) -> None:
    given = replace(USUAL, **changes)
    if given.handler_p99 < given.handler_mean:
        given = replace(given, handler_p99=given.handler_mean)
    with pytest.raises(ImpossibleError) as error:
        calculate(given)
    for each in said:
        assert each in str(error.value)


def test_the_partitions_that_are_advised_are_enough_and_fewer_are_not_by_much() -> None:
    given = replace(USUAL, cpu_per_message=0.01)
    assert calculate(replace(given, partitions=125)).replicas <= 125
    with pytest.raises(ImpossibleError):
        calculate(replace(given, partitions=120))


def test_several_limits_that_are_hit_are_all_told() -> None:
    with pytest.raises(ImpossibleError) as error:
        calculate(replace(USUAL, cpu_per_message=0.01, downstream_calls=10, downstream_rate=10))
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"handler_mean": 0}, "--handler-mean must be more than 0"),
        ({"partitions": 0}, "--partitions must be 1 or more"),
        ({"handler_p99": 0.001}, "Were the two exchanged?"),
        ({"downstream_calls": 0}, "--downstream-limit must be more than 0"),
        ({"rate": math.inf}, "--rate must be more than 0"),
    ],
)
def test_an_input_that_can_t_be_is_a_sentence(change: dict[str, Any], said: str) -> None:
    make: Callable[[], Any] = lambda: replace(USUAL, **change)  # noqa: E731
    with pytest.raises(ConfigurationError, match=said):
        make()
