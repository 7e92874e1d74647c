"""Converters of settings: sandbox-runtime (srt), fence, Codex, Claude Code. Each is a table of its keys."""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Callable, Mapping
from typing import Any

from sandboxd.settings.foreign.imported import (
    Act,
    Imported,
    SourcePlace,
    begin,
    close_denied,
    close_project,
    closing,
    convert,
    copied,
    left,
    nothing,
    opening,
    refused,
    texts,
    why_no_host,
    why_not_closed,
    why_not_opened,
)

_N, _F = "sandbox.network.", "sandbox.filesystem."
_PROXY = refused("a proxy of yours decides: set sandbox.network.httpProxyPort in your settings")
_LISTEN = left("programs may always listen inside; for a port that this machine reaches: run --publish")
_SOCKETS_OF_HOST = "each socket of the host needs its own decision: sandboxd allow socket PATH"
_SOCKETS = left(_SOCKETS_OF_HOST)
_WEAKER = left("it weakens the sandbox: set it in your settings where it is needed")
_ABSENT: tuple[object, ...] = (None, False, [], {}, "")


def _variables(result: Imported, entry: str, value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(one, Mapping) and one.get("name") for one in value):
        result.refuse(entry, "it is no list of variables")
        return
    result.add("sandbox.environment.remove", *(str(one["name"]) for one in value))


