#include "traffic_day.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SECOND 1000000ll
#define MINUTE (60 * SECOND)
#define HOUR   (60 * MINUTE)

/* ── what the day is made of ───────────────────────────────────────────────────────────────────────────────────── */

enum { N_AGENTS = 14, N_CHATS = 24, N_READERS = 12 };    /* sessions */
enum { N_CLIENTS = 3, N_PROJECTS = 4, N_DOCUMENTS = 6 }; /* texts that sessions share */
#define OPENING (9 * HOUR)                               /* sessions begin within this time */

/* Tokens. */
static const int32_t agent_system[N_CLIENTS] = {12000, 9000, 6000};
enum {
    SUB_SYSTEM = 4000, /* of the second client's sub-agents; those of others have their agent's */
    CHAT_SYSTEM = 600,
    TITLE_SYSTEM = 200,
    PROJECT = 1800, /* what stands in front of an agent's first task */
    REMINDER = 80,  /* what the third client adds to the last message of its user */
    DOCUMENT_LEAST = 3000,
    DOCUMENT_MOST = 12000,
    COMPACT_AT = 24000, /* an agent's history is replaced by a summary from here on */
    LONGEST = 32000,
    KEPT_MESSAGES = 6 /* of the end, after the summary */
};

typedef struct spread { /* log-normal */
    double median, sigma, most;
} spread;

static const spread user_text = {60, 0.8, 600}, task_text = {250, 0.6, 900}, tool_result = {350, 1.1, 4000},
                    agent_thought = {60, 0.8, 400}, agent_words = {90, 0.6, 500}, summary = {700, 0.3, 1200},
                    chat_text = {40, 1.0, 600}, chat_thought = {200, 0.7, 900}, chat_words = {250, 0.7, 900},
                    question = {40, 0.6, 150}, reply = {120, 0.6, 400};
/* Seconds. */
static const spread thinks = {40, 1.0, 600}, works = {4, 1.0, 60}, builds = {200, 0.4, 500},
                    pauses = {3000, 0.7, 12000};

enum { /* chances in percent */
       LONG_PAUSE = 8,
       LONG_BUILD = 3,
       SPAWNS = 6,     /* a tool call that is one to three sub-agents at once */
       EDITS = 8,      /* instead of going on: an earlier message of the user is another one */
       BRANCHES = 5,   /* the same, and the old text is kept */
       GOES_BACK = 30, /* to the kept text */
       REGENERATES = 10,
       HANGS_UP = 2,
       OTHER_SCOPE = 10
};

/* ── dice ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct dice {
    uint64_t state;
} dice;

static uint64_t roll(dice *d) { /* splitmix64 */
    uint64_t z = d->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double unit(dice *d) { /* [0, 1) */
    return (double)(roll(d) >> 11) / 9007199254740992.0;
}

static int from(dice *d, int lo, int hi) {
    return lo + (int)(roll(d) % (uint64_t)(hi - lo + 1));
}

static bool percent(dice *d, int chance) {
    return from(d, 0, 99) < chance;
}

static double draw(dice *d, const spread *s) {
    double normal = sqrt(-2 * log(1 - unit(d))) * cos(6.283185307179586 * unit(d));
    double x = s->median * exp(s->sigma * normal);
    return x < s->most ? x : s->most;
}

/* ── conversations ─────────────────────────────────────────────────────────────────────────────────────────────── */

typedef enum role { SYSTEM, USER, ASSISTANT, TOOL } role;

typedef struct message {
    role role;
    kv_tokens text;   /* owned */
    size_t n_thought; /* of an answer: tokens of its reasoning, at its start */
} message;

typedef struct talk {
    message *list; /* owned */
    int n, cap;
} talk;

static message *add(talk *t, role role, const kv_token *text, size_t n) {
    if (t->n == t->cap) {
        t->cap = t->cap * 2 + 8;
        t->list = kv_realloc(t->list, (size_t)t->cap * sizeof *t->list);
    }
    message *m = &t->list[t->n++];
    *m = (message){.role = role};
    kv_tokens_append(&m->text, text, n);
    return m;
}

