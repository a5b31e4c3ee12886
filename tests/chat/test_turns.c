/* Where messages begin, on every template of the engine's source: behind what was found stand the texts that were put
 * there, each behind a place of its own. */
#include "engine/real.h"

#include <dirent.h>

#include "chat/turns.h"
#include "engine/llama_border.h"

typedef struct family {
    const char *name, *user, *any;
} family;

static const family families[] = {
    {"Qwen-Qwen3-0.6B", "<|im_start|>user\n", "<|im_start|>"},
    {"meta-llama-Llama-3.1-8B-Instruct", "<|start_header_id|>user<|end_header_id|>\n\n", "<|start_header_id|>"},
    {"google-gemma-4-31B-it", "<|turn>user\n", "<|turn>"},
    {"openai-gpt-oss-120b", "<|start|>user<|message|>", "<|start|>"},
    {"mistralai-Mistral-Nemo-Instruct-2407", "[INST]", "[INST]"},
    {"GLM-4.6", "<|user|>\n", "<|user|>\n"},
    {"deepseek-ai-DeepSeek-V3.1", "<｜User｜>", "<｜User｜>"},
    {"ibm-granite-granite-4.0", "<|start_of_role|>user<|end_of_role|>", "<|start_of_role|>"},
    {"LFM2-8B-A1B", "<|im_start|>user\n", "<|im_start|>"},
};

static bool open_template(kv_model *m, const char *file) {
    char path[4096];
    snprintf(path, sizeof path, "%s/models/templates/%s", KVASIR_ENGINE_SOURCE, file);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s is missing: scripts/fetch-engine.sh unpacks it", path);
    kv_buf source = {0};
    char part[4096];
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) kv_buf_add(&source, part, n);
    fclose(f);
    *m = (kv_model){0};
    bool ok = kv_border_model_new(&m->border, NULL, kv_buf_str(&source), "<s>", "</s>", NULL) == KV_OK;
    kv_buf_free(&source);
    return ok;
}

static kv_chat_prompt *render(const kv_model *m, const char *messages) {
    const kv_chat_params p = {
        .messages_json = messages, .reasoning_format = "none", .enable_thinking = -1, .add_generation_prompt = true};
    kv_chat_prompt *c = NULL;
    return kv_chat_render(&c, m, &p, NULL) == KV_OK ? c : NULL;
}

static void test_openers(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const family *f = &families[i];
        char file[256];
        kv_model m;
        kv_turns t;
        snprintf(file, sizeof file, "%s.jinja", f->name);
        assert_true(open_template(&m, file));
        kv_turns_learn(&t, &m);
        if (!t.user || strcmp(t.user, f->user) != 0 || strcmp(t.any, f->any) != 0)
            fail_msg("%s: \"%s\", \"%s\"", f->name, t.user ? t.user : "-", t.any ? t.any : "-");
        kv_turns_free(&t);
        kv_border_model_free(m.border);
    }
}

static bool starts(const char *text, const char *what) {
    return strncmp(text, what, strlen(what)) == 0;
}

/* The texts stand right behind an opener, blanks aside, and nothing of them before the place. */
static void check_places(const char *file, const kv_turns *t, const kv_chat_prompt *c) {
    size_t n;
    const char *text = kv_chat_prompt_text(c, &n);
    kv_turn_places at;
    kv_turns_find(&at, t, text, n, kv_chat_prompt_generation(c));
    assert_true(at.first <= at.last && at.last < n && at.generation < n);
    for (size_t i = 0; i < at.n; i++) assert_true(at.start[i] > (i ? at.start[i - 1] : 0) && at.start[i] < n);
    const char *first = strstr(text, "where is Oslo"), *last = strstr(text, "and Rome");
    assert_non_null(first);
    assert_non_null(last);
    if (at.first > (size_t)(first - text)) fail_msg("%s: the first turn begins behind its text", file);
    if (at.first && !starts(text + at.first, t->user)) fail_msg("%s: no opener at the first turn", file);
    bool opened = starts(text + at.last, t->any) || (t->assistant && starts(text + at.last, t->assistant));
    if (at.last && !opened) fail_msg("%s: no opener at the last turn", file);
    /* a template may put a turn of its own behind the last message */
    if (at.last && at.last < (size_t)(last - text) && (size_t)(last - text) - at.last > strlen(t->user) + 8)
        fail_msg("%s: the last turn begins %zu bytes before its text", file, (size_t)(last - text) - at.last);
    kv_turn_places_free(&at);
}

/* A place lies between this text and the one before it. */
static bool has_start(const kv_turn_places *at, const char *text, const char *before, const char *what) {
    const char *end = strstr(text, before), *begin = strstr(text, what);
    if (!begin || !end) return false;
    for (size_t i = 0; i < at->n; i++)
        if (text + at->start[i] >= end + strlen(before) && text + at->start[i] <= begin) return true;
    return false;
}

static const char *const said[] = {"north of it",  "and of Rome", "far south",
                                   "what of Bern", "in the west", "and of Wien"};
enum { N_SAID = sizeof said / sizeof *said };

