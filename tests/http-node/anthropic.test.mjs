// Anthropic's official client against kvasir: messages whole and streamed, tools, thinking, token counts, the cache in
// `usage`, errors, and what coding agents send. Answers are played (--test-sampler), so that any text can come back
// through a real template; where a grammar must hold, a tiny model answers by itself.
import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { jsonSchemaOutputFormat } from '@anthropic-ai/sdk/helpers/json-schema';
import { fake, model, root, startServer } from './server.mjs';
import { post } from './sse.mjs';

const template = path.join(root, 'build', 'engine', 'source', 'models', 'templates', 'Qwen-Qwen3-0.6B.jinja');
const noTemplate = existsSync(template) ? false : `${template} is not there (scripts/setup.sh)`;
const base = ['-c', '16384', '-np', '2', '-kvu', '--test-sampler', '--chat-template-file', template];
const fakeArgs = (...more) => ['--test-fake', fake || 'full', ...base, ...more];

const folder = mkdtempSync(path.join(os.tmpdir(), 'kvasir-anthropic-'));
const started = [];
async function start(args) {
  const server = await startServer({ args });
  started.push(server);
  return server;
}
after(async () => {
  for (const server of started) await server.stop();
  rmSync(folder, { recursive: true });
});

const clientOf = (server, more = {}) => new Anthropic({ baseURL: server.url, apiKey: 'unused', maxRetries: 0, ...more });
const prompt = (usage) => usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens;
const hello = { model: 'any', max_tokens: 200, messages: [{ role: 'user', content: 'Hello' }] };
const say = (text, more = {}) => ({ ...hello, kvasir: { play: text }, ...more });
const tools = [
  { name: 'get_time', description: 'The time in a city', input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } },
  { name: 'get_date', input_schema: { type: 'object', properties: {} } },
];
const thought = '<think>\nLet me see.\n</think>\n\n';
const call = (city) => `<tool_call>\n{"name": "get_time", "arguments": {"city": "${city}"}}\n</tool_call>`;

/** The raw events of a stream: [{ event, data }]. */
async function rawEvents(server, body) {
  const response = await post(`${server.url}/v1/messages`, { ...body, stream: true });
  assert.equal(response.status, 200);
  assert.match(response.headers.get('content-type'), /^text\/event-stream/);
  return (await response.text()).split('\n\n').filter(Boolean).map((block) => {
    const [, event, data] = /^event: (\S+)\ndata: (.*)$/.exec(block) ?? assert.fail(block);
    assert.equal(JSON.parse(data).type, event);
    return { event, data: JSON.parse(data) };
  });
}

