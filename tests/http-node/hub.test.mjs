// -hf and --model-url against a small stand-in for the Hugging Face server: what is fetched where, how it goes on after a cut,
// what is checked, and that nothing is asked for when it is there already.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, lstatSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, readlinkSync, rmSync, statSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { after, afterEach, beforeEach, describe, it } from 'node:test';
import { binary, fake, model, runKvasir, startServer } from './server.mjs';

const folder = mkdtempSync(path.join(os.tmpdir(), 'kvasir-hub-'));
after(() => rmSync(folder, { recursive: true, force: true }));
const tiny = fake ? Buffer.alloc(300_000, 'no model') : readFileSync(model('tiny/llama.gguf'));
const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex');
const commit = '0123456789abcdef0123456789abcdef01234567';
const repo = 'someone/tiny-GGUF';

/** Answers as huggingface.co does for one repository. `files`: path → bytes. */
class Hub {
  files = new Map();
  asked = []; // { url, headers }
  cut = 0; // so many answers end early
  stall = false; // an answer stops half-way, and nothing ends it
  token = null; // must be sent
  claim = new Map(); // path → another hash than the content's
  elsewhere = null; // origin of another server that has the content
  etag = (bytes) => `"${sha256(bytes).slice(0, 20)}"`;

  async listen() {
    this.server = http.createServer((request, response) => this.answer(request, response));
    await new Promise((resolve) => this.server.listen(0, '127.0.0.1', resolve));
    this.origin = `http://127.0.0.1:${this.server.address().port}`;
    return this;
  }

  async close() {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  answer(request, response) {
    const url = request.url.replace(/^http:\/\/[^/]+/, ''); // a proxy is asked with the whole address
    this.asked.push({ url: request.url, headers: request.headers });
    const json = (status, value) => response.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(value));
    if (this.token && request.headers.authorization !== `Bearer ${this.token}`) return json(401, { error: 'Invalid username or password.' });
    if (url === `/api/models/${repo}/refs`) return json(200, { branches: [{ name: 'old', targetCommit: 'f'.repeat(40) }, { name: 'main', targetCommit: commit }] });
    if (url === `/api/models/${repo}/tree/${commit}?recursive=true`) {
      return json(200, [{ type: 'directory', path: 'sub' }, { type: 'file', path: '../../evil.gguf', size: 1, oid: 'a'.repeat(40) },
        ...[...this.files].map(([name, bytes]) => ({ type: 'file', path: name, size: bytes.length, oid: 'b'.repeat(40), lfs: { oid: this.claim.get(name) ?? sha256(bytes), size: bytes.length } }))]);
    }
    const name = decodeURIComponent(url.replace(`/${repo}/resolve/${commit}/`, '').replace(/^\//, '').replace(/\?.*/, ''));
    const bytes = this.files.get(name);
    if (!bytes) return json(404, { error: 'Repository not found' });
    if (this.elsewhere) return response.writeHead(302, { Location: `${this.elsewhere}/${name}`, 'X-Linked-ETag': `"${sha256(bytes)}"` }).end();
    return this.send(request, response, bytes);
  }

  send(request, response, bytes) {
    const same = !request.headers['if-range'] || request.headers['if-range'] === this.etag(bytes);
    const from = same ? Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? '')?.[1] ?? 0) : 0;
    const headers = { 'Content-Length': bytes.length - from, ETag: this.etag(bytes), 'Accept-Ranges': 'bytes' };
    if (from) headers['Content-Range'] = `bytes ${from}-${bytes.length - 1}/${bytes.length}`;
    response.writeHead(from ? 206 : 200, headers);
    const half = bytes.subarray(from, from + Math.ceil((bytes.length - from) / 2));
    if (this.stall) return response.write(half);
    if (this.cut > 0) {
      this.cut--;
      return response.write(half, () => request.socket.destroy());
    }
    return response.end(bytes.subarray(from));
  }
}

let hub, cache;
beforeEach(async () => {
  hub = await new Hub().listen();
  cache = mkdtempSync(path.join(folder, 'cache-'));
});
afterEach(() => hub.close());

