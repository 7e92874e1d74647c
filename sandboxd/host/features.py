"""Checks of the machine by a real start of a minimal sandbox, with remedies.

An answer to `bwrap --version` proves nothing: user namespaces may be switched off, a container may mask /proc, a
security module may refuse one step. So the probe uses the options of a real sandbox and runs bubblewrap itself inside
(`/proc/self/exe --version`). A success is kept until the next boot or until bubblewrap is replaced. A failure is tried
again each time."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial

from sandboxd.errors import HostError, PolicyError
from sandboxd.host.git.config_targets import configuration_of_user
from sandboxd.host.resolve import NullNameRecorder
from sandboxd.host.tools import Bwrap, find_bwrap
from sandboxd_client.records import dataclass

_TIMEOUT_S = 20.0
OLDEST_LINUX = (5, 12)
"""The version that can make a tree of mounts read-only in one step."""
_OLDEST = ".".join(map(str, OLDEST_LINUX))
_LIMIT = "user.max_user_namespaces"
_APPARMOR = (
    "allow it for bubblewrap in an AppArmor profile (userns, in /etc/apparmor.d/bwrap), or run: "
    "sysctl kernel.apparmor_restrict_unprivileged_userns=0"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A known failure of bubblewrap: the pattern of its output, cause and remedy."""

    pattern: re.Pattern[str]
    slug: str
    cause: str
    remedy: str
    only_root: bool | None = None


def _failure(pattern: str, slug: str, cause: str, remedy: str, *, only_root: bool | None = None) -> Failure:
    return Failure(re.compile(pattern, re.IGNORECASE), slug, cause, remedy, only_root)


FAILURES: tuple[Failure, ...] = (
    _failure(
        r"unknown option", "bwrap_too_old",
        "bubblewrap does not know an option that the sandbox needs", "install bubblewrap 0.8 or newer",
    ),
    _failure(
        r"(option|argument).* not permitted in setuid mode|setuid.*not (permitted|supported)", "bwrap_setuid",
        "bubblewrap is a setuid build, which refuses options that the sandbox needs",
        "run: chmod u-s on it, and allow unprivileged user namespaces",
    ),
    _failure(
        r"RTM_NEWADDR", "namespaces_restricted",
        "a security module (AppArmor on Ubuntu 24.04 and newer) takes the rights in a new user namespace away",
        _APPARMOR,
    ),
    _failure(
        r"setting up uid map: Operation not permitted", "setfcap_missing",
        "root lacks CAP_SETFCAP, without which it cannot map itself into a user namespace",
        "give the container the capability (--cap-add SETFCAP), or run sandboxd as an ordinary user",
        only_root=True,
    ),
    _failure(
        r"uid map|gid map|setgroups", "namespaces_restricted",
        "a security module (AppArmor on Ubuntu 24.04 and newer) or the container refuses to set up a user namespace",
        _APPARMOR + "; in a container, allow user namespaces in its seccomp and AppArmor profiles",
    ),
    _failure(
        r"max_(user|\*)_namespaces|namespace failed: No space left|unshare.*No space left", "namespaces_disabled",
        "the limit on user namespaces is reached or zero", f"raise it: sysctl {_LIMIT}=15000",
    ),
    _failure(
        r"no permissions to creat\w+ (a )?new namespace|creating new namespace failed|unshare|clone",
        "namespaces_disabled",
        "unprivileged user namespaces are switched off, or the container's seccomp profile refuses them",
        "run: sysctl kernel.unprivileged_userns_clone=1; in a container: --security-opt seccomp=unconfined or a "
        "profile that allows clone, unshare, mount and pivot_root",
    ),
    _failure(
        r"failed to make / (slave|private)", "mounts_restricted",
        "the container does not let a new namespace change mounts",
        "allow mount in the container's AppArmor and seccomp profiles (--security-opt apparmor=unconfined)",
    ),
    _failure(
        r"can'?t mount proc|mounting.*proc", "proc_masked",
        "the container masks parts of /proc, so the kernel refuses a new one",
        "run the container with --security-opt systempaths=unconfined, or set sandbox.enableWeakerNestedSandbox, which "
        "shows the container's own processes",
    ),
    _failure(
        r"can'?t mount (devpts|tmpfs|mqueue)|pivot_root|remount", "mounts_restricted",
        "the kernel or a security module refuses a mount inside the new namespace",
        "allow mount and pivot_root in the container's AppArmor and seccomp profiles",
    ),
    _failure(
        r"unexpected capabilities", "capabilities_restricted",
        "an ordinary user who holds capabilities is not served by bubblewrap",
        "start sandboxd and its clients without them: setpriv --ambient-caps=-all --inh-caps=-all COMMAND",
    ),
    _failure(
        r"capset|prctl|drop.*privileg", "capabilities_restricted",
        "the process may not change its own capabilities",
        "start sandboxd outside of what restricts it (see the container's or the service's capability settings)",
    ),
)  # fmt: skip


