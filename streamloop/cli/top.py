"""``streamloop top``: one or more members as they are now, from the /status of each.

``frame`` is pure: looks in, something to draw out. The command looks, draws and waits; it changes nothing in
the members, and each look has a bound. Called by the command line.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from streamloop.cli.members import Look, Member, look_at, member_url
from streamloop.cli.show import NONE, age, number, rate, size, text
from streamloop.errors import ConfigurationError
from streamloop.http_get import objects, rows
from streamloop.settings.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

TIMEOUT: Final = 3.0
"""Seconds until a member that does not answer is shown as such."""
LEAST_INTERVAL: Final = 0.2
LEAST_ROWS: Final = 3
"""Partitions of each member that are shown however small the terminal is."""
WIDE: Final = 120
"""Columns from which on everything of a handler or a partition has its place in one line. Below that what
matters most would be cut away (why a partition is held): it gets lines of its own."""
LONGEST_WHY: Final = 300
QUIET: Final = frozenset({"retry_not_due", "assigning"})
"""Reasons that are part of a healthy day."""


# ------------------------------------------------------------------------------------------------ the frame


def frame(looks: Sequence[Look], *, height: int | None = None, width: int = WIDE) -> RenderableType:
    """All members. ``height``: lines that there are; None: as many as it takes. ``width``: columns."""
    narrow = width < WIDE
    parts: list[RenderableType] = []
    if len(looks) > 1:
        parts += [_together(looks), Text()]
    partitions = None
    if height is not None:
        fixed = 3 + sum(9 + (3 * len(rows(each.status, "consumers")) if each.status else 0) for each in looks)
        lines = 3 if narrow else 1
        partitions = max(LEAST_ROWS, (height - fixed) // max(1, len(looks)) // lines)
    for look in looks:
        parts.append(_head(look))
        if look.status is not None and "partitions" in look.status:
            parts.append(_narrow_consumers(look) if narrow else _consumers(look))
            parts.append(_partitions(look.status, partitions, narrow=narrow))
        parts.append(Text())
    return Group(*parts[:-1])


def _together(looks: Sequence[Look]) -> Text:
    seen = [each for each in looks if each.status is not None]
    partitions = [part for each in seen for part in rows(each.status or {}, "partitions")]
    lag = [part["lag"] for part in partitions if isinstance(part.get("lag"), int)]
    busy = sum(part["buffered"] for part in partitions if isinstance(part.get("buffered"), int))
    held = sum(1 for part in partitions if part.get("held"))
    style = "bold" if len(seen) == len(looks) else "bold red"
    line = Text().append(f"{len(seen)} of {len(looks)} members answer", style=style)
    line.append(
        f"   {len(partitions)} partitions, {held} held   lag {number(sum(lag))}   in flight {number(busy)}   "
        f"acked/s {rate(_sum(seen, 'acked'))}   failed/s {rate(_sum(seen, 'failed_attempts'))}   "
        f"dead/s {rate(_sum(seen, 'dead_lettered'))}",
    )
    return line


def _sum(looks: Sequence[Look], name: str) -> float | None:
    found = [own[name] for look in looks for own in look.rates.values() if name in own]
    return sum(found) if found else None


def _head(look: Look) -> RenderableType:
    status = look.status
    if status is None:
        line = Text().append("unreachable ", style="bold red")
        return line.append_text(text(look.url, "bold")).append_text(text(f"  {look.error}", "red"))
    probes = objects(status.get("probes"))
    state = str(status.get("state", NONE))
    line = Text().append_text(text(status.get("group", ""), "bold cyan"))
    line.append_text(text(f"  {status.get('member', '')}", "bold"))
    line.append_text(text(f"  {state}", "green" if state == "running" else "yellow"))
    line.append(f"  up {age(status.get('uptime'))}  ")
    for name in ("live", "ready"):
        good = probes.get(name) is True
        line.append(name if good else f"not {name}", style="green" if good else "bold red").append(" ")
    line.append_text(text(f" {look.url}", "dim"))
    lines: list[RenderableType] = [line]
    for name in ("why_not_live", "why_not_ready"):
        why = probes.get(name)
        lines += [text(f"  {each}", "red") for each in (why if isinstance(why, list) else ())]
    for each in rows(status, "intakes"):
        full = _share(each, "buffered", "high_watermark_messages") >= 1
        said = text(each.get("name", ""))
        said.append(
            f": in flight {number(each.get('buffered'))} of {number(each.get('high_watermark_messages'))}, "
            f"{size(each.get('buffered_bytes'))} of {size(each.get('high_watermark_bytes'))}",
            style="yellow" if full else "",
        )
        said.append_text(
            text(f"   group {each.get('group', '')} ({each.get('protocol') or 'no protocol yet'})")
        )
        said.append(f"   polled {age(each.get('last_turn_age'))} ago")
        if each.get("detail"):
            said.append_text(text(f"   {each['detail']}", "yellow"))
        lines.append(_below(said, 2))
    if status.get("publishing"):
        lines.append(Text(f"  records that the broker has not confirmed yet: {number(status['publishing'])}"))
    lines += [_paused(each, status.get("at")) for each in rows(status, "paused")]
    control = objects(status.get("control"))
    if control and (control.get("state") != "on" or control.get("detail")):
        where = f"  control topic {control.get('topic')}: {control.get('state')}"
        lines.append(text(f"{where}  {control.get('detail') or ''}"[:LONGEST_WHY], "dim"))
    for name, what in (("blocked_targets", "takes no records: "), ("hanging", "hangs: ")):
        found = status.get(name)
        lines += [
            text(f"  {what}{each}", "red") for each in (found if isinstance(found, list | tuple) else ())
        ]
    return Group(*lines)


def _paused(hold: dict[str, Any], now: Any) -> Text:
    """Who holds what, since when and why."""
    topic, partition = hold.get("topic"), hold.get("partition")
    what = "everything" if topic is None else f"{topic}" if partition is None else f"{topic}/{partition}"
    where = "in the group" if hold.get("scope") == "group" else "at this member"
    since = hold.get("since")
    known = isinstance(now, int | float) and isinstance(since, int | float)
    ago = f" {age(now - since)} ago" if known else ""
    reason = f": {hold['reason']}" if hold.get("reason") else ""
    by = f" by {hold['by']}" if hold.get("by") else ""
    who = f",{by}{ago}" if by or ago else ""
    return text(f"  paused {where}: {what}{who}{reason}"[:LONGEST_WHY], "bold yellow")


def _share(row: dict[str, Any], part: str, whole: str) -> float:
    top, bottom = row.get(part), row.get(whole)
    return top / bottom if isinstance(top, int) and isinstance(bottom, int) and bottom else 0.0


def plain_table(*columns: str, left: Sequence[str] = ()) -> Table:
    """A table without a frame. ``left``: columns that are set left; the others hold numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 1))
    for name in columns:
        table.add_column(
            name,
            justify="left" if name in left else "right",
            no_wrap=name not in ("held", "slowest handlers"),
            overflow="fold" if name in ("held", "slowest handlers") else "ellipsis",
        )
    return table


