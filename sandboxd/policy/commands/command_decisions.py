"""Decisions on commands before they run: sandboxed or not; allow, ask or deny.

The gates are asked in the order of `GATES`; the first one with an answer decides. `ask` and `deny` rules are looked at
last and can only make the answer stricter, whichever gate gave it."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from sandboxd.policy.commands.command_patterns import parse_command_pattern
from sandboxd.policy.commands.exclusion import (
    Resolve,
    decide_exclusion,
    head_of,
    matching_rule,
    moves,
    path_as_written,
    path_of,
    places_of,
    resolving_in,
    rule_of_path,
)
from sandboxd.policy.commands.shell_programs import LAUNCHERS
from sandboxd.policy.commands.shell_syntax import ShellLine, Word, is_known_name, read_line
from sandboxd.policy.commands.shell_texts import nested_texts
from sandboxd.policy.commands.wide_programs import runs_others
from sandboxd.policy.decision import Behavior, Decision, PermissionMode, Reason
from sandboxd.policy.display import neutralise
from sandboxd.policy.model import CommandPolicy, CommandRule, Policy
from sandboxd.settings.origins import Origin, Source
from sandboxd_client.records import dataclass

MAX_NESTING = 3
MAX_TEXTS = 32
MAX_OPTIONS = 32
"""Words that may be options before a subcommand."""
MAX_FILES = 256
"""Paths that are looked up for rules with a path; a line with more is asked about."""
_SYNTAX = frozenset({"!", "{", "then", "do", "else"})
"""Words of the shell that the grammar may take for a program, as in `! ! ls`."""


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command to decide on, with the facts of its session and host.

    `unavailable` is the reason why no sandbox can be started on this host, empty when one can. `disable_sandbox` is the
    caller's request for this one command; it is never inherited."""

    command: str | None
    disable_sandbox: bool = False
    mode: PermissionMode = PermissionMode.PROMPT
    platform: str = "linux"
    root: bool = False
    is_sandbox_environment: bool = False
    unavailable: str = ""
    resolve: Resolve = path_as_written


@dataclass(frozen=True, slots=True)
class CommandDecision:
    """A decision, and whether the command is sandboxed if it may run at all."""

    sandboxed: bool
    decision: Decision

    @property
    def behavior(self) -> Behavior:
        return self.decision.behavior

    @property
    def reason(self) -> Reason:
        return self.decision.reason


def decide_command(
    policy: Policy,
    command: str | None,
    *,
    dangerously_disable: bool = False,
    permission_mode: str | None = None,
    platform: str = "linux",
    root: bool = False,
    is_sandbox_env: bool = False,
    unavailable: str = "",
    resolve: Resolve = path_as_written,
) -> CommandDecision:
    """Decide on a command; raises ValueError for an unknown `permission_mode`."""
    mode = PermissionMode(permission_mode or PermissionMode.PROMPT)
    if mode is PermissionMode.OPEN and not policy.commands.open_mode:
        mode = PermissionMode.PROMPT
    request = CommandRequest(
        command,
        dangerously_disable,
        mode,
        platform,
        root,
        is_sandbox_env,
        unavailable,
        resolve,
    )
    answer = next(answer for gate in GATES if (answer := gate(policy, request)) is not None)
    answer = _with_rules(policy, request, answer)
    if answer.behavior is Behavior.ASK and policy.commands.deny_instead_of_asking:
        text = f"{answer.decision.text}; permissions.denyInsteadOfPrompting turns questions into denials"
        hint = answer.decision.hint or "run it inside the sandbox"
        return replace(answer, decision=replace(answer.decision, behavior=Behavior.DENY, text=text, hint=hint))
    return answer


def _answer(
    sandboxed: bool,
    behavior: Behavior,
    reason: Reason,
    text: str,
    *,
    rule: str | None = None,
    origin: Origin | None = None,
    hint: str = "",
) -> CommandDecision:
    return CommandDecision(sandboxed, Decision(behavior, reason, text, rule, origin, hint))


# --- the gates, in order ---


