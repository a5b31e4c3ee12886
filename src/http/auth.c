#include "http/auth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "os/machine.h"

#define MAX_KEY_FILE (1u << 20)

void kv_keys_init(kv_keys *k) {
    KV_CHECK(pthread_rwlock_init(&k->lock, NULL) == 0);
    k->list = NULL;
    k->n = 0;
}

void kv_keys_free(kv_keys *k) {
    free(k->list);
    k->list = NULL;
    k->n = 0;
    pthread_rwlock_destroy(&k->lock);
}

/* False when `text` cannot be a key. */
static bool key_from(kv_key *key, const char *text, size_t n) {
    memset(key, 0, sizeof *key);
    if (n == 0 || n > KV_KEY_MAX) return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] <= ' ' || text[i] == 0x7f) return false;
    memcpy(key->bytes, text, n);
    return true;
}

typedef struct key_set {
    kv_key *list;
    int n;
} key_set;

static void add_key(key_set *set, const kv_key *key) {
    set->list = kv_realloc(set->list, ((size_t)set->n + 1) * sizeof *set->list);
    set->list[set->n++] = *key;
}

static kv_status add_given(key_set *set, const char *const *given, int n, kv_error *err) {
    for (int i = 0; i < n; i++) {
        kv_key key;
        if (!key_from(&key, given[i], strlen(given[i])))
            return kv_fail_field(err, "--api-key", "an API key is 1 to %d bytes without spaces; number %d is not",
                                 KV_KEY_MAX, i + 1);
        add_key(set, &key);
    }
    return KV_OK;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}

/* The next word of [*p, stop), its length in *n; 0 at the end. */
static const char *next_word(const char **p, const char *stop, size_t *n) {
    while (*p < stop && is_blank(**p)) (*p)++;
    const char *word = *p;
    while (*p < stop && !is_blank(**p)) (*p)++;
    *n = (size_t)(*p - word);
    return word;
}

static bool scope_from(kv_rights *rights, const char *name, size_t n) {
    if (n == 0 || n > KV_KEY_SCOPE_MAX) return false;
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && c != '.' && c != '_' && c != '-') return false;
    }
    bool is_default = n == 7 && memcmp(name, "default", 7) == 0;
    snprintf(rights->scope, sizeof rights->scope, "%.*s", is_default ? 0 : (int)n, name);
    return true;
}

/* KEY [scope=NAME] [admin] */
static bool key_from_line(kv_key *key, const char *line, const char *stop) {
    size_t n;
    const char *word = next_word(&line, stop, &n);
    bool scoped = false;
    if (!key_from(key, word, n)) return false;
    while (word = next_word(&line, stop, &n), n > 0) {
        bool is_scope = n > 6 && memcmp(word, "scope=", 6) == 0, is_admin = n == 5 && memcmp(word, "admin", 5) == 0;
        if ((is_scope && scoped) || (!is_scope && !is_admin)) return false;
        if (is_admin) key->rights.admin = true;
        else scoped = true;
        if (is_scope && !scope_from(&key->rights, word + 6, n - 6)) return false;
    }
    return true;
}

static kv_status add_file(key_set *set, const char *file, kv_error *err) {
    kv_buf text = {0};
    kv_status status = kv_file_read(&text, file, MAX_KEY_FILE, err);
    int before = set->n, number = 0;
    for (const char *p = kv_buf_str(&text), *end = p + text.len; status == KV_OK && p < end;) {
        const char *newline = memchr(p, '\n', (size_t)(end - p)), *stop = newline ? newline : end;
        const char *next = newline ? newline + 1 : end;
        number++;
        while (p < stop && (*p == ' ' || *p == '\t')) p++;
        while (stop > p && (stop[-1] == ' ' || stop[-1] == '\t' || stop[-1] == '\r')) stop--;
        kv_key key;
        if (p < stop && *p != '#') {
            if (key_from_line(&key, p, stop)) add_key(set, &key);
            else /* without the line's words: any of them may be part of a key */
                status = kv_fail_field(err, "--api-key-file",
                                       "%s line %d: a line is KEY [scope=NAME] [admin], KEY 1 to %d bytes without "
                                       "spaces, NAME 1 to %d letters, digits, dots, '_' and '-'",
                                       file, number, KV_KEY_MAX, KV_KEY_SCOPE_MAX);
        }
        p = next;
    }
    if (status == KV_OK && set->n == before)
        status = kv_fail_field(err, "--api-key-file", "%s has no key in it; write one a line", file);
    kv_buf_free(&text);
    return status;
}

kv_status kv_keys_load(kv_keys *k, const char *const *given, int n, const char *file, kv_error *err) {
    key_set set = {0};
    kv_status status = add_given(&set, given, n, err);
    if (status == KV_OK && file) status = add_file(&set, file, err);
    if (status != KV_OK) {
        free(set.list);
        return status;
    }
    pthread_rwlock_wrlock(&k->lock);
    kv_key *old = k->list;
    k->list = set.list;
    k->n = set.n;
    pthread_rwlock_unlock(&k->lock);
    free(old);
    return KV_OK;
}

bool kv_keys_any(kv_keys *k) {
    pthread_rwlock_rdlock(&k->lock);
    bool any = k->n > 0;
    pthread_rwlock_unlock(&k->lock);
    return any;
}

/* Constant time over both records. volatile keeps the compiler from stopping at the first difference. */
static unsigned differ(const kv_key *a, const kv_key *b) {
    volatile unsigned char d = 0;
    for (size_t i = 0; i < sizeof a->bytes; i++) d = (unsigned char)(d | (a->bytes[i] ^ b->bytes[i]));
    return d;
}

static bool match_one(kv_rights *rights, kv_keys *k, const char *candidate) {
    kv_key key;
    if (!key_from(&key, candidate, strlen(candidate))) return false;
    int found = -1;
    pthread_rwlock_rdlock(&k->lock);
    for (int i = 0; i < k->n; i++) found = differ(&key, &k->list[i]) == 0 ? i : found; /* always through all of them */
    if (found >= 0 && rights) *rights = k->list[found].rights;
    pthread_rwlock_unlock(&k->lock);
    return found >= 0;
}

bool kv_keys_match(kv_rights *rights, kv_keys *k, const char *authorization, const char *x_api_key) {
    if (rights) *rights = (kv_rights){0};
    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0) {
        const char *key = authorization + 7;
        while (*key == ' ') key++;
        if (match_one(rights, k, key)) return true;
    }
    return x_api_key && match_one(rights, k, x_api_key);
}