def _credential_files(result: Imported, entry: str, value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        result.refuse(entry, "it is no list of files")
        return
    closing(f"{_F}denyRead", why_not_closed)(result, entry, [one.get("path") for one in value])


SRT: dict[str, Act] = {
    "network.allowedDomains": opening(f"{_N}allowedDomains", why_no_host),
    "network.deniedDomains": closing(f"{_N}deniedDomains", why_no_host),
    "network.deniedDomainReasons": copied(f"{_N}deniedDomainReasons"),
    "network.strictAllowlist": nothing,
    "network.deniedResolvedAddresses": copied(f"{_N}deniedResolvedAddresses"),
    "network.allowUnixSockets": _SOCKETS,
    "network.allowAllUnixSockets": _SOCKETS,
    "network.allowLocalBinding": _LISTEN,
    "network.allowMachLookup": copied(f"{_N}allowMachLookup"),
    "network.parentProxy": left("set sandbox.network.parentProxy in your settings"),
    "network.httpProxyPort": _PROXY,
    "network.socksProxyPort": _PROXY,
    "network.mitmProxy": _PROXY,
    "network.tlsTerminate": nothing,
    "filesystem.disabled": left("files cannot be left open"),
    "filesystem.denyRead": closing(f"{_F}denyRead", why_not_closed),
    "filesystem.allowRead": opening(f"{_F}allowRead", why_not_opened),
    "filesystem.allowWrite": opening(f"{_F}allowWrite", why_not_opened),
    "filesystem.denyWrite": closing(f"{_F}denyWrite", why_not_closed),
    "filesystem.allowGitConfig": copied(f"{_F}allowGitConfig"),
    "credentials.files": _credential_files,
    "credentials.envVars": _variables,
    "credentials.allowPlaintextInject": nothing,
    "credentials.awsPairs": nothing,
    "credentials.sigv4": nothing,
    "ignoreViolations": copied("sandbox.ignoreViolations"),
    "enableWeakerNestedSandbox": _WEAKER,
    "enableWeakerNetworkIsolation": _WEAKER,
    "allowAppleEvents": _WEAKER,
    "allowPty": copied("sandbox.allowPty"),
    "mandatoryDenySearchDepth": copied("sandbox.mandatoryDenySearchDepth"),
    **dict.fromkeys(
        ("ripgrep", "seccomp", "bwrapPath", "socatPath", "javaAgentPath", "windows", "git", "$schema"), nothing
    ),
}


def from_srt(tree: Mapping[str, Any], place: SourcePlace) -> Imported:
    """Convert settings of sandbox-runtime."""
    result = begin(place)
    convert(tree, SRT, result)
    close_denied(result, "filesystem.allowWrite")
    close_project(result, "filesystem.allowWrite")
    return result


_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/proc", "/dev", "/sys")


def _deny_commands(result: Imported, entry: str, value: Any) -> None:
    for one in texts(result, entry, value):
        if any(sign in one for sign in "()*\\\n:"):
            result.refuse(f"{entry}: {one}", "this form of a command does not exist here")
        else:
            result.add("permissions.deny", f"Bash({one}:*)")


def _no_ssh(result: Imported, entry: str, value: Any) -> None:
    if value not in _ABSENT:
        result.add("permissions.deny", "Bash(ssh:*)")
        result.leave(entry, "commands over ssh are not told apart here, so ssh is denied")


def _mach(name: str) -> Act:
    return opening(f"{_N}{name}", lambda one: "it opens every service" if one == "*" else "")


FENCE: dict[str, Act] = {
    "$schema": nothing,
    "extends": refused("what it extends is not read: import the output of fence config show"),
    "allowPty": copied("sandbox.allowPty"),
    "forceNewSession": nothing,
    "command.deny": _deny_commands,
    "command.allow": left("a deny beats every allow here"),
    **dict.fromkeys(
        ("command.useDefaults", "command.runtimeExecPolicy", "command.acceptSharedBinaryCannotRuntimeDeny"), nothing
    ),
    **dict.fromkeys(
        [f"ssh.{name}" for name in "allowedHosts deniedHosts allowedCommands deniedCommands inheritDeny".split()],
        _no_ssh,
    ),
    "ssh.allowAllCommands": nothing,
    "devices.mode": nothing,
    "devices.allow": left("devices of the host need their own decision: sandbox.filesystem.allowWrite"),
    "network.allowedDomains": opening(f"{_N}allowedDomains", why_no_host),
    "network.deniedDomains": closing(f"{_N}deniedDomains", why_no_host),
    "network.allowUnixSockets": _SOCKETS,
    "network.allowAllUnixSockets": _SOCKETS,
    "network.allowLocalBinding": _LISTEN,
    "network.allowLocalOutbound": nothing,  # with its ports, below
    "network.allowLocalOutboundPorts": nothing,
    "network.httpProxyPort": nothing,
    "network.socksProxyPort": nothing,
    "network.defaultAction": nothing,
    "network.upstreamProxy": left("hosts on no list are refused, in place of a proxy that asks"),
    "filesystem.denyRead": closing(f"{_F}denyRead", why_not_closed),
    "filesystem.allowRead": opening(f"{_F}allowRead", why_not_opened),
    "filesystem.allowWrite": opening(f"{_F}allowWrite", why_not_opened),
    "filesystem.denyWrite": closing(f"{_F}denyWrite", why_not_closed),
    "filesystem.allowExecute": left("a directory that can be executed can be listed here: use allowRead"),
    "filesystem.allowGitConfig": left("versions differ in its meaning: set sandbox.filesystem.allowGitConfig"),
    "filesystem.defaultDenyRead": nothing,  # below
    "filesystem.strictDenyRead": nothing,
    "filesystem.wslInterop": nothing,
    "macos.gpu": left("the graphics processor is not opened here"),
    "macos.mach.lookup": _mach("allowMachLookup"),
    "macos.mach.register": _mach("allowMachRegister"),
}


def from_fence(tree: Mapping[str, Any], place: SourcePlace) -> Imported:
    """Convert settings of fence."""
    result = begin(place)
    convert(tree, FENCE, result)
    given = result.settings["sandbox"].setdefault("filesystem", {})
    files = _section(tree, "filesystem")
    strict = bool(files.get("strictDenyRead"))
    closed = strict or bool(files.get("defaultDenyRead"))
    opened, denied = given.pop("allowRead", []), given.get("denyRead", [])
    for path in opened:
        if not closed or any(place.is_in(path, one) for one in denied):
            result.leave(f"filesystem.allowRead: {path}", "denyRead beats it there")
        else:
            result.add(f"{_F}allowRead", path)
    close_denied(result, "filesystem.allowWrite")
    if closed:
        result.add(f"{_F}denyRead", "/")
        result.add(f"{_F}allowRead", *(() if strict else _SYSTEM), *given.get("allowWrite", []))
        close_denied(result, "filesystem.allowWrite")
    network = _section(tree, "network")
    outbound = network.get("allowLocalOutbound")
    if outbound or (outbound is None and network.get("allowLocalBinding")):
        result.add(f"{_N}allowLocalPorts", *network.get("allowLocalOutboundPorts", []))
    close_project(result, "filesystem.allowWrite")
    return result


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = tree.get(name)
    return found if isinstance(found, Mapping) else {}


_CODEX_CLOSED = (".git", ".agents", ".codex")
"""Read-only in every writable root of Codex."""
_OWN = "it belongs to the agent itself"


def from_codex(tree: Mapping[str, Any], place: SourcePlace) -> Imported:
    """Convert the sandbox settings of Codex: those of a mode, or the selected permission profile."""
    result = begin(place)
    profile = tree.get("default_permissions")
    if "profile" in tree:
        result.refuse("profile", "a profile may restrict: name its sandbox settings at the top of the file")
    if "sandbox_mode" in tree or "sandbox_workspace_write" in tree or profile is None:
        _codex_mode(result, tree, str(tree.get("sandbox_mode", "read-only")))
    elif profile in (":read-only", ":workspace", ":danger-full-access", ":danger-no-sandbox"):
        mode = {":read-only": "read-only", ":workspace": "workspace-write"}.get(profile, "danger-full-access")
        _codex_mode(result, {}, mode)
    else:
        _codex_profile(result, tree, str(profile))
    _codex_variables(result, _section(tree, "shell_environment_policy"))
    for name in ("approval_policy", "mcp_servers", "hooks", "notify"):
        if name in tree:
            result.leave(name, _OWN)
    return result


def _codex_mode(result: Imported, tree: Mapping[str, Any], mode: str) -> None:
    options = _section(tree, "sandbox_workspace_write")
    if mode == "danger-full-access":
        result.leave(
            "sandbox_mode: danger-full-access", "there is no mode without a sandbox; these settings are read-only"
        )
    elif mode not in ("read-only", "workspace-write"):
        result.refuse(f"sandbox_mode: {mode}", "it is unknown")
    if mode == "workspace-write":
        _codex_roots(
            result, ".", *texts(result, "sandbox_workspace_write.writable_roots", options.get("writable_roots", []))
        )
        if options.get("network_access"):
            result.leave("sandbox_workspace_write.network_access", "it opens every host: you are asked about each")
            result.put(f"{_N}strictAllowlist", False)
        unknown = set(options) - {"writable_roots", "network_access", "exclude_tmpdir_env_var", "exclude_slash_tmp"}
        for name in sorted(unknown):
            result.refuse(f"sandbox_workspace_write.{name}", "it is unknown, and may restrict")
    close_project(result, "writable_roots")


def _codex_roots(result: Imported, *roots: str) -> None:
    """Open roots for writing, but for the names that Codex closes in each."""
    for root in roots:
        why = why_not_opened(root) if root != "." else ""
        if why:
            result.leave(f"writable root: {root}", why)
            continue
        result.add(f"{_F}allowWrite", root)
        result.add(
            f"{_F}denyWrite", *(posixpath.join(root, name) if root != "." else f"./{name}" for name in _CODEX_CLOSED)
        )


_CODEX_PLACES = {":minimal": _SYSTEM, ":tmpdir": (), ":slash_tmp": ()}
"""Special places of a profile; the temporary ones are a session's own here."""
_CODEX_KEYS = ("description", "extends", "filesystem", "network", "workspace_roots")


def _codex_profile(result: Imported, tree: Mapping[str, Any], name: str) -> None:
    profile = _section(_section(tree, "permissions"), name)
    if not profile:
        result.refuse(f"default_permissions: {name}", f"there is no table permissions.{name}")
    for key in profile:
        if key not in _CODEX_KEYS:
            result.refuse(f"permissions.{name}.{key}", "it is unknown, and may restrict")
    if "extends" in profile:
        result.refuse(f"permissions.{name}.extends", "what it extends is not read: write it out")
    files = dict(_section(profile, "filesystem"))
    depth = files.pop("glob_scan_max_depth", None)
    roots = ["."]
    for path, counts in _section(profile, "workspace_roots").items():
        if counts:
            roots.append(path)
    rules: list[tuple[str, str]] = []
    for place, access in files.items():
        inner = access if isinstance(access, Mapping) else {".": access}
        if place in (":workspace_roots", ":project_roots"):
            rules += [(_below(root, key), str(value)) for root in roots for key, value in inner.items()]
        elif place == ":root":
            rules += [("/" if key == "." else _below("/", key), str(value)) for key, value in inner.items()]
        elif place in _CODEX_PLACES:
            if str(access) in ("deny", "none") and place == ":minimal":
                result.refuse(place, "no command runs without the files of the system")
            rules += [(path, "read") for path in _CODEX_PLACES[place] if str(access) == "read"]
        elif place.startswith(":"):
            result.refuse(place, "it is unknown, and may restrict")
        else:
            rules += [(_below(place, key), str(value)) for key, value in inner.items()]
    _codex_rules(result, rules)
    if depth is not None:
        result.leave("glob_scan_max_depth", "patterns hold at every depth here")
    close_denied(result, f"permissions.{name}.filesystem")
    _codex_network(result, _section(profile, "network"), f"permissions.{name}.network")
    close_project(result, f"permissions.{name}.filesystem")


def _below(root: str, key: str) -> str:
    if key == ".":
        return root
    return f"./{key}" if root == "." else posixpath.join(root, key)


def _codex_rules(result: Imported, rules: list[tuple[str, str]]) -> None:
    """Apply rules of paths; the most specific one counts there, while a deny beats every allowWrite here.

    So what is closed above a writable place stays without denyWrite: it is not writable anyway."""
    writable = [path for path, access in rules if access == "write"]
    if not {("/", "read"), ("/", "write")} & set(rules):
        result.add(f"{_F}denyRead", "/")
    for path, access in rules:
        entry = f"{path}: {access}"
        why = why_not_opened if path != "." else lambda _: ""
        if access not in ("read", "write", "deny", "none"):
            result.refuse(entry, "this access is unknown")
            continue
        if path == "/":
            if access != "read":
                result.leave(entry, "it opens or closes the whole system")
            continue
        if access in ("deny", "none"):
            closing(f"{_F}denyRead", why_not_closed)(result, entry, [path])
        else:
            opening(f"{_F}allowRead", why)(result, entry, [path])
        if access == "write":
            opening(f"{_F}allowWrite", why)(result, entry, [path])
        elif _is_inside(result.place, path, writable):
            closing(f"{_F}denyWrite", why_not_closed)(result, entry, [path])
    files = result.settings["sandbox"].setdefault("filesystem", {})
    if "/" not in files.get("denyRead", []):
        files.pop("allowRead", None)  # all is open but what is denied, and that stays denied


def _is_inside(place: SourcePlace, path: str, writable: list[str]) -> bool:
    """Return whether what is closed for writing would be writable: inside a writable place, and not above one."""
    if any(sign in path for sign in "*?["):
        return True
    above = any(place.is_in(one, path) and one != path for one in writable)
    return not above and any(place.is_in(path, one) for one in writable)


def _codex_network(result: Imported, network: Mapping[str, Any], entry: str) -> None:
    if not network.get("enabled"):
        return
    if network.get("mode", "full") != "full":
        result.leave(entry, "the mode limited tells methods apart, which sandboxd does not: no host is opened")
        return
    for host, access in _section(network, "domains").items():
        pattern = f".{host[3:]}" if host.startswith("**.") else host
        if access == "allow":
            opening(f"{_N}allowedDomains", why_no_host)(result, f"{entry}.domains", [pattern])
        else:
            closing(f"{_N}deniedDomains", why_no_host)(result, f"{entry}.domains", [pattern])
    if not network.get("domains"):
        result.leave(entry, "it opens every host: you are asked about each")
        result.put(f"{_N}strictAllowlist", False)
    _SOCKETS(result, f"{entry}.unix_sockets", network.get("unix_sockets"))
    for name in ("allow_local_binding", "dangerously_allow_all_unix_sockets", "allow_upstream_proxy"):
        left("it has no counterpart here")(result, f"{entry}.{name}", network.get(name))


def _codex_variables(result: Imported, policy: Mapping[str, Any]) -> None:
    entry = "shell_environment_policy"
    if policy.get("inherit", "all") != "all" or policy.get("include_only"):
        result.refuse(entry, "variables that are not listed cannot be withheld: list those to withhold in exclude")
    for pattern in texts(result, f"{entry}.exclude", policy.get("exclude", [])):
        result.add("sandbox.environment.remove", *{pattern, pattern.upper(), pattern.lower()})
    if policy.get("ignore_default_excludes") is False:
        result.add(
            "sandbox.environment.remove",
            *(f"*{word}*" for word in ("KEY", "SECRET", "TOKEN", "key", "secret", "token")),
        )
    if policy.get("set"):
        result.leave(f"{entry}.set", "set the variables in your shell")


CLAUDE_KEPT = ("permissions", "sandbox", "allowManagedPermissionRulesOnly")


def from_claude(tree: Mapping[str, Any], place: SourcePlace) -> Imported:
    """Convert settings of Claude Code, which have the same form."""
    result = Imported(place, copy.deepcopy({name: tree[name] for name in CLAUDE_KEPT if name in tree}))
    network = _section(_section(result.settings, "sandbox"), "network")
    if isinstance(network, dict):
        for name in ("allowUnixSockets", "allowAllUnixSockets"):  # Claude Code honours them on macOS only
            if network.pop(name, None):
                result.leave(f"{_N}{name}", _SOCKETS_OF_HOST)
    for name in tree:
        if name not in (*CLAUDE_KEPT, "$schema"):
            result.leave(name, _OWN)
    if not _section(tree, "sandbox").get("enabled"):
        result.put("sandbox.enabled", True)
    return result


CONVERTERS: dict[str, Callable[[Mapping[str, Any], SourcePlace], Imported]] = {
    "srt": from_srt,
    "codex": from_codex,
    "fence": from_fence,
    "claude": from_claude,
}


def kind_of(tree: Mapping[str, Any], name: str) -> str | None:
    """Return which program settings belong to, by file name and keys."""
    if name.endswith(".toml"):
        return "codex"
    if "sandbox" in tree or "permissions" in tree:
        return "claude"
    if name.lstrip(".").startswith("fence.") or {"command", "devices", "ssh", "macos", "extends"} & tree.keys():
        return "fence"
    return "srt" if {"network", "filesystem"} & tree.keys() else None
