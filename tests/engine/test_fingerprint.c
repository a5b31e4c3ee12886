/* engine/fingerprint: what makes two files one model and what does not, on rewritten copies of a tiny model. */
#include "engine/fingerprint.h"

#include "engine/engine_fake.h"
#include "ggml.h"
#include "gguf.h"
#include "llama.h"
#include "real.h"

#define TINY "tiny/llama.gguf"
#define LORA "tiny/lora/llama.gguf"

typedef struct rig {
    char dir[128], path[256], original[4096];
    struct gguf_context *g;
    struct ggml_context *data;
} rig;

static void rig_up(rig *r) {
    const char *tmp = getenv("TMPDIR");
    memset(r, 0, sizeof *r);
    snprintf(r->dir, sizeof r->dir, "%s/kvasir-fingerprint.XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(r->dir));
    snprintf(r->path, sizeof r->path, "%s/other name.gguf", r->dir);
    snprintf(r->original, sizeof r->original, "%s", fixture(TINY));
    struct gguf_context *file =
        gguf_init_from_file(r->original, (struct gguf_init_params){.no_alloc = false, .ctx = &r->data});
    assert_non_null(file);
    r->g = gguf_init_empty(); /* one that knows where the tensors' data are, and so can be written */
    gguf_set_kv(r->g, file);
    for (int64_t id = 0; id < gguf_get_n_tensors(file); id++)
        gguf_add_tensor(r->g, ggml_get_tensor(r->data, gguf_get_tensor_name(file, id)));
    gguf_free(file);
}

static void rig_down(rig *r) {
    gguf_free(r->g);
    ggml_free(r->data);
    unlink(r->path);
    assert_int_equal(rmdir(r->dir), 0);
}

static kv_hash hash_of(const char *path) {
    kv_error err = {0};
    kv_hash h;
    check(kv_fingerprint_file(&h, path, &err), &err);
    assert_false(kv_hash_is_zero(h));
    return h;
}

/* The file as the rig now has it. */
static kv_hash rewritten(rig *r) {
    assert_true(gguf_write_to_file(r->g, r->path, false));
    return hash_of(r->path);
}

static bool changes(rig *r) {
    return !kv_hash_equal(hash_of(r->original), rewritten(r));
}

static void test_same(void **state) {
    (void)state;
    rig r;
    rig_up(&r);
    assert_false(changes(&r)); /* another name, another time */
    char link[300];
    snprintf(link, sizeof link, "%s/link.gguf", r.dir);
    assert_int_equal(symlink(r.path, link), 0);
    assert_true(kv_hash_equal(hash_of(link), hash_of(r.original)));
    unlink(link);
    rig_down(&r);
    assert_false(kv_hash_equal(hash_of(fixture(TINY)), hash_of(fixture("tiny/gemma3.gguf"))));
    assert_false(kv_hash_equal(hash_of(fixture("tiny/lfm2.gguf")), hash_of(fixture("tiny/lfm2-window.gguf"))));
}

static void test_metadata(void **state) {
    (void)state;
    static const char *const silent[] = {"general.name",      "general.author",
                                         "general.url",       "tokenizer.chat_template",
                                         "general.file_type", "tokenizer.chat_template.tool_use",
                                         "general.basename",  "quantize.imatrix.file"};
    static const char *const telling[] = {"tokenizer.ggml.pre", "tokenizer.ggml.unheard_of", "llama.unheard_of",
                                          "general.architecture"};
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) {
        rig r;
        rig_up(&r);
        gguf_set_val_str(r.g, silent[i], "something else");
        if (changes(&r)) fail_msg("%s changes the hash", silent[i]);
        rig_down(&r);
    }
    for (size_t i = 0; i < sizeof telling / sizeof *telling; i++) {
        rig r;
        rig_up(&r);
        gguf_set_val_str(r.g, telling[i], "something else");
        if (!changes(&r)) fail_msg("%s does not change the hash", telling[i]);
        rig_down(&r);
    }
}