_ENOUGH = 1000
_OF_AN_OUTER_ONE = (
    f"the limit is not {_LIMIT} of this container, which is {{limit}}: raise that of the system around it, or run "
    "sandboxd there (the kernel nests no more than 32 user namespaces)"
)


def _limit_of_namespaces() -> int:
    try:
        with open("/proc/sys/" + _LIMIT.replace(".", "/"), encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def explain_failure(stderr: str, status: int, *, is_root: bool, namespaces: int = 0) -> HostError:
    """Return the error for the output of a failed bubblewrap; unknown text is quoted.

    `namespaces` is the number of user namespaces that this system allows."""
    line = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "")
    for known in FAILURES:
        if known.only_root is not None and known.only_root is not is_root:
            continue
        if known.pattern.search(stderr):
            message = f"no sandbox can be started: {known.cause}"
            outer = _LIMIT in known.remedy and namespaces >= _ENOUGH
            remedy = _OF_AN_OUTER_ONE.format(limit=namespaces) if outer else known.remedy
            return HostError(known.slug, message, hint=remedy, data={"output": line})
    return HostError(
        "sandbox_unavailable",
        f"no sandbox can be started: {line or f'bubblewrap ended with status {status}'}",
        hint="run sandboxd check",
        data={"output": line},
    )


def check_platform(system: str = sys.platform, kernel: str | None = None, uid: int | None = None) -> None:
    """Raise `HostError` for an unusable platform; `kernel` is /proc/version's text.

    Root needs Linux 5.12, since the kernel's own settings in /proc are made read-only in each of its sandboxes."""
    if system != "linux":
        raise HostError("platform_unsupported", f"there is no Linux sandbox on {system}", hint="")
    if kernel is None:
        try:
            with open("/proc/version", encoding="utf-8", errors="replace") as file:
                kernel = file.read()
        except OSError:
            kernel = ""
    if "Microsoft" in kernel and "WSL2" not in kernel and "microsoft-standard" not in kernel:
        raise HostError(
            "wsl1",
            "WSL 1 has no Linux kernel, so no sandbox can be started",
            hint="convert the distribution: wsl --set-version NAME 2",
        )
    if (os.geteuid() if uid is None else uid) == 0 and (why := why_not_sealed(kernel)):
        hint = f"boot Linux {_OLDEST} or newer, or run sandboxd as an ordinary user"
        raise HostError("kernel_too_old", why, hint=hint)


def why_not_sealed(kernel: str) -> str:
    """Return why trees of mounts cannot be made read-only, by the text of /proc/version, else empty."""
    numbers = re.match(r"Linux version (\d+)\.(\d+)", kernel)
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= OLDEST_LINUX:
        return ""
    return f"Linux {numbers[1]}.{numbers[2]} cannot make whole trees of mounts read-only (mount_setattr)"


