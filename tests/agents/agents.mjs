// Coding agents do a task against kvasir, as their users start them: `make agents` (scripts/agents.sh) runs this.
//
// The model is scripted (--test-script): the fake engine with SmolLM2's tokenizer and a Qwen3 template samples, token by
// token, the agent's own tool call, then a closing line. All else is real: the agent, its HTTP requests, the template,
// the tool parser, the cache and its files. Each agent, in a git repository of its own:
//
//   1 a task        request 1 is answered by a call that writes hello.txt; request 2 brings the result
//   2 a follow-up   in the same session, by a new process of the agent
//   3 another one   after a SIGTERM and a start of kvasir on the same cache directory
//
// Checked: the file is there; no request was refused; each request after a conversation's first took at least 90 % of the
// prompt before it from the cache, and in 3 from disk. What went over the wire is kept under build/agents/AGENT/wire.
//
// aider has no tools and one request a turn: the file is a part of its answer. Where an agent changes what it sent before,
// 90 % are of what a prompt has in common with the one before it.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import { root, smollm2, startServer } from '../http-node/server.mjs';
import { drivers } from './drivers.mjs';
import { record } from './recorder.mjs';

const installed = path.join(root, 'build', 'agents');
const template = path.join(root, 'build', 'engine', 'source', 'models', 'templates', 'Qwen-Qwen3-0.6B.jinja');
const chosen = process.env.KVASIR_AGENTS ? process.env.KVASIR_AGENTS.split(',') : Object.keys(drivers);
const kind = process.env.KVASIR_AGENTS_MEMORY ?? 'full';
const TASK = 'Create hello.txt with the word hello', FOLLOW_UP = 'Is it a greeting?', LAST = 'In which language?';
const AGENT_MS = 180_000; // a hung agent is a failure, not a hung test

// as the template writes it, with blanks behind commas and colons
const spaced = (value) => (typeof value === 'object'
  ? `{${Object.entries(value).map(([k, v]) => `${JSON.stringify(k)}: ${spaced(v)}`).join(', ')}}` : JSON.stringify(value));

/** Rules of --test-script; the last one is for what agents ask beside the conversation, a title for instance. */
const script = (driver, file) => [
  {
    role: 'user', last: TASK, prompt: driver.mark ?? '<tools>',
    answer: driver.answer?.(file, 'hello') ?? `<tool_call>\n${spaced(driver.call(file, 'hello'))}\n</tool_call>`,
  },
  { role: 'tool', answer: 'The file is written.' },
  { last: FOLLOW_UP, answer: 'Yes, it is one.' },
  { last: LAST, answer: 'In English.' },
  { answer: 'Nothing to add.' },
];

class Run {
  constructor(name) {
    this.name = name;
    this.driver = drivers[name];
    this.dir = mkdtempSync(path.join(os.tmpdir(), `kvasir-agent-${name}-`));
    for (const folder of ['home', 'work']) mkdirSync(this[folder] = path.join(this.dir, folder));
    this.file = path.join(this.work, 'hello.txt');
    this.script = path.join(this.dir, 'script.json');
    writeFileSync(this.script, JSON.stringify(script(this.driver, this.file)));
    spawnSync('git', ['init', '--quiet', this.work]);
    this.wire = path.join(installed, name, 'wire');
    rmSync(this.wire, { recursive: true, force: true });
    this.turns = [];
    this.seen = 0;
  }

  async start() {
    this.server = await startServer({
      args: ['-m', smollm2, '--test-fake', kind, '--test-sampler', '--test-script', this.script, '--chat-template-file', template,
        '-c', '65536', '-np', '2', '-kvu', '--cache-dir', path.join(this.dir, 'cache')],
    });
    if (this.recorder) return this.recorder.to(this.server.url);
    this.recorder = await record(this.server.url, this.wire);
    this.driver.configure?.({ url: this.recorder.url, home: this.home, work: this.work });
  }

