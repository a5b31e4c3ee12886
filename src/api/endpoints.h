/* api/endpoints.h: the handlers behind routes.c, one line each.
 *
 * Thread rule: the connection's thread.
 */
#ifndef KV_API_ENDPOINTS_H
#define KV_API_ENDPOINTS_H

#include "api/app.h"
#include "api/asleep.h"
#include "api/gate.h"

/* KV_OK once the model is there, also while draining: for what only reads. */
kv_status kv_app_require_model(const kv_app *app, kv_error *err);

/* Bodies, of a model that is there. asleep: as they are to be read once it is not. */
kv_status kv_props_write(kv_buf *out, const kv_app *app, bool asleep, kv_error *err);
void kv_models_write(kv_buf *out, const kv_app *app);
/* Is this one of the names that the model goes by? */
bool kv_models_has(const kv_app *app, const char *name);
kv_status kv_models_refuse(const kv_app *app, const char *name, kv_error *err); /* KV_NOT_FOUND: it is none of them */
void kv_slots_write(kv_buf *out, int *n_idle, const kv_app *app, bool asleep);  /* n_idle may be NULL */

#define KV_ENDPOINT(name) kv_status name(void *app, kv_http_request *req, kv_http_response *res, kv_error *err)

KV_ENDPOINT(kv_serve_health);            /* health.c */
KV_ENDPOINT(kv_serve_page);              /* health.c: the status page */
KV_ENDPOINT(kv_serve_models);            /* models.c */
KV_ENDPOINT(kv_serve_model);             /* models.c: one, by its name */
KV_ENDPOINT(kv_serve_props);             /* props.c */
KV_ENDPOINT(kv_serve_set_props);         /* props.c */
KV_ENDPOINT(kv_serve_slots);             /* slots.c */
KV_ENDPOINT(kv_serve_metrics);           /* metrics.c */
KV_ENDPOINT(kv_serve_tokenize);          /* tokens.c */
KV_ENDPOINT(kv_serve_detokenize);        /* tokens.c */
KV_ENDPOINT(kv_serve_apply_template);    /* openai_chat.c */
KV_ENDPOINT(kv_serve_chat_input_tokens); /* openai_chat.c */
KV_ENDPOINT(kv_serve_chat_completions);  /* openai_chat.c */
KV_ENDPOINT(kv_serve_responses);         /* responses.c */
KV_ENDPOINT(kv_serve_response_input_tokens);
KV_ENDPOINT(kv_serve_get_response); /* responses_stored.c */
KV_ENDPOINT(kv_serve_delete_response);
KV_ENDPOINT(kv_serve_cancel_response);
KV_ENDPOINT(kv_serve_response_input_items);
KV_ENDPOINT(kv_serve_completions);          /* openai_completions.c */
KV_ENDPOINT(kv_serve_native);               /* native.c */
KV_ENDPOINT(kv_serve_infill);               /* infill.c */
KV_ENDPOINT(kv_serve_slot_action);          /* slot_files.c */
KV_ENDPOINT(kv_serve_loras);                /* lora.c */
KV_ENDPOINT(kv_serve_set_loras);            /* lora.c */
KV_ENDPOINT(kv_serve_embeddings);           /* embeddings.c: OpenAI's */
KV_ENDPOINT(kv_serve_embedding);            /* embeddings.c: llama-server's own */
KV_ENDPOINT(kv_serve_rerank);               /* rerank.c */
KV_ENDPOINT(kv_serve_messages);             /* anthropic.c; goes through the gate by itself, as the next */
KV_ENDPOINT(kv_serve_count_message_tokens); /* anthropic.c */
KV_ENDPOINT(kv_serve_no_batches);           /* anthropic.c */
KV_ENDPOINT(kv_serve_cache);                /* cache_admin.c */
KV_ENDPOINT(kv_serve_erase_cache);
KV_ENDPOINT(kv_serve_explain);           /* cache_admin.c */
KV_ENDPOINT(kv_serve_why);               /* cache_admin.c */
KV_ENDPOINT(kv_serve_ollama_chat);       /* ollama_chat.c */
KV_ENDPOINT(kv_serve_ollama_generate);   /* ollama_chat.c */
KV_ENDPOINT(kv_serve_ollama_embed);      /* ollama_embed.c */
KV_ENDPOINT(kv_serve_ollama_embeddings); /* ollama_embed.c: one text, older */
KV_ENDPOINT(kv_serve_ollama_tags);       /* ollama_models.c */
KV_ENDPOINT(kv_serve_ollama_show);       /* ollama_models.c */
KV_ENDPOINT(kv_serve_ollama_ps);         /* ollama_models.c */
KV_ENDPOINT(kv_serve_ollama_version);    /* ollama_models.c */
KV_ENDPOINT(kv_serve_ollama_pull);       /* ollama_models.c */
KV_ENDPOINT(kv_serve_ollama_refused);    /* ollama_models.c: push, create, copy, delete */

#endif