static void test_values(void **state) {
    (void)state;
    rig r;
    rig_up(&r);
    gguf_set_val_f32(r.g, "llama.rope.freq_base", 10000.5f);
    kv_hash a = rewritten(&r);
    gguf_set_val_f32(r.g, "llama.rope.freq_base", 10000.25f);
    kv_hash b = rewritten(&r);
    gguf_set_val_f64(r.g, "llama.rope.freq_base", 10000.25);
    kv_hash c = rewritten(&r);
    assert_false(kv_hash_equal(a, b));
    assert_false(kv_hash_equal(b, c)); /* another type */
    /* one token spelt otherwise, and a border between two moved */
    const char *words[] = {"ab", "c"}, *moved[] = {"a", "bc"};
    gguf_set_arr_str(r.g, "tokenizer.ggml.merges", words, 2);
    a = rewritten(&r);
    gguf_set_arr_str(r.g, "tokenizer.ggml.merges", moved, 2);
    b = rewritten(&r);
    assert_false(kv_hash_equal(a, b));
    int32_t types[] = {1, 2, 3};
    gguf_set_arr_data(r.g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, 3);
    a = rewritten(&r);
    types[1] = 7;
    gguf_set_arr_data(r.g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, 3);
    assert_false(kv_hash_equal(a, rewritten(&r)));
    gguf_set_arr_data(r.g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, 0);
    rewritten(&r); /* an empty array is fine */
    rig_down(&r);
}

/* The order of keys in the file carries no meaning. */
static void test_order(void **state) {
    (void)state;
    rig r;
    rig_up(&r);
    int64_t id = gguf_find_key(r.g, "llama.block_count");
    assert_true(id >= 0);
    uint32_t value = gguf_get_val_u32(r.g, id);
    gguf_remove_key(r.g, "llama.block_count");
    assert_true(changes(&r));
    gguf_set_val_u32(r.g, "llama.block_count", value);
    assert_false(changes(&r));
    rig_down(&r);
}

static void flip(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    fputc(c ^ 1, f);
    assert_int_equal(fclose(f), 0);
}

/* The table with the offsets that the file really has. */
static struct gguf_context *read_back(const rig *r) {
    struct gguf_context *g = gguf_init_from_file(r->path, (struct gguf_init_params){.no_alloc = true});
    assert_non_null(g);
    return g;
}

static void test_data(void **state) {
    (void)state;
    rig r;
    rig_up(&r);
    kv_hash before = rewritten(&r);
    struct gguf_context *g = read_back(&r);
    bool saw_large = false;
    for (int64_t id = 0; id < gguf_get_n_tensors(g); id++) {
        long at = (long)(gguf_get_data_offset(g) + gguf_get_tensor_offset(g, id));
        long n = (long)gguf_get_tensor_size(g, id);
        long places[] = {0, n / 2, n - 1, n / 4};
        bool is_large = n > 64 * 1024; /* what lies at its quarter is not in the sample */
        saw_large |= is_large;
        for (int i = 0; i < (is_large ? 4 : 3); i++) {
            flip(r.path, at + places[i]);
            bool same = kv_hash_equal(before, hash_of(r.path));
            if (same != (i == 3))
                fail_msg("byte %ld of %ld of %s: %s", places[i], n, gguf_get_tensor_name(g, id),
                         same ? "not seen" : "seen");
            flip(r.path, at + places[i]);
        }
    }
    gguf_free(g);
    assert_true(saw_large);
    assert_true(kv_hash_equal(before, hash_of(r.path)));
    rig_down(&r);
}

static void test_table(void **state) {
    (void)state;
    rig r;
    rig_up(&r);
    struct ggml_tensor *t = ggml_get_tensor(r.data, gguf_get_tensor_name(r.g, 0));
    struct gguf_context *g = gguf_init_empty();
    gguf_set_kv(g, r.g);
    ggml_set_name(t, "renamed.weight");
    for (int64_t id = 0; id < gguf_get_n_tensors(r.g); id++)
        gguf_add_tensor(g, id == 0 ? t : ggml_get_tensor(r.data, gguf_get_tensor_name(r.g, id)));
    assert_true(gguf_write_to_file(g, r.path, false));
    assert_false(kv_hash_equal(hash_of(r.original), hash_of(r.path)));
    gguf_free(g);
    rig_down(&r);
}

