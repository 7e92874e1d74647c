"""Removal of secrets from logs and the audit log, by key and by pattern.

The patterns find what people commonly put into commands and variables: passwords in addresses, Authorization values,
`--token X`, `SECRET=X`, and tokens of known forms. Other secrets remain. Every repetition is bounded, as the text may
be hostile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

REDACTED = "[redacted]"

_SECRET_KEY = re.compile(
    r"(?i)(^|[_\-.])(pass(word|wd|phrase)?|secrets?|tokens?|tickets?|credentials?|auth|authorization|cookies?|"
    r"api_?keys?|private_?keys?|access_?keys?|session_?keys?)($|[_\-.])"
)
_NAMED = (
    r"(?:pass(?:word|wd|phrase|code)?|pwd|secrets?|tokens?|credentials?|api[_-]?keys?|access[_-]?keys?|"
    r"private[_-]?keys?|auth[_-]?key)"
)
_VALUE = r"""(?:"[^"]{0,2000}"|'[^']{0,2000}'|[^\s"'&;,|]+)"""
_SECRET_TEXT = re.compile(
    rf"""(?x)
      (?P<kept>://[^/\s:@]{{0,200}}:) [^/\s@]{{1,1000}} (?=@)                                # password in a URL
    | (?P<kept2>(?i:\b(?:bearer|basic|token|digest|negotiate)\s+)) [A-Za-z0-9._~+/=-]{{8,}}    # Authorization values
    | (?P<kept3>(?i:\b[\w.-]{{0,60}}{_NAMED}[\w.-]{{0,60}}["']?\s*[=:]\s*)) {_VALUE}      # NAME=value, "name": value
    | (?P<kept4>(?i:(?<!\S)--?[\w-]{{0,40}}{_NAMED}[\w-]{{0,40}}\s+)) (?!-){_VALUE}       # --password value
    | (?P<kept5>(?<!\S)(?:-u|--user|--proxy-user)[=\s]+ ["']? [^\s:"']+:) [^\s"']+  # curl -u name:password
    | (?P<kept6>(?i:\bcookie:\s*)) [^"'\r\n]+
    | \b(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|sk-|rk_live_|npm_|pypi-|hf_|dop_v1_|AIza)[A-Za-z0-9_-]{{10,}}
    | \b(?:AKIA|ASIA)[A-Z0-9]{{16}}\b
    | \beyJ[A-Za-z0-9_-]{{8,}}\.[A-Za-z0-9_-]{{8,}}\.[A-Za-z0-9_-]*         # JSON web token
    | -----BEGIN[ A-Z]*PRIVATE\ KEY-----[\s\S]*?(?:-----END[ A-Z]*PRIVATE\ KEY-----|\Z)
    """
)
_ENVIRONMENT_KEYS = frozenset({"env", "environment"})
_DEEPEST = 6


def redact_text(text: str) -> str:
    """Return the text with recognised secrets replaced."""
    return _SECRET_TEXT.sub(_keep_prefix, text)


def redact(key: str, value: object, depth: int = 0) -> object:
    """Redact a value by its key and by patterns, at any depth, and make it JSON."""
    if isinstance(value, str):
        return REDACTED if _SECRET_KEY.search(key) else redact_text(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value  # a count of tokens is not a token
    if depth >= _DEEPEST or isinstance(value, (bytes, bytearray, memoryview)):
        return REDACTED
    if isinstance(value, Mapping):
        if key in _ENVIRONMENT_KEYS:
            return {str(name): REDACTED for name in value}
        return {str(k): redact(str(k), v, depth + 1) for k, v in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [redact(key, item, depth + 1) for item in value]
    return redact(key, str(value), depth + 1)


def _keep_prefix(found: re.Match[str]) -> str:
    return next((kept for kept in found.groups() if kept), "") + REDACTED
