"""The evaluator itself: that it reads what people write, and decides as the system is described to decide."""

from __future__ import annotations

import pytest

from support.sbpl import (
    Ambiguous,
    Profile,
    Request,
    SbplError,
    Semantics,
    compile_profile,
    connect,
    file,
    mach,
    named,
)  # fmt: skip
from support.sbpl_filters import Endpoint
from support.sbpl_operations import containing
from support.sbpl_reader import Form, Symbol, Text, read_profile
from support.sbpl_regex import compile_regex, quote_regex


def compiled(rules: str, **parameters: str) -> Profile:
    return compile_profile(f"(version 1)\n(deny default)\n{rules}", parameters)


def read_data(path: str) -> Request:
    return file("file-read-data", path)


# reading


def test_strings_have_escapes_and_raw_strings_have_none() -> None:
    (form,) = read_profile(r'(a "x\n\"\\\." #"^/dev/\.x$")')
    assert isinstance(form, Form)
    assert form[1] == Text('x\n"\\.', False, 1)
    assert form[2] == Text(r"^/dev/\.x$", True, 1)


def test_comments_numbers_symbols_and_lines() -> None:
    forms = read_profile('; first\n(file-mode #o0004) ; second (\n\n(x -3 #t #f "a;b")')
    assert forms[0] == [Symbol("file-mode"), 4]
    assert forms[1] == [Symbol("x"), -3, True, False, Text("a;b", False, 4)]
    assert isinstance(forms[1], Form)
    assert forms[1].line == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(a", "not closed"),
        ("a)", "closing parenthesis"),
        ('"a', "string is not closed"),
        ('#"a', "string is not closed"),
        ('(regex #"x\\")', "ends in a backslash"),
        ("(a #q)", "cannot read #q"),
        ('"\\xZZ"', "without two digits"),
    ],
)
def test_unreadable_text_is_an_error_with_its_line(text: str, words: str) -> None:
    with pytest.raises(SbplError, match=words):
        read_profile("\n" + text)


# running


