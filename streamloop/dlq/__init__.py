"""Dead letters: found, read, grouped, shown and exported; never changed from here.

Reading joins no group, commits nothing, creates no topic and needs no transactional producer.
"""

from streamloop.dlq.filters import ALL, Filter
from streamloop.dlq.letter import DeadLetter

__all__ = ["ALL", "DeadLetter", "Filter"]
