"""Where settings come from: the command line, keywords, the environment and a YAML file.

Each reader turns its source into assignments (a path, a value, the place where it was written) and into
sentences about what it does not know. It never judges a value and never repeats one: that is the model's
part, which knows what is a secret. Called by ``streamloop.settings.load``.
"""

from __future__ import annotations

import difflib
import enum
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from pathlib import Path

PREFIX: Final = "STREAMLOOP_"
CONFIG_VARIABLE: Final = "STREAMLOOP_CONFIG"
DEFAULT_FILE: Final = "streamloop.yaml"
SECTIONS: Final = ("common", "consumer", "producer", "admin")

SettingPath = tuple[str, ...]

# Kubernetes gives each pod such variables for each Service; one called streamloop must not stop the program.
_SERVICE_LINK: Final = re.compile(
    r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?$"
)
_DEEPEST: Final = 12


class Layer(enum.IntEnum):
    """The layers, the strongest last."""

    DEFAULT = 0
    YAML = 1
    ENVIRONMENT = 2
    KEYWORD = 3
    COMMAND_LINE = 4


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written. ``where`` is for people: ``environment variable STREAMLOOP_GROUP``."""

    layer: Layer
    where: str

    def __str__(self) -> str:
        return self.where


DEFAULT: Final = Origin(Layer.DEFAULT, "default")


@dataclass(frozen=True, slots=True)
class Assignment:
    """One value for one setting. The value is not in the repr: it may be a secret."""

    path: SettingPath
    value: Any = field(repr=False)
    origin: Origin


@dataclass(frozen=True, slots=True)
class Names:
    """The names there are: of the loop's settings, and of those that one consumer may have of its own."""

    settings: frozenset[str]
    consumer: frozenset[str]


@dataclass(slots=True)
class Source:
    """What one source holds: assignments, and a sentence for each thing in it that is not known."""

    assignments: list[Assignment] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def dotted(path: Iterable[str]) -> str:
    """A path as it is shown and as ``--set`` takes it: ``consumers.charge.timeout``."""
    return ".".join(path)


def option(path: SettingPath) -> str:
    """How a setting is written on the command line."""
    if path == ("topics",):
        return "--topic"
    if len(path) == 1 and path[0] not in ("kafka", "consumers"):
        return "--" + path[0].replace("_", "-")
    return f"--set {dotted(path)}"


def consumer_key(name: str) -> str:
    """One spelling for a consumer's name: an environment variable knows neither case nor punctuation."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower())


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` was probably meant to be."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def from_mapping(
    values: Mapping[str, object],
    names: Names,
    origin: Callable[[SettingPath], Origin],
    spell: Callable[[SettingPath], str] = dotted,
) -> Source:
    """Read nested mappings.

    A key at the top may be a dotted path. ``spell`` writes a path as this source does.
    """
    walk = _Walk(names, origin, spell)
    for key, value in values.items():
        walk.visit(_split(str(key)), value)
    return walk.source


class SetName(str):
    """The name in a ``--set NAME=VALUE``: it is told as it was written, also where it has an option."""

    __slots__ = ()


def from_command_line(values: Mapping[str, object], names: Names) -> Source:
    """Options of the command line, by setting name or dotted path; those of ``--set`` by ``SetName``."""
    source = Source()
    for name, value in values.items():
        spell = _set_option if isinstance(name, SetName) else option
        one = from_mapping({name: value}, names, partial(_typed, spell), spell)
        source.assignments += one.assignments
        source.problems += one.problems
    return source


def _set_option(path: SettingPath) -> str:
    return f"--set {dotted(path)}"


def _typed(spell: Callable[[SettingPath], str], path: SettingPath) -> Origin:
    return Origin(Layer.COMMAND_LINE, f"command line option {spell(path)}")


def from_keywords(values: Mapping[str, object], names: Names) -> Source:
    """Keyword arguments of StreamLoop."""
    return from_mapping(values, names, lambda path: Origin(Layer.KEYWORD, f"keyword {dotted(path)}"))


def from_environment(env: Mapping[str, str], names: Names) -> Source:
    """The variables that begin with ``STREAMLOOP_``, nested with two underscores. An empty one is not set."""
    source = Source()
    for variable, text in env.items():
        upper = variable.upper()
        if not upper.startswith(PREFIX) or upper == CONFIG_VARIABLE or not text.strip():
            continue
        parts = upper[len(PREFIX) :].lower().split("__")
        if parts[0] not in names.settings and _is_service_link(upper, text):
            continue
        origin = Origin(Layer.ENVIRONMENT, f"environment variable {variable}")
        walk = _Walk(names, partial(_always, origin), _variable)
        if parts[0] == "kafka" and len(parts) > 2:
            # A variable's name has no dots: ssl.ca.location is written SSL_CA_LOCATION.
            name = ".".join(parts[2:]).replace("_", ".")
            walk.visit(("kafka", parts[1], "log_level" if name == "log.level" else name), text)
        elif parts[0] in ("kafka", "consumers") and len(parts) < 3 and text.strip().startswith("{"):
            try:
                walk.visit(tuple(parts), json.loads(text))
            except ValueError:
                walk.source.problems.append(f"The value of {origin} is not valid JSON; give a JSON object.")
        else:
            walk.visit(tuple(parts), text)
        source.assignments += walk.source.assignments
        source.problems += walk.source.problems
    return source


def from_yaml(path: Path, names: Names) -> Source:
    """A YAML file. Each value remembers its line; a key given twice is a problem."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        return Source(
            problems=[f"The settings file {path} can't be read: {error.strerror}. Give another path."]
        )
    except UnicodeDecodeError:
        return Source(problems=[f"The settings file {path} is not UTF-8 text. Save it as UTF-8."])
    lines: dict[SettingPath, int] = {}
    problems: list[str] = []
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        _note_lines(node, (), lines, problems, path)
        data = loader.construct_document(node) if node is not None else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        # The parser quotes the text around the mistake, which may be a password: only its own words are kept.
        words = re.split(r"['\"]", error.problem or "it can't be parsed")[0].strip()
        return Source(
            problems=[f"The settings file {path}{place}, is not valid YAML: {words}. Mend that line."]
        )
    except (yaml.YAMLError, ValueError, RecursionError):
        return Source(problems=[f"The settings file {path} is not valid YAML. Check it with a YAML linter."])
    finally:
        loader.dispose()
    if not isinstance(data, dict):
        return Source(
            problems=[f"The settings file {path} must be a mapping of settings, such as 'group: billing'."]
        )

    def origin(setting: SettingPath) -> Origin:
        for length in range(len(setting), 0, -1):
            if setting[:length] in lines:
                return Origin(Layer.YAML, f"{path}:{lines[setting[:length]]}")
        return Origin(Layer.YAML, str(path))

    source = from_mapping(data, names, origin)
    source.problems[:0] = problems
    return source


