/* Landlock (landlock(7)): a second layer, which holds where mounts do not reach.
 * A mount that is read-only does not stop the writing of a FIFO, nor of a file whose open descriptor came from outside:
 * through /proc/self/fd it is opened on the mount that it was opened on; nor what is made, removed and renamed from the
 * descriptor of a directory that a server outside has handed in. Landlock looks at the file, and at what lies above it.
 * PROMISES
 *  1. Which accesses and signals are held back the configuration says, and where they are granted: below its roots, and
 *     on what a standard stream has open for writing, since the command holds that already. Nothing is decided here.
 *  2. A root that cannot be reached is left out: less is granted, never more. No symbolic link on the way is followed.
 *  3. Any other failure is returned, and the command does not run. */
#include <fcntl.h>
#include <linux/stat.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include "bridge.h"

/* As in <linux/landlock.h> of Linux 6.12: the headers of the build are older. */
struct ruleset {
    uint64_t files, network, scoped;
};

struct rule {
    uint64_t access;
    int32_t at;
} __attribute__((packed));

enum { ASK_VERSION = 1, PATH_BENEATH = 1, OF_FILES = 1 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15 /* others: EINVAL */ };

static long grant(long set, long at, uint64_t access) {
    if ((look_at(at)->stx_mode & S_IFMT) != S_IFDIR && !(access &= OF_FILES)) {
        return 0;
    }
    return call(landlock_add_rule, set, PATH_BENEATH, (&(struct rule){access, (int)at}), 0);
}

long grant_below(long set, const char *path, uint64_t access) {
    long fd = open_path(path, 0), error = fd;
    if (fd >= 0) {
        error = grant(set, fd, access);
        drop(fd);
    }
    return error == -ENOENT || error == -ENOTDIR || error == -ELOOP || error == -EACCES ? 0 : error;
}
const struct confinement *confinement;
static char **root;

char **take_roots(char **from) {
    return (root = from) + (confinement ? confinement->roots : 0);
}

long confine(void) {
    const struct confinement *given = confinement;
    if (!given) {
        return 0;
    }
    long set =
        call(landlock_create_ruleset, (&(struct ruleset){given->handled, 0, given->scoped}), sizeof(struct ruleset), 0);
    if (set < 0) {
        return set;
    }
    long error = 0;
    for (uint32_t n = 0; n < given->roots && !error; n++) {
        error = grant_below(set, root[n], given->granted);
    }
    if (!error) {
        error = confine_zones(set);
    }
    for (long fd = 0; fd < 3 && !error; fd++) {
        long how = call(fcntl, fd, F_GETFL);
        if (how < 0 || how & O_PATH || !(how & O_ACCMODE)) {
            continue;
        }
        error = grant(set, fd, given->granted);
        if (error == -EBADFD) {
            error = 0; /* a pipe, a socket: those are free */
        }
    }
    if (!error) {
        error = call(landlock_restrict_self, set, given->flags);
    }
    drop(set);
    return error;
}

int holds_back(const char *path) {
    if (!confinement) {
        return 0;
    }
    for (uint32_t n = 0; n < confinement->roots + (guard ? guard->zones : 0); n++) {
        const char *rest = after(root[n], path);
        if (rest && (!*rest || *rest == '/' || rest == path + 1)) {
            return 0;
        }
    }
    return 1;
}

/* A program that suspends itself (an editor, at Ctrl-Z) stops its process group. With a terminal that is the shell's
 * job, of which it reaches only its own part; so init does for the rest what Ctrl-Z would, which stops and no more.
 * What the terminal itself sends, all have got; a shell inside has groups of its own. */
int terminal_stops;

int pass_on_stop(long command, int status) {
    if (!WIFSTOPPED(status)) {
        return 0;
    }
    int suspends = WSTOPSIG(status) == SIGTSTP || WSTOPSIG(status) == SIGSTOP;
    if (suspends && !terminal_stops && confinement && confinement->scoped
        && call(getpgid, command) == call(getpgid, 0)) {
        call(kill, 0, SIGTSTP);
    }
    return 1;
}

/* For the daemon, once: standard input is a file with a struct confinement in it, open for reading, and output another,
 * open for writing; the working directory is one in which this user may make names. Output gets what became of it: of
 * the confinement, of writing to the first file, of emptying it, of writing to the other, of a signal to the parent, of
 * making a directory. Without a struct: the version of Landlock. 0 or more is success. */
_Noreturn void probe_landlock(void) {
    struct confinement given;
    int32_t seen[6] = {0};
    unsigned size = sizeof seen;
    if (call(read, 0, &given, sizeof given) != sizeof given) {
        seen[0] = (int32_t)call(landlock_create_ruleset, NULL, 0, ASK_VERSION);
        size = 4;
    } else {
        given.roots = 0;
        call(prctl, PR_SET_NO_NEW_PRIVS, 1);
        confinement = &given;
        seen[0] = (int32_t)confine();
        seen[1] = (int32_t)call(openat, AT_FDCWD, own_link(0), O_WRONLY);
        seen[2] = (int32_t)call(truncate, own_link(0), 0);
        seen[3] = (int32_t)call(openat, AT_FDCWD, own_link(1), O_WRONLY);
        long parent = call(getppid);
        seen[4] = (int32_t)call(kill, parent, 0);
        seen[5] = (int32_t)call(mkdirat, AT_FDCWD, "made", 0700);
    }
    call(write, 1, seen, size);
    exit_with(0);
}
