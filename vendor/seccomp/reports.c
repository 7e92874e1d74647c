/* What is kept for the daemon: refused calls, equal ones counted, and that a program listens.
 * PROMISES
 *  1. However many calls there are, the daemon gets at most 500 reports a second after the first 256, none of them more
 *     than 20 ms late, and then the number of those it did not get. */
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include "bridge.h"

enum { KEPT = 64, SOON_MS = 20, BURST = 256, PER_TICK = 10, MOST_UNREAD = 96 << 10, CUT = 1 };

void set_timer(unsigned ms) {
    static unsigned set;
    if (ms && set && set <= ms) {
        return;
    }
    set = ms;
    struct itimerspec when = {.it_value = {0, ms * 1000000L}};
    if (ms) {
        call(timerfd_settime, timer, 0, &when, NULL);
    }
}

static struct kept {
    uint32_t length, thread;

    struct {
        uint32_t access, call, error, pid, count, flags;
        char name[16], path[MAX_PAYLOAD - 40];
    } frame;
} kept[KEPT];

static uint32_t reports, lost, tokens = BURST;
static int unheard; /* the daemon is gone */
static int servers; /* a program listens, and the daemon has not been told */

static void send_servers(void) {
    int unread = 0;
    call(ioctl, BRIDGE, SIOCOUTQ, &unread);
    if (servers && tokens && unread <= MOST_UNREAD && tell(LISTENS, NULL, 0)) {
        servers = 0;
        tokens--;
    }
}

void note_server(void) {
    servers = !unheard;
    send_servers();
    set_timer(SOON_MS);
}

void send_reports(void) {
    int unread = 0; /* by the daemon: what room is left beyond is for questions, and for the end of the command */
    for (struct kept *one = kept; one < kept + reports; one++) {
        call(ioctl, BRIDGE, SIOCOUTQ, &unread);
        if (!tokens || unread > MOST_UNREAD || !tell(REFUSED, &one->frame, one->length)) {
            lost += one->frame.access == MADE ? 0 : one->frame.count;
        } else {
            tokens--;
        }
    }
    reports = 0;
    if (lost && unread <= MOST_UNREAD && tell(LOST, &lost, sizeof lost)) {
        lost = 0;
    }
}

void drop_reports(void) {
    unheard = 1;
    servers = 0;
    reports = lost = 0;
    tokens = BURST;
}

void report(const struct seccomp_notif *call, uint32_t access, long error, const char *path) {
    char shown[sizeof kept->frame.path + 1];
    unsigned length = length_of(path), cut = length >= sizeof shown;
    if (unheard || !length) {
        return;
    }
    if (!still_waits(call->id)) {
        return; /* interrupted: it comes again, or its number belongs to another call by now */
    }
    if (cut) {
        length = sizeof shown - 1;
    }
    memcpy(shown, path, length);
    shown[length] = 0;
    set_timer(SOON_MS);
    for (struct kept *one = kept; one < kept + reports; one++) {
        if (one->frame.access == access && one->length == 40 + length && after(shown, one->frame.path)
            && (one->thread == call->pid || one->frame.call == (uint32_t)call->data.nr)) {
            one->frame.count++;
            return;
        }
    }
    if (reports == KEPT) {
        send_reports();
    }
    struct kept *one = kept + reports++;
    struct process process = process_of(call->pid);
    one->length = 40 + length;
    one->thread = call->pid;
    one->frame.access = access;
    one->frame.call = (uint32_t)call->data.nr;
    one->frame.error = (uint32_t)error;
    one->frame.pid = process.pid;
    one->frame.count = 1;
    one->frame.flags = cut ? CUT : 0;
    memcpy(one->frame.name, process.name, sizeof process.name);
    memcpy(one->frame.path, shown, length < sizeof one->frame.path ? length + 1 : length);
}

void on_timer(void) {
    uint64_t times;
    call(read, timer, &times, sizeof times);
    set_timer(0);
    send_servers();
    send_reports();
    tokens = tokens + PER_TICK > BURST ? BURST : tokens + PER_TICK;
    int waiting = drop_interrupted();
    if (lost || servers || tokens < BURST) {
        set_timer(SOON_MS);
    } else if (waiting) {
        set_timer(100);
    }
}
