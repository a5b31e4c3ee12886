// The command line's tools beside a running server, on the fake engine: its cache is the real one.
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fake, modelArgs, runKvasir, startServer } from './server.mjs';

const args = (...more) => (fake ? modelArgs(...more) : ['--test-fake', 'full', ...more]);
const folder = mkdtempSync(path.join(os.tmpdir(), 'kvasir-tools-'));
const keys = path.join(folder, 'keys');
const cache = path.join(folder, 'cache');
writeFileSync(keys, 'sk-plain\nsk-team scope=team\nsk-boss admin\n', { mode: 0o600 });
after(() => rmSync(folder, { recursive: true }));

describe('kvasir cache beside a server', () => {
  let server;
  let count = 0;
  before(async () => {
    server = await startServer({ args: args('-c', '8192', '-np', '1', '--cache-dir', cache, '--cache-disk', '64M', '--api-key-file', keys) });
  });
  after(() => server.stop());

  const fresh = () => `${String.fromCharCode(65 + count)}${count++} `.repeat(200);
  const headers = (key) => ({ authorization: `Bearer ${key}` });

  async function cached(prompt, key) {
    const response = await fetch(`${server.url}/v1/completions`, { method: 'POST', headers: headers(key), body: JSON.stringify({ prompt, max_tokens: 1 }) });
    const body = await response.json();
    assert.equal(response.status, 200, JSON.stringify(body));
    return body.usage.prompt_tokens_details.cached_tokens;
  }
  /** Until all that was captured is in the tree and on disk. */
  async function stored() {
    for (;;) {
      const state = await (await fetch(`${server.url}/kvasir/cache`, { headers: headers('sk-boss') })).json();
      if (state.queue_bytes === 0) return;
    }
  }
  const cli = async (words, env = {}) => {
    const { code, stdout, stderr } = await runKvasir(['cache', ...words, '--cache-dir', cache], { env });
    return { code, stdout, stderr };
  };
  const rm = (...words) => cli(['rm', ...words, '--url', server.url], { KVASIR_API_KEY: 'sk-boss' });

  it('rm --url has it forget a scope, and everything', async () => {
    const prompt = fresh();
    await cached(prompt, 'sk-plain');
    await cached(prompt, 'sk-team');
    await cached(fresh(), 'sk-plain'); // the one slot holds something else now
    await stored();
    assert.ok((await cached(prompt, 'sk-team')) > 0);
    const told = await rm('--scope', 'team');
    assert.equal(told.code, 0, told.stderr);
    assert.match(told.stdout, /the server forgot \d+ records/);
    assert.equal(await cached(prompt, 'sk-team'), 0);
    assert.ok((await cached(prompt, 'sk-plain')) > 0);
    await stored();
    const all = await rm('--all', '--json');
    assert.equal(all.code, 0, all.stderr);
    assert.ok('server_records' in JSON.parse(all.stdout));
    assert.equal(await cached(prompt, 'sk-plain'), 0);
    assert.equal((await fetch(`${server.url}/health`)).status, 200);
  });

  it('needs the admin\'s key; without --url only a note', async () => {
    const prompt = fresh();
    await cached(prompt, 'sk-plain');
    await stored();
    const refused = await cli(['rm', '--scope', 'nobody', '--url', server.url, '--api-key', 'sk-team']);
    assert.equal(refused.code, 1);
    assert.match(refused.stderr, /the server says 403/);
    const alone = await cli(['rm', '--all']);
    assert.equal(alone.code, 0, alone.stderr);
    assert.match(alone.stderr, /stays until it ends/);
    await rm('--all');
  });

  it('warm reads what is stored', async () => {
    await cached(fresh(), 'sk-plain');
    await stored();
    const dry = JSON.parse((await cli(['warm', '--dry-run', '--json'])).stdout);
    const { code, stdout, stderr } = await cli(['warm', '--json']);
    assert.equal(code, 0, stderr);
    const read = JSON.parse(stdout);
    assert.ok(dry.records > 0 && read.records >= dry.records && read.bytes > 0, stdout);
  });
});

describe('kvasir doctor', () => {
  const doctor = (words, env = {}) => runKvasir(['doctor', '--json', ...words], { env });
  const find = (result, check) => JSON.parse(result.stdout).findings.filter((f) => f.check === check);

  it('measures a directory and leaves nothing in it', async () => {
    const place = mkdtempSync(path.join(folder, 'place-'));
    const result = await doctor(['--cache-dir', place, '--cache-disk', '1G']);
    assert.notEqual(result.code, 2, result.stderr);
    const [speed] = find(result, 'disk speed');
    for (const name of ['write_mb_s', 'direct_mb_s', 'buffered_mb_s', 'fsync_ms']) assert.ok(speed.values[name] > 0, result.stdout);
    assert.deepEqual(readdirSync(place), []);
  });

  it('says what of a model\'s cache is of use', async () => {
    const place = path.join(folder, 'model');
    const disk = ['--cache-dir', place, '--cache-disk', '64M', '--no-speed'];
    const server = await startServer({ args: args('-c', '4096', ...disk.slice(0, 4)) });
    await (await fetch(`${server.url}/v1/completions`, { method: 'POST', body: JSON.stringify({ prompt: 'abc '.repeat(300), max_tokens: 1 }) })).json();
    await server.stop();
    const same = await doctor([...args('-c', '4096'), ...disk]);
    const [usable] = find(same, 'model\'s cache');
    assert.equal(usable.level, 'ok', same.stdout);
    assert.ok(usable.values.usable_bytes > 0 && usable.values.unusable === '');
    const other = await doctor([...args('-c', '4096'), '-fa', 'on', ...disk]);
    const [lost] = find(other, 'model\'s cache');
    assert.equal(lost.level, 'warn', other.stdout);
    assert.equal(lost.values.usable_bytes, 0);
    assert.match(lost.values.unusable, /flash attention off → on/);
  });
});