static void cut(talk *t, int n) {
    while (t->n > n) kv_tokens_free(&t->list[--t->n].text);
}

static void copy(talk *out, const talk *t, int first) {
    for (int i = first; i < t->n; i++)
        add(out, t->list[i].role, t->list[i].text.data, t->list[i].text.len)->n_thought = t->list[i].n_thought;
}

static void talk_free(talk *t) {
    cut(t, 0);
    free(t->list);
    *t = (talk){0};
}

/* The message of the user that is `back` before the last one; -1: there are not so many. */
static int user_message(const talk *t, int back) {
    for (int i = t->n - 1; i >= 0; i--)
        if (t->list[i].role == USER && back-- == 0) return i;
    return -1;
}

/* ── templates ─────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef enum template {
    PLAIN,       /* answers are rendered as they were sampled */
    DROPS,       /* reasoning is rendered only behind the user's last message */
    EMPTY_THINK, /* reasoning is off: the prompt ends with an empty block of it, which history does not show */
} template;

enum { MARK_START = 258, MARK_END = 259 }; /* <|im_start|>, <|im_end|> of engine_fake's vocabulary */

static void add_text(kv_tokens *out, const char *text) {
    for (; *text; text++) kv_tokens_add(out, (unsigned char)*text);
}

static void open_message(kv_tokens *out, role role) {
    static const char *const names[] = {"system\n", "user\n", "assistant\n", "tool\n"};
    kv_tokens_add(out, MARK_START);
    add_text(out, names[role]);
}

static void close_message(kv_tokens *out) {
    kv_tokens_add(out, MARK_END);
    kv_tokens_add(out, '\n');
}

/* ── sessions ──────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef enum kind { AGENT, SUB, CHAT, READER, TITLE } kind;
static const char *const kind_names[] = {"agent", "sub-agent", "chat", "document", "title"};

typedef struct session {
    kind kind;
    dice d;
    int number, client;
    const char *scope;
    template template;
    bool thinks, is_raw; /* answers have reasoning; raw: completions without messages */
    talk talk, kept;     /* kept: the other branch */
    int turns, calls;    /* left; calls: of the turn under way */
    int64_t due_us;      /* INT64_MAX: waits for its answer or its sub-agents, or is over */
    bool is_over, compacts;
    int n_children;
    struct session *parent;
    /* the request under way */
    kv_tokens prompt;
    int32_t *starts;
    int n_starts, cap_starts;
    int32_t n_thought, hang_up_at;
    uint32_t sampling;
    bool retries;
} session;

struct day {
    day_params p;
    session **list; /* owned, n of them, each owned */
    int n, cap;
    kv_tokens system[N_CLIENTS], sub_system, chat_system, title_system, project[N_PROJECTS], document[N_DOCUMENTS];
};

static int32_t scaled(const day *d, double tokens) {
    int32_t n = (int32_t)(tokens / d->p.shrink);
    return n > 4 ? n : 4;
}

static int32_t length(const day *d, dice *dice, const spread *s) {
    return scaled(d, draw(dice, s));
}

static void write_text(kv_tokens *out, dice *d, int32_t n) {
    kv_tokens_reserve(out, (size_t)n);
    for (int32_t i = 0; i < n; i++) kv_tokens_add(out, 'a' + (kv_token)(roll(d) % 26));
}

static void say(day *d, session *s, role role, int32_t n) {
    message *m = add(&s->talk, role, NULL, 0);
    (void)d;
    write_text(&m->text, &s->d, n);
}

static session *new_session(day *d, kind kind, uint64_t seed) {
    if (d->n == d->cap) {
        d->cap = d->cap * 2 + 32;
        d->list = kv_realloc(d->list, (size_t)d->cap * sizeof *d->list);
    }
    session *s = kv_alloc(sizeof *s);
    s->kind = kind;
    s->d.state = seed;
    s->number = d->n;
    s->scope = "";
    s->due_us = INT64_MAX;
    d->list[d->n++] = s;
    return s;
}

