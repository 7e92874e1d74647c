/* connect(2) of the command: asked about, and for Unix sockets done here.
 * THEORY OF OPERATION. Only the daemon decides; a question waits in a table, and init goes on meanwhile.
 * Internet alone: a blocking TCP connect to somewhere else than the loopback is asked about, and then goes on in the
 *     caller. That is a courtesy, so that a program hears at once what becomes of it: its network has no way out.
 * Unix sockets listed: the answer is what is enforced, and a caller could change its address, or what is behind its
 *     descriptor, meanwhile. So no connect goes on in the caller: the address is copied, the socket duplicated, a
 *     path resolved to its inode, and just these are asked about and connected; by a child where it takes long. Not
 *     asked about are sockets that were bound here (unix.c), and names without a file, which belong to a network. An
 *     Internet socket of a caller that is alone (sockets.c) cannot become another one, and goes on there.
 * Sockets of another network: a command that gets one over a listed socket (SCM_RIGHTS) could leave by it. The
 *     network of a socket is told by its cookie (SO_NETNS_COOKIE, Linux 5.14). For other calls see sockets.c.
 * PROMISES
 *  1. With UNIX, a Unix socket reaches what the daemon said yes to and nothing else, also when the daemon is gone.
 *  2. A caller that is interrupted leaves nothing behind that would connect later; one that comes again with a socket
 *     which had just been connected for it hears that it is.
 *  3. A caller that cannot be read (not dumpable) is refused where an answer is enforced; elsewhere it goes on. */
#include <fcntl.h>
#include <linux/seccomp.h>
#include <linux/stat.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include "bridge.h"

enum { MOST_WAITING = 256, MOST_KEPT = 8, SOON_MS = 100, MPTCP = 262, LATER = 1 };

enum { A_CONNECT = 1, A_SEND, A_BIND, ANOTHER_CALL };

enum { ASK = 1, PERFORM = 2 }; /* what is to be done; negative: the error for the caller */

static struct waiting {
    struct seccomp_notif asked;
    uint32_t question; /* 0: it has been answered, or was none */
    uint32_t family, port, length;
    int used, socket, target, child; /* socket: closed here */
    uint8_t shown[16];               /* the Internet address that is asked about */
    int64_t began[2];

    union {
        uint8_t bytes[128 + 2];
        uint16_t family;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
    } to;
} waiting[MOST_WAITING];
static const struct ports *asked_ports;
static unsigned asked_count, last_question;
static uint64_t connected_in_vain; /* the cookie of a socket whose caller was interrupted */

/* The child's notifier goes to init by a message. But with UNIX the filter looks at sendmsg(2) already, and there is no
 * answer yet: then init takes it, as it takes sockets. The child is dumpable for that, as it is after its exec. */
long hand_over(int report, int notifier, uint32_t flags) {
    struct {
        struct cmsghdr head;
        int notifier;
    } control = {{.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}, notifier};

    uint32_t said[2] = {0};
    struct msghdr text = {.msg_iov = &(struct iovec){said, sizeof said},
                          .msg_iovlen = 1,
                          .msg_control = &control,
                          .msg_controllen = CMSG_LEN(sizeof(int))};
    if (flags & UNIX) {
        said[1] = (uint32_t)notifier;
        call(prctl, PR_SET_DUMPABLE, 1);
    }
    long sent = flags & UNIX ? call(write, report, said, sizeof said) : call(sendmsg, report, &text, MSG_NOSIGNAL);
    if (sent != sizeof said) {
        return sent < 0 ? sent : -EIO;
    }
    return flags & UNIX ? 0 : call(close, notifier);
}

long take_over(int report, int child, uint32_t notifier) {
    long process = call(pidfd_open, child, 0), taken = process < 0 ? process : call(pidfd_getfd, process, notifier, 0);
    drop(process);
    long sent = taken < 0 ? taken : call(sendto, report, "", 1, MSG_NOSIGNAL); /* the child goes on */
    return sent < 0 ? sent : taken;
}

void ask_about_ports(const struct ports *first, unsigned count) {
    asked_ports = first;
    asked_count = count;
}

static uint64_t number_of(int socket, int name) {
    uint64_t value = 0;
    call(getsockopt, socket, SOL_SOCKET, name, &value, &(int){sizeof value});
    return value;
}

#define cookie_of(socket) number_of(socket, SO_COOKIE)
#define network_of(socket) number_of(socket, 71 /* SO_NETNS_COOKIE */)

