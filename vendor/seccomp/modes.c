/* Owners and modes that do not exist in a sandbox: what chown(2) and chmod(2) say of them.
 * THEORY OF OPERATION. A user namespace has the ids of its user alone. To root chown to any other succeeds and does
 * nothing, as with fakeroot; to others it is not permitted, as outside. No program gets the set-user-ID bit: its mode
 * is set without, by init, on the place that the path or descriptor of the caller led to when it was looked at.
 * PROMISES
 *  1. No call with the bit goes on in the caller. */
#include <fcntl.h>
#include <linux/seccomp.h>
#include <linux/stat.h>
#include "bridge.h"

/* Which argument is a mode with the set-user-ID bit; NO_OWNER of one who does not exist here; 0 of all else. */
int special(const struct seccomp_notif *asked) {
    const __u64 *argument = asked->data.args;
    int at = 1, owns = 0;
    switch (asked->data.nr) {
    case SYS_fchownat:
        at = 2;
        /* fall through */
#ifdef SYS_chown
    case SYS_chown:
    case SYS_lchown:
#endif
    case SYS_fchown:
        owns = 1;
        break;
    case SYS_fchmodat:
    case SYS_fchmodat2:
        at = 2;
        /* fall through */
#ifdef SYS_chmod
    case SYS_chmod:
#endif
    case SYS_fchmod:
        return argument[at] & S_ISUID ? at : 0;
    }
    uint32_t user = (uint32_t)argument[at], group = (uint32_t)argument[at + 1];
    return owns && ((user != ~0u && user != call(getuid)) || (group != ~0u && group != call(getgid))) ? NO_OWNER : 0;
}

/* The mode is set without the bit; the owner stays, which root takes for success (as with fakeroot), and is told. */
long change(const struct seccomp_notif *asked, long fd) {
    int mode = special(asked);
    if (mode == NO_OWNER && (call(getuid) || watched & REFUSES_OWNERS)) {
        return -EPERM;
    }
    if (fd < 0 || !still_waits(asked->id)) {
        return ANSWERED;
    }
    static int told; /* of owners: once is enough */
    long error = mode == NO_OWNER ? 0 : call(fchmodat, AT_FDCWD, own_link(fd), asked->data.args[mode] & 03777);
    if (!error && !(mode == NO_OWNER && told++) && name_of(fd, found, PATH) > 0 && !(watched & QUIET)) {
        report(asked, WRITE, EPERM, found);
    }
    return error;
}

/* By a descriptor. */
long on_descriptor(const struct seccomp_notif *asked) {
    long fd = special(asked) ? open_directory(asked->pid, (int)asked->data.args[0], "") : -1;
    long result = fd < 0 || is_read_only(fd) ? GOES_ON : change(asked, fd);
    drop(fd);
    return result;
}