def _oldest(consumer: dict[str, Any]) -> list[str]:
    """The messages whose handlers have run longest."""
    return [
        f"{row.get('topic')}/{row.get('partition')}/{row.get('offset')} {age(row.get('age'))}"
        + (f", publishes to {row['waits_for']}" if row.get("waits_for") else "")
        for row in rows(consumer, "oldest")[:3]
    ]


def _narrow_consumers(look: Look) -> RenderableType:
    table = plain_table("  handler", "runs", "waits", "acked/s", "failed/s", "dead/s", left=("  handler",))
    slowest: list[RenderableType] = []
    for each in rows(look.status or {}, "consumers"):
        rates = look.rates.get(str(each.get("name")), {})
        dead, failed = rates.get("dead_lettered"), rates.get("failed_attempts")
        table.add_row(
            text(f"  {each.get('name', '')}"),
            f"{number(each.get('running'))}/{number(each.get('concurrency'))}",
            number(each.get("waiting")),
            rate(rates.get("acked")),
            Text(rate(failed), style="yellow" if failed else ""),
            Text(rate(dead), style="red" if dead else ""),
        )
        slowest += [_below(text(f"{each.get('name', '')} runs {line}")) for line in _oldest(each)]
    return Group(table, *slowest)


def _below(line: RenderableType, indent: int = 4) -> RenderableType:
    """A line that belongs to what is above; what is wrapped is indented, too."""
    return Padding(line, (0, 0, 0, indent), expand=False)