describe('the Anthropic client', { skip: noTemplate }, () => {
  let server;
  let client;
  before(async () => {
    server = await start(fakeArgs());
    client = clientOf(server);
  });

  test('gets a message', async () => {
    const m = await client.messages.create(say(' Good day.'));
    assert.equal(m.type, 'message');
    assert.equal(m.role, 'assistant');
    assert.match(m.id, /^msg_\w+$/);
    assert.match(m._request_id, /^req_/);
    assert.deepEqual(m.content.map((b) => b.type), ['text']);
    assert.match(m.content[0].text, /Good day\.$/);
    assert.equal(m.stop_reason, 'end_turn');
    assert.equal(m.stop_sequence, null);
    assert.ok(m.usage.output_tokens > 5);
    // All that the client's type promises.
    assert.deepEqual(Object.keys(m.usage).sort(), ['cache_creation', 'cache_creation_input_tokens', 'cache_read_input_tokens',
      'inference_geo', 'input_tokens', 'output_tokens', 'output_tokens_details', 'server_tool_use', 'service_tier', 'speed']);
    assert.equal(m.kvasir.miss.reason, 'empty');
  });

  test('gets the same streamed', async () => {
    const body = say(`${thought}Sure.${call('Rome')}\n${call('Oslo')}`, { tools, tool_choice: { type: 'auto', disable_parallel_tool_use: false } });
    const whole = await client.messages.create(body);
    const stream = client.messages.stream(body);
    const seen = { text: '', thinking: '', signature: '', json: [] };
    stream.on('text', (t) => { seen.text += t; });
    stream.on('thinking', (t) => { seen.thinking += t; });
    stream.on('signature', (s) => { seen.signature = s; });
    stream.on('contentBlock', (b) => { if (b.type === 'tool_use') seen.json.push(b.input); });
    const streamed = await stream.finalMessage();
    const plain = (m) => m.content.map(({ id, ...rest }) => rest);
    assert.deepEqual(plain(streamed), plain(whole));
    assert.deepEqual(whole.content.map((b) => b.type), ['thinking', 'text', 'tool_use', 'tool_use']);
    assert.deepEqual(seen.json, [{ city: 'Rome' }, { city: 'Oslo' }]);
    assert.match(seen.thinking, /^Let me see\./);
    assert.equal(seen.text, 'Sure.');
    assert.equal(seen.signature, whole.content[0].signature);
    assert.ok(seen.signature.length > 10);
    assert.equal(streamed.stop_reason, 'tool_use');
    assert.equal(whole.stop_reason, 'tool_use');
    assert.equal(new Set(whole.content.slice(2).map((b) => b.id)).size, 2);
    assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
    assert.deepEqual(streamed.usage.output_tokens_details, whole.usage.output_tokens_details);
    assert.ok(whole.usage.output_tokens_details.thinking_tokens > 10);
  });

  test('sees all events in their order', async () => {
    const events = await rawEvents(server, say(`${thought}Sure.${call('Rome')}`, { tools }));
    const names = events.map((e) => e.event).filter((e, i, all) => e !== 'ping' && !(e === 'content_block_delta' && all[i - 1] === e));
    const block = ['content_block_start', 'content_block_delta', 'content_block_stop'];
    assert.deepEqual(names, ['message_start', ...block, ...block, ...block, 'message_delta', 'message_stop']);
    const starts = events.filter((e) => e.event === 'content_block_start').map((e) => e.data);
    assert.deepEqual(starts.map((s) => [s.index, s.content_block.type]), [[0, 'thinking'], [1, 'text'], [2, 'tool_use']]);
    assert.deepEqual(events.filter((e) => e.event === 'content_block_stop').map((e) => e.data.index), [0, 1, 2]);
    const kinds = [...new Set(events.filter((e) => e.event === 'content_block_delta').map((e) => `${e.data.index} ${e.data.delta.type}`))];
    assert.deepEqual(kinds, ['0 thinking_delta', '0 signature_delta', '1 text_delta', '2 input_json_delta']);
    const { message } = events[0].data;
    assert.deepEqual([message.content, message.stop_reason, message.stop_sequence], [[], null, null]);
    const end = events.at(-2).data;
    assert.equal(end.delta.stop_reason, 'tool_use');
    for (const key of ['input_tokens', 'cache_read_input_tokens', 'cache_creation_input_tokens'])
      assert.equal(end.usage[key], message.usage[key], key);
    assert.ok(end.usage.output_tokens > 10);
    assert.ok('computed' in end.kvasir);
  });

  test('counts as usage does, and reads the next turn from the cache', async () => {
    const text = 'A long story. '.repeat(30);
    const body = { ...hello, system: [{ type: 'text', text }], tools };
    const { input_tokens: counted, ...rest } = await client.messages.countTokens({ model: 'any', system: body.system, tools, messages: hello.messages });
    assert.deepEqual(Object.keys(rest).filter((k) => !k.startsWith('_')), []);
    const first = await client.messages.create({ ...body, kvasir: { play: `${thought}${call('Rome')}` } });
    assert.equal(prompt(first.usage), counted);
    assert.ok(first.usage.cache_creation_input_tokens > 400, JSON.stringify(first.usage));
    const { ephemeral_5m_input_tokens: short, ephemeral_1h_input_tokens: long } = first.usage.cache_creation;
    assert.equal(short + long, first.usage.cache_creation_input_tokens);

    const use = first.content.find((b) => b.type === 'tool_use');
    assert.deepEqual(use.input, { city: 'Rome' });
    const messages = [...hello.messages, { role: 'assistant', content: first.content },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: [{ type: 'text', text: '12:00' }] }] }];
    const second = await client.messages.create({ ...body, messages, kvasir: { play: 'It is noon.' } });
    assert.equal(second.stop_reason, 'end_turn');
    assert.ok(second.usage.cache_read_input_tokens >= counted - 1, JSON.stringify(second.usage));
    assert.ok(prompt(second.usage) > prompt(first.usage));
    assert.equal(second.usage.cache_read_input_tokens,
      second.kvasir.cached.engine + second.kvasir.cached.ram + second.kvasir.cached.disk);
    const again = await client.messages.create({ ...body, messages, kvasir: { play: 'It is noon.' } });
    assert.equal(again.usage.cache_read_input_tokens, prompt(again.usage) - 1);
    assert.deepEqual([again.usage.input_tokens, again.usage.cache_creation_input_tokens], [1, 0]);
    const uncached = await client.messages.create({ ...body, messages, cache_prompt: false, kvasir: { play: 'x' } });
    assert.deepEqual([uncached.usage.cache_read_input_tokens, uncached.usage.cache_creation_input_tokens], [0, 0]);
    assert.equal(prompt(uncached.usage), prompt(again.usage));
  });

  test('metadata is no reason to compute anything again', async () => {
    const body = say('x', { system: 'Metadata. '.repeat(20) });
    await client.messages.create({ ...body, metadata: { user_id: '{"device":"a","session":"1"}' } });
    const other = await client.messages.create({ ...body, metadata: { user_id: '{"device":"b","session":"2"}' }, service_tier: 'auto' });
    assert.equal(other.usage.cache_read_input_tokens, prompt(other.usage) - 1);
  });

  test('scopes and salts divide the cache, and are found again', async () => {
    const body = say('x', { system: 'Scopes. '.repeat(40) });
    const read = async (more, headers) => (await client.messages.create({ ...body, ...more }, { headers })).usage.cache_read_input_tokens;
    assert.ok(await read() < 40 && await read() > 300); // the template's first words were there
    const scope = { 'X-Kvasir-Scope': 'eu' };
    assert.ok(await read({}, scope) === 0 && await read({}, scope) > 300);
    const salt = { cache_salt: 'pepper' };
    assert.ok(await read(salt) === 0 && await read(salt) > 300 && await read(salt, scope) === 0);
    const counted = await client.messages.countTokens({ model: 'any', messages: body.messages, system: body.system });
    assert.equal(await read(), counted.input_tokens - 1);
  });

  test('stops where it is told to', async () => {
    const word = await client.messages.create(say('one two END three', { stop_sequences: ['###', 'END'] }));
    assert.equal(word.stop_reason, 'stop_sequence');
    assert.equal(word.stop_sequence, 'END');
    assert.match(word.content[0].text, /one two $/);
    const length = await client.messages.create(say('one two three four', { max_tokens: 4 }));
    assert.equal(length.stop_reason, 'max_tokens');
    assert.equal(length.usage.output_tokens, 4);
    const nothing = await client.messages.create({ ...hello, max_tokens: 0, system: 'Warm. '.repeat(40) });
    assert.deepEqual(nothing.content, []);
    assert.equal(nothing.stop_reason, 'max_tokens');
    assert.equal(nothing.usage.output_tokens, 0);
    const warm = await client.messages.create(say('x', { system: 'Warm. '.repeat(40) }));
    assert.ok(warm.usage.cache_read_input_tokens >= prompt(warm.usage) - 1);
    const full = await client.messages.create(say('y'.repeat(600), { system: 'x'.repeat(16000), max_tokens: 1000 }));
    assert.equal(full.stop_reason, 'model_context_window_exceeded');
    assert.ok(full.usage.output_tokens < 500);
    const broken = await client.messages.create(say(`${call('Rome').slice(0, 50)}`, { tools, max_tokens: 40 }));
    assert.equal(broken.stop_reason, 'max_tokens');
  });

  test('goes on where the assistant left off', async () => {
    const messages = [{ role: 'user', content: 'Name it' }, { role: 'assistant', content: 'The answer is (' }];
    const m = await client.messages.create(say('B)', { messages }));
    assert.equal(m.content[0].text, 'B)');
    const s = await client.messages.stream(say('B)', { messages })).finalMessage();
    assert.equal(s.content[0].text, 'B)');
  });

  test('thinking comes back as it was, told or not', async () => {
    const body = say(`${thought}Sure.${call('Rome')}`, { tools, thinking: { type: 'enabled', budget_tokens: 1024, display: 'omitted' } });
    const hidden = await client.messages.create(body);
    assert.equal(hidden.content[0].thinking, '');
    const streamed = await client.messages.stream(body).finalMessage();
    assert.deepEqual(streamed.content[0], hidden.content[0]);
    const shown = await client.messages.create({ ...body, thinking: { type: 'adaptive' } });
    assert.match(shown.content[0].thinking, /^Let me see\./);
    const next = (m, first = m.content[0]) => client.messages.countTokens({
      model: 'any', tools, messages: [...hello.messages, { role: 'assistant', content: [first, ...m.content.slice(1)] },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: m.content.at(-1).id, content: '12' }] }],
    });
    assert.equal((await next(hidden)).input_tokens, (await next(shown)).input_tokens);
    const foreign = { ...shown.content[0], signature: 'EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk' };
    assert.equal((await next(shown, foreign)).input_tokens, (await next(shown)).input_tokens);
    const redacted = { type: 'redacted_thinking', data: 'EmwKAhgBEgy3va3p' };
    assert.ok((await next(shown, redacted)).input_tokens < (await next(shown)).input_tokens);
    const off = await client.messages.countTokens({ model: 'any', messages: hello.messages, thinking: { type: 'disabled' } });
    const on = await client.messages.countTokens({ model: 'any', messages: hello.messages, thinking: { type: 'adaptive' } });
    assert.ok(off.input_tokens > on.input_tokens); // the template writes an empty thinking section
  });

  test('breakpoints of one hour are told apart', async () => {
    const block = (text, ttl) => ({ type: 'text', text, ...(ttl ? { cache_control: { type: 'ephemeral', ttl } } : {}) });
    const m = await client.messages.create(say('x', {
      system: [block('Breakpoints one. '.repeat(20), '1h'), block('Two. '.repeat(20), '5m')], cache_control: { type: 'ephemeral' },
    }));
    const { ephemeral_1h_input_tokens: hour, ephemeral_5m_input_tokens: minutes } = m.usage.cache_creation;
    assert.ok(hour >= 320 && hour < 380, `${hour}`); // a token is a byte here
    assert.ok(minutes >= 100, `${minutes}`);
    const marked = (ttl) => ({ ...tools[0], cache_control: { type: 'ephemeral', ttl } });
    const t = await client.messages.create(say('x', { system: 'Tools are marked.', tools: [marked('1h')] }));
    assert.ok(t.usage.cache_creation.ephemeral_1h_input_tokens > 300, JSON.stringify(t.usage));
  });

  test('documents, search results, tool errors and systems in the middle become text', async () => {
    const count = async (messages, more = {}) => (await client.messages.countTokens({ model: 'any', messages, ...more })).input_tokens;
    const user = (...content) => [{ role: 'user', content }];
    const text = (t) => ({ type: 'text', text: t });
    const doc = { type: 'document', title: 'T', context: 'C', source: { type: 'text', media_type: 'text/plain', data: 'Data' } };
    assert.equal(await count(user(doc)), await count(user(text('T\nC\nData'))));
    const nested = { type: 'document', source: { type: 'content', content: [text('a'), text('b')] } };
    assert.equal(await count(user(nested)), await count(user(text('a\nb'))));
    const found = { type: 'search_result', source: 'S', title: 'T', content: [text('x')] };
    assert.equal(await count(user(found)), await count(user(text('T\nS\nx'))));
    const result = (more) => [...user(text('a')), { role: 'assistant', content: [{ type: 'tool_use', id: 't1', name: 'get_date', input: {} }] },
      ...user({ type: 'tool_result', tool_use_id: 't1', ...more }, text('and?'))];
    assert.equal(await count(result({ content: 'no', is_error: true })), await count(result({ content: 'Error: no' })));
    assert.equal(await count(result({ content: [] })), await count(result({})));
    assert.ok(await count([...user(text('a')), { role: 'system', content: 'Be brief.' }]) > await count(user(text('a'))));
    assert.equal(await count([...user(text('a')), ...user(text('b'))]), await count(user(text('a'), text('b')))); // one turn
    assert.equal(await count(user(text('hi'))), await count([{ role: 'user', content: 'hi' }]));
    assert.equal(await count(user(text('hi')), { system: 'a\nb' }), await count(user(text('hi')), { system: [text('a'), text('b')] }));
  });

  test('the beta client, and fields that nobody knows', async () => {
    const m = await client.beta.messages.create(say('x', {
      betas: ['context-management-2025-06-27', 'never-heard-of-2031-01-01'],
      context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] },
      inference_geo: 'eu', speed: 'fast', diagnostics: { previous_message_id: null }, no_such_field: { a: [1] }, temperature: null, top_k: null,
    }));
    assert.deepEqual(m.context_management, { applied_edits: [] });
    const counted = await client.beta.messages.countTokens({ model: 'any', messages: hello.messages, context_management: { edits: [] } });
    assert.equal(counted.context_management.original_input_tokens, counted.input_tokens);
    for (const where of ['/messages', '/v1/v1/messages', '/v1/messages/', '/v1/messages?beta=true'])
      assert.equal((await post(server.url + where, say('x'))).status, 200, where);
  });

  test('errors are the client\'s classes', async () => {
    await assert.rejects(client.messages.create({ ...hello, max_tokens: 'many' }), (e) => {
      assert.ok(e instanceof Anthropic.BadRequestError);
      assert.equal(e.type, 'invalid_request_error');
      assert.match(e.error.error.message, /'max_tokens'/);
      assert.match(e.requestID, /^req_/);
      assert.equal(e.error.request_id, e.requestID);
      return true;
    });
    const long = { ...hello, messages: [{ role: 'user', content: 'word '.repeat(5000) }] };
    for (const stream of [false, true])
      await assert.rejects(client.messages.create({ ...long, stream }), (e) => {
        assert.ok(e instanceof Anthropic.BadRequestError);
        const [, n, most] = /prompt is too long: (\d+) tokens > (\d+) maximum/.exec(e.message);
        assert.ok(Number(n) > 25000);
        assert.equal(Number(most), 16383);
        return true;
      });
    await assert.rejects(client.messages.batches.create({ requests: [] }), Anthropic.NotFoundError);
    const get = await fetch(`${server.url}/v1/messages`);
    assert.equal(get.status, 405);
    assert.equal((await get.json()).type, 'error');
  });

  test('a body that is too large', async () => {
    const { port } = new URL(server.url);
    const answer = await new Promise((resolve, reject) => {
      const req = http.request({ port, method: 'POST', path: '/v1/messages', headers: { 'content-length': 2 ** 33 } }, (res) => {
        let text = '';
        res.on('data', (part) => { text += part; });
        res.on('end', () => { resolve({ status: res.statusCode, text }); req.destroy(); });
      });
      req.on('error', reject);
      req.flushHeaders();
    });
    assert.equal(answer.status, 413);
    assert.equal(JSON.parse(answer.text).error.type, 'request_too_large');
  });
});

