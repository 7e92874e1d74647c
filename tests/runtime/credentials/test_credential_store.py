"""Values of credentials: sources, their limits, when they are read again, and what is never shown."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path

import pytest

from sandboxd.errors import CallerError, HostError
from sandboxd.plan.masked_files import MaskedFile, copy_path, masked_files
from sandboxd.policy.hosts.host_patterns import HostPattern
from sandboxd.policy.model import CredentialRule, CredentialSource, MaskRule, NetworkPolicy, SourceKind
from sandboxd.proxy.credentials.request_heads import Secret
from sandboxd.runtime.credentials.credential_store import LIFETIME_S, PAUSE_S, CredentialStore
from sandboxd.runtime.credentials.masked_copies import masked, write_copy
from sandboxd.runtime.credentials.session_credentials import SessionCredentials, stand_in_for
from sandboxd.settings.origins import BUILT_IN

ENV = CredentialSource(SourceKind.ENV, ("A",))


def program(*words: str) -> CredentialSource:
    return CredentialSource(SourceKind.COMMAND, words)


def file(path: Path, before: str = "") -> CredentialSource:
    return CredentialSource(SourceKind.FILE, (str(path), before))


async def fault(store: CredentialStore, source: CredentialSource) -> HostError:
    with pytest.raises(HostError) as found:
        await store.value(source)
    return found.value


async def test_a_given_value_comes_before_the_environment() -> None:
    store = CredentialStore({"A": "of-the-daemon"})
    assert store.state(ENV) == "daemon's environment" and await store.value(ENV) == b"of-the-daemon"
    store.give("A", "given-value\n")
    assert store.state(ENV) == "set" and await store.value(ENV) == b"given-value"
    assert store.forget("A") and not store.forget("A") and await store.value(ENV) == b"of-the-daemon"
    empty = CredentialStore({})
    assert empty.state(ENV) == "missing"
    missing = await fault(empty, ENV)
    assert (missing.slug, missing.hint) == ("credential_missing", "sandboxd credential set A")
    assert "of-the-daemon" not in repr(vars(empty)) and resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
    assert int(Path("/proc/self/coredump_filter").read_text(), 16) == 0


@pytest.mark.parametrize("value", ["", "short", "x" * 8193, "two\nlines-of-it", "a\0value-of-it", "tab\tvalue-of-it"])
async def test_a_value_that_no_header_can_hold_is_refused(value: str) -> None:
    store = CredentialStore({"A": value})
    with pytest.raises(CallerError) as given:
        store.give("A", value)
    assert given.value.slug == "credential_unusable"
    found = await fault(store, ENV)
    assert found.slug in ("credential_unusable", "credential_missing")
    assert not value or (value not in found.message and value not in given.value.message)


async def test_a_keyring_is_asked_by_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a program like secret-tool of libsecret, which ends with 1 where the keyring has no such entry."""
    tool, asked = tmp_path / "secret-tool", tmp_path / "asked"
    tool.write_text(f'#!/bin/sh\necho "$*" >> {asked}\n[ "$3 $5" = "example me" ] && printf value-of-it\n')
    tool.chmod(0o755)
    monkeypatch.setattr("sandboxd.runtime.credentials.credential_store.SECRET_TOOL", str(tool))
    monkeypatch.setattr("sys.platform", "linux")
    now, store = [0.0], CredentialStore({}, clock=lambda: now[0])
    mine, other = (CredentialSource(SourceKind.KEYRING, ("example", user)) for user in ("me", "you"))
    assert await store.value(mine) == await store.value(mine) == b"value-of-it"
    assert asked.read_text() == "lookup service example username me\n"
    found = await fault(store, other)
    assert found.slug == "credential_missing" and "ends with status 1" in found.message
    assert "keyring:example/you" in found.message and found.hint
    now[0] += LIFETIME_S + 1
    assert await store.value(mine) == b"value-of-it" and asked.read_text().count("username me") == 2


async def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    store, path = CredentialStore({}), tmp_path / "token"
    assert (await fault(store, file(path))).slug == "credential_missing"
    path.write_text("first-value\n")
    assert await store.value(file(path)) == b"first-value"
    path.write_text("a=x\ntoken = second-value, b\n")
    assert await store.value(file(path, "token = ")) == b"second-value"
    assert "pattern" in (await fault(store, file(path, "nothing="))).message
    assert (await fault(store, file(tmp_path))).slug == "credential_missing"


async def test_a_program_is_run_with_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd.runtime.credentials.credential_store.COMMAND_S", 0.3)
    store = CredentialStore({"HOME": "/h", "SECRET": "of-the-daemon"})
    assert await store.value(program("/bin/sh", "-c", "echo $HOME:$PWD:$SECRET:value")) == b"/h:/::value"
    left = tmp_path / "left"
    rows = {
        ("/no/such/program",): "does not start",
        ("/bin/sh", "-c", "echo a-value-here; exit 3"): "status 3",
        ("/bin/sh", "-c", f"(sleep 5; touch {left}) & sleep 5"): "does not end",
        ("/bin/sh", "-c", "yes value"): "more than 8192",
        ("/bin/sh", "-c", "echo no >&2"): "less than 8",
    }
    for words, why in rows.items():
        found = await fault(store, program(*words))
        assert why in found.message and "a-value-here" not in found.message, words
    assert not left.exists()


