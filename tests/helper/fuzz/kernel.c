/* A kernel for the helper's programs whose every answer comes from the bytes of a fuzzer (`./dev fuzz`).
 * A program begins as it does in reality and runs until it ends, until the bytes are used up, or forks into a child,
 * which it then is. What it reads from the daemon, from /proc and from the memory of a command is what the fuzzer says,
 * and so is which call fails, and how. Asserted, besides what the sanitizers see: no descriptor is closed that is not
 * open, none is left behind by more calls than the tables of the helper hold, and what is written is readable. Of
 * `namespaces` also: a request leaves no descriptor in the process that forks, and no fork ends without its answer. */
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <linux/stat.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { FIRST = 16, MOST_OPEN = 1 << 12, KEPT_MOST = 1200, ARENA = 1 << 21, MOST_CALLS = 20000 };

extern char first_data[], last_data[], first_bss[], last_bss[];
void begin(long *stack);

static const uint8_t *input, *input_end;
static uint8_t is_open[MOST_OPEN], *data_before;
static unsigned open_count, calls;
static int owes_answer; /* a fork of `namespaces` that has not tried to send one */
static uint8_t given[1 << 13], *given_at, *given_end;
static char *brk_at, arena[ARENA] __attribute__((aligned(16)));
static jmp_buf out;

static _Noreturn void leave(void) {
    longjmp(out, 1);
}

static uint8_t byte(void) {
    if (input == input_end) {
        leave();
    }
    return *input++;
}

static uint64_t number(unsigned size) {
    uint64_t value = 0;
    while (size--) {
        value = value << 8 | byte();
    }
    return value;
}

static void fill(void *to, unsigned long size) {
    uint8_t how = size > 16 ? byte() : 0;
    if (how >= 0xf0) { /* long ones cost few bytes */
        memset(to, how == 0xff ? 0 : 'a', size);
    }
    for (unsigned long n = 0; n < size && !(how >= 0xf0 && n > (how & 7u) * 8u); n++) {
        ((uint8_t *)to)[n] = byte();
    }
}

static long opened(void) {
    for (long fd = FIRST; fd < MOST_OPEN; fd++) {
        if (!is_open[fd]) {
            is_open[fd] = 1;
            if (++open_count > KEPT_MOST) {
                fprintf(stderr, "%u descriptors are open\n", open_count);
                abort();
            }
            return fd;
        }
    }
    abort();
}

static long closed(long fd) {
    if (fd < FIRST) {
        return 0; /* those that come with the program */
    }
    if (fd >= MOST_OPEN || !is_open[fd]) {
        fprintf(stderr, "descriptor %ld is closed and is not open\n", fd);
        abort();
    }
    is_open[fd] = 0;
    open_count--;
    return 0;
}

static void read_all(const void *from, unsigned long size) { /* a sanitizer looks; the kernel refuses NULL */
    static volatile uint8_t sum;
    for (unsigned long n = 0; from && n < size; n++) {
        sum += ((const uint8_t *)from)[n];
    }
}

#include "steps.h"

/* A request of `namespaces`, or the rest of one. */
static long request(struct msghdr *into, int first) {
    struct cmsghdr *head = into->msg_control;
    uint8_t how = byte();
    unsigned count = how % 8 ? 5 - how % 8 % 4 : 0;
    if (first && open_count) {
        fprintf(stderr, "%u descriptors of requests are kept\n", open_count);
        abort();
    }
    if (first) {
        memset(put_already, 0, sizeof put_already);
    }
    into->msg_flags = how > 250 ? MSG_CTRUNC : how > 245 ? MSG_TRUNC : 0;
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = 1};
    for (unsigned n = 0; n < count; n++) {
        ((int *)(head + 1))[n] = (int)opened();
    }
    return steps(into->msg_iov->iov_base);
}

