"""Every slug an error reply can carry, with its JSON-RPC number and meaning. Slugs never change their meaning.

The numbers from -32700 to -32600 are JSON-RPC's own; the others say whose fault it was, so that a client which does not
know a slug still knows what kind of thing happened.
"""

from __future__ import annotations

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
CALLER = -32000  # the request cannot be served as it stands
DENIED = -32001  # this caller may not
SETTINGS = -32002  # a settings file or value is wrong
POLICY = -32003  # the policy cannot be enforced as written
HOST = -32004  # this machine cannot start a sandbox
LAUNCH = -32005  # a sandbox was to be started and was not
BUSY = -32006  # not now: stopping, or too much at once

# slug, number, meaning
TABLE: tuple[tuple[str, int, str], ...] = (
    ("parse_error", PARSE_ERROR, "the line is not JSON"),
    ("not_utf8", PARSE_ERROR, "the line is not UTF-8"),
    ("line_too_long", INVALID_REQUEST, "the line is longer than 4 MiB"),
    ("invalid_request", INVALID_REQUEST, "JSON, but not a JSON-RPC 2.0 request"),
    ("method_not_found", METHOD_NOT_FOUND, "this daemon has no such method"),
    ("invalid_params", INVALID_PARAMS, "a parameter is missing, unknown or of the wrong type"),
    ("internal_error", INTERNAL_ERROR, "the daemon's own fault; its log has the details"),
    ("response_too_long", INTERNAL_ERROR, "the answer would be longer than 4 MiB"),
    ("peer_other_user", DENIED, "the caller runs as another user"),
    ("peer_other_namespace", DENIED, "the caller is in another user or pid namespace, such as a sandbox"),
    ("peer_unknown", DENIED, "the calling process could not be identified"),
    ("not_permitted", DENIED, "the caller may not use this method or this session"),
    ("wrong_version", CALLER, "the protocol versions of client and daemon have nothing in common"),
    ("session_unknown", CALLER, "no session has this id"),
    ("session_closed", CALLER, "the session has ended"),
    ("wrap_unknown", CALLER, "no wrap has this id, or its outcome was forgotten"),
    ("command_empty", CALLER, "there is no command to run"),
    ("command_nul", CALLER, "the command contains a NUL character"),
    ("command_too_long", CALLER, "the command is longer than a program can receive"),
    ("cwd_relative", CALLER, "the working directory is not an absolute path"),
    ("cwd_missing", CALLER, "the working directory does not exist or is not a directory"),
    ("shell_unknown", CALLER, "the named shell does not exist or is not executable"),
    ("host_invalid", CALLER, "not a host name or address"),
    ("settings_invalid", SETTINGS, "a settings file or value is wrong"),
    ("host_pattern_invalid", SETTINGS, "a host pattern is wrong"),
    ("policy_unenforceable", POLICY, "the policy cannot be enforced as written"),
    ("scan_failed", POLICY, "the scan for protected names failed or was cut short"),
    ("sandbox_unavailable", HOST, "this machine cannot start a sandbox"),
    ("launch_failed", LAUNCH, "the sandbox was to be started and was not"),
    ("stopping", BUSY, "the daemon is stopping"),
    ("too_many_requests", BUSY, "more requests are pending on this connection than the daemon keeps"),
)

NUMBERS: dict[str, int] = {slug: number for slug, number, _ in TABLE}
MEANINGS: dict[str, str] = {slug: meaning for slug, _, meaning in TABLE}


def number_of(slug: str, otherwise: int = INTERNAL_ERROR) -> int:
    """The JSON-RPC number of a slug; `otherwise` (the number of its error's class) for one the table lacks."""
    return NUMBERS.get(slug, otherwise)
