"""The tools that permission rules name, and what their rules mean for commands.

The names are those of https://code.claude.com/docs/en/tools-reference, and older ones that files still have. A tool
that no shell command can replace (`FOREIGN`, `mcp__…`) means nothing for commands. A rule of `ask` for files denies
them, since a running command cannot wait for a question about each file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from sandboxd_client.records import dataclass, field


class RuleList(StrEnum):
    """A list of `permissions`."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class Feeds(StrEnum):
    """The part of a policy that a rule feeds."""

    ALLOWED_HOST = "allowed host"
    DENIED_HOST = "denied host"
    ASKED_HOST = "host that asks"
    ALLOW_WRITE = "writable path"
    DENY_WRITE = "unwritable path"
    DENY_READ = "unreadable path"
    COMMAND = "command rule"
    SANDBOXED_ONLY = "no command outside the sandbox"
    NO_COMMAND = "no command runs"
    WARNING = "nothing, with a warning"
    NOTHING = "nothing"


class Parameter(StrEnum):
    """The role of a parameter of a tool in rules such as `Tool(parameter:value)`."""

    CONTENT = "content"
    """The rules of the tool describe it already, so no rule that names it can match."""
    CALL = "call"
    """A property of the call, which no command can see."""
    OUTSIDE = "outside"
    """The request to run outside the sandbox."""


_CONTENTS = frozenset({"command", "domain", "file", "file_path", "filename", "notebook_path", "path", "paths", "url"})
"""Parameters that the content of a rule describes, for any tool but a shell."""


@dataclass(frozen=True, slots=True)
class Tool:
    """The meanings of rules for a tool; a bare rule (`alone`) stands for `whole`."""

    content: Mapping[RuleList, Feeds]
    alone: Mapping[RuleList, Feeds] = field(default_factory=dict)
    whole: str | None = None
    described: str = ""
    """The parameter that the content describes."""
    others: frozenset[str] = frozenset()

    @property
    def is_shell(self) -> bool:
        return self.described == "command"

    def feeds(self, kind: RuleList, *, alone: bool) -> Feeds:
        return (self.alone if alone else self.content).get(kind, Feeds.NOTHING)

    def parameter(self, name: str) -> Parameter | None:
        if name == self.described or (not self.is_shell and name in _CONTENTS):
            return Parameter.CONTENT
        if name == "dangerouslyDisableSandbox" and self.is_shell:
            return Parameter.OUTSIDE
        return Parameter.CALL if name in self.others else None


_WRITES = {RuleList.ALLOW: Feeds.ALLOW_WRITE, RuleList.DENY: Feeds.DENY_WRITE, RuleList.ASK: Feeds.DENY_WRITE}
_WRITES_ALL = {RuleList.DENY: Feeds.DENY_WRITE, RuleList.ASK: Feeds.COMMAND}
_READS = {RuleList.DENY: Feeds.DENY_READ, RuleList.ASK: Feeds.DENY_READ}
# An allow for Read does not become allowRead: every path is readable unless denied, and re-opening a denied region
# has its own key.
_SEARCHES = Tool(
    _READS,
    {RuleList.DENY: Feeds.WARNING, RuleList.ASK: Feeds.WARNING},
    described="path",
    others=frozenset({"glob", "ignore", "limit", "multiline", "operation", "output_mode", "pattern", "type"}),
)
_COMMANDS = {RuleList.ALLOW: Feeds.COMMAND, RuleList.DENY: Feeds.COMMAND, RuleList.ASK: Feeds.COMMAND}
_CALLS = frozenset({"description", "run_in_background", "timeout", "timeout_ms", "persistent"})
_OTHER_SHELL = Tool({RuleList.DENY: Feeds.COMMAND, RuleList.ASK: Feeds.COMMAND}, described="command", others=_CALLS)
"""Its denials hold for commands too; a rule that allows it says nothing about the shell."""

TOOLS: dict[str, Tool] = {
    "WebFetch": Tool(
        {RuleList.ALLOW: Feeds.ALLOWED_HOST, RuleList.DENY: Feeds.DENIED_HOST, RuleList.ASK: Feeds.ASKED_HOST},
        {RuleList.DENY: Feeds.DENIED_HOST, RuleList.ASK: Feeds.ASKED_HOST},
        "*",
        "url",
    ),
    "Edit": Tool(_WRITES, _WRITES_ALL, "//**", "file_path", frozenset({"new_string", "old_string", "replace_all"})),
    "MultiEdit": Tool(_WRITES, _WRITES_ALL, "//**", "file_path", frozenset({"edits"})),
    "Write": Tool(_WRITES, _WRITES_ALL, "//**", "file_path"),
    "NotebookEdit": Tool(
        _WRITES,
        {RuleList.DENY: Feeds.DENY_WRITE, RuleList.ASK: Feeds.DENY_WRITE},
        "*.ipynb",
        "notebook_path",
        frozenset({"cell_id", "cell_type", "edit_mode"}),
    ),
    "Read": Tool(
        _READS,
        {RuleList.DENY: Feeds.NO_COMMAND, RuleList.ASK: Feeds.COMMAND},
        described="file_path",
        others=frozenset({"limit", "offset", "pages"}),
    ),
    "NotebookRead": Tool(
        _READS, {RuleList.DENY: Feeds.DENY_READ, RuleList.ASK: Feeds.DENY_READ}, "*.ipynb", "notebook_path"
    ),
    "Grep": _SEARCHES,
    "Glob": _SEARCHES,
    "LS": _SEARCHES,
    "LSP": _SEARCHES,
    "Bash": Tool(_COMMANDS, _COMMANDS, described="command", others=_CALLS),
    "Monitor": _OTHER_SHELL,
    "PowerShell": _OTHER_SHELL,
}

FOREIGN = frozenset(
    """Agent Artifact AskUserQuestion BashOutput Brief Config CronCreate CronDelete CronList EndConversation
    EnterPlanMode EnterWorktree ExitPlanMode ExitWorktree KillBash KillShell ListMcpResources ListMcpResourcesTool
    ListPeers PushNotification ReadMcpResource ReadMcpResourceDir ReadMcpResourceTool RemoteTrigger SendFeedback
    SendMessage SendUserMessage ShareOnboardingGuide Skill SlashCommand Sleep StructuredOutput Task TaskCreate TaskGet
    TaskList TaskOutput TaskStop TaskUpdate TeamCreate TeamDelete TodoRead TodoWrite ToolSearch WaitForMcpServers
    WebBrowser WebSearch Workflow""".split()
)
"""Tools that act on no file, host or process of a command."""
