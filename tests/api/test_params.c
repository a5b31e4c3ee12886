/* Bodies to parameters: defaults, aliases, limits that refuse or clamp, and the field that an error names. */
#include "api/rig.h"

#include <math.h>

static rig r;

static kv_status parse(kv_params *p, kv_api api, const char *body, kv_error *err) {
    json_t *v = json_of(body);
    memset(err, 0, sizeof *err);
    kv_status st = kv_params_parse(p, v, api, &r.app, err);
    json_decref(v);
    return st;
}

static void parse_ok(kv_params *p, kv_api api, const char *body) {
    kv_error err;
    if (parse(p, api, body, &err) != KV_OK) fail_msg("%s: %s", body, err.message);
}

#define ALL (KV_API_NATIVE | KV_API_COMPLETIONS | KV_API_CHAT)

/* ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────── */

static const struct {
    unsigned apis;
    const char *body, *field, *words; /* words: in the message, beside the field */
} bad[] = {
    /* types */
    {ALL, "{'stream':'yes'}", "stream", "boolean"},
    {ALL, "{'cache_prompt':1}", "cache_prompt", "boolean"},
    {ALL, "{'temperature':'hot'}", "temperature", "number"},
    {ALL, "{'temperature':true}", "temperature", "number"},
    {ALL, "{'top_k':1.5}", "top_k", "integer"},
    {ALL, "{'top_k':[]}", "top_k", "number"},
    {ALL, "{'seed':'x'}", "seed", "integer"},
    {ALL, "{'seed':0.5}", "seed", "integer"},
    {ALL, "{'ignore_eos':'no'}", "ignore_eos", "boolean"},
    {ALL, "{'dry_base':'x'}", "dry_base", "number"},
    {ALL, "{'timings_per_token':0}", "timings_per_token", "boolean"},
    /* hard limits */
    {ALL, "{'n_predict':-2}", "n_predict", "between -1 and"},
    {ALL, "{'n_predict':3000000000}", "n_predict", "between -1 and"},
    {ALL, "{'max_tokens':-5}", "max_tokens", "between -1 and"},
    {ALL, "{'max_tokens':1e30}", "max_tokens", "between -1 and"},
    {ALL, "{'max_tokens':'many'}", "max_tokens", "integer"},
    {ALL, "{'max_completion_tokens':1.25}", "max_completion_tokens", "integer"},
    {ALL, "{'n_indent':-1}", "n_indent", "0 or more"},
    {ALL, "{'n_keep':-2}", "n_keep", "-1 or more"},
    {ALL, "{'n_discard':-1}", "n_discard", "0 or more"},
    {ALL, "{'n_cache_reuse':-1}", "n_cache_reuse", "0 or more"},
    {ALL, "{'min_keep':-1}", "min_keep", "0 or more"},
    {ALL, "{'repeat_last_n':-1}", "repeat_last_n", "0 or more"},
    {ALL, "{'repeat_last_n':3000000000}", "repeat_last_n", "0 or more"},
    {ALL, "{'dry_allowed_length':-1}", "dry_allowed_length", "0 or more"},
    {ALL, "{'dry_penalty_last_n':-1}", "dry_penalty_last_n", "0 or more"},
    {ALL, "{'adaptive_decay':1}", "adaptive_decay", "between 0 and 0.99"},
    {ALL, "{'adaptive_decay':-0.1}", "adaptive_decay", "between 0 and 0.99"},
    {ALL, "{'t_max_predict_ms':-2}", "t_max_predict_ms", "-1 or more"},
    {ALL, "{'sse_ping_interval':-2}", "sse_ping_interval", "-1 or more"},
    {ALL, "{'n':0}", "n", "between 1 and 4"},
    {ALL, "{'n':5}", "n", "between 1 and 4"},
    {ALL, "{'n_cmpl':5}", "n_cmpl", "between 1 and 4"},
    {ALL, "{'n':'2'}", "n", "between 1 and 4"},
    {ALL, "{'id_slot':4}", "id_slot", "between -1 and 3"},
    {ALL, "{'id_slot':-2}", "id_slot", "between -1 and 3"},
    {ALL, "{'id_slot':'a'}", "id_slot", "integer"},
    {ALL, "{'n_probs':1001}", "n_probs", "1000"},
    {ALL, "{'n_probs':'x'}", "n_probs", "integer"},
    {KV_API_COMPLETIONS, "{'logprobs':1001}", "logprobs", "1000"},
    /* lists */
    {ALL, "{'stop':5}", "stop", "string or an array"},
    {ALL, "{'stop':['a',5]}", "stop[1]", "string"},
    {ALL, "{'stop':'a\\u0000b'}", "stop", "string"},
    {ALL, "{'samplers':['top_k','guesswork']}", "samplers", "guesswork"},
    {ALL, "{'samplers':'kq'}", "samplers", "unknown"},
    {ALL, "{'samplers':[1]}", "samplers", "names"},
    {ALL, "{'samplers':5}", "samplers", "names"},
    {ALL, "{'dry_sequence_breakers':[]}", "dry_sequence_breakers", "empty"},
    {ALL, "{'dry_sequence_breakers':'x'}", "dry_sequence_breakers", "array"},
    {ALL, "{'dry_sequence_breakers':[1]}", "dry_sequence_breakers[0]", "string"},
    {ALL, "{'logit_bias':5}", "logit_bias", "object or an array"},
    {ALL, "{'logit_bias':[5]}", "logit_bias[0]", "pair"},
    {ALL, "{'logit_bias':[[1,2],[1,true]]}", "logit_bias[1]", "false to ban"},
    {ALL, "{'logit_bias':[[[],1]]}", "logit_bias[0]", "token id"},
    {ALL, "{'logit_bias':[[1.5,1]]}", "logit_bias[0]", "token id"},
    {ALL, "{'logit_bias':{'5':'x'}}", "logit_bias.5", "number"},
    {ALL, "{'stream_options':5}", "stream_options", "object"},
    {ALL, "{'stream_options':{'include_usage':1}}", "stream_options.include_usage", "boolean"},
    {KV_API_NATIVE, "{'response_fields':'content'}", "response_fields", "array"},
    {KV_API_NATIVE, "{'response_fields':[1]}", "response_fields", "array"},
    /* the form of the answer */
    {ALL, "{'grammar':5}", "grammar", "string"},
    {ALL, "{'json_schema':'x'}", "json_schema", "object"},
    {ALL, "{'json_schema':[]}", "json_schema", "object"},
    {ALL, "{'json_schema':{},'grammar':'root ::= \\\"a\\\"'}", "grammar", "together"},
    {KV_API_NATIVE | KV_API_COMPLETIONS, "{'json_schema':{'type':'hiccup'}}", "json_schema", ""},
    {KV_API_COMPLETIONS, "{'response_format':{'type':'json_schema','json_schema':{'schema':{'type':'hiccup'}}}}",
     "response_format.json_schema.schema", ""},
    {KV_API_COMPLETIONS | KV_API_CHAT, "{'response_format':'json'}", "response_format", "object"},
    {KV_API_COMPLETIONS | KV_API_CHAT, "{'response_format':{}}", "response_format.type", "json_schema"},
    {KV_API_COMPLETIONS | KV_API_CHAT, "{'response_format':{'type':'sound'}}", "response_format.type", "json_schema"},
    {KV_API_COMPLETIONS | KV_API_CHAT, "{'response_format':{'type':'json_object','schema':123}}",
     "response_format.schema", "object"},
    {KV_API_COMPLETIONS | KV_API_CHAT, "{'response_format':{'type':'json_schema','json_schema':1}}",
     "response_format.json_schema", "object"},
    {KV_API_CHAT, "{'response_format':{'type':'json_object'},'grammar':'root ::= \\\"a\\\"'}", "grammar", "together"},
    /* chat */
    {KV_API_CHAT, "{'logprobs':5}", "logprobs", "boolean"},
    {KV_API_CHAT, "{'top_logprobs':5}", "top_logprobs", "needs 'logprobs'"},
    {KV_API_CHAT, "{'logprobs':true,'top_logprobs':-1}", "top_logprobs", "between"},
    {KV_API_CHAT, "{'logprobs':true,'top_logprobs':'x'}", "top_logprobs", "integer"},
    {KV_API_CHAT, "{'reasoning_format':'loud'}", "reasoning_format", "deepseek"},
    {KV_API_CHAT, "{'reasoning_format':1}", "reasoning_format", "deepseek"},
    {KV_API_CHAT, "{'thinking_budget_tokens':-2}", "thinking_budget_tokens", "-1 or more"},
    {KV_API_CHAT, "{'reasoning_budget_message':1}", "reasoning_budget_message", "string"},
    /* features that are not there */
    {KV_API_COMPLETIONS, "{'suffix':'x'}", "suffix", "not supported"},
    {KV_API_COMPLETIONS, "{'best_of':3}", "best_of", "not supported"},
    {KV_API_COMPLETIONS, "{'echo':true,'logprobs':1}", "echo", "not supported"},
    {KV_API_CHAT, "{'echo':true}", "echo", "not supported"},
    {KV_API_CHAT, "{'audio':{'voice':'x'}}", "audio", "not supported"},
    {KV_API_CHAT, "{'modalities':['text','audio']}", "modalities", "text"},
    {KV_API_CHAT, "{'modalities':'text'}", "modalities", "array"},
    {KV_API_CHAT, "{'functions':[{}]}", "functions", "not supported"},
    {KV_API_CHAT, "{'web_search_options':{'x':1}}", "web_search_options", "not supported"},
    {ALL, "{'lora':[{'id':0,'scale':1}]}", "lora[0].id", "without any"},
    {ALL, "{'grammar_lazy':true}", "grammar_lazy", "not supported"},
};

