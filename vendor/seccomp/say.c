/* What the helper's programs say: to the person, to the daemon, and the child to init. */
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include "bridge.h"

const char restart[] = "helper and daemon may be of different versions: `sandboxd restart`";
const char try_again[] = "a launch is good once: ask for a new one, or see `sandboxd status`";
const char not_by_hand[] = "this program is started by `sandboxd run` and by the client library";
const char owner_ended[] = "the program that started the sandbox has ended";
const char see_check[] = "`sandboxd check` says what this machine lacks";

enum peer listens;
int command;

int tell(uint32_t type, const void *payload, unsigned length) {
    uint32_t frame[2 + MAX_PAYLOAD / 4];
    frame[0] = type;
    frame[1] = length;
    memcpy(frame + 2, payload, length);
    return listens == THE_DAEMON && call(sendto, BRIDGE, frame, 8 + length, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

static const char reasons[] = /* each behind its number */
    "\1Operation not permitted\0"
    "\2No such file or directory\0"
    "\7Argument list too long\0"
    "\10Exec format error\0"
    "\13Resource temporarily unavailable\0"
    "\15Permission denied\0"
    "\24Not a directory\0"
    "\26Invalid argument\0"
    "\142Address already in use\0"
    "\143Cannot assign requested address\0"
    "\157Connection refused\0";

static char line[MAX_PAYLOAD];
static unsigned line_length;

static void add(const char *text) {
    while (*text && line_length < sizeof line) {
        line[line_length++] = *text++;
    }
}

static void add_name(const char *name) { /* untrusted bytes: prints only printable ASCII */
    for (const char *end = name + 160; *name && name < end; name++) {
        add(*name >= ' ' && *name < 127 ? (char[]){*name, 0} : "?");
    }
}

_Noreturn void fail(int status, const char *what, const char *name, long error, const char *hint) {
    line_length = 0;
    add("sandboxd: ");
    add(what);
    add(*name ? " " : "");
    add_name(name);
    add(error ? ": " : "");
    const char *reason = NULL;
    for (const char *one = reasons; *one; one += length_of(one) + 1) {
        if (error == -*one) {
            reason = one + 1;
        }
    }
    if (error) {
        add(reason ? reason : "error ");
        add(reason ? "" : decimal((unsigned)-error));
    }
    tell(FAILED, line + 10, line_length - 10);
    if (listens == INIT) {
        call(write, REPORT, ((uint32_t[]){(uint32_t)status, (uint32_t)-error}), 8);
    }
    add("\nhint: ");
    add(hint);
    add("\n");
    dispose(SIGPIPE, SIG_IGN);
    if (command) {
        call(kill, -1, SIGKILL); /* before the calls that wait for init come back to them as unknown */
    }
    call(write, 2, line, line_length);
    exit_with(status);
}

__attribute__((noinline)) _Noreturn void refuse(const char *what, long error, const char *hint) {
    fail(SETUP_FAILED, what, "", error, hint);
}
