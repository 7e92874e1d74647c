"""The harmless part of a git configuration that a command has made. Pure.

git-config(1) has hundreds of keys, and every version adds some, so the table lists the harmless ones. A promisor remote
(`extensions.partialClone`, `remote.*.promisor`) is not among them: every command that misses an object fetches from it,
with the program that its address asks for. A file with any other key, or with a line that is not one plain setting, is
replaced by one with its harmless part."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

HARMLESS = (
    "core.repositoryformatversion", "core.filemode", "core.bare", "core.logallrefupdates", "core.ignorecase",
    "core.precomposeunicode", "core.symlinks", "core.autocrlf", "core.eol", "core.safecrlf", "core.sparsecheckout",
    "core.sparsecheckoutcone", "core.untrackedcache", "core.splitindex", "core.commitgraph", "core.multipackindex",
    "core.compression", "core.bigfilethreshold", "core.quotepath", "core.abbrev", "core.sharedrepository",
    "core.longpaths",
    "extensions.objectformat", "extensions.refstorage", "extensions.worktreeconfig",
    "extensions.noop", "extensions.compatobjectformat", "extensions.relativeworktrees",
    "remote.*.url", "remote.*.pushurl", "remote.*.fetch", "remote.*.push", "remote.*.mirror", "remote.*.tagopt",
    "remote.*.prune", "remote.*.prunetags",
    "remote.*.skipdefaultupdate", "remote.*.skipfetchall", "remote.pushdefault", "remotes.*",
    "branch.*.remote", "branch.*.merge", "branch.*.rebase", "branch.*.pushremote", "branch.*.description",
    "branch.autosetupmerge", "branch.autosetuprebase",
    "submodule.*.url", "submodule.*.active", "submodule.*.branch", "submodule.*.ignore", "submodule.active",
    "user.name", "user.email", "user.signingkey", "user.useconfigonly", "author.*", "committer.*",
    "commit.gpgsign", "tag.gpgsign", "gpg.format", "init.defaultbranch", "pull.rebase", "pull.ff", "push.default",
    "push.autosetupremote", "push.followtags", "fetch.prune", "fetch.prunetags", "merge.conflictstyle", "merge.ff",
    "rebase.autosquash", "rebase.autostash", "rerere.enabled", "rerere.autoupdate", "color.*", "advice.*",
    "gc.auto", "gc.autodetach", "gc.pruneexpire",
    "pack.threads", "pack.windowmemory", "index.*", "feature.*", "status.*", "log.date", "maintenance.auto",
    "lfs.repositoryformatversion", "filter.lfs.required",
)  # fmt: skip
EXACT = {
    "filter.lfs.clean": "git-lfs clean -- %f",
    "filter.lfs.smudge": "git-lfs smudge -- %f",
    "filter.lfs.process": "git-lfs filter-process",
}
"""Values that git-lfs(1) writes: the program is the host's."""
ON = ("core.protecthfs", "core.protectntfs")
"""Harmless when on: off admits names that some file systems take for `.git`."""
_YES = ("true", "yes", "on", "1")
WORKTREE = "core.worktree"
"""Harmless where the working tree points back; else a checkout would go elsewhere."""

_OPTION = re.compile(r"(?:^|\s)-(?![\d\s]|$)")
"""A name that git's own subcommands would take for an option (`--upload-pack=…`)."""
_OPTIONS = ("remote.*.tagopt", "branch.*.description")
"""Keys whose values may begin with a dash."""

_SECTION = re.compile(r'\s*\[([-A-Za-z0-9]+)(?:[ \t]+"([^"\\\n]*)")?\]\s*')
_CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f]")
_VALUE = re.compile(r"\s*([A-Za-z][-A-Za-z0-9]*)(?:\s*=\s*([^\"\\;#\n]*?))?\s*")


def cleaned(text: str, *, worktree: str | None = None) -> str | None:
    """Return the harmless part, or None when it is all; `worktree` is allowed."""
    settings: list[tuple[str, str | None, str, str]] = []
    unknown = False
    section: tuple[str, str | None] | None = None
    for line in text.split("\n"):  # as git does; str.splitlines splits at more characters
        line = line.removesuffix("\r")
        if _CONTROL.search(line):
            unknown = True
            continue
        if not line.strip() or line.lstrip()[0] in "#;":
            continue
        header = _SECTION.match(line)
        if header is not None:
            section = header[1].lower(), header[2]
            if header.end() == len(line):
                continue
            line = line[header.end() :]
        value = _VALUE.fullmatch(line)
        if value is None or section is None:
            unknown = True
            continue
        name, text_of = value[1].lower(), "true" if value[2] is None else value[2]
        if _is_harmless(*section, name, text_of, worktree):
            settings.append((*section, name, text_of))
        else:
            unknown = True
    return _written(settings) if unknown else None


def _is_harmless(section: str, sub: str | None, name: str, value: str, worktree: str | None) -> bool:
    key = f"{section}.{name}" if sub is None else f"{section}.{sub}.{name}"
    if key == WORKTREE:
        return value == worktree
    if key in EXACT:
        return value == EXACT[key]
    if key in ON:
        return value.lower() in _YES
    if "::" in value:
        return False  # an address with a transport that runs a program (gitremote-helpers(7))
    if sub is not None and sub.startswith("-"):
        return False
    # a subsection may hold dots and any letters, so it never meets a pattern's own parts
    pattern_key = key if sub is None else f"{section}.x.{name}"
    parts = pattern_key.count(".")
    alike = [pattern for pattern in HARMLESS if pattern.count(".") == parts and fnmatchcase(pattern_key, pattern)]
    if _OPTION.search(value) and not set(alike) & set(_OPTIONS):
        return False
    return key in HARMLESS or bool(alike)


def _written(settings: Iterable[tuple[str, str | None, str, str]]) -> str:
    lines: list[str] = []
    last: tuple[str, str | None] | None = None
    for section, sub, name, value in settings:
        if last != (section, sub):
            last = section, sub
            lines.append(f"[{section}]" if sub is None else f'[{section} "{sub}"]')
        lines.append(f"\t{name} = {value}")
    return "".join(f"{line}\n" for line in lines)
