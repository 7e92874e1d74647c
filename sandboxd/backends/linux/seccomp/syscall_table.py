"""The system calls that a sandboxed command may not make, with reasons. Data.

What the namespaces already bound (other processes, other networks, files) is not refused again here. The filter is for
what they do not bound: doors between the namespaces (Unix sockets, io_uring), the user's terminal, kernel interfaces
that know no namespace (keys, modules, time), and parts of the kernel that a build or a test has no use for and in which
new faults are found every year. A refusal is an error that programs are known to handle, ENOSYS wherever they then take
an older call. Only a call of a foreign architecture kills, since its numbers have no rows.

Arguments are compared by their low 32 bits, since the kernel itself ignores what a program leaves in the high half of
the registers concerned (or refuses it: unshare); a pointer by both halves. filter.py turns the rows into a program."""

from __future__ import annotations

import errno
from enum import IntEnum

from sandboxd_client.records import dataclass

_ALL = 0xFFFFFFFF

# ---- Actions ------------------------------------------------------------------------------------------------------


class ReturnValue(IntEnum):
    """The SECCOMP_RET_… values in use (linux/seccomp.h); REFUSE carries an errno."""

    KILL = 0x80000000
    REFUSE = 0x00050000
    NOTIFY = 0x7FC00000
    ALLOW = 0x7FFF0000


@dataclass(frozen=True, slots=True)
class Action:
    verdict: ReturnValue
    errno: int = 0

    @property
    def value(self) -> int:
        """Return the return value of the BPF program."""
        return self.verdict | self.errno

    def __str__(self) -> str:
        return errno.errorcode[self.errno] if self.errno else self.verdict.name.lower()


ALLOW = Action(ReturnValue.ALLOW)
KILL = Action(ReturnValue.KILL)
EPERM = Action(ReturnValue.REFUSE, errno.EPERM)
ENOSYS = Action(ReturnValue.REFUSE, errno.ENOSYS)
EAFNOSUPPORT = Action(ReturnValue.REFUSE, errno.EAFNOSUPPORT)
EOPNOTSUPP = Action(ReturnValue.REFUSE, errno.EOPNOTSUPP)
EPROTONOSUPPORT = Action(ReturnValue.REFUSE, errno.EPROTONOSUPPORT)


# ---- Architectures ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture: AUDIT_ARCH_… (linux/audit.h), and its column in SYSCALLS."""

    name: str
    audit: int
    column: int


MACHINES = {
    machine.name: machine for machine in (Architecture("x86_64", 0xC000003E, 0), Architecture("aarch64", 0xC00000B7, 1))
}

FOREIGN_ARCHITECTURE = KILL
"""The 32-bit entry of the same processor has other numbers, and so wrong rows."""

NO_CALL = 0xFFFFFFFF
"""The number -1 is no call: a debugger writes it to skip one."""

LAST_REVIEWED = 469
"""file_setattr, Linux 6.17; newer numbers, equal on both, were not reviewed."""

BEYOND_LAST_REVIEWED = ENOSYS
"""A new way to mount or to make a namespace is refused until it has a row.

A program sees an older kernel. On x86_64 this covers the x32 numbers, which have bit 30 set and would bypass the rows
of the calls that they are.
"""


# ---- Conditions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Argument:
    """A condition: the low 32 bits of an argument, masked by `bits`, are in `values`; `high`: the other 32."""

    argument: int
    values: tuple[int, ...]
    bits: int = _ALL
    high: bool = False

    def holds(self, arguments: tuple[int, ...]) -> bool:
        return arguments[self.argument] >> 32 * self.high & self.bits & _ALL in self.values


@dataclass(frozen=True, slots=True)
class SyscallRule:
    """A rule for some calls; the first row with true conditions decides, else ALLOW."""

    calls: tuple[str, ...]
    action: Action
    why: str
    where: tuple[Argument, ...] = ()


def _row(calls: str, action: Action, why: str, *where: Argument) -> SyscallRule:
    return SyscallRule(tuple(calls.split()), action, why, where)


