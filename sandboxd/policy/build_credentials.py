"""The credentials of a Policy: what the proxy puts into requests, and what commands see in its place.

Sources are named by a person only (`settings.key_table`). A value is never part of a policy."""

from __future__ import annotations

import json
import posixpath
import re
from typing import Final

from sandboxd.policy.hosts.host_patterns import HostPattern
from sandboxd.policy.hosts.request_rules import RequestRuleError, check_path_pattern, parse_operations
from sandboxd.policy.model import CredentialRule, CredentialSource, MaskRule, SourceKind
from sandboxd.policy.paths.rule_paths import PathScope, expand_rule_path
from sandboxd.policy.settings_reader import BadEntry, SettingsReader
from sandboxd.settings.origins import Origin

INJECT: Final = "sandbox.credentials.inject"
MASK: Final = "sandbox.credentials.mask"
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64})(?:: *([ -~]*))?")
_PARAMETER: Final = re.compile(r"[A-Za-z0-9_.~-]{1,64}")
_USER: Final = re.compile(r"[!-9;-~]{1,128}")
_FRAMING: Final = frozenset(
    "host content-length transfer-encoding connection upgrade te trailer expect keep-alive proxy-authorization".split()
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandboxd.settings.schema import InjectedCredential, MaskedCredential
_FORMS: Final = 'write env:NAME, file:PATH, file:PATH#before=*, command:["/usr/bin/program"] or keyring:SERVICE/USER'


class CredentialBuilder:
    """Builder of the credentials; problems go to the reader."""

    def __init__(self, reader: SettingsReader) -> None:
        self._reader = reader

    def rules(self) -> tuple[CredentialRule, ...]:
        return tuple(self._reader.collect(self._reader.entries(INJECT), self.rule, opens=True))

    def masks(self) -> tuple[MaskRule, ...]:
        return tuple(self._reader.collect(self._reader.entries(MASK), self.mask, opens=False))

    def rule(self, section: InjectedCredential, origin: Origin) -> CredentialRule:
        scope = self._reader.scope
        if self.is_of_project(origin):
            raise BadEntry(
                "credential_of_project",
                "a project names a credential",
                "name it in your own settings: ~/.claude/settings.json",
            )
        source = parse_source(section.from_, scope)
        pattern = HostPattern.parse(section.host)
        if pattern.host is None or pattern.is_broad:
            raise BadEntry(
                "credential_host_wide", f"{section.host!r} is no host to send a credential to", "name one host"
            )
        given = [name for name in ("header", "query", "basic") if getattr(section, name) is not None]
        if len(given) != 1:
            raise BadEntry(
                "credential_place", f"{len(given)} of header, query and basic are set", "set exactly one of them"
            )
        place, form = given[0], "{value}"
        name: str = getattr(section, place)
        if place == "header":
            name, form = _header(name)
        elif not (_PARAMETER if place == "query" else _USER).fullmatch(name):
            raise BadEntry("credential_place", f"{name!r} cannot be the {place} of a credential")
        try:
            operations = parse_operations(section.methods or ())
            for path in section.paths or ():
                check_path_pattern(path)
        except RequestRuleError as fault:
            raise BadEntry("request_rule_invalid", fault.message, fault.hint) from None
        variables = section.variables
        if variables is None:
            variables = source.words if source.kind is SourceKind.ENV else ()
        for variable in variables:
            _check_variable(variable)
        return CredentialRule(
            pattern, source, origin, place, name, form, operations, section.paths or (), variables, section.placeholder
        )

    def mask(self, section: MaskedCredential, origin: Origin) -> MaskRule:
        if (section.env is None) == (section.file is None) or (section.pattern and section.file is None):
            raise BadEntry("credential_mask", "a mask names a variable or a file", "set env, or file with a pattern")
        if section.env is not None:
            return MaskRule(origin, variable=_check_variable(section.env))
        before = "" if section.pattern is None else _before(section.pattern)
        path = _file(section.file or "", self._reader.scope)
        return MaskRule(origin, path=path, pattern=before, by_project=self.is_of_project(origin))

    def is_of_project(self, origin: Origin) -> bool:
        """Return whether a file of the project names an entry; with trust as well."""
        scope = self._reader.scope
        directory = posixpath.join(scope.project, ".claude")
        return posixpath.dirname(origin.file or "") == directory and scope.project != scope.home


def parse_source(text: str, scope: PathScope) -> CredentialSource:
    """Parse the source of a credential. Raises BadEntry, RulePathError; neither repeats the text, often a secret."""
    kind, colon, rest = text.partition(":")
    if not colon or kind not in tuple(SourceKind) or not rest:
        raise BadEntry("credential_source", "from names no source of a credential", _FORMS)
    if kind == SourceKind.ENV:
        return CredentialSource(SourceKind.ENV, (_check_variable(rest),))
    if kind == SourceKind.FILE:
        path, hash_, pattern = rest.partition("#")
        return CredentialSource(SourceKind.FILE, (_file(path, scope), _before(pattern) if hash_ else ""))
    if kind == SourceKind.KEYRING:
        service, slash, user = rest.partition("/")
        if not (service and slash and user) or service.startswith("-") or user.startswith("-"):
            raise BadEntry("credential_source", "a keyring needs service and user", "write keyring:SERVICE/USER")
        return CredentialSource(SourceKind.KEYRING, (service, user))
    try:
        words = json.loads(rest)
    except ValueError:
        words = None
    if not isinstance(words, list) or not words or not all(isinstance(one, str) and "\0" not in one for one in words):
        raise BadEntry(
            "credential_source", "a command is a list of words", 'write command:["/usr/bin/program", "word"]'
        )
    words = [scope.home + one[1:] if one.startswith("~/") else one for one in words]
    if not words[0].startswith("/"):
        raise BadEntry("credential_source", "the program of a command has no path", "write its absolute path")
    return CredentialSource(SourceKind.COMMAND, tuple(words))


def _header(text: str) -> tuple[str, str]:
    """Return name and form of a header."""
    found = _HEADER.fullmatch(text)
    if found is None or found[1].lower() in _FRAMING:
        raise BadEntry(
            "credential_place", f"{text!r} is no header of a credential", "write Authorization: Bearer {value}"
        )
    form = found[2] or "{value}"
    if form.count("{value}") != 1:
        raise BadEntry("credential_place", f"{text!r} needs {{value}} once", "write Authorization: Bearer {value}")
    return found[1], form


def _before(pattern: str) -> str:
    """Return the text before each value of a pattern, which ends in a star."""
    if len(pattern) < 2 or pattern.count("*") != 1 or not pattern.endswith("*") or "\n" in pattern:
        raise BadEntry("credential_pattern", "a pattern is the text before a value and a star", "write token=*")
    return pattern[:-1]


def _file(text: str, scope: PathScope) -> str:
    expanded = expand_rule_path(text, scope)
    if expanded.glob:
        raise BadEntry("path_glob_invalid", "a pattern stands where one file is meant", "name one file")
    return expanded.path


def _check_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise BadEntry("credential_variable", "a credential names no variable", "write a name such as GH_TOKEN")
    return name