static void test_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (unsigned api = KV_API_NATIVE; api <= KV_API_CHAT; api *= 2) {
            if (!(bad[i].apis & api)) continue;
            kv_params p;
            kv_error err;
            if (parse(&p, (kv_api)api, bad[i].body, &err) != KV_INVALID) fail_msg("accepted: %s", bad[i].body);
            assert_string_equal(err.field, bad[i].field);
            if (!strstr(err.message, bad[i].words)) fail_msg("'%s' not in: %s", bad[i].words, err.message);
            assert_null(p.stops);
            assert_null(p.logit_bias);
        }
    }
}

/* ── what goes through ─────────────────────────────────────────────────────────────────────────────────────────── */

static const char *const good[] = {
    "{}",
    "{'whatever':[1,{'a':null}],'user':'u','metadata':{},'store':true,'service_tier':'auto'}",
    "{'stream':null,'temperature':null,'stop':null,'n':null,'logit_bias':null,'seed':null,'max_tokens':null,"
    "'grammar':null,'json_schema':null,'response_format':null,'samplers':null,'stream_options':null,'logprobs':null,"
    "'top_logprobs':null,'suffix':null,'best_of':null,'echo':null,'lora':null,'kvasir':null,'id_slot':null}",
    "{'grammar':'','suffix':'','lora':[],'grammar_lazy':false,'best_of':1,'functions':[],'modalities':['text']}",
    "{'max_tokens':4.0,'top_k':40.0,'n':1.0,'seed':7.0,'id_slot':3.0}",
    "{'stream_options':{}}",
    "{'response_format':{'type':'text'}}",
};

