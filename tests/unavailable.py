"""What becomes of a test that needs what this machine does not have. Called by the fixtures' conftests."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def give_up(mark: str, reason: str) -> NoReturn:
    """Skip the test that is set up, with the reason; with REQUIRE_<MARK>=1 (CI) it fails."""
    required = f"REQUIRE_{mark.upper()}"
    if os.environ.get(required) == "1":
        pytest.fail(f"{required}=1, but {reason}", pytrace=False)
    pytest.skip(reason)