def permission_mode_gate(policy: Policy, request: CommandRequest) -> CommandDecision | None:
    if request.mode is PermissionMode.NONE:
        return _answer(
            True,
            Behavior.DENY,
            Reason.PERMISSION_MODE,
            "this session may run nothing: its permission mode is none",
            hint="open a session in another permission mode",
        )
    if request.mode is PermissionMode.PLAN:  # no switch, exclusion or request takes a command out
        return unavailable_gate(policy, request) or sandboxed_gate(policy, request)
    if request.mode is PermissionMode.OPEN and request.root and not request.is_sandbox_environment:
        return _answer(
            True,
            Behavior.DENY,
            Reason.ROOT_REFUSED,
            "root may not skip permission questions",
            hint="use another mode or user; in a container that is a sandbox itself, set IS_SANDBOX=1 for this program",
        )
    return None


def enabled_gate(policy: Policy, request: CommandRequest) -> CommandDecision | None:
    if not policy.enabled:
        return _answer(
            False,
            Behavior.ALLOW,
            Reason.SANDBOX_DISABLED,
            "the sandbox is off",
            rule="sandbox.enabled",
            origin=policy.enabled_origin,
            hint="turn it on with: sandboxd enable",
        )
    platforms = policy.enabled_platforms
    names = {request.platform, "linux"} if request.platform == "wsl" else {request.platform}
    if platforms is not None and names.isdisjoint(platforms):
        return _answer(
            False,
            Behavior.ALLOW,
            Reason.PLATFORM_NOT_ENABLED,
            f"the sandbox is not on for {request.platform}: sandbox.enabledPlatforms has {list(platforms)}",
            rule="sandbox.enabledPlatforms",
            origin=policy.enabled_platforms_origin,
            hint=f"turn it on here with: sandboxd settings add sandbox.enabledPlatforms {request.platform}",
        )
    return None


def override_gate(policy: Policy, request: CommandRequest) -> CommandDecision | None:
    if not request.disable_sandbox:
        return None
    if policy.commands.allow_unsandboxed and _is_empty(request):
        return None  # there is nothing to ask about
    if policy.commands.allow_unsandboxed:
        return _answer(
            False,
            Behavior.ASK,
            Reason.SANDBOX_OVERRIDE,
            "the caller asks to run this command outside the sandbox; a user has to agree",
        )
    # The request is ignored: the command runs inside, also an excluded or an empty one.
    return unavailable_gate(policy, request) or sandboxed_gate(policy, request)


def why_sandboxed(commands: CommandPolicy, mode: PermissionMode = PermissionMode.PROMPT) -> str:
    """Return the reason why no caller may have a command run outside."""
    if mode is PermissionMode.PLAN:
        return "the permission mode of the session is plan"
    if commands.allow_unsandboxed_origin.key == "permissions.deny":
        return "a rule of permissions.deny forbids it"
    return "sandbox.allowUnsandboxedCommands is false"


def _is_empty(request: CommandRequest) -> bool:
    return request.command is None or not request.command.strip()


def no_command_gate(policy: Policy, request: CommandRequest) -> CommandDecision | None:
    if _is_empty(request):
        return _answer(False, Behavior.ALLOW, Reason.NO_COMMAND, "there is no command")
    return None


def excluded_gate(policy: Policy, request: CommandRequest) -> CommandDecision | None:
    exclusion = decide_exclusion(policy.commands.excluded, request.command or "", request.resolve)
    if not exclusion.excluded or exclusion.rule is None:
        return None
    pattern = parse_command_pattern(exclusion.rule.pattern)
    careful = f"; {pattern.program or pattern.text} runs what its arguments say" if runs_others(pattern) else ""
    return _answer(
        False,
        Behavior.ALLOW,
        Reason.EXCLUDED,
        f"runs outside the sandbox: {exclusion.why}{careful}",
        rule=exclusion.rule.pattern,
        origin=exclusion.rule.origin,
        hint=f"take it off the list with: sandboxd exclude remove {shlex.quote(exclusion.rule.pattern)}"
        if exclusion.rule.origin.source is Source.LOCAL
        else f"take it off the list in {exclusion.rule.origin}",
    )


