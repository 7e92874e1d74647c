/* Names that stay absent, with nothing mounted or made for them, or as a person makes them meanwhile.
 * THEORY OF OPERATION. Landlock lets the command make, link, move or remove no name and open no file for writing below
 * the mounts of the zone; that holds whatever a thread does to a path meanwhile, and whatever fails here. So each such
 * call of the command waits for init, which makes it on the caller's behalf: its path is copied once, the directory
 * resolved to a descriptor, the name compared with those that are guarded, and the call made relative to that
 * descriptor. What is not in the zone, or not understood, goes on in the caller, and the kernel gives the true answer.
 * Of what the command does only init makes names in the zone, one after the other; so no directory can be moved between
 * the comparison and the call.
 * PROMISES
 *  1. At and below a guarded name nothing is made, removed or written; on the way to one a directory may be made, and
 *     not moved.
 *  2. Only on mounts of the zone is anything done here, and nothing for a program that has confined itself (Landlock).
 *  3. Nothing is done for a caller that has been interrupted. What has to wait (a FIFO, a lease) waits in a child.
 *  4. A name is made with the mask of the caller, kept in its limit of locks, which the kernel inherits as the mask. */
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <linux/stat.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include "bridge.h"

enum { MOST_MOUNTS = 16384, MOST_HOPS = 40, MARK = 0x5bd, AGAIN_ = ANSWERED + 1 };

#define NARROWED (1ull << 40) /* the hard limit of a program that has confined itself */

const struct guard *guard;
static char **zone;
static uint64_t mounts[MOST_MOUNTS]; /* those of which all can be written, or 0, then the zones */
static uint32_t known;
static unsigned common; /* how many bytes all names begin with */

char **take_guard(char **from) {
    zone = from;
    for (uint32_t n = 0; guard && n < guard->names; n++) {
        const char *name = zone[guard->zones + n], *first = zone[guard->zones];
        unsigned same = 0;
        while (name[same] && name[same] == first[same]) {
            same++;
        }
        common = n && same > common ? common : same;
    }
    return from + (guard ? guard->zones + guard->names : 0);
}

int is_guard_possible(void) {
    return !guard || confinement->roots + guard->zones <= MOST_MOUNTS;
}

long confine_zones(long set) {
    long error = 0;
    for (uint32_t n = 0; guard && n < guard->zones && !error; n++) {
        error = grant_below(set, zone[n], guard->granted);
    }
    return error;
}

void keep_mask(void) {
    if (!guard) {
        return;
    }
    long mask = call(umask, 0);
    call(umask, mask);
    lower_limit(RLIMIT_LOCKS, (uint64_t)(MARK << 9 | mask), ~0ull);
}

void find_zones(void) {
    for (; guard && known < confinement->roots + guard->zones; known++) { /* before the zones are the roots */
        long fd = open_path(*(zone - confinement->roots + known), 0);
        const struct statx *is = look_at(fd);
        if (known >= confinement->roots || is->stx_attributes & STATX_ATTR_MOUNT_ROOT) {
            mounts[known] = is->stx_mnt_id;
        }
        drop(fd);
    }
}

int relation_of(const char *path) {
    int relation = FREE;
    unsigned same = 0;
    while (guard && same < common && path[same] && path[same] == zone[guard->zones][same]) {
        same++;
    }
    for (uint32_t n = 0; guard && n < guard->names && (same == common || !path[same]); n++) {
        const char *name = zone[guard->zones + n] + same, *at = path + same;
        while (*name && *name == *at) {
            name++;
            at++;
        }
        if (!*name && (!*at || *at == '/')) {
            return GUARDED;
        }
        if (!*at && *name == '/') {
            relation = LEADS_TO_ONE;
        }
    }
    return relation;
}

static uint32_t number_of(uint64_t mount) {
    uint32_t n = 0;
    while (n < known && mounts[n] != mount) {
        n++;
    }
    return n;
}

static int is_zone(uint64_t mount) {
    uint32_t n = number_of(mount);
    return n >= confinement->roots && n < known;
}

/* /proc/self and the like mean the caller's. */
static uint64_t as_callers(uint32_t thread, char *whole) {
    const char *head = "/dev/stdin\0/dev/stdout\0/dev/stderr\0/dev/fd/\0/proc/self/\0/proc/thread-self/\0";
    for (unsigned n = 0; *head; n++, head += length_of(head) + 1) {
        char copy[PATH];
        const char *rest = after(head, whole);
        if (rest && length_of(rest) < PATH - 32 && (n > 2 || !*rest)) {
            put(copy, n > 2 ? rest : decimal(n));
            put(put(put(put(whole, "/proc/"), decimal(thread)), n > 3 ? "/" : "/fd/"), copy);
            return RESOLVE_NO_MAGICLINKS;
        }
    }
    return 0;
}

