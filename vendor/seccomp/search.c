/* Finding the program of a command, and what it does not get of its environment. */
#include <fcntl.h>
#include <string.h>
#include "bridge.h"
/* execvp(3): searches PATH, and would rather report the file that may not be executed than those that are not there. */
long search_and_exec(char **arguments, char **environment) {
    const char *name = arguments[0], *path = "/usr/local/bin:/usr/bin:/bin", *end;
    unsigned long length = length_of(name);
    long refused = -ENOENT, error;
    for (char **one = environment; *one; one++)
        if (after("PATH=", *one)) path = after("PATH=", *one);
    for (const char *p = name; *p; p++)
        if (*p == '/') return call(execve, name, arguments, environment);
    for (char file[4096 + 256]; length; path = end + 1) {
        for (end = path; *end && *end != ':'; end++) {}
        unsigned long n = (unsigned long)(end - path);
        if (n + length + 2 <= sizeof file) {
            memcpy(file, path, n);
            if (n) file[n++] = '/'; /* an empty entry is the current directory */
            memcpy(file + n, name, length + 1);
            if ((error = call(execve, file, arguments, environment)) == -EACCES) refused = error;
            else if (error != -ENOENT && error != -ENOTDIR) return error;
        }
        if (!*end) break;
    }
    return refused;
}
/* Whether the name of a variable (it ends before the first `=`) fits a pattern: `*` any characters, `?` one. */
static int fits(const char *name, const char *pattern) {
    const char *star = NULL, *again = name;
    while (*name && *name != '=') {
        if (*pattern == '*') star = pattern++, again = name;
        else if (*pattern == '?' || *pattern == *name) pattern++, name++;
        else if (star) pattern = star + 1, name = ++again;
        else return 0;
    }
    while (*pattern == '*') pattern++;
    return !*pattern;
}
void remove_variables(char **environment, char **patterns, unsigned count) {
    char **kept = environment;
    for (char **one = environment; *one; one++) {
        unsigned n = 0;
        while (n < count && !fits(*one, patterns[n])) n++;
        if (n == count) *kept++ = *one;
    }
    *kept = NULL;
}
