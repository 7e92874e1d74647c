/* What the helper's source files share: what the daemon is told and says (docs/helper.md), and each other's ends. */
#pragma once
#include "kernel.h"

enum {
    READ = 1,
    WRITE = 2,
    UNIX_SOCKET = 3,
    MADE = 4
}; /* the access that is reported; of MADE the error is an inode, or 0 */

enum { BRIDGE = 3 /* the descriptor of the connection to the daemon */ };

/* To the daemon: frames of type, length of the payload, payload. */
enum {
    TICKET = 1,
    DESCRIPTORS = 2,
    STARTED = 3,
    EXIT = 4,
    EXEC_FAILED = 5,
    FAILED = 6,
    REFUSED = 7,
    LOST = 8,
    CONNECTING = 9,
    LISTENS = 10,
    MAX_PAYLOAD = 1024
};

/* From the daemon: the bwrap options (one byte and a descriptor), the configuration, then control bytes; an ANSWER is
 * followed by two numbers, the question and an error number. */
enum {
    OPTIONS_FOLLOW = 'A',
    GO = 'G',
    CLAIM = 'C', /* of a prepared sandbox: the words of its command follow */
    KILL = 'K',
    ANSWER = 'R',
    AGAIN = 'Q',
    HARMLESS = 'H',
    PARTLY = 'P',
    OFF = 'O',
    TEXT_SIZE = 400 /* bytes of each of the two texts that follow OFF */
};

enum { MAGIC = 0x43584253, VERSION = 3, MAX_LISTENERS = 16, MAX_ARGUMENTS = 4 << 20, MAX_PORTS = 64, MAX_ERRNO = 4095 };

enum {
    WAIT = 1,
    UNFILTERED = 2,
    WATCHED = 4,
    INTERNET = 8,
    UNIX = 16,
    CONFINED = 32,
    BOUNDED = 64,
    QUIET = 128,
    STAY = 256,
    IDENTIFY = 512,
    SERVERS = 1024,
    GUARD = 2048,
    REFUSES_OWNERS = 4096,
    PREPARED = 8192,
    KNOWN_FLAGS = 16383
};

struct listener {
    uint32_t backlog, address_length;
    uint16_t family, port;
    uint8_t rest_of_address[24];
};

struct ports {
    uint16_t first, last;
}; /* of the loopback, where a connect is asked about as it is elsewhere */

struct configuration {
    uint32_t magic, version, length, flags, grace_ms, listeners, filter_length, arguments, arguments_length, ports,
        removals;
    struct listener listener[]; /* then the ports, the filter, with BOUNDED a limit on processes (32 bits), with
                                  * CONFINED the confinement, with GUARD the guard, and with a zero byte after each:
                                  * patterns of names of variables to be removed, the roots of the confinement, the
                                  * zones, the guarded names, and the arguments (`arguments` counts all) */
};

/* For Landlock, in its numbers: the accesses to files that it handles, the scopes, the flags with which it is put in
 * force, and the accesses granted below each root. */
struct confinement {
    uint32_t handled, scoped, flags, granted, roots;
};

/* Names that stay absent: the accesses granted below each zone, the number of zones (mounts), and of names. */
struct guard {
    uint32_t granted, zones, names;
};

/* Descriptors that the programs hand on. */
enum { EXECUTABLE = 4, OWNER = 5, BWRAP = 6, OPTIONS = 7, INFO = 8, REPORT = 3 /* in the child, for BRIDGE */ };

enum { SETUP_FAILED = 125, ANSWER_WITHIN_S = 30 };

/* say.c */
extern enum peer { NO_PEER, THE_DAEMON, INIT } listens; /* at the other end of descriptor 3 */

extern int command; /* its pid in the namespace; 0 until it has been forked */
extern const char restart[], try_again[], not_by_hand[], owner_ended[], see_check[];
int tell(uint32_t type, const void *payload, unsigned length); /* whether it has been sent */
_Noreturn void fail(int status, const char *what, const char *name, long error, const char *hint);
_Noreturn void refuse(const char *what, long error, const char *hint);

