"""The group acts as one: a compacted topic tells how its members are, and what operators hold.

For a service that is no member: ``GroupControl`` reads the topic, pauses and resumes. A member's own run
follows it by itself (``loop.group_view()``).
"""

from streamloop.control.outside import GroupControl
from streamloop.control.records import MemberRecord, OperatorHold, Scope, TopicTotals
from streamloop.control.view import GroupPartition, GroupView, MemberView
from streamloop.control.writes import ControlError

__all__ = [
    "ControlError",
    "GroupControl",
    "GroupPartition",
    "GroupView",
    "MemberRecord",
    "MemberView",
    "OperatorHold",
    "Scope",
    "TopicTotals",
]
