"""The calculation of a plan: inputs in, figures and settings out. Pure: no clock, no network, no files.

Each figure says its formula and the numbers in it. What depends on other settings (memory, grace period) is
taken from the check of the sums, which every start makes, so that a plan that comes out here passes there.
Called by ``streamloop plan``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from streamloop.plan import explain, rules
from streamloop.plan.figures import ImpossibleError, Plan, Resources
from streamloop.plan.members import plan_members
from streamloop.plan.retries import within
from streamloop.plan.show import show_mib
from streamloop.plan.warnings import warnings_of
from streamloop.settings.model import MIB, Settings
from streamloop.settings.sums import (
    INTERPRETER_BYTES,
    MAX_POLL_INTERVAL_MS,
    RETRY_RETENTION_MARGIN,
    memory_needed,
)
from streamloop.shutdown import longest

if TYPE_CHECKING:
    from streamloop.plan.inputs import Inputs
    from streamloop.plan.members import Members


def calculate(inputs: Inputs) -> Plan:
    """Make a plan. Raises ImpossibleError, a sentence for each limit that is hit."""
    members = plan_members(inputs)
    timeout = _timeout(inputs)
    retries = within(inputs.retry_budget, timeout)
    messages = _messages(members)
    size = _bytes(inputs, messages)
    settings: dict[str, Any] = {
        "concurrency": members.concurrency,
        "ordering": inputs.ordering,
        "timeout": timeout,
        "in_place_attempts": retries.in_place_attempts,
        "retry_topics": retries.retry_topics,
        "high_watermark_messages": messages,
        "high_watermark_bytes": size,
        "drain_timeout": timeout + rules.DRAIN_MARGIN,
        "revoke_wait": min(
            max(rules.REVOKE_WAIT, math.ceil(2 * inputs.handler_p99)), MAX_POLL_INTERVAL_MS // 3000
        ),
    }
    if inputs.retry_budget is not None:
        settings["max_age"] = inputs.retry_budget
    # Also without retry topics: replayed dead letters come through the same Consumer.
    settings["retry_high_watermark_messages"] = max(rules.LEAST_MESSAGES, math.ceil(messages / 4))
    settings["retry_high_watermark_bytes"] = _bytes(inputs, settings["retry_high_watermark_messages"])
    if retries.retry_topics:
        kept = max(retries.retry_topics) + RETRY_RETENTION_MARGIN
        settings["retry_topic_retention"] = max(rules.RETRY_RETENTION, kept)
    model = Settings.model_validate(settings)
    grace = float(math.ceil(longest(model).grace))
    settings["termination_grace"] = grace
    needed = memory_needed(model, second_consumer=True)
    handlers = members.concurrency * inputs.handler_bytes
    memory = math.ceil((needed + handlers) * rules.MEMORY_HEADROOM / rules.MEMORY_STEP) * rules.MEMORY_STEP
    if inputs.memory_limit is not None and memory > inputs.memory_limit:
        raise ImpossibleError(
            f"One process needs {show_mib(memory)}: watermarks {show_mib(size)}, prefetch, one fetch for "
            f"each Consumer, the "
            f"producer's queue, {show_mib(INTERPRETER_BYTES)} for Python and {show_mib(handlers)} for "
            f"{members.concurrency:,} "
            f"running handlers, with a quarter to spare. --memory-limit is {show_mib(inputs.memory_limit)}. "
            f"More replicas "
            f"(--min-replicas) make the buffer of each smaller; smaller messages, a shorter handler time or "
            f"a higher "
            f"limit help too."
        )
    resources = _resources(members, memory)
    figures = [
        *explain.member_figures(inputs, members),
        *explain.buffer_figures(inputs, members, settings),
        *explain.retry_figures(inputs, retries, timeout),
        *explain.time_figures(inputs, settings, model, grace),
        *explain.resource_figures(members, resources, needed, handlers, inputs),
        *explain.outlook(inputs, members),
    ]
    warnings = tuple(warnings_of(inputs, members, retries, messages, timeout))
    return Plan(inputs, members.replicas, tuple(figures), settings, resources, grace, warnings)


# ----------------------------------------------------------------------------------------------------- values


def _timeout(inputs: Inputs) -> float:
    return float(max(rules.LEAST_TIMEOUT, math.ceil(rules.TIMEOUT_FACTOR * inputs.handler_p99)))


def _messages(members: Members) -> int:
    needed = (members.concurrency + members.away.rate * rules.COVER) / rules.LOW
    return max(rules.LEAST_MESSAGES, rounded_up(needed))


def _bytes(inputs: Inputs, messages: int) -> int:
    needed = max(
        messages * inputs.message_bytes * rules.SIZE_SPREAD,
        2 * inputs.largest_message_bytes,
        rules.LEAST_BYTES,
    )
    return math.ceil(needed / MIB) * MIB


def _resources(members: Members, memory: int) -> Resources:
    request = max(0.1, math.ceil(members.normal.cpu * 20) / 20)
    return Resources(request, max(1.0, min(2.0, math.ceil(2 * request * 2) / 2)), memory)


def rounded_up(value: float) -> int:
    """The next whole number of at most two digits and zeros: 1,234 is 1,300."""
    whole = math.ceil(value)
    step: int = 10 ** max(0, len(str(whole)) - 2)
    return math.ceil(whole / step) * step
