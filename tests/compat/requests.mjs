// The requests that kvasir and llama-server must answer alike: status, JSON keys and types, order of stream events,
// finish reasons. record.mjs runs them on a llama-server and writes shapes.json; the test runs them on kvasir.
//
// Every request is deterministic in shape, not in text: the model is SmolLM2 at temperature 0.

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

/** name, method, path, body (undefined: none; a string is sent as it is), sse: the answer is an event stream */
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
  ['error: context full', 'POST', '/v1/chat/completions', chat({ messages: user('word '.repeat(9000)) })],
  ['error: context full, streamed', 'POST', '/completion', raw({ prompt: 'word '.repeat(9000), stream: true })],
].map(([name, method, path, body]) => ({ name, method, path, body, sse: body?.stream === true }));

/** "string" | "number" | "boolean" | "null" | [shape of the first element] | {key: shape} */
export function shapeOf(value) {
  if (value === null) return 'null';
  if (Array.isArray(value)) return value.length ? [shapeOf(value[0])] : [];
  if (typeof value === 'object') {
    return Object.fromEntries(Object.keys(value).sort().map((k) => [k, shapeOf(value[k])]));
  }
  return typeof value;
}

/** Runs one request; gives { status, type, body: shape } or { status, type, events: [shape …], finish }. */
export async function run(base, request) {
  const res = await fetch(base + request.path, {
    method: request.method,
    headers: request.body === undefined ? {} : { 'content-type': 'application/json' },
    body: request.body === undefined ? undefined
      : typeof request.body === 'string' ? request.body : JSON.stringify(request.body),
  });
  const type = (res.headers.get('content-type') ?? '').split(';')[0];
  const body = await res.text();
  if (type !== 'text/event-stream') {
    const json = JSON.parse(body);
    return { status: res.status, type, body: shapeOf(json), finish: finishOf(json) };
  }
  const events = body.split('\n\n').filter((e) => e.startsWith('data: ')).map((e) => e.slice(6));
  const shapes = [];
  let finish = null;
  for (const e of events) {
    const json = e === '[DONE]' ? '[DONE]' : JSON.parse(e);
    finish = finishOf(json) ?? finish;
    const shape = e === '[DONE]' ? '[DONE]' : shapeOf(json);
    // Runs of equal events (tokens) are one: how text is cut into events is not part of the shape.
    if (JSON.stringify(shapes.at(-1)) !== JSON.stringify(shape)) shapes.push(shape);
  }
  return { status: res.status, type, events: shapes, finish };
}

function finishOf(json) {
  const one = Array.isArray(json) ? json[0] : json;
  return one?.choices?.[0]?.finish_reason ?? one?.stop_type ?? null;
}