describe('what Claude Code sends', { skip: noTemplate }, () => {
  let server;
  before(async () => { server = await start(fakeArgs('--plain-json')); });

  const body = (cch, messages) => ({
    model: 'claude-sonnet-4-5', max_tokens: 32000, stream: true, temperature: 1,
    system: [
      { type: 'text', text: `x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=${cch};` },
      { type: 'text', text: "You are Claude Code, Anthropic's official CLI for Claude.", cache_control: { type: 'ephemeral' } },
      { type: 'text', text: 'You are an interactive agent. '.repeat(40), cache_control: { type: 'ephemeral', scope: 'global' } },
    ],
    tools: [{ ...tools[0], strict: false, eager_input_streaming: true }, { ...tools[1], cache_control: { type: 'ephemeral' } }],
    tool_choice: null,
    metadata: { user_id: JSON.stringify({ device_id: 'd', account_uuid: '', session_id: 's' }) },
    thinking: { type: 'enabled', budget_tokens: 31999 },
    context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] },
    output_config: { effort: 'high' },
    messages,
  });
  const headers = {
    'anthropic-version': '2023-06-01', 'anthropic-dangerous-direct-browser-access': 'true', 'x-app': 'cli', 'x-stainless-lang': 'js',
    'anthropic-beta': 'claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27', authorization: 'Bearer x',
  };
  const user = (text, more = {}) => ({ role: 'user', content: [{ type: 'text', text: '<system-reminder>\nToday.\n</system-reminder>' }, { type: 'text', text, ...more }] });

  test('probes', async () => {
    assert.equal((await fetch(server.url, { method: 'HEAD' })).status, 200);
    const counted = await post(`${server.url}/v1/messages/count_tokens?beta=true`,
      { model: 'claude-haiku-4-5', messages: [{ role: 'user', content: 'foo' }], tools: [] }, headers);
    assert.equal(counted.status, 200);
    const quota = await post(`${server.url}/v1/messages?beta=true`,
      { model: 'claude-haiku-4-5', max_tokens: 1, messages: [{ role: 'user', content: 'quota' }], metadata: { user_id: 'u' } }, headers);
    assert.equal(quota.status, 200);
  });

  test('a turn with a tool, and the next one, whose signature in the system prompt is another', async () => {
    const ask = async (cch, messages, play) => {
      const response = await post(`${server.url}/v1/messages?beta=true`, { ...body(cch, messages), kvasir: { play } }, headers);
      assert.equal(response.status, 200, await response.clone().text());
      const text = await response.text();
      assert.ok(!text.includes('"kvasir"'), '--plain-json');
      const events = text.split('\n\n').filter(Boolean).map((e) => JSON.parse(e.slice(e.indexOf('data: ') + 6)));
      return { usage: events.at(-2).usage, events };
    };
    const first = await ask('5a0f1', [user('What time is it?', { cache_control: { type: 'ephemeral' } })], `${thought}${call('Rome')}`);
    assert.equal(first.events.at(-2).delta.stop_reason, 'tool_use');
    const id = first.events.find((e) => e.content_block?.type === 'tool_use').content_block.id;
    const signature = first.events.find((e) => e.delta?.type === 'signature_delta').delta.signature;
    const second = await ask('c0ffe', [user('What time is it?'),
      { role: 'assistant', content: [{ type: 'thinking', thinking: 'Let me see.\n', signature }, { type: 'tool_use', id, name: 'get_time', input: { city: 'Rome' }, caller: { type: 'direct' } }] },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: id, content: '12:00', cache_control: { type: 'ephemeral' } }] }], 'Noon.');
    assert.ok(second.usage.cache_read_input_tokens >= prompt(first.usage) - 2, JSON.stringify([first.usage, second.usage]));
  });
});

