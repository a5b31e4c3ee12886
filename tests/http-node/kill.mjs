// What kill tests share: a server on a cache directory under load from several clients, a SIGKILL, and what must hold after
// it. Used by kill.test.mjs (a few kills) and tests/kill/kill.mjs (as many as one likes).
//
//   fill ─► queue_bytes 0 seen: what is answered by now is on disk ─► more load ─► SIGKILL at a random instant
//     ▲                                                                               │
//     └── conversations go on, as a cold server would ◄── restart ◄── verify, no damage ┘
import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { model, random, runKvasir, startServer } from './server.mjs';

export const kinds = ['llama', 'gemma3', 'lfm2', 'mamba2'];
const CLIENTS = 3, TALKS = 3, LONGEST = 1800; // tokens, which on tiny models are bytes

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export function tiny(kind) {
  return model(path.join('tiny', `${kind}.gguf`));
}

/** A conversation as one text that grows; `safe`: the prompt { text, tokens } that is known to be on disk. */
class Talk {
  constructor(rnd) {
    this.rnd = rnd;
    this.begin();
  }

  begin() {
    this.text = '';
    this.safe = null;
    this.generation = (this.generation ?? 0) + 1;
    this.say(200 + this.rnd(600));
  }

  /** What a user adds: letters of no meaning. */
  say(bytes) {
    for (let i = 0; i < bytes; i++) this.text += String.fromCharCode(97 + this.rnd(26));
  }
}

export class Killed {
  /** kind: of tiny models. reference(text) gives a cold server's answer to a text. */
  constructor(kind, seed) {
    this.kind = kind;
    this.rnd = random(seed);
    this.dir = mkdtempSync(path.join(os.tmpdir(), `kvasir-kill-${kind}-`));
    this.talks = Array.from({ length: TALKS }, () => new Talk(this.rnd));
    this.resumed = 0; // tokens from disk, over all rounds
    this.checked = 0;
  }

  args(...more) {
    return ['-m', tiny(this.kind), '-c', '8192', '-np', '2', '-kvu', '-fa', 'off', '-ub', '256', '-t', '1', '-tb', '1', '--temp', '0',
      '--cache-dir', this.dir, '--cache-disk', '256M', '--cache-ram', '1', ...more];
  }

  async start(until = 'ready') {
    this.server = await startServer({ args: this.args(), until });
  }

  async complete(text, { n = 4, signal, stream = false, url = this.server.url } = {}) {
    const response = await fetch(`${url}/completion`, {
      method: 'POST', signal, body: JSON.stringify({ prompt: text, n_predict: n, temperature: 0, stream, ignore_eos: true }),
    });
    assert.equal(response.status, 200);
    if (!stream) return response.json();
    let rest = '';
    const decoder = new TextDecoder();
    for await (const part of response.body) rest += decoder.decode(part, { stream: true });
    return rest;
  }

  /** One turn: the answer and more become part of the text. Gives the prompt's tokens. */
  async turn(talk) {
    const { text, generation } = talk;
    const answer = await this.complete(text);
    if (talk.generation !== generation) return 0;
    talk.text = text + answer.content.replace(/[^\x20-\x7e]/g, '');
    talk.say(20 + this.rnd(200));
    if (talk.text.length > LONGEST) talk.begin();
    return answer.tokens_evaluated;
  }

  /** Clients that talk, stream and hang up, until `done()`. Errors are fine once the server is gone. */
  load(done) {
    const client = async (i) => {
      while (!done()) {
        const kind = this.rnd(4);
        try {
          if (kind === 0) await this.complete(this.talks[this.rnd(TALKS)].text, { n: 20, stream: true });
          else if (kind === 1) await this.complete(`hang up ${this.rnd(1e9)} `.repeat(60), { n: 400, signal: AbortSignal.timeout(1 + this.rnd(60)) });
          else await this.turn(this.talks[i % TALKS]);
        } catch (error) {
          if (error.code === 'ERR_ASSERTION') throw error;
          if (error.name !== 'TimeoutError' && this.server.exit) return;
        }
      }
    };
    return Promise.all(Array.from({ length: CLIENTS }, (_, i) => client(i)));
  }

