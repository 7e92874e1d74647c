/* Finding the program of a command, and what it does not get of its environment and of its limits. */
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include "bridge.h"

/* execvp(3): searches PATH, and would rather report the file that may not be executed than those that are not there. */
long search_and_exec(char **arguments, char **environment) {
    const char *name = arguments[0], *path = "/usr/local/bin:/usr/bin:/bin", *end;
    unsigned long length = length_of(name);
    long refused = -ENOENT, error;
    for (char **one = environment; *one; one++) {
        if (after("PATH=", *one)) {
            path = after("PATH=", *one);
        }
    }
    for (const char *p = name; *p; p++) {
        if (*p == '/') {
            return call(execve, name, arguments, environment);
        }
    }
    for (char file[4096 + 256]; length; path = end + 1) {
        for (end = path; *end && *end != ':'; end++) {}
        unsigned long n = (unsigned long)(end - path);
        if (n + length + 2 <= sizeof file) {
            memcpy(file, path, n);
            if (n) {
                file[n++] = '/'; /* an empty entry is the current directory */
            }
            memcpy(file + n, name, length + 1);
            if ((error = call(execve, file, arguments, environment)) == -EACCES) {
                refused = error;
            } else if (error != -ENOENT && error != -ENOTDIR) {
                return error;
            }
        }
        if (!*end) {
            break;
        }
    }
    return refused;
}

/* Whether the name of a variable (it ends before the first `=`) fits a pattern: `*` any characters, `?` one. */
static int fits(const char *name, const char *pattern) {
    const char *star = NULL, *again = name;
    while (*name && *name != '=') {
        if (*pattern == '*') {
            star = pattern++;
            again = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star + 1;
            name = ++again;
        } else {
            return 0;
        }
    }
    while (*pattern == '*') {
        pattern++;
    }
    return !*pattern;
}

void remove_variables(char **environment, char **patterns, unsigned count) {
    char **kept = environment;
    for (char **one = environment; *one; one++) {
        unsigned n = 0;
        while (n < count && !fits(*one, patterns[n])) {
            n++;
        }
        if (n == count) {
            *kept++ = *one;
        }
    }
    *kept = NULL;
}

/* Lowers a limit of the calling process, and raises none. Since Linux 5.14 the kernel counts the processes of a user in
 * each user namespace by itself, so RLIMIT_NPROC is about those of this sandbox (init is one). */
long lower_limit(int which, uint64_t soft, uint64_t hard) {
    struct rlimit now;
    long error = call(prlimit64, 0, which, NULL, &now);
    if (error) {
        return error;
    }
    if (now.rlim_cur > soft) {
        now.rlim_cur = soft;
    }
    if (now.rlim_max > hard) {
        now.rlim_max = hard;
    }
    return call(prlimit64, 0, which, &now, NULL);
}

/* What `veil` has made of an environment, as it was. */
void unveil(char **environment) {
    char **kept = environment, *own = NULL;
    for (char **one = environment; *one; one++) {
        own = after("PWD=", *one) ? *one : own;
    }
    for (char **one = environment; *one; one++) {
        if (**one != VEIL || !own || !after("PWD=", *one + 1)) {
            *kept++ = *one + (**one == VEIL);
        }
    }
    *kept = NULL;
}
