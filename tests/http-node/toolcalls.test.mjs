// Tool calls with OpenAI's client: its stream helper and runTools, tool_choice in all its forms, and on a real model 50
// calls out of 50 that follow their schema.
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import Ajv from 'ajv/dist/2020.js';
import OpenAI from 'openai';
import { model, noRealModel, root, smollm2, startServer } from './server.mjs';

const template = path.join(root, 'build', 'engine', 'source', 'models', 'templates', 'Qwen-Qwen2.5-7B-Instruct.jinja');
const seed = Number(process.env.KVASIR_SEED ?? Date.now() % 1e9);
const tool = (name, properties, more = {}) => ({
  type: 'function',
  function: { name, description: `Calls ${name}`, parameters: { type: 'object', properties, required: Object.keys(properties), additionalProperties: false }, ...more },
});
const weather = tool('get_weather', { city: { type: 'string' }, days: { type: 'integer' } });
const clock = tool('get_time', { zone: { type: 'string' } });
// as the template writes it, with blanks behind commas and colons
const spaced = (value) => (typeof value === 'object'
  ? `{${Object.entries(value).map(([k, v]) => `${JSON.stringify(k)}: ${spaced(v)}`).join(', ')}}` : JSON.stringify(value));
const call = (name, args) => `<tool_call>\n${spaced({ name, arguments: args })}\n</tool_call>`;
const ask = [{ role: 'user', content: 'Weather in Paris?' }];

describe('tool calls', () => {
  let server, client;
  before(async () => {
    server = await startServer({
      args: ['-m', model('tiny/llama.gguf'), '-c', '16384', '-np', '2', '-kvu', '-fa', 'off', '-t', '1', '--test-sampler', '--chat-template-file', template],
    });
    client = new OpenAI({ apiKey: 'none', baseURL: `${server.url}/v1`, maxRetries: 0 });
  });
  after(() => server.stop());

  const played = (play, more = {}) => ({ model: 'any', messages: ask, tools: [weather, clock], kvasir: { play }, ...more });
  const prompt = async (body) => {
    const response = await fetch(`${server.url}/apply-template`, { method: 'POST', body: JSON.stringify({ messages: ask, tools: [weather, clock], ...body }) });
    return (await response.json()).prompt;
  };

  it('refuse to continue what is nested deeper than a grammar is followed', async () => {
    const begun = (n) => client.chat.completions.create({
      model: 'any', messages: [...ask, { role: 'assistant', content: `<tool_call>\n{"name": "get_weather", "arguments": {"city": ${'['.repeat(n)}` }],
      tools: [weather], tool_choice: 'required', max_tokens: 1,
    });
    await assert.rejects(begun(2000), (e) => e.status === 400 && e.param === 'messages' && /more than 500 brackets/.test(e.message));
  });

  it('are told as text where they are nested deeper', async () => {
    const text = (n) => `<tool_call>\n{"name": "get_weather", "arguments": {"city": ${'['.repeat(n)}`;
    for (const [n, calls] of [[400, 1], [600, 0]]) {
      const { choices: [{ message }] } = await client.chat.completions.create(played(text(n)));
      assert.equal(message.tool_calls?.length ?? 0, calls);
      if (!calls) assert.equal(message.content, text(n), 'nothing of it is lost');
    }
  });

  it('are the same in a stream and as a whole, one and several at once', async () => {
    const texts = [
      [call('get_weather', { city: 'Paris', days: 2 }), 1, ''],
      [`Let me look.\n${call('get_weather', { city: 'Zürich "Old" \\ Town', days: 2 })}`, 1, 'Let me look.'],
      [`${call('get_weather', { city: 'Paris', days: 1 })}\n${call('get_time', { zone: 'CET' })}`, 2, ''],
    ];
    for (const [play, n, content] of texts) {
      const whole = await client.chat.completions.create(played(play, { parallel_tool_calls: true }));
      const [choice] = whole.choices;
      assert.equal(choice.finish_reason, 'tool_calls', play);
      assert.equal(choice.message.tool_calls.length, n);
      assert.equal((choice.message.content ?? '').trim(), content);
      const stream = client.chat.completions.stream(played(play, { parallel_tool_calls: true, stream_options: { include_usage: true } }));
      const done = [];
      stream.on('tool_calls.function.arguments.done', (event) => done.push(event.name));
      const final = await stream.finalChatCompletion();
      const shape = (m) => [m.content ?? '', m.tool_calls.map((c) => [c.type, c.function.name, JSON.parse(c.function.arguments)])];
      assert.deepEqual(shape(final.choices[0].message), shape(choice.message));
      assert.equal(final.choices[0].finish_reason, 'tool_calls');
      assert.equal(done.length, n);
      assert.equal(final.usage.completion_tokens, whole.usage.completion_tokens);
      const ids = final.choices[0].message.tool_calls.map((c) => c.id);
      assert.ok(ids.every((id) => id.length >= 9) && new Set(ids).size === n);
    }
  });

  it('a cut call is told as far as it goes, and ends with length', async () => {
    const whole = await client.chat.completions.create(played(call('get_weather', { city: 'Paris', days: 2 }), { max_tokens: 55 }));
    assert.equal(whole.choices[0].finish_reason, 'length');
  });

  it('runTools comes to an end, streamed and not', async () => {
    for (const stream of [false, true]) {
      const asked = [];
      let turn = 0;
      // the played answer changes between the requests that the helper makes by itself
      const fetcher = async (url, init) => {
        const body = JSON.parse(init.body);
        body.kvasir = { play: turn++ === 0 ? call('get_weather', { city: 'Paris', days: 1 }) : 'Sunny.' };
        const headers = new Headers(init.headers);
        headers.delete('content-length');
        return fetch(url, { ...init, headers, body: JSON.stringify(body) });
      };
      const own = new OpenAI({ apiKey: 'none', baseURL: `${server.url}/v1`, maxRetries: 0, fetch: fetcher });
      const runner = own.chat.completions.runTools({
        model: 'any', messages: ask, stream,
        tools: [{
          type: 'function',
          function: { ...weather.function, parse: JSON.parse, function: (args) => { asked.push(args); return 'sunny'; } },
        }],
      });
      assert.equal(await runner.finalContent(), 'Sunny.');
      assert.deepEqual(asked, [{ city: 'Paris', days: 1 }]);
      assert.equal(turn, 2);
    }
  });

  it('the next turn reads the call from what was computed', async () => {
    const first = await client.chat.completions.create(played(call('get_weather', { city: 'Paris', days: 2 })));
    const { message } = first.choices[0];
    const messages = [...ask, message, { role: 'tool', tool_call_id: message.tool_calls[0].id, content: 'sunny' }];
    const next = await client.chat.completions.create(played('Sunny.', { messages }));
    assert.ok(next.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens + first.usage.completion_tokens - 1,
      JSON.stringify([first.usage, next.usage]));
  });

  it('tool_choice none gives text; a named tool and allowed_tools leave the prompt as it is', async () => {
    const none = await client.chat.completions.create(played('No.', { tool_choice: 'none' }));
    assert.equal(none.choices[0].message.content, 'No.');
    assert.equal(none.choices[0].message.tool_calls, undefined);
    const all = await prompt({});
    assert.match(all, /get_weather[\s\S]*get_time/);
    assert.equal(await prompt({ tool_choice: 'required' }), all);
    assert.equal(await prompt({ tool_choice: { type: 'function', function: { name: 'get_time' } } }), all);
    assert.equal(await prompt({ tool_choice: { type: 'allowed_tools', allowed_tools: { mode: 'auto', tools: [{ type: 'function', function: { name: 'get_time' } }] } } }), all);
  });
});