  /** Every conversation gets a turn, then all that was captured is on disk. */
  async settle() {
    const sent = [];
    for (const talk of this.talks) sent.push({ text: talk.text, tokens: await this.turn(talk) });
    await this.onDisk();
    this.talks.forEach((talk, i) => { talk.safe = sent[i]; });
  }

  async onDisk() {
    for (;;) {
      const state = await (await fetch(`${this.server.url}/kvasir/cache`)).json();
      if (state.queue_bytes === 0) return state;
      await pause(2);
    }
  }

  /** A SIGKILL somewhere in the next moments: under load, or while the server starts. */
  async kill() {
    if (this.rnd(4) === 0) {
      await this.server.stop('SIGKILL');
      await this.start('listening');
      await pause(this.rnd(250));
    } else {
      let over = false;
      const clients = this.load(() => over);
      await pause(this.rnd(400));
      over = true;
      await this.server.stop('SIGKILL');
      await clients;
      return;
    }
    await this.server.stop('SIGKILL');
  }

  /** After a kill: nothing is damaged, nothing is left behind, conversations go on as if nothing had been. */
  async check(reference) {
    const verify = await runKvasir(['cache', 'verify', '--cache-dir', this.dir, '--json']);
    assert.equal(verify.code, 0, verify.stdout + verify.stderr);
    assert.equal(JSON.parse(verify.stdout).damaged, 0, verify.stdout);
    await this.start();
    const left = readdirSync(path.join(this.dir, 'tmp')).filter((name) => name.endsWith('.tmp'));
    assert.deepEqual(left, [], 'files of the killed process stay in tmp/');
    const quarantine = path.join(this.dir, 'quarantine');
    assert.deepEqual(existsSync(quarantine) ? readdirSync(quarantine) : [], []);
    for (const talk of this.talks) {
      const { text, safe } = talk;
      if (safe) {
        const again = (await this.complete(safe.text, { n: 1 })).kvasir.cached;
        assert.ok(again.disk + again.ram + again.engine >= safe.tokens - 1,
          `${this.kind}: of ${safe.tokens} tokens on disk came back: ${JSON.stringify(again)}`);
        this.resumed += again.disk;
        this.checked++;
      }
      const answer = await this.complete(text, { n: 4 });
      const expected = await reference(text);
      assert.equal(answer.content, expected, `${this.kind}: the answer is another than a cold server's`);
    }
  }

  async end() {
    await this.server?.stop('SIGKILL');
    rmSync(this.dir, { recursive: true, force: true });
  }
}

/** A server without any cache, whose answers are those of a cold run; `ask(text)`. */
export async function coldServer(kind) {
  const server = await startServer({
    args: ['-m', tiny(kind), '-c', '8192', '-np', '1', '-fa', 'off', '-ub', '256', '-t', '1', '-tb', '1', '--temp', '0', '--cache-ram', '0'] });
  const ask = async (text) => {
    const response = await fetch(`${server.url}/completion`, {
      method: 'POST',
      body: JSON.stringify({ prompt: text, n_predict: 4, temperature: 0, cache_prompt: false, ignore_eos: true }) });
    return (await response.json()).content;
  };
  return { ask, stop: () => server.stop() };
}

/** `kills` kills of one kind of model. Prints nothing; throws what does not hold. */
export async function killMany(kind, kills, seed, told = () => {}) {
  const killed = new Killed(kind, seed), cold = await coldServer(kind);
  try {
    await killed.start();
    for (let i = 0; i < kills; i++) {
      await killed.settle();
      await killed.kill();
      await killed.check(cold.ask);
      told(i + 1);
    }
    return killed;
  } finally {
    await killed.end();
    await cold.stop();
  }
}
