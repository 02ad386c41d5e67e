"""The headers of routed records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamloop.engine.retry import Failure, Kind
from streamloop.kafka import headers
from streamloop.kafka.headers import (
    Coordinates,
    RawHeaders,
    Routing,
    Target,
    headers_size,
    is_ours,
    read_routing,
    record_size,
    route_headers,
    shrink,
    user_headers,
)

GROUP = "billing"
SOURCE = Coordinates("orders", 3, 41, 1_700_000_000_123)
FAILURE = Failure(Kind.TRANSIENT, "shop.CardError", "card 12 was refused: \u20ac 5", "0123456789abcdef")
NOW = 1_800_000_000_456

USER: RawHeaders = [
    ("tenant", b"a"),
    ("blob", b"\x00\xff\xfe"),
    ("tenant", b"b"),
    ("empty", b""),
    ("null", None),
    ("tenant", b"a"),
]


def routed(headers: RawHeaders | None = None, **changes: Any) -> RawHeaders:
    given: dict[str, Any] = {
        "target": Target.RETRY,
        "routing": None,
        "source": SOURCE,
        "failure": FAILURE,
        "group": GROUP,
        "attempt": 1,
        "now_ms": NOW,
    }
    return route_headers(headers, **(given | changes))


def ours(headers: RawHeaders) -> dict[str, str]:
    assert len({name for name, _ in headers if is_ours(name)}) == sum(is_ours(name) for name, _ in headers)
    return {name: (value or b"").decode() for name, value in headers if is_ours(name)}


def test_the_headers_of_a_retried_record() -> None:
    headers = routed(attempt=3, not_before_ms=NOW + 30_000)
    assert ours(headers) == {
        "streamloop-original-topic": "orders",
        "streamloop-original-partition": "3",
        "streamloop-original-offset": "41",
        "streamloop-original-timestamp": "1700000000123",
        "streamloop-original-group": "billing",
        "streamloop-first-failed-at": "2027-01-15T08:00:00.456Z",
        "streamloop-failed-at": "2027-01-15T08:00:00.456Z",
        "streamloop-attempt": "3",
        "streamloop-not-before": "1800000030456",
        "streamloop-error-class": "shop.CardError",
        "streamloop-error-message": "card 12 was refused: \u20ac 5",
        "streamloop-error-fingerprint": "0123456789abcdef",
    }


def test_a_dead_letter_can_be_read_by_tools_for_kafkas_own_dead_letter_queues() -> None:
    headers = ours(routed(target=Target.DEAD, attempt=6, not_before_ms=NOW))
    assert {name: value for name, value in headers.items() if name.startswith("__dlq")} == {
        "__dlq.errors.topic": "orders",
        "__dlq.errors.partition": "3",
        "__dlq.errors.offset": "41",
        "__dlq.errors.group": "billing",
        "__dlq.errors.delivery.count": "6",
        "__dlq.errors.message": "card 12 was refused: \u20ac 5",
    }
    assert "streamloop-not-before" not in headers


@pytest.mark.parametrize("target", Target)
def test_D3_user_headers_go_along_byte_for_byte_in_order_with_duplicates_and_nulls(target: Target) -> None:
    once = routed(USER, target=target)
    assert once[: len(USER)] == USER
    again = routed(once, target=target, routing=read_routing(once, group=GROUP))
    assert user_headers(again) == USER


def test_D3_a_record_without_headers_gets_only_ours() -> None:
    assert all(is_ours(name) for name, _ in routed(None))
    assert all(is_ours(name) for name, _ in routed([]))


@pytest.mark.parametrize("trace", [None, ("00-" + "a" * 32 + "-" + "b" * 16 + "-01", "k=v")])
def test_D4_fifty_hops_leave_the_headers_at_a_constant_size_with_one_traceparent(
    trace: tuple[str, str] | None,
) -> None:
    headers: RawHeaders = [*USER, ("traceparent", b"00-" + b"c" * 32 + b"-" + b"d" * 16 + b"-00")]
    sizes = set()
    for hop in range(50):
        headers = routed(
            headers,
            routing=read_routing(headers, group=GROUP) if hop else None,
            source=Coordinates(f"orders.billing.retry.{hop}", hop % 7, hop, NOW + hop) if hop else SOURCE,
            attempt=10 + hop % 80,
            now_ms=NOW + hop,
            not_before_ms=NOW + hop + 30_000,
            trace=trace,
        )
        sizes.add(headers_size(headers))
        assert sum(name == "traceparent" for name, _ in headers) == 1
    assert len(sizes) == 1
    routing = read_routing(headers, group=GROUP)
    assert routing is not None
    assert routing.original == SOURCE
    assert routing.first_failed_at == NOW / 1000
    assert routing.attempt == 10 + 49 % 80


def test_D4_a_new_trace_context_replaces_every_old_one() -> None:
    old: RawHeaders = [("traceparent", b"one"), ("a", b"1"), ("tracestate", b"x=1"), ("traceparent", b"two")]
    headers = user_headers(routed(old, trace=("three", None)))
    assert headers == [("a", b"1"), ("traceparent", b"three")]


def test_D4_without_a_new_trace_context_the_one_that_came_stays() -> None:
    old: RawHeaders = [("traceparent", b"one"), ("a", b"1"), ("tracestate", b"x=1")]
    assert user_headers(routed(old)) == old


def test_D6_the_original_timestamp_goes_along_through_every_hop() -> None:
    once = routed()
    later = routed(
        once,
        target=Target.DEAD,
        routing=read_routing(once, group=GROUP),
        source=Coordinates("orders.billing.retry.30s", 0, 7, NOW),
        now_ms=NOW + 5_000,
    )
    assert ours(later)["streamloop-original-timestamp"] == "1700000000123"
    assert ours(later)["streamloop-first-failed-at"] == "2027-01-15T08:00:00.456Z"
    assert ours(later)["streamloop-failed-at"] == "2027-01-15T08:00:05.456Z"


@pytest.mark.parametrize("timestamp", [None, -1])
def test_D6_a_record_without_a_timestamp_gets_no_original_timestamp(timestamp: int | None) -> None:
    headers = routed(source=SOURCE._replace(timestamp_ms=timestamp))
    assert "streamloop-original-timestamp" not in ours(headers)
    routing = read_routing(headers, group=GROUP)
    assert routing is not None
    assert routing.original_timestamp is None


def test_D19_headers_of_another_group_say_nothing_and_are_replaced() -> None:
    theirs = routed(
        USER, group="shipping", target=Target.DEAD, attempt=9, source=Coordinates("parcels", 1, 2, 3)
    )
    theirs.append(("streamloop-replay-count", b"7"))
    theirs.append(("streamloop-of-a-later-version", b"x"))
    assert read_routing(theirs, group=GROUP) is None
    assert routed(theirs) == routed(USER)


def test_the_headers_of_a_replay_go_along_through_its_retries() -> None:
    replayed: RawHeaders = [
        *routed(USER),
        ("streamloop-replay-id", b"r-1"),
        ("streamloop-replay-count", b"2"),
        ("streamloop-replayed-from", b"orders.billing.dlq/0/5"),
        ("streamloop-replayed-at", b"1800000001000"),
    ]
    routing = read_routing(replayed, group=GROUP)
    assert routing is not None
    assert (routing.replay_id, routing.replay_count, routing.replayed_from, routing.replayed_at) == (
        "r-1",
        2,
        "orders.billing.dlq/0/5",
        1_800_000_001_000,
    )
    for target in Target:
        assert read_routing(routed(replayed, routing=routing, target=target), group=GROUP) == routing


@pytest.mark.parametrize("headers", [None, [], USER, [("streamloop-original-group", b"billing")]])
def test_a_record_that_was_never_routed_has_no_routing(headers: RawHeaders | None) -> None:
    assert read_routing(headers, group=GROUP) is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"-1",
        b"+1",
        b" 1",
        b"1_0",
        b"1.0",
        b"x",
        b"\xff",
        "\u0663".encode(),
        b"9" * 5_000,
        b"9" * 19,
        b"1e3",
    ],
)
def test_malformed_numbers_count_as_absent(value: bytes | None) -> None:
    good = routed(attempt=4, not_before_ms=NOW)

    def with_value(name: str) -> RawHeaders:
        return [(each, value if each == name else old) for each, old in good]

    for name in ("partition", "offset"):
        assert read_routing(with_value(f"streamloop-original-{name}"), group=GROUP) is None
    routing = read_routing(with_value("streamloop-attempt"), group=GROUP)
    assert routing is not None
    assert routing.attempt == 0
    routing = read_routing(with_value("streamloop-not-before"), group=GROUP)
    assert routing is not None
    assert routing.not_before_ms is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"yesterday",
        b"2027-01-15T08:00:00",
        b"0001-01-01T00:00:00+14:00",
        b"9999-12-31T23:59:59-14:00",
        b"\xff",
    ],
)
def test_a_malformed_time_counts_as_absent_and_the_next_hop_starts_anew(value: bytes | None) -> None:
    headers: RawHeaders = [
        (name, value if name == "streamloop-first-failed-at" else old) for name, old in routed()
    ]
    routing = read_routing(headers, group=GROUP)
    assert routing is not None
    assert routing.first_failed_at is None
    again = routed(headers, routing=routing, now_ms=NOW + 1_000)
    assert ours(again)["streamloop-first-failed-at"] == "2027-01-15T08:00:01.456Z"


raw_headers = st.lists(
    st.tuples(
        st.text(max_size=12) | st.sampled_from([name for name, _ in routed(target=Target.DEAD)]),
        st.none() | st.binary(max_size=40),
    ),
    max_size=12,
)


@given(raw_headers)
def test_reading_arbitrary_headers_never_raises_and_what_is_read_can_be_written(headers: RawHeaders) -> None:
    sane = {"streamloop-original-group": GROUP, "streamloop-original-topic": "t"}
    base: RawHeaders = [(name, value.encode()) for name, value in sane.items()]
    base += [("streamloop-original-partition", b"0"), ("streamloop-original-offset", b"0")]
    for candidate in (headers, headers + base, base + headers):
        routing = read_routing(candidate, group=GROUP)
        written = routed(candidate, routing=routing)
        assert user_headers(written) == user_headers(candidate)
        if routing is not None:
            again = read_routing(written, group=GROUP)
            expected = replace(routing, attempt=1, not_before_ms=None)
            if routing.first_failed_at is None:
                expected = replace(expected, first_failed_at=NOW / 1000)
            assert again == expected


@given(
    st.builds(
        Routing,
        original_topic=st.text(min_size=1, max_size=20),
        original_partition=st.integers(0, 2**31 - 1),
        original_offset=st.integers(0, 2**63 - 1),
        original_timestamp=st.none() | st.integers(0, 2**63 - 1),
        original_group=st.just(GROUP),
        first_failed_at=st.integers(0, 253_402_300_799_000).map(lambda ms: ms / 1000),
        attempt=st.integers(0, 2**31 - 1),
        not_before_ms=st.none() | st.integers(0, 2**63 - 1),
        replay_id=st.none() | st.text(min_size=1, max_size=20),
        replay_count=st.integers(0, 2**31 - 1),
        replayed_from=st.none() | st.text(min_size=1, max_size=20),
        replayed_at=st.none() | st.integers(0, 2**63 - 1),
    )
)
def test_a_routing_round_trips(routing: Routing) -> None:
    headers = routed(routing=routing, attempt=routing.attempt, not_before_ms=routing.not_before_ms)
    assert read_routing(headers, group=GROUP) == routing


def test_an_error_message_with_a_lone_surrogate_can_be_sent() -> None:
    failure = replace(FAILURE, message="a\ud800b")
    assert ours(routed(failure=failure))["streamloop-error-message"] == "a\\ud800b"


# --- size


def test_the_size_of_a_record_is_that_of_record_format_v2() -> None:
    # 61 bytes of batch; length, attributes, two deltas, null key, null value, no headers.
    assert record_size(None, None, None) == 61 + 1 + 6
    assert record_size(b"", b"", []) == record_size(None, None, None)
    assert record_size(b"k", b"v" * 63, [("h", None)]) == 61 + 2 + 3 + 2 + 64 + 1 + (1 + 1 + 1)
    assert record_size(None, b"v" * 64, None) == 61 + 2 + 3 + 1 + 66 + 1
    assert record_size(None, None, [("\u20ac", b"ab")]) == 61 + 1 + 3 + 1 + 1 + 1 + (4 + 3)


def dead_letter(headers: RawHeaders) -> RawHeaders:
    return routed(headers, target=Target.DEAD, trace=("00-" + "a" * 32 + "-" + "b" * 16 + "-01", "k=v"))


def test_D5_what_fits_is_left_alone() -> None:
    headers = dead_letter(USER)
    assert shrink(headers, headers_size(headers)) == headers


def test_D5_optional_headers_go_first_and_the_user_headers_stay() -> None:
    user: RawHeaders = [*USER, ("big", b"x" * 5_000)]
    headers = dead_letter(user)
    one_less = shrink(headers, headers_size(headers) - 1)
    assert one_less is not None
    assert {name for name, _ in headers} - {name for name, _ in one_less} == {"__dlq.errors.message"}
    needed = [header for header in user_headers(headers) if header[0] != "tracestate"]
    needed += [header for header in headers if header[0].startswith("streamloop-original")]
    needed += [
        header for header in headers if header[0] in ("streamloop-attempt", "streamloop-first-failed-at")
    ]
    least = shrink(headers, headers_size(needed))
    assert least is not None
    assert sorted(least, key=str) == sorted(needed, key=str)


def test_D5_then_the_largest_user_headers_are_replaced_by_a_marker_that_says_so() -> None:
    user: RawHeaders = [("a", b"x" * 500), ("big", b"y" * 12_345), ("null", None), ("a", b"z" * 400)]
    small = shrink(dead_letter(user), 1_400)
    assert small is not None
    assert [header for header in user_headers(small) if header[0] != "traceparent"] == [
        ("a", b"x" * 500),
        ("big", b"streamloop: dropped 12345 bytes"),
        ("null", None),
        ("a", b"z" * 400),
    ]
    routing = read_routing(small, group=GROUP)
    assert routing is not None
    assert routing.original == SOURCE


def test_D5_a_marker_is_not_replaced_by_another_one() -> None:
    marked: RawHeaders = [("big", b"streamloop: dropped 12345 bytes")]
    assert shrink(marked, headers_size(marked) - 1) is None


def test_D5_a_value_that_is_shorter_than_its_marker_is_not_replaced() -> None:
    short: RawHeaders = [("a", b"x" * 20), ("b", b"y" * 100)]
    assert shrink(short, 70) == [("a", b"x" * 20), ("b", b"streamloop: dropped 100 bytes")]
    assert shrink(short, 30) is None


def test_D5_what_cannot_be_made_to_fit_is_said_to_be_so() -> None:
    assert shrink(dead_letter([("n" * 2_000, b"")]), 1_000) is None
    assert shrink(dead_letter([]), 50) is None


@given(raw_headers, st.integers(0, 2_000))
def test_D5_shrinking_fits_or_gives_up_and_keeps_names_nulls_and_order(
    extra: RawHeaders, budget: int
) -> None:
    headers = routed(extra + [(name, (value or b"") * 20) for name, value in extra])
    small = shrink(headers, budget)
    if small is None:
        assert headers_size(headers) > budget
        return
    assert headers_size(small) <= budget
    user_before = [header for header in user_headers(headers) if header[0] != "tracestate"]
    user_after = [header for header in user_headers(small) if header[0] != "tracestate"]
    assert [name for name, _ in user_after] == [name for name, _ in user_before]
    for (_, before), (_, after) in zip(user_before, user_after, strict=True):
        assert after == before or (
            before is not None and after == b"streamloop: dropped %d bytes" % len(before)
        )
    assert read_routing(small, group=GROUP) == read_routing(headers, group=GROUP)


def test_nothing_reads_headers_past_headers_of() -> None:
    package = Path(headers.__file__).parents[1]
    allowed = {"kafka/headers.py", "demo/__main__.py"}  # the demo's topics are its own
    direct = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if ".headers()" in path.read_text("utf-8")
    }
    assert direct <= allowed
