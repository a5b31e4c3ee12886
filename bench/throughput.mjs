// bench/throughput.mjs: prefill and decode over HTTP against a bare llama_decode loop on the same library.
//
// Both run in turn, several rounds, so that a change of the machine's speed meets both; the ratio of medians is what
// counts. usage: node bench/throughput.mjs BUILD_DIR MODEL [ROUNDS]
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { startServer } from '../tests/http-node/server.mjs';
import { median } from './median.mjs';

const [build, model, rounds = '3'] = process.argv.slice(2);
if (!build || !model || !existsSync(model)) {
  console.error('usage: throughput.mjs BUILD_DIR MODEL [ROUNDS]   (scripts/fetch-models.sh brings the models)');
  process.exit(2);
}
const PREFILL = 2048;
const STEPS = 64;
const tokenAt = (i) => 1000 + ((i * 7919) % 30000); // as bare_decode.c
const prompt = (n) => Array.from({ length: n }, (_, i) => tokenAt(i));

const server = await startServer({ args: ['-m', model, '-c', '8192'], binary: path.join(build, 'kvasir') });
const props = await (await fetch(`${server.url}/props`)).json();
const k = { ...props.kvasir, chunk: props.kvasir.n_batch - props.total_slots };
const bare = spawn(path.join(build, 'bench', 'bare_decode'),
  [model, 8192, k.chunk, props.total_slots + 1, k.n_threads, k.flash_attn ? 1 : 0].map(String),
  { stdio: ['pipe', 'pipe', 'inherit'] });
const lines = createInterface({ input: bare.stdout })[Symbol.asyncIterator]();
await lines.next(); // "ready"
async function bareRun(command) {
  bare.stdin.write(`${command}\n`);
  const { value, done } = await lines.next();
  if (done) throw new Error('bare_decode ended');
  return Number(value.split(' ')[1]);
}

/**
 * Wall-clock ms of one request as its client sees it. Not streamed: parsing events here would take the cores that the
 * server computes on.
 */
async function overHttp(nPrompt, nPredict, reuse) {
  const start = performance.now();
  const res = await fetch(`${server.url}/completion`, {
    method: 'POST',
    body: JSON.stringify({ prompt: prompt(nPrompt), n_predict: nPredict, temperature: 0, ignore_eos: true,
      response_fields: ['tokens_predicted'], cache_prompt: reuse }),
  });
  const body = await res.text();
  if (res.status !== 200) throw new Error(`HTTP ${res.status}: ${body}`);
  return performance.now() - start;
}

const seen = { prefill: [[], []], 'decode at depth 0': [[], []], [`decode at depth ${PREFILL}`]: [[], []] };
for (let round = 0; round < Number(rounds); round++) {
  seen.prefill[0].push(await overHttp(PREFILL, 1, false));
  seen.prefill[1].push(await bareRun(`prefill ${PREFILL}`));
}
// Decode is short and noisy: more rounds, in which both go on from a prompt that they still have. A request for one
// token is taken off, so that STEPS steps are left.
for (const depth of [0, PREFILL]) {
  const row = seen[`decode at depth ${depth}`];
  const n = Math.max(depth, 1);
  for (let round = 0; round < Number(rounds) * 4; round++) {
    const one = await overHttp(n, 1, true);
    const many = await overHttp(n, STEPS + 1, true);
    const alone = await bareRun(`decode ${STEPS} ${depth}`);
    if (round === 0) continue; // the prompt itself was computed in this one
    row[0].push(many - one);
    row[1].push(alone);
  }
}
bare.stdin.end('quit\n');
await server.stop();

console.log(`${path.basename(model)}: chunk ${k.chunk}, ${k.n_threads} threads, flash attention ${k.flash_attn ? 'on' : 'off'}, median of ${rounds}`);
console.log('what                    HTTP tok/s   bare tok/s   ratio');
let low = false;
for (const [what, [http, alone]] of Object.entries(seen)) {
  const n = what === 'prefill' ? PREFILL : STEPS;
  const a = median(http), b = median(alone);
  const ratio = b / a;
  low ||= ratio < 0.97;
  console.log(`${what.padEnd(22)} ${(n / a * 1e3).toFixed(1).padStart(11)} ${(n / b * 1e3).toFixed(1).padStart(12)} ${ratio.toFixed(3).padStart(7)}`);
}
console.log(low ? 'below the goal of 0.97' : 'all at or above the goal of 0.97');