/* apply-seccomp.c, for what is read before the start */
enum { FROM_BRIDGE = 1, FROM_SIGNALS = 2, FROM_CHILD = 4, FROM_NOTIFIER = 8, FROM_TIMER = 16 };

struct timespec;
extern int signals;
int wait_for_news(int child, struct timespec *left);

/* claim.c */
int read_before_start(void *to, unsigned long size, int may_wait); /* 0: it may not, and there is nothing yet */
void take_command(char ***arguments, char ***environment);

/* landlock.c */
long grant_below(long set, const char *path, uint64_t access);
extern const struct confinement *confinement; /* NULL where there is none */
char **take_roots(char **from);               /* returns what comes after them */
long confine(void);
int holds_back(const char *path);           /* whether nothing may be written, made or removed there */
extern int terminal_stops;                  /* the terminal has stopped the whole job */
int pass_on_stop(long command, int status); /* whether it has stopped, and has not ended */
_Noreturn void probe_landlock(void);

/* streams.c: why this descriptor may not be a standard stream of the command, what the kernel calls it, and what to do
 * instead; or NULL. */
const char *refused_as_stream(int fd, const char **name, const char **hint);

/* search.c */
long search_and_exec(char **arguments, char **environment);
long lower_limit(int which, uint64_t soft, uint64_t hard);
void remove_variables(char **environment, char **patterns, unsigned count);

enum { VEIL = 1 }; /* in front of each environment entry that is for the command only */

void unveil(char **environment);

/* notifications.c: system calls that wait for init, and the reports on them. */
extern int notifier, timer; /* descriptors to be waited for, or -1 */
extern uint32_t watched;    /* the flags of the configuration */

struct process {
    uint32_t pid;
    char name[16];
    uint32_t mask;
    uint64_t signals; /* that wait to be caught */
};
struct seccomp_notif;

enum { NEW_LISTENER = 8, KILLABLE = NEW_LISTENER | 32 /* WAIT_KILLABLE_RECV, Linux 5.19 */, NOT_KILLABLE = 200 };

long install(const void *filter, int flags); /* the descriptor of the notifier, 0, or minus an error number */
void watch(int given, uint32_t flags);
void on_notification(void);
void on_timer(void);
void send_reports(void);
void note_server(void); /* which the daemon is told of soon */
void drop_reports(void);
long respond(uint64_t id, long result); /* with minus an error number, or what the call returns. 0: it was waiting */
void let_go_on(uint64_t id);
int still_waits(uint64_t id);
long tell_notifier(unsigned long request, const void *argument);
void set_timer(unsigned ms);
void report(const struct seccomp_notif *call, uint32_t access, long error, const char *path);
struct process process_of(uint32_t thread);
long read_memory(uint32_t thread, uint64_t from, void *to, unsigned long size);
long open_in_proc(uint32_t thread, const char *name, int number, int flags);
long open_directory(uint32_t thread, int fd, const char *below); /* where that path begins */
_Noreturn void probe(void);

/* verdicts.c: a place. `cover`: one of the empty directories, or the unreadable file, which stand for what is denied.
 * `keeps_absent`: what sandboxd has mounted where a name has to stay absent, or on the way to one: sticky, as nothing
 * else that one user alone may write. A file is empty, a directory has to be, but for others of its kind. */
struct place {
    uint32_t mode;
    uint64_t mount;
    int exists, is_root, read_only, cover, keeps_absent, is_anothers;
};

enum need { READS, WRITES, MAKES, REMOVES, CHANGES };

/* Of a name that is removed: a directory (AT_REMOVEDIR) or not (0). In place of an error: it is absent outside. */
enum { EITHER = 1, DONE = -1, ABSENT = -2, TEMPORARY = 020000000 /* __O_TMPFILE */ };

/* The error number that the mounts are the reason of, or 0; then `found` is where. ABSENT: what is to be removed is not
 * there, which the kernel would say where it can be written. */
