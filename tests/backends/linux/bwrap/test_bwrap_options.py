"""Options for bubblewrap: how each mount is written, what is always there, and that 0.8 knows all of it."""

from __future__ import annotations

import subprocess

import pytest

from sandboxd.backends.linux.bwrap.bwrap_options import (
    KERNEL_SETTINGS,
    MOST_BYTES,
    MOST_OPTIONS,
    NAMESPACES,
    probe_options,
    render,
)
from sandboxd.plan.environment import EnvironmentChange
from sandboxd.plan.filesystem.mounts import FileView, Mount, Operation
from sandboxd.plan.plan import Plan

KNOWN_TO_0_8 = {
    "--args", "--as-pid-1", "--bind", "--cap-drop", "--chdir", "--dev", "--dev-bind", "--dir", "--perms", "--proc",
    "--remount-ro", "--ro-bind", "--ro-bind-try", "--size", "--symlink", "--tmpfs", "--unshare-cgroup-try",
    "--unshare-ipc", "--unshare-net", "--unshare-pid", "--unshare-user", "--unshare-uts",
}  # fmt: skip


def plan(*mounts: Mount, cwd: str = "/w") -> Plan:
    return Plan(FileView(mounts), EnvironmentChange(), cwd, ("true",))


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        (Mount(Operation.READ_ONLY, "/a", "/b"), "--ro-bind /b /a"),
        (Mount(Operation.WRITABLE, "/a", "/b"), "--bind /b /a"),
        (Mount(Operation.DEVICE, "/dev/x", "/dev/x"), "--dev-bind /dev/x /dev/x"),
        (Mount(Operation.DEVICES, "/dev"), "--dev /dev"),
        (Mount(Operation.PROCESSES, "/proc"), "--proc /proc"),
        (Mount(Operation.MASK_FILE, "/a", "/mask"), "--ro-bind /mask /a"),
        (Mount(Operation.MASK_DIRECTORY, "/a"), "--perms 0000 --size 4096 --tmpfs /a"),
        (Mount(Operation.MASK_DIRECTORY, "/a", traverse_only=True), "--perms 0111 --size 4096 --tmpfs /a"),
        (Mount(Operation.LISTABLE_DIRECTORY, "/a"), "--perms 0555 --tmpfs /a"),
        (Mount(Operation.DIRECTORY, "/a"), "--perms 0111 --dir /a"),
        (Mount(Operation.REFUSE_NAME, "/a"), "--perms 1555 --size 4096 --tmpfs /a"),
        (Mount(Operation.SYMLINK, "/a", "b"), "--symlink b /a"),
        (Mount(Operation.REMOUNT_READ_ONLY, "/a"), "--remount-ro /a"),
    ],
)
def test_each_operation(mount: Mount, words: str) -> None:
    options = render(plan(mount)).options
    assert " ".join(options).startswith(words + " --unshare-user")
    assert {option for option in options if option.startswith("--")} <= KNOWN_TO_0_8


def test_every_operation_is_covered_above() -> None:
    covered = test_each_operation.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {mount.operation for mount, _ in covered} == set(Operation) - {Operation.OVERLAY, Operation.ENTRY}


def test_what_is_always_there() -> None:
    options = render(plan()).options
    assert options == (*NAMESPACES, "--chdir", "/w")
    assert "--new-session" not in options and "--die-with-parent" not in options
    assert set(probe_options()) >= set(NAMESPACES)


def test_order_is_kept() -> None:
    mounts = [Mount(Operation.READ_ONLY, f"/{number}", "/s") for number in (3, 1, 2)]
    assert [word for word in render(plan(*mounts)).options if word[1:].isdecimal()] == ["/3", "/1", "/2"]


def test_odd_names_are_passed_as_they_are() -> None:
    name = "/a b\n\udcff--bind"
    assert render(plan(Mount(Operation.READ_ONLY, name, name))).options[:3] == ("--ro-bind", name, name)


def test_a_view_is_rendered_once_for_each_directory() -> None:
    made = plan(Mount(Operation.READ_ONLY, "/", "/"))
    other = Plan(made.view, made.environment, "/x", made.argv)
    assert render(made) is render(made)
    assert render(other).options[-1] == "/x" and render(made).options[-1] == "/w"


@pytest.mark.parametrize(
    ("count", "length", "file"),
    [(10, 10, False), (MOST_OPTIONS // 3 + 1, 10, True), (20, MOST_BYTES // 20, True)],
)
def test_too_many_options_go_through_a_file(count: int, length: int, file: bool) -> None:
    mounts = [Mount(Operation.READ_ONLY, f"/{number}" + "x" * length, "/s") for number in range(count)]
    assert render(plan(*mounts)).needs_file is file


def test_the_weaker_nesting_shows_the_outer_processes() -> None:
    made = plan(Mount(Operation.PROCESSES, "/proc"))
    assert render(made, weaker=True).options[:3] == ("--ro-bind", "/proc", "/proc")
    assert render(made).options[:2] == ("--proc", "/proc")


def test_for_root_the_settings_of_the_kernel_are_read_only() -> None:
    made = plan(Mount(Operation.PROCESSES, "/proc"), Mount(Operation.MASK_FILE, "/proc/sys/x", "/mask"))
    rendered = render(made, root=True)
    assert rendered.options[:5] == ("--proc", "/proc", "--ro-bind", "/mask", "/proc/sys/x")
    settings = [mount.target for mount in rendered.late if mount.if_there]
    assert settings == list(KERNEL_SETTINGS)
    assert not render(made).late and not render(made, root=True, weaker=True).late


def test_the_installed_bubblewrap_takes_all_options() -> None:
    done = subprocess.run(
        ["bwrap", *probe_options(), "--", "/proc/self/exe", "--version"], capture_output=True, text=True
    )  # fmt: skip
    assert done.stdout.startswith("bubblewrap"), done.stderr
