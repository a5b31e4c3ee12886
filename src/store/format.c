/* store/format.c: offsets and validity of a record file; the table stands in format.h and docs/format.md. */
#include "store/format.h"

#include <stdio.h>
#include <string.h>

enum {
    AT_MAGIC = 0,
    AT_VERSION = 8,
    AT_KIND = 10,
    AT_FLAGS = 11,
    AT_HEAD_BYTES = 12,
    AT_NS = 16,
    AT_KEY = 32,
    AT_PARENT = 48,
    AT_Q = 64,
    AT_E = 68,
    AT_N_TOKENS = 72,
    AT_COMPUTE_MS = 76,
    AT_N_PAYLOAD = 80,
    AT_PAYLOAD_HASH = 88,
    AT_SHAPE = 104,
    AT_CREATED = 120,
    AT_ENGINE = 128,
    AT_PLACE = 160,
    AT_KEEP = 164,
    AT_CHECKSUM = 248,
    AT_TOKENS = 256,
    FLAG_CANONICAL = 1,
    MAX_TOKENS = 1 << 24,
};

static const char magic[8] = {'K', 'V', 'A', 'S', 'I', 'R', '\0', '\1'};

const char *kv_place_name(kv_place_kind kind) {
    static const char *const names[KV_PLACE_COUNT] = {
#define X(name, text) text,
        KV_PLACE_TABLE(X)
#undef X
    };
    return (unsigned)kind < KV_PLACE_COUNT ? names[kind] : names[KV_PLACE_UNKNOWN];
}

static void put16(unsigned char *p, uint16_t v) {
    p[0] = (unsigned char)v;
    p[1] = (unsigned char)(v >> 8);
}
static void put32(unsigned char *p, uint32_t v) {
    put16(p, (uint16_t)v);
    put16(p + 2, (uint16_t)(v >> 16));
}
static void put64(unsigned char *p, uint64_t v) {
    put32(p, (uint32_t)v);
    put32(p + 4, (uint32_t)(v >> 32));
}
static uint16_t get16(const unsigned char *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}
static uint32_t get32(const unsigned char *p) {
    return get16(p) | (uint32_t)get16(p + 2) << 16;
}
static uint64_t get64(const unsigned char *p) {
    return get32(p) | (uint64_t)get32(p + 4) << 32;
}
static void put_hash(unsigned char *p, kv_hash h) {
    put64(p, h.lo);
    put64(p + 8, h.hi);
}
static kv_hash get_hash(const unsigned char *p) {
    return (kv_hash){get64(p), get64(p + 8)};
}

static uint64_t padded(uint64_t n) {
    return (n + KV_FORMAT_ALIGN - 1) / KV_FORMAT_ALIGN * KV_FORMAT_ALIGN;
}

uint32_t kv_format_head_bytes(int32_t n_tokens) {
    return (uint32_t)padded(AT_TOKENS + (uint64_t)n_tokens * 4);
}

uint64_t kv_format_file_bytes(int32_t n_tokens, uint64_t n_payload) {
    return kv_format_head_bytes(n_tokens) + padded(n_payload);
}

/* Over everything before the checksum and the tokens after it, as they stand in the file. */
static uint64_t checksum(const unsigned char *p, int32_t n_tokens) {
    kv_hash parts[2] = {kv_hash_bytes(p, AT_CHECKSUM), kv_hash_bytes(p + AT_TOKENS, (size_t)n_tokens * 4)};
    unsigned char both[32];
    put_hash(both, parts[0]);
    put_hash(both + 16, parts[1]);
    return kv_hash_bytes64(both, sizeof both);
}

void kv_format_write(void *dst, const kv_record_head *h, const kv_token *tokens) {
    unsigned char *p = dst;
    uint32_t head_bytes = kv_format_head_bytes(h->n_tokens);
    memset(p, 0, head_bytes);
    memcpy(p + AT_MAGIC, magic, sizeof magic);
    put16(p + AT_VERSION, KV_FORMAT_VERSION);
    p[AT_KIND] = (unsigned char)h->kind;
    p[AT_FLAGS] = h->canonical ? FLAG_CANONICAL : 0;
    put32(p + AT_HEAD_BYTES, head_bytes);
    put_hash(p + AT_NS, h->ns);
    put_hash(p + AT_KEY, h->key);
    put_hash(p + AT_PARENT, h->parent);
    put32(p + AT_Q, (uint32_t)h->q);
    put32(p + AT_E, (uint32_t)h->e);
    put32(p + AT_N_TOKENS, (uint32_t)h->n_tokens);
    put32(p + AT_COMPUTE_MS, h->compute_ms);
    put64(p + AT_N_PAYLOAD, h->n_payload);
    put_hash(p + AT_PAYLOAD_HASH, h->payload_hash);
    put_hash(p + AT_SHAPE, h->shape_class);
    put64(p + AT_CREATED, (uint64_t)h->created);
    p[AT_PLACE] = (unsigned char)h->place;
    put32(p + AT_KEEP, h->keep_seconds);
    memcpy(p + AT_ENGINE, h->engine, strnlen(h->engine, sizeof h->engine - 1));
    for (int32_t i = 0; i < h->n_tokens; i++) put32(p + AT_TOKENS + 4 * (size_t)i, (uint32_t)tokens[i]);
    put64(p + AT_CHECKSUM, checksum(p, h->n_tokens));
}

