"""Finds the loop that ``module:loop`` names, and says in a sentence why not.

A mistake of the user's is never a traceback; an exception raised inside the user's own module is shown with
the last frames of that module. Called by the commands.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from streamloop.errors import ConfigurationError, StreamLoopError
from streamloop.settings.layers import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamloop.assembly import Assembly
    from streamloop.settings import ConsumerSettings, Loaded

_FRAMES: Final = 5
_SHAPE: Final = "Name the loop as module:loop, for example 'streamloop run app:loop'."


class Result(Protocol):
    """How a run ended. ``reason`` is a sentence or a few words for people."""

    @property
    def exit_code(self) -> int: ...
    @property
    def reason(self) -> str: ...


class Report(Protocol):
    """What ``check`` found. Each problem prints as a sentence."""

    @property
    def ok(self) -> bool: ...
    @property
    def problems(self) -> Sequence[object]: ...


class Loop(Protocol):
    """What the command line needs of a StreamLoop."""

    def configure(self, overrides: Mapping[str, object], *, config: Path | None = None) -> None:
        """Take settings of the command line, by setting name or dotted path, and the settings file."""

    def load_settings(self) -> Loaded:
        """The settings in force: command line, keywords, environment, file and defaults."""

    def consumer_settings(self) -> Sequence[ConsumerSettings]:
        """What is in force for each declared consumer."""

    def run(
        self,
        *,
        max_messages: int | None = None,
        max_runtime: float | None = None,
        until_end: bool = False,
        handle_signals: bool = True,
        ends_process: bool = False,
    ) -> Result:
        """Run until a bound or a signal. ``ends_process``: what is stuck then may be ended by os._exit."""

    def assemble(self) -> Assembly:
        """Everything that a run is made of, checked."""

    def check(self, timeout: float = 10.0) -> Report:
        """Compare settings, topics and permissions with what the broker has; ``timeout`` in seconds."""


def load_loop(target: str) -> Loop:
    """Import ``module:loop``, with the working directory on the path. Raises ConfigurationError."""
    module_name, colon, attribute = target.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        written = module_name.removeprefix("./").removesuffix(".py").strip("/").replace("/", ".")
        raise ConfigurationError(
            f"{target!r} is a file. Name the module: '{written}:{attribute or 'loop'}', from the folder it "
            f"is in."
        )
    if not colon or not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigurationError(f"{target!r} names no loop. {_SHAPE}")
    module = _import(module_name)
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigurationError(_missing(module, attribute)) from None
    if not _is_loop(found):
        raise ConfigurationError(
            f"{target!r} is {_kind(found)}, not a StreamLoop.{_offer(module) or ' ' + _SHAPE}"
        )
    return cast("Loop", found)


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except StreamLoopError as error:
        place = _last_own_frame(error)
        raise ConfigurationError(f"{place}: {error}" if place else str(error)) from None
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"There is no module {error.name!r}, neither in {here} nor among the installed packages. "
                "Start streamloop in the folder that holds it, or install it."
            ) from None
        raise ConfigurationError(_failed(name, error)) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's module raises is told
        raise ConfigurationError(_failed(name, error)) from None


def _failed(name: str, error: BaseException) -> str:
    """The last frames of the user's own code, and a sentence."""
    lines = traceback.TracebackException(type(error), error, error.__traceback__, limit=None)
    own = [frame for frame in lines.stack if not _is_machinery(frame.filename)][-_FRAMES:]
    frames = "".join(traceback.format_list(own))
    what = "".join(lines.format_exception_only()).strip()
    if isinstance(error, SystemExit):
        what = (
            f"it ended the program (SystemExit {error.code!r}); keep such calls below 'if __name__ == "
            f'"__main__"\''
        )
    return f"{frames}The module {name!r} can't be imported: {what}"


def _is_machinery(filename: str) -> bool:
    return (
        filename.startswith("<frozen")
        or Path(filename) == Path(__file__)
        or "importlib" in Path(filename).parts
    )


def _last_own_frame(error: BaseException) -> str:
    """``file:line`` of the user's line that led to an error of ours."""
    package = str(Path(__file__).parents[1])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not _is_machinery(frame.filename) and not frame.filename.startswith(package):
            return f"{os.path.relpath(frame.filename)}:{frame.lineno}"
    return ""


def _missing(module: ModuleType, attribute: str) -> str:
    found = nearest(attribute, _loops(module)) or nearest(
        attribute, [name for name in vars(module) if name[0] != "_"]
    )
    advice = f" Did you mean {module.__name__}:{found}?" if found else _offer(module)
    return f"The module {module.__name__!r} has no {attribute!r}.{advice or ' ' + _SHAPE}"


def _offer(module: ModuleType) -> str:
    loops = _loops(module)
    return f" It has {', '.join(f'{module.__name__}:{name}' for name in loops)}." if loops else ""


def _loops(module: ModuleType) -> list[str]:
    return sorted(name for name, value in vars(module).items() if _is_loop(value))


def _is_loop(value: object) -> bool:
    if isinstance(value, type | ModuleType):
        return False
    return all(
        callable(getattr(value, name, None)) for name in ("configure", "load_settings", "run", "check")
    )


def _kind(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    if callable(value):
        return f"the function {getattr(value, '__qualname__', '?')}"
    return f"a value of type {type(value).__qualname__}"
