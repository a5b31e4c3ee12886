// llama-server's own paths: /infill, /tokenize, /slots with save, restore and erase, /lora-adapters, on a tiny model.
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { model, startServer } from './server.mjs';

const tiny = model('tiny/llama.gguf');
// The byte vocabulary has no FIM tokens: three of its marks are taken for them.
const [PRE, SUF, MID] = [257, 258, 259];
const fim = ['fim_pre', 'fim_suf', 'fim_mid'].flatMap((name, i) =>
  ['--override-kv', `tokenizer.ggml.${name}_token_id=int:${[PRE, SUF, MID][i]}`]);
const dir = mkdtempSync(path.join(tmpdir(), 'kvasir-slots-'));
const common = ['-m', tiny, '-c', '4096', '-np', '2', '-kvu', '--no-warmup', '-t', '1', '-fa', 'off', '-ub', '256'];
let server;

async function ask(where, route, body, method = body === undefined ? 'GET' : 'POST') {
  const res = await fetch(where.url + route, { method, body: body === undefined ? undefined : JSON.stringify(body) });
  return { status: res.status, json: await res.json() };
}
async function ok(route, body, method) {
  const { status, json } = await ask(server, route, body, method);
  assert.equal(status, 200, JSON.stringify(json));
  return json;
}
const bytes = (text) => [...Buffer.from(text)];

before(async () => {
  server = await startServer({
    args: [...common, ...fim, '--lora-scaled', `${model('tiny/lora/llama.gguf')}:0.5`, '--slot-save-path', dir,
      '--cache-dir', path.join(dir, 'cache'), '--cache-disk', '64M'],
  });
});
after(async () => {
  await server?.stop();
  rmSync(dir, { recursive: true, force: true });
});

test('infill puts prefix, prompt and suffix around the FIM tokens', async () => {
  const got = await ok('/infill', { input_prefix: 'int f() {', input_suffix: '}', prompt: ' re', n_predict: 2 });
  const spelled = await ok('/detokenize', { tokens: [PRE, ...bytes('int f() { re'), SUF, ...bytes('}'), MID] });
  assert.equal(got.prompt, spelled.content);
  assert.equal(got.tokens_predicted, 2);
  assert.equal(got.stop, true);
  const extra = await ok('/v1/infill', {
    input_prefix: 'a', input_suffix: 'b', input_extra: [{ text: 'xyz', filename: 'f.c' }, { text: 'w' }], n_predict: 1 });
  assert.ok(extra.prompt.startsWith('\n\n--- snippet ---\n\nxyz\n\n--- snippet ---\n\nw'), extra.prompt);
});

test('infill streams', async () => {
  const res = await fetch(`${server.url}/infill`, {
    method: 'POST', body: JSON.stringify({ input_prefix: 'a', input_suffix: 'b', n_predict: 3, stream: true }) });
  const events = (await res.text()).split('\n\n').filter(Boolean).map((e) => JSON.parse(e.slice(6)));
  assert.equal(events.length, 4);
  assert.equal(events.at(-1).stop, true);
});

test('infill refuses by name', async () => {
  const good = { input_prefix: 'a', input_suffix: 'b' };
  for (const [body, param, word] of [
    [{ input_suffix: 'b' }, 'input_prefix', 'required'],
    [{ input_prefix: 'a', input_suffix: null }, 'input_suffix', 'required'],
    [{ ...good, prompt: 5 }, 'prompt', 'string'],
    [{ ...good, input_prefix: {} }, 'input_prefix', ''],
    [{ ...good, input_extra: 'x' }, 'input_extra', 'array'],
    [{ ...good, input_extra: [{ filename: 'a' }] }, 'input_extra[0].text', 'text'],
    [{ ...good, input_extra: [{ text: 'a', filename: 1 }] }, 'input_extra[0].filename', 'filename'],
  ]) {
    const { status, json } = await ask(server, '/infill', body);
    assert.equal(status, 400, JSON.stringify(body));
    assert.equal(json.error.param, param);
    assert.ok(json.error.message.includes(word), json.error.message);
  }
});

