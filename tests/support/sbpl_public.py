"""Operations and filters that compilers of macOS have accepted in public profiles, with the profile of each.

The lint refuses a profile with a word that is not here. `srt` tags denials with `(with message "…")`, `codex` opens
terminals by extension; Seatbelt's own description lists more, which no public program is known to use."""

from __future__ import annotations

SOURCES = {
    "chromium": "chromium/chromium sandbox/policy/mac/common.sb and its neighbours, in use since macOS 10.11",
    "codex": "openai/codex codex-rs/core/src/seatbelt_base_policy.sbpl",
    "firefox": "mozilla/gecko-dev security/sandbox/mac/SandboxPolicy*.h",
    "ladybird": "LadybirdBrowser/ladybird, its profile of helper processes",
    "apple": "profiles of macOS itself, as their published differences between versions show them",
    "nix": "NixOS/nix src/libstore/build/sandbox-defaults.sb",
    "nvx": "profiles that refuse TIOCSTI by its decimal number, checked on runners with macOS 13 to 15",
    "safehouse": "agent-safehouse profiles",
    "srt": "anthropic-experimental/sandbox-runtime src/sandbox/macos-sandbox-utils.ts",
}

_OPERATIONS = """
chromium: file-map-executable file-read-data file-read-metadata file-write-unlink mach-register
codex: default file-ioctl file-read* file-write* file-write-data iokit-open ipc-posix-sem ipc-posix-shm-read*
    mach-lookup network-outbound process-fork process-info* pseudo-tty signal sysctl-read sysctl-write
    user-preference-read
firefox: iokit-get-properties nvram* process-exec*
apple: appleevent-send lsopen file-write-create ipc-posix-shm*
safehouse: ipc-sysv-sem
srt: distributed-notification-post mach-priv-task-port network-bind network-inbound system-socket
"""
_FILTERS = """
chromium: global-name global-name-prefix literal regex require-all subpath sysctl-name vnode-type
codex: extension iokit-registry-entry-class ipc-posix-name-prefix local-name sysctl-name-prefix target
ladybird: preference-domain
apple: require-any require-not ipc-posix-name
nvx: ioctl-command
srt: iokit-user-client-class local remote socket-domain socket-protocol
"""


def _table(text: str) -> dict[str, str]:
    table: dict[str, str] = {}
    source = ""
    for word in text.split():
        if word.endswith(":"):
            source = word[:-1]
            assert source in SOURCES
        else:
            table[word] = source
    return table


PUBLIC_OPERATIONS, PUBLIC_FILTERS = _table(_OPERATIONS), _table(_FILTERS)