/* ── prompts ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static void note_start(session *s) {
    if (s->n_starts == s->cap_starts) {
        s->cap_starts = s->cap_starts * 2 + 16;
        s->starts = kv_realloc(s->starts, (size_t)s->cap_starts * sizeof *s->starts);
    }
    s->starts[s->n_starts++] = (int32_t)s->prompt.len;
}

/* The text of the message that the template shows. */
static void shown(const kv_token **text, size_t *n, const session *s, int i, int last_user) {
    const message *m = &s->talk.list[i];
    size_t skip = s->template == DROPS && i < last_user ? m->n_thought : 0;
    *text = m->text.data + skip;
    *n = m->text.len - skip;
}

static void render_reminder(const day *d, session *s) {
    for (int32_t i = 0; i < scaled(d, REMINDER); i++) kv_tokens_add(&s->prompt, 'A' + i % 26);
}

static void render(const day *d, session *s) {
    int last_user = user_message(&s->talk, 0);
    for (int i = 0; i < s->talk.n; i++) {
        const kv_token *text;
        size_t n;
        shown(&text, &n, s, i, last_user);
        note_start(s);
        open_message(&s->prompt, s->talk.list[i].role);
        kv_tokens_append(&s->prompt, text, n);
        if (i == last_user && s->kind == AGENT && s->client == 2) render_reminder(d, s);
        close_message(&s->prompt);
    }
    note_start(s);
    open_message(&s->prompt, ASSISTANT);
    if (s->template == EMPTY_THINK) add_text(&s->prompt, "<think>\n\n</think>\n\n");
}

/* No system, no tools: the history as the text of one message, and what is wanted of it. */
static void render_compaction(session *s) {
    note_start(s);
    open_message(&s->prompt, USER);
    for (int i = 1; i < s->talk.n; i++) {
        add_text(&s->prompt, s->talk.list[i].role == USER ? "\n# user: " : "\n# agent: ");
        size_t skip = s->talk.list[i].n_thought;
        kv_tokens_append(&s->prompt, s->talk.list[i].text.data + skip, s->talk.list[i].text.len - skip);
    }
    add_text(&s->prompt, "\nSummarise this.");
    close_message(&s->prompt);
    note_start(s);
    open_message(&s->prompt, ASSISTANT);
}

static void render_raw(session *s) {
    for (int i = 0; i < s->talk.n; i++)
        kv_tokens_append(&s->prompt, s->talk.list[i].text.data, s->talk.list[i].text.len);
}

static int32_t talk_tokens(const session *s) {
    size_t n = 0;
    for (int i = 0; i < s->talk.n; i++) n += s->talk.list[i].text.len + 12;
    return (int32_t)n;
}

/* Reasoning and words of the answer to come. */
static int32_t answer_length(const day *d, session *s) {
    static const spread *const words[] = {&agent_words, &agent_words, &chat_words, &reply, &question};
    const spread *thought = s->kind == CHAT ? &chat_thought : &agent_thought;
    if (s->compacts) return length(d, &s->d, &summary);
    if (s->kind == TITLE) return scaled(d, 12);
    s->n_thought = s->thinks ? length(d, &s->d, thought) : 0;
    return s->n_thought + length(d, &s->d, words[s->kind]);
}

static void ask(day_request *out, day *d, session *s) {
    bool again = s->retries;
    if (!again) {
        s->prompt.len = 0;
        s->n_starts = 0;
        s->n_thought = 0;
        s->compacts = s->kind == AGENT && talk_tokens(s) > scaled(d, COMPACT_AT);
        if (s->is_raw) render_raw(s);
        else if (s->compacts) render_compaction(s);
        else render(d, s);
    }
    *out = (day_request){.session = s->number,
                         .kind = kind_names[s->kind],
                         .prompt = s->prompt.data,
                         .n_prompt = s->prompt.len,
                         .starts = s->starts,
                         .n_starts = s->n_starts,
                         .scope = s->scope,
                         .seed = s->sampling};
    out->n_predict = answer_length(d, s);
    s->hang_up_at = !again && percent(&s->d, HANGS_UP) ? (int32_t)((double)s->prompt.len * unit(&s->d)) : 0;
    out->hang_up_at = s->hang_up_at;
    s->retries = false;
    s->due_us = INT64_MAX;
}

