// The Responses API with OpenAI's own client: items, events, tools, reasoning, stored conversations and their tokens.
//
// Answers are played (--test-sampler) on a tiny model whose tokens are bytes, through templates of real models.
import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import OpenAI from 'openai';
import { args, generator, words } from './scenario.mjs';
import { fake, model, noRealModel, root, smollm2, startServer } from './server.mjs';
import { events, post } from './sse.mjs';

const skipAll = fake ? 'needs a template and a tokenizer' : existsSync(model('tiny/llama.gguf')) ? false : 'no tiny models';
const templates = path.join(root, 'build/engine/source/models/templates');
const template = (name) => ['--chat-template-file', path.join(templates, name)];
const noTemplates = existsSync(templates) ? false : 'the engine has no source beside it, and so no templates';

const folder = mkdtempSync(path.join(os.tmpdir(), 'kvasir-responses-'));
after(() => rmSync(folder, { recursive: true }));
const fresh = () => mkdtempSync(path.join(folder, 'state-'));

const start = (...more) => startServer({ args: args('full', '--state-dir', fresh(), ...more) });
const clientOf = (server, apiKey = 'unused') => new OpenAI({ baseURL: `${server.url}/v1`, apiKey, maxRetries: 0 });
const play = (text, more = {}) => ({ model: 'any', kvasir: { play: text }, ...more });

/** All events of a stream, checked for what every stream must be. */
async function collect(stream) {
  const list = [];
  for await (const event of stream) list.push(event);
  list.forEach((e, i) => assert.equal(e.sequence_number, i, e.type));
  assert.deepEqual(list.slice(0, 2).map((e) => e.type), ['response.created', 'response.in_progress']);
  assert.equal(list[0].response.status, 'in_progress');
  assert.deepEqual(list[0].response.output, []);
  return list;
}
/** Their types, a run of the same one once. */
const kindsOf = (list) => list.map((e) => e.type.replace('response.', '')).filter((t, i, all) => t !== all[i - 1]);
const joined = (list, type) => list.filter((e) => e.type === type).map((e) => e.delta).join('');
const usageOf = (r) => ({ prompt: r.usage.input_tokens, cached: r.usage.input_tokens_details.cached_tokens });

/** The error that `call` is refused with. */
async function refused(call, status, word) {
  const error = await call.then((r) => assert.fail(`not refused: ${JSON.stringify(r)}`), (e) => e);
  assert.equal(error.status, status, `${error}`);
  if (word) assert.ok(`${error.message} ${error.param}`.includes(word), `${word} is not in: ${error.message}`);
  return error;
}

