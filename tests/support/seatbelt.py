"""Profiles in tests: from a policy and a fake host to a compiled profile that answers questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sandboxd.backends.macos.planner import SeatbeltView, list_seatbelt_needs, make_seatbelt_layout
from sandboxd.backends.macos.seatbelt.profile import Profile as SeatbeltProfile
from sandboxd.backends.macos.seatbelt.rule_files import read_rule_file
from sandboxd.plan.plan import Layout
from sandboxd.plan.request import Place
from sandboxd.policy.model import FilePolicy, NetworkPolicy, PathRule, PlatformPolicy, Policy, PortRange, SocketRule
from sandboxd.settings.origins import BUILT_IN, Origin, Source
from support.dictionary_host import DIRECTORY, FILE, DictionaryHost
from support.sbpl import Endpoint, Profile, Request, compile_profile, connect, file, named
from support.sbpl_lint import lint

HOME = "/Users/me"
PROJECT = "/Users/me/project"
BASE = "/private/var/folders/xy/T/sandboxd-tmp-501/d-1"
SESSION_TMP = f"{BASE}/s-1"
RUNTIME = "/private/var/folders/xy/T/sandboxd"
DAEMON = "/opt/sandboxd"
DARWIN_T, DARWIN_C = "/private/var/folders/xy/T", "/private/var/folders/xy/C"
OWN_TERMINAL = "/dev/ttys007"
TAG, MEMBER, HTTP_PORT, SOCKS_PORT = "CMD64_Yw==_END_suffix", "dev.sandboxd.member.x", 50001, 50002

SYSTEM = {
    "/bin/bash": FILE, "/bin/sh": FILE, "/usr/bin/true": FILE, "/dev/null": FILE,
    "/tmp": "-> /private/tmp", "/var": "-> /private/var", "/etc": "-> /private/etc",
    "/private/tmp": DIRECTORY, "/private/etc/hosts": FILE, SESSION_TMP: DIRECTORY, RUNTIME: DIRECTORY,
    f"{DAEMON}/lib": DIRECTORY, PROJECT: DIRECTORY,
}  # fmt: skip


def rule(path: str, source: Source = Source.USER) -> PathRule:
    return PathRule(path, Origin(source, "test"), any(c in path for c in "*?["), path)


def rules(*paths: str) -> tuple[PathRule, ...]:
    return tuple(rule(path) for path in paths)


def place(**changes: object) -> Place:
    usual = Place(
        cwd=PROJECT, project_root=PROJECT, session_tmp=SESSION_TMP, home=HOME, uid=501, runtime_dir=RUNTIME,
        mask_file=f"{BASE}/denied", temporary_base=BASE, daemon_paths=(DAEMON,),
    )  # fmt: skip
    return replace(usual, **changes)  # type: ignore[arg-type]


def _no_fixed_rules(name: str) -> str:
    return '(version 1) (deny default (with message (param "TAG")))' if name == "base" else ""


@dataclass
class Compiled:
    """A profile with what it came from."""

    source: SeatbeltProfile
    profile: Profile
    layout: Layout
    host: DictionaryHost = field(repr=False)

    def reads(self, path: str, vnode: str = "REGULAR-FILE") -> bool:
        return self.profile.allows(file("file-read-data", path, vnode))

    def writes(self, path: str) -> bool:
        """Every way of changing what stands at a path, all with the same answer."""
        answers = {
            operation: self.profile.allows(file(operation, path))
            for operation in ("file-write-data", "file-write-mode", "file-write-xattr", "file-write-owner")
        }
        assert len(set(answers.values())) == 1, answers
        return answers["file-write-data"]

    def moves(self, path: str, vnode: str = "DIRECTORY") -> bool:
        """Whether what stands at a path can be renamed or removed."""
        return self.profile.allows(file("file-write-unlink", path, vnode))

    def makes(self, path: str) -> bool:
        return self.profile.allows(file("file-write-create", path))

    def allows(self, request: Request) -> bool:
        return self.profile.allows(request)


def given(profile: SeatbeltProfile, refused: frozenset[str] = frozenset()) -> tuple[str, dict[str, str]]:
    """What `sandbox-exec` would be given, read back from its arguments, with the terminal that a supervisor names."""
    words = profile.arguments(tag=TAG, member=MEMBER, http_port=HTTP_PORT, socks_port=SOCKS_PORT, refused=refused)
    assert words[0] == "-p" and set(words[2::2]) == {"-D"}
    return words[1], {**dict(word.split("=", 1) for word in words[3::2]), "TERMINAL": OWN_TERMINAL}


def parameters_of(profile: SeatbeltProfile) -> dict[str, str]:
    return given(profile)[1]


def compiled(
    files: FilePolicy | None = None,
    network: NetworkPolicy | None = None,
    platform: PlatformPolicy | None = None,
    *,
    host: dict[str, str] | None = None,
    where: Place | None = None,
    only_files: bool = False,
    disk: Callable[[Mapping[str, str]], DictionaryHost] = DictionaryHost,
    user_directories: tuple[str, ...] = (),
    refused: frozenset[str] = frozenset(),
) -> Compiled:
    """`host` are entries beside the usual ones. `only_files` leaves the fixed rules out, which is quick. `refused` are
    constructs of the language that this macOS has not."""
    policy = Policy(
        files=files or FilePolicy(), network=network or NetworkPolicy(), platform=platform or PlatformPolicy()
    )
    fake = disk({**SYSTEM, **(host or {})})
    here = where or place()
    facts = fake.facts(list_seatbelt_needs(policy, here))
    read_file = _no_fixed_rules if only_files else read_rule_file
    layout = make_seatbelt_layout(policy, here, facts, read_file=read_file, user_directories=user_directories)
    assert isinstance(layout.view, SeatbeltView)
    source = layout.view.profile
    text, parameters = given(source, refused)
    assert text.isascii()
    profile = compile_profile(text, parameters)
    unused = set(parameters) - profile.used_parameters
    assert only_files or not unused, f"parameters that no rule uses: {unused}"
    return Compiled(source, profile, layout, fake)


def every_switch() -> tuple[str, dict[str, str]]:
    """A profile with every construct that there is, and its parameters."""
    made = compiled(
        FilePolicy(deny_read=rules(f"{HOME}/x", f"{HOME}/**/*.y"), allow_write=rules(f"{HOME}/w/*")),
        NetworkPolicy(
            allow_local_binding=True, allow_all_unix_sockets=True, allow_unix_sockets=sockets("/x"),
            allow_mach_lookup=("a.b.*",), allow_mach_register=("a.c",), allow_local_ports=(PortRange(1, 2),),
        ),
        PlatformPolicy(weaker_network_isolation=True, allow_apple_events=True, allow_pty=True),
        user_directories=(DARWIN_T, DARWIN_C),
    )  # fmt: skip
    return given(made.source)


def problems(made: Compiled, *, apple_events: bool = False) -> list[str]:
    return lint(made.source.text, parameters_of(made.source), apple_events=apple_events)


def sockets(*paths: str) -> tuple[SocketRule, ...]:
    return tuple(SocketRule(path, BUILT_IN) for path in paths)


def bind(port: int, host: str = "127.0.0.1") -> Request:
    return Request("network-bind", local=Endpoint(host, port))


def accept(port: int) -> Request:
    return Request("network-inbound", local=Endpoint("127.0.0.1", port), remote=Endpoint("127.0.0.1", 40000))


def use_socket(path: str, operation: str = "network-outbound") -> Request:
    return Request(operation, path=path)


AF_UNIX = named("system-socket", "socket-domain", "AF_UNIX")
LOOPBACK = connect("127.0.0.1", 5432)
