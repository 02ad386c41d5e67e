"""What a run is made of: the declarations of a loop with the settings in force, and when it ends by itself.

Plain data. Made by StreamLoop; taken by everything that checks, builds or runs a loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamloop.declare import HandlerBuild
    from streamloop.settings import Loaded, Settings

Hook = Callable[[], Awaitable[None]]
"""A function of on_startup or on_shutdown."""


@dataclass(slots=True)
class Assembly:
    """A loop's declarations with the settings that are in force."""

    loaded: Loaded
    consumers: list[HandlerBuild]
    on_startup: list[Hook]
    on_shutdown: list[Hook]

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.loaded.settings


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a run ends by itself."""

    max_messages: int | None = None
    max_runtime: float | None = None
    until_end: bool = False
