// What the scenario tests share: a tiny model of each memory kind, conversations whose tokens can be counted, and cold
// answers to compare with.
//
// The tiny models' tokens are bytes and their template is ChatML, so that a text of n ASCII characters is n tokens and
// a message is its text and `<|im_start|>role\n … <|im_end|>\n`. Answers that go on in a conversation are played
// (--test-sampler); where an answer is compared it is the model's own, greedy.
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { model, random, runKvasir, startServer } from './server.mjs';

export const kinds = { full: 'llama', window: 'gemma3', hybrid: 'lfm2' };
/** Tokens of a block, and between interval checkpoints, of these models. */
export const B = { full: 256, window: 32, hybrid: 256 };
export const N = 2048;
/** Tokens of the template's generation prompt: `<|im_start|>assistant\n`. */
export const G = 11;
const TOLERANCE = 5e-4; // tiny F32 models, f16 KV (docs/architecture.md)

/** Arguments of a server with one of the tiny models; what comes later wins. */
export function args(kind, ...more) {
  return ['-m', model(`tiny/${kinds[kind] ?? kind}.gguf`), '-c', '8192', '-np', '2', '-kvu', '-fa', 'off', '-t', '1', '--test-sampler',
    ...more];
}

/** One seed for all of a file's texts, told when a test fails; each call gives a generator of its own. */
export const seed = Number(process.env.KVASIR_SEED ?? Date.now() % 1e9);
let generators = 0;
export const generator = () => random(seed + 7919 * generators++);

/** n ASCII characters of words. */
export function words(rnd, n) {
  let text = '';
  while (text.length < n) {
    for (let k = 1 + rnd(9); k > 0; k--) text += String.fromCharCode(97 + rnd(26));
    text += ' ';
  }
  return text.slice(0, n);
}

export async function post(server, where, body) {
  const response = await fetch(server.url + where, { method: 'POST', body: JSON.stringify(body) });
  const json = await response.json();
  return { status: response.status, json };
}

async function complete(server, where, body) {
  const { status, json } = await post(server, where, body);
  assert.equal(status, 200, JSON.stringify(json));
  const { cached, computed, miss } = json.kvasir;
  const prompt = json.usage?.prompt_tokens ?? json.tokens_evaluated;
  assert.equal(cached.engine + cached.ram + cached.disk + computed, prompt, JSON.stringify(json.kvasir));
  return { prompt, computed, cached, miss, json };
}

/** A chat answered by the model: `tokens` of [{ id, top: [logprob, logprob] }]. */
export async function greedy(server, messages, n = 8, more = {}) {
  const got = await complete(server, '/v1/chat/completions',
    { messages, temperature: 0, max_tokens: n, ignore_eos: true, logprobs: true, top_logprobs: 2, ...more });
  const tokens = got.json.choices[0].logprobs.content.map((t) => ({ id: t.id, top: t.top_logprobs.map((x) => x.logprob) }));
  return { ...got, tokens };
}

/** The same for token ids or a text, without a template. */
export async function greedyRaw(server, prompt, n = 8, more = {}) {
  const got = await complete(server, '/completion', { prompt, n_predict: n, temperature: 0, n_probs: 2, ignore_eos: true, ...more });
  const tokens = got.json.completion_probabilities.map((p) => ({ id: p.id, top: p.top_logprobs.map((t) => t.logprob) }));
  return { ...got, tokens };
}

/** Token by token, up to the first place where the run alone had its two best logprobs within the tolerance. */
export function assertSame(got, alone, what) {
  for (let i = 0; i < alone.length; i++) {
    const { id, top } = alone[i];
    if (got[i]?.id === id) continue;
    assert.ok(top.length > 1 && Math.abs(top[0] - top[1]) < TOLERANCE,
      `${what}: token ${i} is ${got[i]?.id}, cold ${id}, with ${top[0] - top[1]} between the two best (KVASIR_SEED=${seed})`);
    return;
  }
  assert.equal(got.length, alone.length, what);
}

export function atMost(n, bound, what) {
  assert.ok(n <= bound, `${what}: computed ${n}, at most ${bound} expected (KVASIR_SEED=${seed})`);
}

/** Servers that remember nothing, by kind, for what a cold run says. */
export class Cold {
  servers = {};

  async server(kind) {
    this.servers[kind] ??= startServer({ args: args(kind, '-np', '1', '-cram', '0'), env: { KVASIR_CACHE_DISK: '0' } });
    return this.servers[kind];
  }

  /** `got`, an answer of greedy(), is what a cold server gives. */
  async check(kind, messages, got, what) {
    const cold = await greedy(await this.server(kind), messages, got.tokens.length, { cache_prompt: false });
    assert.equal(cold.computed, cold.prompt);
    assertSame(got.tokens, cold.tokens, what);
  }

  async checkRaw(kind, prompt, got, what) {
    const cold = await greedyRaw(await this.server(kind), prompt, got.tokens.length, { cache_prompt: false });
    assert.equal(cold.computed, cold.prompt);
    assertSame(got.tokens, cold.tokens, what);
  }

  async stop() {
    for (const server of Object.values(this.servers)) await (await server).stop();
  }
}

/** Until all that was captured is stored, inserted and on disk. Asks again at once. */
export async function settled(server) {
  for (;;) {
    const state = await (await fetch(`${server.url}/kvasir/cache`)).json();
    if (state.queue_bytes === 0) return state;
  }
}

/** Folders of a test file, removed at its end. */
export class Folders {
  made = [];

  make() {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'kvasir-scenario-'));
    this.made.push(dir);
    return dir;
  }

  remove() {
    for (const dir of this.made) rmSync(dir, { recursive: true, force: true });
  }
}

/** Every file below dir: { path, bytes (as du counts) }. What goes meanwhile is left out. */
export function* files(dir) {
  let entries = [];
  try { entries = readdirSync(dir, { withFileTypes: true }); } catch { /* it went */ }
  for (const entry of entries) {
    const at = path.join(dir, entry.name);
    let stat;
    try { stat = statSync(at); } catch { continue; }
    yield { path: at, bytes: stat.blocks * 512, size: stat.size };
    if (entry.isDirectory()) yield* files(at);
  }
}

export const du = (dir) => [...files(dir)].reduce((sum, f) => sum + f.bytes, 0);

/** `kvasir cache VERB … --json` on a directory. */
export async function cacheTool(dir, ...verb) {
  const { code, stdout, stderr } = await runKvasir(['cache', ...verb, '--cache-dir', dir, '--json']);
  return { code, out: stdout ? JSON.parse(stdout) : null, stderr };
}
