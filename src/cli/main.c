#include "cli/cli.h"

extern char **environ;

int main(int argc, char **argv) {
    return kv_cli_main(argc, argv, environ);
}
