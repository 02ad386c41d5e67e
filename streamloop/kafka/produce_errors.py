"""What the error of a produced record means: a verdict on the record, a block on its topic, or a broken
Producer.

One explicit table. What is not in it blocks: an error that nobody here knows is never taken for a verdict on
a record, so that it can't lose one. Must never do I/O nor keep state. Called by the publisher for each
delivery report that failed and for each exception of produce().
"""

from __future__ import annotations

import enum

__all__ = [
    "FATAL",
    "INVALID_ARG",
    "LOCAL_REFUSALS",
    "MEANINGS",
    "MSG_TIMED_OUT",
    "REMEMBERED",
    "Meaning",
    "meaning_of",
]

FATAL = -150
INVALID_ARG = -186
MSG_TIMED_OUT = -192


class Meaning(enum.Enum):
    """What the publisher concludes from an error code."""

    BATCH_TOO_LARGE = "batch_too_large"
    """The batch was too large. A verdict (TOO_LARGE) only on a record that was sent alone."""
    BATCH_REFUSED = "batch_refused"
    """The broker refused the batch for one of its records. A verdict (REFUSED) only on one that was sent
    alone."""
    TOPIC_BLOCKED = "topic_blocked"
    """Nothing can be written to this topic for now. Tried again for ever."""
    PARTITION_BLOCKED = "partition_blocked"
    """The same, and the cause may be one partition's (its leader, replicas or disk)."""
    PRODUCER_BROKEN = "producer_broken"
    """This Producer will deliver nothing any more. It is replaced; what has no report is sent again."""
    UNSENT = "unsent"
    """The client dropped the record itself. Sent again."""


# Codes above 0 come from the broker, those below from the client.
MEANINGS: dict[int, Meaning] = {
    # --- One record spoils its batch: the broker answers per batch, and the client blames all of it. ---
    10: Meaning.BATCH_TOO_LARGE,  # MSG_SIZE_TOO_LARGE: above the topic's max.message.bytes
    18: Meaning.BATCH_TOO_LARGE,  # RECORD_LIST_TOO_LARGE: above the topic's segment.bytes
    44: Meaning.BATCH_REFUSED,  # POLICY_VIOLATION: a policy of the broker (or of a proxy) refuses the content
    87: Meaning.BATCH_REFUSED,  # INVALID_RECORD: e.g. a null key for a compacted topic
    # --- The topic as a whole. ---
    3: Meaning.TOPIC_BLOCKED,  # UNKNOWN_TOPIC_OR_PART: missing
    17: Meaning.TOPIC_BLOCKED,  # TOPIC_EXCEPTION: a name that the broker does not allow, an internal topic
    21: Meaning.TOPIC_BLOCKED,  # INVALID_REQUIRED_ACKS: our acks setting
    29: Meaning.TOPIC_BLOCKED,  # TOPIC_AUTHORIZATION_FAILED: no Write; later produce() calls raise it at once
    30: Meaning.TOPIC_BLOCKED,  # GROUP_AUTHORIZATION_FAILED
    31: Meaning.TOPIC_BLOCKED,  # CLUSTER_AUTHORIZATION_FAILED: no IdempotentWrite (older brokers)
    32: Meaning.TOPIC_BLOCKED,  # INVALID_TIMESTAMP: records are stamped now, so a clock is wrong
    35: Meaning.TOPIC_BLOCKED,  # UNSUPPORTED_VERSION
    43: Meaning.TOPIC_BLOCKED,  # UNSUPPORTED_FOR_MESSAGE_FORMAT: an old message format has no headers
    58: Meaning.TOPIC_BLOCKED,  # SASL_AUTHENTICATION_FAILED
    76: Meaning.TOPIC_BLOCKED,  # UNSUPPORTED_COMPRESSION_TYPE: our compression.type
    89: Meaning.TOPIC_BLOCKED,  # THROTTLING_QUOTA_EXCEEDED
    -188: Meaning.TOPIC_BLOCKED,  # _UNKNOWN_TOPIC: missing, as the client's metadata says
    -169: Meaning.TOPIC_BLOCKED,  # _AUTHENTICATION
    -181: Meaning.TOPIC_BLOCKED,  # _SSL
    # --- Perhaps one partition of it. ---
    MSG_TIMED_OUT: Meaning.PARTITION_BLOCKED,  # broker gone, no leader, too few replicas, slow: all end here
    -190: Meaning.PARTITION_BLOCKED,  # _UNKNOWN_PARTITION: the topic has fewer than the caller believes
    -195: Meaning.PARTITION_BLOCKED,  # _TRANSPORT: the connection broke, and the retries are spent
    -187: Meaning.PARTITION_BLOCKED,  # _ALL_BROKERS_DOWN
    -185: Meaning.PARTITION_BLOCKED,  # _TIMED_OUT
    2: Meaning.PARTITION_BLOCKED,  # INVALID_MSG: a checksum failed on the way
    5: Meaning.PARTITION_BLOCKED,  # LEADER_NOT_AVAILABLE
    6: Meaning.PARTITION_BLOCKED,  # NOT_LEADER_FOR_PARTITION
    7: Meaning.PARTITION_BLOCKED,  # REQUEST_TIMED_OUT
    8: Meaning.PARTITION_BLOCKED,  # BROKER_NOT_AVAILABLE
    9: Meaning.PARTITION_BLOCKED,  # REPLICA_NOT_AVAILABLE
    13: Meaning.PARTITION_BLOCKED,  # NETWORK_EXCEPTION
    19: Meaning.PARTITION_BLOCKED,  # NOT_ENOUGH_REPLICAS: fewer in sync than min.insync.replicas
    20: Meaning.PARTITION_BLOCKED,  # NOT_ENOUGH_REPLICAS_AFTER_APPEND: written, but not safely
    56: Meaning.PARTITION_BLOCKED,  # KAFKA_STORAGE_ERROR: the disk is full or broken
    57: Meaning.PARTITION_BLOCKED,  # LOG_DIR_NOT_FOUND
    # --- The Producer itself. ---
    FATAL: Meaning.PRODUCER_BROKEN,
    -144: Meaning.PRODUCER_BROKEN,  # _FENCED
    -148: Meaning.PRODUCER_BROKEN,  # _GAPLESS_GUARANTEE
    # --- Dropped by the client before or while it was sent. ---
    -151: Meaning.UNSENT,  # _PURGE_INFLIGHT: may have been written: a duplicate is possible
    -152: Meaning.UNSENT,  # _PURGE_QUEUE
    -197: Meaning.UNSENT,  # _DESTROY
}

REMEMBERED: frozenset[int] = frozenset({3, 29, -188, -190})
"""The client remembers these of a topic, and refuses later records by itself although the topic is there (or
allowed) again, until it asks for the topic's metadata: which it may not do for minutes, unless it is told to.
"""

LOCAL_REFUSALS: frozenset[int] = frozenset(
    {
        INVALID_ARG,  # produce() can't take these arguments
        -199,  # _BAD_MSG
    }
)
"""A verdict (REFUSED) when produce() itself raises them: they are about that one call's arguments."""


def meaning_of(code: int) -> Meaning:
    """What an error code of a delivery report says. An unknown one blocks: tried again, visible, nothing
    lost."""
    return MEANINGS.get(code, Meaning.TOPIC_BLOCKED)
