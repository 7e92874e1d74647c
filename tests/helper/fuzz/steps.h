/* Programs for `namespaces`, made of a fuzzer's bytes. The daemon writes such programs, and the helper trusts it, so a
 * system call has a number and arguments as the daemon gives them; lengths, kinds, texts and what is said of them are
 * the fuzzer's. Without it no input came behind the first step. */
#pragma once

enum { PROGRAM_ROOM = 64 << 10, STEPS_MOST = 24, PUT = 8 };

static uint8_t put_already[16]; /* a tree is put once: then its descriptor is closed */

static uint32_t *word(uint8_t **at, uint32_t value) {
    uint32_t *here = (uint32_t *)*at;
    *here = value;
    *at += sizeof value;
    return here;
}

static void texts(uint8_t **at, unsigned count) {
    static const char *const known[] = {"/w", "/w/a", "/w/a/b", "/", "a", "", "/w/.git/hooks", "//w//a/"};
    while (count--) {
        const char *text = known[byte() % (sizeof known / sizeof *known)];
        *at = (uint8_t *)stpcpy((char *)*at, text) + 1;
    }
}

static void netlink_body(uint8_t **at) {
    word(at, byte() % 16);
    word(at, byte() % 4);
    for (unsigned rest = byte() % 8; rest; rest--) {
        word(at, byte());
    }
}

static void open_body(uint8_t **at) {
    static const uint32_t lengths[] = {16, 28, 12, 2, 0, 28, 16, 29};
    word(at, byte() % 20);
    word(at, 1 + byte() % 3);
    word(at, byte() % 8);
    word(at, byte() % 4);
    word(at, byte());
    word(at, lengths[byte() % 8]);
    memset(*at, byte(), 28);
    *at += 28;
    for (unsigned options = byte() % 3 * 3; options; options--) {
        word(at, byte());
    }
}

static void mount_body(uint8_t **at) {
    enum { IF_THERE = 1 << 16 };

    uint8_t what = byte(), tree = byte() % sizeof put_already;
    uint32_t how = what % 9;
    if (how == PUT) {
        how = put_already[tree]++ ? 0 : how + tree;
    }
    word(at, how | (what & 128 ? IF_THERE : 0));
    uint32_t *other = word(at, 0);
    uint8_t *start = *at;
    texts(at, 1);
    *other = what & 64 ? byte() : (uint32_t)(*at - start);
    texts(at, 1);
}

static void call_body(uint8_t **at) {
    static const uint32_t numbers[] = {SYS_mount,   SYS_mkdirat,   SYS_mknodat,  SYS_openat, SYS_umask,
                                       SYS_unshare, SYS_open_tree, SYS_fsconfig, SYS_fspick};
    /* which arguments are texts */
    static const uint8_t forms[] = {1 | 2 | 4 | 16, 2, 2, 2, 0, 0, 2, 0, 2};
    unsigned which = byte() % sizeof forms, what = byte();
    word(at, numbers[which]);
    word(at, what % 4);
    for (unsigned n = 0; n < 5; n++) {
        int text = forms[which] >> n & 1;
        word(at, text ? 1 : what & 16 && !n ? 2 : 0);
        word(at, text ? (what & 32 && what & 64 && what & 128 ? byte() : 0) : byte() % 8);
    }
    texts(at, 1);
}

/* Writes a program and returns its length; which step breaks the form, and how, is the fuzzer's as well. */
static long steps(uint8_t *start) {
    uint8_t *at = start;
    for (unsigned count = byte() % STEPS_MOST; count && at < start + PROGRAM_ROOM / 2; count--) {
        uint8_t kind = byte(), *head = at;
        at += 8;
        switch (kind % 6) {
        case 1:
            netlink_body(&at);
            break;
        case 2:
            open_body(&at);
            break;
        case 3:
            mount_body(&at);
            break;
        case 5:
            call_body(&at);
            break;
        }
        while ((at - head) % 4) {
            *at++ = 0;
        }
        uint32_t length = (uint32_t)(at - head) - 8;
        if (kind >= 250) { /* this is the last one that is read */
            length = kind == 255 ? length + 4 : kind == 254 ? 0xfffffffc : kind == 253 ? length + 1 : length & 4;
        }
        memcpy(head, &(uint32_t[]){kind % 6, length}, 8);
        if (kind >= 250) {
            break;
        }
        long size = at - head, copies = kind < 240 ? 0 : kind & 1 ? 1100 : 70; /* more than the tables hold */
        copies = kind % 6 == 3 && ((uint32_t *)head)[2] % (1 << 16) >= PUT ? 0 : copies;
        for (; copies && at + size < start + PROGRAM_ROOM / 2; copies--, at += size) {
            memcpy(at, head, (size_t)size);
        }
    }
    return at - start;
}

/* What the kernel answers to netlink messages: acknowledgements, others, and broken ones. */
static long netlink_replies(uint8_t *to) {
    uint8_t *at = to;
    for (unsigned count = byte() % 5; count; count--) {
        uint8_t what = byte();
        uint32_t length = what < 8 ? what * 3 : 16 + what % 3 * 20;
        memset(at, 0, 80);
        memcpy(at, &length, sizeof length);
        at[4] = what & 64 ? 3 : 2;
        memcpy(at + 16, &(int32_t){what > 240 ? -(int32_t)byte() : 0}, 4);
        at += length < 16 ? 16 : (length + 3) & ~3u;
    }
    return at - to;
}
