"""Answers for `policy.explain`: decisions asked in advance.

They add no rules: the same functions decide for the proxies and `should_sandbox`."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from sandboxd.policy.commands.command_decisions import CommandDecision, decide_command
from sandboxd.policy.commands.exclusion import Resolve, path_as_written
from sandboxd.policy.decision import Behavior, Decision, Reason
from sandboxd.policy.hosts.host_decisions import decide_host
from sandboxd.policy.hosts.host_patterns import HostSyntaxError, IPAddress, parse_authority, parse_host
from sandboxd.policy.hosts.request_rules import HttpRequest, decide_request, rules_for, why_unseen
from sandboxd.policy.model import HostRule, Policy


def explain_host(
    policy: Policy,
    text: str,
    *,
    grants: Sequence[HostRule] = (),
    host_addresses: Collection[IPAddress] = (),
    closed_ports: Collection[int] = (),
) -> Decision:
    """Return the decision on `host`, `host:port`, or a request: `[METHOD ]https://host/path`. Never raises."""
    port: int | None
    if "://" in text:
        return _explain_request(policy, text, grants, host_addresses, closed_ports)
    try:
        # Only one colon, or one behind a bracket, makes a port; an IPv6 address has more.
        with_port = text.rpartition("]")[2].count(":") == 1
        host, port = parse_authority(text) if with_port else (parse_host(text), None)
    except HostSyntaxError as fault:
        return Decision(Behavior.DENY, Reason.HOST_INVALID, fault.message, hint=fault.hint)
    return decide_host(policy.network, host, port, grants, host_addresses, closed_ports)


_URL = re.compile(r"(?:(\S+) )?(https?)://([^/?#]+)([^#\s]*)")


def _explain_request(
    policy: Policy,
    text: str,
    grants: Sequence[HostRule],
    host_addresses: Collection[IPAddress],
    closed_ports: Collection[int],
) -> Decision:
    match = _URL.fullmatch(text)
    try:
        if match is None:
            raise HostSyntaxError("not a URL", text, hint="write https://HOST/PATH, or METHOD https://HOST/PATH")
        method, scheme, authority, target = match.groups()
        host, port = parse_authority(authority, 443 if scheme == "https" else 80)
    except HostSyntaxError as fault:
        return Decision(Behavior.DENY, Reason.HOST_INVALID, fault.message, hint=fault.hint)
    network = policy.network
    decision = decide_host(network, host, port, grants, host_addresses, closed_ports)
    if decision.behavior is Behavior.DENY or not rules_for(network, host, port):
        return decision
    if scheme == "https" and (unseen := why_unseen(network, host, port)) is not None:
        return unseen
    request = HttpRequest.of((method or "GET"), (target or "/").encode())
    return decide_request(network, host, port, request) or decision


def explain_command(
    policy: Policy,
    text: str,
    *,
    permission_mode: str | None = None,
    platform: str = "linux",
    root: bool = False,
    is_sandbox_env: bool = False,
    unavailable: str = "",
    resolve: Resolve = path_as_written,
) -> CommandDecision:
    """Return the decision on a command that runs through the sandbox."""
    answer = decide_command(
        replace(policy, enabled=True, enabled_platforms=None),
        text,
        permission_mode=permission_mode,
        platform=platform,
        root=root,
        is_sandbox_env=is_sandbox_env,
        unavailable=unavailable,
        resolve=resolve,
    )
    off = decide_command(policy, text, platform=platform)
    if off.reason not in (Reason.SANDBOX_DISABLED, Reason.PLATFORM_NOT_ENABLED) or not answer.sandboxed:
        return answer
    where = f" ({off.decision.origin})" if off.decision.origin else ""
    note = f"; callers that ask first run it outside, since {off.decision.text}{where}"
    return replace(answer, decision=replace(answer.decision, text=answer.decision.text + note))