test('tokenize with pieces, and back', async () => {
  const got = await ok('/tokenize', { content: 'é<|im_end|>', with_pieces: true });
  assert.deepEqual(got.tokens.map((t) => t.piece), [[0xc3], [0xa9], '<|im_end|>']);
  const plain = await ok('/tokenize', { content: '<|im_end|>', parse_special: false });
  assert.deepEqual(plain.tokens, bytes('<|im_end|>'));
  assert.equal((await ok('/detokenize', { tokens: got.tokens.map((t) => t.id) })).content, 'é<|im_end|>');
});

test('the answer of tokenize is written compactly, and bounded', async () => {
  const raw = async (body) => (await fetch(server.url + '/tokenize', { method: 'POST', body: JSON.stringify(body) })).text();
  const [end] = (await ok('/tokenize', { content: '<|im_end|>' })).tokens;
  assert.equal(await raw({ content: 'é"' }), '{"tokens":[195,169,34]}');
  assert.equal(await raw({ content: 'é"<|im_end|>\n', with_pieces: true }), '{"tokens":[{"id":195,"piece":[195]},{"id":169,'
    + `"piece":[169]},{"id":34,"piece":"\\""},{"id":${end},"piece":"<|im_end|>"},{"id":10,"piece":"\\n"}]}`);
  assert.equal(await raw({ content: '' }), '{"tokens":[]}');
  assert.equal(await raw({ content: '', with_pieces: true }), '{"tokens":[]}');
  const many = Array(2_800_000).fill(195);
  const { status, json } = await ask(server, '/tokenize', { content: many, with_pieces: true });
  assert.equal(status, 400);
  assert.equal(json.error.message,
    "'content' has 2800000 tokens, and the answer to them would be longer than 64 MiB; send it in parts");
  assert.equal((await ok('/tokenize', { content: many })).tokens.length, 2_800_000);
});

test('a slot is saved, erased, restored, and the next request goes on from there', async () => {
  const prompt = 'What is the capital of France, and how do you know? '.repeat(12);
  const first = await ok('/completion', { prompt, id_slot: 1, n_predict: 4 });
  assert.equal(first.id_slot, 1);
  const saved = await ok('/slots/1?action=save', { filename: 'slot1.bin' });
  assert.deepEqual(Object.keys(saved).sort(), ['filename', 'id_slot', 'n_saved', 'n_written', 'timings']);
  assert.equal(saved.id_slot, 1);
  assert.equal(saved.n_saved, first.tokens_cached);
  const file = path.join(dir, 'slot1.bin');
  assert.equal(saved.n_written, statSync(file).size);
  assert.equal(statSync(file).mode & 0o777, 0o600);
  // Another conversation in the other slot takes the first one's cells; the file still leads to it.
  await ok('/completion', { prompt: 'Something else. '.repeat(20), id_slot: 0, n_predict: 2 });
  assert.ok((await ok('/slots/1?action=erase', {})).n_erased > 0);
  assert.equal((await ok('/slots/1?action=erase', {})).n_erased, 0);

  const restored = await ok('/slots/0?action=restore', { filename: 'slot1.bin' });
  assert.deepEqual(Object.keys(restored).sort(), ['filename', 'id_slot', 'n_read', 'n_restored', 'timings']);
  assert.equal(restored.n_restored, saved.n_saved);
  assert.equal(restored.n_read, saved.n_written);
  let held; // the list is renewed after each round of the engine, which may be after the answer
  for (let i = 0; i < 1000 && held !== saved.n_saved; i++) held = (await ok('/slots'))[0].n_tokens;
  assert.equal(held, saved.n_saved);
  const next = await ok('/completion', { prompt: prompt + 'And', id_slot: 0, n_predict: 2 });
  assert.ok(next.timings.cache_n >= prompt.length - 1, JSON.stringify(next.timings));

  // What was restored can be saved again.
  assert.ok((await ok('/slots/0?action=save', { filename: 'again' })).n_saved > 0);
});

