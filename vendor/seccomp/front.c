/* front: `sandboxd run` in its usual form, without an interpreter, which takes longer to start than a sandbox.
 *     front PYTHON SCRIPT run [-c LINE] [--cwd DIR] [--session ID] [--command-id ID] [--quiet] [--no-autostart] WORD...
 * THEORY OF OPERATION. Asks the daemon for the argv as the Python client does, spawns it, waits, and asks what was
 * blocked. That is all, and whatever else there is to do (an option that is not named above, a message to be formatted,
 * a signal to be passed on) is done by Python: from the beginning (`usual_way`: nothing was sent), or from where it
 * stands (`hand_over`), by becoming it (same pid).
 * PROMISES
 *  1. What is run, its environment, streams, signals and status are the same as without this program.
 *  2. Nothing that Python would refuse is done: what is not plainly right goes the usual way.
 * Trusted: the directories of this program and of PYTHON, the daemon that asked.c has examined, the kernel. */
#include <fcntl.h>
#include <linux/stat.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <asm/ioctls.h>
#include "front.h"
#include "json.h"

enum { NOT_RUN = 125, ROOM = 64 << 20 };

enum option { LINE, CWD, SESSION, COMMAND_ID, WITH_VALUE, QUIET = WITH_VALUE, NO_AUTOSTART, OPTIONS };

static const char *const names[] = {"-c", "--cwd", "--session", "--command-id", "--quiet", "--no-autostart"};
static const char *const sent_variables[] = {
#include "variables.h"
};

char **environment, *room, *room_end;
struct progress now = {.status = -1};
static char **words, *given[OPTIONS], **command;
static unsigned word_count;

_Noreturn static void fail(const char *what, const char *on) {
    const char *const parts[] = {"sandboxd: cannot ", what, on, "\n"};
    for (unsigned n = 0; n < sizeof parts / sizeof *parts; n++) {
        call(write, 2, parts[n], length_of(parts[n]));
    }
    exit_with(now.status < 0 ? NOT_RUN : now.status);
}

static int same(const char *a, const char *b) {
    const char *rest = after(a, b);
    return rest && !*rest;
}

char *variable(const char *name) {
    for (char **one = environment; *one; one++) {
        const char *rest = after(name, *one);
        if (rest && *rest == '=') {
            return (char *)rest + 1;
        }
    }
    return NULL;
}

static void *space(unsigned long size) {
    char *begin = (char *)(((unsigned long)room + 7) & ~7ul);
    if (size > (unsigned long)(room_end - begin)) {
        exit_with(NOT_RUN); /* cannot be: an answer has less than the room allows */
    }
    room = begin + size;
    return begin;
}

