// What a service manager and logrotate see of a server: sd_notify's messages, the log file after SIGHUP, directories
// that are missing or cannot be written, another user.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, chownSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import readline from 'node:readline';
import { after, test } from 'node:test';
import { binary, fake, model, modelArgs, startServer } from './server.mjs';

const scratch = mkdtempSync(path.join(os.tmpdir(), 'kvasir-service-'));

// Small and real, so that starts are quick and the cache has state to keep; the fake engine where that is asked for.
const args = (...more) => (fake ? modelArgs(...more) : ['-m', model('tiny/llama.gguf'), '-c', '1024', '-t', '1', ...more]);

/** The manager's end of NOTIFY_SOCKET; node has no datagram sockets of this family. next() gives messages one by one. */
async function manager(name) {
  const child = spawn('python3', ['-c', `
import json, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
name = sys.argv[1]
s.bind("\\0" + name[1:] if name[0] == "@" else name)
print(json.dumps("bound"), flush=True)
while True:
    print(json.dumps(s.recv(4096).decode()), flush=True)
`, name], { stdio: ['ignore', 'pipe', 'inherit'] });
  const lines = readline.createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => JSON.parse((await lines.next()).value);
  assert.equal(await next(), 'bound');
  return {
    next,
    /** The first message that `wanted` is true of. */
    async until(wanted) {
      for (;;) {
        const message = await next();
        if (wanted(message)) return message;
      }
    },
    async close() {
      child.kill();
      await once(child, 'exit');
    },
  };
}

/** A server whose log is in a file, with the port given. */
async function startQuietly(more, env) {
  const child = spawn(binary, ['serve', ...more], { env: { ...process.env, KVASIR_CACHE_DISK: '0', ...env }, stdio: 'ignore' });
  await once(child, 'spawn');
  return child;
}

async function freePort() {
  const probe = net.createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address();
  probe.close();
  await once(probe, 'close');
  return port;
}

const complete = (server, body = {}) => fetch(`${server.url}/v1/completions`, {
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify({ prompt: 'The lighthouse keeper', max_tokens: 4, temperature: 0, ...body }),
});

for (const kind of process.platform === 'linux' ? ['path', 'abstract'] : ['path']) {
  test(`the service manager is told of start, reload, life and stop (${kind} socket)`, async () => {
    const name = kind === 'path' ? path.join(scratch, 'notify') : `@kvasir-test-${process.pid}`;
    const told = await manager(name);
    const server = await startServer({
      args: args('--alias', 'tiny'), until: 'listening', env: { NOTIFY_SOCKET: name, WATCHDOG_USEC: '400000' },
    });
    try {
      const before = [];
      const ready = await told.until((m) => before.push(m) && m.startsWith('READY=1'));
      assert.equal(ready, `READY=1\nSTATUS=serving tiny on ${server.url}`);
      assert.deepEqual(before.slice(0, -1).filter((m) => !/^STATUS=loading tiny: \d+ %$/.test(m)), []);
      assert.equal((await fetch(`${server.url}/health`)).status, 200, 'READY=1 means that requests are served');

      assert.equal(await told.next(), 'WATCHDOG=1');
      const answer = complete(server, { max_tokens: 400, ignore_eos: true }); // busy, and getting on
      for (let i = 0; i < 3; i++) assert.equal(await told.next(), 'WATCHDOG=1');
      assert.equal((await answer).status, 200);

      process.kill(server.pid, 'SIGHUP');
      const reloading = await told.until((m) => m !== 'WATCHDOG=1');
      const [, us] = /^RELOADING=1\nMONOTONIC_USEC=(\d+)$/.exec(reloading);
      assert.ok(Number(us) > 0);
      assert.match(await told.until((m) => m !== 'WATCHDOG=1'), /^READY=1\nSTATUS=serving tiny on /);
      await server.stop();
      assert.equal(await told.until((m) => m !== 'WATCHDOG=1'), 'STOPPING=1\nSTATUS=stopping');
    } finally {
      await server.stop('SIGKILL');
      await told.close();
    }
  });
}

test('a start that fails is told by its reason, never as ready', async () => {
  const name = path.join(scratch, 'notify-failed');
  const told = await manager(name);
  const bad = path.join(scratch, 'bad.gguf');
  writeFileSync(bad, 'this is no model');
  try {
    const server = await startServer({ args: ['-m', bad], until: 'listening', env: { NOTIFY_SOCKET: name } }).catch(() => null);
    const seen = [];
    const last = await told.until((m) => seen.push(m) && m.startsWith('STOPPING=1'));
    assert.match(last, /^STOPPING=1\nSTATUS=.*bad\.gguf/);
    assert.ok(!seen.some((m) => m.startsWith('READY=1')), seen.join());
    if (server) assert.equal((await server.ended()).code, 1);
  } finally {
    await told.close();
  }
});

test('a NOTIFY_SOCKET that cannot be used is a warning', async () => {
  const server = await startServer({ args: args(), env: { NOTIFY_SOCKET: 'vsock:2:1' } });
  try {
    assert.match(server.log(), /warning: the service manager is told nothing: NOTIFY_SOCKET=vsock:2:1/);
    await server.stop();
  } finally {
    await server.stop('SIGKILL');
  }
});

