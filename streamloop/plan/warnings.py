"""What a plan can't promise, in sentences. Called by the calculation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamloop.plan import rules
from streamloop.plan.inputs import HandlerKind
from streamloop.plan.members import UTILISATION
from streamloop.plan.show import show_number, show_time
from streamloop.settings.units import show_duration

if TYPE_CHECKING:
    from streamloop.plan.inputs import Inputs
    from streamloop.plan.members import Members
    from streamloop.plan.retries import Retries


def warnings_of(
    inputs: Inputs, members: Members, retries: Retries, messages: int, timeout: float
) -> list[str]:
    found = []
    if inputs.cpu_per_message is None and inputs.kind is not HandlerKind.CPU:
        found.append(
            f"The CPU time of a message is not known: {show_time(inputs.cpu)} is what streamloop itself "
            f"takes, and the "
            "handler's own comes on top. Give --cpu-per-message, or --measure a running member."
        )
    if members.away.busy > members.concurrency:
        found.append(
            f"While one of {members.replicas} replicas is away the busiest has {members.away.partitions} "
            f"partitions "
            f"and needs {show_number(members.away.busy)} handlers, but has {members.concurrency}: lag grows "
            f"until it "
            f"is back."
        )
    if members.limit is not None and inputs.rate * inputs.handler_mean > UTILISATION * members.limit:
        found.append(
            f"{inputs.rate * inputs.handler_mean / members.limit:.0%} of what is called "
            f"(--downstream-limit) is busy on "
            f"average: bursts cost lag, and catching up is slow. Above {UTILISATION:.0%} plan for a higher "
            f"limit."
        )
    if inputs.downstream_rate is not None and members.concurrency * members.replicas > (
        inputs.downstream_rate * inputs.handler_mean
    ):
        found.append(
            f"Even one handler in each of {members.replicas} replicas can call "
            f"{show_number(members.replicas / inputs.handler_mean)} times a second when there is a backlog, "
            f"more than "
            f"{show_number(inputs.downstream_rate)}/s: limit the calls in the handler."
        )
    if inputs.rate / inputs.partitions * timeout > rules.GAP_LIMIT:
        found.append(
            f"One message that hangs until its time-out ({show_duration(timeout)}) holds its partition, "
            f"since more "
            f"than gap_limit ({rules.GAP_LIMIT:,}) messages follow it meanwhile "
            f"({show_number(inputs.rate / inputs.partitions)}/s in a partition). More partitions, or a "
            f"shorter p99, "
            f"help."
        )
    failures = tolerable_failures(members, retries, messages)
    if failures < 0.05:
        found.append(
            f"When more than {failures:.1%} of the messages fail and take all their time "
            f"({show_time(retries.in_place_time)} "
            f"in place), they fill the share of the buffer that may wait in back-off (backoff_share, "
            f"{rules.BACKOFF_SHARE:.0%}): the oldest then go to their retry topic early."
        )
    if inputs.retry_budget is not None and retries.attempts == 1:
        found.append(
            f"--retry-budget ({show_time(inputs.retry_budget)}) is shorter than one more attempt "
            f"(up to {show_time(timeout)}): there is no retry at all."
        )
    if members.replicas == 1:
        found.append(
            "With one replica nothing is handled while it is away, at each rollout too."
            + (" The topic has one partition." if inputs.partitions == 1 else "")
        )
    elif inputs.partitions % members.replicas:
        found.append(
            f"{inputs.partitions} partitions do not divide evenly by {members.replicas} replicas: the "
            f"busiest has "
            f"{members.normal.partitions}, others {inputs.partitions // members.replicas}."
        )
    return found


def tolerable_failures(members: Members, retries: Retries, messages: int) -> float:
    """Share of the messages that may fail at a time without retries in place being cut short, 0 to 1."""
    waiting = members.normal.rate * retries.in_place_time
    return 1.0 if waiting <= 0 else min(1.0, rules.BACKOFF_SHARE * messages / waiting)
