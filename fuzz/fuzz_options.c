/* fuzz/fuzz_options.c: options/options.h on an arbitrary command line, environment and configuration file.
 *
 * The input is up to three texts divided by lines of "---": arguments, environment, file; one item a line.
 *
 *  1. parsing ends in KV_OK, KV_INVALID, KV_UNSUPPORTED, or a file that cannot be read, always with a message
 *  2. what --print-config prints is a configuration file that means the same
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "fuzz.h"
#include "options/options.h"

#define MAX_ITEMS 64

/* Cuts `text` into lines in place; NULL-terminated. Returns how many. */
static int lines_of(char **items, char *text) {
    int n = 0;
    for (char *line = text ? strtok(text, "\n") : NULL; line && n < MAX_ITEMS - 1; line = strtok(NULL, "\n"))
        items[n++] = line;
    items[n] = NULL;
    return n;
}

/* The part behind the next "---" line, cut off from `text`; NULL when there is none. */
static char *next_part(char *text) {
    char *mark = text ? strstr(text, "\n---\n") : NULL;
    if (!mark) return NULL;
    *mark = '\0';
    return mark + strlen("\n---\n");
}

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    KV_CHECK(f);
    fputs(text, f);
    KV_CHECK(fclose(f) == 0);
}

static kv_status parse(kv_options *o, int argc, char **argv, char *const *env) {
    kv_buf warnings = {0};
    kv_error err = {0};
    kv_options_defaults(o);
    kv_status st = kv_options_parse(o, argc, argv, env, &warnings, &err);
    if (st != KV_OK) {
        KV_CHECK(st == KV_INVALID || st == KV_UNSUPPORTED || st == KV_IO || st == KV_NOT_FOUND || st == KV_TOO_LARGE);
        KV_CHECK(err.message[0] && kv_utf8_valid(err.message, strlen(err.message)));
    }
    kv_buf_free(&warnings);
    return st;
}

static void check_round_trip(const kv_options *o, const char *path) {
    kv_buf once = {0}, twice = {0};
    kv_options_print(&once, o);
    write_file(path, kv_buf_str(&once));
    char *argv[] = {"kvasir", "--config", (char *)path, NULL};
    char *env[] = {NULL};
    kv_options again;
    KV_CHECK(parse(&again, 3, argv, env) == KV_OK);
    kv_options_print(&twice, &again);
    KV_CHECK(strcmp(kv_buf_str(&once), kv_buf_str(&twice)) == 0);
    kv_options_free(&again);
    kv_buf_free(&once);
    kv_buf_free(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[] = "/tmp/kvasir-fuzz.XXXXXX";
    int fd = mkstemp(path);
    KV_CHECK(fd >= 0);
    close(fd);
    char *args = kv_strndup((const char *)data, size);
    char *env_text = next_part(args), *file = next_part(env_text);
    char *argv[MAX_ITEMS + 3] = {"kvasir"}, *env[MAX_ITEMS];
    int argc = 1 + lines_of(argv + 1, args);
    lines_of(env, env_text);
    if (file) {
        write_file(path, file);
        argv[argc++] = "--config";
        argv[argc++] = path;
        argv[argc] = NULL;
    }
    kv_options o;
    if (parse(&o, argc, argv, env) == KV_OK) {
        kv_error err = {0};
        if (kv_options_check(&o, &err) != KV_OK) KV_CHECK(err.message[0]);
        check_round_trip(&o, path);
    }
    kv_options_free(&o);
    free(args);
    unlink(path);
    return 0;
}