static void test_accepted(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        for (unsigned api = KV_API_NATIVE; api <= KV_API_CHAT; api *= 2) {
            kv_params p;
            parse_ok(&p, (kv_api)api, good[i]);
            kv_params_free(&p);
        }
    }
}

static void test_defaults(void **state) {
    (void)state;
    kv_params p;
    r.opt.n_predict = 77;
    parse_ok(&p, KV_API_CHAT, "{}");
    assert_int_equal(p.n_predict, 77);
    assert_int_equal(p.n, 1);
    assert_int_equal(p.id_slot, -1);
    assert_int_equal(p.sampling.top_k, r.opt.sampling.top_k);
    assert_true(p.cache_prompt);
    assert_false(p.stream);
    assert_false(p.want_probs);
    assert_int_equal(p.sse_ping_interval, r.opt.sse_ping_interval);
    kv_params_free(&p);
    r.opt.n_predict = -1;
}

/* Soft limits clamp as llama-server does. */
static const struct {
    const char *body;
    size_t offset;
    float want;
} clamped[] = {
    {"{'top_p':1.5}", offsetof(kv_sampling, top_p), 1},
    {"{'top_p':-1}", offsetof(kv_sampling, top_p), 0},
    {"{'min_p':7}", offsetof(kv_sampling, min_p), 1},
    {"{'xtc_probability':2}", offsetof(kv_sampling, xtc_probability), 1},
    {"{'xtc_threshold':-2}", offsetof(kv_sampling, xtc_threshold), 0},
    {"{'temperature':-1}", offsetof(kv_sampling, temperature), 0},
    {"{'temperature':1e300}", offsetof(kv_sampling, temperature), 3.40282347e38f},
    {"{'adaptive_target':3}", offsetof(kv_sampling, adaptive_target), 1},
    {"{'dry_base':0.5}", offsetof(kv_sampling, dry_base), 1.75f},
    {"{'dry_base':2}", offsetof(kv_sampling, dry_base), 2},
    {"{'temperature':2}", offsetof(kv_sampling, temperature), 2},
    {"{'presence_penalty':-1.5}", offsetof(kv_sampling, presence_penalty), -1.5f},
};

