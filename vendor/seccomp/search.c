/* Finding the program of a command. */
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
