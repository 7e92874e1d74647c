/* What the front's files share: the command line in front.c, the daemon in asked.c, the command in foreground.c. */
#pragma once
#include "kernel.h"

enum { MOST_SENT_BYTES = 4 << 20, MOST_READ = 8 << 20 };

/* What becomes of a command. Python goes on from there: with the connection, what was received, and these. */
struct progress {
    int requests; /* that were sent */
    int signal;   /* that is to be passed on to the command; 0: none */
    int status;   /* of the command; -1: it has none yet */
    long pid;     /* of the command; 0: it was not spawned */
    char begun[32];
};

extern char **environment;
extern struct progress now;
extern char *room, *room_end; /* memory to write in, which is never given back */

_Noreturn void usual_way(void); /* Python does all of it */
_Noreturn void hand_over(void); /* Python does the rest */

char *variable(const char *name);

void connect_to_daemon(void);
void ask(const char *request, const char *end);
const char *answer(const char *id); /* the result, or NULL */
long answered(void);                /* a descriptor of all that was received */
extern int connection;

/* Spawns and waits; returns the exit status, or hands over. */
int run(char **argv, char **variables, const char *directory);
