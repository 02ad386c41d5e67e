"""Which spans are recorded: the head decision without a call where that can be, and failures kept on top.

The head decision is the sampler's of the tracer provider. What a sampler of the SDK would say of most
messages can be known without asking it (``Policy``), which is most of what tracing costs where little is
sampled. ``KeepFailedSampler`` wraps a sampler: a span that is started in a context of ``kept_in`` is recorded
whatever the wrapped one says. Nothing here knows messages. Called by streamloop.telemetry.tracing.
"""

from __future__ import annotations

import random
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult, TraceIdRatioBased

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanKind, TraceState
    from opentelemetry.util.types import Attributes

_KEEP: Final = otel.create_key("streamloop-keep")

LOW_64: Final = TraceIdRatioBased.TRACE_ID_LIMIT
"""The part of a trace id that the ratio samplers compare with their bound."""

PER_SECOND: Final = 10
"""Failed attempts a second that are kept of each fingerprint."""
MOST_FINGERPRINTS: Final = 1_000


def kept_in(context: Context) -> Context:
    """The same context; a span that is started in it is recorded, where the sampler is wrapped."""
    return otel.set_value(_KEEP, True, context)


class KeepFailedSampler(Sampler):
    """Asks ``sampler``, except for spans of attempts that have failed, which streamloop keeps.

    For a program that sets a TracerProvider of its own: ``TracerProvider(sampler=KeepFailedSampler(mine))``.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """What the wrapped sampler says, or that a kept span is recorded."""
        if parent_context is not None and otel.get_value(_KEEP, parent_context):
            parent = trace.get_current_span(parent_context).get_span_context()
            return SamplingResult(
                Decision.RECORD_AND_SAMPLE, attributes, parent.trace_state if parent.is_valid else None
            )
        return self.sampler.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )

    def get_description(self) -> str:
        """The wrapped sampler's, in ours."""
        return f"KeepFailed{{{self.sampler.get_description()}}}"


@dataclass(frozen=True, slots=True)
class Policy:
    """What is known of a sampler without asking it.

    ``parent_decides``: a message whose context is unsampled is not recorded. ``bound``: a trace that begins
    here is recorded if the low 64 bits of its id are below it; None: the sampler has to be asked.
    """

    parent_decides: bool
    bound: int | None


_PARENT_BASED: Final = re.compile(
    r"ParentBased\{root:(.*),remoteParentSampled:AlwaysOnSampler,remoteParentNotSampled:AlwaysOffSampler,"
    r"localParentSampled:AlwaysOnSampler,localParentNotSampled:AlwaysOffSampler\}"
)
_RATIO: Final = re.compile(r"TraceIdRatioBased\{([0-9.eE+-]+)\}")


def policy_of(sampler: Sampler) -> Policy:
    """What the description of one of the SDK's own samplers tells; nothing of any other."""
    if isinstance(sampler, KeepFailedSampler):
        sampler = sampler.sampler
    if not type(sampler).__module__.startswith("opentelemetry.sdk."):
        return Policy(parent_decides=False, bound=None)
    match = _PARENT_BASED.fullmatch(sampler.get_description())
    if match is None:
        return Policy(parent_decides=False, bound=None)
    root = match[1]
    if root == "AlwaysOnSampler":
        return Policy(parent_decides=True, bound=LOW_64 + 1)
    if root == "AlwaysOffSampler":
        return Policy(parent_decides=True, bound=0)
    ratio = _RATIO.fullmatch(root)
    bound = TraceIdRatioBased.get_bound_for_rate(float(ratio[1])) if ratio is not None else None
    return Policy(parent_decides=True, bound=bound)


def samples_everything(sampler: Sampler) -> bool:
    """Whether nothing is left to keep."""
    return sampler.get_description() in ("AlwaysOnSampler", "KeepFailed{AlwaysOnSampler}")


class DrawnIds(RandomIdGenerator):
    """Gives a trace the id that the decision about it was made by. ``draw`` and the next start are one."""

    def __init__(self) -> None:
        self._drawn = threading.local()

    def use(self, trace_id: int) -> None:
        """The next trace that this thread begins has this id."""
        self._drawn.trace_id = trace_id

    def generate_trace_id(self) -> int:
        """The id that was drawn, or a new one."""
        trace_id: int = getattr(self._drawn, "trace_id", 0)
        if trace_id:
            self._drawn.trace_id = 0
            return trace_id
        return super().generate_trace_id()


def draw_trace_id() -> int:
    """A random trace id; not 0, which means none."""
    return random.getrandbits(128) or 1


class Allowance:
    """How many failed attempts of each fingerprint may still be kept in this second."""

    def __init__(self, per_second: int = PER_SECOND) -> None:
        self._per_second = per_second
        self._second = -1
        self._taken: dict[str, int] = {}
        self.kept = 0
        self.left_out = 0
        """Failures that were not kept, as there were too many alike."""

    def take(self, fingerprint: str, now: float) -> bool:
        """Whether this one is kept. ``now``: monotonic seconds."""
        second = int(now)
        if second != self._second:
            self._second = second
            self._taken.clear()
        taken = self._taken.get(fingerprint, 0)
        known = taken or len(self._taken) < MOST_FINGERPRINTS
        if taken >= self._per_second or not known:
            self.left_out += 1
            return False
        self._taken[fingerprint] = taken + 1
        self.kept += 1
        return True
