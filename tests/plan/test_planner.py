"""The planner keeps what holds and asks again when something has changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandboxd.errors import PolicyError
from sandboxd.plan.host_facts import Facts
from sandboxd.plan.host_queries import HostQueries
from sandboxd.plan.planner import ENDED_KEPT, KEPT, Planner
from sandboxd.plan.request import Argv, Place, ShellText
from sandboxd.policy.decision import Reason
from sandboxd.policy.model import FilePolicy, PathRule, Policy
from sandboxd.settings.origins import Origin, Source
from support.fake_host import FakeHost, place

POLICY = Policy()


def request(text: str = "true", **changes: object) -> tuple[Place, ShellText]:
    return place(**changes), ShellText(text)


async def test_a_second_command_in_a_place_shares_the_view() -> None:
    host = FakeHost({})
    planner = Planner(host)
    first = await planner.plan(POLICY, *request("one"))
    second = await planner.plan(POLICY, *request("two"))
    assert first.view is second.view and host.asked == 1
    assert (first.argv[-1], second.argv[-1]) == ("one", "two")


async def test_a_change_of_the_host_or_the_policy_is_seen() -> None:
    host = FakeHost({})
    planner = Planner(host)
    first = await planner.plan(POLICY, *request())
    host.put("/home/u/work/.vscode/")
    assert (await planner.plan(POLICY, *request())).view is first.view
    host.changed()
    second = await planner.plan(POLICY, *request())
    assert len(second.view.placeholders) == len(first.view.placeholders) - 1
    await planner.plan(replace(POLICY, generation=1), *request())
    assert host.asked == 3


async def test_each_place_and_shell_is_known_by_itself() -> None:
    host = FakeHost({"/home/u/work/sub/": "", "/usr/bin/zsh": ""})
    planner = Planner(host)
    assert (await planner.plan(POLICY, *request(cwd="/home/u/work/sub"))).cwd == "/home/u/work/sub"
    assert (await planner.plan(POLICY, *request())).cwd == "/home/u/work"
    zsh = await planner.plan(POLICY, place(), ShellText("x", "/bin/zsh"))
    assert zsh.argv == ("/usr/bin/zsh", "-c", "x")
    assert (await planner.plan(POLICY, place(), Argv(("a",)))).argv == ("a",)
    with pytest.raises(PolicyError, match="/bin/fish"):
        await planner.plan(POLICY, place(), ShellText("x", "/bin/fish"))


async def test_what_is_kept_has_a_bound_and_ends_with_the_session() -> None:
    host = FakeHost({f"/home/u/work/{number}/": "" for number in range(KEPT + 1)})
    planner = Planner(host)
    for number in range(KEPT + 1):
        await planner.plan(POLICY, *request(cwd=f"/home/u/work/{number}"))
    await planner.plan(POLICY, *request(cwd=f"/home/u/work/{KEPT}"))
    assert host.asked == KEPT + 1
    await planner.plan(POLICY, *request(cwd="/home/u/work/0"))
    assert host.asked == KEPT + 2
    planner.forget(place().session_tmp)
    await planner.plan(POLICY, *request(cwd="/home/u/work/0"))
    assert host.asked == KEPT + 2, "the last ones are kept: another session often follows at once"
    for number in range(2, KEPT + 1):
        await planner.plan(POLICY, *request(cwd=f"/home/u/work/{number}"))
    assert host.asked == KEPT + 2 + KEPT - ENDED_KEPT


class HostWithCertificates(FakeHost):
    """Tells how often certificate files were looked at; `stale` when such a file has changed."""

    def __init__(self) -> None:
        super().__init__({"/home/u/ca.pem": "", "/home/u/secret/ca.pem": ""})
        self.looked_at: list[tuple[str, ...]] = []
        self.stale = self.is_closed = False

    async def answer(self, needs: HostQueries) -> Facts:
        if not needs.scans:
            self.looked_at.append(needs.paths)
            self.stale = False
            if self.is_closed:
                raise PolicyError("full_disk_access", "closed")
        return await super().answer(needs)

    def unchanged(self, facts: Facts) -> bool:
        return super().unchanged(facts) and not (self.stale and "/home/u/ca.pem" in facts.paths)


CALLER = {"SSL_CERT_FILE": "/home/u/ca.pem", "PIP_CERT": "/home/u/ca.pem"}
SECRETS = Policy(
    files=FilePolicy(deny_read=(PathRule("/home/u/secret", Origin(Source.USER, "sandbox.filesystem.denyRead")),))
)


async def test_variables_of_a_caller_outlast_a_plan_without_any() -> None:
    """A prepared sandbox is planned without the variables of the command before and after it."""
    host = HostWithCertificates()
    planner, where = Planner(host), place()
    for environment in (CALLER, {}, CALLER):
        await planner.plan(POLICY, where, ShellText("true"), environment)
    assert host.looked_at == [("/home/u/ca.pem",)]
    await planner.plan(POLICY, where, ShellText("true"), {"SSL_CERT_FILE": "/home/u/other.pem"})
    assert host.looked_at[1:] == [("/home/u/other.pem",)]


async def test_the_next_session_looks_at_changed_certificates_again() -> None:
    host = HostWithCertificates()
    planner = Planner(host)
    for _ in range(2):  # each session has a place of its own, which is equal
        plan = await planner.plan(SECRETS, *request(), CALLER)
    assert plan.warnings == () and len(host.looked_at) == 1
    host.put("/home/u/ca.pem", "-> /home/u/secret/ca.pem")
    host.stale = True
    plan = await planner.plan(SECRETS, *request(), CALLER)
    assert [one.split(",")[0] for one in plan.warnings] == [f"{name} names /home/u/ca.pem" for name in CALLER]
    assert len(host.looked_at) == 2


async def test_certificates_out_of_reach_refuse_no_command() -> None:
    host = HostWithCertificates()
    host.put("/home/u/ca.pem", "-> /home/u/secret/ca.pem")
    host.is_closed = True
    planner = Planner(host)
    for _ in range(2):
        assert len((await planner.plan(SECRETS, *request(), CALLER)).warnings) == 2
    assert len(host.looked_at) == 2, "nothing tells of changes there"


class SharedHost(FakeHost):
    """Has the same facts for the same questions, as the real one."""

    def __init__(self) -> None:
        super().__init__({"/home/u/work/sub/": ""})
        self.known: dict[HostQueries, Facts] = {}
        self.forgotten: list[Facts] = []

    async def answer(self, needs: HostQueries) -> Facts:
        return self.known.setdefault(needs, self.facts(needs))

    def forget(self, facts: Facts) -> None:
        self.forgotten.append(facts)


@pytest.mark.parametrize("is_open", [False, True])
async def test_facts_go_with_the_last_place_that_rests_on_them(is_open: bool) -> None:
    host = SharedHost()
    planner = Planner(host)

    def in_session(number: int) -> tuple[Place, ShellText]:
        return request(session_tmp=f"/var/tmp/sandboxd-1000/d-1/t{number}", cwd="/home/u/work")

    if is_open:
        await planner.plan(POLICY, *in_session(1000))
    for number in range(2 * ENDED_KEPT):
        await planner.plan(POLICY, *in_session(number))
        planner.forget(f"/var/tmp/sandboxd-1000/d-1/t{number}")
    assert not host.forgotten
    for number in range(ENDED_KEPT):
        cwd = "/home/u/work/sub"
        await planner.plan(POLICY, *request(session_tmp=f"/elsewhere/{number}", cwd=cwd, project_root=cwd))
        planner.forget(f"/elsewhere/{number}")
    assert bool(host.forgotten) is not is_open


def rule(path: str, key: str = "x", source: Source = Source.USER) -> PathRule:
    return PathRule(path, Origin(source, f"sandbox.filesystem.{key}", "/s.json", 7), "*" in path, path)


FILES = FilePolicy(
    allow_write=(rule("/srv/w"),), deny_write=(rule("/srv/w/no"),), deny_read=(rule("/home/u/.ssh"),),
    allow_read=(rule("/home/u/.ssh/known"),),
)  # fmt: skip
HOST = {
    "/srv/w/no": "", "/srv/w/yes": "", "/home/u/.ssh/id": "", "/home/u/.ssh/known": "", "/home/u/link": "-> .ssh/id",
    "/home/u/work/.git/config": "", "/home/u/work/file": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "write", "allowed", "reason"),
    [
        ("/home/u/work/file", True, True, Reason.WORKING_DIRECTORY),
        ("/home/u/work/new/below", True, True, Reason.WORKING_DIRECTORY),
        ("/home/u/work/.git/config", True, False, Reason.PATH_PROTECTED),
        ("/home/u/work/.vscode/tasks.json", True, False, Reason.PATH_PROTECTED),
        ("/srv/w/yes", True, True, Reason.PATH_ALLOWED),
        ("/srv/w/no", True, False, Reason.PATH_DENIED),
        ("/srv/w/no", False, True, Reason.READ_DEFAULT),
        ("/etc/passwd", False, True, Reason.READ_DEFAULT),
        ("/etc/passwd", True, False, Reason.PATH_NOT_WRITABLE),
        ("/home/u/.ssh/id", False, False, Reason.PATH_DENIED),
        ("/home/u/link", False, False, Reason.PATH_DENIED),
        ("/home/u/.ssh/known", False, True, Reason.PATH_ALLOWED),
        ("/home/u/.ssh/known", True, False, Reason.PATH_PROTECTED),
        ("/tmp/x", True, True, Reason.SESSION_TMP),
        ("/dev/null", True, True, Reason.PATH_ALLOWED),
        ("/run/user/1000/sandboxd/sandboxd.sock", False, False, Reason.PATH_DENIED),
    ],
)
async def test_explanations(path: str, write: bool, allowed: bool, reason: Reason) -> None:
    decision = await Planner(FakeHost(HOST)).explain(Policy(files=FILES), place(), path, write=write)
    assert (decision.allowed, decision.reason) == (allowed, reason), decision
    assert decision.text and (decision.hint or allowed)
    if decision.rule is not None:
        assert decision.origin is not None and "/s.json:7" in decision.text


async def test_more_writable_directories_than_can_be_looked_after() -> None:
    """Said at once, before any of them is looked at."""
    origin = Origin(Source.USER, "sandbox.filesystem.allowWrite", "/home/u/.claude/settings.json", 3, 5)
    rules = tuple(PathRule(f"/data/{number}", origin) for number in range(2_001))
    host = FakeHost({})
    with pytest.raises(PolicyError) as caught:
        await Planner(host).plan(Policy(files=FilePolicy(allow_write=rules)), *request())
    assert caught.value.slug == "mounts_too_many" and host.asked == 0
    assert "allowWrite in /home/u/.claude/settings.json" in caught.value.message
    await Planner(host).plan(Policy(files=FilePolicy(allow_write=rules[:1_500])), *request())