def unavailable_gate(policy: Policy, request: CommandRequest) -> CommandDecision | None:
    if not request.unavailable:
        return None
    if policy.fail_if_unavailable or not policy.commands.allow_unsandboxed or request.mode is PermissionMode.PLAN:
        closed = policy.fail_if_unavailable or policy.commands.allow_unsandboxed  # or by the mode plan
        key = "failIfUnavailable" if closed else "allowUnsandboxedCommands"
        return _answer(
            True,
            Behavior.DENY,
            Reason.SANDBOX_UNAVAILABLE,
            f"no sandbox can be started on this host, and no command runs without one: {request.unavailable}",
            rule=f"sandbox.{key}",
            origin=policy.fail_if_unavailable_origin if closed else policy.commands.allow_unsandboxed_origin,
            hint="see what is missing: sandboxd check",
        )
    return _answer(
        False,
        Behavior.ASK,
        Reason.SANDBOX_UNAVAILABLE,
        f"no sandbox can be started on this host; a user has to agree to run it without: {request.unavailable}",
        rule="sandbox.failIfUnavailable",
        origin=policy.fail_if_unavailable_origin,
        hint="see what is missing: sandboxd check",
    )


def sandboxed_gate(policy: Policy, request: CommandRequest) -> CommandDecision:
    text, reason = "runs inside the sandbox", Reason.SANDBOXED
    if request.disable_sandbox:
        text += f"; the request to run it outside is ignored: {why_sandboxed(policy.commands, request.mode)}"
        reason = Reason.OVERRIDE_FORBIDDEN
    elif policy.commands.excluded and request.mode is not PermissionMode.PLAN:
        exclusion = decide_exclusion(policy.commands.excluded, request.command or "", request.resolve)
        text += f"; not excluded, since {exclusion.why}"
    if policy.commands.auto_allow:
        key, origin = "sandbox.autoAllowBashIfSandboxed", policy.commands.auto_allow_origin
        return _answer(True, Behavior.ALLOW, reason, f"{text}; auto-allowed by {key}", rule=key, origin=origin)
    if request.mode is PermissionMode.OPEN:
        return _answer(True, Behavior.ALLOW, reason, f"{text}; allowed by the permission mode open of the session")
    line = read_line(request.command or "")
    rule = _allowing_rule(policy.commands.allow, request.command or "", line, request.resolve)
    if rule is not None:
        shown = f"Bash({rule.pattern})"
        return _answer(True, Behavior.ALLOW, Reason.RULE, f"{text}; allowed by {shown}", rule=shown, origin=rule.origin)
    return _answer(
        True,
        Behavior.ASK,
        Reason.SANDBOXED,
        text + "; sandboxed commands are asked about: sandbox.autoAllowBashIfSandboxed is false",
        rule="sandbox.autoAllowBashIfSandboxed",
        origin=policy.commands.auto_allow_origin,
        hint="allow it with a rule, such as: sandboxd settings add permissions.allow 'Bash(npm test:*)'",
    )


GATES: tuple[Callable[[Policy, CommandRequest], CommandDecision | None], ...] = (
    permission_mode_gate,
    enabled_gate,
    override_gate,
    no_command_gate,
    excluded_gate,
    unavailable_gate,
    sandboxed_gate,
)


# --- rules ---

_STRICTNESS = {Behavior.ALLOW: 0, Behavior.ASK: 1, Behavior.DENY: 2}


def _with_rules(policy: Policy, request: CommandRequest, answer: CommandDecision) -> CommandDecision:
    """Apply ask and deny rules: a deny of any kind beats every allow."""
    text = request.command or ""
    rules = policy.commands
    if not text.strip() or not (rules.ask or rules.deny):
        return answer
    lines = _lines_within(text)
    for behavior, candidates in ((Behavior.DENY, rules.deny), (Behavior.ASK, rules.ask)):
        by_mode = answer.reason is Reason.SANDBOXED  # of two that ask, the rule: no rule that allows beats it
        if _STRICTNESS[behavior] < _STRICTNESS[answer.behavior] + (not by_mode):
            continue
        rule = _closing_rule(candidates, text, lines, request.resolve)
        if rule is not None:
            return replace(answer, decision=_by_rule(behavior, rule))
    why = next((why for line in lines if (why := _what_is_unknown(line))), None) or _what_moves(
        (*rules.ask, *rules.deny), lines
    )
    if why and answer.behavior is Behavior.ALLOW:
        decision = Decision(
            Behavior.ASK,
            Reason.RULE,
            f"there are rules about commands, and the programs of this one are not certain: {why}",
            hint="write each program by its name, in a short line",
        )
        return replace(answer, decision=decision)
    return answer