async def test_a_program_runs_again_after_its_time_or_a_401(tmp_path: Path) -> None:
    now, count = [0.0], tmp_path / "count"
    store = CredentialStore({}, lambda: now[0])
    source = program("/bin/sh", "-c", f"echo x >> {count}; echo a-value-$(wc -l < {count})")
    assert {await one for one in asyncio.as_completed([store.value(source) for _ in range(5)])} == {b"a-value-1"}
    store.refused(source)
    assert await store.value(source) == b"a-value-1"  # just read: a server that says no cannot make it run all the time
    now[0] += PAUSE_S + 1
    assert await store.value(source) == b"a-value-2"
    now[0] += LIFETIME_S - 1
    assert await store.value(source) == b"a-value-2"
    now[0] += 2
    assert await store.value(source) == b"a-value-3" and store.state(source) == "read"


@pytest.mark.parametrize(
    ("value", "prefix", "begins", "length"),
    [
        ("ghp_" + "a" * 36, None, "ghp_", 40),
        ("sk-ant-api03-" + "a" * 90, None, "sk-ant-api03-", 103),
        ("my-own-secret-words", None, "", 20),
        ("", "npm_", "npm_", 24),
        ("a" * 4000, None, "", 255),
    ],
)
def test_a_placeholder_looks_like_the_value(value: str, prefix: str | None, begins: str, length: int) -> None:
    found = stand_in_for("s-1", "env:A", value, prefix)
    assert found.startswith(begins) and len(found) == length and found == stand_in_for("s-1", "env:A", value, prefix)
    assert found not in (stand_in_for("s-2", "env:A", value, prefix), stand_in_for("s-1", "env:B", value, prefix))
    assert not value or value[len(begins) :][:4] not in found


async def test_masked_files_and_variables(tmp_path: Path) -> None:
    npmrc, plain, link, twin = (tmp_path / name for name in ("npmrc", "plain", "link", "twin"))
    npmrc.write_text("a=1\n_authToken=npm_0123456789abcdef\n//b/:_authToken=other-secret\n")
    plain.write_text("all of it\n")
    link.symlink_to(npmrc)
    os.link(plain, twin)
    before = "_authToken="
    masks = [MaskRule(BUILT_IN, path=str(one), pattern=before) for one in (npmrc, link, twin, tmp_path / "absent")]
    masks += [MaskRule(BUILT_IN, path=str(plain)), MaskRule(BUILT_IN, variable="B")]
    rule = CredentialRule(HostPattern.parse("a.test"), file(npmrc, before), BUILT_IN, variables=("NPM_TOKEN",))
    own = SessionCredentials("s-1", CredentialStore({}))
    tmp = str(tmp_path / "t0")
    variables = await own.prepare(NetworkPolicy(credentials=(rule,), masks=tuple(masks)), tmp)
    token = variables["NPM_TOKEN"]
    assert sorted(variables) == ["B", "NPM_TOKEN"] and token.startswith("npm_") and len(variables["B"]) == 20
    texts = [Path(copy_path(tmp, one)).read_text() for one in masked_files(NetworkPolicy(masks=tuple(masks)))]
    first, _, other = texts[0].partition(token)
    assert first == "a=1\n_authToken=" and other.startswith("\n//b/:_authToken=") and "other-secret" not in other
    for text in texts[1:]:
        assert len(text) >= 20 and "\n" not in text.rstrip("\n") and "=" not in text and "all of it" not in text
    secret = await own.secret(rule.source)
    assert secret.stand_in.decode() == token and secret.value == b"npm_0123456789abcdef"
    npmrc.write_text("_authToken=npm_another0123456\n")
    assert (await own.secret(rule.source)).stand_in.decode() == token and len(own.secrets) == 2
    files = masked_files(NetworkPolicy(masks=tuple(masks)))
    inode = os.stat(copy_path(tmp, files[0])).st_ino
    write_copy(files[1], tmp, lambda name, value: b"unchanged")
    assert os.stat(copy_path(tmp, files[0])).st_ino == inode


async def test_a_slow_source_holds_no_command_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd.runtime.credentials.session_credentials.WAIT_S", 0.1)
    slow = program("/bin/sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60")
    rule = CredentialRule(HostPattern.parse("a.test"), slow, BUILT_IN, variables=("A",), prefix="sk-")
    own = SessionCredentials("s-1", CredentialStore({}))
    variables = await own.prepare(NetworkPolicy(credentials=(rule,)), str(tmp_path / "t"))
    assert variables["A"].startswith("sk-") and variables["A"] == await own.stand_in(slow)
    if (tmp_path / "pid").exists() and (text := (tmp_path / "pid").read_text()):
        assert not Path(f"/proc/{text.strip()}").exists()


