"""Responses to refused and failed requests. Pure.

Users and models read a refusal, and a model may look for a way around an apparent fault. So the text calls it a
decision, and names host, rule, file and remedy. All text from the sandbox or a settings file is made printable ASCII.
Header values allow even fewer characters, so that no rule and no host can add a line."""

from __future__ import annotations

import re
from typing import Final

from sandboxd.errors import DaemonError
from sandboxd.policy.decision import Decision, Reason
from sandboxd.policy.hosts.host_patterns import quote
from sandboxd.proxy.http.http1 import render_response

REASONS: Final = {
    400: b"Bad Request",
    403: b"Forbidden",
    405: b"Method Not Allowed",
    407: b"Proxy Authentication Required",
    408: b"Request Timeout",
    421: b"Misdirected Request",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
}

STATUS_OF_SLUG: Final = {
    "dns_failed": 502,
    "dns_timeout": 504,
    "connection_refused": 502,
    "connection_lost": 502,
    "unreachable": 502,
    "connect_failed": 502,
    "connect_timeout": 504,
    "response_timeout": 504,
    "out_of_descriptors": 503,
    "upstream_timeout": 504,
}

_LONGEST_PHRASE: Final = 400
"""Programs print it where they show nothing else of the answer to CONNECT."""

_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9.*:_\[\]-]")


def denied_response(authority: str, decision: Decision, *, with_body: bool = True, close: bool = True) -> bytes:
    """Render a 403, or a 400 for an unreadable host. `authority` is HOST:PORT."""
    invalid = decision.reason is Reason.HOST_INVALID
    lines = [
        "Blocked by the sandbox (sandboxd): this is a decision of its policy, not a network fault.",
        "",
        f"host:   {_line(authority)}",
        f"reason: {_line(decision.text)} [{decision.reason.value}]",
    ]
    if invalid:
        lines[0] = "Refused by the sandbox (sandboxd): the host name is invalid or ambiguous."
    if decision.rule is not None:
        lines.append(f"rule:   {_line(decision.rule)}")
    if decision.origin is not None:
        lines.append(f"file:   {_line(str(decision.origin))}")
    if decision.hint and not decision.text.endswith(f": {decision.hint}"):
        lines.append(f"to do:  {_line(decision.hint)}")
    if not invalid:
        lines += [
            "",
            "Trying again, without the proxy, with another client, address or name service gives the same answer.",
            "If the host is needed, ask the person who runs this sandbox to allow it.",
        ]
    rule = _plain(decision.rule) if decision.rule is not None else "none"
    header = f"denied; rule={rule}; reason={decision.reason.value}"
    told = "; ".join(text for text in (decision.text, decision.hint) if text)
    phrase = f"Forbidden by sandboxd: {_line(told)}".encode("ascii")
    return _response(
        400 if invalid else 403,
        "X-Sandboxd-Decision",
        header,
        lines,
        with_body=with_body,
        close=close,
        phrase=b"" if invalid else phrase[:_LONGEST_PHRASE],
    )


def error_response(
    error: DaemonError, status: int | None = None, *, with_body: bool = True, close: bool = True
) -> bytes:
    """Render an error other than a denial, with its slug in `X-Sandboxd-Error`."""
    if status is None:
        status = STATUS_OF_SLUG.get(error.slug, 502)
    lines = [f"sandboxd: {_line(error.message)}"]
    if error.hint:
        lines.append(f"hint: {_line(error.hint)}")
    return _response(status, "X-Sandboxd-Error", _plain(error.slug), lines, with_body=with_body, close=close)


def password_response(*, with_body: bool = True) -> bytes:
    """Render a 407, for a client without the password of the proxy's command."""
    lines = [
        "sandboxd: wrong or missing password: this proxy serves one command, whose proxy variables hold the password.",
        "hint: use the unchanged value of HTTP_PROXY, with user name and password",
    ]
    headers = ((b"Proxy-Authenticate", b'Basic realm="sandboxd"'),)
    return _response(407, "X-Sandboxd-Error", "proxy_password", lines, headers, with_body=with_body, close=True)


def _response(
    status: int,
    name: str,
    value: str,
    lines: list[str],
    more: tuple[tuple[bytes, bytes], ...] = (),
    *,
    with_body: bool,
    close: bool,
    phrase: bytes = b"",
) -> bytes:
    body = ("\n".join(lines) + "\n").encode("ascii")
    headers = [
        (b"Content-Type", b"text/plain; charset=utf-8"),
        (b"Content-Length", b"%d" % len(body)),
        (b"Cache-Control", b"no-store"),
        (name.encode("ascii"), value.encode("ascii")),
        *more,
    ]
    if close:
        headers.append((b"Connection", b"close"))
    return render_response(status, phrase or REASONS[status], headers) + (body if with_body else b"")


def _line(text: str) -> str:
    """Return the text as one printable ASCII line."""
    return quote(text, limit=600)[1:-1] if not (text.isascii() and text.isprintable()) else text[:600]


def _plain(text: str) -> str:
    """Replace characters outside host rules by `?`, for a header."""
    return _NOT_PLAIN.sub("?", text)[:300]
