"""The entry point: command look-up, and exit statuses for errors."""

from __future__ import annotations

import os
import sys

from sandboxd.cli.arguments import HelpAsked, UsageError, suggestion, visible
from sandboxd.cli.output import USAGE, fail
from sandboxd_client.errors import SandboxdError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from sandboxd.cli.arguments import Help
else:
    import _signal  # what `signal` wraps in enums, 4 ms cheaper to import

# name, module of this package, summary
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("run", "execution.run", "run one command in the sandbox"),
    ("session", "execution.session", "start, list and end sessions, whose commands share /tmp, localhost and grants"),
    ("ui", "ui.ui_command", "show all of it in this terminal, and decide"),
    ("ps", "execution.ps", "list the commands that run, with ports, processor time and memory"),
    ("kill", "execution.kill", "end running commands"),
    ("status", "control.status", "show the running daemon, its settings, sessions and layers"),
    ("start", "control.start", "start the daemon, unless it runs"),
    ("stop", "control.stop", "end the daemon and everything it runs"),
    ("restart", "control.restart", "replace the daemon; running commands go on"),
    ("check", "control.check", "check what this host can enforce, with a remedy for each failing step"),
    ("explain", "explain", "show a decision on a path, host, command or socket, with its rule and file"),
    ("describe", "describe", "print the restrictions in words, for the prompt of a model"),
    ("settings", "rules.settings", "show, check and change settings"),
    ("exclude", "rules.exclude", "choose commands that run outside the sandbox"),
    ("allow", "rules.allow", "let commands write a path, or reach a host"),
    ("deny", "rules.deny", "close a path, or a host"),
    ("profile", "rules.profile", "show what whole agents need, for run --profile"),
    ("import", "rules.import_settings", "convert settings of srt, Codex, fence or Claude Code"),
    ("export", "rules.export_settings", "print the policy as settings of srt"),
    ("credential", "control.credential", "give the daemon the values of credentials"),
    ("trust", "rules.trust", "let the settings of a project widen, after a review"),
    ("enable", "rules.enable", "switch the sandbox on"),
    ("disable", "rules.disable", "switch the sandbox off"),
    ("violations", "violations", "list what was blocked, also as it happens"),
    ("prompts", "prompts", "answer permission questions in this terminal"),
    ("web", "web", "serve a page that shows what happens and takes answers"),
    ("audit", "audit", "show and verify the audit log"),
    ("metrics", "control.metrics", "print metrics of the daemon, in the text format of Prometheus"),
    ("logs", "control.logs", "show the log of the daemon, also as it is written"),
    ("serve", "control.serve", "run the daemon in the foreground"),
    ("hook", "hooks.hook_command", "put the shell commands of an agent into its sandbox"),
    ("mcp", "mcp.mcp_command", "serve tools that run commands in the sandbox to MCP clients"),
    ("service", "service.service_command", "let the system start the daemon"),
    ("completion", "shells.completion", "print the completions of a shell"),
)
_NEEDED = ("run", "violations", "allow")
"""The commands that a new user needs first."""


_LOADING = ("OPENSSL_", "GCONV_PATH", "LOCPATH", "NLSPATH")
"""Variables that libraries of this process read late, and load code from what they name. Commands may get them."""
_INTERRUPTED = 130
_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")


def main() -> NoReturn:
    """The console script."""
    if sys.argv[1:2] == ["run"]:
        _leave(lambda: _execute(sys.argv[1:]))
    _repair_environment()
    sys.exit(execute(sys.argv[1:]))


def resume() -> NoReturn:
    """Continue a `run` that the front has begun, with the arguments that it gives."""
    from sandboxd.cli.execution import run
    from sandboxd.cli.execution.handed_over import HandedOver

    _leave(lambda: run.main(sys.argv[8:], HandedOver(sys.argv[1:8])))


def _leave(action: Callable[[], int]) -> NoReturn:
    """End the process with the status of an action; tearing the interpreter down would cost 2 ms."""
    _repair_environment()
    try:
        os._exit(_guarded(action))
    except KeyboardInterrupt:  # of what waits for the daemon: a shell that runs a script shall end, too
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)
        os._exit(_INTERRUPTED)


def execute(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status.

    Errors have been written to standard error by then."""
    try:
        return _guarded(lambda: _execute(arguments))
    except KeyboardInterrupt:
        return _INTERRUPTED


def _repair_environment() -> None:
    for name in os.environ:
        if name.startswith(_LOADING):
            os.unsetenv(name)  # which os.environ does not notice
    if os.environ.get("LC_CTYPE") in _COERCED:
        _restore_locale()


def _restore_locale() -> None:
    """Give commands the caller's LC_CTYPE: Python sets another one where the locale is C, also with -I (PEP 538)."""
    try:
        with open("/proc/self/environ", "rb") as file:
            given = file.read().split(b"\0")
    except OSError:
        return
    values = [one.partition(b"=")[2] for one in given if one.startswith(b"LC_CTYPE=")]
    del os.environ["LC_CTYPE"]
    if values:
        os.environb[b"LC_CTYPE"] = values[0]


def _guarded(action: Callable[[], int]) -> int:
    try:
        status = action()
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except UsageError as error:
        return fail(error.message, error.hint, USAGE)
    except SandboxdError as error:
        return fail(error.message, error.hint)
    except BrokenPipeError:  # the reader of standard output has gone
        _discard_output()
        return 141


def _execute(arguments: Sequence[str]) -> int:
    modules = {name: module for name, module, _ in COMMANDS}
    if not arguments:
        return _introduce()
    name = arguments[0]
    if name == "help" and arguments[1:2] and arguments[1] in modules:
        arguments, name = (arguments[1], "--help"), arguments[1]
    if name in ("--help", "-h", "help"):
        sys.stdout.write(_help())
        return 0
    if name in ("--version", "-V"):
        from sandboxd import __version__

        sys.stdout.write(f"sandboxd {__version__}\n")
        return 0
    if name not in modules:
        kind = "option" if name.startswith("-") else "command"
        raise UsageError(f"unknown {kind} {visible(name)}", suggestion(name, (*modules, "--help", "--version")))
    try:
        status: int = _module(modules[name]).main(arguments[1:])
    except HelpAsked as asked:
        sys.stdout.write(str(asked))
        return 0
    return status


def _module(name: str) -> Any:
    return __import__(f"sandboxd.cli.{name}", fromlist=["main"])


def described_commands() -> list[tuple[str, str, Help]]:
    """Return the name, summary and table of each command."""
    return [(name, summary, _module(module).HELP) for name, module, summary in COMMANDS]


def _introduce() -> int:
    """Print the status, and the commands that a new user needs."""
    from sandboxd.cli.control import status

    status.main(())
    described = described_commands()
    rows = [(f"sandboxd {help.examples[0]}", summary) for name, summary, help in described if name in _NEEDED]
    width = max(len(example) for example, _ in rows)
    sys.stdout.write("\n" + "".join(f"  {example:<{width}}  {summary}\n" for example, summary in rows))
    sys.stdout.write("\nsandboxd --help lists all commands.\n")
    return 0


def _help() -> str:
    width = max(len(name) for name, _, _ in COMMANDS)
    lines = ["usage: sandboxd COMMAND …", "", "Run shell commands inside an operating-system sandbox.", ""]
    lines += [f"  {name:<{width}}  {summary}" for name, _, summary in COMMANDS]
    lines += ["", "sandboxd COMMAND --help lists the options of a command."]
    return "\n".join(lines) + "\n"


def _discard_output() -> None:
    """Discard output for a closed pipe: flushing it at exit must not raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
