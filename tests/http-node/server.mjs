// Starting and stopping a kvasir for tests and benchmarks.
//
//   const server = await startServer({ args: modelArgs() });   // any free port
//   await fetch(`${server.url}/health`);
//   await server.stop();                                       // SIGTERM; gives the exit status
//
// Which program: KVASIR_BIN, else build/kvasir. With KVASIR_TEST_FAKE set (the thread sanitizer's run), modelArgs()
// names the fake engine, and tests that need a real model's text skip themselves with `realModel`.
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..');
export const binary = path.resolve(root, process.env.KVASIR_BIN ?? 'build/kvasir');
export const fake = process.env.KVASIR_TEST_FAKE ?? '';

/** The path of a file of build/models, which `make test` fills. */
export function model(name) {
  return path.join(root, 'build', 'models', name);
}

export const smollm2 = model('SmolLM2-135M-Instruct.Q4_1.gguf');

/** For `{ skip: … }` of tests that read a real model's words: false, or the reason why they cannot run. */
export const noRealModel = fake
  ? 'the fake engine has no words (KVASIR_TEST_FAKE)'
  : existsSync(smollm2) ? false : 'SmolLM2 is not in build/models (scripts/fetch-models.sh)';

/** Arguments that name a model: SmolLM2, or the fake engine. */
export function modelArgs(...more) {
  if (fake) return ['--test-fake', fake, ...more];
  return ['-m', smollm2, ...more];
}

/** A random number generator that a seed repeats: random(seed)(n) is an integer in [0, n). */
export function random(seed) {
  let state = seed >>> 0;
  return (n) => { // mulberry32
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return Math.floor(((t ^ (t >>> 14)) >>> 0) / 0x100000000 * n);
  };
}

const running = new Set();
process.on('exit', () => {
  for (const child of running) child.kill('SIGKILL');
});

const MAX_LOG = 2000; // lines kept for a failure's message

class Server {
  constructor(child) {
    this.child = child;
    this.url = '';
    this.port = 0;
    this.lines = [];
    this.waiting = [];
    this.holds = 0;
    this.exited = new Promise((resolve) => {
      child.on('exit', (code, signal) => {
        running.delete(child);
        this.exit = { code, signal };
        for (const wake of this.waiting.splice(0)) wake();
        resolve(this.exit);
      });
      child.on('error', (error) => {
        running.delete(child);
        this.exit = { code: null, signal: null, error };
        for (const wake of this.waiting.splice(0)) wake();
        resolve(this.exit);
      });
    });
    let rest = '';
    child.stderr.setEncoding('utf8');
    child.stderr.on('data', (text) => {
      const lines = (rest + text).split('\n');
      rest = lines.pop();
      this.lines.push(...lines);
      if (this.lines.length > MAX_LOG) this.lines.splice(0, this.lines.length - MAX_LOG);
      for (const wake of this.waiting.splice(0)) wake();
    });
    this.letGo();
  }

  get pid() {
    return this.child.pid;
  }

  /** Waits for `promise`, which the process alone can settle. At other times it does not keep node alive: a test that
   * failed before its stop() must not hold the run, and `exit` above kills what it left. */
  async whileAlive(promise) {
    if (this.holds++ === 0) for (const handle of [this.child, this.child.stderr]) handle.ref();
    try {
      return await promise;
    } finally {
      if (--this.holds === 0) this.letGo();
    }
  }

  letGo() {
    for (const handle of [this.child, this.child.stderr]) handle.unref();
  }

  /** What the process wrote to stderr, the last MAX_LOG lines. */
  log() {
    return this.lines.join('\n');
  }

  /** Resolves when the process writes a line or ends. */
  output() {
    return this.whileAlive(new Promise((resolve) => this.waiting.push(resolve)));
  }

  /** Waits until `test(lines)` gives something true; asked again at each line of output, or when the process ends. */
  async until(test, what) {
    const limit = AbortSignal.timeout(300_000);
    const expired = new Promise((resolve) => limit.addEventListener('abort', resolve, { once: true }));
    for (;;) {
      const found = await test(this.lines);
      if (found) return found;
      if (this.exit) throw new Error(`kvasir ended ${JSON.stringify(this.exit)} before ${what}:\n${this.log()}`);
      if (limit.aborted) throw new Error(`kvasir did not reach ${what} in 300 s:\n${this.log()}`);
      await Promise.race([this.output(), expired]);
    }
  }

  /** Waits for the log line that says so, then for /health to agree. */
  async ready() {
    await this.until((lines) => lines.some((l) => /\bready after\b/.test(l)), 'ready');
    if (!this.url.startsWith('http:')) return; // fetch reaches neither a UNIX socket nor a certificate of our own
    const health = await fetch(`${this.url}/health`);
    if (health.status !== 200) throw new Error(`kvasir says that it is ready, but /health gives ${health.status}:\n${this.log()}`);
    await health.arrayBuffer();
  }

  /** Waits for the end of the process. Gives { code, signal }. */
  ended() {
    return this.whileAlive(this.exited);
  }

  /** Ends the process with `signal` and waits for it. Gives { code, signal }; after a SIGTERM anything but a clean end
   * (a leak that a sanitizer found at the end, say) is an error. */
  async stop(signal = 'SIGTERM') {
    if (!this.exit) this.child.kill(signal);
    const exit = await this.ended();
    if (signal === 'SIGTERM' && exit.code !== 0) throw new Error(`kvasir ended ${JSON.stringify(exit)}:\n${this.log()}`);
    return exit;
  }
}

/**
 * Starts `kvasir serve ARGS --port PORT` (0: any free one) and waits for it.
 * args: options without `serve` and `--port`, none that silences the log on stderr. env: added to the environment.
 * until: 'ready' (default) or 'listening' (the port is open, the model may still load; then server.ready() waits).
 * binary: another program than KVASIR_BIN. user: { uid, gid } to run as.
 */
export async function startServer({ args, env = {}, until = 'ready', binary: program = binary, cwd, user = {}, port = 0 } = {}) {
  const child = spawn(program, ['serve', ...args, '--port', String(port)], {
    cwd,
    ...user,
    // Nothing of a test lands in the user's cache directory; who wants a disk names one.
    env: { ...process.env, ...(args.includes('--cache-dir') ? {} : { KVASIR_CACHE_DISK: '0' }), ...env },
    stdio: ['ignore', 'inherit', 'pipe'],
  });
  running.add(child);
  const server = new Server(child);
  try {
    const found = await server.until(
      (lines) => lines.map((l) => /listening on (https?:\/\/(?:\[[^\]]*\]|[^\s:\/]+):(\d+)(?:\/\S*)?|unix:\S+)/.exec(l)).find(Boolean), 'listening');
    server.port = Number(found[2]);
    server.url = found[1];
    if (until === 'ready') await server.ready();
  } catch (error) {
    await server.stop('SIGKILL');
    throw error;
  }
  return server;
}

/** Runs the program to its end; gives { code, signal, stdout, stderr }. For --help, --check, wrong options. */
export async function runKvasir(args, { env = {}, input } = {}) {
  const child = spawn(binary, args, { env: { ...process.env, ...env }, stdio: ['pipe', 'pipe', 'pipe'] });
  running.add(child);
  const text = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr']) {
    child[name].setEncoding('utf8');
    child[name].on('data', (part) => { text[name] += part; });
  }
  child.stdin.on('error', () => {}); // it may end without reading
  child.stdin.end(input ?? '');
  const [code, signal] = await new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (...ended) => resolve(ended));
  });
  running.delete(child);
  return { code, signal, ...text };
}