class SandboxProbe:
    """The trial start of a minimal sandbox with `options`, once for each bubblewrap."""

    def __init__(self, options: Sequence[str]) -> None:
        self._options = tuple(options)
        self._proven: Bwrap | None = None
        self._lock = asyncio.Lock()

    async def ready(self, configured: str | None, search_path: str, writable: Sequence[str] = ()) -> Bwrap:
        """Return a bubblewrap that has started a sandbox, or raise `HostError`."""
        proven = self._proven
        if proven is not None and (configured is None or configured == proven.path) and _is_same(proven):
            return proven
        async with self._lock:
            self._proven = await asyncio.to_thread(self._try, configured, search_path, writable)
            return self._proven

    def doubt(self) -> None:
        """Try again before the next sandbox, since one did not start."""
        self._proven = None

    def _try(self, configured: str | None, search_path: str, writable: Sequence[str]) -> Bwrap:
        check_platform()
        bwrap = find_bwrap(configured, search_path, writable)
        try_sandbox(bwrap.path, self._options)
        return bwrap


def try_sandbox(bwrap: str, options: Sequence[str], command: Sequence[str] = ("/proc/self/exe", "--version")) -> str:
    """Run a command in a minimal sandbox; return its output or raise `HostError`."""
    try:
        done = subprocess.run(
            [bwrap, *options, "--", *command],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False, cwd="/",
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise HostError(
            "sandbox_unavailable", f"bubblewrap did not end within {_TIMEOUT_S:.0f} s", hint="run sandboxd check"
        ) from error
    except OSError as error:
        raise HostError(
            "bwrap_broken", f"{bwrap} cannot be run: {error.strerror}", hint="reinstall bubblewrap"
        ) from error
    if done.returncode:
        stderr = done.stderr.decode("utf-8", "replace")
        limit = _limit_of_namespaces()
        raise explain_failure(stderr, done.returncode, is_root=os.geteuid() == 0, namespaces=limit)
    return done.stdout.decode("utf-8", "replace")


_NO_LISTENER = {
    errno.EBUSY: "another program already supervises the system calls of sandboxd (a container's seccomp agent)",
    errno.EINVAL: "the kernel does not know seccomp user notifications (Linux 5.9)",
    errno.ENOSYS: "the kernel has no seccomp",
    errno.EPERM: "a container's seccomp profile refuses seccomp(2)",
    errno.EACCES: "a container's seccomp profile refuses seccomp(2)",
}


PLACEHOLDERS = "SANDBOXD_TEST_PLACEHOLDERS"
"""The variable of tests that chooses placeholders."""
NOT_KILLABLE = 200
"""The status of the helper's probe where a signal makes a caller repeat a call (before Linux 5.19)."""


def why_unwatched(helper: str) -> str:
    """Return why the helper cannot supervise system calls, else empty. Blocks."""
    try:
        done = subprocess.run([helper, "probe"], stdin=subprocess.DEVNULL, timeout=_TIMEOUT_S, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the helper cannot be run ({type(error).__name__})"
    if done.returncode in (0, NOT_KILLABLE):
        return ""
    return _NO_LISTENER.get(done.returncode, f"seccomp(2) failed: {os.strerror(abs(done.returncode))}")


def why_unguarded(helper: str, unwatched: str, landlock: str) -> str:
    """Return why names cannot be kept absent without placeholders, else empty. Blocks.

    `unwatched` and `landlock` are the reasons why those are missing."""
    if os.environ.get(PLACEHOLDERS):
        return f"{PLACEHOLDERS} is set"
    if unwatched or landlock:
        return unwatched or f"Landlock is not used: {landlock}"
    try:
        done = subprocess.run([helper, "probe"], stdin=subprocess.DEVNULL, timeout=_TIMEOUT_S, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the helper cannot be run ({type(error).__name__})"
    return "" if not done.returncode else "a signal makes a caller repeat a call that was made for it (Linux 5.19)"


def closed_memory(ptrace_scope: str = "/proc/sys/kernel/yama/ptrace_scope") -> str:
    """Return why system calls cannot be supervised at the moment, else empty.

    An administrator can change this setting at any time, so it is read before each command. From 2 on Yama lets no
    unprivileged process read another one, not even its own children. The helper is unprivileged, and could not read the
    arguments of a call."""
    try:
        descriptor = os.open(ptrace_scope, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        scope = int(os.read(descriptor, 16))
    except (OSError, ValueError):
        return ""
    finally:
        os.close(descriptor)
    return "" if scope < 2 else f"kernel.yama.ptrace_scope is {scope}, so the helper cannot read the arguments of calls"


def why_unbounded(release: str | None = None, uid: int | None = None, uid_map: str = "/proc/self/uid_map") -> str:
    """Return why a limit on processes would not hold here, else empty.

    The kernel counts processes for each user namespace since Linux 5.14; before, a limit would cover all processes of
    the user. The root of the machine may exceed every such limit: copy_process() in kernel/fork.c."""
    release = os.uname().release if release is None else release
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < (5, 14):
        return f"Linux {release} counts all processes of the user, not those of a sandbox (5.14)"
    if (os.geteuid() if uid is None else uid) == 0:
        try:
            with open(uid_map, encoding="ascii") as file:
                outside = file.readline().split()[1:2]
        except OSError:
            outside = []
        if outside in ([], ["0"]):
            return "the kernel applies no such limit to root"
    return ""


def _is_same(bwrap: Bwrap) -> bool:
    try:
        state = os.stat(bwrap.path)
    except OSError:
        return False
    return (state.st_ino, state.st_mtime_ns) == (bwrap.inode, bwrap.mtime_ns)


@dataclass(frozen=True, slots=True)
class CheckStep:
    """The result of one check; with `required`, no sandbox starts when it fails."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = True
    slug: str = ""


Parts = Sequence[tuple[str, Sequence[str]]]
"""The named parts of a sandbox, for separate trials."""


def check_host(
    options: Sequence[str],
    weaker_options: Sequence[str],
    parts: Parts,
    configured: str | None,
    search_path: str,
    writable: Sequence[str] = (),
) -> tuple[CheckStep, ...]:
    """Return the results of all checks, failed ones included. Blocks."""
    found: list[Bwrap] = []

    def platform() -> str:
        check_platform()
        return f"Linux {os.uname().release}"

    def find() -> str:
        found.append(find_bwrap(configured, search_path, writable))
        return f"{found[0].path}, version {found[0].version_text}"

    steps = [_step("platform", platform), _step("bubblewrap", find)]
    if not found:
        return (*steps, *_kernel_steps())
    bwrap = found[0].path
    steps += _kernel_steps()
    steps.append(_step("sandbox", lambda: try_sandbox(bwrap, options) and "a minimal sandbox starts"))
    if not steps[-1].ok:
        weaker = _step("weaker nested sandbox", lambda: try_sandbox(bwrap, weaker_options) and "starts", required=False)
        return (*steps, *_part_steps(bwrap, parts), weaker)
    return (*steps, *_enforcement_steps(bwrap, options))


def check_git() -> CheckStep:
    """Check the user's `safe.bareRepository` without running git. Blocks."""
    name, setting = "bare repositories", "safe.bareRepository"
    try:
        value = configuration_of_user(os.path.expanduser("~"), NullNameRecorder()).get(setting.lower())
    except PolicyError as error:
        return CheckStep(name, False, error.message, error.hint, required=False, slug="advice_bare_repository")
    if value == "explicit":
        return CheckStep(
            name, True, f"git ignores bare repositories in its working directory ({setting} is {value})", required=False
        )
    detail = (
        "git obeys the configuration of any directory that looks like a repository, also of a running command's or of "
        f"a downloaded one ({setting} is not explicit)"
    )
    remedy = f"run: git config --global {setting} explicit (git 2.38 or newer; then name bare ones by --git-dir)"
    return CheckStep(name, False, detail, remedy, required=False, slug="advice_bare_repository")


def _step(name: str, look: Callable[[], str], *, required: bool = True) -> CheckStep:
    try:
        return CheckStep(name, True, look(), required=required)
    except HostError as error:
        return CheckStep(name, False, error.message, error.hint, required, error.slug)


def _part_steps(bwrap: str, parts: Parts) -> list[CheckStep]:
    """Try each part alone; not required, since the whole sandbox has failed already."""
    steps: list[CheckStep] = []
    for name, options in parts:
        steps.append(_step(name, partial(_can_be_made, bwrap, options), required=False))
        if not steps[0].ok:
            break
    return steps


def _can_be_made(bwrap: str, options: Sequence[str]) -> str:
    try_sandbox(bwrap, options)
    return "can be made"


_SWITCHES = (
    ("kernel.unprivileged_userns_clone", "0", "user namespaces"),
    (_LIMIT, "0", "user namespaces"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "user namespaces under AppArmor"),
)


def _kernel_steps() -> list[CheckStep]:
    """Check switches that often keep sandboxes from starting; not required."""
    steps = []
    for switch, bad, name in _SWITCHES:
        try:
            with open("/proc/sys/" + switch.replace(".", "/"), encoding="ascii") as file:
                value = file.read().strip()
        except OSError:
            continue
        ok = value != bad
        remedy = "" if ok else f"run: sysctl {switch}={'15000' if switch.startswith('user.') else 1 - int(bad)}"
        steps.append(CheckStep(name, ok, f"{switch} = {value}", remedy, required=False))
    if why := why_not_sealed(f"Linux version {os.uname().release}"):
        detail = f"{why}: a sandbox does not start where a protected name is a symbolic link"
        remedy = f"boot Linux {_OLDEST} or newer"
        steps.append(CheckStep("read-only trees", False, detail, remedy, required=False, slug="kernel_too_old"))
    return steps


_CANARY = """
import errno, os, socket, sys
d = sys.argv[1]
def refused(f, *codes):
    try: f()
    except OSError as e: return e.errno in codes
    return False
print("write", int(refused(lambda: open(d + "/new", "w"), errno.EROFS, errno.EACCES)))
print("read", int(refused(lambda: open(d + "/secret"), errno.EACCES)))
print("processes", int(len([p for p in os.listdir("/proc") if p.isdecimal()]) <= 2))
print("network", int([n for _, n in socket.if_nameindex()] == ["lo"]))
"""
_CANARY_STEPS = {
    "write": ("writes are refused", "a file could be created in a read-only directory"),
    "read": ("denied reads are refused", "a denied file could be read"),
    "processes": ("processes of the host are hidden", "the sandbox sees the host's processes"),
    "network": ("the network is separate", "the sandbox has the host's network interfaces"),
}


def _enforcement_steps(bwrap: str, options: Sequence[str]) -> list[CheckStep]:
    """Check that a started sandbox also enforces: a layer may silently do nothing."""
    with tempfile.TemporaryDirectory(prefix="sandboxd-check-", dir="/var/tmp") as directory:
        secret, mask = os.path.join(directory, "secret"), os.path.join(directory, "mask")
        for path, mode in ((secret, 0o600), (mask, 0)):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        try:
            text = try_sandbox(
                bwrap,
                [*options, "--ro-bind", mask, secret],
                [sys.executable, "-I", "-S", "-c", _CANARY, directory],
            )
        except HostError as error:
            return [CheckStep("enforcement", False, error.message, error.hint, slug=error.slug)]
    held = dict(line.split() for line in text.splitlines())
    return [
        CheckStep(name, held.get(name) == "1", good if held.get(name) == "1" else bad, slug=f"canary_{name}")
        for name, (good, bad) in _CANARY_STEPS.items()
    ]