def _consumers(look: Look) -> Table:
    table = plain_table(
        *("  handler", "runs", "waits", "acked/s", "failed/s", "retried/s", "dead/s", "acked", "dead"),
        "slowest handlers",
        left=("  handler", "slowest handlers"),
    )
    for each in rows(look.status or {}, "consumers"):
        counts, rates = objects(each.get("counts")), look.rates.get(str(each.get("name")), {})
        dead, failed = rates.get("dead_lettered"), rates.get("failed_attempts")
        oldest = _oldest(each)
        retried = [rates[name] for name in ("retried_in_place", "routed") if name in rates]
        table.add_row(
            text(f"  {each.get('name', '')}"),
            f"{number(each.get('running'))}/{number(each.get('concurrency'))}",
            number(each.get("waiting")),
            rate(rates.get("acked")),
            Text(rate(failed), style="yellow" if failed else ""),
            rate(sum(retried) if retried else None),
            Text(rate(dead), style="red" if dead else ""),
            number(counts.get("acked")),
            number(counts.get("dead_lettered")),
            text("\n".join(oldest)) if len(oldest) < 2 else Text("\n").join(map(text, oldest)),
        )
    return table


def _partitions(status: dict[str, Any], most: int | None, *, narrow: bool) -> RenderableType:
    found = sorted(rows(status, "partitions"), key=_urgency)
    if not found:
        return Text("  no partitions are assigned", style="yellow")
    shown = found if most is None else found[:most]
    left = found[len(shown) :]
    rest: list[RenderableType] = []
    if left:
        held = sum(1 for each in left if each.get("held"))
        rest.append(Text(f"  and {len(left)} more partitions, {held} of them held", style="dim"))
    return Group(*(_narrow_partitions(shown) if narrow else [_partition_table(shown)]), *rest)


def _narrow_partitions(shown: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """Each in a line, with what holds it or its commit position below."""
    lines: list[RenderableType] = []
    for each in shown:
        line = text(f"{each.get('topic', '')}/{each.get('partition', '')}", "bold")
        line.append(
            f"  lag {number(each.get('lag'))}, {age(each.get('lag_seconds'))}   "
            f"in flight {number(each.get('buffered'))}   gap {number(each.get('gap'))}"
        )
        lines.append(_below(line, 2))
        if objects(each.get("holder")):
            lines.append(_below(Text("position held by ").append_text(holder_text(each))))
        held = held_text(objects(each.get("held")))
        lines += [_below(reason) for reason in held.split("\n")] if held else []
    return lines


def _partition_table(shown: Sequence[dict[str, Any]]) -> Table:
    table = plain_table(
        *("  partition", "lag", "lag time", "in flight", "gap", "holds the commit position", "held"),
        left=("  partition", "holds the commit position", "held"),
    )
    for each in shown:
        table.add_row(
            text(f"  {each.get('topic', '')}/{each.get('partition', '')}"),
            number(each.get("lag")),
            age(each.get("lag_seconds")),
            number(each.get("buffered")),
            number(each.get("gap")),
            holder_text(each),
            held_text(objects(each.get("held"))),
        )
    return table


def _urgency(part: dict[str, Any]) -> tuple[Any, ...]:
    lag = part.get("lag")
    loud = not QUIET.issuperset(objects(part.get("held")))
    return (
        not loud,
        -(lag if isinstance(lag, int) else 0),
        str(part.get("topic")),
        part["partition"] if isinstance(part.get("partition"), int) else 0,
    )


def holder_text(part: dict[str, Any]) -> Text:
    """The message that holds a partition's commit position."""
    holder = objects(part.get("holder"))
    if not holder:
        return text(f"nothing, at {number(part.get('committable'))}", "dim")
    line = text(f"{holder.get('offset')} {str(holder.get('state', '')).lower()}")
    if isinstance(holder.get("attempt"), int) and holder["attempt"]:
        line.append(f", attempt {holder['attempt']}")
    if holder.get("age") is not None:
        line.append(f", {age(holder['age'])}")
    return line


def held_text(held: dict[str, Any]) -> Text:
    """The reasons that hold a partition, with what there is to say about each."""
    line = Text()
    for reason, why in held.items():
        if line:
            line.append("\n")
        line.append_text(text(reason, "dim" if reason in QUIET else "bold yellow"))
        if why and reason not in QUIET:
            line.append_text(text(f": {str(why)[:LONGEST_WHY]}"))
    return line


# ---------------------------------------------------------------------------------------------- the command


def _interval(_context: click.Context, parameter: click.Parameter, value: str) -> float:
    try:
        seconds = duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}.", param=parameter) from None
    if seconds < LEAST_INTERVAL:
        raise click.BadParameter(f"give at least {LEAST_INTERVAL:g}s: a status is renewed once a second.")
    return seconds


