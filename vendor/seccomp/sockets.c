/* Calls on sockets but connect(2), where Unix sockets are decided on: sendto(2) with an address, sendmsg(2),
 * sendmmsg(2), bind(2), listen(2); with SERVERS listen(2) always, which is done here so that the daemon is told of a
 * server that is there.
 * THEORY OF OPERATION. A server outside can hand in a socket of its own network (SCM_RIGHTS), by which the command
 * could leave. A call that goes on is about what its descriptor and its memory are by then, and another thread can have
 * exchanged both since they were looked at. So:
 * a caller that is alone goes on. It has one thread, and the filter lets no other process share its descriptors: while
 *     it waits, nothing can be put into their places. (One that does share them is told by its clone(2), after which
 *     none is alone.) Its memory can be shared, so it does not go on where that counts: sockets of another network,
 *     Unix sockets for datagrams, and those that are bound.
 * for all others the socket is duplicated, what is in memory is copied once, and that is done here: with descriptors
 *     that are sent along, in a child where it has to wait, and in a confined child where the call makes a file.
 * PROMISES
 *  1. By a socket of another network nothing is sent to an address; what was connected outside is used as it is. It is
 *     neither bound nor made to listen. A datagram goes to a Unix socket that was bound here, and to one that the
 *     daemon has said yes to, whatever is at its path.
 *  2. A child sends only when there is room and its caller still waits, and answers at once: an interrupted caller,
 *     which comes again, has sent nothing.
 *  3. One call costs init a bounded amount of time: 64 messages, 256 KiB of each; of a longer stream a part is sent. */
#include <fcntl.h>
#include <linux/seccomp.h>
#include <linux/stat.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include "bridge.h"

enum {
    MOST_MESSAGES = 64,
    MOST_DATA = 1 << 18,
    MOST_PARTS = 1024,
    MOST_RIGHTS = 253 /* SCM_MAX_FD */,
    LATER = 1,
    ASKED = 1
};

/* As the kernel has them; `sent` belongs to sendmmsg(2). */
struct message {
    uint64_t name;
    uint32_t name_length, none;
    uint64_t parts, count, control, control_length;
    uint32_t flags, nothing, sent, more;
};

struct rights {
    uint64_t length;
    int level, type, descriptor[];
};

static uint8_t data[MOST_DATA], name[128 + 1], control[1 << 13] __attribute__((aligned(8)));
static struct iovec part[MOST_PARTS];
static int taken[MOST_RIGHTS + 1], permitted = -1;
static unsigned takes;

static struct {
    int socket, is_stream, is_datagram, no_names, waits, asks;
    uint32_t flags;
} by;

static int shares; /* some descriptors are shared by processes, as a leak checker's */

int is_alone(void) {
    return !shares && caller->links == 3;
}

/* Takes over the descriptors that are sent along. */
static long take_rights(uint64_t length) {
    long got = 0;
    for (uint64_t at = 0; got >= 0 && at + sizeof(struct rights) <= length;) {
        struct rights *one = (void *)(control + at);
        if (one->length < sizeof *one || one->length > length - at) {
            got = -EINVAL;
        }
        int carries = one->level == SOL_SOCKET && one->type == SCM_RIGHTS;
        for (uint64_t n = 0; carries && got >= 0 && n < (one->length - sizeof *one) / sizeof(int); n++) {
            if (takes > MOST_RIGHTS) {
                got = -EINVAL;
            } else if ((got = call(pidfd_getfd, caller->process, one->descriptor[n], 0)) >= 0) {
                taken[takes++] = one->descriptor[n] = (int)got;
            }
        }
        at += (one->length + 7) & ~7ull;
    }
    return got < 0 ? got : 0;
}

/* Puts the very socket in place of a path. ASKED: it is asked about, and the caller waits. */
static long name_place(const struct seccomp_notif *asked, uint32_t *length) {
    if (*(uint16_t *)name != AF_UNIX || *length <= 2 || *length > sizeof(struct sockaddr_un) || !name[2]) {
        return 0; /* not valid, or a name of this network */
    }
    name[*length] = 0;
    long place = find_socket(asked, (char *)name + 2);
    if (place < 0) {
        return place;
    }
    if (!is_own((int)place) && !(permitted >= 0 && is_same(permitted, (int)place))) {
        return ask_before_sending(asked, (int)place) ? ASKED : -EAGAIN;
    }
    taken[takes++] = (int)place;
    *length = address_of(place, name);
    return 0;
}