/* How many of the messages behind the first one have a place of their own. */
static int count_starts(const kv_turns *t, const kv_chat_prompt *c) {
    size_t n;
    const char *text = kv_chat_prompt_text(c, &n);
    kv_turn_places at;
    int found = 0;
    kv_turns_find(&at, t, text, n, kv_chat_prompt_generation(c));
    for (int i = 0; i < N_SAID; i++) found += has_start(&at, text, i ? said[i - 1] : "where is Oslo", said[i]);
    kv_turn_places_free(&at);
    return found;
}

static void test_every_message(void **state) {
    (void)state;
    char path[4096];
    kv_buf messages = {0};
    kv_buf_adds(&messages, "[{\"role\":\"user\",\"content\":\"where is Oslo\"}");
    for (int i = 0; i < N_SAID; i++)
        kv_buf_addf(&messages, ",{\"role\":\"%s\",\"content\":\"%s\"}", i % 2 ? "user" : "assistant", said[i]);
    kv_buf_adds(&messages, "]");
    snprintf(path, sizeof path, "%s/models/templates", KVASIR_ENGINE_SOURCE);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    int n = 0, n_all = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        kv_model m;
        kv_turns t;
        if (!strstr(e->d_name, ".jinja") || !open_template(&m, e->d_name)) continue;
        kv_turns_learn(&t, &m);
        kv_chat_prompt *c = render(&m, kv_buf_str(&messages));
        int found = c ? count_starts(&t, c) : 0;
        n += c != NULL;
        n_all += c && found == N_SAID;
        if (c && found < N_SAID) print_message("%d of %d messages: %s\n", found, N_SAID, e->d_name);
        kv_chat_prompt_free(c);
        kv_turns_free(&t);
        kv_border_model_free(m.border);
    }
    closedir(dir);
    kv_buf_free(&messages);
    print_message("every message's beginning: %d of %d templates\n", n_all, n);
    assert_true(n > 40 && n_all * 10 >= n * 9);
}

static void test_all_templates(void **state) {
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s/models/templates", KVASIR_ENGINE_SOURCE);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    int n = 0, n_found = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        kv_model m;
        kv_turns t;
        if (!strstr(e->d_name, ".jinja") || !open_template(&m, e->d_name)) continue;
        kv_turns_learn(&t, &m);
        kv_chat_prompt *c = render(&m, "[{\"role\":\"user\",\"content\":\"where is Oslo\"},{\"role\":\"assistant\","
                                       "\"content\":\"north\"},{\"role\":\"user\",\"content\":\"and Rome\"}]");
        n += c != NULL;
        n_found += c && t.user;
        if (c && !t.user) print_message("no turns found: %s\n", e->d_name);
        if (c && t.user) check_places(e->d_name, &t, c);
        kv_chat_prompt_free(c);
        kv_turns_free(&t);
        kv_border_model_free(m.border);
    }
    closedir(dir);
    print_message("%d of %d templates\n", n_found, n);
    assert_true(n > 40 && n_found * 10 >= n * 9);
}

/* A system prompt in a turn of its own ends where the first user's turn begins. */
static void test_system_prompt(void **state) {
    (void)state;
    kv_model m;
    kv_turns t;
    assert_true(open_template(&m, "Qwen-Qwen3-0.6B.jinja"));
    kv_turns_learn(&t, &m);
    kv_chat_prompt *c =
        render(&m, "[{\"role\":\"system\",\"content\":\"Be kind.\"},{\"role\":\"user\",\"content\":\"Hi\"}]");
    size_t n;
    const char *text = kv_chat_prompt_text(c, &n);
    kv_turn_places at;
    kv_turns_find(&at, &t, text, n, kv_chat_prompt_generation(c));
    assert_int_equal(at.generation, n - strlen("<|im_start|>assistant\n"));
    assert_false(at.generation_parts);
    assert_int_equal(at.n, 1);
    assert_int_equal(at.first, strlen("<|im_start|>system\nBe kind.<|im_end|>\n"));
    assert_int_equal(at.last, at.first);
    kv_turn_places_free(&at);
    kv_turns_find(&at, &t, "no turns here", 13, "");
    assert_int_equal(at.first + at.last + at.n + at.generation, 0);
    kv_chat_prompt_free(c);
    kv_turns_free(&t);
    kv_border_model_free(m.border);
}

/* A generation prompt that begins a thought, which the same answer is without once it is an earlier one. */
static void test_generation_parts(void **state) {
    (void)state;
    static const char generation[] = "<|im_start|>assistant\n<think>\n";
    kv_model m;
    kv_turns t;
    assert_true(open_template(&m, "Qwen3.5-4B.jinja"));
    kv_turns_learn(&t, &m);
    kv_chat_prompt *c = render(&m, "[{\"role\":\"user\",\"content\":\"Hi\"}]");
    size_t n;
    const char *text = kv_chat_prompt_text(c, &n);
    kv_turn_places at;
    assert_string_equal(kv_chat_prompt_generation(c), generation);
    kv_turns_find(&at, &t, text, n, generation);
    assert_int_equal(at.generation, n - strlen(generation));
    assert_true(at.generation_parts);
    kv_turn_places_free(&at);
    kv_chat_prompt_free(c);
    kv_turns_free(&t);
    kv_border_model_free(m.border);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_openers),          cmocka_unit_test(test_all_templates),
        cmocka_unit_test(test_every_message),    cmocka_unit_test(test_system_prompt),
        cmocka_unit_test(test_generation_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
