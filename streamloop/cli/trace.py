"""``streamloop trace``: where one message is or was, and its trace as a waterfall.

The command asks (``find`` the brokers, ``waterfall`` Jaeger) and draws; it changes nothing and joins no
group. Errors are sentences. Called by the command line.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from streamloop.cli.find import Committed, Finder, FindError, Hop, Story, groups_of, trace_of
from streamloop.cli.members import member_url
from streamloop.cli.options import overrides
from streamloop.cli.show import NONE, age, moment, number, size, text
from streamloop.cli.waterfall import waterfall
from streamloop.errors import ConfigurationError, StreamLoopError, short_class
from streamloop.settings import Settings
from streamloop.settings.units import duration
from streamloop.telemetry.jaeger import JaegerError, fetch_trace, messages_of, trace_id_of
from streamloop.telemetry.logs import printable, shown_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType

MOST_MESSAGES: Final = 5
"""Messages of one trace whose places are looked for."""
WIDE: Final = 120
"""Columns from which on the hops are a table."""
LONGEST_ERROR: Final = 300
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_LARGEST: Final = 2**63 - 1

Place = tuple[str, int, int]


# ---------------------------------------------------------------------------------------------- one message


def verdict(story: Story, now_ms: int) -> tuple[str, str]:
    """Where the message is, as a sentence, and its style. ``now_ms``: epoch ms."""
    original, committed = story.original, story.committed
    place = f"{original.topic}/{original.partition}/{original.offset}"
    if story.hops:
        return _last_hop(place, story, now_ms)
    if not original.found and not committed.acknowledged:
        return f"{place}: {original.missing}.", "yellow"
    partly = ""
    if story.search.stopped_by:
        partly = (
            " Its retry and dead-letter topics were not read to the end "
            f"({story.search.stopped_by}): it may be there."
        )
    if committed.state == "position":
        return (
            f"{place} is acknowledged: the commit position {committed.offset} is past it, and it has no "
            f"record in a retry or dead-letter topic.{partly}",
            "yellow" if partly else "green",
        )
    if committed.state == "metadata":
        return (
            f"{place} is acknowledged beyond the commit position {committed.offset}, which another "
            f"message holds; it has no record in a retry or dead-letter topic.{partly}",
            "yellow" if partly else "green",
        )
    if committed.state == "none":
        return (
            f"{place} is not acknowledged: group {story.group} has committed nothing for its partition.",
            "yellow",
        )
    assert committed.offset is not None
    if original.offset == committed.offset:
        return (
            f"{place} is not acknowledged and holds the commit position: it is being handled, waits for a "
            "retry in place, or has not been read yet. streamloop top shows which.",
            "yellow",
        )
    return (
        f"{place} is not acknowledged: the commit position {committed.offset} is "
        f"{original.offset - committed.offset} offsets before it. It is being handled, or has not been "
        "read yet. streamloop top shows what holds the position.",
        "yellow",
    )


def _last_hop(place: str, story: Story, now_ms: int) -> tuple[str, str]:
    hop = story.hops[-1]
    where = f"{hop.topic}/{hop.partition}/{hop.offset}"
    attempts = f"{hop.attempt} attempt{'' if hop.attempt == 1 else 's'}"
    error = (
        f": {short_class(hop.error_class)}: {hop.error_message}"[:LONGEST_ERROR] if hop.error_class else ""
    )
    if hop.kind == "dead letter":
        return f"{place} is a dead letter, at {where}, after {attempts}{error}", "red"
    if hop.committed is not None and hop.committed.acknowledged:
        if story.search.stopped_by:
            return (
                f"{place} was handled again from {where}, with an end that is not known: the topics were "
                f"not read to the end ({story.search.stopped_by}).",
                "yellow",
            )
        return f"{place} is acknowledged: attempt {hop.attempt + 1}, read from {where}, was handled.", "green"
    if hop.not_before_ms is not None and hop.not_before_ms > now_ms:
        due = f"due in {age((hop.not_before_ms - now_ms) / 1000)}"
    else:
        due = "due now"
        if hop.not_before_ms is not None:
            due = f"due since {age((now_ms - hop.not_before_ms) / 1000)}, being handled or not read yet"
    since = f"after {attempts}{error}" if hop.kind != "replay" else f"brought back by replay {hop.replay_id}"
    return f"{place} waits in {where}, {due}, {since}", "yellow"


def said_of(committed: Committed) -> str:
    """What a group's commit says, in a line."""
    said = {
        "position": f"committed {committed.offset}: past it",
        "metadata": f"committed {committed.offset}, and the metadata acknowledges this offset",
        "open": f"committed {committed.offset}: not past it",
        "none": "nothing committed",
    }[committed.state]
    if committed.beyond:
        said += f" ({number(committed.beyond)} offsets beyond the position are acknowledged)"
    if committed.ignored:
        said += f" (the metadata is not believed: {committed.ignored})"
    return said


