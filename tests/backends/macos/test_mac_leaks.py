"""Leaks that public profiles had, each closed in thousands of generated policies; and everyday work, open in all."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandboxd.backends.macos.seatbelt.case_folding import _ASCII, fold
from sandboxd.backends.macos.seatbelt.dialect import CONSTRUCTS, DOMAIN, REGEX, TIOCSTI
from sandboxd.backends.macos.seatbelt.path_spellings import real_spelling
from sandboxd.errors import PolicyError
from sandboxd.host.fact_source import HostFacts
from sandboxd.host.resolve import disk_path
from sandboxd.plan.host_queries import HostQueries
from sandboxd.policy.model import FilePolicy, NetworkPolicy, PlatformPolicy, PortRange
from sandboxd.policy.paths.protected_names import ProtectedIn, rows
from support.dictionary_host import DIRECTORY, FILE
from support.mac_leaks import CONTROL_PATHS, FoldingDisk, _stand_ins, another_spelling, same_name
from support.sbpl import Request, connect, file, mach, named
from support.sbpl_regex import compile_regex
from support.seatbelt import (
    DARWIN_C,
    DARWIN_T,
    HOME,
    HTTP_PORT,
    PROJECT,
    RUNTIME,
    Compiled,
    compiled,
    problems,
    rules,
    sockets,
    use_socket,
)

POLICIES = int(os.environ.get("SANDBOXD_LEAK_SEEDS", "160"))
"""More of them: thousands take minutes."""
SHARES = 4
NAMES = ("documents", "Keys", "fisk", "Straße", "café", "HEAD", "a.b", "Klasse", "ﬁle", "ss")
REFUSED = [frozenset[str](), frozenset[str](), frozenset({REGEX})]
PROTECTED = [row.name for row in rows(ProtectedIn.WORKSPACE) if "*" not in row.name]


def file_world(rng: random.Random) -> tuple[Compiled, list[str], list[str], list[str]]:
    """A profile, and paths that it refuses to write, to read, and that it allows to write."""
    absent = rng.sample(NAMES, 3)
    present = rng.sample([name for name in NAMES if name not in absent], 2)
    host = {f"{HOME}/{name}/key": FILE for name in present} | {f"{PROJECT}/src/{name}": FILE for name in present}
    if rng.random() < 0.5:
        host |= {f"{PROJECT}/.git/HEAD": FILE, f"{PROJECT}/.git/config": FILE}
    files = FilePolicy(
        deny_write=rules(f"{PROJECT}/{absent[0]}", f"{PROJECT}/{absent[1]}/deep/er"),
        deny_read=rules(another_spelling(f"{HOME}/{present[0]}", rng), f"{PROJECT}/{absent[2]}", f"{PROJECT}/**/*.pem"),
        allow_write=rules(another_spelling(f"{HOME}/{present[1]}", rng)),
    )
    made = compiled(files, host=host, only_files=True, disk=FoldingDisk, refused=rng.choice(REFUSED))
    git = rng.choice([".git", "sub/.git", ".git/modules/lib"])
    closed = [f"{PROJECT}/{name}" for name in (absent[0], f"{absent[1]}/deep/er", absent[2], "x/key.pem", "HEAD")]
    if f"{PROJECT}/.git/HEAD" in host:
        closed.pop()  # it is not needed any more
    closed += [f"{PROJECT}/{rng.choice(['', 'x/'])}{rng.choice(PROTECTED)}", f"{PROJECT}/{git}/hooks/pre-commit"]
    unread = [f"{HOME}/{present[0]}/key"]
    opened = [f"{HOME}/{present[1]}/key", f"{PROJECT}/src/{present[0]}", f"{PROJECT}/heading", f"{PROJECT}/git/hooks"]
    return made, closed, unread, opened


@pytest.mark.parametrize("share", range(SHARES))
def test_no_spelling_of_a_name_leaks(share: int) -> None:
    """The kernel asks about an existing path as the disk spells it, and about a new name as it was typed."""
    for seed in range(share, POLICIES, SHARES):
        rng = random.Random(seed)
        made, closed, unread, opened = file_world(rng)
        for path in closed:
            typed = made.host.where(another_spelling(path, rng)).real
            assert not made.writes(typed) and not made.makes(typed), (seed, path, typed)
        for path in unread:
            typed = made.host.where(another_spelling(path, rng)).real
            assert not made.reads(typed) and not made.writes(typed), (seed, path, typed)
        for path in opened:
            assert made.writes(made.host.where(another_spelling(path, rng)).real), (seed, path)


OWN = "/dev/ttys007"


def device(operation: str, name: str, **values: object) -> Request:
    return file(operation, f"/dev/{name}", "CHARACTER-DEVICE", **values)


def by_name(operation: str, name: str) -> Request:
    return named(operation, "ipc-posix-name", name)


NEVER = [
    *(device("file-read-data", name) for name in
      "ttys003 tty.usb cu.modem bpf0 disk0 rdisk1 auditpipe klog oslog pf fsevents".split()),
    *(device("file-write-data", name) for name in ("ttys003", "cu.modem", "bpf0", "rdisk1")),
    device("file-ioctl", "ttys007", **{"ioctl-command": 0x80017472}),
    device("file-ioctl", "ttys003", **{"ioctl-command": 0x80017472, "extension": "com.apple.sandbox.pty"}),
    device("file-ioctl", "tty", **{"ioctl-command": 0x80017472}), device("file-ioctl", "bpf0"),
    *(named("user-preference-read", "preference-domain", name) for name in ("com.apple.Safari", "com.example.x")),
    by_name("ipc-posix-shm-read-data", "/com.example.x"), by_name("ipc-posix-shm-write-data", "apple.cfprefs.501v1"),
    by_name("ipc-posix-shm-write-create", "apple.shm.notification_center"),
    named("sysctl-read", "sysctl-name", "kern.procargs2.77"), Request("user-preference-write"), Request("ipc-sysv-shm"),
    mach("com.apple.sysmond"), mach("com.apple.dnssd.service"), connect("203.0.113.7", 443), connect("10.0.0.7", 80),
]  # fmt: skip
"""Closed under every switch."""

EVERYDAY = [
    file("file-write-create", f"{DARWIN_T}/sandboxd-d-1-s-1/tmp.Xy"),
    file("file-read-data", f"{DARWIN_C}/sandboxd-d-1-s-1/x"),
    file("file-write-create", f"{DARWIN_C}/sandboxd-d-1-s-1", "DIRECTORY"), device("file-ioctl", "ttys007"),
    device("file-ioctl", "ttys003"), file("file-read-data", OWN, "CHARACTER-DEVICE"),
    file("file-write-data", OWN, "CHARACTER-DEVICE"), device("file-read-metadata", "ttys003"),
    *(device(operation, "dtracehelper") for operation in ("file-read-data", "file-write-data", "file-ioctl")),
    *(mach(f"com.apple.{name}") for name in ("SystemConfiguration.configd", "SystemConfiguration.DNSConfiguration",
                                             "FSEvents", "cfprefsd.agent", "bsd.dirhelper")),
    *(named("sysctl-write", "sysctl-name", name) for name in ("kern.grade_cputype", "kern.tcsm_enable")),
    *(named("sysctl-read", "sysctl-name", name) for name in ("hw.model", "kern.boottime", "hw.optional.neon",
      "sysctl.proc_translated", "hw.cachelinesize", "hw.l1dcachesize", "hw.l2cachesize", "vm.swapusage", "hw.ncpu")),
    Request("ipc-sysv-sem"), Request("ipc-posix-sem-open"),
    by_name("ipc-posix-shm-write-create", "/__KMP_REGISTERED_LIB_7"),
    by_name("ipc-posix-shm-write-create", "/psm_1"), by_name("ipc-posix-shm-read-data", "apple.cfprefs.501v1"),
    by_name("ipc-posix-shm-read-data", "apple.shm.notification_center"),
    named("user-preference-read", "preference-domain", "kCFPreferencesAnyApplication"),
    connect("127.0.0.1", HTTP_PORT), connect("::1", HTTP_PORT), file("file-read-data", "/dev/urandom"),
    file("file-read-data", "/dev", "DIRECTORY"), file("file-map-executable", "/usr/lib/dyld"),
]  # fmt: skip
"""Open without any switch."""
KEYCHAIN = [mach("com.apple.SecurityServer"), mach("com.apple.securityd.xpc")]


def switched(rng: random.Random) -> tuple[NetworkPolicy, PlatformPolicy]:
    def some() -> bool:
        return rng.random() < 0.5

    network = NetworkPolicy(
        allow_local_binding=some(), allow_all_unix_sockets=some(), control_sockets=(f"{HOME}/named.sock",),
        allow_unix_sockets=sockets(f"{HOME}/s") if some() else (),
        allow_mach_lookup=("com.example.*",) if some() else (),
        allow_local_ports=(PortRange(1, 65535),) if some() else (),
    )  # fmt: skip
    return network, PlatformPolicy(
        weaker_network_isolation=some(), allow_apple_events=some(), allow_pty=some(), keychain=some()
    )


@pytest.mark.parametrize("share", range(SHARES))
def test_no_switch_opens_a_leak_or_ends_everyday_work(share: int) -> None:
    """In every dialect of the language, too."""
    for seed in range(share, POLICIES // 2, SHARES):
        rng = random.Random(seed)
        network, platform = switched(rng)
        refused = frozenset(one.name for one in CONSTRUCTS if rng.random() < 0.2) - {DOMAIN}
        made = compiled(network=network, platform=platform, user_directories=(DARWIN_T, DARWIN_C), refused=refused)
        assert problems(made, apple_events=platform.allow_apple_events) == [] or refused, seed
        relayed = [one for one in NEVER if TIOCSTI in refused and "ioctl-command" in one.values]
        for one in NEVER:
            assert not made.allows(one) or one in relayed, (seed, one, refused)
        for path in (*CONTROL_PATHS, f"{HOME}/named.sock", f"{RUNTIME}/sandboxd.sock"):
            assert not made.allows(use_socket(real_spelling(path))), (seed, path)
        for one in EVERYDAY:
            assert made.allows(one), (seed, one)
        assert all(made.allows(one) is platform.keychain for one in KEYCHAIN)
        opened = made.allows(device("file-write-data", "ttys009", extension="com.apple.sandbox.pty"))
        assert opened is (platform.allow_pty and "extension" not in refused)


def test_a_directory_of_another_session_stays_closed() -> None:
    made = compiled(user_directories=(DARWIN_T, DARWIN_C))
    for path in (f"{DARWIN_T}/sandboxd-d-1-s-2/x", f"{DARWIN_C}/sandboxd-d-2-s-1/x"):
        assert not made.reads(path) and not made.makes(path)
    assert made.reads(f"{DARWIN_T}/other") and not made.makes(f"{DARWIN_T}/other")


def test_a_device_that_a_rule_names_is_open() -> None:
    made = compiled(FilePolicy(allow_write=rules("/dev/cu.usbserial")), host={"/dev/cu.usbserial": FILE})
    assert made.reads("/dev/cu.usbserial") and made.writes("/dev/cu.usbserial") and not made.reads("/dev/cu.modem")


def test_directories_on_the_way_to_an_absent_name_stay() -> None:
    made = compiled(FilePolicy(deny_write=rules(f"{PROJECT}/kit/conf")), host={f"{PROJECT}/a": DIRECTORY})
    for name in ("kit", "KIT", "\u212aiT"):
        assert not made.makes(f"{PROJECT}/{name}")  # a directory that holds `conf` could be renamed to it
    assert made.makes(f"{PROJECT}/kit2")


def test_what_folds_to_ascii_is_known() -> None:
    found = {text: set(one) for text, one in _stand_ins().items() if text.isascii()}
    for text, characters in found.items():
        own = {character for character in characters if not character.isascii()}
        assert own == set(_ASCII.get(text, "")), text


@pytest.mark.parametrize("name", [*NAMES, "ffiffl", "sssssssst", "Ελλάς", "한글", "ệ", "\u0390", "a;b`c"])
def test_an_expression_covers_each_spelling(name: str) -> None:
    rng = random.Random(name)
    pattern = compile_regex(f"^{fold(name)}$")
    for _ in range(200):
        spelled = another_spelling(name, rng)
        assert pattern.search(spelled), spelled
    assert same_name(name) == same_name(another_spelling(name, rng))
    assert not pattern.search("") and not re.search(r"(?<!\\)\.", fold(name))


def test_an_absent_path_too_long_for_an_expression_is_wider() -> None:
    """Fails closed: the first places of it are refused with all below."""
    long = "/".join(["directory-with-a-name"] * 20)
    made = compiled(FilePolicy(deny_write=rules(f"{PROJECT}/{long}", f"{PROJECT}/{'n' * 250}")), only_files=True)
    for path in (long, long.upper(), "n" * 250, "N" * 250):
        assert not made.makes(f"{PROJECT}/{path}")
    assert made.makes(f"{PROJECT}/other")


@pytest.mark.parametrize("answer", ["path", "another name", "refused"])
def test_an_existing_path_is_spelled_as_on_the_disk(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By F_GETPATH; where that does not tell, by the directory's list."""
    (tmp_path / "Keys").write_text("")
    os.link(tmp_path / "Keys", tmp_path / "other")

    def getpath(descriptor: int, command: int, room: bytes) -> bytes:
        assert command == 50
        if answer == "refused":
            raise PermissionError(1, "Operation not permitted")
        return os.fsencode(tmp_path / ("Keys" if answer == "path" else "other")) + b"\0rest"

    monkeypatch.setattr("sandboxd.host.resolve.ON_MACOS", True)
    monkeypatch.setattr("sandboxd.host.resolve.fcntl", SimpleNamespace(fcntl=getpath))
    assert disk_path(str(tmp_path / "\u212aeys")) == str(tmp_path / "Keys")
    monkeypatch.setattr("sandboxd.host.resolve.ON_MACOS", False)
    assert disk_path(str(tmp_path / "keys")) == str(tmp_path / "keys")


async def test_a_place_that_macos_closes_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never absent: a command with more rights than the daemon would find it unprotected."""
    closed = tmp_path / "Documents" / "x"
    closed.mkdir(parents=True)
    monkeypatch.setattr("sandboxd.host.resolve.ON_MACOS", True)
    usual: Callable[..., Any] = os.lstat
    usual_list: Callable[..., Any] = os.scandir

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(path: Any, *arguments: Any, **keywords: Any) -> Any:
            if str(path).startswith(str(closed)):
                raise PermissionError(1, "Operation not permitted", path)
            return call(path, *arguments, **keywords)

        return guarded

    monkeypatch.setattr(os, "lstat", refusing(usual))
    monkeypatch.setattr(os, "scandir", refusing(usual_list))
    facts = HostFacts()
    for needs in (HostQueries(paths=(f"{closed}/y",)), HostQueries(globs=(f"{tmp_path}/Documents/**/*.pem",))):
        with pytest.raises(PolicyError) as caught:
            await facts.answer(needs)
        assert caught.value.slug == "full_disk_access" and "Full Disk Access" in caught.value.hint
    assert (await facts.answer(HostQueries(paths=(str(tmp_path / "none"),)))).paths
    facts.close()
