// A few of the kills that `make kill` does by the hundred, and the end on a disk that is too slow for what waits.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { describe, it } from 'node:test';
import { killMany, kinds, tiny } from './kill.mjs';
import { runKvasir, startServer } from './server.mjs';

describe('SIGKILL', () => {
  const seed = Number(process.env.KVASIR_SEED ?? Date.now() % 1e9);
  for (const [i, kind] of kinds.entries()) {
    it(`under load on ${kind} (KVASIR_SEED=${seed})`, async (t) => {
      const killed = await killMany(kind, i < 2 ? 2 : 1, seed + i);
      t.diagnostic(`${killed.resumed} tokens came from disk`);
      assert.ok(killed.resumed > 0);
    });
  }
});

describe('SIGTERM', () => {
  it('ends in time with a full queue on a slow disk, and says what was not written', async () => {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'kvasir-slow-'));
    const timeout = 3;
    const server = await startServer({ args: ['-m', tiny('llama'), '-c', '8192', '-np', '1', '-t', '1', '-tb', '1', '-ub', '256',
      '-fa', 'off', '--cache-dir', dir, '--cache-ram', '1', '--stop-timeout', `${timeout}`, '--test-slow-disk', '400'] });
    try {
      for (let i = 0; i < 3; i++) { // 24 blocks, each of which takes 400 ms to write
        const prompt = `${i} `.repeat(2048 / 2);
        const response = await fetch(`${server.url}/completion`, { method: 'POST', body: JSON.stringify({ prompt, n_predict: 1 }) });
        assert.equal(response.status, 200);
        await response.arrayBuffer();
      }
      const waiting = await (await fetch(`${server.url}/kvasir/cache`)).json();
      assert.ok(waiting.queue_bytes > 0);
      const exit = await server.stop('SIGTERM'); // with --stop-timeout passed the watchdog would end it with 1
      assert.deepEqual({ code: exit.code, signal: exit.signal }, { code: 0, signal: null });
      const said = /the cache of (\d+) tokens was not written in time/.exec(server.log());
      assert.ok(said && Number(said[1]) > 0 && Number(said[1]) < 3 * 2048 + 10, server.log());
      assert.match(server.log(), /\bstopped$/m);
      const verify = await runKvasir(['cache', 'verify', '--cache-dir', dir]);
      assert.equal(verify.code, 0, verify.stdout + verify.stderr);
    } finally {
      await server.stop('SIGKILL');
      rmSync(dir, { recursive: true, force: true });
    }
  });
});
