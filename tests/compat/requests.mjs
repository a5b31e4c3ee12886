// The requests that kvasir and llama-server must answer alike: status, headers, JSON keys and types, order of stream
// events, finish reasons. record.mjs runs them on a llama-server and writes shapes.json; the test runs them on kvasir.
//
// Every request is deterministic in shape, not in text: temperature 0, or a grammar that leaves one answer.

/** The servers that requests go to: arguments for both programs, of the directories that hold models and templates.
 * One thread: several wait for one another at every layer, which takes seconds a token on a machine that is busy. */
export const setups = {
  main: ({ models }) => ['-t', '1', '-m', `${models}/SmolLM2-135M-Instruct.Q4_1.gguf`, '-c', '8192', '-np', '4', '-kvu', '--slots',
    '--metrics', '--props'],
  // A template that reasons: a grammar makes the answer.
  thinker: ({ models, templates }) => ['-t', '1', '-m', `${models}/tiny/llama.gguf`, '-c', '4096', '-np', '1',
    '--jinja', '--chat-template-file', `${templates}/Qwen-Qwen3-0.6B.jinja`],
  // A template that calls tools and does not reason, so that tool_choice alone makes the answer.
  caller: ({ models, templates }) => ['-t', '1', '-m', `${models}/tiny/llama.gguf`, '-c', '4096', '-np', '1',
    '--jinja', '--chat-template-file', `${templates}/Qwen-Qwen2.5-7B-Instruct.jinja`],
  vectors: ({ models }) => ['-t', '1', '-m', `${models}/tiny/llama.gguf`, '-c', '2048', '-np', '1', '--embeddings', '--pooling', 'last'],
  adapter: ({ models, scratch }) => ['-t', '1', '-m', `${models}/tiny/llama.gguf`, '-c', '2048', '-np', '1', '--slots',
    '--lora', `${models}/tiny/lora/llama.gguf`, '--slot-save-path', scratch],
};

const user = (content) => [{ role: 'user', content }];
const hello = user('Say hello in one word.');
const schema = {
  type: 'object',
  properties: { city: { type: 'string', maxLength: 12 }, big: { type: 'boolean' } },
  required: ['city', 'big'],
};
const chat = (extra) => ({ temperature: 0, seed: 1, max_tokens: 8, messages: hello, ...extra });
const raw = (extra) => ({ temperature: 0, seed: 1, n_predict: 6, prompt: 'The sky is', ...extra });
const text = (extra) => ({ temperature: 0, seed: 1, max_tokens: 6, prompt: 'The sky is', ...extra });
const slow = 'word '.repeat(9000);

// A tool whose every valid call is short, so that a grammar alone ends it.
const parameters = { type: 'object', properties: { city: { type: 'string', enum: ['Oslo', 'Rome'] } }, required: ['city'] };
const tools = [{ type: 'function', function: { name: 'weather', description: 'The weather in a city', parameters } }];
const call = { id: 'call_1', type: 'function', function: { name: 'weather', arguments: '{"city":"Oslo"}' } };
// llama-server's grammar for a required call lets any text come first, which a random model never ends. Of the tiny
// models' tokens the biases prefer <tool_call> (261), then, as the penalty weakens what was said, the end of a line, and
// after the call <|im_end|> (258); in between the grammar leaves no choice but line ends. The prompt's last 110 tokens must
// not hold <tool_call>, hence the long question.
const question = 'Weather in Oslo? I leave tomorrow and want to know which clothes to take along, please.';
const forced = { logit_bias: { 261: 50, 258: 80, 10: 60, 9: -50, 32: -50 }, repeat_penalty: 10, repeat_last_n: 110 };
const calling = (extra) => chat({ max_tokens: 1000, messages: user(question), tools, tool_choice: 'required', ...forced, ...extra });
const thinking = (extra) => chat({ max_tokens: 64, grammar: 'root ::= "<think>\\nOne word.\\n</think>\\n\\nHello!"', ...extra });
const message = (extra) => ({ model: 'any', temperature: 0, max_tokens: 8, messages: hello, ...extra });
const messageTools = [{ name: 'weather', description: 'The weather in a city', input_schema: parameters }];
const answer = (extra) => ({ model: 'any', temperature: 0, max_output_tokens: 8, input: 'Say hello in one word.', ...extra });
const answerTools = [{ type: 'function', name: 'weather', description: 'The weather in a city', parameters, strict: false }];
const fill = (extra) => ({ temperature: 0, seed: 1, n_predict: 6, input_prefix: 'int add(int a, int b) {', input_suffix: '}', ...extra });

