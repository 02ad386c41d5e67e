"""The page's files: nothing inline, nothing from elsewhere, and no way from a text to markup."""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.running_loop import RunningLoop

FILES = {
    file.name: file.read_text(encoding="utf-8")
    for file in (resources.files("streamloop.ops.console") / "static").iterdir()
}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}


def test_the_page_has_no_inline_script_style_or_handler() -> None:
    page = FILES["index.html"]
    assert re.findall(r"<script(?![^>]*\ssrc=)", page) == []
    assert "<style" not in page
    assert re.findall(r"\sstyle=|\son\w+=", page) == []


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_comes_from_elsewhere(name: str) -> None:
    addresses = re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}", FILES[name])
    assert [each for each in addresses if "www.w3.org" not in each] == []


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_no_text_becomes_markup_or_code(name: str) -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|srcdoc"
    )
    assert re.findall(forbidden, SCRIPTS[name]) == []


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_what_a_script_imports_is_there(name: str) -> None:
    for module, names in re.findall(
        r'^import \{?\s*(.*?)\s*\}? from "\./(.*?)";', SCRIPTS[name], re.MULTILINE
    ):
        assert names in SCRIPTS
        for each in module.split(","):
            if "*" not in each:
                assert re.search(
                    rf"export (?:async )?(?:function|const|class) {each.strip()}\b", SCRIPTS[names]
                )


def test_no_token_is_kept_or_put_into_an_address() -> None:
    for text in SCRIPTS.values():
        assert "localStorage" not in text
        assert "sessionStorage" not in text
        assert "document.cookie" not in text
        assert not re.search(r"[?&]\w*token", text)


def test_the_page_and_all_its_files_are_served(running: RunningLoop) -> None:
    page = running.control("/console/")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for path in re.findall(r'(?:src|href)="(static/[^"]+)"', page.body.decode()):
        assert running.control(f"/console/{path}").status == 200
    for name in SCRIPTS:
        answer = running.control(f"/console/static/{name}")
        assert answer.headers["content-type"] == "text/javascript; charset=utf-8"


@pytest.mark.parametrize(
    "path", ["/console/static/../api.py", "/console/static/%2e%2e/session.py", "/console/static/"]
)
def test_no_other_file_is_served(running: RunningLoop, path: str) -> None:
    assert running.control(path).status == 404


def test_a_person_is_led_to_the_page_and_a_program_to_the_paths(running: RunningLoop) -> None:
    person = running.control("/", headers={"Accept": "text/html"})
    assert person.body.startswith(b"<!doctype html>")  # after the redirect
    assert "/status" in running.control("/").json["paths"]
