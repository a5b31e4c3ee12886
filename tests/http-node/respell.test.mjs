// S21: what the model sampled is spelled by other tokens when it comes back. On the fake engine with SmolLM2's and
// Gemma's vocabularies, of each memory kind, through each API, in memory and after a restart: only what is new is computed,
// and the answer is that of a cold server to the same tokens.
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { model, noRealModel, smollm2, startServer } from './server.mjs';
import { events } from './sse.mjs';
import { atMost, Folders, generator, post, seed, words } from './scenario.mjs';

const folders = new Folders();
after(() => folders.remove());

const gemma = model('gemma-3-270m-q4_k_m.gguf');
const chatml = "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}"
  + "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";
const args = (kind, ...more) => ['--test-fake', kind, '-m', smollm2, '--chat-template', chatml, '-c', '8192', '-np', '2', '-kvu', '--test-sampler', ...more];

/** Of a text, or of several, each for itself. */
const tokenize = async (server, content) => (await post(server, '/tokenize', { content, add_special: false })).json.tokens;

/** The tokens of a text cut at random places: they spell it, but seldom as the tokeniser would. */
async function spelled(server, rnd, text) {
  const chars = [...text], parts = [];
  while (chars.length) parts.push(chars.splice(0, 1 + rnd(rnd(4) ? 3 : 9)).join(''));
  return tokenize(server, parts);
}

/** Text of more than one kind of letter. */
function prose(rnd, n) {
  const odd = ['naïve ', 'Grüße, ', '日本語 ', '👩‍🚀 ', '\n\n', 'f(x) == {1: "a"};\n', '…', '1234567 ', '   ', "don't "];
  let text = 'So ';
  while (text.length < n) text += rnd(4) ? words(rnd, 8 + rnd(20)).trim() + ' ' : odd[rnd(odd.length)];
  return `${text.trim()}.`;
}

/** One turn through an API: { text, prompt, computed, respelled }. */
const apis = {
  async chat(server, messages, more) {
    const { status, json } = await post(server, '/v1/chat/completions', { messages, ...more });
    assert.equal(status, 200, JSON.stringify(json));
    return { text: json.choices[0].message.content, prompt: json.usage.prompt_tokens, ...json.kvasir, json };
  },
  async messages(server, messages, more) {
    const { status, json } = await post(server, '/v1/messages', { model: 'm', max_tokens: 500, messages, ...more });
    assert.equal(status, 200, JSON.stringify(json));
    const u = json.usage, prompt = u.input_tokens + u.cache_read_input_tokens + u.cache_creation_input_tokens;
    return { text: json.content[0].text, prompt, ...json.kvasir, json };
  },
  async responses(server, messages, more) {
    const { status, json } = await post(server, '/v1/responses', { input: messages, store: false, ...more });
    assert.equal(status, 200, JSON.stringify(json));
    return { text: json.output[0].content[0].text, prompt: json.usage.input_tokens, ...json.kvasir, json };
  },
};

/** The counter of /metrics. */
async function respelled(server) {
  const metrics = await (await fetch(`${server.url}/metrics`)).text();
  return Number(/^kvasir_respelled_tokens_total (\d+)/m.exec(metrics)[1]);
}

/** Until nothing runs any more. */
async function idle(server) {
  for (;;) {
    const slots = await (await fetch(`${server.url}/slots`)).json();
    if (slots.every((s) => !s.is_processing)) return;
  }
}

const kinds = ['full', 'window', 'hybrid'];
const cold = {};
after(async () => {
  for (const server of Object.values(cold)) await (await server).stop();
});

/** What a server that remembers nothing answers to these tokens. */
async function coldAnswer(kind, prompt, n) {
  cold[kind] ??= startServer({ args: args(kind, '-cram', '0') });
  const { json } = await post(await cold[kind], '/completion', { prompt, n_predict: n, temperature: 0, return_tokens: true, ignore_eos: true });
  assert.equal(json.kvasir.computed, prompt.length);
  return json.tokens;
}

