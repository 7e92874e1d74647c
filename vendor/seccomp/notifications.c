/* System calls of the command that wait until init has looked at them (seccomp_unotify(2)).
 * THEORY OF OPERATION. The filter sends here what may write, make or remove a file (and, where that is wanted, what
 * opens one), and connects (connects.c). A file call goes on: what is enforced, the mounts enforce, and what is
 * read here from the memory of the command may be something else a moment later. So this only finds out what the kernel
 * will say: it resolves the path as the caller's, with the caller's mounts and no more rights than the caller has,
 * and when the mounts make the call fail, that is kept for the daemon. Equal ones are counted. The exception is the
 * removal of what only keeps a name absent, and a change of its mode or times: that succeeds, and nothing is done.
 * PROMISES
 *  1. Nothing of a file is opened but its place (O_PATH), and of a directory that is to be removed whether there is
 *     something in it; no link of /proc that leads out of the tree is followed.
 *  2. A call that fails for another reason (not there, there already, not permitted by its mode) is not reported.
 *  3. However many calls there are, the daemon gets at most 500 reports a second after the first 256, none of them more
 *     than 20 ms late, and then the number of those it did not get.
 *  4. No file call is made here for the command. One that does not go on does nothing, and hears of success. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <linux/stat.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/statfs.h>
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

enum { TMPFS = 0x01021994, KEPT = 64, SOON_MS = 20, BURST = 256, PER_TICK = 10, MOST_UNREAD = 96 << 10 };

enum { TEMPORARY = 020000000 /* __O_TMPFILE */, CUT = 1 };

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
    char self[4] = {0};
    proc_is_ours = call(readlinkat, AT_FDCWD, "/proc/self", self, sizeof self) == 1 && *self == '1';
}

long respond(uint64_t id, long result) {
    struct seccomp_notif_resp response = {.id = id, .error = result < 0 ? (int)result : 0};
    if (result > 0) {
        response.val = result;
    }
    return tell_notifier(SECCOMP_IOCTL_NOTIF_SEND, &response);
}

