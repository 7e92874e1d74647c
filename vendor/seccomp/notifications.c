/* System calls of the command that wait until init has looked at them (seccomp_unotify(2)).
 * THEORY OF OPERATION. The filter sends here what may write, make or remove a file (and, where that is wanted, what
 * opens one), and connects (connects.c). A file call goes on: what is enforced, the mounts enforce, and what is
 * read here from the memory of the command may be something else a moment later. So this only finds out what the kernel
 * will say (verdicts.c), and when the mounts make the call fail, that is kept for the daemon (reports.c). The exception
 * is the removal of what only keeps a name absent, and a change of its mode or times: that succeeds, and nothing is
 * done; and what writes to a name that is hidden, which is denied, whatever stands there to hide it.
 * PROMISES
 *  1. No file call is made here for the command. One that does not go on does nothing. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/stat.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include "bridge.h"
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#define SYS_setxattrat 463
#define SYS_removexattrat 466
#define SYS_file_setattr 469
#define WAKE_UP_AT_ONCE _IOW('!', 4, uint64_t) /* SECCOMP_IOCTL_NOTIF_SET_FLAGS, Linux 6.6: both run on one processor */

int notifier = -1, timer = -1;
uint32_t watched;
static int proc_is_ours; /* otherwise the numbers in it are those of another namespace */

/* ---- Talking to the kernel -------------------------------------------------------------------------------------- */
long install(const void *filter, int flags) {
    return call(seccomp, SECCOMP_SET_MODE_FILTER, flags, filter);
}

long tell_notifier(unsigned long request, const void *argument) {
    return call(ioctl, notifier, request, argument);
}

void watch(int given, uint32_t flags) {
    notifier = given;
    watched = flags;
    timer = (int)call(timerfd_create, 1 /* CLOCK_MONOTONIC */, TFD_CLOEXEC | TFD_NONBLOCK);
    tell_notifier(WAKE_UP_AT_ONCE, (void *)1);
    long files = call(openat, AT_FDCWD, "/proc/self/fd/", O_PATH | O_CLOEXEC);
    if (files >= 0) {
        own_files = (int)files;
    }
    char self[4] = {0};
    proc_is_ours = call(readlinkat, AT_FDCWD, "/proc/self", self, sizeof self) == 1 && *self == '1';
}

static long answer(uint64_t id, long result, uint32_t flags) {
    struct seccomp_notif_resp response = {.id = id, .error = result < 0 ? (int)result : 0, .flags = flags};
    if (result > 0) {
        response.val = result;
    }
    long error = tell_notifier(SECCOMP_IOCTL_NOTIF_SEND, &response);
    if (error && error != -ENOENT) { /* not a caller that was interrupted: without an answer it would wait for ever */
        error = tell_notifier(SECCOMP_IOCTL_NOTIF_SEND, &response);
    }
    return error;
}

long respond(uint64_t id, long result) {
    return answer(id, result, 0);
}

void let_go_on(uint64_t id) {
    answer(id, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE);
}

