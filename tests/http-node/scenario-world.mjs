// Where a shape is tried: one model, in one life (in memory: others take every slot between two requests; restarted: the
// server ends and another begins on its disk cache), with --exact or without.
//
//   World   the server and the cold one beside it
//   Case    one shape there: its own scope of the cache, its own seed, what it asked so far, and what each request cost
//   Talk    a conversation that grows by turns
//
// What a request may cost is counted by the tokenizer, in the text that the template makes of it: each bound is the
// tokens of a piece of that text. With --exact it is what lies behind the last chunk's end that a cold run of an earlier
// prompt had in common with this one (cache/policy.h).
import assert from 'node:assert/strict';
import { apis, spell } from './scenario-apis.mjs';
import { Folders, words } from './scenario.mjs';
import { random, startServer } from './server.mjs';

const EDGE = 6; // G + 8 beyond the new text: G and the two tokens that end a message stand in the piece that is counted
// Each a token of its own behind a blank, in every vocabulary of this size.
const COMMON = ('time year people way day man thing woman life child world school state family student group country problem hand part place case '
  + 'week company system program question work government number night point home water room mother area money story fact month lot right '
  + 'study book eye job word business issue side kind head house service friend father power hour game line end member law car city').split(' ');

export const modelArgs = (m, ...more) => [...(m.fake ? ['--test-fake', m.fake] : ['-m', m.file]), '-c', `${m.context}`, '-np', '2', '-kvu', '-fa', 'off', '-t', `${m.threads}`,
  '-ub', `${m.chunk}`, '--test-sampler', ...m.template, ...more];

/** Answers of a server that remembers nothing. What two lives ask alike is asked once. */
export class Cold {
  known = new Map();

  constructor(model, exact) {
    this.start = () => startServer({ args: modelArgs(model, '-np', '1', '-cram', '0', ...(exact ? ['--exact'] : [])), env: { KVASIR_CACHE_DISK: '0' } });
  }

  async answer(where, body) {
    const key = where + JSON.stringify(body);
    if (!this.known.has(key)) {
      this.server ??= await this.start();
      this.known.set(key, await post(this.server, where, { ...body, cache_prompt: false }));
    }
    const got = this.known.get(key);
    assert.equal(got.status, 200, JSON.stringify(got.json));
    return got.json;
  }

  async stop() {
    await this.server?.stop();
    this.server = null;
  }
}

export async function post(server, where, body, headers = {}) {
  const response = await fetch(server.url + where, { method: 'POST', headers, body: spell(body) });
  return { status: response.status, json: await response.json() };
}

/** What the model said, token by token with its two best log probabilities. */
export const said = (json) => json.choices?.[0].logprobs.content.map((t) => ({ id: t.id, top: t.top_logprobs.map((x) => x.logprob) }))
  ?? json.completion_probabilities.map((t) => ({ id: t.id, top: t.top_logprobs.map((x) => x.logprob) }));

export class World {
  folders = new Folders();
  started = new Set();
  others = 0;

  constructor(model, { life = 'memory', exact = false, quick = true, seed = 1, cold = null } = {}) {
    Object.assign(this, { model, life, exact, quick, seed });
    this.ownCold = !cold;
    this.cold = cold ?? new Cold(model, exact);
    this.disk = life === 'restart' ? this.folders.make() : null;
    this.pieces = new Map();
  }

  args(...more) {
    return modelArgs(this.model, ...(this.exact ? ['--exact', '-np', '1'] : []), ...more);
  }

  /** A server of its own for a shape; it ends with the world if the shape does not end it. */
  async own(args, more = {}) {
    const server = await startServer({ args, ...more });
    this.started.add(server);
    return server;
  }

  async up() {
    this.server ??= await this.own(this.args(...(this.disk ? ['--cache-dir', this.disk] : [])));
    return this.server;
  }

  async down(signal) {
    const { server } = this;
    this.server = null;
    await server?.stop(signal);
    this.started.delete(server);
  }

  async stop() {
    await this.down();
    for (const server of this.started) if (!server.exit) await server.stop('SIGKILL');
    if (this.ownCold) await this.cold.stop();
    this.folders.remove();
  }

