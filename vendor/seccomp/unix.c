/* Unix sockets by their files: whom an address means, and which sockets were bound in this sandbox.
 * THEORY OF OPERATION. bind(2) makes the file that it names, and no file gets a second socket. So the file of a bind
 * that was done here leads to a socket of this sandbox for good; while its place is held, no other file has its number.
 * Which file that was only the kernel can tell: by the time it is opened another thread may have put the socket of a
 * server outside at its path. So sock_diag(7) is asked about the very socket, which was duplicated before.
 * PROMISES
 *  1. What `is_own` says yes to was bound by a socket of this network, whatever happened at its path.
 *  2. What was forgotten, or cannot be told apart, is not known here: then the daemon decides. */
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <linux/sock_diag.h>
#include <linux/stat.h>
#include <linux/unix_diag.h>
#include <string.h>
#include <sys/socket.h>
#include "bridge.h"

enum { MOST_HELD = 64, NETLINK_DIAG = 4, COARSE_CLOCK = 5 };

static struct held {
    uint64_t device, inode;
    long place;
} held[MOST_HELD];

static unsigned next_held;

static uint64_t device_of(long fd) {
    const struct statx *is = look_at(fd);
    return (uint64_t)is->stx_dev_major << 32 | is->stx_dev_minor;
}

int is_same(int one, int other) {
    uint64_t device = device_of(one), inode = look_at(one)->stx_ino;
    return device_of(other) == device && inode && look_at(other)->stx_ino == inode;
}

int is_own(int place) {
    uint64_t device = device_of(place), inode = look_at(place)->stx_ino;
    for (struct held *one = held; one < held + MOST_HELD; one++) {
        if (one->inode && one->inode == inode && one->device == device) {
            return 1;
        }
    }
    return 0;
}

/* The device of a mount; statx(2) tells another one on file systems with devices of their own (btrfs, overlays). */
static uint32_t device_of_mount(long place) {
    struct statx is = {0}; /* with the number that mountinfo has */
    char some[1024];
    uint64_t number[4] = {0}; /* of the mount, of that above, major and minor */
    unsigned field = 0;
    long fd = call(openat, AT_FDCWD, "/proc/self/mountinfo", O_RDONLY | O_CLOEXEC), got;
    uint32_t found = 0;
    call(statx, place, "", AT_EMPTY_PATH, STATX_MNT_ID, &is);
    while (fd >= 0 && !found && (got = call(read, fd, some, sizeof some)) > 0) {
        for (const char *at = some; at < some + got; at++) {
            if (*at == '\n') {
                field = 0;
                number[0] = number[1] = number[2] = number[3] = 0;
            } else if (*at == ' ' || *at == ':') {
                if (++field == 4 && number[0] == is.stx_mnt_id) {
                    found = (uint32_t)(number[2] << 20 | number[3]);
                }
            } else if (field < 4) {
                number[field] = number[field] * 10 + (unsigned)(*at - '0');
            }
        }
    }
    drop(fd);
    return found;
}

/* Whether the kernel says that the socket is bound to the file. */
static int is_bound_to(int socket, long place) {
    static int diag = -1;
    look_at(socket);

    struct {
        struct nlmsghdr head;
        struct unix_diag_req asked;
    } question = {{sizeof question, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST},
                  {.sdiag_family = AF_UNIX,
                   .udiag_states = ~0u,
                   .udiag_ino = (uint32_t)look_at(socket)->stx_ino,
                   .udiag_show = UDIAG_SHOW_VFS}};

    struct {
        struct nlmsghdr head;
        struct unix_diag_msg said;
        struct nlattr attribute;
        struct unix_diag_vfs file;
        char rest[256];
    } answer = {0};

    if (diag < 0) {
        diag = (int)call(socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_DIAG);
    }
    call(getsockopt, socket, SOL_SOCKET, SO_COOKIE, question.asked.udiag_cookie, &(int){8});
    call(sendto, diag, &question, sizeof question, 0);
    call(recvfrom, diag, &answer, sizeof answer, MSG_DONTWAIT); /* it is there when the question was sent */
    const struct statx *is = look_at(place);
    return answer.head.nlmsg_type == SOCK_DIAG_BY_FAMILY && answer.attribute.nla_type == UNIX_DIAG_VFS
           && answer.file.udiag_vfs_ino == (uint32_t)is->stx_ino
           && (answer.file.udiag_vfs_dev == (is->stx_dev_major << 20 | is->stx_dev_minor)
               || answer.file.udiag_vfs_dev == device_of_mount(place));
}

void note_time(int64_t *now) {
    call(clock_gettime, COARSE_CLOCK, now);
}

/* Keeps the file to which a socket was bound just now, by this path. Numbers of inodes have 32 bits in the kernel's
 * answer: one with the same is not older than the bind. */
void keep_bound(uint32_t thread, int socket, const char *path, const int64_t *began) {
    long directory = open_directory(thread, AT_FDCWD, path);
    long place = look(directory, path, O_NOFOLLOW, 0);
    drop(directory);
    if (place < 0) {
        return;
    }
    struct held *one = held + next_held % MOST_HELD;
    const struct statx *is = look_at(place);
    uint64_t device = device_of(place), inode = is->stx_ino;
    int64_t later = is->stx_btime.tv_sec - began[0];
    int is_young =
        is->stx_mask & STATX_BTIME ? later > 0 || (!later && is->stx_btime.tv_nsec >= began[1]) : !(inode >> 32);
    if (is_young && is_bound_to(socket, place)) {
        next_held++;
        if (one->inode) {
            drop(one->place);
        }
        *one = (struct held){device, inode, place};
    } else {
        drop(place);
    }
}

/* The place of the socket with this path, as the caller's, or an error. */
long find_socket(const struct seccomp_notif *asked, const char *path) {
    long directory = open_directory(asked->pid, AT_FDCWD, path);
    if (directory < 0 && directory != AT_FDCWD) {
        return -EACCES;
    }
    long place = look(directory, path, 0, 0);
    drop(directory);
    if (place == -ELOOP) {
        report(asked, UNIX_SOCKET, EACCES, path); /* a link of /proc, perhaps to a descriptor of init */
        return -EACCES;
    }
    if (place >= 0 && (look_at(place)->stx_mode & S_IFMT) != S_IFSOCK) {
        drop(place);
        return -ECONNREFUSED;
    }
    return place;
}

/* The address by which a held place is reached. */
unsigned address_of(long place, void *to) {
    static const char start[] = "\1\0/proc/self/fd/";
    const char *number = decimal((unsigned)place);
    unsigned length = length_of(number) + 1;
    memcpy(to, start, sizeof start - 1);
    memcpy((char *)to + sizeof start - 1, number, length);
    return (unsigned)sizeof start - 1 + length;
}
