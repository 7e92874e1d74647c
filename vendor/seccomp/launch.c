/* launch: from the program that runs a command to bubblewrap, on the host. docs/helper.md describes the bytes.
 * THEORY OF OPERATION. Connects to the daemon, names its ticket, and becomes bubblewrap (same pid) with these
 * descriptors: 3 the connection, 4 apply-seccomp, which lies beside this program, 5 a pidfd of its parent (the OWNER,
 * for whom the command runs), 6 a pidfd of itself, 8 a pipe for `bwrap --info-fd 8`, and after `launch-args` 7, for
 * `bwrap --args 7`.
 * PROMISES
 *  1. What fails ends with status 125, lines `sandboxd: ...` and `hint: ...` on standard error, and nothing has run.
 *  2. bubblewrap sees none of the owner's environment (LD_PRELOAD); standard streams are bytes and no more (streams.c).
 * Trusted: the daemon, the directory of this program, the kernel. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include "bridge.h"

#define INIT_NAME "apply-seccomp"

static void receive_options(void) {
    char byte, space[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
    struct msghdr text = {
        .msg_iov = &(struct iovec){&byte, 1}, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    int got = call(recvmsg, BRIDGE, &text, 0) == 1 && byte == OPTIONS_FOLLOW && CMSG_FIRSTHDR(&text);
    if (!got || *(int *)CMSG_DATA(CMSG_FIRSTHDR(&text)) != OPTIONS) {
        refuse("the daemon sent no options for bubblewrap", 0, try_again);
    }
}

/* The owner's environment is the command's. bubblewrap, still on the host, would obey LD_PRELOAD and the like in it, so
 * until init every entry has a byte in front that no name begins with. (A change of bytes would not do: some other name
 * would become LD_PRELOAD by it.) bubblewrap adds a PWD of its own, which then counts. */
static void veil(char **environment) {
    unsigned long size = 0, n;
    for (char **one = environment; *one; one++) {
        size += length_of(*one) + 2;
    }
    char *to = (char *)call(brk, 0), *stop = to + size;
    if (call(brk, stop) != (long)stop) {
        refuse("cannot hold the environment", -ENOMEM, see_check);
    }
    for (char **one = environment; *one; one++, to += n + 1) {
        n = length_of(*one) + 1;
        *to = VEIL;
        memcpy(to + 1, *one, n);
        *one = to;
    }
}

static _Noreturn void launch(int with_options, char *path, char *ticket, char **bwrap, char **environment) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    struct {
        uint32_t type, length, version;
        char ticket[64];
    } hello = {TICKET, sizeof hello - 8, VERSION, {0}};

    unsigned path_length = length_of(path), ticket_length = length_of(ticket);
    const char *refused, *name, *hint;
    if (path_length >= sizeof address.sun_path || ticket_length > sizeof hello.ticket) {
        refuse("the path of the daemon's socket, or the ticket, is too long", 0, not_by_hand);
    }
    memcpy(address.sun_path, path, path_length);
    memcpy(hello.ticket, ticket, ticket_length);
    long fd, error; /* fills 0, 1 and 2 where the owner left them closed; what follows gets the promised numbers */
    do {
        fd = call(openat, AT_FDCWD, "/dev/null", O_RDWR);
    } while (fd >= 0 && fd < 3);
    for (fd = 0; fd < 3; fd++) {
        if ((refused = refused_as_stream((int)fd, &name, &hint))) {
            fail(SETUP_FAILED, refused, name, 0, hint);
        }
    }
    if ((error = call(close_range, 3, ~0u))) {
        refuse("cannot close inherited files", error, "this takes Linux 5.9");
    }
    if ((fd = call(socket, AF_UNIX, SOCK_STREAM)) != BRIDGE) {
        refuse("cannot open a Unix socket", fd, see_check);
    }
    for (int wait = SO_RCVTIMEO; wait <= SO_SNDTIMEO; wait++) { /* neighbours, on every Linux */
        call(setsockopt, BRIDGE, SOL_SOCKET, wait, (&(struct timeval){ANSWER_WITHIN_S, 0}), sizeof(struct timeval));
    }
    if ((error = call(connect, BRIDGE, &address, sizeof address))) {
        refuse("cannot reach the daemon", error, try_again);
    }
    int ends[2]; /* bubblewrap holds both: it must not die, and leave what it has forked, because the daemon is gone */
    if ((error = call(pipe2, ends, 0))) {
        refuse("cannot make a pipe", error, see_check);
    }
    call(dup3, ends[0], INFO + 1, 0);
    call(dup3, ends[1], INFO, 0);
    drop(ends[0]);
    drop(ends[1]);
    listens = THE_DAEMON;
    if ((error = send_with(BRIDGE, &hello, sizeof hello, (int[]){INFO + 1}, 1)) < 0) {
        refuse("cannot reach the daemon", error, try_again);
    }
    char init[4096];
    long length = call(readlinkat, AT_FDCWD, "/proc/self/exe", init, sizeof init - sizeof INIT_NAME);
    init[length > 0 ? length : 0] = 0;
    put(last_part(init), INIT_NAME);
    if ((fd = call(openat, AT_FDCWD, init, O_RDONLY)) != EXECUTABLE) {
        fail(SETUP_FAILED, "cannot open", init, fd, see_check);
    }
    /* A parent in another pid namespace has no number here (0): then bubblewrap's own end is all that can be seen. */
    long owner = call(getppid), self = call(getpid);
    if ((fd = call(pidfd_open, owner ? owner : self)) != OWNER) {
        refuse("cannot watch the parent", fd, see_check);
    }
    if (call(getppid) != owner) {
        refuse(owner_ended, 0, try_again);
    }
    if ((fd = call(pidfd_open, self)) != BWRAP) {
        refuse("cannot watch bubblewrap", fd, see_check);
    }
    call(fcntl, OWNER, F_SETFD, 0);
    call(fcntl, BWRAP, F_SETFD, 0);
    if (with_options) {
        receive_options();
    }
    /* Ctrl-C and Ctrl-\ go to the whole process group, and what they mean is for the command to say. If bubblewrap died
     * of them, it would take along a command that had only been asked to abandon a line of input. */
    uint64_t interrupts = 1ull << (SIGINT - 1) | 1ull << (SIGQUIT - 1);
    call(rt_sigprocmask, SIG_SETMASK, &(uint64_t){ignore(interrupts)}, NULL, 8);
    veil(environment);
    error = call(execve, bwrap[0], bwrap, environment);
    fail(SETUP_FAILED, "cannot run", bwrap[0], error, "is bubblewrap installed? `sandboxd check` looks for it");
}

__attribute__((used)) _Noreturn void begin(long *stack) {
    char **argument = (char **)(stack + 1), **environment = argument + stack[0] + 1;
    const char *rest = stack[0] >= 6 ? after("launch", argument[1]) : NULL;
    if (rest && after("--", argument[4])) {
        launch(*rest == '-', argument[2], argument[3], argument + 5, environment);
    }
    refuse("wrong arguments for launch", 0, not_by_hand);
}
