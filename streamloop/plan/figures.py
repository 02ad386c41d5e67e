"""What a plan says: figures with the formula each comes from, settings, and what could not be had.

Plain data. Made by the calculation; written by ``render``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamloop.errors import StreamLoopError

if TYPE_CHECKING:
    from streamloop.plan.inputs import Inputs


class ImpossibleError(StreamLoopError):
    """The work does not fit into its limits. A sentence for each limit that is hit, with what would help."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. ``value``: seconds, bytes or a count. ``shown``: for people.

    ``formula``: in words and names. ``filled``: the same with the numbers in it. ``note``: why it is so.
    ``setting``: the setting that it is the value of, or ''.
    """

    name: str
    value: float
    shown: str
    formula: str
    filled: str
    note: str = ""
    setting: str = ""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one pod asks for and may use. CPU in cores, memory in bytes."""

    cpu_request: float
    cpu_limit: float
    memory: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan. ``settings``: by name, in the settings' own units. ``warnings``: sentences."""

    inputs: Inputs
    replicas: int
    figures: tuple[Figure, ...]
    settings: dict[str, Any]
    resources: Resources
    grace: float
    warnings: tuple[str, ...] = field(default=())

    def figure(self, name: str) -> Figure:
        """The figure of this name. KeyError when there is none."""
        found = next((each for each in self.figures if each.name == name), None)
        if found is None:
            raise KeyError(name)
        return found
