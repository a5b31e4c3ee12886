// bench/sched.mjs: who waits how long for whom, over HTTP, as ratios within one run.
// usage: node bench/sched.mjs BUILD_DIR MODEL [ROUNDS]
import { execFileSync } from 'node:child_process';
import path from 'node:path';
import { startServer } from '../tests/http-node/server.mjs';
import { events } from '../tests/http-node/sse.mjs';

const [build, model, rounds = '3'] = process.argv.slice(2);
const binary = path.join(build, 'kvasir');
const MAX_STALL = 250;
const LONG = 5000;                               // a prompt that comes while a stream decodes
const MIXED = [300, 3000, 600, 2000, 450, 1200]; // at once
const median = (xs) => [...xs].sort((a, b) => a - b)[Math.floor(xs.length / 2)];
const mean = (xs) => xs.reduce((a, b) => a + b, 0) / xs.length;
let salt = 0; // of tokens that nobody has asked before
const fresh = (n) => { salt++; return Array.from({ length: n }, (_, i) => 1000 + ((i * 7919 + salt * 104729) % 20000)); };

const args = ['-m', model, '-c', '16384', '-np', '4', '-kvu', '--max-stall-ms', String(MAX_STALL), '--cache-disk', '0', '--cache-ram', '2048'];
const server = await startServer({ args, binary });

const post = (prompt, n, more) => fetch(`${server.url}/completion`, { method: 'POST', ...more,
  body: JSON.stringify({ prompt, n_predict: n, temperature: 0, ignore_eos: true, stream: true, return_tokens: true }) });

/** ms to the first token of a prompt; of n tokens that nobody has asked before, behind `known`. */
async function ttft(n, known = []) {
  const start = performance.now();
  for await (const { data, at } of events(await post([...known, ...fresh(n)], 1))) if (data && JSON.parse(data).tokens?.length) return at - start;
  throw new Error('no token came');
}

/** A stream that decodes until stop(); gaps(): ms between its tokens since the last call. */
async function decoding() {
  const gone = new AbortController();
  const response = await post(fresh(64), 8000, { signal: gone.signal });
  let last = 0, gaps = [], begun;
  const decodes = new Promise((resolve) => { begun = resolve; });
  const over = (async () => {
    for await (const { data, at } of events(response)) {
      if (!data || !JSON.parse(data).tokens?.length) continue;
      if (last) gaps.push(at - last);
      last = at;
      if (gaps.length === 8) begun();
    }
  })().catch((error) => { if (!gone.signal.aborted) throw error; });
  await decodes;
  return { gaps: () => gaps.splice(0), stop: async () => { gone.abort(); await over; } };
}

// One minimum batch: what the smallest chunk and a last token take behind LONG tokens, less that token. The last batches
// of a long prompt are those that take longest.
const smallest = Number(/(\d+) at least while others decode/.exec(execFileSync(binary, ['serve', ...args, '--check'], { encoding: 'utf8' }))[1]);
const seen = { gap: [], beside: [], alone: [], batch: [], six: [], big: [], ideal: [] };
await ttft(LONG); // speeds are learned
for (let i = 0; i < Number(rounds); i++) {
  const known = fresh(LONG);
  seen.alone.push(await ttft(0, known));
  seen.batch.push(await ttft(smallest + 1, known) - await ttft(1, known));
  const stream = await decoding();
  stream.gaps();
  seen.beside.push(await ttft(LONG));
  seen.gap.push(Math.max(...stream.gaps()));
  await stream.stop();
  const alone = [];
  for (const n of MIXED) alone.push(await ttft(n));
  const sorted = [...alone].sort((a, b) => a - b);
  seen.big.push(alone.reduce((a, b) => a + b, 0));
  seen.ideal.push(mean(sorted.map((_, k) => sorted.slice(0, k + 1).reduce((a, b) => a + b, 0))));
  seen.six.push(mean(await Promise.all(MIXED.map((n) => ttft(n)))));
}
await server.stop();

console.log(`${path.basename(model)}: medians of ${rounds}`);
const row = (what, ratio, wanted, note) => console.log(`  ${what.padEnd(66)} ${ratio.toFixed(3).padStart(7)}  ${wanted.padEnd(8)} ${note}`);
const ms = (xs) => `${median(xs).toFixed(0)} ms`;
const pairs = (a, b) => median(a.map((x, i) => x / b[i]));
row(`longest gap of a stream beside ${LONG} new tokens ÷ (max-stall + batch)`, pairs(seen.gap, seen.batch.map((b) => MAX_STALL + b)), '≤ 1', `${ms(seen.gap)}, ${MAX_STALL} + ${ms(seen.batch)}`);
row(`time to first token of ${LONG} new tokens beside a stream ÷ alone`, pairs(seen.beside, seen.alone), '≤ 1.8', `${ms(seen.beside)}, ${ms(seen.alone)}`);
row('mean time to first token of six mixed prompts ÷ one big batch', pairs(seen.six, seen.big), 'about 0.5', `${ms(seen.six)}, ${ms(seen.big)}`);
row('                                              ÷ shortest first, alone', pairs(seen.six, seen.ideal), '', ms(seen.ideal));