def test_a_system_profile_with_its_macros() -> None:
    """The constructs of the profiles that browsers and the system use."""
    profile = compile_profile(
        """
        (version 1)
        (define should-log (param "SHOULD_LOG"))
        (define home-path (param "HOME"))
        (define (quiet-deny what) (if (string=? should-log "TRUE") (deny what) (deny what (with no-log))))
        (quiet-deny default)
        (import "/System/Library/Sandbox/Profiles/system.sb")
        (define resolving-literal literal)
        (define (home-subpath relative) (subpath (string-append home-path relative)))
        (define (home-regex relative) (regex (string-append "^" (regex-quote home-path) relative)))
        (define-once (home-subpath relative) (error "defined already"))
        (let ((cache (string-append home-path "/Library/Caches")) (names '("a" "b")))
          (allow file-read* file-write* (require-all (subpath cache) (require-not (vnode-type SYMLINK))))
          (for-each (lambda (name) (allow mach-lookup (global-name (string-append "com.example." name)))) names))
        (allow file-read* (home-regex #"/Library/Preferences/[^/]+\\.plist$") (resolving-literal "/etc/hosts"))
        (if (param "OPTIONAL") (allow file-read* (subpath (param "OPTIONAL"))))
        (when (defined? 'user-preference-read) (allow user-preference-read (preference-domain "kCFPreferencesAnyApp")))
        (unless (defined? 'no-such-operation) (allow sysctl-read (sysctl-name-prefix "hw.")))
        (cond ((and #t (not #f)) (allow process-fork)) (else (allow process-exec)))
        (allow system-socket (require-all (socket-domain AF_SYSTEM) (socket-protocol 2)))
        (with-filter (signing-identifier "com.example.app") (allow iokit-open (iokit-user-client-class "X")))
        (let loop ((n 3)) (if (> n 0) (begin (allow signal (target self)) (loop (- n 1)))))
        (allow network-outbound
          (control-name "com.apple.netsrc") (remote unix-socket (path-literal "/private/var/run/syslog")))
        (apply allow (list file-read* (literal "/x")))
        (allow file-read* `,(literal "/y"))
        (debug deny)
        """,
        {"SHOULD_LOG": "FALSE", "HOME": "/Users/a.b"},
        {"system.sb": '(allow file-read-metadata (literal "/etc")) (define (system-network) (allow network-outbound))'},
    )
    assert profile.rules[0].modifiers[0].name == "no-log"
    assert profile.allows(file("file-read-metadata", "/etc"))
    assert profile.allows(file("file-write-data", "/Users/a.b/Library/Caches/x"))
    assert not profile.allows(file("file-write-data", "/Users/a.b/Library/Caches/x", "SYMLINK"))
    assert profile.allows(read_data("/Users/a.b/Library/Preferences/x.plist"))
    assert not profile.allows(read_data("/Users/aXb/Library/Preferences/x.plist"))
    assert profile.allows(mach("com.example.b"))
    assert not profile.allows(mach("com.example.c"))
    assert profile.allows(named("sysctl-read", "sysctl-name", "hw.ncpu"))
    assert profile.allows(Request("process-fork"))
    assert not profile.allows(Request("process-exec"))
    assert profile.allows(Request("system-socket", values={"socket-domain": "AF_SYSTEM", "socket-protocol": 2}))
    assert not profile.allows(named("iokit-open-user-client", "iokit-user-client-class", "X"))
    assert profile.allows(Request("network-outbound", path="/private/var/run/syslog"))
    assert not profile.allows(connect("203.0.113.1", 443))
    assert profile.allows(read_data("/x")) and profile.allows(read_data("/y"))
    assert "OPTIONAL" in profile.used_parameters


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ('(allow file-raed* (literal "/x"))', "unbound variable: file-raed"),
        ('(allow file-read* (subpth "/x"))', "unbound variable: subpth"),
        ('(allow file-read* (subpath (param "MISSING")))', "takes strings, not False"),
        ('(allow file-read* (subpath "relative"))', "not an absolute path"),
        ('(allow file-read* "/x")', "takes operations, filters and modifiers"),
        ('(allow (literal "/x"))', "without an operation"),
        ("(allow file-read* (require-not))", "takes filters"),
        ('(allow file-read* (require-not (literal "/a") (literal "/b")))', "takes one filter"),
        ('(allow network-outbound (remote ip "127.0.0.1:80"))', "host must be"),
        ('(allow network-outbound (remote ip "localhost:70000"))', "no such port"),
        ('(allow network-outbound (remote sctp "*:*"))', "unbound variable: sctp"),
        ("(deny default (with nonsense))", "unknown modifier"),
        ("(deny default (with message 3))", "message takes a string"),
        ('(string-append "a" 3)', "takes strings"),
        ("(define (f x) x) (f)", "a procedure of 1 arguments was given 0"),
        ('("x" 1)', "not a procedure"),
        ('(import "nowhere.sb")', "cannot import"),
        ('(allow file-read* (regex #"(x"))', "not a regular expression"),
    ],
)
def test_what_does_not_compile(rules: str, words: str) -> None:
    with pytest.raises(SbplError, match=words):
        compiled(rules)


def test_a_profile_has_a_version() -> None:
    with pytest.raises(SbplError, match="no version"):
        compile_profile("(deny default)")


# deciding


def test_the_last_matching_rule_wins() -> None:
    text = '(allow file-read* (subpath "/a")) (deny file-read* (subpath "/a/b")) (allow file-read* (literal "/a/b/c"))'
    profile = compiled(text)
    assert profile.allows(read_data("/a"))
    assert profile.allows(read_data("/a/x"))
    assert not profile.allows(read_data("/ab"))
    assert not profile.allows(read_data("/a/b"))
    assert not profile.allows(read_data("/a/b/x"))
    assert profile.allows(read_data("/a/b/c"))
    assert not profile.allows(read_data("/a/b/c/d"))


def test_two_descriptions_of_the_system_that_differ_are_noticed() -> None:
    """Measured on hardware by several people: the deny has no effect there."""
    profile = compiled('(allow file-read-data (subpath "/a")) (deny file-read* (subpath "/a/b"))')
    request = read_data("/a/b/c")
    assert not profile.decide_by(Semantics.LAST_MATCH, request).allowed
    assert profile.decide_by(Semantics.OPERATION_FIRST, request).allowed
    with pytest.raises(Ambiguous):
        profile.decide(request)
    assert not profile.allows(file("file-read-metadata", "/a/b/c"))


