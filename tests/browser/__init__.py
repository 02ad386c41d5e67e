"""A headless Chromium for tests of the console: Debian's browser, driven by Playwright.

What calls it: the fixtures here, which tests/conftest.py loads. `python -m tests.browser install` installs
the browser where it is missing.
"""
