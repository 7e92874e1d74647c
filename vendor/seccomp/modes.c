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

int mode_at(const struct seccomp_notif *asked) { /* which argument; 0: it changes the owner */
    int number = asked->data.nr, named = number == SYS_fchmodat || number == SYS_fchmodat2;
#ifdef SYS_chmod
    if (number == SYS_chmod) {
        return 1;
    }
#endif
    return number == SYS_fchmod ? 1 : named ? 2 : 0;
}

/* A set-user-ID bit, or an owner who does not exist here. */
int is_special(const struct seccomp_notif *asked) {
    const __u64 *argument = asked->data.args;
    int number = asked->data.nr, mode = mode_at(asked), owner = number == SYS_fchownat ? 2 : 1;
    int owns = number == SYS_fchownat || number == SYS_fchown;
#ifdef SYS_chown
    owns |= number == SYS_chown || number == SYS_lchown;
#endif
    uint32_t user = (uint32_t)argument[owner], group = (uint32_t)argument[owner + 1];
    return mode ? !!(argument[mode] & S_ISUID)
                : owns && ((user != ~0u && user != call(getuid)) || (group != ~0u && group != call(getgid)));
}

/* The mode is set without the bit; the owner stays, which root takes for success (as with fakeroot). */
long change(const struct seccomp_notif *asked, long fd) {
    int mode = mode_at(asked);
    if (!mode) {
        return call(getuid) ? -EPERM : 0;
    }
    if (fd < 0 || !still_waits(asked->id)) {
        return ANSWERED;
    }
    long error = call(fchmodat, AT_FDCWD, own_link(fd), asked->data.args[mode] & 03777);
    if (!error && name_of(fd, found, PATH) > 0 && !(watched & QUIET)) {
        report(asked, WRITE, EPERM, found);
    }
    return error;
}

/* By a descriptor. */
long on_descriptor(const struct seccomp_notif *asked) {
    long fd = is_special(asked) ? open_directory(asked->pid, (int)asked->data.args[0], "") : -1;
    long result = fd < 0 || is_read_only(fd) ? GOES_ON : change(asked, fd);
    drop(fd);
    return result;
}
