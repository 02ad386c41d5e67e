"""What the commands of ``streamloop dlq`` have in common: options, whose dead letters, progress, interrupts.

Called by those commands only.
"""

from __future__ import annotations

import logging
import shlex
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from streamloop.cli.members import member_url
from streamloop.cli.options import CommandT, decorated, overrides
from streamloop.cli.options import mistakes as sentences
from streamloop.cli.target import load_loop
from streamloop.dlq.filters import Filter
from streamloop.dlq.ledger import read_ledger
from streamloop.dlq.reading import ReadError
from streamloop.dlq.topics import DeadTopic, dead_letter_topics
from streamloop.errors import ConfigurationError
from streamloop.settings import Settings
from streamloop.settings.model import is_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console

    from streamloop.app import StreamLoop
    from streamloop.declare import HandlerBuild
    from streamloop.dlq.letter import DeadLetter
    from streamloop.dlq.reading import Progress

INTERRUPTED: Final = 130
REDRAW: Final = 0.1
"""Seconds between two drawings of the progress."""


@dataclass(frozen=True, slots=True)
class Target:
    """Whose dead letters a command is about. ``consumers``: of the loop, when one was named."""

    settings: Settings
    topics: list[DeadTopic]
    consumers: list[HandlerBuild] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The dead-letter topics."""
        return [topic.name for topic in self.topics]


def with_cluster(command: CommandT) -> CommandT:
    """Add --app, --brokers, --group, --config and --set: see ``settings_of``."""
    return decorated(
        command,
        click.option(
            "--app",
            metavar="MODULE:LOOP",
            help="The loop: its group, the topics of its consumers, and their codecs.",
        ),
        click.option("--brokers", metavar="VALUE", help="As for 'run'."),
        click.option("--group", metavar="VALUE", help="The consumer group whose dead letters are meant."),
        click.option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="PATH",
            help="Settings file (YAML), as for 'run'.",
        ),
        click.option(
            "--set",
            "others",
            multiple=True,
            metavar="NAME=VALUE",
            help="Any setting, as for 'run'. Repeatable.",
        ),
    )


def with_topics(command: CommandT) -> CommandT:
    """Add --topic to name dead-letter topics: see ``target_of``."""
    return decorated(
        command,
        click.option(
            "--topic",
            "dead_topics",
            multiple=True,
            metavar="TOPIC",
            help="A dead-letter topic, of whatever program. Repeatable. Else the group's, by their names.",
        ),
    )


def with_filter(command: CommandT) -> CommandT:
    """Add the options that choose dead letters: see ``filter_of``."""

    def many(*names: str, metavar: str, text: str) -> Callable[[Any], Any]:
        return click.option(*names, multiple=True, metavar=metavar, help=f"{text} Repeatable.")

    return decorated(
        command,
        many("--error", metavar="CLASS", text="Error class, in full or its last part."),
        many("--fingerprint", metavar="HEX", text="Fingerprint, or its beginning."),
        many("--key", metavar="KEY", text="Key: text, hex:.., or null: for none."),
        many("--original", metavar="PLACE", text="Where it first failed: TOPIC[/PARTITION[:FROM-TO]]."),
        many(
            "--at", metavar="PLACE", text="Where the dead letter is: TOPIC/PARTITION:FROM-TO or one offset."
        ),
        click.option("--since", metavar="TIME", help="Died at or after: RFC 3339, epoch ms, or 2h (ago)."),
        click.option("--until", metavar="TIME", help="Died before."),
        many("--header", metavar="NAME[=VALUE]", text="Has this header. All that are given must hold."),
        many("--value", metavar="TEXT", text="The value contains this text, or these bytes (hex:..)."),
        many("--original-group", metavar="GROUP", text="The group that failed."),
        click.option(
            "--replayed/--never-replayed",
            default=None,
            help="Only letters that died again after a replay, or only those that did not.",
        ),
    )


FILTER_OPTIONS: Final = (
    "error",
    "fingerprint",
    "key",
    "original",
    "at",
    "since",
    "until",
    "header",
    "value",
    "original_group",
    "replayed",
)


def filter_of(options: dict[str, Any]) -> Filter:
    """Take the filter's options out of ``options``. Raises ConfigurationError."""
    return Filter.parse(**{name: options.pop(name) for name in FILTER_OPTIONS})