struct spot {
    long directory;
    uint64_t mount, magic;
    char *name;
    int in_zone, has_slash, relation;
};

static struct spot spot_of(uint32_t thread, long at, char *whole) {
    struct spot spot = {-1};
    spot.magic = as_callers(thread, whole);
    const char *end = whole + length_of(whole) - 1;
    spot.name = last_part(whole);
    spot.has_slash = !*end;
    if (!*spot.name || is_here_or_above(spot.name)
        || (spot.directory = look_above(at, whole, spot.name, spot.magic)) < 0) {
        return spot;
    }
    spot.mount = look_at(spot.directory)->stx_mnt_id;
    spot.in_zone = is_zone(spot.mount);
    if (spot.in_zone) {
        name_below(spot.directory, spot.name);
        spot.relation = relation_of(found);
    }
    if (spot.has_slash) {
        spot.name[length_of(spot.name)] = '/';
    }
    return spot;
}

/* Whether no mount refuses what is made, removed or opened there: it can be written, and the name is no mount. */
static int is_free(const struct spot *at, int opens) {
    if (at->directory < 0 || at->in_zone || at->has_slash) {
        return 0;
    }
    const struct statx *is = look_at_name(at->directory, at->name);
    int kind = is->stx_mode & S_IFMT, same = !kind || is->stx_mnt_id == at->mount;
    return opens && (kind == S_IFCHR || kind == S_IFLNK) ? kind == S_IFCHR /* a device is not on the mount */
                                                         : same && number_of(at->mount) < confinement->roots;
}

/* Tells of names that make a repository, and of directories that come from elsewhere, in which there may be some. */
static void tell_made(const struct seccomp_notif *asked, const struct spot *at, int kind) {
    const char *one = ".git\0HEAD\0commondir\0config\0config.worktree\0hooks\0objects\0refs\0", *rest;
    while (*one && !((rest = after(one, at->name)) && (!*rest || *rest == '/'))) {
        one += length_of(one) + 1;
    }
    if (*one || kind == RENAMED) {
        long made = look(at->directory, at->name, O_NOFOLLOW, 0);
        const struct statx *is = look_at(made);
        drop(made);
        if (*one || (is->stx_mode & S_IFMT) == S_IFDIR) {
            name_below(at->directory, at->name);
            report(asked, MADE, kind == S_IFDIR ? (uint32_t)is->stx_ino : 0, found);
        }
    }
}

static long give(const struct seccomp_notif *asked, long fd, uint64_t flags) {
    struct seccomp_notif_addfd given = {.id = asked->id,
                                        .flags = 2 /* SECCOMP_ADDFD_FLAG_SEND */,
                                        .srcfd = (uint32_t)fd,
                                        .newfd_flags = (uint32_t)flags & O_CLOEXEC};
    long error = tell_notifier(SECCOMP_IOCTL_NOTIF_ADDFD, &given);
    drop(fd);
    return error < 0 && error != -ENOENT ? error : ANSWERED;
}

int is_guarded(long there) {
    return guard && name_of(there, found, PATH) > 0 && relation_of(found) == GUARDED;
}

/* A file that is there, by its inode: no name is made. */
static long reopen(const struct seccomp_notif *asked, long there, uint64_t flags) {
    if (!still_waits(asked->id)) {
        return ANSWERED;
    }
    uint64_t how = (flags & ~(O_CREAT | O_NOFOLLOW)) | O_CLOEXEC;
    long fd = call(openat, AT_FDCWD, own_link(there), how | O_NONBLOCK), child;
    if ((fd == -EAGAIN || fd == -ENXIO) && !(flags & O_NONBLOCK)) { /* for a lease, a reader */
        if ((child = in_a_child(asked, -1, NULL))) {
            return child < 0 ? child : ANSWERED;
        }
        fd = call(openat, AT_FDCWD, own_link(there), how);
        fd = fd < 0 ? fd : give(asked, fd, flags);
        exit_with(fd < 0 ? -fd : 0);
    }
    if (fd >= 0) {
        call(fcntl, fd, F_SETFL, flags);
    }
    return fd;
}

