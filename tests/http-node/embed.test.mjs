// Embeddings and reranking on tiny models: shapes, batches, refusals; what they compute is tests/engine/test_embedder.c.
import assert from 'node:assert/strict';
import { tmpdir } from 'node:os';
import { after, before, test } from 'node:test';
import { model, runKvasir, startServer } from './server.mjs';

const common = ['-c', '2048', '-np', '2', '--no-warmup', '-t', '1', '-fa', 'off', '-ub', '64'];
const llama = ['-m', model('tiny/llama.gguf'), ...common];
let server;

before(async () => {
  server = await startServer({ args: [...llama, '--embeddings', '--pooling', 'mean'] });
});
after(() => server?.stop());

async function ask(where, route, body) {
  const res = await fetch(where.url + route, { method: 'POST', body: JSON.stringify(body) });
  return { status: res.status, json: await res.json() };
}
async function ok(where, route, body) {
  const { status, json } = await ask(where, route, body);
  assert.equal(status, 200, JSON.stringify(json));
  return json;
}
const length = (v) => Math.sqrt(v.reduce((sum, x) => sum + x * x, 0));
const near = (a, b) => {
  assert.equal(a.length, b.length);
  a.forEach((x, i) => assert.ok(Math.abs(x - b[i]) < 1e-4, `number ${i}: ${x}, not ${b[i]}`));
};

test('one text', async () => {
  const got = await ok(server, '/v1/embeddings', { input: 'hello', model: 'any', user: 'u' });
  assert.equal(got.object, 'list');
  assert.equal(got.model, 'any');
  assert.deepEqual(got.usage, { prompt_tokens: 5, total_tokens: 5 });
  assert.equal(got.data.length, 1);
  assert.equal(got.data[0].object, 'embedding');
  assert.equal(got.data[0].index, 0);
  assert.equal(got.data[0].embedding.length, 256);
  assert.ok(Math.abs(length(got.data[0].embedding) - 1) < 1e-5);
});

test('many texts come in their order, as they would alone', async () => {
  const texts = Array.from({ length: 40 }, (_, i) => `text ${'x'.repeat(i)}`);
  const all = await ok(server, '/v1/embeddings', { input: texts });
  assert.deepEqual(all.data.map((d) => d.index), texts.map((_, i) => i));
  assert.equal(all.usage.prompt_tokens, texts.reduce((sum, t) => sum + t.length, 0));
  for (const i of [0, 17, 39]) {
    const alone = await ok(server, '/v1/embeddings', { input: texts[i] });
    near(all.data[i].embedding, alone.data[0].embedding);
  }
});

test('token ids, lists of them, and mixed', async () => {
  const ids = [...Buffer.from('hello')];
  const want = (await ok(server, '/v1/embeddings', { input: 'hello' })).data[0].embedding;
  near((await ok(server, '/v1/embeddings', { input: ids })).data[0].embedding, want);
  const two = await ok(server, '/v1/embeddings', { input: [ids, 'hello'] });
  near(two.data[0].embedding, want);
  near(two.data[1].embedding, want);
});

test('base64 is the same numbers', async () => {
  const floats = (await ok(server, '/v1/embeddings', { input: 'hello', encoding_format: 'float' })).data[0].embedding;
  const { data: [got] } = await ok(server, '/v1/embeddings', { input: 'hello', encoding_format: 'base64' });
  assert.equal(got.encoding_format, 'base64');
  const raw = Buffer.from(got.embedding, 'base64');
  near(Array.from({ length: raw.length / 4 }, (_, i) => raw.readFloatLE(4 * i)), floats);
});

