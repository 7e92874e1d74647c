"""What every profile opens and refuses, and how it is handed over. F-numbers are those of the collected cases."""

from __future__ import annotations

import re

import pytest

from sandboxd.backends.macos.seatbelt.profile import make_profile
from sandboxd.backends.macos.seatbelt.rule_files import read_rule_file
from sandboxd.policy.model import FilePolicy, NetworkPolicy, PlatformPolicy, PortRange
from support.dictionary_host import FILE
from support.sbpl import Request, connect, file, mach, named
from support.sbpl_lint import RULE_FILES
from support.seatbelt import (
    AF_UNIX,
    HOME,
    HTTP_PORT,
    LOOPBACK,
    PROJECT,
    RUNTIME,
    SESSION_TMP,
    SOCKS_PORT,
    TAG,
    accept,
    bind,
    compiled,
    problems,
    rules,
    sockets,
    use_socket,
)

PLAIN = compiled()


# what every program needs, and nothing else


@pytest.mark.parametrize(
    "request_",
    [
        Request("process-exec"),
        Request("process-exec-interpreter"),
        Request("process-fork"),
        named("signal", "target", "same-sandbox"),
        named("process-info-pidinfo", "target", "same-sandbox"),
        named("mach-priv-task-port", "target", "same-sandbox"),
        named("user-preference-read", "preference-domain", "kCFPreferencesAnyApplication"),
        Request("ipc-posix-sem-open"),
        Request("ipc-posix-sem-wait"),
        Request("iokit-get-properties"),
        named("iokit-open", "iokit-registry-entry-class", "RootDomainUserClient"),
        named("iokit-open", "iokit-registry-entry-class", "IOSurfaceRootUserClient"),
        named("iokit-open", "iokit-user-client-class", "IOSurfaceSendRight"),
        Request("distributed-notification-post"),
        Request("system-socket", values={"socket-domain": "AF_SYSTEM", "socket-protocol": 2}),
        named("sysctl-write", "sysctl-name", "kern.tcsm_enable"),
        mach("com.apple.SecurityServer"),
        mach("com.apple.system.opendirectoryd.libinfo"),
        mach("com.apple.cfprefsd.agent"),
        mach("com.apple.system.notification_center"),
        file("file-read-data", "/usr/lib/libSystem.B.dylib"),
        file("file-map-executable", "/usr/lib/libSystem.B.dylib"),
        file("file-read-metadata", "/Users", "DIRECTORY"),
        file("file-read-metadata", "/private/var", "DIRECTORY"),
        file("file-write-data", "/dev/null", "CHARACTER-DEVICE"),
        file("file-read-data", "/dev/urandom", "CHARACTER-DEVICE"),
        file("file-write-data", "/dev/tty", "CHARACTER-DEVICE"),
        file("file-write-data", "/dev/fd/1", "CHARACTER-DEVICE"),
        file("file-ioctl", "/dev/tty", "CHARACTER-DEVICE"),
        file("file-ioctl", "/dev/null", "CHARACTER-DEVICE"),
        file("file-ioctl", "/dev/dtracehelper", "CHARACTER-DEVICE"),
        file("file-write-create", f"{PROJECT}/x"),
        file("file-write-create", f"{SESSION_TMP}/x"),
        connect("127.0.0.1", HTTP_PORT),
        connect("127.0.0.1", SOCKS_PORT),
    ],
    ids=lambda one: f"{one.operation} {one.subject}",
)
def test_what_ordinary_programs_do_is_allowed(request_: Request) -> None:
    assert PLAIN.allows(request_)


SYSCTLS = """kern.sysv.semmni hw.ncpu hw.activecpu hw.memsize hw.pagesize_compat hw.perflevel0.name hw.optional.armv8_1
    kern.osproductversion kern.proc.pid.123 kern.usrstack64 machdep.cpu.brand_string machdep.cpu.core_count
    net.routetable.0 security.mac.lockdown_mode_state sysctl.proc_cputype vm.loadavg kern.argmax""".split()


@pytest.mark.parametrize("name", SYSCTLS)
def test_facts_about_the_machine_can_be_read(name: str) -> None:
    assert PLAIN.allows(named("sysctl-read", "sysctl-name", name))