_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_STREAM, _DGRAM, _SEQPACKET = 1, 2, 5
_TYPE = 0xF  # the rest are SOCK_CLOEXEC and SOCK_NONBLOCK
_NETLINK_ROUTE = 0
_PROTOCOLS = (0, 1, 6, 17, 58, 262)  # the default, ICMP (ping without privilege), TCP, UDP, ICMPv6, MPTCP
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
NEW_NAMESPACE = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}; clone has no bit for NEWTIME
_SHARED_PARTS = 0x00050F00  # CLONE_{VM,FS,FILES,SIGHAND,THREAD,SYSVSEM}: what unshare may undo between threads
_F_SETLEASE = 1024
_INIT, _PRIO_PROCESS, _IOPRIO_PROCESS = 1, 0, 1
_O_CREAT, _O_TMPFILE = 0x40, 0x400000
_MAKES_A_FILE = (_O_CREAT, _O_TMPFILE, _O_CREAT | _O_TMPFILE)
_S_ISUID = 0o4000
_HARMLESS_PERSONALITY = 0x00060008  # ADDR_NO_RANDOMIZE (gdb), UNAME26, PER_LINUX32 (setarch)

# ---- The table ----------------------------------------------------------------------------------------------------

UNIX_SOCKETS_REFUSED = (
    _row("socket", EPERM,
         "a Unix socket reaches services of the host that act for any client: D-Bus, Docker, agents, sandboxd itself",
         Argument(0, (_AF_UNIX,))),
    _row("socketpair", ALLOW,
         "two ends that are connected for good: how Node, Python and shells talk to their children",
         Argument(0, (_AF_UNIX,)), Argument(1, (_STREAM, _SEQPACKET), _TYPE)),
    _row("socketpair", EPERM,
         "either end of a datagram pair can send to any other socket",
         Argument(0, (_AF_UNIX,))),
)  # fmt: skip

UNIX_SOCKETS_ALLOWED = (
    _row("socket socketpair", ALLOW, "the settings say so: allowAllUnixSockets", Argument(0, (_AF_UNIX,))),
)

