// Attacks a server through every API at once, and looks after each round whether it still is what it was. Run by hand:
//
//   KVASIR_BIN=build-asan/kvasir KVASIR_SEED=7 KVASIR_ROUNDS=20 node tests/http-node/hostile.mjs
//
// A round picks a model, options, trouble for its directories and signals; its clients send requests that are right,
// twisted, cut off, packed, slow, or left alone in the middle. Afterwards: the server lives, nothing is at work or
// takes cells, a greedy answer is the first one, `kvasir cache verify` finds nothing, the end is clean. Every 5xx but
// 501, 503 and 529 is a finding. KVASIR_ROUND: begin at that round; KVASIR_CLIENTS, KVASIR_REQUESTS: size of a round.
import { chmodSync, chownSync, copyFileSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { gzipSync } from 'node:zlib';
import { model, random, runKvasir, startServer } from './server.mjs';

const seed = Number(process.env.KVASIR_SEED ?? Date.now() % 1e9);
const ROUNDS = Number(process.env.KVASIR_ROUNDS ?? 10);
const FIRST = Number(process.env.KVASIR_ROUND ?? 0);
const CLIENTS = Number(process.env.KVASIR_CLIENTS ?? 12);
const REQUESTS = Number(process.env.KVASIR_REQUESTS ?? 25);
const TOLERANCE = 5e-4; // tiny F32 models, f16 KV (docs/architecture.md)
const PATIENCE = 60_000; // ms until a request counts as hanging
const BY_DESIGN = new Set([501, 503, 529]);

let rnd = random(seed);
const pick = (list) => list[rnd(list.length)];
const chance = (percent) => rnd(100) < percent;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/* ── findings ───────────────────────────────────────────────────────────────────────────────────────────────────── */

const findings = new Map(); // what → { n, first }
let round = 0;
function found(what, detail = '') {
  const known = findings.get(what);
  if (known) { known.n++; return; }
  findings.set(what, { n: 1, first: detail });
  console.log(`FINDING (seed ${seed}, round ${round}) ${what}\n${String(detail).slice(0, 3000)}\n`);
}
const answers = new Map(); // "path status" → times
const unavailable = new Map(); // message of a 5xx by design → times
const seen = {}; // metric → sum of the rounds: whether the attacks reach what they aim at
const refused = new Map(); // message of a 400 → times
const count = (map, key) => map.set(key, (map.get(key) ?? 0) + 1);

/* ── what is sent ───────────────────────────────────────────────────────────────────────────────────────────────── */

const deep = (n) => { let v = 1; for (let i = 0; i < n; i++) v = i % 2 ? [v] : { a: v }; return v; };
const junk = () => pick([
  () => null, () => true, () => false, () => 0, () => -1, () => 1, () => 1.5, () => 1e308, () => -1e308, () => 2 ** 31, () => 2 ** 53,
  () => -(2 ** 63), () => 1e-320, () => '', () => 'x', () => '\u0000', () => '\ufffd\u202e', () => 'a'.repeat(70000), () => '{{',
    () => '{% for',
  () => '<|im_start|>', () => '<|im_end|>', () => [], () => {}, () => [[]], () => [null], () => ({ '': '' }), () => ({ type: 'text' }),
  () => ({ type: 'function' }), () => deep(30), () => deep(300), () => deep(1900), () => Array(3000).fill(0), () => Array(500).fill({}),
    () => ['a', 1, null],
  () => 'auto', () => 'required', () => 'none', () => '-1', () => '1e9', () => 'root ::= ', () => 'http://127.0.0.1:1/x',
    () => 'data:image/png;base64,AAAA',
  () => '../../etc/passwd', () => '\ud83d\ude00', () => 'é'.repeat(40), () => '%s%n', () => 4294967295, () => 1e19,
])();

/* One place of the body gets something else, is doubled, or goes. */
function twist(body) {
  let at = body;
  for (;;) {
    const keys = at && typeof at === 'object' ? Object.keys(at) : [];
    if (!keys.length) return;
    const key = pick(keys);
    const below = at[key];
    if (below && typeof below === 'object' && Object.keys(below).length && chance(65)) { at = below; continue; }
    const how = rnd(12);
    if (how === 0) { if (Array.isArray(at)) at.splice(Number(key), 1); else delete at[key]; }
    else if (how === 1 && Array.isArray(at)) at.push(structuredClone(below));
    else if (how === 2) at[key] = [below];
    else if (how === 3) at[key] = { [key]: below };
    else if (how === 4 && typeof below === 'string') at[key] = below + String.fromCharCode(rnd(0xd800));
    else if (how === 5 && typeof below === 'number') at[key] = pick([-below, below + 0.5, below * 1e9, String(below)]);
    else if (how === 6 && !Array.isArray(at)) { at[pick(['id', 'type', 'role', 'content', 'stream', 'n', 'tools', key + 'x'])] = junk(); }
    else at[key] = junk();
    return;
  }
}

const WORDS = ['river', 'stone', 'cloud', 'tool', 'zero', 'été', '漢字', '🙂', 'json', '<think>', '</think>', '<tool_call>', '```', '\n\n',
  '"', '\\'];
const text = (n) => { let s = ''; while (s.length < n) s += pick(WORDS) + ' '; return s.slice(0, n); };
/* A few beginnings that many requests share. */
let shared = [], lora = false;
const beginning = () => (chance(60) ? pick(shared) : text(rnd(400))) + (chance(50) ? text(rnd(200)) : '');

const schema = () => pick([
  { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  { type: 'object', properties: { n: { type: 'integer', minimum: 5, maximum: 3 } }, required: ['n', 'missing'],
    additionalProperties: false },
  { type: 'array', items: { type: 'string', maxLength: 3 }, minItems: 9, maxItems: 2 },
  { allOf: [{ type: 'string' }, { type: 'integer' }] }, { $ref: '#/$defs/a', $defs: { a: { $ref: '#/$defs/a' } } },
  { enum: [] }, { type: 'string', pattern: '^(a|b)+$' }, { type: 'string', pattern: '(((' }, { type: [] }, { const: null }, {},
  { $defs: { n: { type: 'object', properties: { next: { anyOf: [{ $ref: '#/$defs/n' }, { type: 'null' }] } } } }, $ref: '#/$defs/n' },
]);
const grammar = () => pick(['root ::= "yes" | "no"', 'root ::= [a-z]+', 'root ::= ', 'root ::= root', 'root ::= a\na ::= b\nb ::= a',
  'root ::= ""',
  'root ::= [^\\x00-\\U0010FFFF]', 'root ::= "x"{1000}', 'root ::= ("a"?)*', '(', 'root ::= undefined', 'root ::= "\u0000"',
    'root ::= [\\u0100-\\u0200]{3}']);

const content = (s) => (chance(70) ? s : [{ type: 'text', text: s }, { type: 'text', text: text(rnd(20)) }]);
const fn = (parameters = schema()) => ({ name: pick(['get_weather', 'f', 'été']), description: text(10), parameters });
const length = () => pick([0, 1, 2, 3, 8, 16, 40, 90, 200, 400]);
const play = () => pick(['hello', '<think>a</think>b', '<tool_call>\n{"name": "f", "arguments": {"city": "x"}}\n</tool_call>',
  '<tool_call>{"name"', '🙂é',
  [255, 254, 200], [240, 159, 153, 130, 240], [], '{"city": "x"', '']);

function messages() {
  const list = chance(70) ? [{ role: 'system', content: content(beginning()) }] : [];
  for (let turns = 1 + rnd(4); turns > 0; turns--) {
    list.push({ role: 'user', content: content(beginning()) });
    if (turns === 1) break;
    if (chance(20)) {
      list.push({ role: 'assistant', content: null, tool_calls: [{ id: 'call_same', type: 'function', function: { name: 'f',
        arguments: '{"city":"x"}' } }] });
      list.push({ role: 'tool', tool_call_id: 'call_same', content: text(30) });
    } else list.push({ role: 'assistant', content: text(rnd(60)) });
  }
  return list;
}

function extras() {
  const e = { temperature: pick([0, 0, 1, 2]) };
  if (chance(20)) e.seed = rnd(5);
  if (chance(15)) e.stop = pick([['e'], 'a', ['', 'x'], ['aa', 'aab', 'b'], [' ']]);
  if (chance(10)) Object.assign(e, { top_k: rnd(5), min_p: 0.5, repeat_penalty: 1.3, dry_multiplier: 0.8 });
  if (chance(10)) e.logit_bias = { 10: -100, 97: 5 };
  if (chance(8)) Object.assign(e, { mirostat: 2 });
  if (chance(15)) e.ignore_eos = true;
  if (chance(5)) e.id_slot = rnd(2);
  if (chance(10)) e.cache_prompt = false;
  if (lora && chance(20)) e.lora = [{ id: 0, scale: rnd(3) / 2 }];
  if (chance(25)) e.kvasir = { play: play(), ...(chance(20) && { store: false }) };
  return e;
}

function openaiChat() {
  const b = { model: 'm', messages: messages(), max_tokens: length(), stream: chance(60), ...extras() };
  if (chance(15)) b.n = pick([2, 3, 8]);
  if (chance(25)) Object.assign(b, { logprobs: true, top_logprobs: rnd(6) });
  if (chance(20)) b.response_format = pick([{ type: 'json_object' }, { type: 'json_schema', json_schema: { name: 's', schema: schema(),
    strict: true } }]);
  if (chance(30)) {
    b.tools = [{ type: 'function', function: fn() }, { type: 'function', function: fn() }];
    b.tool_choice = pick(['auto', 'required', 'none', { type: 'function', function: { name: 'f' } }]);
    b.parallel_tool_calls = chance(50);
  }
  if (chance(10)) b.grammar = grammar();
  if (b.stream && chance(50)) b.stream_options = { include_usage: true };
  if (chance(10)) b.chat_template_kwargs = { enable_thinking: chance(50) };
  return b;
}

function anthropic() {
  const b = { model: 'm', max_tokens: length() || 1, stream: chance(60), messages: messages().filter((m) => m.role === 'user' ||
    (m.role === 'assistant' && m.content)) };
  if (chance(60)) b.system = chance(50) ? beginning() : [{ type: 'text', text: beginning(), cache_control: { type: 'ephemeral' } }];
  if (chance(30)) {
    b.tools = [{ name: 'f', description: 'x', input_schema: schema() }];
    b.tool_choice = pick([{ type: 'auto' }, { type: 'any' }, { type: 'tool', name: 'f' }, { type: 'none' }]);
  }
  if (chance(20)) {
    b.messages.push({ role: 'assistant', content: [{ type: 'thinking', thinking: 'hm', signature: 'x' }, { type: 'tool_use',
      id: 'toolu_same', name: 'f', input: { city: 'x' } }] });
    b.messages.push({ role: 'user', content: [{ type: 'tool_result', tool_use_id: 'toolu_same', content: [{ type: 'text',
      text: text(20) }] }] });
  }
  if (chance(15)) b.thinking = pick([{ type: 'enabled', budget_tokens: 1024 }, { type: 'disabled' }]);
  if (chance(20)) b.stop_sequences = ['e', 'aa'];
  return { ...b, ...extras() };
}

const responseIds = ['resp_none'];
function responses() {
  const b = { model: 'm', max_output_tokens: length() || 1, stream: chance(60), store: chance(80), input: pick([beginning(),
    messages().filter((m) => m.content && m.role !== 'tool')]), ...extras() };
  if (chance(50)) b.previous_response_id = pick(responseIds.slice(-6));
  if (chance(15)) b.background = true;
  if (chance(30)) b.instructions = beginning();
  if (chance(25)) { b.tools = [{ type: 'function', ...fn(), strict: chance(50) }]; b.tool_choice = pick(['auto', 'required', 'none',
    { type: 'function', name: 'f' }]); }
  if (chance(20)) b.text = { format: pick([{ type: 'json_object' }, { type: 'json_schema', name: 's', schema: schema() },
    { type: 'text' }]) };
  if (chance(10)) b.reasoning = { effort: 'low', summary: 'auto' };
  if (chance(10)) b.truncation = 'auto';
  if (chance(10)) b.include = ['message.output_text.logprobs'];
  return b;
}

function ollama(chat) {
  const b = { model: 'm', stream: chance(60), options: { num_predict: length(), temperature: 0, num_ctx: 512,
    stop: chance(20) ? ['e'] : undefined } };
  if (chance(10)) b.keep_alive = pick([0, '0', '1s', -1, '5m', 'x']);
  if (chance(15)) b.format = pick(['json', schema()]);
  if (chance(15)) b.think = pick([true, false, 'low']);
  if (chance(10)) b.logprobs = true;
  if (chance(25)) b.kvasir = { play: play() };
  if (!chat) return { ...b, prompt: beginning(), ...(chance(30) && { system: text(50) }), ...(chance(20) && { context: [1, 2, 3,
    rnd(300)] }), ...(chance(15) && { raw: true }), ...(chance(10) && { suffix: 'x' }) };
  if (chance(25)) b.tools = [{ type: 'function', function: fn() }];
  return { ...b, messages: messages().map((m) => ({ ...m, content: typeof m.content === 'string' ? m.content : 'x',
    tool_calls: undefined })) };
}

function native() {
  const b = { prompt: pick([beginning(), [1, 2, 3, rnd(250)], [beginning(), text(30)], ['a', 66, 67], [beginning(), beginning(),
    beginning()]]), n_predict: length(), stream: chance(60), ...extras() };
  if (chance(25)) b.n_probs = rnd(6);
  if (chance(15)) b.grammar = grammar();
  if (chance(15)) b.json_schema = schema();
  if (chance(10)) b.post_sampling_probs = true;
  if (chance(10)) b.t_max_predict_ms = 1 + rnd(20);
  if (chance(10)) b.response_fields = ['content', 'generation_settings/n_predict'];
  if (chance(10)) b.return_tokens = true;
  if (chance(10)) b.n_cmpl = 1 + rnd(4);
  if (chance(10)) b.n_indent = rnd(4);
  return b;
}

/* Weight, method, path, body. */
const KINDS = [
  [14, 'POST', () => '/v1/chat/completions', openaiChat],
  [5, 'POST', () => '/v1/completions', () => ({ prompt: pick([beginning(), [beginning(), beginning()], [1, 2]]), max_tokens: length(),
    stream: chance(60), ...extras(),
    ...(chance(20) && { n: pick([2, 8]) }), ...(chance(20) && { logprobs: rnd(6) }), ...(chance(20) && { echo: true }), ...(chance(10) &&
      { best_of: 2 }) })],
  [12, 'POST', () => '/v1/responses', responses],
  [4, 'DELETE', () => `/v1/responses/${pick(responseIds.slice(-6))}`],
  [4, 'GET',
    () => `/v1/responses/${pick(responseIds.slice(-6))}${pick(['', '?stream=true', '?stream=true&starting_after=2', '/input_items', '/input_items?limit=1&order=asc&after=x', '/input_items?limit=9999'])}`],
  [2, 'POST', () => `/v1/responses/${pick(responseIds.slice(-6))}/cancel`, () => ({})],
  [2, 'POST', () => '/v1/responses/input_tokens', responses],
  [2, 'POST', () => '/v1/chat/completions/input_tokens', openaiChat],
  [10, 'POST', () => '/v1/messages', anthropic],
  [3, 'POST', () => '/v1/messages/count_tokens', anthropic],
  [1, 'POST', () => '/v1/messages/batches', anthropic],
  [7, 'POST', () => '/api/chat', () => ollama(true)],
  [7, 'POST', () => '/api/generate', () => ollama(false)],
  [2, 'POST', () => pick(['/api/chat', '/api/generate']), () => ({ model: 'm', keep_alive: 0 })],
  [2, 'POST', () => '/api/show', () => ({ model: 'm', verbose: chance(50) })],
  [1, 'POST', () => '/api/pull', () => ({ model: pick(['m', 'hf.co/x', '../x']), stream: chance(50) })],
  [2, 'POST', () => pick(['/api/embed', '/api/embeddings']), () => ({ model: 'm', input: pick(['x', [text(20), text(30)], []]),
    prompt: 'x', truncate: chance(50), dimensions: rnd(70) })],
  [14, 'POST', () => pick(['/completion', '/completions']), native],
  [4, 'POST', () => '/infill', () => ({ input_prefix: beginning(), input_suffix: text(rnd(50)), prompt: text(5),
    input_extra: [{ filename: 'a', text: text(30) }], n_predict: length(), stream: chance(60), ...extras() })],
  [6, 'POST', () => `/slots/${pick([0, 1, 2, 3, 99, -1, 'x'])}?action=${pick(['save', 'restore', 'erase', 'erase', 'x'])}`,
    () => ({ filename: pick(['a.bin', 'b.bin', '../x', '', 'a/b', 'é', '.', 'nul\u0000l', 'q'.repeat(300)]) })],
  [3, 'POST', () => pick(['/v1/embeddings', '/embeddings', '/embedding']), () => ({ input: pick(['x', [text(20), text(300)], [1, 2, 3],
    [[1, 2], [3]]]), content: 'x', encoding_format: pick(['float', 'base64']), embd_normalize: rnd(4) - 1 })],
  [3, 'POST', () => '/v1/rerank', () => ({ query: text(10), documents: [text(20), text(30), ''], top_n: rnd(5),
    return_documents: chance(50) })],
  [3, 'POST', () => '/tokenize', () => ({ content: pick([beginning(), ['a', 1, 'b']]), add_special: chance(50), with_pieces: chance(50) })],
  [2, 'POST', () => '/detokenize', () => ({ tokens: [1, 2, 255, 240, 300] })],
  [2, 'POST', () => '/apply-template', openaiChat],
  [2, 'POST', () => '/kvasir/explain', openaiChat],
  [2, 'POST', () => '/props', () => ({ default_generation_settings: {}, chat_template: 'x', n_predict: 3 })],
  [2, 'POST', () => '/lora-adapters', () => [{ id: 0, scale: rnd(3) / 2 }]],
  [1, 'DELETE', () => `/kvasir/cache${pick(['', '?unused_for=1s', '?x=y', '?scope=x'])}`],
  [6, 'GET', () => pick(['/', '/health', '/v1/models', '/props', '/slots', '/metrics', '/lora-adapters', '/kvasir/cache', '/kvasir/why',
    '/kvasir/why?id=x', '/api/tags', '/api/ps', '/api/version', '/slots?fail_on_no_slot=1', '/%00', '/v1/models/m',
    '/v1/responses/%2e%2e%2f'])],
];
const TOTAL = KINDS.reduce((sum, k) => sum + k[0], 0);

/* Bytes instead of a body: what JSON.stringify would never write. */
function spoil(json) {
  const b = Buffer.from(json);
  return pick([
    () => b.subarray(0, rnd(b.length + 1)),
    () => { const c = Buffer.from(b); for (let i = 1 + rnd(4); i > 0 && c.length; i--) c[rnd(c.length)] = rnd(256); return c; },
    () => Buffer.from(json.replace(/"content":"/, '"content":"\\ud800')), () => Buffer.from(json.replace(/":"/, '":"\\udc00\\ud800')),
    () => Buffer.concat([b.subarray(0, 20), Buffer.from([0xff, 0xc0, 0x80, 0xed, 0xa0, 0x80]), b.subarray(20)]),
    () => Buffer.from(json + json), () => Buffer.from('\ufeff' + json), () => Buffer.from(json.replace(/}$/,
      ',"messages":[],"stream":true}')),
    () => Buffer.from('['.repeat(2 + rnd(60000))), () => Buffer.from('{"messages":'.repeat(1 + rnd(3000))),
      () => Buffer.from(`{"messages":${JSON.stringify(deep(2500))}}`),
    () => Buffer.from(json.replace(/\d+/, '1' + '0'.repeat(400))), () => Buffer.from(json.replace(/\d+/, '-0')),
      () => Buffer.from(json.replace(/"content":"/, '"content":"' + 'z'.repeat(3 << 20))),
    () => Buffer.from(`{"prompt":[${'1,'.repeat(400000)}1]}`), () => Buffer.from(`{${'"a":1,'.repeat(100000)}"b":1}`),
      () => Buffer.alloc(0), () => Buffer.alloc(1000),
  ])();
}

let bomb; // 200 MB of zeros in a JSON text
function pack(body) {
  bomb ??= gzipSync(Buffer.concat([Buffer.from('{"prompt":"'), Buffer.alloc(200 << 20, 0x30), Buffer.from('"}')]));
  return pick([() => gzipSync(body), () => bomb, () => gzipSync(body).subarray(0, rnd(60)), () => gzipSync(gzipSync(body)), () => body,
    () => { const c = gzipSync(body); c[rnd(c.length)] ^= 1 << rnd(8); return c; }, () => Buffer.concat([gzipSync(body),
      gzipSync(body)])])();
}

/* ── one request ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Sends and reads, or goes at some moment. Resolves in any case. */
function send(server, method, where, body, { headers = {}, quit, slow, partial, quiet } = {}) {
  return new Promise((resolve) => {
    let done = false, status = 0, got = Buffer.alloc(0), type = '';
    const req = http.request({ host: '127.0.0.1', port: server.port, method, path: where, agent: false, headers: { ...headers, ...(body &&
      { 'content-length': body.length + (partial ? 1 + rnd(5000) : 0) }) } });
    const end = (how) => {
      if (done) return;
      done = true;
      clearTimeout(timer);
      req.destroy();
      resolve({ status, text: got.toString('utf8'), bytes: got, type, how });
    };
    const timer = setTimeout(() => {
      if (!quit && !partial && !quiet) found(`hangs: ${method} ${where.replace(/resp_\w+/, 'ID')}`,
        `status ${status}, got ${got.length} bytes: ${got.toString('utf8', 0, 500)}\nbody ${body}`);
      end('hang');
    }, quit?.ms ?? (partial ? 300 + rnd(500) : PATIENCE));
    req.on('error', () => end('error'));
    req.on('response', (res) => {
      status = res.statusCode;
      type = res.headers['content-type'] ?? '';
      if (quit?.head) { end('quit'); return; }
      const parts = [];
      let size = 0;
      res.on('data', (part) => {
        parts.push(part);
        size += part.length;
        if (quit?.bytes !== undefined && size >= quit.bytes) end('quit');
        if (slow && !done) { res.pause(); setTimeout(() => res.resume(), 1 + rnd(30)); }
      });
      res.on('end', () => { got = Buffer.concat(parts); end(res.complete ? 'end' : 'cut'); });
      res.on('error', () => { got = Buffer.concat(parts); end('cut'); });
      res.on('close', () => { got = Buffer.concat(parts); end('cut'); });
    });
    if (slow && body) {
      const step = Math.max(1, Math.floor(body.length / 4));
      (async () => {
        for (let i = 0; i < body.length && !done; i += step) { req.write(body.subarray(i, i + step)); await sleep(rnd(20)); }
        if (!partial) req.end();
      })();
    } else if (body) { req.write(body); if (!partial) req.end(); } else req.end();
  });
}

function judge(method, where, body, got, server) {
  if (!got.status) return;
  const plain = where.replace(/resp_\w+/, 'ID').replace(/\?.*/, '');
  count(answers, `${method} ${plain} ${got.status}`);
  const told = `${method} ${where} → ${got.status} ${got.text.slice(0, 1500)}\nbody (${body?.length}) ${String(body).slice(0, 4000)}`;
  if (got.status === 400) count(refused, got.text.slice(0, 170).replace(/req_\w+|\d+/g, '#'));
  if (got.status >= 500) {
    if (BY_DESIGN.has(got.status) || (server.trouble && where.includes('?action='))) count(unavailable,
      `${got.status} ${got.text.slice(0, 160).replace(/req_\w+|\d+/g, '#')}`);
    else found(`${got.status} at ${method} ${plain}: ${(/"message":"?((?:[^"\\]|\\.)*)|"error":"((?:[^"\\]|\\.)*)/.exec(got.text) ?? [''])[0].replace(/\d+/g, '#').slice(0, 90)}`, told);
  }
  if (got.how !== 'end') { if (got.how === 'cut' && !server.stopping) found(`cut off by the server: ${method} ${plain} ${got.status}`,
    told); return; }
  if (got.status === 200 && !got.text.isWellFormed?.() && 'isWellFormed' in String.prototype) found(`ill-formed text at ${plain}`, told);
  if (!Buffer.from(got.text).equals(got.bytes)) found(`not UTF-8 at ${plain}`, told);
  if (/^application\/json/.test(got.type)) {
    try {
      const json = JSON.parse(got.text);
      if (got.status >= 400 && !json.error) found(`an error without "error" at ${plain}`, told);
      if (plain.endsWith('/responses') && json.id) responseIds.push(json.id);
    } catch { found(`not JSON at ${plain}`, told); }
  } else if (/event-stream/.test(got.type)) {
    if (!got.text.endsWith('\n\n')) found(`a stream ends inside an event at ${plain}`, told);
    const id = /"id":"(resp_\w+)"/.exec(got.text);
    if (id) responseIds.push(id[1]);
    for (const line of got.text.split('\n')) {
      if (!line.startsWith('data: ') || line === 'data: [DONE]') continue;
      let json;
      try { json = JSON.parse(line.slice(6)); } catch { found(`an event that is not JSON at ${plain}`, `${line}\n${told}`); break; }
      const error = json.error ?? json.response?.error;
      if (error && !server.stopping && !(server.sleeps && /invalid_request|not_found/.test(error.type)) &&
        !/shut|stopp|unavailable|overloaded|exceeds the available|too long|no token is left/.test(JSON.stringify(error))) {
        found(`an error in a stream of ${plain}: ${String(error.message).replace(/\d+/g, '#').slice(0, 90)}`, told);
      }
    }
  } else if (/ndjson/.test(got.type)) {
    for (const line of got.text.split('\n').filter(Boolean)) {
      try {
        const json = JSON.parse(line);
        if (json.error && got.status === 200 && !server.stopping && !server.sleeps &&
          !where.endsWith('pull')) found(`an error in a stream of ${plain}: ${String(json.error).slice(0, 80)}`, told);
      } catch { found(`a line that is not JSON at ${plain}`, `${line}\n${told}`); break; }
    }
  }
}

async function attack(server) {
  let at = rnd(TOTAL);
  const kind = KINDS.find((k) => (at -= k[0]) < 0);
  const [, method, where, make] = kind;
  const url = where();
  let body = null;
  const how = {};
  if (make) {
    const made = make();
    if (chance(35)) for (let i = 1 + rnd(3); i > 0; i--) twist(made);
    body = Buffer.from(JSON.stringify(made));
    if (chance(6)) body = spoil(String(body));
    if (chance(5)) { body = pack(body); how.headers = { 'content-encoding': pick(['gzip', 'gzip', 'deflate', 'br']) }; }
    if (chance(4)) how.partial = true;
  }
  if (chance(8)) how.headers = { ...how.headers, [pick(['x-request-id', 'content-type', 'authorization', 'range', 'x-api-key',
    'anthropic-version', 'idempotency-key'])]: pick(['same', 'x'.repeat(3000), '""', 'text/plain', 'Bearer x',
    'é'.normalize('NFD').slice(0, 1)]) };
  if (chance(22)) how.quit = pick([{ ms: rnd(3) }, { ms: rnd(40) }, { ms: rnd(400) }, { bytes: 1 }, { bytes: rnd(1500) }, { head: true }]);
  if (chance(10)) how.slow = true;
  const got = await send(server, method, url, body, how);
  if (!how.headers?.['content-encoding'] && !how.partial) judge(method, url, body, got, server);
  else if (got.status >= 500 && !BY_DESIGN.has(got.status)) found(`${got.status} for packed or partial ${method} ${url}`, got.text);
}

/* Requests with one beginning at the same time; the first goes. */
async function lead(server) {
  const prompt = text(600 + rnd(500));
  const quick = (quit) => {
    const body = Buffer.from(JSON.stringify({ prompt: prompt + text(rnd(60)), n_predict: 3, temperature: 0, stream: chance(50) }));
    return send(server, 'POST', '/completion', body, { quit }).then((got) => judge('POST', '/completion', body, got, server));
  };
  const leader = quick({ ms: rnd(60) });
  await sleep(rnd(4));
  await Promise.all([leader, ...Array.from({ length: 2 + rnd(4) }, () => quick(chance(30) ? { ms: rnd(80) } : undefined))]);
}

/* Bytes that are no HTTP, or too much of it. */
function garbage(server) {
  return new Promise((resolve) => {
    const socket = net.connect(server.port, '127.0.0.1');
    socket.on('error', () => {});
    socket.on('close', resolve);
    socket.resume();
    socket.write(pick([Buffer.from([0x16, 3, 1, 2, 0]), 'GET / HTTP/9.9\r\n\r\n',
      'POST /completion HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n',
      'POST /completion HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"pro\r\n',
        `GET /${'a'.repeat(100000)} HTTP/1.1\r\n\r\n`, 'POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n{}',
      'GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n'.repeat(50), `GET / HTTP/1.1\r\n${'X: y\r\n'.repeat(5000)}\r\n`]));
    setTimeout(() => socket.destroy(), 50 + rnd(300));
  });
}

/* ── one round ──────────────────────────────────────────────────────────────────────────────────────────────────── */

async function ask(server, where, body, method = body ? 'POST' : 'GET') {
  for (;;) {
    const got = await send(server, method, where, body && Buffer.from(JSON.stringify(body)));
    if (got.status !== 503 || !/maximum of|queue/.test(got.text)) return got; // connections of before may still close
  }
}
const FIXED = { prompt: 'The fixed question, asked again and again: what is the answer to it? ', n_predict: 10, temperature: 0,
  n_probs: 2, ignore_eos: true,
  stream: false, top_k: 0, top_p: 1, min_p: 0, samplers: ['temperature'], lora: [] };

async function fixed(server) {
  const got = await ask(server, '/completion', FIXED);
  if (got.status !== 200) { found(`the fixed answer is ${got.status}`, got.text); return []; }
  return JSON.parse(got.text).completion_probabilities.map((p) => ({ id: p.id, top: p.top_logprobs.map((t) => t.logprob) }));
}

function compare(first, now, what) {
  for (let i = 0; i < first.length; i++) {
    if (first[i].id === now[i]?.id) continue;
    const [a, b] = first[i].top;
    if (!(Math.abs(a - b) < TOLERANCE)) found(`the fixed answer changed ${what}`,
      `token ${i}: ${JSON.stringify(first)}\nnow ${JSON.stringify(now)}`);
    return;
  }
}

function metrics(got) {
  const all = {};
  for (const m of got.text.matchAll(/^([a-z_:]+) (\S+)$/gm)) all[m[1]] = Number(m[2]);
  return all;
}

function reports(server, what) {
  const log = server.log();
  const at = log.search(/AddressSanitizer|LeakSanitizer|runtime error:|assert|Assertion/);
  if (at >= 0) found(`a sanitizer's report ${what}: ${/(?:#\d+ \S+ in (kv_\w+|[a-z_]+ \/\S*src\S+))/.exec(log.slice(at))?.[1] ?? log.slice(at, at + 80)}`, log.slice(at, at + 6000));
  if (server.exit && !server.stopping) found(`the server ended ${what}`, `${JSON.stringify(server.exit)}\n${log.slice(-5000)}`);
  return at < 0 && !server.exit;
}

async function idle(server, slots) {
  let m = {};
  for (const until = Date.now() + PATIENCE; Date.now() < until;) {
    const got = await ask(server, '/metrics');
    if (!got.status) return null;
    m = metrics(got);
    if (!m['llamacpp:requests_processing'] && !m['llamacpp:requests_deferred'] && !m.kvasir_slots_busy && !m.kvasir_queue_length) break;
  }
  if (m.kvasir_slots_busy || m.kvasir_queue_length || m['llamacpp:requests_processing']) {
    found('at work when all clients are gone', `${JSON.stringify(m)}\n${(await ask(server, '/slots')).text}\n${server.log().slice(-3000)}`);
    return m;
  }
  for (const name of ['requests', 'requests_cancelled', 'preemptions', 'led', 'sleeps', 'cache_evicted', 'cache_read']) {
    seen[name] = (seen[name] ?? 0) + (m[`kvasir_${name}_total`] ?? 0);
  }
  if (m.kvasir_cells_used > m.kvasir_cells) found('more cells in use than there are', JSON.stringify(m));
  for (const [name, value] of Object.entries(m)) if (!(value >= 0)) found(`metric ${name} is ${value}`);
  if (m.kvasir_asleep) return m;
  for (let i = 0; i < slots; i++) {
    const got = await ask(server, `/slots/${i}?action=erase`, {});
    if (got.status !== 200) found(`slot ${i} cannot be erased: ${got.status}`, got.text);
  }
  for (const until = Date.now() + 5000; Date.now() < until;) { // erased before the next round
    m = metrics(await ask(server, '/metrics'));
    if (!m.kvasir_cells_used) return m;
  }
  if (m.kvasir_cells_used > 0) found('cells in use with every slot erased', `${JSON.stringify(m)}\n${(await ask(server, '/slots')).text}`);
  return m;
}

async function oneRound(folder) {
  rnd = random(seed + round * 104729);
  shared = [text(300), text(700), text(260), text(40)];
  const cache = path.join(folder, 'cache'), state = path.join(folder, 'state'), saves = path.join(folder, 'saves'),
    keys = path.join(folder, 'keys');
  mkdirSync(saves, { recursive: true });
  const family = pick(['llama', 'llama', 'gemma3', 'lfm2', 'mamba2', 'gpt-oss', 'qwen35', 'fake', 'rerank/qwen3']);
  const exact = chance(12), slots = exact ? 1 : pick([1, 2, 2, 3, 8]), context = pick([512, 768, 1024, 2048, 4096]);
  const args = [...(family === 'fake' ? ['--test-fake', pick(['full', 'window', 'hybrid'])] : ['-m', model(`tiny/${family}.gguf`)]),
    '-c', String(context), '-np', String(slots), ...(chance(70) ? ['-kvu'] : []), '-t', '1', '-fa', 'off', '--test-sampler', '--props',
      '--slot-save-path', saves, '--state-dir', state];
  if (chance(75)) args.push('--cache-dir', cache, '--cache-disk', pick(['1M', '20M', '200M']));
  if (chance(40)) args.push('--sleep-idle-seconds', pick(['1', '0.3', '0.05']));
  if (chance(40)) args.push('-cram', pick(['0', '1', '8']));
  if (chance(25) && family !== 'fake' && family !== 'rerank/qwen3') args.push(...pick([[], ['--pooling', 'mean']]), '--embeddings');
  if (family === 'rerank/qwen3') args.push('--rerank');
  lora = family === 'llama' && chance(50);
  if (lora) args.push('--lora', model('tiny/lora/llama.gguf'));
  if (exact) args.push('--exact');
  if (chance(20)) args.push('--max-queue', '4');
  if (chance(20)) args.push('--responses-max-size', '100K');
  if (chance(15)) args.push('--max-connections', '8');
  const pair = chance(30), trouble = pick(['none', 'none', 'readonly', 'delete', 'hup', 'junk']), term = chance(25);
  console.log(`round ${round}: ${args.filter((a) => !a.startsWith('/')).join(' ')}${pair ? ' twice' : ''} trouble ${trouble}${term ? ' term' : ''}`);
  const user = process.getuid() === 0 ? { uid: 65534, gid: 65534 } : {}; // who is root writes all the same
  if (user.uid) for (const d of [folder, saves]) chownSync(d, user.uid, user.gid);
  const servers = [await startServer({ args, user })];
  if (pair) servers.push(await startServer({ args, user }));
  for (const server of servers) Object.assign(server, { trouble: trouble === 'delete' || trouble === 'readonly' || trouble === 'junk' });
  for (const server of servers) server.sleeps = args.includes('--sleep-idle-seconds');
  const first = [];
  for (const server of servers) first.push(await fixed(server));

  let over = false;
  const disturb = (async () => {
    while (!over && trouble !== 'none') {
      await sleep(30 + rnd(150));
      try {
        if (trouble === 'hup') servers[0].child.kill('SIGHUP');
        if (trouble === 'delete') rmSync(pick([cache, state, saves]), { recursive: true, force: true });
        const dirs = [cache, state, saves].filter((d) => { try { readdirSync(d); return true; } catch { return false; } });
        if (trouble === 'readonly') for (const d of dirs) chmodSync(d, pick([0o500, 0o700, 0o000]));
        if (trouble === 'junk' && dirs.length) {
          const d = pick(dirs), all = readdirSync(d, { recursive: true }).filter((f) => !String(f).endsWith('-shm'));
          // SQLite maps the -shm of its file: who truncates that takes memory away from a process, which no process survives.
          if (all.length) { const f = path.join(d, String(pick(all))); try { writeFileSync(f, text(rnd(3000))); } catch { /* a folder */ } }
          if (chance(30) && all.length) { try { copyFileSync(path.join(d, String(pick(all))), path.join(d, 'copied'));
            } catch { /* a folder */ } }
        }
      } catch { /* it went */ }
    }
  })();
  const clients = Array.from({ length: CLIENTS }, async () => {
    for (let i = 0; i < REQUESTS; i++) {
      const server = pick(servers);
      if (server.exit) return;
      if (chance(4)) await lead(server);
      else if (chance(3)) await garbage(server);
      else await attack(server);
    }
  });
  if (term) {
    await sleep(200 + rnd(1500));
    for (const server of servers) { server.stopping = true; if (!server.exit) server.child.kill('SIGTERM'); }
    for (const server of servers) {
      const exit = await Promise.race([server.ended(), sleep(60_000)]);
      if (!exit) { found('a stop that does not end', server.log().slice(-3000)); await server.stop('SIGKILL'); }
      else if (exit.code !== 0) found(`a stop ended ${JSON.stringify(exit)}`, server.log().slice(-6000));
    }
  }
  await Promise.all(clients);
  over = true;
  await disturb;
  for (const d of [cache, state, saves]) try { chmodSync(d, 0o700); } catch { /* it went */ }
  for (let i = 0; i < servers.length; i++) {
    const server = servers[i];
    if (!reports(server, 'in a round') || server.stopping) continue;
    const m = await idle(server, slots);
    if (m && m.kvasir_context_tokens) {
      await ask(server, '/lora-adapters', [{ id: 0, scale: 1 }]);
      compare(first[i], await fixed(server), 'after the round');
    }
    reports(server, 'after a round');
    server.stopping = true;
    try { await Promise.race([server.stop(), sleep(60_000).then(() => { throw new Error('a stop that does not end'); })]);
      } catch (error) { found('the end is not clean', error.message.slice(-6000)); await server.stop('SIGKILL'); }
    reports(server, 'at the end');
  }
  if (args.includes('--cache-dir') && trouble !== 'junk' && existsSync(cache)) {
    if (user.uid) for (const f of ['', ...readdirSync(cache, { recursive: true })]) chownSync(path.join(cache, String(f)), 0, 0);
    const verify = await runKvasir(['cache', 'verify', '--cache-dir', cache]);
    if (verify.code !== 0) found(`cache verify ended ${verify.code} (trouble ${trouble})`,
      verify.stdout.slice(-1500) + verify.stderr.slice(-1500));
  }
}

let over = false; // asked to end after the round
process.on('SIGTERM', () => { over = true; });
for (round = FIRST; !over && round < FIRST + ROUNDS; round++) {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'kvasir-hostile-'));
  responseIds.length = 1;
  try { await oneRound(folder); } catch (error) { found(`a round failed: ${String(error.message).slice(0, 80)}`, error.stack?.slice(0,
    6000)); }
  try { rmSync(folder, { recursive: true, force: true }); } catch { /* a server still writes */ }
}
const statuses = {};
for (const [key, n] of answers) { const s = key.split(' ').at(-1); statuses[s] = (statuses[s] ?? 0) + n; }
console.log(`seed ${seed}: ${JSON.stringify(statuses)} ${JSON.stringify(seen)}`);
if (process.env.KVASIR_VERBOSE) for (const [key, n] of [...answers].sort()) console.log(`  ${n} ${key}`);
if (process.env.KVASIR_VERBOSE) for (const [key, n] of [...refused].sort((a, b) => a[1] - b[1])) console.log(`  ${n} × ${key}`);
for (const [key, n] of unavailable) console.log(`  ${n} × ${key}`);
for (const [what, { n }] of findings) console.log(`${n} × ${what}`);
process.exitCode = findings.size ? 1 : 0;
