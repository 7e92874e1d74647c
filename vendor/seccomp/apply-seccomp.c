/* apply-seccomp: the process between bubblewrap and a sandboxed command. docs/helper.md describes the bytes.
 * THEORY OF OPERATION. No policy: the daemon has decided. No C library is linked; begin() runs first. Init, process 1
 * in the sandbox, has the descriptors of launch.c. It reads the configuration from 3; opens the listening sockets
 * that are named there and hands them out, with the network namespace; forks. The child closes everything; once init
 * has had GO, where it waits for that, it confines itself (landlock.c), installs the filter and becomes the command.
 * Init reaps, forwards signals, looks at calls that the filter sends it (notifications.c, connects.c), reports, ends
 * with the command's status.
 * PROMISES
 *  1. The command runs under exactly the filter and the confinement of the configuration, or not at all. "No filter"
 *     must be said with a flag; every contradiction, excess or shortage of bytes in the configuration is an error.
 *  2. What fails before the exec ends with status 125, a line `sandboxd: ...` and a line `hint: ...` on standard error,
 *     and nothing has run (a signal that asked to end during that time: 128+N). The exec itself gives 126 and 127.
 *  3. The command inherits descriptors 0, 1, 2 and no other, an empty signal mask, the owner's ignored signals (but
 *     SIGCHLD), no_new_privs, and no capability: init stops when it still holds one.
 *  4. Nothing survives: when the owner, bubblewrap or the command ends, so does init, upon which the kernel kills all
 *     that is left in the namespace. A stopped command has not ended. If the daemon dies, the command goes on alone.
 *     Where a filter was to send calls here and cannot, the command does not run; none goes on once init is gone.
 *     Init itself may stay until the daemon, told of the end, has hung up; all others are dead by then.
 *  5. The command cannot reach init, which is not dumpable; signals from inside are only read, never acted upon.
 *  6. Terminal and session are left alone, and so is the process group where there is a terminal. Where there is none
 *     the command leads a group of its own, since kill(0, ...) would otherwise reach out of the namespace.
 * Trusted: the daemon, bubblewrap, the kernel; not what runs after the exec: its status, paths, addresses are data. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "bridge.h"

enum { NOT_EXECUTABLE = 126, NOT_FOUND = 127, KILLED = 128 + SIGKILL };

/* ---- init: from process 1 to the command, and until its end ---------------------------------------------------- */
static const uint64_t ending_signals = /* those with which one asks a job to end */
    1ull << (SIGHUP - 1) | 1ull << (SIGINT - 1) | 1ull << (SIGQUIT - 1) | 1ull << (SIGTERM - 1);
int signals;             /* a signalfd: of the ending signals, and of all signals once the command runs */
static uint64_t ignored; /* by the command */
static int stays;        /* alone, until the daemon has cleared up, says so, and hangs up; ANSWER_WITHIN_S at most */

static _Noreturn void leave(uint32_t status, uint32_t signal) {
    for (call(kill, -1, SIGKILL), send_reports(); stays && call(wait4, -1, NULL, 0) > 0;) {}
    if (stays && listens) { /* a daemon that is late has not read what came before */
        call(ppoll, (&(struct pollfd){BRIDGE, POLLOUT}), 1, (&(struct timespec){ANSWER_WITHIN_S, 0}), NULL);
    }
    tell(EXIT, ((uint32_t[]){status, signal}), 8);
    signal = 0;
    while (stays && call(recvfrom, BRIDGE, &signal, 1, 0) > 0) {}
    listens = NO_PEER;
    if (stays && signal != HARMLESS) {
        fail(signal == PARTLY ? (int)status : SETUP_FAILED,
             signal == PARTLY ? "the repository clean-up after the command was partial; it ended with status"
                              : "the repository clean-up after the command did not finish; it ended with status",
             decimal(status), 0, "check the hooks and configurations of git repositories in its directories");
    }
    exit_with(status);
}

/* Waits until there is something to read, or the time is up (the kernel writes down how much of it is left). When those
 * are gone for whom the command runs, it is noticed here, whatever else is being waited for. */
