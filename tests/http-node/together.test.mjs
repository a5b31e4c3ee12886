// Requests that run together give what each gives alone, on one model of every memory kind, over HTTP.
//
// Batch shape changes floating-point sums a little, so equality is judged as docs/architecture.md says: token by
// token, up to the first place where the run alone had its two best logprobs closer together than the tolerance.
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { model, random, startServer } from './server.mjs';

const ROUNDS = Number(process.env.KVASIR_ROUNDS ?? 50);
const TOGETHER = 8;
const TOLERANCE = 5e-4; // tiny F32 models, f16 KV
const kinds = { full: 'llama', window: 'gemma3', hybrid: 'lfm2', recurrent: 'mamba2' };

/** A greedy completion with the two best logprobs of every token. */
async function complete(url, job, signal) {
  const res = await fetch(`${url}/completion`, {
    method: 'POST',
    signal,
    body: JSON.stringify({ prompt: job.prompt, n_predict: job.nPredict, temperature: 0, n_probs: 2, ignore_eos: true }),
  });
  assert.equal(res.status, 200);
  const json = await res.json();
  return json.completion_probabilities.map((p) => ({ id: p.id, top: p.top_logprobs.map((t) => t.logprob) }));
}

function assertSame(got, alone, what) {
  for (let i = 0; i < alone.length; i++) {
    const { id, top } = alone[i];
    if (got[i]?.id !== id) {
      assert.ok(top.length > 1 && Math.abs(top[0] - top[1]) < TOLERANCE,
        `${what}: token ${i} is ${got[i]?.id}, alone ${id}, with ${top[0] - top[1]} between the two best`);
      return;
    }
  }
  assert.equal(got.length, alone.length, what);
}

for (const [kind, family] of Object.entries(kinds)) {
  describe(`${TOGETHER} requests at once, ${kind} memory (${family})`, () => {
    let server;
    before(async () => {
      server = await startServer({ args: ['-m', model(`tiny/${family}.gguf`), '-c', '4096', '-np', '4', '-kvu', '-fa', 'off'] });
    });
    after(() => server?.stop());

    it(`${ROUNDS} rounds of random arrival, length and hang-up`, async (t) => {
      const seed = Number(process.env.KVASIR_SEED ?? Date.now() % 1e9);
      t.diagnostic(`KVASIR_SEED=${seed}`);
      const rnd = random(seed);
      for (let round = 0; round < ROUNDS; round++) {
        const jobs = Array.from({ length: TOGETHER }, () => ({
          prompt: Array.from({ length: 1 + rnd(300) }, () => 1 + rnd(250)),
          nPredict: 1 + rnd(24),
          hangUp: rnd(5) === 0,
        }));
        const alone = [];
        for (const job of jobs) alone.push(await complete(server.url, job));
        await Promise.all(jobs.map(async (job, i) => {
          // Arrival is staggered by work, not by time: each waits for some round trips of its own.
          for (let k = rnd(4); k > 0; k--) await (await fetch(`${server.url}/health`)).text();
          if (job.hangUp) {
            const abort = new AbortController();
            const gone = complete(server.url, { ...job, nPredict: 400 }, abort.signal);
            await (await fetch(`${server.url}/slots`)).text();
            abort.abort();
            await assert.rejects(gone);
            return;
          }
          assertSame(await complete(server.url, job), alone[i], `round ${round}, request ${i}`);
        }));
      }
    });
  });
}
