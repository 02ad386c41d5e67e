"""What a failure is: its kind, and a description of bounded size."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamloop.engine.retry import MAX_DELAY, ErrorRules, Failure, Kind, classify

NO_RULES = ErrorRules()


class Declared(Exception):
    """Decides by itself, as the outcomes of the public API do."""

    streamloop_kind: ClassVar[Kind] = Kind.PERMANENT


class Waits(Exception):
    streamloop_kind: ClassVar[Kind] = Kind.TRANSIENT
    after = 7.0


class Down(Exception):
    streamloop_kind: ClassVar[Kind] = Kind.UNAVAILABLE
    dependency = "payments"
    after = None


class Skips(Exception):
    streamloop_kind: ClassVar[Kind] = Kind.SKIP


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def test_D8_what_no_class_describes_is_transient() -> None:
    assert classify(ValueError("bad"), NO_RULES).kind is Kind.TRANSIENT


@pytest.mark.parametrize(
    ("rules", "kind"),
    [
        (ErrorRules(permanent=(ValueError,)), Kind.PERMANENT),
        (ErrorRules(unavailable=(ValueError,)), Kind.UNAVAILABLE),
        (ErrorRules(fatal=(ValueError,)), Kind.FATAL),
        (ErrorRules(transient=(ValueError,)), Kind.TRANSIENT),
        (ErrorRules(permanent=(ValueError,), fatal=(ValueError,)), Kind.FATAL),
    ],
)
def test_D8_a_listed_class_and_its_subclasses_are_what_the_list_says(rules: ErrorRules, kind: Kind) -> None:
    assert classify(ValueError("bad"), rules).kind is kind
    assert classify(UnicodeError("bad"), rules).kind is kind


def test_D8_the_most_specific_listed_class_decides() -> None:
    rules = ErrorRules(permanent=(ValueError,), transient=(UnicodeError,))
    assert classify(UnicodeError("bad"), rules).kind is Kind.TRANSIENT
    assert classify(ValueError("bad"), rules).kind is Kind.PERMANENT


def test_D8_a_listed_cause_counts_and_the_error_itself_is_described() -> None:
    error = caused(RuntimeError("charge failed"), caused(KeyError("x"), ValueError("no such card")))
    failure = classify(error, ErrorRules(permanent=(ValueError,)))
    assert failure.kind is Kind.PERMANENT
    assert (failure.error_class, failure.message) == ("builtins.RuntimeError", "charge failed")


def test_D8_a_context_that_is_no_cause_does_not_count() -> None:
    error = RuntimeError("second")
    error.__context__ = ValueError("first")
    assert classify(error, ErrorRules(permanent=(ValueError,))).kind is Kind.TRANSIENT


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ([KeyError(), ValueError()], Kind.PERMANENT),
        ([ValueError(), OSError()], Kind.FATAL),
        ([LookupError(), Down()], Kind.UNAVAILABLE),
        ([Down(), ValueError()], Kind.PERMANENT),
        ([Skips(), Skips()], Kind.SKIP),
        ([Skips(), KeyError()], Kind.TRANSIENT),
        ([ExceptionGroup("inner", [KeyError(), caused(KeyError(), OSError())])], Kind.FATAL),
    ],
)
def test_D8_the_worst_member_of_a_group_decides(members: list[Exception], kind: Kind) -> None:
    rules = ErrorRules(permanent=(ValueError,), fatal=(OSError,))
    assert classify(ExceptionGroup("unhandled errors in a TaskGroup", members), rules).kind is kind


def test_D8_the_member_that_decided_is_described_rather_than_its_group() -> None:
    group = ExceptionGroup("unhandled errors in a TaskGroup", [KeyError("k"), ValueError("no such card")])
    failure = classify(group, ErrorRules(permanent=(ValueError,)))
    assert (failure.error_class, failure.message) == ("builtins.ValueError", "no such card")


def test_D8_a_class_that_decides_by_itself_wins_over_what_it_was_raised_from() -> None:
    failure = classify(caused(Waits("later"), ValueError("bad")), ErrorRules(fatal=(ValueError,)))
    assert (failure.kind, failure.after) == (Kind.TRANSIENT, 7.0)
    assert classify(Declared(), ErrorRules(transient=(Exception,))).kind is Kind.PERMANENT


def test_D8_a_skip_that_is_only_a_cause_acknowledges_nothing() -> None:
    assert classify(caused(RuntimeError("bad"), Skips()), NO_RULES).kind is Kind.TRANSIENT


def test_a_request_to_wait_reaches_the_failure_through_a_group_and_a_cause() -> None:
    assert classify(ExceptionGroup("g", [Waits()]), NO_RULES).after == 7.0
    assert classify(caused(RuntimeError("bad"), Waits()), NO_RULES).after == 7.0


def test_unavailable_names_its_dependency() -> None:
    failure = classify(caused(RuntimeError("bad"), Down()), NO_RULES)
    assert (failure.kind, failure.dependency, failure.after) == (Kind.UNAVAILABLE, "payments", None)


def test_a_timeout_is_transient_even_when_a_base_of_it_is_listed() -> None:
    assert classify(TimeoutError(), ErrorRules(permanent=(OSError,))).kind is Kind.TRANSIENT
    assert classify(TimeoutError(), ErrorRules(permanent=(TimeoutError,))).kind is Kind.PERMANENT


def test_a_handler_that_exits_is_fatal() -> None:
    assert classify(SystemExit(3), NO_RULES).kind is Kind.FATAL


def test_cycles_of_causes_end() -> None:
    first, second = RuntimeError(""), RuntimeError("")
    first.__cause__, second.__cause__ = second, first
    assert classify(first, NO_RULES).message == ""
    group = ExceptionGroup("g", [first])
    second.__cause__ = group
    assert classify(group, ErrorRules(fatal=(OSError,))).kind is Kind.TRANSIENT


def test_an_endless_chain_of_causes_is_cut() -> None:
    error: Exception = OSError("at the far end")
    for index in range(20_000):
        error = caused(ValueError(f"{index}"), error)
    assert classify(error, ErrorRules(fatal=(OSError,))).kind is Kind.TRANSIENT
    link: BaseException | None = error
    while link is not None:  # or freeing the chain would recurse
        link.__cause__, link = None, link.__cause__


class Unprintable(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("no")


class ExitsWhenPrinted(Exception):
    def __str__(self) -> NoReturn:
        raise SystemExit(1)


class NotText(Exception):
    def __str__(self) -> Any:
        return 5  # noqa: PLE0307 - that is the point


@pytest.mark.parametrize("error", [Unprintable(), ExitsWhenPrinted(), NotText()])
def test_what_cannot_be_printed_is_unprintable(error: Exception) -> None:
    failure = classify(raised(error), NO_RULES)
    assert failure.message == "unprintable"
    assert failure.error_class.endswith(f"test_classify.{type(error).__name__}")


class Lies(Exception):
    @property
    def __class__(self) -> Any:
        return ValueError

    @__class__.setter
    def __class__(self, _value: Any) -> None: ...


class RaisesOnAccess(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no")

    @__class__.setter
    def __class__(self, _value: Any) -> None: ...

    @property
    def __cause__(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no")

    @property
    def __traceback__(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no")


class HostileMeta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError("no")


class Hostile(Exception, metaclass=HostileMeta): ...


class Nameless(Exception):
    __module__ = 5  # type: ignore[assignment]


def test_an_error_that_lies_about_its_class_is_taken_for_what_it_is() -> None:
    assert classify(Lies("x"), ErrorRules(permanent=(ValueError,))).kind is Kind.TRANSIENT
    assert classify(Lies("x"), ErrorRules(permanent=(Lies,))).kind is Kind.PERMANENT


def test_errors_that_raise_when_looked_at_are_classified_all_the_same() -> None:
    assert classify(RaisesOnAccess("x"), ErrorRules(fatal=(RaisesOnAccess,))).kind is Kind.FATAL
    assert classify(Hostile("x"), ErrorRules(fatal=(OSError,))).kind is Kind.TRANSIENT
    assert classify(Nameless("x"), NO_RULES).error_class == "unknown"


@pytest.mark.parametrize("after", [-1.0, math.nan, "soon", None, True])
def test_a_nonsensical_wait_is_ignored(after: Any) -> None:
    error = Waits()
    error.after = after
    assert classify(error, NO_RULES).after is None


@pytest.mark.parametrize("after", [math.inf, 1e300, 10**400])
def test_a_wait_is_at_most_a_day(after: Any) -> None:
    error = Waits()
    error.after = after
    assert classify(error, NO_RULES).after == MAX_DELAY


@given(st.text(alphabet=st.characters(codec=None), max_size=3_000))
def test_class_and_message_are_bounded_valid_utf8(text: str) -> None:
    name = "E" + text[:300].replace("\0", "").encode("utf-8", "ignore").decode()  # what a class can be called
    error = type(name, (Exception,), {"__module__": "m"})(text)
    failure = classify(error, NO_RULES)
    assert len(failure.error_class.encode("utf-8")) <= 256
    assert len(failure.message.encode("utf-8")) <= 1024


def test_a_message_is_cut_at_a_character() -> None:
    failure = classify(ValueError("x" + "\u20ac" * 1_000), NO_RULES)
    assert failure.message == "x" + "\u20ac" * 341


def test_control_characters_of_a_message_are_kept_and_lone_surrogates_escaped() -> None:
    assert classify(ValueError("a\r\n\x00b\ud800"), NO_RULES).message == "a\r\n\x00b\\ud800"


def test_an_empty_message_borrows_that_of_the_cause() -> None:
    assert classify(caused(RuntimeError(), ValueError("no such card")), NO_RULES).message == (
        "ValueError: no such card"
    )


def fails_here(text: str) -> Failure:
    return classify(raised_in_here(ValueError(text)), NO_RULES)


def raised_in_here(error: BaseException) -> BaseException:
    try:
        raise error
    except ValueError as caught:
        return caught


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 12 failed after 0.25 s", "order 99817 failed after 3 s"),
        ("card 'a b c' is gone", "card 'x' is gone"),
        ('no key "k1"', 'no key "another"'),
        ("id 2f1f5e9a-8a4c-4a53-9a0e-6f7f1b7d0c11", "id 00000000-0000-0000-0000-000000000000"),
        ("at 0xdeadbeef", "at 0x7f00a1"),
        ("commit 9fceb02d0ae598e9", "commit 0beec7b5ea3f0fdb"),
    ],
)
def test_alike_errors_share_a_fingerprint(one: str, other: str) -> None:
    first, second = fails_here(one), fails_here(other)
    assert first.fingerprint == second.fingerprint
    assert len(first.fingerprint) == 16
    assert int(first.fingerprint, 16) >= 0


def test_errors_that_differ_in_class_text_or_place_have_fingerprints_of_their_own() -> None:
    prints = {
        fails_here("order 1 failed").fingerprint,
        fails_here("order 1 refused").fingerprint,
        classify(raised(ValueError("order 1 failed")), NO_RULES).fingerprint,
        classify(raised(KeyError("order 1 failed")), NO_RULES).fingerprint,
        classify(ValueError("order 1 failed"), NO_RULES).fingerprint,
    }
    assert len(prints) == 5


def test_the_place_is_the_users_frame_not_that_of_the_library_it_called() -> None:
    def handler(text: str) -> BaseException:
        try:
            import json

            json.loads(text)
        except ValueError as error:
            return error
        raise AssertionError

    assert _place_of(handler("{")) == f"{__name__}:{handler.__qualname__}"


def _place_of(error: BaseException) -> str:
    from streamloop.engine import retry

    return retry._place(error)


def test_a_message_made_to_make_regular_expressions_slow_is_normalised_in_bounded_work() -> None:
    for text in (
        "'" * 9_999,
        "a" * 9_999 + "!",
        "0" * 9_999,
        "-".join(["f" * 8] * 1_000),
        '"' + "'a " * 3_000,
    ):
        assert len(classify(ValueError(text), NO_RULES).fingerprint) == 16