static const short asked_about[] = {
    SYS_connect,   SYS_sendto, SYS_sendmsg,   SYS_sendmmsg, SYS_bind,      SYS_listen,   SYS_openat,   SYS_open,
    SYS_renameat2, SYS_linkat, SYS_symlinkat, SYS_mkdirat,  SYS_unlinkat,  SYS_fchmodat, SYS_fchownat, SYS_truncate,
    SYS_umask,     SYS_fchmod, SYS_creat,     SYS_rename,   SYS_utimensat, SYS_mknodat,  SYS_clone,    SYS_setxattr,
};

static long notification(struct seccomp_notif *asked) {
    static const uint64_t values[] = {0, 1, 3, AT_FDCWD, O_CREAT | O_RDWR, 0x1000, 0x7ffc1ff0, ~0ull};
    asked->id = 1 + calls;
    asked->pid = 2 + byte() % 4;
    asked->data.nr = asked_about[byte() % (sizeof asked_about / sizeof *asked_about)];
    for (unsigned n = 0; n < 6; n++) {
        uint8_t how = byte();
        asked->data.args[n] = how < 160 ? values[how % 8] : how < 240 ? how % 80 : number(4);
    }
    return 0;
}

static long copy_memory(const struct iovec *here, const struct iovec *there, unsigned long count) {
    unsigned long size = 0;
    for (unsigned long n = 0; n < count; n++) {
        size += there[n].iov_len;
    }
    uint8_t how = byte();
    if (size > here->iov_len) {
        size = here->iov_len;
    }
    if (how < 8) {
        return -ESRCH;
    }
    if (how < 20 && size) {
        size = how % size;
    }
    unsigned long given = size > 600 ? 200 + how : size; /* of a long one the rest is zero */
    fill(here->iov_base, given);
    memset((char *)here->iov_base + given, 0, size - given);
    return (long)size;
}

/* A configuration that is accepted, with texts of the fuzzer; without it few inputs would come further. */
static void configure(void) {
    static const char *const texts[] = {"LD_*", "/", "/w", "/w/a", "/w/.git/hooks", "/w/.git/config", "sh", "a", ""};

    enum {
        WATCHED = 4,
        UNFILTERED = 2,
        BOUNDED = 64,
        CONFINED = 32,
        GUARD = 2048,
        OF_WATCHED = 8 | 16 | 128 | 512 | 1024
    };

    uint32_t flags = (uint32_t)number(2) & 16383 & ~8192u, removals = byte() % 2, roots = byte() % 2, zones = 0,
             names = 0;
    flags = flags & WATCHED ? flags & ~(uint32_t)UNFILTERED : flags & ~(uint32_t)OF_WATCHED;
    flags |= flags & GUARD ? CONFINED : 0;
    flags &= flags & WATCHED ? ~0u : ~(uint32_t)GUARD;
    if (!(flags & CONFINED)) {
        roots = 0;
    }
    if (flags & GUARD) {
        zones = 1 + byte() % 3;
        names = byte() % 4;
    }
    uint32_t ports = byte() % 3, filter = flags & UNFILTERED ? 0 : 8, listeners = byte() % 3;
    uint32_t count = removals + roots + zones + names + 1 + byte() % 3;
    uint32_t head[11] = {0x43584253, 3, 0, flags, 10, listeners, filter, count, 0, ports, removals};
    uint8_t *at = given + sizeof head;
    for (uint32_t n = 0; n < listeners; n++, at += 36) {
        memcpy(at, &(uint32_t[]){1, 16}, 8);
        memcpy(at + 8, &(uint16_t[]){AF_INET, 80}, 4);
    }
    for (uint32_t n = 0; n < ports; n++, at += 4) {
        memcpy(at, &(uint16_t[]){1, 9999}, 4);
    }
    at += filter + (flags & BOUNDED ? 4 : 0);
    if (flags & CONFINED) {
        memcpy(at, &(uint32_t[]){7, 0, 0, 7, roots}, 20);
        at += 20;
    }
    if (flags & GUARD) {
        memcpy(at, &(uint32_t[]){7, zones, names}, 12);
        at += 12;
    }
    uint8_t *start = at;
    for (uint32_t n = 0; n < count; n++, at += strlen((char *)at) + 1) {
        strcpy((char *)at, texts[byte() % (sizeof texts / sizeof *texts)]);
    }
    head[8] = (uint32_t)(at - start);
    head[2] = (uint32_t)(at - given);
    memcpy(given, head, sizeof head);
    given_end = at;
}