/* One part of n, with every n-th tensor, so that their order over all parts is another one too. */
static void write_part(const rig *r, const char *path, int part, int n) {
    struct gguf_context *g = gguf_init_empty();
    if (part == 0) gguf_set_kv(g, r->g);
    gguf_set_val_u16(g, "split.no", (uint16_t)part);
    gguf_set_val_u16(g, "split.count", (uint16_t)n);
    gguf_set_val_i32(g, "split.tensors.count", (int32_t)gguf_get_n_tensors(r->g));
    for (int64_t id = part; id < gguf_get_n_tensors(r->g); id += n)
        gguf_add_tensor(g, ggml_get_tensor(r->data, gguf_get_tensor_name(r->g, id)));
    assert_true(gguf_write_to_file(g, path, false));
    gguf_free(g);
}

static void test_split(void **state) {
    (void)state;
    enum { N = 3 };
    rig r;
    rig_up(&r);
    char prefix[200], path[N][300];
    snprintf(prefix, sizeof prefix, "%s/part", r.dir);
    for (int i = 0; i < N; i++) {
        assert_true(llama_split_path(path[i], sizeof path[i], prefix, i, N) > 0);
        write_part(&r, path[i], i, N);
    }
    assert_true(kv_hash_equal(hash_of(r.original), hash_of(path[0])));
    /* and it is a model that loads */
    kv_error err = {0};
    kv_model *m;
    kv_fingerprint f;
    check(kv_model_load_llama(&m, &(kv_model_params){.path = path[0], .use_mmap = true}, &err), &err);
    check(kv_model_fingerprint(&f, m, &err), &err);
    assert_true(kv_hash_equal(hash_of(r.original), f.weights));
    kv_fingerprint_free(&f);
    kv_model_free(m);
    /* a byte of a later part counts; a missing part is an error */
    FILE *file = fopen(path[2], "r+b");
    fseek(file, -1, SEEK_END);
    int c = fgetc(file);
    fseek(file, -1, SEEK_END);
    fputc(c ^ 1, file);
    fclose(file);
    assert_false(kv_hash_equal(hash_of(r.original), hash_of(path[0])));
    unlink(path[1]);
    kv_hash h;
    assert_int_equal(kv_fingerprint_file(&h, path[0], &err), KV_IO);
    assert_non_null(strstr(err.message, "00002-of-00003"));
    for (int i = 0; i < N; i++) unlink(path[i]);
    rig_down(&r);
}

static void test_broken(void **state) {
    (void)state;
    rig r;
    kv_hash h;
    kv_error err = {0};
    rig_up(&r);
    assert_int_equal(kv_fingerprint_file(&h, r.path, &err), KV_IO); /* not there */
    FILE *f = fopen(r.path, "wb");
    fputs("no model", f);
    fclose(f);
    assert_int_equal(kv_fingerprint_file(&h, r.path, &err), KV_INVALID);
    rewritten(&r);
    struct gguf_context *g = read_back(&r);
    assert_int_equal(truncate(r.path, (off_t)gguf_get_data_offset(g) + 100), 0);
    gguf_free(g);
    assert_int_equal(kv_fingerprint_file(&h, r.path, &err), KV_INVALID);
    assert_true(kv_hash_is_zero(h));
    rig_down(&r);
}

static void fingerprint_with(kv_fingerprint *f, kv_model_params p) {
    kv_error err = {0};
    kv_model *m = load_with(p, TINY);
    check(kv_model_fingerprint(f, m, &err), &err);
    kv_model_free(m);
}

