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
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
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
const script = ({ name, arguments: args }) => [
  { role: 'user', last: TASK, prompt: '<tools>', answer: `<tool_call>\n${spaced({ name, arguments: args })}\n</tool_call>` },
  { role: 'tool', answer: 'The file is written.' },
  { last: FOLLOW_UP, answer: 'Yes, it is one.' },
  { last: LAST, answer: 'In English.' },
  { answer: 'Nothing to add.' },
];

class Run {
  constructor(name) {
    this.driver = drivers[name];
    this.dir = mkdtempSync(path.join(os.tmpdir(), `kvasir-agent-${name}-`));
    for (const folder of ['home', 'work']) mkdirSync(this[folder] = path.join(this.dir, folder));
    this.file = path.join(this.work, 'hello.txt');
    this.script = path.join(this.dir, 'script.json');
    writeFileSync(this.script, JSON.stringify(script(this.driver.call(this.file, 'hello'))));
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
    const child = spawn(path.join(installed, program, 'node_modules', '.bin', program), args, {
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
      if (!body?.tools || where.includes('count_tokens')) continue;
      assert.equal(status, 200, `${status} to ${about}`);
      const line = await this.server.until((lines) => lines.find((l) => l.includes(` ${id} `)), `the line of ${id}`);
      const found = /prompt (\d+) \(cached (\d+): engine (\d+), ram (\d+), disk (\d+)/.exec(line);
      assert.ok(found, `no tokens are told of ${about}\n${line}`);
      const [prompt, cached, engine, ram, disk] = found.slice(1).map(Number);
      const before = this.turns.findLast((turn) => isDeepStrictEqual(turn.tools, body.tools));
      this.turns.push({ id, prompt, cached, engine, ram, disk, tools: body.tools, before });
    }
  }

  /** The turns from index `from` on, some of which go on with a conversation, read what was there of it from `where`. */
  assertCached(from, where) {
    const going = this.turns.slice(from).filter((turn) => turn.before);
    assert.ok(going.length > 0, `no conversation went on: ${this.told()}`);
    for (const turn of going) {
      const shared = Math.min(turn.before.prompt, turn.prompt);
      assert.ok(turn[where] >= 0.9 * shared, `${turn.id}: ${turn[where]} of ${shared} tokens from ${where}: ${this.told()}`);
    }
  }

  /** "0 of 9208, 9270 of 9335": cached tokens and prompt of each turn of the first conversation. */
  told() {
    const main = this.turns.filter((turn) => isDeepStrictEqual(turn.tools, this.turns[0].tools));
    return main.map((t) => `${t.cached} of ${t.prompt}${t.disk > 0 ? ` (${t.disk} from disk)` : ''}`).join(', ');
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
      assert.ok(run.turns.length >= 2, run.told());
      run.assertCached(1, 'cached');
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
