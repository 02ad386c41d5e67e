"""Whether the group's coordinator answers: what a stall and a leave have to know before they go on.

What it is for: requests to the coordinator share one connection, and it reads none while an earlier one waits
for its answer. So an answer says that nothing that was sent before is under way any more. It must never wait
without a bound. Called by the poller's thread alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka import KafkaException

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PROOFS", "answers", "await_join"]

PROOFS: Final = 2
"""Answers that are asked for: the first request may have been sent before what it is to prove."""
PROOF_TIMEOUT: Final = 0.5
"""Seconds that the coordinator gets for each answer."""
JOIN_WAIT: Final = 5.0
"""Seconds that a rebalance under way gets before a classic group is left: the other members hear of it with
their next heartbeat, within 3 s by default."""

_NO_ANSWER: Final = frozenset({14, 15, 16})
"""Coordinator loading, not available, another one: what it says is not about this member."""


def answers(consumer: Any, topic: str, partition: int) -> bool:
    """Whether the coordinator answers a question about this partition now, whatever it says."""
    asked = confluent_kafka.TopicPartition(topic, partition)
    try:
        consumer.committed([asked], timeout=PROOF_TIMEOUT)
    except KafkaException as error:
        code = error.args[0].code()
        return code >= 0 and code not in _NO_ANSWER
    return True


def await_join(consumer: Any, topic: str, clock: Callable[[], float], serve: Callable[[], None]) -> None:
    """Before leaving a classic group: until no JoinGroup request is under way, or JOIN_WAIT is over.

    The broker answers that request once every member has joined, and reads nothing else from its connection
    meanwhile: not the last commit, and not the LeaveGroup. The Consumer would give up and be gone without
    having left, and every later rebalance of the group would wait for its session to end. ``serve`` runs the
    callbacks: what a join brought is taken on, and may be answered with another JoinGroup.
    """
    until = clock() + JOIN_WAIT
    in_a_row = 0
    while in_a_row < PROOFS and clock() < until:
        in_a_row = in_a_row + 1 if answers(consumer, topic, 0) else 0
        serve()
