"""Sessions: a cookie that every member accepts, that nobody can make, and that a new token ends."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from streamloop.ops.console.session import LASTS, LONGEST_COOKIE, Sessions

READ, ACT = SecretStr("a read token of 16+"), SecretStr("an act token of 16+")
BOTH = frozenset({"read", "act"})


class Wall:
    def __init__(self) -> None:
        self.now = 1_780_000_000.0

    def __call__(self) -> float:
        return self.now


def sessions(
    group: str = "billing",
    read: SecretStr | None = READ,
    act: SecretStr | None = ACT,
    *,
    secure: bool = False,
    wall: Wall | None = None,
) -> Sessions:
    return Sessions(group, read, act, secure=secure, wall=wall or Wall())


def pair(cookie: str) -> str:
    return cookie.partition(";")[0]


def test_every_member_accepts_the_cookie_of_another() -> None:
    one, other = sessions(), sessions()
    session = one.open("Ada", BOTH)
    found = other.of(f"theme=dark; {pair(one.cookie(session))}; x=y")
    assert found == session
    assert found is not None
    assert other.csrf(found) == one.csrf(session)


def test_a_token_that_is_replaced_ends_the_sessions_that_it_began() -> None:
    one = sessions()
    reader, actor, both = (one.open("Ada", rights) for rights in ({"read"}, {"act"}, BOTH))  # type: ignore[arg-type]
    cookies = [pair(one.cookie(each)) for each in (reader, actor, both)]
    new_act = sessions(act=SecretStr("another act token!!"))
    assert [new_act.of(each) is not None for each in cookies] == [True, False, False]
    new_read = sessions(read=SecretStr("another read token!"))
    assert [new_read.of(each) is not None for each in cookies] == [False, True, False]
    none_left = sessions(read=None, act=None)
    assert [none_left.of(each) for each in cookies] == [None, None, None]


def test_a_session_ends_after_eight_hours() -> None:
    wall = Wall()
    one = sessions(wall=wall)
    cookie = pair(one.cookie(one.open("Ada", BOTH)))
    wall.now += LASTS - 1
    assert one.of(cookie) is not None
    wall.now += 2
    assert one.of(cookie) is None


def test_a_cookie_of_another_group_is_none_even_with_the_same_tokens() -> None:
    one, other = sessions("billing"), sessions("shipping")
    value = pair(one.cookie(one.open("Ada", BOTH))).partition("=")[2]
    assert one.name != other.name
    assert other.of(f"{other.name}={value}") is None


def test_the_cookie_is_kept_from_scripts_other_sites_and_other_paths() -> None:
    plain = sessions().cookie(sessions().open("Ada", BOTH))
    assert {"HttpOnly", "SameSite=Strict", "Path=/console"} <= set(plain.split("; "))
    assert "Secure" not in plain.split("; ")
    tls = sessions(secure=True)
    cookie = tls.cookie(tls.open("Ada", BOTH))
    assert "Secure" in cookie.split("; ")
    assert cookie.startswith("__Secure-")
    assert "Max-Age=0" in tls.ended()
    assert READ.get_secret_value() not in cookie
    assert ACT.get_secret_value() not in cookie


@pytest.mark.parametrize(
    "change",
    [
        lambda c: [c[0], "Mallory", *c[2:]],
        lambda c: [*c[:2], ["act", "read"], *c[3:]],
        lambda c: [*c[:3], c[3] + 10**6, c[4]],
        lambda c: [*c[:4], "0" * 32],
    ],
)
def test_nobody_can_change_what_a_cookie_says(change: object) -> None:
    one = sessions()
    cookie = pair(one.cookie(one.open("Ada", frozenset({"read"}))))
    name, _, value = cookie.partition("=")
    payload, _, signature = value.partition(".")
    content = json.loads(base64.urlsafe_b64decode(payload + "=="))
    changed = change(content)  # type: ignore[operator]
    assert changed != content
    written = base64.urlsafe_b64encode(json.dumps(changed, separators=(",", ":")).encode()).rstrip(b"=")
    assert one.of(f"{name}={written.decode()}.{signature}") is None
    assert one.of(cookie) is not None


@given(st.text(max_size=2 * LONGEST_COOKIE))
def test_no_cookie_header_raises(text: str) -> None:
    one = sessions()
    assert one.of(text) is None
    assert one.of(f"{one.name}={text}") is None


@given(st.recursive(st.none() | st.integers() | st.text(max_size=8), lambda x: st.lists(x, max_size=6)))
def test_no_content_of_a_cookie_raises(content: object) -> None:
    one = sessions()
    written = base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()
    assert one.of(f"{one.name}={written}.{written}") is None


def test_csrf_values_belong_to_one_session() -> None:
    one = sessions()
    assert one.csrf(one.open("Ada", BOTH)) != one.csrf(one.open("Ada", BOTH))