describe('responses', { skip: skipAll }, () => {
  let server, client;
  before(async () => {
    server = await start();
    client = clientOf(server);
  });
  after(() => server.stop());

  test('a text makes a response', async () => {
    const r = await client.responses.create(play('Hello.', { input: 'hi', instructions: 'Be short.', metadata: { a: 'b' }, user: 'u' }));
    assert.equal(r.object, 'response');
    assert.match(r.id, /^resp_/);
    assert.equal(r.status, 'completed');
    assert.equal(r.output_text, 'Hello.');
    assert.equal(r.output.length, 1);
    const [item] = r.output;
    assert.match(item.id, /^msg_/);
    assert.deepEqual({ ...item, id: 0 }, {
      id: 0, type: 'message', role: 'assistant', status: 'completed',
      content: [{ type: 'output_text', text: 'Hello.', annotations: [], logprobs: [] }],
    });
    assert.equal(r.instructions, 'Be short.');
    assert.deepEqual(r.metadata, { a: 'b' });
    assert.equal(r.error, null);
    assert.equal(r.incomplete_details, null);
    assert.equal(r.previous_response_id, null);
    assert.equal(r.parallel_tool_calls, true);
    assert.equal(r.tool_choice, 'auto');
    assert.deepEqual(r.tools, []);
    assert.equal(r.store, true);
    assert.deepEqual(r.text.format, { type: 'text' });
    assert.ok(Math.abs(r.completed_at - r.created_at) < 60);
    assert.equal(r.usage.output_tokens, 7);
    assert.equal(r.usage.total_tokens, r.usage.input_tokens + 7);
    assert.equal(r.usage.output_tokens_details.reasoning_tokens, 0);
    assert.equal(r.kvasir.computed + r.usage.input_tokens_details.cached_tokens, r.usage.input_tokens);
    assert.equal(r.usage.input_tokens_details.cache_write_tokens, r.kvasir.computed - 1);
    assert.equal(r.access_programs, null);
  });

  test('a stream has all events in order', async () => {
    const list = await collect(await client.responses.create(play('Hello there.', { input: 'hi', stream: true })));
    assert.deepEqual(kindsOf(list), ['created', 'in_progress', 'output_item.added', 'content_part.added', 'output_text.delta',
      'output_text.done', 'content_part.done', 'output_item.done', 'completed']);
    assert.equal(joined(list, 'response.output_text.delta'), 'Hello there.');
    const last = list.at(-1).response;
    assert.equal(last.id, list[0].response.id);
    assert.equal(last.status, 'completed');
    const item = last.output[0];
    for (const e of list.slice(2, -1)) {
      assert.equal(e.output_index, 0);
      assert.equal(e.item_id ?? e.item.id, item.id);
    }
    assert.deepEqual(list.find((e) => e.type === 'response.output_item.done').item, item);
    assert.deepEqual(list.find((e) => e.type === 'response.content_part.done').part, item.content[0]);
    assert.equal(list.find((e) => e.type === 'response.output_text.done').text, 'Hello there.');
    assert.ok(last.kvasir);
    assert.deepEqual((await client.responses.retrieve(last.id)).output, last.output);
  });

  test('each event has its name on the wire, and nothing comes after the last', async () => {
    const response = await fetch(`${server.url}/v1/responses`, { method: 'POST', body: JSON.stringify(play('Hi.', { input: 'hi', stream: true })) });
    assert.match(response.headers.get('content-type'), /^text\/event-stream/);
    const blocks = (await response.text()).trimEnd().split('\n\n');
    for (const block of blocks) {
      const [, name, data] = /^event: (\S+)\ndata: (.*)$/.exec(block);
      assert.equal(JSON.parse(data).type, name);
    }
    assert.match(blocks.at(-1), /^event: response\.completed\n/);
  });

  test('the client\'s own stream puts it together', async () => {
    const stream = client.responses.stream(play('One two three.', { input: 'count' }));
    let text = '';
    stream.on('response.output_text.delta', (e) => { text += e.delta; });
    const final = await stream.finalResponse();
    assert.equal(text, 'One two three.');
    assert.equal(final.output[0].content[0].text, 'One two three.');
    assert.equal(final.status, 'completed');
  });

  test('what is cut off is incomplete', async () => {
    const request = play('A long answer.', { input: 'hi', max_output_tokens: 6 });
    const r = await client.responses.create(request);
    assert.equal(r.status, 'incomplete');
    assert.deepEqual(r.incomplete_details, { reason: 'max_output_tokens' });
    assert.equal(r.output[0].status, 'incomplete');
    assert.equal(r.output_text, 'A long');
    assert.equal(r.max_output_tokens, 6);
    assert.equal(r.completed_at, null);
    const list = await collect(await client.responses.create({ ...request, stream: true }));
    assert.equal(list.at(-1).type, 'response.incomplete');
    assert.deepEqual(list.at(-1).response.output[0].content, r.output[0].content);
    const none = await client.responses.create(play('', { input: 'say nothing' }));
    assert.equal(none.output.length, 1);
    assert.equal(none.output_text, '');
  });

  test('every way to write the same input is the same prompt', async () => {
    const count = async (input, more = {}) => (await client.responses.inputTokens.count({ model: 'any', input, ...more })).input_tokens;
    const text = await count('hello');
    for (const input of [
      [{ role: 'user', content: 'hello' }],
      [{ type: 'message', role: 'user', content: 'hello' }],
      [{ type: 'message', role: 'user', content: [{ type: 'input_text', text: 'hello' }], status: null }],
    ]) assert.equal(await count(input), text);
    const system = await count('hello', { instructions: 'A\n\nB' });
    assert.equal(await count([{ role: 'developer', content: 'B' }, { role: 'user', content: 'hello' }], { instructions: 'A' }), system);
    assert.equal(await count([{ role: 'system', content: 'A' }, { role: 'developer', content: [{ type: 'input_text', text: 'B' }] }, { role: 'user', content: 'hello' }]), system);
    const r = await client.responses.create(play('x', { input: 'hello', instructions: 'A\n\nB' }));
    assert.equal(r.usage.input_tokens, system);
    const before = [{ role: 'user', content: 'hello' }, { role: 'assistant', content: 'yes' }, { role: 'user', content: 'and' }];
    const turns = await count(before);
    before[1] = { type: 'message', id: 'msg_1', role: 'assistant', status: 'completed', content: [{ type: 'output_text', text: 'yes', annotations: [] }] };
    assert.equal(await count(before), turns);
    before[1].content = [{ type: 'refusal', refusal: 'yes' }];
    assert.equal(await count(before), turns);
  });

  test('fields of other APIs and of OpenAI\'s service are taken', async () => {
    const r = await client.responses.create(play('x', {
      input: 'hi', seed: 4, top_k: 5, temperature: 0.5, top_p: 0.9, truncation: 'auto', service_tier: 'flex', store: false,
      prompt_cache_key: 'k', prompt_cache_retention: '24h', safety_identifier: 's', text: { verbosity: 'low' }, background: false,
      reasoning: { effort: 'low', summary: null }, include: ['web_search_call.action.sources'], stream_options: null, max_tool_calls: 3,
      conversation: null, prompt: null, metadata: null, tools: [], tool_choice: null, previous_response_id: null, instructions: null,
    }));
    assert.equal(r.temperature, 0.5);
    assert.equal(r.truncation, 'auto');
    assert.equal(r.prompt_cache_key, 'k');
    assert.equal(r.text.verbosity, 'low');
    assert.equal(r.reasoning.effort, 'low');
    assert.equal(r.store, false);
    await refused(client.responses.retrieve(r.id), 404, r.id);
  });

  test('token probabilities', async () => {
    const request = play('Hey', { input: 'hi', include: ['message.output_text.logprobs'], top_logprobs: 2 });
    const whole = await client.responses.create(request);
    const { logprobs } = whole.output[0].content[0];
    assert.deepEqual(logprobs.map((l) => l.token), ['H', 'e', 'y']);
    const own = await client.responses.create({ ...request, kvasir: {}, max_output_tokens: 5, ignore_eos: true, store: false });
    for (const l of own.output[0].content[0].logprobs) {
      assert.equal(l.top_logprobs.length, 2);
      assert.ok(typeof l.logprob === 'number' && Array.isArray(l.bytes));
    }
    const list = await collect(await client.responses.create({ ...request, stream: true }));
    const deltas = list.filter((e) => e.type === 'response.output_text.delta').flatMap((e) => e.logprobs);
    assert.deepEqual(deltas.map((l) => l.token), ['H', 'e', 'y']);
    assert.deepEqual(list.find((e) => e.type === 'response.output_text.done').logprobs, deltas);
    assert.deepEqual(list.at(-1).response.output[0].content[0].logprobs, deltas);
  });

  test('structured output', async () => {
    const schema = { type: 'object', properties: { color: { enum: ['red', 'blue'] } }, required: ['color'], additionalProperties: false };
    const format = { type: 'json_schema', name: 'color', strict: true, schema };
    const r = await client.responses.parse({ model: 'any', input: 'a color', temperature: 1, max_output_tokens: 300, text: { format }, reasoning: { effort: 'none' } });
    assert.ok(['red', 'blue'].includes(r.output_parsed.color), r.output_text);
    assert.deepEqual(r.text.format, format);
  });

  test('llama-server\'s telemetry', async () => {
    const response = await post(`${server.url}/responses`, { input: words(generator(), 600), max_output_tokens: 4, stream: true, timings_per_token: true, return_progress: true, ignore_eos: true });
    let progress = 0, timings = 0, last;
    for await (const { data } of events(response)) {
      last = JSON.parse(data);
      if (last.prompt_progress) {
        assert.equal(last.type, 'response.in_progress');
        progress++;
      }
      if (last.type === 'response.output_text.delta' && last.timings) timings++;
    }
    assert.ok(progress > 0 && timings > 0);
    assert.equal(last.timings.predicted_n, 4);
  });

  test('a stored response: items, pages, references, deletion', async () => {
    const input = [{ role: 'user', content: 'one' }, { role: 'assistant', content: 'two' }, { role: 'user', content: 'three' }];
    const a = await client.responses.create(play('four', { input }));
    const b = await client.responses.create(play('six', { input: 'five', previous_response_id: a.id }));
    assert.equal(b.previous_response_id, a.id);
    const texts = (items) => items.map((i) => i.content[0].text);
    const newest = await client.responses.inputItems.list(b.id);
    assert.deepEqual(texts(newest.data), ['five', 'four', 'three', 'two', 'one']);
    assert.ok(newest.data.every((i) => i.id && i.type === 'message'));
    assert.equal(newest.data[1].id, a.output[0].id);
    const all = [];
    for await (const item of client.responses.inputItems.list(b.id, { order: 'asc', limit: 2 })) all.push(item);
    assert.deepEqual(texts(all), ['one', 'two', 'three', 'four', 'five']);
    assert.deepEqual(texts((await client.responses.inputItems.list(a.id)).data), ['three', 'two', 'one']);

    const ref = { type: 'item_reference', id: a.output[0].id };
    const by = async (items) => (await client.responses.inputTokens.count({ model: 'any', input: items })).input_tokens;
    const again = [...input, { role: 'assistant', content: 'four' }, { role: 'user', content: 'x' }];
    assert.equal(await by([...input, ref, { role: 'user', content: 'x' }]), await by(again));
    assert.equal(await by([...input, { id: ref.id }, { role: 'user', content: 'x' }]), await by(again));
    await refused(client.responses.create(play('x', { input: [{ type: 'item_reference', id: 'msg_none' }] })), 404, 'input[0].id');

    assert.equal(JSON.stringify(await client.responses.retrieve(b.id)), JSON.stringify(b));
    const deleted = await (await fetch(`${server.url}/v1/responses/${a.id}`, { method: 'DELETE' })).json();
    assert.deepEqual(deleted, { id: a.id, object: 'response', deleted: true });
    await refused(client.responses.retrieve(a.id), 404, a.id);
    await refused(client.responses.delete(a.id), 404, a.id);
    await refused(client.responses.create(play('x', { input: 'x', previous_response_id: b.id })), 404, 'came before it');
    assert.deepEqual(texts((await client.responses.inputItems.list(b.id)).data), ['five']);
    await client.responses.delete(b.id);
  });

  test('of an item that is kept which is known of its kind', async () => {
    const junk = { junk: 'x'.repeat(10000) };
    const text = (type, text) => ({ type, text, ...junk });
    const given = [
      { id: 'u', role: 'user', content: [text('input_text', 'hi')], ...junk },
      { id: 'r', type: 'reasoning', summary: [text('summary_text', 's')], content: [text('reasoning_text', 't')], encrypted_content: 'e', ...junk },
      { id: 'a', type: 'message', role: 'assistant', phase: 'commentary', status: 'y'.repeat(10000),
        content: [text('output_text', 'so'), { type: 'refusal', refusal: 'no', ...junk }] },
      { id: 'f', type: 'function_call', name: 'f', namespace: 'n', call_id: 'c', arguments: '{}', status: 'completed', ...junk },
      { id: 'o', type: 'function_call_output', call_id: 'c', output: 'x', ...junk },
      { id: 'w', type: 'web_search_call', action: { type: 'search', query: 'q' }, ...junk },
      { id: 'i', type: 'image_generation_call', status: 'completed', result: 'z'.repeat(10000) },
      { id: 'z', role: 'user', content: 'go on' },
    ];
    const r = await client.responses.create(play('x', { input: given }));
    const { data } = await client.responses.inputItems.list(r.id, { order: 'asc' });
    assert.deepEqual(data, [
      { id: 'u', type: 'message', role: 'user', status: 'completed', content: [{ type: 'input_text', text: 'hi' }] },
      { id: 'r', type: 'reasoning', encrypted_content: 'e', summary: [{ type: 'summary_text', text: 's' }],
        content: [{ type: 'reasoning_text', text: 't' }] },
      { id: 'a', type: 'message', role: 'assistant', phase: 'commentary', status: 'completed',
        content: [{ type: 'output_text', text: 'so', annotations: [] }, { type: 'refusal', refusal: 'no' }] },
      { id: 'f', type: 'function_call', name: 'f', namespace: 'n', call_id: 'c', arguments: '{}', status: 'completed' },
      { id: 'o', type: 'function_call_output', call_id: 'c', output: 'x' },
      { id: 'w', type: 'web_search_call', action: { type: 'search', query: 'q' } },
      { id: 'i', type: 'image_generation_call', status: 'completed' },
      { id: 'z', type: 'message', role: 'user', status: 'completed', content: [{ type: 'input_text', text: 'go on' }] },
    ]);
    await refused(client.responses.create(play('x', { input: [{ id: 'x'.repeat(257), role: 'user', content: 'hi' }] })), 400, '257 bytes');
  });

  test('references: one item many times, of several responses, and not more than a body may have', async () => {
    const one = await start('--max-body', '1');
    try {
      const at = clientOf(one);
      const user = { role: 'user', content: 'hi' };
      const a = await at.responses.create(play('first', { input: [{ id: 'w', type: 'web_search_call' }, { id: 'same', role: 'user', content: 'old' }] }));
      const b = await at.responses.create(play('second', { input: [{ id: 'same', role: 'user', content: 'new' },
        { id: 'big', type: 'reasoning', encrypted_content: 'x'.repeat(600_000), summary: [] }] }));
      const list = async (input) => {
        const r = await at.responses.create(play('x', { input }));
        const page = await at.responses.inputItems.list(r.id, { order: 'asc', limit: 100 });
        return page.data.map((i) => i.content?.[0].text ?? i.id);
      };
      const ref = (id) => ({ type: 'item_reference', id });
      const mixed = [a.output[0].id, b.output[0].id, 'same', 'w', a.output[0].id].map(ref);
      assert.deepEqual(await list([...mixed, { ...user, id: 'u' }]), ['first', 'second', 'new', 'w', 'first', 'hi']);
      await at.responses.create(play('x', { input: [...Array(10000).fill(ref('w')), user] }));
      assert.equal((await list([ref('big'), user])).length, 2);
      const error = await refused(at.responses.create(play('x', { input: [user, ref('w'), ref('big'), ref('big')] })), 400, '1048576');
      assert.equal(error.param, 'input[3].id');
      assert.match(error.message, /are 1200\d\d\d bytes/);
      const missing = await refused(at.responses.create(play('x', { input: [ref('w'), user, ref('none'), ref('w')] })), 404, 'none');
      assert.equal(missing.param, 'input[2].id');
    } finally {
      await one.stop();
    }
  });

  test('cancel is for what runs in the background', async () => {
    const r = await client.responses.create(play('x', { input: 'x' }));
    await refused(client.responses.cancel(r.id), 400, 'background');
    await refused(client.responses.cancel('resp_none'), 404, 'resp_none');
    await refused(client.responses.create(play('x', { input: 'x', background: true })), 400, 'background');
  });

  test('the next turn reads all of this one from the cache; branches share it', async () => {
    const a = await client.responses.create(play('An answer of some length.', { input: words(generator(), 900), instructions: 'Be good.' }));
    const first = a.usage.input_tokens + 'An answer of some length.'.length;
    const next = (previous, input, text) => client.responses.create(play(text, { input, previous_response_id: previous, instructions: 'Be good.' }));
    const b = await next(a.id, 'go on', 'left');
    assert.equal(usageOf(b).cached, first);
    const [left, right, deep] = await Promise.all([next(a.id, 'LEFT', 'l'), next(a.id, 'RIGHT', 'r'), next(b.id, 'deeper', 'd')]);
    for (const r of [left, right]) assert.ok(usageOf(r).cached >= 896, JSON.stringify(r.kvasir));
    assert.ok(usageOf(deep).cached >= usageOf(left).cached);
    const texts = async (id) => (await client.responses.inputItems.list(id, { order: 'asc' })).data.slice(1).map((i) => i.content[0].text);
    assert.deepEqual(await texts(left.id), ['An answer of some length.', 'LEFT']);
    assert.deepEqual(await texts(right.id), ['An answer of some length.', 'RIGHT']);
    assert.deepEqual(await texts(deep.id), ['An answer of some length.', 'go on', 'left', 'deeper']);
    const later = await next(right.id, 'on', 'x');
    assert.ok(usageOf(later).cached >= usageOf(right).prompt);
    /* store: false reads a conversation and adds nothing to it */
    const aside = await client.responses.create(play('x', { input: 'aside', previous_response_id: a.id, instructions: 'Be good.', store: false }));
    assert.ok(usageOf(aside).cached >= 896);
    await refused(next(aside.id, 'x', 'x'), 404, 'previous_response_id');
  });

  test('an answer is continued without new input', async () => {
    const a = await client.responses.create(play('One two three', { input: 'count', max_output_tokens: 7 }));
    assert.equal(a.output_text, 'One two');
    const b = await client.responses.create(play(' three', { previous_response_id: a.id }));
    assert.equal(b.output_text, ' three');
  });

  test('wrong bodies', async () => {
    const rows = wrongBodies();
    assert.ok(rows.length >= 60, `${rows.length}`);
    for (const [body, word, status = 400] of rows) {
      const response = await post(`${server.url}/v1/responses`, body);
      const json = await response.json();
      const what = `${JSON.stringify(body)?.slice(0, 300)} → ${JSON.stringify(json)}`;
      assert.equal(response.status, status, what);
      assert.deepEqual(Object.keys(json), ['error'], what);
      assert.ok(json.error.message.length > 10 && 'param' in json.error && 'type' in json.error && 'code' in json.error, what);
      assert.ok(json.error.message.includes(word), `${word} is not in ${what}`);
      assert.ok(!/messages\[|max_tokens/.test(json.error.message), `chat's words in ${what}`);
    }
    const [where, more] = [`${server.url}/v1/responses`, (r) => [r.status, r.headers.get('allow') ?? '']];
    assert.equal(more(await fetch(where))[0], 405, 'a WebSocket would begin so');
    const r = await client.responses.create(play('x', { input: 'x' }));
    for (const [query, word] of [['limit=0', 'limit'], ['limit=x', 'limit'], ['limit=101', 'limit'], ['order=up', 'order'], ['after=msg_none', 'after']]) {
      const got = await fetch(`${where}/${r.id}/input_items?${query}`);
      assert.equal(got.status, 400, query);
      assert.equal((await got.json()).error.param, word);
    }
    assert.equal((await fetch(`${where}/${r.id}?stream=true`)).status, 400);
    for (const id of ['resp_x', '%00', '%27', '..', 'a'.repeat(3000)]) assert.ok([400, 404].includes((await fetch(`${where}/${id}`)).status), id);
    assert.equal((await fetch(`${server.url}/health`)).status, 200);
  });

  test('a prompt that is too long says so', async () => {
    const error = await refused(client.responses.create(play('x', { input: words(generator(), 9000), truncation: 'auto' })), 400, 'maximum context length');
    assert.equal(error.code, 'context_length_exceeded');
  });

  test('what a request itself makes impossible is found out in its stream, and is not told as a fault of the server', async () => {
    const { n_vocab } = (await (await fetch(`${server.url}/v1/models`)).json()).data[0].meta;
    const body = { input: 'hi', stream: true, max_output_tokens: 2, logit_bias: Array.from({ length: n_vocab }, (_, i) => [i, false]) };
    const response = await fetch(`${server.url}/v1/responses`, { method: 'POST', body: JSON.stringify(body) });
    assert.equal(response.status, 200);
    const list = (await response.text()).split('\n').filter((l) => l.startsWith('data: {')).map((l) => JSON.parse(l.slice(6)));
    const failed = list.find((e) => e.type === 'response.failed');
    assert.match(failed.response.error.message, /no token is left/);
    assert.equal(failed.response.error.code, 'invalid_prompt');
    assert.equal(list.at(-1).code, 'invalid_prompt');
  });

  test('a stream that waited for a model asleep tells of the error as an answer would', async () => {
    const sleeper = await start('--sleep-idle-seconds', '0.05', '--metrics');
    while (!/^kvasir_asleep 1$/m.test(await (await fetch(`${sleeper.url}/metrics`)).text())) continue;
    const response = await fetch(`${sleeper.url}/v1/responses`,
      { method: 'POST', body: JSON.stringify({ input: 'hi', stream: true, previous_response_id: 'resp_x' }) });
    assert.equal(response.status, 200);
    const event = JSON.parse((await response.text()).split('\n').findLast((l) => l.startsWith('data: {')).slice(6));
    assert.equal(event.type, 'error');
    for (const e of [event, event.error]) {
      assert.equal(e.code, 'previous_response_not_found');
      assert.equal(e.param, 'previous_response_id');
    }
    await sleeper.stop();
  });
});

function wrongBodies() {
  const input = (item) => ({ input: [item] });
  const user = (content) => input({ role: 'user', content });
  const ok = (more) => ({ input: 'hi', max_output_tokens: 1, ...more });
  const f = { type: 'function', name: 'f', parameters: {} };
  const call = { type: 'function_call', name: 'f', call_id: 'c', arguments: '{}' };
  return [
    ['', 'JSON'],
    ['{', 'JSON'],
    ['null', 'object'],
    ['[]', 'object'],
    [{}, 'input'],
    [{ input: null }, 'input'],
    [{ input: [] }, 'input'],
    [{ input: 5 }, 'input'],
    [{ input: {} }, 'input'],
    [{ messages: [{ role: 'user', content: 'x' }] }, 'use \'input\''],
    [{ input: ['x'] }, 'input[0]'],
    [input({}), 'input[0].type'],
    [input({ type: 7 }), 'input[0].type'],
    [input({ type: 'computer_call' }), 'computer_call'],
    [input({ role: 'robot', content: 'x' }), 'input[0].role'],
    [input({ type: 'message', content: 'x' }), 'input[0].role'],
    [input({ role: 'user' }), 'input[0].content'],
    [user(5), 'input[0].content'],
    [user(['x']), 'input[0].content[0]'],
    [user([{ text: 'x' }]), 'input[0].content[0].type'],
    [user([{ type: 'input_text' }]), 'input[0].content[0].text'],
    [user([{ type: 'input_text', text: 5 }]), 'input[0].content[0].text'],
    [user([{ type: 'nonsense', text: 'x' }]), 'nonsense'],
    [user([{ type: 'input_file', file_id: 'x' }]), 'input_file'],
    [user([{ type: 'input_audio' }]), 'input_audio'],
    [user([{ type: 'input_image' }]), 'image_url'],
    [user([{ type: 'input_image', file_id: 'f' }]), 'file_id'],
    [user([{ type: 'input_text', text: 'x' }, { type: 'input_image', image_url: 'data:image/png;base64,AA==' }]), 'input[0].content[1]'],
    [{ instructions: 'x', input: [{ role: 'user', content: 'x' }, { role: 'assistant', content: 'x' }, { role: 'user', content: [{ type: 'input_image', image_url: 'x' }] }] }, 'input[2].content'],
    [input({ ...call, name: undefined }), 'input[0].name'],
    [input({ ...call, name: '' }), 'input[0].name'],
    [input({ ...call, call_id: undefined }), 'input[0].call_id'],
    [input({ ...call, arguments: 5 }), 'input[0].arguments'],
    [input({ type: 'function_call_output', call_id: 'c', output: 'x' }), 'no tool call found'],
    [{ input: [call, { type: 'function_call_output', output: 'x' }] }, 'input[1].call_id'],
    [{ input: [call, { type: 'function_call_output', call_id: 'c' }] }, 'input[1].output'],
    [{ input: [call, { type: 'function_call_output', call_id: 'c', output: [{ type: 'x' }] }] }, 'input[1].output[0]'],
    [input(call), 'cannot be continued'],
    [input({ type: 'custom_tool_call', name: 'f', call_id: 'c' }), 'input[0].input'],
    [input({ type: 'reasoning', summary: 'x' }), 'input[0].summary'],
    [input({ type: 'reasoning', summary: [], content: [{}] }), 'input[0].content[0].text'],
    [input({ type: 'reasoning', summary: [] }), 'nothing that the model could read'],
    [input({ type: 'item_reference' }), 'input[0].id'],
    [ok({ instructions: ['x'] }), 'instructions'],
    [ok({ previous_response_id: 5 }), 'previous_response_id'],
    [ok({ previous_response_id: 'resp_none' }), 'resp_none', 404],
    [ok({ conversation: 'conv_1' }), 'conversation'],
    [ok({ prompt: { id: 'pmpt_1' } }), 'prompt'],
    [ok({ context_management: [{ type: 'compaction' }] }), 'context_management'],
    [ok({ response_format: { type: 'json_object' } }), 'use \'text.format\''],
    [ok({ background: true }), 'background'],
    [ok({ background: 'x' }), 'background'],
    [ok({ store: 'x' }), 'store'],
    [ok({ stream: 'x' }), 'stream'],
    [ok({ stream_options: true }), 'stream_options'],
    [ok({ stream_options: { include_obfuscation: 1 } }), 'include_obfuscation'],
    [ok({ max_output_tokens: 0 }), 'max_output_tokens'],
    [ok({ max_output_tokens: 'x' }), 'max_output_tokens'],
    [ok({ max_tool_calls: 0 }), 'max_tool_calls'],
    [ok({ temperature: 'hot' }), 'temperature'],
    [ok({ top_p: [] }), 'top_p'],
    [ok({ n: 2 }), "'n'"],
    [ok({ top_logprobs: 21 }), 'top_logprobs'],
    [ok({ include: 'x' }), 'include'],
    [ok({ include: ['x'] }), 'include[0]'],
    [ok({ metadata: 'x' }), 'metadata'],
    [ok({ metadata: { a: 1 } }), 'metadata.a'],
    [ok({ metadata: { a: 'x'.repeat(513) } }), 'metadata.a'],
    [ok({ metadata: Object.fromEntries(Array.from({ length: 17 }, (_, i) => [`k${i}`, 'v'])) }), 'metadata'],
    [ok({ user: 5 }), 'user'],
    [ok({ prompt_cache_key: [] }), 'prompt_cache_key'],
    [ok({ prompt_cache_retention: '1y' }), 'prompt_cache_retention'],
    [ok({ service_tier: 'x' }), 'service_tier'],
    [ok({ truncation: 'x' }), 'truncation'],
    [ok({ reasoning: 'high' }), 'reasoning'],
    [ok({ reasoning: { effort: 'huge' } }), 'reasoning.effort'],
    [ok({ reasoning: { summary: 'x' } }), 'reasoning.summary'],
    [ok({ text: 'x' }), 'text'],
    [ok({ text: { verbosity: 'x' } }), 'text.verbosity'],
    [ok({ text: { format: 'x' } }), 'text.format'],
    [ok({ text: { format: {} } }), 'text.format.type'],
    [ok({ text: { format: { type: 'xml' } } }), 'text.format.type'],
    [ok({ text: { format: { type: 'json_schema', name: 'x' } } }), 'text.format.schema'],
    [ok({ text: { format: { type: 'json_schema', name: 5, schema: {} } } }), 'text.format.name'],
    [ok({ text: { format: { type: 'json_schema', name: 'x', schema: { type: 'nonsense' } } } }), 'text.format.schema'],
    [ok({ tools: 'x' }), 'tools'],
    [ok({ tools: ['x'] }), 'tools[0]'],
    [ok({ tools: [{}] }), 'tools[0].type'],
    [ok({ tools: [{ type: 'function' }] }), 'tools[0].name'],
    [ok({ tools: [{ ...f, parameters: 'x' }] }), 'tools[0].parameters'],
    [ok({ tools: [{ ...f, description: 5 }] }), 'tools[0].description'],
    [ok({ tools: [f, { type: 'file_search' }] }), 'file_search'],
    [ok({ tools: [{ type: 'mcp', server_label: 'x' }] }), 'mcp'],
    [ok({ tools: [{ type: 'custom', name: 'x', format: 'y' }] }), 'tools[0].format'],
    [ok({ tools: [{ type: 'custom', name: 'x', format: { type: 'grammar', syntax: 'ebnf', definition: 'x' } }] }), 'syntax'],
    [ok({ tools: [{ type: 'namespace', name: 'x', tools: [{ type: 'function' }] }] }), 'tools[0].tools[0].name'],
    [ok({ tool_choice: 'required' }), 'tool_choice'],
    [ok({ tools: [f], tool_choice: 'sometimes' }), 'tool_choice'],
    [ok({ tools: [f], tool_choice: { type: 'function', name: 'g' } }), 'tool_choice.name'],
    [ok({ tools: [f], tool_choice: { type: 'web_search_preview' } }), 'web_search_preview'],
    [ok({ tools: [f], tool_choice: { type: 'allowed_tools', mode: 'x', tools: [f] } }), 'tool_choice.mode'],
    [ok({ tools: [f], tool_choice: { type: 'allowed_tools', mode: 'auto', tools: [] } }), 'tool_choice.tools'],
    [ok({ tools: [f], tool_choice: { type: 'allowed_tools', mode: 'auto', tools: [{ type: 'function', name: 'g' }] } }), 'tool_choice.tools[0].name'],
    [ok({ tools: [f], parallel_tool_calls: 'x' }), 'parallel_tool_calls'],
    [ok({ cache_salt: 5 }), 'cache_salt'],
  ];
}

const time = {
  type: 'function', name: 'get_time', description: 'the time', strict: true,
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false },
};
/** As templates write JSON: a blank after ':' and ','. */
const spaced = (v) => (v && typeof v === 'object' ? `{${Object.entries(v).map(([k, x]) => `"${k}": ${spaced(x)}`).join(', ')}}` : JSON.stringify(v));
const toolCall = (name, args) => `<tool_call>\n${spaced({ name, arguments: args })}\n</tool_call>`;

