#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/ask.h"
#include "cli/cache_command.h"
#include "cli/doctor.h"
#include "cli/find_model.h"
#include "cli/manual.h"
#include "hub/hub.h"

static int print(kv_buf *text) {
    fputs(kv_buf_str(text), stdout);
    kv_buf_free(text);
    return fflush(stdout) == 0 ? KV_EXIT_OK : KV_EXIT_FAILURE;
}

/* The usage on stderr, below `why` unless that is "". */
static int print_usage(const char *why) {
    kv_buf out = {0};
    kv_manual_usage(&out);
    fprintf(stderr, "%s%s", why, kv_buf_str(&out));
    kv_buf_free(&out);
    return KV_EXIT_USAGE;
}

static int fail_usage(const char *message) {
    fprintf(stderr, "kvasir: %s\n", message);
    return KV_EXIT_USAGE;
}

static int print_version(void) {
    printf("kvasir %s (engine: llama.cpp %s)\n", KVASIR_VERSION, KVASIR_ENGINE_RELEASE);
    return KV_EXIT_OK;
}

static int print_help(const char *group) {
    kv_buf out = {0};
    kv_error err = {0};
    if (group && strcmp(group, "markdown") == 0) {
        kv_options_markdown(&out);
        return print(&out);
    }
    if (group && strcmp(group, "man") == 0) {
        kv_manual_page(&out);
        return print(&out);
    }
    if (!group) {
        kv_manual_usage(&out);
        kv_buf_adds(&out, "\n");
    }
    if (kv_options_help(&out, group, &err) == KV_OK) return print(&out);
    kv_buf_free(&out);
    return fail_usage(err.message);
}

static int print_completion(const char *shell) {
    kv_buf out = {0};
    kv_error err = {0};
    if (kv_completion(&out, shell, &err) == KV_OK) return print(&out);
    kv_buf_free(&out);
    return fail_usage(err.message);
}

/* log.h's levels from llama-server's numbers. */
static kv_log_level level_of(int64_t verbosity) {
    if (verbosity <= 0) return KV_LOG_ERROR;
    if (verbosity <= 2) return KV_LOG_WARN;
    return verbosity == 3 ? KV_LOG_INFO : KV_LOG_DEBUG;
}

static void log_lines(char *text) {
    for (char *line = text, *end; line && *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end) *end++ = 0;
        KV_WARN("%s", line);
    }
}

static int serve(kv_options *o, kv_buf *warnings) {
    kv_error err = {0};
    if (kv_options_check(o, &err) != KV_OK) return fail_usage(err.message);
    kv_log_config log = {
        .level = level_of(o->verbosity), .jsonl = o->log_jsonl, .timestamps = o->log_timestamps, .file = o->log_file};
    if (kv_log_init(&log, &err) != KV_OK) {
        fprintf(stderr, "kvasir: %s\n", err.message);
        return KV_EXIT_FAILURE;
    }
    log_lines(warnings->data);
    if (!o->jinja) KV_WARN("--no-jinja is ignored: templates are always rendered with Jinja");
    int status = KV_EXIT_FAILURE;
    if (kv_find_model(o, false, &err) != KV_OK) KV_ERROR("there is no model to serve: %s", err.message);
    else status = o->check ? kv_serve_check(o) : kv_serve(o);
    kv_log_close();
    return status;
}

static int run_serve(int argc, char **argv, char *const *env) {
    kv_options o;
    kv_buf warnings = {0}, out = {0};
    kv_error err = {0};
    int status;
    kv_options_defaults(&o);
    kv_status st = kv_options_parse(&o, argc, argv, env, &warnings, &err);
    if (st != KV_OK) status = fail_usage(err.message);
    else if (o.help) status = print_help(NULL);
    else if (o.version) status = print_version();
    else if (o.completion) status = print_completion("bash");
    else if (o.cache_list) {
        kv_hub_list(&out);
        status = print(&out);
    } else if (o.print_config) {
        fputs(kv_buf_str(&warnings), stderr);
        kv_options_print(&out, &o);
        status = print(&out);
    } else status = serve(&o, &warnings);
    kv_buf_free(&warnings);
    kv_options_free(&o);
    return status;
}

int kv_cli_main(int argc, char **argv, char *const *env) {
    const char *command = argc > 1 ? argv[1] : NULL;
    if (!command) return print_usage("");
    if (command[0] == '-') return run_serve(argc, argv, env);
    if (strcmp(command, "serve") == 0) return run_serve(argc - 1, argv + 1, env);
    if (strcmp(command, "why") == 0) return kv_ask_why(argc - 1, argv + 1, env);
    if (strcmp(command, "status") == 0) return kv_ask_status(argc - 1, argv + 1, env);
    if (strcmp(command, "cache") == 0) return kv_cache_command(argc - 1, argv + 1, env);
    if (strcmp(command, "doctor") == 0) return kv_doctor(argc - 1, argv + 1, env);
    if (strcmp(command, "version") == 0) return print_version();
    if (strcmp(command, "help") == 0) return print_help(argc > 2 ? argv[2] : NULL);
    if (strcmp(command, "completion") == 0 || strcmp(command, "completions") == 0)
        return print_completion(argc > 2 ? argv[2] : "bash");
    char why[128];
    snprintf(why, sizeof why, "kvasir: there is no command \"%.80s\"\n", command);
    return print_usage(why);
}
