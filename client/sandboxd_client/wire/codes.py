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
    ("ticket_invalid", INTERNAL_ERROR, "the daemon made a ticket that is none"),
    ("configuration_invalid", INTERNAL_ERROR, "the daemon made a helper configuration that is none"),
    ("listener_invalid", INTERNAL_ERROR, "the daemon made a listener that is none"),
    ("filter_too_long", INTERNAL_ERROR, "the daemon made a filter that the kernel does not take"),
    ("settings_edit_failed", INTERNAL_ERROR, "an edit of a settings file did not give what was wanted"),
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
    ("argv_empty", CALLER, "argv is empty"),
    ("argv_nul", CALLER, "a word of argv contains a NUL character"),
    ("argv_too_large", CALLER, "argv is longer than a program can receive"),
    ("cwd_relative", CALLER, "the working directory is not an absolute path"),
    ("cwd_missing", CALLER, "the working directory does not exist or is not a directory"),
    ("shell_unknown", CALLER, "the named shell does not exist or is not executable"),
    ("host_invalid", CALLER, "not a host name or address"),
    ("resolve_invalid", CALLER, "a pin is not NAME=ADDRESS"),
    ("settings_locked", CALLER, "policy does not let this key be changed"),
    ("settings_unknown_key", CALLER, "there is no such settings key"),
    ("settings_other_source", CALLER, "this key does not count in the file that is changed"),
    ("path_relative", CALLER, "the path of a file is not absolute"),
    ("settings_invalid", SETTINGS, "a settings file or value is wrong"),
    ("settings_missing", SETTINGS, "a settings file that was named does not exist"),
    ("settings_unreadable", SETTINGS, "a settings file cannot be read"),
    ("settings_unwritable", SETTINGS, "a settings file cannot be written"),
    ("settings_busy", SETTINGS, "a settings file is being changed by another program all the time"),
    ("settings_is_link", SETTINGS, "a settings file is a symbolic link, which is not written through"),
    ("settings_dangling_link", SETTINGS, "a settings file is a link to nothing"),
    ("settings_not_a_file", SETTINGS, "what stands at a settings path is no file"),
    ("settings_empty", SETTINGS, "a settings file is empty"),
    ("settings_too_large", SETTINGS, "a settings file is too large"),
    ("settings_not_utf8", SETTINGS, "a settings file is not UTF-8"),
    ("settings_syntax", SETTINGS, "a settings file is not JSON with comments"),
    ("settings_not_an_object", SETTINGS, "a settings file, or a section of one, is not an object"),
    ("settings_wrong_type", SETTINGS, "a settings value has the wrong type"),
    ("settings_path_relative", SETTINGS, "the environment names a settings file by a path that is not absolute"),
    ("rule_syntax", SETTINGS, "a permission rule is wrong"),
    ("preset_unknown", SETTINGS, "there is no preset of this name"),
    ("host_pattern_invalid", SETTINGS, "a host pattern is wrong"),
    ("host_pattern_ambiguous", SETTINGS, "a host pattern can be read in two ways, such as ::1:443"),
    ("host_pattern_public_suffix", SETTINGS, "a host pattern opens everything below a public suffix"),
    ("host_pattern_url", SETTINGS, "a URL where a host is meant"),
    ("command_pattern_empty", SETTINGS, "a command pattern is empty"),
    ("command_pattern_invalid", SETTINGS, "a command pattern is wrong"),
    ("command_pattern_matches_all", SETTINGS, "an exclusion would take every program out of the sandbox"),
    ("path_empty", SETTINGS, "the path of a rule is empty"),
    ("path_invalid", SETTINGS, "the path of a rule is none"),
    ("path_dotdot", SETTINGS, "the path of a rule has .. where its meaning depends on links"),
    ("path_glob_invalid", SETTINGS, "the pattern of a path is wrong, or stands where one file is meant"),
    ("path_other_home", SETTINGS, "the path of a rule names another user's home directory"),
    ("path_too_long", SETTINGS, "the path of a rule is too long"),
    ("path_variable_unset", SETTINGS, "the path of a rule has a variable that is not set"),
    ("network_invalid", SETTINGS, "not a network of addresses"),
    ("port_range_invalid", SETTINGS, "not a range of ports"),
    ("proxy_invalid", SETTINGS, "not the URL of a proxy"),
    ("socket_glob", SETTINGS, "a pattern where one Unix socket is meant"),
    ("socket_own", SETTINGS, "a Unix socket of the daemon itself, which cannot be allowed"),
    ("settings_duplicate_key", SETTINGS, "a settings file has a key twice"),
    ("settings_nul", SETTINGS, "a settings file contains a NUL character"),
    ("settings_too_deep", SETTINGS, "a settings file is nested too deeply"),
    ("policy_unenforceable", POLICY, "the policy cannot be enforced as written"),
    ("cwd_denied", POLICY, "reading the working directory is denied"),
    ("cwd_special", POLICY, "the working directory is one that the sandbox replaces"),
    ("shell_unavailable", POLICY, "the shell does not exist inside the sandbox"),
    ("device_basic", POLICY, "a rule denies a device that every sandbox has of its own"),
    ("devices_all", POLICY, "a rule opens all devices at once"),
    ("glob_too_large", POLICY, "a pattern would search too many directories"),
    ("glob_too_many", POLICY, "a pattern matches too many paths"),
    ("glob_unreadable", POLICY, "a pattern cannot be matched: a directory cannot be read"),
    ("pattern_too_long", POLICY, "macOS: a pattern needs too long an expression"),
    ("pattern_unsupported", POLICY, "macOS: a pattern cannot be expressed"),
    ("port_range_too_long", POLICY, "macOS: a range of ports is too long"),
    ("mach_name_invalid", POLICY, "macOS: not a service name, or too broad a pattern"),
    ("profile_invalid", POLICY, "macOS: the profile would be invalid"),
    ("profile_too_long", POLICY, "macOS: the rules are too long for a profile"),
    ("scan_failed", POLICY, "the scan for protected names failed or was cut short"),
    ("scan_too_large", POLICY, "a writable root has too many directories to search for protected names"),
    ("sandbox_unavailable", HOST, "this machine cannot start a sandbox"),
    ("platform_unsupported", HOST, "there is no sandbox for this operating system"),
    ("machine_unsupported", HOST, "there is no filter or helper for this processor"),
    ("wsl1", HOST, "WSL 1 has no Linux kernel"),
    ("bwrap_missing", HOST, "bubblewrap is not installed"),
    ("bwrap_not_executable", HOST, "bubblewrap is not executable"),
    ("bwrap_setuid", HOST, "bubblewrap is a setuid build, which refuses what the sandbox needs"),
    ("bwrap_too_old", HOST, "bubblewrap is older than 0.8"),
    ("bwrap_broken", HOST, "bubblewrap cannot be run"),
    ("sandbox_exec_missing", HOST, "macOS: sandbox-exec cannot be started"),
    ("seatbelt_nested", HOST, "macOS: the daemon runs in a sandbox itself"),
    ("seatbelt_failed", HOST, "macOS: a sandbox cannot be started"),
    ("seatbelt_open", HOST, "macOS: a sandbox was started and refused nothing"),
    ("members_unknown", HOST, "macOS: the system does not say which processes are in a sandbox"),
    ("proxy_ports", HOST, "macOS: no port can be opened for a command's proxy"),
    ("helper_missing", HOST, "our own helper is missing"),
    ("helper_not_executable", HOST, "our own helper is not executable"),
    ("inotify_unavailable", HOST, "directories cannot be watched for changes"),
    ("watch_limit", HOST, "no more files can be watched"),
    ("watch_unavailable", HOST, "settings files cannot be watched"),
    ("placeholder_failed", HOST, "a protected name cannot be kept from being created"),
    ("temporary_directory", HOST, "a temporary directory cannot be made or used"),
    ("directory_unusable", HOST, "a directory of the daemon cannot be made or used"),
    ("directory_foreign", HOST, "a directory of the daemon belongs to somebody else"),
    ("directory_not_private", HOST, "a directory of the daemon can be used by others"),
    ("daemon_running", HOST, "another daemon has this directory"),
    ("socket_path_occupied", HOST, "what stands at the socket's path is not a socket of this user"),
    ("socket_in_use", HOST, "something else listens at the socket's path"),
    ("socket_unusable", HOST, "the daemon cannot listen at the socket's path"),
    ("socket_path_invalid", HOST, "the socket's path is not absolute, or too long"),
    ("passed_socket_unusable", HOST, "the service manager passed something that is not a listening socket"),
    ("launch_failed", LAUNCH, "the sandbox was to be started and was not"),
    ("plan_of_another_system", LAUNCH, "the plan was made for another operating system"),
    ("link_not_pinned", LAUNCH, "a protected symbolic link cannot be kept from being replaced"),
    ("backend_not_ready", LAUNCH, "the back end was not asked whether it is ready"),
    ("stopping", BUSY, "the daemon is stopping"),
    ("too_many_requests", BUSY, "more requests are pending on this connection than the daemon keeps"),
)

NUMBERS: dict[str, int] = {slug: number for slug, number, _ in TABLE}
MEANINGS: dict[str, str] = {slug: meaning for slug, _, meaning in TABLE}


def number_of(slug: str, otherwise: int = INTERNAL_ERROR) -> int:
    """The JSON-RPC number of a slug; `otherwise` (the number of its error's class) for one the table lacks."""
    return NUMBERS.get(slug, otherwise)
