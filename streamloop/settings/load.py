"""Puts the layers together: every setting with its value and the place it came from, or one clear error.

Precedence: command line, keywords, environment, YAML file, defaults. Everything that is wrong is reported at
once, a sentence each, naming the setting, the value (never a secret's), where it was written and what to do.
Called by StreamLoop before it starts anything, and by the command line.
"""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from streamloop.errors import ConfigurationError
from streamloop.settings import layers
from streamloop.settings.layers import Assignment, Layer, Names, Origin, SettingPath, Source, dotted
from streamloop.settings.model import (
    ConsumerSettings,
    HandlerSettings,
    Settings,
    is_secret,
    none_word,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic_core import ErrorDetails

NAMES: Final = Names(
    settings=frozenset(Settings.model_fields) - {"kafka", "consumers"},
    consumer=frozenset(HandlerSettings.model_fields),
)
_FROM_FILE: Final = ("sasl_password", "ssl_key_password", "control_read_token", "control_act_token")
_LONGEST_SECRET: Final = 64 * 1024

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings in force. ``config``: the YAML file that was read, or None."""

    settings: Settings
    config: Path | None

    def origin(self, path: SettingPath | str) -> str:
        """Where a setting's value came from, for people; ``default`` when nothing gave one."""
        return str(self.settings.origin(path))

    def require(self, *names: str) -> None:
        """Raise ConfigurationError for those of these settings that have no value."""
        problems = [
            f"{name} is not set. Give it as {layers.option((name,))}, as {layers.PREFIX}{name.upper()}, "
            f"or as '{name}:' in {self.config or layers.DEFAULT_FILE}."
            for name in names
            if not getattr(self.settings, name)
        ]
        _raise(problems)

    def require_consumers(self, declared: Iterable[str]) -> None:
        """Raise ConfigurationError for values under ``consumers`` whose name no declared consumer has."""
        known = {layers.consumer_key(name): name for name in declared}
        problems: dict[str, str] = {}
        for path, assignment in self.settings.assignments().items():
            if path[0] == "consumers" and len(path) > 1 and path[1] not in known:
                found = layers.nearest(path[1], known)
                names = ", ".join(sorted(known.values())) or "none"
                advice = f"did you mean {known[found]}?" if found else f"this loop's consumers: {names}."
                problems.setdefault(
                    path[1],
                    f"{dotted(path[:2])} ({assignment.origin}) names no consumer of this loop: {advice}",
                )
        _raise(list(problems.values()))


def load(
    keywords: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    yaml_path: Path | str | None = None,
    *,
    command_line: Mapping[str, object] | None = None,
) -> Loaded:
    """Read the settings of all layers.

    ``keywords`` and ``command_line``: by setting name, by dotted path, or nested. ``env``: os.environ by
    default. ``yaml_path``: the settings file; else the one that STREAMLOOP_CONFIG names; else streamloop.yaml
    in the working directory, if there is one. Raises ConfigurationError.
    """
    environment = os.environ if env is None else env
    config = _config_file(yaml_path, environment)
    source = Source()
    for each in (
        layers.from_yaml(config, NAMES) if config is not None else Source(),
        layers.from_environment(environment, NAMES),
        layers.from_keywords(keywords or {}, NAMES),
        layers.from_command_line(command_line or {}, NAMES),
    ):
        source.assignments += each.assignments
        source.problems += each.problems
    problems = source.problems
    # The readers come weakest first, so that a later assignment is the stronger one.
    assigned = {assignment.path: assignment for assignment in source.assignments}
    _read_secret_files(assigned, problems)
    nested: dict[str, Any] = {}
    for path, assignment in assigned.items():
        here = nested
        for part in path[:-1]:
            here = here.setdefault(part, {})
        here[path[-1]] = assignment.value
    settings, wrong = _validated(Settings, nested, assigned)
    problems += wrong
    _raise(problems)
    assert settings is not None
    settings._assigned = assigned  # noqa: SLF001 - the model is frozen; only its loader knows the origins
    return Loaded(settings, config)


def settle_consumer(settings: Settings, name: str, declared: Mapping[str, object]) -> ConsumerSettings:
    """See ``Settings.for_consumer``."""
    assigned = settings.assignments()
    key = layers.consumer_key(name)
    problems: list[str] = []
    chosen: dict[SettingPath, Assignment] = {}
    for unknown in [each for each in declared if each not in NAMES.consumer]:
        found = layers.nearest(unknown, NAMES.consumer)
        problems.append(
            f"{unknown} (keyword of the consumer {name!r}) is not a setting of a consumer: "
            + (f"did you mean {found}?" if found else f"these are: {', '.join(sorted(NAMES.consumer))}.")
        )
    for setting in sorted(NAMES.consumer):
        own = assigned.get(("consumers", key, setting))
        shared = assigned.get((setting,))
        here = (
            Assignment(
                (setting,),
                declared[setting],
                Origin(Layer.KEYWORD, f"keyword {setting} of the consumer {name!r}"),
            )
            if setting in declared
            else None
        )
        typed = [each for each in (own, shared) if each and each.origin.layer is Layer.COMMAND_LINE]
        candidates = [*typed, *(each for each in (here, own, shared) if each is not None)]
        if candidates:
            chosen[(setting,)] = candidates[0]
    values: dict[str, Any] = {path[0]: assignment.value for path, assignment in chosen.items()}
    if _is_true(values.get("strict_order")) and "retry_topics" not in values:
        values["retry_topics"] = ()
    consumer, wrong = _validated(
        ConsumerSettings, {**values, "name": name, "group": settings.group}, chosen, f"consumer {name!r}: "
    )
    problems += wrong
    if consumer is not None:
        origins = {path[0]: each.origin for path, each in chosen.items()}
        consumer._origins.update(origins)  # noqa: SLF001 - as above
        problems += _contradictions(consumer)
    _raise(problems)
    assert consumer is not None
    return consumer


def _contradictions(consumer: ConsumerSettings) -> list[str]:
    problems = []
    if consumer.strict_order and consumer.retry_topics:
        problems.append(
            f"consumer {consumer.name!r}: strict_order ({consumer.origin('strict_order')}) does every retry "
            f"in place, so "
            f"it can't be used together with retry topics ({consumer.origin('retry_topics')}). Set its "
            f"retry_topics to "
            "[] or leave strict_order out."
        )
    if consumer.strict_order and consumer.ordering == "none":
        problems.append(
            f"consumer {consumer.name!r}: strict_order ({consumer.origin('strict_order')}) keeps an order "
            f"that "
            f"ordering='none' ({consumer.origin('ordering')}) does not have. Set ordering to key or "
            f"partition, or "
            "leave strict_order out."
        )
    if consumer.backoff_cap < consumer.backoff_base:
        problems.append(
            f"consumer {consumer.name!r}: backoff_cap is {consumer.backoff_cap:g} s "
            f"({consumer.origin('backoff_cap')}) but "
            f"backoff_base is {consumer.backoff_base:g} s ({consumer.origin('backoff_base')}). Make the cap "
            f"at least the "
            "base."
        )
    return problems


def _config_file(yaml_path: Path | str | None, env: Mapping[str, str]) -> Path | None:
    if yaml_path is not None:
        return Path(yaml_path)
    if named := env.get(layers.CONFIG_VARIABLE, "").strip():
        return Path(named)
    default = Path(layers.DEFAULT_FILE)
    return default if default.is_file() else None


def _read_secret_files(assigned: dict[SettingPath, Assignment], problems: list[str]) -> None:
    for name in _FROM_FILE:
        file, given = assigned.get((f"{name}_file",)), assigned.get((name,))
        if file is None or none_word(file.value) is None:
            continue
        if given is not None and given.origin.layer is file.origin.layer:
            problems.append(
                f"{name} ({given.origin}) and {name}_file ({file.origin}) are both set. Keep one of them."
            )
            continue
        if given is not None and given.origin.layer > file.origin.layer:
            continue
        try:
            secret = Path(str(file.value)).read_text(encoding="utf-8")[:_LONGEST_SECRET].rstrip("\r\n")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text, or no path"
            problems.append(
                f"{name}_file is {str(file.value)!r} ({file.origin}), which can't be read: {why}."
            )
            continue
        if not secret:
            problems.append(
                f"{name}_file is {str(file.value)!r} ({file.origin}), which is empty. Put the secret into it."
            )
            continue
        where = Origin(file.origin.layer, f"file {file.value} ({file.origin})")
        assigned[(name,)] = Assignment((name,), secret, where)


def _validated(
    model: type[ModelT],
    values: Mapping[str, Any],
    assigned: Mapping[SettingPath, Assignment],
    prefix: str = "",
) -> tuple[ModelT | None, list[str]]:
    try:
        return model.model_validate(values), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    sentences = [prefix + _sentence(detail, assigned) for detail in details]
    return None, list(dict.fromkeys(sentences))


def _sentence(detail: ErrorDetails, assigned: Mapping[SettingPath, Assignment]) -> str:
    location = tuple(str(part) for part in detail["loc"])
    for length in range(len(location), 0, -1):
        assignment = assigned.get(location[:length])
        if assignment is not None:
            break
    else:
        return f"{dotted(location)}: {_advice(detail)}."
    name = dotted(assignment.path)
    advice = _advice(detail)
    if is_secret(assignment.path):
        return f"{name} ({assignment.origin}) is not valid: {advice}."
    if assignment.value is None:
        return f"{name} ({assignment.origin}) has no value: {advice}, or leave it out."
    value = assignment.value
    shown = str(value) if isinstance(value, dt.date) else repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return f"{name} is {shown} ({assignment.origin}): {advice}."


def _advice(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    match detail["type"]:
        case "value_error":
            return str(context["error"])
        case "literal_error":
            return f"give {context['expected'].replace(chr(39), '')}"
        case "greater_than":
            return f"give more than {context['gt']:g}"
        case "greater_than_equal":
            return f"give {context['ge']:g} or more"
        case "less_than":
            return f"give less than {context['lt']:g}"
        case "less_than_equal":
            return f"give {context['le']:g} or less"
        case "bool_parsing" | "bool_type":
            return "give true or false"
        case "float_parsing" | "float_type":
            return "give a number"
        case "string_too_long":
            return f"give at most {context['max_length']} characters"
        case "string_too_short":
            return "give a text that is not empty"
        case _:
            return detail["msg"].replace("Input should", "it should")


def _is_true(value: object) -> bool:
    return value is True or (
        isinstance(value, str) and value.strip().lower() in ("true", "1", "yes", "on", "t", "y")
    )


def _raise(problems: list[str]) -> None:
    if problems:
        # Without the cause: pydantic's own error holds the values, secrets among them.
        raise ConfigurationError("\n".join(problems)) from None