test('logrotate: the log file is opened anew on SIGHUP, and a directory that is gone loses no line', async () => {
  const dir = path.join(scratch, 'log');
  const file = path.join(dir, 'kvasir.log');
  const keys = path.join(scratch, 'keys');
  mkdirSync(dir);
  writeFileSync(keys, 'first-key\n', { mode: 0o600 });
  const name = path.join(scratch, 'notify-log');
  const told = await manager(name); // the log is in the file, so the manager is who tells that a reload is over
  const port = await freePort();
  const server = await startQuietly(args('--log-file', file, '--api-key-file', keys, '--port', String(port)), { NOTIFY_SOCKET: name });
  const asked = (id, key) => fetch(`http://127.0.0.1:${port}/v1/models`, { headers: { authorization: `Bearer ${key}` } });
  const reload = async () => {
    server.kill('SIGHUP');
    await told.until((m) => m.startsWith('RELOADING=1'));
    await told.until((m) => m.startsWith('READY=1'));
  };
  try {
    await told.until((m) => m.startsWith('READY=1'));
    const first = readFileSync(file, 'utf8');
    assert.match(first, /ready after/);
    renameSync(file, `${file}.1`);
    writeFileSync(keys, 'second-key\n', { mode: 0o600 });
    await reload();
    assert.match(readFileSync(file, 'utf8'), /^(?!.*ready after)[^]*SIGHUP: log file and keys are read anew/);
    assert.equal(readFileSync(`${file}.1`, 'utf8'), first, 'nothing more goes into the old one');
    assert.equal((await asked(1, 'first-key')).status, 401);
    assert.equal((await asked(2, 'second-key')).status, 200);

    const moved = path.join(scratch, 'log-moved');
    renameSync(dir, moved);
    await reload();
    assert.match(readFileSync(path.join(moved, 'kvasir.log'), 'utf8'), /SIGHUP: the log goes on where it was: log file: open /);
    mkdirSync(dir);
    await reload();
    assert.match(readFileSync(file, 'utf8'), /SIGHUP: log file and keys are read anew/);
  } finally {
    server.kill('SIGTERM');
    await once(server, 'exit');
    await told.close();
  }
  assert.match(readFileSync(file, 'utf8'), /stopped\n$/);
});

// As root the server runs as nobody, who may write nowhere in `closed`; as anybody else, the directory's mode does it.
const root = process.getuid() === 0;
const user = root ? { uid: 65534, gid: 65534 } : {};
const closed = path.join(scratch, 'closed');
mkdirSync(closed, { mode: 0o555 });
chmodSync(scratch, 0o755);
after(() => {
  chmodSync(closed, 0o755);
  rmSync(scratch, { recursive: true, force: true });
});
// Nothing of the tester's own directories.
const bare = { KVASIR_CACHE_DISK: '64M', HOME: undefined, XDG_CACHE_HOME: undefined, XDG_STATE_HOME: undefined,
  CACHE_DIRECTORY: undefined, STATE_DIRECTORY: undefined };

for (const [what, env, says] of [
  ['no HOME', {}, /warning: nothing is kept on disk: there is no home directory .*--cache-dir names a place/],
  ['a HOME that cannot be written', { HOME: closed }, /warning: nothing is kept on disk: make directory /],
  ['a HOME that is not there', { HOME: path.join(closed, 'gone') }, /warning: nothing is kept on disk: make directory /],
  ['a CACHE_DIRECTORY that cannot be written', { CACHE_DIRECTORY: closed, STATE_DIRECTORY: closed }, /warning: nothing is kept on disk: make directory /],
]) {
  test(`another user with ${what} has a server without a disk cache`, async () => {
    const server = await startServer({ args: args(), env: { ...bare, ...env }, user });
    try {
      assert.match(server.log(), says);
      assert.equal((await complete(server)).status, 200);
      await server.stop();
    } finally {
      await server.stop('SIGKILL');
    }
  });
}

test('CACHE_DIRECTORY and STATE_DIRECTORY, as systemd gives them, are where cache and settings go', async () => {
  const cache = path.join(scratch, 'made', 'cache', 'kvasir');
  const state = path.join(scratch, 'made', 'state', 'kvasir');
  for (const dir of [cache, state]) {
    mkdirSync(dir, { recursive: true, mode: 0o755 });
    if (root) chownSync(dir, user.uid, user.gid);
    chmodSync(dir, 0o700);
  }
  const env = { ...bare, HOME: closed, XDG_CACHE_HOME: closed, CACHE_DIRECTORY: cache, STATE_DIRECTORY: `${state}:/else` };
  const server = await startServer({ args: args(), env, user });
  try {
    assert.match(server.log(), new RegExp(`cache on disk: ${cache},`));
    assert.equal((await complete(server)).status, 200);
    await server.stop();
  } finally {
    await server.stop('SIGKILL');
  }
  assert.ok(readdirSync(cache).length > 0);
  if (!fake) assert.ok(readdirSync(state).length > 0, 'what was measured is remembered there');
});
