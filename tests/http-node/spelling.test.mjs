// What was spelled here first is spelled so again: tools, calls and the blanks of answers (docs/canonicalise.md). What that
// saves, scenario-shapes.mjs counts (S20, F5, F6); here is whose spellings they are, how long they stay, what switches them
// off, and what is never taken for the same.
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { model, root, startServer } from './server.mjs';
import { args, cacheTool, Folders } from './scenario.mjs';

const folders = new Folders();
after(() => folders.remove());

const template = path.join(root, 'build', 'engine', 'source', 'models', 'templates', 'Qwen-Qwen3-0.6B.jinja');
const options = (...more) => [...args('full', '--chat-template-file', template, '-np', '1'), ...more];

const find = { type: 'function', function: { name: 'find', description: 'Finds.', parameters: {
  type: 'object', properties: { z: { type: 'string', maxLength: 5 }, a: { type: 'integer', minimum: 1, maximum: 9 } }, required: ['z', 'a'] } } };

/** The same with the keys of every object the other way round. */
function turned(v) {
  if (Array.isArray(v)) return v.map(turned);
  if (v === null || typeof v !== 'object') return v;
  return Object.fromEntries(Object.entries(v).reverse().map(([k, x]) => [k, turned(x)]));
}

async function ask(server, where, body, headers = {}) {
  const response = await fetch(server.url + where, { method: 'POST', headers, body: JSON.stringify(body) });
  return { status: response.status, json: await response.json() };
}

async function prompt(server, body, headers) {
  const { status, json } = await ask(server, '/apply-template', body, headers);
  assert.equal(status, 200, JSON.stringify(json));
  return json.prompt;
}

async function chat(server, body, play, headers) {
  const { status, json } = await ask(server, '/v1/chat/completions', { max_tokens: 200, kvasir: { play }, ...body }, headers);
  assert.equal(status, 200, JSON.stringify(json));
  return json;
}

const question = { role: 'user', content: 'Where is it?' };
const result = (call) => ({ role: 'tool', tool_call_id: call.id, content: 'There.' });
const SAMPLED = '{"z": "k\\u00e9y", "a": 1}';
const calling = (sampled) => `<tool_call>\n{"name": "find", "arguments": ${sampled}}\n</tool_call>`;

/** A conversation with a call that the model made, as a client sends it back that spells its arguments anew. */
async function called(server, spelled, { headers, text = '', more = {} } = {}) {
  const got = await chat(server, { messages: [question], tools: [find], ...more }, `${text}${calling(SAMPLED)}`, headers);
  const { message } = got.choices[0];
  assert.equal(message.tool_calls.length, 1, JSON.stringify(message));
  const [call] = message.tool_calls;
  return { message, messages: [question, { ...message, tool_calls: [{ ...call, function: { ...call.function, arguments: spelled } }] }, result(call)] };
}

const inOrder = (text) => text.includes('"z": "kéy", "a": 1}');
const asSent = (text) => text.includes('"a": 1') && !inOrder(text);
const SORTED = '{"a":1.0,   "z":"kéy"}';