ROWS = (
    # Sockets: by default refused. The network namespace has no way out; the families below do not live in one, or are
    # parts of the kernel that need not be exposed.
    _row("socket", ALLOW,
         "TCP and UDP, with the protocols that are theirs",
         Argument(0, (_AF_INET, _AF_INET6)), Argument(1, (_STREAM, _DGRAM), _TYPE), Argument(2, _PROTOCOLS)),
    _row("socket", EPROTONOSUPPORT,
         "SCTP, DCCP, UDP-Lite, L2TP, SMC: no program needs them loaded; programs take TCP instead",
         Argument(0, (_AF_INET, _AF_INET6)), Argument(1, (_STREAM, _DGRAM), _TYPE)),
    _row("socket", EPERM,
         "raw and packet sockets forge traffic; the kernel gives the same answer without the capability",
         Argument(0, (_AF_INET, _AF_INET6))),
    _row("socket", ALLOW,
         "getifaddrs and getaddrinfo ask for the addresses of this namespace",
         Argument(0, (_AF_NETLINK,)), Argument(2, (_NETLINK_ROUTE,))),
    _row("socket", EPROTONOSUPPORT,
         "the other netlink families configure or observe the kernel; PAM and ss take this answer for 'not built in'",
         Argument(0, (_AF_NETLINK,))),
    _row("socket socketpair", EAFNOSUPPORT,
         "vsock reaches the hypervisor; packet, Bluetooth, CAN, ALG, XDP, TIPC, RDS, SMC and the rest reach too much "
         "of the kernel. A family that is not listed is refused, also the next one"),

    # Ways around the filter.
    _row("io_uring_setup io_uring_enter io_uring_register", ENOSYS,
         "makes sockets and opens files without a system call that a filter could see; libraries fall back to epoll"),

    # Namespaces and mounts: how the view of files that was built for the command could be taken apart.
    _row("clone", ALLOW, "processes and threads", Argument(0, (0,), NEW_NAMESPACE)),
    _row("clone", EPERM, "a user namespace gives all capabilities inside it, and most kernel faults need just that"),
    _row("clone3", ENOSYS, "its flags are in memory, where a filter cannot read them; libraries fall back to clone"),
    _row("unshare", ALLOW, "undoing what threads share", Argument(0, (0,), ~_SHARED_PARTS & _ALL)),
    _row("unshare", EPERM, "as clone"),
    _row("setns", EPERM, "joins a namespace by descriptor, also one that was passed in"),
    _row("mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick "
         "mount_setattr", EPERM,
         "a file that is masked or read-only must stay so"),
    _row("open_by_handle_at", EPERM, "opens files by number, past every directory and mount"),

    # Files that are only read. A lease is granted on any file of the same user, however it is mounted, and then
    # delays each program that opens it outside: an editor that saves the settings for 45 s, again and again.
    _row("fcntl", EPERM, "F_SETLEASE makes the host's programs wait that open a file which the command may only read",
         Argument(1, (_F_SETLEASE,))),

    # Privilege for others. A command that runs as root, or as a user whose files others can execute, would leave it to
    # them for good: the host's mount of a workspace knows nothing of `nosuid`. (Set-group-ID stays: on directories,
    # which `git init --shared` makes, it is ordinary, and a filter cannot tell them from files.)
    _row("chmod fchmod creat mknod", EPERM, "a set-user-ID program gives its owner's rights to each user who runs it",
         Argument(1, (_S_ISUID,), _S_ISUID)),
    _row("fchmodat fchmodat2 mknodat", EPERM, "as above", Argument(2, (_S_ISUID,), _S_ISUID)),
    _row("open", EPERM, "as above, for a file that is made",
         Argument(1, _MAKES_A_FILE, _O_CREAT | _O_TMPFILE), Argument(2, (_S_ISUID,), _S_ISUID)),
    _row("openat", EPERM, "as above",
         Argument(2, _MAKES_A_FILE, _O_CREAT | _O_TMPFILE), Argument(3, (_S_ISUID,), _S_ISUID)),
    _row("openat2", ENOSYS, "its mode and flags are in memory, where a filter cannot read them; programs take openat"),

    # The terminal, which is the user's own.
    _row("ioctl", EPERM,
         "TIOCSTI and TIOCLINUX type into the user's shell; TIOCSETD loads a line discipline into the kernel",
         Argument(1, (_TIOCSTI, _TIOCLINUX, _TIOCSETD))),
    _row("vhangup", EPERM, "hangs up the user's terminal"),

    # Process 1, the helper, which sees to it that nothing survives. (To trace or read it needs no row: it is not
    # dumpable. What follows needs only the same user.)
    _row("prlimit64 sched_setaffinity sched_setscheduler sched_setparam sched_setattr", EPERM,
         "a helper without descriptors or processor time would not notice that the owner has died",
         Argument(0, (_INIT,))),
    _row("setpriority", EPERM, "as above", Argument(0, (_PRIO_PROCESS,)), Argument(1, (_INIT,))),
    _row("ioprio_set", EPERM, "as above", Argument(0, (_IOPRIO_PROCESS,)), Argument(1, (_INIT,))),

    # Interfaces of the kernel that no namespace bounds.
    _row("add_key request_key keyctl", EPERM, "the user's keyrings hold secrets and are shared by all their sessions"),
    _row("bpf", EPERM, "programs in the kernel"),
    _row("perf_event_open", EPERM, "observes other processes and the kernel, and has been a way into it"),
    _row("userfaultfd", EPERM, "holds the kernel still in the middle of a copy, which makes races in it usable"),
    _row("kexec_load kexec_file_load reboot", EPERM, "replaces or restarts the running kernel"),
    _row("init_module finit_module delete_module", EPERM, "kernel modules"),
    _row("swapon swapoff quotactl quotactl_fd acct", EPERM, "administration of disks and accounts"),
    _row("settimeofday clock_settime clock_adjtime adjtimex", EPERM, "there is one clock, and it is the host's"),
    _row("syslog", EPERM, "the kernel's log tells addresses and what the host does"),
    _row("iopl ioperm", EPERM, "the ports of the hardware"),
    _row("modify_ldt", ENOSYS, "16-bit segments: an old entry to the kernel that only emulators of old systems use"),
    _row("memfd_secret", ENOSYS,
         "memory that no other process can read, so that no debugger and no report could show a call's arguments; "
         "programs take ordinary memory"),
    _row("lookup_dcookie nfsservctl", ENOSYS, "gone from current kernels, and not missed"),
    _row("personality", ALLOW, "asks for the current one", Argument(0, (_ALL,))),
    _row("personality", ALLOW, "debuggers switch address randomisation off; setarch",
         Argument(0, (0,), ~_HARMLESS_PERSONALITY & _ALL)),
    _row("personality", EPERM, "old behaviours that weaken the memory protection of what is started next"),
)  # fmt: skip

