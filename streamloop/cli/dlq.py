"""``streamloop dlq ls | show | export``: what died, why, and the evidence.

These commands only read: they join no group, create no topic and no transactional producer, and so disturb
neither members nor a replay that runs. Errors are sentences. Called by the command line; the commands that
write are added to the same group.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click
from rich.console import Console

from streamloop.cli.dlq_options import (
    INTERRUPTED,
    again_of,
    filter_of,
    interruptible,
    jaeger_url,
    ledger_states,
    mistakes,
    settings_of,
    shown_progress,
    target_of,
    with_cluster,
    with_filter,
    with_topics,
)
from streamloop.cli.dlq_view import after_groups, after_letter, groups_view, letter_view
from streamloop.dlq.exporting import export_letters, letter_json, line, written_atomically
from streamloop.dlq.letter import STREAMLOOP
from streamloop.dlq.listing import read_groups, read_letter
from streamloop.dlq.reading import NoRecord, ReadError, open_bounds
from streamloop.errors import ConfigurationError
from streamloop.telemetry.logs import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from streamloop.declare import HandlerBuild
    from streamloop.dlq.letter import DeadLetter

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_LARGEST: Final = 2**63 - 1


@click.group(short_help="Dead letters: what died and why; replay, purge, export.")
def dlq() -> None:
    """Dead letters: see what died and why, bring it back once, or put it away."""


# --------------------------------------------------------------------------------------------------------- ls


@dlq.command(short_help="List dead letters by error.")
@with_filter
@with_topics
@click.option(
    "--open/--all",
    "only_open",
    default=True,
    help="Only groups with letters that were neither replayed nor purged (the default), or all.",
)
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="Rows.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines: all groups, then a summary.")
@with_cluster
def ls(only_open: bool, limit: int, as_json: bool, **options: Any) -> None:
    """List dead letters by error: how many, since when, of which topics, and one to look at.

    Reads the group's dead-letter topics up to their ends as they are now. Ctrl-C shows what was read so far.
    """
    errors = Console(stderr=True, highlight=False)
    with mistakes():
        where = filter_of(options)
        again = again_of(options)
        target = target_of(options, where)
        bounds = open_bounds(target.settings, target.names, where)
        state_of = ledger_states(target.settings, bounds.topic_ids)
        with interruptible() as stop, shown_progress(errors) as progress:
            found = read_groups(
                target.settings,
                target.names,
                where,
                bounds=bounds,
                state_of=state_of,
                progress=progress,
                stop=stop,
            )
        if as_json:
            with _output("-", force=False) as out:
                for group in found.groups:
                    if group.open or not only_open:
                        out.write(line({"kind": "group", **group.to_json()}))
                out.write(line({"kind": "summary", **found.to_json()}))
        else:
            view = groups_view(
                found,
                limit=limit,
                only_open=only_open,
                interrupted=stop.is_set(),
                ledger_known=bool(target.settings.group),
            )
            console = Console(highlight=False)
            console.print(view)
            first = next((each for each in found.groups if each.open), None)
            if first is not None:
                console.print()
                console.print(after_groups(first, again), soft_wrap=True)  # to be copied whole
    if not found.complete:
        sys.exit(INTERRUPTED)


# ------------------------------------------------------------------------------------------------------- show


@dlq.command(short_help="Show one dead letter whole.")
@click.argument("place", metavar="TOPIC PARTITION OFFSET", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, byte-exact, as 'export' writes it.")
@click.option("--raw", is_flag=True, help="The value's bytes and nothing else, into a pipe or a file.")
@click.option("--full", is_flag=True, help="However long it is.")
@click.option("--jaeger", metavar="URL", help="Jaeger's address, for the link to the trace.")
@with_cluster
def show(
    place: tuple[str, ...], as_json: bool, raw: bool, full: bool, jaeger: str | None, **options: Any
) -> None:
    """Show one dead letter whole: TOPIC PARTITION OFFSET, or TOPIC/PARTITION/OFFSET.

    Its value is decoded by the loop's own codec with --app, else shown as JSON, as text or as a hex dump.
    Exit code 1 when there is no record at that place.
    """
    with mistakes():
        where = place_of(place)
        if raw and as_json:
            raise ConfigurationError("Give --raw or --json, not both.")
        if raw and sys.stdout.isatty():
            raise ConfigurationError(
                "--raw writes bytes that a terminal might obey: send them into a pipe or a file "
                "(> value.bin)."
            )
        base = jaeger_url(jaeger)
        given = dict(options)
        settings, consumers = settings_of(options)
        letter, bounds = read_letter(settings, *where)
        if isinstance(letter, NoRecord):
            raise ReadError(f"{'/'.join(map(str, where))} can't be shown: {letter.reason}.")
        if raw:
            if letter.value is None:
                raise ReadError(f"{letter.place} has no value: it is null (a tombstone).")
            sys.stdout.buffer.write(letter.value)
            sys.stdout.buffer.flush()
            return
        if not settings.group and letter.group and letter.written_by == STREAMLOOP:
            settings = settings.model_copy(update={"group": letter.group})  # for the name of its ledger
        state_of = ledger_states(settings, bounds.topic_ids)
        state = None if state_of is None else state_of(letter)
        if as_json:
            found = letter_json(
                letter, topic_id=bounds.topic_ids[letter.topic], cluster_id=bounds.cluster_id, state=state
            )
            with _output("-", force=False) as out:
                out.write(line(found))
            return
        decode = decoder_for(letter, consumers)
        base = base or settings.jaeger_link
        again = again_of(given, settings.group)
        console = Console(highlight=False)
        console.print(letter_view(letter, state=state, decode=decode, jaeger=base, full=full))
        console.print()
        console.print(after_letter(letter, again), soft_wrap=True)  # to be copied whole


def decoder_for(
    letter: DeadLetter, consumers: Sequence[HandlerBuild]
) -> Callable[[bytes | None], Any] | None:
    """The decoder of the consumer whose message it was: by its original topic, else its dead-letter topic."""
    original = letter.original
    for build in consumers:
        if original is not None and original.topic in build.topics:
            return build.handler.decoder.decode
    for build in consumers:
        if any(build.settings.dead_letter_topic(topic) == letter.topic for topic in build.topics):
            return build.handler.decoder.decode
    return None


def place_of(given: Sequence[str]) -> tuple[str, int, int]:
    """Topic, partition and offset of a command's arguments. Raises ConfigurationError."""
    parts = tuple(given[0].rsplit("/", 2)) if len(given) == 1 else tuple(given)
    if len(parts) != 3:
        raise ConfigurationError(
            "Give TOPIC PARTITION OFFSET (or TOPIC/PARTITION/OFFSET), for example "
            "'streamloop dlq show orders.billing.dlq 0 17'."
        )
    topic, partition, offset = parts
    if _TOPIC.fullmatch(topic) is None:
        raise ConfigurationError(f"{printable(topic[:100])!r} is no name of a topic.")
    for name, value, most in (("partition", partition, 2**31 - 1), ("offset", offset, _LARGEST)):
        if not (value.isascii() and value.isdigit()) or len(value) > 19 or int(value) > most:
            raise ConfigurationError(f"{value[:40]!r} is no {name}: give a number of 0 or more.")
    return topic, int(partition), int(offset)


