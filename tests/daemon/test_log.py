"""What a log line may hold: no secrets, commands at debug level only, nothing that a terminal would obey."""

from __future__ import annotations

import io
import json
import logging
import os
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from structlog.typing import FilteringBoundLogger

from sandboxd.daemon.log import LogFormat, StandardLogs, choose_format, make_logger


def logged(write: Callable[[FilteringBoundLogger], Any], level: int = logging.DEBUG) -> dict[str, Any]:
    stream = io.StringIO()
    write(make_logger(stream, LogFormat.JSON, level))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1, lines
    record = json.loads(lines[0])
    assert isinstance(record, dict)
    return record


SECRETS = {
    "bearer": "Authorization: Bearer abcdefgh12345678",
    "basic": "Proxy-Authorization: Basic dXNlcjpwYXNzd29yZA==",
    "url": "https://user:hunter22secret@host.test/x",
    "github": "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github fine": "github_pat_11ABCDEFG0abcdefghijkl",
    "gitlab": "glpat-abcdefghij1234567890",
    "slack": "xoxb-1234567890-abcdefghij",
    "openai": "sk-abcdefghijklmnop123456",
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "option": "--password=correct-horse",
    "assignment": "API_KEY='correct-horse'",
    "json": '{"token": "correct-horse"}',
}
TELLING = {
    "Bearer": "abcdefgh12345678", "basic": "dXNlcjpwYXNzd29yZA", "url": "hunter22secret", "option": "correct-horse",
    "assignment": "correct-horse", "json": "correct-horse", "bearer": "abcdefgh12345678",
}  # fmt: skip


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("place", ["event", "value", "list", "nested", "exception"])
def test_secrets_in_text_are_not_written(kind: str, place: str) -> None:
    text = SECRETS[kind]
    secret = TELLING.get(kind, text)

    def write(log: FilteringBoundLogger) -> None:
        match place:
            case "event":
                log.info(f"before {text} after")
            case "value":
                log.info("x", detail=text)
            case "list":
                log.info("x", detail=["a", text])
            case "nested":
                log.info("x", detail={"a": {"b": (text,)}})
            case "exception":
                try:
                    raise ValueError(text)
                except ValueError:
                    log.exception("x")

    record = json.dumps(logged(write))
    assert secret not in record
    assert "[redacted]" in record


@pytest.mark.parametrize(
    "key",
    ["password", "token", "ticket", "api_key", "apikey", "secret", "HTTP_AUTHORIZATION", "cookie", "proxy-auth",
     "aws.secret", "private_key", "access_key", "credentials", "db_passwd"],
)  # fmt: skip
def test_values_under_telling_keys_are_not_written(key: str) -> None:
    record = logged(lambda log: log.info("x", **{key: "plain", "deep": {key: ["plain"]}}))
    assert "plain" not in json.dumps(record)


@pytest.mark.parametrize("key", ["author", "tokenizer", "passenger", "compass", "keyboard", "session_id", "monkey"])
def test_ordinary_keys_are_written(key: str) -> None:
    assert logged(lambda log: log.info("x", **{key: "plain"}))[key] == "plain"


def test_numbers_are_written() -> None:
    assert logged(lambda log: log.info("x", tokens=3, ok=True, none=None))["tokens"] == 3


def test_values_of_environment_variables_are_not_written() -> None:
    record = logged(lambda log: log.debug("x", environment={"EDITOR": "vi", "PIN": "1234"}))
    assert record["environment"] == {"EDITOR": "[redacted]", "PIN": "[redacted]"}


def test_bytes_and_bottomless_values_are_not_written() -> None:
    bottomless: list[Any] = []
    bottomless.append(bottomless)
    record = logged(lambda log: log.info("x", data=b"plain", loop=bottomless))
    assert record["data"] == "[redacted]"


@pytest.mark.parametrize("level", ["info", "warning", "error"])
def test_commands_are_only_measured(level: str) -> None:
    record = logged(lambda log: getattr(log, level)("x", command="rm -rf x", argv=["rm", "-rf"], cwd="/w"))
    assert record["command"] == "[8 characters]"
    assert record["argv"] == "[2 items]"
    assert record["cwd"] == "/w"