test("llama-server's own shape, and normalisation", async () => {
  for (const [route, body] of [['/embedding', { content: 'hello' }], ['/embeddings', { input: 'hello' }],
    ['/v1/embeddings', { content: 'hello' }]]) {
    const got = await ok(server, route, body);
    assert.equal(got.length, 1);
    assert.equal(got[0].index, 0);
    assert.equal(got[0].embedding.length, 1);
    assert.equal(got[0].embedding[0].length, 256);
  }
  const how = async (n) => (await ok(server, '/embedding', { content: 'hello', embd_normalize: n }))[0].embedding[0];
  const [raw, most, sum, three] = [await how(-1), await how(0), await how(1), await how(3)];
  assert.ok(Math.abs(Math.max(...most.map(Math.abs)) - 32760) < 1);
  assert.ok(Math.abs(sum.reduce((s, x) => s + Math.abs(x), 0) - 1) < 1e-4);
  assert.ok(Math.abs(three.reduce((s, x) => s + Math.abs(x) ** 3, 0) - 1) < 1e-4);
  near(raw.map((x) => x / length(raw)), await how(2));
});

test('refusals', async () => {
  for (const [body, param, word] of [
    [{}, 'input', '"input" or "content" must be provided'],
    [{ input: null }, 'input', 'must be provided'],
    [{ input: [] }, 'input', 'empty'],
    [{ input: '' }, 'input', 'empty'],
    [{ input: 5 }, 'input', ''],
    [{ input: ['a', ''] }, 'input[1]', 'empty'],
    [{ input: [99999] }, 'input[0]', 'vocabulary'],
    [{ input: 'x'.repeat(65) }, 'input', '65 tokens, and the maximum is 64'],
    [{ input: ['a', 'x'.repeat(100)] }, 'input[1]', '100 tokens, and the maximum is 64'],
    [{ input: Array(2049).fill('a') }, 'input', '2048'],
    [{ input: 'a', encoding_format: 'hex' }, 'encoding_format', 'base64'],
    [{ input: 'a', dimensions: 64 }, 'dimensions', '256 numbers'],
    [{ input: 'a', dimensions: 'x' }, 'dimensions', ''],
    [{ input: 'a', embd_normalize: 1.5 }, 'embd_normalize', ''],
  ]) {
    const { status, json } = await ask(server, '/v1/embeddings', body);
    assert.equal(status, 400, JSON.stringify(body).slice(0, 100));
    assert.equal(json.error.param, param);
    assert.ok(json.error.message.includes(word), json.error.message);
  }
  await ok(server, '/v1/embeddings', { input: 'a', dimensions: 256, encoding_format: null });
});

test('the model generates beside it', async () => {
  const [answer, vectors] = await Promise.all([
    ok(server, '/v1/completions', { prompt: 'abc', max_tokens: 20, temperature: 0 }),
    ok(server, '/v1/embeddings', { input: Array(30).fill('some text') }),
  ]);
  assert.equal(answer.usage.prompt_tokens, 3);
  assert.equal(vectors.data.length, 30);
  const rank = await ask(server, '/v1/rerank', { query: 'x', documents: ['y'] });
  assert.equal(rank.status, 501);
});

test('without pooling a row a token, which OpenAI has no shape for', async () => {
  const plain = await startServer({ args: [...llama, '--embeddings'] }); // the model names none
  try {
    const [got] = await ok(plain, '/embeddings', { input: 'hello' });
    assert.equal(got.embedding.length, 5);
    const { status, json } = await ask(plain, '/v1/embeddings', { input: 'hello' });
    assert.equal(status, 400);
    assert.ok(json.error.message.includes("Pooling type 'none' is not OAI compatible"), json.error.message);
    const many = await ask(plain, '/embeddings', { input: Array(2048).fill('x'.repeat(60)) });
    assert.equal(many.status, 400);
    assert.match(many.json.error.message, /would have 31457280 numbers/);
  } finally {
    await plain.stop();
  }
});

test('what is not a number is an error, not a shorter vector', async () => {
  const broken = await startServer({
    args: [...llama, '--embeddings', '--pooling', 'mean', '--override-kv', 'llama.rope.freq_base=float:nan'] });
  try {
    const { status, json } = await ask(broken, '/v1/embeddings', { input: 'hello' });
    assert.equal(status, 500);
    assert.match(json.error.message, /not a number/);
  } finally {
    await broken.stop();
  }
});