def story_view(story: Story, now_ms: int, *, width: int = WIDE) -> RenderableType:
    """All that was found of a message. ``now_ms``: epoch ms. ``width``: columns of the terminal."""
    sentence, style = verdict(story, now_ms)
    original = story.original
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")

    def row(name: str, said: str | Text) -> None:
        facts.add_row(name, said if isinstance(said, Text) else text(said))

    if original.found:
        row("written", moment(original.timestamp_ms))
        key = shown_key(original.key)
        row("key", f"{key if key is not None else 'none'}   ({size(original.size)} with the value)")
    else:
        row("record", original.missing)
    row(
        "partition",
        f"offsets {number(original.start)} to {number(original.end - 1)}" if original.end else NONE,
    )
    row(f"group {story.group}", said_of(story.committed))
    for trace_id in story.trace_ids:
        given = [original.traceparent, *(hop.traceparent for hop in story.hops)]
        sampled = any(found[1] for each in given if (found := trace_of(each))[0] == trace_id)
        row("trace", f"{trace_id}   ({'sampled' if sampled else 'not sampled'})")
    if not story.trace_ids:
        row("trace", "none: no record of it has a traceparent")
    parts: list[RenderableType] = [text(sentence, f"bold {style}"), Text(), facts]
    if story.hops:
        parts += [Text(), _hops(story.hops) if width >= WIDE else _narrow_hops(story.hops)]
    return Group(*parts, Text(), _searched(story))


def _narrow_hops(hops: Sequence[Hop]) -> RenderableType:
    """A few lines each, where a table would leave no room for the error."""
    lines: list[RenderableType] = []
    for hop in hops:
        lines.append(Text().append_text(text(_place_of(hop), "bold")).append(f"  {moment(hop.at_ms)}"))
        attempts = f"after {hop.attempt} attempt{'' if hop.attempt == 1 else 's'}"
        why = Text(f"{attempts}: ").append_text(text(_error_of(hop), "red"))
        lines += [Padding(each, (0, 0, 0, 2), expand=False) for each in (why, _then(hop))]
    return Group(*lines)


def _place_of(hop: Hop) -> str:
    replay = f" (replay {hop.replay_id})" if hop.replay_id else ""
    return f"{hop.topic}/{hop.partition}/{hop.offset}{replay}"


def _error_of(hop: Hop) -> str:
    if not hop.error_class:
        return NONE
    return f"{short_class(hop.error_class)}: {hop.error_message}"[:LONGEST_ERROR]


def _then(hop: Hop) -> Text:
    if hop.kind == "dead letter":
        return Text("it stays there", style="red")
    due = f"due {moment(hop.not_before_ms)}, " if hop.not_before_ms is not None else ""
    read = hop.committed is not None and hop.committed.acknowledged
    return text(f"{due}{'handled' if read else 'not handled yet'}")


def _hops(hops: Sequence[Hop]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1), header_style="bold")
    for name, justify in (("when", "left"), ("where", "left"), ("attempts", "right")):
        table.add_column(name, justify=justify, no_wrap=True, overflow="fold")  # type: ignore[arg-type]
    table.add_column("last error", overflow="fold")
    table.add_column("then", overflow="fold")
    for hop in hops:
        table.add_row(
            moment(hop.at_ms),
            text(_place_of(hop)),
            str(hop.attempt),
            text(_error_of(hop), "red"),
            _then(hop),
        )
    return table


