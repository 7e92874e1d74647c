"""Rules that give very much away: they are said, and confirmed, before they are written to settings. Pure.

| Rule | Wide where |
| --- | --- |
| `allowWrite`, `allowRead` | the root, the home directory or a parent of it, the system's or settings' files |
| `allowedDomains` | every host, or a metadata service of a cloud |
| `excludedCommands` | a program that runs other programs, with any arguments |
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from sandboxd.policy.addresses import refuse_address
from sandboxd.policy.command_patterns import CommandPattern, parse_command_pattern
from sandboxd.policy.hosts import Host
from sandboxd.policy.policy import HostRule, PathRule, Policy
from sandboxd.policy.shell_programs import INTERPRETERS, LAUNCHERS
from sandboxd.policy.upstream import METADATA_NAMES

SYSTEM_DIRECTORIES: Final = frozenset(
    """/bin /boot /dev /etc /home /lib /lib32 /lib64 /nix /opt /private /private/etc /private/var /proc /root /run /sbin
    /srv /sys /usr /usr/bin /usr/lib /usr/local /usr/local/bin /usr/sbin /var /Applications /Library /System /Users
    /Volumes""".split()
)
_SETTINGS: Final = re.compile(
    r".*/\.claude(/settings(\.local)?\.json)?|/etc/(sandboxd|claude-code)(/.*)?"
    r"|/Library/Application Support/(sandboxd|ClaudeCode)(/.*)?"
)
METADATA: Final = "serves metadata of cloud machines, which includes credentials"
RUN_OTHERS: Final = (
    INTERPRETERS
    | LAUNCHERS
    | frozenset(
        """ansible ansible-playbook ant at batch bazel bundle bunx cargo cmake crontab ctest dmesg dpkg ed ede ex emacs
        emacsclient expect gcc gdb git go gradle gradlew guile hg info irb jshell julia just kakoune less lldb m4 mail
        man mc meson micro more msbuild mutt mvn mvnw mysql nano ninja nix nmap npm nvim octave ocaml pager pip pip3
        pipx pnpm poetry psql pwsh pytest R rake rlwrap rsync ruff rustup rview rvim sbt scala scp screen sed sftp
        socat sqlite3 svn swift tar tclsh tmux tox uv vi view vim vimdiff w3m watchexec wget wish yarn zip zipinfo
        zsh""".split()
    )
)
"""Programs that run another program named in their arguments, in files of the directory, or by a key."""
_VERSION: Final = re.compile(r"[-.]?[0-9][0-9.]*$")


def wide_grants(policy: Policy, home: str, real_path: Callable[[str], str] = str) -> tuple[str, ...]:
    """A sentence for each rule of a policy that gives very much away. `real_path` tells where links lead."""
    return tuple(_sentences(policy, home, real_path))


def is_wide_path(path: str, home: str, *, glob: bool = False) -> bool:
    """Whether a rule's path opens the root, a home directory or a parent of one, the system's or settings' files."""
    if glob:
        while path != "/" and not posixpath.basename(path).strip("*"):
            path = posixpath.dirname(path)
        own = f"{home}/.claude"
        wide = (*SYSTEM_DIRECTORIES, home, own, f"{own}/settings.json", f"{own}/settings.local.json")
        if any(_matches(path.split("/"), one.split("/")) for one in wide):
            return True
    above_home = home != "/" and f"{home}/".startswith(path.rstrip("/") + "/")
    return path == "/" or above_home or path in SYSTEM_DIRECTORIES or _SETTINGS.fullmatch(path) is not None


def _matches(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a pattern, by its components, matches a path or a directory above it."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_matches(pattern[1:], names[at:]) for at in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and _matches(pattern[1:], names[1:])


def _sentences(policy: Policy, home: str, real_path: Callable[[str], str]) -> Iterator[str]:
    for rules, verb in ((policy.files.allow_write, "write"), (policy.files.allow_read, "read")):
        for rule in rules:
            if is_wide_path(rule.path, home, glob=rule.glob):
                yield _of_path(rule, home, verb)
            elif not rule.glob and is_wide_path(target := real_path(rule.path), home):
                yield f"{rule.text or rule.path} leads to {target}, and lets commands {verb} there"
    for host in policy.network.allowed:
        if text := _of_host(host):
            yield text
    for command in policy.commands.excluded:
        pattern = parse_command_pattern(command.pattern)
        if runs_others(pattern):
            yield (
                f"{command.pattern} excludes a program that runs other programs, so commands can run anything outside "
                "the sandbox with it"
            )


def _of_path(rule: PathRule, home: str, verb: str) -> str:
    shown = rule.text or rule.path
    if _SETTINGS.fullmatch(rule.path):
        return f"{shown} lets commands {verb} the settings that say what commands may do"
    if rule.path == home:
        return f"{shown} lets commands {verb} your whole home directory"
    return f"{shown} lets commands {verb} everything below {rule.path}"


def _of_host(rule: HostRule) -> str:
    host = rule.pattern.host
    if host is None:
        return f"{rule.pattern.text} lets commands reach every host"
    return f"{rule.pattern.text} {METADATA}" if serves_metadata(host) else ""


def serves_metadata(host: Host) -> bool:
    """Whether a host is a metadata service of a cloud, by its name or its address."""
    refusal = None if host.address is None else refuse_address(host.address)
    by_address = refusal is not None and ("metadata" in refusal.text or "host agent" in refusal.text)
    return host.name in METADATA_NAMES or by_address


def runs_others(pattern: CommandPattern) -> bool:
    """Whether the program runs others and its first argument that is no option is left open."""
    words: Sequence[str] = pattern.words if pattern.open_ended else ("", "exact")
    if pattern.wildcard:
        words = pattern.wildcard[0].split()
        head = "*".join(pattern.wildcard).partition(" ")[0]
        if "*" in head and "/" not in head:
            any_of = re.compile(".*".join(map(re.escape, head.split("*"))))
            return any(map(any_of.fullmatch, RUN_OTHERS))
    free = all(word.startswith("-") for word in words[1:])
    name = pattern.program
    return free and not RUN_OTHERS.isdisjoint({name, _VERSION.sub("", name), name.partition(".")[0]})