static void test_clamped(void **state) {
    (void)state;
    kv_params p;
    for (size_t i = 0; i < sizeof clamped / sizeof *clamped; i++) {
        parse_ok(&p, KV_API_NATIVE, clamped[i].body);
        float got = *(float *)((char *)&p.sampling + clamped[i].offset);
        if (got != clamped[i].want) fail_msg("%s: %g", clamped[i].body, (double)got);
        kv_params_free(&p);
    }
    static const struct {
        const char *body;
        size_t offset;
        int32_t want;
    } ints[] = {
        {"{'top_k':-5}", offsetof(kv_params, sampling.top_k), 0},
        {"{'top_k':1e30}", offsetof(kv_params, sampling.top_k), INT32_MAX},
        {"{'mirostat':9}", offsetof(kv_params, sampling.mirostat), 2},
        {"{'mirostat':-9}", offsetof(kv_params, sampling.mirostat), 0},
        {"{'max_tokens':1000000000000}", offsetof(kv_params, n_predict), INT32_MAX},
        {"{'n_predict':0}", offsetof(kv_params, n_predict), 0},
        {"{'repeat_last_n':2000000000}", offsetof(kv_params, sampling.repeat_last_n), 1024},
        {"{'dry_penalty_last_n':2000000000}", offsetof(kv_params, sampling.dry_penalty_last_n), 1024},
        {"{'n_probs':-3}", offsetof(kv_params, n_probs), 0},
    };
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        parse_ok(&p, KV_API_NATIVE, ints[i].body);
        int32_t got = *(int32_t *)((char *)&p + ints[i].offset);
        if (got != ints[i].want) fail_msg("%s: %d", ints[i].body, got);
        kv_params_free(&p);
    }
}

