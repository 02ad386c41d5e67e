"""Command line options, made from the settings model: whatever is a setting is an option, too.

Values stay texts: the settings read and judge them, so that a mistake is told in one way only. Called by the
commands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from streamloop.errors import ConfigurationError, StreamLoopError
from streamloop.settings.describe import DURATIONS, SIZES, describe_field, settings_in_order
from streamloop.settings.layers import SetName, option
from streamloop.settings.model import Settings
from streamloop.settings.units import duration
from streamloop.telemetry.logs import printable

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_BY_HAND: Final = frozenset({"topics"})
_CONNECTION: Final = frozenset({"brokers", "group", "client_id", "security_protocol", "control_topic_name"})
_CONNECTION_BEGINS: Final = ("sasl_", "ssl_")
"""What somebody who only looks or asks gives by hand: names, and how names begin."""


def with_settings(command: CommandT) -> CommandT:
    """Add --config, an option for each setting, --topic, and --set for what is nested."""
    return _with_options(command, settings_in_order(), "")


def with_connection(command: CommandT) -> CommandT:
    """The same options; --help lists those of the connection only, and says where the others are."""
    return _with_options(
        command,
        [name for name in settings_in_order() if name in _CONNECTION or name.startswith(_CONNECTION_BEGINS)],
        " Each setting is an option, too: 'streamloop run --help' lists them.",
    )


def _with_options(command: CommandT, listed: Iterable[str], more: str) -> CommandT:
    shown = frozenset(listed)
    return decorated(
        command,
        click.option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="PATH",
            help="Settings file (YAML). Else STREAMLOOP_CONFIG, else ./streamloop.yaml if there is one.",
        ),
        click.option(
            "--topic",
            "topics",
            multiple=True,
            metavar="OLD=NEW",
            hidden=bool(more),
            help="Read topic NEW where the code says OLD. Repeatable.",
        ),
        click.option(
            "--set",
            "others",
            multiple=True,
            metavar="NAME=VALUE",
            help=(
                "Any setting, also nested: consumers.charge.timeout=10s, kafka.consumer.debug=cgrp. "
                "Repeatable." + more
            ),
        ),
        *(_option(name, name not in shown) for name in settings_in_order() if name not in _BY_HAND),
    )


def decorated(command: CommandT, *decorators: Callable[[Any], Any]) -> CommandT:
    """The command with these decorators, the first one outermost."""
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def seconds(_context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """The callback of an option that is a duration."""
    try:
        return None if value is None else duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}.", param=parameter) from None


@contextmanager
def mistakes() -> Iterator[None]:
    """Within it a user's mistake, or what can't be had, is a sentence on stderr and an exit code."""
    try:
        yield
    except StreamLoopError as error:
        # What brokers and files say may be in it.
        click.echo("\n".join(map(printable, str(error).split("\n"))), err=True)
        sys.exit(error.exit_code)


def overrides(options: dict[str, Any]) -> dict[str, object]:
    """The settings among a command's parameters (see ``with_settings``), for StreamLoop.configure."""
    given: dict[str, object] = {
        name: value
        for name, value in options.items()
        if value is not None and name in Settings.model_fields and name not in _BY_HAND
    }
    if options["topics"]:
        given["topics"] = dict(_pair("--topic", "OLD=NEW", each) for each in options["topics"])
    for each in options["others"]:
        name, value = _pair("--set", "NAME=VALUE", each)
        given.pop(name, None)
        given[SetName(name)] = value
    return given


def _pair(name: str, shape: str, text: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not equals or not left.strip():
        # The text is not repeated: it may hold a secret.
        raise ConfigurationError(f"{name} needs {shape}, with an equals sign between the two.")
    return left.strip(), right


def _option(name: str, hidden: bool) -> Callable[[CommandT], CommandT]:
    written = option((name,))
    text = describe_field(name)
    if Settings.model_fields[name].annotation is bool:
        return click.option(f"{written}/--no-{written[2:]}", name, default=None, hidden=hidden, help=text)
    kind = "DURATION" if name in DURATIONS else "SIZE" if name in SIZES else "VALUE"
    return click.option(written, name, metavar=kind, hidden=hidden, help=text)