static long message(long from, struct msghdr *into) {
    unsigned long wanted = into->msg_iov->iov_len;
    if (wanted == PROGRAM_ROOM) {
        return request(into, from == 0);
    }
    if (from == 3 && given_at < given_end && into->msg_iovlen == 1) {
        wanted = wanted > (unsigned long)(given_end - given_at) ? (unsigned long)(given_end - given_at) : wanted;
        memcpy(into->msg_iov->iov_base, given_at, wanted);
        given_at += wanted;
        return (long)wanted;
    }
    uint8_t how = byte();
    long size = 0;
    if (from != 3 && wanted == 8 && into->msg_controllen >= CMSG_LEN(sizeof(int))
        && how < 200) { /* the child's notifier */
        memset(into->msg_iov->iov_base, 0, wanted);
        *(struct cmsghdr *)into->msg_control = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int))};
        *(int *)CMSG_DATA((struct cmsghdr *)into->msg_control) = (int)opened();
        return 8;
    }
    if (how < 8) {
        return how & 1 ? -EAGAIN : 0;
    }
    for (unsigned long n = 0; n < into->msg_iovlen; n++) {
        unsigned long room = into->msg_iov[n].iov_len, length = room > 1024 ? 4ul * byte() : room;
        for (unsigned long at = 0; room > 1024 && at < length; at++) {
            ((uint8_t *)into->msg_iov[n].iov_base)[at] = byte();
        }
        if (room <= 1024) {
            fill(into->msg_iov[n].iov_base, room);
        }
        size += (long)length;
    }
    struct cmsghdr *head = into->msg_control;
    unsigned count = how % 8, room = (unsigned)((into->msg_controllen - sizeof *head) / sizeof(int));
    into->msg_flags = how > 250 ? MSG_CTRUNC : 0;
    if (head && into->msg_controllen > sizeof *head && count) {
        count = count > room ? room : count;
        *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = 1};
        for (unsigned n = 0; n < count; n++) {
            ((int *)(head + 1))[n] = (int)opened();
        }
    }
    return how < 16 && size ? 1 : size;
}

static long look(struct statx *at) {
    static const uint16_t kinds[] = {S_IFREG | 0644,  S_IFDIR | 0755, S_IFDIR | 01700, S_IFLNK | 0777,
                                     S_IFSOCK | 0755, S_IFIFO | 0600, S_IFREG,         S_IFCHR | 0666};
    uint8_t how = byte();
    *at = (struct statx){.stx_mask = how & 64 ? STATX_BTIME | 0x7ff : 0x7ff, .stx_mode = kinds[how % 8]};
    at->stx_mnt_id = how >> 3 & 3;
    at->stx_ino = how >> 5;
    at->stx_nlink = how & 32 ? 3 : 1 + how % 8;
    at->stx_uid = how & 128 ? 0 : 1000;
    at->stx_attributes = how & 16 ? 0x2000 : 0;
    return 0;
}

static long poll_all(struct pollfd *one, unsigned long count, void *limit) {
    unsigned ready = 0;
    if (limit && byte() < 4) {
        memset(limit, 0, 16);
    }
    for (unsigned long n = 0; n < count; n++) {
        one[n].revents = one[n].fd >= 0 && byte() % 4 == 0 && one[n].fd != 5 && one[n].fd != 6 ? POLLIN : 0;
        ready += !!one[n].revents;
    }
    return ready;
}

static long text_of(char *to, unsigned long size) {
    static const char *const texts[] = {"/w/.git/hooks", "/proc/1/fd/3", "pipe:[1]", "/w/a (deleted)", "/", "1"};
    uint8_t how = byte();
    unsigned long length = how < 200 ? strlen(texts[how % 6]) : how == 255 ? size : (unsigned long)(how - 199) * 70;
    length = length > size ? size : length;
    if (how < 200) {
        memcpy(to, texts[how % 6], length);
    } else {
        memset(to, '/', length);
        fill(to, length > 40 ? 40 : length);
    }
    return (long)length;
}