  /** Between two requests: others take every slot (n of them, who share no token with anybody), or the server is another. */
  async between(n = 3) {
    if (this.life === 'restart') {
      await this.down();
      await this.up();
      return;
    }
    const rnd = random(this.seed + 31 * this.others);
    for (let i = 0; i < n; i++) {
      const prompt = String.fromCharCode(33 + this.others++ % 27) + words(rnd, 40);
      await post(await this.up(), '/completion', { prompt, n_predict: 2, ignore_eos: true }, { 'x-kvasir-scope': 'others' });
    }
  }

  async tokens(text) {
    if (!this.pieces.has(text)) {
      const { status, json } = await post(await this.up(), '/tokenize', { content: text, parse_special: true });
      assert.equal(status, 200, JSON.stringify(json));
      if (text.length < 400) this.pieces.set(text, json.tokens);
      return json.tokens;
    }
    return this.pieces.get(text);
  }

  async render(messages, tools, more = {}) {
    const { chat_template_kwargs, thinking } = more;
    const body = { messages, ...(tools ? { tools } : {}), ...(chat_template_kwargs ? { chat_template_kwargs } : {}), ...(thinking ? { thinking } : {}) };
    const { status, json } = await post(await this.up(), '/apply-template', body);
    assert.equal(status, 200, JSON.stringify(json));
    return json.prompt;
  }
}

const common = (a, b) => {
  const n = Math.min(a.length, b.length);
  let i = 0;
  while (i < n && a[i] === b[i]) i++;
  return i;
};

export class Case {
  rows = [];
  notes = [];
  history = [];

  constructor(world, shape, api = 'chat') {
    Object.assign(this, { world, shape, api, model: world.model, exact: world.exact, quick: world.quick });
    this.scope = `${shape.id}-${api}`.replaceAll(' ', '-');
    let salt = world.seed;
    for (const c of shape.id) salt = (salt * 31 + c.charCodeAt(0)) % 1e9; // the same words in both lives, with --exact, and in each API
    this.rnd = random(salt);
  }

  note(text) {
    this.notes.push(text);
  }

  between(n) {
    return this.world.between(n);
  }

  /** A stated length here, in tokens. */
  n(stated) {
    return Math.max(8, Math.min(Math.round(stated / (this.quick ? 8 : 1)), Math.floor(this.model.context * 0.75)));
  }

  /** A length that no shape states. */
  some(n) {
    return Math.min(n, Math.floor(this.model.context / 4));
  }

  /** A text of about n tokens (exactly n where they are bytes) that begins and ends with a letter. */
  text(n) {
    if (this.model.bytes) return words(this.rnd, n).replace(/ $/, 'x');
    return Array.from({ length: Math.max(1, n) }, () => COMMON[this.rnd(COMMON.length)]).join(' ');
  }

  /** A word that nothing else contains. */
  word(n = 8) {
    return Array.from({ length: n }, () => String.fromCharCode(97 + this.rnd(26))).join('');
  }

  answer({ thought = null, text = '', call = null }) {
    const { opens } = this.model;
    const begin = thought !== null ? `${opens ? '' : '<think>\n'}${thought}\n</think>\n\n` : opens ? '\n</think>\n\n' : '';
    return begin + text + (call ? `${text ? (opens ? '\n\n' : '\n') : ''}${this.model.call(call.name, call.args)}` : '');
  }

  /** Sends it; with `play` (a text, or token ids) that is the answer, else the model's own `n` tokens are. */
  async ask(messages, { play, n = 8, tools, more = {}, api = this.api, server, refused = false } = {}) {
    server ??= await this.world.up();
    const logprobs = play === undefined && api === 'chat';
    const body = apis[api].send({ messages, tools, max: play === undefined ? n : 4000, more: { ...more, ...(play === undefined
      ? { temperature: 0, ignore_eos: true, ...(logprobs ? { logprobs: true, top_logprobs: 2 } : {}) } : { kvasir: { play } }) } });
    const { status, json } = await post(server, apis[api].path, body, { 'x-kvasir-scope': this.scope });
    if (refused) return { status, json };
    assert.equal(status, 200, `${this.shape.id}, ${api}: ${JSON.stringify(json)}`);
    const text = await this.world.render(messages, tools, more);
    return this.remember({ ...apis[api].read(json), ...this.cost(json), text, body, where: apis[api].path }, play);
  }

