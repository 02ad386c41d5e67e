"""``streamloop plan``: how many replicas, how much concurrency, which settings, from the work as it comes.

Reads options and, when asked, members' metrics; the calculation is pure. Exit code 1: the work does not fit
into its limits. Called by the command line.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from streamloop.cli.measure import measure, metrics_url
from streamloop.cli.options import mistakes
from streamloop.cli.show import folded
from streamloop.errors import ConfigurationError
from streamloop.plan.calculate import calculate
from streamloop.plan.inputs import HandlerKind, Inputs, Source, option
from streamloop.plan.render import FORMATS, as_helm, as_json, as_settings, as_text
from streamloop.settings.units import count, duration, size

if TYPE_CHECKING:
    from collections.abc import Callable

_NEEDED: Final = ("handler_mean", "handler_p99", "rate", "partitions")
_PER_SECOND: Final = {"/s": 1.0, "/m": 1 / 60, "/min": 1 / 60, "/h": 1 / 3_600}


def rate(text: str) -> float:
    """Messages a second, of ``5000/s``, ``90/m``, ``1000/h`` or a number. Raises ValueError."""
    number, slash, unit = text.strip().lower().partition("/")
    factor = _PER_SECOND.get(f"/{unit.strip()}" if slash else "/s")
    try:
        if factor is None:
            raise ValueError
        return float(number) * factor
    except ValueError:
        raise ValueError("give a rate such as 5000/s, 90/m or 1000/h") from None


def microseconds(text: str) -> float:
    """Seconds, of a duration that may also be in us: the CPU time of one message is short."""
    number = text.strip().lower()
    if number.endswith("us"):
        return duration(number.removesuffix("us")) / 1e6
    return duration(text)


def _read(reader: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    def convert(_context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
        try:
            return None if value is None else reader(value)
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: {error}.", param=parameter) from None

    return convert


def _limit(text: str) -> tuple[str, float]:
    """What is called takes so many calls at once, or so many a second."""
    if "/" in text:
        return "downstream_rate", rate(text)
    return "downstream_calls", count(text)


def _option(name: str, kind: str, reader: Callable[[str], Any], text: str) -> Callable[[Any], Any]:
    return click.option(option(name), name, metavar=kind, callback=_read(reader), help=text)


@click.command(short_help="Work out replicas, concurrency, memory and more.")
@_option("handler_mean", "DURATION", microseconds, "How long a handler takes on average.")
@_option("handler_p99", "DURATION", microseconds, "How long 99 of 100 take at most.")
@_option("rate", "RATE", rate, "Messages that come for the whole group, at the peak: 5000/s, 90/m, 1000/h.")
@_option("partitions", "N", count, "Partitions of the source topics together.")
@click.option(
    "--kind",
    type=click.Choice([each.value for each in HandlerKind]),
    help="async: async def that waits for others (default). thread: def that waits. cpu: it computes.",
)
@click.option("--ordering", type=click.Choice(["key", "partition", "none"]), help="As the setting (key).")
@_option("message_bytes", "SIZE", size, "Mean size of a message (1KiB).")
@_option("largest_message_bytes", "SIZE", size, "The largest message (1MiB).")
@_option("handler_bytes", "SIZE", size, "Memory of a running handler besides its message (64KiB).")
@click.option(
    "--downstream-limit",
    "limits",
    multiple=True,
    metavar="N|RATE",
    callback=lambda context, parameter, values: [_read(_limit)(context, parameter, each) for each in values],
    help="What the handlers call takes so many calls at once (40), or a second (300/s). Repeatable.",
)
@_option("retry_budget", "DURATION", duration, "How long after its first failure a message is retried.")
@_option(
    "cpu_per_message", "DURATION", microseconds, "CPU time of the process for one message, such as 400us."
)
@_option("memory_limit", "SIZE", size, "Memory that one process may use.")
@_option("min_replicas", "N", count, "Replicas at least, for a rollout that stops nothing (2).")
@click.option(
    "--measure",
    "urls",
    multiple=True,
    metavar="ADDRESS",
    help="Take what is not given from a running member (its ops_address). Repeatable: best, all members.",
)
@click.option(
    "--over",
    default="10s",
    show_default=True,
    metavar="DURATION",
    callback=_read(duration),
    help="Time between the two looks of --measure.",
)
@click.option("--consumer", metavar="NAME", help="The consumer that is planned, if the loop has several.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="What to print."
)
def plan(
    urls: tuple[str, ...],
    over: float,
    consumer: str | None,
    form: str,
    limits: list[tuple[str, float]],
    **given: Any,
) -> None:
    """Work out replicas, concurrency, watermarks, retries, times and memory, each with its formula.

    \b
    streamloop plan --handler-mean 20ms --handler-p99 200ms --rate 5000/s --partitions 24
    streamloop plan --measure pod-0:9464 --measure pod-1:9464 --format helm
    """
    with mistakes():
        known = {name: value for name, value in given.items() if value is not None} | dict(limits)
        click.echo(_planned(known, urls, over, consumer, form), nl=form in ("text", "json"))


def _planned(
    known: dict[str, Any], urls: tuple[str, ...], over: float, consumer: str | None, form: str
) -> str:
    sources = dict.fromkeys(known, Source.GIVEN)
    if "kind" in known:
        known["kind"] = HandlerKind(known["kind"])
    notes: list[str] = []
    if urls:
        found = measure([metrics_url(each) for each in urls], over, consumer=consumer)
        notes = found.notes
        for name, value in found.values.items():
            if name not in known:
                known[name], sources[name] = value, Source.MEASURED
    missing = [option(name) for name in _NEEDED if name not in known]
    if missing:
        raise ConfigurationError(
            "\n".join(
                [
                    *notes,
                    f"Not known: {', '.join(missing)}. Give them, or measure a running member (--measure).",
                ]
            )
        )
    made = calculate(Inputs(**known, sources=sources))
    match form:
        case "settings":
            return as_settings(made, consumer)
        case "helm":
            return as_helm(made, consumer)
        case "json":
            return as_json(made, consumer)
        case _:
            measured = ["Measured", *(f"  {note}" for note in notes), ""] if notes else []
            lines = [*measured, *as_text(made).split("\n")]
            if sys.stdout.isatty():
                width = shutil.get_terminal_size().columns
                lines = [folded(line, width) for line in lines]
            return "\n".join(lines)
