/* namespaces: sets up the networks of sandboxes from outside. docs/helper.md describes the bytes.
 * THEORY OF OPERATION. The daemon starts one such process and keeps it. Standard input is a SOCK_SEQPACKET socket, each
 * message of it a request: a program (steps, below), a descriptor of a network namespace, a socket for the answer, and
 * where there are mounts to be made a descriptor of the mount namespace.
 * A process enters a user namespace for good, so each request gets a fork: it enters the user namespace that owns the
 * network namespace (it may, since the daemon's user made it), then the network namespace; does the steps, answers,
 * ends. The program says what is to be done; nothing is decided here.
 * PROMISES
 *  1. The answer is {stage, error number} and, when all went well (0, 0), the sockets in the order of their steps. It
 *     comes from the fork alone; a fork that dies closes its end without a word. A fork that hangs is ended by a timer,
 *     one that waits for the rest of its program (MORE) by the end of its sender.
 *  2. Nothing of a request outlives its fork but the sockets that were handed out and the state of the kernel.
 *  3. What belongs to the daemon's own user namespace (the host's network) is refused: the kernel refuses entry to
 *     the caller's own user namespace.
 *  4. A mount lands on the place that its path names, or nowhere: no symbolic link on the way to it is followed.
 *  5. It ends when the daemon closes the socket, or ends in whatever way; signals do not end it before.
 * Trusted: the daemon and the kernel. Nothing here reads what a sandboxed process has written. */
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/netlink.h>
#include <linux/nsfs.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/time.h>
#include "kernel.h"

enum { REQUESTS = 0, MAX_PROGRAM = 64 << 10, MAX_SOCKETS = MOST_SENT, MAX_TAKEN = 1024, MAX_TREES = 2, WITHIN_S = 10 };

/* Where it failed: before the program, or in which of its steps. */
enum { COMPLETE, CANNOT_FORK, NO_OWNER, ENTERING_USER, ENTERING_NETWORK, MALFORMED, ENTERING_MOUNTS, FIRST_STEP = 16 };

enum { NETLINK = 1, OPEN = 2, MOUNT = 3, MORE = 4, CALL = 5 };

enum { BIND, LISTEN, CONNECT };

struct step {
    uint32_t kind, length; /* of what follows the head; a multiple of 4 */
};

struct netlink_step {
    uint32_t protocol, acknowledgements;
    uint8_t messages[];
};

struct open_step {
    uint32_t family, type, protocol, then, backlog, address_length;
    uint8_t address[28];

    struct {
        uint32_t level, name, value;
    } option[]; /* set before anything else */
};

/* What is mounted on the path: itself; itself, read-only; whatever the name stands for, links not followed, read-
 * only, or what is at another path, if one is given; what is mounted at another path. TAKE copies what is mounted
 * there and lies below. SHOW copies what stands at another path, which other programs may remove or replace
 * meanwhile, onto a name made for it: no failure matters. HIDE removes the mount. PUT + n mounts tree n, counted
 * from those that came with the program. With IF_THERE a path that is gone or leads elsewhere gets no mount. */
enum { SAME, READ_ONLY, ENTRY = 3, COPY, TAKE, SHOW, HIDE, PUT, IF_THERE = 1 << 16 };

struct mount_step {
    uint32_t how, other; /* where the other path begins */
    char path[];         /* both end in a zero byte */
};

/* A system call. An argument is a number, where a text begins, or which of the results that were kept. */
struct call_step {
    uint32_t number, then; /* the result is dropped, kept, or handed out with the sockets; TRY drops a failure too */

    struct {
        int32_t kind, value;
    } argument[5];

    char text[];
};

enum { DROP, KEEP, GIVE, TRY };

enum { NUMBER, TEXT, KEPT };

static uint32_t program[MAX_PROGRAM / 4], replies[MAX_PROGRAM / 4];
static int answers, sockets[MAX_SOCKETS], taken[MAX_TAKEN];
static unsigned opened, taking;

/* What a sandbox may have of what its user has: half of it, or one command could take all (inotify(7)). The kernel
 * counts in each user namespace (user_namespaces(7)), and looks the files up in that of the caller. */
static struct {
    const char *path;
    char half[12];
} shares[] = {{"/proc/sys/user/max_inotify_instances", ""}, {"/proc/sys/user/max_inotify_watches", ""}};