for (const kind of kinds) for (const life of ['in memory', 'restarted']) {
  describe(`other spellings, ${life}, ${kind}`, { skip: noRealModel }, () => {
    const more = life === 'restarted' ? ['--cache-dir', folders.make()] : [];
    let server;
    before(async () => {
      server = await startServer({ args: args(kind, ...more) });
    });
    after(() => server?.stop());

    async function meanwhile() {
      if (life === 'in memory') {
        for (let i = 0; i < 3; i++) await post(server, '/completion', { prompt: `${i} ${words(generator(), 60)}`, n_predict: 2 });
        return;
      }
      await server.stop();
      server = await startServer({ args: args(kind, ...more) });
    }

    for (const [api, turn] of Object.entries(apis)) it(`S21: answers that the tokeniser spells otherwise, ${api}`, async () => {
      const rnd = generator();
      const messages = [{ role: 'user', content: words(rnd, 300) }];
      let known = null; // tokens of the last prompt and its answer
      for (let i = 0; i < 4; i++) {
        if (i === 2) await meanwhile();
        const answer = prose(rnd, 150);
        const play = await spelled(server, rnd, answer);
        const got = await turn(server, messages, { kvasir: { play } });
        assert.equal(got.text, answer);
        if (known !== null) {
          atMost(got.computed, got.prompt - known, `S21: turn ${i}`);
          assert.ok(got.respelled > 0, `turn ${i}: ${JSON.stringify(got.json.kvasir)} (KVASIR_SEED=${seed})`);
        }
        known = got.prompt + play.length;
        messages.push({ role: 'assistant', content: answer }, { role: 'user', content: words(rnd, 60) });
      }
    });

    it('the answer is that of a cold server to the same tokens', async () => {
      const rnd = generator();
      const head = `<|im_start|>user\n${words(rnd, 200)}<|im_end|>\n<|im_start|>assistant\n`;
      const answer = prose(rnd, 300), play = await spelled(server, rnd, answer);
      const tail = `<|im_end|>\n<|im_start|>user\n${words(rnd, 50)}<|im_end|>\n<|im_start|>assistant\n`;
      const messages = [head, tail].map((text) => ({ role: 'user', content: /user\n(.*?)<\|im_end/.exec(text)[1] }));
      await apis.chat(server, messages.slice(0, 1), { kvasir: { play } });
      await meanwhile();
      const counted = await respelled(server);
      messages.splice(1, 0, { role: 'assistant', content: answer });
      const tokens = [...await tokenize(server, head), ...play, ...await tokenize(server, tail)];
      const explained = await post(server, '/kvasir/explain', { messages });
      assert.equal(explained.json.prompt_tokens, tokens.length);
      assert.ok(explained.json.respelled > 0);
      const got = await apis.chat(server, messages, { temperature: 0, max_tokens: 20, ignore_eos: true, logprobs: true });
      assert.equal(got.prompt, tokens.length);
      assert.equal(got.respelled, explained.json.respelled);
      const ids = got.json.choices[0].logprobs.content.map((t) => t.id);
      assert.deepEqual(ids, await coldAnswer(kind, tokens, 20), `KVASIR_SEED=${seed}`);
      assert.equal(await respelled(server) - counted, got.respelled);
    });

    it('an answer that was hung up on is continued from what the client has of it', async () => {
      const rnd = generator();
      const messages = [{ role: 'user', content: words(rnd, 200) }];
      const answer = prose(rnd, 1500), play = await spelled(server, rnd, answer);
      const gone = new AbortController();
      const response = await fetch(`${server.url}/v1/chat/completions`, { method: 'POST', signal: gone.signal,
        body: JSON.stringify({ messages, stream: true, kvasir: { play } }) });
      let part = '';
      await assert.rejects(async () => {
        for await (const { data } of events(response)) {
          if (!data || data === '[DONE]') continue;
          part += JSON.parse(data).choices[0]?.delta?.content ?? '';
          if (part.length > 200) gone.abort();
        }
      });
      await idle(server);
      await meanwhile();
      part = part.trimEnd();
      const whole = (await tokenize(server, part)).length;
      const got = await apis.chat(server, [...messages, { role: 'assistant', content: part }], { kvasir: { play: ' and so on' } });
      assert.ok(got.respelled > 0, JSON.stringify(got.json.kvasir));
      assert.equal(got.text, `${part} and so on`);
      // What cannot be cut is kept at the question, and where the answer was given up, which lies behind.
      atMost(got.computed, kind === 'full' ? 8 : play.length + whole, 'the partial answer');
    });
  });
}

