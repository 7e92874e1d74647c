/* What the kernel will say of a call on a file, since the mounts or Landlock make it fail.
 * THEORY OF OPERATION. The path is resolved as the caller's, with the caller's mounts and no more rights than it has.
 * What is found out is true of the moment, and never a decision.
 * PROMISES
 *  1. Nothing of a file is opened but its place (O_PATH), and of a directory that is to be removed whether there is
 *     something in it; no link of /proc that leads out of the tree is followed.
 *  2. A call that fails for another reason (not there, there already, not permitted by its mode) is not reported. */
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <linux/stat.h>
#include <string.h>
#include <sys/statfs.h>
#include "bridge.h"

enum { TMPFS = 0x01021994, DEEPEST = 8 /* names that stay absent lie in each other */ };

long look(long directory, const char *path, uint64_t flags, uint64_t resolve) {
    struct open_how how = {.flags = O_PATH | O_CLOEXEC | flags, .resolve = RESOLVE_NO_MAGICLINKS ^ resolve};
    return call(openat2, directory, path, &how, sizeof how);
}

char path[2][PATH], found[PATH + PATH + 2];

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
    if (call(fchdir, fd) || call(getcwd, found, PATH) < 0 || *found != '/') { /* otherwise faster than by its link */
        name_of(fd, found, PATH);
    }
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

static int is_refused(void) {
    return holds_back(found) || relation_of(found) == GUARDED;
}

static long held_back(long fd) {
    return name_of(fd, found, PATH) > 0 && is_refused() ? EACCES : 0;
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
               : !at->is_root && is_guarded(fd)                   ? EACCES
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

long judge(long directory, char *whole, enum need need, uint64_t flags, struct place *at) {
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
        error = above.read_only ? permitted(fd, EROFS) : above.cover || is_refused() ? EACCES : 0;
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
long judge_rename(long from, long to, uint64_t flags) {
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
