"""How dead letters look on a terminal: their groups as a table, one of them whole.

Pure: no question is asked here. What a payload, a header or an error says is another's text and goes through
``text`` or ``dlq.values``. Called by ``streamloop dlq ls`` and ``show``.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Group as Lines
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from streamloop.cli.show import NONE, moment, number, size, text
from streamloop.dlq.filters import show_key
from streamloop.dlq.groups import OPEN
from streamloop.dlq.letter import UNKNOWN
from streamloop.dlq.values import show_header, show_value
from streamloop.errors import short_class
from streamloop.telemetry.logs import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from rich.console import RenderableType

    from streamloop.dlq.groups import Group, Groups
    from streamloop.dlq.letter import DeadLetter

LONGEST_ERROR: Final = 200
LONGEST_KEY: Final = 200
_WRITERS: Final = {
    "streamloop": "streamloop",
    "spring": "Spring Kafka",
    "connect": "Kafka Connect",
    "kafka": "Kafka's own dead-letter queue",
    UNKNOWN: "another program, without any header that says why",
}


# ----------------------------------------------------------------------------------------------------- groups


def groups_view(
    found: Groups,
    *,
    limit: int,
    only_open: bool,
    interrupted: bool = False,
    ledger_known: bool = True,
) -> RenderableType:
    """The groups, and what was read for them. ``limit``: groups that are shown."""
    shown = [each for each in found.groups if each.open or not only_open]
    parts: list[RenderableType] = []
    if shown:
        parts += _listing(shown[:limit])
        parts.append(Text())
    parts.append(_sum(found, len(shown), ledger_known))
    if len(shown) > limit:
        more = _many(len(shown) - limit, "more group")
        parts.append(Text(f"{more} not shown (--limit)", style="yellow"))
    hidden = len(found.groups) - len(shown)
    if hidden:
        parts.append(
            Text(f"{_many(hidden, 'group')} without an open letter: replayed or purged (--all)", style="dim")
        )
    if found.others:
        parts.append(
            Text(
                f"{_many(found.others, 'letter')} of other fingerprints than the "
                f"{_many(len(found.groups), 'group')} that are kept: counted, not grouped "
                "(choose with --error, --since or --at)",
                style="yellow",
            )
        )
    if not found.complete:
        why = "interrupted" if interrupted else "ended early"
        parts.append(
            Text(
                f"{why}: {found.offsets_left:,} of {found.offsets:,} offsets were not read; all numbers are "
                "of what was read",
                style="bold yellow",
            )
        )
    parts += [text(note, "yellow") for note in found.notes]
    return Lines(*parts)


def _listing(groups: Sequence[Group]) -> Iterator[RenderableType]:
    """Two lines of numbers for each group, then the error and the newest letter over the whole width."""
    width = max(4, *(len(number(each.count)) for each in groups))

    def row(*cells: Text) -> Table:
        grid = Table.grid(padding=(0, 2), expand=False)
        grid.add_column(width=16, no_wrap=True)
        grid.add_column(width=width, justify="right", no_wrap=True)
        grid.add_column(width=width, justify="right", no_wrap=True)
        grid.add_column(width=19, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(*cells)
        return grid

    names = ("fingerprint", "open", "of", "first, last seen", "original topic")
    yield row(*(Text(name, style="bold") for name in names))
    for each in groups:
        fingerprint = Text().append_text(text(each.fingerprint[:16], "bold"))
        for state, share in _shares(each):
            fingerprint.append_text(Text(f"\n{share} {printable(state)}", style="dim"))
        yield Text()
        yield row(
            fingerprint,
            Text(number(each.open), style="red" if each.open else "green"),
            Text(number(each.count)),
            Text("\n".join(dict.fromkeys((_second(each.first_seen), _second(each.last_seen))))),
            _topics(each),
        )
        yield Padding(_error(each), (0, 0, 0, 2))
        yield Padding(text(f"newest {each.sample.place}", "dim"), (0, 0, 0, 2))


def _shares(group: Group) -> list[tuple[str, str]]:
    """Each state but open, with its share of the letters in per cent; never 0 % or 100 % of some."""
    found = []
    for state, count in sorted(group.states.items()):
        if state == OPEN or not count:
            continue
        share = 100 * count / group.count
        whole = 100 if count == group.count else min(99, max(1, round(share)))
        found.append((state, f"{whole} %"))
    return found


def _topics(group: Group) -> Text:
    names = sorted(group.originals.items(), key=lambda each: (-each[1], each[0]))
    found = Text()
    for at, (name, count) in enumerate(names[:3]):
        found.append("\n" if at else "")
        found.append_text(text(name or "not known"))
        if len(names) > 1:
            found.append(f" {count:,}", style="dim")
    if len(names) > 3 or group.other_names:
        found.append("\nand others", style="dim")
    return found


def _error(group: Group) -> Text:
    sample = group.sample
    said = short_class(group.error_class) if group.error_class else ""
    message = sample.error_message[:LONGEST_ERROR]
    if len(sample.error_message) > LONGEST_ERROR:
        message += ".."
    both = ": ".join(part for part in (said, message) if part) or "no error is named"
    return text(both, "red")


def _sum(found: Groups, shown: int, ledger_known: bool) -> Text:
    said = Text(_many(found.letters, "dead letter"), style="bold")
    said.append_text(text(f" in {', '.join(found.topics)}", "bold"))
    if found.letters:
        if ledger_known:
            said.append(f": {found.open:,} open", style="bold red" if found.open else "bold green")
        else:
            said.append(": whether they were replayed is not known without --group", style="yellow")
        said.append(f", {_many(shown, 'group')}")
    if found.skipped:
        said.append(f"; {found.skipped:,} did not match")
    said.append(f" (read in {found.seconds:.1f} s)", style="dim")
    return said


def after_groups(first: Group, again: str) -> Text:
    """Commands to go on with. ``again``: the options that they need."""
    return _next(
        f"streamloop dlq show {first.sample.place}{again}",
        f"streamloop dlq replay --fingerprint {first.fingerprint[:16]}{again} --dry-run",
    )


def _next(*commands: str) -> Text:
    return text("next: ", "dim").append("\n      ".join(map(printable, commands)), style="dim")


def _second(seconds: float | None) -> str:
    return NONE if seconds is None else moment(round(seconds * 1000))[:19]


# ------------------------------------------------------------------------------------------------- one letter


def letter_view(
    letter: DeadLetter,
    *,
    state: str | None = None,
    decode: Callable[[bytes | None], Any] | None = None,
    jaeger: str | None = None,
    full: bool = False,
) -> RenderableType:
    """A record whole. ``state``: what the ledger says; ``jaeger``: the base of the link to its trace."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")

    def row(name: str, said: str | Text) -> None:
        facts.add_row(name, said if isinstance(said, Text) else text(said))

    row("written", f"{moment(letter.timestamp_ms)} by {_WRITERS.get(letter.written_by, letter.written_by)}")
    original = letter.original
    if original is not None:
        stamp = f"   (written {moment(original.timestamp_ms)})" if original.timestamp_ms is not None else ""
        row("original", f"{original.topic}/{original.partition}/{original.offset}{stamp}")
    else:
        row("original", "not known: replay it with --to-topic")
    row("group", letter.group or "not known")
    row("failed", _failed(letter))
    row("error", letter.error_class or "no class is named")
    if letter.error_message:
        row("", _lines(letter.error_message, "red", full=full))
    row("fingerprint", letter.fingerprint)
    if state is not None:
        row("state", Text(state, style="red" if state == OPEN else "green"))
    if letter.replay_id or letter.replay_count:
        row(
            "replayed",
            f"{_many(letter.replay_count, 'time')} before, last by run {letter.replay_id or 'unknown'}",
        )
    row("trace", letter.trace_id or "none: it has no traceparent")
    if letter.trace_id is not None:
        row("", trace_link(jaeger, letter.trace_id) if jaeger else "--jaeger URL makes a link of it")
    key = show_key(letter.key)
    row("key", "none" if letter.key is None else key if full else _short(key, LONGEST_KEY))
    shown = show_value(letter.value, decode, full=full)
    length = "" if letter.value is None else f"{size(len(letter.value))}, "
    row("value", f"{length}{shown.kind}")
    parts: list[RenderableType] = [text(_headline(letter), "bold red"), Text(), facts]
    if shown.lines:
        parts += [Text(), *(Text(f"  {each}") for each in shown.lines)]
    if shown.cut:
        parts.append(text(f"  .. {shown.cut}", "yellow"))
    parts += [Text(), _headers(letter, full)]
    if not letter.exact:
        parts.append(Text("a header's name is not UTF-8: it is shown escaped", style="yellow"))
    return Lines(*parts)


