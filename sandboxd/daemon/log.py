"""Log pipeline: steps that take a record and return it; only the last one writes.

- Secrets never appear: values under telling keys, and token-like text in any value, become `[redacted]`.
- The text of commands appears only at debug level: a command line may hold secrets that no pattern recognises.
- In text from inside a sandbox, characters that a terminal or a model would obey are shown as escapes.

There is no global configuration: `make_logger` makes a logger. `StandardLogs` adds the records of libraries."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Callable, MutableMapping, Sequence
from enum import StrEnum
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from sandboxd.daemon.log_bounds import TEMPLATE, CappedFile, Repeats
from sandboxd.daemon.redaction import redact
from sandboxd.policy.display import neutralise

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_COMMAND_KEYS = frozenset({"command", "command_text", "argv", "params"})
_MULTI_LINE_KEYS = frozenset({"exception", "stack"})
_LONGEST_EXCEPTION_LINE = 2000


class LogFormat(StrEnum):
    CONSOLE = "console"
    JSON = "json"
    JOURNAL = "journal"


def redact_secrets(_logger: WrappedLogger, _method: str, record: EventDict) -> EventDict:
    """Replace secrets by key and by pattern, at any depth."""
    return {key: redact(key, value) for key, value in record.items()}


def hide_commands(_logger: WrappedLogger, method: str, record: EventDict) -> EventDict:
    """Replace commands by their length above debug level."""
    if method == "debug":
        return record
    return {key: _length(value) if key in _COMMAND_KEYS else value for key, value in record.items()}


def _length(value: object) -> object:
    if isinstance(value, str):
        return f"[{len(value)} characters]"
    return f"[{len(value)} items]" if isinstance(value, (list, tuple, dict)) else value


def neutralise_text(_logger: WrappedLogger, _method: str, record: EventDict) -> EventDict:
    """Escape control, bidirectional and tag characters; tracebacks keep lines."""
    return {neutralise(key): _neutralised(key, value) for key, value in record.items()}


def _neutralised(key: str, value: object) -> object:
    if isinstance(value, str):
        if key in _MULTI_LINE_KEYS:
            return "\n".join(neutralise(line, _LONGEST_EXCEPTION_LINE) for line in value.split("\n"))
        return neutralise(value)
    if isinstance(value, dict):
        return {neutralise(str(k)): _neutralised("", v) for k, v in value.items()}
    if isinstance(value, list):
        return [_neutralised("", item) for item in value]
    return value


STEPS: tuple[Processor, ...] = (
    structlog.processors.add_log_level,
    structlog.processors.format_exc_info,
    redact_secrets,
    hide_commands,
    neutralise_text,
)
"""Steps of every record before it gets a time and is written."""


def choose_format(asked: str | None, stream: TextIO, journal_stream: str = "") -> LogFormat:
    """Return the requested format, or the one that fits the stream.

    That is console on a terminal, the journal's where `stream` leads there ($JOURNAL_STREAM, systemd.exec(5)), and JSON
    elsewhere."""
    if asked is not None:
        return LogFormat(asked)
    if _is_terminal(stream):
        return LogFormat.CONSOLE
    return LogFormat.JOURNAL if journal_stream and journal_stream == _device_and_inode(stream) else LogFormat.JSON


def _device_and_inode(stream: TextIO) -> str:
    try:
        state = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return ""
    return f"{state.st_dev}:{state.st_ino}"


_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def journal_line(_logger: WrappedLogger, _method: str, record: EventDict) -> str:
    """Render the only line of an entry: `<priority>event key=value …`, sd-daemon(3)."""
    priority = _PRIORITIES.get(str(record.pop("level", "info")), 6)
    event = " ".join(str(record.pop("event", "")).split())
    return " ".join([f"<{priority}>{event}", *(f"{key}={_word(value)}" for key, value in record.items())])


def _word(value: object) -> str:
    if isinstance(value, str) and value and not re.search(r'[\s"=]', value):
        return value
    return json.dumps(value, default=str, ensure_ascii=False)


def make_logger(stream: TextIO, form: LogFormat, level: int = logging.INFO, own_file: str = "") -> FilteringBoundLogger:
    """Make a logger for `stream` that bounds repeats and caps the daemon's file."""
    if form is LogFormat.JSON:
        last: tuple[Processor, ...] = (
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        )
    elif form is LogFormat.JOURNAL:
        last = (journal_line,)
    else:
        last = (
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(
                colors=_is_terminal(stream), exception_formatter=structlog.dev.plain_traceback, sort_keys=False
            ),
        )
    return logger_writing(CappedFile(stream, own_file).write, last, level, Repeats())


def logger_writing(
    write: Callable[[str], None], last: Sequence[Processor], level: int, *first: Processor
) -> FilteringBoundLogger:
    """Make a logger with the given last steps; their result goes to `write`."""
    logger = structlog.wrap_logger(
        _Output(write), processors=[*first, *STEPS, *last], wrapper_class=structlog.make_filtering_bound_logger(level)
    )
    return cast(FilteringBoundLogger, logger.bind())


class _Output:
    """Output with a method for each level, as structlog requires."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = write
        self.msg = self.log = self.exception = self.warn = self.fatal = self.failure = self.err = write


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False


class StandardLogs(logging.Handler):
    """Handler that passes the records of `logging` to the pipeline."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        fields: MutableMapping[str, Any] = {"library": record.name, TEMPLATE: str(record.msg)}
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        self._logger.log(record.levelno, record.getMessage(), **fields)

    @classmethod
    @contextlib.contextmanager
    def installed(cls, logger: FilteringBoundLogger, level: int = logging.WARNING) -> Any:
        """Pass the records of the root logger to `logger` while the context lasts."""
        root, handler = logging.getLogger(), cls(logger)
        before = root.handlers[:], root.level
        root.handlers[:] = [handler]
        root.setLevel(level)
        try:
            yield handler
        finally:
            root.handlers[:] = before[0]
            root.setLevel(before[1])