def _by_rule(behavior: Behavior, rule: CommandRule) -> Decision:
    verb = "denied" if behavior is Behavior.DENY else "to be asked about"
    return Decision(
        behavior,
        Reason.RULE,
        f"a part of the command is {verb} by Bash({rule.pattern})",
        f"Bash({rule.pattern})",
        rule.origin,
        "use denyRead, denyWrite or deniedDomains for limits of the sandbox under any name",
    )


def denied_by_rule(policy: Policy, text: str, resolve: Resolve = path_as_written) -> Decision | None:
    """Return the denial by an explicit rule that `wrap` has to follow, else None.

    A line that cannot be read is denied where it has the name of a denied program as a word."""
    rules = policy.commands.deny
    if not rules or not text.strip():
        return None
    lines = _lines_within(text)
    rule = _closing_rule(rules, text, lines, resolve)
    if rule is None and any(line.unreadable for line in lines):
        names = {posixpath.basename(re.sub(r"[\\'\"]", "", word)) for word in _BETWEEN_WORDS.split(text)} - {""}
        rule = next((one for one in rules if parse_command_pattern(one.pattern).program in names), None)
    return None if rule is None else _by_rule(Behavior.DENY, rule)


_BETWEEN_WORDS = re.compile(r"[\s;&|()<>{}`$=]+")


def _lines_within(text: str) -> list[ShellLine]:
    """Return the line, and the texts that it hands to other shells."""
    lines: list[ShellLine] = []
    pending = [text]
    for _ in range(MAX_NESTING + 1):
        read = [read_line(part) for part in pending]
        lines += read
        pending = [script for line in read for script in nested_texts(line)][:MAX_TEXTS]
    return lines


def _what_is_unknown(line: ShellLine) -> str | None:
    if line.unreadable:
        return line.unreadable
    unknown = (simple.words[0] for simple in line.commands if simple.words and not is_known_name(simple.words[0]))
    return next((f"{shown_command(word.text)!r} is only known when it runs" for word in unknown), None)


def _what_moves(rules: Sequence[CommandRule], lines: Sequence[ShellLine]) -> str | None:
    """Return the reason why rules with a path cannot be decided for these lines."""
    if not any("/" in head_of(rule.pattern) for rule in rules):
        return None
    if next(islice(_files(lines), MAX_FILES, None), None) is not None:
        return "it runs too many programs for each to be looked up"
    if not any(map(moves, lines)):
        return None
    programs = (words[0].text for words in _all_starts(lines))
    relative = next((text for text in programs if "/" in text and text[0] not in "/~"), None)
    return relative and f"which program {shown_command(relative)!r} is depends on a change of the directory"


def _allowing_rule(rules: Sequence[CommandRule], text: str, line: ShellLine, resolve: Resolve) -> CommandRule | None:
    """Return the first allowing rule if every program of the line has one."""
    if not rules:
        return None
    whole = next((rule for rule in rules if rule.pattern.strip() == text.strip(" \t\n")), None)
    if whole is not None:
        return whole
    if not line.plain or not line.commands or any(_may_set_something(simple.words) for simple in line.commands):
        return None
    resolve = resolving_in(line, resolve)
    found = [_rule_about(rules, simple.words, resolve, moves(line, _TOP)) for simple in line.commands]
    return found[0] if all(found) else None


_TOP = frozenset({"$(git rev-parse --show-toplevel)", '"$(git rev-parse --show-toplevel)"'})
"""Changes of the directory to the place where a rule's path begins: they keep its meaning."""


