/* All paths. But for Ollama's, /kvasir/… and / they are there with and without /v1; /completions and /embeddings without it
 * are llama-server's own. */
#include "api/anthropic/anthropic.h"
#include "api/endpoints.h"
#include "api/ollama/ollama.h"

/* What needs the model runs inside the gate, and wakes it. */
#define INSIDE(name, streams)                                                                                          \
    static kv_status inside_##name(void *app, kv_http_request *req, kv_http_response *res, kv_error *err) {            \
        return kv_gate_serve(kv_serve_##name, streams, app, req, res, err);                                            \
    }
INSIDE(chat_completions, true)
INSIDE(completions, true)
INSIDE(native, true)
INSIDE(infill, true)
INSIDE(slot_action, false)
INSIDE(loras, false)
INSIDE(set_loras, false)
INSIDE(embeddings, false)
INSIDE(embedding, false)
INSIDE(rerank, false)
INSIDE(chat_input_tokens, false)
INSIDE(response_input_tokens, false)
INSIDE(tokenize, false)
INSIDE(detokenize, false)
INSIDE(apply_template, false)
INSIDE(explain, false)
INSIDE(erase_cache, false)

#define ROUTE(method, path, handler)                                                                                   \
    { method, path, handler, false, kv_api_error_body }
#define OPEN(method, path, handler)                                                                                    \
    { method, path, handler, true, kv_api_error_body }
#define OLLAMA(method, path, handler)                                                                                  \
    { method, path, handler, false, kv_ollama_error_body }
#define BOTH(method, path, handler) ROUTE(method, path, handler), ROUTE(method, "/v1" path, handler)

/* Errors in Anthropic's shape. */
#define MESSAGES(method, path, handler)                                                                                \
    {method, path, handler, false, kv_anthropic_error_body}, {                                                         \
        method, "/v1" path, handler, false, kv_anthropic_error_body                                                    \
    }

static const kv_http_route routes[] = {
    OPEN("GET", "/", kv_serve_page),
    OPEN("GET", "/health", kv_serve_health),
    OPEN("GET", "/v1/health", kv_serve_health),
    BOTH("GET", "/models", kv_serve_models),
    BOTH("GET", "/models/{*}", kv_serve_model),
    BOTH("GET", "/props", kv_serve_props),
    BOTH("POST", "/props", kv_serve_set_props),
    BOTH("GET", "/slots", kv_serve_slots),
    BOTH("GET", "/metrics", kv_serve_metrics),
    BOTH("POST", "/chat/completions", inside_chat_completions),
    BOTH("POST", "/chat/completions/input_tokens", inside_chat_input_tokens),
    BOTH("POST", "/responses", kv_serve_responses),
    BOTH("POST", "/responses/input_tokens", inside_response_input_tokens),
    BOTH("GET", "/responses/{}", kv_serve_get_response),
    BOTH("DELETE", "/responses/{}", kv_serve_delete_response),
    BOTH("POST", "/responses/{}/cancel", kv_serve_cancel_response),
    BOTH("GET", "/responses/{}/input_items", kv_serve_response_input_items),
    ROUTE("POST", "/v1/completions", inside_completions),
    ROUTE("POST", "/completions", inside_native),
    BOTH("POST", "/completion", inside_native),
    BOTH("POST", "/infill", inside_infill),
    BOTH("POST", "/slots/{}", inside_slot_action),
    BOTH("GET", "/lora-adapters", inside_loras),
    BOTH("POST", "/lora-adapters", inside_set_loras),
    ROUTE("POST", "/v1/embeddings", inside_embeddings),
    ROUTE("POST", "/embeddings", inside_embedding),
    BOTH("POST", "/embedding", inside_embedding),
    BOTH("POST", "/rerank", inside_rerank),
    BOTH("POST", "/reranking", inside_rerank),
    MESSAGES("POST", "/messages", kv_serve_messages),
    MESSAGES("POST", "/messages/count_tokens", kv_serve_count_message_tokens),
    MESSAGES("GET", "/messages/batches", kv_serve_no_batches),
    MESSAGES("POST", "/messages/batches", kv_serve_no_batches),
    BOTH("POST", "/tokenize", inside_tokenize),
    BOTH("POST", "/detokenize", inside_detokenize),
    BOTH("POST", "/apply-template", inside_apply_template),
    ROUTE("GET", "/kvasir/cache", kv_serve_cache),
    ROUTE("DELETE", "/kvasir/cache", inside_erase_cache),
    ROUTE("POST", "/kvasir/explain", inside_explain),
    ROUTE("GET", "/kvasir/why", kv_serve_why),
    OLLAMA("POST", "/api/chat", kv_serve_ollama_chat), /* inside by themselves */
    OLLAMA("POST", "/api/generate", kv_serve_ollama_generate),
    OLLAMA("GET", "/api/tags", kv_serve_ollama_tags),
    OLLAMA("POST", "/api/show", kv_serve_ollama_show),
    OLLAMA("GET", "/api/ps", kv_serve_ollama_ps),
    {"GET", "/api/version", kv_serve_ollama_version, true, kv_ollama_error_body},
    OLLAMA("POST", "/api/embed", kv_serve_ollama_embed),
    OLLAMA("POST", "/api/embeddings", kv_serve_ollama_embeddings),
    OLLAMA("POST", "/api/pull", kv_serve_ollama_pull),
    OLLAMA("POST", "/api/push", kv_serve_ollama_refused),
    OLLAMA("POST", "/api/create", kv_serve_ollama_refused),
    OLLAMA("POST", "/api/copy", kv_serve_ollama_refused),
    OLLAMA("DELETE", "/api/delete", kv_serve_ollama_refused),
    OLLAMA("POST", "/api/blobs/{}", kv_serve_ollama_refused),
    {0},
};

const kv_http_route *kv_api_routes(void) {
    return routes;
}
