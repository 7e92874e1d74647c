"""The tools that permission rules name, and what the rules of each become: one row for each tool.

Names are those of https://code.claude.com/docs/en/tools-reference, and older ones that files still have. A tool that a
shell command cannot act for (`FOREIGN`, `mcp__…`) means nothing here. A rule in `ask` for files closes them: a command
that runs cannot be asked about each file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class RuleList(StrEnum):
    """The list of `permissions` that a rule stands in."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class Feeds(StrEnum):
    """What a rule becomes."""

    ALLOWED_HOST = "allowed host"
    DENIED_HOST = "denied host"
    ASKED_HOST = "host to be asked about"
    ALLOW_WRITE = "writable path"
    DENY_WRITE = "unwritable path"
    DENY_READ = "unreadable path"
    COMMAND = "command rule"
    SANDBOXED_ONLY = "no command outside the sandbox"
    NO_COMMAND = "no command runs"
    TOLD = "nothing, which is told"
    NOTHING = "nothing"


class Parameter(StrEnum):
    """What a parameter of a tool's calls is to a rule that names it, `Tool(parameter:value)`."""

    CONTENT = "content"
    """The tool's own rules are about it, so its owner matches no rule that names it."""
    CALL = "call"
    """How the tool is called, which no command knows."""
    OUTSIDE = "outside"
    """Whether the call is to run outside the sandbox."""


_CONTENTS = frozenset({"command", "domain", "file", "file_path", "filename", "notebook_path", "path", "paths", "url"})
"""Names of parameters that a content is taken to be about, whichever tool they belong to."""


@dataclass(frozen=True, slots=True)
class Tool:
    """`content` and `alone` are what rules with a content and bare ones become in each list; `whole` is the content
    that a bare one stands for."""

    content: Mapping[RuleList, Feeds]
    alone: Mapping[RuleList, Feeds] = field(default_factory=dict)
    whole: str | None = None
    own: str = ""
    """The parameter that the content is about."""
    others: frozenset[str] = frozenset()
    """Further ones."""

    @property
    def is_shell(self) -> bool:
        return self.own == "command"

    def feeds(self, kind: RuleList, *, alone: bool) -> Feeds:
        return (self.alone if alone else self.content).get(kind, Feeds.NOTHING)

    def parameter(self, name: str) -> Parameter | None:
        if name == self.own or (not self.is_shell and name in _CONTENTS):
            return Parameter.CONTENT
        if name == "dangerouslyDisableSandbox" and self.is_shell:
            return Parameter.OUTSIDE
        return Parameter.CALL if name in self.others else None


_WRITES = {RuleList.ALLOW: Feeds.ALLOW_WRITE, RuleList.DENY: Feeds.DENY_WRITE, RuleList.ASK: Feeds.DENY_WRITE}
_WRITES_ALL = {RuleList.DENY: Feeds.DENY_WRITE, RuleList.ASK: Feeds.COMMAND}
_READS = {RuleList.DENY: Feeds.DENY_READ, RuleList.ASK: Feeds.DENY_READ}
# An allow for Read does not become allowRead: every path is readable unless denied, and re-opening a denied region is a
# decision about the sandbox that deserves its own key.
_SEARCHES = Tool(
    _READS,
    {RuleList.DENY: Feeds.TOLD, RuleList.ASK: Feeds.TOLD},
    own="path",
    others=frozenset({"glob", "ignore", "limit", "multiline", "operation", "output_mode", "pattern", "type"}),
)
_COMMANDS = {RuleList.ALLOW: Feeds.COMMAND, RuleList.DENY: Feeds.COMMAND, RuleList.ASK: Feeds.COMMAND}
_CALLS = frozenset({"description", "run_in_background", "timeout", "timeout_ms", "persistent"})
_OTHER_SHELL = Tool({RuleList.DENY: Feeds.COMMAND, RuleList.ASK: Feeds.COMMAND}, own="command", others=_CALLS)
"""What its rules close is closed to commands too; the tool as a whole is not the shell's."""

TOOLS: dict[str, Tool] = {
    "WebFetch": Tool(
        {RuleList.ALLOW: Feeds.ALLOWED_HOST, RuleList.DENY: Feeds.DENIED_HOST, RuleList.ASK: Feeds.ASKED_HOST},
        {RuleList.DENY: Feeds.DENIED_HOST, RuleList.ASK: Feeds.ASKED_HOST},
        "*",
        "url",
    ),
    "Edit": Tool(
        _WRITES, _WRITES_ALL, "//**", "file_path", frozenset({"new_string", "old_string", "replace_all"})
    ),
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
        own="file_path",
        others=frozenset({"limit", "offset", "pages"}),
    ),
    "NotebookRead": Tool(
        _READS, {RuleList.DENY: Feeds.DENY_READ, RuleList.ASK: Feeds.DENY_READ}, "*.ipynb", "notebook_path"
    ),
    "Grep": _SEARCHES,
    "Glob": _SEARCHES,
    "LS": _SEARCHES,
    "LSP": _SEARCHES,
    "Bash": Tool(_COMMANDS, _COMMANDS, own="command", others=_CALLS),
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
"""Tools that act on no file, host or process of a shell command."""