describe('spellings', () => {
  const dir = folders.make();
  let server;
  const start = async (...more) => {
    server = await startServer({ args: options('--cache-dir', dir, '--cache-disk', '64M', ...more) });
  };
  before(() => start());
  after(() => server?.stop());

  it('tools and calls come as they were first, and the answer says which rules did it', async () => {
    const { messages } = await called(server, SORTED);
    const first = await prompt(server, { messages, tools: [find] });
    assert.ok(inOrder(first), first);
    assert.equal(await prompt(server, { messages, tools: [turned(find)] }), first);
    const told = await chat(server, { messages, tools: [turned(find)] }, 'Yes.');
    assert.deepEqual(told.kvasir.canonicalised, ['tool-calls', 'tool-schemas']);
    const plain = await chat(server, { messages: [question], tools: [find] }, 'Yes.');
    assert.equal(plain.kvasir.canonicalised, undefined);
    const metrics = await (await fetch(`${server.url}/metrics`)).text();
    assert.match(metrics, /kvasir_canonicalised_total\{rule="tool-calls"\} [1-9]/);
  });

  it("an answer's line break before a call is written as it was sampled, whatever the client made of it", async () => {
    const { messages } = await called(server, SAMPLED, { text: 'I look.\n\n\n' });
    const texts = ['I look.', 'I look.\n\n\n', ' I look. \n'].map((content) => [question, { ...messages[1], content }, messages[2]]);
    for (const one of texts) {
      const text = await prompt(server, { messages: one, tools: [find] });
      assert.ok(text.includes(`I look.\n\n\n${calling('{')}`.split('{"name"')[0]), text);
    }
    const told = await chat(server, { messages: texts[0], tools: [find] }, 'Yes.');
    assert.ok(told.kvasir.canonicalised.includes('assistant-text'), JSON.stringify(told.kvasir));
  });

  it('a killed server knows them again', async () => {
    await server.stop('SIGKILL');
    await start();
    const messages = [question, { role: 'assistant', content: null, tool_calls: [{ id: 'x', type: 'function', function: { name: 'find', arguments: SORTED } }] },
      result({ id: 'x' })];
    assert.ok(inOrder(await prompt(server, { messages, tools: [turned(find)] })));
    assert.equal(await prompt(server, { messages, tools: [turned(find)] }), await prompt(server, { messages, tools: [find] }));
  });

  it('they are of their scope alone', async () => {
    const { messages } = await called(server, SORTED);
    const known = await prompt(server, { messages, tools: [turned(find)] });
    assert.ok(inOrder(known));
    const others = [[{ 'X-Kvasir-Scope': 'eu' }, {}], [{}, { cache_salt: 'salt' }]];
    for (const [headers, more] of others) {
      const text = await prompt(server, { messages, tools: [turned(find)], ...more }, headers);
      assert.ok(asSent(text), text);
      assert.ok(text.indexOf('"a": {') < text.indexOf('"z": {'), text);
    }
    assert.equal(await prompt(server, { messages, tools: [turned(find)] }), known);
  });

  it('who does not want the cache reads and leaves nothing there', async () => {
    const { messages } = await called(server, SORTED);
    for (const off of [{ cache_prompt: false }, { kvasir: { store: false } }])
      assert.ok(asSent(await prompt(server, { messages, tools: [find], ...off })));
    const other = structuredClone(messages);
    other[1].tool_calls[0].function.arguments = '{"a":2,"z":"new"}';
    await prompt(server, { messages: other, tools: [find], cache_prompt: false });
    other[1].tool_calls[0].function.arguments = '{"z":"new","a":2}';
    assert.ok((await prompt(server, { messages: other, tools: [find] })).includes('{"z": "new", "a": 2}'));
  });

  it('arguments that are not the same are left alone, and none of them ends anything', async () => {
    const { messages } = await called(server, SORTED);
    const deep = `${'['.repeat(200)}1${']'.repeat(200)}`;
    const list = ['{"z":"kéy","a":2}', '{"a":9007199254740993,"z":"kéy"}', '{"a":9007199254740992,"z":"kéy"}', '{"a":-0,"z":"kéy"}', '{"a":0,"z":"kéy"}',
      '{"a":1e400,"z":"kéy"}', '{"a":1,"a":1,"z":"kéy"}', '{"a":1,"z":"kéy"', '', 'null', `{"a":${deep},"z":"kéy"}`, '{"a":1,"z":"k\\ud800y"}',
      `{"a":1,"z":"${'x'.repeat(100_000)}"}`, '{"a":1,"z":"\\u0000"}'];
    for (const text of list) {
      const body = structuredClone(messages);
      body[1].tool_calls[0].function.arguments = text;
      for (let i = 0; i < 2; i++) {
        const { status, json } = await ask(server, '/apply-template', { messages: body, tools: [find] });
        assert.ok(status === 200 || status === 400, `${status} for ${text.slice(0, 80)}`);
        if (status === 200) assert.ok(!inOrder(json.prompt), `${text.slice(0, 80)} became ${json.prompt}`);
      }
    }
  });

  it('Ollama and Messages know what chat completions learnt', async () => {
    const { messages } = await called(server, SORTED);
    const input = JSON.parse(SORTED);
    const anthropic = await ask(server, '/v1/messages', { model: 'any', max_tokens: 5, kvasir: { play: 'Yes.' },
      tools: [{ name: 'find', input_schema: find.function.parameters, description: 'Finds.' }],
      messages: [question, { role: 'assistant', content: [{ type: 'tool_use', id: 'toolu_1', name: 'find', input }] },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'toolu_1', content: 'There.' }] }] });
    assert.deepEqual(anthropic.json.kvasir.canonicalised, ['tool-calls'], JSON.stringify(anthropic.json));
    const ollama = await ask(server, '/api/chat', { model: path.basename(model('tiny/llama.gguf')).replace('.gguf', ''), stream: false, options: { num_predict: 2 },
      tools: [find], messages: [question, { role: 'assistant', content: '', tool_calls: [{ function: { name: 'find', arguments: input } }] },
        { role: 'tool', tool_name: 'find', content: 'There.' }] });
    assert.equal(ollama.status, 200, JSON.stringify(ollama.json));
    if (ollama.json.kvasir) assert.deepEqual(ollama.json.kvasir.canonicalised, ['tool-calls']);
    assert.ok(inOrder(await prompt(server, { messages, tools: [find] })));
  });

  it('they are erased with the cache, by the server and from outside', async () => {
    const { messages } = await called(server, SORTED);
    assert.ok(inOrder(await prompt(server, { messages, tools: [find] })));
    const response = await fetch(`${server.url}/kvasir/cache?scope=default`, { method: 'DELETE' });
    assert.equal(response.status, 200);
    assert.ok(asSent(await prompt(server, { messages, tools: [find] })));
    await called(server, SORTED);
    await server.stop();
    const { code } = await cacheTool(dir, 'rm', '--all');
    assert.equal(code, 0);
    await start();
    assert.ok(asSent(await prompt(server, { messages, tools: [find] })));
  });

  it('each rule is switched off by its name, and all of them by none and by --exact', async () => {
    for (const [off, calls, schemas] of [[['--canonicalise', 'tool-schemas'], false, true], [['--canonicalise', 'none'], false, false], [['--exact'], false, false]]) {
      await server.stop();
      await start(...off);
      const { messages } = await called(server, SORTED);
      const [text, again] = [await prompt(server, { messages, tools: [find] }), await prompt(server, { messages, tools: [turned(find)] })];
      assert.equal(inOrder(text), calls, `${off}: ${text}`);
      assert.equal(text === again, schemas, `${off}`);
    }
  });
});

describe('spellings where the template knows no tools', () => {
  let server;
  before(async () => { server = await startServer({ args: args('full', '--chat-template', 'chatml') }); });
  after(() => server?.stop());

  it('a required call is held to tools in whatever order of keys', async () => {
    for (const tool of [find, turned(find), find]) {
      const got = await chat(server, { messages: [question], tools: [tool], tool_choice: 'required', temperature: 0, kvasir: {} });
      const { message, finish_reason } = got.choices[0];
      assert.equal(finish_reason, 'tool_calls', JSON.stringify(got));
      const given = JSON.parse(message.tool_calls[0].function.arguments);
      assert.deepEqual(Object.keys(given).sort(), ['a', 'z']);
      assert.ok(given.a >= 1 && given.a <= 9 && typeof given.z === 'string', message.tool_calls[0].function.arguments);
      assert.deepEqual(got.kvasir.canonicalised, tool === find ? undefined : ['tool-schemas']);
    }
  });
});