long judge(long directory, char *whole, enum need need, uint64_t flags, struct place *at);
long judge_rename(long from, long to, uint64_t flags);
void report_making(const struct seccomp_notif *call, const char *path); /* where the mounts refuse it */
long look(long directory, const char *path, uint64_t flags, uint64_t resolve);

/* sockets.c: other calls on sockets. Whether it was one, which is answered there. */
int on_socket(const struct seccomp_notif *call);
int is_alone(void); /* no other thread or process can exchange the descriptors of the caller while it waits */
void send_permitted(const struct seccomp_notif *call, int place);

/* unix.c: the files of Unix sockets. */
int is_own(int place); /* bound in this sandbox */
int is_same(int place, int other);
long find_socket(const struct seccomp_notif *call, const char *path);
unsigned address_of(long place, void *to); /* returns its length, 32 at most */
void note_time(int64_t *now);
void keep_bound(uint32_t thread, int socket, const char *path, const int64_t *began);

/* connects.c: connections that are asked about, and those that are made here. */
long hand_over(int report, int notifier, uint32_t flags); /* 0, or minus an error number */
long take_over(int report, int child, uint32_t notifier);
void on_connect(const struct seccomp_notif *call);

/* Of the last call whose socket was duplicated: its process, the links of its directory of threads, and the domain. */
extern struct caller {
    uint32_t thread, links;
    int process, tasks, domain;
} *caller;

long duplicate(const struct seccomp_notif *call); /* the socket that is the first argument, or an error */
/* Forks, to do what may take long: 0 in the child, which answers or ends with an error number. The socket is the
 * parent's to close only where there is an error. */
long in_a_child(const struct seccomp_notif *call, int socket, const char *bound_to);
int is_foreign(int socket);                                           /* made in another network than this one */
long refuse_foreign(const struct seccomp_notif *call);                /* reports that; -EACCES */
int ask_before_sending(const struct seccomp_notif *call, int target); /* 0: too many wait. The target is closed there */
void on_answer(uint32_t question, uint32_t error);
void ask_again(void);
void end_questions(void);
void connect_ended(int child, int status); /* which may have been another's */
int drop_interrupted(void);                /* how many still wait */
void ask_about_ports(const struct ports *first, unsigned count);

/* Calls of the command that write, make, remove or change a file: where their arguments are. */
enum { NOWHERE = -1, PATH = 4096 };

struct shape {
    short number;
    signed char directory, path, flags; /* which argument */
    unsigned char kind;
    unsigned short fixed; /* flags, or of a name that is made the type of file */
};

enum { OPENED, FILE_WRITTEN, NAME_MADE, NAME_REMOVED, FILE_CHANGED, RENAMED, LINKED };

enum { GOES_ON = 1 << 24, ANSWERED }; /* instead of what a call returns: made by the caller; nothing left to do */

extern char path[2][PATH], found[PATH + PATH + 2];
int is_here_or_above(const char *name);
long read_path(uint32_t thread, uint64_t from, char *to); /* its length */
long look_above(long directory, char *whole, char *part, uint64_t magic);
void name_below(long fd, const char *part); /* into `found` */

/* modes.c */
enum { NO_OWNER = -1 };

int special(const struct seccomp_notif *asked);
long change(const struct seccomp_notif *asked, long fd);
long on_descriptor(const struct seccomp_notif *asked);
int is_read_only(long fd); /* its mount; notifications.c */

/* guard.c */
extern const struct guard *guard; /* NULL where there is none */
char **take_guard(char **from);
int is_guard_possible(void);
void keep_mask(void);  /* for the command, before it exists */
void find_zones(void); /* once all mounts are there */
long confine_zones(long set);

enum { FREE, GUARDED, LEADS_TO_ONE };

int relation_of(const char *path);
int is_guarded(long fd); /* its path, into `found` */
long on_behalf(const struct seccomp_notif *asked, const struct shape *shape, long *from, long to, uint64_t flags);
long on_rights(const struct seccomp_notif *asked);
