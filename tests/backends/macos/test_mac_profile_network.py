"""Network and switches in profiles. F-numbers are those of the collected cases."""

from __future__ import annotations

import pytest

from sandboxd.backends.macos.seatbelt.path_spellings import real_spelling
from sandboxd.backends.macos.seatbelt.profile import MAX_PORTS
from sandboxd.errors import PolicyError
from sandboxd.policy.model import NetworkPolicy, PlatformPolicy, PortRange
from support.dictionary_host import DIRECTORY, FILE
from support.mac_leaks import CONTROL_PATHS
from support.sbpl import Request, connect, file, mach
from support.seatbelt import (
    AF_UNIX,
    HOME,
    LOOPBACK,
    RUNTIME,
    accept,
    bind,
    compiled,
    problems,
    sockets,
    use_socket,
)

PLAIN = compiled()


# the network


def test_without_domains_there_is_no_network() -> None:
    """The proxies decide what may be reached; the profile never opens more."""
    for network in (NetworkPolicy(), NetworkPolicy(allowed=()), NetworkPolicy(transparent=False)):
        made = compiled(network=network)
        assert not made.allows(connect("203.0.113.1", 443)) and not made.allows(LOOPBACK)


def test_local_binding() -> None:
    """Wants bind without outbound, and the design wins: test servers have to be talked to. Outbound
    means this machine, never another one."""
    made = compiled(network=NetworkPolicy(allow_local_binding=True))
    assert made.allows(bind(0)) and made.allows(bind(3000, "0.0.0.0")) and made.allows(accept(3000))
    assert made.allows(LOOPBACK)
    assert not made.allows(connect("203.0.113.1", 443))
    assert not made.allows(use_socket("/private/tmp/x.sock", "network-bind"))
    assert problems(made) == []
    assert any("allowLocalBinding" in warning for warning in made.layout.warnings)
    assert not PLAIN.layout.warnings


def test_listed_ports() -> None:
    """A login flow calls back on a listed port. Nothing else is opened by it."""
    made = compiled(network=NetworkPolicy(allow_local_ports=(PortRange(5432, 5432), PortRange(8000, 8002))))
    for port in (5432, 8000, 8002):
        assert made.allows(connect("127.0.0.1", port)) and made.allows(bind(port)) and made.allows(accept(port))
    for port in (5431, 8003):
        assert not made.allows(connect("127.0.0.1", port)) and not made.allows(bind(port))
    assert not made.allows(bind(5432, "0.0.0.0")) and not made.allows(connect("203.0.113.1", 5432))
    assert problems(made) == []


def test_all_ports_and_too_many() -> None:
    made = compiled(network=NetworkPolicy(allow_local_ports=(PortRange(1, 65535),)))
    assert made.allows(connect("127.0.0.1", 1)) and not made.allows(connect("203.0.113.1", 1))
    for ranges in ((PortRange(1000, 1000 + MAX_PORTS),), (PortRange(1, 2000), PortRange(3000, 5000))):
        with pytest.raises(PolicyError) as caught:
            compiled(network=NetworkPolicy(allow_local_ports=ranges))
        assert caught.value.slug == "port_range_too_long"


def test_listed_unix_sockets() -> None:
    made = compiled(
        network=NetworkPolicy(allow_unix_sockets=sockets("/run/docker.sock", f"{HOME}/s", "/tmp/link.sock")),
        host={f"{HOME}/s": DIRECTORY, "/private/tmp/link.sock": f"-> {HOME}/real.sock", f"{HOME}/real.sock": FILE},
    )
    for path in ("/private/var/run/docker.sock", f"{HOME}/s/x.sock", f"{HOME}/real.sock", "/tmp/link.sock"):
        assert made.allows(use_socket(path)) and made.allows(use_socket(path, "network-bind")), path
    assert made.allows(AF_UNIX)
    assert not made.allows(use_socket(f"{HOME}/other.sock")) and not made.allows(LOOPBACK)
    assert problems(made) == []


