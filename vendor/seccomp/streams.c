/* What may be a standard stream of a command: what carries bytes and nothing else.
 * THEORY OF OPERATION. A descriptor from outside keeps its powers inside: a network socket belongs to the network
 * namespace that it was made in and can be connected anew (AF_UNSPEC), a directory leads to the mounts of the host, a
 * pidfd to its processes. So this lists what is allowed, and all else is refused, also what a later kernel brings.
 * allowed: regular files on file systems for files; pipes and FIFOs; terminals; null, zero, full, random devices;
 *     connected stream sockets of the family Unix, which can neither be connected anew nor send to another address.
 * refused: O_PATH, directories, all other sockets and devices; what has no type (anonymous inodes: io_uring, epoll,
 *     eventfd, timerfd, signalfd, inotify, fanotify, userfaultfd, perf, bpf, pidfd before Linux 6.9); and files of the
 *     file systems in which each file is a part of the kernel, where reading some is the exception. */
#include <fcntl.h>
#include <linux/stat.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include "bridge.h"
#ifndef TCGETS
#define TCGETS 0x5401
#endif
static const uint32_t of_the_kernel[] = {
    /* statfs(2), <linux/magic.h> */
    0x9fa0, /* proc: while it is open for reading only, and but for files of a process */
    /* while it is open for reading only */
    0x62656572, /* sysfs */
    0x27e0eb,   /* cgroup */
    0x63677270, /* cgroup2 */
    0x64626720, /* debugfs */
    0x74726163, /* tracefs */
    0x73636673, /* securityfs */
    0x6165676c, /* pstore */
    0xde5e81e4, /* efivarfs */
    0x62656570, /* configfs */
    0x42494e4d, /* binfmt_misc */
    /* never */
    0xf97cff8c, /* selinuxfs */
    0x43415d53, /* smackfs */
    0xcafe4a11, /* bpf */
    0x6e736673, /* nsfs */
    0x50494446, /* pidfs */
    0x09041934, /* anonymous inodes */
    0x5345434d, /* secretmem */
    0x19800202, /* mqueue */
    0x444d4142, /* dma-buf */
    0x65735543, /* fusectl */
};

enum { READABLE = 11 /* that many of them */ };

static const struct {
    short family, type;
    const char *name;
} socket_names[] = {{AF_UNIX, SOCK_STREAM, "an unconnected Unix socket"},
                    {AF_UNIX, SOCK_DGRAM, "a datagram Unix socket"},
                    {AF_UNIX, SOCK_SEQPACKET, "a seqpacket Unix socket"},
                    {AF_INET, SOCK_STREAM, "a TCP socket"},
                    {AF_INET, SOCK_DGRAM, "a UDP socket"},
                    {AF_INET, SOCK_RAW, "a raw socket"},
                    {AF_NETLINK, 0, "a netlink socket"},
                    {AF_PACKET, 0, "a packet socket"},
                    {AF_VSOCK, 0, "a vsock socket"}};

static const char *judge_socket(int fd) {
    int family = option(fd, SO_DOMAIN), type = option(fd, SO_TYPE);
    uint8_t peer[128];
    if (family == AF_UNIX && type == SOCK_STREAM) {
        if (option(fd, SO_ACCEPTCONN)) {
            return "a listening Unix socket";
        }
        if (!call(getpeername, fd, peer, &(int){sizeof peer})) {
            return NULL;
        }
    }
    family = family == AF_INET6 ? AF_INET : family;
    for (unsigned n = 0; n < sizeof socket_names / sizeof *socket_names; n++) {
        if (socket_names[n].family == family && (!socket_names[n].type || socket_names[n].type == type)) {
            return socket_names[n].name;
        }
    }
    return "a socket";
}

static const char *judge_device(int fd, unsigned major, unsigned minor) {
    uint8_t settings[64];
    if (major == 1 && (minor == 3 || minor == 5 || (minor >= 7 && minor <= 9))) {
        return NULL;
    }
    /* The other side of a terminal types into it. One that has hung up answers nothing (EIO). */
    if ((major == 5 && minor == 2) || major == 2) {
        return "the master of a terminal";
    }
    if (major == 4 || major == 5 || (major >= 136 && major < 144)) {
        return NULL;
    }
    return call(ioctl, fd, TCGETS, settings) ? "a device" : NULL;
}

static const char *judge_file(int fd, const char *link) {
    struct statfs in;
    if (call(fstatfs, fd, &in)) {
        return "what cannot be looked at";
    }
    for (unsigned n = 0; n < sizeof of_the_kernel / sizeof *of_the_kernel; n++) {
        if ((uint32_t)in.f_type != of_the_kernel[n]) {
            continue;
        }
        const char *below = after("/proc/", link);
        int reads = (call(fcntl, fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
        int general = n || (below && !(*below >= '0' && *below <= '9'));
        return n < READABLE && reads && general ? NULL : "a file of the kernel";
    }
    return NULL;
}

static const char *judge_stream(int fd, const char *link) {
    const struct statx *is = look_at(fd);
    long flags = call(fcntl, fd, F_GETFL);
    if (flags < 0 || !is->stx_mask) {
        return "what cannot be looked at";
    }
    int kind = is->stx_mode & S_IFMT;
    if (kind == S_IFDIR) {
        return "a directory";
    }
    if (flags & O_PATH) {
        return "a mere place (O_PATH)";
    }
    if (kind == S_IFREG) {
        return judge_file(fd, link);
    }
    if (kind == S_IFSOCK) {
        return judge_socket(fd);
    }
    if (kind == S_IFCHR) {
        return judge_device(fd, is->stx_rdev_major, is->stx_rdev_minor);
    }
    return kind == S_IFIFO ? NULL : kind == S_IFBLK ? "a block device" : "an object of the kernel";
}

/* As sandboxd_client/running/relay.py has it: with a peer, or a stream between networks that may have lost it. */
static int can_be_relayed(int fd) {
    int family = option(fd, SO_DOMAIN), type = option(fd, SO_TYPE);
    uint8_t peer[128];
    if (family != AF_UNIX && family != AF_INET && family != AF_INET6 && family != AF_VSOCK) {
        return 0;
    }
    if (type == SOCK_STREAM) {
        return family != AF_UNIX && !option(fd, SO_ACCEPTCONN);
    }
    return (type == SOCK_DGRAM || type == SOCK_SEQPACKET) && !call(getpeername, fd, peer, &(int){sizeof peer});
}

const char *refused_as_stream(int fd, const char **name, const char **hint) {
    static char said[128], link[256];
    if (name_of(fd, link, sizeof link) < 0) {
        *link = 0;
    }
    const char *refused = judge_stream(fd, link), *streams[] = {"input", "output", "error"};
    if (!refused) {
        return NULL;
    }
    *hint = can_be_relayed(fd) ? "use `sandboxd run --relay-stdio` (in the client library "
                                 "relay_stdio=True), or a pipe"
                               : "use a pipe, a file or /dev/null in its place";
    put(put(put(put(said, refused), " cannot be standard "), streams[fd]), *link ? ":" : "");
    *name = link;
    return said;
}
