// --sleep-idle-seconds: the model goes when nobody asks, comes back with the next request, and no conversation is lost.
// Everything waits for the server's own log lines; idle times are short so that this takes little, and no test depends
// on how long anything takes.
import assert from 'node:assert/strict';
import { copyFileSync, mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { binary, fake, model, modelArgs, random, startServer } from './server.mjs';
import { events } from './sse.mjs';

const kinds = { full: 'llama', window: 'gemma3', hybrid: 'lfm2', recurrent: 'mamba2' };
const ROUNDS = Number(process.env.KVASIR_ROUNDS ?? 100);
const TOLERANCE = 5e-4; // tiny F32 models, f16 KV (docs/architecture.md)
const sanitized = /build-|-asan|-tsan/.test(binary) ? 'sanitizers keep memory of their own' : false;
const noTiny = fake ? 'the fake engine stands in (KVASIR_TEST_FAKE)' : false;
const seed = Number(process.env.KVASIR_SEED ?? Date.now() % 1e9);
const rnd = random(seed);
const folder = mkdtempSync(path.join(os.tmpdir(), 'kvasir-sleep-'));
after(() => rmSync(folder, { recursive: true, force: true }));

const count = (lines, what) => lines.filter((l) => l.includes(what)).length;

const post = (server, where, body, more = {}) => fetch(server.url + where, { method: 'POST', body: JSON.stringify(body), ...more });
const tokens = (n) => Array.from({ length: n }, () => 1 + rnd(250));

/** A greedy answer, its cost, and the two best logprobs of each token. */
async function complete(server, prompt, n = 6) {
  const response = await post(server, '/completion', { prompt, n_predict: n, temperature: 0, n_probs: 2, ignore_eos: true });
  const json = await response.json();
  assert.equal(response.status, 200, JSON.stringify(json));
  return {
    ...json.kvasir,
    tokens: json.completion_probabilities.map((p) => ({ id: p.id, top: p.top_logprobs.map((t) => t.logprob) })),
  };
}

function assertSame(got, first, what) {
  for (let i = 0; i < first.length; i++) {
    if (got[i]?.id === first[i].id) continue;
    const [a, b] = first[i].top;
    assert.ok(Math.abs(a - b) < TOLERANCE, `${what}: token ${i} is ${got[i]?.id}, before ${first[i].id} (KVASIR_SEED=${seed})`);
    return;
  }
}

const rss = (server) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${server.pid}/status`, 'utf8'))[1]) * 1024;

async function metric(server, name) {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  return Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(text)[1]);
}

/** Until it sleeps and has said so; asking does not keep it awake. Gives how often it did so far. */
async function asleep(server) {
  while (await metric(server, 'kvasir_asleep') === 0) continue;
  const n = await metric(server, 'kvasir_sleeps_total');
  await server.until((lines) => count(lines, 'asleep after') >= n, `the line of sleep ${n}`);
  return n;
}

const started = [];
async function start(args, more = {}) {
  const server = await startServer({ args: [...args, '--metrics'], ...more });
  started.push(server);
  return server;
}
after(async () => { for (const server of started) if (!server.exit) await server.stop(); });

const tiny = (family, ...more) => ['-m', model(`tiny/${family}.gguf`), '-c', '4096', '-np', '2', '-kvu', '-fa', 'off', '-t', '1', ...more];

describe('all conversations go on after a sleep', { skip: noTiny }, () => {
  for (const [kind, family] of Object.entries(kinds)) {
    for (const disk of [true, false]) {
      it(`${kind} memory (${family}), ${disk ? 'on disk' : 'in memory'}`, async () => {
        const store = disk ? ['--cache-dir', path.join(folder, `${family}-cache`)] : [];
        const server = await start(tiny(family, '--sleep-idle-seconds', '0.3', ...store));
        const prompts = [tokens(700), tokens(300), tokens(40)]; // more than there are slots
        prompts.push([...prompts[0].slice(0, 500), ...tokens(100)]); // and a branch
        const first = [];
        for (const prompt of prompts) first.push(await complete(server, prompt));
        for (let round = 1; round <= 2; round++) {
          await asleep(server);
          for (const [i, prompt] of prompts.entries()) {
            const got = await complete(server, prompt);
            assert.equal(got.computed, 1, `conversation ${i}, sleep ${round}: ${JSON.stringify({ ...got, tokens: 0 })} (KVASIR_SEED=${seed})`);
            assertSame(got.tokens, first[i].tokens, `conversation ${i}, sleep ${round}`);
          }
        }
        await server.stop();
      });
    }
  }

  it('memory is given back', { skip: sanitized || (readable() ? false : 'there is no /proc') }, async () => {
    const none = await start(['--test-fake', 'full']);
    const bare = rss(none);
    await none.stop();
    const server = await start(tiny('gemma3', '-c', '32768', '--sleep-idle-seconds', '0.3', '--cache-dir', path.join(folder, 'rss')));
    for (let i = 0; i < 4; i++) await complete(server, tokens(1500));
    await asleep(server);
    assert.ok(rss(server) < bare + 64 * 2 ** 20, `${rss(server)} bytes asleep, ${bare} without a model`);
    await server.stop();
  });
});

function readable() {
  try { return Boolean(readFileSync('/proc/self/status')); } catch { return false; }
}

describe('what does not wake it', () => {
  const paths = ['/health', '/metrics', '/props', '/v1/models', '/slots', '/', '/kvasir/cache'];

  it('is answered while it sleeps, and does not keep it awake either', async () => {
    const server = await start([...modelArgsOrFake(), '--sleep-idle-seconds', '0.2']);
    await (await post(server, '/v1/completions', { prompt: 'Once upon a time', max_tokens: 4 })).json();
    const requests = await metric(server, 'kvasir_requests_total');
    while (await metric(server, 'kvasir_asleep') === 0) // without a pause longer than the idle time
      for (const where of paths) assert.equal((await fetch(server.url + where)).status, 200, where);
    const sleeps = await asleep(server);
    for (const where of paths) assert.equal((await fetch(server.url + where)).status, 200, where);
    const props = await (await fetch(`${server.url}/props`)).json();
    assert.equal(props.is_sleeping, true);
    assert.ok(props.chat_template.length > 0);
    assert.deepEqual(await (await fetch(`${server.url}/health`)).json(), { status: 'ok' });
    assert.equal(await metric(server, 'kvasir_asleep'), 1);
    assert.equal(await metric(server, 'kvasir_requests_total'), requests);
    assert.equal((await post(server, '/v1/completions', { prompt: 3 }, { body: '{"prompt":' })).status, 400);
    assert.equal(await asleep(server), sleeps);

    assert.equal((await post(server, '/tokenize', { content: 'abc' })).status, 200); // this does
    await (await post(server, '/v1/completions', { prompt: 'Once upon a time', max_tokens: 4 })).json();
    assert.equal(await metric(server, 'kvasir_requests_total'), requests + 1); // counters go on
    assert.ok(await asleep(server) > sleeps);
    await server.stop();
  });
});

function modelArgsOrFake() {
  return fake ? modelArgs() : ['--test-fake', 'full'];
}

describe('requests at the moment of falling asleep', () => {
  it(`${ROUNDS} rounds lose none`, async (t) => {
    t.diagnostic(`KVASIR_SEED=${seed}`);
    const server = await start([...modelArgsOrFake(), '--sleep-idle-seconds', '0.02']);
    const prompts = ['Alpha ', 'Beta ', 'Gamma ', 'Delta '].map((word) => word.repeat(60));
    const body = (i, more) => ({ prompt: prompts[i], max_tokens: 3, temperature: 0, ...more });
    const expected = [];
    for (let i = 0; i < prompts.length; i++) expected.push((await (await post(server, '/v1/completions', body(i))).json()).choices[0].text);

    async function whole(i) {
      const response = await post(server, '/v1/completions', body(i));
      const text = await response.text();
      assert.equal(response.status, 200, text);
      assert.equal(JSON.parse(text).choices[0].text, expected[i]);
    }
    async function streamed(i) {
      const response = await post(server, '/v1/completions', body(i, { stream: true }));
      assert.equal(response.status, 200);
      let text = '';
      let done = false;
      for await (const { data } of events(response)) {
        if (data === '[DONE]') done = true;
        else if (data) text += JSON.parse(data).choices[0]?.text ?? assert.fail(data);
      }
      assert.ok(done);
      assert.equal(text, expected[i]);
    }
    async function hungUp(i) {
      const abort = new AbortController();
      const gone = post(server, '/v1/completions', body(i, { stream: rnd(2) === 0, max_tokens: 500 }), { signal: abort.signal })
        .then((response) => response.text(), () => {});
      abort.abort();
      await gone.catch(() => {});
    }

    for (let round = 0; round < ROUNDS; round++) {
      // Around the idle time, in round trips: each takes some tenths of a millisecond and more.
      for (let k = rnd(40); k > 0; k--) await (await fetch(`${server.url}/health`)).text();
      const kindOf = [whole, streamed, hungUp];
      await Promise.all(Array.from({ length: 1 + rnd(6) }, () => kindOf[rnd(3)](rnd(prompts.length))));
    }
    t.diagnostic(`${await metric(server, 'kvasir_sleeps_total')} sleeps`);
    await server.stop();
  });
});

describe('the end', () => {
  it('SIGTERM while it sleeps', async () => {
    const server = await start([...modelArgsOrFake(), '--sleep-idle-seconds', '0.1']);
    await asleep(server);
    await server.stop();
    assert.ok(server.lines.some((l) => l.includes('the model is asleep')), server.log());
  });

  it('SIGTERM while it wakes, with requests that wait', async () => {
    for (let round = 0; round < 4; round++) {
      const server = await start([...(fake ? modelArgs() : tiny('llama')), '--sleep-idle-seconds', '0.1']);
      await asleep(server);
      const answers = [true, false].map((stream) =>
        post(server, '/v1/completions', { prompt: 'abc', max_tokens: 2, stream }).then(async (response) => {
          const text = await response.text();
          // an answer, or the word that there will be none
          assert.ok(/"choices"|shutting down/.test(text), text);
        }, () => {})); // the port was closed before
      for (let k = rnd(8); k > 0; k--) await (await fetch(`${server.url}/health`)).text();
      await server.stop();
      await Promise.all(answers.map((a) => a.catch((error) => { if (error.code === 'ERR_ASSERTION') throw error; })));
    }
  });
});

describe('a model file that changes meanwhile', { skip: noTiny }, () => {
  const file = path.join(folder, 'model.gguf');
  const args = (...more) => ['-m', file, ...tiny('llama').slice(2), '--sleep-idle-seconds', '0.2', ...more];
  const prompt = tokens(300);
  let server;
  before(async () => {
    copyFileSync(model('tiny/llama.gguf'), file);
    server = await start(args('--cache-dir', path.join(folder, 'changed')));
  });

  it('gone: requests are told, and the next one tries again', async () => {
    await complete(server, prompt);
    await asleep(server);
    renameSync(file, `${file}.away`);
    const refused = await post(server, '/v1/completions', { prompt, max_tokens: 2 });
    assert.equal(refused.status, 503);
    assert.match((await refused.json()).error.message, /could not be loaded again: .*model\.gguf/);
    const stream = await post(server, '/v1/completions', { prompt, max_tokens: 2, stream: true });
    assert.equal(stream.status, 200);
    const told = [];
    for await (const { data } of events(stream)) if (data) told.push(JSON.parse(data));
    assert.equal(told.length, 1);
    assert.match(told[0].error.message, /could not be loaded again/);
    assert.equal((await fetch(`${server.url}/health`)).status, 200);
    renameSync(`${file}.away`, file);
    assert.equal((await complete(server, prompt)).computed, 1);
  });

  it('another one, and back: neither takes the other\'s cache', async () => {
    const first = await complete(server, prompt);
    await asleep(server);
    renameSync(file, `${file}.away`);
    copyFileSync(model('tiny/lfm2.gguf'), file);
    const other = await complete(server, prompt);
    assert.equal(other.computed, prompt.length);
    assert.ok(server.lines.some((l) => l.includes('is not the one that fell asleep')), server.log());
    await asleep(server);
    renameSync(`${file}.away`, file);
    const back = await complete(server, prompt);
    assert.equal(back.computed, 1);
    assertSame(back.tokens, first.tokens, 'back again');
    await server.stop();
  });
});