def settings_of(options: dict[str, Any], *, group: str | None = None) -> tuple[Settings, list[HandlerBuild]]:
    """Take the options of ``with_cluster`` out of ``options``: the settings, and the loop's consumers.

    ``group``: used where none is set. Raises ConfigurationError.
    """
    config = options.pop("config")
    app = options.pop("app")
    given: dict[str, Any] = {
        "brokers": options.pop("brokers"),
        "group": options.pop("group"),
        "topics": (),
        "others": options.pop("others"),
    }
    consumers: list[HandlerBuild] = []
    if app is None:
        settings = Settings.load(yaml_path=config, command_line=overrides(given)).settings
        if not settings.group and group:
            given["group"] = group
            settings = Settings.load(yaml_path=config, command_line=overrides(given)).settings
    else:
        loop = cast("StreamLoop[Any]", load_loop(app))
        loop.configure(overrides(given), config=config)
        assembly = loop.assemble(needs_broker=False)
        settings, consumers = assembly.settings, assembly.consumers
    if not settings.brokers:
        raise ConfigurationError(
            "Which brokers? Give --brokers, STREAMLOOP_BROKERS, or brokers: in the settings file."
        )
    return settings, consumers


def again_of(options: dict[str, Any], group: str = "") -> str:
    """The options of ``with_cluster`` as they were given, for commands that are shown to be copied.

    ``group``: named where none was given. Secrets are left out. Leaves ``options`` as they are.
    """
    words: list[str] = []
    for name in ("brokers", "config"):
        if options[name] is not None:
            words += [f"--{name}", str(options[name])]
    if options["app"] is None and (options["group"] or group):
        words += ["--group", options["group"] or group]
    for other in options["others"]:
        if not is_secret(tuple(other.partition("=")[0].split("."))):
            words += ["--set", other]
    if options["app"] is not None:
        words += ["--app", options["app"]]
    return "".join(f" {shlex.quote(word)}" for word in words)


def target_of(options: dict[str, Any], where: Filter | None = None) -> Target:
    """Take the options of ``with_cluster`` and ``with_topics`` out of ``options``, and find the topics.

    Topics that the filter's ``at`` names are taken where --topic names none. Raises ConfigurationError, and
    ReadError when there is no dead-letter topic.
    """
    named = list(options.pop("dead_topics"))
    settings, consumers = settings_of(options)
    if not named and where is not None:
        named = list(dict.fromkeys(each.topic for each in where.at))
    sources = [
        (topic, build.settings.dead_letter_topic(topic))
        for build in consumers
        if build.settings.dead_letter
        for topic in build.topics
    ]
    found = dead_letter_topics(settings, named=named, sources=sources)
    if not found:
        template = settings.for_consumer("dlq").dead_letter_topic_name
        looked = (
            ", ".join(sorted({dead for _, dead in sources}))
            if sources
            else template.replace("{group}", settings.group).replace("{topic}", "TOPIC")
        )
        raise ReadError(
            f"Group {settings.group} has no dead-letter topic on {', '.join(settings.brokers)}: there is no "
            f"{looked}. Nothing has died, or the topics have other names (--topic, --app)."
        )
    return Target(settings, found, consumers)


def ledger_states(settings: Settings, topic_ids: Mapping[str, str]) -> Callable[[DeadLetter], str] | None:
    """What the replay ledger says of a letter (open, replayed, ..); None without a group to ask about.

    Reads the ledger to its end. Raises ReadError.
    """
    return read_ledger(settings, topic_ids).state if settings.group else None


def jaeger_url(given: str | None) -> str | None:
    """The base of links to traces. Raises ConfigurationError."""
    if not given:
        return None
    return member_url(given if "://" in given else f"http://{given}")


@contextmanager
def mistakes() -> Iterator[None]:
    """A user's mistake, or what can't be had, is a sentence and an exit code; Ctrl-C is 130."""
    # What the clients say of brokers that are away is told in a sentence.
    logging.getLogger("streamloop").addHandler(logging.NullHandler())
    try:
        with sentences():
            yield
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone: nothing is left to be said to it
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        sys.exit(INTERRUPTED)


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Within it the first Ctrl-C (or SIGTERM) sets the event; the second one ends at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def shown_progress(console: Console, what: str = "read") -> Iterator[Callable[[Progress], None]]:
    """A line on a terminal's stderr; nothing elsewhere."""
    if not console.is_terminal:
        yield lambda _progress: None
        return
    drawn = 0.0
    with console.status("asking the brokers") as status:

        def show(progress: Progress) -> None:
            nonlocal drawn
            now = time.monotonic()
            if now - drawn < REDRAW:
                return
            drawn = now
            total = progress.offsets_total
            share = 100 * progress.offsets_done / total if total else 100
            rate = progress.records / progress.seconds if progress.seconds > 0 else 0
            status.update(
                f"{what} {progress.records:,} records, {share:.0f} % of {total:,} offsets, {rate:,.0f}/s "
                "(Ctrl-C: show what was read)"
            )

        yield show
