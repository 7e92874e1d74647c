/* How the helper's source files call the kernel, and the few functions on text that they share. No C library. */
#pragma once
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
/* An interrupted call is made once more: there are no signal handlers, the process has been stopped and continued. */
#if defined __x86_64__
static inline long system_call(long number, long a, long b, long c, long d, long e) {
    register long rax, r10 __asm__("r10") = d, r8 __asm__("r8") = e;
    do __asm__ volatile("syscall" : "=a"(rax) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                                  : "rcx", "r11", "memory"); while (rax == -EINTR);
    return rax;
}
#elif defined __aarch64__
static inline long system_call(long number, long a, long b, long c, long d, long e) {
    register long x8 __asm__("x8") = number, x0 __asm__("x0"), x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = e;
    do { x0 = a; __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory"); }
    while (x0 == -EINTR);
    return x0;
}
#endif
/* call(name, up to five arguments): a result, or minus an error number. */
#define CALL(n, a, b, c, d, e, ...) system_call(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e))
#define call(name, ...) CALL(SYS_##name, ##__VA_ARGS__, 0, 0, 0, 0, 0)
static inline void dispose(int signal, void (*how)(int)) { call(rt_sigaction, signal, &(long[4]){(long)how}, NULL, 8); }
static inline unsigned length_of(const char *text) {
    for (unsigned n = 0;; n++)
        if (!text[n]) return n;
}
/* The rest of a text with that start, otherwise NULL. */
static inline const char *after(const char *start, const char *text) {
    while (*start && *text == *start) text++, start++;
    return *start ? NULL : text;
}
static inline const char *decimal(unsigned number) {
    static char digits[12];
    char *p = digits + sizeof digits - 1;
    do *--p = (char)('0' + number % 10); while (number /= 10);
    return p;
}