static void share(int take) { /* where there is no such limit, or it cannot be set, nothing is changed */
    for (unsigned n = 0; n < sizeof shares / sizeof *shares; n++) {
        char text[12] = "", *at = text;
        unsigned limit = 0, length = length_of(shares[n].half);
        int how = (take ? O_RDONLY : O_WRONLY) | O_CLOEXEC;
        long fd = take || length ? call(openat, AT_FDCWD, shares[n].path, how) : -1;
        if (fd >= 0 && !take) {
            call(write, fd, shares[n].half, length);
        }
        if (fd >= 0 && take && call(read, fd, text, sizeof text - 1) > 0) {
            while (*at >= '0' && *at <= '9') {
                limit = limit * 10 + (unsigned)(*at++ - '0');
            }
            const char *half = decimal(limit / 2);
            memcpy(shares[n].half, half, length_of(half) + 1);
        }
        drop(fd);
    }
}

static void say(uint32_t stage, long error) {
    uint32_t said[] = {stage, (uint32_t)-error};
    if (stage != COMPLETE) {
        while (opened) {
            drop(sockets[--opened]); /* their ports are free before the failure is reported */
        }
    }
    send_with(answers, said, sizeof said, sockets, opened);
}

static _Noreturn void answer(uint32_t stage, long error) {
    say(stage, error);
    exit_with(0);
}

static void end_within(long seconds) { /* 0: take as long as you like */
    call(setitimer, ITIMER_REAL, (&(struct itimerval){.it_value = {seconds, 0}}), NULL);
}

/* A program with its descriptors, those that did not come -1. Returns its length; 0 or less is the end. */
enum { DESCRIPTORS_MOST = 3 + MAX_TREES };

struct came {
    struct cmsghdr head;
    int descriptor[DESCRIPTORS_MOST];
};

static long receive(int from, struct came *came, int *cut) {
    struct msghdr text = {.msg_iov = &(struct iovec){program, sizeof program},
                          .msg_iovlen = 1,
                          .msg_control = came,
                          .msg_controllen = sizeof *came};
    came->head.cmsg_len = 0;
    long got = call(recvmsg, from, &text, MSG_CMSG_CLOEXEC);
    for (unsigned n = 0; n < DESCRIPTORS_MOST; n++) {
        if (came->head.cmsg_len < CMSG_LEN((n + 1) * sizeof(int))) {
            came->descriptor[n] = -1;
        }
    }
    *cut = text.msg_flags & (MSG_TRUNC | MSG_CTRUNC);
    return got;
}

/* Sends the messages as one, and reads until each has been acknowledged or one was refused. */
static long converse(const struct netlink_step *step, unsigned length) {
    long fd = call(socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, step->protocol), error;
    if (fd < 0) {
        return fd;
    }
    if ((error = call(sendto, fd, step->messages, length - sizeof *step, 0)) < 0) {
        return error;
    }
    for (uint32_t missing = step->acknowledgements; missing;) {
        long got = call(recvfrom, fd, replies, sizeof replies, 0);
        if (got <= 0) {
            return got ? got : -EPROTO;
        }
        for (struct nlmsghdr *one = (void *)replies; NLMSG_OK(one, got) && missing; one = NLMSG_NEXT(one, got)) {
            if (one->nlmsg_type != NLMSG_ERROR) {
                continue;
            }
            if ((error = ((struct nlmsgerr *)NLMSG_DATA(one))->error)) {
                return error;
            }
            missing--;
        }
    }
    return call(close, fd);
}

static long open_socket(const struct open_step *step, unsigned length) {
    long fd = call(socket, step->family, step->type | SOCK_CLOEXEC | SOCK_NONBLOCK, step->protocol), error = 0;
    if (fd < 0) {
        return fd;
    }
    sockets[opened++] = (int)fd;
    for (unsigned n = 0; n < (length - sizeof *step) / sizeof *step->option && !error; n++) {
        error = call(setsockopt, fd, step->option[n].level, step->option[n].name, &step->option[n].value, 4);
    }
    if (!error && step->then == CONNECT) {
        error = call(connect, fd, step->address, step->address_length);
    } else if (!error) {
        error = call(bind, fd, step->address, step->address_length);
    }
    if (!error && step->then == LISTEN) {
        error = call(listen, fd, step->backlog);
    }
    return error == -EINPROGRESS ? 0 : error; /* the receiver sees how that ends */
}

