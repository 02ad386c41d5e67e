"""What is in force, for people and programs: rows with their origins, and the JSON schema.

Secrets are masked here and nowhere shown. Called by ``streamloop config`` and ``streamloop check``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import SecretStr

from streamloop.settings import layers
from streamloop.settings.load import NAMES, Loaded
from streamloop.settings.model import MASK, ConsumerSettings, HandlerSettings, Settings, is_secret
from streamloop.settings.units import show_duration, show_size

DURATIONS: Final = frozenset(
    {
        "timeout",
        "kill_after",
        "batch_linger",
        "backoff_base",
        "backoff_cap",
        "unavailable_cap",
        "retry_topics",
        "max_age",
        "dwell",
        "commit_interval",
        "drain_timeout",
        "startup_timeout",
        "shutdown_timeout",
        "revoke_wait",
        "termination_grace",
        "trace_flush_timeout",
        "retry_topic_retention",
    }
)
SIZES: Final = frozenset(
    {
        "high_watermark_bytes",
        "retry_high_watermark_bytes",
        "prefetch_bytes",
        "producer_queue_bytes",
        "memory_limit",
    }
)


@dataclass(frozen=True, slots=True)
class Row:
    """One setting in force.

    ``value``: plain values that JSON can hold (seconds, bytes), a secret masked. ``text``: the same for
    people. ``origin``: where it came from.
    """

    name: str
    value: Any
    text: str
    origin: str


def describe(loaded: Loaded, consumers: Iterable[ConsumerSettings] = ()) -> list[Row]:
    """All settings in force, in order; of ``consumers`` the values that differ from the loop's."""
    settings = loaded.settings
    consumers = list(consumers)
    rows = [_row(name, name, getattr(settings, name), loaded.origin(name)) for name in settings_in_order()]
    for section in layers.SECTIONS:
        properties: Mapping[str, Any] = getattr(settings.kafka, section)
        for each in sorted(properties):
            path = ("kafka", section, each)
            rows.append(_row(layers.dotted(path), each, properties[each], loaded.origin(path)))
    known = {layers.consumer_key(consumer.name) for consumer in consumers}
    for key, overrides in settings.consumers.items():
        if key not in known:
            for name in sorted(overrides.model_fields_set):
                path = ("consumers", key, name)
                rows.append(_row(layers.dotted(path), name, getattr(overrides, name), loaded.origin(path)))
    for consumer in consumers:
        for name in HandlerSettings.model_fields:
            if getattr(consumer, name) != getattr(settings, name) or consumer.origin(name) != settings.origin(
                name
            ):
                shown = layers.dotted(("consumers", consumer.name, name))
                rows.append(_row(shown, name, getattr(consumer, name), str(consumer.origin(name))))
    return rows


def settings_in_order() -> list[str]:
    """The names of the settings: the loop's own first, then those that a consumer may have of its own."""
    own = [name for name in Settings.model_fields if name in NAMES.settings and name not in NAMES.consumer]
    return [*own, *HandlerSettings.model_fields]


def describe_field(name: str) -> str:
    """What the setting is, in one line."""
    return " ".join((Settings.model_fields[name].description or "").split())


def json_schema() -> dict[str, Any]:
    """The JSON schema of the settings file."""
    schema = Settings.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "streamloop settings"
    for model in (schema, *schema["$defs"].values()):
        for each in model["properties"].values():
            _allow_none_word(each)
    # What a consumer does not set comes from the loop: a default there would say otherwise.
    for each in schema["$defs"]["ConsumerOverrides"]["properties"].values():
        each.pop("default", None)
    return schema


def _allow_none_word(property_schema: dict[str, Any]) -> None:
    """Where no value is one, the word stands for it, as in the environment."""
    choices = property_schema.get("anyOf", [])
    if {"type": "null"} in choices and {"type": "string"} not in choices:
        choices.append({"const": "none"})


def _row(shown: str, name: str, value: object, origin: str) -> Row:
    if value is not None and (isinstance(value, SecretStr) or is_secret((name,))):
        return Row(shown, MASK, MASK, origin)
    plain: Any = (
        dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
    )
    return Row(shown, plain, show(name, value), origin)


def show(name: str, value: Any) -> str:
    """A value of the setting ``name`` as people write it."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case tuple():
            return ", ".join(show(name, each) for each in value)
        case Mapping():
            return ", ".join(f"{old}={new}" for old, new in value.items())
        case int() | float() if name in DURATIONS:
            return show_duration(value)
        case int() if name in SIZES:
            return show_size(value)
        case float():
            return f"{value:g}"
        case _:
            return str(value)