describe('keys, models and images', { skip: noTemplate }, () => {
  let server;
  const keys = path.join(folder, 'keys');
  const picture = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'iVBORw0KGgo=' } };
  before(async () => {
    writeFileSync(keys, 'sk-one\n', { mode: 0o600 });
    server = await start(fakeArgs('--api-key-file', keys, '--strict-model', '--alias', 'local,someone/local:q4', '--no-ui', '--on-image', 'placeholder'));
  });

  test('x-api-key and Bearer', async () => {
    const body = say('x', { model: 'local' });
    await clientOf(server, { apiKey: 'sk-one' }).messages.create(body);
    await clientOf(server, { apiKey: null, authToken: 'sk-one' }).messages.create(body);
    await assert.rejects(clientOf(server, { apiKey: 'sk-two' }).messages.create(body), (e) => {
      assert.ok(e instanceof Anthropic.AuthenticationError);
      assert.equal(e.type, 'authentication_error');
      return true;
    });
  });

  test('a model that is not there', async () => {
    await assert.rejects(clientOf(server, { apiKey: 'sk-one' }).messages.create(say('x', { model: 'claude-9' })), (e) => {
      assert.ok(e instanceof Anthropic.NotFoundError);
      assert.equal(e.type, 'not_found_error');
      return true;
    });
  });

  test('models by their names', async () => {
    const client = clientOf(server, { apiKey: 'sk-one' });
    const one = await client.models.retrieve('local');
    assert.equal(one.id, 'local');
    assert.equal(one.type, 'model');
    assert.equal(one.display_name, 'local');
    assert.equal(one.max_input_tokens, 16384);
    assert.equal(Date.parse(one.created_at) / 1000, one.created);
    assert.deepEqual(await client.models.retrieve('someone/local:q4'), one);
    const get = async (where) => (await fetch(`${server.url}${where}`, { headers: { 'x-api-key': 'sk-one' } })).json();
    assert.deepEqual(await get('/models/someone/local:q4'), one);
    assert.equal((await get('/v1/models/claude-9')).error.code, 'model_not_found');
    await assert.rejects(client.models.retrieve('claude-9'), (e) => {
      assert.ok(e instanceof Anthropic.NotFoundError);
      assert.equal(e.type, 'not_found_error');
      assert.match(e.message, /'claude-9'/);
      return true;
    });
    await assert.rejects(clientOf(server, { apiKey: 'sk-two' }).models.retrieve('local'), Anthropic.AuthenticationError);
  });

  test('without a page a server says by HEAD that it is there', async () => {
    assert.equal((await fetch(server.url)).status, 404);
    const response = await fetch(server.url, { method: 'HEAD' });
    assert.equal(response.status, 200);
    assert.match(response.headers.get('content-type'), /^text\/plain/);
  });

  test('an image is the same text each time', async () => {
    const count = async (content) => (await clientOf(server, { apiKey: 'sk-one' }).messages.countTokens({ model: 'local', messages: [{ role: 'user', content }] })).input_tokens;
    const other = { type: 'image', source: { type: 'url', url: 'http://localhost/a.png' } };
    assert.equal(await count([picture]), await count([other]));
    assert.equal(await count([picture]), await count([{ type: 'text', text: '[image]' }]));
  });
});

