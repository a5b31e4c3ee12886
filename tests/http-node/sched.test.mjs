// What was computed is kept while requests come, go and meet, over HTTP on a tiny model of each memory kind: retries of
// one body, hang-ups of those that others wait for, choices, and what takes a place that became free.
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { startServer } from './server.mjs';
import { events } from './sse.mjs';
import { args, atMost, B, Cold, generator, greedyRaw, kinds, post, seed, words } from './scenario.mjs';

const cold = new Cold();
after(() => cold.stop());

const all = [...Object.keys(kinds), 'mamba2'];
const block = { ...B, mamba2: 256 };

/** A streamed completion that says how far its prompt is. reached(n): when at least n tokens of it are done; over: its
 * tokens, or undefined after hangUp(). */
function begin(server, body) {
  const gone = new AbortController();
  const waiting = [];
  const run = { done: 0, hangUp: () => gone.abort() };
  run.reached = (n) => run.done >= n ? Promise.resolve() : new Promise((resolve, reject) => waiting.push({ n, resolve, reject }));
  run.over = (async () => {
    const response = await fetch(`${server.url}/completion`, { method: 'POST', signal: gone.signal,
      body: JSON.stringify({ stream: true, return_progress: true, return_tokens: true, ignore_eos: true, ...body }) });
    assert.equal(response.status, 200);
    const tokens = [];
    for await (const { data } of events(response)) {
      if (!data) continue;
      const event = JSON.parse(data);
      run.done = Math.max(run.done, event.prompt_progress?.processed ?? 0);
      tokens.push(...(event.tokens ?? []));
      for (const w of waiting) if (run.done >= w.n) w.resolve();
      if (event.stop) run.last = event;
    }
    return tokens;
  })().catch((error) => {
    for (const w of waiting) w.reject(error);
    if (!gone.signal.aborted) throw error;
  });
  return run;
}

async function counted(server, name) {
  const metrics = await (await fetch(`${server.url}/metrics`)).text();
  return Number(new RegExp(`^${name} (\\d+)`, 'm').exec(metrics)[1]);
}
const computed = (server) => counted(server, 'kvasir_prompt_tokens_computed_total');

/** Until nothing runs and nothing waits. Asks again at once. */
async function idle(server) {
  while (await counted(server, 'llamacpp:requests_processing') + await counted(server, 'llamacpp:requests_deferred') > 0) continue;
}

for (const kind of all) {
  describe(`scheduling, ${kind}`, () => {
    const P = 1600;
    let server, chunk;
    before(async () => {
      server = await startServer({ args: args(kind, '-np', '8', '-c', '32768') });
      const props = await (await fetch(`${server.url}/props`)).json();
      chunk = props.kvasir.n_batch - props.total_slots;
    });
    after(() => server?.stop());

    it('F14: hung up in the middle of a long prefill, the same again, three times', async () => {
      const prompt = words(generator(), P);
      const start = await computed(server);
      for (let i = 1; i <= 3; i++) {
        const run = begin(server, { prompt, n_predict: 8, temperature: 0 });
        await run.reached(Math.floor(P * i / 4));
        run.hangUp();
        await run.over;
      }
      const got = await greedyRaw(server, prompt);
      await idle(server);
      atMost(await computed(server) - start, P + 3 * chunk, 'F14');
      await cold.checkRaw(kind, prompt, got, 'F14');
    });

    it('F14: the same three times more while the first runs: each has its own answer', async () => {
      const prompt = words(generator(), P);
      const start = await computed(server);
      const runs = [];
      for (let i = 0; i < 4; i++) {
        runs.push(begin(server, { prompt, n_predict: 24, temperature: 2, top_k: 0, top_p: 1, min_p: 0, seed: i + 1 }));
        if (i === 0) await runs[0].reached(300);
      }
      const answers = await Promise.all(runs.map((run) => run.over));
      atMost(await computed(server) - start, P + 3 * Math.max(chunk, block[kind]), 'F14: beside each other');
      assert.equal(new Set(answers.map(String)).size, 4, `four answers of their own (KVASIR_SEED=${seed})`);
      for (const answer of answers) assert.equal(answer.length, 24);
    });

    it('who computes what another waits for hangs up: that one goes on there', async () => {
      const prompt = words(generator(), P);
      const start = await computed(server);
      const first = begin(server, { prompt, n_predict: 8, temperature: 0 });
      await first.reached(300);
      const second = greedyRaw(server, prompt);
      while (await counted(server, 'kvasir_led_total') < 1) continue;
      first.hangUp();
      await first.over;
      const got = await second;
      atMost(await computed(server) - start, P + chunk, 'a leader that hung up');
      await cold.checkRaw(kind, prompt, got, 'a leader that hung up');
    });

    it('eight choices of one prompt, and a late one of another request', async () => {
      const prompt = words(generator(), P);
      const start = await computed(server);
      const body = { prompt, max_tokens: 4, temperature: 0, ignore_eos: true };
      const choices = post(server, '/v1/completions', { ...body, n: 8 });
      while (await computed(server) === start) continue;
      const late = await greedyRaw(server, prompt, 4);
      const { status, json } = await choices;
      assert.equal(status, 200, JSON.stringify(json));
      assert.equal(json.choices.length, 8);
      await idle(server);
      atMost(await computed(server) - start, P + 7 + block[kind], 'eight choices and a late one');
      await cold.checkRaw(kind, prompt, late, 'a late one');
    });

    it('F15: two are busy, one ends, an unrelated one starts', async () => {
      const prompts = Array.from({ length: 4 }, (_, i) => String.fromCharCode(65 + i) + words(generator(), 300 + 100 * i));
      const busy = begin(server, { prompt: prompts[0], n_predict: 2000, temperature: 0 });
      await busy.reached(prompts[0].length);
      const ends = await greedyRaw(server, prompts[1], 8);
      for (const prompt of prompts.slice(2)) {
        const got = await greedyRaw(server, prompt);
        assert.equal(got.computed, got.prompt, 'nothing of it was ever computed');
        await cold.checkRaw(kind, prompt, got, 'F15');
        const again = await greedyRaw(server, prompt);
        assert.equal(again.computed, 1);
      }
      assert.equal((await greedyRaw(server, prompts[1], 8)).computed, 1);
      busy.hangUp();
      await busy.over;
      await cold.checkRaw(kind, prompts[1], ends, 'F15: the one that ended');
    });

    it('a prompt that can never fit is refused at once, whoever runs', async () => {
      const busy = begin(server, { prompt: words(generator(), 600), n_predict: 4000, temperature: 0 });
      await busy.reached(600);
      const before = await counted(server, 'kvasir_requests_total');
      const { status, json } = await post(server, '/completion', { prompt: words(generator(), 40000), n_predict: 1 });
      assert.equal(status, 400);
      assert.equal(json.error.n_prompt_tokens, 40000);
      assert.equal(json.error.n_ctx, 32768);
      assert.equal(await counted(server, 'kvasir_requests_total'), before);
      assert.equal(busy.last, undefined, 'it still runs');
      busy.hangUp();
      await busy.over;
    });
  });
}
