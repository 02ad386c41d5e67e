"""A page of the console that is watched: what runs, what fails and what leaves it is seen.

What calls it: the fixture `pages`. A page that opened a dialog of the browser, logged an error, broke the
content security policy or asked another host fails its test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request

DESKTOP = (1440, 900)
PHONE = (390, 844)
_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


class Watched:
    """One page, and what was seen of it."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.page: Page = context.new_page()
        self.base = url
        self.dialogs: list[str] = []
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.allowed: list[str] = []
        """Parts of error lines that the test expects, such as 'status of 401'."""
        self.page.on("dialog", self._dialog)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.errors.append(f"uncaught: {error}"))
        self.page.on("request", self._request)

    def _dialog(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.base).netloc:
            self.foreign.append(request.url)

    def sign_in(self, who: str, read: str = "", act: str = "") -> None:
        """Through the dialog, as a person does."""
        page = self.page
        page.get_by_role("button", name="Sign in").first.click()
        page.get_by_label("Your name").fill(who)
        if read:
            page.get_by_label("Read token").fill(read)
        if act:
            page.get_by_label("Act token").fill(act)
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        page.get_by_role("dialog").wait_for(state="detached")

    def go(self, view: str) -> None:
        """To another view, by its link."""
        self.page.get_by_role("navigation").get_by_role("link", name=view).click()
        self.page.get_by_role("heading", level=1, name=view).wait_for()

    def move(self, url: str) -> None:
        """To another member's console."""
        self.base = url
        self.page.goto(url)

    def problems(self) -> list[str]:
        """What a page must not do."""
        violations: list[str] = [] if self.page.is_closed() else self.page.evaluate("window.violations || []")
        errors = [each for each in self.errors if not any(part in each for part in self.allowed)]
        return [
            *(f"a dialog: {each}" for each in self.dialogs),
            *(f"against the policy: {each}" for each in violations),
            *(f"asked elsewhere: {each}" for each in self.foreign),
            *errors,
        ]

    def overflow(self) -> list[str]:
        """Elements that are wider than the page, which a phone would scroll sideways for."""
        found: list[str] = self.page.evaluate(
            """() => [...document.querySelectorAll("main *, header *")]
                .filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1
                    && !e.closest(".table, pre, .unseen, .skip, thead"))
                .map((e) => `${e.tagName}.${e.className} ${e.textContent.slice(0, 40)}`)"""
        )
        return found


class Pages:
    """Opens pages, each in a context (cookies) of its own."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self._contexts: list[BrowserContext] = []
        self._watched: list[Watched] = []

    def open(
        self,
        url: str,
        size: tuple[int, int] = DESKTOP,
        *,
        dark: bool = False,
        still: bool = True,
        **more: Any,
    ) -> Watched:
        """A new page at ``url``. ``more``: options of the context."""
        width, height = size
        context = self.browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce" if still else "no-preference",
            has_touch=width < 500,
            timezone_id="UTC",
            **more,
        )
        context.set_default_timeout(20_000)
        context.add_init_script(_WATCH)
        self._contexts.append(context)
        watched = Watched(context, url)
        self._watched.append(watched)
        watched.page.goto(url)
        return watched

    def check(self) -> None:
        """Fail when a page did what it must not do."""
        problems = [problem for each in self._watched for problem in each.problems()]
        if problems:
            pytest.fail("\n".join(problems), pytrace=False)

    def close(self) -> None:
        """Close them all."""
        for each in self._contexts:
            each.close()
