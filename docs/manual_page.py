"""The manual page sandboxd(1), made from the option tables of the command line. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from sandboxd.cli.arguments import Help

_HEAD = """.\\" Made from the option tables of sandboxd by: ./dev golden
.TH SANDBOXD 1 "" "sandboxd {version}" "User Commands"
.SH NAME
sandboxd \\- run shell commands inside an operating\\-system sandbox
.SH SYNOPSIS
.B sandboxd
.I COMMAND
\\&.\\|.\\|.
.SH DESCRIPTION
A daemon for one user account lets programs and people run shell commands in a sandbox. A command can write only in its
project and reach only the hosts that settings allow. The daemon is started when a command needs it.
.PP
Without a command, the state of the daemon and the most needed commands are printed.
.B \\-V
and
.B \\-\\-version
print the version.
.SH COMMANDS
"""
_TAIL = """.SH FILES
.TP
.I ~/.claude/settings.json
settings of the user
.TP
.I .claude/settings.json
settings of a project, which only tighten
.TP
.I /etc/sandboxd/managed\\-settings.json
settings of the administrator, which overrule all others
.TP
.I ~/.local/state/sandboxd/daemon.log
the log of a daemon that systemd did not start
.SH ENVIRONMENT
.TP
.B NO_COLOR
print no colours
.TP
.B SANDBOXD_SOCKET
the socket of the daemon
"""


def manual_page(commands: Iterable[tuple[str, str, Help]], version: str) -> str:
    text = _HEAD.format(version=version)
    for _, _, help in commands:
        first, _, more = help.summary.partition("\n")
        text += f".SS sandboxd {_escaped(help.usage)}\n{_line(first)}\n"
        if more.strip():
            text += f".PP\n.nf\n{_lines(more.strip(chr(10)))}\n.fi\n"
        for option in help.options:
            value = f" \\fI{_escaped(option.value)}\\fR" if option.value else ""
            text += f".TP\n\\fB{_escaped(option.name)}\\fR{value}\n{_line(option.text)}\n"
        for example in help.examples:
            text += f".PP\n.nf\n.RS\n{_line(f'sandboxd {example}')}\n.RE\n.fi\n"
        text += f".PP\nExit status: {_escaped(help.statuses)}.\n"
    return text + _TAIL


def _lines(text: str) -> str:
    return "\n".join(_line(line) for line in text.split("\n"))


def _line(text: str) -> str:
    """A line of text, also where it begins as a request of roff does."""
    return ("\\&" if text.startswith((".", "'")) else "") + _escaped(text)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("…", "\\&.\\|.\\|.")
