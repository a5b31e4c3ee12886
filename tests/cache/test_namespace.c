/* cache/namespace: what makes a namespace, what its about.json says and hides, and the sentences about what differs. */
#include "store/rig.h"

#include "base/json.h"
#include "cache/namespace.h"

typedef struct made {
    kv_model_info model;
    kv_engine_info engine;
    kv_fingerprint print;
    int32_t block;
} made;

static made plain(void) {
    made m = {.block = 256};
    m.model.name = "Tiny";
    m.engine = (kv_engine_info){.memory = KV_MEMORY_FULL,
                                .n_ctx = 8192,
                                .type_k = "f16",
                                .type_v = "f16",
                                .flash_attn = false,
                                .version = "v1",
                                .state_format = "ggsq 3",
                                .rope = {"linear", 10000, 1, -1, -1, -1, -1, 0}};
    m.print.weights = kv_hash_bytes("weights", 7);
    m.print.adapters = (char *)"none";
    m.print.overrides = (char *)"none";
    return m;
}

static kv_hash hash_of(const made *m) {
    kv_namespace ns;
    kv_namespace_init(&ns, &m->model, &m->engine, &m->print, m->block);
    kv_hash h = kv_namespace_hash(&ns);
    kv_namespace_free(&ns);
    return h;
}

static void about_of(kv_buf *out, const made *m, const char *scope) {
    kv_namespace ns;
    kv_namespace_init(&ns, &m->model, &m->engine, &m->print, m->block);
    kv_namespace_about(out, &ns, scope);
    kv_namespace_free(&ns);
}

/* What `now` says about what `then` left behind. */
static void expect_diff(const made *then, const made *now, const char *expected) {
    kv_namespace ns;
    kv_buf about = {0}, diff = {0};
    about_of(&about, then, "");
    kv_namespace_init(&ns, &now->model, &now->engine, &now->print, now->block);
    kv_namespace_diff(&diff, &ns, kv_buf_str(&about));
    assert_string_equal(kv_buf_str(&diff), expected);
    assert_int_equal(kv_hash_equal(hash_of(then), hash_of(now)), *expected == 0);
    kv_namespace_free(&ns);
    kv_buf_free(&about);
    kv_buf_free(&diff);
}

static void test_parts(void **state) {
    (void)state;
    made a = plain(), b;
    expect_diff(&a, &a, "");
    /* what does not count */
    b = a, b.engine.version = "v2", b.model.name = "Renamed", b.engine.n_threads = 7, b.engine.n_ctx = 4096;
    b.engine.n_slots = 9, b.engine.n_batch = 1, b.model.chat_template = "{{ other }}", b.model.path = "elsewhere";
    expect_diff(&a, &b, "");
    /* what does */
    b = a, b.engine.flash_attn = true;
    expect_diff(&b, &a, "flash attention on → off");
    b = a, b.engine.type_k = "q8_0", b.engine.type_v = "q8_0";
    expect_diff(&a, &b, "K type f16 → q8_0, V type f16 → q8_0");
    b = a, b.block = 128;
    expect_diff(&a, &b, "block 256 → 128");
    b = a, b.engine.attn_rot_disabled = true;
    expect_diff(&a, &b, "attention rotation automatic → disabled");
    b = a, b.engine.state_format = "ggsq 4";
    expect_diff(&a, &b, "state format ggsq 3, kvasir 1 → ggsq 4, kvasir 1");
    b = a, b.print.overrides = (char *)"llama.rope.freq_base=20000";
    expect_diff(&a, &b, "metadata overrides none → llama.rope.freq_base=20000");
    b = a, b.engine.memory = KV_MEMORY_WINDOW, b.engine.n_window = 512;
    expect_diff(&a, &b, "memory full → window, window unknown → 512");
    expect_diff(&b, &a, "memory window → full, window 512 → none");
    a = b, a.engine.window_is_chunked = true;
    expect_diff(&b, &a, "window 512 → 512, chunked");
}

