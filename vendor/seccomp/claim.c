/* What init reads before the command starts, and how a prepared sandbox becomes that of a command. */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include "bridge.h"

static int streams[3] = {-1, -1, -1}; /* of the command, where they came for a prepared sandbox */

enum { FOR_EVER = 0x7fffffff, MAX_WORDS = 32 << 20 };

/* Reads exactly `size` bytes, with what descriptors come along: from the daemon, or the owner of a prepared sandbox
 * (`from` 0). Returns 0 when it may not wait and there is nothing to read. */
static int read_from(int from, void *to, unsigned long size, long seconds) {
    struct timespec left = {seconds, 0};
    for (unsigned long done = 0; done < size;) {
        int news = wait_for_news(from == BRIDGE ? -1 : from, &left), ready = FROM_BRIDGE | FROM_CHILD;
        struct signalfd_siginfo info;
        if (news & FROM_SIGNALS && call(read, signals, &info, sizeof info) > 0) {
            fail(128 + (int)info.ssi_signo, "ended before the start, by signal", decimal(info.ssi_signo), 0, try_again);
        }
        if (!(news & ready) && !seconds) {
            return 0;
        }
        if (!(news & ready)) {
            refuse("the daemon did not answer in time", 0, try_again);
        }

        struct {
            struct cmsghdr head;
            int descriptor[4];
        } control = {0};
        struct msghdr text = {.msg_iov = &(struct iovec){(char *)to + done, size - done},
                              .msg_iovlen = 1,
                              .msg_control = &control,
                              .msg_controllen = sizeof control};
        long got = call(recvmsg, from, &text, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (control.head.cmsg_len == CMSG_LEN(sizeof streams)) {
            memcpy(streams, control.descriptor, sizeof streams);
        }
        if (got > 0) {
            done += (unsigned long)got;
        } else if (got != -EAGAIN) {
            refuse("the daemon hung up before the command was started", got, try_again);
        }
    }
    return 1;
}

int read_before_start(void *to, unsigned long size, int may_wait) {
    return read_from(BRIDGE, to, size, may_wait ? ANSWER_WITHIN_S : 0);
}

/* Texts behind a head that tells their number and size. `last` comes in place of those that begin like `but`. */
static char **take_words(int from, uint32_t *mask, char *last, const char *but) {
    struct {
        uint32_t mask, count, length;
    } head;

    listens = from ? THE_DAEMON : NO_PEER; /* what the daemon says while the owner gives is for later */
    read_from(from, &head, sizeof head, ANSWER_WITHIN_S);
    char **words = (void *)((call(brk, 0) + 15) & -16), **kept = words;
    char *text = (char *)(words + head.count + 2), *stop = text + head.length;
    if (head.length > MAX_WORDS || head.count > head.length || call(brk, stop) != (long)stop) {
        refuse("cannot hold the command", -ENOMEM, see_check);
    }
    read_from(from, text, head.length, ANSWER_WITHIN_S);
    *mask = head.mask;
    for (; head.length && !stop[-1] && text < stop && head.count; head.count--, text += length_of(text) + 1) {
        if (!last || !after(but, text)) {
            *kept++ = text;
        }
    }
    *kept++ = last;
    *kept = NULL;
    if (text != stop || head.count) {
        refuse("the command is malformed", 0, restart);
    }
    listens = THE_DAEMON;
    return words;
}

/* A prepared sandbox waits here, for as long as it takes: the daemon has said of which command it may become the
 * sandbox, and what that is to run; its owner gives the rest, before or after that. */
void take_command(char ***arguments, char ***environment) {
    char byte, *here = NULL, **given = NULL;
    uint32_t mask, none;
    for (char **one = *environment; *one; one++) {
        here = after("PWD=", *one) ? *one : here;
    }
    /* The end of the socket ends this one: its owner has another child by then, or has ended while it made this one. */
    while (!(wait_for_news(0, NULL) & (FROM_BRIDGE | FROM_SIGNALS))) {
        if (!call(recvfrom, 0, &byte, 1, MSG_PEEK | MSG_DONTWAIT)) {
            refuse(owner_ended, 0, try_again);
        }
        given = take_words(0, &mask, here, "PWD=");
    }
    read_from(BRIDGE, &byte, 1, FOR_EVER);
    if (byte != CLAIM) {
        refuse("the daemon cancelled the command before its start", 0, try_again);
    }
    *arguments = take_words(BRIDGE, &none, NULL, "");
    *environment = given ? given : take_words(0, &mask, here, "PWD=");
    long error = !**arguments ? -EINVAL : here ? call(chdir, here + 4) : 0;
    for (int n = 0; n < 3 && error >= 0; n++) {
        error = call(dup3, streams[n], n, 0);
        drop(streams[n]);
    }
    if (error < 0) {
        refuse("cannot start the command", error, try_again);
    }
    call(umask, mask);
}
