"""How many members, and how many handlers in each: Little's law, the CPU, the partitions and what is called.

Pure. Handlers that run at once = messages a second x seconds a message (Little's law). A member's part is
that of the busiest one, with one member away: during a rollout the others have its partitions. Called by the
calculation of a plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from streamloop.plan.figures import ImpossibleError
from streamloop.plan.inputs import HandlerKind
from streamloop.plan.show import show_number, show_time

if TYPE_CHECKING:
    from streamloop.plan.inputs import Inputs

UTILISATION: Final = 0.8
"""Share of a core, of a partition's time or of what is called that is planned with: the rest is for
bursts."""
SPREAD: Final = 3.0
"""Standard deviations. Messages that come at random keep a number of handlers busy whose deviation is the
square root of its mean; three of them are enough for all but about one moment in a thousand."""
MOST_HANDLERS: Final = {HandlerKind.ASYNC: 1_000, HandlerKind.THREAD: 200, HandlerKind.CPU: 1}
"""Of one member: 1,000 coroutines is what has been measured (README, 'How fast'); threads share one
interpreter lock; of handlers that compute a second one only waits for the first."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one member has to do. ``partitions`` of the group's, ``rate`` messages a second, ``busy``
    handlers at once on average, ``cpu`` cores."""

    partitions: int
    rate: float
    busy: float
    cpu: float

    @property
    def needed(self) -> int:
        """Handlers that chance keeps busy at once, all but one moment in a thousand."""
        return max(1, math.ceil(self.busy + SPREAD * math.sqrt(self.busy)))


@dataclass(frozen=True, slots=True)
class Members:
    """``normal``: the busiest member's load with all there; ``away``: with one of them away. ``least``: the
    replicas that CPU and handlers ask for; ``limit``: what is called bounds the group to so many handlers
    at once."""

    replicas: int
    least: int
    concurrency: int
    normal: Load
    away: Load
    limit: int | None
    wanted: int


def load_of(inputs: Inputs, members: int) -> Load:
    """The load of the busiest of so many members."""
    partitions = math.ceil(inputs.partitions / members)
    rate = inputs.rate * partitions / inputs.partitions
    return Load(partitions, rate, rate * inputs.handler_mean, rate * inputs.cpu)


def plan_members(inputs: Inputs) -> Members:
    """Replicas and concurrency. Raises ImpossibleError with every limit that is hit."""
    problems = [*_partition_order(inputs), *_downstream(inputs)]
    least = next((each for each in range(1, inputs.partitions + 1) if _fits(inputs, each)), None)
    if least is None:
        problems.append(_too_much_for_partitions(inputs))
    if problems or least is None:
        raise ImpossibleError("\n".join(problems))
    limit = downstream_limit(inputs)
    replicas = max(least, min(inputs.min_replicas, inputs.partitions))
    if limit is not None and replicas > limit:
        # Fewer for the sake of what is called, unless the work itself asks for them.
        replicas = max(least, limit)
        if replicas > limit:
            raise ImpossibleError(
                f"{replicas} replicas run at least {replicas} handlers at once, but what they call takes "
                f"{limit} (--downstream-limit). Raise that limit, or lower the CPU time of a message "
                f"({show_time(inputs.cpu)}), so that fewer replicas do."
            )
    normal, away = load_of(inputs, replicas), load_of(inputs, max(1, replicas - 1))
    wanted = max(away.needed, math.ceil(away.rate * inputs.handler_p99))
    most = MOST_HANDLERS[inputs.kind]
    if inputs.ordering == "partition":
        most = min(most, away.partitions)
    concurrency = min(wanted, most)
    if limit is not None:
        concurrency = min(concurrency, limit // replicas)
    if normal.busy > concurrency:
        raise ImpossibleError(
            f"--downstream-limit leaves {concurrency} handlers to each of {replicas} replicas, but the "
            f"busiest has "
            f"{normal.partitions} of {inputs.partitions} partitions and keeps {show_number(normal.busy)} "
            f"busy "
            f"({show_number(normal.rate)}/s x {show_time(inputs.handler_mean)}): its lag would grow for "
            f"ever. Raise the "
            f"limit to "
            f"{replicas * math.ceil(normal.busy / UTILISATION)}, make the handler faster, or let the "
            f"partitions be a "
            f"multiple of the replicas."
        )
    return Members(replicas, least, concurrency, normal, away, limit, wanted)


def downstream_limit(inputs: Inputs) -> int | None:
    """Handlers of the whole group that may run at once, for what they call; None: any number.

    So many that are always busy make handlers / mean calls a second.
    """
    limits = [inputs.downstream_calls] if inputs.downstream_calls is not None else []
    if inputs.downstream_rate is not None:
        limits.append(max(1, math.floor(inputs.downstream_rate * inputs.handler_mean)))
    return min(limits, default=None)


def _fits(inputs: Inputs, replicas: int) -> bool:
    away = load_of(inputs, max(1, replicas - 1))
    if away.cpu > UTILISATION:
        return False
    return inputs.kind is HandlerKind.CPU or away.needed <= MOST_HANDLERS[inputs.kind]


def _partition_order(inputs: Inputs) -> list[str]:
    busy = inputs.rate / inputs.partitions * inputs.handler_mean
    if inputs.ordering != "partition" or busy <= UTILISATION:
        return []
    least = math.ceil(inputs.rate * inputs.handler_mean / UTILISATION)
    return [
        f"With ordering=partition a partition's messages are handled one after the other, and "
        f"{inputs.partitions} "
        f"partitions would have to keep {show_number(inputs.rate * inputs.handler_mean)} handlers busy "
        f"({show_number(inputs.rate)}/s x "
        f"{show_time(inputs.handler_mean)}). Use ordering=key, at least {least} partitions, or a faster "
        f"handler."
    ]


def _downstream(inputs: Inputs) -> list[str]:
    problems = []
    busy = inputs.rate * inputs.handler_mean
    if inputs.downstream_calls is not None and busy > inputs.downstream_calls:
        problems.append(
            f"{show_number(inputs.rate)} messages/s x {show_time(inputs.handler_mean)} keep "
            f"{show_number(busy)} handlers busy, but "
            f"what they "
            f"call takes {inputs.downstream_calls} at once (--downstream-limit): lag would grow for ever. "
            f"Raise the "
            f"limit to {math.ceil(busy / UTILISATION)} or more, or bring the handler's mean below "
            f"{show_time(inputs.downstream_calls / inputs.rate)} (fewer calls a message, batches)."
        )
    if inputs.downstream_rate is not None and inputs.rate > inputs.downstream_rate:
        problems.append(
            f"{show_number(inputs.rate)} messages/s come, but what is called takes "
            f"{show_number(inputs.downstream_rate)}/s "
            f"(--downstream-limit): lag would grow by {show_number(inputs.rate - inputs.downstream_rate)}/s "
            f"for "
            f"ever. Raise "
            f"that limit, or call less often (batches, a cache, fewer messages)."
        )
    return problems


def _too_much_for_partitions(inputs: Inputs) -> str:
    partitions = inputs.partitions
    away = load_of(inputs, max(1, partitions - 1))
    head = (
        f"A partition is read by one member, so {partitions} partitions take at most {partitions} replicas. "
    )
    spare = " (with one replica away)" if partitions > 1 else ""
    # A member with one replica away has two partitions, however many there are.
    most = MOST_HANDLERS[inputs.kind]
    by_cpu = 2 * inputs.rate * inputs.cpu / UTILISATION
    busy_at_most = ((-SPREAD + math.sqrt(SPREAD * SPREAD + 4 * most)) / 2) ** 2
    by_handlers = (
        0.0 if inputs.kind is HandlerKind.CPU else 2 * inputs.rate * inputs.handler_mean / busy_at_most
    )
    least = max(partitions + 1, math.ceil(max(by_cpu, by_handlers)))
    if away.cpu > UTILISATION:
        why = (
            f"Even then the busiest has {away.partitions} of them{spare}: {show_number(away.rate)}/s x "
            f"{show_time(inputs.cpu)} of CPU "
            f"= {show_number(away.cpu)} cores, and one process has one core for Python, of which "
            f"{UTILISATION:g} is "
            f"planned "
            f"with. "
        )
        helps = "less CPU a message"
    else:
        why = (
            f"Even then the busiest has {away.partitions} of them{spare} and needs {away.needed} handlers "
            f"at once; "
            f"{most} is the most that is planned for {inputs.kind.value} handlers. "
        )
        helps = "a faster handler" + (" or async def" if inputs.kind is HandlerKind.THREAD else "")
    return f"{head}{why}It needs about {least} partitions, {helps}, or fewer messages."