describe('responses with tools', { skip: skipAll || noTemplates }, () => {
  let server, client;
  before(async () => {
    server = await start(...template('Qwen-Qwen2.5-7B-Instruct.jinja'));
    client = clientOf(server);
  });
  after(() => server.stop());

  test('a function call and its way back', async () => {
    const request = play(toolCall('get_time', { city: 'Rome' }), { input: 'what time is it?', tools: [time] });
    const a = await client.responses.create(request);
    assert.equal(a.status, 'completed');
    const [call] = a.output;
    assert.equal(a.output.length, 1);
    assert.match(call.id, /^fc_/);
    assert.ok(call.call_id.length > 0);
    assert.deepEqual({ ...call, id: 0, call_id: 0 }, { id: 0, call_id: 0, type: 'function_call', name: 'get_time', status: 'completed', arguments: call.arguments });
    assert.deepEqual(JSON.parse(call.arguments), { city: 'Rome' });
    assert.deepEqual(a.tools, [time]);

    const list = await collect(await client.responses.create({ ...request, stream: true }));
    assert.deepEqual(kindsOf(list), ['created', 'in_progress', 'output_item.added', 'function_call_arguments.delta', 'function_call_arguments.done', 'output_item.done', 'completed']);
    assert.deepEqual(JSON.parse(joined(list, 'response.function_call_arguments.delta')), { city: 'Rome' });
    const added = list.find((e) => e.type === 'response.output_item.added').item;
    assert.equal(added.name, 'get_time');
    assert.equal(added.arguments, '');
    const done = list.find((e) => e.type === 'response.function_call_arguments.done');
    assert.equal(done.arguments, joined(list, 'response.function_call_arguments.delta'));
    assert.equal(done.name, 'get_time');

    const output = { type: 'function_call_output', call_id: call.call_id, output: '12:00' };
    const stored = await client.responses.create(play('Noon.', { previous_response_id: a.id, input: [output], tools: [time] }));
    assert.equal(stored.output_text, 'Noon.');
    assert.ok(usageOf(stored).cached >= a.usage.input_tokens + a.usage.output_tokens - 1, `${JSON.stringify(stored.usage)} after ${JSON.stringify(a.usage)}`);
    const carried = await client.responses.create(play('Noon.', {
      input: [{ role: 'user', content: 'what time is it?' }, ...a.output, { ...output, output: [{ type: 'input_text', text: '12:00' }] }], tools: [time], store: false,
    }));
    assert.equal(usageOf(carried).prompt, usageOf(stored).prompt);
    const items = (await client.responses.inputItems.list(stored.id, { order: 'asc' })).data;
    assert.deepEqual(items.map((i) => i.type), ['message', 'function_call', 'function_call_output']);
  });

  test('a call that the template writes otherwise stays as it was sampled', async () => {
    const odd = `<tool_call>\n{ "name":"get_time",  "arguments":{"city":"Rome"}}\n</tool_call><|im_end|>`;
    let last = await client.responses.create(play(odd, { input: 'time?', tools: [time] }));
    for (let turn = 0; turn < 3; turn++) {
      const input = [{ type: 'function_call_output', call_id: last.output[0].call_id, output: `${turn}` }];
      const next = await client.responses.create(play(odd, { input, previous_response_id: last.id, tools: [time] }));
      assert.ok(usageOf(next).cached >= last.usage.input_tokens + last.usage.output_tokens - 1, `${turn}: ${JSON.stringify(next.usage)} after ${JSON.stringify(last.usage)}`);
      last = next;
    }
  });

  test('the client\'s stream helper parses a call', async () => {
    const stream = client.responses.stream(play(toolCall('get_time', { city: 'Rome' }), { input: 'x', tools: [time] }));
    const final = await stream.finalResponse();
    assert.equal(final.output[0].type, 'function_call');
    assert.deepEqual(JSON.parse(final.output[0].arguments), { city: 'Rome' });
  });

  test('text, then two calls', async () => {
    const text = `Let me see.\n${toolCall('get_time', { city: 'Rome' })}\n${toolCall('get_time', { city: 'Oslo' })}`;
    const request = play(text, { input: 'x', tools: [time], parallel_tool_calls: true });
    const a = await client.responses.create(request);
    assert.deepEqual(a.output.map((i) => i.type), ['message', 'function_call', 'function_call']);
    assert.notEqual(a.output[1].call_id, a.output[2].call_id);
    const list = await collect(await client.responses.create({ ...request, stream: true }));
    const streamed = list.at(-1).response.output;
    const plain = (items) => items.map((i) => ({ ...i, id: 0, call_id: 0 }));
    assert.deepEqual(plain(streamed), plain(a.output));
    for (const [i, item] of streamed.entries()) {
      const own = list.filter((e) => e.output_index === i);
      assert.equal(own[0].type, 'response.output_item.added');
      assert.equal(own.at(-1).type, 'response.output_item.done');
      assert.ok(own.every((e) => (e.item_id ?? e.item.id) === item.id));
    }
    const outputs = a.output.slice(1).reverse().map((c) => ({ type: 'function_call_output', call_id: c.call_id, output: 'x' }));
    const b = await client.responses.create(play('Done.', { input: outputs, previous_response_id: a.id, tools: [time] }));
    assert.ok(usageOf(b).cached >= a.usage.input_tokens, JSON.stringify(b.usage));
  });

  test('a call that is cut off', async () => {
    const r = await client.responses.create(play(toolCall('get_time', { city: 'Rome' }), { input: 'x', tools: [time], max_output_tokens: 50 }));
    assert.equal(r.status, 'incomplete');
    assert.equal(r.output.at(-1).status, 'incomplete');
    const list = await collect(await client.responses.create(play(toolCall('get_time', { city: 'Rome' }), { input: 'x', tools: [time], max_output_tokens: 50, stream: true })));
    assert.equal(list.at(-1).type, 'response.incomplete');
  });

  test('custom tools take plain text', async () => {
    const patch = { type: 'custom', name: 'apply_patch', description: 'edits files', format: { type: 'grammar', syntax: 'lark', definition: 'start: "*** Begin"' } };
    const input = '*** Begin\n"quoted" \\ é';
    const request = play(toolCall('apply_patch', { input }), { input: 'x', tools: [patch] });
    const a = await client.responses.create(request);
    const [call] = a.output;
    assert.match(call.id, /^ctc_/);
    assert.deepEqual({ ...call, id: 0, call_id: 0 }, { id: 0, call_id: 0, type: 'custom_tool_call', status: 'completed', name: 'apply_patch', input });
    const list = await collect(await client.responses.create({ ...request, stream: true }));
    assert.deepEqual(kindsOf(list), ['created', 'in_progress', 'output_item.added', 'custom_tool_call_input.delta', 'custom_tool_call_input.done', 'output_item.done', 'completed']);
    assert.equal(joined(list, 'response.custom_tool_call_input.delta'), input);
    const b = await client.responses.create(play('Done.', { input: [{ type: 'custom_tool_call_output', call_id: call.call_id, output: 'ok' }], previous_response_id: a.id, tools: [patch] }));
    assert.ok(usageOf(b).cached >= a.usage.input_tokens, JSON.stringify(b.usage));
  });

  test('namespaces', async () => {
    const tools = [{ type: 'namespace', name: 'mcp__clock', description: 'x', tools: [{ ...time, name: 'now' }] }];
    const a = await client.responses.create(play(toolCall('mcp__clock__now', { city: 'Rome' }), { input: 'x', tools }));
    assert.equal(a.output[0].name, 'now');
    assert.equal(a.output[0].namespace, 'mcp__clock');
    const b = await client.responses.create(play('ok', { input: [{ type: 'function_call_output', call_id: a.output[0].call_id, output: 'x' }], previous_response_id: a.id, tools }));
    assert.ok(usageOf(b).cached >= a.usage.input_tokens, JSON.stringify(b.usage));
  });

  test('tool_choice', async () => {
    const other = { ...time, name: 'get_date' };
    const prompt = async (more) => (await client.responses.create(play('x', { input: 'x', store: false, max_output_tokens: 1, ...more }))).usage.input_tokens;
    const both = await prompt({ tools: [time, other] }), one = await prompt({ tools: [time] }), none = await prompt({});
    assert.ok(both > one && one > none);
    const allowed = { type: 'allowed_tools', mode: 'auto', tools: [{ type: 'function', name: 'get_time' }] };
    assert.equal(await prompt({ tools: [time, other], tool_choice: allowed }), one);
    const r = await client.responses.create(play(toolCall('get_time', { city: 'Rome' }), { input: 'x', tools: [time, other], tool_choice: { type: 'function', name: 'get_time' } }));
    assert.deepEqual(r.tool_choice, { type: 'function', name: 'get_time' });
    assert.equal(r.output[0].type, 'function_call');
    /* what only OpenAI's servers run is left out where agents name it by themselves */
    assert.equal(await prompt({ tools: [{ type: 'web_search' }, time, { type: 'image_generation', output_format: 'png' }] }), one);
    assert.equal(await prompt({ tools: [{ type: 'local_shell' }] }), none);
  });

  test('what Codex sends', async () => {
    const body = {
      model: 'any', instructions: 'You are a coding agent.', tools: [time, { type: 'custom', name: 'apply_patch', description: 'd', format: { type: 'grammar', syntax: 'lark', definition: 'x' } }, { type: 'web_search', external_web_access: false }],
      tool_choice: 'auto', parallel_tool_calls: false, reasoning: null, store: false, stream: true, include: ['reasoning.encrypted_content'], prompt_cache_key: 'k', client_metadata: { a: 'b' },
      input: [
        { type: 'message', role: 'developer', content: [{ type: 'input_text', text: '<permissions>' }] },
        { type: 'message', role: 'user', content: [{ type: 'input_text', text: '<environment>' }] },
        { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'do it' }] },
        { type: 'reasoning', summary: [], content: null, encrypted_content: 'gAAAA…' },
        { type: 'web_search_call', status: 'completed', action: { type: 'search', query: 'x' } },
        { type: 'local_shell_call', call_id: 'c0', status: 'completed', action: { type: 'exec', command: ['ls'] } },
        { type: 'function_call_output', call_id: 'c0', output: 'a.txt' },
        { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: 'Now the time.' }] },
        { type: 'function_call', name: 'get_time', arguments: '{"city":"Rome"}', call_id: 'c1' },
        { type: 'custom_tool_call', name: 'apply_patch', input: '*** Begin', call_id: 'c2', status: 'completed' },
        { type: 'function_call_output', call_id: 'c1', output: [{ type: 'input_text', text: '12' }] },
        { type: 'custom_tool_call_output', call_id: 'c2', output: 'ok' },
      ],
    };
    const list = await collect(await client.responses.create({ ...body, kvasir: { play: 'It is 12.' } }));
    assert.equal(list.at(-1).response.output[0].content[0].text, 'It is 12.');
    const next = { ...body, input: [...body.input, { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: 'It is 12.' }] }, { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'thanks' }] }] };
    const again = await collect(await client.responses.create({ ...next, kvasir: { play: 'x' } }));
    const [before, after] = [list, again].map((l) => l.at(-1).response.usage);
    assert.equal(after.input_tokens_details.cached_tokens, before.input_tokens + before.output_tokens - 1);
  });
});