describe('where nothing is taken over', { skip: noRealModel }, () => {
  const rnd = generator();
  const messages = [{ role: 'user', content: words(rnd, 300) }];
  const answer = prose(rnd, 200);

  /** The second turn of a conversation whose answer was spelled otherwise. */
  async function second(server, more = {}, headers = {}) {
    const play = await spelled(server, rnd, answer);
    const first = await apis.chat(server, messages, { kvasir: { play } });
    const next = [...messages, { role: 'assistant', content: answer }, { role: 'user', content: 'And then?' }];
    const response = await fetch(`${server.url}/v1/chat/completions`, { method: 'POST', headers, body: JSON.stringify({ messages: next, kvasir: { play: 'Yes.' }, ...more }) });
    const json = await response.json();
    return { first, play, next, json, kvasir: json.kvasir };
  }

  it('--exact', async () => {
    const server = await startServer({ args: args('full', '-np', '1', '--exact') });
    try {
      const { json, first } = await second(server);
      assert.equal(json.kvasir.respelled, undefined);
      assert.ok(json.kvasir.computed >= json.usage.prompt_tokens - first.prompt);
    } finally {
      await server.stop();
    }
  });

  it('another scope, cache_prompt false, ids of tokens', async () => {
    const server = await startServer({ args: args('full') });
    try {
      const other = await second(server, {}, { 'X-Kvasir-Scope': 'other' });
      assert.equal(other.kvasir.respelled, undefined);
      assert.equal(other.kvasir.computed, other.json.usage.prompt_tokens);
      const off = await second(server, { cache_prompt: false });
      assert.equal(off.kvasir.respelled, undefined);
      assert.equal(off.json.usage.prompt_tokens, other.json.usage.prompt_tokens);
      const on = await second(server);
      assert.ok(on.kvasir.respelled > 0);

      const text = `${words(rnd, 100)} ${answer}`;
      const ids = await tokenize(server, text);
      await post(server, '/completion', { prompt: await spelled(server, rnd, text), n_predict: 1 });
      const batch = (await post(server, '/v1/completions', { prompt: [`${text}, `, ids], max_tokens: 1 })).json;
      assert.ok(batch.kvasir.respelled > 0, 'the text of a batch');
      const given = (await post(server, '/completion', { prompt: ids, n_predict: 1 })).json;
      assert.equal(given.kvasir.respelled, undefined);
      assert.equal(given.tokens_evaluated, ids.length);
    } finally {
      await server.stop();
    }
  });

  it('a prompt that would not fit in its stored spelling', async () => {
    const server = await startServer({ args: args('full', '-c', '1024') });
    try {
      const text = `${words(rnd, 899)}.`;
      const stored = (await post(server, '/completion', { prompt: await tokenize(server, [...text]), n_predict: 1 })).json;
      assert.equal(stored.tokens_evaluated, 900);
      const fits = await post(server, '/completion', { prompt: `${text} ${words(rnd, 40)}`, n_predict: 1 });
      assert.ok(fits.json.kvasir.respelled > 0);
      const longer = await post(server, '/completion', { prompt: `${text} ${words(rnd, 600)}`, n_predict: 1 });
      assert.equal(longer.status, 200, JSON.stringify(longer.json));
      assert.equal(longer.json.kvasir.respelled, undefined);
    } finally {
      await server.stop();
    }
  });
});

describe("Gemma's vocabulary", { skip: noRealModel }, () => {
  it('spells runs of newlines and of blanks in either way', async () => {
    const rnd = generator();
    const server = await startServer({ args: ['--test-fake', 'window', '-m', gemma, '-c', '8192', '--test-sampler', '--chat-template', 'gemma'] });
    try {
      const one = async (text) => (await tokenize(server, text)).filter((id) => id !== 2);
      const newline = await one('\n'), blank = await one(' ');
      assert.equal(newline.length, 1);
      const content = words(rnd, 200), messages = [{ role: 'user', content }];
      const play = [...await one('Lines'), ...newline, ...newline, ...newline, ...await one('of'), ...blank, ...blank, ...blank, ...await one('text.')];
      const first = await apis.chat(server, messages, { kvasir: { play } });
      messages.push({ role: 'assistant', content: first.text }, { role: 'user', content: 'More' });
      const got = await apis.chat(server, messages, { kvasir: { play: 'Yes.' } });
      assert.ok(got.respelled > 0, JSON.stringify(got.json));
      atMost(got.computed, got.prompt - first.prompt - play.length, 'Gemma');
    } finally {
      await server.stop();
    }
  });
});