  /** Runs the agent to its end; gives what it printed. */
  async agent([program, ...args]) {
    const env = {
      PATH: process.env.PATH, LANG: 'C.UTF-8', TERM: 'dumb', HOME: this.home, NO_COLOR: '1', CI: '1', ...this.driver.env?.(this.recorder.url),
    };
    const bin = ['node_modules/.bin', 'bin'].map((folder) => path.join(installed, this.name, folder, program)).find(existsSync);
    const child = spawn(bin, args, {
      cwd: this.work, env, stdio: ['ignore', 'pipe', 'pipe'], timeout: AGENT_MS, killSignal: 'SIGKILL',
    });
    let text = '';
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (part) => { text += part; });
    const [code, signal] = await new Promise((resolve, reject) => {
      child.on('error', reject);
      child.on('close', (...ended) => resolve(ended));
    });
    assert.equal(code, 0, `${program} ended with ${signal ?? code}:\n${text}\nkvasir:\n${this.server.log()}`);
    await this.note(text);
    return text;
  }

  /** The agent's requests since the last time, as kvasir logged them. What has no tools is no conversation; other tools
   * are another one (a subagent that looks for something to remember). */
  async note(text) {
    const fresh = this.recorder.requests.slice(this.seen);
    this.seen += fresh.length;
    for (const { id, path: where, body, status } of fresh) {
      const about = `${where} (${id} in ${this.wire}); the agent said:\n${text}`;
      const mark = this.driver.mark;
      assert.ok(status < 400, `${status} to ${about}`); // 0: the agent did not wait for it
      if (!body || !(mark ? JSON.stringify(body).includes(mark) : body.tools) || where.includes('count_tokens')) continue;
      assert.equal(status, 200, `${status} to ${about}`);
      const line = await this.server.until((lines) => lines.find((l) => l.includes(` ${id} `)), `the line of ${id}`);
      const found = /prompt (\d+) \(cached (\d+): engine (\d+), ram (\d+), disk (\d+)/.exec(line);
      assert.ok(found, `no tokens are told of ${about}\n${line}`);
      const [prompt, cached, engine, ram, disk] = found.slice(1).map(Number);
      const before = this.turns.findLast((turn) => isDeepStrictEqual(turn.body.tools, body.tools));
      const shared = !before ? 0 : this.driver.rewrites ? await this.shared(before.body, body) : Math.min(before.prompt, prompt);
      this.turns.push({ id, prompt, cached, engine, ram, disk, body, shared });
    }
  }

  /** How many tokens two chat bodies begin with in common, as this server renders them. */
  async shared(...bodies) {
    const [a, b] = await Promise.all(bodies.map(async (body) => {
      const { prompt } = await this.ask('/apply-template', body);
      return (await this.ask('/tokenize', { content: prompt, add_special: true })).tokens;
    }));
    const parted = a.findIndex((token, i) => token !== b[i]);
    return parted < 0 ? a.length : parted;
  }

  async ask(where, body) {
    const response = await fetch(this.server.url + where, { method: 'POST', body: JSON.stringify(body) });
    assert.equal(response.status, 200, where);
    return response.json();
  }

  /** The turns from index `from` on, some of which go on with a conversation, read what was there of it from `where`. */
  assertCached(from, where) {
    const going = this.turns.slice(from).filter((turn) => turn.shared > 0);
    assert.ok(going.length > 0, `no conversation went on: ${this.told()}`);
    for (const turn of going) {
      assert.ok(turn[where] >= 0.9 * turn.shared, `${turn.id}: ${turn[where]} of ${turn.shared} tokens from ${where}: ${this.told()}`);
    }
  }

  /** "0 of 9208; 9270 of 9335": cached tokens and prompt of each turn of the first conversation. */
  told() {
    const main = this.turns.filter((turn) => isDeepStrictEqual(turn.body.tools, this.turns[0].body.tools));
    const common = (t) => (this.driver.rewrites && t.shared ? `, ${t.shared} in common with the one before` : '');
    return main.map((t) => `${t.cached} of ${t.prompt}${t.disk > 0 ? ` (${t.disk} from disk)` : ''}${common(t)}`).join('; ');
  }

  async stop() {
    await this.recorder?.stop();
    await this.server?.stop();
    rmSync(this.dir, { recursive: true, force: true });
  }
}

for (const name of chosen) {
  describe(name, () => {
    let run;
    const version = readFileSync(path.join(installed, name, 'installed'), 'utf8').trim();
    before(async () => {
      run = new Run(name);
      await run.start();
    });
    after(async () => {
      await run.stop();
      console.log(`| ${version} | ${drivers[name].api} | ${run.told()} |`);
    });

    it('does a task with its own tool', async () => {
      await run.agent(drivers[name].first(TASK));
      assert.equal(readFileSync(run.file, 'utf8').trim(), 'hello');
      assert.ok(run.recorder.requests.some((r) => r.path.startsWith(drivers[name].route)), JSON.stringify(run.recorder.requests.map((r) => r.path)));
      if (drivers[name].call) run.assertCached(1, 'cached');
      else assert.equal(run.turns.length, 1);
    });

    it('goes on in the session, from the cache', async () => {
      const n = run.turns.length;
      assert.match(await run.agent(drivers[name].more(FOLLOW_UP)), /Yes, it is one\./);
      run.assertCached(n, 'cached');
    });

    it('goes on after a restart of kvasir, from disk', async () => {
      const n = run.turns.length;
      await run.server.stop();
      await run.start();
      assert.match(await run.agent(drivers[name].more(LAST)), /In English\./);
      run.assertCached(n, 'disk');
    });
  });
}
