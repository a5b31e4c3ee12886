// S27 to S30: requests beside each other. Figures of S28 to S30 are times, taken for the table on a machine that does
// nothing else; `make test` looks at the answers and what they computed.
import assert from 'node:assert/strict';
import { post, said, same, Talk } from './scenario-world.mjs';
import { settled } from './scenario.mjs';
import { events } from './sse.mjs';

const oneAtATime = (m, exact) => (exact ? 'one request at a time' : null);
const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];

/** Streams a completion: { first, gap } in ms, the time to the first token and the longest one between two. */
async function stream(t, server, prompt, n, onToken = () => {}) {
  const begin = performance.now();
  const response = await fetch(`${server.url}/completion`, { method: 'POST', headers: { 'x-kvasir-scope': t.scope },
    body: JSON.stringify({ prompt, n_predict: n, temperature: 0, ignore_eos: true, stream: true }) });
  assert.equal(response.status, 200);
  let first = 0, last = 0, gap = 0, count = 0;
  for await (const { data, at } of events(response)) {
    if (!data || !JSON.parse(data).tokens?.length) continue;
    if (last) gap = Math.max(gap, at - last);
    else first = at - begin;
    last = at;
    onToken(++count);
  }
  return { first, gap, count };
}

/** Tokens a second of one that runs alone, while nothing of others is being written. */
async function speed(t, server) {
  await settled(server);
  const { json } = await post(server, '/completion', { prompt: `${t.word()} ${t.text(60)}`, n_predict: 100, temperature: 0, ignore_eos: true },
    { 'x-kvasir-scope': t.scope });
  return json.timings.predicted_per_second;
}

export const timeShapes = [
  {
    id: 'S27', what: '8 requests at once, mixed lengths', expect: "each answer as alone; never a word of another's", skip: oneAtATime,
    async run(t) {
      const server = await t.world.own(t.world.args('-np', '4', ...(t.world.disk ? ['--cache-dir', t.world.folders.make()] : [])));
      for (let round = 0; round < 2; round++) {
        const jobs = Array.from({ length: 8 }, () => {
          const canary = `q${t.word(7)}`;
          return { canary, n: 4 + t.rnd(16), prompt: `${canary} ${t.text(8 + t.rnd(Math.min(300, t.some(300))))}` };
        });
        const ask = ({ prompt, n }, more) => t.raw(prompt, { n, server, more });
        const together = await Promise.all(jobs.map((job) => ask(job)));
        for (const [i, job] of jobs.entries()) {
          for (const other of jobs) if (other !== job) assert.ok(!together[i].json.content.includes(other.canary), "a word of another's");
          if (t.model.tolerance === null) {
            if (!round && !i) t.note('compared with alone in `make test`');
            continue;
          }
          const alone = await ask(job, { cache_prompt: false });
          t.history.pop();
          same(said(together[i].json), said(alone.json), t.model.tolerance, `S27: request ${i}`);
        }
      }
      await server.stop();
    },
  },
  {
    id: 'S28', what: 'a stream while a 20K prompt of another arrives', expect: 'no gap beyond the stall time and one minimum batch', timed: true, skip: oneAtATime,
    async run(t) {
      const server = await t.world.up();
      const least = [];
      for (let i = 0; i < 3; i++) least.push((await stream(t, server, `${t.word()} ${t.text(t.model.bytes ? 8 : 12)}`, 1)).first);
      const prompt = t.text(t.n(20000));
      let arrives = null;
      const got = await stream(t, server, t.text(100), t.quick ? 60 : 150, (count) => {
        if (count === 10) arrives = post(server, '/completion', { prompt, n_predict: 1 }, { 'x-kvasir-scope': t.scope });
      });
      assert.equal((await arrives).status, 200);
      assert.equal(got.count, t.quick ? 60 : 150);
      if (!t.quick) t.figure(Math.round(got.gap), Math.round(250 + median(least)), 'ms between two tokens');
    },
  },
  {
    id: 'S29', what: 'six idle conversations of 3K tokens, one running', expect: 'speed ≥ 0.97 of an empty server; each idle one as S2', timed: true,
    async run(t) {
      const context = t.quick ? t.model.context : Math.max(t.model.context, 4096);
      const slots = t.exact ? [] : ['-np', '8', '--slot-save-path', t.world.folders.make()];
      const server = await t.world.own(t.world.args('-c', String(context), ...slots, ...(t.world.disk ? ['--cache-dir', t.world.folders.make()] : [])));
      const length = Math.min(t.n(3000), Math.floor(context / 8));
      const idle = Array.from({ length: 6 }, () => new Talk(t, { system: length }));
      const turns = async (what) => {
        for (const talk of idle) {
          const question = talk.say(20), text = t.text(12);
          const got = await talk.ask({ server, play: t.answer({ text }) });
          await talk.judge(got, what);
          talk.messages.push({ role: 'assistant', content: got.message.content });
          talk.last = { text, sampled: t.model.sampled, question };
        }
      };
      await turns('first');
      const others = Array.from({ length: 6 }, () => `${t.word()} ${t.text(length)}`);
      const besideSix = async () => {
        for (const prompt of others) await post(server, '/completion', { prompt, n_predict: 1 }, { 'x-kvasir-scope': t.scope });
        return speed(t, server);
      };
      const empty = async () => {
        for (let i = 0; i < 8; i++) assert.equal((await post(server, `/slots/${i}?action=erase`, {})).status, 200);
        return speed(t, server);
      };
      // One process, in turns and often: two processes differ by more than what is measured, and so does one from second to
      // second.
      const ratios = [];
      const rounds = t.exact ? 0 : t.quick ? 1 : t.model.threads > 1 ? 9 : 41; // --exact has one slot, empty at each request
      for (let i = 0; i < rounds; i++) {
        const first = i % 2 ? await empty() : null;
        const beside = await besideSix();
        ratios.push(beside / (first ?? await empty()));
      }
      await turns('resumed');
      const running = t.raw(`${t.word()} ${t.text(200)}`, { n: 100, server });
      await turns('resumed beside a running one');
      await t.cold(await running, 'the running one');
      if (!t.quick && rounds) t.figure(Number(median(ratios).toFixed(3)), 0.97, 'of the speed on an empty server', { least: true });
      await server.stop();
    },
  },
  {
    id: 'S30', what: 'six different prompts of 300 to 3,000 tokens at once', expect: 'mean time to the first token as one after the other, shortest first',
    timed: true, skip: oneAtATime,
    async run(t) {
      const context = t.quick ? t.model.context : Math.max(t.model.context, 6144); // they are in no conversation's way
      const server = await t.world.own(t.world.args('-c', String(context), '-np', '6'));
      const lengths = [300, 700, 1100, 1700, 2300, 3000].map((n) => Math.min(t.n(n), Math.floor(context * n / 12000)));
      const prompts = () => lengths.map((n) => `${t.word()} ${t.text(n)}`);
      const ideal = [];
      let at = 0;
      for (const prompt of prompts()) ideal.push(at += (await stream(t, server, prompt, 1)).first);
      const together = await Promise.all(prompts().map((prompt) => stream(t, server, prompt, 1)));
      for (const got of together) assert.equal(got.count, 1);
      const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length;
      if (!t.quick) t.figure(Number((mean(together.map((g) => g.first)) / mean(ideal)).toFixed(2)), 1.25, 'of the mean one after the other');
      await server.stop();
    },
  },
];