/* The message, all of it, with its `parts` in `part` already. */
static long copy(const struct seccomp_notif *asked, struct message *one) {
    uint64_t left = sizeof data;
    for (uint64_t n = 0; n < one->count; left -= part[n++].iov_len) {
        if (part[n].iov_len > left && !by.is_stream) {
            return -EMSGSIZE;
        }
        if (part[n].iov_len > left) {
            part[n].iov_len = left;
        }
    }
    struct iovec all = {data, sizeof data - left};
    if (all.iov_len && call(process_vm_readv, asked->pid, &all, 1, part, one->count) != (long)all.iov_len) {
        return -EFAULT;
    }
    *part = all;
    one->parts = (uint64_t)part;
    one->count = 1;
    if (!one->name) {
        one->name_length = 0;
    }
    if ((int)one->name_length < 0) {
        return -EINVAL;
    }
    if (one->name_length > sizeof name - 1) {
        one->name_length = sizeof name - 1;
    }
    if (one->name_length && by.no_names) {
        return -EACCES;
    }
    if (read_memory(asked->pid, one->name, name, one->name_length) != one->name_length) {
        return -EFAULT;
    }
    long named = one->name_length && by.is_datagram ? name_place(asked, &one->name_length) : 0;
    if (named) {
        return named;
    }
    one->name = one->name_length ? (uint64_t)name : 0;
    if (!one->control_length) {
        one->control = 0;
    }
    if (!one->control) {
        return 0;
    }
    uint64_t size = one->control_length;
    if (size > sizeof control) {
        return -ENOBUFS;
    }
    if (read_memory(asked->pid, one->control, control, size) != (long)size) {
        return -EFAULT;
    }
    one->control = (uint64_t)control;
    return take_rights(size);
}

/* What sendmmsg(2) says of a message. */
static long note_sent(const struct seccomp_notif *asked, uint64_t at, long done) {
    struct iovec here = {&(uint32_t){(uint32_t)done}, 4}, there = {(void *)(at + offsetof(struct message, sent)), 4};
    return done < 0 || call(process_vm_writev, asked->pid, &here, 1, &there, 1) == 4 ? done : -EFAULT;
}

static long send_now(const struct message *one) {
    return call(sendmsg, by.socket, one, (by.flags & ~MSG_ZEROCOPY) | MSG_DONTWAIT | MSG_NOSIGNAL);
}

static _Noreturn void wait_and_send(const struct seccomp_notif *asked, const struct message *one, uint64_t many_at) {
    struct {
        int64_t seconds, microseconds;
    } patience = {0};

    call(getsockopt, by.socket, SOL_SOCKET, SO_SNDTIMEO, &patience, &(int){sizeof patience});
    struct timespec left = {patience.seconds, patience.microseconds * 1000}, *limit = NULL;
    if (left.tv_sec || left.tv_nsec) {
        limit = &left;
    }
    long done = -EAGAIN;
    /* Fast open connects already. */
    by.flags &= ~(uint32_t)MSG_FASTOPEN;
    for (; done == -EAGAIN; call(ppoll, NULL, 0, (&(struct timespec){0, 1000000}), NULL)) { /* room, but not enough */
        if (!call(ppoll, (&(struct pollfd){by.socket, POLLOUT}), 1, limit, NULL) || !still_waits(asked->id)) {
            break;
        }
        done = send_now(one);
    }
    if (many_at && (done = note_sent(asked, many_at, done)) >= 0) {
        done = 1;
    }
    respond(asked->id, done);
    exit_with(0);
}

/* A result, or LATER with `waits` set: a child answers. */
static long send_one(const struct seccomp_notif *asked, struct message *one, uint64_t many_at, int may_wait) {
    takes = 0;
    long done = copy(asked, one);
    if (done == ASKED) {
        by.waits = by.asks = 1;
        return LATER;
    }
    if (!done && !still_waits(asked->id)) {
        done = -EINTR;
    }
    if (!done) {
        done = send_now(one);
    }
    int later = done == -EAGAIN || done == -EINPROGRESS; /* what MSG_FASTOPEN says while it connects */
    if (later && may_wait && !(by.flags & MSG_DONTWAIT) && !(call(fcntl, by.socket, F_GETFL) & O_NONBLOCK)) {
        done = in_a_child(asked, by.socket, NULL);
        if (!done) {
            wait_and_send(asked, one, many_at);
        }
        if (done > 0) {
            by.waits = 1;
        } else {
            done = -ENOBUFS;
        }
    }
    while (takes) {
        drop(taken[--takes]);
    }
    return done;
}

static long read_parts(const struct seccomp_notif *asked, uint64_t at, struct message *one) {
    long size = offsetof(struct message, sent);
    if (read_memory(asked->pid, at, one, (unsigned long)size) != size) {
        return -EFAULT;
    }
    if (one->count > MOST_PARTS) {
        return -EMSGSIZE;
    }
    size = (long)(one->count * sizeof *part);
    return read_memory(asked->pid, one->parts, part, (unsigned long)size) == size ? 0 : -EFAULT;
}