/* A path with the true name of its directory: Python looks for its environment by the name that it is given. */
static char *true_name(char *path) {
    char *name = path + length_of(path), *made = space(2 * 4096);
    while (name > path && name[-1] != '/') {
        name--;
    }
    char *directory = space((unsigned long)(name - path) + 2), *end = directory;
    for (char *p = path; p < name;) {
        *end++ = *p++;
    }
    put(end, ".");
    long fd = call(openat, AT_FDCWD, directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    long length = fd < 0 ? fd : name_of(fd, made, 4096);
    drop(fd);
    if (length <= 0 || length_of(name) >= 4000) {
        return path;
    }
    put(put(made + length, "/"), name);
    return made;
}

_Noreturn void usual_way(void) {
    words[-3] = true_name(words[-2]); /* "front PYTHON SCRIPT" becomes "PYTHON -I SCRIPT" */
    words[-2] = "-I";
    words[-1] = true_name(words[-1]);
    call(execve, words[-3], words - 3, environment);
    fail("execute ", words[-3]);
}

static char *number(long value) {
    char *text = space(16);
    put(put(text, value < 0 ? "-" : ""), decimal((unsigned)(value < 0 ? -value : value)));
    return text;
}

_Noreturn void hand_over(void) {
    static char code[] = "from sandboxd.cli.main import resume; resume()";
    long passed[] = {connection, answered(), now.requests, now.pid, now.signal, now.status};
    if (passed[1] < 0) {
        fail("hold the answers of the daemon", "");
    }
    char **argument = space((word_count + 16) * sizeof *argument), **to = argument;
    *to++ = true_name(words[-2]);
    *to++ = "-I";
    *to++ = "-c";
    *to++ = code;
    for (unsigned n = 0; n < sizeof passed / sizeof *passed; n++) {
        *to++ = number(passed[n]);
    }
    *to++ = now.begun;
    for (unsigned n = 1; n < word_count; n++) {
        *to++ = words[n];
    }
    *to = NULL;
    call(fcntl, passed[0], F_SETFD, 0);
    call(fcntl, passed[1], F_SETFD, 0);
    call(execve, argument[0], argument, environment);
    fail("execute ", argument[0]);
}

static void read_options(void) {
    char **word = words + 1;
    if (!*words || !same("run", *words)) {
        usual_way();
    }
    for (; *word && **word == '-' && (*word)[1]; word++) {
        if (same("--", *word)) {
            word++;
            command = word;
            break;
        }
        const char *rest = NULL;
        enum option option = 0;
        for (; option < OPTIONS; option++) {
            rest = after(names[option], *word);
            if (rest && (!*rest || (*rest == '=' && option != LINE))) {
                break;
            }
        }
        if (option == OPTIONS || (option >= WITH_VALUE ? *rest : given[option] != NULL)) {
            usual_way();
        }
        given[option] = option >= WITH_VALUE ? *word : *rest ? (char *)rest + 1 : *++word;
        if (!given[option]) {
            usual_way();
        }
    }
    command = command || !*word ? command : word;
    if (given[LINE] ? command != NULL : !command || !*command || !**command) {
        usual_way();
    }
}

/* The working directory is not normalised: behind a symbolic link `..` is another one than the text suggests. */
static const char *directory(void) {
    char *path = space(2 * 4096), *end = path;
    struct statx is = {0};
    if (!given[CWD] || *given[CWD] != '/') {
        if (call(getcwd, path, 4096) <= 0 || *path != '/') {
            usual_way();
        }
        end += length_of(path);
        if (given[CWD] && end[-1] != '/') {
            *end++ = '/';
        }
    }
    if (given[CWD]) {
        end = *given[CWD] ? json_plain(end, path + 4096 + 4000, given[CWD]) : NULL;
    }
    if (!end) {
        usual_way();
    }
    *end = 0;
    if (call(statx, AT_FDCWD, path, 0, STATX_TYPE, &is) || (is.stx_mode & S_IFMT) != S_IFDIR) {
        usual_way();
    }
    return path;
}

/* The shell of -c: the user's, where the daemon knows it; otherwise it takes bash. */
static const char *shell(void) {
    static const char *const known[] = {"bash", "zsh", "fish", "dash"};
    const char *path = variable("SHELL"), *name = path;
    for (const char *p = path; p && *p; p++) {
        name = *p == '/' ? p + 1 : name;
    }
    for (unsigned n = 0; n < sizeof known / sizeof *known; n++) {
        if (path && *path == '/' && same(known[n], name) && !call(faccessat, AT_FDCWD, path, 1 /* X_OK */)) {
            return path;
        }
    }
    return NULL;
}

static char *member(char *to, const char *limit, const char *name, const char *value) {
    return value ? json_string(json_plain(to, limit, name), limit, value) : to;
}

static void request_wrap(void) {
    char *begin = room, *limit = begin + MOST_SENT_BYTES, *to = begin;
    room = limit;
    const char *session = given[SESSION] && *given[SESSION] ? given[SESSION] : variable("SANDBOXD_SESSION");
    const char *key = session ? after("auto", session) : NULL;
    if (key && (!*key || *key == ':')) {
        usual_way();
    }
    to = json_plain(to, limit, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"wrap\",\"params\":{");
    to = member(to, limit, "\"cwd\":", directory());
    to = json_plain(to, limit, ",\"env\":{");
    const char *comma = "";
    for (unsigned n = 0; n < sizeof sent_variables / sizeof *sent_variables; n++) {
        const char *value = variable(sent_variables[n]);
        if (value && is_utf8(value)) {
            to = json_string(json_plain(to, limit, comma), limit, sent_variables[n]);
            to = member(to, limit, ":", value);
            comma = ",";
        }
    }
    to = json_plain(to, limit, "}");
    to = member(to, limit, ",\"session_id\":", session && *session ? session : NULL);
    to = member(to, limit, ",\"command_id\":", given[COMMAND_ID]);
    to = member(to, limit, ",\"command\":", given[LINE]);
    to = member(to, limit, ",\"shell\":", given[LINE] ? shell() : NULL);
    if (!given[LINE]) {
        to = json_plain(to, limit, ",\"argv\":");
        for (char **word = command; *word; word++) {
            to = member(to, limit, word == command ? "[" : ",", *word);
        }
        to = json_plain(to, limit, "]");
    }
    to = json_plain(to, limit, "}}\n");
    if (!to) {
        usual_way();
    }
    connect_to_daemon();
    ask(begin, to);
}

static const char *wanted(const char *object, const char *name, char kind) {
    const char *value = json_member(object, name);
    if (!value || *value != kind) {
        hand_over();
    }
    return value;
}

static char *text(const char *string) {
    char *decoded = json_text(string, &room);
    if (!decoded) {
        hand_over();
    }
    return decoded;
}

static unsigned count(const char *container) {
    unsigned n = 0;
    for (const char *one = json_first(container); one; one = json_next(*container == '{' ? json_value(one) : one)) {
        n++;
    }
    return n;
}

static char **texts(const char *array) {
    char **list = space((count(array) + 1) * sizeof *list);
    unsigned n = 0;
    for (const char *one = json_first(array); one; one = json_next(one)) {
        list[n++] = text(one);
    }
    list[n] = NULL;
    return list;
}

static int has(char **list, const char *entry) { /* with the same name */
    for (; *list; list++) {
        const char *a = *list, *b = entry;
        while (*a == *b && *a && *a != '=') {
            a++;
            b++;
        }
        if ((!*a || *a == '=') && *b == '=') {
            return 1;
        }
    }
    return 0;
}

/* The caller's variables with the daemon's changes. Of two with one name the first counts, as for Python. */
static char **variables(const char *changes) {
    char **unset = texts(wanted(changes, "unset", '['));
    const char *set = wanted(changes, "set", '{');
    unsigned n = 0, inherited = 0;
    while (environment[inherited]) {
        inherited++;
    }
    char **made = space((count(set) + inherited + 1) * sizeof *made);
    for (const char *one = json_first(set); one; one = json_next(json_value(one))) {
        char *name = text(one), *value = text(json_value(one));
        value[-1] = '='; /* they lie behind each other */
        made[n++] = name;
    }
    made[n] = NULL;
    for (char **one = environment; *one; one++) {
        if (!has(made, *one) && !has(unset, *one) && **one != '=' && has((char *[]){*one, NULL}, *one)) {
            made[n++] = *one;
            made[n] = NULL;
        }
    }
    return made;
}

static int has_layer(const char *layers, const char *start) {
    for (const char *one = json_first(layers); one; one = json_next(one)) {
        if (*one == '"' && after(start, one + 1)) {
            return 1;
        }
    }
    return 0;
}

static int is_terminal(void) {
    char settings[256];
    return !call(ioctl, 2, TCGETS, settings);
}

/* Whether the command may have left something in a /tmp that goes with its session. Which, and what to say, is for
 * Python to tell. */
static void look_for_kept(const char *directory, const struct timespec *begun) {
    char entries[4096] __attribute__((aligned(8)));
    long fd = *directory ? call(openat, AT_FDCWD, directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1, size;
    while (fd >= 0 && (size = call(getdents64, fd, entries, sizeof entries)) > 0) {
        for (char *one = entries; one < entries + size; one += *(unsigned short *)(one + 16)) {
            const char *name = one + 19; /* behind inode, offset, length and kind: getdents64(2) */
            struct statx is = {0};
            if (same(".", name) || same("..", name)) {
                continue;
            }
            call(statx, fd, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &is);
            int later = is.stx_ctime.tv_sec > begun->tv_sec
                        || (is.stx_ctime.tv_sec == begun->tv_sec && is.stx_ctime.tv_nsec >= (unsigned)begun->tv_nsec);
            if (later && (is.stx_mode & S_IFMT) != S_IFCHR) { /* those of a character device are removals */
                hand_over();
            }
        }
    }
    drop(fd);
}

/* The daemon knows what was blocked, and whether the command ran at all. */
static void look_at_outcome(const char *id) {
    static const char beginning[] =
        "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"wrap.outcome\",\"params\":{\"wrap_id\":";
    unsigned long length = 6 * length_of(id) + sizeof beginning + 32;
    char *begin = space(length), *limit = begin + length;
    char *to = json_plain(member(begin, limit, beginning, id), limit, "}}\n");
    ask(begin, to);
    const char *outcome = answer("2");
    const char *started = outcome ? json_member(outcome, "started") : NULL;
    const char *outdated = outcome ? json_member(outcome, "outdated") : NULL;
    const char *lost = outcome ? json_member(outcome, "violations_lost") : NULL;
    if (!started || *started != 't' || (outdated && *outdated != 'f') || (lost && *lost != '0') || now.status == 126
        || now.status == 127 || json_first(wanted(outcome, "violations", '['))) {
        hand_over();
    }
}

__attribute__((used)) _Noreturn void begin(long *stack) {
    struct timespec begun;
    words = (char **)(stack + 1) + 3;
    environment = (char **)(stack + 1) + stack[0] + 1;
    if (stack[0] < 3) {
        exit_with(NOT_RUN);
    }
    word_count = (unsigned)stack[0] - 3;
    room = (char *)call(mmap, 0, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    if ((long)room < 0 && (long)room > -4096) {
        fail("reserve memory: the limit of address space is too low (ulimit -v)", "");
    }
    room_end = room + ROOM;
    read_options();
    long fd;
    do { /* no other file gets the number of a standard stream that is closed */
        fd = call(openat, AT_FDCWD, "/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= 2);
    drop(fd);
    request_wrap();
    const char *wrapped = answer("1");
    if (!wrapped || json_first(wanted(wrapped, "warnings", '['))) {
        hand_over();
    }
    const char *layers = wanted(wrapped, "layers", '['), *tmp = json_member(wrapped, "tmp");
    char **argv = texts(wanted(wrapped, "argv", '['));
    char **with = variables(wanted(wrapped, "env", '{'));
    char *where = text(wanted(wrapped, "cwd", '"')), *id = text(wanted(wrapped, "wrap_id", '"'));
    tmp = tmp ? text(tmp) : "";
    if (!argv[0] || *argv[0] != '/') {
        hand_over();
    }
    call(clock_gettime, 5 /* CLOCK_REALTIME_COARSE, by which files are dated */, &begun);
    char *point = put(put(now.begun, decimal((unsigned)begun.tv_sec)), "."), *digits = point;
    for (unsigned long unit = 100000000; unit; unit /= 10) {
        *digits++ = (char)('0' + (unsigned long)begun.tv_nsec / unit % 10);
    }
    now.status = run(argv, with, where);
    int status = now.status, tells = !given[QUIET];
    now.pid = 0;
    if (tells) {
        look_for_kept(tmp, &begun);
    }
    int limits = has_layer(layers, "memory-limit") || has_layer(layers, "time-limit");
    int limited = (status >= NOT_RUN && limits) || (status && has_layer(layers, "tmp-limit"));
    if (status == 1 || status == NOT_RUN || limited || (tells && (status || is_terminal()))) {
        look_at_outcome(id);
    }
    exit_with(status);
}