describe('tool calls of SmolLM2', { skip: noRealModel }, () => {
  let server;
  before(async () => {
    server = await startServer({ args: ['-m', smollm2, '-c', '4096', '-np', '10', '-kvu', '-fa', 'off'] });
  });
  after(() => server.stop());

  // few tokens a call: at temperature 1 most samples cost a walk of the grammar over the vocabulary
  const book = tool('book', { n: { type: 'integer', minimum: 1, maximum: 12 }, day: { enum: ['monday', 'friday'] } });
  const other = tool('cancel', { id: { type: 'integer', minimum: 0, maximum: 99 } });

  async function request(i, choice) {
    const response = await fetch(`${server.url}/v1/chat/completions`, {
      method: 'POST',
      body: JSON.stringify({
        messages: [{ role: 'user', content: 'A table for us, please.' }], tools: [book, other], tool_choice: choice, temperature: 1, seed: seed + i, max_tokens: 100,
      }),
    });
    const body = await response.text();
    assert.equal(response.status, 200, body);
    return JSON.parse(body).choices[0];
  }

  it('50 of 50 follow their schema when a call is required', async () => {
    const ajv = new Ajv();
    const checks = { book: ajv.compile(book.function.parameters), cancel: ajv.compile(other.function.parameters) };
    const waiting = Array.from({ length: 50 }, (_, i) => i);
    const worker = async () => {
      for (let i; (i = waiting.shift()) !== undefined;) {
        const named = i % 5 === 0;
        const choice = await request(i, named ? { type: 'function', function: { name: 'cancel' } } : 'required');
        const told = `${JSON.stringify(choice)} (KVASIR_SEED=${seed}, call ${i})`;
        assert.equal(choice.finish_reason, 'tool_calls', told);
        assert.equal(choice.message.tool_calls.length, 1, told);
        const { name, arguments: args } = choice.message.tool_calls[0].function;
        if (named) assert.equal(name, 'cancel', told);
        assert.ok(checks[name](JSON.parse(args)), `${told}: ${ajv.errorsText(checks[name].errors)}`);
      }
    };
    await Promise.all(Array.from({ length: 10 }, worker)); // many a batch: a token of each costs little more than one
  });
});