const environment = (more = {}) => ({ HF_ENDPOINT: hub.origin, MODEL_ENDPOINT: '', LLAMA_CACHE: cache, HF_TOKEN: '', KVASIR_HF_TOKEN: '', ...more });
const check = (args, env = {}) => runKvasir(['serve', '--check', '-c', '512', ...args], { env: environment(env) });
const inRepo = (...parts) => path.join(cache, 'models--someone--tiny-GGUF', ...parts);
const snapshot = (name) => inRepo('snapshots', commit, name);
const downloads = () => hub.asked.filter((a) => !a.url.includes('/api/'));
const unfinished = () => readdirSync(inRepo('blobs')).filter((n) => n.endsWith('.downloadInProgress'));

/** The file is there whole, as a link to its content. */
function assertFetched(name, bytes) {
  assert.equal(lstatSync(snapshot(name)).isSymbolicLink(), true);
  assert.equal(readlinkSync(snapshot(name)), `${'../'.repeat(name.split('/').length + 1)}blobs/${sha256(bytes)}`);
  assert.ok(readFileSync(snapshot(name)).equals(bytes));
  assert.equal(readFileSync(inRepo('refs', 'main'), 'utf8'), commit);
}

/** A kvasir whose fetching has come half-way. */
async function startAndStall(args) {
  hub.stall = true;
  const child = spawn(binary, ['serve', '--check', ...args], { env: { ...process.env, ...environment() }, stdio: 'ignore' });
  let ended = null;
  const exited = new Promise((resolve) => {
    for (const how of ['exit', 'error']) child.on(how, (what) => resolve(ended = `${how} ${what}`));
  });
  const half = Math.ceil(tiny.length / 2);
  const partSize = () => unfinished().map((n) => statSync(inRepo('blobs', n)).size)[0];
  while (!existsSync(inRepo('blobs')) || partSize() !== half) {
    if (ended) throw new Error(`kvasir ended before it had half of the file: ${ended}`);
    await new Promise((resolve) => setImmediate(resolve));
  }
  return { child, exited, half };
}