  /** The same without a template: a text, or token ids. */
  async raw(prompt, { n = 8, more = {}, server } = {}) {
    server ??= await this.world.up();
    const body = { prompt, n_predict: n, temperature: 0, n_probs: 2, ignore_eos: true, ...more };
    const { status, json } = await post(server, '/completion', body, { 'x-kvasir-scope': this.scope });
    assert.equal(status, 200, JSON.stringify(json));
    return this.remember({ prompt: json.tokens_evaluated, ...this.cost(json), text: prompt, body, where: '/completion' });
  }

  cost(json) {
    const { cached, computed, miss } = json.kvasir;
    return { json, cached, computed, miss, reused: cached.engine + cached.ram + cached.disk };
  }

  async remember(got, play) {
    assert.equal(got.reused + got.computed, got.prompt, JSON.stringify(got.json.kvasir));
    got.tokens = Array.isArray(got.text) ? got.text : await this.world.tokens(got.text);
    if (got.tokens.length === got.prompt - 1) got.tokens = [-1, ...got.tokens]; // a token that begins every text
    got.earlier = [...this.history];
    const answer = typeof play === 'string' ? await this.world.tokens(play) : play ?? [];
    this.history.push({ tokens: got.tokens, n: got.tokens.length, all: [...got.tokens, ...answer] });
    return got;
  }

  /** Tokens of the prompt's text behind the last `content` in it, and the edge that a template may spell anew. */
  async behind(got, content) {
    const at = got.text.lastIndexOf(content);
    assert.ok(at >= 0, `${JSON.stringify(content)} is in the prompt`);
    return (await this.world.tokens(got.text.slice(at + content.length))).length + EDGE;
  }

  /** Tokens from the beginning of the message on that the last `content` is in. */
  async from(got, content) {
    const at = got.text.lastIndexOf(content);
    assert.ok(at >= 0, `${JSON.stringify(content)} is in the prompt`);
    return (await this.world.tokens(got.text.slice(this.messageAt(got.text, at)))).length;
  }

  messageAt(text, at) {
    return Math.max(0, ...['<|im_start|>', '<start_of_turn>'].map((mark) => text.lastIndexOf(mark, at)));
  }

  /** Tokens that the prompt shares with the best path that was there before it. */
  shared(got) {
    return Math.max(0, ...got.earlier.map((e) => common(e.all, got.tokens)));
  }

  /** P − D + g. */
  async fresh(got) {
    const D = Math.min(this.shared(got), got.prompt - 1);
    if (this.model.kind === 'full') return got.tokens.length - D;
    const tail = got.text.slice(this.messageAt(got.text, got.text.length)); // only to know where messages begin, in tokens
    let begin = got.tokens.length - (await this.world.tokens(tail)).length, at = got.text.length - tail.length;
    while (begin > D && at > 0) {
      at = this.messageAt(got.text, at - 1);
      begin = at ? got.tokens.length - (await this.world.tokens(got.text.slice(at))).length : 0;
    }
    return got.tokens.length - D + Math.min(D - begin, this.model.interval);
  }

  /** With --exact: behind the last edge that an earlier prompt's cold run has, where one can go on. */
  exactly(got) {
    const { chunk, interval, kind } = this.model;
    let best = 0;
    for (const e of got.earlier) {
      const most = Math.min(common(e.tokens, got.tokens), got.tokens.length - 1, e.n - 1);
      for (let edge = Math.floor(most / chunk) * chunk; edge > best; edge -= chunk) {
        const kept = kind === 'full' || (!e.cut && edge + chunk > e.n - 1) || Math.floor(edge / interval) !== Math.floor((edge - chunk) / interval);
        if (kept) best = edge;
      }
    }
    return got.tokens.length - best;
  }

  /** The request computed at most `bound`. */
  within(got, bound, what = '') {
    const limit = this.exact ? this.exactly(got) : Math.max(1, bound);
    this.rows.push({ counted: got.computed, bound: limit, what: `${what}${got.miss ? ` (${got.miss.reason} at ${got.miss.position})` : ''}` });
  }

  /** Another figure with a bound: how many of what. */
  figure(counted, bound, what, { least = false } = {}) {
    this.rows.push({ counted, bound, what, least, figure: true });
  }

