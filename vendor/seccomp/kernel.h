/* How the helper's source files call the kernel, and the few functions on text that they share. No C library. */
#pragma once
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
/* call(name, up to five arguments): a result, or minus an error number. In kernel.c: inlined it takes much room. */
long system_call(long number, long a, long b, long c, long d, long e);
long short_system_call(long number, long a, long b, long c);
long system_call_of_two(long number, long a, long b);
long system_call_of_one(long number, long a);
#define CALL5(n, a, b, c, d, e, ...) system_call(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e))
#define CALL3(n, a, b, c, ...) short_system_call(n, (long)(a), (long)(b), (long)(c))
#define CALL2(n, a, b, ...) system_call_of_two(n, (long)(a), (long)(b))
#define CALL1(n, a, ...) system_call_of_one(n, (long)(a))
#define CHOOSE(n, a, b, c, d, e, which, ...) which
#define call(name, ...)                                                         \
    CHOOSE(SYS_##name, ##__VA_ARGS__, CALL5, CALL5, CALL3, CALL2, CALL1, CALL1) \
    (SYS_##name, ##__VA_ARGS__, 0, 0, 0, 0, 0)

_Noreturn void exit_with(long status);
void drop(long fd); /* closes it, if it is one */

struct statx;
const struct statx *look_at(long fd);                               /* until the next call; all zero where that fails */
const struct statx *look_at_name(long directory, const char *name); /* the same; follows no symbolic link */

enum { MOST_SENT = 64 };

/* One message with descriptors. */
long send_with(int to, const void *message, unsigned length, const int *descriptor, unsigned count);
long open_path(const char *path, long flags); /* which follows no symbolic link */
int dispose(int signal, void (*how)(int));    /* whether it was ignored */
uint64_t ignore(uint64_t these);              /* and no others; returns the set of those ignored before, but SIGCHLD */
char *put(char *to, const char *text);
char *own_link(long fd);
extern int own_files; /* the directory of the own descriptors, once it is open: a path to it takes long */
long name_of(long fd, char *to, unsigned long size);
char *last_part(char *of);        /* and takes slashes from its end */
int option(int socket, int name); /* of SOL_SOCKET; -1: it has none */
unsigned length_of(const char *text);
const char *after(const char *start, const char *text); /* the rest of a text with that start, otherwise NULL */
const char *decimal(unsigned number);                   /* until the next call */
