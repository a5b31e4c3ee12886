/* mkmodel: makes random-weight GGUF models, without any download.
 *
 *   mkmodel tiny FAMILY OUT.gguf                 one of every architecture's memory, a few MB, F32, byte tokenizer
 *   mkmodel lora OUT.gguf                        an adapter for the tiny llama
 *   mkmodel rerank OUT.gguf                      a tiny model that scores documents
 *   mkmodel encoder embeds|ranks OUT.gguf        a tiny model without memory
 *   mkmodel shape SHAPE DONOR.gguf OUT.gguf      a real model's shape in Q8_0 around the donor's tokenizer and template
 *   mkmodel list tiny|shape                      the names
 *
 * Texts are noise, but every byte of KV, of state, and the time spent are those of the real thing. Equal arguments
 * give equal files.
 */
#include "family.h"
#include "tokenizer.h"
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] = "usage: mkmodel [--seed N] [--template FILE.jinja] tiny FAMILY OUT.gguf\n"
                            "       mkmodel [--seed N] lora OUT.gguf\n"
                            "       mkmodel [--seed N] rerank OUT.gguf\n"
                            "       mkmodel [--seed N] encoder embeds|ranks OUT.gguf\n"
                            "       mkmodel [--seed N] [--template FILE.jinja] shape SHAPE DONOR.gguf OUT.gguf\n"
                            "       mkmodel list tiny|shape\n";

/* The whole file as a string. Owned by the caller. */
static char *read_text(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) mk_die("%s: %s", path, strerror(errno));
    char *text = malloc(1 << 20);
    if (!text) mk_die("out of memory");
    size_t n = fread(text, 1, (1 << 20) - 1, f);
    if (ferror(f) || !feof(f)) mk_die("%s: cannot be read, or is over 1 MiB", path);
    fclose(f);
    text[n] = 0;
    return text;
}

static void list(const mk_shape *shapes) {
    for (const mk_shape *s = shapes; s->name; s++) puts(s->name);
}

static const mk_shape *find(const mk_shape *list, const char *name) {
    const mk_shape *shape = mk_shape_find(list, name);
    if (!shape) mk_die("no shape is called %s; see mkmodel list", name);
    return shape;
}

static void make_model(const mk_shape *shape, const char *donor, const char *path, uint64_t seed,
                       const char *template_path) {
    char *chat_template = template_path ? read_text(template_path) : NULL;
    char title[64];
    mk_out *out = mk_out_new(shape->arch, shape->name, seed, donor ? GGML_TYPE_Q8_0 : GGML_TYPE_F32);
    snprintf(title, sizeof title, donor ? "random-%s" : "tiny-%s", shape->name);
    mk_set_str(out, "general.name", title);
    uint32_t n_vocab = donor ? mk_tokenizer_donor(out, donor, chat_template) : mk_tokenizer_bytes(out, chat_template);
    shape->build(out, shape, n_vocab);
    printf("%s: %.1f MB\n", path, (double)mk_out_write(out, path) / 1e6);
    mk_out_free(out);
    free(chat_template);
}

static void make_encoder(const mk_shape *shape, const char *path, uint64_t seed) {
    mk_out *out = mk_out_new(shape->arch, shape->name, seed, GGML_TYPE_F32);
    mk_set_str(out, "general.name", shape->name);
    shape->build(out, shape, mk_tokenizer_words(out));
    printf("%s: %.1f MB\n", path, (double)mk_out_write(out, path) / 1e6);
    mk_out_free(out);
}

static void make_lora(const char *path, uint64_t seed) {
    const mk_shape *llama = mk_shape_find(mk_tiny, "llama");
    mk_out *out = mk_out_new(llama->arch, "lora", seed, GGML_TYPE_F32);
    mk_build_lora(out, llama);
    printf("%s: %.1f MB\n", path, (double)mk_out_write(out, path) / 1e6);
    mk_out_free(out);
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"seed", required_argument, NULL, 's'},
                                            {"template", required_argument, NULL, 't'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    uint64_t seed = 1;
    const char *template_path = NULL;
    for (int c; (c = getopt_long(argc, argv, "s:t:h", options, NULL)) != -1;) {
        if (c == 's') {
            char *end;
            seed = strtoull(optarg, &end, 10);
            if (end == optarg || *end) mk_die("--seed %s: not a number", optarg);
        } else if (c == 't') {
            template_path = optarg;
        } else {
            fputs(usage, c == 'h' ? stdout : stderr);
            return c == 'h' ? 0 : 2;
        }
    }
    char **arg = argv + optind;
    int n = argc - optind;
    if (n == 3 && strcmp(arg[0], "tiny") == 0) {
        make_model(find(mk_tiny, arg[1]), NULL, arg[2], seed, template_path);
    } else if (n == 4 && strcmp(arg[0], "shape") == 0) {
        make_model(find(mk_real, arg[1]), arg[2], arg[3], seed, template_path);
    } else if (n == 2 && strcmp(arg[0], "lora") == 0) {
        make_lora(arg[1], seed);
    } else if (n == 2 && strcmp(arg[0], "rerank") == 0) {
        make_model(&mk_rerank, NULL, arg[1], seed, template_path);
    } else if (n == 3 && strcmp(arg[0], "encoder") == 0) {
        make_encoder(find(mk_encoders, arg[1]), arg[2], seed);
    } else if (n == 2 && strcmp(arg[0], "list") == 0 && strcmp(arg[1], "tiny") == 0) {
        list(mk_tiny);
    } else if (n == 2 && strcmp(arg[0], "list") == 0 && strcmp(arg[1], "shape") == 0) {
        list(mk_real);
    } else {
        fputs(usage, stderr);
        return 2;
    }
    return 0;
}
