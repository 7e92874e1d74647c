"""The operations of the profile language, which of them contain which, and which filters exist.

From Apple's profiles in /System/Library/Sandbox/Profiles and public descriptions of them. A name that is not here is
an unbound variable, as it is for the real compiler, so a misspelt rule fails instead of doing nothing.
"""

from __future__ import annotations

from functools import cache

OPERATIONS = frozenset(
    """default
    appleevent-send authorization-right-obtain darwin-notification-post distributed-notification-post
    device* device-camera device-microphone dynamic-code-generation forbidden-exec-sugid
    file* file-chroot file-clone file-ioctl file-issue-extension* file-issue-extension file-link
    file-map-executable file-mknod file-mount file-mount-update file-mount-umount file-search file-unmount file-revoke
    file-read* file-read-data file-read-metadata file-read-xattr file-test-existence
    file-write* file-write-acl file-write-create file-write-data file-write-finderinfo file-write-flags
    file-write-mode file-write-mount file-write-owner file-write-setugid file-write-times file-write-umount
    file-write-unlink file-write-xattr
    generic-issue-extension hid-control
    iokit* iokit-get-properties iokit-issue-extension iokit-open* iokit-open iokit-open-service iokit-open-user-client
    iokit-set-properties
    ipc* ipc-posix* ipc-posix-issue-extension ipc-posix-sem* ipc-posix-sem ipc-posix-sem-create ipc-posix-sem-open
    ipc-posix-sem-post ipc-posix-sem-unlink ipc-posix-sem-wait ipc-posix-shm* ipc-posix-shm ipc-posix-shm-read*
    ipc-posix-shm-read-data ipc-posix-shm-read-metadata ipc-posix-shm-write* ipc-posix-shm-write-create
    ipc-posix-shm-write-data ipc-posix-shm-write-unlink ipc-sysv* ipc-sysv-msg ipc-sysv-sem ipc-sysv-shm
    job-creation load-unsigned-code lsopen
    mach* mach-bootstrap mach-cross-domain-lookup mach-derive-port mach-host* mach-host-exception-port-set
    mach-host-special-port-set mach-issue-extension mach-lookup mach-message-send mach-per-user-lookup mach-priv*
    mach-priv-host-port mach-priv-task-port mach-register mach-task* mach-task-exception-port-set mach-task-inspect
    mach-task-name mach-task-read mach-task-special-port-set
    managed-preference-read necp-client-open
    network* network-bind network-inbound network-outbound
    nvram* nvram-delete nvram-get nvram-set opendirectory-user-modify
    process* process-codesigning* process-exec* process-exec process-exec-interpreter process-exec-update-label
    process-fork process-info* process-info-codesignature process-info-dirtycontrol process-info-listpids
    process-info-pidfdinfo process-info-pidfileportinfo process-info-pidinfo process-info-rusage
    process-info-setcontrol process-iopolicy-set
    pseudo-tty qtn-download qtn-sandbox qtn-user sandbox-check signal
    socket* socket-ioctl socket-option* socket-option-get socket-option-set storage-class-map syscall*
    syscall-mach syscall-mig syscall-unix sysctl* sysctl-read sysctl-write
    system* system-acct system-audit system-automount system-debug system-fcntl system-fsctl system-info
    system-kas-info system-kext* system-kext-load system-kext-query system-kext-unload system-lcid system-mac-label
    system-mac-syscall system-nfssvc system-package-check system-pathtl system-privilege system-reboot system-sched
    system-set-time system-socket system-suspend-resume system-swap system-write-bootstrap
    user-preference* user-preference-read user-preference-write""".split()
)

# Old names without a star that contain what was split off later.
_CONTAINS = {
    "ipc-posix-sem": "ipc-posix-sem*",
    "ipc-posix-shm": "ipc-posix-shm*",
    "iokit-open": "iokit-open*",
}

NOT_IN_DEFAULT = ("process-info*", "nvram*", "file-map-executable")
"""`(deny default)` of version 1 leaves these open: they are younger, and only a rule of their own closes them."""


@cache
def containing(operation: str) -> tuple[str, ...]:
    """The operation and everything that contains it, nearest first, `default` last."""
    found = [operation]
    for name in OPERATIONS:
        if name != operation and name.endswith("*") and operation.startswith(name[:-1]):
            found.append(name)
    for name, starred in _CONTAINS.items():
        if name != operation and starred in found:
            found.append(name)
    found[1:] = sorted(found[1:], key=lambda name: len(name.rstrip("*")), reverse=True)
    if not any(name in NOT_IN_DEFAULT for name in found):
        found.append("default")
    return tuple(dict.fromkeys(found))


def contains(wide: str, narrow: str) -> bool:
    """Whether a rule about `wide` is about `narrow` too."""
    if wide == "default":
        return "default" in containing(narrow)
    return wide in containing(narrow)


# Bound to themselves: what filters take as arguments.
CONSTANTS = frozenset(
    """REGULAR-FILE DIRECTORY SYMLINK CHARACTER-DEVICE BLOCK-DEVICE SOCKET FIFO TTY
    AF_UNIX AF_LOCAL AF_INET AF_INET6 AF_SYSTEM AF_ROUTE SOCK_STREAM SOCK_DGRAM SOCK_RAW
    SYSPROTO_CONTROL SYSPROTO_EVENT IPPROTO_TCP IPPROTO_UDP
    self same-sandbox others children pgrp parent same-session
    ip tcp udp ip4 ip6 tcp4 tcp6 udp4 udp6 unix-socket unix
    has-multiple-names is-sugid developer-mode""".split()
)

PATH_FILTERS = frozenset({"literal", "path", "path-literal", "subpath", "path-prefix", "prefix", "regex", "path-regex"})

# Filters that compare one attribute of the request: exactly, by prefix or by regular expression.
NAME_FILTERS: dict[str, tuple[str, str]] = {
    f"{attribute}{suffix}": (attribute, how)
    for attribute in (
        "global-name", "local-name", "xpc-service-name", "service-name", "ipc-posix-name", "sysctl-name",
        "notification-name", "preference-domain", "iokit-user-client-class", "iokit-registry-entry-class",
        "iokit-connection", "iokit-property", "iokit-service-class", "control-name", "appleevent-destination",
        "extension", "extension-class", "info-type", "right-name", "kext-bundle-id", "xattr", "process-path",
        "signing-identifier", "entitlement", "mac-policy-name", "semaphore-owner",
    )
    for suffix, how in (("", "exact"), ("-prefix", "prefix"), ("-regex", "regex"))
}  # fmt: skip

# Filters that compare one attribute with symbols or numbers.
VALUE_FILTERS = frozenset(
    """vnode-type socket-domain socket-type socket-protocol target file-mode file-attribute uid gid syscall-number
    ioctl-command fsctl-command mac-syscall-number device-conforms-to process-attribute system-attribute
    storage-class csr debug-mode""".split()
)
