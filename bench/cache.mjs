// bench/cache.mjs: what the cache gives and what it costs, over HTTP, as ratios within one run.
// usage: node bench/cache.mjs BUILD_DIR MODEL on|off [ROUNDS]      on|off: flash attention
import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { startServer } from '../tests/http-node/server.mjs';
import { median } from './median.mjs';

const [build, model, fa, rounds = '3'] = process.argv.slice(2);
const binary = path.join(build, 'kvasir');
const dir = mkdtempSync(path.join(os.tmpdir(), 'kvasir-bench-'));
process.on('exit', () => rmSync(dir, { recursive: true, force: true }));
let salt = 0; // of tokens that nobody has asked before
const fresh = (n) => { salt++; return Array.from({ length: n }, (_, i) => 1000 + ((i * 7919 + salt * 104729) % 20000)); };
const common = ['-m', model, '-c', '8192', '-fa', fa, '--slot-save-path', dir];
const cached = [...common, '--cache-dir', dir, '--cache-disk', '8G'];

async function ask(server, prompt, n = 1) {
  const start = performance.now();
  const response = await fetch(`${server.url}/completion`, {
    method: 'POST',
    body: JSON.stringify({ prompt, n_predict: n, temperature: 0, ignore_eos: true, response_fields: ['tokens_predicted', 'tokens'], return_tokens: true }),
  });
  const body = await response.json();
  if (response.status !== 200) throw new Error(JSON.stringify(body));
  return { ms: performance.now() - start, tokens: body.tokens };
}
const state = async (server) => (await fetch(`${server.url}/kvasir/cache`)).json();
async function onDisk(server) {
  while ((await state(server)).queue_bytes > 0) await new Promise((r) => setTimeout(r, 20));
}

/** What idle slots hold would be walked by attention, and only the cache can give it up: it would count for it. */
async function emptySlots(server) {
  for (const slot of await (await fetch(`${server.url}/slots`)).json()) {
    const response = await fetch(`${server.url}/slots/${slot.id}?action=erase`, { method: 'POST' });
    if (response.status !== 200) throw new Error(await response.text());
  }
}

// ── time to first token ──
const document = fresh(4096);
const cold = [], resident = [], restarted = [];
let server = await startServer({ args: cached, binary });
await ask(server, [...document, ...fresh(64)]);
for (let i = 0; i < Number(rounds); i++) {
  resident.push((await ask(server, [...document, ...fresh(64)])).ms);
  await onDisk(server);
  await server.stop();
  server = await startServer({ args: cached, binary });
  restarted.push((await ask(server, [...document, ...fresh(64)])).ms);
  await emptySlots(server);
  cold.push((await ask(server, fresh(4096 + 64))).ms);
  await ask(server, [...document, ...fresh(64)]);
}

// ── ten turns ──
const before = await state(server);
let talk = fresh(512);
for (let turn = 0; turn < 10; turn++) {
  talk = [...talk, ...fresh(100)];
  talk = [...talk, ...(await ask(server, talk, 100)).tokens];
}
await onDisk(server);
const after = await state(server);
const written = after.bytes_written - before.bytes_written, unique = after.bytes_captured - before.bytes_captured;

await server.stop();

// ── on against off ──
// New processes in every round: where a process's memory lies makes one of two like servers up to a tenth slower for
// as long as it lives, and it would count for or against the cache.
const without = [...common, '--cache-disk', '0', '--cache-ram', '0'];
const cost = { prefill: [[], []], decode: [[], []], '4 streams': [[], []] };
for (let i = 0; i < Number(rounds) * 2; i++) {
  const pair = [await startServer({ args: cached, binary }), await startServer({ args: without, binary })];
  const sum = { prefill: [0, 0], decode: [0, 0], '4 streams': [0, 0] };
  for (const s of pair) await ask(s, fresh(256), 8);
  for (let turn = 0; turn < 2; turn++) {
    for (const k of (i + turn) % 2 ? [1, 0] : [0, 1]) {
      const s = pair[k], prompt = fresh(1024);
      await emptySlots(s);
      sum.prefill[k] += (await ask(s, prompt)).ms;
      const one = (await ask(s, prompt)).ms;
      sum.decode[k] += (await ask(s, prompt, 129)).ms - one;
      await emptySlots(s);
      const start = performance.now();
      await Promise.all([0, 1, 2, 3].map(() => ask(s, fresh(128), 64)));
      sum['4 streams'][k] += performance.now() - start;
      if (k === 0) await onDisk(s); // its writes are its own cost, not the other's
    }
  }
  for (const what in cost) for (const k of [0, 1]) cost[what][k].push(sum[what][k] / 2);
  for (const s of pair) await s.stop();
}

console.log(`${path.basename(model)}, flash attention ${fa}`);
const row = (what, ratio, wanted, note) => console.log(`  ${what.padEnd(58)} ${ratio.toFixed(3).padStart(7)}  ${wanted.padEnd(8)} ${note}`);
const ms = (xs) => `${median(xs).toFixed(0)} ms`;
row('TTFT of 4,096 + 64 new tokens: after restart ÷ resident', median(restarted) / median(resident), '≤ 1.5', `${ms(restarted)}, ${ms(resident)}`);
row('                               cold ÷ after restart', median(cold) / median(restarted), '', ms(cold));
row('ten turns of 200 tokens: bytes written ÷ captured', written / unique, '', `${(written / 2 ** 20).toFixed(1)} MiB`);
for (const [what, [a, b]] of Object.entries(cost)) {
  const ratios = b.map((x, i) => x / a[i]);
  row(`${what}: speed with the cache ÷ without`, median(ratios), '≥ 0.98', `${Math.min(...ratios).toFixed(2)} to ${Math.max(...ratios).toFixed(2)}; ${ms(b)}, ${ms(a)}`);
}