static void test_rope(void **state) {
    (void)state;
    made a = plain(), b;
    b = a, b.engine.rope.freq_base = 50000;
    expect_diff(&a, &b, "RoPE base 10000 → 50000");
    b.engine.rope.freq_base = 0;
    expect_diff(&a, &b, "RoPE base 10000 → the model's");
    b = a, b.engine.rope.freq_scale = 0.25f, b.engine.rope.scaling = "yarn";
    expect_diff(&a, &b, "RoPE scaling linear → yarn, RoPE scale 1 → 0.25");
    b = a, b.engine.rope.yarn_ext_factor = 0, b.engine.rope.yarn_beta_fast = 16, b.engine.rope.yarn_orig_ctx = 4096;
    expect_diff(&a, &b, "YaRN the model's → extrapolation 0, beta fast 16, original context 4096");
    /* the smallest step of a float counts */
    b = a, b.engine.rope.freq_base = 10000.001f;
    assert_false(kv_hash_equal(hash_of(&a), hash_of(&b)));
}

/* The pool's size matters only where it chooses the factors. */
static void test_longrope(void **state) {
    (void)state;
    made a = plain(), b;
    a.model.n_ctx_longrope = 4096;
    a.engine.n_ctx = 4096;
    b = a, b.engine.n_ctx = 256;
    expect_diff(&a, &b, "");
    b.engine.n_ctx = 4352;
    expect_diff(&a, &b, "context length up to 4096 → over 4096");
    a.engine.n_ctx = 131072;
    expect_diff(&a, &b, "");
}

static void test_other_models(void **state) {
    (void)state;
    made a = plain(), b = a;
    b.print.weights = kv_hash_bytes("other", 5);
    b.model.name = "Huge";
    b.engine.flash_attn = true;
    expect_diff(&b, &a, "another model (Huge)");
    b.model.name = "";
    expect_diff(&b, &a, "another model");
    b = a, b.print.adapters = (char *)"0123456789abcdef0123456789abcdef × 0.5";
    expect_diff(&a, &b, "adapters none → 01234567… × 0.5");
}

/* ── about.json ────────────────────────────────────────────────────────────────────────────────────────────────── */

static json_t *parsed_about(const made *m, const char *scope) {
    kv_error err = {0};
    kv_buf text = {0};
    json_t *about;
    about_of(&text, m, scope);
    if (kv_json_parse(&about, kv_buf_str(&text), text.len, &err) != KV_OK) fail_msg("%s", err.message);
    kv_buf_free(&text);
    return about;
}

static const char *member(const json_t *obj, const char *name) {
    const char *text = json_string_value(json_object_get(obj, name));
    return text ? text : "(null)";
}

static void expect_scope(const char *scope, const char *name, bool divided) {
    made m = plain();
    json_t *about = parsed_about(&m, scope);
    char hex[33];
    kv_hash_hex(hex, kv_hash_bytes(scope && *scope ? scope : "default", scope && *scope ? strlen(scope) : 7));
    assert_string_equal(member(about, "scope"), name);
    assert_string_equal(member(about, "scope_hash"), hex);
    assert_int_equal(json_is_true(json_object_get(about, "divided")), divided);
    json_decref(about);
}

static void test_about(void **state) {
    (void)state;
    made m = plain();
    m.model.name = "Bad \xff \"name\"\n";
    json_t *about = parsed_about(&m, NULL);
    char hex[33];
    kv_hash_hex(hex, hash_of(&m));
    assert_string_equal(member(about, "namespace"), hex);
    assert_string_equal(member(about, "model"), "Bad \xEF\xBF\xBD \"name\"\n");
    assert_string_equal(member(about, "engine"), "v1");
    assert_string_equal(member(json_object_get(about, "parts"), "flash attention"), "off");
    assert_int_equal(json_integer_value(json_object_get(about, "format")), 1);
    json_decref(about);
}