def _rule_about(
    rules: Sequence[CommandRule], words: Sequence[Word], resolve: Resolve, moved: bool
) -> CommandRule | None:
    """Return the rule that allows a program, by its text or the file it leads to."""
    if not words:
        return None
    program = path_of(words[0])
    if program is None:
        return matching_rule(rules, words) if words[0].literal and "/" not in words[0].text else None
    every = (rule for rule in rules if parse_command_pattern(rule.pattern).matches_all)
    by_text = () if moved and program[0] not in "/~" else rules  # in another directory it may be another file
    same = [*(rule for rule in by_text if head_of(rule.pattern) == program), *every]
    rule = matching_rule(same, words)
    if rule is not None or not any("/" in head_of(rule.pattern) for rule in rules):
        return rule
    real = resolve(program).real
    return None if real is None else rule_of_path(rules, words, real, resolve)


_SETTERS = frozenset(
    """alias bind builtin command compgen complete compopt coproc declare enable eval exec export fc getopts hash
    history jobs let local mapfile printf read readarray readonly set shopt source . trap typeset unalias unset
    wait""".split()
)
"""Builtins that can set a variable, write a file, change what a name runs, or evaluate an index `a[$(…)]`."""


def _may_set_something(words: Sequence[Word]) -> bool:
    name = words[0].text if words else ""
    if name == "time":  # a keyword of bash, so builtins may follow
        return any(word.text in _SETTERS or "=" in word.text for word in words[1:])
    if name == "printf":
        return any(word.text.startswith("-") or not word.literal for word in words[1:2])
    if name in ("test", "["):
        return any(word.text in ("-v", "-R") or not word.literal for word in words[1:])
    return name in _SETTERS


def _closing_rule(
    rules: Sequence[CommandRule], text: str, lines: Sequence[ShellLine], resolve: Resolve
) -> CommandRule | None:
    """Return a rule that matches any program of the line, by name or by file."""
    if not rules:
        return None
    patterns = [(rule, parse_command_pattern(rule.pattern)) for rule in rules]
    for rule, pattern in patterns:
        if pattern.matches_all or rule.pattern.strip() == text.strip(" \t\n"):
            return rule
    for words in _all_starts(lines):
        readings = [[word.text for word in reading] for reading in _without_options(words)]
        for rule, pattern in patterns:
            if any(pattern.matches(reading, by_name=True) for reading in readings):
                return rule
    of_files = [rule for rule in rules if "/" in head_of(rule.pattern)]
    for words, path in islice(_files(lines), MAX_FILES) if of_files else ():
        real = resolve(path).real
        for reading in () if real is None else _without_options(words):
            found = rule_of_path(of_files, reading, str(real), resolve, by_text=True)
            if found is not None:
                return found
    return None


def _without_options(words: Sequence[Word]) -> list[Sequence[Word]]:
    """Return the words, and what they are without options before the subcommand: `git -C /x push` is `git push`.

    The word behind an option may be its value or not, so both count."""
    found = [words]
    places = {1}
    for place in range(1, min(len(words), MAX_OPTIONS)):
        if place in places and words[place].text.startswith("-") and words[place].text != "--":
            places |= {place + 1} if "=" in words[place].text else {place + 1, place + 2}
    found += [(words[0], *words[place:]) for place in sorted(places - {1}) if place < len(words)]
    return found


def _files(lines: Sequence[ShellLine]) -> Iterator[tuple[Sequence[Word], str]]:
    """Yield the words of each program, with each path that it may have."""
    places = places_of(lines)
    for words in _all_starts(lines):
        name = path_of(words[0]) or words[0].text
        paths = [posixpath.join(place, name) for place in places] if "/" in name else [name]
        yield from ((words, path) for path in dict.fromkeys(paths))


def _all_starts(lines: Sequence[ShellLine]) -> Iterator[Sequence[Word]]:
    for line in lines:
        for simple in line.commands:
            yield from _starts(simple.words)


def programs_of(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of a line from each one on that may be a program."""
    yield from (tuple(word.text for word in words) for words in _all_starts(_lines_within(text)))


def _starts(words: Sequence[Word]) -> list[Sequence[Word]]:
    """Return the words from each one on that may be a program."""
    found = [words] if words else []
    if words and (words[0].text in _SYNTAX or words[0].text.rpartition("/")[2] in LAUNCHERS):
        found += (words[start:] for start in range(1, min(len(words), 32)))
    return found


def shown_command(text: str) -> str:
    """Return a command fit for display: one line, bounded, nothing hidden."""
    return neutralise(text, 200)
