// Bad input gets a 4xx in OpenAI's error shape that names what was wrong, and the next request works.
import assert from 'node:assert/strict';
import net from 'node:net';
import { after, before, describe, it } from 'node:test';
import { model, startServer } from './server.mjs';

const chat = (extra) => ({ messages: [{ role: 'user', content: 'hi' }], max_tokens: 1, ...extra });
const raw = (extra) => ({ prompt: 'hi', n_predict: 1, ...extra });
const CHAT = '/v1/chat/completions';
const TEXT = '/v1/completions';
const RAW = '/completion';

// path, body (a string or Buffer is sent as it is), word that the message must contain, status (400)
const rows = [
  [CHAT, '', 'JSON'],
  [CHAT, '{', 'JSON'],
  [CHAT, 'null', 'object'],
  [CHAT, '[]', 'object'],
  [CHAT, '"text"', 'object'],
  [CHAT, '{"messages": [}', 'JSON'],
  [CHAT, '{"messages":[{"role":"user","content":"a"}]} x', 'JSON'],
  [CHAT, Buffer.from([0x7b, 0x22, 0xff, 0xfe, 0x22, 0x3a, 0x31, 0x7d]), 'JSON'],
  [CHAT, Buffer.from([0, 0, 0, 0]), 'JSON'],
  [CHAT, '['.repeat(100000), 'nested'],
  [CHAT, '{"a":'.repeat(100000), 'nested'],
  [CHAT, {}, 'messages'],
  [CHAT, { messages: null }, 'messages'],
  [CHAT, { messages: 'hi' }, 'messages'],
  [CHAT, { messages: [] }, 'messages'],
  [CHAT, { messages: [1] }, 'messages'],
  [CHAT, { messages: [{}] }, 'role'],
  [CHAT, { messages: [{ role: 7, content: 'x' }] }, 'role'],
  [CHAT, { messages: [{ role: 'user', content: 5 }] }, 'content'],
  [CHAT, { messages: [{ role: 'user', content: [{ type: 'text' }] }] }, 'text'],
  [CHAT, { messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:image/png;base64,AA==' } }] }] }, 'image'],
  [CHAT, { messages: [{ role: 'user', content: [{ type: 'input_audio', input_audio: { data: '', format: 'wav' } }] }] }, 'audio'],
  [CHAT, { messages: [{ role: 'user', content: [{ type: 'nonsense' }] }] }, 'nonsense'],
  [CHAT, chat({ max_tokens: 'many' }), 'max_tokens'],
  [CHAT, chat({ max_tokens: 1.5 }), 'max_tokens'],
  [CHAT, chat({ max_tokens: -7 }), 'max_tokens'],
  [CHAT, chat({ max_tokens: 1e30 }), 'max_tokens'],
  [CHAT, chat({ max_completion_tokens: [] }), 'max_completion_tokens'],
  [CHAT, chat({ n: 0 }), "'n'"],
  [CHAT, chat({ n: 1000 }), "'n'"],
  [CHAT, chat({ stream: 'yes' }), 'stream'],
  [CHAT, chat({ stream: 1 }), 'stream'],
  [CHAT, chat({ temperature: 'hot' }), 'temperature'],
  [CHAT, chat({ top_k: 'x' }), 'top_k'],
  [CHAT, chat({ top_p: {} }), 'top_p'],
  [CHAT, chat({ seed: 'x' }), 'seed'],
  [CHAT, chat({ stop: 5 }), 'stop'],
  [CHAT, chat({ stop: [5] }), 'stop'],
  [CHAT, chat({ logit_bias: 'x' }), 'logit_bias'],
  [CHAT, chat({ logprobs: 'x' }), 'logprobs'],
  [CHAT, chat({ logprobs: true, top_logprobs: -1 }), 'top_logprobs'],
  [CHAT, chat({ response_format: 'json' }), 'response_format'],
  [CHAT, chat({ response_format: { type: 'xml' } }), 'response_format'],
  [CHAT, chat({ response_format: { type: 'json_schema', json_schema: { schema: { type: 'nonsense' } } } }), 'schema'],
  [CHAT, chat({ tools: 'x' }), 'tools'],
  [CHAT, chat({ tools: [{ type: 'function' }] }), 'tools'],
  [CHAT, chat({ tool_choice: 'sometimes' }), 'tool_choice'],
  [CHAT, chat({ chat_template_kwargs: [] }), 'chat_template_kwargs'],
  [CHAT, chat({ mirostat: 'x' }), 'mirostat'],
  [CHAT, chat({ dry_sequence_breakers: [] }), 'dry_sequence_breakers'],
  [CHAT, chat({ samplers: [1] }), 'samplers'],
  [CHAT, chat({ reasoning_format: 'x' }), 'reasoning_format'],
  [TEXT, {}, 'prompt'],
  [TEXT, { prompt: {} }, 'prompt'],
  [TEXT, { prompt: [] }, 'prompt'],
  [TEXT, { prompt: [-1] }, 'prompt'],
  [TEXT, { prompt: [1e9] }, 'prompt'],
  [TEXT, { prompt: [1.5] }, 'prompt'],
  [TEXT, { prompt: [[]] }, 'prompt'],
  [TEXT, { prompt: ['a', {}] }, 'prompt'],
  [TEXT, { prompt: 'x', suffix: 'y' }, 'suffix'],
  [RAW, {}, 'prompt'],
  [RAW, raw({ n_predict: -5 }), 'n_predict'],
  [RAW, raw({ n_predict: 3e9 }), 'n_predict'],
  [RAW, raw({ grammar: 'root ::= (' }), 'grammar'],
  [RAW, raw({ grammar: '%llguidance {}\nstart: "a"' }), 'grammar'],
  [RAW, raw({ grammar: 5 }), 'grammar'],
  [RAW, raw({ json_schema: { $ref: '#/nowhere' } }), 'schema'],
  [RAW, raw({ repeat_last_n: -3 }), 'repeat_last_n'],
  [RAW, raw({ adaptive_decay: 5 }), 'adaptive_decay'],
  [RAW, raw({ min_keep: -1 }), 'min_keep'],
  [RAW, raw({ id_slot: 77 }), 'id_slot'],
  [RAW, raw({ cache_prompt: 'x' }), 'cache_prompt'],
  [RAW, raw({ t_max_predict_ms: 'x' }), 't_max_predict_ms'],
  [RAW, raw({ n_indent: -1 }), 'n_indent'],
  [RAW, raw({ n_probs: 'x' }), 'n_probs'],
  [RAW, raw({ response_fields: 'x' }), 'response_fields'],
  [RAW, raw({ stream_options: 'x' }), 'stream_options'],
  [RAW, raw({ ignore_eos: 'x' }), 'ignore_eos'],
  ['/tokenize', {}, 'content'],
  ['/tokenize', { content: 5 }, 'content'],
  ['/detokenize', {}, 'tokens'],
  ['/detokenize', { tokens: 'x' }, 'tokens'],
  ['/detokenize', { tokens: [-1] }, 'tokens'],
  ['/detokenize', { tokens: ['x'] }, 'tokens'],
  ['/apply-template', {}, 'messages'],
  ['/apply-template', { messages: [{ role: 'user', content: [{ type: 'image_url' }] }] }, 'image'],
  ['/v1/nothing', {}, 'nothing', 404],
  ['/health', {}, 'takes GET', 405],
];

describe('bad input', () => {
  let server;
  before(async () => {
    server = await startServer({ args: ['-m', model('tiny/llama.gguf'), '-c', '2048', '-np', '2'] });
  });
  after(() => server?.stop());

  const post = (path, body) => fetch(server.url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: typeof body === 'string' || Buffer.isBuffer(body) ? body : JSON.stringify(body),
  });
  async function nextWorks() {
    const res = await post(RAW, raw());
    assert.equal(res.status, 200);
    assert.equal((await res.json()).tokens_predicted, 1);
  }

  for (const [path, body, word, status = 400] of rows) {
    const shown = (typeof body === 'string' || Buffer.isBuffer(body) ? String(body) : JSON.stringify(body)).slice(0, 70);
    it(`${path} ${shown}`, async () => {
      const res = await post(path, body);
      const text = await res.text();
      assert.equal(res.status, status, text);
      const { error } = JSON.parse(text);
      assert.equal(typeof error.message, 'string');
      assert.equal(typeof error.type, 'string');
      assert.ok('code' in error);
      assert.ok(error.message.toLowerCase().includes(word.toLowerCase()), `"${error.message}" names ${word}`);
      await nextWorks();
    });
  }

  it('NUL bytes in a prompt are bytes like others', async () => {
    const res = await post(RAW, raw({ prompt: 'a\u0000b' }));
    assert.equal(res.status, 200);
    await nextWorks();
  });

  it('null means absent, 1.0 is an integer, unknown fields are ignored', async () => {
    const res = await post(CHAT, '{"messages":[{"role":"user","content":"hi","name":null}],"max_tokens":1.0,"stop":null,"n":null,"tools":null,"stream":null,"response_format":null,"some_new_field":{"x":1}}');
    assert.equal(res.status, 200, await res.clone().text());
    assert.equal((await res.json()).usage.completion_tokens, 1);
  });

  it('a 10 MB prompt is a 400 with both numbers', async () => {
    const res = await post(RAW, raw({ prompt: 'word '.repeat(2 << 20) }));
    assert.equal(res.status, 400);
    const { error } = await res.json();
    assert.equal(error.type, 'exceed_context_size_error');
    assert.equal(error.code, 'context_length_exceeded');
    assert.ok(error.n_prompt_tokens > error.n_ctx);
    assert.match(error.message, /exceeds the available context size/);
    assert.match(error.message, new RegExp(`maximum context length is ${error.n_ctx} tokens`));
    await nextWorks();
  });

  it('a body over the limit is a 413', async () => {
    const socket = net.connect(server.port, '127.0.0.1');
    socket.write(`POST ${RAW} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n`);
    const text = await new Promise((resolve) => socket.once('data', (d) => resolve(String(d))));
    socket.destroy();
    assert.match(text, /^HTTP\/1.1 413 /);
    await nextWorks();
  });

  it('garbage instead of HTTP does no harm', async () => {
    const socket = net.connect(server.port, '127.0.0.1');
    socket.write(Buffer.from([0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 13, 10, 13, 10]));
    await new Promise((resolve) => { socket.on('close', resolve); socket.on('error', () => {}); socket.resume(); });
    await nextWorks();
  });
});