int still_waits(uint64_t id) {
    return tell_notifier(SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0;
}

_Noreturn void probe(void) { /* tries to get a notifier: the status is 0, NOT_KILLABLE or an error number */
    struct sock_filter allow = {6 /* BPF_RET | BPF_K */, 0, 0, SECCOMP_RET_ALLOW};
    call(prctl, PR_SET_NO_NEW_PRIVS, 1);
    struct sock_fprog filter = {1, &allow};
    long error = install(&filter, KILLABLE), status = 0;
    if (error < 0) {
        error = install(&filter, NEW_LISTENER);
        status = error < 0 ? -error : NOT_KILLABLE;
    }
    exit_with(status);
}

/* ---- Looking at the caller -------------------------------------------------------------------------------------- */
long open_in_proc(uint32_t thread, const char *name, int number, int flags) {
    char path[64], *end;
    if (!proc_is_ours) {
        return -ENOSYS;
    }
    end = put(put(put(path, "/proc/"), decimal(thread)), name);
    if (number >= 0) {
        put(end, decimal((unsigned)number));
    }
    return call(openat, AT_FDCWD, path, flags | O_CLOEXEC);
}

long read_memory(uint32_t thread, uint64_t from, void *to, unsigned long size) {
    unsigned long first = 4096 - from % 4096; /* what lies on the next page may be missing */
    if (first > size) {
        first = size;
    }
    struct iovec here = {to, size}, there[] = {{(void *)from, first}, {(void *)(from + first), size - first}};
    return call(process_vm_readv, thread, &here, 1, there, 2);
}

long read_path(uint32_t thread, uint64_t from, char *to) {
    long got = read_memory(thread, from, to, PATH);
    for (long n = 0; n < got; n++) {
        if (!to[n]) {
            return n;
        }
    }
    return -EFAULT;
}

long open_directory(uint32_t thread, int fd, const char *below) {
    if (*below == '/') {
        return AT_FDCWD;
    }
    if (fd == AT_FDCWD) {
        return open_in_proc(thread, "/cwd", -1, O_PATH);
    }
    return fd < 0 ? -EBADF : open_in_proc(thread, "/fd/", fd, O_PATH);
}

/* The number behind a name in /proc/PID/status; 0 without the name. */
static uint64_t field(const char *status, const char *name, unsigned base) {
    uint64_t value = 0;
    while (*status && !after(name, status)) {
        status++;
    }
    for (const char *at = *status ? after(name, status) : status;; at++) {
        unsigned digit = (unsigned)(*at <= '9' ? *at - '0' : *at - 'a' + 10);
        if (digit >= base) {
            return value;
        }
        value = value * base + digit;
    }
}

static void take_name(char *to, const char *from) {
    for (unsigned n = 0; n < sizeof((struct process *)0)->name - 1; n++) {
        to[n] = from && *from && *from != '\n' ? *from++ : 0;
    }
}

/* Its name is that of its executable: a program can call its threads as it likes. */
struct process process_of(uint32_t thread) {
    struct process process = {0};
    char text[4096];
    long fd = open_in_proc(thread, "/status", -1, O_RDONLY), got = fd < 0 ? 0 : call(read, fd, text, sizeof text - 1);
    drop(fd);
    text[got > 0 ? got : 0] = 0;
    take_name(process.name, after("Name:\t", text));
    process.pid = (uint32_t)field(text, "\nTgid:\t", 10);
    process.pid = process.pid ? process.pid : thread;
    process.mask = (uint32_t)field(text, "\nUmask:\t", 8);
    process.signals = (field(text, "\nSigPnd:\t", 16) | field(text, "\nShdPnd:\t", 16)) & field(text, "\nSigCgt:\t", 16)
                      & ~field(text, "\nSigBlk:\t", 16);
    fd = open_in_proc(thread, "/exe", -1, O_PATH);
    if (name_of(fd, text, sizeof text) > 0) {
        take_name(process.name, last_part(text));
    }
    drop(fd);
    return process;
}

/* ---- The calls: where their arguments are ----------------------------------------------------------------------- */
static const struct shape shapes[] = {
    {SYS_openat, 0, 1, 2, OPENED},
    {SYS_mkdirat, 0, 1, NOWHERE, NAME_MADE, S_IFDIR},
    {SYS_unlinkat, 0, 1, 2, NAME_REMOVED},
    {SYS_fchmodat, 0, 1, NOWHERE, FILE_CHANGED},
    {SYS_utimensat, 0, 1, 3, FILE_CHANGED},
    {SYS_fchownat, 0, 1, 4, FILE_CHANGED},
    {SYS_renameat, 0, 1, NOWHERE, RENAMED},
    {SYS_renameat2, 0, 1, 4, RENAMED},
    {SYS_linkat, 0, 1, 4, LINKED},
    {SYS_symlinkat, 1, 2, NOWHERE, NAME_MADE, S_IFLNK},
    {SYS_mknodat, 0, 1, NOWHERE, NAME_MADE},
    {SYS_fchmodat2, 0, 1, 3, FILE_CHANGED},
    {SYS_truncate, NOWHERE, 0, NOWHERE, FILE_WRITTEN, O_TRUNC},
    {SYS_setxattr, NOWHERE, 0, NOWHERE, FILE_CHANGED},
    {SYS_lsetxattr, NOWHERE, 0, NOWHERE, FILE_CHANGED, AT_SYMLINK_NOFOLLOW},
    {SYS_removexattr, NOWHERE, 0, NOWHERE, FILE_CHANGED},
    {SYS_lremovexattr, NOWHERE, 0, NOWHERE, FILE_CHANGED, AT_SYMLINK_NOFOLLOW},
    {SYS_setxattrat, 0, 1, 2, FILE_CHANGED},
    {SYS_removexattrat, 0, 1, 2, FILE_CHANGED},
    {SYS_file_setattr, 0, 1, 4, FILE_CHANGED},
#ifdef SYS_open
    {SYS_open, NOWHERE, 0, 1, OPENED},
    {SYS_creat, NOWHERE, 0, NOWHERE, FILE_WRITTEN, O_CREAT | O_TRUNC},
    {SYS_mkdir, NOWHERE, 0, NOWHERE, NAME_MADE, S_IFDIR},
    {SYS_mknod, NOWHERE, 0, NOWHERE, NAME_MADE},
    {SYS_symlink, NOWHERE, 1, NOWHERE, NAME_MADE, S_IFLNK},
    {SYS_unlink, NOWHERE, 0, NOWHERE, NAME_REMOVED},
    {SYS_rmdir, NOWHERE, 0, NOWHERE, NAME_REMOVED, AT_REMOVEDIR},
    {SYS_rename, NOWHERE, 0, NOWHERE, RENAMED},
    {SYS_link, NOWHERE, 0, NOWHERE, LINKED},
    {SYS_chmod, NOWHERE, 0, NOWHERE, FILE_CHANGED},
    {SYS_chown, NOWHERE, 0, NOWHERE, FILE_CHANGED},
    {SYS_utime, NOWHERE, 0, NOWHERE, FILE_CHANGED},
    {SYS_lchown, NOWHERE, 0, NOWHERE, FILE_CHANGED, AT_SYMLINK_NOFOLLOW},
    {SYS_utimes, NOWHERE, 0, NOWHERE, FILE_CHANGED},
    {SYS_futimesat, 0, 1, NOWHERE, FILE_CHANGED},
#endif
    {NOWHERE},
};
static long directory_of(const struct seccomp_notif *call, int argument, const char *below) {
    return open_directory(call->pid, argument == NOWHERE ? AT_FDCWD : (int)call->data.args[argument], below);
}

/* What the call returns, GOES_ON or ANSWERED. */
static long on_file(const struct seccomp_notif *asked, const struct shape *shape) {
    const __u64 *argument = asked->data.args;
    uint64_t flags = shape->flags == NOWHERE ? (unsigned)shape->fixed : argument[shape->flags];
    int two = shape->kind == RENAMED || shape->kind == LINKED, second = shape->directory == NOWHERE ? 1 : 3;
    struct place at = {0};
    int access = WRITE;
    if (shape->kind == OPENED && flags & O_PATH) {
        return GOES_ON;
    }
    if (shape->kind == OPENED && !(flags & (O_ACCMODE | O_CREAT | O_TRUNC | TEMPORARY))) {
        access = READ;
    }
    long length = read_path(asked->pid, argument[shape->path], path[0]);
    if (length < (shape->kind != LINKED) || (two && read_path(asked->pid, argument[second], path[1]) <= 0)) {
        return GOES_ON;
    }
    long from = directory_of(asked, shape->directory, path[0]), error = 0;
    if (from < 0 && from != AT_FDCWD) {
        return GOES_ON;
    }
    long to = two ? directory_of(asked, second == 1 ? NOWHERE : 2, path[1]) : AT_FDCWD;
    int known = to >= 0 || to == AT_FDCWD;
    long result = known ? on_behalf(asked, shape, &from, two ? to : from, flags) : GOES_ON;
    if (known && (result == GOES_ON || (result < 0 && result != -EEXIST))) {
        switch (shape->kind) {
        case OPENED:
        case FILE_WRITTEN:
            error = judge(from, path[0], access == READ ? READS : WRITES, flags, &at);
            if (error == EACCES && at.cover) {
                result = -EACCES; /* the kernel may say that it is a directory, which nothing outside is */
            }
            break;
        case NAME_MADE:
            error = judge(from, path[0], MAKES, 0, &at);
            break;
        case NAME_REMOVED:
            error = judge(from, path[0], REMOVES, (uint32_t)flags, &at);
            break;
        case FILE_CHANGED:
            error = judge(from, path[0], CHANGES, flags, &at);
            if (error == EACCES) {
                result = -EACCES; /* a person has made it meanwhile */
            } else if (!error && at.exists && special(asked)) {
                long fd = look(from, path[0], flags & AT_SYMLINK_NOFOLLOW ? O_NOFOLLOW : 0, 0);
                result = change(asked, fd);
                drop(fd);
            }
            break;
        case RENAMED:
            error = judge_rename(from, to, flags);
            break;
        case LINKED: /* of a file that is there */
            if (judge(from, path[0], CHANGES, AT_SYMLINK_NOFOLLOW, &at), at.exists) {
                error = judge(to, path[1], MAKES, 0, &at);
            }
        }
    }
    if (error > 0 && !(watched & QUIET)) {
        report(asked, (uint32_t)access, error, found);
    }
    drop(to);
    drop(from);
    return error == DONE ? 0 : error == ABSENT ? -ENOENT : result;
}

void on_notification(void) {
    struct seccomp_notif asked = {0};
    if (tell_notifier(SECCOMP_IOCTL_NOTIF_RECV, &asked)) {
        return; /* it was interrupted meanwhile */
    }
    if (on_socket(&asked)) {
        return;
    }
    const struct shape *shape = shapes;
    while (shape->number != NOWHERE && shape->number != asked.data.nr) {
        shape++;
    }
    long result = asked.data.nr == SYS_umask || asked.data.nr == SYS_landlock_restrict_self ? on_rights(&asked)
                  : asked.data.nr == SYS_fchown || asked.data.nr == SYS_fchmod              ? on_descriptor(&asked)
                  : shape->number != NOWHERE                                                ? on_file(&asked, shape)
                                                                                            : GOES_ON;
    if (result == GOES_ON && special(&asked) > 0) {
        result = -EPERM; /* the bit is never set */
    }
    if (result == GOES_ON) {
        let_go_on(asked.id);
    } else if (result != ANSWERED) {
        respond(asked.id, result);
    }
}