test('reranking', async () => {
  const ranker = await startServer({ args: ['-m', model('tiny/rerank/qwen3.gguf'), ...common, '--reranking'] });
  try {
    const documents = ['a cat', 'a dog that barks', 'x', 'the moon'];
    const all = await ok(ranker, '/v1/rerank', { query: 'pets', documents });
    assert.equal(all.object, 'list');
    assert.deepEqual(all.results.map((r) => r.index).sort(), [0, 1, 2, 3]);
    const scores = all.results.map((r) => r.relevance_score);
    assert.deepEqual(scores, [...scores].sort((a, b) => b - a));
    // <|im_start|>pets\nDOCUMENT<|im_end|>, a byte a token
    assert.equal(all.usage.prompt_tokens, documents.reduce((sum, d) => sum + 7 + d.length, 0));
    for (const route of ['/rerank', '/reranking', '/v1/reranking']) {
      const two = await ok(ranker, route, { query: 'pets', documents, top_n: 2 });
      assert.deepEqual(two.results.map((r) => r.index), all.results.slice(0, 2).map((r) => r.index));
    }
    const tei = await ok(ranker, '/rerank', { query: 'pets', texts: documents, return_text: true });
    assert.deepEqual(tei.map((r) => r.index), all.results.map((r) => r.index));
    tei.forEach((r) => assert.equal(r.text, documents[r.index]));
    for (const [body, word] of [
      [{ documents }, '"query" must be provided'],
      [{ query: 5, documents }, 'query'],
      [{ query: 'x' }, 'non-empty string array'],
      [{ query: 'x', documents: [] }, 'non-empty string array'],
      [{ query: 'x', documents: ['a', 5] }, 'documents[1]'],
      [{ query: 'x', documents: ['a'.repeat(80)] }, 'maximum is 64'],
    ]) {
      const { status, json } = await ask(ranker, '/rerank', body);
      assert.equal(status, 400, JSON.stringify(body));
      assert.ok(json.error.message.includes(word), json.error.message);
    }
    // The places of the template are filled once: what stands in them stays as it is.
    const marks = await ok(ranker, '/v1/rerank', { query: '{document}{query}', documents: ['{query}'] });
    assert.equal(marks.usage.prompt_tokens, 3 + 17 + 7);
    assert.equal((await ask(ranker, '/v1/embeddings', { input: 'x' })).status, 501);
  } finally {
    await ranker.stop();
  }
});

test('a model without a ranking head is refused at start, and so are poolings that do not go together', async () => {
  const { code, stderr } = await runKvasir(['serve', ...llama, '--port', '0', '--reranking'], { env: { KVASIR_CACHE_DISK: '0' } });
  assert.notEqual(code, 0);
  assert.match(stderr, /no reranking model/);
  const both = await runKvasir(['serve', ...llama, '--port', '0', '--reranking', '--pooling', 'mean']);
  assert.notEqual(both.code, 0);
  assert.match(both.stderr, /--pooling rank/);
});

