"""What a refused client reads, and that nothing can be smuggled into it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.errors import CallerError
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.proxy.dial import DialError
from sandboxd.proxy.http.http1 import ResponseReader, values
from sandboxd.proxy.http.refusal_responses import STATUS_OF_SLUG, denied_response, error_response
from sandboxd.settings.origins import Origin, Source


def parse(answer: bytes) -> tuple[int, dict[bytes, list[bytes]], bytes]:
    reader = ResponseReader()
    head = reader.receive_response(answer)
    assert head is not None
    names = {name.lower() for name, _ in head.headers}
    assert values(head.headers, b"content-length") == [b"%d" % len(reader.rest)]
    return head.status, {name: values(head.headers, name) for name in names}, reader.rest


def test_a_denial_names_host_rule_file_and_what_to_do() -> None:
    decision = Decision(
        Behavior.DENY,
        Reason.HOST_DENIED,
        "no.test:443 is denied by a rule: ask IT",
        "*.no.test",
        Origin(Source.USER, "sandbox.network.deniedDomains", "/home/me/.claude/settings.json", 7),
        "ask IT",
    )
    status, headers, body = parse(denied_response("no.test:443", decision))
    assert status == 403
    assert headers[b"x-sandboxd-decision"] == [b"denied; rule=*.no.test; reason=hostDenied"]
    assert headers[b"connection"] == [b"close"]
    for part in (
        b"no.test:443", b"*.no.test", b"/home/me/.claude/settings.json:7 (sandbox.network.deniedDomains)", b"ask IT",
        b"decision", b"same answer",
    ):  # fmt: skip
        assert part in body, part


def test_a_host_that_is_on_no_list() -> None:
    decision = Decision(
        Behavior.DENY, Reason.HOST_NOT_LISTED, "not listed", hint="add it with: sandboxd allow domain x"
    )
    status, headers, body = parse(denied_response("no.test:443", decision, close=False))
    assert status == 403 and b"connection" not in headers
    assert headers[b"x-sandboxd-decision"] == [b"denied; rule=none; reason=hostNotListed"]
    assert b"sandboxd allow domain x" in body


def test_a_host_that_cannot_be_read() -> None:
    status, _, body = parse(denied_response("a..b", Decision(Behavior.DENY, Reason.HOST_INVALID, "empty label")))
    assert status == 400 and b"empty label" in body


def test_an_answer_to_head_has_no_body() -> None:
    decision = Decision(Behavior.DENY, Reason.HOST_DENIED, "no")
    assert denied_response("no.test:80", decision, with_body=False).endswith(b"\r\n\r\n")
    assert error_response(CallerError("x", "y"), 400, with_body=False).endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("slug", "status"),
    [
        ("dns_failed", 502), ("connection_refused", 502), ("unreachable", 502), ("connect_timeout", 504),
        ("dns_timeout", 504), ("response_timeout", 504), ("out_of_descriptors", 503), ("something_new", 502),
    ],
)  # fmt: skip
def test_faults_of_the_way_out(slug: str, status: int) -> None:
    found, headers, body = parse(error_response(DialError(slug, "it is so", hint="do this")))
    assert found == status and headers[b"x-sandboxd-error"] == [slug.encode()]
    assert body == b"sandboxd: it is so\nhint: do this\n"
    assert b"x-sandboxd-decision" not in headers


def test_every_slug_in_the_table_has_a_status_line() -> None:
    for slug in STATUS_OF_SLUG:
        parse(error_response(DialError(slug, "x")))


_EVIL = st.text(
    st.sampled_from("\r\n\0\t\x1b ;=,\"'\u202e\U000e0041é") | st.characters(codec="utf-8"), max_size=60
) | st.sampled_from(["a\r\nX-Evil: 1", "a\nX-Evil: 1\n\nbody", "\u2028X", "x" * 5000])


@given(_EVIL, _EVIL, _EVIL, _EVIL)
def test_no_text_ends_a_line_or_adds_a_header(authority: str, rule: str, file: str, text: str) -> None:
    decision = Decision(
        Behavior.DENY, Reason.HOST_DENIED, text, rule, Origin(Source.PROJECT, "key", file or "f", 1), text
    )
    answer = denied_response(authority, decision)
    _, headers, body = parse(answer)
    assert set(headers) == {
        b"content-type", b"content-length", b"cache-control", b"x-sandboxd-decision", b"connection",
    }  # fmt: skip
    assert len(headers[b"x-sandboxd-decision"]) == 1
    assert headers[b"x-sandboxd-decision"][0].count(b";") == 2
    assert answer.isascii() and body.decode("ascii").replace("\n", "").isprintable()
    assert [line.split(b":")[0] for line in body.splitlines()[2:7]] == [
        b"host", b"reason", b"rule", b"file", *([b"to do"] if text else [b""]),
    ]  # fmt: skip
    error = error_response(CallerError("slug\r\nX: y", text, hint=text), 400)
    assert len(parse(error)[1]) == 5