int wait_for_news(int child, struct timespec *left) {
    struct pollfd polled[] = {{listens ? BRIDGE : -1, POLLIN},
                              {signals, POLLIN},
                              {child, POLLIN},
                              {OWNER, POLLIN},
                              {BWRAP, POLLIN},
                              {notifier, POLLIN},
                              {timer, POLLIN}};
    static int others = -1; /* tells of all but the notifier, or fails to, and then all are asked */
    struct pollfd both[] = {{notifier, POLLIN}, {others, POLLIN}};
    if (others >= 0 && !left && call(ppoll, both, 2, NULL, NULL) > 0 && !both[1].revents && both->revents == POLLIN) {
        return FROM_NOTIFIER;
    }
    if (others < 0 && notifier >= 0) {
        others = (int)call(epoll_create1, O_CLOEXEC);
        for (struct pollfd *one = polled; one < polled + sizeof polled / sizeof *polled; one++) {
            if (one->fd != notifier) {
                call(epoll_ctl, others, EPOLL_CTL_ADD, one->fd, (&(struct epoll_event){.events = EPOLLIN}));
            }
        }
    }
    long ready = call(ppoll, polled, sizeof polled / sizeof *polled, left, NULL);
    int orphaned = polled[3].revents | polled[4].revents;
    if ((orphaned || ready < 0) && command) {
        leave(KILLED, SIGKILL);
    }
    if (orphaned) {
        refuse(owner_ended, 0, try_again);
    }
    if (ready < 0) {
        refuse("cannot wait", ready, see_check);
    }
    if (polled[5].revents == POLLHUP) { /* for ever: whom the filter concerns has ended, or is a tracer's zombie */
        notifier = -1;
    }
    return !!polled[0].revents * FROM_BRIDGE | !!polled[1].revents * FROM_SIGNALS | !!polled[2].revents * FROM_CHILD
           | !!(polled[5].revents & POLLIN) * FROM_NOTIFIER | !!polled[6].revents * FROM_TIMER;
}

static const uint32_t *processes; /* how many the command may have; NULL: as many as its owner */

static struct configuration *read_configuration(struct sock_fprog *filter, char ***arguments) {
    struct configuration head;
    const uint32_t one = sizeof(struct sock_filter);
    read_before_start(&head, sizeof head, 1);
    if (head.magic != MAGIC || head.version != VERSION) {
        refuse("the configuration has another version", 0, restart);
    }
    if (head.flags & ~KNOWN_FLAGS || !head.filter_length != !!(head.flags & UNFILTERED)
        || (head.flags & GUARD && (~head.flags & (WATCHED | CONFINED)))
        || (head.flags & WATCHED ? head.flags & UNFILTERED
                                 : head.flags & (INTERNET | UNIX | QUIET | IDENTIFY | SERVERS))
        || head.listeners > MAX_LISTENERS || head.ports > MAX_PORTS || head.filter_length % one
        || head.filter_length > BPF_MAXINSNS * one || head.removals >= head.arguments
        || head.arguments > head.arguments_length || head.arguments_length > MAX_ARGUMENTS
        || head.length
               != sizeof head + head.listeners * sizeof(struct listener) + head.ports * sizeof(struct ports)
                      + head.filter_length + !!(head.flags & BOUNDED) * sizeof *processes
                      + !!(head.flags & CONFINED) * sizeof *confinement + !!(head.flags & GUARD) * sizeof *guard
                      + head.arguments_length) {
        refuse("the configuration is malformed", 0, restart);
    }
    char *memory = (char *)((call(brk, 0) + 15) & -16), *text = memory + (head.arguments + 1) * sizeof(char *);
    char *stop = text + head.length; /* in between: the pointers, then the configuration */
    if (call(brk, stop) != (long)stop) {
        refuse("cannot hold the command", -ENOMEM, see_check);
    }
    struct configuration *given = (void *)text;
    *given = head;
    *arguments = (void *)memory;
    stays = !!(head.flags & STAY);
    read_before_start(given + 1, head.length - sizeof head, 1);
    text = (char *)(given->listener + given->listeners);
    ask_about_ports((void *)text, given->ports);
    text += given->ports * sizeof(struct ports);
    *filter = (struct sock_fprog){(unsigned short)(head.filter_length / one), (void *)text};
    text += head.filter_length;
    if (head.flags & BOUNDED) {
        processes = (void *)text;
        text += sizeof *processes;
    }
    if (head.flags & CONFINED) {
        confinement = (void *)text;
        text += sizeof *confinement;
    }
    if (head.flags & GUARD) {
        guard = (void *)text;
        text += sizeof *guard;
    }
    uint32_t found = 0; /* first of all, the last byte must be zero, so no argument can run beyond it */
    for (; !stop[-1] && text < stop && found < head.arguments; text += length_of(text) + 1) {
        (*arguments)[found++] = text;
    }
    uint64_t texts = (confinement ? confinement->roots : 0) + (guard ? (uint64_t)guard->zones + guard->names : 0);
    int too_many = texts >= found - head.removals || !is_guard_possible();
    if (text != stop || found != head.arguments || too_many) {
        refuse("the configuration is malformed", 0, restart);
    }
    return given;
}

