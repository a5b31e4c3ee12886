// --exact: warm equals cold, bit for bit. Random conversations (which branch, are edited and go on) over HTTP on one
// server; each prompt is asked twice: with the cache, and with cache_prompt false, which computes it from the start.
// Token ids and the top log probabilities of every token must be the same numbers.
// usage: node tests/exact/exact.mjs MODEL [CONVERSATIONS] [SEED] [MORE ARGUMENTS…]
import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { random, startServer } from '../http-node/server.mjs';

const [model, count = '50', seedText = `${Date.now() % 1000000}`, ...more] = process.argv.slice(2);
const seed = Number(seedText);
const dice = random(seed);
const cache = mkdtempSync(path.join(os.tmpdir(), 'kvasir-exact-'));
process.on('exit', () => rmSync(cache, { recursive: true, force: true }));
const args = ['-m', model, '--exact', '-c', '4096', '--cache-dir', cache, ...more];
let server = await startServer({ args });

async function ask(prompt, reuse) {
  const response = await fetch(`${server.url}/completion`, {
    method: 'POST',
    body: JSON.stringify({ prompt, n_predict: 8, temperature: 0, n_probs: 5, return_tokens: true, ignore_eos: true,
      cache_prompt: reuse }),
  });
  const body = await response.json();
  if (response.status !== 200) throw new Error(JSON.stringify(body));
  const seen = body.completion_probabilities.map((p) => [p.id, p.logprob, p.top_logprobs.map((t) => [t.id, t.logprob])]);
  return { tokens: body.tokens, seen: JSON.stringify(seen), cached: body.kvasir.cached.ram + body.kvasir.cached.disk + body.kvasir.cached.engine };
}

const talks = [];
let turns = 0, cached = 0, prompts = 0, restarts = 0, failed = false;
for (let c = 0; c < Number(count) && !failed; c++) {
  const base = talks.length && dice(2) ? talks[dice(talks.length)] : [];
  let talk = base.slice(0, dice(base.length + 1)); // goes on, or branches off somewhere
  for (let turn = 0; turn < 3; turn++) {
    const n = 20 + dice(turn ? 200 : 700);
    for (let i = 0; i < n; i++) talk.push(20 + dice(200));
    if (talk.length > 3000) break; // the context is 4,096
    const warm = await ask(talk, true), cold = await ask(talk, false);
    turns++;
    cached += warm.cached;
    prompts += talk.length;
    if (warm.seen !== cold.seen) {
      console.log(`conversation ${c}, turn ${turn}: ${talk.length} tokens, ${warm.cached} cached: warm and cold differ\n${warm.seen}\n${cold.seen}`);
      failed = true;
      break;
    }
    talk = talk.concat(warm.tokens);
  }
  talks.push(talk);
  if (c % 10 === 9) { // what comes from disk is the same, too
    await server.stop();
    server = await startServer({ args });
    restarts++;
  }
}
await server.stop();
console.log(`${path.basename(model)}: seed ${seed}, ${talks.length} conversations, ${turns} turns, ${restarts} restarts, `
  + `${cached} of ${prompts} prompt tokens cached: ${failed ? 'DIFFERENT' : 'bit for bit equal'}`);
process.exit(failed ? 1 : 0);