static long read_text(char *to, unsigned long size) {
    static const char status[] =
        "Name:\ta\\n b\nUmask:\t0022\nTgid:\t7\nSigPnd:\t00\nShdPnd:\t01\nSigBlk:\t0\nSigCgt:\t1\n";
    uint8_t how = byte();
    if (how < 128 && size >= sizeof status) {
        memcpy(to, status, sizeof status - 1);
        return sizeof status - 1;
    }
    size = size > how ? how : size;
    fill(to, size);
    return (long)size;
}

static long option_of(int name, int *value) {
    uint8_t how = byte();
    *value = name == SO_DOMAIN ? (how & 1 ? AF_UNIX : AF_INET) : name == SO_TYPE ? 1 + how % 3 : how % 8;
    return how == 255 ? -ENOTSOCK : 0;
}

static long grow(char *to) {
    if (to > arena && to <= arena + ARENA) {
        brk_at = to;
    }
    return (long)brk_at;
}

long system_call(long call, long a, long b, long c, long d, long e) {
    if (++calls > MOST_CALLS) {
        leave();
    }
    switch (call) {
    case SYS_exit_group:
        if (owes_answer) {
            fprintf(stderr, "a fork ends without a word\n");
            abort();
        }
        leave();
    case SYS_brk:
        return grow((char *)a);
    case SYS_getpid:
        return 1;
    case SYS_getppid:
    case SYS_getuid:
    case SYS_getgid:
        return 0;
    case SYS_capget:
    case SYS_rt_sigprocmask:
    case SYS_rt_sigaction:
        return 0;
    case SYS_close:
        return closed(a);
    case SYS_close_range:
        return 0;
    }
    owes_answer &= call != SYS_sendmsg;
    uint8_t how = byte();
    if (how < 2) {
        static const short errors[] = {ENOMEM, EMFILE, EIO,   ENOSPC, ESRCH,   EAGAIN, ENOENT,
                                       EPERM,  EFAULT, EBUSY, EEXIST, ENOTDIR, ELOOP,  EINPROGRESS};
        return -errors[byte() % (sizeof errors / sizeof *errors)];
    }
    switch (call) {
    case SYS_openat:
    case SYS_openat2:
        read_all((const char *)b, strlen((const char *)b));
        return opened();
    case SYS_socket:
    case SYS_pidfd_open:
    case SYS_pidfd_getfd:
    case SYS_timerfd_create:
    case SYS_epoll_create1:
    case SYS_open_tree:
    case SYS_fspick:
    case SYS_seccomp:
    case SYS_landlock_create_ruleset:
        return opened();
    case SYS_signalfd4:
        return a >= 0 ? a : opened();
    case SYS_socketpair:
        ((int *)d)[0] = (int)opened();
        ((int *)d)[1] = (int)opened();
        return 0;
    case SYS_pipe2:
        ((int *)a)[0] = (int)opened();
        ((int *)a)[1] = (int)opened();
        return 0;
    case SYS_clone:
        owes_answer = how > 200 && *(const char *)PROGRAM == 'n';
        return how > 200 ? 0 : 100 + how % 16;
    case SYS_wait4:
        if (how < 200) {
            return 0;
        }
        if (b) {
            *(int *)b = (how & 15) << (how & 1 ? 8 : 0);
        }
        return 100 + byte() % 16;
    case SYS_ioctl:
        if (b == (long)SECCOMP_IOCTL_NOTIF_RECV) {
            return notification((void *)c);
        }
        if (b == (long)SECCOMP_IOCTL_NOTIF_ADDFD || b == 0xb701 /* NS_GET_USERNS */) {
            return opened();
        }
        if (b == 0x894b || b == 0x5411 /* SIOCOUTQ */) {
            *(int *)c = how % 2 ? 1 << 20 : 0;
        }
        return 0;
    case SYS_process_vm_readv:
        return copy_memory((void *)b, (void *)d, (unsigned long)e);
    case SYS_process_vm_writev:
        return how < 200 ? 4 : 0;
    case SYS_statx:
        return look((void *)e);
    case SYS_ppoll:
        return poll_all((void *)a, (unsigned long)b, (void *)c);
    case SYS_readlinkat:
        return text_of((void *)c, (unsigned long)d);
    case SYS_read:
        return a == FIRST || a == FIRST + 1 ? -EAGAIN : read_text((void *)b, (unsigned long)c);
    case SYS_recvfrom:
        if (how < 20) {
            return how & 1 ? 0 : -EAGAIN;
        }
        if (c == PROGRAM_ROOM) {
            return netlink_replies((void *)b);
        }
        fill((void *)b, (unsigned long)c);
        if (c == 1 && how < 230) {
            *(char *)b = "RQGRRRRR"[how % 8];
        }
        return c;
    case SYS_recvmsg:
        return message(a, (void *)b);
    case SYS_sendto:
    case SYS_write:
        read_all((const void *)b, (unsigned long)c);
        return c;
    case SYS_sendmsg:
        for (unsigned long n = 0; n < ((struct msghdr *)b)->msg_iovlen; n++) {
            read_all(((struct msghdr *)b)->msg_iov[n].iov_base, ((struct msghdr *)b)->msg_iov[n].iov_len);
        }
        read_all(((struct msghdr *)b)->msg_control, ((struct msghdr *)b)->msg_controllen);
        return 1;
    case SYS_getsockopt:
        return c == 57 || c == 71 ? (*(uint64_t *)d = how % 3, 0) : option_of((int)c, (void *)d);
    case SYS_prlimit64:
        if (d) {
            *(struct rlimit *)d = (struct rlimit){how & 1 ? 0x5bdull << 9 | 022 : 1024, ~0ull};
        }
        return 0;
    case SYS_fcntl:
        return b == F_GETFL && how & 1 ? O_NONBLOCK : 0;
    case SYS_getcwd:
        strcpy((char *)a, "/w");
        return 3;
    case SYS_dup3:
        return b;
    }
    return 0;
}