static void read_fields(kv_record_head *h, const unsigned char *p) {
    h->kind = (kv_record_kind)p[AT_KIND];
    h->canonical = p[AT_FLAGS] & FLAG_CANONICAL;
    h->ns = get_hash(p + AT_NS);
    h->key = get_hash(p + AT_KEY);
    h->parent = get_hash(p + AT_PARENT);
    h->q = (int32_t)get32(p + AT_Q);
    h->e = (int32_t)get32(p + AT_E);
    h->n_tokens = (int32_t)get32(p + AT_N_TOKENS);
    h->compute_ms = get32(p + AT_COMPUTE_MS);
    h->n_payload = get64(p + AT_N_PAYLOAD);
    h->payload_hash = get_hash(p + AT_PAYLOAD_HASH);
    h->shape_class = get_hash(p + AT_SHAPE);
    h->created = (int64_t)get64(p + AT_CREATED);
    h->place = p[AT_PLACE] < KV_PLACE_COUNT ? (kv_place_kind)p[AT_PLACE] : KV_PLACE_UNKNOWN;
    h->keep_seconds = get32(p + AT_KEEP);
    memcpy(h->engine, p + AT_ENGINE, sizeof h->engine - 1);
}

/* Sizes that contradict each other are found before anything is read by them. */
static const char *contradiction(const kv_record_head *h, uint32_t head_bytes, uint64_t file_bytes) {
    if (h->kind < KV_RECORD_BLOCK || h->kind > KV_RECORD_WHOLE) return "an unknown kind of record";
    if (h->q < 0 || h->e < 0 || h->n_tokens < 1 || h->n_tokens > MAX_TOKENS)
        return "a position or token count out of range";
    int32_t from = h->kind == KV_RECORD_WHOLE ? 0 : h->q;
    if (h->e - from != h->n_tokens) return "positions that do not agree with the number of tokens";
    if (h->n_payload == 0) return "no payload";
    if (head_bytes != kv_format_head_bytes(h->n_tokens))
        return "a header size that does not agree with the number of tokens";
    if (h->n_payload > UINT64_MAX / 2 || kv_format_file_bytes(h->n_tokens, h->n_payload) != file_bytes)
        return "a length that does not agree with the header (cut short?)";
    return NULL;
}

kv_status kv_format_read(kv_record_head *h, const kv_token **tokens, const void *src, size_t n, uint64_t file_bytes,
                         kv_error *err) {
    const unsigned char *p = src;
    memset(h, 0, sizeof *h);
    if (tokens) *tokens = NULL;
    if (n < AT_TOKENS) return kv_fail(err, KV_CORRUPT, "a record of %zu bytes is too short for its header", n);
    if (memcmp(p, magic, sizeof magic) != 0) return kv_fail(err, KV_CORRUPT, "not a kvasir record");
    uint16_t version = get16(p + AT_VERSION);
    if (version > KV_FORMAT_VERSION)
        return kv_fail(err, KV_UNSUPPORTED, "written in format %u; this kvasir knows %d", version, KV_FORMAT_VERSION);
    if (version != KV_FORMAT_VERSION) return kv_fail(err, KV_CORRUPT, "an unknown format version %u", version);
    read_fields(h, p);
    const char *wrong = contradiction(h, get32(p + AT_HEAD_BYTES), file_bytes);
    if (wrong) return kv_fail(err, KV_CORRUPT, "the record has %s", wrong);
    if (n < AT_TOKENS + (size_t)h->n_tokens * 4) return KV_OK; /* the caller reads on before it believes */
    if (get64(p + AT_CHECKSUM) != checksum(p, h->n_tokens))
        return kv_fail(err, KV_CORRUPT, "the record's header checksum does not hold");
    const kv_token *stored = (const kv_token *)(const void *)(p + AT_TOKENS);
    if (h->kind != KV_RECORD_WHOLE && !kv_hash_equal(h->key, kv_hash_chain(h->parent, stored, (size_t)h->n_tokens)))
        return kv_fail(err, KV_CORRUPT, "the record's key is not that of its tokens");
    if (tokens) *tokens = stored;
    return KV_OK;
}

bool kv_format_peek_ns(kv_hash *ns, const void *src, size_t n) {
    if (n < AT_KEY || memcmp(src, magic, sizeof magic) != 0) return false;
    *ns = get_hash((const unsigned char *)src + AT_NS);
    return true;
}

bool kv_format_peek_sizes(int32_t *n_tokens, uint64_t *n_payload, const void *src, size_t n) {
    const unsigned char *p = src;
    if (n < AT_TOKENS || memcmp(p, magic, sizeof magic) != 0) return false;
    *n_tokens = (int32_t)get32(p + AT_N_TOKENS);
    *n_payload = get64(p + AT_N_PAYLOAD);
    return *n_tokens >= 1 && *n_tokens <= MAX_TOKENS && *n_payload > 0 && *n_payload <= UINT64_MAX / 2;
}

void kv_format_name(char *out, const kv_record_head *h) {
    char key[33];
    kv_hash_hex(key, h->key);
    switch (h->kind) {
    case KV_RECORD_BLOCK: snprintf(out, 64, "%.2s/%s.b", key, key); break;
    case KV_RECORD_WINDOW: snprintf(out, 64, "%.2s/%s.w", key, key); break;
    case KV_RECORD_CHECKPOINT: snprintf(out, 64, "%.2s/%s.c", key, key); break;
    case KV_RECORD_WHOLE: snprintf(out, 64, "%.2s/%s.s", key, key); break;
    }
}