// ── a model that must follow a grammar ───────────────────────────────────────────────────────────────────────────────

const noTiny = noTemplate || (fake ? 'the fake engine has no grammars (KVASIR_TEST_FAKE)'
  : existsSync(model('tiny/llama.gguf')) ? false : 'the tiny models are not in build/models');

describe('grammars', { skip: noTiny }, () => {
  let client;
  before(async () => { client = clientOf(await start(['-m', model('tiny/llama.gguf'), '-t', '1', '-fa', 'off', ...base])); });
  const light = { type: 'object', properties: { colour: { type: 'string', enum: ['red', 'green'] }, on: { type: 'boolean' } }, required: ['colour', 'on'], additionalProperties: false };

  test('which tool is to be called is no part of the prompt', async () => {
    const count = async (more) => (await client.messages.countTokens({ model: 'any', messages: hello.messages, ...more })).input_tokens;
    for (const tool_choice of [{ type: 'tool', name: 'get_date' }, { type: 'any' }, { type: 'auto' }, { type: 'none' }])
      assert.equal(await count({ tools, tool_choice }), await count({ tools }), JSON.stringify(tool_choice));
  });

  test('an answer in a schema', async () => {
    const m = await client.messages.parse({ ...hello, thinking: { type: 'disabled' }, output_config: { format: jsonSchemaOutputFormat(light) } });
    assert.deepEqual(Object.keys(m.parsed_output).sort(), ['colour', 'on'], JSON.stringify(m));
  });

  test('a schema that cannot be followed', async () => {
    const schema = { type: 'object', properties: { a: { type: 'string', pattern: '(?=x)y' } } };
    for (const more of [{ output_config: { format: { type: 'json_schema', schema } } }, { output_format: { type: 'json_schema', schema } }])
      await assert.rejects(client.messages.create({ ...hello, ...more }), (e) => {
        assert.ok(e instanceof Anthropic.BadRequestError);
        assert.match(e.message, new RegExp(Object.keys(more)[0]));
        assert.doesNotMatch(e.message, /response_format/);
        return true;
      });
  });
});