static void test_adapters(void **state) {
    (void)state;
    char lora[4096], expected[200], hex[33];
    snprintf(lora, sizeof lora, "%s", fixture(LORA));
    kv_fingerprint plain, with, scaled, off;
    fingerprint_with(&plain, (kv_model_params){0});
    fingerprint_with(&with, (kv_model_params){.loras = &(kv_lora_spec){lora, 1}, .n_loras = 1});
    fingerprint_with(&scaled, (kv_model_params){.loras = (kv_lora_spec[]){{lora, 1}, {lora, 0.5f}}, .n_loras = 2});
    fingerprint_with(&off, (kv_model_params){.loras = &(kv_lora_spec){lora, 0}, .n_loras = 1});
    assert_true(kv_hash_equal(plain.weights, with.weights));
    assert_true(kv_hash_equal(plain.weights, hash_of(fixture(TINY))));
    assert_string_equal(plain.adapters, "none");
    assert_string_equal(off.adapters, "none");
    kv_hash_hex(hex, hash_of(lora));
    snprintf(expected, sizeof expected, "%s × 1", hex);
    assert_string_equal(with.adapters, expected);
    snprintf(expected, sizeof expected, "%s × 1, %s × 0.5", hex, hex);
    assert_string_equal(scaled.adapters, expected);
    kv_fingerprint_free(&plain);
    kv_fingerprint_free(&with);
    kv_fingerprint_free(&scaled);
    kv_fingerprint_free(&off);
}

static void test_overrides(void **state) {
    (void)state;
    const char *list[] = {"tokenizer.ggml.add_bos_token=bool:false", "general.name=str:Another",
                          "llama.rope.freq_base=float:20000", "llama.rope.freq_base=float:30000"};
    kv_fingerprint f;
    fingerprint_with(&f, (kv_model_params){.kv_overrides = list, .n_kv_overrides = 4});
    assert_string_equal(f.overrides, "llama.rope.freq_base=20000, tokenizer.ggml.add_bos_token=false");
    kv_fingerprint_free(&f);
    fingerprint_with(&f, (kv_model_params){0});
    assert_string_equal(f.overrides, "none");
    kv_fingerprint_free(&f);
    /* very many are told by their hash */
    static char text[60][100];
    const char *many[60];
    for (int i = 0; i < 60; i++) {
        snprintf(text[i], sizeof text[i], "llama.some_key_with_a_long_name_%02d=str:a_value_that_is_long_too", i);
        many[i] = text[i];
    }
    fingerprint_with(&f, (kv_model_params){.kv_overrides = many, .n_kv_overrides = 60});
    assert_int_equal(strncmp(f.overrides, "60 values, ", 11), 0);
    assert_int_equal(strlen(f.overrides), 11 + 32);
    kv_fingerprint_free(&f);
}

/* ── effective settings of an engine ───────────────────────────────────────────────────────────────────────────── */

static kv_engine_info info_with(const kv_model *m, kv_engine_params p) {
    kv_error err = {0};
    kv_engine *e;
    p.n_ctx = 256;
    p.n_slots = 1;
    p.n_batch = 16;
    p.n_threads = p.n_threads_batch = 1;
    check(kv_engine_new(&e, (kv_model *)m, &p, &err), &err);
    kv_engine_info info = *kv_engine_get_info(e);
    kv_engine_free(e);
    return info;
}

static void test_rope(void **state) {
    (void)state;
    kv_engine_params p;
    kv_engine_params_defaults(&p);
    p.flash_attn = KV_FA_OFF;
    kv_model *m = load(TINY);
    kv_rope own = info_with(m, p).rope;
    assert_string_equal(own.scaling, "linear");
    assert_float_equal(own.freq_base, 10000, 0);
    assert_float_equal(own.freq_scale, 1, 0);
    assert_float_equal(own.yarn_ext_factor, -1, 0);
    assert_int_equal(own.yarn_orig_ctx, 0);
    p.rope_freq_base = 10000; /* asked for what it is anyway */
    p.rope_freq_scale = 1;
    p.yarn_orig_ctx = kv_model_get_info(m)->n_ctx_train;
    kv_rope same = info_with(m, p).rope;
    assert_float_equal(same.freq_base, 10000, 0);
    assert_float_equal(same.freq_scale, 1, 0);
    assert_int_equal(same.yarn_orig_ctx, 0);
    p.rope_freq_base = 50000;
    p.rope_freq_scale = 0.25f;
    p.rope_scaling = "yarn";
    p.yarn_orig_ctx = 64;
    p.yarn_beta_fast = 16;
    kv_rope other = info_with(m, p).rope;
    assert_string_equal(other.scaling, "yarn");
    assert_float_equal(other.freq_base, 50000, 0);
    assert_float_equal(other.freq_scale, 0.25f, 0);
    assert_int_equal(other.yarn_orig_ctx, 64);
    assert_float_equal(other.yarn_beta_fast, 16, 0);
    p.rope_scaling = "none"; /* scales nothing, whatever is asked */
    assert_float_equal(info_with(m, p).rope.freq_scale, 1, 0);
    kv_model_free(m);
    const char *list[] = {"llama.rope.freq_base=float:20000", "llama.rope.scaling.type=str:yarn",
                          "llama.rope.scaling.original_context_length=int:48"};
    kv_engine_params_defaults(&p);
    m = load_with((kv_model_params){.kv_overrides = list, .n_kv_overrides = 3}, TINY);
    p.yarn_orig_ctx = 48;
    kv_rope overridden = info_with(m, p).rope;
    assert_float_equal(overridden.freq_base, 20000, 0);
    assert_string_equal(overridden.scaling, "yarn");
    assert_int_equal(overridden.yarn_orig_ctx, 0);
    kv_model_free(m);
}