describe('responses with reasoning', { skip: skipAll || noTemplates }, () => {
  let server, client;
  before(async () => {
    server = await start(...template('Qwen-Qwen3-0.6B.jinja'));
    client = clientOf(server);
  });
  after(() => server.stop());
  const thinking = play('<think>\nLet me see.\n</think>\n\nFour.', { input: '2+2', instructions: 'Count.' });

  test('is an item of its own', async () => {
    const r = await client.responses.create(thinking);
    assert.deepEqual(r.output.map((i) => i.type), ['reasoning', 'message']);
    const [reasoning] = r.output;
    assert.match(reasoning.id, /^rs_/);
    assert.deepEqual(reasoning.summary, []);
    assert.equal(reasoning.content.length, 1);
    assert.equal(reasoning.content[0].type, 'reasoning_text');
    assert.equal(reasoning.content[0].text.trim(), 'Let me see.');
    assert.ok(!('encrypted_content' in reasoning));
    assert.equal(r.output_text, 'Four.');
    const n = r.usage.output_tokens_details.reasoning_tokens;
    assert.ok(n >= 11 && n < r.usage.output_tokens, `${n}`);
    const list = await collect(await client.responses.create({ ...thinking, stream: true }));
    assert.deepEqual(kindsOf(list), ['created', 'in_progress', 'output_item.added', 'content_part.added', 'reasoning_text.delta', 'reasoning_text.done', 'content_part.done', 'output_item.done',
      'output_item.added', 'content_part.added', 'output_text.delta', 'output_text.done', 'content_part.done', 'output_item.done', 'completed']);
    assert.equal(joined(list, 'response.reasoning_text.delta'), reasoning.content[0].text);
    assert.equal(list.at(-1).response.usage.output_tokens_details.reasoning_tokens, n);
    const final = await client.responses.stream(thinking).finalResponse();
    assert.equal(final.output[0].content[0].text, reasoning.content[0].text);
  });

  test('or its summary, where that is asked for', async () => {
    const request = { ...thinking, reasoning: { effort: 'medium', summary: 'auto' } };
    const r = await client.responses.create(request);
    assert.equal(r.output[0].summary[0].type, 'summary_text');
    assert.equal(r.output[0].summary[0].text.trim(), 'Let me see.');
    assert.deepEqual(r.output[0].content, []);
    assert.deepEqual(r.reasoning, { effort: 'medium', summary: 'auto' });
    const list = await collect(await client.responses.create({ ...request, stream: true }));
    assert.deepEqual(kindsOf(list).slice(2, 8), ['output_item.added', 'reasoning_summary_part.added', 'reasoning_summary_text.delta', 'reasoning_summary_text.done', 'reasoning_summary_part.done', 'output_item.done']);
    assert.equal(joined(list, 'response.reasoning_summary_text.delta'), r.output[0].summary[0].text);
  });

  test('comes back in any of its forms as the same prompt', async () => {
    const call = `<think>\nI need the time.\n</think>\n\n${toolCall('get_time', { city: 'Rome' })}`;
    const base = { input: 'x', tools: [time], include: ['reasoning.encrypted_content'] };
    const a = await client.responses.create(play(call, base));
    assert.deepEqual(a.output.map((i) => i.type), ['reasoning', 'function_call']);
    const summed = await client.responses.create(play(call, { ...base, reasoning: { summary: 'detailed' } }));
    const text = a.output[0].content[0].text;
    const end = (c) => ({ type: 'function_call_output', call_id: c.call_id, output: '12' });
    const prompt = async (reasoning, c) => (await client.responses.create(play('x', { tools: [time], store: false, input: [{ role: 'user', content: 'x' }, ...reasoning, c, end(c)] }))).usage;
    const [whole, c] = a.output;
    const full = await prompt([whole], c);
    assert.ok(full.input_tokens_details.cached_tokens >= a.usage.input_tokens, 'the thought is still in the prompt');
    for (const one of [
      { type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text }] },
      { type: 'reasoning', id: 'rs_1', summary: [], encrypted_content: whole.encrypted_content },
      { type: 'reasoning', summary: summed.output[0].summary },
      summed.output[0],
    ]) assert.equal((await prompt([one], c)).input_tokens, full.input_tokens, JSON.stringify(one));
    assert.ok((await prompt([], c)).input_tokens < full.input_tokens);
    const stored = await client.responses.create(play('Noon.', { previous_response_id: a.id, input: [end(c)], tools: [time] }));
    assert.equal(stored.usage.input_tokens, full.input_tokens);
    assert.ok(usageOf(stored).cached >= a.usage.input_tokens + a.usage.output_tokens - 1, `${JSON.stringify(stored.usage)} after ${JSON.stringify(a.usage)}`);
  });

  test('the template decides what of it stays: an old thought goes, its prompt is still shared', async () => {
    const a = await client.responses.create(thinking);
    const b = await client.responses.create(play('Eight.', { previous_response_id: a.id, input: 'doubled?', instructions: 'Count.' }));
    assert.ok(usageOf(b).cached >= a.usage.input_tokens - 2, `${JSON.stringify(b.usage)} after ${JSON.stringify(a.usage)}`);
  });

  test('a thought without an answer', async () => {
    const r = await client.responses.create({ ...thinking, max_output_tokens: 14 });
    assert.deepEqual(r.output.map((i) => [i.type, i.status]), [['reasoning', 'incomplete']]);
    assert.equal(r.status, 'incomplete');
  });
});