test('an encoder serves vectors, and refuses to generate in the words of each API', async () => {
  const encoder = await startServer({ args: ['-m', model('tiny/encoder/embeds.gguf'), '-t', '1', '--embedding',
    '-ub', '1024', '--slot-save-path', tmpdir()] });
  try {
    const get = async (route) => (await fetch(encoder.url + route)).json();
    const texts = ['hello world', 'x'];
    const two = await ok(encoder, '/v1/embeddings', { input: texts });
    assert.equal(two.usage.prompt_tokens, 2 + 10 + 2 + 1); // a letter a token, between [CLS] and [SEP]
    for (const [i, input] of texts.entries())
      near((await ok(encoder, '/v1/embeddings', { input })).data[0].embedding, two.data[i].embedding);
    near((await ok(encoder, '/embeddings', { content: 'x' }))[0].embedding[0], two.data[1].embedding);
    const theirs = await ok(encoder, '/api/embed', { model: 'm', input: texts });
    theirs.embeddings.forEach((v, i) => near(v, two.data[i].embedding));

    // More than there are positions: the engine would abort.
    const long = 'y'.repeat(600);
    const refused = await ask(encoder, '/v1/embeddings', { input: long });
    assert.equal(refused.status, 400);
    assert.match(refused.json.error.message, /602 tokens, and the maximum is 512.*no more positions/);
    assert.equal((await ok(encoder, '/api/embed', { input: long })).prompt_eval_count, 512); // cut

    const messages = [{ role: 'user', content: 'hi' }];
    const openai = (json) => json.error.type === 'invalid_request_error' && json.error.message;
    for (const [route, body, told] of [
      ['/v1/chat/completions', { messages }, openai],
      ['/v1/chat/completions', { messages, stream: true }, openai],
      ['/v1/completions', { prompt: 'hi' }, openai],
      ['/completion', { prompt: 'hi' }, openai],
      ['/v1/responses', { input: 'hi' }, openai],
      ['/v1/messages', { max_tokens: 5, messages }, (json) => json.type === 'error' && openai(json)],
      ['/api/chat', { model: 'm', messages }, (json) => json.error],
      ['/api/generate', { model: 'm', prompt: 'hi' }, (json) => json.error],
      ['/slots/0?action=save', { filename: 'f' }, openai],
    ]) {
      const { status, json } = await ask(encoder, route, body);
      assert.ok(status >= 400 && status < 500, `${route}: ${status} ${JSON.stringify(json)}`);
      assert.match(String(told(json)), /is an encoder/, route);
    }
    assert.equal((await ask(encoder, '/v1/rerank', { query: 'a', documents: ['b'] })).status, 501);

    assert.equal((await get('/health')).status, 'ok');
    const props = await get('/props');
    assert.equal(props.kvasir.memory, 'none');
    assert.equal(props.default_generation_settings.n_ctx, 512);
    const models = await get('/v1/models');
    assert.deepEqual(models.models[0].capabilities, ['embedding']);
    assert.equal(models.data[0].max_model_len, 512);
    assert.deepEqual((await ok(encoder, '/api/show', { model: 'm' })).capabilities, ['embedding']);
    assert.ok((await get('/slots')).every((s) => !s.is_processing));
    const metrics = await (await fetch(`${encoder.url}/metrics`)).text();
    const value = (name) => Number(metrics.match(new RegExp(`^${name} (.*)$`, 'm'))[1]);
    assert.equal(value('kvasir_embedded_tokens_total'), 15 + 12 + 3 + 3 + 15 + 512);
    assert.equal(value('llamacpp:prompt_tokens_total'), value('kvasir_embedded_tokens_total'));
    assert.ok(value('llamacpp:n_decode_total') > 0);
    assert.equal(value('llamacpp:tokens_predicted_total'), 0);
  } finally {
    await encoder.stop();
  }
});

test('an encoder that scores needs no option to be a reranker', async () => {
  const ranker = await startServer({ args: ['-m', model('tiny/encoder/ranks.gguf'), '-t', '1'] });
  try {
    const documents = ['a cat', 'a dog that barks', 'the moon'];
    const all = await ok(ranker, '/v1/rerank', { query: 'pets', documents });
    assert.deepEqual(all.results.map((r) => r.index).sort(), [0, 1, 2]);
    // [CLS] query [SEP] document, a letter a token
    assert.equal(all.usage.prompt_tokens, documents.reduce((sum, d) => sum + 2 + 4 + d.replaceAll(' ', '').length, 0));
    assert.equal((await ask(ranker, '/v1/embeddings', { input: 'x' })).status, 501);
  } finally {
    await ranker.stop();
  }
});
