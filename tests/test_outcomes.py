"""What handlers say about messages."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamloop.engine.retry import ErrorRules, Kind, classify
from streamloop.errors import (
    ConfigurationError,
    DecodeError,
    OutcomeError,
    StreamLoopError,
    TopicError,
)
from streamloop.outcomes import Ack, Fatal, Outcome, Reject, Retry, Skip, Unavailable, batch_outcomes

EACH = [
    (Retry(5, "busy"), Kind.TRANSIENT),
    (Reject("no such card"), Kind.PERMANENT),
    (Skip("a test order"), Kind.SKIP),
    (Unavailable("payments", "503", 4), Kind.UNAVAILABLE),
    (Fatal("wrong database"), Kind.FATAL),
]


@pytest.mark.parametrize(("outcome", "kind"), EACH)
def test_D8_each_outcome_is_classified_as_what_it_is_whatever_the_rules_say(
    outcome: Outcome, kind: Kind
) -> None:
    rules = ErrorRules(permanent=(Exception,), fatal=(Exception,))
    assert classify(outcome, rules).kind is kind


def test_a_subclass_of_an_outcome_is_classified_like_it() -> None:
    class CardExpired(Reject): ...

    assert classify(CardExpired("card expired"), ErrorRules()).kind is Kind.PERMANENT


def test_what_an_outcome_asks_for_reaches_the_failure() -> None:
    failure = classify(Unavailable("payments", "503", after=4), ErrorRules())
    assert (failure.dependency, failure.after, failure.message) == ("payments", 4.0, "payments: 503")
    assert failure.error_class == "streamloop.outcomes.Unavailable"
    assert classify(Retry(after=2), ErrorRules()).after == 2.0


def test_a_retry_without_a_reason_is_described_by_its_cause() -> None:
    with pytest.raises(Retry) as caught:
        raise Retry(after=1) from ValueError("no such card")
    assert classify(caught.value, ErrorRules()).message == "ValueError: no such card"


@pytest.mark.parametrize("outcome", [each for each, _ in EACH])
@pytest.mark.parametrize("through", [copy.copy, lambda outcome: pickle.loads(pickle.dumps(outcome))])
def test_an_outcome_survives_copying_and_pickling(outcome: Outcome, through: Any) -> None:
    again = through(outcome)
    assert type(again) is type(outcome)
    assert (again.__dict__, again.args, str(again)) == (outcome.__dict__, outcome.args, str(outcome))


@pytest.mark.parametrize(
    ("after", "error"),
    [("5", TypeError), (True, TypeError), (math.nan, ValueError), (math.inf, ValueError)],
)
@pytest.mark.parametrize("make", [Retry, lambda after: Unavailable("payments", after=after)])
def test_a_delay_that_is_no_number_of_seconds_is_refused_where_it_is_written(
    make: Any, after: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="seconds"):
        make(after=after)


def test_a_delay_that_is_over_already_means_at_once() -> None:
    assert Retry(after=-3).after == 0.0


def test_there_is_one_ack() -> None:
    assert Ack() is Ack()
    assert pickle.loads(pickle.dumps(Ack())) is Ack()


def test_none_acknowledges_the_whole_batch() -> None:
    assert batch_outcomes(None, 3) == [None, None, None]


def test_D15_only_the_bad_record_of_a_batch_fails() -> None:
    bad = Reject("no such card")
    worse = ValueError("bad")
    assert batch_outcomes([None, bad, Ack(), worse, Ack], 5) == [None, bad, None, worse, None]


@pytest.mark.parametrize(
    ("returned", "count", "words"),
    [
        ([None], 2, "1 outcomes for 2 messages"),
        ([None, None, None], 2, "3 outcomes for 2 messages"),
        ([], 1, "0 outcomes for 1 messages"),
        ({"a": 1}, 1, "a dict"),
        ("ok", 2, "a str"),
        (True, 1, "a bool"),
        (iter([None]), 1, "a list_iterator"),
        ([None, True], 2, "a bool for message 1"),
        ([Retry, None], 2, "the class Retry for message 0"),
        ([[], None], 2, "a list for message 0"),
    ],
)
def test_D15_what_can_not_be_matched_to_the_messages_fails_all_of_them_with_a_sentence(
    returned: object, count: int, words: str
) -> None:
    outcomes = batch_outcomes(returned, count)
    assert len(outcomes) == count
    for outcome in outcomes:
        assert isinstance(outcome, OutcomeError)
        assert words in str(outcome)
        assert classify(outcome, ErrorRules()).kind is Kind.TRANSIENT


@given(
    st.lists(
        st.one_of(st.none(), st.just(Ack()), st.builds(ValueError), st.integers(), st.text()), max_size=8
    ),
    st.integers(0, 8),
)
def test_a_batch_always_has_one_outcome_a_message_and_acknowledges_only_what_was_said(
    returned: list[object], count: int
) -> None:
    outcomes = batch_outcomes(returned, count)
    assert len(outcomes) == count
    for index, outcome in enumerate(outcomes):
        if outcome is None:
            assert returned[index] is None or returned[index] is Ack()


def test_the_errors_are_one_tree_with_the_exit_codes_of_the_command_line() -> None:
    assert StreamLoopError("x").exit_code == 1
    assert ConfigurationError("x").exit_code == 2
    assert TopicError("x").exit_code == 2
    assert issubclass(TopicError, ConfigurationError)


def test_D7_a_decode_error_is_permanent_unless_a_consumer_lists_it() -> None:
    assert classify(DecodeError("x"), ErrorRules()).kind is Kind.PERMANENT
    assert classify(DecodeError("x"), ErrorRules(transient=(Exception,))).kind is Kind.PERMANENT
    assert classify(DecodeError("x"), ErrorRules(fatal=(DecodeError,))).kind is Kind.FATAL
