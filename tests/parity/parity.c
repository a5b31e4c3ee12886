/* parity: what was restored computes on as what was never interrupted, on libllama itself, as a matrix.
 *
 *   parity [--quick] [--models DIR] [--types K/V] [NAME…]
 *   parity --publish DIR MODEL.gguf K V FA TINY             (by itself: the process that will be killed)
 *
 * Rows are models × types of K and V, columns are positions; a cell is the largest absolute difference of logits over
 * the next tokens, in three lives of the process:
 *
 *   same      captured, the sequence removed, restored from memory
 *   restart   cache, store and engine closed, opened anew, restored from the disk
 *   SIGKILL   another process captures and is killed once its store says all is there; restored from its disk
 *
 * Exit status 1 when a cell is above its bound.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* nftw */
#endif
#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "world.h"

typedef enum column { EDGE, INSIDE, CHECKPOINT, WRAP, FORK, COMPACTION, N_COLUMNS } column;
static const char *const column_names[] = {"block edge",      "inside a block", "checkpoint",
                                           "after ring wrap", "fork",           "after compaction"};

typedef enum life { SAME, RESTART, KILLED, N_LIVES } life;

static const kv_types all_types[] = {
    {"f16", "f16", false}, {"q8_0", "f16", false}, {"q8_0", "q8_0", true}, {"q4_0", "q4_0", true}};
enum { N_TYPES = sizeof all_types / sizeof *all_types };

/* What another batch shape may move the logits of a tiny F32 model with f16 K and V. */
#define TINY_NOISE 5e-4f

typedef struct subject {
    const char *name, *file; /* file: below the models' folder */
    bool tiny, quick;
    bool equal_types; /* MLA: V is a view of K */
} subject;

static const subject subjects[] = {
    {"llama", "tiny/llama.gguf", true, true, false},
    {"gemma3", "tiny/gemma3.gguf", true, true, false},
    {"gpt-oss", "tiny/gpt-oss.gguf", true, false, false},
    {"llama4", "tiny/llama4.gguf", true, false, false},
    {"deepseek2", "tiny/deepseek2.gguf", true, false, true},
    {"qwen35", "tiny/qwen35.gguf", true, true, false},
    {"qwen3next", "tiny/qwen3next.gguf", true, false, false},
    {"qwen4exp", "tiny/qwen4exp.gguf", true, false, false},
    {"deepseek4", "tiny/deepseek4.gguf", true, false, false},
    {"nemotron_h", "tiny/nemotron_h.gguf", true, false, false},
    {"granitehybrid", "tiny/granitehybrid.gguf", true, false, false},
    {"falcon-h1", "tiny/falcon-h1.gguf", true, false, false},
    {"lfm2", "tiny/lfm2.gguf", true, false, false},
    {"lfm2-window", "tiny/lfm2-window.gguf", true, false, false},
    {"mamba2", "tiny/mamba2.gguf", true, false, false},
    {"SmolLM2-135M Q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf", false, false, false},
    {"gemma-3-270m Q4_K_M", "gemma-3-270m-q4_k_m.gguf", false, false, false},
    {"LFM2-350M shape Q8_0", "shape/lfm2-350m.gguf", false, false, false},
    {"Qwen3.5-0.8B shape Q8_0", "shape/qwen35-0.8b.gguf", false, false, false},
};
enum { N_SUBJECTS = sizeof subjects / sizeof *subjects };

typedef struct row {
    float cell[N_COLUMNS][N_LIVES]; /* < 0: not there */
    float noise, bound[N_COLUMNS];
    kv_memory_kind memory;
    int32_t block;
} row;

static const char *self_path; /* of this program */

/* ── folders ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk) {
    (void)st, (void)type, (void)walk;
    return remove(path);
}

static void make_folder(char *out, size_t cap) {
    const char *tmp = getenv("TMPDIR");
    snprintf(out, cap, "%s/kvasir-parity-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(out)) die(out, NULL);
}

static void remove_folder(const char *path) {
    if (*path) nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ── three lives ───────────────────────────────────────────────────────────────────────────────────────────────── */