test('a directory for slots that somebody removed is made anew', async () => {
  const saves = path.join(dir, 'saves', 'of-slots');
  mkdirSync(saves, { recursive: true });
  const other = await startServer({ args: [...common, '--slot-save-path', saves] });
  try {
    const send = (route, body) => ask(other, route, body);
    assert.equal((await send('/completion', { prompt: 'Once upon a time. '.repeat(20), id_slot: 0, n_predict: 2 })).status, 200);
    rmSync(path.dirname(saves), { recursive: true });
    const saved = await send('/slots/0?action=save', { filename: 'f' });
    assert.equal(saved.status, 200, JSON.stringify(saved.json));
    assert.ok(statSync(path.join(saves, 'f')).isFile());
  } finally {
    await other.stop();
  }
});

test('slots tell the parameters of what ran there', async () => {
  await ok('/completion', { prompt: 'abc', id_slot: 1, n_predict: 2, temperature: 0.25, top_k: 7, seed: 5 });
  const slot = (await ok('/slots'))[1];
  assert.equal(slot.id, 1);
  assert.equal(slot.params.temperature, 0.25);
  assert.equal(slot.params.top_k, 7);
  assert.equal(slot.params.seed, 5);
  assert.ok(!('prompt' in slot), 'no text of anybody');
});

test('slot actions refuse by name', async () => {
  const name = (filename) => ({ filename });
  for (const [route, body, word] of [
    ['/slots/9?action=save', name('x'), 'Invalid slot ID'],
    ['/slots/x?action=save', name('x'), 'Invalid slot ID'],
    ['/slots/1x?action=save', name('x'), 'Invalid slot ID'],
    ['/slots/1?action=dance', name('x'), 'Invalid action'],
    ['/slots/1', name('x'), 'Invalid action'],
    ['/slots/1?action=save', {}, "'filename' is required"],
    ...['', '.', '..', '../x', 'a/b', 'a\\b', ' a', 'a.', 'a:b', 'x'.repeat(256), 'a\u0085', '\uFF0E'].map((bad) =>
      ['/slots/1?action=save', name(bad), 'Invalid filename']),
    ['/slots/1?action=save', name(7), 'filename'],
    ['/slots/1?action=restore', name('none.bin'), 'there is no file none.bin'],
  ]) {
    const { status, json } = await ask(server, route, body);
    assert.equal(status, 400, `${route} ${JSON.stringify(body)}`);
    assert.ok(json.error.message.includes(word), json.error.message);
  }
});

test('files that are none of ours are named', async () => {
  await ok('/completion', { prompt: 'Some words to be saved here.', id_slot: 1, n_predict: 2 });
  await ok('/slots/1?action=save', { filename: 'good' });
  const text = readFileSync(path.join(dir, 'good'), 'utf8');
  const o = JSON.parse(text);
  for (const [content, word] of [
    [Buffer.from('qsgg\x03\0\0\0'), 'llama-server (GGSQ)'],
    ['{}', 'damaged'],
    ['nonsense', 'damaged'],
    [text.slice(0, -20), 'damaged'],
    [JSON.stringify({ ...o, tokens: [...o.tokens, 1] }), 'checksum'],
    [JSON.stringify({ ...o, format: 'kvasir slot 2' }), 'kvasir slot 2'],
  ]) {
    writeFileSync(path.join(dir, 'bad'), content);
    const { status, json } = await ask(server, '/slots/1?action=restore', { filename: 'bad' });
    assert.equal(status, 400);
    assert.ok(json.error.message.includes(word), json.error.message);
  }
  // Nor does another scope get at it.
  const other = await ask(server, '/slots/1?action=restore', { filename: 'good', cache_salt: 'x' });
  assert.equal(other.status, 400);
  assert.match(other.json.error.message, /there is no file good/, 'nor learns that it is there');
  const stolen = await ask(server, '/slots/1?action=save', { filename: 'stolen', cache_salt: 'x' });
  assert.equal(stolen.status, 403);
  // Its own file of that name is another one.
  await ok('/completion', { prompt: 'Words of another scope to be saved.', id_slot: 1, n_predict: 2, cache_salt: 'x' });
  const own = await ok('/slots/1?action=save', { filename: 'good', cache_salt: 'x' });
  assert.equal(readFileSync(path.join(dir, 'good'), 'utf8'), text);
  const back = await ok('/slots/1?action=restore', { filename: 'good', cache_salt: 'x' });
  assert.equal(back.n_read, own.n_written);
  // Once the cache has forgotten it, the file alone is not enough, and says so with numbers.
  await ok('/kvasir/cache?all=true', undefined, 'DELETE');
  const gone = await ask(server, '/slots/1?action=restore', { filename: 'good' });
  assert.equal(gone.status, 400);
  assert.match(gone.json.error.message, new RegExp(`none of the ${o.tokens.length} tokens`));
});