/** name, method, path, body (undefined: none; a string is sent as it is), setup (main when there is none) */
export const requests = [
  ['health', 'GET', '/health'],
  ['health under /v1', 'GET', '/v1/health'],
  ['models', 'GET', '/v1/models'],
  ['models without /v1', 'GET', '/models'],
  ['props', 'GET', '/props'],
  ['slots', 'GET', '/slots'],
  ['tokenize', 'POST', '/tokenize', { content: 'Hello world' }],
  ['tokenize with special and pieces', 'POST', '/tokenize', { content: 'Hé\u{1F600}', add_special: true, with_pieces: true }],
  ['detokenize', 'POST', '/detokenize', { tokens: [19556, 905] }],
  ['apply-template', 'POST', '/apply-template', { messages: hello }],
  ['chat', 'POST', '/v1/chat/completions', chat()],
  ['chat without /v1', 'POST', '/chat/completions', chat()],
  ['chat to the end of the turn', 'POST', '/v1/chat/completions', chat({ max_tokens: 64 })],
  ['chat streamed', 'POST', '/v1/chat/completions', chat({ stream: true })],
  ['chat streamed with usage', 'POST', '/v1/chat/completions', chat({ stream: true, stream_options: { include_usage: true } })],
  ['chat with logprobs', 'POST', '/v1/chat/completions', chat({ logprobs: true, top_logprobs: 2 })],
  ['chat streamed with logprobs', 'POST', '/v1/chat/completions', chat({ logprobs: true, top_logprobs: 2, stream: true })],
  ['chat with two choices', 'POST', '/v1/chat/completions', chat({ n: 2 })],
  ['chat with a stop string', 'POST', '/v1/chat/completions', chat({ max_tokens: 64, stop: 'o' })],
  ['chat with stop strings', 'POST', '/v1/chat/completions', chat({ max_tokens: 64, stop: ['zzz', 'e'] })],
  ['chat with max_completion_tokens', 'POST', '/v1/chat/completions', { temperature: 0, max_completion_tokens: 4, messages: hello }],
  ['chat with a json schema', 'POST', '/v1/chat/completions', chat({ max_tokens: 64, response_format: { type: 'json_schema', json_schema: { name: 'x', schema } } })],
  ['chat with json_object', 'POST', '/v1/chat/completions', chat({ max_tokens: 24, response_format: { type: 'json_object' } })],
  ['chat with content parts', 'POST', '/v1/chat/completions', chat({ messages: user([{ type: 'text', text: 'Say hello.' }]) })],
  ['chat with progress', 'POST', '/v1/chat/completions', chat({ stream: true, return_progress: true, cache_prompt: false })],
  ['chat with timings a token', 'POST', '/v1/chat/completions', chat({ stream: true, timings_per_token: true })],
  ['completions', 'POST', '/v1/completions', text()],
  ['completions with logprobs', 'POST', '/v1/completions', text({ logprobs: 2 })],
  ['completions streamed', 'POST', '/v1/completions', text({ stream: true })],
  ['completions of two prompts', 'POST', '/v1/completions', text({ prompt: ['The sky is', 'Grass is'] })],
  ['completions of tokens', 'POST', '/v1/completions', text({ prompt: [504, 6376, 314] })],
  ['completion', 'POST', '/completion', raw()],
  ['completion, plural', 'POST', '/completions', raw()],
  ['completion streamed', 'POST', '/completion', raw({ stream: true })],
  ['completion with n_probs', 'POST', '/completion', raw({ n_probs: 2 })],
  ['completion with n_probs after sampling', 'POST', '/completion', raw({ n_probs: 2, post_sampling_probs: true, temperature: 0.5 })],
  ['completion with tokens returned', 'POST', '/completion', raw({ return_tokens: true })],
  ['completion of two prompts', 'POST', '/completion', raw({ prompt: ['The sky is', [504, 6376, 314]] })],
  ['completion with a grammar', 'POST', '/completion', raw({ grammar: 'root ::= "yes" | "no"' })],
  ['completion with a json schema', 'POST', '/completion', raw({ n_predict: 64, json_schema: schema })],
  ['completion to a stop string', 'POST', '/completion', raw({ n_predict: 64, stop: ['.'] })],
  ['completion of nothing', 'POST', '/completion', raw({ n_predict: 0 })],
  ['completion with response_fields', 'POST', '/completion', raw({ response_fields: ['content', 'generation_settings/n_predict'] })],
  ['completion with progress', 'POST', '/completion', raw({ stream: true, return_progress: true, cache_prompt: false })],
  ['completion with logit_bias', 'POST', '/completion', raw({ logit_bias: [[5, false], ['blue', -5]] })],
  ['error: unknown path', 'GET', '/nothing-here'],
  ['error: bad JSON', 'POST', '/v1/chat/completions', '{"messages": ['],
  ['error: no messages', 'POST', '/v1/chat/completions', { max_tokens: 2 }],
  ['error: messages not a list', 'POST', '/v1/chat/completions', { messages: 'hi' }],
  ['error: no prompt', 'POST', '/completion', { n_predict: 2 }],
  ['error: bad grammar', 'POST', '/completion', raw({ grammar: 'root ::= (' })],
  ['error: n_predict out of range', 'POST', '/completion', raw({ n_predict: -5 })],
  ['error: context full', 'POST', '/v1/chat/completions', chat({ messages: user(slow) })],
  ['error: context full, streamed', 'POST', '/completion', raw({ prompt: slow, stream: true })],
  ['metrics', 'GET', '/metrics'],
  ['props, set', 'POST', '/props', {}],
  ['tokenize with parse_special off', 'POST', '/tokenize', { content: '<|im_start|>', parse_special: false }],
  ['tokenize of nothing', 'POST', '/tokenize', {}],
  ['detokenize of nothing', 'POST', '/detokenize', { tokens: [] }],
  ['apply-template of a conversation', 'POST', '/apply-template', { messages: [{ role: 'system', content: 'Be brief.' }, ...hello, { role: 'assistant', content: 'Hello' }, ...hello] }],
  ['chat input tokens', 'POST', '/v1/chat/completions/input_tokens', { messages: hello }],
  ['completion in a slot', 'POST', '/completion', raw({ id_slot: 2 })],
  ['completion with parts of a prompt', 'POST', '/completion', raw({ prompt: [504, ' sky', 314] })],
  ['completion with null fields', 'POST', '/completion', raw({ stop: null, grammar: null, n_probs: null })],
  ['completion streamed to a stop string', 'POST', '/completion', raw({ n_predict: 64, stop: ['.'], stream: true })],
  ['completion streamed with n_probs', 'POST', '/completion', raw({ n_probs: 2, stream: true })],
  ['completion of two prompts, streamed', 'POST', '/completion', raw({ prompt: ['The sky is', 'Grass is'], stream: true })],
  ['completion with samplers', 'POST', '/completion', raw({ samplers: ['top_k', 'temperature'], top_k: 3 })],
  ['completions to a stop string', 'POST', '/v1/completions', text({ max_tokens: 64, stop: ['.'] })],
  ['completions streamed with usage', 'POST', '/v1/completions', text({ stream: true, stream_options: { include_usage: true } })],
  ['completions echoed', 'POST', '/v1/completions', text({ echo: true })],
  ['chat with a developer message', 'POST', '/v1/chat/completions', chat({ messages: [{ role: 'developer', content: 'Be brief.' }, ...hello] })],
  ['chat with an assistant prefill', 'POST', '/v1/chat/completions', chat({ messages: [...hello, { role: 'assistant', content: 'Hel' }] })],
  ['chat with OpenAI fields', 'POST', '/v1/chat/completions', chat({ user: 'u', metadata: { a: 'b' }, store: false, parallel_tool_calls: false, prompt_cache_key: 'k' })],
  ['chat with two choices, streamed', 'POST', '/v1/chat/completions', chat({ n: 2, stream: true })],

  ['messages', 'POST', '/v1/messages', message()],
  ['messages streamed', 'POST', '/v1/messages', message({ stream: true })],
  ['messages with a system block', 'POST', '/v1/messages', message({ system: [{ type: 'text', text: 'Be brief.', cache_control: { type: 'ephemeral' } }] })],
  ['messages to a stop sequence', 'POST', '/v1/messages', message({ max_tokens: 64, stop_sequences: ['o'] })],
  ['messages to the end of the turn', 'POST', '/v1/messages', message({ max_tokens: 64 })],
  ['count_tokens', 'POST', '/v1/messages/count_tokens', { model: 'any', messages: hello }],
  ['responses', 'POST', '/v1/responses', answer()],
  ['responses streamed', 'POST', '/v1/responses', answer({ stream: true })],
  ['responses of items', 'POST', '/v1/responses', answer({ instructions: 'Be brief.', input: [{ role: 'user', content: [{ type: 'input_text', text: 'Say hello.' }] }] })],
  ['responses to the end of the turn', 'POST', '/v1/responses', answer({ max_output_tokens: 64 })],
  ['responses streamed to the end of the turn', 'POST', '/v1/responses', answer({ max_output_tokens: 64, stream: true })],
  ['responses without /v1', 'POST', '/responses', answer()],
  ['responses input tokens', 'POST', '/v1/responses/input_tokens', answer()],

  ['tool call', 'POST', '/v1/chat/completions', calling(), 'caller'],
  ['tool call streamed', 'POST', '/v1/chat/completions', calling({ stream: true }), 'caller'],
  ['tool choice none', 'POST', '/v1/chat/completions', chat({ tools, tool_choice: 'none' }), 'caller'],
  ['tool result', 'POST', '/v1/chat/completions', chat({ tools, tool_choice: 'none', messages: [...hello, { role: 'assistant', content: null, tool_calls: [call] }, { role: 'tool', tool_call_id: 'call_1', content: 'Rain' }] }), 'caller'],
  ['reasoning', 'POST', '/v1/chat/completions', thinking(), 'thinker'],
  ['reasoning streamed', 'POST', '/v1/chat/completions', thinking({ stream: true }), 'thinker'],
  ['reasoning kept in the text', 'POST', '/v1/chat/completions', thinking({ reasoning_format: 'none' }), 'thinker'],
  ['apply-template with tools', 'POST', '/apply-template', { messages: hello, tools }, 'caller'],
  ['messages with tools', 'POST', '/v1/messages', message({ tools: messageTools }), 'caller'],
  ['messages with tools, streamed', 'POST', '/v1/messages', message({ tools: messageTools, stream: true }), 'caller'],
  ['messages with a tool result', 'POST', '/v1/messages', message({ tools: messageTools, tool_choice: { type: 'none' }, messages: [...hello, { role: 'assistant', content: [{ type: 'tool_use', id: 'toolu_1', name: 'weather', input: { city: 'Oslo' } }] }, { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'toolu_1', content: 'Rain' }] }] }), 'caller'],
  ['count_tokens with tools', 'POST', '/v1/messages/count_tokens', { model: 'any', messages: hello, tools: messageTools, system: 'Be brief.' }, 'caller'],
  ['responses with a tool call', 'POST', '/v1/responses', answer({ max_output_tokens: 1000, input: question, tools: answerTools, tool_choice: 'required', ...forced }), 'caller'],
  ['responses with a tool call, streamed', 'POST', '/v1/responses', answer({ max_output_tokens: 1000, input: question, tools: answerTools, tool_choice: 'required', ...forced, stream: true }), 'caller'],
  ['responses with a tool result', 'POST', '/v1/responses', answer({ input: [{ role: 'user', content: 'Weather in Oslo?' }, { type: 'function_call', call_id: 'call_1', name: 'weather', arguments: '{"city":"Oslo"}' }, { type: 'function_call_output', call_id: 'call_1', output: 'Rain' }] }), 'caller'],

  ['embeddings', 'POST', '/v1/embeddings', { model: 'any', input: 'hello' }, 'vectors'],
  ['embeddings of two texts', 'POST', '/v1/embeddings', { input: ['hello', 'bye'] }, 'vectors'],
  ['embeddings of tokens', 'POST', '/v1/embeddings', { input: [10, 20, 30] }, 'vectors'],
  ['embeddings as base64', 'POST', '/v1/embeddings', { input: 'hello', encoding_format: 'base64' }, 'vectors'],
  ['embeddings, native', 'POST', '/embeddings', { content: 'hello' }, 'vectors'],
  ['embedding, native', 'POST', '/embedding', { content: 'hello' }, 'vectors'],
  ['error: embeddings of nothing', 'POST', '/v1/embeddings', {}, 'vectors'],
  ['error: embeddings in another format', 'POST', '/v1/embeddings', { input: 'a', encoding_format: 'hex' }, 'vectors'],
  ['error: rerank without a head', 'POST', '/v1/rerank', { query: 'a', documents: ['b'] }],

  ['lora-adapters', 'GET', '/lora-adapters', undefined, 'adapter'],
  ['lora-adapters, set', 'POST', '/lora-adapters', [{ id: 0, scale: 0.5 }], 'adapter'],
  ['completion with an adapter', 'POST', '/completion', raw({ lora: [{ id: 0, scale: 1 }] }), 'adapter'],
  ['slot save', 'POST', '/slots/0?action=save', { filename: 'a.bin' }, 'adapter'],
  ['slot restore', 'POST', '/slots/0?action=restore', { filename: 'a.bin' }, 'adapter'],
  ['slot erase', 'POST', '/slots/0?action=erase', {}, 'adapter'],
  ['error: slot action unknown', 'POST', '/slots/0?action=dance', {}, 'adapter'],
  ['error: slot file with a path', 'POST', '/slots/0?action=save', { filename: '../a.bin' }, 'adapter'],
  ['error: lora-adapters not a list', 'POST', '/lora-adapters', { id: 0 }, 'adapter'],
  ['error: infill without its tokens', 'POST', '/infill', fill()],

  ['error: messages without messages', 'POST', '/v1/messages', { model: 'any', max_tokens: 8 }],
  ['error: messages, context full', 'POST', '/v1/messages', message({ messages: user(slow) })],
  ['error: responses without input', 'POST', '/v1/responses', { model: 'any' }],
  ['error: responses, context full', 'POST', '/v1/responses', answer({ input: slow })],
  ['error: detokenize text', 'POST', '/detokenize', { tokens: 'a' }],
  ['error: tools not a list', 'POST', '/v1/chat/completions', chat({ tools: 'x' })],
  ['error: tool choice unknown', 'POST', '/v1/chat/completions', calling({ tool_choice: 'perhaps' }), 'caller'],
  ['error: an image', 'POST', '/v1/chat/completions', chat({ messages: user([{ type: 'image_url', image_url: { url: 'data:image/png;base64,AA==' } }]) })],
  ['error: bad schema', 'POST', '/v1/chat/completions', chat({ response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'nonsense' } } } })],
  ['error: unknown response_format', 'POST', '/v1/chat/completions', chat({ response_format: { type: 'yaml' } })],
  ['error: slot that is not there', 'POST', '/slots/99?action=erase', {}, 'adapter'],
].map(([name, method, path, body, setup = 'main']) => ({ name, method, path, body, setup }));