def _split(key: str) -> SettingPath:
    parts = key.split(".")
    if parts[0] == "kafka" and len(parts) > 2:
        return ("kafka", parts[1], dotted(parts[2:]))
    if parts[0] == "consumers" and len(parts) > 3:
        return ("consumers", dotted(parts[1:-1]), parts[-1])
    return tuple(parts)


def _always(origin: Origin, _path: SettingPath) -> Origin:
    return origin


def _variable(path: SettingPath) -> str:
    return PREFIX + "__".join(part.upper().replace(".", "_") for part in path)


def _is_service_link(upper: str, text: str) -> bool:
    return bool(_SERVICE_LINK.search(upper)) or (upper.endswith("_PORT") and "://" in text)


def _note_lines(
    node: yaml.Node | None, path: SettingPath, lines: dict[SettingPath, int], problems: list[str], file: Path
) -> None:
    if not isinstance(node, yaml.MappingNode) or len(path) > _DEEPEST:
        return
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        here = (*path, key.value) if path else _split(key.value)
        line = key.start_mark.line + 1
        if here in lines and key.value != "<<":
            problems.append(
                f"{dotted(here)} is given twice in {file}, in lines {lines[here]} and {line}. Keep one of "
                f"them."
            )
        lines[here] = line
        _note_lines(value, here, lines, problems, file)


class _Walk:
    """Goes down one source; collects what it finds in ``source``."""

    def __init__(
        self, names: Names, origin: Callable[[SettingPath], Origin], spell: Callable[[SettingPath], str]
    ) -> None:
        self.names = names
        self.origin = origin
        self.spell = spell
        self.source = Source()

    def visit(self, path: SettingPath, value: object) -> None:
        match path:
            case _ if not all(path):
                self._unknown(path, [])
            case ("kafka",) | ("kafka", _):
                if len(path) == 2 and path[1] not in SECTIONS:
                    self._unknown(path, [])
                else:
                    self._descend(path, value)
            case ("kafka", section, *rest):
                if section not in SECTIONS:
                    self._unknown(path, [])
                elif isinstance(value, Mapping) and len(path) < _DEEPEST:
                    # ssl: {ca: {location: ..}} is the same as ssl.ca.location.
                    self._descend(path, value)
                else:
                    self._assign(("kafka", section, dotted(rest)), value, path)
            case ("consumers",) | ("consumers", _):
                self._descend(path, value)
            case ("consumers", name, setting):
                if setting in self.names.consumer:
                    self._assign(("consumers", consumer_key(name), setting), value, path)
                else:
                    self._unknown(path, [("consumers", name, each) for each in sorted(self.names.consumer)])
            case (setting,) if setting in self.names.settings:
                self._assign(path, value, path)
            case _:
                self._unknown(path, [(each,) for each in sorted(self.names.settings)])

    def _descend(self, path: SettingPath, value: object) -> None:
        if value is None:
            return
        if not isinstance(value, Mapping):
            inside = "names of consumers" if path == ("consumers",) else "settings"
            if path[0] == "kafka":
                inside = (
                    "the sections common, consumer, producer and admin"
                    if len(path) == 1
                    else "librdkafka properties"
                )
            self.source.problems.append(
                f"{dotted(path)} ({self.origin(path)}) takes no value of its own: it holds {inside}. Write "
                f"those below it."
            )
            return
        for key, below in value.items():
            self.visit((*path, str(key)), below)

    def _assign(self, path: SettingPath, value: object, written: SettingPath) -> None:
        self.source.assignments.append(Assignment(path, value, self.origin(written)))

    def _unknown(self, path: SettingPath, known: list[SettingPath]) -> None:
        spelled = {dotted(each): self.spell(each) for each in known}
        found = nearest(dotted(path), spelled)
        advice = f"did you mean {spelled[found]}?" if found else "'streamloop config' lists the settings."
        if path[0] == "kafka":
            example = self.spell(("kafka", "common", dotted(path[1:])))
            advice = (
                f"librdkafka properties belong below kafka.common, .consumer, .producer or .admin "
                f"({example})."
            )
        origin = self.origin(path)
        subject = f"{dotted(path)} ({origin})" if origin.layer is Layer.YAML else f"The {origin}"
        self.source.problems.append(f"{subject} is not a setting: {advice}")