# ----------------------------------------------------------------------------------------------------- export


@dlq.command(short_help="Write dead letters to a file, byte for byte.")
@click.argument("file", metavar="FILE")
@with_filter
@with_topics
@click.option(
    "--open/--all",
    "only_open",
    default=False,
    help="Only letters that were neither replayed nor purged, or all (the default).",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many letters.")
@click.option("--force", is_flag=True, help="Replace the file if there is one.")
@with_cluster
def export(file: str, only_open: bool, limit: int | None, force: bool, **options: Any) -> None:
    """Write dead letters to FILE (or -) as JSON lines, byte for byte, as evidence or for 'import'.

    The file is there only when it is whole; Ctrl-C leaves none. Nothing is changed in Kafka.
    """
    errors = Console(stderr=True, highlight=False)
    with mistakes():
        where = filter_of(options)
        target = target_of(options, where)
        bounds = open_bounds(target.settings, target.names, where)
        state_of = ledger_states(target.settings, bounds.topic_ids)
        with interruptible() as stop, shown_progress(errors) as progress, _output(file, force=force) as out:
            done = export_letters(
                target.settings,
                bounds,
                where,
                out,
                state_of=state_of,
                only_open=only_open,
                limit=limit,
                progress=progress,
                stop=stop,
            )
            if stop.is_set() and not done.complete:
                raise KeyboardInterrupt  # the file is not whole: there is none
        for note in done.notes:
            click.echo(printable(note), err=True)
        rest = "" if done.complete else f" (--limit {limit}: there may be more)"
        to = "" if file == "-" else f" to {printable(file)}"
        click.echo(f"Exported {done.records:,} dead letters{to}{rest}.", err=True)


@contextmanager
def _output(file: str, *, force: bool) -> Iterator[IO[bytes]]:
    """The standard output, or a file that is there only when it is whole."""
    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with written_atomically(Path(file), force=force) as out:
        yield out