def test_commands_are_shown_at_debug_level() -> None:
    assert logged(lambda log: log.debug("x", command="rm -rf x"))["command"] == "rm -rf x"


@pytest.mark.parametrize(
    "text",
    ["\x1b]52;c;aGk=\x07", "a\r\nb", "\u202etxt.exe", "\u2066x\u2069", "\U000e0041\U000e0042", "\x9b31m", "\ud800",
     "\x00"],
    ids=ascii,
)  # fmt: skip
@pytest.mark.parametrize("form", LogFormat)
def test_text_from_inside_is_harmless(text: str, form: LogFormat) -> None:
    stream = io.StringIO()
    log = make_logger(stream, form)
    log.info(text, host=text, items=[text], deep={text: text}, **{text: "key"})
    written = stream.getvalue()
    assert len(written.splitlines()) == 1
    for character in text:
        assert (character.isascii() and character.isprintable()) or character not in written.rstrip("\n")


def test_a_traceback_keeps_its_lines_and_loses_its_escapes() -> None:
    def write(log: FilteringBoundLogger) -> None:
        try:
            raise ValueError("bad \x1b[31m name")
        except ValueError:
            log.exception("x")

    text = logged(write)["exception"]
    assert text.startswith("Traceback")
    assert "\n" in text
    assert "\x1b" not in text


def test_quiet_levels_write_nothing() -> None:
    stream = io.StringIO()
    make_logger(stream, LogFormat.JSON, logging.INFO).debug("x")
    assert stream.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_form_follows_the_stream_unless_asked_for() -> None:
    assert choose_format(None, io.StringIO()) is LogFormat.JSON
    assert choose_format(None, Terminal()) is LogFormat.CONSOLE
    assert choose_format("json", Terminal()) is LogFormat.JSON


def test_below_systemd_it_is_that_of_the_journal() -> None:
    with tempfile.TemporaryFile("w") as stream:
        state = os.fstat(stream.fileno())
        assert choose_format(None, stream, f"{state.st_dev}:{state.st_ino}") is LogFormat.JOURNAL
        # Inherited by a program whose standard error has been led elsewhere.
        assert choose_format(None, stream, f"{state.st_dev}:1") is LogFormat.JSON
        assert choose_format("console", stream, f"{state.st_dev}:{state.st_ino}") is LogFormat.CONSOLE
    assert choose_format(None, io.StringIO(), "1:2") is LogFormat.JSON


def test_an_entry_of_the_journal_is_one_line_with_its_priority() -> None:
    stream = io.StringIO()
    log = make_logger(stream, LogFormat.JOURNAL)
    log.info("ready", pid=3, ok=True, none=None, path="/a b", plain="/x", names=["a", "b"], empty="")
    log.error("one\ntwo <3>", text='a="b"\nnext')
    try:
        raise ValueError("<0>forged\n<0>entry")
    except ValueError:
        log.exception("failed")
    lines = stream.getvalue().splitlines()
    assert lines[0] == '<6>ready pid=3 ok=true none=null path="/a b" plain=/x names=["a", "b"] empty=""'
    assert lines[1].startswith("<3>one\\x0atwo <3> text=")
    assert lines[2].startswith("<3>failed exception=")
    assert len(lines) == 3


def test_a_closed_stream_does_not_stop_the_daemon() -> None:
    stream = io.StringIO()
    log = make_logger(stream, LogFormat.JSON)
    stream.close()
    log.info("x")


def test_bound_context_stays_with_its_own_logger() -> None:
    stream = io.StringIO()
    log = make_logger(stream, LogFormat.JSON)
    log.bind(session="s-1").info("one")
    log.info("two")
    one, two = (json.loads(line) for line in stream.getvalue().splitlines())
    assert one["session"] == "s-1"
    assert "session" not in two


def test_what_libraries_log_takes_the_same_way() -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    with StandardLogs.installed(make_logger(stream, LogFormat.JSON)):
        logging.getLogger("asyncio").warning("slow %s", "Bearer abcdefgh12345678")
        logging.getLogger("asyncio").info("chatter")
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert record["library"] == "asyncio"
    assert record["level"] == "warning"
    assert record["event"] == "slow Bearer [redacted]"
    assert (root.handlers, root.level) == before
