// What clients change without meaning is undone before the cache is asked (docs/canonicalise.md), and what else they
// change is named: S19, F1, F2, F3 and F4 of docs/scenarios.md through three APIs, which must cost the same.
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { args, atMost, Folders, G, generator, greedyRaw, kinds, seed, words } from './scenario.mjs';
import { runKvasir, startServer } from './server.mjs';

const folders = new Folders();
after(() => folders.remove());

/* ── three APIs ── */

const tool = (name, description = `Does ${name}.`) => ({ name, description, parameters: { type: 'object', properties: { key: { type: 'string' } } } });

/** A conversation: { system, tools, messages: [{ role, content, call, result }] }. A call is { id, name, args }. */
const apis = {
  chat: {
    path: '/v1/chat/completions',
    body: ({ system, tools, messages }) => ({
      messages: [...(system ? [{ role: 'system', content: system }] : []), ...messages.map((m) => {
        if (m.result) return { role: 'tool', tool_call_id: m.result, content: m.content };
        if (m.call) return { role: 'assistant', content: m.content ?? '', tool_calls: [{ id: m.call.id, type: 'function', function: { name: m.call.name, arguments: m.call.args } }] };
        return { role: m.role, content: m.content };
      })],
      ...(tools ? { tools: tools.map((f) => ({ type: 'function', function: f })) } : {}),
      max_tokens: 400,
    }),
    prompt: (json) => json.usage.prompt_tokens,
  },
  messages: {
    path: '/v1/messages',
    body: ({ system, tools, messages }) => ({
      model: 'any', max_tokens: 400,
      // Claude Code's own way: the line is a block, the rest another
      ...(system ? { system: system.split('\n').map((text) => ({ type: 'text', text })) } : {}),
      ...(tools ? { tools: tools.map(({ name, description, parameters }) => ({ name, description, input_schema: parameters })) } : {}),
      messages: messages.map((m) => {
        if (m.result) return { role: 'user', content: [{ type: 'tool_result', tool_use_id: m.result, content: m.content }] };
        if (m.call) return { role: 'assistant', content: [{ type: 'tool_use', id: m.call.id, name: m.call.name, input: JSON.parse(m.call.args) }] };
        return { role: m.role, content: [{ type: 'text', text: m.content }] };
      }),
    }),
    prompt: (json) => json.usage.input_tokens + json.usage.cache_read_input_tokens + json.usage.cache_creation_input_tokens,
  },
  responses: {
    path: '/v1/responses',
    body: ({ system, tools, messages }) => ({
      model: 'any', store: false, max_output_tokens: 400,
      ...(system ? { instructions: system } : {}),
      ...(tools ? { tools: tools.map((f) => ({ type: 'function', ...f })) } : {}),
      input: messages.map((m) => {
        if (m.result) return { type: 'function_call_output', call_id: m.result, output: m.content };
        if (m.call) return { type: 'function_call', call_id: m.call.id, name: m.call.name, arguments: m.call.args };
        return { type: 'message', role: m.role, content: [{ type: m.role === 'assistant' ? 'output_text' : 'input_text', text: m.content }] };
      }),
    }),
    prompt: (json) => json.usage.input_tokens,
  },
};

async function send(server, where, body, headers = {}) {
  const response = await fetch(server.url + where, { method: 'POST', headers, body: JSON.stringify(body) });
  return { status: response.status, json: await response.json() };
}

const render = async (server, conversation) => (await send(server, '/apply-template', apis.chat.body(conversation))).json.prompt;

const tokens = async (server, content) => (await send(server, '/tokenize', { content, parse_special: true })).json.tokens.length;

/** Asks, with a played answer, in a scope of the API's own. */
async function ask(server, api, conversation, play, scope = api) {
  const { path, body, prompt } = apis[api];
  const { status, json } = await send(server, path, { ...body(conversation), kvasir: { play } }, { 'x-kvasir-scope': scope });
  assert.equal(status, 200, `${api}: ${JSON.stringify(json)}`);
  const { cached, computed, miss, canonicalised } = json.kvasir;
  assert.equal(cached.engine + cached.ram + cached.disk + computed, prompt(json), `${api}: ${JSON.stringify(json.kvasir)}`);
  return { prompt: prompt(json), computed, miss, canonicalised, json };
}

/* ── what changes ── */

const nonce = (rnd, n) => Array.from({ length: n }, () => '0123456789abcdef'[rnd(16)]).join('');
/** As an agent says it: another hash in each request, and one in the version that each conversation has of its own. */
const billing = (rnd, version = '2.1.101.e51') => `x-anthropic-billing-header: cc_version=${version}; cc_entrypoint=cli; cch=${nonce(rnd, 5)};`;
const user = (content) => ({ role: 'user', content });
const assistant = (content) => ({ role: 'assistant', content });
/** The most that one more message costs: it, the answer's edge, and the generation prompt (S2). */
const oneMore = (content, edge = 8) => content.length + 8 + G + edge;

