/* What both programs consist of: where they begin, their calls of the kernel, and text. */
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/stat.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include "kernel.h"

#if defined __x86_64__
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");
#elif defined __aarch64__
__asm__(".globl _start\n_start: mov x29, xzr\n mov x30, xzr\n mov x0, sp\n and sp, x0, #-16\n bl begin\n");
#endif

enum { MNT_ID_UNIQUE = 0x4000 /* Linux 6.8; before, numbers of mounts are used again */ };

/* One system call. An interrupted one is made once more: there are no signal handlers, so the process has been stopped
 * and continued. The sixth argument is always zero. */
long short_system_call(long number, long a, long b, long c) {
    return system_call(number, a, b, c, 0, 0);
}

long system_call_of_two(long number, long a, long b) {
    return system_call(number, a, b, 0, 0, 0);
}

long system_call_of_one(long number, long a) {
    return system_call(number, a, 0, 0, 0, 0);
}
#if defined __x86_64__
long system_call(long number, long a, long b, long c, long d, long e) {
    register long rax;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = 0;
    do {
        __asm__ volatile("syscall"
                         : "=a"(rax)
                         : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                         : "rcx", "r11", "memory");
    } while (rax == -EINTR);
    return rax;
}
#elif defined __aarch64__
long system_call(long number, long a, long b, long c, long d, long e) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0");
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = 0;
    do {
        x0 = a;
        __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    } while (x0 == -EINTR);
    return x0;
}
#endif

_Noreturn void exit_with(long status) {
    for (;;) {
        call(exit_group, status);
    }
}

void drop(long fd) {
    if (fd >= 0) {
        call(close, fd);
    }
}

const struct statx *look_at_name(long fd, const char *name) {
    static struct statx is;
    is = (struct statx){0};
    call(statx, fd, name, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW,
         STATX_BASIC_STATS | STATX_BTIME | STATX_MNT_ID | MNT_ID_UNIQUE, &is);
    return &is;
}

const struct statx *look_at(long fd) {
    return look_at_name(fd, "");
}

long open_path(const char *path, long flags) {
    struct open_how how = {.flags = (uint64_t)(O_PATH | O_CLOEXEC | flags), .resolve = RESOLVE_NO_SYMLINKS};
    return call(openat2, AT_FDCWD, path, &how, sizeof how);
}

long send_with(int to, const void *message, unsigned length, const int *descriptor, unsigned count) {
    struct {
        struct cmsghdr head;
        int sent[MOST_SENT];
    } control = {
        .head = {.cmsg_len = CMSG_LEN(count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};

    for (unsigned n = 0; n < count; n++) {
        control.sent[n] = descriptor[n];
    }
    struct msghdr text = {.msg_iov = &(struct iovec){(void *)message, length}, .msg_iovlen = 1};
    if (count) {
        text.msg_control = &control;
        text.msg_controllen = (unsigned)control.head.cmsg_len;
    }
    return call(sendmsg, to, &text, MSG_NOSIGNAL);
}

int dispose(int signal, void (*how)(int)) {
    long before[4] = {0};
    call(rt_sigaction, signal, &(long[4]){(long)how}, before, 8);
    return *before == 1; /* SIG_IGN */
}

unsigned length_of(const char *text) {
    for (unsigned n = 0;; n++) {
        if (!text[n]) {
            return n;
        }
    }
}

const char *after(const char *start, const char *text) {
    while (*start && *text == *start) {
        text++;
        start++;
    }
    return *start ? NULL : text;
}

const char *decimal(unsigned number) {
    static char digits[12];
    char *p = digits + sizeof digits - 1;
    do {
        *--p = (char)('0' + number % 10);
    } while (number /= 10);
    return p;
}

char *put(char *to, const char *text) {
    while ((*to = *text++)) {
        to++;
    }
    return to;
}

char *own_link(long fd) {
    static char link[32];
    put(put(link, "/proc/self/fd/"), decimal((unsigned)fd));
    return link;
}

int own_files = AT_FDCWD;

long name_of(long fd, char *to, unsigned long size) {
    const char *link = own_link(fd) + (own_files == AT_FDCWD ? 0 : sizeof "/proc/self/fd/" - 1);
    long length = call(readlinkat, own_files, link, to, size - 1);
    to[length > 0 ? length : 0] = 0;
    return length;
}

char *last_part(char *of) { /* and takes slashes from its end */
    unsigned n = length_of(of);
    while (n > 1 && of[n - 1] == '/') {
        of[--n] = 0;
    }
    while (n && of[n - 1] != '/') {
        n--;
    }
    return of + n;
}

int option(int socket, int name) {
    int value = -1, size = sizeof value;
    return call(getsockopt, socket, SOL_SOCKET, name, &value, &size) ? -1 : value;
}

uint64_t ignore(uint64_t these) {
    uint64_t before = 0;
    for (int n = 1; n <= 64; n++) {
        before |= (uint64_t)dispose(n, these >> (n - 1) & 1 ? SIG_IGN : SIG_DFL) << (n - 1);
    }
    return before & ~(1ull << (SIGCHLD - 1) | 3ull << 31); /* 32 and 33 are of C libraries, for threads */
}

/* The compiler asks for these by name; volatile, lest it make them of each other. None overlaps in part. */
#if defined __x86_64__
void *memset(void *to, int byte, size_t n) {
    void *at = to;
    __asm__ volatile("rep stosb" : "+D"(at), "+c"(n) : "a"(byte) : "memory");
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t n) {
    void *at = to;
    __asm__ volatile("rep movsb" : "+D"(at), "+S"(from), "+c"(n) : : "memory");
    return to;
}
#else
void *memset(void *to, int byte, size_t n) {
    while (n--) {
        ((volatile char *)to)[n] = (char)byte;
    }
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t n) {
    while (n--) {
        ((volatile char *)to)[n] = ((const char *)from)[n];
    }
    return to;
}
#endif

void *memmove(void *to, const void *from, size_t n) {
    return memcpy(to, from, n);
}
