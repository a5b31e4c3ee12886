// Ollama's API with its own client: what applications that know nothing else ask for. Answers are played through a real
// template (Qwen3: thinking and tools) on a tiny model whose tokens are bytes.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { Ollama } from 'ollama';
import { fake, model, root, startServer } from './server.mjs';

const template = path.join(root, 'build/engine/source/models/templates/Qwen-Qwen3-0.6B.jinja');
const skip = fake ? 'the fake engine stands in (KVASIR_TEST_FAKE)'
  : existsSync(template) ? false : 'the engine has no source beside it, and so no templates';
const args = (...more) => ['-m', model('tiny/llama.gguf'), '-c', '8192', '-np', '2', '-kvu', '-fa', 'off', '-t', '1', '--test-sampler',
  '--chat-template-file', template, ...more];
const weather = {
  type: 'function',
  function: {
    name: 'get_weather', description: 'The weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' }, days: { type: 'integer' } }, required: ['city'] },
  },
};
const CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>';
const user = (content) => ({ role: 'user', content });

// The client drops nothing of a request that it does not know, so `kvasir.play` reaches the server.
const play = (text) => ({ kvasir: { play: text } });
const bare = (text) => play(`<think>\n\n</think>\n\n${text}`);

describe('the ollama client', { skip }, () => {
  let server;
  let client;
  before(async () => {
    server = await startServer({ args: args('--alias', 'tiny') });
    client = new Ollama({ host: server.url });
  });
  after(() => server.stop());

  const post = async (where, body, raw = false) => {
    const response = await fetch(server.url + where, { method: 'POST', body: raw ? body : JSON.stringify(body) });
    const text = await response.text();
    return { status: response.status, type: response.headers.get('content-type'), text };
  };
  const collect = async (stream) => {
    const parts = [];
    for await (const part of stream) parts.push(part);
    return parts;
  };

  test('chats: the last object has all counts in their units', async () => {
    const answer = await client.chat({ model: 'tiny', messages: [user('hi')], think: false, ...play('Hello.') });
    assert.equal(answer.message.role, 'assistant');
    assert.equal(answer.message.content, 'Hello.');
    assert.equal(answer.model, 'tiny');
    assert.equal(answer.done, true);
    assert.equal(answer.done_reason, 'stop');
    assert.ok(!Number.isNaN(new Date(answer.created_at).getTime()));
    for (const name of ['total_duration', 'load_duration', 'prompt_eval_count', 'prompt_eval_duration', 'eval_count', 'eval_duration'])
      assert.ok(Number.isInteger(answer[name]) && answer[name] >= 0, name);
    assert.ok(answer.eval_duration > 0 && answer.prompt_eval_duration > 0, 'clients divide by them');
    assert.ok(answer.total_duration >= answer.prompt_eval_duration);
    assert.equal(answer.kvasir.computed + answer.kvasir.cached.engine + answer.kvasir.cached.ram, answer.prompt_eval_count);
  });

  test('streams what it says when not streaming, a line an object, and streams unless told otherwise', async () => {
    const request = { model: 'tiny', messages: [user('hi')], ...play('<think>\nHm, so.\n</think>\n\nGrüße, Welt.') };
    const whole = await client.chat({ ...request });
    assert.equal(whole.message.content, 'Grüße, Welt.');
    assert.equal(whole.message.thinking.trim(), 'Hm, so.');
    const parts = await collect(await client.chat({ ...request, stream: true }));
    assert.equal(parts.map((p) => p.message.content).join(''), whole.message.content);
    assert.equal(parts.map((p) => p.message.thinking ?? '').join(''), whole.message.thinking);
    assert.ok(parts.length > 3);
    assert.deepEqual([...new Set(parts.slice(0, -1).map((p) => p.done))], [false]);
    const last = parts.at(-1);
    assert.equal(last.done, true);
    assert.equal(last.done_reason, 'stop');
    assert.equal(last.message.content, '');
    assert.equal(last.eval_count, whole.eval_count);
    const { type, text } = await post('/api/chat', request);
    assert.match(type, /^application\/x-ndjson/);
    assert.ok(text.endsWith('}\n'));
    assert.equal(text.trimEnd().split('\n').map((l) => JSON.parse(l)).filter((o) => o.done).length, 1);
  });

  test('a tool call goes round: object arguments out and in, and the next turn uses the cache', async () => {
    const first = [{ role: 'system', content: 'Facts. '.repeat(60) }, user('How is it in Rome?')];
    const one = await client.chat({ model: 'tiny', messages: first, tools: [weather], ...play(`<think>\nI ask.\n</think>\n\n${CALL}`) });
    assert.equal(one.done_reason, 'stop');
    assert.equal(one.message.tool_calls.length, 1);
    assert.equal(one.message.tool_calls[0].function.name, 'get_weather');
    assert.deepEqual(one.message.tool_calls[0].function.arguments, { city: 'Rome', days: 2 });
    assert.equal(one.message.thinking.trim(), 'I ask.');
    const second = [...first, one.message, { role: 'tool', tool_name: 'get_weather', content: '{"degrees": 11}' }];
    const rendered = JSON.parse((await post('/api/chat', { model: 'tiny', messages: second, tools: [weather], _debug_render_only: true })).text);
    const prompt = rendered._debug_info.rendered_template;
    assert.match(prompt, /<tool_call>\n\{"name": "get_weather", "arguments": \{"city": ?"Rome", ?"days": ?2\}\}\n<\/tool_call>/);
    assert.match(prompt, /<tool_response>\n\{"degrees": 11\}\n<\/tool_response>/);
    const two = await client.chat({ model: 'tiny', messages: second, tools: [weather], ...bare('11 degrees.') });
    assert.equal(two.message.content, '11 degrees.');
    assert.equal(two.message.tool_calls, undefined);
    assert.ok(two.prompt_eval_count > one.prompt_eval_count, 'the count is of the whole prompt, cached or not');
    const { engine, ram } = two.kvasir.cached;
    assert.ok(engine + ram > one.prompt_eval_count / 2, JSON.stringify(two.kvasir));
  });

  test('streams several calls whole, before the last object', async () => {
    const parts = await collect(await client.chat({
      model: 'tiny', messages: [user('Rome? Oslo?')], tools: [weather], stream: true, ...bare(`Let me see.\n${CALL}\n${CALL.replace('Rome', 'Oslo')}`),
    }));
    const calls = parts.flatMap((p) => p.message.tool_calls ?? []);
    assert.deepEqual(calls.map((c) => c.function.arguments.city), ['Rome', 'Oslo']);
    assert.deepEqual(calls.map((c) => c.function.index), [0, 1]);
    assert.match(parts.map((p) => p.message.content).join(''), /^Let me see\.\s*$/);
    assert.equal(parts.at(-1).message.tool_calls, undefined);
  });

  test('think turns thinking off, and is refused where the template has none', async () => {
    const render = async (think) => JSON.parse((await post('/api/chat', {
      model: 'tiny', messages: [user('hi')], think, _debug_render_only: true,
    })).text)._debug_info.rendered_template;
    assert.match(await render(false), /<think>\s*<\/think>\s*$/);
    assert.doesNotMatch(await render(true), /<think>/);
    assert.doesNotMatch(await render('high'), /<think>/);
    const plain = await startServer({ args: ['-m', model('tiny/llama.gguf'), '-c', '2048', '-t', '1', '--chat-template', 'chatml'] });
    const ask = (think) => new Ollama({ host: plain.url }).chat({ model: 'tiny', messages: [user('hi')], think, options: { num_predict: 1 } });
    await assert.rejects(ask(true), /does not support thinking/);
    assert.equal((await ask(false)).done_reason, 'length');
    const shown = await new Ollama({ host: plain.url }).show({ model: 'tiny' });
    assert.ok(!shown.capabilities.includes('thinking'));
    await plain.stop();
  });

  test('options reach the sampler; what has no meaning here is taken', async () => {
    const ask = (options) => client.chat({ model: 'tiny', messages: [user('hi')], options });
    const same = { num_predict: 8, seed: 7, temperature: 1.5, top_k: 20, top_p: 0.9, min_p: 0, typical_p: 1, repeat_penalty: 1.1, repeat_last_n: -1,
      presence_penalty: 0.1, frequency_penalty: 0.1, num_ctx: 2048, num_keep: 4, num_batch: 512, num_gpu: 99, main_gpu: 0, num_thread: 4, use_mmap: true };
    const [one, two] = [await ask(same), await ask(same)];
    assert.equal(one.done_reason, 'length');
    assert.equal(one.eval_count, 8);
    assert.equal(one.message.content + one.message.thinking, two.message.content + two.message.thinking);
    const warned = await ask({ num_predict: 1, num_ctx: 1e6 });
    assert.match(warned.kvasir.warnings[0], /num_ctx is 1000000.*8192/);
    const cut = await client.chat({ model: 'tiny', messages: [user('hi')], options: { stop: ['STOP'] }, ...bare('one STOP two') });
    assert.equal(cut.message.content, 'one ');
    assert.equal(cut.done_reason, 'stop');
  });

  test('format: JSON, and a schema', async () => {
    const schema = { type: 'object', properties: { n: { type: 'integer', minimum: 0, maximum: 9 }, ok: { enum: [true] } }, required: ['n', 'ok'] };
    const answer = await client.chat({ model: 'tiny', messages: [user('hi')], think: false, format: schema, options: { num_predict: 200, seed: 1 } });
    const told = JSON.parse(answer.message.content);
    assert.ok(told.ok === true && Number.isInteger(told.n), answer.message.content);
    const generated = await client.generate({ model: 'tiny', prompt: 'hi', think: false, format: schema, options: { num_predict: 200, seed: 2 } });
    assert.equal(JSON.parse(generated.response).ok, true);
    const raw = await client.generate({ model: 'tiny', prompt: 'hi', raw: true, format: schema, options: { num_predict: 200, seed: 3 } });
    assert.equal(JSON.parse(raw.response).ok, true);
    const any = await client.generate({ model: 'tiny', prompt: 'hi', think: false, format: 'json', options: { num_predict: 40, seed: 4 } });
    assert.match(any.response, /^\{/);
  });

  test('logprobs, with alternatives and without', async () => {
    const request = { model: 'tiny', messages: [user('hi')], think: false, logprobs: true, options: { num_predict: 3, seed: 1 } };
    const bareOnes = await client.chat({ ...request });
    assert.equal(bareOnes.logprobs.length, 3);
    for (const l of bareOnes.logprobs) assert.deepEqual(Object.keys(l).sort(), ['bytes', 'logprob', 'token']);
    const some = await client.chat({ ...request, top_logprobs: 2 });
    for (const l of some.logprobs) assert.equal(l.top_logprobs.length, 2);
    const raw = await client.generate({ model: 'tiny', prompt: 'hi', raw: true, logprobs: true, options: { num_predict: 2, seed: 1 } });
    assert.equal(raw.logprobs.length, 2);
    const parts = await collect(await client.generate({ model: 'tiny', prompt: 'hi', raw: true, stream: true, logprobs: true, options: { num_predict: 4, seed: 1 } }));
    assert.equal(parts.flatMap((p) => p.logprobs ?? []).length, 4);
  });

  test('generate: context continues the conversation where it ended', async () => {
    const one = await client.generate({ model: 'tiny', prompt: 'My name is Ada. '.repeat(20), system: 'Be brief.', think: false, ...play('Hello Ada.') });
    assert.equal(one.response, 'Hello Ada.');
    assert.equal(one.done_reason, 'stop');
    assert.ok(one.context.length >= one.prompt_eval_count + 10);
    const rendered = JSON.parse((await post('/api/generate', { model: 'tiny', prompt: 'Who am I?', context: one.context, _debug_render_only: true })).text);
    assert.match(rendered._debug_info.rendered_template,
      /^<\|im_start\|>system\nBe brief\.<\|im_end\|>\n<\|im_start\|>user\nMy name is Ada\.[^]*Hello Ada\.<\|im_end\|>\n<\|im_start\|>user\nWho am I\?<\|im_end\|>\n<\|im_start\|>assistant\n$/);
    assert.equal(rendered._debug_info.rendered_template.match(/<\|im_start\|>/g).length, 5);
    const two = await client.generate({ model: 'tiny', prompt: 'Who am I?', context: one.context, ...bare('Ada.') });
    assert.equal(two.response, 'Ada.');
    assert.ok(two.kvasir.cached.engine + two.kvasir.cached.ram >= one.prompt_eval_count - 1, JSON.stringify(two.kvasir));
    assert.deepEqual(two.context.slice(0, one.context.length), one.context);
  });

  test('generate: raw is as it is; a stream says the same', async () => {
    const whole = await client.generate({ model: 'tiny', prompt: '<|im_start|>user\nhi', raw: true, ...play('there') });
    assert.equal(whole.response, 'there');
    assert.equal(whole.context, undefined);
    const parts = await collect(await client.generate({ model: 'tiny', prompt: 'hi', stream: true, ...play('<think>\nHm.\n</think>\n\nThere.') }));
    assert.equal(parts.map((p) => p.response).join(''), 'There.');
    assert.equal(parts.map((p) => p.thinking ?? '').join('').trim(), 'Hm.');
    assert.ok(Array.isArray(parts.at(-1).context));
    assert.ok(parts.slice(0, -1).every((p) => p.context === undefined));
  });

  test('nothing to say loads the model', async () => {
    const generated = await client.generate({ model: 'tiny', prompt: '' });
    assert.equal(generated.done_reason, 'load');
    assert.equal(generated.response, '');
    const chatted = await client.chat({ model: 'tiny', messages: [] });
    assert.equal(chatted.done_reason, 'load');
    assert.deepEqual(chatted.message, { role: 'assistant', content: '' });
    const kept = await client.generate({ model: 'tiny', prompt: '', keep_alive: 0 });
    assert.equal(kept.done_reason, 'unload');
    assert.match(kept.kvasir.warnings[0], /--sleep-idle-seconds/);
    for (const keep_alive of ['5m', '1h30m', '-1', -1, 300, '1.5h'])
      assert.equal((await client.generate({ model: 'tiny', prompt: '', keep_alive })).done_reason, 'load', String(keep_alive));
  });

  test('show, as Open WebUI, Cline, Continue, Copilot and LangChain read it', async () => {
    const shown = await client.show({ model: 'tiny:latest' });
    const arch = shown.model_info['general.architecture'];
    assert.equal(arch, 'llama');
    assert.equal(shown.model_info[`${arch}.context_length`], 8192);
    for (const name of ['embedding_length', 'block_count', 'attention.head_count', 'attention.head_count_kv', 'vocab_size'])
      assert.ok(shown.model_info[`${arch}.${name}`] > 0, name);
    assert.ok(shown.model_info['general.parameter_count'] > 0);
    for (const name of ['completion', 'tools', 'thinking']) assert.ok(shown.capabilities.includes(name), name);
    assert.match(shown.parameters, /^num_ctx +8192$/m);
    assert.match(shown.template, /tool_call/);
    assert.equal(shown.details.family, 'llama');
    assert.deepEqual(shown.details.families, ['llama']);
    assert.equal(shown.details.format, 'gguf');
    for (const name of ['parameter_size', 'quantization_level', 'parent_model']) assert.equal(typeof shown.details[name], 'string', name);
    for (const name of ['license', 'modelfile']) assert.equal(typeof shown[name], 'string', name);
    assert.equal((await post('/api/show', { name: 'tiny' })).status, 200);
  });

  test('tags, ps and version', async () => {
    const { models } = await client.list();
    const tiny = models.find((m) => m.name === 'tiny:latest');
    assert.equal(tiny.model, 'tiny:latest');
    assert.ok(tiny.size > 0 && tiny.digest.length >= 12 && tiny.details.family === 'llama');
    assert.ok(!Number.isNaN(new Date(tiny.modified_at).getTime()));
    const { models: loaded } = await client.ps();
    assert.equal(loaded.length, 1);
    assert.equal(loaded[0].name, 'tiny:latest');
    assert.equal(loaded[0].context_length, 8192);
    assert.ok(loaded[0].size > 0 && loaded[0].size_vram >= 0);
    assert.ok(new Date(loaded[0].expires_at) > new Date());
    const { version } = await client.version();
    assert.match(version, /^\d+\.\d+\.\d+$/);
  });

  test('HEAD, as clients look whether somebody is there', async () => {
    for (const where of ['/', '/api/version', '/api/tags', '/api/ps'])
      assert.equal((await fetch(server.url + where, { method: 'HEAD' })).status, 200, where);
  });

  test('pull of what is there; all other managing is refused by name', async () => {
    assert.equal((await client.pull({ model: 'tiny' })).status, 'success');
    assert.deepEqual((await collect(await client.pull({ model: 'tiny:latest', stream: true }))).map((p) => p.status), ['success']);
    await assert.rejects(client.pull({ model: 'llama3.2' }), /'llama3\.2' cannot be pulled/);
    await assert.rejects(client.push({ model: 'tiny' }), /\/api\/push is not supported/);
    await assert.rejects(client.create({ model: 'mine', from: 'tiny' }), /\/api\/create is not supported/);
    await assert.rejects(client.copy({ source: 'tiny', destination: 'mine' }), /\/api\/copy is not supported/);
    await assert.rejects(client.delete({ model: 'tiny' }), /\/api\/delete is not supported/);
  });

  test('embeddings are refused with what to do', async () => {
    await assert.rejects(client.embed({ model: 'tiny', input: 'x' }), /--embeddings/);
    await assert.rejects(client.embeddings({ model: 'tiny', prompt: 'x' }), /--embeddings/);
  });

  test('a prompt that is too long is told with the numbers', async () => {
    await assert.rejects(client.chat({ model: 'tiny', messages: [user('x'.repeat(9000))] }), /90\d\d tokens.*8192 tokens/);
  });

  const chat = (extra) => ['/api/chat', { model: 'tiny', messages: [user('hi')], ...extra }];
  const generate = (extra) => ['/api/generate', { model: 'tiny', prompt: 'hi', ...extra }];
  // [path, body], what the message says, status (400)
  const wrong = [
    [['/api/chat', '{'], 'JSON'],
    [['/api/chat', ''], 'JSON'],
    [['/api/chat', []], 'object'],
    [['/api/generate', 'null'], 'object'],
    [chat({ model: 7 }), "'model'"],
    [chat({ messages: 'hi' }), "'messages' must be an array"],
    [chat({ messages: [1] }), 'messages[0]'],
    [chat({ messages: [{ content: 'x' }] }), 'messages[0].role'],
    [chat({ messages: [{ role: 'user', content: 5 }] }), 'messages[0].content'],
    [chat({ messages: [{ role: 'assistant', content: 'x', thinking: 5 }, user('hi')] }), 'messages[0].thinking'],
    [chat({ messages: [user('a'), { role: 'user', content: 'x', images: ['AA=='] }] }), 'messages[1].images[0]'],
    [chat({ messages: [{ role: 'user', content: 'x', images: 'AA==' }] }), 'messages[0].images'],
    [chat({ messages: [{ role: 'assistant', content: '', tool_calls: 'x' }, user('hi')] }), 'messages[0].tool_calls'],
    [chat({ messages: [{ role: 'assistant', content: '', tool_calls: [{}] }, user('hi')] }), 'messages[0].tool_calls[0].function'],
    [chat({ messages: [{ role: 'assistant', content: '', tool_calls: [{ function: { name: 'f', arguments: 3 } }] }, user('hi')] }), 'arguments'],
    [chat({ tools: 'x' }), "'tools'"],
    [chat({ tools: [{ type: 'function' }] }), 'tools[0].function'],
    [chat({ tools: [{ type: 'web', function: { name: 'f' } }] }), 'tools[0].type'],
    [chat({ format: 'xml' }), "'format'"],
    [chat({ format: 5 }), "'format'"],
    [chat({ format: { type: 'nonsense' } }), 'format'],
    [chat({ options: 'x' }), "'options' must be an object"],
    [chat({ options: { temperature: 'hot' } }), "'options.temperature' must be a number"],
    [chat({ options: { top_k: 1.5 } }), "'options.top_k' must be an integer"],
    [chat({ options: { num_predict: 'many' } }), "'options.num_predict'"],
    [chat({ options: { num_ctx: true } }), "'options.num_ctx'"],
    [chat({ options: { seed: 'x' } }), "'options.seed'"],
    [chat({ options: { stop: 5 } }), "'options.stop'"],
    [chat({ options: { stop: [5] } }), "'options.stop[0]'"],
    [chat({ options: { use_mmap: 1 } }), "'options.use_mmap' must be a boolean"],
    [chat({ keep_alive: 'soon' }), "'keep_alive'"],
    [chat({ keep_alive: '5' + 'x' }), "'keep_alive'"],
    [chat({ keep_alive: [] }), "'keep_alive'"],
    [chat({ think: 'deep' }), "'think'"],
    [chat({ think: 3 }), "'think'"],
    [chat({ stream: 'yes' }), "'stream'"],
    [chat({ logprobs: 1 }), "'logprobs'"],
    [chat({ logprobs: true, top_logprobs: 21 }), "'top_logprobs'"],
    [chat({ truncate: 'x' }), "'truncate'"],
    [generate({ prompt: 5 }), "'prompt'"],
    [generate({ system: {} }), "'system'"],
    [generate({ template: '{{ .Prompt }}' }), "'template' is not supported"],
    [generate({ images: ['AA=='] }), 'images[0]'],
    [generate({ context: 'x' }), "'context'"],
    [generate({ context: ['x'] }), "'context'"],
    [generate({ context: [1e9] }), "'context[0]'"],
    [generate({ raw: 1 }), "'raw'"],
    [generate({ raw: true, system: 'x' }), "leave out 'system'"],
    [generate({ raw: true, context: [1] }), "leave out 'context'"],
    [generate({ suffix: 'x' }), 'does not support insert'],
    [generate({ suffix: 5 }), "'suffix'"],
    [['/api/show', { model: 5 }], "'model'"],
    [['/api/show', 'x'], 'JSON'],
    [['/api/pull', { model: 'tiny', stream: 5 }], "'stream'"],
  ];
  test(`${wrong.length} wrong bodies: {"error": "…"} that says what was wrong, and the server goes on`, async () => {
    for (const [[where, body], words, status = 400] of wrong) {
      const got = await post(where, body, typeof body === 'string');
      const told = `${where} ${JSON.stringify(body)}: ${got.status} ${got.text}`;
      assert.equal(got.status, status, told);
      const json = JSON.parse(got.text);
      assert.deepEqual(Object.keys(json), ['error'], told);
      assert.ok(json.error.includes(words), told);
    }
    assert.equal((await client.chat({ model: 'tiny', messages: [user('hi')], think: false, ...play('still here') })).message.content, 'still here');
  });

  test('null stands for nothing, roles come in any case, unknown names are ignored', async () => {
    const { status, text } = await post('/api/chat', {
      model: null, messages: [{ role: 'USER', content: 'hi', images: null, tool_calls: null, thinking: null }], tools: null, format: null,
      options: null, keep_alive: null, think: null, stream: false, truncate: null, novelty: 1, ...bare('ok'),
    });
    assert.equal(status, 200, text);
    assert.equal(JSON.parse(text).message.content, 'ok');
    const empty = await post('/api/chat', { model: 'tiny', messages: [user('hi')], tools: [], format: '', options: { novelty: 1 }, stream: false, ...bare('ok') });
    assert.equal(empty.status, 200, empty.text);
  });
});

describe('names, sleep and --plain-json', { skip }, () => {
  test('--strict-model takes its names with and without a tag; --plain-json tells nothing of ours', async () => {
    const server = await startServer({ args: args('--alias', 'tiny', '--strict-model', '--plain-json') });
    const client = new Ollama({ host: server.url });
    for (const name of ['tiny', 'tiny:latest', 'llama.gguf', 'llama']) {
      const answer = await client.chat({ model: name, messages: [user('hi')], ...bare('ok') });
      assert.equal(answer.model, name);
      assert.equal(answer.kvasir, undefined);
    }
    for (const ask of [() => client.chat({ model: 'other', messages: [user('hi')] }), () => client.generate({ model: 'tiny:7b', prompt: 'x' }),
      () => client.show({ model: 'other' })])
      await assert.rejects(ask(), (e) => e.status_code === 404 && /not found/.test(e.message));
    await server.stop();
  });

  test('keep_alive 0 puts the model to sleep after the answer; asking only does not wake it', async () => {
    const server = await startServer({ args: args('--alias', 'tiny', '--sleep-idle-seconds', '3600', '--on-image', 'placeholder') });
    const client = new Ollama({ host: server.url });
    const sleeps = (n) => server.until((lines) => lines.filter((l) => l.includes('asleep as a request asked')).length >= n, `sleep ${n}`);
    const one = await client.chat({ model: 'tiny', messages: [user('x'.repeat(600))], keep_alive: 0, ...bare('ok') });
    assert.equal(one.message.content, 'ok');
    await sleeps(1);
    assert.deepEqual((await client.ps()).models, []);
    assert.equal((await client.list()).models[0].name, 'tiny:latest');
    assert.equal((await client.show({ model: 'tiny' })).model_info['llama.context_length'], 8192);
    assert.equal((await client.generate({ model: 'tiny', prompt: '', keep_alive: 0 })).done_reason, 'unload');
    assert.deepEqual((await client.ps()).models, []);
    // wakes, and finds what it had
    const parts = [];
    for await (const p of await client.chat({ model: 'tiny', messages: [user('x'.repeat(600))], stream: true, keep_alive: '0s', ...bare('again') })) parts.push(p);
    assert.equal(parts.map((p) => p.message.content).join(''), 'again');
    assert.ok(parts.at(-1).kvasir.cached.ram > 256, JSON.stringify(parts.at(-1).kvasir));
    await sleeps(2);
    assert.equal((await client.generate({ model: 'tiny', prompt: '' })).done_reason, 'load');
    assert.equal((await client.ps()).models.length, 1);
    assert.equal((await client.chat({ model: 'tiny', messages: [{ role: 'user', content: 'x', images: ['AA=='] }], ...bare('ok') })).message.content, 'ok');
    assert.equal((await client.generate({ model: 'tiny', prompt: 'x', images: ['AA=='], ...bare('ok') })).response, 'ok');
    assert.equal((await client.generate({ model: 'tiny', prompt: '', keep_alive: 0 })).done_reason, 'unload');
    await sleeps(3);
    // A stream is answered while the model is still on its way: what goes wrong then is a line, and so is what is whole.
    await assert.rejects(async () => {
      for await (const part of await client.chat({ model: 'tiny', messages: [user('x')], stream: true, options: { temperature: 'hot' } })) assert.ok(part);
    }, /temperature/);
    await client.generate({ model: 'tiny', prompt: '', keep_alive: 0 });
    await sleeps(4);
    const late = await fetch(`${server.url}/api/generate`, { method: 'POST', body: JSON.stringify({ model: 'tiny', prompt: '' }) });
    assert.match(late.headers.get('content-type'), /^application\/x-ndjson/);
    const lines = (await late.text()).trimEnd().split('\n').map((line) => JSON.parse(line));
    assert.equal(lines.at(-1).done_reason, 'load');
    assert.ok(lines.slice(0, -1).every((l) => l.response === '' && l.done === false));
    await server.stop();
  });

  test('embeds', async () => {
    const server = await startServer({ args: args('--alias', 'tiny', '--embeddings', '--pooling', 'mean') });
    const client = new Ollama({ host: server.url });
    const { embeddings, prompt_eval_count: count } = await client.embed({ model: 'tiny', input: ['one', 'two'] });
    assert.equal(embeddings.length, 2);
    for (const e of embeddings) assert.ok(Math.abs(Math.hypot(...e) - 1) < 1e-3);
    assert.ok(count >= 6);
    const short = await client.embed({ model: 'tiny', input: 'one', dimensions: 4 });
    assert.equal(short.embeddings[0].length, 4);
    assert.ok(Math.abs(Math.hypot(...short.embeddings[0]) - 1) < 1e-3);
    const { embedding } = await client.embeddings({ model: 'tiny', prompt: 'one' });
    assert.equal(embedding.length, embeddings[0].length);
    const cosine = embedding.reduce((sum, x, i) => sum + x * embeddings[0][i], 0) / Math.hypot(...embedding);
    assert.ok(cosine > 0.999, `the same direction, but ${cosine}`);
    assert.deepEqual((await client.embed({ model: 'tiny', input: [] })).embeddings, []);
    assert.equal((await client.embed({ model: 'tiny', input: 'x'.repeat(20000) })).embeddings.length, 1);
    await assert.rejects(client.embed({ model: 'tiny', input: 'x'.repeat(20000), truncate: false }), /tokens/);
    await assert.rejects(client.embed({ model: 'tiny', input: [5] }), /'input'/);
    await server.stop();
  });
});