/* ── how sessions begin ────────────────────────────────────────────────────────────────────────────────────────── */

static void begin_title(day *d, const session *of) {
    session *s = new_session(d, TITLE, of->d.state ^ 0x7469746c65);
    s->scope = of->scope;
    s->due_us = of->due_us;
    add(&s->talk, SYSTEM, d->title_system.data, d->title_system.len);
    const message *first = &of->talk.list[1];
    size_t n = first->text.len, most = (size_t)scaled(d, 300);
    add(&s->talk, USER, first->text.data + (n > most ? n - most : 0), n > most ? most : n);
}

static int64_t some_time(dice *d) { /* the day has a morning and an afternoon */
    double at = unit(d);
    return (int64_t)((at < 0.5 ? at * 0.9 : 0.1 + at * 0.9) * (double)OPENING);
}

static void begin_agent(day *d, uint64_t seed) {
    session *s = new_session(d, AGENT, seed);
    s->due_us = some_time(&s->d);
    s->client = from(&s->d, 0, N_CLIENTS - 1);
    if (percent(&s->d, OTHER_SCOPE)) s->scope = "team";
    s->template = s->client == 1 ? DROPS : PLAIN;
    s->thinks = s->client > 0;
    s->turns = from(&s->d, 3, 8);
    s->calls = from(&s->d, 1, 12);
    add(&s->talk, SYSTEM, d->system[s->client].data, d->system[s->client].len);
    const kv_tokens *project = &d->project[from(&s->d, 0, N_PROJECTS - 1)];
    message *m = add(&s->talk, USER, project->data, project->len);
    write_text(&m->text, &s->d, length(d, &s->d, &user_text));
    begin_title(d, s);
}

static void begin_sub(day *d, session *parent, int64_t now_us) {
    session *s = new_session(d, SUB, roll(&parent->d));
    const kv_tokens *system = parent->client == 1 ? &d->sub_system : &d->system[parent->client];
    s->due_us = now_us + from(&s->d, 0, 500) * 1000;
    s->parent = parent;
    s->client = parent->client;
    s->scope = parent->scope;
    s->template = parent->template;
    s->thinks = parent->thinks;
    s->calls = from(&s->d, 1, 9);
    parent->n_children++;
    add(&s->talk, SYSTEM, system->data, system->len);
    say(d, s, USER, length(d, &s->d, &task_text));
}

static void begin_chat(day *d, uint64_t seed) {
    session *s = new_session(d, CHAT, seed);
    s->due_us = some_time(&s->d);
    if (percent(&s->d, OTHER_SCOPE)) s->scope = "team";
    int template = from(&s->d, 0, 4);
    s->template = template <3 ? DROPS : template == 3 ? EMPTY_THINK : PLAIN;
    s->thinks = s->template == DROPS;
    s->turns = from(&s->d, 3, 14);
    add(&s->talk, SYSTEM, d->chat_system.data, d->chat_system.len);
    say(d, s, USER, length(d, &s->d, &chat_text));
    begin_title(d, s);
}

static void begin_reader(day *d, uint64_t seed) {
    session *s = new_session(d, READER, seed);
    s->due_us = some_time(&s->d);
    s->is_raw = percent(&s->d, 50);
    s->turns = from(&s->d, 2, 7);
    int most = from(&s->d, 1, N_DOCUMENTS); /* the first documents are read most */
    const kv_tokens *document = &d->document[from(&s->d, 1, most) - 1];
    message *m = add(&s->talk, USER, document->data, document->len);
    if (s->is_raw) say(d, s, USER, length(d, &s->d, &question));
    else write_text(&m->text, &s->d, length(d, &s->d, &question));
}

