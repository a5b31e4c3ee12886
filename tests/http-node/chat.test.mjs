// Chat completions with OpenAI's client: fields that are accepted, roles, parts, prefill, reasoning and its token count,
// images, packed bodies, template errors, and wrong inputs.
import assert from 'node:assert/strict';
import { writeFileSync, mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import zlib from 'node:zlib';
import OpenAI from 'openai';
import { model, root, startServer } from './server.mjs';

const tiny = model('tiny/llama.gguf');
const template = (name) => path.join(root, 'build', 'engine', 'source', 'models', 'templates', `${name}.jinja`);
const tinyArgs = (...more) => ['-m', tiny, '-c', '16384', '-np', '2', '-kvu', '-fa', 'off', '-t', '1', '--test-sampler', ...more];
const hi = [{ role: 'user', content: 'hi' }];
const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,AA==' } };
const CHAT = '/v1/chat/completions';

async function send(server, where, body, headers = {}) {
  const response = await fetch(server.url + where, {
    method: 'POST', headers: { 'content-type': 'application/json', ...headers },
    body: typeof body === 'string' || body instanceof Uint8Array ? body : JSON.stringify(body),
  });
  return { status: response.status, json: await response.json() };
}
const prompt = async (server, body) => {
  const { status, json } = await send(server, '/apply-template', body);
  assert.equal(status, 200, JSON.stringify(json));
  return json.prompt;
};

describe('chat with a model that thinks (Qwen3)', () => {
  let server, client;
  before(async () => {
    server = await startServer({ args: tinyArgs('--chat-template-file', template('Qwen-Qwen3-0.6B'), '--on-image', 'placeholder', '--max-body', '1') });
    client = new OpenAI({ apiKey: 'none', baseURL: `${server.url}/v1`, maxRetries: 0 });
  });
  after(() => server.stop());
  const ask = (play, more = {}) => client.chat.completions.create({ model: 'any', messages: hi, kvasir: { play }, ...more });

  it('accepts what changes nothing here', async () => {
    const answer = await ask('Hello.', {
      user: 'u', prompt_cache_key: 'k', prompt_cache_retention: '24h', metadata: { a: 'b' }, store: true, service_tier: 'auto',
      safety_identifier: 's', verbosity: 'low', modalities: ['text'], reasoning_effort: 'low', parallel_tool_calls: true,
      prediction: { type: 'content', content: 'Hello.' }, stop: 'xyz', max_completion_tokens: 50, logit_bias: {},
    });
    assert.equal(answer.choices[0].message.content, 'Hello.');
    assert.equal(answer.choices[0].finish_reason, 'stop');
  });

  it('takes null for every field', async () => {
    const names = ['user', 'prompt_cache_key', 'prompt_cache_retention', 'metadata', 'store', 'service_tier', 'safety_identifier',
      'verbosity', 'modalities', 'reasoning_effort', 'parallel_tool_calls', 'prediction', 'stop', 'max_completion_tokens', 'max_tokens',
      'logit_bias', 'tools', 'tool_choice', 'response_format', 'n', 'logprobs', 'top_logprobs', 'seed', 'stream', 'stream_options',
      'temperature', 'top_p', 'frequency_penalty', 'presence_penalty', 'audio', 'web_search_options', 'functions', 'function_call', 'model'];
    const body = { messages: [{ role: 'user', content: 'hi', name: null, tool_calls: null, refusal: null, audio: null }], kvasir: { play: 'Yes.' } };
    for (const name of names) body[name] = null;
    const { status, json } = await send(server, CHAT, body);
    assert.equal(status, 200, JSON.stringify(json));
    assert.equal(json.choices[0].message.content, 'Yes.');
  });

  it('keys per conversation share the cache', async () => {
    const messages = [{ role: 'system', content: 'Facts. '.repeat(60) }, ...hi];
    const first = await ask('A.', { messages, prompt_cache_key: 'one', user: 'a', metadata: { session: '1' }, safety_identifier: 'x' });
    const second = await ask('A.', { messages, prompt_cache_key: 'two', user: 'b', metadata: { session: '2' }, safety_identifier: 'y' });
    assert.ok(first.usage.prompt_tokens > 400);
    assert.equal(second.usage.prompt_tokens_details.cached_tokens, second.usage.prompt_tokens - 1);
  });

  it('tells thoughts apart and counts their tokens, streamed and not', async () => {
    const texts = [
      // text, thoughts, tokens of them with their markers (a token is a byte here, but for the special ones)
      ['<think>\nLet me see.\n</think>\n\nHello.', 'Let me see.', true],
      ['<think>\nOnly thoughts', 'Only thoughts', true],
      ['Hello.', undefined, false],
      ['<think>\n\n</think>\n\nHello.', undefined, false],
    ];
    for (const [play, thoughts, counted] of texts) {
      const whole = await ask(play);
      const { message } = whole.choices[0];
      assert.equal(message.reasoning_content?.trim(), thoughts, play);
      const n = whole.usage.completion_tokens_details.reasoning_tokens;
      const answer = message.content ?? '';
      assert.equal(n > 0, counted, `${play}: ${n}`);
      if (counted) {
        // with the answer's own bytes, and perhaps the end of the turn, these are all that were sampled
        const rest = whole.usage.completion_tokens - n - Buffer.byteLength(answer);
        assert.ok(rest === 0 || (rest === 1 && answer), `${play}: ${JSON.stringify(whole.usage)}`);
      }
      const stream = client.chat.completions.stream({ model: 'any', messages: hi, kvasir: { play }, stream_options: { include_usage: true } });
      let reasoning = '';
      for await (const chunk of stream) reasoning += chunk.choices[0]?.delta.reasoning_content ?? '';
      const final = await stream.finalChatCompletion();
      assert.equal(reasoning, message.reasoning_content ?? '');
      assert.equal(final.choices[0].message.content ?? '', answer);
      assert.deepEqual(final.usage.completion_tokens_details, whole.usage.completion_tokens_details);
      assert.equal(final.usage.completion_tokens, whole.usage.completion_tokens);
      const two = await ask(play, { n: 2 });
      assert.equal(two.usage.completion_tokens_details.reasoning_tokens, 2 * n);
    }
  });

  it('goes on where thoughts that came back leave off', async () => {
    const first = await ask('<think>\nLet me see.\n</think>\n\nHello.');
    const tools = [{ type: 'function', function: { name: 'f', parameters: { type: 'object', properties: {} } } }];
    const call = await ask('<think>\nI call.\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', { tools });
    assert.equal(call.choices[0].finish_reason, 'tool_calls');
    assert.equal(call.choices[0].message.content, null);
    const next = await ask('Done.', { tools, messages: [...hi, call.choices[0].message, { role: 'tool', tool_call_id: call.choices[0].message.tool_calls[0].id, content: [{ type: 'text', text: 'ok' }] }] });
    assert.ok(next.usage.prompt_tokens_details.cached_tokens >= call.usage.prompt_tokens + call.usage.completion_tokens - 8,
      JSON.stringify([call.usage, next.usage]));
    assert.equal(first.choices[0].message.role, 'assistant');
  });

  it('takes reasoning_effort none, a budget, and enable_thinking', async () => {
    const on = await prompt(server, { messages: hi });
    const off = await prompt(server, { messages: hi, reasoning_effort: 'none' });
    assert.ok(!on.includes('</think>') && off.includes('</think>'));
    assert.equal(await prompt(server, { messages: hi, chat_template_kwargs: { enable_thinking: false } }), off);
    assert.equal(await prompt(server, { messages: hi, reasoning_effort: 'high' }), on);
  });

  it('puts a text in the place of images, and refuses what cannot be left out', async () => {
    const plain = await prompt(server, { messages: [{ role: 'user', content: [{ type: 'text', text: 'See' }, { type: 'text', text: '[image]' }] }] });
    assert.equal(await prompt(server, { messages: [{ role: 'user', content: [{ type: 'text', text: 'See' }, image] }] }), plain);
    assert.match(await prompt(server, { messages: [{ role: 'user', content: [image] }] }), /\[image\]/);
    const answer = await ask('An image.', { messages: [{ role: 'user', content: [image] }, { role: 'assistant', content: 'Nice.' }, ...hi] });
    assert.equal(answer.choices[0].message.content, 'An image.');
    for (const part of [{ type: 'input_audio', input_audio: { data: '', format: 'wav' } }, { type: 'file', file: { file_id: 'x' } }]) {
      const { status, json } = await send(server, CHAT, { messages: [{ role: 'user', content: [{ type: 'text', text: 'x' }, part] }] });
      assert.equal(status, 400);
      assert.equal(json.error.param, 'messages[0].content[1]');
    }
  });

  it('reads parts, one text or many, as the text they are', async () => {
    const text = await prompt(server, { messages: [{ role: 'user', content: 'One' }] });
    assert.equal(await prompt(server, { messages: [{ role: 'user', content: [{ type: 'text', text: 'One' }] }] }), text);
    const tool = { role: 'assistant', content: '', tool_calls: [{ id: 'a', type: 'function', function: { name: 'f', arguments: '{"a":1}' } }] };
    const object = { role: 'assistant', content: null, tool_calls: [{ id: 'a', function: { name: 'f', arguments: { a: 1 } } }] };
    const tail = { role: 'tool', tool_call_id: 'a', content: 'r' };
    assert.equal(await prompt(server, { messages: [...hi, object, { ...tail, content: [{ type: 'text', text: 'r' }] }] }),
      await prompt(server, { messages: [...hi, tool, tail] }));
  });

  it('reads developer as system, and goes on with an assistant that has begun', async () => {
    assert.equal(await prompt(server, { messages: [{ role: 'developer', content: 'Be brief.' }, ...hi] }),
      await prompt(server, { messages: [{ role: 'system', content: 'Be brief.' }, ...hi] }));
    assert.ok((await prompt(server, { messages: [...hi, { role: 'assistant', content: 'Once upon' }] })).endsWith('Once upon'));
    const answer = await ask(' a time.', { messages: [...hi, { role: 'assistant', content: 'Once upon' }] });
    assert.equal(answer.choices[0].message.content, 'Once upon a time.'); // whole, as llama-server has it
    let told = '';
    for await (const chunk of await ask(' a time.', { messages: [...hi, { role: 'assistant', content: 'Once upon' }], stream: true }))
      told += chunk.choices[0]?.delta.content ?? '';
    assert.equal(told, ' a time.'); // what is new
  });

  it('ends with length, stop strings and the end', async () => {
    const cut = await ask('Hello there.', { max_completion_tokens: 5 });
    assert.equal(cut.choices[0].finish_reason, 'length');
    assert.equal(cut.choices[0].message.content, 'Hello');
    const stop = await ask('Hello there.', { stop: ['the'] });
    assert.equal(stop.choices[0].finish_reason, 'stop');
    assert.equal(stop.choices[0].message.content, 'Hello ');
  });

  it('gives logprobs of n choices', async () => {
    const answer = await client.chat.completions.create({ model: 'any', messages: hi, max_tokens: 3, n: 2, logprobs: true, top_logprobs: 4, seed: 5, ignore_eos: true });
    assert.equal(answer.choices.length, 2);
    for (const choice of answer.choices) {
      assert.equal(choice.logprobs.content.length, 3);
      for (const token of choice.logprobs.content) {
        assert.equal(token.top_logprobs.length, 4);
        assert.ok(token.logprob <= 0 && Array.isArray(token.bytes));
      }
    }
  });

  it('keeps so many probabilities and no more when it does not stream', async () => {
    const { n_ctx } = (await (await fetch(`${server.url}/v1/models`)).json()).data[0].meta;
    assert.ok(n_ctx >= 4096 && n_ctx < 20000, `${n_ctx}`);
    const endless = { ignore_eos: true, max_tokens: 20000 }, many = { logprobs: true, top_logprobs: 1000 };
    const chat = (more) => send(server, '/v1/chat/completions', { messages: hi, ...more });
    const rows = [
      [await chat({ ...endless, ...many }), 'top_logprobs'],
      [await chat(many), 'top_logprobs'],
      [await chat({ ...many, n: 2, max_tokens: 2500 }), 'top_logprobs'],
      [await send(server, '/v1/completions', { prompt: Array(512).fill('x'), logprobs: 20, max_tokens: 1000 }), 'logprobs'],
      [await send(server, '/completion', { prompt: 'x', n_probs: 1000, n_predict: -1 }), 'n_probs'],
    ];
    for (const [{ status, json }, field] of rows) {
      assert.equal(status, 400, JSON.stringify(json));
      assert.equal(json.error.param, field);
      assert.match(json.error.message, /(1000|20) alternatives .* at most 4000000 are possible unless it is streamed/);
    }
    assert.match(rows[3][0].json.error.message, /512000 tokens \(512 choices of at most 1000 tokens\) are 10752000 /);
    const play = { kvasir: { play: 'Hi.' } };
    for (const ordinary of [{ logprobs: true, top_logprobs: 20, n: 2 }, { ...many, max_tokens: 3000 }])
      assert.equal((await chat({ ...ordinary, ...play })).status, 200);
    assert.equal((await send(server, '/completion', { prompt: 'x', n_probs: 10, n_predict: -1, ...play })).status, 200);
    let told = 0;
    for await (const chunk of await ask('Hi.', { ...many, stream: true })) told += chunk.choices[0]?.logprobs?.content.length ?? 0;
    assert.ok(told >= 3, `${told}`);
  });

  it('takes a path with /v1 twice or a slash behind, and Expect: 100-continue', async () => {
    const body = { messages: hi, kvasir: { play: 'Yes.' } };
    for (const where of ['/v1/v1/chat/completions', '/v1/chat/completions/', '//v1/chat/completions', '/chat/completions'])
      assert.equal((await send(server, where, body)).status, 200, where);
  });

  it('unpacks bodies, and not more than --max-body of them', async () => {
    const text = JSON.stringify({ messages: hi, kvasir: { play: 'Packed.' } });
    for (const [coding, pack] of [['gzip', zlib.gzipSync], ['deflate', zlib.deflateSync]]) {
      const { status, json } = await send(server, CHAT, pack(text), { 'content-encoding': coding });
      assert.equal(status, 200, JSON.stringify(json));
      assert.equal(json.choices[0].message.content, 'Packed.');
    }
    const bomb = zlib.gzipSync(Buffer.alloc(512 << 20)); // 512 MiB of zeros in half of one
    assert.ok(bomb.length < 1 << 20);
    const { status, json } = await send(server, CHAT, bomb, { 'content-encoding': 'gzip' });
    assert.equal(status, 413);
    assert.match(json.error.message, /1048576/);
    assert.equal((await send(server, CHAT, text, { 'content-encoding': 'gzip' })).status, 400);
    assert.equal((await send(server, CHAT, text, { 'content-encoding': 'br' })).status, 415);
  });

  // field or word that the error names, body
  const tool = (parameters, more = {}) => ({ type: 'function', function: { name: 'f', parameters, ...more } });
  const schema = (s, more = {}) => ({ response_format: { type: 'json_schema', json_schema: { name: 'x', schema: s, ...more } } });
  const rows = [
    ['modalities', { modalities: ['text', 'audio'] }],
    ['modalities', { modalities: 'text' }],
    ['audio', { audio: { voice: 'alloy', format: 'wav' } }],
    ['web_search_options', { web_search_options: {} }],
    ['web_search_options', { web_search_options: { search_context_size: 'low' } }],
    ['functions', { functions: [{ name: 'f' }] }],
    ['user', { user: 5 }],
    ['metadata', { metadata: 'x' }],
    ['store', { store: 'yes' }],
    ['prompt_cache_key', { prompt_cache_key: {} }],
    ['prompt_cache_retention', { prompt_cache_retention: 24 }],
    ['service_tier', { service_tier: 1 }],
    ['safety_identifier', { safety_identifier: [] }],
    ['verbosity', { verbosity: 3 }],
    ['prediction', { prediction: 'Hello' }],
    ['prediction.type', { prediction: { type: 'guess' } }],
    ['reasoning_effort', { reasoning_effort: 3 }],
    ['parallel_tool_calls', { parallel_tool_calls: 'yes', tools: [tool({})] }],
    ['tools[0].function.strict', { tools: [tool({}, { strict: 'yes' })] }],
    ['tools[0].function.parameters.properties.a', { tools: [tool({ type: 'object', properties: { a: { not: {} } } }, { strict: true })] }],
    ['tools[0].type', { tools: [{ type: 'custom', custom: { name: 'x' } }] }],
    ['tool_choice', { tool_choice: 'required' }],
    ['tool_choice.function.name', { tools: [tool({})], tool_choice: { type: 'function', function: { name: 'g' } } }],
    ['tool_choice.allowed_tools', { tools: [tool({})], tool_choice: { type: 'allowed_tools' } }],
    ['tool_choice.allowed_tools.mode', { tools: [tool({})], tool_choice: { type: 'allowed_tools', allowed_tools: { mode: 'some', tools: [] } } }],
    ['tool_choice.allowed_tools.tools[0].function.name',
      { tools: [tool({})], tool_choice: { type: 'allowed_tools', allowed_tools: { mode: 'auto', tools: [{ type: 'function', function: { name: 'g' } }] } } }],
    ['messages[1].tool_calls[0].function.name', { messages: [...hi, { role: 'assistant', tool_calls: [{ function: { arguments: '{}' } }] }] }],
    ['messages[1].tool_calls[0].function.arguments', { messages: [...hi, { role: 'assistant', tool_calls: [{ function: { name: 'f', arguments: 5 } }] }] }],
    ['messages[1].reasoning_content', { messages: [...hi, { role: 'assistant', content: 'x', reasoning_content: 5 }] }],
    ['messages[0].content[0].text', { messages: [{ role: 'user', content: [{ type: 'text', text: 5 }] }] }],
    ['messages[1].function_call', { messages: [...hi, { role: 'assistant', content: 'x', function_call: { name: 'f' } }] }],
    ['messages', { messages: [...hi, { role: 'assistant', content: 'a' }, { role: 'assistant', content: 'b' }] }],
    ['response_format', { response_format: 'json' }],
    ['response_format.type', { response_format: { type: 'yaml' } }],
    ['response_format.json_schema', { response_format: { type: 'json_schema', json_schema: 5 } }],
    ['response_format.json_schema.strict', schema({}, { strict: 'yes' })],
    ['response_format.json_schema.schema', schema('x')],
    ["response_format.json_schema.schema.properties.a: 'not'", schema({ type: 'object', properties: { a: { not: { type: 'string' } } } })],
    ["'multipleOf'", schema({ type: 'object', properties: { a: { type: 'number', multipleOf: 0.5 } } })],
    ["'uniqueItems'", schema({ type: 'array', uniqueItems: true })],
    ["'pattern'", schema({ type: 'string', pattern: '^(?!a)b$' })],
    ["'if'", schema({ if: {}, then: {} })],
    ["'$ref'", schema({ $ref: 'https://example.com/schema.json' })],
    ["'required'", schema({ type: 'object', properties: {}, required: ['a'] })],
    ['logprobs', { top_logprobs: 3 }],
    ["'n'", { n: 0 }],
    ['stream_options', { stream_options: 5 }],
    ['chat_template_kwargs.enable_thinking', { chat_template_kwargs: { enable_thinking: 'yes' } }],
    ['grammar', { grammar: 'root ::= "a"', tools: [tool({})] }],
    ['continue_final_message', { continue_final_message: 'maybe' }],
    ["continues \"", { ...schema({ type: 'object' }), messages: [...hi, { role: 'assistant', content: 'Once upon' }] }],
  ];
  it(`refuses wrong inputs by name (${rows.length})`, async () => {
    for (const [names, extra] of rows) {
      const { status, json } = await send(server, CHAT, { messages: hi, max_tokens: 1, ...extra });
      assert.equal(status, 400, `${JSON.stringify(extra)}: ${JSON.stringify(json)}`);
      assert.equal(json.error.type, 'invalid_request_error');
      assert.ok(json.error.message.includes(names) || json.error.param === names, `${names}: ${JSON.stringify(json.error)}`);
    }
    assert.equal((await ask('Still here.')).choices[0].message.content, 'Still here.');
  });
});

describe('chat with other templates', () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'kvasir-chat-'));
  after(() => rmSync(folder, { recursive: true }));

  it('tells what a template says, and where in it', async () => {
    const file = path.join(folder, 'strict.jinja');
    writeFileSync(file, "{%- for m in messages %}\n{%- if m.role == 'user' and m.content == 'no' %}\n{{- raise_exception('I do not like this') }}\n{%- endif %}\n{{- m.content }}\n{%- endfor %}\n");
    const server = await startServer({ args: tinyArgs('--chat-template-file', file) });
    try {
      const { status, json } = await send(server, CHAT, { messages: [{ role: 'user', content: 'no' }], max_tokens: 1 });
      assert.equal(status, 400);
      assert.match(json.error.message, /I do not like this \(line 3, column \d+ of the template\)/);
      const refused = await send(server, CHAT, { messages: [{ role: 'user', content: [image] }], max_tokens: 1 });
      assert.equal(refused.status, 400);
      assert.match(refused.json.error.message, /messages\[0\]\.content\[0\].*--on-image placeholder/);
    } finally {
      await server.stop();
    }
  });
});

describe('pages of other origins', () => {
  it('may chat from this machine only, and never reach admin paths', async () => {
    const server = await startServer({ args: tinyArgs() });
    try {
      const from = (origin, where, method = 'OPTIONS') => fetch(server.url + where, { method, headers: { origin, 'access-control-request-method': 'POST' } });
      const allowed = (response) => response.headers.get('access-control-allow-origin');
      assert.equal(allowed(await from('http://localhost:3000', CHAT)), 'http://localhost:3000');
      assert.equal(allowed(await from('https://example.com', CHAT)), null);
      for (const where of ['/kvasir/cache', '/kvasir/why', '/kvasir/explain'])
        for (const origin of ['http://localhost:3000', 'https://example.com']) {
          assert.equal(allowed(await from(origin, where)), null, `${where} from ${origin}`);
          assert.equal(allowed(await from(origin, where, 'GET')), null, `${where} from ${origin}`);
        }
    } finally {
      await server.stop();
    }
  });
});