/** "string" | "number" | "boolean" | "null" | [shape of the first element] | {key: shape} */
export function shapeOf(value) {
  if (value === null) return 'null';
  if (Array.isArray(value)) return value.length ? [shapeOf(value[0])] : [];
  if (typeof value === 'object') {
    return Object.fromEntries(Object.keys(value).sort().map((k) => [k, shapeOf(value[k])]));
  }
  return typeof value;
}

// What a proxy or the program's HTTP library sets, not the API.
const TRANSPORT = new Set(['connection', 'content-length', 'date', 'keep-alive', 'transfer-encoding']);

/** Runs one request; gives { status, headers, body: shape, finish } or { status, headers, events: [shape …], finish }. */
export async function run(base, request) {
  const res = await fetch(base + request.path, {
    method: request.method,
    headers: request.body === undefined ? {} : { 'content-type': 'application/json' },
    body: request.body === undefined ? undefined
      : typeof request.body === 'string' ? request.body : JSON.stringify(request.body),
  });
  const headers = Object.fromEntries([...res.headers].filter(([name]) => !TRANSPORT.has(name)));
  const text = await res.text();
  const type = headers['content-type'] ?? '';
  if (type.startsWith('text/event-stream')) return { status: res.status, headers, ...eventsOf(text) };
  if (!type.startsWith('application/json')) return { status: res.status, headers, body: typeof text, finish: null };
  const json = JSON.parse(text);
  return { status: res.status, headers, body: shapeOf(json), finish: finishOf(json) };
}

