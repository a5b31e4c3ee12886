/* fuzz/replay.c: main() of a fuzzer without libFuzzer: runs every file of the named directories, and of the named
 * files, through it once. `make test` uses it on the corpora; by hand it replays a crash.
 *
 * usage: fuzz_<name> DIR|FILE…     status 0 when every input was run, 1 when one could not be read or there was none
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "fuzz.h"

static int n_inputs;

static int run_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return 1;
    }
    kv_buf text = {0};
    char chunk[65536];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) kv_buf_add(&text, chunk, n);
    int failed = ferror(f);
    fclose(f);
    if (!failed) {
        /* An exact copy, so that a sanitizer sees one byte read past the end. */
        uint8_t *exact = malloc(text.len ? text.len : 1);
        if (exact && text.len) memcpy(exact, text.data, text.len);
        if (exact) LLVMFuzzerTestOneInput(exact, text.len);
        failed = !exact;
        free(exact);
        n_inputs++;
    }
    kv_buf_free(&text);
    return failed;
}

static int run_dir(const char *path) {
    DIR *dir = opendir(path);
    if (!dir) {
        perror(path);
        return 1;
    }
    int failed = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.') continue;
        kv_buf name = {0};
        kv_buf_addf(&name, "%s/%s", path, e->d_name);
        failed |= run_file(kv_buf_str(&name));
        kv_buf_free(&name);
    }
    closedir(dir);
    return failed;
}

int main(int argc, char **argv) {
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        struct stat st;
        failed |= stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode) ? run_dir(argv[i]) : run_file(argv[i]);
    }
    printf("%d inputs\n", n_inputs);
    return failed || n_inputs == 0;
}