static long send_all(const struct seccomp_notif *asked) {
    const __u64 *argument = asked->data.args;
    int number = asked->data.nr;
    struct message one = {.name = argument[4], .name_length = (uint32_t)argument[5], .count = 1};
    by.flags = (uint32_t)argument[number == SYS_sendmsg ? 2 : 3];
    if (number == SYS_sendto) {
        *part = (struct iovec){(void *)argument[1], argument[2]};
    }
    long done = 0, error = number == SYS_sendmsg ? read_parts(asked, argument[1], &one) : 0;
    if (number != SYS_sendmmsg) {
        return error ? error : send_one(asked, &one, 0, 1);
    }
    for (uint64_t at = argument[1]; done < MOST_MESSAGES && done < (long)(uint32_t)argument[2]; at += sizeof one) {
        if (!(error = read_parts(asked, at, &one))) {
            error = send_one(asked, &one, at, !done);
        }
        if (by.waits) {
            return LATER;
        }
        if (error >= 0) {
            error = note_sent(asked, at, error);
        }
        if (error < 0) {
            break;
        }
        done++;
    }
    return done ? done : error;
}

/* A name in the file system is made as the caller's: in its directory, with its mask, and as confined as it is. */
static long bind_here(const struct seccomp_notif *asked) {
    uint32_t length = (uint32_t)asked->data.args[2];
    if (length > sizeof name - 1) {
        return -EINVAL;
    }
    if (read_memory(asked->pid, asked->data.args[1], name, length) != length) {
        return -EFAULT;
    }
    if (!still_waits(asked->id)) {
        return -EINTR;
    }
    if (*(uint16_t *)name != AF_UNIX || length <= 2 || !name[2]) {
        return call(bind, by.socket, name, length);
    }
    name[length] = 0;
    report_making(asked, (char *)name + 2);
    long child = in_a_child(asked, by.socket, (char *)name + 2), directory, error;
    if (child > 0) {
        by.waits = 1;
    }
    if (child) {
        return child;
    }
    directory = open_directory(asked->pid, AT_FDCWD, (char *)name + 2);
    error = confine();
    if (!error && directory != AT_FDCWD) {
        error = call(fchdir, directory);
    }
    call(umask, process_of(asked->pid).mask);
    if (!error) {
        error = call(bind, by.socket, name, length);
    }
    exit_with(-error);
}

int on_socket(const struct seccomp_notif *asked) {
    int number = asked->data.nr, sends = number == SYS_sendto || number == SYS_sendmsg || number == SYS_sendmmsg;
    if (number == SYS_connect) {
        on_connect(asked);
        return 1;
    }
    if (number == SYS_clone) {
        shares = 1;
    }
    if (!sends && number != SYS_bind && number != SYS_listen) {
        return 0;
    }
    by.socket = (int)duplicate(asked);
    by.waits = by.asks = 0;
    if (by.socket < 0 && !(watched & UNIX)) {
        let_go_on(asked->id);
        return 1;
    }
    if (by.socket < 0) {
        respond(asked->id, by.socket);
        return 1;
    }
    int is_unix = caller->domain == AF_UNIX, type = option(by.socket, SO_TYPE);
    int foreign = is_foreign(by.socket), serves = number == SYS_listen && !is_unix && watched & SERVERS;
    by.is_stream = type == SOCK_STREAM;
    by.is_datagram = is_unix && type == SOCK_DGRAM;
    by.no_names = foreign && !(is_unix && sends && !by.is_datagram);
    int looked_at = foreign || by.is_datagram || serves || (is_unix && number == SYS_bind);
    long done = 0;
    if (!(watched & UNIX) ? !serves : !looked_at && is_alone()) {
        let_go_on(asked->id);
    } else {
        if (sends) {
            done = send_all(asked);
        } else if (by.no_names) {
            done = -EACCES;
        } else {
            done = number == SYS_bind ? bind_here(asked) : call(listen, by.socket, (int)asked->data.args[1]);
        }
        if (serves && !done) {
            note_server();
        }
        if (done == -EACCES && by.no_names) {
            refuse_foreign(asked);
        }
        if (!by.waits) {
            respond(asked->id, done);
        }
    }
    if (!by.waits || by.asks) {
        drop(by.socket);
    }
    return 1;
}

/* The same call once more, which may send to this place. */
void send_permitted(const struct seccomp_notif *asked, int place) {
    permitted = place;
    on_socket(asked);
    permitted = -1;
}