static void test_scopes(void **state) {
    (void)state;
    expect_scope(NULL, "default", false);
    expect_scope("", "default", false);
    expect_scope("default", "default", false);
    expect_scope("team-a", "team-a", false);
    expect_scope("4:team2:eu3:x:1", "team", true);
    expect_scope("0:0:6:secret", "default", true);
    expect_scope("99:team", "(null)", true); /* not what api/scope.h makes */
    expect_scope("x:y", "(null)", true);
    expect_scope("99999999999999999999999:team", "(null)", true);
    expect_scope("-1:team", "(null)", true);
    kv_buf text = {0};
    made m = plain();
    about_of(&text, &m, "4:team3:abc14:secret-of-mine");
    assert_null(strstr(kv_buf_str(&text), "secret"));
    assert_null(strstr(kv_buf_str(&text), "abc1"));
    kv_buf_free(&text);
    kv_namespace ns;
    kv_namespace_init(&ns, &m.model, &m.engine, &m.print, m.block);
    char *about = kv_namespace_about_text(&ns, "team");
    about_of(&text, &m, "team");
    assert_string_equal(about, kv_buf_str(&text));
    free(about);
    kv_buf_free(&text);
    kv_namespace_free(&ns);
}

/* A file that anybody may have written. */
static void test_foreign_about(void **state) {
    (void)state;
    static const char *const nothing[] = {
        "", "{", "[]", "3", "{}", "{\"parts\":3}", "{\"parts\":{}}", "{\"parts\":{\"weights\":7}}", "null"};
    made m = plain();
    kv_namespace ns;
    kv_namespace_init(&ns, &m.model, &m.engine, &m.print, m.block);
    kv_buf diff = {0};
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++) {
        kv_buf_clear(&diff);
        kv_namespace_diff(&diff, &ns, nothing[i]);
        assert_string_equal(kv_buf_str(&diff), "settings that were not noted");
    }
    kv_buf_clear(&diff);
    kv_namespace_diff(&diff, &ns, NULL);
    assert_string_equal(kv_buf_str(&diff), "settings that were not noted");
    /* escape sequences, overlong values, other types, parts that nobody knows */
    json_t *about = parsed_about(&m, ""), *parts = json_object_get(about, "parts");
    json_object_set_new(parts, "K type",
                        json_string("\x1b[2J\xC2\x9B"
                                    "é"));
    json_object_set_new(parts, "V type", json_array());
    char overlong[200] = {0};
    memset(overlong, 'x', sizeof overlong - 1);
    json_object_set_new(parts, "block", json_string(overlong));
    json_object_set_new(parts, "moon", json_string("full"));
    kv_buf text = {0};
    kv_json_dump(&text, about);
    kv_buf_clear(&diff);
    kv_namespace_diff(&diff, &ns, kv_buf_str(&text));
    overlong[120] = 0;
    char expected[400];
    snprintf(expected, sizeof expected, "K type ?[2J?é → f16, V type unknown → f16, block %s… → 256, moon full → none",
             overlong);
    assert_string_equal(kv_buf_str(&diff), expected);
    json_decref(about);
    kv_buf_free(&text);
    kv_buf_free(&diff);
    kv_namespace_free(&ns);
}

/* ── report ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* n_payload bytes of one record under the namespace of m and scope. */
static void leave(rig *r, const made *m, const char *scope, uint32_t salt, size_t n_payload) {
    kv_error err = {0};
    kv_buf about = {0}, root = {0};
    kv_hash base = hash_of(m);
    kv_buf_add(&root, &base, sizeof base);
    kv_buf_adds(&root, scope);
    rec x = make_rec(KV_RECORD_BLOCK, NULL, salt, n_payload, 1000);
    x.head.ns = kv_hash_bytes(root.data, root.len);
    if (m->model.name) { /* else: one without about.json */
        about_of(&about, m, scope);
        if (kv_store_set_about(r->store, x.head.ns, about.data, &err) != KV_OK) fail_msg("%s", err.message);
    }
    if (n_payload > 1) assert_int_equal(store_rec(r, &x, 1), KV_OK);
    free(x.payload);
    kv_buf_free(&about);
    kv_buf_free(&root);
}

