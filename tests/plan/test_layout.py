"""Whole layouts of written-down hosts: the exact mounts, in their order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandboxd.backends.linux.bwrap.late_mounts import split
from sandboxd.errors import PolicyError
from sandboxd.plan.host_facts import Facts, Scan
from sandboxd.plan.host_queries import list_needs
from sandboxd.plan.plan import MOST_WARNINGS, Layout, Supervision, UnixSockets, make_layout, supervise
from sandboxd.policy.model import FilePolicy, NetworkPolicy, PathRule, Policy
from sandboxd.settings.origins import Origin, Source
from support.fake_host import FakeHost, place

ORIGIN = Origin(Source.USER, "sandbox.filesystem", "/home/u/.claude/settings.json", 3)
BASE = ["read-only /", "devices /dev"]
TEMPORARY = [
    "mask-directory /var/tmp/sandboxd-1000 (traverse only)", "directory /var/tmp/sandboxd-1000/d-1",
    "symlink /var/tmp/sandboxd-1000/d-1/s <- /tmp",
]  # fmt: skip
ABSENT = [
    f"refuse-name /home/u/work/{name}"
    for name in (
        ".agents",
        ".aider.conf.yml",
        ".amazonq",
        ".amp",
        ".augment",
        ".claude",
        ".clinerules",
        ".codex",
        ".continue",
        ".crush.json",
        ".crushrc",
        ".cursor",
        ".factory",
        ".gemini",
        ".gitconfig",
        ".gitmodules",
        ".idea",
        ".junie",
        ".kilocode",
        ".kiro",
        ".mcp.json",
        ".opencode",
        ".qwen",
        ".ripgreprc",
        ".roo",
        ".vscode",
        ".windsurf",
        ".zed",
        "crush.json",
        "crushrc",
        "opencode.json",
        "opencode.jsonc",
    )
]


def is_no_name(line: str) -> bool:
    """Whether a mount is not for a protected name of projects."""
    return "/." not in line and line.rpartition("/")[2] not in {one.rpartition("/")[2] for one in ABSENT}


def rules(*texts: str) -> tuple[PathRule, ...]:
    return tuple(PathRule(text, ORIGIN, "*" in text, text) for text in texts)


def layout(host: FakeHost, files: FilePolicy | None = None, **changes: object) -> Layout:
    policy = Policy(files=files or FilePolicy())
    where = place(**changes)
    return make_layout(policy, where, host.facts(list_needs(policy, where)))


def mounts(made: Layout) -> list[str]:
    """The mounts as lines; a bind of a path on itself without its source."""
    return [
        f"{mount.operation.value} {mount.target}"
        + (f" <- {mount.source}" if mount.source not in ("", mount.target) else "")
        + (" (traverse only)" if mount.traverse_only else "")
        for mount in made.view.mounts
    ]


def test_an_empty_project() -> None:
    made = layout(FakeHost({}))
    assert mounts(made) == [
        *BASE, "writable /home/u/work", *ABSENT,
        "processes /proc", "mask-directory /run/user/1000/sandboxd",
        "writable /tmp <- /var/tmp/sandboxd-1000/d-1/s", *TEMPORARY,
    ]  # fmt: skip
    expected = tuple(f"{path}/" for path in sorted(line.split()[1] for line in ABSENT))
    assert made.view.placeholders == expected
    assert made.view.watched == (("/home/u/work/HEAD", "/home/u/work/refs", "/home/u/work/objects"),)
    assert made.shells == (("/bin/bash", "/usr/bin/bash"), ("/bin/sh", "/usr/bin/dash"))
    assert made.view.writable == ("/home/u/work",)


def test_absent_names_are_guarded_where_names_compare() -> None:
    """With the guard, nothing is mounted or made at them; elsewhere placeholders stay."""
    host = FakeHost({"/home/u/work/.git/config": "", "/home/u/work/.git/hooks/": "", "/home/u/work/.claude/": ""})
    policy, where = Policy(), place()
    facts = host.facts(list_needs(policy, where))
    exact = Facts(
        {text: replace(one, exact=True) for text, one in facts.paths.items()},
        scans={root: _exact(scan) for root, scan in facts.scans.items()},
    )
    made = make_layout(policy, where, exact, guards=True).view
    work = "/home/u/work"
    expected = {line.split()[1] for line in ABSENT} - {f"{work}/.claude"}
    expected |= {f"{work}/.github/{name}" for name in ("hooks", "copilot")}  # a placeholder would make .github
    expected |= {f"{work}/.git/{name}" for name in ("commondir", "config.worktree")}
    expected |= {f"{work}/.claude/{name}" for name in ("agents", "commands", "hooks", "skills", "settings.json",
                                                        "settings.local.json")}  # fmt: skip
    closed = {f"{work}/.git/{name}" for name in ("hooks", "config")}
    assert set(made.guards) == expected | closed and set(made.closed) == closed
    assert not made.placeholders and not made.watched
    assert made.zones == (work, f"{work}/.claude", f"{work}/.git"), "each directory of a name is pinned by a mount"
    assert not make_layout(policy, where, exact).view.guards
    assert make_layout(policy, where, facts, guards=True).view.placeholders, "their file system folds names"


def _exact(scan: Scan) -> Scan:
    dirs = (
        replace(one, names=tuple((name, replace(at, exact=True)) for name, at in one.names)) for one in scan.git_dirs
    )
    return replace(scan, git_dirs=tuple(dirs))


def test_a_repository_with_an_editors_folder() -> None:
    host = FakeHost({"/home/u/work/.git/config": "", "/home/u/work/.git/hooks/": "", "/home/u/work/.vscode/": ""})
    lines = [line for line in mounts(layout(host)) if line.split("/")[-1] in (".git", ".vscode") or "/.git/" in line]
    assert lines == [
        "writable /home/u/work/.git", "read-only /home/u/work/.git/config",
        "refuse-name /home/u/work/.git/config.worktree", "read-only /home/u/work/.git/hooks",
        "read-only /home/u/work/.vscode",
    ]  # fmt: skip
    made = layout(host, FilePolicy(allow_git_config=True))
    assert "read-only /home/u/work/.git/config" not in mounts(made)
    assert ("/home/u/work/.git/commondir",) in made.view.watched


def test_only_names_that_a_search_found_may_be_gone() -> None:
    """Below the top, with what leads to them; a rule makes its path and all above it certain."""
    names = ("a/.vscode/", "a/r/.git/config", "a/r/.git/hooks/", "b/c/.idea/", "b/c/d", ".zed/", ".git/hooks/")
    host = FakeHost({f"/home/u/work/{name}": "" for name in names})

    def gone(files: FilePolicy) -> set[str]:
        found = layout(host, files).view.searched
        return {path.removeprefix("/home/u/work/") for path in found}

    git = {f"a/r/.git{name}" for name in ("", "/config", "/hooks", "/config.worktree", "/config.worktree/")}
    assert gone(FilePolicy()) == {"a", "a/.vscode", "a/r", "b", "b/c", "b/c/.idea", *git}
    assert gone(FilePolicy(deny_write=rules("/home/u/work/b/c/d"))) == {"a", "a/.vscode", "a/r", "b/c/.idea", *git}
    late = {one.target.removeprefix("/home/u/work/"): one.if_there for one in split(layout(host).view).late}
    assert late["a/.vscode"] and late["a"] and not late[".zed"] and not late[".git"] and not late[".git/hooks"]


def test_the_directory_of_a_login_starts_nothing() -> None:
    """Neither opened by a rule, with what the service manager and the bus start, nor as a working directory."""
    host = FakeHost({"/run/user/1000/systemd/": "", "/run/user/1000/bus": ""})
    lines = mounts(layout(host, FilePolicy(allow_write=rules("/run/user/1000"))))
    assert [line for line in lines if "/run/user/1000" in line and is_no_name(line)] == [
        "writable /run/user/1000", "read-only /run/user/1000/bus", "refuse-name /run/user/1000/dbus-1",
        "mask-directory /run/user/1000/sandboxd", "read-only /run/user/1000/systemd",
    ]  # fmt: skip
    assert "writable /run/user/1000" not in mounts(layout(host, cwd="/run/user/1000", project_root="/run/user/1000"))


def test_nested_lists_are_mounted_parents_first() -> None:
    host = FakeHost({f"/srv/{name}/": "" for name in ("a/b/c/d", "a/x/y")})
    files = FilePolicy(
        allow_write=rules("/srv/a/b/c/d", "/srv"), deny_read=rules("/srv/a"), allow_read=rules("/srv/a/b/c"),
        deny_write=rules("/srv/z"),
    )  # fmt: skip
    lines = [line for line in mounts(layout(host, files)) if "/srv" in line and is_no_name(line)]
    assert lines == [
        "writable /srv",
        "mask-directory /srv/a (traverse only)",
        "directory /srv/a/b",
        "read-only /srv/a/b/c",
        "writable /srv/a/b/c/d",
        "remount-read-only /srv/a",
        "refuse-name /srv/z",
    ]


def test_directories_above_a_guarded_file_are_mounts() -> None:
    host = FakeHost({"/home/u/work/a/b/secret": "", "/home/u/work/a/c": ""})
    lines = mounts(layout(host, FilePolicy(deny_write=rules("/home/u/work/a/b/secret"))))
    at = lines.index("read-only /home/u/work/a/b/secret")
    assert lines[at - 2 : at] == ["writable /home/u/work/a", "writable /home/u/work/a/b"]


def test_everything_denied_with_links_of_a_merged_usr() -> None:
    files = FilePolicy(deny_read=rules("/"), allow_read=rules("/usr", "/bin"))
    assert mounts(layout(FakeHost({}), files))[:6] == [
        "mask-directory / (traverse only)", "symlink /bin <- usr/bin",
        "devices /dev", "directory /home", "directory /home/u",
        "writable /home/u/work",
    ]  # fmt: skip
    assert mounts(layout(FakeHost({}), files))[-1] == "remount-read-only /"


def test_a_workspace_in_tmp_is_bound_over_it() -> None:
    host = FakeHost({"/tmp/x/ws/": "", "/tmp/x/other": ""})
    lines = mounts(layout(host, cwd="/tmp/x/ws", project_root="/tmp/x/ws"))
    at = lines.index("writable /tmp <- /var/tmp/sandboxd-1000/d-1/s")
    assert lines[at + 1 : at + 3] == ["listable-directory /tmp/x", "writable /tmp/x/ws"]
    assert not any("other" in line for line in lines)


def test_tmp_itself_as_working_directory_is_the_hosts() -> None:
    made = layout(FakeHost({"/tmp/x": ""}), cwd="/tmp", project_root="/tmp")
    assert "writable /tmp" in mounts(made)
    assert "writable /var/tmp/sandboxd-1000/d-1/s" in mounts(made)
    assert any("sees the host's /tmp" in warning for warning in made.warnings)


def test_the_root_as_working_directory_is_not_writable() -> None:
    made = layout(FakeHost({}), cwd="/", project_root="/")
    assert mounts(made)[0] == "read-only /" and made.view.writable == ()
    assert any("not made writable" in warning for warning in made.warnings)


@pytest.mark.parametrize(
    ("files", "changes", "slug"),
    [
        (FilePolicy(deny_read=rules("/home/u/work")), {}, "cwd_denied"),
        (FilePolicy(deny_read=rules("/home/u")), {"cwd": "/home/u/other"}, "cwd_denied"),
        (FilePolicy(), {"cwd": "/home/u/gone"}, "cwd_missing"),
        (FilePolicy(), {"cwd": "/usr/bin/bash"}, "cwd_missing"),
        (FilePolicy(), {"cwd": "/dev"}, "cwd_special"),
        (FilePolicy(), {"cwd": "/run/user/1000/sandboxd"}, "cwd_denied"),
        (FilePolicy(allow_write=rules("/dev")), {}, "devices_all"),
        (FilePolicy(deny_read=rules("/dev/urandom")), {}, "device_basic"),
    ],
)
def test_what_cannot_be_had_is_an_error_with_advice(files: FilePolicy, changes: dict[str, str], slug: str) -> None:
    with pytest.raises(PolicyError) as caught:
        layout(FakeHost({"/home/u/other/": ""}), files, **changes)
    assert caught.value.slug == slug and caught.value.hint


def test_nobody_is_told_to_open_the_daemons_own_directory() -> None:
    with pytest.raises(PolicyError, match="belongs to the daemon") as caught:
        layout(FakeHost({}), FilePolicy(), cwd="/run/user/1000/sandboxd")
    assert "allowRead" not in caught.value.hint


def test_an_error_names_the_rule_and_its_place() -> None:
    with pytest.raises(PolicyError, match=r"/home/u/work in /home/u/.claude/settings.json:3"):
        layout(FakeHost({}), FilePolicy(deny_read=rules("/home/u/work")))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (FilePolicy(allow_write=rules("/srv/none")), "/srv/none does not exist"),
        (FilePolicy(allow_read=rules("/loop")), "a loop of symlinks"),
        (FilePolicy(allow_write=rules("/tmp"), tmp="private"), "since sandbox.filesystem.tmp is private"),
        (FilePolicy(allow_write=rules("/run/user/1000/sandboxd/x")), "daemon's own directories"),
        (FilePolicy(deny_write=rules("/home/u/work/*.lock")), "not what it creates"),
        (FilePolicy(allow_write=rules("/srv/*.log")), "matches nothing"),
        (FilePolicy(deny_write=rules("/home/u/work/pipe")), "/home/u/work/pipe is a pipe or a socket"),
        (FilePolicy(deny_write=rules("/home/u/work/p*")), "denyRead closes it altogether"),
    ],
)
def test_what_is_weaker_than_it_looks_is_said(files: FilePolicy, said: str) -> None:
    made = layout(FakeHost({"/loop": "-> loop", "/home/u/work/pipe": "socket"}), files)
    assert [warning for warning in made.warnings if said in warning], made.warnings


def test_rules_cannot_reach_the_daemons_own_directories() -> None:
    plain = mounts(layout(FakeHost({})))
    own = rules("/run/user/1000/sandboxd", "/var/tmp/sandboxd-1000")
    files = FilePolicy(allow_write=own, allow_read=own)
    assert mounts(layout(FakeHost({}), files)) == plain


def test_a_shell_that_is_denied_is_not_offered() -> None:
    assert layout(FakeHost({}), FilePolicy(deny_read=rules("/bin/bash"))).shells == (("/bin/sh", "/usr/bin/dash"),)
    assert layout(FakeHost({}), FilePolicy(deny_read=rules("/usr/bin"))).shells == ()


def test_links_at_guarded_names_are_listed() -> None:
    host = FakeHost({"/home/u/work/.mcp.json": "-> /etc/x", "/home/u/work/s": "-> t", "/home/u/work/t": ""})
    made = layout(host, FilePolicy(deny_read=rules("/home/u/work/s")))
    assert made.view.open_links == ("/home/u/work/.mcp.json", "/home/u/work/s")
    assert "mask-file /home/u/work/t <- /var/tmp/sandboxd-1000/d-1/denied" in mounts(made)


def test_only_rules_of_the_user_lift_a_protection() -> None:
    host = FakeHost({"/home/u/work/.vscode/tasks.json": ""})
    path = "/home/u/work/.vscode"
    assert f"read-only {path}" in mounts(layout(host))
    assert f"read-only {path}" not in mounts(layout(host, FilePolicy(allow_write=rules(path))))
    project = PathRule(path, Origin(Source.PROJECT, "sandbox.filesystem.allowWrite"))
    assert f"read-only {path}" in mounts(layout(host, FilePolicy(allow_write=(project,))))
    assert f"read-only {path}" in mounts(layout(host, FilePolicy(allow_write=rules("/home/u/work/.vs*"))))


SECRET = FilePolicy(deny_read=(PathRule("/secret", Origin(Source.USER, "k")),))
ALL_SOCKETS = NetworkPolicy(allow_all_unix_sockets=True)
LISTED = Supervision(unix_sockets=UnixSockets.LISTED)


@pytest.mark.parametrize(
    ("policy", "changes", "expected"),
    [
        (Policy(), {}, replace(LISTED, writes=True)),
        (Policy(report_violations="off"), {}, LISTED),
        (Policy(report_violations="all"), {}, replace(LISTED, writes=True)),
        (Policy(report_violations="all", files=SECRET), {}, replace(LISTED, writes=True, reads=True)),
        (Policy(files=SECRET), {}, replace(LISTED, writes=True)),
        (Policy(report_violations="off"), {"captured": True}, replace(LISTED, connects=True)),
        (Policy(report_violations="off", network=ALL_SOCKETS), {}, Supervision(unix_sockets=UnixSockets.ALL)),
    ],
)
def test_what_is_looked_at(policy: Policy, changes: dict[str, bool], expected: Supervision) -> None:
    assert supervise(policy, place(**changes)) == expected
    assert supervise(policy, place(**changes), keeps_absent=True) == replace(expected, removals=True)


# the files of the name service

OURS = (
    ("/etc/resolv.conf", "/var/tmp/sandboxd-1000/d-1/resolv.conf"),
    ("/etc/hosts", "/var/tmp/sandboxd-1000/d-1/hosts"),
)
STUB = "/run/systemd/resolve/stub-resolv.conf"
LINKED = {"/etc/resolv.conf": f"-> ../{STUB[1:]}", STUB: "", "/etc/hosts": ""}
OVER_RESOLV = f" <- {OURS[0][1]}"
OVER_HOSTS = f"read-only /etc/hosts <- {OURS[1][1]}"


def name_mounts(host: FakeHost, files: FilePolicy | None = None, **changes: object) -> list[str]:
    lines = mounts(layout(host, files, name_files=OURS, captured=True, **changes))
    lines = [line for line in lines if not line.startswith("refuse-name")]
    return [line for line in lines if "/etc" in line or "/run/systemd" in line or "remount-read-only /run" in line]


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"/etc/resolv.conf": "", "/etc/hosts": ""}, [OVER_HOSTS, f"read-only /etc/resolv.conf{OVER_RESOLV}"]),
        (LINKED, [OVER_HOSTS, f"read-only {STUB}{OVER_RESOLV}"]),
        # where there is none, programs ask loopback by themselves
        ({}, []),
        ({"/etc/resolv.conf": "-> /run/nothing/there"}, []),
        ({"/etc/resolv.conf": "-> /dev/null", "/etc/hosts/": ""}, []),
    ],
)
def test_our_name_service_stands_where_the_hosts_stood(tree: dict[str, str], expected: list[str]) -> None:
    assert name_mounts(FakeHost(tree)) == expected


def test_only_where_connections_are_captured() -> None:
    host = FakeHost(LINKED)
    assert mounts(layout(host, name_files=OURS)) == mounts(layout(host))
    assert not [line for line in mounts(layout(host, captured=True)) if "/etc" in line]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            FilePolicy(deny_read=rules("/etc/resolv.conf", "/etc/hosts")),
            [OVER_HOSTS, f"read-only {STUB}{OVER_RESOLV}"],
        ),
        (
            FilePolicy(deny_read=rules("/etc", "/run")),
            [
                "mask-directory /etc (traverse only)", OVER_HOSTS,
                "symlink /etc/resolv.conf <- ../run/systemd/resolve/stub-resolv.conf", "remount-read-only /etc",
                "directory /run/systemd", "directory /run/systemd/resolve", f"read-only {STUB}{OVER_RESOLV}",
                "remount-read-only /run",
            ],
        ),
        (
            FilePolicy(allow_write=rules("/etc", "/etc/hosts")),
            ["writable /etc", OVER_HOSTS, f"read-only {STUB}{OVER_RESOLV}"],
        ),
    ],
)  # fmt: skip
def test_no_rule_takes_it_away(files: FilePolicy, expected: list[str]) -> None:
    assert name_mounts(FakeHost(LINKED), files) == expected


def test_a_working_directory_that_holds_them() -> None:
    host = FakeHost({"/etc/resolv.conf": "", "/etc/hosts": ""})
    lines = name_mounts(host, FilePolicy(allow_write=rules("/etc")), cwd="/etc", project_root="/etc")
    assert lines[0] == "writable /etc"
    assert OVER_HOSTS in lines and f"read-only /etc/resolv.conf{OVER_RESOLV}" in lines


SYSTEM = ["/etc", "/etc/cron.d", "/usr/bin", "/usr", "/usr/local/bin", "/usr/lib/x", "/boot", "/run/systemd"]


@pytest.mark.parametrize("directory", SYSTEM)
def test_a_session_in_a_system_directory_does_not_write_there(directory: str) -> None:
    host = FakeHost({f"{directory}/file": ""})
    found = layout(host, FilePolicy(), cwd=directory, project_root=directory)
    assert not [one for one in found.view.mounts if one.operation == "writable" and one.target.startswith(directory)]
    (said,) = [warning for warning in found.warnings if f"working directory {directory} is read-only" in warning]
    assert said.endswith(": work in another directory")


@pytest.mark.parametrize("directory", [*SYSTEM, "/usr/src/app", "/opt/app", "/srv/www", "/var/lib/jenkins/workspace"])
def test_an_opened_directory_or_project_is_writable(directory: str) -> None:
    host = FakeHost({f"{directory}/file": ""})
    files = FilePolicy(allow_write=rules(directory)) if directory in SYSTEM else FilePolicy()
    found = layout(host, files, cwd=directory, project_root=directory)
    assert directory in [one.target for one in found.view.mounts if one.operation == "writable"]
    assert not [warning for warning in found.warnings if "read-only" in warning]


@pytest.mark.parametrize("key", ["deny_read", "deny_write"])
@pytest.mark.parametrize("text", ["/home/u/x/*.{pem,key}", "/home/u/x/{a,b}", "/home/u/x/a ", "/home/u/x\\a"])
def test_a_deny_that_is_written_otherwise_than_it_is_meant(key: str, text: str) -> None:
    """As long as nothing is denied by it; a name may be what the rule says."""
    files = FilePolicy(**{key: rules(text)})  # type: ignore[arg-type]
    host = FakeHost({"/home/u/x/a.pem": ""})
    (said,) = [warning for warning in layout(host, files).warnings if "no such name" in warning]
    assert repr(text) in said
    host.put(text.replace("*", "x"))
    assert not [warning for warning in layout(host, files).warnings if "no such name" in warning]
    assert not [warning for warning in layout(FakeHost({}), FilePolicy(deny_read=rules("/x/*.a"))).warnings]


def test_an_endless_list_is_named_and_its_warnings_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    many = rules(*(f"/home/u/{number}" for number in range(1200)))
    host = FakeHost({})
    warnings = layout(host, FilePolicy(allow_write=many)).warnings
    more = f"and {1200 - MOST_WARNINGS:,} more warnings about paths"
    assert len(warnings) == MOST_WARNINGS + 1 and warnings[-1] == more
    monkeypatch.setattr("sandboxd.plan.plan.MOST_MOUNTS", 1000)
    files = FilePolicy(allow_write=rules("/home/u"), deny_write=many)
    with pytest.raises(PolicyError) as caught:
        layout(host, files)
    assert "most come from the entries of sandbox.filesystem in /home/u/.claude/settings.json" in caught.value.message
