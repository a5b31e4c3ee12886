// The official `openai` client against kvasir: what an application written for OpenAI does first.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import OpenAI from 'openai';
import { fake, modelArgs, noRealModel, startServer } from './server.mjs';

const skipAll = fake ? false : noRealModel;
const messages = [
  { role: 'system', content: 'You answer in one short sentence.' },
  { role: 'user', content: 'What is the capital of France?' },
];

describe('the openai client', { skip: skipAll }, () => {
  let server;
  let client;
  before(async () => {
    server = await startServer({ args: modelArgs('-c', '2048', '-np', '2') });
    client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'unused', maxRetries: 0 });
  });
  after(async () => {
    const { code } = await server.stop();
    assert.equal(code, 0, server.log());
  });

  test('lists the model', async () => {
    const list = await client.models.list();
    assert.equal(list.data.length, 1);
    assert.equal(list.data[0].object, 'model');
    assert.equal(list.data[0].max_model_len, 2048 / 2);
  });

  test('retrieves the model, and no other', async () => {
    const [listed] = (await client.models.list()).data;
    const one = await client.models.retrieve(listed.id);
    assert.deepEqual({ ...one, ...listed }, one);
    for (const where of ['/models/', '/v1/models/'])
      assert.deepEqual(await (await fetch(`${server.url}${where}${encodeURIComponent(listed.id)}`)).json(), one);
    for (const name of ['gpt-5', 'someone/else', `${listed.id}/more`]) {
      const error = await client.models.retrieve(name).then(() => assert.fail(name), (e) => e);
      assert.equal(error.status, 404);
      assert.equal(error.code, 'model_not_found');
      assert.ok(error.message.includes(`'${name}'`), error.message);
    }
  });

  test('chats', async () => {
    const answer = await client.chat.completions.create({ model: 'any', messages, max_tokens: 24, temperature: 0 });
    assert.equal(answer.object, 'chat.completion');
    assert.equal(answer.choices.length, 1);
    assert.equal(answer.choices[0].message.role, 'assistant');
    assert.ok(['stop', 'length'].includes(answer.choices[0].finish_reason));
    assert.ok(answer.usage.prompt_tokens > 10);
    assert.ok(answer.usage.completion_tokens >= 1 && answer.usage.completion_tokens <= 24);
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  });

  test('knows a capital', { skip: noRealModel }, async () => {
    const answer = await client.chat.completions.create({ model: 'any', messages, max_tokens: 24, temperature: 0 });
    assert.match(answer.choices[0].message.content, /Paris/);
  });

  test('streams what it says when not streaming', async () => {
    const request = { model: 'any', messages, max_tokens: 24, temperature: 0, seed: 1 };
    const whole = await client.chat.completions.create(request);
    const stream = await client.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } });
    let text = '';
    let finish = null;
    let usage = null;
    let role = null;
    const ids = new Set();
    for await (const chunk of stream) {
      ids.add(chunk.id);
      assert.equal(chunk.object, 'chat.completion.chunk');
      const choice = chunk.choices[0];
      role ??= choice?.delta.role;
      text += choice?.delta.content ?? '';
      finish = choice?.finish_reason ?? finish;
      usage = chunk.usage ?? usage;
    }
    assert.equal(role, 'assistant');
    assert.equal(ids.size, 1);
    assert.equal(text, whole.choices[0].message.content ?? '');
    assert.equal(finish, whole.choices[0].finish_reason);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  });

  test('gives the second answer over a shared prompt from what it holds', async () => {
    const long = [{ role: 'system', content: 'Facts. '.repeat(100) }];
    const ask = (content) => client.chat.completions.create({
      model: 'any', messages: [...long, { role: 'user', content }], max_tokens: 2, temperature: 0,
    });
    const first = await ask('One?');
    const second = await ask('Two?');
    assert.ok(first.usage.prompt_tokens > 150);
    assert.ok(second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens / 2);
    assert.ok(second.usage.prompt_tokens_details.cached_tokens < second.usage.prompt_tokens);
  });

  test('completes', async () => {
    const request = { model: 'any', prompt: 'The capital of France is', max_tokens: 6, temperature: 0 };
    const whole = await client.completions.create(request);
    assert.equal(whole.object, 'text_completion');
    assert.equal(typeof whole.choices[0].text, 'string');
    let text = '';
    for await (const chunk of await client.completions.create({ ...request, stream: true })) {
      text += chunk.choices[0]?.text ?? '';
    }
    assert.equal(text, whole.choices[0].text);
  });

  test('gives n choices', async () => {
    const answer = await client.chat.completions.create({ model: 'any', messages, max_tokens: 4, n: 2 });
    assert.deepEqual(answer.choices.map((c) => c.index).sort(), [0, 1]);
  });

  test('stops before a stop string', async () => {
    const request = { model: 'any', prompt: 'Count: 1, 2, 3,', max_tokens: 32, temperature: 0 };
    const whole = (await client.completions.create(request)).choices[0].text;
    const stop = whole.slice(Math.floor(whole.length / 2), Math.floor(whole.length / 2) + 2);
    const cut = await client.completions.create({ ...request, stop });
    assert.equal(cut.choices[0].text, whole.slice(0, whole.indexOf(stop)));
    assert.equal(cut.choices[0].finish_reason, 'stop');
  });

  test('clamps max_tokens to the room left', async () => {
    const answer = await client.chat.completions.create({ model: 'any', messages, max_tokens: 1_000_000_000, stop: ['e', 'a', ' '] });
    assert.ok(['stop', 'length'].includes(answer.choices[0].finish_reason));
  });

  test('says what is wrong in a form that the client understands', async () => {
    const bad = [
      [{ messages: undefined }, 'messages'],
      [{ temperature: 'hot' }, 'temperature'],
      [{ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:image/png;base64,AA==' } }] }] }, 'image'],
    ];
    for (const [part, names] of bad) {
      const error = await client.chat.completions.create({ model: 'any', messages, max_tokens: 2, ...part }).then(
        () => assert.fail(`accepted ${JSON.stringify(part)}`), (e) => e);
      assert.ok(error instanceof OpenAI.APIError, String(error));
      assert.ok(error.status >= 400 && error.status < 500 || error.status === 501, `${error.status} ${error.message}`);
      assert.match(error.message, new RegExp(names));
    }
    const error = await client.chat.completions.create({
      model: 'any', messages: [{ role: 'user', content: 'word '.repeat(3000) }],
    }).then(() => assert.fail('accepted a prompt past the context'), (e) => e);
    assert.equal(error.status, 400);
    assert.equal(error.code, 'context_length_exceeded');
    assert.equal(error.type, 'exceed_context_size_error');
    assert.match(error.message, /exceeds the available context size/);
    assert.match(error.message, /maximum context length is 1024 tokens/);
    // and the next request works
    const answer = await client.chat.completions.create({ model: 'any', messages, max_tokens: 1 });
    assert.equal(answer.usage.completion_tokens, 1);
  });

  test('a client that goes away frees its place', async () => {
    const gone = new AbortController();
    const stream = await client.chat.completions.create(
      { model: 'any', messages, max_tokens: 900, ignore_eos: true, stream: true }, { signal: gone.signal });
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta.content) break; // which hangs up
    }
    gone.abort();
    // With both slots needed, the next two can only finish because the first was cancelled.
    const both = await Promise.all([1, 2].map(() => client.chat.completions.create({ model: 'any', messages, max_tokens: 2 })));
    assert.equal(both.length, 2);
  });
});