def test_operations_contain_others() -> None:
    assert containing("file-read-data") == ("file-read-data", "file-read*", "file*", "default")
    assert containing("ipc-posix-shm-read-data")[:4] == (
        "ipc-posix-shm-read-data", "ipc-posix-shm-read*", "ipc-posix-shm*", "ipc-posix-shm",
    )  # fmt: skip
    profile = compiled("(allow network*) (deny network-bind) (allow ipc-posix-sem)")
    assert profile.allows(connect("203.0.113.1", 443))
    assert not profile.allows(Request("network-bind", local=Endpoint("0.0.0.0", 80)))
    assert profile.allows(Request("ipc-posix-sem-open"))


def test_deny_default_leaves_some_operations_open() -> None:
    assert compiled("").allows(Request("process-info-pidinfo"))
    assert not compiled("(deny process-info*)").allows(Request("process-info-pidinfo"))
    assert not compiled("").allows(Request("process-fork"))


def test_network_addresses() -> None:
    profile = compiled('(allow network-outbound (remote ip "localhost:3128")) (allow network-bind (local tcp "*:80"))')
    assert profile.allows(connect("127.0.0.1", 3128))
    assert profile.allows(connect("::1", 3128))
    assert not profile.allows(connect("127.0.0.1", 3129))
    assert not profile.allows(connect("203.0.113.1", 3128))
    assert profile.allows(Request("network-bind", local=Endpoint("0.0.0.0", 80)))
    assert not profile.allows(Request("network-bind", local=Endpoint("0.0.0.0", 80, "udp")))
    assert not profile.allows(Request("network-bind", path="/tmp/s"))


def test_an_outbound_rule_with_a_local_filter_opens_everything() -> None:
    profile = compiled('(allow network-outbound (local ip "localhost:*"))')
    assert profile.allows(connect("203.0.113.1", 443))


def test_unix_sockets() -> None:
    profile = compiled(
        '(allow network-outbound (remote unix-socket (subpath "/s"))) (allow network-bind (subpath "/s"))'
    )
    assert profile.allows(Request("network-outbound", path="/s/x"))
    assert not profile.allows(Request("network-outbound", path="/other"))
    assert not profile.allows(connect("127.0.0.1", 80))
    assert profile.allows(Request("network-bind", path="/s"))
    every = compiled("(allow network-outbound (remote unix-socket))")
    assert every.allows(Request("network-outbound", path="/other"))
    assert not every.allows(connect("127.0.0.1", 80))


def test_the_message_of_the_rule_that_decided() -> None:
    profile = compile_profile(
        '(version 1)(deny default (with message "A"))(deny file-write* (subpath "/x") (with message (param "B")))',
        {"B": "b"},
    )
    assert profile.decide(file("file-write-create", "/x/y")).message == "b"
    assert profile.decide(file("file-write-create", "/y")).message == "A"


def test_wildcards_do_not_happen() -> None:
    with pytest.raises(ValueError, match="not an operation that happens"):
        compiled("").decide(Request("file-read*"))


# regular expressions


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"^/a/[^/]*\.pem(/|$)", "/a/x.pem", True),
        (r"^/a/[^/]*\.pem(/|$)", "/a/x.pem/y", True),
        (r"^/a/[^/]*\.pem(/|$)", "/a/b/x.pem", False),
        (r"^/a/[^/]*\.pem(/|$)", "/a/xpem", False),
        (r"^(/[^/]+)*/id_rsa(/|$)", "/id_rsa", True),
        (r"^(/[^/]+)*/id_rsa(/|$)", "/a/b\nc/id_rsa", True),
        (r"^/x[[&|~]$", "/x&", True),
        (r"^/x[]a]$", "/x]", True),
        ("foo", "/a/foobar", True),
        (r"^/x$", "/x\n", False),
    ],
)
def test_regular_expressions_search(pattern: str, text: str, found: bool) -> None:
    assert (compile_regex(pattern).search(text) is not None) is found


@pytest.mark.parametrize(
    "pattern", ["", r"\d", r"a{2}", r"(?:a)", r"a**", r"[\d]", r"[[:alpha:]]", "[a", "*a", r"\b", "a" * 1001]
)
def test_a_pattern_that_engines_read_differently_is_refused(pattern: str) -> None:
    with pytest.raises(SbplError):
        compile_regex(pattern)


def test_quoted_text_means_itself() -> None:
    odd = r"/a.b*c[d](e)|f^g$h\i+j?k{l}"
    assert compile_regex("^" + quote_regex(odd) + "$").fullmatch(odd)