static void test_state_format(void **state) {
    (void)state;
    kv_engine_params p;
    kv_engine_params_defaults(&p);
    p.flash_attn = KV_FA_ON;
    kv_model *m = load(TINY);
    kv_engine_info info = info_with(m, p);
    assert_string_equal(info.state_format, "ggsq 3");
    assert_false(info.attn_rot_disabled);
    setenv("LLAMA_ATTN_ROT_DISABLE", "1", 1);
    assert_false(info_with(m, p).attn_rot_disabled); /* f16: never rotated */
    p.type_k = "q8_0";
    assert_true(info_with(m, p).attn_rot_disabled);
    setenv("LLAMA_ATTN_ROT_DISABLE", "0", 1);
    assert_false(info_with(m, p).attn_rot_disabled);
    unsetenv("LLAMA_ATTN_ROT_DISABLE");
    kv_model_free(m);
}

/* ── the fake ──────────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_hash fake_hash(const kv_fake_params *p) {
    kv_error err = {0};
    kv_model *m;
    kv_fingerprint f;
    check(kv_model_load_fake(&m, p, &err), &err);
    check(kv_model_fingerprint(&f, m, &err), &err);
    kv_hash h = f.weights;
    assert_string_equal(f.adapters, "none");
    assert_string_equal(f.overrides, "none");
    kv_fingerprint_free(&f);
    kv_model_free(m);
    return h;
}

static void test_fake(void **state) {
    (void)state;
    kv_fake_params p, q;
    kv_fake_params_defaults(&p);
    kv_hash base = fake_hash(&p);
    q = p;
    q.cost.call_ns *= 2;
    q.chat_template = "{{ messages }}";
    assert_true(kv_hash_equal(base, fake_hash(&q)));
    q = p, q.seed = 2;
    assert_false(kv_hash_equal(base, fake_hash(&q)));
    q = p, q.memory = KV_MEMORY_HYBRID;
    assert_false(kv_hash_equal(base, fake_hash(&q)));
    q = p, q.edge_sensitive = true;
    assert_false(kv_hash_equal(base, fake_hash(&q)));
    char vocab[4096];
    snprintf(vocab, sizeof vocab, "%s", fixture(TINY));
    q = p, q.vocab_path = vocab;
    kv_hash with_vocab = fake_hash(&q);
    assert_false(kv_hash_equal(base, with_vocab));
    assert_true(kv_hash_equal(with_vocab, fake_hash(&q)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),      cmocka_unit_test(test_metadata), cmocka_unit_test(test_values),
        cmocka_unit_test(test_order),     cmocka_unit_test(test_data),     cmocka_unit_test(test_table),
        cmocka_unit_test(test_split),     cmocka_unit_test(test_broken),   cmocka_unit_test(test_adapters),
        cmocka_unit_test(test_overrides), cmocka_unit_test(test_rope),     cmocka_unit_test(test_state_format),
        cmocka_unit_test(test_fake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
