/* How the helper's source files call the kernel, and the few functions on text that they share. No C library. */
#pragma once
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
/* call(name, up to five arguments): a result, or minus an error number. In kernel.c: inlined it takes much room. */
long system_call(long number, long a, long b, long c, long d, long e);
long short_system_call(long number, long a, long b, long c);
#define CALL5(n, a, b, c, d, e, ...) system_call(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e))
#define CALL3(n, a, b, c, ...) short_system_call(n, (long)(a), (long)(b), (long)(c))
#define CHOOSE(n, a, b, c, d, e, which, ...) which
#define call(name, ...)                                                         \
    CHOOSE(SYS_##name, ##__VA_ARGS__, CALL5, CALL5, CALL3, CALL3, CALL3, CALL3) \
    (SYS_##name, ##__VA_ARGS__, 0, 0, 0, 0, 0)

static inline void dispose(int signal, void (*how)(int)) {
    call(rt_sigaction, signal, &(long[4]){(long)how}, NULL, 8);
}

static inline unsigned length_of(const char *text) {
    for (unsigned n = 0;; n++) {
        if (!text[n]) {
            return n;
        }
    }
}

/* The rest of a text with that start, otherwise NULL. */
static inline const char *after(const char *start, const char *text) {
    while (*start && *text == *start) {
        text++;
        start++;
    }
    return *start ? NULL : text;
}

static inline const char *decimal(unsigned number) {
    static char digits[12];
    char *p = digits + sizeof digits - 1;
    do {
        *--p = (char)('0' + number % 10);
    } while (number /= 10);
    return p;
}