static long seal(long tree) {
    struct mount_attr sealed = {.attr_set = MOUNT_ATTR_RDONLY};
    return call(mount_setattr, tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &sealed, sizeof sealed);
}

/* A symbolic link has no descriptor that could be mounted on, so its directory is opened, and its name not followed. */
static long mount_entry(char *path, const char *source) {
    char *name = path + length_of(path);
    while (name > path && name[-1] != '/') {
        name--;
    }
    if (name <= path) {
        return -EINVAL;
    }
    name[-1] = 0;
    long parent = open_path(name - 1 > path ? path : "/", O_DIRECTORY), tree = parent, error = parent;
    if (parent >= 0) {
        error = tree = call(open_tree, *source ? AT_FDCWD : parent, *source ? source : name,
                            OPEN_TREE_CLONE | O_CLOEXEC | AT_SYMLINK_NOFOLLOW | AT_RECURSIVE);
    }
    if (tree >= 0 && !(error = seal(tree))) {
        error = call(move_mount, tree, "", parent, name, MOVE_MOUNT_F_EMPTY_PATH);
    }
    drop(tree);
    drop(parent);
    return error;
}

static long mount_one(const struct mount_step *step, unsigned length) {
    char *path = (char *)step->path, *end = path + length - sizeof *step;
    uint32_t how = step->how % IF_THERE;
    if (end[-1] || step->other >= end - path || (how >= PUT && how - PUT >= taking)) {
        return -EINVAL;
    }
    if (how == ENTRY) {
        return mount_entry(path, path + step->other);
    }
    if (how == HIDE) {
        long error = call(umount2, path, MNT_DETACH);
        call(unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
        return error;
    }
    if (how == SHOW) {
        long there = open_path(path + step->other, O_DIRECTORY);
        if (there >= 0) {
            call(mkdirat, AT_FDCWD, path, 0700);
        } else if (there == -ENOTDIR) {
            call(mknodat, AT_FDCWD, path, S_IFREG | 0600);
        }
        drop(there);
        how = COPY;
    }
    long target = open_path(path, 0), source = target, tree = target, error = target;
    if (target >= 0 && how == COPY && (source = open_path(path + step->other, 0)) < 0) {
        return -ESTALE; /* not that of a path that is gone */
    }
    if (target >= 0) {
        error = tree = how >= PUT
                           ? taken[how - PUT]
                           : call(open_tree, source, "", OPEN_TREE_CLONE | O_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE);
    }
    if (tree >= 0 && how == TAKE) {
        return taking < MAX_TAKEN ? (taken[taking++] = (int)tree, 0) : -EMFILE;
    }
    if (tree >= 0 && !(error = how == READ_ONLY ? seal(tree) : 0)) {
        error = call(move_mount, tree, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
    }
    drop(tree);
    drop(target);
    drop(source == target ? -1 : source);
    return error;
}

static long call_one(const struct call_step *step, unsigned length) {
    long argument[5];
    unsigned end = length - sizeof *step;
    for (unsigned n = 0; n < 5; n++) {
        uint32_t value = (uint32_t)step->argument[n].value;
        int kind = step->argument[n].kind;
        if (kind != NUMBER && value >= (kind == TEXT ? end : taking)) {
            return -EINVAL;
        }
        argument[n] = kind == TEXT ? (long)(step->text + value) : kind == KEPT ? taken[value] : (int32_t)value;
    }
    long result = system_call(step->number, argument[0], argument[1], argument[2], argument[3], argument[4]);
    if (result < 0 || step->then == DROP || step->then == TRY) {
        return step->then == TRY || result > 0 ? 0 : result;
    }
    *(step->then == GIVE ? sockets + opened++ : taken + taking++) = (int)result;
    return 0;
}

static void enter_mounts(const int *descriptor) { /* trees come with it */
    long error = *descriptor < 0 ? 0 : call(setns, *descriptor, CLONE_NEWNS);
    if (error) {
        answer(ENTERING_MOUNTS, error);
    }
    for (unsigned n = 1; n <= MAX_TREES && descriptor[n] >= 0; n++) {
        taken[taking++] = descriptor[n];
    }
}

/* The fork. `length` is that of the program. */
static _Noreturn void perform(int network, const int *mounts, long length) {
    end_within(WITHIN_S);
    drop(REQUESTS); /* unread once the process that forked is gone */
    long owner = call(ioctl, network, NS_GET_USERNS), error;
    if (owner < 0) {
        answer(NO_OWNER, owner);
    }
    if ((error = call(setns, owner, CLONE_NEWUSER))) {
        answer(ENTERING_USER, error);
    }
    share(0);
    if ((error = call(setns, network, 0))) { /* or the mounts that a session keeps */
        answer(ENTERING_NETWORK, error);
    }
    enter_mounts(mounts);
    uint8_t *at = (uint8_t *)program, *end = at + length;
    for (uint32_t number = FIRST_STEP; at < end; number++) {
        const struct step *step = (const void *)at;
        const void *body = step + 1;
        unsigned long left = (unsigned long)(end - at);
        if (left < sizeof *step || step->length > left - sizeof *step || step->length % 4) {
            answer(MALFORMED, 0);
        }
        if (step->kind == NETLINK && step->length >= sizeof(struct netlink_step)) {
            error = converse(body, step->length);
        } else if (step->kind == OPEN && step->length >= sizeof(struct open_step) && opened < MAX_SOCKETS
                   && ((const struct open_step *)body)->address_length <= sizeof((struct open_step *)0)->address) {
            error = open_socket(body, step->length);
        } else if (step->kind == MOUNT && *mounts >= 0 && step->length > sizeof(struct mount_step)) {
            error = mount_one(body, step->length);
            uint32_t how = ((const struct mount_step *)body)->how;
            if (how == SHOW || (how & IF_THERE && (error == -ENOENT || error == -ENOTDIR || error == -ELOOP))) {
                error = 0;
            }
        } else if (step->kind == CALL && step->length >= sizeof(struct call_step)
                   && !((const char *)body)[step->length - 1] && opened < MAX_SOCKETS && taking < MAX_TAKEN) {
            error = call_one(body, step->length);
        } else if (step->kind == MORE && !step->length && left == sizeof *step && *mounts < 0) {
            static struct came came;
            int cut;
            say(COMPLETE, 0);
            end_within(0);
            while (opened) {
                drop(sockets[--opened]);
            }
            if ((length = receive(answers, &came, &cut)) <= 0) {
                exit_with(0);
            }
            end_within(WITHIN_S);
            if (cut) {
                answer(MALFORMED, 0);
            }
            enter_mounts(mounts = came.descriptor);
            at = (uint8_t *)program;
            end = at + length;
            number = FIRST_STEP - 1;
            continue;
        } else {
            answer(MALFORMED, 0);
        }
        if (error) {
            answer(number, error);
        }
        at += sizeof *step + step->length;
    }
    answer(COMPLETE, 0);
}

__attribute__((used)) _Noreturn void begin(void) {
    call(prctl, PR_SET_NAME, "sandboxd-netns");
    call(prctl, PR_SET_DUMPABLE, 0);
    share(1);
    call(rt_sigprocmask, SIG_SETMASK, &(uint64_t){0}, NULL, 8);
    dispose(SIGALRM, SIG_DFL);
    dispose(SIGCHLD, SIG_IGN); /* the kernel reaps */
    dispose(SIGINT, SIG_IGN);
    dispose(SIGQUIT, SIG_IGN);
    dispose(SIGTERM, SIG_IGN);
    dispose(SIGHUP, SIG_IGN);
    call(close_range, 3, ~0u);
    for (;;) {
        struct came came; /* network, answers, mounts */
        int cut, *descriptor = came.descriptor;
        long got = receive(REQUESTS, &came, &cut);
        if (got <= 0) {
            exit_with(0);
        }
        if (descriptor[1] < 0) {
            continue;
        }
        long child = call(clone, SIGCHLD);
        if (child <= 0) {
            answers = descriptor[1];
        }
        if (!child && cut) {
            answer(MALFORMED, 0);
        }
        if (!child) {
            perform(descriptor[0], descriptor + 2, got);
        }
        if (child < 0) {
            uint32_t said[] = {CANNOT_FORK, (uint32_t)-child};
            call(sendto, answers, said, sizeof said, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        for (unsigned n = 0; n < DESCRIPTORS_MOST; n++) {
            drop(descriptor[n]);
        }
    }
}