static void test_aliases(void **state) {
    (void)state;
    static const struct {
        const char *body;
        int32_t n_predict;
    } list[] = {
        {"{'max_tokens':1}", 1},
        {"{'max_tokens':1,'max_completion_tokens':2}", 2},
        {"{'max_tokens':1,'max_completion_tokens':2,'n_predict':3}", 3},
        {"{'max_tokens':1,'max_completion_tokens':null,'n_predict':null}", 1},
    };
    kv_params p;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        parse_ok(&p, KV_API_CHAT, list[i].body);
        assert_int_equal(p.n_predict, list[i].n_predict);
        kv_params_free(&p);
    }
    parse_ok(&p, KV_API_NATIVE, "{'n':2,'n_cmpl':3}");
    assert_int_equal(p.n, 3);
    kv_params_free(&p);
}

static void test_seed(void **state) {
    (void)state;
    static const struct {
        const char *body;
        uint32_t want;
    } list[] = {
        {"{'seed':42}", 42},        {"{'seed':-1}", KV_SEED_RANDOM},      {"{'seed':4294967295}", KV_SEED_RANDOM},
        {"{'seed':4294967298}", 2}, {"{'seed':-9223372036854775807}", 1},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        kv_params p;
        parse_ok(&p, KV_API_CHAT, list[i].body);
        assert_int_equal(p.sampling.seed, list[i].want);
        kv_params_free(&p);
    }
}

static void test_stop(void **state) {
    (void)state;
    kv_params p;
    parse_ok(&p, KV_API_CHAT, "{'stop':'one'}");
    assert_int_equal(p.n_stops, 1);
    assert_string_equal(p.stops[0], "one");
    kv_params_free(&p);
    parse_ok(&p, KV_API_CHAT, "{'stop':['a','','bc']}");
    assert_int_equal(p.n_stops, 2);
    assert_string_equal(p.stops[1], "bc");
    kv_params_free(&p);
    parse_ok(&p, KV_API_CHAT, "{'stop':''}");
    assert_int_equal(p.n_stops, 0);
    kv_params_free(&p);
}

static void test_logit_bias(void **state) {
    (void)state;
    kv_params p;
    /* bytes are tokens: "ab" is 97 and 98; 999 is no token of this vocabulary */
    parse_ok(&p, KV_API_NATIVE, "{'logit_bias':[[5,1.5],['ab',-1],[7,false],[999,1],[-1,1]]}");
    assert_int_equal(p.sampling.n_logit_bias, 4);
    assert_int_equal(p.sampling.logit_bias[0].token, 5);
    assert_true(p.sampling.logit_bias[0].bias == 1.5f);
    assert_int_equal(p.sampling.logit_bias[1].token, 'a');
    assert_int_equal(p.sampling.logit_bias[2].token, 'b');
    assert_true(isinf(p.sampling.logit_bias[3].bias) && p.sampling.logit_bias[3].bias < 0);
    kv_params_free(&p);
    parse_ok(&p, KV_API_CHAT, "{'logit_bias':{'5':-100,'b':false,'99999999999999999999':1}}");
    assert_int_equal(p.sampling.n_logit_bias, 2);
    assert_int_equal(p.sampling.logit_bias[0].token, 5);
    assert_int_equal(p.sampling.logit_bias[1].token, 'b');
    kv_params_free(&p);
}

static void test_samplers(void **state) {
    (void)state;
    kv_params p;
    parse_ok(&p, KV_API_NATIVE, "{'samplers':['top-k','TOPP','temp','typical_p','nucleus']}");
    static const char *const want[] = {"top_k", "top_p", "temperature", "typ_p", "top_p"};
    assert_int_equal(p.sampling.n_samplers, 5);
    for (int i = 0; i < 5; i++) assert_string_equal(p.sampling.samplers[i], want[i]);
    kv_params_free(&p);
    parse_ok(&p, KV_API_NATIVE, "{'samplers':'edskypmxt'}");
    assert_int_equal(p.sampling.n_samplers, 9);
    assert_string_equal(p.sampling.samplers[8], "temperature");
    kv_params_free(&p);
    parse_ok(&p, KV_API_NATIVE, "{'samplers':[]}");
    assert_int_equal(p.sampling.n_samplers, 0);
    assert_non_null(p.sampling.samplers);
    kv_params_free(&p);
}