@pytest.mark.parametrize(
    "request_",
    [
        named("signal", "target", "others"),
        named("process-info-pidinfo", "target", "others"),
        named("mach-priv-task-port", "target", "others"),
        named("sysctl-read", "sysctl-name", "kern.procargs2.1"),
        named("sysctl-write", "sysctl-name", "kern.hostname"),
        Request("user-preference-write"),
        Request("nvram-set"),
        Request("file-mount"),
        Request("file-mount-update"),
        Request("file-unmount"),
        Request("file-chroot"),
        Request("job-creation"),
        Request("mach-bootstrap"),
        Request("appleevent-send"),
        Request("lsopen"),
        Request("pseudo-tty"),
        Request("iokit-set-properties"),
        named("iokit-open", "iokit-user-client-class", "AGXDeviceUserClient"),
        Request("system-privilege"),
        Request("mach-register"),
        Request("authorization-right-obtain"),
        mach("com.apple.trustd.agent"),
        mach("com.apple.coreservices.appleevents"),
        mach("com.apple.CoreServices.coreservicesd"),
        mach("com.apple.xpc.smd"),
        mach("com.apple.dnssd.service"),
        mach("com.apple.pasteboard.1"),
        mach("com.apple.SecurityServer.other"),
        mach("com.apple.windowserver.active"),
        mach("com.apple.screencapture.interactive"),
        mach("com.apple.distributed_notifications@1v3"),
        AF_UNIX,
        use_socket("/private/var/run/mDNSResponder"),
        use_socket("/private/tmp/x.sock"),
        use_socket(f"{PROJECT}/x.sock", "network-bind"),
        bind(0),
        bind(3000, "0.0.0.0"),
        accept(3000),
        LOOPBACK,
        connect("203.0.113.1", 443),
        connect("203.0.113.1", HTTP_PORT),
        connect("2001:db8::1", 443),
        connect("203.0.113.1", 53, "udp"),
        file("file-write-data", f"{HOME}/x"),
        file("file-write-create", "/private/tmp/x"),
        file("file-write-data", "/dev/disk0", "BLOCK-DEVICE"),
        file("file-ioctl", "/dev/disk0", "BLOCK-DEVICE"),
        file("file-write-data", "/dev/ttys003", "CHARACTER-DEVICE"),
        file("file-read-data", f"{RUNTIME}/sandboxd.sock", "SOCKET"),
        use_socket(f"{RUNTIME}/sandboxd.sock"),
    ],
    ids=lambda one: f"{one.operation} {one.subject}",
)
def test_everything_else_is_refused_with_the_tag(request_: Request) -> None:
    """Among it pasteboard, screen, Apple events, notifications to others, Mach registration."""
    verdict = PLAIN.profile.decide(request_)
    assert not verdict.allowed
    assert verdict.message == TAG


def test_profiles_begin_with_a_refusal_of_everything() -> None:
    assert PLAIN.source.text.startswith("(version 1)\n;")
    assert re.search(r"^\(deny default", PLAIN.source.text, re.MULTILINE)
    assert problems(PLAIN) == []


def test_launch_services_can_be_looked_up_not_used() -> None:
    """Wants no look-up at all. The list of what a working profile needs has it, so the design wins; what it was
    about is closed by the operation: opening a program is `lsopen`."""
    assert PLAIN.allows(mach("com.apple.coreservices.launchservicesd"))
    assert not PLAIN.allows(Request("lsopen"))


# arguments


def test_nothing_of_a_policy_stands_in_the_text() -> None:
    made = compiled(
        FilePolicy(deny_read=rules("/Users/me/unmistakable")),
        NetworkPolicy(
            allow_unix_sockets=sockets("/x/unmistakable.sock"), allow_mach_lookup=("com.unmistakable.x",),
            allow_local_ports=(PortRange(54321, 54321),),
        ),
        host={"/Users/me/unmistakable": FILE},
    )  # fmt: skip
    assert "unmistakable" not in made.source.text and "54321" not in made.source.text
    assert str(HTTP_PORT) not in made.source.text and TAG not in made.source.text
    words = made.source.arguments(tag="t=1", member="m", http_port=1, socks_port=2)
    assert words[10:12] == ("-D", "TERMINAL=/dev/null")
    assert words[2:10] == ("-D", "TAG=t=1", "-D", "MEMBER=m", "-D", "HTTP_PORT=1", "-D", "SOCKS_PORT=2")


def test_each_value_is_one_parameter() -> None:
    values = [value for name, value in compiled().source.parameters if name.startswith("P")]
    assert len(values) == len(set(values))


# the rule files


@pytest.mark.parametrize("name", sorted(path.stem for path in RULE_FILES.glob("*.sbpl")))
def test_every_rule_file_is_read_and_gives_reasons(name: str) -> None:
    text = read_rule_file(name)
    assert text.endswith("\n")
    for block in re.split(r"\n(?=\()", text):
        if block.startswith("(") and not block.startswith("(version"):
            assert ";" in block or text[: text.index(block)].rstrip().splitlines()[-1].startswith(";"), block


def test_every_rule_file_is_used() -> None:
    used: list[str] = []

    def read(name: str) -> str:
        used.append(name)
        return read_rule_file(name)

    every = NetworkPolicy(allow_local_binding=True, allow_all_unix_sockets=True)
    make_profile((), every, PlatformPolicy(
        weaker_network_isolation=True, allow_apple_events=True, allow_pty=True), read_file=read)  # fmt: skip
    assert sorted(used) == sorted(path.stem for path in RULE_FILES.glob("*.sbpl"))