/* ── how they go on ────────────────────────────────────────────────────────────────────────────────────────────── */

static int64_t after(dice *d, const spread *s) {
    return (int64_t)(draw(d, s) * (double)SECOND);
}

static int64_t user_thinks(session *s) {
    return percent(&s->d, LONG_PAUSE) ? after(&s->d, &pauses) : after(&s->d, &thinks);
}

/* The user goes on, changes what was said before, or returns to a branch that was left. */
static void next_turn(day *d, session *s) {
    const spread *text = s->kind == CHAT ? &chat_text : &user_text;
    if (s->kept.n && percent(&s->d, GOES_BACK)) {
        talk t = s->talk;
        s->talk = s->kept;
        s->kept = t;
    } else if (percent(&s->d, EDITS + BRANCHES)) {
        int at = user_message(&s->talk, from(&s->d, 0, 3));
        bool branches = percent(&s->d, 100 * BRANCHES / (EDITS + BRANCHES));
        if (branches) {
            talk_free(&s->kept);
            copy(&s->kept, &s->talk, 0);
        }
        if (at > 1) cut(&s->talk, at); /* the first one is the task */
    }
    say(d, s, USER, length(d, &s->d, text));
    s->calls = s->kind == AGENT ? from(&s->d, 0, 12) : 0;
}

static void next_question(day *d, session *s) {
    message *m = &s->talk.list[s->talk.n - 1];
    if (s->is_raw) {
        m->text.len = 0;
        write_text(&m->text, &s->d, length(d, &s->d, &question));
    } else {
        say(d, s, USER, length(d, &s->d, &question));
    }
}

static void finish(day *d, session *s, int64_t now_us);

/* System and tools, the summary, and the last messages as they were. */
static void compact(session *s, const kv_token *answer, size_t n) {
    talk t = {0};
    int first = s->talk.n - KEPT_MESSAGES;
    while (first < s->talk.n && s->talk.list[first].role == TOOL) first++; /* not without its call */
    add(&t, SYSTEM, s->talk.list[0].text.data, s->talk.list[0].text.len);
    add(&t, USER, answer, n);
    copy(&t, &s->talk, first > 1 ? first : s->talk.n);
    talk_free(&s->talk);
    talk_free(&s->kept);
    s->talk = t;
}

/* An answer that is no tool call, or the last one. */
static void turn_ends(day *d, session *s, int64_t now_us) {
    bool regenerates = s->kind == CHAT && percent(&s->d, REGENERATES);
    if (--s->turns <= 0) {
        finish(d, s, now_us);
        return;
    }
    s->due_us = now_us + user_thinks(s);
    s->sampling = 0;
    if (regenerates) {
        cut(&s->talk, s->talk.n - 1);
        s->sampling = (uint32_t)roll(&s->d) | 1;
    } else if (s->kind == READER) {
        next_question(d, s);
    } else {
        next_turn(d, s);
    }
}

static void call_tool(day *d, session *s, int64_t now_us) {
    s->calls--;
    if (s->kind == AGENT && percent(&s->d, SPAWNS)) {
        for (int n = from(&s->d, 1, 3); n > 0; n--) begin_sub(d, s, now_us);
        return; /* its result comes with the last of them */
    }
    say(d, s, TOOL, length(d, &s->d, &tool_result));
    s->due_us = now_us + (percent(&s->d, LONG_BUILD) ? after(&s->d, &builds) : after(&s->d, &works));
}

static void finish(day *d, session *s, int64_t now_us) {
    session *parent = s->parent;
    s->is_over = true;
    s->due_us = INT64_MAX;
    if (parent) {
        const message *last = &s->talk.list[s->talk.n - 1];
        add(&parent->talk, TOOL, last->text.data + last->n_thought, last->text.len - last->n_thought);
        if (--parent->n_children == 0) parent->due_us = now_us + after(&parent->d, &works) / 10;
    }
    talk_free(&s->talk);
    talk_free(&s->kept);
    (void)d;
}

