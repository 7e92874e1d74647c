/* JSON text. A NUL ends what is read: it is no part of any JSON text, so nothing here reads past it. */
#include "json.h"
#include "kernel.h"

/* The bytes that follow a first byte, and the range of the first of them, which excludes overlong forms, surrogates
 * and what is beyond U+10FFFF (RFC 3629). */
int is_utf8(const char *text) {
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        unsigned more = *p < 0x80 ? 0 : *p < 0xC2 ? 9 : *p < 0xE0 ? 1 : *p < 0xF0 ? 2 : *p < 0xF5 ? 3 : 9;
        unsigned low = *p == 0xE0   ? 0xA0
                       : *p == 0xF0 ? 0x90
                                    : 0x80,
                 high = *p == 0xED   ? 0x9F
                        : *p == 0xF4 ? 0x8F
                                     : 0xBF;
        if (more == 9) {
            return 0;
        }
        for (; more; more--, low = 0x80, high = 0xBF) {
            p++;
            if (*p < low || *p > high) {
                return 0;
            }
        }
    }
    return 1;
}

static const char *blank(const char *p) {
    while (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r') {
        p++;
    }
    return p;
}

static int digit(char c, int base) { /* its value, or -1 */
    int value = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
    return value < base ? value : -1;
}

static long unit(const char *p) { /* of four hexadecimal digits, or -1 */
    long value = 0;
    for (int n = 0; n < 4; n++) {
        int next = digit(p[n], 16);
        if (next < 0) {
            return -1;
        }
        value = value << 4 | next;
    }
    return value;
}

/* What stands for itself behind a backslash, and what for another byte. */
static const char escapes[] = "\"\"\\\\//b\bf\fn\nr\rt\t";

static const char *escaped(char c) {
    const char *p = escapes;
    while (*p && *p != c) {
        p += 2;
    }
    return *p ? p + 1 : NULL;
}

static const char *string_end(const char *p) {
    for (p++; *p != '"'; p++) {
        if ((unsigned char)*p < ' ') {
            return NULL;
        }
        if (*p == '\\') {
            p++;
            if (*p == 'u' && unit(p + 1) >= 0) {
                p += 4;
            } else if (!escaped(*p)) {
                return NULL;
            }
        }
    }
    return p + 1;
}

static const char *digits(const char *p) {
    if (digit(*p, 10) < 0) {
        return NULL;
    }
    while (digit(*p, 10) >= 0) {
        p++;
    }
    return p;
}

static const char *number_end(const char *p) {
    p += *p == '-';
    p = *p == '0' ? p + 1 : digits(p);
    if (p && *p == '.') {
        p = digits(p + 1);
    }
    if (p && (*p | 32) == 'e') {
        p++;
        p = digits(p + (*p == '-' || *p == '+'));
    }
    return p;
}

static const char *container_end(const char *p, int depth) {
    char close = (char)(*p + 2); /* of both pairs */
    p = blank(p + 1);
    if (*p == close) {
        return p + 1;
    }
    for (;; p = blank(p + 1)) {
        if (close == '}') {
            p = *p == '"' ? string_end(p) : NULL;
            p = p ? blank(p) : p;
            if (!p || *p++ != ':') {
                return NULL;
            }
        }
        p = json_end(p, depth);
        p = p ? blank(p) : p;
        if (!p || *p != ',') {
            return p && *p == close ? p + 1 : NULL;
        }
    }
}

const char *json_end(const char *p, int depth) {
    static const char *const words[] = {"true", "false", "null"};
    p = blank(p);
    if (*p == '"') {
        return string_end(p);
    }
    if (*p == '{' || *p == '[') {
        return depth ? container_end(p, depth - 1) : NULL;
    }
    for (unsigned n = 0; n < 3; n++) {
        const char *rest = after(words[n], p);
        if (rest) {
            return rest;
        }
    }
    return number_end(p);
}

const char *json_first(const char *container) {
    const char *p = blank(container + 1);
    return *p == ']' || *p == '}' ? NULL : p;
}

const char *json_next(const char *value) {
    const char *p = blank(json_end(value, DEEPEST));
    return *p == ',' ? blank(p + 1) : NULL;
}

const char *json_value(const char *name) {
    return blank(blank(string_end(name)) + 1);
}

const char *json_member(const char *object, const char *name) {
    const char *found = NULL;
    for (const char *one = *object == '{' ? json_first(object) : NULL; one; one = json_next(json_value(one))) {
        const char *rest = after(name, one + 1);
        if (rest && *rest == '"') {
            found = json_value(one);
        }
    }
    return found;
}

static char *put_character(char *to, long c) {
    if (c < 0x80) {
        *to++ = (char)c;
        return to;
    }
    int shift = c < 0x800 ? 6 : c < 0x10000 ? 12 : 18;
    *to++ = (char)((0xF00 >> (shift / 6 + 1) & 0xFF) | c >> shift); /* as many ones as there are bytes */
    while (shift) {
        shift -= 6;
        *to++ = (char)(0x80 | (c >> shift & 0x3F));
    }
    return to;
}

char *json_text(const char *p, char **to) {
    char *begin = *to, *q = begin;
    if (*p++ != '"') {
        return NULL;
    }
    while (*p != '"') {
        if (*p != '\\') {
            *q++ = *p++;
        } else if (*++p != 'u') {
            *q++ = *escaped(*p++);
        } else {
            long c = unit(p + 1), low = (c & 0xFC00) == 0xD800 && p[5] == '\\' && p[6] == 'u' ? unit(p + 7) : -1;
            p += 5;
            if (low >= 0xDC00 && low <= 0xDFFF) {
                c = 0x10000 + ((c & 0x3FF) << 10) + (low & 0x3FF);
                p += 6;
            }
            if (!c || (c & ~0x7FFl) == 0xD800) {
                return NULL;
            }
            q = put_character(q, c);
        }
    }
    *q++ = 0;
    *to = q;
    return begin;
}

char *json_plain(char *to, const char *limit, const char *text) {
    for (; to && *text; text++) {
        if (to >= limit) {
            return NULL;
        }
        *to++ = *text;
    }
    return to;
}

char *json_string(char *to, const char *limit, const char *text) {
    if (!to || !is_utf8(text) || limit - to < 2) {
        return NULL;
    }
    for (*to++ = '"'; *text; text++) {
        if (limit - to < 8) {
            return NULL;
        }
        if (*text == '"' || *text == '\\') {
            *to++ = '\\';
            *to++ = *text;
        } else if ((unsigned char)*text < ' ') {
            to = json_plain(to, limit, "\\u00");
            *to++ = "01"[*text >> 4];
            *to++ = "0123456789abcdef"[*text & 15];
        } else {
            *to++ = *text;
        }
    }
    *to++ = '"';
    return to;
}