def _searched(story: Story) -> RenderableType:
    search = story.search
    lines: list[RenderableType] = []
    if search.topics:
        lines.append(
            text(
                f"read {number(search.records)} records of {', '.join(search.topics)} "
                f"in {age(search.seconds)}",
                "dim",
            )
        )
    if search.stopped_by:
        lines.append(
            Text(
                f"ended early by {search.stopped_by}: up to {number(search.unread)} records were not read; "
                "raise it to read them",
                style="yellow",
            )
        )
    return Group(*lines, *(text(each, "yellow") for each in search.warnings))


# ---------------------------------------------------------------------------------------------- the command


def _time(_context: click.Context, parameter: click.Parameter, value: str) -> float:
    try:
        return duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}.", param=parameter) from None


@click.command(short_help="Show where a message is or was.")
@click.argument("place", metavar="[TOPIC PARTITION OFFSET]", nargs=-1)
@click.option("--trace-id", metavar="ID", help="A trace instead of a place. Needs --jaeger.")
@click.option("--jaeger", metavar="URL", help="Jaeger's query API, such as http://localhost:16686.")
@click.option("--brokers", metavar="VALUE", help="As for 'run'.")
@click.option(
    "--group",
    metavar="VALUE",
    help="The consumer group that the question is about. Found by its topics where there is only one.",
)
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="PATH", help="Settings file (YAML), as for 'run'."
)
@click.option(
    "--set", "others", multiple=True, metavar="NAME=VALUE", help="Any setting, as for 'run'. Repeatable."
)
@click.option(
    "--also", multiple=True, metavar="TOPIC", help="A retry or dead-letter topic of another name. Repeatable."
)
@click.option(
    "--all-partitions", is_flag=True, help="Read all partitions, for topics whose number of them changed."
)
@click.option("--from-start", is_flag=True, help="Read from the beginning, not from the time of the message.")
@click.option("--max-records", type=click.IntRange(min=1), default=500_000, show_default=True, metavar="N")
@click.option("--max-time", callback=_time, default="60s", show_default=True, metavar="DURATION")
def trace(
    place: tuple[str, ...],
    trace_id: str | None,
    jaeger: str | None,
    brokers: str | None,
    group: str | None,
    config: Path | None,
    others: tuple[str, ...],
    also: tuple[str, ...],
    all_partitions: bool,
    from_start: bool,
    max_records: int,
    max_time: float,
) -> None:
    """Show where a message is or was: TOPIC PARTITION OFFSET, or TOPIC/PARTITION/OFFSET as in the logs.

    What the group has committed says whether it is acknowledged. Its retry and dead-letter topics are read
    from the time of the message on (at most --max-records and --max-time). A place in one of those leads to
    the original. With --jaeger its trace is drawn. Nothing is changed, and the group is not joined.
    """
    console = Console(highlight=False)
    errors = Console(stderr=True, highlight=False)
    # What the clients say of brokers that are away is told in a sentence.
    logging.getLogger("streamloop").addHandler(logging.NullHandler())
    try:
        address = member_url(jaeger if "://" in jaeger else f"http://{jaeger}") if jaeger else None
        given = {"brokers": brokers, "group": group, "topics": (), "others": others}

        def find(where: Place, of_group: str | None) -> Story:
            own = {**given, "group": group or of_group}
            settings = Settings.load(yaml_path=config, command_line=overrides(own)).settings
            if not settings.brokers:
                raise ConfigurationError(
                    "Which brokers? Give --brokers, STREAMLOOP_BROKERS, or brokers: in the settings file."
                )
            if not settings.group:
                own["group"] = _only_group(settings, where[0])
                settings = Settings.load(yaml_path=config, command_line=overrides(own)).settings
            with (
                _progress(errors) as progress,
                Finder(
                    settings, most_records=max_records, most_seconds=max_time, progress=progress
                ) as finder,
            ):
                return finder.story(*where, also=also, all_partitions=all_partitions, from_start=from_start)

        if trace_id is not None:
            _by_trace(console, trace_id_of(trace_id), place, address, find)
        else:
            _by_place(console, _place(place), address, find)
    except StreamLoopError as error:
        click.echo("\n".join(map(printable, str(error).split("\n"))), err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        sys.exit(130)


def _by_place(
    console: Console, where: Place, jaeger: str | None, find: Callable[[Place, str | None], Story]
) -> None:
    story = find(where, None)
    console.print(story_view(story, round(time.time() * 1000), width=console.width))
    if jaeger is not None:
        for found in story.trace_ids:
            console.print()
            console.print(_trace(jaeger, found, console.width))
    if not story.original.found and not story.hops and not story.committed.acknowledged:
        sys.exit(1)


def _by_trace(
    console: Console,
    trace_id: str,
    place: tuple[str, ...],
    jaeger: str | None,
    find: Callable[[Place, str | None], Story],
) -> None:
    if place:
        raise ConfigurationError("Give a place or --trace-id, not both.")
    if jaeger is None:
        raise ConfigurationError("--trace-id needs --jaeger URL: Kafka can't be searched for a trace.")
    spans = fetch_trace(jaeger, trace_id)
    if not spans:
        raise JaegerError(_no_trace(jaeger, trace_id))
    console.print(waterfall(trace_id, spans, width=console.width))
    messages = messages_of(spans)
    for topic, partition, offset, group in messages[:MOST_MESSAGES]:
        console.print()
        try:
            story = find((topic, partition, offset), group)
        except StreamLoopError as error:
            said = f"{topic}/{partition}/{offset} was not looked for: {error}"
            console.print(text(said.partition("\n")[0], "yellow"))
            continue
        console.print(story_view(story, round(time.time() * 1000), width=console.width))
    if len(messages) > MOST_MESSAGES:
        console.print(f"and {len(messages) - MOST_MESSAGES} more messages in this trace")


def _trace(jaeger: str, trace_id: str, width: int) -> RenderableType:
    spans = fetch_trace(jaeger, trace_id)
    return waterfall(trace_id, spans, width=width) if spans else text(_no_trace(jaeger, trace_id), "yellow")


def _no_trace(jaeger: str, trace_id: str) -> str:
    return (
        f"Jaeger at {jaeger} has no trace {trace_id}: it was not sampled, is older than what Jaeger keeps, "
        "or its spans are still on their way (some seconds)."
    )


def _place(given: tuple[str, ...]) -> Place:
    parts = given
    if len(given) == 1:
        parts = tuple(given[0].rsplit("/", 2))
    if len(parts) != 3:
        raise ConfigurationError(
            "Give TOPIC PARTITION OFFSET (or TOPIC/PARTITION/OFFSET), for example "
            "'streamloop trace orders 3 1042', or --trace-id ID."
        )
    topic, partition, offset = parts
    if _TOPIC.fullmatch(topic) is None:
        raise ConfigurationError(f"{topic[:100]!r} is no name of a topic.")
    for name, value, most in (("partition", partition, 2**31 - 1), ("offset", offset, _LARGEST)):
        if not (value.isascii() and value.isdigit()) or int(value) > most:
            raise ConfigurationError(f"{value[:40]!r} is no {name}: give a number of 0 or more.")
    return topic, int(partition), int(offset)


def _only_group(settings: Settings, topic: str) -> str:
    groups = groups_of(settings, topic)
    if len(groups) == 1:
        return groups[0]
    found = f": {', '.join(groups)} have" if groups else ": none has"
    raise ConfigurationError(f"Which group? Give --group{found} retry or dead-letter topics of {topic}.")


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[int, int], None]]:
    """A line on a terminal's stderr while topics are read; nothing elsewhere."""
    if not console.is_terminal:
        yield lambda _read, _all: None
        return
    with console.status("asking the brokers") as status:
        yield lambda read, total: status.update(f"read {read:,} of {total:,} records")


__all__ = ["FindError", "said_of", "story_view", "trace", "verdict"]
