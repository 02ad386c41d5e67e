"""`streamloop trace`: the sentence that says where a message is, for each place it can be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from streamloop.cli.find import Committed, Hop, Original, Search, Story, trace_of
from streamloop.cli.trace import story_view, verdict

NOW = 1_700_000_000_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
ORIGINAL = Original("orders", 3, 1042, 0, 2000, found=True, timestamp_ms=NOW - 60_000, key=b"k", size=9)
PAST = Committed("billing", "position", 1500)
OPEN = Committed("billing.retry", "open", 3)
RETRIED = Hop(
    "retry",
    "orders.billing.retry.30s",
    3,
    7,
    NOW - 5_000,
    3,
    "shop.CardDeclinedError",
    "declined",
    not_before_ms=NOW + 25_000,
    committed=OPEN,
)
DONE = Committed("billing.retry", "position", 8)
DEAD = Hop("dead letter", "orders.billing.dlq", 3, 2, NOW, 4, "shop.CardDeclinedError", "declined")


def story(*hops: Hop, committed: Committed = PAST, original: Original = ORIGINAL, stopped: str = "") -> Story:
    return Story("billing", original, committed, hops, Search(["orders.billing.dlq"], 10, 0.1, 5, stopped))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (story(), "orders/3/1042 is acknowledged: the commit position 1500 is past it"),
        (
            story(RETRIED),
            "waits in orders.billing.retry.30s/3/7, due in 25 s, after 3 attempts: CardDeclinedError",
        ),
        (
            story(replace(RETRIED, not_before_ms=NOW - 90_000)),
            "due since 1 min 30 s, being handled or not read yet",
        ),
        (
            story(replace(RETRIED, committed=DONE)),
            "acknowledged: attempt 4, read from orders.billing.retry.30s/3/7",
        ),
        (story(replace(RETRIED, committed=DONE), stopped="--max-time 1s"), "with an end that is not known"),
        (
            story(RETRIED, DEAD),
            "is a dead letter, at orders.billing.dlq/3/2, after 4 attempts: CardDeclinedError",
        ),
        (story(replace(DEAD, attempt=1)), "after 1 attempt: "),
        (
            story(DEAD, Hop("replay", "orders.billing.replay", 3, 9, NOW, 0, "", "", replay_id="20261130T")),
            "waits in orders.billing.replay/3/9, due now, brought back by replay 20261130T",
        ),
        (story(stopped="--max-records 10"), "were not read to the end (--max-records 10): it may be there"),
        (
            story(committed=Committed("billing", "metadata", 900)),
            "acknowledged beyond the commit position 900",
        ),
        (story(committed=Committed("billing", "open", 1042)), "holds the commit position"),
        (
            story(committed=Committed("billing", "open", 1000)),
            "the commit position 1000 is 42 offsets before it",
        ),
        (
            story(committed=Committed("billing", "none")),
            "group billing has committed nothing for its partition",
        ),
        (
            story(
                original=replace(ORIGINAL, found=False, missing="it is gone"),
                committed=Committed("b", "none"),
            ),
            "orders/3/1042: it is gone.",
        ),
        (story(DEAD, original=replace(ORIGINAL, found=False, missing="it is gone")), "is a dead letter"),
    ],
)
def test_the_sentence_says_where_the_message_is(given: Story, said: str) -> None:
    assert said in verdict(given, NOW)[0]
    console = Console(width=300, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(story_view(given, NOW))
    assert said in capture.get()


@pytest.mark.parametrize("width", [60, 80, 119])
def test_on_a_narrow_terminal_each_hop_has_lines_of_its_own(width: int) -> None:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(story_view(story(RETRIED, DEAD), NOW, width=width))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert max(map(len, lines)) <= width
    at = lines.index("orders.billing.retry.30s/3/7  2023-11-14 22:13:15.000Z")
    assert lines[at + 1 :][:2] == [
        "  after 3 attempts: CardDeclinedError: declined",
        "  due 2023-11-14 22:13:45.000Z, not handled yet",
    ]
    assert lines[at + 3 :][:3] == [
        "orders.billing.dlq/3/2  2023-11-14 22:13:20.000Z",
        "  after 4 attempts: CardDeclinedError: declined",
        "  it stays there",
    ]


def test_metadata_that_is_not_believed_is_said() -> None:
    console = Console(width=300, color_system=None, force_terminal=False)
    ignored = Committed("billing", "open", 1000, ignored="it was written by another program")
    with console.capture() as capture:
        console.print(story_view(story(committed=ignored), NOW))
    assert "the metadata is not believed: it was written by another program" in capture.get()


@pytest.mark.parametrize(
    ("traceparent", "found"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", (TRACE, True)),
        (f"00-{TRACE}-00f067aa0ba902b7-00", (TRACE, False)),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", ("", False)),
        ("nonsense", ("", False)),
        ("", ("", False)),
    ],
)
def test_the_trace_is_read_from_the_traceparent(traceparent: str, found: tuple[str, bool]) -> None:
    assert trace_of(traceparent) == found
