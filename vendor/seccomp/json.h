/* JSON text (RFC 8259), as the front reads and writes it. json_end judges; the others take text that it has judged. */
#pragma once

enum { DEEPEST = 64 };

int is_utf8(const char *text);
const char *json_end(const char *value, int depth);               /* behind the value; NULL: it is none */
const char *json_first(const char *container);                    /* a value, or of an object a name; NULL: none */
const char *json_next(const char *value);                         /* as above, behind an array's or a member's value */
const char *json_value(const char *name);                         /* the member's value */
const char *json_member(const char *object, const char *name);    /* its value, or NULL; the last one counts */
char *json_text(const char *string, char **to);                   /* decoded; NULL: no string, or C cannot hold it */
char *json_string(char *to, const char *limit, const char *text); /* writes; NULL: no room, or not UTF-8 */
char *json_plain(char *to, const char *limit, const char *text);  /* the bytes as they are */