def _headline(letter: DeadLetter) -> str:
    error = short_class(letter.error_class) if letter.error_class else ""
    said = ": ".join(part for part in (error, letter.error_message) if part)
    return f"{letter.place} is dead" + (f": {_short(said, LONGEST_ERROR)}" if said else "")


def _failed(letter: DeadLetter) -> str:
    attempts = ""
    if letter.attempts is not None:
        attempts = f" after {_many(letter.attempts, 'attempt')}"
    if letter.first_failed_at is None and letter.failed_at is None:
        return f"when is not known{attempts}"
    first, last = letter.first_failed_at, letter.failed_at
    began = "" if first is None else f"first {moment(round(first * 1000))}"
    ended = "" if last is None else f"last {moment(round(last * 1000))}"
    return ", ".join(part for part in (began, ended) if part) + attempts


def trace_link(jaeger: str, trace_id: str) -> str:
    """Where Jaeger's pages show the trace."""
    return f"{jaeger.rstrip('/')}/trace/{trace_id}"


def _headers(letter: DeadLetter, full: bool) -> RenderableType:
    if not letter.headers:
        return Text("no headers", style="dim")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("header", overflow="fold")
    table.add_column("value", overflow="fold", ratio=1)
    for name, value in letter.headers:
        table.add_row(
            text(name), Text(show_header(name, value, full=full), style="dim" if value is None else "")
        )
    return table


def after_letter(letter: DeadLetter, again: str) -> Text:
    """Commands to go on with. ``again``: the options that they need."""
    commands = []
    original = letter.original
    if original is not None:
        place = f"{original.topic}/{original.partition}/{original.offset}"
        commands.append(f"streamloop trace {shlex.quote(place)}{again}")
    commands.append(f"streamloop dlq ls --fingerprint {letter.fingerprint[:16]}{again}")
    to = "" if original is not None else " --to-topic TOPIC"
    commands.append(f"streamloop dlq replay --at {letter.place}{to}{again} --dry-run")
    return _next(*commands)


def _lines(given: str, style: str, *, full: bool) -> Text:
    """A text of several lines (a message with a stack), bounded unless ``full``."""
    return Text(show_header("", given.encode("utf-8", "backslashreplace"), full=full), style=style)


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _short(given: str, most: int) -> str:
    return given if len(given) <= most else given[: most - 2] + ".."