static kv_model *load(const char *path) {
    kv_error err = {0};
    kv_model *m;
    must(kv_model_load_llama(&m, &(kv_model_params){.path = path, .use_mmap = true}, &err), path, &err);
    return m;
}

static void capture(world *w) {
    world_play(w->main.logits, w, &w->main, w->block, true);
    if (w->wrap.n) world_play(w->wrap.logits, w, &w->wrap, w->block, true);
    world_settle(w);
}

/* The process that will be killed: says one line when its store has everything, and waits for its end. */
static int publish(char **arg) {
    kv_error err = {0};
    world w;
    kv_model *m = load(arg[1]);
    world_init(&w, m, (kv_types){arg[2], arg[3], *arg[4] == '1'}, *arg[5] == '1');
    snprintf(w.dir, sizeof w.dir, "%s", arg[0]);
    must(world_open_engine(&w, &err), "the engine", &err);
    world_open_cache(&w);
    capture(&w);
    if (write(STDOUT_FILENO, "all there\n", 10) != 10) return 1;
    for (;;) pause();
}

static void publish_and_be_killed(const world *w, const char *model) {
    int fd[2];
    if (pipe(fd) != 0) die("pipe", NULL);
    pid_t pid = fork();
    if (pid < 0) die("fork", NULL);
    if (pid == 0) {
        dup2(fd[1], STDOUT_FILENO);
        close(fd[0]);
        close(fd[1]);
        execl(self_path, self_path, "--publish", w->dir, model, w->types.k, w->types.v, w->types.flash_attn ? "1" : "0",
              w->tiny ? "1" : "0", (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    char line[16];
    ssize_t n;
    while ((n = read(fd[0], line, sizeof line)) < 0 && errno == EINTR) continue;
    close(fd[0]);
    kill(pid, SIGKILL);
    int status;
    if (waitpid(pid, &status, 0) != pid || n != 10) die("the process that publishes ended by itself", NULL);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) die("it was not killed", NULL);
}

/* Every column of one life. */
static void visit_all(row *out, world *w, life life) {
    const kv_pos *stop = w->main.stop;
    source from = life == SAME ? FROM_RAM : FROM_DISK;
    /* Without a state for it a position inside a block cannot be resumed: the last one before it is. */
    kv_pos inside = kv_state_has_checkpoints(w->state.memory) ? stop[STOP_EDGE] : stop[STOP_INSIDE];
    const run *m = &w->main;
    out->cell[EDGE][life] = world_visit(w, m, stop[STOP_EDGE], stop[STOP_EDGE], NOTHING, from);
    out->cell[INSIDE][life] = world_visit(w, m, stop[STOP_INSIDE], inside, NOTHING, from);
    out->cell[CHECKPOINT][life] = world_visit(w, m, stop[STOP_CHECKPOINT], stop[STOP_CHECKPOINT], NOTHING, from);
    out->cell[FORK][life] = world_visit(w, m, stop[STOP_EDGE], stop[STOP_EDGE], FORKED, from);
    out->cell[COMPACTION][life] = world_visit(w, m, stop[STOP_CHECKPOINT], stop[STOP_CHECKPOINT], MOVED, from);
    out->cell[WRAP][life] = w->wrap.n ? world_visit(w, &w->wrap, w->wrap.stop[0], w->wrap.stop[0], NOTHING, from) : -1;
}

/* The window's cells come in one piece and are put side by side from the first free cell on, wherever they lay. */
static bool packs_window(const row *r, const subject *s) {
    return r->memory == KV_MEMORY_HYBRID_WINDOW || strcmp(s->name, "deepseek4") == 0;
}

/* Where the result cannot depend on which cells things lie in. */
static bool is_exact(const row *r, const subject *s, const kv_types *t) {
    return !packs_window(r, s) && !(kv_memory_has_window(r->memory) && t->flash_attn);
}

static void worsen(float *most, float d) {
    if (!(d <= *most)) *most = d;
}

/* What shape alone does, in this engine and without any cache: other chunk edges, a fork, a sequence that lay below. */
static float noise_of(world *w, bool long_too) {
    float most = 0;
    const run *runs[2] = {&w->main, long_too && w->wrap.n ? &w->wrap : NULL};
    for (int i = 0; i < 2 && runs[i]; i++) {
        size_t n = (size_t)runs[i]->n_stops * (size_t)w->tail * (size_t)w->n_vocab;
        float *other = kv_alloc(n * sizeof *other);
        world_play(other, w, runs[i], w->block * 3 / 2, false);
        worsen(&most, largest_difference(other, runs[i]->logits, n));
        free(other);
    }
    worsen(&most, world_visit(w, &w->main, 0, w->main.stop[STOP_EDGE], FORKED, COMPUTED));
    worsen(&most, world_visit(w, &w->main, 0, w->main.stop[STOP_CHECKPOINT], MOVED, COMPUTED));
    /* The ring begins elsewhere, as it does after a restore. */
    if (runs[1]) worsen(&most, world_visit(w, runs[1], 0, runs[1]->stop[0], MOVED, COMPUTED));
    return most;
}

static void set_bounds(row *r, const subject *s, const kv_types *t) {
    float noise = 2 * r->noise;
    bool f16 = strcmp(t->k, "f16") == 0 && strcmp(t->v, "f16") == 0;
    if (s->tiny && (f16 || packs_window(r, s)) && noise < TINY_NOISE) noise = TINY_NOISE;
    for (column c = 0; c < N_COLUMNS; c++) r->bound[c] = noise;
    if (is_exact(r, s, t)) r->bound[EDGE] = r->bound[INSIDE] = r->bound[CHECKPOINT] = r->bound[WRAP] = 0;
}

/* False: the engine refuses, and says why. */
static bool measure(row *out, const subject *s, kv_model *m, const char *path, kv_types types, bool quick,
                    kv_error *err) {
    world w;
    world_init(&w, m, types, s->tiny);
    for (int c = 0; c < N_COLUMNS; c++)
        for (int l = 0; l < N_LIVES; l++) out->cell[c][l] = -1;
    make_folder(w.dir, sizeof w.dir);
    bool ok = world_open_engine(&w, err) == KV_OK;
    if (ok) {
        out->memory = w.state.memory;
        out->block = w.block;
        world_open_cache(&w);
        capture(&w);
        if (!quick) visit_all(out, &w, SAME);
        out->noise = noise_of(&w, !is_exact(out, s, &types));
        world_close(&w);
        must(world_open_engine(&w, err), "the engine, once more", err);
        world_open_cache(&w);
        visit_all(out, &w, RESTART);
    }
    world_close(&w);
    remove_folder(w.dir);
    if (ok && !quick) {
        make_folder(w.dir, sizeof w.dir);
        publish_and_be_killed(&w, path);
        must(world_open_engine(&w, err), "the engine, after the kill", err);
        world_open_cache(&w);
        visit_all(out, &w, KILLED);
        world_close(&w);
        remove_folder(w.dir);
    }
    world_free(&w);
    if (ok) set_bounds(out, s, &types);
    return ok;
}

/* ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static float worst(const row *r, column c) {
    float most = -1;
    for (int l = 0; l < N_LIVES; l++)
        if (!(r->cell[c][l] <= most)) most = r->cell[c][l];
    return most;
}

static void print_types(FILE *f, const subject *s, const kv_types *t) {
    fprintf(f, "| %s | %s / %s, fa %s ", s->name, t->k, t->v, t->flash_attn ? "on" : "off");
}

/* True: within the bounds. */
static bool print_row(FILE *f, const subject *s, const kv_types *t, const row *r) {
    bool ok = true;
    print_types(f, s, t);
    fprintf(f, "| %s, %d ", kv_memory_kind_name(r->memory), r->block);
    for (column c = 0; c < N_COLUMNS; c++) {
        float d = worst(r, c);
        bool over = d >= 0 ? d > r->bound[c] : isnan(d);
        if (d < 0) fputs("| – ", f);
        else if (d == 0) fputs("| = ", f);
        else fprintf(f, over ? "| **%.2g** over " : "| %.2g ", (double)d);
        if (over)
            fprintf(stderr, "parity: %s, %s / %s, %s: %g, bound %g (same %g, restart %g, SIGKILL %g)\n", s->name, t->k,
                    t->v, column_names[c], (double)d, (double)r->bound[c], (double)r->cell[c][SAME],
                    (double)r->cell[c][RESTART], (double)r->cell[c][KILLED]);
        ok = ok && !over;
    }
    fprintf(f, "| %.2g | %.2g |\n", (double)r->noise, (double)r->bound[FORK]);
    fflush(f);
    return ok;
}

static void print_head(FILE *f) {
    fputs("| model | K / V | memory, B ", f);
    for (int c = 0; c < N_COLUMNS; c++) fprintf(f, "| %s ", column_names[c]);
    fputs("| shape noise | bound |\n|---|---|---", f);
    for (int c = 0; c < N_COLUMNS; c++) fputs("|---", f);
    fputs("|---|---|\n", f);
}

static bool is_wanted(const subject *s, bool quick, char **names, int n_names) {
    if (n_names == 0) return !quick || s->quick;
    for (int i = 0; i < n_names; i++)
        if (strcmp(names[i], s->name) == 0) return true;
    return false;
}

static bool do_subject(FILE *f, const subject *s, const char *dir, const char *only, bool quick) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, s->file);
    kv_model *m = load(path);
    bool ok = true;
    for (int i = 0; i < (quick ? 1 : N_TYPES); i++) {
        const kv_types *t = &all_types[i];
        char name[32];
        snprintf(name, sizeof name, "%s/%s", t->k, t->v);
        if (only && strcmp(only, name) != 0) continue;
        kv_error err = {0};
        row r = {0};
        const char *skip =
            s->equal_types && strcmp(t->k, t->v) != 0 ? "MLA: V is a view of K, so they have one type" : NULL;
        if (!skip && !measure(&r, s, m, path, *t, quick, &err)) skip = err.message;
        if (!skip) {
            ok = print_row(f, s, t, &r) && ok;
            continue;
        }
        print_types(f, s, t);
        fprintf(f, "| skipped: %s |\n", skip);
        fflush(f);
    }
    kv_model_free(m);
    return ok;
}

int main(int argc, char **argv) {
    kv_error err = {0};
    must(kv_log_init(&(kv_log_config){.level = KV_LOG_ERROR}, &err), "the log", &err);
    if (argc == 8 && strcmp(argv[1], "--publish") == 0) return publish(argv + 2);
    bool quick = false, ok = true;
    const char *dir = getenv("KVASIR_FIXTURES"), *only = NULL;
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        if (strcmp(argv[i], "--quick") == 0) quick = true;
        else if (strcmp(argv[i], "--models") == 0 && i + 1 < argc) dir = argv[++i];
        else if (strcmp(argv[i], "--types") == 0 && i + 1 < argc) only = argv[++i];
        else die("usage: parity [--quick] [--models DIR] [--types K/V] [NAME…]", NULL);
    }
    if (!dir) die("KVASIR_FIXTURES or --models names the folder of the models", NULL);
    self_path = argv[0];
    print_head(stdout);
    for (const subject *s = subjects; s < subjects + N_SUBJECTS; s++)
        if (is_wanted(s, quick, argv + i, argc - i)) ok = do_subject(stdout, s, dir, only, quick) && ok;
    if (!ok) die("a difference is above its bound", NULL);
    return 0;
}