static void test_probs(void **state) {
    (void)state;
    static const struct {
        kv_api api;
        const char *body;
        bool want;
        int32_t n;
    } list[] = {
        {KV_API_NATIVE, "{'n_probs':3}", true, 3},
        {KV_API_NATIVE, "{'logprobs':3}", true, 3},
        {KV_API_COMPLETIONS, "{'logprobs':2}", true, 2},
        {KV_API_COMPLETIONS, "{'logprobs':0}", false, 0},
        {KV_API_COMPLETIONS, "{'logprobs':true}", true, 1},
        {KV_API_COMPLETIONS, "{'logprobs':false}", false, 0},
        {KV_API_CHAT, "{'logprobs':true}", true, 20},
        {KV_API_CHAT, "{'logprobs':true,'top_logprobs':0}", true, 0},
        {KV_API_CHAT, "{'logprobs':true,'top_logprobs':5}", true, 5},
        {KV_API_CHAT, "{'logprobs':false}", false, 0},
        {KV_API_CHAT, "{'n_probs':4}", true, 4},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        kv_params p;
        parse_ok(&p, list[i].api, list[i].body);
        assert_int_equal(p.want_probs, list[i].want);
        assert_int_equal(p.n_probs, list[i].n);
        kv_params_free(&p);
    }
}

/* Schemas become a grammar without a template, and go to the renderer with one. */
static void test_format(void **state) {
    (void)state;
    kv_params p;
    parse_ok(&p, KV_API_NATIVE, "{'json_schema':{'type':'integer'}}");
    assert_int_equal(p.sampling.grammar_type, KV_GRAMMAR_SCHEMA);
    assert_non_null(strstr(p.sampling.grammar, "root"));
    kv_params_free(&p);
    parse_ok(&p, KV_API_NATIVE, "{'grammar':'root ::= [a-z]'}");
    assert_int_equal(p.sampling.grammar_type, KV_GRAMMAR_USER);
    assert_string_equal(p.sampling.grammar, "root ::= [a-z]");
    kv_params_free(&p);

    static const struct {
        const char *body, *schema;
    } chat[] = {
        {"{'response_format':{'type':'json_object'}}", "{'type':'object'}"},
        {"{'response_format':{'type':'json_object','schema':{'const':1}}}", "{'const':1}"},
        {"{'response_format':{'type':'json_schema','json_schema':{'name':'x','schema':{'const':2}}}}", "{'const':2}"},
        {"{'response_format':{'type':'json_schema','schema':{'const':3}}}", "{'const':3}"},
        {"{'response_format':{'type':'json_object'},'json_schema':{'const':4}}", "{'const':4}"},
        {"{'response_format':{'type':'json_schema','json_schema':{'schema':{'const':5}}},'json_schema':{'const':4}}",
         "{'const':5}"},
        {"{'json_schema':{}}", "{'type':'object'}"},
    };
    for (size_t i = 0; i < sizeof chat / sizeof *chat; i++) {
        parse_ok(&p, KV_API_CHAT, chat[i].body);
        char *want = json_text(chat[i].schema);
        assert_string_equal(p.json_schema, want);
        assert_null(p.sampling.grammar);
        free(want);
        kv_params_free(&p);
    }
    /* the server's own default steps back when the request asks for something */
    r.app.sampling_defaults.grammar = "root ::= [0-9]";
    r.app.sampling_defaults.grammar_type = KV_GRAMMAR_USER;
    parse_ok(&p, KV_API_NATIVE, "{}");
    assert_string_equal(p.sampling.grammar, "root ::= [0-9]");
    kv_params_free(&p);
    parse_ok(&p, KV_API_CHAT, "{'json_schema':{'const':1}}");
    assert_null(p.sampling.grammar);
    assert_null(p.grammar);
    kv_params_free(&p);
    r.app.sampling_defaults.grammar = NULL;
}