static void hand_out_sockets(const struct configuration *given) {
    int handed[MAX_LISTENERS + 1], n = 0;
    for (const struct listener *one = given->listener; n < (int)given->listeners; n++, one++) {
        long error = handed[n] = (int)call(socket, one->family, SOCK_STREAM | SOCK_CLOEXEC);
        if (error >= 0) {
            error = call(bind, handed[n], &one->family, one->address_length);
        }
        if (error >= 0) {
            error = call(listen, handed[n], one->backlog);
        }
        const char *port = decimal(__builtin_bswap16(one->port));
        if (error) {
            fail(SETUP_FAILED, "cannot listen in the sandbox on port", port, error, see_check);
        }
    }
    handed[n++] = (int)call(openat, AT_FDCWD, "/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (handed[n - 1] < 0) {
        refuse("cannot open the network", handed[n - 1], see_check);
    }
    uint32_t frame[] = {DESCRIPTORS, 4, given->listeners};
    if (send_with(BRIDGE, frame, sizeof frame, handed, n) < 0) {
        refuse("cannot hand the sockets to the daemon", 0, try_again);
    }
    while (n) {
        drop(handed[--n]);
    }
}

static void await_init(void) {
    char byte;
    if (call(recvfrom, REPORT, &byte, 1, 0) != 1) {
        refuse("init has ended", 0, try_again);
    }
}

/* The child. What fail() writes to REPORT is {exit status, error number}; the exec closes it without a word. */
static _Noreturn void become_command(struct sock_fprog *filter, uint32_t flags, char **arguments, char **environment,
                                     int report) {
    long error = call(dup3, report, REPORT, O_CLOEXEC);
    listens = INIT;
    if (error >= 0 && call(openat, AT_FDCWD, "/dev/tty", O_RDWR) == -ENXIO) {
        error = call(setpgid, 0, 0);
    }
    if (error >= 0) {
        error = call(close_range, REPORT + 1, ~0u);
    }
    if (error >= 0) {
        error = lower_limit(RLIMIT_CORE, 0, ~0ull); /* a command can raise it again: ulimit -c */
    }
    if (error >= 0 && processes) {
        error = lower_limit(RLIMIT_NPROC, *processes, *processes);
    }
    if (error >= 0) {
        error = call(prctl, PR_SET_NO_NEW_PRIVS, 1);
    }
    if (error >= 0) {
        error = call(rt_sigprocmask, SIG_SETMASK, &(uint64_t){0}, NULL, 8);
    }
    ignore(ignored);
    if (error < 0) {
        refuse("cannot start the command", error, see_check);
    }
    if (~flags & PREPARED) { /* else all is mounted, and GO may be some time away */
        await_init();
    }
    if ((error = confine())) { /* by what is mounted now */
        refuse("cannot use Landlock", error, see_check);
    }
    if (filter->len) {
        error = install(filter, flags & GUARD ? KILLABLE : flags & WATCHED ? NEW_LISTENER : 0);
    }
    if (error == -EBUSY) {
        refuse("something else already watches the system calls", 0,
               "set sandbox.reportViolations to off and sandbox.network.transparent to false, list no Unix sockets");
    }
    if (error < 0) {
        refuse("cannot install the system call filter", error, see_check);
    }
    if (flags & PREPARED) {
        await_init();
    }
    if (flags & WATCHED && (error = hand_over(REPORT, (int)error, flags))) { /* init answers from now on */
        refuse("cannot hand over the notifier", error, see_check);
    }
    if (flags & UNIX) {
        await_init();
    }
    char here[4096];
    /* Mounts were made from outside until now, perhaps over the working directory. */
    if ((error = call(getcwd, here, sizeof here)) < 0 || (error = call(chdir, here))) {
        refuse("cannot enter the working directory", error, try_again);
    }
    error = search_and_exec(arguments, environment);
    fail(error == -ENOENT ? NOT_FOUND : NOT_EXECUTABLE, "cannot run", arguments[0], error,
         error == -ENOENT  ? "check the name, and that it (and its interpreter) exists inside the sandbox"
         : error == -E2BIG ? "too long: a single argument may have 128 KiB"
                           : "check that it is a program, and that the policy lets it be read and executed");
}