def test_all_unix_sockets() -> None:
    """Connect, bind and accept. Control sockets and the daemon's own stay closed."""
    made = compiled(network=NetworkPolicy(allow_all_unix_sockets=True, control_sockets=(f"{HOME}/named.sock",)))
    for operation in ("network-outbound", "network-bind", "network-inbound"):
        assert made.allows(use_socket("/private/tmp/tsx-501/1.pipe", operation))
    for path in (*CONTROL_PATHS, f"{HOME}/.docker/run/docker.sock", f"{RUNTIME}/sandboxd.sock", f"{HOME}/named.sock"):
        assert not made.allows(use_socket(real_spelling(path))), path
    for path in (f"{HOME}/app-main.sock", f"{HOME}/agent.sock", "/private/var/run/postgres/.s.PGSQL.5432"):
        assert made.allows(use_socket(path)), path
    assert problems(made) == []
    one = compiled(
        network=NetworkPolicy(
            allow_all_unix_sockets=True, allow_unix_sockets=sockets(f"{HOME}/.gnupg/S.gpg-agent", RUNTIME)
        )
    )
    assert one.allows(use_socket(f"{HOME}/.gnupg/S.gpg-agent"))
    assert not one.allows(use_socket(f"{RUNTIME}/sandboxd.sock"))
    assert not one.allows(use_socket(f"{HOME}/.docker/run/docker.sock"))


# switches: each with a visible and minimal effect

SWITCHES = {
    "trustd": (
        PlatformPolicy(weaker_network_isolation=True), NetworkPolicy(), [mach("com.apple.trustd.agent")],
    ),
    "apple events": (
        PlatformPolicy(allow_apple_events=True), NetworkPolicy(),
        [Request("appleevent-send"), Request("lsopen"), mach("com.apple.coreservices.appleevents"),
         mach("com.apple.CoreServices.coreservicesd"), mach("com.apple.coreservices.quarantine-resolver")],
    ),
    "pty": (
        PlatformPolicy(allow_pty=True), NetworkPolicy(),
        [Request("pseudo-tty"), file("file-write-data", "/dev/ptmx", "CHARACTER-DEVICE"),
         file("file-ioctl", "/dev/ptmx", "CHARACTER-DEVICE"),
         file("file-write-data", "/dev/ttys003", "CHARACTER-DEVICE", extension="com.apple.sandbox.pty")],
    ),
    "mach lookup": (
        PlatformPolicy(), NetworkPolicy(allow_mach_lookup=("com.example.a", "org.chromium.b.*")),
        [mach("com.example.a"), mach("org.chromium.b.77")],
    ),
    "mach register": (
        PlatformPolicy(),
        NetworkPolicy(allow_mach_register=("org.chromium.Chromium.MachPortRendezvousServer.*",)),
        [mach("org.chromium.Chromium.MachPortRendezvousServer.4711", "mach-register")],
    ),
}  # fmt: skip

EVERYTHING = [
    *(one for _, _, opened in SWITCHES.values() for one in opened),
    mach("com.example.ab"), mach("com.example"), mach("org.chromium.b"), mach("com.apple.trustd"),
    mach("com.apple.trustd.agent.x"), mach("com.apple.trustd.agent", "mach-register"),
    mach("com.example.a", "mach-register"), mach("org.chromium.Chromium.MachPortRendezvousServer.1"),
    mach("org.chromium.other.1", "mach-register"),
    file("file-write-data", "/dev/ttys003", "CHARACTER-DEVICE"),
    LOOPBACK, bind(80), AF_UNIX, connect("203.0.113.1", 443), file("file-write-data", f"{HOME}/x"),
    file("file-write-data", "/dev/disk0"), Request("job-creation"), Request("file-mount"),
]  # fmt: skip


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_opens_what_it_says_and_nothing_else(name: str) -> None:
    platform, network, opened = SWITCHES[name]
    made = compiled(network=network, platform=platform)
    for request_ in EVERYTHING:
        assert made.allows(request_) is (request_ in opened), request_
        assert not PLAIN.allows(request_)
    assert problems(made, apple_events=name == "apple events") == []


TOO_BROAD = ["*", "c*", "com*", "com.*", "a*b", 'x") (allow default', "with space", "", "com.x*.y*"]


@pytest.mark.parametrize("name", TOO_BROAD)
def test_service_names_that_are_too_broad_or_none(name: str) -> None:
    with pytest.raises(PolicyError) as caught:
        compiled(network=NetworkPolicy(allow_mach_lookup=(name,)))
    assert caught.value.slug == "mach_name_invalid"


def test_an_override_for_one_command_changes_that_profile_alone() -> None:
    """A profile is a function of the policy; there is nothing to be left over."""
    before = compiled().source
    opened = compiled(platform=PlatformPolicy(weaker_network_isolation=True)).source
    assert opened.text != before.text
    assert compiled().source == before