def test_another_mask_never_shows_more(tmp_path: Path) -> None:
    """Beside patterns of a user, also one of a project that guesses; values are replaced wherever they are."""
    path = tmp_path / "npmrc"
    path.write_text("b=0\na=secret-value\n")

    def shown(*patterns: str, project: tuple[str, ...] = (), secrets: tuple[Secret, ...] = ()) -> str:
        masks = [MaskRule(BUILT_IN, path=str(path), pattern=pattern) for pattern in patterns]
        masks += [MaskRule(BUILT_IN, path=str(path), pattern=pattern, by_project=True) for pattern in project]
        [file] = masked_files(NetworkPolicy(masks=tuple(masks)))
        write_copy(file, str(tmp_path / "t"), lambda name, value: b"STAND-IN", secrets)
        return Path(copy_path(str(tmp_path / "t"), file)).read_text()

    other = (Secret(b"secret-value", b"OTHER"),)
    for patterns in (("a=",), ("a=", "a=sec"), ("a=", "b=0\na=secret")):
        assert shown(*patterns) == "b=0\na=STAND-IN\n"
    assert shown("a=", "a") == "b=0\naSTAND-IN\n"
    for guess in ("a=sec", "a=x", "sec", "zzz=", "a=secret-valu", "a="):
        assert shown("a=", project=(guess,)) == "b=0\na=STAND-IN\n", guess
        assert shown("b=", project=(guess,), secrets=other) == "b=STAND-IN\na=OTHER\n", guess
    assert shown("a=", project=("b=",)) == "b=STAND-IN\na=STAND-IN\n"
    assert shown("a=", project=("",)) == shown("zzz=", "") == "STAND-IN\n"
    assert shown("b=", secrets=other) == "b=STAND-IN\na=OTHER\n"


def test_a_pattern_that_fits_nothing_hides_the_file(tmp_path: Path) -> None:
    def copied(text: str, *patterns: str, by_project: bool = False) -> tuple[str, str]:
        (tmp_path / "npmrc").write_text(text)
        rules = [MaskRule(BUILT_IN, path=f"{tmp_path}/npmrc", pattern=one, by_project=by_project) for one in patterns]
        [file] = masked_files(NetworkPolicy(masks=tuple(rules)))
        told = write_copy(file, f"{tmp_path}/t", lambda name, value: b"STAND-IN")
        return Path(copy_path(f"{tmp_path}/t", file)).read_text(), told

    for patterns in (("tokn=",), ("token=", "pasword=")):
        text, told = copied("token=secret\npassword=secret\n", *patterns)
        assert text == "STAND-IN\n" and f"npmrc, pattern {patterns[-1]}" in told
    assert copied("token=secret\n", "tokn=", by_project=True)[0] == "STAND-IN\n"
    assert copied("token=secret\nx=1\n", "token=") == ("token=STAND-IN\nx=1\n", "")
    for nothing in ("", "\n \n", "token=\nx=1\n"):
        assert copied(nothing, "token=") == (nothing, "")


@pytest.mark.parametrize(
    ("pattern", "text", "shown"),
    [
        ("token=", 'token="a b,c"\nb=1', 'token="*"\nb=1'),
        ("token=", "token='secret'", "token='*'"),
        ("token=", "x token = secret y", "x token = * y"),
        ("token=", 'token=a"b,c;d<e', "token=*"),
        ("token=", 'token="a\\" b"', 'token="*"'),
        ("token=", '["--token=abc","y"]', '["--token=*","y"]'),
        ('"auth": "', '{"a":{"auth":"U0VD"},"b":1}', '{"a":{"auth":"*"},"b":1}'),
        ("<password>", "<password>a b</password>", "<password>*</password>"),
        ("password ", "login a password b c", "login a password * c"),
        ("token=", "token=\nb=1", "token=\nb=1"),
        # what lines below may belong to, and too many
        ("token:", "token: |\n  secret", "*\n"),
        ("token:", "token:\n  secret", "*\n"),
        ("token=", 'token="""\nsecret"""', "*\n"),
        ("token=", 'token="a\nb"', "*\n"),
        ("token=", "token=abc\\\nrest", "*\n"),
        ("a=", "a=b " * 1001, "*\n"),
        # no time for blanks and quotes
        ("token=", "token=" + " " * 900_000, "token=" + " " * 900_000),
        ("=", " " * 900_000, " " * 900_000),
        ("token=", 'token="' + '"a' * 400_000, "*\n"),
    ],
)  # fmt: skip
def test_a_mask_hides_whole_values(pattern: str, text: str, shown: str) -> None:
    file = MaskedFile("/x", (pattern,), False)
    assert masked(file, text.encode(), lambda name, value: b"*").decode() == shown


@pytest.mark.parametrize("text", ['token="secret-value"', "token = secret-value;", "token='secret-value' # a"])
async def test_a_value_in_a_file_may_have_quotes_and_blanks(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    assert await CredentialStore({}).value(file(tmp_path / "a", "token=")) == b"secret-value"