for (const kind of Object.keys(kinds)) for (const life of ['in memory', 'restarted']) {
  describe(`${life}, ${kind}`, () => {
    const more = life === 'restarted' ? ['--cache-dir', folders.make()] : [];
    let server, others = 0;
    before(async () => {
      server = await startServer({ args: args(kind, ...more) });
    });
    after(() => server?.stop());

    /** Between two requests others take every slot, or the server is another one. */
    async function meanwhile() {
      if (life === 'restarted') {
        await server.stop();
        server = await startServer({ args: args(kind, ...more) });
        return;
      }
      for (let i = 0; i < 3; i++) await greedyRaw(server, String.fromCharCode(33 + others++ % 27) + words(generator(), 40), 2);
    }

    /** The same steps through each API: `steps` yields what a request cost, and others come before the next one. All
     * must cost the same. */
    async function each(steps) {
      const running = Object.keys(apis).map((api) => ({ api, steps: steps(api), counts: [], done: false }));
      for (let n = 0; !running[0].done; n++) {
        if (n > 0) await meanwhile();
        for (const r of running) {
          const { done, value } = await r.steps.next();
          r.done = done;
          if (!done) r.counts.push(value);
        }
      }
      for (const { api, counts } of running) assert.deepEqual(counts, running[0].counts, `${api} (KVASIR_SEED=${seed})`);
      assert.ok(running.every((r) => r.done));
    }

    it('S19, F1: a billing line whose hashes change with each request', async () => {
      const long = words(generator(), 250);
      const tools = [tool('look_up')];
      await each(async function* (api) {
        const rnd = generator();
        const messages = [user(`What is this? ${api}`.slice(0, 14))];
        for (let turn = 0; turn < 2; turn++) {
          const got = await ask(server, api, { system: `${billing(rnd)}\n${long}`, tools, messages }, `Answer ${turn}.`);
          assert.deepEqual(got.canonicalised, ['billing-header'], api);
          if (turn > 0) atMost(got.computed, oneMore(messages.at(-1).content), `${api}, turn ${turn}`);
          messages.push(assistant(`Answer ${turn}.`), user(`And number ${turn}?`));
          yield got.computed;
        }
        // another conversation, whose version has another hash: system prompt and tools are there
        const other = await ask(server, api, { system: `${billing(rnd, '2.1.101.0d9')}\n${long}`, tools, messages: [user('Else?')] }, 'No.');
        atMost(other.computed, oneMore('Else?'), `${api}, another conversation`);
        yield other.computed;
      });
    });

    // What is not reused is not, whatever happens between two requests.
    if (life === 'in memory') it('F1 without the rule: all of it, and the reason shows the line', async () => {
      const off = await startServer({ args: args(kind, '--canonicalise', 'none') });
      const long = words(generator(), 200);
      try {
        for (const api of Object.keys(apis)) {
          const lines = ['a5145', 'fa690'].map((cch) => billing(() => 0).replace('cch=00000', `cch=${cch}`));
          await ask(off, api, { system: `${lines[0]}\n${long}`, messages: [user('Hello')] }, 'Yes.');
          const got = await ask(off, api, { system: `${lines[1]}\n${long}`, messages: [user('Hello'), assistant('Yes.'), user('Again')] }, 'Yes.');
          assert.equal(got.canonicalised, undefined);
          assert.ok(got.computed >= 200, `${api}: ${got.computed}`);
          const at = lines[1].indexOf('fa690');
          assert.match(got.miss.hint, new RegExp(`^the system prompt differs from byte ${at} on, at what looks like an id \\(fa690\\)`), api);
          assert.ok(got.miss.hint.includes(lines[1]), `${api}: ${got.miss.hint}`);
          assert.ok(!JSON.stringify(got.json).includes('a5145'), 'nothing of what is stored');
        }
      } finally {
        await off.stop();
      }
    });

    it('S19: what no rule knows is named', async () => {
      const long = words(generator(), 200);
      const conversation = (now, more = []) => ({ system: `You help.\nCurrent time: ${now}\n${long}`, messages: [user('Hello'), ...more] });
      await each(async function* (api) {
        const first = await ask(server, api, conversation('2026-11-30T02:15:07Z'), 'Yes.', `time-${api}`);
        assert.equal(first.canonicalised, undefined);
        yield first.computed;
        const got = await ask(server, api, conversation('2026-11-30T02:15:42Z', [assistant('Yes.'), user('Again')]), 'Yes.', `time-${api}`);
        assert.match(got.miss.hint, /^the system prompt differs from byte 41 on, at what looks like a time \(2026-11-30T02:15:42Z\), in the line "Current time: 2026/, api);
        assert.ok(!got.miss.hint.includes(':07'), 'nothing of what is stored');
        yield got.computed;
      });
      // the same again misses nothing, a new question is no mutation
      const again = conversation('2026-11-30T02:15:42Z', [assistant('Yes.'), user('Again')]);
      assert.equal((await ask(server, 'chat', again, 'Yes.', 'time-chat')).miss, null);
      again.messages.push(assistant('Yes.'), user('What happened on 2026-11-30 at 02:15?'));
      const next = await ask(server, 'chat', again, 'Yes.', 'time-chat');
      assert.equal(next.miss?.hint, undefined, JSON.stringify(next.miss));
    });

    it('F2: tools in another order; one server\'s tools vanish and return', async () => {
      const list = ['alpha', 'beta', 'gamma', 'delta', 'epsilon'].map((name) => tool(name, words(generator(), 20)));
      const order = (...at) => at.map((i) => list[i]);
      const system = words(generator(), 60);
      await each(async function* (api) {
        const scope = `tools-${api}`;
        const messages = [user('Hello')];
        yield (await ask(server, api, { system, tools: order(0, 1, 2, 3, 4), messages }, 'Yes.', scope)).computed;
        // another order: D = the first tool that moved
        const moved = { system, tools: order(0, 2, 1, 3, 4), messages: [...messages, assistant('Yes.'), user('Again')] };
        const text = await render(server, moved);
        const behind = await tokens(server, text.slice(text.indexOf('"gamma"') + 1));
        const got = await ask(server, api, moved, 'Yes.', scope);
        atMost(got.computed, kind === 'full' ? behind : got.prompt, `${api}: moved`);
        assert.match(got.miss.hint, /^the tools differ from the 2nd on \(gamma\)/, api);
        yield got.computed;
        // some are gone for a turn, while the conversation goes on
        moved.messages.push(assistant('Yes.'), user('Without?'));
        const without = { ...moved, tools: order(0, 2, 1) };
        const less = await ask(server, api, without, 'No.', scope);
        assert.match(less.miss.hint, /^the tools differ behind the 3rd \(beta\)/, api);
        yield less.computed;
        // and are back: only what was added meanwhile
        moved.messages.push(assistant('No.'), user('With?'));
        const back = await ask(server, api, moved, 'Yes.', scope);
        const added = moved.messages.slice(-4).reduce((sum, m) => sum + m.content.length + 30, 0);
        atMost(back.computed, added + G + 8, `${api}: returned`);
        yield back.computed;
      });
    });

    it('F3: a reminder that moves on with the newest message', async () => {
      const system = words(generator(), 60);
      const old = words(generator(), 150), next = words(generator(), 80), reminder = `\n[mode] ${words(generator(), 50)}`;
      await each(async function* (api) {
        const scope = `reminder-${api}`;
        yield (await ask(server, api, { system, messages: [user(old + reminder)] }, 'Yes.', scope)).computed;
        const got = await ask(server, api, { system, messages: [user(old), assistant('Yes.'), user(next + reminder)] }, 'Yes.', scope);
        const tail = '<|im_end|>\n'.length + '<|im_start|>assistant\nYes.<|im_end|>\n'.length + '<|im_start|>user\n'.length + next.length + reminder.length;
        // D = the end of the old text; where the state was kept at a message's beginning, that message again
        atMost(got.computed, tail + 2 * G + 8 + (kind === 'full' ? 0 : old.length + 8), api);
        yield got.computed;
      });
    });

    it('F4: a system message after each tool result', async () => {
      const system = words(generator(), 200), tools = [tool('look_up')];
      await each(async function* (api) {
        const scope = `budget-${api}`;
        const messages = [user('Look all of it up.')];
        for (let turn = 0; turn < 3; turn++) {
          const got = await ask(server, api, { system, tools, messages }, `<tool_call>\n{"name": "look_up", "arguments": {"key": "${turn}"}}\n</tool_call>`, scope);
          const added = turn ? messages.slice(-3) : [];
          const size = added.reduce((sum, m) => sum + (m.content?.length ?? 90) + 60, 0);
          if (turn) atMost(got.computed, size + G + 8, `${api}, turn ${turn}`);
          messages.push({ role: 'assistant', call: { id: `call_${turn}`, name: 'look_up', args: `{"key": "${turn}"}` } },
            { role: 'tool', result: `call_${turn}`, content: `result ${turn} ${words(generator(), 40)}`.slice(0, 40) },
            { role: 'system', content: `${4000 - turn} tokens left` });
          yield got.computed;
        }
      });
    });
  });
}

describe('system messages in the middle', () => {
  const at = [user('one'), assistant('two'), { role: 'system', content: 'NOTE' }, user('three')];

  it('stand where they stand, in each API', async () => {
    const server = await startServer({ args: args('full') });
    try {
      const text = await render(server, { system: 'FIRST', messages: at });
      const order = ['FIRST', 'one', 'two', 'NOTE', 'three'].map((s) => text.indexOf(s));
      assert.deepEqual(order, [...order].sort((a, b) => a - b), text);
      assert.match(text, /<\|im_start\|>system\nNOTE/);
      const counts = [];
      for (const api of Object.keys(apis)) counts.push((await ask(server, api, { system: 'FIRST', messages: at }, 'x', 'place')).computed);
      assert.deepEqual(counts.slice(1), [1, 1], 'the same prompt');
    } finally {
      await server.stop();
    }
  });

  it('are refused where the template does, with its words', async () => {
    const template = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
      + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    const server = await startServer({ args: args('full', '--chat-template', template) });
    try {
      for (const api of Object.keys(apis)) {
        await ask(server, api, { system: 'FIRST', messages: [user('one')] }, 'x');
        const { status, json } = await send(server, apis[api].path, apis[api].body({ system: 'FIRST', messages: at }));
        assert.equal(status, 400, api);
        assert.match(json.error.message, /System message must be at the beginning/, api);
      }
    } finally {
      await server.stop();
    }
  });
});

describe('rules', () => {
  let server;
  const line = billing(() => 10); // aaaaa
  before(async () => {
    server = await startServer({ args: args('full') });
  });
  after(() => server?.stop());

  it('leave alone who only quotes the line', async () => {
    for (const conversation of [
      { messages: [user(line)] },
      { system: 'You help.', messages: [user(`${line}\nWhat is that?`), assistant(line), user('More')] },
      { system: `You explain lines.\n${line}`, messages: [user('Hello')] },
    ]) {
      assert.ok((await render(server, conversation)).includes(line));
      assert.equal((await ask(server, 'chat', conversation, 'x')).canonicalised, undefined);
    }
    assert.ok((await render(server, { system: line, messages: [user('Hello')] })).includes('cc_version=2.1.101.000; cc_entrypoint=cli; cch=00000;'));
  });

  it('are counted', async () => {
    const count = async () => Number((await (await fetch(`${server.url}/metrics`)).text()).match(/^kvasir_canonicalised_total\{rule="billing-header"\} (\d+)$/m)[1]);
    const before = await count();
    await ask(server, 'chat', { system: line, messages: [user('Count')] }, 'x');
    assert.equal(await count(), before + 1);
  });

  it('stay with --exact where they follow from the request alone', async () => {
    const exact = await startServer({ args: args('full', '-np', '1', '--exact') });
    try {
      assert.deepEqual((await ask(exact, 'chat', { system: line, messages: [user('Hello')] }, 'x')).canonicalised, ['billing-header']);
    } finally {
      await exact.stop();
    }
  });

  it('are chosen by name', async () => {
    const chosen = await startServer({ args: args('full', '--canonicalise', 'tool-calls') });
    try {
      assert.ok((await render(chosen, { system: line, messages: [user('Hello')] })).includes(line));
    } finally {
      await chosen.stop();
    }
    const { code, stderr } = await runKvasir([...args('full'), '--canonicalise', 'dates']);
    assert.equal(code, 2);
    assert.match(stderr, /--canonicalise: got "dates".*billing-header.*tool-schemas/);
  });

  it('and hints stand in `kvasir why`, too', async () => {
    const long = words(generator(), 800);
    await ask(server, 'chat', { system: `Session 3f2504e0-4f89-11d3-9a0c-0305e82c3301\n${long}`, messages: [user('Hello')] }, 'x', 'why');
    const { json } = await ask(server, 'chat', { system: `Session 3f2504e0-4f89-11d3-9a0c-0305e82cabcd\n${long}`, messages: [user('Hello')] }, 'x', 'why');
    assert.match(json.kvasir.miss.hint, /looks like an id \(3f2504e0-4f89-11d3-9a0c-0305e82cabcd\)/);
    const { code, stdout } = await runKvasir(['why', '--url', server.url]);
    assert.equal(code, 0, stdout);
    assert.ok(stdout.includes(json.kvasir.miss.hint), stdout);
    const explained = await send(server, '/kvasir/explain', apis.chat.body({ system: `Session 3f2504e0-4f89-11d3-9a0c-999\n${long}`, messages: [user('Hello')] }), { 'x-kvasir-scope': 'why' });
    assert.match(explained.json.miss.hint, /^the system prompt differs from byte/);
  });
});
