/* The command in the front's place: same terminal and process group. foreground.py describes how signals are treated;
 * here the command is spawned and waited for, and the first signal that is to be passed on is left to Python, with the
 * command. It goes on as the same process, with the same signals blocked. */
#include <linux/sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "front.h"

#define BIT(signal) (1ull << ((signal) - 1))

static const char forwarded[] = {SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2};

int numbers_of(const char *described);

static int is_ignored(int signal) {
    long is[4] = {0};
    call(rt_sigaction, signal, 0, is, 8);
    return *is == 1; /* SIG_IGN */
}

/* A command may signal its process group, which the front is in. It knows that already. */
static int is_meant(const siginfo_t *info) {
    if (info->si_code > 0) { /* of the kernel: the keys of a terminal reach the command too, a hangup does not */
        return info->si_signo == SIGHUP;
    }
    char path[64];
    put(put(put(path, "/proc/"), decimal((unsigned)info->si_pid)), "/status");
    int sender = numbers_of(path), own = numbers_of("/proc/self/status");
    return !sender || !own || sender == own;
}

static int wait_for(const uint64_t *waited) {
    for (;;) {
        siginfo_t info = {0};
        int status;
        long number = call(rt_sigtimedwait, waited, &info, 0, 8);
        if (number == SIGCHLD) {
            if (call(wait4, now.pid, &status, WNOHANG, 0) > 0) {
                return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            }
        } else if (number > 0 && number != SIGALRM && is_meant(&info)) {
            now.signal = (int)number;
            hand_over();
        }
    }
}

int run(char **argv, char **variables, const char *directory) {
    uint64_t waited = BIT(SIGALRM) | BIT(SIGCHLD), mask;
    int *failed = (int *)call(mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
    if ((long)failed < 0) {
        hand_over();
    }
    for (unsigned n = 0; n < sizeof forwarded; n++) {
        waited |= is_ignored(forwarded[n]) ? 0 : BIT(forwarded[n]);
    }
    if (is_ignored(SIGCHLD)) { /* inherited; a child would leave no status */
        dispose(SIGCHLD, SIG_DFL);
    }
    call(rt_sigprocmask, SIG_BLOCK, &waited, &mask, 8);
    now.pid = call(clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
    if (!now.pid) {
        *failed = 1;
        if (!call(chdir, directory)) {
            dispose(SIGPIPE, SIG_DFL);
            dispose(SIGXFSZ, SIG_DFL);
            call(rt_sigprocmask, SIG_SETMASK, &mask, 0, 8);
            *failed = 0;
            call(execve, argv[0], argv, variables);
            *failed = 1;
        }
        exit_with(127);
    }
    if (now.pid < 0 || *failed) {
        if (now.pid > 0) {
            call(wait4, now.pid, 0, 0, 0);
        }
        now.pid = 0;
        call(rt_sigprocmask, SIG_SETMASK, &mask, 0, 8);
        hand_over();
    }
    int status = wait_for(&waited);
    call(rt_sigprocmask, SIG_SETMASK, &mask, 0, 8); /* another try of Python's begins with what was inherited */
    return status;
}
