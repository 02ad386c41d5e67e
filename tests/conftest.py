"""What all tests have in common.

Hypothesis has no deadline, since a slow machine is no failure. Settings of the package that the developer's
shell exports are taken away, from member processes too; the tests' own switches therefore have names without
that prefix.
"""

import os

from hypothesis import settings

for name in [name for name in os.environ if name.upper().startswith("STREAMLOOP_")]:
    del os.environ[name]

settings.register_profile("streamloop", deadline=None)
settings.load_profile("streamloop")
pytest_plugins = ["tests.browser.fixtures", "tests.tools.fixtures"]