describe('-hf', () => {
  it('fetches into the layout of the Hugging Face tools, serves it by its name, and asks for nothing the next time', { skip: fake ? 'the fake engine reads no model file (KVASIR_TEST_FAKE)' : false }, async () => {
    hub.files.set('sub/tiny-Q4_0.gguf', tiny).set('tiny-Q8_0.gguf', tiny.subarray(0, 100)).set('mmproj-Q4_0.gguf', tiny.subarray(0, 50));
    const server = await startServer({ args: ['-hf', `${repo}:q4_0`, '-c', '512'], env: environment() });
    const models = await (await fetch(`${server.url}/v1/models`)).json();
    assert.equal(models.data[0].id, `${repo}:q4_0`);
    assert.match(server.log(), /fetching sub\/tiny-Q4_0\.gguf: .* 100 %/);
    await server.stop();
    assertFetched('sub/tiny-Q4_0.gguf', tiny);
    assert.equal(downloads().length, 1);
    hub.asked.length = 0;
    const again = await check(['-hf', `${repo}:Q4_0`]);
    assert.equal(again.code, 0, again.stderr);
    const offline = await check(['-hf', repo, '--offline']);
    assert.equal(offline.code, 0, offline.stderr);
    assert.equal(hub.asked.length, 0);
    const list = await runKvasir(['-cl'], { env: environment() });
    assert.equal(list.stdout, `${repo}:Q4_0\n`);
  });

  it('fetches nothing with --offline', async () => {
    const { code, stderr } = await check(['-hf', repo, '--offline']);
    assert.notEqual(code, 0);
    assert.match(stderr, /is not on this machine, and --offline forbids to fetch it; looked in /);
    assert.equal(hub.asked.length, 0);
  });

  it('goes on where a connection was cut', async () => {
    hub.files.set('tiny-Q4_K_M.gguf', tiny);
    hub.cut = 2;
    const { stderr } = await check(['-hf', repo]);
    assert.match(stderr, /trying again at byte/);
    assertFetched('tiny-Q4_K_M.gguf', tiny);
    assert.deepEqual(downloads().map((a) => a.headers.range), [undefined, `bytes=${Math.ceil(tiny.length / 2)}-`, downloads()[2].headers.range]);
    assert.equal(unfinished().length, 0);
  });

  it('goes on where a killed start was, keeps a second one out meanwhile', async () => {
    hub.files.set('tiny-Q4_K_M.gguf', tiny);
    const { child, exited, half } = await startAndStall(['-hf', repo]);
    const second = await check(['-hf', repo]);
    assert.notEqual(second.code, 0);
    assert.match(second.stderr, /another program is fetching tiny-Q4_K_M\.gguf/);
    child.kill('SIGKILL');
    await exited;
    hub.stall = false;
    hub.asked.length = 0;
    await check(['-hf', repo]);
    assertFetched('tiny-Q4_K_M.gguf', tiny);
    assert.equal(downloads()[0].headers.range, `bytes=${half}-`);
  });

  it('does not take what is not what the repository says', async () => {
    hub.files.set('tiny-Q4_0.gguf', tiny);
    hub.claim.set('tiny-Q4_0.gguf', sha256('other'));
    const { code, stderr } = await check(['-hf', repo]);
    assert.notEqual(code, 0);
    assert.match(stderr, /the SHA-256 of what came is [0-9a-f]{16}…, it should be [0-9a-f]{16}…/);
    assert.deepEqual(readdirSync(inRepo('blobs')), []);
    assert.equal(existsSync(inRepo('snapshots')), false);
  });

  it('fetches every part of a split model', async () => {
    const part = (i) => `q5/tiny-Q5_K_M-0000${i}-of-00003.gguf`;
    for (const i of [1, 2, 3]) hub.files.set(part(i), tiny.subarray(i * 1000, i * 2000 + 500));
    await check(['-hf', `${repo}:Q5_K_M`]); // it is no model: only the fetching counts
    for (const i of [1, 2, 3]) assertFetched(part(i), hub.files.get(part(i)));
    const later = await check(['-hf', repo, '-hff', part(2)]);
    assert.match(later.stderr, /is part 2 of 3|is a later part of a model/);
    hub.files.delete(part(3));
    rmSync(cache, { recursive: true });
    const missing = await check(['-hf', `${repo}:Q5_K_M`]);
    assert.match(missing.stderr, /has no q5\/tiny-Q5_K_M-00003-of-00003\.gguf, part 3 of 3/);
  });

  it('says what the repository has instead', async () => {
    hub.files.set('tiny-Q4_0.gguf', tiny).set('tiny-Q8_0.gguf', tiny);
    const { stderr } = await check(['-hf', `${repo}:Q6_K`]);
    assert.match(stderr, /has no Q6_K; it has tiny-Q4_0\.gguf, tiny-Q8_0\.gguf/);
    const file = await check(['-hf', repo, '-hff', 'none.gguf']);
    assert.match(file.stderr, /has no none\.gguf; it has /);
    const unknown = await check(['-hf', 'someone/else']);
    assert.match(unknown.stderr, /someone\/else: the server says 404, Repository not found: there is no such repository/);
    const odd = await check(['-hf', 'else']);
    assert.match(odd.stderr, /takes USER\/REPO/);
  });

  it('sends the token to the server of models and to nobody else', async () => {
    const other = await new Hub().listen();
    hub.token = 'hf_secret';
    hub.elsewhere = other.origin;
    hub.files.set('tiny-Q4_0.gguf', tiny);
    other.files.set('tiny-Q4_0.gguf', tiny);
    const without = await check(['-hf', repo]);
    assert.match(without.stderr, /401.*give HF_TOKEN or --hf-token/);
    const wrong = await check(['-hf', repo, '-hft', 'hf_wrong']);
    assert.match(wrong.stderr, /the token .* does not open it/);
    assert.ok(!wrong.stderr.includes('hf_wrong'));
    await check(['-hf', repo], { HF_TOKEN: 'hf_secret' });
    assertFetched('tiny-Q4_0.gguf', tiny);
    assert.equal(other.asked.length, 1);
    assert.equal(other.asked[0].headers.authorization, undefined);
    await other.close();
  });

  it('goes through the proxy of the environment', async () => {
    hub.files.set('tiny-Q4_0.gguf', tiny);
    await check(['-hf', repo], { HF_ENDPOINT: 'http://models.invalid', http_proxy: hub.origin, no_proxy: '' });
    assertFetched('tiny-Q4_0.gguf', tiny);
    assert.ok(hub.asked.every((a) => a.url.startsWith('http://models.invalid/')));
  });

  it('says when the server cannot be reached', async () => {
    const gone = hub.origin;
    await hub.close();
    hub = await new Hub().listen();
    const { code, stderr } = await check(['-hf', repo], { HF_ENDPOINT: gone });
    assert.notEqual(code, 0);
    assert.match(stderr, /there is no model to serve: http:\/\/127\.0\.0\.1:\d+\/api\/models\//);
  });
});

describe('--model-url', () => {
  const url = (name) => `${hub.origin}/${name}?download=true`;

  it('fetches once, into the cache directory or to where -m says', async () => {
    hub.files.set('tiny.gguf', tiny);
    await check(['-mu', url('tiny.gguf')]);
    assert.ok(readFileSync(path.join(cache, 'tiny.gguf')).equals(tiny));
    assert.equal(readFileSync(path.join(cache, 'tiny.gguf.etag'), 'utf8'), hub.etag(tiny));
    await check(['-mu', url('tiny.gguf')]);
    assert.equal(hub.asked.length, 1);
    const there = path.join(cache, 'own', 'name.gguf');
    await check(['-mu', url('tiny.gguf'), '-m', there], { HF_TOKEN: 'hf_secret', HF_ENDPOINT: 'http://models.invalid' });
    assert.ok(readFileSync(there).equals(tiny));
    assert.equal(hub.asked[1].headers.authorization, undefined); // not the server of models
    const offline = await check(['-mu', url('other.gguf'), '--offline']);
    assert.match(offline.stderr, /other\.gguf is not on this machine, and --offline forbids/);
    const none = await check(['-mu', url('none.gguf')]);
    assert.match(none.stderr, /there is nothing at http/);
  });

  it('does not put two versions of a file together', async () => {
    const newer = Buffer.concat([Buffer.from('newer'), tiny]);
    mkdirSync(cache, { recursive: true });
    writeFileSync(path.join(cache, 'tiny.gguf.downloadInProgress'), tiny.subarray(0, 1000));
    writeFileSync(path.join(cache, 'tiny.gguf.downloadInProgress.etag'), hub.etag(tiny));
    hub.files.set('tiny.gguf', newer);
    await check(['-mu', url('tiny.gguf')]);
    assert.equal(hub.asked[0].headers['if-range'], hub.etag(tiny));
    assert.ok(readFileSync(path.join(cache, 'tiny.gguf')).equals(newer));
    assert.deepEqual(readdirSync(cache).sort(), ['tiny.gguf', 'tiny.gguf.etag']);
    // of unknown origin: begun anew
    writeFileSync(path.join(cache, 'b.gguf.downloadInProgress'), 'rest of something');
    hub.files.set('b.gguf', tiny);
    await check(['-mu', url('b.gguf')]);
    assert.ok(readFileSync(path.join(cache, 'b.gguf')).equals(tiny));
  });
});

describe('split models of -m', () => {
  it('names the part that is missing, and the first for a later one', async () => {
    const part = (i) => path.join(cache, `m-0000${i}-of-00003.gguf`);
    for (const i of [1, 3]) writeFileSync(part(i), tiny);
    const missing = await check(['-m', part(1)]);
    assert.notEqual(missing.code, 0);
    assert.match(missing.stderr, /part 2 of 3 of the model is missing: .*m-00002-of-00003\.gguf/);
    const later = await check(['-m', part(3)]);
    assert.match(later.stderr, /is part 3 of 3 of a model: give the first one, .*m-00001-of-00003\.gguf/);
  });
});
