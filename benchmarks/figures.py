"""The line of JSON that every rival prints and the driver reads. It measures nothing itself."""

import json
import sys
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a run went. seconds: from the first message handled to the last."""

    messages: int
    seconds: float

    @property
    def messages_per_second(self) -> int:
        return round(self.messages / self.seconds)


def print_rate(rate: Rate) -> None:
    """Print the rate as the last line of a rival's output."""
    print(json.dumps({**asdict(rate), "messages_per_second": rate.messages_per_second}))
    sys.stdout.flush()