/* A descriptor, GOES_ON, ANSWERED or an error. A link at the end is followed: then `from` and the path are its own. */
static long open_in_zone(const struct seccomp_notif *asked, long *from, uint64_t flags, uint64_t mode) {
    long fd = AGAIN_;
    for (int hop = 0; hop < MOST_HOPS && fd == AGAIN_; hop++) {
        struct spot at = spot_of(asked->pid, *from, path[0]);
        int may = at.in_zone && !at.has_slash, makes = may && flags & O_CREAT;
        if (is_free(&at, 1)) {
            drop(at.directory);
            let_go_on(asked->id);
            return ANSWERED;
        }
        long there = -EINVAL, made = -EEXIST; /* most often it is not there: that is tried before it is looked at */
        if (makes && at.relation != GUARDED && still_waits(asked->id)) {
            made = call(openat, at.directory, at.name, flags | O_EXCL | O_CLOEXEC, mode);
        }
        if (made == -EEXIST && at.directory >= 0 && !at.has_slash) {
            there = look(at.directory, at.name, at.magic ? 0 : O_NOFOLLOW, at.magic);
        }
        fd = GOES_ON;
        const struct statx *is = look_at(there);
        int kind = is->stx_mode & S_IFMT, is_here = there >= 0 && is_zone(is->stx_mnt_id);
        if (made != -EEXIST) {
            fd = made;
            if (made >= 0) {
                tell_made(asked, &at, 0);
            }
        } else if (makes && there >= 0 && flags & O_EXCL) {
            fd = -EEXIST;
        } else if (makes && there == -ENOENT) {
            fd = at.relation == GUARDED ? -EACCES : !still_waits(asked->id) ? ANSWERED : AGAIN_; /* gone meanwhile */
        } else if (is_here && (kind == S_IFREG || (kind == S_IFIFO && flags & O_ACCMODE))) {
            fd = at.relation == GUARDED || (at.magic && is_guarded(there)) ? -EACCES : reopen(asked, there, flags);
        } else if (kind == S_IFLNK && may && flags & O_NOFOLLOW) {
            fd = -ELOOP;
        } else if (kind == S_IFLNK && !(flags & (O_NOFOLLOW | (flags & O_CREAT ? O_EXCL : 0)))) {
            long length = call(readlinkat, there, "", path[0], PATH - 1);
            if (length > 0) {
                path[0][length] = 0;
                drop(*from);
                *from = at.directory;
                at.directory = -1;
                fd = AGAIN_;
            }
        }
        drop(there);
        drop(at.directory);
    }
    return fd == AGAIN_ ? -ELOOP : fd;
}

/* What has no name: truncate(2), and a file with none (O_TMPFILE). */
static long without_a_name(const struct seccomp_notif *asked, long from, uint64_t flags) {
    uint64_t magic = as_callers(asked->pid, path[0]);
    long there = look(from, path[0], 0, magic), result = GOES_ON;
    const struct statx *is = look_at(there);
    if (there >= 0 && is_zone(is->stx_mnt_id) && (is->stx_mode & S_IFMT) == (flags & TEMPORARY ? S_IFDIR : S_IFREG)) {
        result = is_guarded(there)         ? -EACCES
                 : !still_waits(asked->id) ? ANSWERED
                 : flags & TEMPORARY       ? call(openat, there, ".", flags | O_CLOEXEC,
                                                  asked->data.args[asked->data.nr == SYS_openat ? 3 : 2])
                                           : call(truncate, own_link(there), asked->data.args[1]);
    }
    drop(there);
    return result;
}

static long refusal(const struct spot *at, long absent, long mount, long other) {
    long there = look(at->directory, at->name, O_NOFOLLOW, 0);
    int is_mount = !!(look_at(there)->stx_attributes & STATX_ATTR_MOUNT_ROOT);
    drop(there);
    return there < 0 ? absent : is_mount ? mount : other;
}

static long discard(const struct spot *at, uint64_t flags) {
    return at->relation == GUARDED ? refusal(at, -ENOENT, -EBUSY, -EACCES)
                                   : call(unlinkat, at->directory, at->name, flags);
}

static long make(const struct spot *at, int kind, const __u64 *argument) {
    if (at->relation == GUARDED || (at->relation && kind == S_IFLNK)) {
        return refusal(at, -EACCES, -EEXIST, -EEXIST);
    }
    return kind == S_IFDIR   ? call(mkdirat, at->directory, at->name, argument[1])
           : kind == S_IFLNK ? call(symlinkat, path[1], at->directory, at->name)
                             : call(mknodat, at->directory, at->name, argument[1], argument[2]);
}