static void expect_report(rig *r, const made *now, const char *scope, const char *expected) {
    kv_error err = {0};
    kv_namespace ns;
    kv_buf text = {0};
    kv_namespace_init(&ns, &now->model, &now->engine, &now->print, now->block);
    assert_int_equal(kv_namespace_report(&text, r->store, &ns, scope, &err), KV_OK);
    assert_string_equal(kv_buf_str(&text), expected);
    kv_namespace_free(&ns);
    kv_buf_free(&text);
}

#define PAYLOAD (1u << 20)

static void test_report(void **state) {
    (void)state;
    rig r;
    made now = plain(), fa = now, q8 = now, other = now, newer = now;
    rig_init(&r, 64u << 20, 1);
    rig_open(&r);
    expect_report(&r, &now, NULL, "");
    leave(&r, &now, "default", 1, PAYLOAD);
    leave(&r, &now, "team", 2, PAYLOAD); /* another scope is no reason */
    newer.engine.version = "v2";
    leave(&r, &newer, "default", 3, PAYLOAD); /* nor is another build */
    other.print.weights = kv_hash_bytes("other", 5);
    leave(&r, &other, "default", 4, PAYLOAD);
    now.model.name = NULL;
    leave(&r, &now, "undescribed", 5, PAYLOAD);
    now.model.name = "Tiny";
    expect_report(&r, &now, NULL, "");
    fa.engine.flash_attn = true;
    leave(&r, &fa, "empty", 6, 1); /* described, without records */
    expect_report(&r, &now, NULL, "");
    leave(&r, &fa, "default", 7, PAYLOAD - 4096); /* with its header a MiB on disk */
    expect_report(&r, &now, NULL, "1.0 MB of this model's cache cannot be used: flash attention on → off");
    leave(&r, &fa, "team", 8, 2 * PAYLOAD);
    expect_report(&r, &now, NULL, "3.1 MB of this model's cache cannot be used: flash attention on → off");
    expect_report(&r, &now, "", "1.0 MB of this model's cache cannot be used: flash attention on → off");
    expect_report(&r, &now, "team", "2.1 MB of this model's cache cannot be used: flash attention on → off");
    expect_report(&r, &now, "nobody", "");
    q8.engine.type_k = "q8_0";
    leave(&r, &q8, "default", 9, 12 * PAYLOAD);
    expect_report(&r, &now, NULL,
                  "16 MB of this model's cache cannot be used: K type q8_0 → f16 (13 MB); flash attention on → off "
                  "(3.1 MB)");
    /* more reasons than are told apart */
    for (int i = 0; i < 6; i++) {
        made m = now;
        m.block = 300 + i;
        leave(&r, &m, "default", 10 + (uint32_t)i, PAYLOAD - 4096);
    }
    kv_namespace ns;
    kv_buf text = {0};
    kv_namespace_init(&ns, &now.model, &now.engine, &now.print, now.block);
    assert_int_equal(kv_namespace_report(&text, r.store, &ns, NULL, NULL), KV_OK);
    assert_non_null(strstr(kv_buf_str(&text), "22 MB of this model's"));
    assert_non_null(strstr(kv_buf_str(&text), "; other settings (2.1 MB)"));
    kv_namespace_free(&ns);
    kv_buf_free(&text);
    rig_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),         cmocka_unit_test(test_rope),   cmocka_unit_test(test_longrope),
        cmocka_unit_test(test_other_models),  cmocka_unit_test(test_about),  cmocka_unit_test(test_scopes),
        cmocka_unit_test(test_foreign_about), cmocka_unit_test(test_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