# Reviewed and allowed, which tests check.
OPEN_ON_PURPOSE = (
    ("ptrace process_vm_readv process_vm_writev kcmp pidfd_open pidfd_getfd process_madvise",
     "debuggers and strace on child processes; the pid namespace has no others, and init is not dumpable"),
    ("seccomp", "programs that sandbox themselves further; the strictest filter wins"),
    ("name_to_handle_at", "only names a file that can be reached anyway"),
    ("landlock_create_ruleset landlock_add_rule landlock_restrict_self", "can only restrict"),
    ("inotify_init1 inotify_add_watch fanotify_init", "watch modes of build tools; sees what could be read anyway"),
    ("memfd_create mmap mprotect", "just-in-time compilers"),
    ("pidfd_send_signal process_mrelease", "as kill(2): to processes of this pid namespace"),
    ("faccessat2 close_range epoll_pwait2 getxattrat listxattrat file_getattr cachestat",
     "newer forms of old calls, which ask and change nothing"),
    ("futex_waitv futex_wake futex_wait futex_requeue set_mempolicy_home_node map_shadow_stack mseal",
     "one's own memory and threads; the last two can only make it harder to attack"),
    ("statmount listmount", "what /proc/self/mountinfo says; for another mount namespace they take privilege over it"),
    ("lsm_get_self_attr lsm_set_self_attr lsm_list_modules", "as /proc/self/attr, which the security module judges"),
)  # fmt: skip

# Numbers of every call named above and in notified_calls.py: x86_64, aarch64 (None: there is no such call).
SYSCALLS: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bind": (49, 200),
    "bpf": (321, 280),
    "cachestat": (451, 451),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "close_range": (436, 436),
    "connect": (42, 203),
    "creat": (85, None),
    "delete_module": (176, 106),
    "epoll_pwait2": (441, 441),
    "faccessat2": (439, 439),
    "fanotify_init": (300, 262),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fcntl": (72, 25),
    "file_getattr": (468, 468),
    "file_setattr": (469, 469),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "futex_requeue": (456, 456),
    "futex_wait": (455, 455),
    "futex_waitv": (449, 449),
    "futex_wake": (454, 454),
    "futimesat": (261, None),
    "getsockopt": (55, 209),
    "getxattrat": (464, 464),
    "init_module": (175, 105),
    "inotify_add_watch": (254, 27),
    "inotify_init1": (294, 26),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "lchown": (94, None),
    "link": (86, None),
    "linkat": (265, 37),
    "listmount": (458, 458),
    "listen": (50, 201),
    "listxattrat": (465, 465),
    "lookup_dcookie": (212, 18),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "lsm_get_self_attr": (459, 459),
    "lsm_list_modules": (461, 461),
    "lsm_set_self_attr": (460, 460),
    "map_shadow_stack": (453, 453),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "mmap": (9, 222),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "mprotect": (10, 226),
    "mseal": (462, 462),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open": (2, None),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "request_key": (249, 218),
    "rmdir": (84, None),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "seccomp": (317, 277),
    "set_mempolicy_home_node": (450, 450),
    "sendmmsg": (307, 269),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setsockopt": (54, 208),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "statmount": (457, 457),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "syslog": (103, 116),
    "truncate": (76, 45),
    "umask": (95, 166),
    "umount2": (166, 39),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vhangup": (153, 58),
}
