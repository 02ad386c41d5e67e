"""Each figure of a plan with its formula and the numbers in it. Computes nothing new; called by the
calculation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from streamloop import shutdown
from streamloop.plan import rules
from streamloop.plan.figures import Figure
from streamloop.plan.inputs import HandlerKind
from streamloop.plan.members import SPREAD, UTILISATION
from streamloop.plan.retries import LADDER
from streamloop.plan.show import show_bytes, show_mib, show_number, show_time
from streamloop.settings.sums import MAX_POLL_INTERVAL_MS
from streamloop.settings.units import show_duration, show_size

if TYPE_CHECKING:
    from streamloop.plan.figures import Resources
    from streamloop.plan.inputs import Inputs
    from streamloop.plan.members import Members
    from streamloop.plan.retries import Retries
    from streamloop.settings.model import Settings


def member_figures(inputs: Inputs, members: Members) -> list[Figure]:
    away, normal = members.away, members.normal
    partitions = f"{away.partitions} of {inputs.partitions} partitions"
    bound = {
        "CPU and handlers": members.least,
        "--min-replicas": min(inputs.min_replicas, inputs.partitions),
    }
    bounds = ", ".join(f"{name} {value}" for name, value in bound.items())
    figures = [
        Figure(
            "handlers busy",
            inputs.rate * inputs.handler_mean,
            f"{show_number(inputs.rate * inputs.handler_mean)} in all",
            "rate x handler mean (Little's law)",
            f"{show_number(inputs.rate)}/s x {show_time(inputs.handler_mean)}",
        ),
        Figure(
            "replicas",
            members.replicas,
            f"{members.replicas}",
            f"fewest for which the busiest, with one away, needs at most {UTILISATION:g} cores; at least "
            "--min-replicas; at most one a partition",
            f"max({bounds}) <= {inputs.partitions} partitions; busiest with one away: {partitions} = "
            f"{show_number(away.rate)}/s x {show_time(inputs.cpu)} CPU = {away.cpu:.2g} cores",
            "A rollout takes one member away at a time, and its partitions go to the others.",
        ),
    ]
    parts = [
        f"busy = {show_number(away.rate)}/s x {show_time(inputs.handler_mean)} = {show_number(away.busy)}",
        f"max({away.needed}, {show_number(away.rate)}/s x {show_time(inputs.handler_p99)} = "
        f"{show_number(away.rate * inputs.handler_p99)}) "
        f"= {members.wanted:,}",
    ]
    note = "The second term keeps up while every message takes as long as only 1 in 100 does now."
    if members.concurrency < members.wanted:
        if members.limit is not None and members.limit // members.replicas == members.concurrency:
            parts.append(
                f"at most {members.limit:,} at once / {members.replicas} replicas = {members.concurrency:,}"
            )
            note = "What is called is the limit (--downstream-limit): slow moments cost lag."
        elif inputs.kind is HandlerKind.CPU:
            parts.append("1: it computes")
            note = "A second handler that computes would only wait for the first: replicas are what helps."
        elif inputs.ordering == "partition" and away.partitions == members.concurrency:
            parts.append(f"at most one a partition: {members.concurrency:,}")
            note = "ordering=partition: one handler a partition."
        else:
            parts.append(f"at most {members.concurrency:,} in a process")
            note = f"{members.concurrency:,} is the most that is planned for {inputs.kind.value} handlers."
    figures.append(
        Figure(
            "concurrency",
            members.concurrency,
            f"{members.concurrency:,} a replica",
            f"max(busy + {SPREAD:g} x sqrt(busy), messages a second x p99), of the busiest with one away",
            "; ".join(parts),
            note,
            "concurrency",
        )
    )
    if members.limit is not None:
        figures.append(
            Figure(
                "calls at once",
                members.concurrency * members.replicas,
                f"at most {members.concurrency * members.replicas:,}",
                "concurrency x replicas",
                f"{members.concurrency:,} x {members.replicas} <= {members.limit:,}"
                + (
                    f" (= {show_number(inputs.downstream_rate)}/s x {show_time(inputs.handler_mean)})"
                    if inputs.downstream_rate is not None and members.limit != inputs.downstream_calls
                    else ""
                ),
                f"{normal.busy * members.replicas / members.limit:.0%} of it in normal times.",
            )
        )
    return figures


def buffer_figures(inputs: Inputs, members: Members, settings: dict[str, Any]) -> list[Figure]:
    messages, size = settings["high_watermark_messages"], settings["high_watermark_bytes"]
    empties = messages * inputs.handler_mean / members.concurrency
    figures = [
        Figure(
            "high watermark, messages",
            messages,
            f"{messages:,}",
            f"(concurrency + messages a second x {rules.COVER:g} s) / low watermark, rounded up; at least "
            f"{rules.LEAST_MESSAGES}",
            f"({members.concurrency:,} + {show_number(members.away.rate)}/s x {rules.COVER:g} s) / "
            f"{rules.LOW:g}",
            f"At the low watermark each handler still has a message, and {rules.COVER:g} s to fetch more. A "
            f"full buffer is "
            f"worked off in {show_time(empties)}; a crash repeats "
            f"what is in it, and what was acknowledged since the last commit.",
            "high_watermark_messages",
        ),
        Figure(
            "high watermark, bytes",
            size,
            show_size(size),
            f"max(messages x mean size x {rules.SIZE_SPREAD}, 2 x largest message, "
            f"{show_size(rules.LEAST_BYTES)}), in whole MiB",
            f"max({messages:,} x {show_bytes(inputs.message_bytes)} x {rules.SIZE_SPREAD}, "
            f"2 x {show_bytes(inputs.largest_message_bytes)}, {show_size(rules.LEAST_BYTES)})",
            setting="high_watermark_bytes",
        ),
    ]
    retry, retry_size = settings["retry_high_watermark_messages"], settings["retry_high_watermark_bytes"]
    figures.append(
        Figure(
            "high watermark, retries",
            retry,
            f"{retry:,} and {show_size(retry_size)}",
            f"a quarter of the above; at least {rules.LEAST_MESSAGES}",
            f"max({messages:,} / 4, {rules.LEAST_MESSAGES})",
            "The retry and replay topics have a buffer of their own, beside the other.",
            "retry_high_watermark_messages",
        )
    )
    return figures


def retry_figures(inputs: Inputs, retries: Retries, timeout: float) -> list[Figure]:
    topics = ", ".join(show_duration(each) for each in retries.retry_topics) or "none"
    budget = inputs.retry_budget
    waits = f"waits in place {show_time(retries.in_place_time - (retries.in_place_attempts - 1) * timeout)}"
    chosen = (
        "the default plan"
        if budget is None
        else f"as many of {', '.join(show_duration(each) for each in LADDER)} as end within the budget"
    )
    return [
        Figure(
            "retries in place",
            retries.in_place_attempts,
            f"{retries.in_place_attempts} attempts",
            "the default, or as many as end within the budget",
            f"{waits} + {retries.in_place_attempts - 1} x time-out {show_time(timeout)} = "
            f"{show_time(retries.in_place_time)}",
            "They hold their key, so that order is kept.",
            "in_place_attempts",
        ),
        Figure(
            "retry topics",
            len(retries.retry_topics),
            topics,
            chosen,
            f"{retries.attempts} attempts in all",
            "Each delay is a topic of its own, with one attempt a delivery.",
            "retry_topics",
        ),
        Figure(
            "time until dead letter",
            retries.total,
            show_time(retries.total),
            "in place + each delay + a time-out for each attempt",
            f"{show_time(retries.in_place_time)}"
            + "".join(f" + {show_duration(each)}" for each in retries.retry_topics)
            + f" + {len(retries.retry_topics)} x {show_time(timeout)}"
            + ("" if budget is None else f" <= budget {show_time(budget)}"),
            "At the longest, from the first failure, when the retry topics' readers keep up."
            + ("" if budget is None else " max_age is the budget: a failure after it is a dead letter."),
        ),
    ]


def time_figures(inputs: Inputs, settings: dict[str, Any], model: Settings, grace: float) -> list[Figure]:
    timeout = settings["timeout"]
    ends = (
        f"max({show_duration(model.drain_timeout)} + {shutdown.LEAVE:g} s to leave, startup_timeout "
        f"{show_duration(model.startup_timeout)}) + shutdown_timeout "
        f"{show_duration(model.shutdown_timeout)} + "
        f"trace_flush_timeout {show_duration(model.trace_flush_timeout)} + "
        f"{shutdown.END + shutdown.MARGIN:g} s for the control topic, metrics, listeners, logs and a margin"
    )
    return [
        Figure(
            "time-out",
            timeout,
            show_duration(timeout),
            f"max({rules.LEAST_TIMEOUT:g} s, {rules.TIMEOUT_FACTOR} x p99), in whole seconds",
            f"max({rules.LEAST_TIMEOUT:g} s, {rules.TIMEOUT_FACTOR} x {show_time(inputs.handler_p99)})",
            "A handler that takes longer has hung: it is asked to stop, and the attempt has failed.",
            "timeout",
        ),
        Figure(
            "drain",
            settings["drain_timeout"],
            show_duration(settings["drain_timeout"]),
            f"time-out + {rules.DRAIN_MARGIN:g} s",
            f"{show_duration(timeout)} + {rules.DRAIN_MARGIN:g} s",
            "No handler is cut off at a shutdown.",
            "drain_timeout",
        ),
        Figure(
            "revoke wait",
            settings["revoke_wait"],
            show_duration(settings["revoke_wait"]),
            "max(default, 2 x p99); at most a third of max.poll.interval.ms",
            f"max({show_duration(rules.REVOKE_WAIT)}, 2 x {show_time(inputs.handler_p99)}) <= "
            f"{show_duration(MAX_POLL_INTERVAL_MS / 3000)}",
            "Handlers of a partition that moves get this long to finish.",
            "revoke_wait",
        ),
        Figure(
            "grace period",
            grace,
            show_duration(grace),
            "the bounds of every step after SIGTERM, in whole seconds",
            ends,
            "terminationGracePeriodSeconds: SIGKILL never comes before the member has left.",
            "termination_grace",
        ),
    ]


def resource_figures(
    members: Members, resources: Resources, needed: int, handlers: int, inputs: Inputs
) -> list[Figure]:
    return [
        Figure(
            "memory",
            resources.memory,
            show_size(resources.memory),
            "(watermarks + prefetch and one fetch for each Consumer + producer's queue + Python + "
            "concurrency x "
            f"handler memory) x {rules.MEMORY_HEADROOM:g}, in steps of {show_size(rules.MEMORY_STEP)}",
            f"({show_mib(needed)} + {members.concurrency:,} x {show_bytes(inputs.handler_bytes)} = "
            f"{show_mib(needed + handlers)}) x "
            f"{rules.MEMORY_HEADROOM:g}",
            "Request and limit are the same, so that a node never runs out of what it has promised.",
        ),
        Figure(
            "CPU",
            resources.cpu_request,
            f"{resources.cpu_request:g} cores, limit {resources.cpu_limit:g}",
            "messages a second of the busiest x CPU a message, in steps of 0.05; limit: twice that, 1 to 2",
            f"{show_number(members.normal.rate)}/s x {show_time(inputs.cpu)} = {members.normal.cpu:.2g}",
            "Python uses one core; librdkafka's threads use some of a second one.",
        ),
    ]


def outlook(inputs: Inputs, members: Members) -> list[Figure]:
    capacity = _capacity(inputs, members)
    load = members.normal.rate
    spare = capacity - load
    seconds = load * rules.STANDSTILL / spare if spare > 0 else math.inf
    by_handlers = members.concurrency / inputs.handler_mean
    return [
        Figure(
            "catching up",
            seconds,
            show_time(seconds) if math.isfinite(seconds) else "never",
            f"after {show_duration(rules.STANDSTILL)} without handling: backlog / (what a member can do - "
            f"what comes)",
            f"{show_number(load)}/s x {show_duration(rules.STANDSTILL)} / (min({members.concurrency:,} / "
            f"{show_time(inputs.handler_mean)} = {show_number(by_handlers)}/s, 1 core / "
            f"{show_time(inputs.cpu)} = "
            f"{show_number(1 / inputs.cpu)}/s) - {show_number(load)}/s)",
            "With all members there, and nothing else in the way.",
        )
    ]


def _capacity(inputs: Inputs, members: Members) -> float:
    return min(members.concurrency / inputs.handler_mean, 1 / inputs.cpu)
