/* llama-server's options that kvasir has no counterpart for: what each one meant decides what happens.
 *
 *   refused    the user would get something else than was asked for: start-up stops and says what is missing
 *   accepted   nothing but speed or looks changes: one warning, then it is ignored
 *
 * An environment variable counts like its option, save where its value says that the feature is off.
 */
#include "options/table.h"

#define REFUSE       true, true
#define REFUSE_FLAG  true, false
#define IGNORE_FLAG  false, false
#define IGNORE_VALUE false, true

#define VISION      "needs images, audio or video as input, which kvasir does not read yet"
#define SPECULATIVE "needs speculative decoding, which kvasir does not have yet"
#define DOCKER                                                                                                         \
    "needs a Docker registry, which kvasir does not ask: fetch the GGUF file and give it with -m, or -hf for "         \
    "a Hugging Face repository"
#define ROUTER    "needs several models behind one server, which kvasir does not have yet: start one server a model"
#define PLACEMENT "places single tensors, which kvasir cannot do yet: use -ngl, -dev and -ts"
#define AGENT     "would let the server run tools or relay requests by itself, which kvasir does not do"
#define AFFINITY  "is ignored: threads run where the system puts them (use taskset or a cgroup)"
#define UI        "is ignored: kvasir has its own status page at /"
#define HEADERS   "is ignored: CORS answers are fixed, only --cors-origins can be chosen"
#define PLANNED   "is ignored: kvasir sizes the context itself (see --check)"
#define DEBUGGING "is ignored: -lv 4 logs the details, and /slots and `kvasir why` show what a slot holds"
#define OWN_CACHE "is ignored: kvasir decides itself where a prompt can resume"