static long move(const struct spot *at, const struct spot *old, uint64_t flags) {
    if (!old->in_zone || old->mount != at->mount) {
        return GOES_ON;
    }
    if (at->relation || old->relation) {
        long error = at->relation ? refusal(at, -EACCES, -EBUSY, -EACCES) : -EBUSY;
        return refusal(old, -ENOENT, error, error);
    }
    return call(renameat2, old->directory, old->name, at->directory, at->name, flags);
}

static long join(const struct seccomp_notif *asked, const struct spot *at, long from, uint64_t flags) {
    if (at->relation) {
        return refusal(at, -EACCES, -EEXIST, -EEXIST);
    }
    if (flags & ~(uint64_t)(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH)) {
        return GOES_ON; /* to EINVAL */
    }
    uint64_t magic = as_callers(asked->pid, path[0]);
    int itself = !*path[0];
    long file = itself ? from : look(from, path[0], flags & AT_SYMLINK_FOLLOW ? 0 : O_NOFOLLOW, magic), error = GOES_ON;
    if (file >= 0 && (!itself || flags & AT_EMPTY_PATH)) {
        error = is_guarded(file) ? -EACCES
                : still_waits(asked->id)
                    ? call(linkat, AT_FDCWD, own_link(file), at->directory, at->name, AT_SYMLINK_FOLLOW)
                    : ANSWERED;
    }
    drop(itself ? -1 : file);
    return error;
}

long on_behalf(const struct seccomp_notif *asked, const struct shape *shape, long *from, long to, uint64_t flags) {
    const __u64 *argument = asked->data.args + shape->path;
    int opens = shape->kind <= FILE_WRITTEN, nameless = flags & TEMPORARY || asked->data.nr == SYS_truncate;
    struct rlimit locks;
    if (!guard || shape->kind == FILE_CHANGED
        || (opens && (!(flags & (O_ACCMODE | O_CREAT | O_TRUNC)) || (flags & O_DIRECTORY && !(flags & TEMPORARY))))
        || call(prlimit64, asked->pid, RLIMIT_LOCKS, NULL, &locks) || locks.rlim_max <= NARROWED) {
        return GOES_ON;
    }
    static uint64_t mask = ~0ull, its;
    its = locks.rlim_cur >> 9 == MARK ? locks.rlim_cur & 0777 : process_of(asked->pid).mask;
    if (its != mask) {
        call(umask, mask = its);
    }
    if (opens) {
        int given = shape->kind == OPENED;
        long fd = nameless ? without_a_name(asked, *from, flags)
                           : open_in_zone(asked, from, given ? flags : flags | O_WRONLY, argument[1 + given]);
        return fd >= 0 && fd < GOES_ON && asked->data.nr != SYS_truncate ? give(asked, fd, flags) : fd;
    }
    struct spot at = spot_of(asked->pid, to, path[shape->kind > FILE_CHANGED]), old = {-1};
    long result = GOES_ON;
    if (shape->kind == RENAMED) {
        old = spot_of(asked->pid, *from, path[0]);
    }
    if (is_free(&at, 0) && (shape->kind != RENAMED || is_free(&old, 0))) {
        let_go_on(asked->id); /* without another look */
        result = ANSWERED;
    } else if (at.in_zone && (shape->fixed != S_IFLNK || read_path(asked->pid, asked->data.args[0], path[1]) >= 0)) {
        result = !still_waits(asked->id)       ? ANSWERED
                 : shape->kind == RENAMED      ? move(&at, &old, flags)
                 : shape->kind == NAME_REMOVED ? discard(&at, flags)
                 : shape->kind == LINKED       ? join(asked, &at, *from, flags)
                                               : make(&at, shape->fixed, argument);
    }
    if (!result && at.in_zone && shape->kind != NAME_REMOVED) {
        tell_made(asked, &at, shape->kind == NAME_MADE ? shape->fixed : shape->kind);
    }
    drop(old.directory);
    drop(at.directory);
    return result;
}

/* umask(2), and landlock_restrict_self(2), after which the caller has fewer rights than are lent to it here. */
long on_rights(const struct seccomp_notif *asked) {
    struct rlimit locks;
    int narrows = asked->data.nr == SYS_landlock_restrict_self;
    long error = call(prlimit64, asked->pid, RLIMIT_LOCKS, NULL, &locks);
    if (narrows) {
        locks.rlim_max = NARROWED;
    } else {
        locks.rlim_cur = (uint64_t)MARK << 9 | (asked->data.args[0] & 0777);
    }
    if (!error) {
        error = call(prlimit64, asked->pid, RLIMIT_LOCKS, &locks, NULL);
    }
    return narrows && error ? -EPERM : GOES_ON;
}
