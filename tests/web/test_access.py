"""Roles, links, pairings and sessions, with a clock of the test."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sandboxd.web.access import (
    LINK_S,
    METHODS,
    MOST_PAIRINGS,
    PAIRING_S,
    SESSION_S,
    TRIES,
    Door,
    Entry,
    EntryRefused,
    Role,
    why_refused,
)
from sandboxd_client.wire.messages.methods import METHODS as ALL


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("method", "params", "role", "refused"),
    [
        ("session.list", {}, Role.WATCH, False),
        ("permission.subscribe", {}, Role.WATCH, True),
        ("permission.subscribe", {}, Role.ANSWER, False),
        ("sandbox_permission_response", {"scope": "session"}, Role.ANSWER, False),
        ("sandbox_permission_response", {"scope": "always"}, Role.ANSWER, True),
        ("sandbox_permission_response", {"scope": "always"}, Role.ADMINISTER, False),
        ("settings.update", {}, Role.ANSWER, True),
        ("settings.update", {}, Role.ADMINISTER, False),
        ("settings.update", {"changes": [{"act": "add", "key": "sandbox.ignoreViolations"}]}, Role.ADMINISTER, False),
        ("settings.update", {"changes": [{"act": "add", "key": "sandbox.credentials.inject"}]}, Role.ADMINISTER, True),
        ("settings.lint", {}, Role.WATCH, False),
        ("settings.lint", {"files": ["/etc/shadow"]}, Role.ADMINISTER, True),
        *((method, {}, Role.ADMINISTER, True) for method in ("wrap", "shutdown", "policy.close_ports", "no.such")),
    ],
)
def test_what_a_role_may_call(method: str, params: dict[str, object], role: Role, refused: bool) -> None:
    assert bool(why_refused(method, params, role)) is refused


def test_no_method_that_runs_or_ends_the_daemon_is_offered() -> None:
    assert set(METHODS) <= set(ALL)
    kept_back = {
        "wrap",
        "restart",
        "shutdown",
        "session.open",
        "session.update",
        "permission.request",
        "settings.trust",
    }
    assert not kept_back & set(METHODS)


def test_a_link_opens_one_session_for_a_time() -> None:
    clock = Clock()
    door = Door(clock=clock)
    token, late = door.link(Role.ANSWER), door.link(Role.ANSWER)
    entry = door.redeem(token, "x" * 999)
    assert (entry.session.role, len(entry.session.name)) == (Role.ANSWER, 60)
    clock.now += LINK_S + 1
    for used in (token, late, "", "guess"):
        with pytest.raises(EntryRefused):
            door.redeem(used, "again")
    assert len(door.sessions) == 1


def test_a_cookie_opens_nothing_without_the_key() -> None:
    door = Door()
    one, other = (door.redeem(door.link(Role.WATCH), "") for _ in range(2))
    program = door.program("bot", Role.WATCH)
    assert door.session_of(one.secret, one.key) == one.session and door.session_of(program.secret) == program.session
    for secret, key in ((one.secret, ""), (one.secret, other.key), (one.key, one.secret), (program.secret, one.key)):
        assert door.session_of(secret, key) is None


def paired(door: Door) -> Entry:
    """A device that was let in."""
    pairing, secret = door.ask("phone", "192.0.2.9")
    door.approve(pairing.code, Role.ANSWER)
    entry = door.collect(secret)
    assert entry is not None
    return entry


def test_sessions_end_by_time_and_by_hand_and_are_kept_as_hashes() -> None:
    clock, saved = Clock(), [""]
    door = Door("", lambda text: saved.append(text), clock)
    entry, program = paired(door), door.program("bot", Role.WATCH)
    browser = door.redeem(door.link(Role.ANSWER), "a")
    assert not [secret for secret in (entry.secret, entry.key, program.secret) if secret in saved[-1]]
    again = Door(saved[-1], clock=clock)
    assert again.session_of(browser.secret, browser.key) is None, "it ends with the page"
    assert again.session_of(entry.secret, entry.key) == entry.session
    assert (
        door.revoke(browser.session.id)
        and door.revoke(entry.session.id) == (entry.session,)
        and door.session_of(entry.secret, entry.key) is None
    )
    assert Door(saved[-1], clock=clock).sessions == (program.session,)
    clock.now += SESSION_S
    assert door.sessions == () and not door.is_open(program.session)
    assert [Door(text).sessions for text in ("{", "[1]", '[{"id": 1}]', "null")] == [()] * 4


def test_a_device_is_let_in_by_the_code_that_it_shows() -> None:
    clock = Clock()
    door = Door(clock=clock)
    pairing, secret = door.ask("phone", "192.0.2.9")
    assert len(pairing.code) == 6 and door.collect(secret) is None
    with pytest.raises(EntryRefused):
        door.approve("000000" if pairing.code != "000000" else "000001", Role.WATCH)
    door.approve(pairing.code, Role.ANSWER)
    entry = door.collect(secret)
    assert entry is not None and (entry.session.kind, entry.session.role) == ("device", Role.ANSWER)
    with pytest.raises(EntryRefused):
        door.collect(secret)
    late, secret = door.ask("phone", "192.0.2.9")
    clock.now += PAIRING_S
    for refused in (lambda: door.approve(late.code, Role.WATCH), lambda: door.collect(secret)):
        with pytest.raises(EntryRefused):
            refused()


def test_guesses_and_waiting_devices_are_bounded() -> None:
    clock = Clock()
    door = Door(clock=clock)
    good = door.link(Role.WATCH)
    for number in range(TRIES + 5):
        with pytest.raises(EntryRefused, match="too many" if number >= TRIES else "this link"):
            door.redeem("guess", "")
    assert door.redeem(good, "").session, "guesses keep no browser out"
    with pytest.raises(EntryRefused, match="too many"):
        door.ask("phone", "192.0.2.1")
    clock.now += 60
    for number in range(MOST_PAIRINGS):
        door.ask("one", f"192.0.2.{number}")
    assert len(door.pairings) == MOST_PAIRINGS
    with pytest.raises(EntryRefused, match="other devices"):
        door.ask("more", "192.0.2.99")
    door.ask("one again", "192.0.2.1")