void day_answer(day *d, const day_request *r, const kv_token *answer, size_t n, int64_t now_us) {
    session *s = d->list[r->session];
    if (r->hang_up_at) { /* the client's time was up: the same again */
        s->retries = true;
        s->due_us = now_us + 2 * SECOND;
        return;
    }
    if (s->compacts) {
        compact(s, answer, n);
        s->due_us = now_us + SECOND;
        return;
    }
    if (s->kind != READER || !s->is_raw)
        add(&s->talk, ASSISTANT, answer, n)->n_thought = (size_t)s->n_thought < n ? (size_t)s->n_thought : n;
    if (s->kind == TITLE) finish(d, s, now_us);
    else if (s->calls > 0) call_tool(d, s, now_us);
    else turn_ends(d, s, now_us);
}

/* ── the day ───────────────────────────────────────────────────────────────────────────────────────────────────── */

day *day_new(const day_params *p) {
    day *d = kv_alloc(sizeof *d);
    dice dice = {p->seed};
    d->p = *p;
    for (int i = 0; i < N_CLIENTS; i++) write_text(&d->system[i], &dice, scaled(d, agent_system[i]));
    write_text(&d->sub_system, &dice, scaled(d, SUB_SYSTEM));
    write_text(&d->chat_system, &dice, scaled(d, CHAT_SYSTEM));
    write_text(&d->title_system, &dice, scaled(d, TITLE_SYSTEM));
    for (int i = 0; i < N_PROJECTS; i++) write_text(&d->project[i], &dice, scaled(d, PROJECT));
    for (int i = 0; i < N_DOCUMENTS; i++)
        write_text(&d->document[i], &dice, scaled(d, from(&dice, DOCUMENT_LEAST, DOCUMENT_MOST)));
    for (int i = 0; i < (int)ceil(N_AGENTS * p->part); i++) begin_agent(d, roll(&dice));
    for (int i = 0; i < (int)ceil(N_CHATS * p->part); i++) begin_chat(d, roll(&dice));
    for (int i = 0; i < (int)ceil(N_READERS * p->part); i++) begin_reader(d, roll(&dice));
    return d;
}

void day_free(day *d) {
    if (!d) return;
    for (int i = 0; i < d->n; i++) {
        talk_free(&d->list[i]->talk);
        talk_free(&d->list[i]->kept);
        kv_tokens_free(&d->list[i]->prompt);
        free(d->list[i]->starts);
        free(d->list[i]);
    }
    free(d->list);
    for (int i = 0; i < N_CLIENTS; i++) kv_tokens_free(&d->system[i]);
    for (int i = 0; i < N_PROJECTS; i++) kv_tokens_free(&d->project[i]);
    for (int i = 0; i < N_DOCUMENTS; i++) kv_tokens_free(&d->document[i]);
    kv_tokens_free(&d->sub_system);
    kv_tokens_free(&d->chat_system);
    kv_tokens_free(&d->title_system);
    free(d);
}

int32_t day_longest(const day *d) {
    return scaled(d, LONGEST);
}

static session *earliest(const day *d) {
    session *first = NULL;
    for (int i = 0; i < d->n; i++)
        if (!first || d->list[i]->due_us < first->due_us) first = d->list[i];
    return first;
}

int64_t day_due_us(const day *d) {
    const session *s = earliest(d);
    return s ? s->due_us : INT64_MAX;
}

bool day_next(day_request *out, day *d, int64_t now_us) {
    session *s = earliest(d);
    if (!s || s->due_us > now_us) return false;
    ask(out, d, s);
    return true;
}

bool day_is_over(const day *d) {
    for (int i = 0; i < d->n; i++)
        if (!d->list[i]->is_over) return false;
    return true;
}
