"""Dead letters: found, read, grouped, shown and exported; brought back once, put away, put back.

Looking joins no group, commits nothing, creates no topic and needs no transactional producer. What writes
(replay, purge, import) goes through one ledger and one transactional id for each group.
"""

from streamloop.dlq.api import DeadLetters, RunStatus
from streamloop.dlq.filters import ALL, Filter, HeaderIs, Places
from streamloop.dlq.groups import Group, Groups
from streamloop.dlq.importing import ImportSummary
from streamloop.dlq.letter import DeadLetter
from streamloop.dlq.plan import Preview, ReplayPlan, ReplaySummary, RunProgress
from streamloop.dlq.purge import PurgeSummary
from streamloop.dlq.reading import ReadError
from streamloop.dlq.runs import RunRecord
from streamloop.dlq.session import InProgressError
from streamloop.dlq.settle import Outcomes
from streamloop.dlq.targets import Edit, Target

__all__ = [
    "ALL",
    "DeadLetter",
    "DeadLetters",
    "Edit",
    "Filter",
    "Group",
    "Groups",
    "HeaderIs",
    "ImportSummary",
    "InProgressError",
    "Outcomes",
    "Places",
    "Preview",
    "PurgeSummary",
    "ReadError",
    "ReplayPlan",
    "ReplaySummary",
    "RunProgress",
    "RunRecord",
    "RunStatus",
    "Target",
]