/* One option a row, wrapped by hand */
/* clang-format off */
const kv_foreign kv_foreign_table[] = {
    /* vision and audio */
    {"-mm,--mmproj", "LLAMA_ARG_MMPROJ", NULL, NULL, REFUSE, VISION},
    {"-mmu,--mmproj-url", "LLAMA_ARG_MMPROJ_URL", NULL, NULL, REFUSE, VISION},
    {"--mmproj-auto,--no-mmproj,--no-mmproj-auto", "LLAMA_ARG_MMPROJ_AUTO", NULL, "--no-mmproj,--no-mmproj-auto",
     IGNORE_FLAG, "is ignored: kvasir never loads a multimodal projector"},
    {"--mmproj-offload,--no-mmproj-offload", "LLAMA_ARG_MMPROJ_OFFLOAD", NULL, NULL, IGNORE_FLAG,
     "is ignored: kvasir never loads a multimodal projector"},
    {"-mmdev,--mmproj-device", "MTMD_BACKEND_DEVICE", NULL, NULL, IGNORE_VALUE,
     "is ignored: kvasir never loads a multimodal projector"},
    {"--image-min-tokens", "LLAMA_ARG_IMAGE_MIN_TOKENS", NULL, NULL, REFUSE, VISION},
    {"--image-max-tokens", "LLAMA_ARG_IMAGE_MAX_TOKENS", NULL, NULL, REFUSE, VISION},
    {"--mtmd-batch-max-tokens", "LLAMA_ARG_MTMD_BATCH_MAX_TOKENS", NULL, NULL, REFUSE, VISION},
    {"--video-fps", "LLAMA_ARG_VIDEO_FPS", NULL, NULL, REFUSE, VISION},
    {"--video-timestamp-interval", "LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL", NULL, NULL, REFUSE, VISION},
    {"--video-ffmpeg-dir", "LLAMA_ARG_VIDEO_FFMPEG_DIR", NULL, NULL, REFUSE, VISION},
    {"--media-path", NULL, NULL, NULL, REFUSE, VISION},
    {"--vision-gemma-4b-default,--vision-gemma-12b-default", NULL, NULL, NULL, REFUSE_FLAG, VISION},

    /* speculative decoding */
    {"--spec-type", "LLAMA_ARG_SPEC_TYPE", "none", NULL, REFUSE, SPECULATIVE},
    {"-md,--model-draft,--spec-draft-model", "LLAMA_ARG_SPEC_DRAFT_MODEL", NULL, NULL, REFUSE, SPECULATIVE},
    {"-hfd,-hfrd,--hf-repo-draft,--spec-draft-hf", "LLAMA_ARG_SPEC_DRAFT_HF_REPO", NULL, NULL, REFUSE, SPECULATIVE},
    {"-ngld,--gpu-layers-draft,--n-gpu-layers-draft", "LLAMA_ARG_N_GPU_LAYERS_DRAFT", NULL, NULL, REFUSE, SPECULATIVE},
    {"-devd,--device-draft", NULL, NULL, NULL, REFUSE, SPECULATIVE},
    {"-td,--threads-draft", NULL, NULL, NULL, REFUSE, SPECULATIVE},
    {"-tbd,--threads-batch-draft", NULL, NULL, NULL, REFUSE, SPECULATIVE},
    {"-Cd,--cpu-mask-draft,-Crd,--cpu-range-draft,--cpu-strict-draft,--prio-draft,--poll-draft", NULL, NULL, NULL,
     REFUSE, SPECULATIVE},
    {"-Cbd,--cpu-mask-batch-draft,--cpu-strict-batch-draft,--prio-batch-draft,--poll-batch-draft", NULL, NULL, NULL,
     REFUSE, SPECULATIVE},
    {"-ctkd,--cache-type-k-draft", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K", NULL, NULL, REFUSE, SPECULATIVE},
    {"-ctvd,--cache-type-v-draft", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V", NULL, NULL, REFUSE, SPECULATIVE},
    {"-otd,--override-tensor-draft", NULL, NULL, NULL, REFUSE, SPECULATIVE},
    {"-cmoed,--cpu-moe-draft,--spec-draft-cpu-moe", "LLAMA_ARG_SPEC_DRAFT_CPU_MOE", NULL, NULL, REFUSE_FLAG, SPECULATIVE},
    {"-ncmoed,--n-cpu-moe-draft", "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE", NULL, NULL, REFUSE, SPECULATIVE},
    {"--draft,--draft-n,--draft-max", "LLAMA_ARG_DRAFT_MAX", NULL, NULL, REFUSE, SPECULATIVE},
    {"--draft-min,--draft-n-min", "LLAMA_ARG_DRAFT_MIN", NULL, NULL, REFUSE, SPECULATIVE},
    {"--draft-p-split,--spec-draft-p-split", "LLAMA_ARG_SPEC_DRAFT_P_SPLIT", NULL, NULL, REFUSE, SPECULATIVE},
    {"--draft-p-min,--spec-draft-p-min", "LLAMA_ARG_SPEC_DRAFT_P_MIN", NULL, NULL, REFUSE, SPECULATIVE},
    {"-lcs,--lookup-cache-static", NULL, NULL, NULL, REFUSE, SPECULATIVE},
    {"-lcd,--lookup-cache-dynamic", NULL, NULL, NULL, REFUSE, SPECULATIVE},
    {"--mtp,--dflash,--eagle3", NULL, NULL, NULL, REFUSE_FLAG, SPECULATIVE},
    {"--spec-draft-backend-sampling,--no-spec-draft-backend-sampling", "LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING", NULL,
     NULL, IGNORE_FLAG, "is ignored: there is no draft model"},
    {"--spec-default", NULL, NULL, NULL, REFUSE_FLAG, SPECULATIVE},
    {"--spec-draft-n-max", "LLAMA_ARG_SPEC_DRAFT_N_MAX", NULL, NULL, REFUSE, SPECULATIVE},
    {"--spec-draft-n-min", "LLAMA_ARG_SPEC_DRAFT_N_MIN", NULL, NULL, REFUSE, SPECULATIVE},
    {"--spec-synth-len", "LLAMA_ARG_SPEC_SYNTH_LEN", NULL, NULL, REFUSE, SPECULATIVE},
    {"--spec-synth-rates", "LLAMA_ARG_SPEC_SYNTH_RATES", NULL, NULL, REFUSE, SPECULATIVE},
    {"--spec-*", NULL, NULL, NULL, REFUSE, SPECULATIVE},

    /* other things to serve */

    /* where the model comes from */
    {"-dr,--docker-repo", "LLAMA_ARG_DOCKER_REPO", NULL, NULL, REFUSE, DOCKER},
    {"--fim-qwen-7b-spec,--fim-qwen-14b-spec", NULL, NULL, NULL, REFUSE_FLAG, SPECULATIVE},
    {"--models-dir", "LLAMA_ARG_MODELS_DIR", NULL, NULL, REFUSE, ROUTER},
    {"--models-preset", "LLAMA_ARG_MODELS_PRESET", NULL, NULL, REFUSE, ROUTER},
    {"--models-max", "LLAMA_ARG_MODELS_MAX", NULL, NULL, REFUSE, ROUTER},
    {"--models-autoload,--no-models-autoload", "LLAMA_ARG_MODELS_AUTOLOAD", NULL, "--no-models-autoload", REFUSE_FLAG,
     ROUTER},
    {"--control-vector", NULL, NULL, NULL, REFUSE, "needs control vectors, which kvasir does not apply yet"},
    {"--control-vector-scaled,--control-vector-layer-range", NULL, NULL, NULL, REFUSE,
     "needs control vectors, which kvasir does not apply yet"},
    {"--lora-init-without-apply", NULL, NULL, NULL, REFUSE_FLAG,
     "needs adapters that requests switch, which kvasir does not do yet: what --lora names is always applied"},

    /* engine */
    {"--swa-full", "LLAMA_ARG_SWA_FULL", NULL, NULL, IGNORE_FLAG,
     "is ignored: kvasir resumes models with sliding windows without it, in less memory"},
    {"--context-shift,--no-context-shift", "LLAMA_ARG_CONTEXT_SHIFT", NULL, "--no-context-shift", REFUSE_FLAG,
     "would drop the oldest part of a conversation silently; kvasir ends an answer at the context's end with "
     "finish_reason length"},
    {"--kv-unified-per-slot", "LLAMA_ARG_KV_UNIFIED_PER_SLOT", NULL, NULL, REFUSE,
     "needs a limit for each slot: use -c with -np, which gives each slot context / slots"},
    {"-ot,--override-tensor", "LLAMA_ARG_OVERRIDE_TENSOR", NULL, NULL, REFUSE, PLACEMENT},
    {"-cmoe,--cpu-moe", "LLAMA_ARG_CPU_MOE", NULL, NULL, REFUSE_FLAG, PLACEMENT},
    {"-ncmoe,--n-cpu-moe", "LLAMA_ARG_N_CPU_MOE", "0", NULL, REFUSE, PLACEMENT},
    {"-ncffn,--n-cpu-ffn", "LLAMA_ARG_N_CPU_FFN", "0", NULL, REFUSE, PLACEMENT},
    {"--rpc", "LLAMA_ARG_RPC", NULL, NULL, REFUSE, "needs engines on other machines, which kvasir does not use"},
    {"--list-devices", NULL, NULL, NULL, REFUSE_FLAG, "is not there; `kvasir serve --check` names the devices in use"},
    {"--skip-chat-parsing,--no-skip-chat-parsing", "LLAMA_ARG_SKIP_CHAT_PARSING", NULL, "--no-skip-chat-parsing",
     REFUSE_FLAG, "would leave tool calls in the text, which kvasir cannot do yet"},
    {"--prefill-assistant,--no-prefill-assistant", "LLAMA_ARG_PREFILL_ASSISTANT", NULL, "--prefill-assistant",
     IGNORE_FLAG, "is ignored: a request says with continue_final_message whether its last message goes on"},
    {"-sp,--special", NULL, NULL, NULL, REFUSE_FLAG, "would print control tokens, which kvasir does not do"},
    {"-r,--reverse-prompt", NULL, NULL, NULL, REFUSE, "is not there: requests give their own `stop`"},
    {"-C,--cpu-mask,-Cr,--cpu-range,--cpu-strict", NULL, NULL, NULL, IGNORE_VALUE, AFFINITY},
    {"-Cb,--cpu-mask-batch,-Crb,--cpu-range-batch,--cpu-strict-batch", NULL, NULL, NULL, IGNORE_VALUE, AFFINITY},
    {"--prio,--prio-batch,--poll,--poll-batch", NULL, NULL, NULL, IGNORE_VALUE, AFFINITY},
    {"--numa", "LLAMA_ARG_NUMA", NULL, NULL, IGNORE_VALUE, AFFINITY},
    {"--repack,-nr,--no-repack", "LLAMA_ARG_REPACK", NULL, "--repack", IGNORE_FLAG,
     "is ignored: weights are laid out as the engine likes them"},
    {"--no-host", "LLAMA_ARG_NO_HOST", NULL, NULL, IGNORE_FLAG,
     "is ignored: weights are laid out as the engine likes them"},
    {"-lzm,--lazy-mode", "LLAMA_ARG_LAZY_MODE", "auto", NULL, IGNORE_VALUE, "is ignored: the engine's default is used"},
    {"-dt,--defrag-thold", "LLAMA_ARG_DEFRAG_THOLD", NULL, NULL, IGNORE_VALUE, "is ignored, in llama-server too"},
    {"-fit,--fit", "LLAMA_ARG_FIT", NULL, NULL, IGNORE_VALUE, PLANNED},
    {"-fitt,--fit-target", "LLAMA_ARG_FIT_TARGET", NULL, NULL, IGNORE_VALUE, PLANNED},
    {"-fitc,--fit-ctx", "LLAMA_ARG_FIT_CTX", NULL, NULL, IGNORE_VALUE, PLANNED},
    {"-cb,--cont-batching,-nocb,--no-cont-batching", "LLAMA_ARG_CONT_BATCHING", NULL, "-cb,--cont-batching",
     IGNORE_FLAG, "is ignored: requests are always batched continuously; -np 1 runs them one after the other"},
    {"-bs,--backend-sampling", "LLAMA_ARG_BACKEND_SAMPLING", NULL, NULL, IGNORE_FLAG, "is ignored: the CPU samples"},
    {"--perf,--no-perf", "LLAMA_ARG_PERF", NULL, "--no-perf", IGNORE_FLAG, "is ignored: /metrics has the timings"},
    {"--keep", NULL, "0", NULL, IGNORE_VALUE, "is ignored: it belongs to context shift, which kvasir does not do"},

    /* cache */
    {"--cache-reuse", "LLAMA_ARG_CACHE_REUSE", "0", NULL, IGNORE_VALUE,
     "is ignored: reuse after an edit would shift stored keys, which changes answers"},
    {"-ctxcp,--ctx-checkpoints,--swa-checkpoints", "LLAMA_ARG_CTX_CHECKPOINTS", NULL, NULL, IGNORE_VALUE, OWN_CACHE},
    {"-cms,--checkpoint-min-step", "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT", NULL, NULL, IGNORE_VALUE, OWN_CACHE},
    {"--cache-idle-slots,--no-cache-idle-slots", "LLAMA_ARG_CACHE_IDLE_SLOTS", NULL, NULL, IGNORE_FLAG, OWN_CACHE},

    /* server */
    {"--path", "LLAMA_ARG_STATIC_PATH", NULL, NULL, REFUSE, "needs serving files, which kvasir does not do"},
    {"--ui-config,--webui-config", "LLAMA_ARG_UI_CONFIG", NULL, NULL, IGNORE_VALUE, UI},
    {"--ui-config-file,--webui-config-file", "LLAMA_ARG_UI_CONFIG_FILE", NULL, NULL, IGNORE_VALUE, UI},
    {"--ui-mcp-proxy,--webui-mcp-proxy,--no-ui-mcp-proxy,--no-webui-mcp-proxy", "LLAMA_ARG_UI_MCP_PROXY", NULL,
     "--no-ui-mcp-proxy,--no-webui-mcp-proxy", REFUSE_FLAG, AGENT},
    {"--tools", "LLAMA_ARG_TOOLS", NULL, NULL, REFUSE, AGENT},
    {"--tools-runtime", "LLAMA_ARG_TOOLS_RUNTIME", NULL, NULL, REFUSE, AGENT},
    {"--mcp-servers-config", "LLAMA_ARG_MCP_SERVERS_CONFIG", NULL, NULL, REFUSE, AGENT},
    {"--mcp-servers-json", "LLAMA_ARG_MCP_SERVERS_JSON", NULL, NULL, REFUSE, AGENT},
    {"-ag,--agent,-no-ag,--no-agent", "LLAMA_ARG_AGENT", NULL, "-no-ag,--no-agent", REFUSE_FLAG, AGENT},
    {"--cors-methods", "LLAMA_ARG_CORS_METHODS", NULL, NULL, IGNORE_VALUE, HEADERS},
    {"--cors-headers", "LLAMA_ARG_CORS_HEADERS", NULL, NULL, IGNORE_VALUE, HEADERS},
    {"--cors-credentials,--no-cors-credentials", "LLAMA_ARG_CORS_CREDENTIALS", NULL, NULL, IGNORE_FLAG, HEADERS},
    {"--threads-http", "LLAMA_ARG_THREADS_HTTP", NULL, NULL, IGNORE_VALUE,
     "is ignored: each connection has its thread, --max-connections bounds them"},
    {"--tags", "LLAMA_ARG_TAGS", NULL, NULL, IGNORE_VALUE, "is ignored: /v1/models carries no tags"},

    /* what starts llama-server somewhere else */
    {NULL, "AIP_MODE", NULL, NULL, REFUSE, "needs Vertex AI's routes, which kvasir does not serve: unset it"},
    {NULL, "LLAMA_MEDIA_MARKER", NULL, NULL, IGNORE_VALUE, "is ignored: kvasir reads no images, audio or video"},
    {NULL, "LLAMA_SERVER_CHILD_MODE", NULL, NULL, REFUSE, ROUTER},
    {NULL, "LLAMA_SERVER_ROUTER_PORT", NULL, NULL, REFUSE, ROUTER},

    /* log */
    {"--log-colors", "LLAMA_ARG_LOG_COLORS", NULL, NULL, IGNORE_VALUE, "is ignored: the log has no colours"},
    {"--log-prefix,--no-log-prefix", "LLAMA_ARG_LOG_PREFIX", NULL, NULL, IGNORE_FLAG,
     "is ignored: lines have one form"},
    {NULL, "LLAMA_TRACE", NULL, NULL, IGNORE_VALUE, DEBUGGING},
    {NULL, "LLAMA_SERVER_SLOTS_DEBUG", NULL, NULL, IGNORE_VALUE, DEBUGGING},
    {NULL, "LLAMA_SERVER_SLOTS_N_DIFF", NULL, NULL, IGNORE_VALUE, DEBUGGING},
    {NULL, "LLGUIDANCE_LOG_LEVEL", NULL, NULL, IGNORE_VALUE, "is ignored: grammars are the engine's own"},
    {"--log-prompts-dir", NULL, NULL, NULL, REFUSE, "would write down prompts, which kvasir never does"},
};
/* clang-format on */

const int kv_foreign_count = sizeof kv_foreign_table / sizeof *kv_foreign_table;
