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
