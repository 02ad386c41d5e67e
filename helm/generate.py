"""Writes what the chart has from elsewhere: ``python -m helm.generate`` (``make chart``).

Nothing of it is written by hand, so nothing of it can drift: a test asks ``stale()``. Reads the settings
model, the version, values.yaml, stack/prometheus/rules.yml and stack/grafana/dashboards.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from helm.readme import readme
from helm.schema import values_schema
from streamloop import shutdown
from streamloop.settings.describe import describe_field, settings_in_order, show
from streamloop.settings.model import Settings, is_secret
from streamloop.settings.sums import FETCH_MAX_BYTES, INTERPRETER_BYTES
from streamloop.settings.units import show_duration
from streamloop.version import __version__

ROOT: Final = Path(__file__).parent.parent
CHART: Final = Path(__file__).parent / "streamloop"
STACK: Final = ROOT / "stack"

SECRETS: Final = {
    "sasl_password": "auth.sasl",
    "ssl_key_password": "auth.tls.keyPasswordKey",
    "control_read_token": "auth.tokens",
    "control_act_token": "auth.tokens",
}
"""Where a secret setting belongs. A new one has to be added here, or generating fails."""
HIDDEN: Final = r"pas|secret|token|key\.pem|credential|private|oauthbearer\.(config|extensions)"
"""Names of secrets: the model's pattern without look-ahead, which Go does not have; exceptions are below."""
SHOWN: Final = r"(\.location|\.file|_file|\.client\.id|\.url|token\.endpoint.*)$"
SHOWN_VARIABLES: Final = r"(_location|_file|_client_id|_url|token_endpoint.*)$"

BEGIN: Final = "  # begin: made from the settings model by `make chart`"
END: Final = "  # end of what is made"
GUIDE_BEGIN: Final = "<!-- begin: made by `make chart` -->"
GUIDE_END: Final = "<!-- end of what is made -->"


def model() -> dict[str, Any]:
    """What templates need to know of the model: files/model.yaml."""
    secret = [name for name in Settings.model_fields if is_secret((name,))]
    return {
        "defaults": {name: plain_default(name) for name in settings_in_order()},
        "bounds": {"leave": shutdown.LEAVE, "end": shutdown.END, "margin": shutdown.MARGIN},
        "memory": {"interpreter": INTERPRETER_BYTES, "fetch": FETCH_MAX_BYTES},
        "secrets": {
            "settings": {name: SECRETS[name] for name in secret},
            "pattern": HIDDEN,
            "except": SHOWN,
            "exceptVariable": SHOWN_VARIABLES,
        },
    }


def plain_default(name: str) -> Any:
    """A default as YAML has it; None where it is made at the start or there is none."""
    field = Settings.model_fields[name]
    if field.default_factory is not None:
        return None
    value = field.default
    return list(value) if isinstance(value, tuple) else value


def settings_block() -> str:
    """The settings in values.yaml, as comments: their names, what they are, and their defaults."""
    lines = [
        BEGIN,
        "  #",
        "  # All others, with their defaults. Durations and sizes may have a unit.",
    ]
    given = set(yaml.safe_load(before_block(values_text()))["settings"])
    for name in settings_in_order():
        if is_secret((name,)) or name in given:
            continue
        field = Settings.model_fields[name]
        default = "" if field.default_factory is not None else show(name, field.default)
        lines.append(f"  # {describe_field(name)}")
        lines.append(f"  # {name}: {default}".rstrip())
    lines += [
        "  # librdkafka properties, by section: common, consumer, producer, admin.",
        "  # kafka: {consumer: {max.poll.interval.ms: 300000}}",
        "  # Settings of single consumers, by the consumer's name.",
        "  # consumers: {charge: {concurrency: 200, timeout: 10s}}",
        END,
    ]
    return "\n".join(lines)


def values_text() -> str:
    """values.yaml as it is."""
    return (CHART / "values.yaml").read_text(encoding="utf-8")


def before_block(text: str) -> str:
    """values.yaml without the block that is made."""
    return re.sub(rf"{re.escape(BEGIN)}.*?{re.escape(END)}", "", text, flags=re.DOTALL)


def with_block(text: str) -> str:
    """values.yaml with the block that belongs there."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"values.yaml does not have the marks {BEGIN!r} and {END!r}")
    return before + settings_block() + after


def ending_table() -> str:
    """The steps of a shutdown and their bounds, for docs/deploy.md."""
    settings = Settings.model_construct()  # the defaults
    ending = shutdown.longest(settings)
    rows = [
        ("running handlers finish", settings.drain_timeout, "`settings.drain_timeout`"),
        ("the groups are left, and what was written is confirmed", shutdown.LEAVE, "fixed"),
        ("your `on_shutdown` functions", settings.shutdown_timeout, "`settings.shutdown_timeout`"),
        ("metrics, listeners, logs", shutdown.END, "fixed"),
        ("the last spans", settings.trace_flush_timeout, "`settings.trace_flush_timeout`"),
        ("a margin", shutdown.MARGIN, "fixed"),
        ("**`terminationGracePeriodSeconds`**", ending.grace, "all of them"),
        ("**`minReadySeconds`**", ending.away, "the first two and the margin"),
    ]
    lines = [f"| {what} | {show_duration(seconds)} | {where} |" for what, seconds, where in rows]
    return "\n".join(["| step | at most | from |", "|---|---|---|", *lines])


def guide() -> str:
    """docs/deploy.md with that table."""
    before, begin, rest = (ROOT / "docs/deploy.md").read_text(encoding="utf-8").partition(GUIDE_BEGIN)
    _, end, after = rest.partition(GUIDE_END)
    if not (begin and end):
        raise ValueError(f"docs/deploy.md does not have the marks {GUIDE_BEGIN!r} and {GUIDE_END!r}")
    return f"{before}{begin}\n{ending_table()}\n{end}{after}"


def chart_yaml() -> str:
    """Chart.yaml with the package's version."""
    text = (CHART / "Chart.yaml").read_text(encoding="utf-8")
    text = re.sub(r"^version: .*$", f"version: {__version__}", text, flags=re.MULTILINE)
    return re.sub(r"^appVersion: .*$", f'appVersion: "{__version__}"', text, flags=re.MULTILINE)


def generated() -> dict[Path, str]:
    """Every file that is made, with what belongs into it."""
    values = with_block(values_text())
    made = {
        CHART / "Chart.yaml": chart_yaml(),
        CHART / "values.yaml": values,
        ROOT / "docs/deploy.md": guide(),
        CHART / "values.schema.json": json.dumps(values_schema(), indent=2) + "\n",
        CHART / "README.md": readme(values),
        CHART / "files/model.yaml": "# Made from the settings model by `make chart`.\n"
        + yaml.safe_dump(model(), sort_keys=False),
        CHART / "files/rules.yml": (STACK / "prometheus/rules.yml").read_text(encoding="utf-8"),
    }
    for board in sorted((STACK / "grafana/dashboards").glob("*.json")):
        made[CHART / "files/dashboards" / board.name] = board.read_text(encoding="utf-8")
    return made


def stale() -> list[Path]:
    """Files that differ from what would be made, and dashboards that nothing makes any more."""
    made = generated()
    found = [
        path for path, text in made.items() if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    return found + [path for path in (CHART / "files").rglob("*") if path.is_file() and path not in made]


def main() -> int:
    """Write what differs."""
    made = generated()
    for path in stale():
        if path in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path], encoding="utf-8")
        else:
            path.unlink()
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