int is_foreign(int fd) {
    static uint64_t own;
    int one;
    if (!own && (one = (int)call(socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0) {
        own = network_of(one);
        drop(one);
    }
    return own && network_of(fd) != own;
}

static int is_connected(int socket) {
    uint8_t peer[128];
    return call(getpeername, socket, peer, &(int){sizeof peer}) == 0;
}

static void forget(struct waiting *one) {
    drop(one->socket);
    drop(one->target);
    one->used = 0;
}

static void finish(struct waiting *one, long error) {
    int gone = respond(one->asked.id, error) != 0;
    if (gone && !error && one->used == A_CONNECT) {
        connected_in_vain = cookie_of(one->socket);
    }
    forget(one);
}

/* Connects without waiting. The flag belongs to all who share the socket; none of them can use it before this. */
static long connect_at_once(int socket, const void *to, unsigned length) {
    long flags = call(fcntl, socket, F_GETFL), error;
    if (flags & O_NONBLOCK) {
        return call(connect, socket, to, length);
    }
    call(fcntl, socket, F_SETFL, flags | O_NONBLOCK);
    error = call(connect, socket, to, length);
    call(fcntl, socket, F_SETFL, flags);
    struct pollfd done = {socket, POLLOUT};
    if (error == -EINPROGRESS && call(ppoll, &done, 1, (&(struct timespec){0, 0}), NULL) > 0) {
        error = call(connect, socket, to, length); /* how that ended */
    }
    return error == -EINPROGRESS || error == -EALREADY || error == -EAGAIN ? LATER : error;
}

static void perform(struct waiting *one) {
    uint8_t inode[32];
    const void *to = &one->to;
    unsigned length = one->length;
    if (one->target >= 0) {
        length = address_of(one->target, inode);
        to = inode;
    }
    one->question = 0;
    if (connected_in_vain && is_connected(one->socket) && cookie_of(one->socket) == connected_in_vain) {
        connected_in_vain = 0;
        finish(one, 0);
        return;
    }
    long child = connect_at_once(one->socket, to, length), begun = child == LATER;
    if (begun) {
        child = call(clone, SIGCHLD);
    }
    if (!begun || child < 0) {
        finish(one, child);
        return;
    }
    if (!child) {
        exit_with(-call(connect, one->socket, to, length));
    }
    one->child = (int)child;
    set_timer(SOON_MS);
}

static void go_on(struct waiting *one) {
    if (one->used == A_SEND) {
        send_permitted(&one->asked, one->target);
        forget(one);
        return;
    }
    if (one->socket >= 0) {
        perform(one);
        return;
    }
    let_go_on(one->asked.id);
    forget(one);
}

static void without_answer(struct waiting *one) {
    if (one->target >= 0) {
        finish(one, -EACCES);
    } else {
        go_on(one);
    }
}

/* Which socket it is that will be connected, whatever stands at its path by now. Inode numbers are used again, so when
 * it was made belongs to it; where the file system does not know, when it was changed. Returns its size. */
static unsigned identify(int target, char *to) {
    const struct statx *is = look_at(target);
    const struct statx_timestamp *made = is->stx_mask & STATX_BTIME ? &is->stx_btime : &is->stx_ctime;
    uint64_t numbers[] = {is->stx_dev_major, is->stx_dev_minor, is->stx_ino, (uint64_t)made->tv_sec, made->tv_nsec};
    memcpy(to, numbers, sizeof numbers);
    return sizeof numbers;
}

static int ask(struct waiting *one) {
    struct {
        uint32_t question, family, port, pid;
        char name[16], address[MAX_PAYLOAD - 32 + 1];
    } frame = {one->question, one->family, one->port};

    long length = one->family == AF_INET ? 4 : 16;
    memcpy(frame.address, one->shown, sizeof one->shown);
    if (one->target >= 0) {
        if (watched & IDENTIFY) {
            frame.port = identify(one->target, frame.address);
        }
        char *path = frame.address + frame.port;
        length = name_of(one->target, path, sizeof frame.address - frame.port);
        if (length <= 0 || *path != '/') {
            return 0;
        }
        length += frame.port;
    }
    if (length > MAX_PAYLOAD - 33) {
        return 0;
    }
    struct process process = process_of(one->asked.pid);
    frame.pid = process.pid;
    memcpy(frame.name, process.name, sizeof process.name);
    return tell(CONNECTING, &frame, 32 + (unsigned)length);
}

/* Fills in whom an Internet address means. 0: it is not asked about. */
static int is_elsewhere(struct waiting *one) {
    const uint8_t *bytes = one->to.in6.sin6_addr.s6_addr;
    unsigned zeros = 0, size = 16;
    if (one->to.family == AF_INET && one->length >= sizeof(struct sockaddr_in)) {
        bytes = one->to.bytes + 4;
        size = 4;
    } else if (one->to.family != AF_INET6 || one->length < 24) {
        return 0;
    }
    while (zeros < size && !bytes[zeros]) {
        zeros++;
    }
    if (zeros == 10 && bytes[10] == 0xff && bytes[11] == 0xff) { /* IPv4 written as IPv6 */
        for (bytes += 12, size = 4, zeros = 0; zeros < size && !bytes[zeros];) {
            zeros++;
        }
    }
    one->family = size == 4 ? AF_INET : AF_INET6;
    one->port = __builtin_bswap16(one->to.in.sin_port);
    memcpy(one->shown, bytes, size);
    int loopback = zeros == size || (size == 4 ? *bytes == 127 : zeros == 15 && bytes[15] == 1);
    for (unsigned n = 0; loopback && n < asked_count; n++) {
        if (asked_ports[n].first <= one->port && one->port <= asked_ports[n].last) {
            loopback = 0;
        }
    }
    return !loopback;
}

long refuse_foreign(const struct seccomp_notif *asked) {
    report(asked, UNIX_SOCKET, EACCES, "/(a socket of another network)");
    return -EACCES;
}

static long prepare_unix(const struct seccomp_notif *asked, struct waiting *one) {
    char *path = (char *)one->to.bytes + 2;
    if (one->to.family == AF_UNSPEC) {
        return PERFORM;
    }
    if (one->to.family != AF_UNIX || one->length <= 2 || one->length > sizeof(struct sockaddr_un)) {
        return -EINVAL;
    }
    if (!*path) {
        return is_foreign(one->socket) ? refuse_foreign(asked) : PERFORM;
    }
    path[one->length - 2] = 0;
    one->target = (int)find_socket(asked, path);
    one->family = AF_UNIX;
    one->port = 0;
    return one->target < 0 ? one->target : is_own(one->target) ? PERFORM : ASK;
}

/* Callers are kept, since opening anything in /proc takes longer than all the rest. A directory of threads has two
 * links and one for each of them; without any, its number may be that of another thread by now. */
struct caller *caller;

long duplicate(const struct seccomp_notif *asked) {
    static struct caller kept[MOST_KEPT];
    caller = kept + asked->pid % MOST_KEPT;
    int is_kept = caller->thread == asked->pid && (caller->links = look_at(caller->tasks)->stx_nlink) > 2;
    if (!is_kept) {
        if (caller->thread) {
            drop(caller->tasks);
            drop(caller->process);
        }
        caller->thread = asked->pid;
        caller->tasks = (int)open_in_proc(asked->pid, "/task", -1, O_PATH);
        caller->links = look_at(caller->tasks)->stx_nlink;
        caller->process = (int)call(pidfd_open, asked->pid, 0);
        if (caller->process < 0) {
            caller->process = (int)call(pidfd_open, process_of(asked->pid).pid, 0);
        }
    }
    long socket = caller->process < 0 ? -EPERM : call(pidfd_getfd, caller->process, (int)asked->data.args[0], 0);
    if (socket == -EPERM && watched & UNIX) {
        report(asked, UNIX_SOCKET, EACCES, "/(a socket that cannot be looked at)");
    }
    if (socket < 0) {
        return socket == -EPERM ? -EACCES : socket;
    }
    caller->domain = option((int)socket, SO_DOMAIN);
    long error = caller->domain < 0 ? -ENOTSOCK : is_kept || still_waits(asked->id) ? 0 : -EINTR;
    if (error) {
        drop(socket); /* EINTR: it may have been another process that was looked at */
    }
    return error ? error : socket;
}

static long prepare(const struct seccomp_notif *asked, struct waiting *one) {
    int enforced = watched & UNIX;
    if (enforced && (one->socket = (int)duplicate(asked)) < 0) {
        return one->socket;
    }
    int is_unix = enforced && caller->domain == AF_UNIX;
    if (enforced && !is_unix && is_foreign(one->socket)) {
        return refuse_foreign(asked);
    }
    if (enforced && !is_unix && is_alone() && call(fcntl, one->socket, F_GETFL) & O_NONBLOCK) {
        return PERFORM;
    }
    if (one->length > 128) {
        return -EINVAL;
    }
    long got = read_memory(one->asked.pid, asked->data.args[1], &one->to, one->length);
    if (got != (long)one->length) {
        return got == -EPERM ? -EACCES : -EFAULT;
    }
    if (is_unix) {
        return prepare_unix(asked, one);
    }
    if (!is_elsewhere(one) || !(watched & INTERNET)) {
        return PERFORM;
    }
    if (!enforced && (one->socket = (int)duplicate(asked)) < 0) {
        return one->socket;
    }
    int protocol = option(one->socket, SO_PROTOCOL);
    return (protocol == IPPROTO_TCP || protocol == MPTCP) && option(one->socket, SO_TYPE) == SOCK_STREAM
                   && !(call(fcntl, one->socket, F_GETFL) & O_NONBLOCK) && !is_connected(one->socket)
               ? ASK
               : PERFORM;
}

static struct waiting *find_room(void) {
    struct waiting *one = waiting;
    while (one < waiting + MOST_WAITING && one->used) {
        one++;
    }
    return one < waiting + MOST_WAITING ? one : NULL;
}

long in_a_child(const struct seccomp_notif *asked, int socket, const char *path) {
    drop_interrupted(); /* this caller may come again */
    struct waiting *one = find_room();
    int64_t began[2];
    note_time(began);
    long child = one ? call(clone, SIGCHLD) : -EAGAIN;
    if (child <= 0) {
        return child;
    }
    *one = (struct waiting){.asked = *asked, .used = ANOTHER_CALL, .socket = socket, .target = -1, .child = (int)child};
    set_timer(SOON_MS);
    if (path) {
        one->used = A_BIND;
        memcpy(one->to.bytes, path, length_of(path) + 1);
        memcpy(one->began, began, sizeof began);
    }
    return child;
}

static void begin_question(struct waiting *one) {
    one->question = ++last_question ? last_question : ++last_question;
    set_timer(SOON_MS);
    if (!ask(one)) {
        without_answer(one);
    }
}

void on_connect(const struct seccomp_notif *asked) {
    struct waiting *one = find_room();
    if (!one) {
        if (watched & UNIX) {
            respond(asked->id, -EAGAIN);
        } else {
            let_go_on(asked->id);
        }
        return;
    }
    *one = (struct waiting){
        .asked = *asked, .length = (uint32_t)asked->data.args[2], .used = A_CONNECT, .socket = -1, .target = -1};
    long next = prepare(asked, one);
    int is_safe = one->socket >= 0 && next > 0 && is_alone() && caller->domain != AF_UNIX;
    if (!(watched & UNIX) || is_safe) { /* it goes on in the caller */
        drop(one->socket);
        one->socket = -1;
        if (next != ASK) {
            next = PERFORM;
        }
    }
    if (next < 0) {
        finish(one, next);
    } else if (next == PERFORM) {
        go_on(one);
    } else {
        begin_question(one);
    }
}

int ask_before_sending(const struct seccomp_notif *asked, int target) {
    struct waiting *one = find_room();
    if (one) {
        *one = (struct waiting){.asked = *asked, .family = AF_UNIX, .used = A_SEND, .socket = -1, .target = target};
        begin_question(one);
    }
    return !!one;
}

void on_answer(uint32_t question, uint32_t error) {
    for (struct waiting *one = waiting; question && one < waiting + MOST_WAITING; one++) {
        if (!one->used || one->question != question) {
            continue;
        }
        if (error) {
            finish(one, -(long)error);
        } else {
            go_on(one);
        }
        return;
    }
}

void ask_again(void) {
    for (struct waiting *one = waiting; one < waiting + MOST_WAITING; one++) {
        if (one->used && one->question && !ask(one)) {
            without_answer(one);
        }
    }
}

void end_questions(void) {
    for (struct waiting *one = waiting; one < waiting + MOST_WAITING; one++) {
        if (one->used && one->question) {
            without_answer(one);
        }
    }
}

void connect_ended(int child, int status) {
    for (struct waiting *one = waiting; one < waiting + MOST_WAITING; one++) {
        if (one->used && one->child == child && !WIFSTOPPED(status)) {
            if (one->used == A_BIND && !status) {
                keep_bound(one->asked.pid, one->socket, (char *)one->to.bytes, one->began);
            }
            finish(one, WIFEXITED(status) ? -WEXITSTATUS(status) : -EINTR);
        }
    }
}

int drop_interrupted(void) {
    int left = 0;
    for (struct waiting *one = waiting; one < waiting + MOST_WAITING; one++) {
        if (!one->used) {
            continue;
        }
        if (still_waits(one->asked.id) && !(guard && process_of(one->asked.pid).signals)) {
            left++;
            continue;
        }
        respond(one->asked.id, -EINTR); /* a signal that is caught waits for this call, where a guard is (KILLABLE) */
        if (one->child) {
            call(kill, one->child, SIGKILL);
            call(wait4, one->child, NULL, 0, NULL);
            if (one->used == A_CONNECT && is_connected(one->socket)) {
                connected_in_vain = cookie_of(one->socket);
            }
        }
        forget(one);
    }
    return left;
}