static void forward_signals(void) {
    for (struct signalfd_siginfo info; call(read, signals, &info, sizeof info) > 0;) {
        /* Only what was sent from outside the namespace: that sender has no number in here. What the terminal sends the
         * command gets by itself. Requests to end go to all: a shell does not act on one before its child has ended. */
        int sent = info.ssi_code == SI_USER || info.ssi_code == SI_QUEUE || info.ssi_code == SI_TKILL;
        if (info.ssi_signo == SIGTSTP || info.ssi_signo == SIGCONT) {
            terminal_stops = !sent;
        }
        if (!sent || info.ssi_pid || info.ssi_signo == SIGCHLD) {
            continue;
        }
        int to_all = ending_signals >> (info.ssi_signo - 1) & 1;
        call(kill, to_all ? -1 : command, info.ssi_signo);
        if (to_all) {
            call(kill, -1, SIGCONT);
        }
    }
}

/* The child says {0, 0} with the notifier, where there is one; then nothing (its end is closed), or what failed. */
static int hear_child(int report, uint32_t flags) {
    for (;;) {
        uint32_t said[2] = {0};

        struct {
            struct cmsghdr head;
            int notifier;
        } control = {0};
        struct msghdr text = {.msg_iov = &(struct iovec){said, sizeof said},
                              .msg_iovlen = 1,
                              .msg_control = &control,
                              .msg_controllen = sizeof control};
        long got = call(recvmsg, report, &text, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (got == -EAGAIN) {
            return 0;
        }
        int failed = got == sizeof said && said[0];
        if (got <= 0 || failed) {
            tell(failed ? EXEC_FAILED : STARTED, said, failed ? sizeof said : 0);
            return 1;
        }
        long taken = flags & UNIX ? take_over(report, command, said[1]) : control.head.cmsg_len ? control.notifier : 0;
        if (taken == -ESRCH) {
            continue; /* it has been killed */
        }
        if (taken <= 0) {
            refuse("cannot hand over the notifier", taken, see_check);
        }
        watch((int)taken, flags);
    }
}

static int hear_daemon(void) { /* returns a KILL */
    static uint8_t said[9];
    static unsigned length;
    uint32_t number[2];
    long got = call(recvfrom, BRIDGE, said + length, length ? sizeof said - length : 1, MSG_DONTWAIT);
    if (got == -EAGAIN) {
        return 0;
    }
    if (got <= 0) { /* the daemon is gone; the command is not */
        listens = NO_PEER;
        end_questions();
        drop_reports();
        return 0;
    }
    length += (unsigned)got;
    if (*said == ANSWER && length < sizeof said) {
        return 0;
    }
    length = 0;
    memcpy(number, said + 1, sizeof number);
    if (*said == ANSWER && number[1] <= MAX_ERRNO) {
        on_answer(number[0], number[1]);
    } else if (*said == AGAIN) {
        ask_again();
    } else if (*said != GO && *said != KILL) {
        refuse("the daemon sent something unknown", 0, restart);
    }
    return *said == KILL;
}

static _Noreturn void supervise(const struct configuration *given, int report) {
    struct timespec left = {given->grace_ms / 1000, given->grace_ms % 1000 * 1000000L}, *killing = NULL;
    for (;;) {
        int news = wait_for_news(report, killing), status, last_status = 0, ended = 0;
        long pid;
        if (news & FROM_BRIDGE && hear_daemon()) {
            if (killing) {
                leave(KILLED, SIGKILL); /* asked a second time: at once */
            }
            killing = &left;
            call(kill, -1, SIGTERM);
            call(kill, -1, SIGCONT);
        }
        if (news & FROM_SIGNALS) {
            forward_signals();
        }
        while (news != FROM_NOTIFIER && (pid = call(wait4, -1, &status, WNOHANG | WUNTRACED)) && pid != -ECHILD) {
            if (pid == command && !pass_on_stop(pid, status)) {
                ended = 1;
                last_status = status;
            }
            connect_ended((int)pid, status);
        }
        if (report >= 0 && (ended || news & FROM_CHILD) && hear_child(report, given->flags)) {
            drop(report);
            report = -1;
        }
        if (news & FROM_NOTIFIER) {
            on_notification();
        }
        if (news & FROM_TIMER) {
            on_timer();
        }
        uint32_t number = WTERMSIG(last_status); /* 0: it was not a signal */
        if (ended) {
            leave(number ? 128 + number : WEXITSTATUS(last_status), number);
        }
        if (killing && !(left.tv_sec | left.tv_nsec)) { /* no news may be the notifier of a command that ends */
            leave(KILLED, SIGKILL);
        }
    }
}

static _Noreturn void init(char **environment) {
    call(prctl, PR_SET_DUMPABLE, 0);
    call(prctl, PR_SET_PDEATHSIG, SIGKILL);
    call(prctl, PR_SET_NAME, "sandboxd-init");
    if (call(getpid) != 1) {
        refuse("init is not process 1 of a pid namespace", 0, not_by_hand);
    }
    listens = THE_DAEMON;
    unveil(environment);
    call(rt_sigprocmask, SIG_SETMASK, &(uint64_t){~0ull}, &ignored, 8);
    uint64_t early = ending_signals & ~ignored;
    drop(EXECUTABLE);
    call(close_range, OPTIONS, ~0u);
    signals = (int)call(signalfd4, -1, &early, 8, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0) {
        refuse("cannot watch signals", signals, see_check);
    }
    struct __user_cap_data_struct held[2] = {0};
    long error = call(capget, (&(struct __user_cap_header_struct){_LINUX_CAPABILITY_VERSION_3, 0}), held);
    if (error || held[0].effective | held[0].permitted | held[1].effective | held[1].permitted) {
        refuse("the sandbox still holds capabilities", error, "bubblewrap must be given --cap-drop ALL");
    }
    struct sock_fprog filter;
    char **arguments, byte = 0;
    struct configuration *given = read_configuration(&filter, &arguments);
    char **patterns = arguments;
    arguments = take_guard(take_roots(arguments + given->removals));
    hand_out_sockets(given);
    if (given->flags & PREPARED) {
        take_command(&arguments, &environment);
    }
    remove_variables(environment, patterns, given->removals);
    keep_mask();
    int report[2];
    error = call(socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, report);
    if (error) {
        refuse("cannot start the command", error, see_check);
    }
    if (!(error = call(clone, SIGCHLD))) {
        become_command(&filter, given->flags, arguments, environment, report[1]);
    }
    if (error < 0) {
        refuse("cannot start another process", error, "a limit on processes is reached: see ulimit -u");
    }
    drop(report[1]);
    call(prlimit64, 0, RLIMIT_CORE, &(struct rlimit){0});                 /* a command may have cores */
    if (read_before_start(&byte, 1, given->flags & WAIT) && byte != GO) { /* the child ends with init */
        static char why[TEXT_SIZE + 1], hint[TEXT_SIZE + 1];
        if (byte != OFF) {
            refuse("the daemon cancelled the command before its start", 0, try_again);
        }
        read_before_start(why, TEXT_SIZE, 1);
        read_before_start(hint, TEXT_SIZE, 1);
        refuse(why, 0, hint);
    }
    command = (int)error;
    find_zones();
    if ((error = call(sendto, report[0], &byte, 1, MSG_NOSIGNAL)) < 0) {
        refuse("cannot start the command", error, see_check);
    }
    call(signalfd4, signals, &(uint64_t){~ignored},
         8); /* whatever came early and was not a request to end has been waiting */
    supervise(given, report[0]);
}

__attribute__((used)) _Noreturn void begin(long *stack) {
    char **argument = (char **)(stack + 1), **environment = argument + stack[0] + 1;
    if (stack[0] == 2 && after("init", argument[1])) {
        init(environment);
    }
    if (stack[0] == 2 && after("probe", argument[1])) {
        after("probe-landlock", argument[1]) ? probe_landlock() : probe();
    }
    refuse("wrong arguments for apply-seccomp", 0, restart);
}