@click.command(short_help="Show what members do now.")
@click.argument("urls", metavar="[URL]...", nargs=-1)
@click.option(
    "--interval",
    callback=_interval,
    default="2s",
    show_default=True,
    metavar="DURATION",
    help="Look so often.",
)
@click.option("--once", is_flag=True, help="Print one frame and end. So does a stdout that is no terminal.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The read token of the members: with it the errors that hold a partition are shown.",
)
def top(urls: tuple[str, ...], interval: float, once: bool, token_file: Path | None) -> None:
    """Show what members do now, from the control_address of each (default: 127.0.0.1:9465).

    Partitions, lag, in flight, what is held and why, rates, the slowest handlers, and the message that holds
    each commit position. q or Ctrl-C ends it. With --once it looks twice, an interval apart, so that there
    are rates; exit code 1 when a member does not answer.
    """
    try:
        token = _token(token_file)
        members = [
            Member(url, timeout=TIMEOUT, token=token)
            for url in dict.fromkeys(map(member_url, urls or ("127.0.0.1",)))
        ]
    except ConfigurationError as error:
        click.echo(str(error), err=True)
        sys.exit(error.exit_code)
    console = Console(highlight=False)
    try:
        if once or not console.is_terminal:
            looks = look_at(members, TIMEOUT)
            if any(each.status is not None for each in looks):
                time.sleep(interval)
                looks = look_at(members, TIMEOUT)
            console.print(frame(looks, width=console.width))
            sys.exit(0 if all(each.status is not None for each in looks) else 1)
        _follow(console, members, interval)
    except KeyboardInterrupt:
        pass


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"--token-file: {path} can't be read ({error}).") from None
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigurationError(f"--token-file: {path} holds no token: one line of plain characters.")
    return token


def _follow(console: Console, members: list[Member], interval: float) -> None:
    with _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            begin = time.monotonic()
            looks = look_at(members, TIMEOUT)
            foot = Text(f"every {interval:g} s   q: end", style="dim")
            drawn = frame(looks, height=console.height - 2, width=console.width)
            live.update(Group(drawn, Text(), foot), refresh=True)
            if _pressed_q(keys, begin + interval):
                return


@contextmanager
def _keys() -> Iterator[int | None]:
    """The terminal's keys one by one, unechoed; None where stdin is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        yield keys
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


def _pressed_q(keys: int | None, until: float) -> bool:
    while (left := until - time.monotonic()) > 0:
        if keys is None:
            time.sleep(left)
            return False
        if select.select([keys], [], [], left)[0]:
            pressed = os.read(keys, 32)
            if not pressed or b"q" in pressed.lower():  # nothing: the terminal has gone
                return True
    return False