/** The shapes of a stream's events, each after its name if it has one. Runs of equal events (tokens) are one: how text
 * is cut into events is not part of the shape. Comments and pings, which say only that the server lives, are left out. */
function eventsOf(body) {
  const events = [];
  let finish = null;
  for (const block of body.split('\n\n')) {
    const lines = block.split('\n');
    const name = lines.find((l) => l.startsWith('event: '))?.slice(7);
    const data = lines.filter((l) => l.startsWith('data: ')).map((l) => l.slice(6)).join('\n');
    if (!data || name === 'ping') continue;
    const json = data === '[DONE]' ? null : JSON.parse(data);
    finish = (json && finishOf(json)) ?? finish;
    const shape = json ? shapeOf(json) : data;
    const event = name ? { [name]: shape } : shape;
    if (JSON.stringify(events.at(-1)) !== JSON.stringify(event)) events.push(event);
  }
  return { events, finish };
}

/** Why an answer ended, in whichever API's words. */
function finishOf(json) {
  const one = Array.isArray(json) ? json[0] : json;
  return one?.choices?.[0]?.finish_reason ?? one?.stop_type ?? one?.stop_reason ?? one?.delta?.stop_reason ??
    one?.response?.status ?? (one?.object === 'response' ? one.status : null) ?? null;
}