  /** The answer is a cold server's: bit for bit with --exact, else up to where another shape of batch may decide. */
  async cold(got, what = '') {
    const { tolerance } = this.model;
    if (!this.exact && tolerance === null) return;
    const alone = said(await this.alone(got)), here = said(got.json);
    if (this.exact) {
      assert.deepEqual(here, alone, `${this.shape.id} ${what}: not bit for bit a cold run's answer`);
      return;
    }
    same(here, alone, tolerance, `${this.shape.id} ${what}`);
  }

  /** A cold run's answer. Where the server spelled tools, calls or blanks as they were first, the cold one, which knows of
   * nothing before, gets the text that this made of the conversation. */
  async alone({ where, body, json, prompt }) {
    if (!json.kvasir.canonicalised?.some((rule) => rule !== 'billing-header')) return this.world.cold.answer(where, body);
    const shown = await post(await this.world.up(), '/apply-template', body, { 'x-kvasir-scope': this.scope });
    const alone = await this.world.cold.answer('/completion',
      { prompt: shown.json.prompt, n_predict: body.max_tokens, temperature: 0, n_probs: 2, ignore_eos: true });
    assert.equal(alone.tokens_evaluated, prompt, 'the same prompt');
    return alone;
  }

  /** The same of one answer of several, which `make test` leaves to the last of them. */
  async coldToo(got, what) {
    if (!this.quick) await this.cold(got, what);
  }

  get over() {
    return this.rows.filter((r) => (r.least ? r.counted < r.bound : r.counted > r.bound));
  }

  check() {
    const wrong = this.over.map((r) => `${this.shape.id} ${this.api}, ${r.what}: ${r.counted}, ${r.least ? 'at least' : 'at most'} ${r.bound} expected`);
    assert.equal(wrong.length, 0, `${wrong.join('\n')}\n(KVASIR_SEED=${this.world.seed})`);
  }
}

export function same(here, alone, tolerance, what) {
  for (let i = 0; i < alone.length; i++) {
    const { id, top } = alone[i];
    if (here[i]?.id === id) continue;
    assert.ok(top.length > 1 && Math.abs(top[0] - top[1]) < tolerance,
      `${what}: token ${i} is ${here[i]?.id}, cold ${id}, with ${top[0] - top[1]} between the two best`);
    return;
  }
  assert.equal(here.length, alone.length, what);
}

export class Talk {
  messages = [];
  last = null; // the answer that the next turn goes on from: { text, sampled, question }

  constructor(t, { system = 60, tools, more } = {}) {
    Object.assign(this, { t, tools, more });
    if (system) this.messages.push({ role: 'system', content: typeof system === 'string' ? system : t.text(system) });
  }

  fork() {
    const other = new Talk(this.t, { system: 0, tools: this.tools, more: this.more });
    return Object.assign(other, { messages: [...this.messages], last: this.last });
  }

  say(content) {
    this.messages.push({ role: 'user', content: typeof content === 'string' ? content : this.t.text(content) });
    return this.messages.at(-1).content;
  }

  ask(more = {}) {
    return this.t.ask(this.messages, { tools: this.tools, more: this.more, ...more });
  }

  /** What is new, where the answer before is rendered as it was sampled; else from that answer on. */
  async judge(got, what) {
    const { t, last } = this;
    if (last) t.within(got, last.sampled ? await t.behind(got, last.text) : await t.behind(got, last.question), what);
  }

  /** A question and a played answer, which stays as the client gets it back. */
  async turn(what, { question = 30, answer = 20, thought = null, keep = false, text } = {}) {
    const { t } = this;
    const asked = this.say(question);
    text ??= t.text(answer);
    const thoughts = thought === null ? null : t.text(thought);
    const got = await this.ask({ play: t.answer({ thought: thoughts, text }) });
    await this.judge(got, what);
    const message = { role: 'assistant', content: got.message.content };
    if (keep && got.message.reasoning_content) message.reasoning_content = got.message.reasoning_content;
    this.messages.push(message);
    const sampled = t.model.sampled && (thought === null || (keep && t.model.thoughts === 'kept'));
    this.last = { text, sampled, question: asked };
    return got;
  }

  /** A question that the model answers, held against a cold server; nothing of it stays. */
  async check(what, question = 30) {
    this.say(question);
    const got = await this.ask({ api: 'chat' });
    await this.judge(got, what);
    await this.t.cold(got, what);
    this.messages.pop();
    return got;
  }
}
