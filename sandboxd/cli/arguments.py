"""Options of the command line, as tables.

Not argparse: importing it takes as long as a bare interpreter's start, and it accepts abbreviations."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any


class UsageError(Exception):
    """A wrong command line: exit status 2."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class HelpAsked(Exception):
    """A request for the text of `--help`, the only argument."""


class Option:
    """`--name`, or with `value` (its word in help) `--name VALUE`, `--name=VALUE`.

    With `many` it may be repeated; `only` lists the possible values."""

    __slots__ = ("key", "many", "name", "only", "text", "value")

    def __init__(
        self, name: str, text: str, *, value: str = "", many: bool = False, only: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.text = text
        self.value = value
        self.many = many
        self.only = only
        self.key = name.lstrip("-").replace("-", "_")


SHOW_HELP = Option("--help", "show this text")
NO_AUTOSTART = Option("--no-autostart", "fail when no daemon answers, instead of starting one")
JSON = Option("--json", "print JSON")
CWD = Option("--cwd", "use the settings that apply in this directory", value="DIR")
SESSION = Option("--session", "use the settings of this session", value="ID")


class Parsed:
    """A parsed command line.

    `values` by option key: a string, True, or for `many` a list. `words` are the other arguments, `command` the words
    after `--`, or from the first word on where a command follows the options (None without any)."""

    __slots__ = ("command", "values", "words")

    def __init__(self, values: dict[str, Any], words: list[str], command: list[str] | None) -> None:
        self.values = values
        self.words = words
        self.command = command

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def many(self, key: str) -> list[str]:
        return list(self.values.get(key, ()))


def parse(arguments: Sequence[str], options: Iterable[Option], *, runs: bool = False) -> Parsed:
    """Read arguments up to `--`, or with `runs` up to the first word that is no option. Raises UsageError."""
    known = {option.name: option for option in (*options, SHOW_HELP)}
    values: dict[str, Any] = {}
    words: list[str] = []
    left = iter(arguments)
    for argument in left:
        if argument == "--":
            return Parsed(values, words, list(left))
        if argument == "-h":
            argument = "--help"
        if not argument.startswith("-") or argument == "-":
            if runs:
                return Parsed(values, words, [argument, *left])
            words.append(argument)
            continue
        name, equals, attached = argument.partition("=")
        option = known.get(name if argument.startswith("--") else argument)
        if option is None:
            raise UsageError(f"unknown option {visible(name)}", suggestion(name, known))
        if not option.value:
            if equals:
                raise UsageError(f"{option.name} takes no value")
            values[option.key] = True
            continue
        value = attached if equals else next(left, None)
        if value is None:
            raise UsageError(f"{option.name} needs a value: {option.name} {option.value}")
        if option.only and value not in option.only:
            raise UsageError(f"{option.name} must be {' or '.join(option.only)}, not {visible(value)}")
        if option.many:
            values.setdefault(option.key, []).append(value)
        elif option.key in values:
            raise UsageError(f"{option.name} is given twice")
        else:
            values[option.key] = value
    return Parsed(values, words, None)


def suggestion(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest known name, or with all of them."""
    import difflib

    names = list(known)
    near = difflib.get_close_matches(name, names, 1, 0.6)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"


def visible(text: str, limit: int = 200) -> str:
    """Return `text` for a line on a terminal, cut if long.

    Unprintable characters (controls, bidirectional marks, tags, bytes that were not UTF-8) are shown as escapes."""
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in shown)


class Help:
    """The description of one command, for `--help`, the completions of shells and the manual page.

    `examples` are words behind `sandboxd`. `negative` says what exit status 1 means, `statuses` replaces the usual exit
    statuses. `words` are the first words that may follow the options, or PATH or COMMAND for one of those."""

    __slots__ = ("examples", "options", "statuses", "summary", "usage", "words")

    def __init__(
        self,
        usage: str,
        summary: str,
        options: Iterable[Option],
        examples: tuple[str, ...],
        *,
        words: tuple[str, ...] = (),
        negative: str = "",
        statuses: str = "",
    ) -> None:
        self.usage = usage
        self.summary = summary
        self.options = (*options, SHOW_HELP)
        self.examples = examples
        self.words = words
        done = f"0 done, 1 {negative}" if negative else "0 done"
        self.statuses = statuses or f"{done}, 2 a wrong command line, 125 an error"

    def read(self, arguments: Sequence[str]) -> Parsed:
        """Return the parsed command line. Raises UsageError, and HelpAsked for `--help`."""
        parsed = parse(arguments, self.options, runs="COMMAND" in self.words)
        if "help" in parsed:
            raise HelpAsked(self.text())
        return parsed

    def text(self) -> str:
        """Return the text of `--help`."""
        lines = [f"usage: sandboxd {self.usage}", "", self.summary, ""]
        rows = [(f"{option.name} {option.value}".strip(), option.text) for option in self.options]
        width = max(len(left) for left, _ in rows)
        lines += [f"  {left:<{width}}  {right}" for left, right in rows]
        lines += ["", *(f"example: sandboxd {example}" for example in self.examples)]
        return "\n".join([*lines, f"exit status: {self.statuses}"]) + "\n"


def no_words(parsed: Parsed) -> None:
    """Raise UsageError for arguments beside the options."""
    extra = [*parsed.words, *(parsed.command or ())]
    if extra:
        raise UsageError(f"unexpected word {visible(extra[0], 60)}")