static void test_play(void **state) {
    (void)state;
    kv_params p;
    kv_error err;
    parse_ok(&p, KV_API_CHAT, "{'kvasir':{'play':'abc'}}");
    assert_null(p.sampling.play);
    kv_params_free(&p);
    r.opt.test_sampler = true;
    parse_ok(&p, KV_API_CHAT, "{'kvasir':{'play':'a<|im_end|>'}}");
    assert_int_equal(p.sampling.n_play, 2);
    assert_int_equal(p.sampling.play[0], 'a');
    assert_true(p.sampling.play[1] > 255);
    kv_params_free(&p);
    parse_ok(&p, KV_API_CHAT, "{'kvasir':{'play':[1,2,3]}}");
    assert_int_equal(p.sampling.n_play, 3);
    kv_params_free(&p);
    parse_ok(&p, KV_API_CHAT, "{'kvasir':{'play':''}}");
    assert_non_null(p.sampling.play);
    assert_int_equal(p.sampling.n_play, 0);
    kv_params_free(&p);
    assert_int_equal(parse(&p, KV_API_CHAT, "{'kvasir':{'play':[1,999]}}", &err), KV_INVALID);
    assert_string_equal(err.field, "kvasir.play");
    assert_int_equal(parse(&p, KV_API_CHAT, "{'kvasir':5}", &err), KV_INVALID);
    r.opt.test_sampler = false;
}

static void test_model_name(void **state) {
    (void)state;
    static char alias[] = "other";
    static char *aliases[] = {alias};
    r.app.aliases = aliases;
    r.app.n_aliases = 1;
    static const struct {
        const char *body;
        bool strict;
        kv_status want;
    } list[] = {
        {"{'model':'anything'}", false, KV_OK},
        {"{'model':'anything'}", true, KV_NOT_FOUND},
        {"{'model':'fake-model'}", true, KV_OK},
        {"{'model':'other'}", true, KV_OK},
        {"{'model':null}", true, KV_OK},
        {"{}", true, KV_OK},
        {"{'model':5}", false, KV_INVALID},
        {"[]", false, KV_INVALID},
        {"'x'", false, KV_INVALID},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        json_t *v = json_of(list[i].body);
        kv_error err = {0};
        r.opt.strict_model = list[i].strict;
        assert_int_equal(kv_params_check_body(v, &r.app, &err), list[i].want);
        if (list[i].want == KV_NOT_FOUND) {
            assert_int_equal(err.status, KV_NOT_FOUND);
            assert_string_equal(err.field, "model");
        }
        json_decref(v);
    }
    r.opt.strict_model = false;
    r.app.n_aliases = 0;
}

static void test_settings_json(void **state) {
    (void)state;
    kv_params p;
    parse_ok(&p, KV_API_NATIVE, "{'temperature':0.1,'stop':['x'],'logit_bias':[[1,false]],'n_predict':5}");
    json_t *o = kv_params_json(&p, r.app.model, false);
    assert_true(json_real_value(json_object_get(o, "temperature")) == 0.1);
    assert_int_equal(int_at(o, "n_predict"), 5);
    assert_int_equal(int_at(o, "max_tokens"), 5);
    assert_string_equal(str_at(o, "stop.0"), "x");
    assert_int_equal(int_at(o, "logit_bias.0.token"), 1);
    assert_true(json_is_null(at(o, "logit_bias.0.bias")));
    assert_int_equal(json_array_size(at(o, "samplers")), 9);
    assert_int_equal(json_array_size(at(o, "dry_sequence_breakers")), 4);
    json_decref(o);
    kv_params_free(&p);
    parse_ok(&p, KV_API_NATIVE, "{'ignore_eos':true,'logit_bias':[[1,2.5]]}");
    o = kv_params_json(&p, r.app.model, false); /* the request's own, then every end of an answer */
    assert_true(json_array_size(at(o, "logit_bias")) > 1);
    assert_true(json_real_value(at(o, "logit_bias.0.bias")) == 2.5);
    for (size_t i = 1; i < json_array_size(at(o, "logit_bias")); i++) {
        const json_t *entry = json_array_get(at(o, "logit_bias"), i);
        assert_true(json_is_null(json_object_get(entry, "bias")));
        assert_true(kv_model_is_eog(r.app.model, (kv_token)json_integer_value(json_object_get(entry, "token"))));
    }
    json_decref(o);
    o = kv_params_json(&p, NULL, true);
    assert_null(at(o, "stop"));
    assert_null(at(o, "grammar"));
    assert_non_null(at(o, "top_k"));
    json_decref(o);
    kv_params_free(&p);
}