// ── wrong bodies ─────────────────────────────────────────────────────────────────────────────────────────────────────

const block = (b) => ({ messages: [{ role: 'user', content: [b] }] });
const said = (b) => ({ messages: [...hello.messages, { role: 'assistant', content: [b] }, ...hello.messages] });
const marked = { type: 'text', text: 'x', cache_control: { type: 'ephemeral' } };
const tool = (t) => ({ tools: [t] });
const schema = { type: 'object' };

/** [what is wrong with a good body, what the message must say] */
const wrong = [
  ['[1]', /object/],
  ['{"model":', /line|JSON|premature/i],
  [{ max_tokens: undefined }, /'max_tokens' is required/],
  [{ max_tokens: -1 }, /'max_tokens'/],
  [{ max_tokens: 1.5 }, /'max_tokens'/],
  [{ model: 3 }, /'model'/],
  [{ messages: undefined }, /'messages' is required/],
  [{ messages: [] }, /'messages'/],
  [{ messages: 'hi' }, /'messages' must be an array/],
  [{ messages: ['hi'] }, /'messages\[0\]' must be an object/],
  [{ messages: [{ content: 'hi' }] }, /'messages\[0\]\.role' is required/],
  [{ messages: [{ role: 'tool', content: 'hi' }] }, /'messages\[0\]\.role'/],
  [{ messages: [{ role: 'user' }] }, /'messages\[0\]\.content' is required/],
  [{ messages: [{ role: 'user', content: 7 }] }, /'messages\[0\]\.content'/],
  [block('hi'), /'messages\[0\]\.content\[0\]' must be an object/],
  [block({ text: 'hi' }), /'messages\[0\]\.content\[0\]\.type' is required/],
  [block({ type: 'text' }), /'messages\[0\]\.content\[0\]\.text' is required/],
  [block({ type: 'text', text: 1 }), /\.text' must be a string/],
  [block({ type: 'hologram' }), /hologram/],
  [block({ type: 'image', source: { type: 'base64', media_type: 'image/png', data: '' } }), /image input.*--on-image/],
  [block({ type: 'document', source: { type: 'base64', media_type: 'application/pdf', data: '' } }), /'messages\[0\]\.content\[0\]\.source' is a document.*base64/],
  [block({ type: 'document', source: { type: 'file', file_id: 'f' } }), /document.*file/],
  [block({ type: 'document' }), /source' is required/],
  [block({ type: 'document', citations: { enabled: true }, source: { type: 'text', data: 'x' } }), /citations/],
  [block({ type: 'search_result', source: 's', title: 't' }), /content' must be an array/],
  [block({ type: 'tool_use', id: 'a', name: 'b', input: {} }), /tool_use.*role "user"/],
  [block({ type: 'thinking', thinking: 'x' }), /thinking.*role "user"/],
  [block({ type: 'tool_result', content: 'x' }), /tool_use_id' is required/],
  [block({ type: 'tool_result', tool_use_id: 't', content: 3 }), /content' must be a string or an array/],
  [block({ type: 'tool_result', tool_use_id: 't', is_error: 'yes' }), /is_error' must be a boolean/],
  [block({ type: 'tool_result', tool_use_id: 't', content: [{ type: 'image', source: {} }] }), /content\[0\]' is image input/],
  [block({ type: 'web_search_tool_result', tool_use_id: 't', content: [] }), /web_search_tool_result/],
  [said({ type: 'server_tool_use', id: 'a', name: 'web_search', input: {} }), /server_tool_use/],
  [said({ type: 'tool_use', name: 'b', input: {} }), /'messages\[1\]\.content\[0\]\.id' is required/],
  [said({ type: 'tool_use', id: 'a', name: 'b', input: 'x' }), /input' must be an object/],
  [said({ type: 'thinking', signature: 'x' }), /thinking' is required/],
  [said({ type: 'redacted_thinking' }), /data' is required/],
  [said({ type: 'image', source: {} }), /image.*role "assistant"/],
  [{ system: 3 }, /'system'/],
  [{ system: [{ type: 'image' }] }, /'system\[0\]'/],
  [{ system: [{ type: 'text' }] }, /'system\[0\]\.text' is required/],
  [{ tools: {} }, /'tools' must be an array/],
  [tool('x'), /'tools\[0\]' must be an object/],
  [tool({ input_schema: schema }), /'tools\[0\]\.name' is required/],
  [tool({ name: '', input_schema: schema }), /'tools\[0\]\.name'/],
  [tool({ name: 'a' }), /'tools\[0\]\.input_schema' is required/],
  [tool({ name: 'a', input_schema: { type: 'array' } }), /input_schema\.type' must be "object"/],
  [tool({ name: 'web_search', type: 'web_search_20260318' }), /built-in tool "web_search_20260318"/],
  [tool({ name: 'bash', type: 'bash_20250124' }), /bash_20250124/],
  [{ tools: [{ name: 'a', input_schema: schema }, { name: 'a', input_schema: schema }] }, /'tools\[1\]\.name' is "a"/],
  [{ tool_choice: 'any' }, /'tool_choice' must be an object/],
  [{ tool_choice: { type: 'some' } }, /'tool_choice\.type'/],
  [{ tool_choice: { type: 'any' } }, /there are no 'tools'/],
  [{ tools, tool_choice: { type: 'tool' } }, /'tool_choice\.name' is required/],
  [{ tools, tool_choice: { type: 'tool', name: 'fly' } }, /"fly"/],
  [{ tools, tool_choice: { type: 'auto', disable_parallel_tool_use: 1 } }, /disable_parallel_tool_use/],
  [{ thinking: true }, /'thinking' must be an object/],
  [{ thinking: { type: 'hard' } }, /'thinking\.type'/],
  [{ thinking: { type: 'enabled' } }, /'thinking\.budget_tokens' is required/],
  [{ thinking: { type: 'enabled', budget_tokens: 0 } }, /'thinking\.budget_tokens'/],
  [{ thinking: { type: 'adaptive', display: 'loud' } }, /'thinking\.display'/],
  [{ stop_sequences: 'END' }, /'stop_sequences' must be an array/],
  [{ stop_sequences: ['a', 1] }, /'stop_sequences\[1\]'/],
  [{ stop_sequences: [''] }, /'stop_sequences\[0\]'/],
  [{ temperature: 'hot' }, /'temperature'/],
  [{ top_p: [] }, /'top_p'/],
  [{ top_k: 2.5 }, /'top_k'/],
  [{ stream: 'yes' }, /'stream'/],
  [{ metadata: 'me' }, /'metadata'/],
  [{ metadata: { user_id: 4 } }, /'metadata\.user_id'/],
  [{ output_config: { effort: 'none' } }, /'output_config\.effort'/],
  [{ output_config: { format: { type: 'xml' } } }, /'output_config\.format\.type'/],
  [{ output_config: { format: { type: 'json_schema' } } }, /'output_config\.format\.schema'/],
  [{ container: 'c1' }, /'container'/],
  [{ mcp_servers: [{ type: 'url', url: 'http://x', name: 'x' }] }, /'mcp_servers'/],
  [{ cache_control: { type: 'forever' } }, /'cache_control\.type' must be "ephemeral"/],
  [block({ ...marked, cache_control: { type: 'ephemeral', ttl: '1d' } }), /'messages\[0\]\.content\[0\]\.cache_control\.ttl'/],
  [block({ ...marked, cache_control: 'ephemeral' }), /cache_control' must be an object/],
  [{ messages: [{ role: 'user', content: [marked, marked, marked, marked, marked] }] }, /content\[4\].*at most 4/],
  [{ system: [marked, marked], cache_control: { type: 'ephemeral' }, messages: [{ role: 'user', content: [marked, marked] }] }, /at most 4/],
  [{ context_management: 'all' }, /'context_management'/],
];

test(`${wrong.length} wrong bodies`, { skip: noTemplate }, async () => {
  const server = await start(fakeArgs());
  for (const [change, says] of wrong) {
    const body = typeof change === 'string' ? change : JSON.stringify({ ...hello, ...change });
    for (const where of ['/v1/messages', '/v1/messages/count_tokens']) {
      const response = await post(server.url + where, body);
      const text = await response.text();
      if (where.endsWith('tokens') && typeof change !== 'string' && 'max_tokens' in change && change.max_tokens === undefined) {
        assert.equal(response.status, 200);
        continue;
      }
      assert.equal(response.status, 400, `${body} ${text}`);
      const json = JSON.parse(text);
      assert.equal(json.type, 'error', body);
      assert.equal(json.error.type, 'invalid_request_error', body);
      assert.match(json.error.message, says, body);
      assert.equal(json.request_id, response.headers.get('request-id'));
    }
  }
  assert.equal((await post(`${server.url}/v1/messages`, say('x'))).status, 200);
});
