// bench/throughput.mjs: prefill and decode over HTTP against a bare llama_decode loop on the same library.
//
// Both run in turn, several rounds, so that a change of the machine's speed meets both; the ratio of medians is what
// counts. usage: node bench/throughput.mjs BUILD_DIR MODEL [ROUNDS]
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { startServer } from '../tests/http-node/server.mjs';

const [build, model, rounds = '3'] = process.argv.slice(2);
if (!build || !model || !existsSync(model)) {
  console.error('usage: throughput.mjs BUILD_DIR MODEL [ROUNDS]   (scripts/fetch-models.sh brings the models)');
  process.exit(2);
}
const PREFILL = 2048;
const STEPS = 64;
const tokenAt = (i) => 1000 + ((i * 7919) % 30000); // as bare_decode.c
const prompt = (n) => Array.from({ length: n }, (_, i) => tokenAt(i));
const median = (xs) => [...xs].sort((a, b) => a - b)[Math.floor(xs.length / 2)];

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

/** Times of the first and the last token seen by the client, in ms from the request's start. */
async function overHttp(nPrompt, nPredict) {
  const start = performance.now();
  const res = await fetch(`${server.url}/completion`, {
    method: 'POST',
    body: JSON.stringify({ prompt: prompt(nPrompt), n_predict: nPredict, temperature: 0, ignore_eos: true,
      stream: true, cache_prompt: false }),
  });
  if (res.status !== 200) throw new Error(`HTTP ${res.status}: ${await res.text()}`);
  let first = 0, last = 0, text = '';
  const decoder = new TextDecoder();
  for await (const part of res.body) {
    const t = performance.now() - start;
    text += decoder.decode(part, { stream: true });
    const events = text.split('\n\n');
    text = events.pop();
    for (const e of events) {
      if (!e.startsWith('data: ')) continue;
      const data = JSON.parse(e.slice(6));
      if (data.stop) continue;
      first ||= t;
      last = t;
    }
  }
  return { first, last };
}

const seen = { prefill: [[], []], 'decode at depth 0': [[], []], [`decode at depth ${PREFILL}`]: [[], []] };
for (let round = 0; round < Number(rounds); round++) {
  seen.prefill[0].push((await overHttp(PREFILL, 1)).first);
  seen.prefill[1].push(await bareRun(`prefill ${PREFILL}`));
  for (const depth of [0, PREFILL]) {
    const { first, last } = await overHttp(Math.max(depth, 1), STEPS + 1);
    const row = seen[`decode at depth ${depth}`];
    row[0].push(last - first);
    row[1].push(await bareRun(`decode ${STEPS} ${depth}`));
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
