/* The front and the daemon: where it listens, whether that is a place and a process to trust, and what it answers.
 * The rules are those of the Python client, location.py and connection.py. Where one is not met, Python says it. */
#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/stat.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include "front.h"
#include "json.h"

enum { PEERPIDFD = 77, WITHIN_S = 10 };

int connection = -1;
static char *received, *received_end, *read_until;

static void require_owned(const char *path, unsigned type, unsigned forbidden, long uid) {
    struct statx is = {0};
    call(statx, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &is);
    if ((is.stx_mode & S_IFMT) != type || is.stx_mode & forbidden || is.stx_uid != uid) {
        usual_way();
    }
}

static void find_socket(struct sockaddr_un *address) {
    const char *given = variable("SANDBOXD_SOCKET"), *runtime = variable("XDG_RUNTIME_DIR");
    long uid = call(geteuid);
    char *path = address->sun_path, *limit = path + sizeof address->sun_path - 1, *end;
    if (given && *given) {
        end = json_plain(path, limit, given);
    } else if (runtime && *runtime == '/') {
        end = json_plain(path, limit, runtime);
        while (end && end > path && end[-1] == '/') {
            end--;
        }
        end = json_plain(end, limit, "/sandboxd/sandboxd.sock");
    } else {
        end = json_plain(json_plain(path, limit, "/tmp/sandboxd-"), limit, decimal((unsigned)uid));
        end = json_plain(end, limit, "/sandboxd.sock");
    }
    if (!end || *path != '/') {
        usual_way();
    }
    *end = 0;
    require_owned(path, S_IFSOCK, 0, uid);
    char directory[sizeof address->sun_path], *last;
    put(directory, path);
    last = last_part(directory);
    *last = 0;
    last_part(directory);
    require_owned(directory, S_IFDIR, 077, uid);
}

/* How many numbers a process has: one for each pid namespace that it is in, as seen from here; 0 where it has ended. */
int numbers_of(const char *described) {
    char text[16384], *p = text; /* the line before it has all groups of the process */
    long fd = call(openat, AT_FDCWD, described, O_RDONLY | O_CLOEXEC), size = call(read, fd, text, sizeof text - 1);
    drop(fd);
    text[size > 0 ? size : 0] = 0;
    const char *rest = NULL;
    while (*p && !(rest = after("\nNSpid:", p))) {
        p++;
    }
    int count = 0;
    for (; rest && *rest && *rest != '\n'; rest++) {
        if (*rest == '-') {
            return 0;
        }
        count += *rest > ' ' && (rest[-1] <= ' ' || rest[-1] == ':');
    }
    return count;
}

/* Its answers are executed. A process in a sandbox has a pid namespace of its own. */
static int is_outside(void) {
    struct {
        int pid, uid, gid;
    } peer = {0}; /* struct ucred */

    char path[64];
    int pidfd = -1, size = sizeof peer;
    if (call(getsockopt, connection, SOL_SOCKET, SO_PEERCRED, &peer, &size)) {
        return 0;
    }
    if (!peer.pid) {
        return 1;
    }
    size = sizeof pidfd;
    long error = call(getsockopt, connection, SOL_SOCKET, PEERPIDFD, &pidfd, &size);
    if (!error) {
        put(put(path, "/proc/self/fdinfo/"), decimal((unsigned)pidfd));
    } else if (error == -ENOPROTOOPT || error == -EOPNOTSUPP) { /* before Linux 6.5 */
        put(put(put(path, "/proc/"), decimal((unsigned)peer.pid)), "/status");
    } else {
        return 0;
    }
    int count = numbers_of(path);
    drop(pidfd);
    return count == 1;
}

void connect_to_daemon(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    find_socket(&address);
    connection = (int)call(socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0 || call(connect, connection, &address, sizeof address) || !is_outside()) {
        usual_way();
    }
    received = received_end = read_until = room;
    room += MOST_READ;
}

void ask(const char *request, const char *end) {
    while (request < end) {
        long sent = call(sendto, connection, request, end - request, MSG_NOSIGNAL);
        if (sent <= 0) {
            if (now.requests) {
                hand_over();
            }
            usual_way(); /* the daemon takes no half of a request */
        }
        request += sent;
    }
    now.requests++;
}

static const char *result(const char *message, const char *id) {
    const char *found = json_member(message, "id"), *end = found ? json_end(found, 0) : NULL;
    int is_it = end && after(id, found) == end && !json_member(message, "method") && !json_member(message, "error");
    found = is_it ? json_member(message, "result") : NULL;
    return found && *found == '{' ? found : NULL;
}

const char *answer(const char *id) {
    char *line = read_until, *end = line;
    const char *found = NULL;
    if (now.requests > 1) { /* no command runs: the end may be told later, or never */
        call(setsockopt, connection, SOL_SOCKET, SO_RCVTIMEO, (&(struct timeval){WITHIN_S, 0}), sizeof(struct timeval));
    }
    for (;; end++) {
        if (end == received_end) {
            long size = received + MOST_READ - 1 - end;
            long got = size ? call(recvfrom, connection, end, size, 0) : 0;
            if (got <= 0) {
                return NULL;
            }
            received_end += got;
        }
        if (*end == '\n') {
            break;
        }
    }
    *end = 0;
    const char *begin = line;
    if (is_utf8(line) && json_end(line, DEEPEST) == end && *begin == '{') {
        found = result(line, id);
    }
    read_until = end + 1;
    *end = found ? 0 : '\n';
    return found;
}

long answered(void) {
    for (char *p = received; p < read_until; p++) {
        *p = *p ? *p : '\n'; /* a NUL is the end of an answer that was read */
    }
    long fd = call(memfd_create, "answers", MFD_CLOEXEC), left = received_end - received;
    for (const char *p = received; left > 0;) {
        long written = call(write, fd, p, left);
        if (written <= 0) {
            return -1;
        }
        p += written;
        left -= written;
    }
    call(lseek, fd, 0, 0);
    return fd;
}