void let_go_on(uint64_t id) {
    struct seccomp_notif_resp response = {.id = id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    tell_notifier(SECCOMP_IOCTL_NOTIF_SEND, &response); /* a caller that was interrupted is gone */
}

int still_waits(uint64_t id) {
    return tell_notifier(SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0;
}

void set_timer(unsigned ms) {
    static unsigned set;
    if (ms && set && set <= ms) {
        return;
    }
    set = ms;
    struct itimerspec when = {.it_value = {0, ms * 1000000L}};
    if (ms) {
        call(timerfd_settime, timer, 0, &when, NULL);
    }
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

/* ---- What is kept for the daemon -------------------------------------------------------------------------------- */
static struct kept {
    uint32_t length, thread;

    struct {
        uint32_t access, call, error, pid, count, flags;
        char name[16], path[MAX_PAYLOAD - 40];
    } frame;
} kept[KEPT];

static uint32_t reports, lost, tokens = BURST;
static int unheard; /* the daemon is gone */
static int servers; /* a program listens, and the daemon has not been told */

static void send_servers(void) {
    int unread = 0;
    call(ioctl, BRIDGE, SIOCOUTQ, &unread);
    if (servers && tokens && unread <= MOST_UNREAD && tell(LISTENS, NULL, 0)) {
        servers = 0;
        tokens--;
    }
}

void note_server(void) {
    servers = !unheard;
    send_servers();
    set_timer(SOON_MS);
}

void send_reports(void) {
    int unread = 0; /* by the daemon: what room is left beyond is for questions, and for the end of the command */
    for (struct kept *one = kept; one < kept + reports; one++) {
        call(ioctl, BRIDGE, SIOCOUTQ, &unread);
        if (!tokens || unread > MOST_UNREAD || !tell(REFUSED, &one->frame, one->length)) {
            lost += one->frame.count;
        } else {
            tokens--;
        }
    }
    reports = 0;
    if (lost && unread <= MOST_UNREAD && tell(LOST, &lost, sizeof lost)) {
        lost = 0;
    }
}

void drop_reports(void) {
    unheard = 1;
    servers = 0;
    reports = lost = 0;
    tokens = BURST;
}

void report(const struct seccomp_notif *call, uint32_t access, long error, const char *path) {
    char shown[sizeof kept->frame.path + 1];
    unsigned length = length_of(path), cut = length >= sizeof shown;
    if (unheard || !length) {
        return;
    }
    if (!still_waits(call->id)) {
        return; /* interrupted: it comes again, or its number belongs to another call by now */
    }
    if (cut) {
        length = sizeof shown - 1;
    }
    memcpy(shown, path, length);
    shown[length] = 0;
    set_timer(SOON_MS);
    for (struct kept *one = kept; one < kept + reports; one++) {
        if (one->frame.access == access && one->length == 40 + length && after(shown, one->frame.path)
            && (one->thread == call->pid || one->frame.call == (uint32_t)call->data.nr)) {
            one->frame.count++;
            return;
        }
    }
    if (reports == KEPT) {
        send_reports();
    }
    struct kept *one = kept + reports++;
    struct process process = process_of(call->pid);
    one->length = 40 + length;
    one->thread = call->pid;
    one->frame.access = access;
    one->frame.call = (uint32_t)call->data.nr;
    one->frame.error = (uint32_t)error;
    one->frame.pid = process.pid;
    one->frame.count = 1;
    one->frame.flags = cut ? CUT : 0;
    memcpy(one->frame.name, process.name, sizeof process.name);
    memcpy(one->frame.path, shown, length < sizeof one->frame.path ? length + 1 : length);
}

void on_timer(void) {
    uint64_t times;
    call(read, timer, &times, sizeof times);
    set_timer(0);
    send_servers();
    send_reports();
    tokens = tokens + PER_TICK > BURST ? BURST : tokens + PER_TICK;
    int waiting = drop_interrupted();
    if (lost || servers || tokens < BURST) {
        set_timer(SOON_MS);
    } else if (waiting) {
        set_timer(100);
    }
}

/* ---- What the kernel will say ----------------------------------------------------------------------------------- */
long look(long directory, const char *path, uint64_t flags, uint64_t resolve) {
    struct open_how how = {.flags = O_PATH | O_CLOEXEC | flags, .resolve = RESOLVE_NO_MAGICLINKS ^ resolve};
    return call(openat2, directory, path, &how, sizeof how);
}

enum need { READS, WRITES, MAKES, REMOVES, CHANGES };

/* Of a name that is removed: a directory (AT_REMOVEDIR) or not (0); in place of an error number: outside it is
 * absent; how deep such names lie in each other. */
enum { EITHER = 1, DONE = -1, ABSENT = -2, DEEPEST = 8 };

char path[2][PATH], found[PATH + PATH + 2];

/* A place. `cover`: one of the empty directories, or the unreadable file, which stand for what is denied.
 * `keeps_absent`: what sandboxd has mounted where a name has to stay absent, or on the way to one: sticky, as nothing
 * else that one user alone may write. A file is empty, a directory has to be, but for others of its kind. */
struct place {
    uint32_t mode;
    uint64_t mount;
    int exists, is_root, read_only, cover, keeps_absent, is_anothers;
};

static struct place place_of(long fd, int closely) {
    struct statfs in;
    struct place place = {.exists = 1};
    if (call(fstatfs, fd, &in)) {
        return place;
    }
    place.read_only = in.f_flags & 1; /* ST_RDONLY, of the mount */
    if (!closely && !place.read_only && in.f_type != TMPFS) {
        return place;
    }
    const struct statx *is = look_at(fd);
    place.mode = is->stx_mode;
    place.is_anothers = call(getuid) && is->stx_uid != call(getuid);
    place.mount = is->stx_mnt_id;
    place.is_root = !!(is->stx_attributes & STATX_ATTR_MOUNT_ROOT);
    int is_directory = (is->stx_mode & S_IFMT) == S_IFDIR, granted = is->stx_mode & (is_directory ? 0222 : 0777);
    place.cover = place.is_root && !granted && (!is_directory || in.f_type == TMPFS);
    place.keeps_absent = place.is_root && (is->stx_mode & 07422) == 01400 && is->stx_uid == call(getuid)
                         && (is_directory || ((is->stx_mode & S_IFMT) == S_IFREG && !is->stx_size && place.read_only));
    return place;
}

int is_read_only(long fd) {
    return place_of(fd, 0).read_only;
}

long look_above(long directory, char *whole, char *part, uint64_t magic) {
    char first = *part;
    *part = 0;
    long fd = look(directory, *whole ? whole : ".", O_DIRECTORY, magic);
    *part = first;
    return fd;
}

void name_below(long fd, const char *part) {
    name_of(fd, found, PATH);
    char *end = found + length_of(found);
    if (end > found && end[-1] != '/') {
        end = put(end, "/");
    }
    put(end, part);
}

/* The way to a path was barred: by one of our covers? */
static long barred(long directory, char *whole) {
    long fd, error = 0;
    char *part = last_part(whole), *end = part + length_of(part);
    for (; (fd = look_above(directory, whole, part, 0)) == -EACCES && part > whole + 1; part = last_part(whole)) {
        part[-1] = 0;
    }
    if (fd < 0) {
        return 0;
    }
    for (char *cut = part; cut < end; cut++) {
        if (!*cut) {
            *cut = '/';
        }
    }
    if (place_of(fd, 1).cover) {
        error = EACCES;
        name_below(fd, part);
    }
    drop(fd);
    return error;
}

int is_here_or_above(const char *name) {
    return after(".", name) && (!name[1] || (name[1] == '.' && !name[2]));
}

static int is_absent(long fd);

static int holds_something(long directory) { /* that is there outside as well */
    char entries[1024];
    long fd = call(openat, directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), n, something = 0, entry;
    while (fd >= 0 && !something && (n = call(getdents64, fd, entries, sizeof entries)) > 0) {
        for (long at = 0; at < n && !something; at += *(unsigned short *)(entries + at + 16)) {
            if (is_here_or_above(entries + at + 19)) {
                continue;
            }
            entry = look(fd, entries + at + 19, O_NOFOLLOW, 0);
            something = entry < 0 || !is_absent(entry);
            drop(entry);
        }
    }
    drop(fd);
    return something;
}

static int is_absent(long fd) {
    static int depth;
    struct place at = place_of(fd, 1);
    if (!at.keeps_absent || depth == DEEPEST) {
        return 0;
    }
    depth++;
    int something = (at.mode & S_IFMT) == S_IFDIR && holds_something(fd);
    depth--;
    return !something;
}

/* A directory in which there is something is not removed, mount or not: git tries that. Nor is a file by rmdir(2). */
static int fails_by_itself(long fd, int kind, uint64_t flags) {
    int as_directory = flags == AT_REMOVEDIR;
    return as_directory != (kind == S_IFDIR) || (as_directory && holds_something(fd));
}

static long held_back(long fd) {
    return name_of(fd, found, PATH) > 0 && holds_back(found) ? EACCES : 0;
}

static long judge_place(long fd, const struct place *at, enum need need, uint64_t flags) {
    int kind = at->mode & S_IFMT;
    if (need == READS) {
        return at->cover && !(at->mode & 0444) ? EACCES : 0;
    }
    if (need == REMOVES && flags != EITHER && (at->is_root || at->read_only)) {
        if (fails_by_itself(fd, kind, flags)) {
            return 0;
        }
        if (is_absent(fd)) {
            return DONE;
        }
    }
    if (need == REMOVES) {
        return at->is_root ? EBUSY : at->read_only ? EROFS : held_back(fd);
    }
    if (need == CHANGES) {
        return at->keeps_absent && (at->cover || kind == S_IFREG) ? DONE
               : at->read_only && !at->is_anothers                ? EROFS
                                                                  : 0;
    }
    if (need == MAKES || (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL)) {
        return at->keeps_absent && at->cover ? EEXIST : 0; /* otherwise it is there outside, too */
    }
    if (!(flags & (O_ACCMODE | O_TRUNC | TEMPORARY))) {
        return 0; /* O_CREAT of what is there */
    }
    if (kind == S_IFDIR) {
        return at->cover ? EACCES : at->read_only && flags & TEMPORARY ? EROFS : 0;
    }
    if (kind == S_IFIFO ? !(flags & O_ACCMODE) : kind != S_IFREG) {
        return 0; /* a device is not on the mount */
    }
    if (!at->read_only && !held_back(fd)) {
        return 0;
    }
    if (kind == S_IFREG && at->read_only && flags & O_TRUNC) {
        return EROFS;
    }
    long error = call(faccessat2, fd, "", 2 /* W_OK */, AT_EMPTY_PATH | AT_EACCESS);
    if (!error) {
        return held_back(fd);
    }
    return error == -EROFS || at->cover ? -error : 0; /* otherwise its mode would have been enough */
}

/* An error, unless the mode alone would forbid to write in the directory. (To root outside it forbids nothing.) */
static long permitted(long directory, long error) {
    int modes =
        call(getuid) && call(faccessat2, directory, "", 3 /* W_OK | X_OK */, AT_EMPTY_PATH | AT_EACCESS) == -EACCES;
    return modes ? 0 : error;
}

/* The error number that the mounts are the reason of, or 0; then `found` is where. ABSENT: what is to be removed is not
 * there, which the kernel would say where it can be written. */
static long judge(long directory, char *whole, enum need need, uint64_t flags, struct place *at) {
    int follows = need < MAKES ? !(flags & O_NOFOLLOW) : need == CHANGES && !(flags & AT_SYMLINK_NOFOLLOW);
    long fd = look(directory, whole, follows ? 0 : O_NOFOLLOW, 0), error = 0;
    if (fd == -EACCES) {
        return barred(directory, whole);
    }
    if (fd >= 0) {
        *at = place_of(fd, need == REMOVES);
        if ((need != REMOVES || !is_here_or_above(last_part(whole))) && (error = judge_place(fd, at, need, flags))) {
            name_of(fd, found, PATH);
        }
    } else if (fd == -ENOENT && (need == REMOVES || need == MAKES || (need == WRITES && flags & O_CREAT))) {
        char *part = last_part(whole);
        if ((fd = look_above(directory, whole, part, 0)) < 0) {
            return 0;
        }
        struct place above = place_of(fd, 0);
        if (need == REMOVES) {
            drop(fd);
            return above.read_only ? ABSENT : 0;
        }
        name_below(fd, part);
        error = above.read_only                                                     ? permitted(fd, EROFS)
                : above.cover || holds_back(found) || relation_of(found) == GUARDED ? EACCES
                                                                                    : 0;
    }
    drop(fd);
    return error;
}

void report_making(const struct seccomp_notif *asked, const char *name) {
    struct place at = {0};
    long directory = open_directory(asked->pid, AT_FDCWD, name);
    put(path[0], name);
    long error = directory == AT_FDCWD || directory >= 0 ? judge(directory, path[0], MAKES, 0, &at) : 0;
    if (error > 0 && !(watched & QUIET)) {
        report(asked, WRITE, error, found);
    }
    drop(directory);
}

static uint64_t mount_above(long directory, char *whole) {
    long fd = look_above(directory, whole, last_part(whole), 0);
    struct place above = fd < 0 ? (struct place){0} : place_of(fd, 1);
    drop(fd);
    return above.mount;
}

/* rename(2) finds different mounts first, then a name that is taken (RENAME_NOREPLACE, as mv(1) tries), then a mount.
 * After the first, mv(1) fails to remove the new name, there or not: so one that cannot be made is reported at once. */
static long judge_rename(long from, long to, uint64_t flags) {
    struct place old = {0}, new = {0};
    long error = judge(from, path[0], REMOVES, EITHER, &old);
    if (!old.exists) {
        return error;
    }
    if (mount_above(from, path[0]) != mount_above(to, path[1])) {
        return judge(to, path[1], MAKES, 0, &new);
    }
    if (error) {
        return error;
    }
    error = flags & 1 ? 0 : judge(to, path[1], REMOVES, EITHER, &new);
    return new.exists ? error : judge(to, path[1], MAKES, 0, &new);
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
            if (!error && at.exists && special(asked)) {
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
    while (shape < shapes + sizeof shapes / sizeof *shapes && shape->number != asked.data.nr) {
        shape++;
    }
    long result = asked.data.nr == SYS_umask || asked.data.nr == SYS_landlock_restrict_self ? on_rights(&asked)
                  : asked.data.nr == SYS_fchown || asked.data.nr == SYS_fchmod              ? on_descriptor(&asked)
                  : shape < shapes + sizeof shapes / sizeof *shapes                         ? on_file(&asked, shape)
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
