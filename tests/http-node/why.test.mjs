// What a response says about where its prompt came from, scopes, and the admin's view, on the fake engine: its cache is
// the real one, and it needs no model.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fake, modelArgs, runKvasir, startServer } from './server.mjs';
import { events } from './sse.mjs';

const args = (...more) => (fake ? modelArgs(...more) : ['--test-fake', 'full', ...more]);
const KEYS = 'sk-plain\nsk-default scope=default\nsk-team scope=team\nsk-boss admin\n';
const folder = mkdtempSync(path.join(os.tmpdir(), 'kvasir-why-'));
const keyFile = path.join(folder, 'keys');
writeFileSync(keyFile, KEYS);
after(() => rmSync(folder, { recursive: true }));

let server;
let count = 0;

/** A prompt that shares nothing with any other; the fake engine's tokens are bytes. */
function fresh(bytes = 600) {
  const word = `${String.fromCharCode(65 + count % 26)}${count++} `;
  return word.repeat(Math.ceil(bytes / word.length)).slice(0, bytes);
}

async function ask(where, body, { key = 'sk-plain', headers = {} } = {}) {
  const response = await fetch(server.url + where, {
    method: body === undefined ? 'GET' : 'POST',
    headers: { authorization: `Bearer ${key}`, ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  let json = null;
  try { json = JSON.parse(text); } catch { /* metrics, streams */ }
  return { status: response.status, headers: response.headers, text, json };
}

async function complete(prompt, more = {}, as = {}) {
  const answer = await ask('/v1/completions', { prompt, max_tokens: 1, ...more }, as);
  assert.equal(answer.status, 200, answer.text);
  return { ...answer, why: answer.json.kvasir };
}

/** Until all that was captured is stored. Asks again at once; nothing here depends on how long it takes. */
async function stored() {
  for (;;) {
    const { json } = await ask('/kvasir/cache', undefined, { key: 'sk-boss' });
    if (json.queue_bytes === 0) return json;
  }
}

async function metric(name) {
  const { text } = await ask('/metrics');
  const line = text.split('\n').find((l) => l.startsWith(`${name} `));
  assert.ok(line, `${name} is in /metrics`);
  return Number(line.slice(name.length + 1));
}

const cached = (why) => why.cached.engine + why.cached.ram + why.cached.disk;

describe('where a prompt came from', () => {
  before(async () => {
    server = await startServer({ args: args('-c', '8192', '-np', '1', '--api-key-file', keyFile) });
  });
  after(() => server.stop());

  it('says that nothing was stored, then that all was reused', async () => {
    const prompt = fresh();
    const first = await complete(prompt);
    assert.deepEqual(first.why.cached, { engine: 0, ram: 0, disk: 0 });
    assert.equal(first.why.miss.reason, 'empty');
    assert.ok(first.why.miss.explanation.length > 10);
    assert.equal(first.headers.get('x-kvasir-cache'), `engine=0, ram=0, disk=0, computed=${first.why.computed}; miss=empty@0`);
    const n = first.json.usage.prompt_tokens;
    assert.equal(first.why.computed, n);

    const again = await complete(prompt);
    assert.deepEqual(again.why.cached, { engine: n - 1, ram: 0, disk: 0 });
    assert.equal(again.why.computed, 1);
    assert.equal(again.why.miss, null);
    assert.equal(again.headers.get('x-kvasir-cache'), `engine=${n - 1}, ram=0, disk=0, computed=1`);
    for (const name of ['restore_ms', 'prefill_ms']) assert.equal(typeof again.why[name], 'number');
    assert.equal(again.json.usage.prompt_tokens_details.cached_tokens, n - 1);
  });

  it('names the place where prompts part, with the caller\'s own text', async () => {
    const common = fresh();
    await complete(`${common}stays secret`);
    await stored();
    const { why } = await complete(`${common}Zürich €€€ and what follows, which is longer than the piece that is shown`);
    assert.equal(why.miss.reason, 'diverged');
    assert.ok(why.miss.text.startsWith('Zürich'), why.miss.text);
    assert.ok(!why.miss.text.includes('\ufffd') && !why.miss.text.includes('secret'), why.miss.text);
    assert.ok(why.miss.position >= common.length && why.miss.position === cached(why));
    assert.equal(why.miss.hint, undefined);
    // early in a long prompt there is something to be done about it
    const long = await complete(`${common.slice(0, 40)}${fresh(2000)}`);
    assert.match(long.why.miss.hint, /date/);
  });

  it('tells memory from the engine', async () => {
    const prompt = fresh(900);
    await complete(prompt);
    await complete(fresh()); // takes the only slot
    await stored();
    const restores = await metric('kvasir_cache_restore_seconds_count');
    const { why, json } = await complete(prompt);
    assert.equal(cached(why), json.usage.prompt_tokens - 1);
    assert.ok(why.cached.ram >= 800, JSON.stringify(why));
    assert.equal(why.miss, null);
    assert.equal(await metric('kvasir_cache_restore_seconds_count'), restores + 1);
  });

  it('stands in a stream\'s chunk with the finish reason, and nowhere else', async () => {
    const requests = [
      ['/v1/chat/completions', { messages: [{ role: 'user', content: fresh() }], max_tokens: 3 }, (e) => e.choices[0]?.finish_reason],
      ['/v1/completions', { prompt: fresh(), max_tokens: 3, stream_options: { include_usage: true } }, (e) => e.choices[0]?.finish_reason],
      ['/completion', { prompt: fresh(), n_predict: 3 }, (e) => e.stop],
    ];
    for (const [where, body, isLast] of requests) {
      const response = await fetch(server.url + where, {
        method: 'POST',
        headers: { authorization: 'Bearer sk-plain' },
        body: JSON.stringify({ ...body, stream: true }),
      });
      assert.equal(response.headers.get('x-kvasir-cache'), null); // not known when the headers go out
      let told = 0;
      for await (const { data } of events(response)) {
        if (!data || data === '[DONE]') continue;
        const event = JSON.parse(data);
        assert.equal('kvasir' in event, Boolean(isLast(event)), data);
        if (event.kvasir) {
          told++;
          assert.ok(event.kvasir.computed > 500, data);
          assert.ok(event.kvasir.miss.reason, data);
        }
      }
      assert.equal(told, 1, where);
    }
  });

  it('reads and writes nothing when asked so', async () => {
    for (const off of [{ cache_prompt: false }, { kvasir: { store: false } }]) {
      const prompt = fresh();
      await complete(prompt);
      await stored();
      const { why, json } = await complete(prompt, off);
      assert.equal(cached(why), 0);
      assert.equal(why.computed, json.usage.prompt_tokens);
      assert.equal(why.miss.reason, 'disabled');
      const unseen = fresh();
      await complete(unseen, off);
      await stored();
      assert.ok(cached((await complete(unseen)).why) <= 4, 'nothing but the first tokens, which many prompts share');
    }
    for (const bad of [1, 'no', [], false]) {
      const { status, json } = await ask('/v1/completions', { prompt: 'a', kvasir: bad });
      assert.equal(status, 400);
      assert.equal(json.error.param, 'kvasir');
    }
  });

  it('sums up in /metrics', async () => {
    const names = ['engine', 'ram', 'disk'].map((tier) => `kvasir_cache_tokens_total{tier="${tier}"}`);
    const sums = async () => {
      const list = [];
      for (const name of [...names, 'kvasir_cache_miss_total{reason="disabled"}', 'kvasir_time_to_first_token_seconds_count']) {
        list.push(await metric(name));
      }
      return list;
    };
    const prompt = fresh();
    const before = await sums();
    const answers = [await complete(prompt), await complete(prompt), await complete(prompt, { cache_prompt: false })];
    const gained = (await sums()).map((n, i) => n - before[i]);
    ['engine', 'ram', 'disk'].forEach((tier, i) => {
      assert.equal(gained[i], answers.reduce((sum, { why }) => sum + why.cached[tier], 0), tier);
    });
    assert.deepEqual(gained.slice(3), [1, 3]);
    assert.ok(await metric('kvasir_prompt_tokens_computed_total') > 600);
    for (const gauge of ['queue_bytes', 'ram_bytes', 'nodes', 'tree_bytes', 'evicted_total', 'dropped_total']) {
      await metric(`kvasir_cache_${gauge}`);
    }
  });
});

describe('scopes', () => {
  before(async () => {
    server = await startServer({ args: args('-c', '8192', '-np', '4', '-kvu', '--api-key-file', keyFile) });
  });
  after(() => server.stop());

  it('do not share, and each finds its own', async () => {
    const prompt = fresh();
    const ways = [
      [{}, {}],
      [{}, { key: 'sk-team' }],
      [{}, { headers: { 'x-kvasir-scope': 'team' } }],
      [{ cache_salt: 'team' }, {}],
      [{ cache_salt: 'b' }, { headers: { 'X-Kvasir-Scope': 'a' } }],
      [{ cache_salt: 'a' }, { headers: { 'X-Kvasir-Scope': 'b' } }],
      [{ cache_salt: 'ä'.repeat(128) }, {}],
      [{}, { key: 'sk-team', headers: { 'x-kvasir-scope': 'team' } }],
    ];
    for (const [body, as] of ways) {
      const { why } = await complete(prompt, body, as);
      assert.equal(cached(why), 0, JSON.stringify([body, as]));
      assert.equal(why.miss.reason, 'empty');
    }
    await stored();
    for (const [body, as] of ways) {
      const { why } = await complete(prompt, body, as);
      assert.equal(why.computed, 1, JSON.stringify([body, as, why]));
    }
    // these are other ways to say "the default one"
    const same = [[{}, { key: 'sk-default' }], [{ cache_salt: '' }, {}], [{ cache_salt: null }, { headers: { 'x-kvasir-scope': '' } }]];
    for (const [body, as] of same) assert.equal((await complete(prompt, body, as)).why.computed, 1);
    // and these make no scope
    const none = { prompt_cache_key: 'k', user: 'u', metadata: { session: 's' } };
    assert.equal((await complete(prompt, none)).why.computed, 1);
  });

  it('are refused when they are none', async () => {
    const long = 'x'.repeat(129);
    assert.equal((await ask('/v1/completions', { prompt: 'a' }, { headers: { 'x-kvasir-scope': long } })).json.error.param, 'X-Kvasir-Scope');
    assert.equal((await ask('/v1/completions', { prompt: 'a', cache_salt: 'ä'.repeat(129) })).json.error.param, 'cache_salt');
    assert.equal((await ask('/v1/completions', { prompt: 'a', cache_salt: {} })).json.error.param, 'cache_salt');
  });
});

describe('the admin\'s view', () => {
  before(async () => {
    server = await startServer({ args: args('-c', '8192', '-np', '1', '--api-key-file', keyFile) });
  });
  after(() => server.stop());

  const boss = { key: 'sk-boss' };

  it('takes a key marked admin', async () => {
    for (const [where, body] of [['/kvasir/cache'], ['/kvasir/why'], ['/kvasir/explain', { prompt: 'a' }]]) {
      assert.equal((await ask(where, body, { key: 'wrong' })).status, 401);
      assert.equal((await ask(where, body)).status, 403);
      assert.equal((await ask(where, body, { key: 'sk-team' })).status, 403);
    }
    assert.equal((await ask('/kvasir/cache', undefined, boss)).json.enabled, true);
    assert.equal((await ask('/kvasir/why', undefined, boss)).status, 404);
    for (const where of ['/metrics', '/slots']) assert.equal((await ask(where)).status, 200);
  });

  it('erases a scope, or everything, in memory and in idle slots', async () => {
    const erase = async (query, key = 'sk-boss') => {
      const response = await fetch(`${server.url}/kvasir/cache${query}`, { method: 'DELETE', headers: { authorization: `Bearer ${key}` } });
      return { status: response.status, json: await response.json() };
    };
    assert.equal((await erase('?all=true', 'sk-team')).status, 403);
    for (const query of ['', '?all=true&scope=x', '?all=1']) assert.equal((await erase(query)).status, 400, query);
    const prompt = fresh(600);
    await complete(prompt, {}, { headers: { 'x-request-id': 'of-default' } });
    await complete(prompt, {}, { key: 'sk-team', headers: { 'x-request-id': 'of-team' } });
    await stored();
    const why = async (id) => (await ask(`/kvasir/why?id=${id}`, undefined, boss)).json;
    assert.ok((await why('of-team')).text.includes(prompt.slice(0, 9)));
    assert.ok((await erase('?scope=team')).json.erased_records > 0);
    assert.equal((await complete(prompt, {}, { key: 'sk-team' })).json.usage.prompt_tokens_details.cached_tokens, 0);
    assert.ok((await complete(prompt)).json.usage.prompt_tokens_details.cached_tokens > 0);
    assert.equal((await why('of-team')).reason, 'empty');
    assert.ok(!('text' in await why('of-team')), 'the text went with its scope');
    assert.ok((await why('of-default')).text.includes(prompt.slice(0, 9)), 'another scope keeps its own');
    await stored();
    assert.ok((await erase('?all=true')).json.erased_records > 0);
    assert.equal((await complete(prompt)).json.usage.prompt_tokens_details.cached_tokens, 0);
    assert.ok(!('text' in await why('of-default')));
    await stored();
    await erase('?all=true');
  });

  it('explains without running anything', async () => {
    const prompt = fresh(900);
    const nothing = (await ask('/kvasir/explain', { prompt }, boss)).json;
    assert.equal(nothing.resumable, 0);
    assert.equal(nothing.miss.reason, 'empty');
    assert.equal(nothing.miss.position, 0);
    const { json } = await complete(prompt);
    await complete(fresh());
    await stored();
    const requests = await metric('kvasir_requests_total');
    const all = (await ask('/kvasir/explain', { prompt }, boss)).json;
    const n = json.usage.prompt_tokens;
    assert.equal(all.prompt_tokens, n);
    assert.equal(all.resumable, n - 1);
    assert.equal(all.miss, null);
    const parted = (await ask('/kvasir/explain', { prompt: `${prompt.slice(0, 500)}#behind the place` }, boss)).json;
    assert.equal(parted.miss.reason, 'diverged');
    assert.ok(parted.matched >= 500 && parted.matched < n);
    assert.ok(parted.miss.text.startsWith('#behind'), parted.miss.text);
    assert.equal((await ask('/kvasir/explain', { prompt, cache_salt: 'other' }, boss)).json.matched, 0);
    const chat = (await ask('/kvasir/explain', { messages: [{ role: 'user', content: 'hi' }] }, boss)).json;
    assert.ok(chat.prompt_tokens > 2);
    assert.equal(await metric('kvasir_requests_total'), requests);
  });

  it('keeps the last misses, and the command line asks for them', async () => {
    const common = fresh();
    await complete(common);
    await stored();
    const missed = await complete(`${common}\u0085\u001b[31mred`, {}, { headers: { 'x-request-id': 'miss-1' } });
    assert.equal(missed.why.miss.reason, 'diverged');
    await complete(fresh(), {}, { headers: { 'x-request-id': 'miss-2' } });
    assert.equal((await ask('/kvasir/why?id=last', undefined, boss)).json.id, 'miss-2');
    const why = (await ask('/kvasir/why?id=miss-1', undefined, boss)).json;
    assert.equal(why.reason, 'diverged');
    assert.equal(why.position, missed.why.miss.position);
    assert.equal(why.text, missed.why.miss.text);
    assert.deepEqual(why.cached, missed.why.cached);
    assert.ok(why.time > 1.6e9);

    const cli = (...words) => runKvasir([...words, '--url', `${server.url}/`], { env: { KVASIR_API_KEY: 'sk-boss' } });
    const shown = await cli('why', 'miss-1');
    assert.equal(shown.code, 0, shown.stderr);
    assert.match(shown.stdout, /^request +miss-1$/m);
    assert.match(shown.stdout, /^reason +diverged: /m);
    assert.match(shown.stdout, /^text there +"\?\?\[31mred"$/m); // nothing that a terminal obeys
    assert.match((await cli('why')).stdout, /^request +miss-2$/m);
    assert.equal(JSON.parse((await cli('why', 'miss-1', '--json')).stdout).id, 'miss-1');
    const status = await cli('status');
    assert.equal(status.code, 0, status.stderr);
    assert.match(status.stdout, /^misses .*diverged \d/m);
    assert.match(status.stdout, /^cache .* blocks known/m);

    assert.equal((await cli('why', 'nobody')).code, 1);
    assert.equal((await runKvasir(['status', '--url', server.url], { env: { KVASIR_API_KEY: 'sk-plain' } })).code, 1);
    assert.equal((await runKvasir(['status', '--api-key', 'sk-boss', '--url', server.url])).code, 0);
    assert.equal((await runKvasir(['why', 'a', 'b'])).code, 2);
    assert.equal((await runKvasir(['why', '--nonsense'])).code, 2);
    assert.equal((await runKvasir(['why', '--help'])).code, 0);
  });
});

describe('what a caller sends stays with the caller', () => {
  const CANARY = 'canary7f3a';
  before(async () => {
    writeFileSync(keyFile, `${KEYS}sk-${CANARY} scope=${CANARY}\n`);
    server = await startServer({ args: args('-c', '8192', '-np', '2', '-kvu', '--api-key-file', keyFile, '-lv', '4') });
  });
  after(() => server.stop());

  it('is in no log, header, metric, and in nobody else\'s answer', async () => {
    const shared = fresh();
    const answers = [];
    const note = async (promise) => answers.push(await promise);
    const post = (body, as) => ask('/v1/completions', { max_tokens: 2, ...body }, as);
    await post({ prompt: `${shared}${CANARY}` });
    const own = await post({ prompt: `${shared}x${CANARY}` });
    assert.ok(own.json.kvasir.miss.text.includes(CANARY)); // the caller sees it
    assert.ok(![...own.headers.values()].join('\n').includes(CANARY));
    for (const as of [{ headers: { 'x-kvasir-scope': CANARY } }, { key: `sk-${CANARY}` }]) await note(post({ prompt: shared }, as));
    await note(post({ prompt: shared, cache_salt: CANARY }));
    await note(post({ prompt: shared }, { headers: { 'x-kvasir-scope': CANARY.repeat(20) } })); // refused
    await note(post({ prompt: shared, cache_salt: CANARY.repeat(40) }));
    await note(post({ prompt: `${shared}and something else` }));
    await note(post({ prompt: `${shared}and`, stream: true }));
    await note(ask('/v1/chat/completions', { messages: [{ role: 'user', content: shared }], max_tokens: 2 }));
    await note(ask('/kvasir/explain', { prompt: `${shared}and` }, { key: 'sk-boss' }));
    for (const where of ['/metrics', '/slots', '/props', '/v1/models', '/health', '/']) await note(ask(where));
    await note(ask('/kvasir/cache', undefined, { key: 'sk-boss' }));
    assert.ok(answers.some((a) => a.status === 400));
    for (const a of answers) {
      assert.ok(!a.text.includes(CANARY), a.text.slice(0, 2000));
      assert.ok(![...a.headers.values()].join('\n').includes(CANARY));
    }
    await server.stop(); // what is logged at the end counts, too
    assert.ok(server.lines.length > 10);
    assert.ok(!server.log().includes(CANARY), server.lines.find((l) => l.includes(CANARY)));
  });
});

describe('--plain-json', () => {
  before(async () => {
    server = await startServer({ args: args('-c', '2048', '-np', '1', '--plain-json') });
  });
  after(() => server.stop());

  it('leaves the field out; without keys this machine is the admin', async () => {
    const { json, headers } = await ask('/v1/completions', { prompt: 'a', max_tokens: 1 });
    assert.ok(!('kvasir' in json));
    assert.match(headers.get('x-kvasir-cache'), /^engine=/);
    assert.equal((await ask('/kvasir/cache')).status, 200);
    assert.equal((await ask('/kvasir/cache', undefined, { headers: { 'x-forwarded-for': '192.0.2.7' } })).status, 403);
  });
});