test('a save that waits for a slow disk sees its client hang up', async () => {
  const slow = await startServer({
    args: [...common, '--slot-save-path', dir, '--cache-dir', path.join(dir, 'slow'), '--cache-disk', '64M', '--test-slow-disk', '1500'],
  });
  try {
    const { status } = await ask(slow, '/completion', { prompt: 'a slow disk '.repeat(150), id_slot: 0, n_predict: 1 });
    assert.equal(status, 200);
    const client = new AbortController();
    const saved = fetch(`${slow.url}/slots/0?action=save`, { method: 'POST', signal: client.signal, body: JSON.stringify({ filename: 'slow' }) });
    saved.catch(() => {});
    await ask(slow, '/health');
    client.abort();
    await slow.until((lines) => lines.some((l) => l.includes('/slots/0')), 'the log line of the save');
    assert.ok((await ask(slow, '/kvasir/cache')).json.queue_bytes > 0, 'it did not wait for the disk');
  } finally {
    await slow.stop('SIGKILL');
  }
});

test('adapters are told, and scales in effect can be set', async () => {
  const [one, ...more] = await ok('/lora-adapters');
  assert.deepEqual(more, []);
  assert.deepEqual(Object.keys(one).sort(), ['id', 'path', 'prompt_prefix', 'scale', 'task_name']);
  assert.equal(one.id, 0);
  assert.equal(one.scale, 0.5);
  assert.deepEqual(await ok('/lora-adapters', [{ id: 0, scale: 0.5 }]), { success: true });
  await ok('/completion', { prompt: 'a', n_predict: 1, lora: [{ id: 0, scale: 0.5 }] });
  for (const [body, word] of [
    [[{ id: 0, scale: 1 }], '--lora-scaled'],
    [[], '--lora-scaled'],
    [[{ id: 1, scale: 1 }], 'id of an adapter'],
    [[{ id: 0, scale: 'x' }], 'must be a number'],
    [[5], 'must be an object'],
    [{}, 'must be an array'],
  ]) {
    const { status, json } = await ask(server, '/lora-adapters', body);
    assert.equal(status, 400, JSON.stringify(body));
    assert.ok(json.error.message.includes(word), json.error.message);
  }
  const field = await ask(server, '/completion', { prompt: 'a', n_predict: 1, lora: [{ id: 0, scale: 2 }] });
  assert.equal(field.status, 400);
  assert.equal(field.json.error.param, 'lora');
});

test('without the options these say which one is missing', async () => {
  const plain = await startServer({ args: common });
  try {
    for (const [route, body, word] of [
      ['/infill', { input_prefix: 'a', input_suffix: 'b' }, 'prefix token is missing. suffix token is missing. middle'],
      ['/slots/0?action=save', { filename: 'x' }, '--slot-save-path'],
      ['/props', {}, '--props'],
      ['/v1/embeddings', { input: 'x' }, '--embeddings'],
      ['/embedding', { content: 'x' }, '--embeddings'],
      ['/v1/rerank', { query: 'x', documents: ['y'] }, '--reranking'],
    ]) {
      const { status, json } = await ask(plain, route, body);
      assert.equal(status, 501, route);
      assert.equal(json.error.type, 'not_supported_error');
      assert.ok(json.error.message.includes(word), json.error.message);
    }
    assert.deepEqual((await ask(plain, '/lora-adapters')).json, []);
    assert.equal((await ask(plain, '/slots?fail_on_no_slot=1')).status, 200);
  } finally {
    await plain.stop();
  }
});