/* The variables of the program, as they were before its start; between them is what the sanitizer keeps closed. */
__attribute__((no_sanitize("address"))) static void restore(char *to, char *end, const uint8_t *from) {
    for (volatile uint64_t *at = (void *)to; at < (volatile uint64_t *)end; at++, from += from ? 8 : 0) {
        *at = from ? *(const uint64_t *)from : 0;
    }
}

int LLVMFuzzerInitialize(int *count, char ***words) {
    (void)count;
    (void)words;
    data_before = malloc((size_t)(last_data - first_data));
    restore((char *)data_before, (char *)data_before + (last_data - first_data), (const uint8_t *)first_data);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static char *words[] = {"apply-seccomp", "init", NULL, "PWD=/w", "\1A=b", "\1LD_PRELOAD=x", NULL, NULL};
    static char *launching[] = {"launch", "launch", "/run/socket", "ticket", "--", "bwrap", "true", NULL, "A=b", NULL};
    long stack[16] = {0};
    char **text = *(const char *)PROGRAM == 'l' ? launching : words;
    stack[0] = text == words ? 2 : 7;
    memcpy(stack + 1, text, text == words ? sizeof words : sizeof launching);
    restore(first_data, last_data, data_before);
    restore(first_bss, last_bss, NULL);
    memset(is_open, 0, sizeof is_open);
    memset(arena, 0, 1 << 14);
    memset(given, 0, sizeof given);
    given_at = given_end = given;
    open_count = calls = 0;
    owes_answer = 0;
    brk_at = arena;
    input = bytes;
    input_end = bytes + size;
    if (!setjmp(out)) {
        if (*(const char *)PROGRAM == 'a' && byte() & 1) {
            configure();
        }
        begin(stack);
    }
    return 0;
}