/* Any JSON value in any field: accepted or refused with that field's name, never a crash. */
static void test_random_values(void **state) {
    (void)state;
    static const char *const names[] = {"stream",
                                        "n_predict",
                                        "max_tokens",
                                        "top_k",
                                        "top_p",
                                        "temperature",
                                        "seed",
                                        "n",
                                        "stop",
                                        "logit_bias",
                                        "samplers",
                                        "dry_sequence_breakers",
                                        "dry_base",
                                        "stream_options",
                                        "response_fields",
                                        "response_format",
                                        "json_schema",
                                        "logprobs",
                                        "top_logprobs",
                                        "n_probs",
                                        "id_slot",
                                        "kvasir",
                                        "lora",
                                        "suffix",
                                        "best_of",
                                        "echo",
                                        "modalities",
                                        "reasoning_format",
                                        "adaptive_decay",
                                        "t_max_predict_ms",
                                        "repeat_last_n"};
    static const char *const values[] = {"true",
                                         "false",
                                         "0",
                                         "-1",
                                         "1",
                                         "3",
                                         "2147483648",
                                         "-9223372036854775808",
                                         "9223372036854775807",
                                         "1e308",
                                         "-1e308",
                                         "0.5",
                                         "''",
                                         "'x'",
                                         "'\\u0000'",
                                         "[]",
                                         "[null]",
                                         "[[]]",
                                         "[[1]]",
                                         "[[1,2]]",
                                         "[{}]",
                                         "{}",
                                         "{'type':1}",
                                         "{'type':'json_schema'}",
                                         "{'a':{'b':[]}}",
                                         "['a','b']",
                                         "[1,'a',null]",
                                         "{'play':[]}",
                                         "{'include_usage':null}"};
    r.opt.test_sampler = true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            for (unsigned api = KV_API_NATIVE; api <= KV_API_CHAT; api *= 2) {
                kv_buf body = {0};
                kv_buf_addf(&body, "{'%s':%s}", names[i], values[k]);
                kv_params p;
                kv_error err;
                kv_status st = parse(&p, (kv_api)api, body.data, &err);
                if (st == KV_OK) {
                    json_decref(kv_params_json(&p, r.app.model, false));
                    kv_params_free(&p);
                } else if (!strstr(err.field, names[i])) {
                    fail_msg("%s: the error names '%s': %s", body.data, err.field, err.message);
                }
                kv_buf_free(&body);
            }
        }
    }
    r.opt.test_sampler = false;
}

static int open_rig(void **state) {
    (void)state;
    rig_open(&r);
    return 0;
}
static int close_rig(void **state) {
    (void)state;
    rig_close(&r);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_accepted),      cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_clamped),    cmocka_unit_test(test_aliases),       cmocka_unit_test(test_seed),
        cmocka_unit_test(test_stop),       cmocka_unit_test(test_logit_bias),    cmocka_unit_test(test_samplers),
        cmocka_unit_test(test_probs),      cmocka_unit_test(test_format),        cmocka_unit_test(test_play),
        cmocka_unit_test(test_model_name), cmocka_unit_test(test_settings_json), cmocka_unit_test(test_random_values),
    };
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