describe('stored responses', { skip: skipAll }, () => {
  const settled = async (server) => {
    while ((await (await fetch(`${server.url}/kvasir/cache`)).json()).queue_bytes > 0);
  };

  for (const kind of ['full', 'window', 'hybrid']) {
    test(`a conversation survives SIGKILL, and is read from the disk (${kind})`, async () => {
      const state = fresh();
      const more = ['--state-dir', state, '--cache-dir', fresh(), '--cache-disk', '256M'];
      let server = await startServer({ args: args(kind, ...more) });
      const a = await clientOf(server).responses.create(play('One answer.', { input: words(generator(), 2000) }));
      const b = await clientOf(server).responses.create(play('Another answer.', { input: words(generator(), 300), previous_response_id: a.id }));
      await settled(server);
      await server.stop('SIGKILL');
      server = await startServer({ args: args(kind, ...more) });
      const client = clientOf(server);
      assert.equal((await client.responses.retrieve(b.id)).output_text, 'Another answer.');
      const [c, d] = await Promise.all(['left', 'right'].map((input) => client.responses.create(play(input, { input, previous_response_id: b.id }))));
      const known = b.usage.input_tokens + b.usage.output_tokens - 1;
      for (const r of [c, d]) {
        assert.ok(known - usageOf(r).cached <= (kind === 'full' ? 1 : 64), `${kind}: ${JSON.stringify(r.kvasir)} of ${known}`);
        assert.ok(r.usage.input_tokens > known);
      }
      assert.ok(c.kvasir.cached.disk + d.kvasir.cached.disk > 0, JSON.stringify([c.kvasir, d.kvasir]));
      await server.stop();
    });
  }

  test('tokens stay those that were sampled, however they would be spelled anew', { skip: noRealModel }, async () => {
    const server = await startServer({ args: ['-m', smollm2, '-c', '2048', '-np', '1', '-fa', 'off', '-ub', '256', '-t', '1', '--test-sampler', '--state-dir', fresh()] });
    const client = clientOf(server);
    const ids = async (content) => (await (await post(`${server.url}/tokenize`, { content })).json()).tokens;
    const letters = (await Promise.all([...'internationalisation'].map(ids))).flat();
    assert.ok(letters.length > (await ids('internationalisation')).length);
    const a = await client.responses.create({ model: 'any', input: 'a word', kvasir: { play: letters } });
    assert.equal(a.output_text, 'internationalisation');
    const b = await client.responses.create(play('x', { input: 'again', previous_response_id: a.id }));
    assert.ok(usageOf(b).cached >= a.usage.input_tokens + letters.length, JSON.stringify(b.kvasir));
    assert.equal((await client.responses.inputTokens.count({ model: 'any', input: 'again', previous_response_id: a.id })).input_tokens, usageOf(b).prompt);
    const c = await client.responses.create(play('x', { input: 'and again', previous_response_id: b.id }));
    assert.ok(usageOf(c).cached >= usageOf(b).prompt, JSON.stringify(c.kvasir));
    await server.stop();
  });

  test('belong to their scope, in both directions; an erased scope\'s are gone', async () => {
    const state = fresh(), keys = path.join(state, 'keys');
    writeFileSync(keys, 'sk-plain\nsk-team scope=team\nsk-boss admin\n', { mode: 0o600 });
    const server = await startServer({ args: args('full', '--state-dir', path.join(state, 'deep'), '--api-key-file', keys) });
    const [plain, team] = ['sk-plain', 'sk-team'].map((k) => clientOf(server, k));
    const input = words(generator(), 600);
    const mine = await plain.responses.create(play('mine', { input }));
    const theirs = await team.responses.create(play('theirs', { input }));
    assert.equal(usageOf(theirs).cached, 0);
    for (const [client, id] of [[team, mine.id], [plain, theirs.id]]) {
      await refused(client.responses.retrieve(id), 404, id);
      await refused(client.responses.delete(id), 404, id);
      await refused(client.responses.cancel(id), 404, id);
      await refused(client.responses.inputItems.list(id), 404, id);
      await refused(client.responses.create(play('x', { input: 'x', previous_response_id: id })), 404, id);
      const item = (id === mine.id ? mine : theirs).output[0].id;
      await refused(client.responses.create(play('x', { input: [{ type: 'item_reference', id: item }] })), 404, item);
    }
    assert.equal((await plain.responses.retrieve(mine.id)).output_text, 'mine');
    assert.ok(usageOf(await team.responses.create(play('x', { input: 'x', previous_response_id: theirs.id }))).cached > 0);
    const salted = await plain.responses.create(play('salted', { input, cache_salt: 's' }));
    await refused(plain.responses.retrieve(salted.id), 404);
    assert.equal((await plain.responses.retrieve(salted.id, { cache_salt: 's' })).output_text, 'salted');
    await refused(plain.responses.create(play('x', { input: 'x', previous_response_id: salted.id })), 404);
    /* keys per conversation divide nothing */
    const keyed = await plain.responses.create(play('x', { input: 'x', previous_response_id: mine.id, prompt_cache_key: 'other', user: 'u', safety_identifier: 's', metadata: { a: 'b' } }));
    assert.ok(usageOf(keyed).cached >= 600);

    const erase = (query, key) => fetch(`${server.url}/kvasir/cache${query}`, { method: 'DELETE', headers: { authorization: `Bearer ${key}` } });
    assert.equal((await erase('?scope=team', 'sk-team')).status, 403);
    const told = await (await erase('?scope=team', 'sk-boss')).json();
    assert.equal(told.erased_responses, 2);
    await refused(team.responses.retrieve(theirs.id), 404);
    assert.equal((await plain.responses.retrieve(mine.id)).output_text, 'mine');
    assert.ok((await (await erase('?all=true', 'sk-boss')).json()).erased_responses >= 2);
    await refused(plain.responses.retrieve(mine.id), 404);
    assert.equal(statSync(path.join(state, 'deep')).mode & 0o777, 0o700);
    assert.equal(statSync(path.join(state, 'deep/responses.sqlite')).mode & 0o777, 0o600);
    await server.stop();
  });

  test('a damaged or missing file stops nothing; without a place they live in memory', async () => {
    const state = fresh();
    let server = await startServer({ args: args('full', '--state-dir', state) });
    const a = await clientOf(server).responses.create(play('a', { input: 'a' }));
    await server.stop();
    writeFileSync(path.join(state, 'responses.sqlite'), words(generator(), 20000));
    server = await startServer({ args: args('full', '--state-dir', state, '--plain-json') });
    assert.equal(server.lines.filter((l) => /damaged/.test(l)).length, 1, server.log());
    await refused(clientOf(server).responses.retrieve(a.id), 404);
    const b = await clientOf(server).responses.create(play('b', { input: 'b' }));
    assert.ok(!('kvasir' in b));
    assert.equal((await clientOf(server).responses.retrieve(b.id)).output_text, 'b');
    assert.ok(existsSync(path.join(state, 'responses.sqlite.damaged')));
    rmSync(state, { recursive: true });
    await clientOf(server).responses.create(play('c', { input: 'c' }));
    await server.stop();

    writeFileSync(state, 'a file in the way');
    server = await startServer({ args: args('full', '--state-dir', state) });
    const d = await clientOf(server).responses.create(play('d', { input: 'd' }));
    assert.equal((await clientOf(server).responses.retrieve(d.id)).output_text, 'd');
    await server.stop();
  });

  test('only so many bytes are kept', async () => {
    const server = await start('--responses-max-size', '16K');
    const client = clientOf(server);
    const ids = [];
    for (let i = 0; i < 8; i++) ids.push((await client.responses.create(play('x', { input: words(generator(), 500) }))).id);
    await refused(client.responses.retrieve(ids[0]), 404);
    await client.responses.retrieve(ids.at(-1));
    await server.stop();
  });
});
