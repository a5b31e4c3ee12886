// A model whose logits are NaN: clients are told so, the server lives, and the cache keeps nothing of it.
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { model, startServer } from './server.mjs';
import { events } from './sse.mjs';

const folder = mkdtempSync(path.join(os.tmpdir(), 'kvasir-nan-'));
let server;

before(async () => {
  server = await startServer({ args: ['-m', model('tiny/llama.gguf'), '-c', '4096', '-np', '2', '-t', '1', '-fa', 'off',
    '-ub', '256', '--cache-dir', folder, '--override-kv', 'llama.rope.freq_base=float:nan'] });
});
after(async () => {
  await server?.stop();
  rmSync(folder, { recursive: true });
});

const ask = (route, body) => fetch(server.url + route, { method: 'POST', body: JSON.stringify(body) });
const prompt = 'a text of more than one block '.repeat(30);

test('what a client is told', async () => {
  const plain = await ask('/v1/completions', { prompt, max_tokens: 4 });
  assert.equal(plain.status, 500);
  const { error } = await plain.json();
  assert.equal(error.type, 'server_error');
  assert.match(error.message, /not numbers \(NaN\).*--flash-attn off/);
  const anthropic = await ask('/v1/messages', { max_tokens: 4, messages: [{ role: 'user', content: prompt }] });
  assert.equal(anthropic.status, 500);
  assert.equal((await anthropic.json()).error.type, 'api_error');
  const stream = await ask('/v1/chat/completions', { stream: true, messages: [{ role: 'user', content: prompt }] });
  assert.equal(stream.status, 200);
  let told = '';
  for await (const e of events(stream)) told += e.data;
  assert.match(told, /not numbers/);
});

test('nothing of it is kept, and nothing hangs', async () => {
  const metrics = await (await fetch(`${server.url}/metrics`)).text();
  const value = (name) => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(metrics)?.[1]);
  assert.equal(value('llamacpp:requests_processing'), 0);
  assert.equal((await fetch(`${server.url}/health`)).status, 200);
  const settled = async () => (await fetch(`${server.url}/kvasir/cache`)).json();
  let cache = await settled();
  while (cache.queue_bytes > 0) cache = await settled();
  assert.ok(cache.blocks > 0, 'blocks were captured before anybody could know');
  assert.equal(cache.nodes, 1, 'the root alone is left');
  assert.equal(cache.ram_bytes, 0);
  assert.deepEqual(readdirSync(folder, { recursive: true }).filter((name) => name.endsWith('.b')), []);
});
