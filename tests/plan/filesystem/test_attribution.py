"""Which rule refuses what, and what is not the sandbox's doing at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.plan.filesystem.attribution import Attribution
from sandboxd.plan.filesystem.effective_access import effective_access_at
from sandboxd.plan.filesystem.mounts import Mark, PathEntry
from sandboxd.plan.filesystem.path_table import PathTable
from sandboxd.plan.host_facts import MountAliases, ResolvedPath
from sandboxd.plan.host_queries import list_needs
from sandboxd.plan.plan import make_layout
from sandboxd.policy.decision import Reason
from sandboxd.policy.model import FilePolicy, PathRule, Policy
from sandboxd.policy.paths.path_decisions import decide_path
from sandboxd.settings.origins import Origin, Source
from support.fake_host import FakeHost, place

ORIGIN = Origin(Source.USER, "sandbox.filesystem", "/u.json", 4, 7)


def rule(path: str) -> PathRule:
    return PathRule(path, ORIGIN, text=f"rule {path}")


POLICY = Policy(
    files=FilePolicy(
        allow_write=(rule("/srv/data"), rule("/home/u")),
        deny_write=(rule("/srv/data/fixed"),),
        deny_read=(rule("/home/u/.ssh"), rule("/srv/secret")),
        allow_read=(rule("/srv/secret/open"),),
    )
)
HOST = FakeHost(
    {
        "/srv/data/fixed/": "", "/srv/secret/open/": "", "/home/u/.ssh/id": "", "/home/u/work/.git/config": "",
        "/home/u/.bashrc": "",
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def attribution() -> Attribution:
    where = place()
    return make_layout(POLICY, where, HOST.facts(list_needs(POLICY, where))).attribution


@pytest.mark.parametrize(
    ("path", "write", "reason", "by"),
    [
        ("/etc/hosts", True, Reason.PATH_NOT_WRITABLE, None),
        ("/srv/secret/x/y", False, Reason.PATH_DENIED, "rule /srv/secret"),
        ("/srv/secret/x/y", True, Reason.PATH_DENIED, "rule /srv/secret"),
        ("/srv/secret/open/x", True, Reason.PATH_NOT_WRITABLE, None),
        ("/srv/data/fixed/x", True, Reason.PATH_DENIED, "rule /srv/data/fixed"),
        ("/home/u/.ssh/id", False, Reason.PATH_DENIED, "rule /home/u/.ssh"),
        ("/home/u/work/.git/config", True, Reason.PATH_PROTECTED, None),
        ("/home/u/work/.git/hooks/pre-commit", True, Reason.PATH_PROTECTED, None),
        ("/home/u/.zshrc", True, Reason.PATH_PROTECTED, None),
        ("/run/user/1000/sandboxd/bridge.sock", False, Reason.PATH_DENIED, None),
    ],
)
def test_what_the_sandbox_refuses(
    attribution: Attribution, path: str, write: bool, reason: Reason, by: str | None
) -> None:
    decision = attribution.decide(path, write=write)
    assert not decision.allowed and (decision.reason, decision.rule) == (reason, by)
    assert (decision.origin == ORIGIN) is (by is not None)


@pytest.mark.parametrize(
    ("path", "write"),
    [
        ("/etc/shadow", False), ("/srv/data/x", True), ("/home/u/work/x", True), ("/home/u/x", True),
        ("/srv/secret/open/x", False), ("/tmp/x", True), ("/proc/self/mem", True), ("/dev/null", True),
        ("/dev/shm/x", True), ("/srv/data/fixed/x", False),
    ],
)  # fmt: skip
def test_what_the_host_or_the_program_got_wrong(attribution: Attribution, path: str, write: bool) -> None:
    assert attribution.decide(path, write=write).allowed


_names = st.sampled_from(["srv", "data", "secret", "open", "home", "u", "work", ".git", "hooks", ".ssh", "tmp", "x"])


@given(st.lists(_names, max_size=6).map(lambda names: "/" + "/".join(names)), st.booleans())
def test_it_is_what_explain_says(attribution: Attribution, path: str, write: bool) -> None:
    said = decide_path(effective_access_at(attribution._table, path, ResolvedPath(path)), write=write)
    found = attribution.decide(path, write=write)
    assert (found.behavior, found.reason, found.rule) == (said.behavior, said.reason, said.rule)


def test_what_a_command_asks_for_does_not_fill_the_memory(attribution: Attribution) -> None:
    for number in range(5000):
        attribution.decide(f"/etc/{number}/{number}", write=True)
        attribution.decide("/" + "a/" * number, write=True)
        attribution.decide("x" * number, write=True)
    assert len(attribution._known) <= 2 * len(attribution._table.entries)


def test_what_a_command_could_have_put_there(attribution: Attribution) -> None:
    assert attribution.can_change("/home/u/work/link") and attribution.can_change("/tmp/link")
    assert not attribution.can_change("/srv/link") and not attribution.can_change("/srv/data/fixed/link")
    assert attribution.is_private_socket("/tmp/x.sock") and attribution.is_private_socket("/dev/shm/x")
    assert not attribution.is_private_socket("/home/u/work/x.sock") and not attribution.is_private_socket("/proc/1/x")


def test_what_is_kept_in_its_place(attribution: Attribution) -> None:
    """A rename that ends with EBUSY is explained by what is closed in the directory, absent names last."""
    for path, inside in (
        ("/home/u/work/.git", "/home/u/work/.git/config in it is kept"),
        ("/home/u/.gradle", "/home/u/.gradle/gradle.properties in it stays absent"),
        ("/home/u/work", "/home/u/work/.git/config in it"),
        ("/srv/data", ""),
    ):
        assert attribution.decide(path, write=True).allowed
        kept = attribution.decide_removal(path)
        assert kept.reason is Reason.PATH_KEPT and inside in kept.hint and "outside the sandbox" in kept.hint
    assert attribution.decide_removal("/home/u/work/src").allowed
    assert attribution.decide_removal("/home/u/.ssh/id") == attribution.decide("/home/u/.ssh/id", write=True)


def test_where_a_socket_can_be_put(attribution: Attribution) -> None:
    """Where the command can write, and in its own `/tmp`; what is closed in between stays as it is."""
    can = ["/srv/data/x", "/home/u/x/y", "/home/u/work/s", "/tmp/x", "/dev/shm/x", "/srv/data"]
    cannot = ["/srv/x", "/srv/data/fixed/x", "/home/u/.ssh/agent", "/run/x", "/srv/secret/open/x", "/home/x"]
    assert {path: attribution.can_bring(path) for path in can + cannot} == dict.fromkeys(can, True) | dict.fromkeys(
        cannot, False
    )
    assert set(attribution.writable()) >= {"/srv/data", "/home/u"}
    assert not {"/srv/data/fixed", "/home/u/.ssh", "/tmp", "/", "/home/u/work"} & set(attribution.writable())


def test_a_place_by_another_of_its_names_is_the_same_place() -> None:
    entries = PathTable(MountAliases.of((("/home/u/work", "/srv/alias"),), ("/", "/srv/alias")))
    entries.entries |= {"/": PathEntry("/"), "/home/u/work": PathEntry("/home/u/work", marks=Mark.ALLOW_WRITE)}
    attribution = Attribution(entries)
    assert attribution.can_bring("/srv/alias/x") and not attribution.can_bring("/srv/x")
    assert attribution.writable() == ("/home/u/work", "/srv/alias")
    assert attribution.is_name_of(ResolvedPath("/home/u/work/x"), "/srv/alias/x")
    assert not attribution.is_name_of(ResolvedPath("/home/u/work/y"), "/srv/alias/x")
