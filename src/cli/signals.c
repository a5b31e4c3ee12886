#include "cli/signals.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "cli/cli.h"

/* Handlers run on whatever thread the system picks, between any two instructions: lock-free atomics and write(). */
static struct {
    _Atomic(kv_wake *) wake;
    atomic_int n_stops;
    atomic_bool hup;
} state;

static void say(const char *text) {
    ssize_t n = write(STDERR_FILENO, text, strlen(text));
    (void)n; /* nothing can be done about it here */
}

static void wake_main(void) {
    kv_wake *w = atomic_load(&state.wake);
    if (w) kv_wake_set(w);
}

static void on_stop(int sig) {
    (void)sig;
    if (atomic_fetch_add(&state.n_stops, 1) > 0) {
        say("kvasir: second signal, ending at once\n");
        _exit(KV_EXIT_FAILURE);
    }
    wake_main();
}

static void on_hup(int sig) {
    (void)sig;
    atomic_store(&state.hup, true);
    wake_main();
}

static void on_alarm(int sig) {
    (void)sig;
    say("kvasir: the stop took longer than --stop-timeout, ending at once\n");
    _exit(KV_EXIT_FAILURE);
}

static kv_status handle(int sig, void (*handler)(int), kv_error *err) {
    struct sigaction a = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&a.sa_mask);
    if (sigaction(sig, &a, NULL) != 0) return kv_fail_errno(err, "sigaction for signal %d", sig);
    return KV_OK;
}

kv_status kv_signals_start(kv_wake *wake, kv_error *err) {
    atomic_store(&state.n_stops, 0);
    atomic_store(&state.hup, false);
    atomic_store(&state.wake, wake);
    kv_status st = handle(SIGTERM, on_stop, err);
    if (st == KV_OK) st = handle(SIGINT, on_stop, err);
    if (st == KV_OK) st = handle(SIGHUP, on_hup, err);
    if (st == KV_OK) st = handle(SIGALRM, on_alarm, err);
    if (st == KV_OK) st = handle(SIGPIPE, SIG_IGN, err);
    return st;
}

void kv_signals_stop(void) {
    struct itimerval off = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &off, NULL);
    handle(SIGTERM, SIG_DFL, NULL);
    handle(SIGINT, SIG_DFL, NULL);
    handle(SIGHUP, SIG_IGN, NULL); /* a reload that comes too late is no reason to end by a signal */
    handle(SIGALRM, SIG_DFL, NULL);
    atomic_store(&state.wake, NULL);
}

bool kv_signals_asked_to_stop(void) {
    return atomic_load(&state.n_stops) > 0;
}
bool kv_signals_take_hup(void) {
    return atomic_exchange(&state.hup, false);
}

void kv_signals_block(sigset_t *before) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

void kv_signals_unblock(const sigset_t *before) {
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

void kv_watchdog_arm(double seconds) {
    struct itimerval t = {{0, 0}, {0, 0}};
    t.it_value.tv_sec = (time_t)seconds;
    t.it_value.tv_usec = (suseconds_t)((seconds - (double)t.it_value.tv_sec) * 1e6);
    if (t.it_value.tv_sec == 0 && t.it_value.tv_usec == 0) t.it_value.tv_usec = 1; /* 0 would switch it off */
    setitimer(ITIMER_REAL, &t, NULL);
}
