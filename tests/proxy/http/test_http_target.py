"""Where a request wants to go, whatever else it says."""

from __future__ import annotations

import pytest

from sandboxd.policy.hosts.host_patterns import HostSyntaxError, parse_host
from sandboxd.proxy.http.http1 import HttpSyntaxError, RequestHead, RequestReader
from sandboxd.proxy.http.http_target import authority_of, host_header, parse_target, parse_tunnelled_target


def head(line: str, *headers: str) -> RequestHead:
    text = "\r\n".join([f"{line} HTTP/1.1", *headers, "", ""])
    found = RequestReader().receive_request(text.encode("latin-1"))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("line", "host", "port", "path", "header"),
    [
        ("GET http://ok.test/", "ok.test", 80, b"/", b"ok.test"),
        ("GET HTTP://OK.test./a/b?c=d", "ok.test", 80, b"/a/b?c=d", b"ok.test"),
        ("GET http://ok.test", "ok.test", 80, b"/", b"ok.test"),
        ("GET http://ok.test?x", "ok.test", 80, b"/?x", b"ok.test"),
        ("GET http://ok.test:/x", "ok.test", 80, b"/x", b"ok.test"),
        ("GET http://ok.test:80/", "ok.test", 80, b"/", b"ok.test"),
        ("GET http://ok.test:8080/", "ok.test", 8080, b"/", b"ok.test:8080"),
        ("GET http://[::1]:8080/", "::1", 8080, b"/", b"[::1]:8080"),
        ("GET http://0x7f.1/", "127.0.0.1", 80, b"/", b"127.0.0.1"),
        ("GET http://ok.test//no.test/", "ok.test", 80, b"//no.test/", b"ok.test"),
        ("GET http://ok.test/@no.test:80/", "ok.test", 80, b"/@no.test:80/", b"ok.test"),
        ("GET http://ok.test/\xfc%00", "ok.test", 80, b"/\xfc%00", b"ok.test"),
        ("OPTIONS http://ok.test", "ok.test", 80, b"*", b"ok.test"),
        ("OPTIONS http://ok.test/", "ok.test", 80, b"/", b"ok.test"),
        ("CONNECT ok.test:443", "ok.test", 443, b"", b"ok.test:443"),
        ("CONNECT [::1]:443", "::1", 443, b"", b"[::1]:443"),
        ("PATCH http://ok.test/", "ok.test", 80, b"/", b"ok.test"),
        ("X-OWN http://ok.test/", "ok.test", 80, b"/", b"ok.test"),
    ],
)
def test_targets(line: str, host: str, port: int, path: bytes, header: bytes) -> None:
    target = parse_target(head(line, "Host: no.test"))
    assert (target.host.name, target.port, target.path) == (host, port, path)
    assert host_header(target) == header


@pytest.mark.parametrize(
    ("line", "slug", "status"),
    [
        ("GET /", "origin_form", 400),
        ("GET /x", "origin_form", 400),
        ("OPTIONS *", "origin_form", 400),
        ("GET https://ok.test/", "https_absolute_form", 400),
        ("GET ftp://ok.test/", "bad_scheme", 400),
        ("GET file:///etc/passwd", "bad_scheme", 400),
        ("GET ok.test", "bad_target", 400),
        ("GET ok.test:80", "bad_target", 400),
        ("GET http:ok.test", "bad_target", 400),
        ("GET http:/ok.test", "bad_target", 400),
        ("GET http://ok.test/#no.test", "bad_target", 400),
        ("GET http://no.test#.ok.test/", "bad_target", 400),
        ("TRACE http://ok.test/", "method_refused", 405),
    ],
)
def test_forms_that_are_not_for_a_proxy(line: str, slug: str, status: int) -> None:
    with pytest.raises(HttpSyntaxError) as caught:
        parse_target(head(line, "Host: ok.test"))
    assert (caught.value.slug, caught.value.status) == (slug, status)


@pytest.mark.parametrize(
    "line",
    [
        "GET http:///", "GET http://user@ok.test/", "GET http://no.test@ok.test/", "GET http://ok.test\\@no.test/",
        "GET http://ok%2etest/", "GET http://ok..test/", "GET http://.ok.test/", "GET http://ok.test:0/",
        "GET http://ok.test:99999/", "GET http://ok.test:80:80/", "GET http://::1/", "GET http://[::1%25lo]/",
        "GET http://b\xfccher.test/", "GET http://no.test%00.ok.test/", "CONNECT ok.test", "CONNECT ok.test:",
        "CONNECT http://ok.test:443", "CONNECT ok.test:443/", "CONNECT user@ok.test:443", "CONNECT ::1:443",
        "CONNECT /", "CONNECT *", "CONNECT ok.test:-1",
    ],
)  # fmt: skip
def test_hosts_that_can_be_read_in_two_ways(line: str) -> None:
    request = head(line)
    with pytest.raises(HostSyntaxError):
        parse_target(request)
    assert authority_of(request) in request.target


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("GET /a?b", b"/a?b"), ("OPTIONS *", b"*"), ("GET https://ok.test/a?b", b"/a?b"), ("GET https://ok.test", b"/"),
        ("GET HTTPS://OK.test:443/a", b"/a"), ("GET https://ok.test?b", b"/?b"), ("OPTIONS https://ok.test", b"*"),
        ("GET wss://ok.test/a", b"/a"), ("GET https://ok.test//no.test/", b"//no.test/"),
    ],
)  # fmt: skip
def test_a_target_inside_a_tunnel(line: str, path: bytes) -> None:
    target = parse_tunnelled_target(head(line, "Host: ok.test"), parse_host("ok.test"), 443, secure=True)
    assert (target.host.name, target.port, target.path) == ("ok.test", 443, path)
    assert host_header(target) == b"ok.test"


@pytest.mark.parametrize(
    ("line", "slug"),
    [
        ("GET https://no.test/a", "host_mismatch"), ("GET https://ok.test:8443/", "host_mismatch"),
        ("GET https://no.test@ok.test/", "host_mismatch"), ("GET https://ok.test@no.test/", "host_mismatch"),
        ("GET http://ok.test/a", "bad_target"), ("GET ftp://ok.test/a", "bad_target"), ("GET ok.test/a", "bad_target"),
        ("GET https:/ok.test/a", "bad_target"), ("GET https://ok.test/#a", "bad_target"), ("GET *", "bad_target"),
    ],
)  # fmt: skip
def test_a_target_of_another_host_inside_a_tunnel(line: str, slug: str) -> None:
    with pytest.raises(HttpSyntaxError) as caught:
        parse_tunnelled_target(head(line, "Host: ok.test"), parse_host("ok.test"), 443, secure=True)
    assert caught.value.slug == slug
    with pytest.raises(HttpSyntaxError):
        parse_tunnelled_target(head("GET https://ok.test/", "Host: no.test"), parse_host("ok.test"), 443, secure=True)
