// Where kvasir listens: several addresses, UNIX sockets, any free port, a path in front, HTTPS.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import tls from 'node:tls';
import { after, before, describe, it } from 'node:test';
import { runKvasir, startServer } from './server.mjs';

const folder = mkdtempSync(path.join(os.tmpdir(), 'kvasir-listen-'));
after(() => rmSync(folder, { recursive: true, force: true }));
const at = (name) => path.join(folder, name);
const args = (...more) => ['--test-fake', 'full', '-c', '4096', ...more];
const start = (...more) => startServer({ args: args(...more) });
const noV6 = Object.values(os.networkInterfaces()).flat().some((i) => i.address === '::1') ? false : 'this machine has no ::1';
const oneLoopback = process.platform === 'linux' ? false : 'only Linux has all of 127.0.0.0/8';

/** One request; gives { status, headers, text }. `where`: options of http.request (socketPath, or host and port). */
function ask(where, url, { body, module = http, method = body === undefined ? 'GET' : 'POST', onData, ...more } = {}) {
  return new Promise((resolve, reject) => {
    const request = module.request({ agent: false, ...where, ...more, path: url, method }, (response) => {
      let text = '';
      response.setEncoding('utf8');
      response.on('data', (part) => {
        text += part;
        onData?.(request, text);
      });
      response.on('error', reject);
      response.on('end', () => resolve({ status: response.statusCode, headers: response.headers, text }));
    });
    request.on('error', reject);
    request.end(body === undefined ? undefined : JSON.stringify(body));
  });
}

const addresses = (server) => server.lines.map((l) => /listening on (\S+)/.exec(l)?.[1]).filter(Boolean);
const chat = { prompt: [1, 2, 3, 4], n_predict: 8, ignore_eos: true };

/** Waits until no slot works. */
async function idle(where, more = {}) {
  for (;;) {
    const slots = JSON.parse((await ask(where, '/slots', more)).text);
    if (slots.every((s) => !s.is_processing)) return;
  }
}

async function rejectsStart(argv, told) {
  const { code, stderr } = await runKvasir(['serve', ...args(...argv)]);
  assert.notEqual(code, 0, stderr);
  assert.match(stderr, told);
}

describe('addresses', () => {
  it('listens on all of a list, at one port', { skip: oneLoopback }, async () => {
    const server = await start('--host', '127.0.0.1,127.0.0.3');
    assert.deepEqual(addresses(server), [`http://127.0.0.1:${server.port}`, `http://127.0.0.3:${server.port}`]);
    for (const host of ['127.0.0.1', '127.0.0.3']) assert.equal((await ask({ host, port: server.port }, '/health')).status, 200);
    await assert.rejects(ask({ host: '127.0.0.2', port: server.port }, '/health'), { code: 'ECONNREFUSED' });
    await server.stop();
  });

  it('listens on repeated hosts, of both families', { skip: noV6 }, async () => {
    const server = await start('--host', '::1', '--host', '127.0.0.1');
    for (const host of ['127.0.0.1', '::1']) {
      const { status, text } = await ask({ host, port: server.port }, '/completion', { body: chat });
      assert.equal(status, 200, text);
    }
    await server.stop();
  });

  it('takes :: for IPv6 alone beside 0.0.0.0', { skip: noV6 }, async () => {
    const server = await start('--host', '0.0.0.0,::', '--no-auth');
    for (const host of ['127.0.0.1', '::1']) assert.equal((await ask({ host, port: server.port }, '/health')).status, 200);
    await server.stop();
  });

  it('gives each server of --port 0 its own port, and a taken one is told', async () => {
    const [a, b] = await Promise.all([start(), start()]);
    assert.notEqual(a.port, b.port);
    // a socket that was made before the address that fails is not left behind
    await rejectsStart(['--host', `${at('left.sock')},127.0.0.1`, '--port', String(a.port)], /another program has it; choose another with --port/);
    assert.equal(existsSync(at('left.sock')), false);
    await Promise.all([a.stop(), b.stop()]);
  });

  it('shares a port with --reuse-port', async () => {
    const first = await start('--reuse-port');
    const second = await startServer({ args: args('--reuse-port'), port: first.port });
    assert.equal(second.port, first.port);
    await Promise.all([first.stop(), second.stop()]);
  });

  it('refuses an outside address without a key, wherever it stands in the list', async () => {
    await rejectsStart(['--host', '127.0.0.1,0.0.0.0'], /--host 0\.0\.0\.0 can be reached/);
  });
});

describe('UNIX sockets', () => {
  it('serves on one alone, only for its owner, and removes it', async () => {
    const socketPath = at('alone.sock');
    const server = await start('--host', socketPath);
    assert.deepEqual(addresses(server), [`unix:${socketPath}`]);
    assert.equal(statSync(socketPath).mode & 0o7777, 0o600);
    assert.equal((await ask({ socketPath }, '/health')).status, 200);
    const { status, text } = await ask({ socketPath }, '/completion', { body: { ...chat, stream: true } });
    assert.equal(status, 200);
    assert.match(text, /"stop":true/);
    const { code, stdout, stderr } = await runKvasir(['status', '--url', `unix:${socketPath}`]); // who may connect is an admin
    assert.equal(code, 0, stderr);
    assert.match(stdout, /cache/);
    await server.stop();
    assert.equal(existsSync(socketPath), false);
  });

  it('serves on TCP beside it, and sees a hang-up on it', async () => {
    const socketPath = at('beside.sock');
    const server = await start('--host', `127.0.0.1,${socketPath}`);
    const long = { prompt: [1, 2, 3], n_predict: 4000, ignore_eos: true, stream: true };
    await assert.rejects(ask({ socketPath }, '/completion', { body: long, onData: (request) => request.destroy() }));
    await idle({ host: '127.0.0.1', port: server.port });
    await server.stop();
    assert.equal(existsSync(socketPath), false);
  });

  it('takes over a socket that a killed server left, and only that', async () => {
    const socketPath = at('stale.sock');
    const killed = await start('--host', socketPath);
    await rejectsStart(['--host', socketPath], /another program listens there/);
    assert.equal((await ask({ socketPath }, '/health')).status, 200); // the running one was left alone
    await killed.stop('SIGKILL');
    assert.equal(existsSync(socketPath), true);
    const next = await start('--host', socketPath);
    assert.equal((await ask({ socketPath }, '/health')).status, 200);
    await next.stop();
    writeFileSync(socketPath, 'mine');
    await rejectsStart(['--host', socketPath], /a file that is no socket is there/);
    assert.equal(readFileSync(socketPath, 'utf8'), 'mine');
  });

  it('does not remove what another program put there meanwhile', async () => {
    const socketPath = at('replaced.sock');
    const server = await start('--host', socketPath);
    rmSync(socketPath);
    const other = net.createServer();
    await new Promise((resolve) => other.listen(socketPath, resolve));
    await server.stop();
    assert.equal(existsSync(socketPath), true);
    await new Promise((resolve) => other.close(resolve));
  });

  it('says how long a path may be, and where none can be made', async () => {
    await rejectsStart(['--host', at(`${'x'.repeat(200)}.sock`)], /at most \d+ bytes, this one has \d+/);
    await rejectsStart(['--host', at('no/such/folder.sock')], /listen on .*folder\.sock/);
  });
});

describe('--api-prefix', () => {
  it('puts a path in front of every route', async () => {
    const server = await start('--api-prefix', '/llm');
    const where = { host: '127.0.0.1', port: server.port };
    await server.until(async () => (await ask(where, '/llm/health')).status === 200, 'health below the prefix');
    assert.equal((await ask(where, '/llm/v1/models')).status, 200);
    assert.equal((await ask(where, '/llm/completion', { body: chat })).status, 200);
    assert.equal((await ask(where, '/v1/models')).status, 404);
    assert.deepEqual(addresses(server), [`http://127.0.0.1:${server.port}/llm`]);
    await server.stop();
  });
});

describe('HTTPS', () => {
  const pem = (name) => at(`${name}.pem`);
  let server, where;

  /** A key and its certificate, signed by itself. */
  function certificate(name) {
    execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2',
      '-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1',
      '-keyout', pem(`${name}-key`), '-out', pem(name)], { stdio: 'pipe' });
  }

  before(async () => {
    certificate('one');
    certificate('two');
    server = await start('--ssl-key-file', pem('one-key'), '--ssl-cert-file', pem('one'), '--host', `127.0.0.1,${at('tls.sock')}`, '--max-body', '4');
    where = { host: '127.0.0.1', port: server.port, module: https, ca: readFileSync(pem('one')) };
  });
  after(() => server?.stop());

  const askTls = (url, more = {}) => ask({ host: where.host, port: where.port, ca: where.ca }, url, { module: https, ...more });

  it('answers over TLS, and over the UNIX socket without', async () => {
    assert.equal(addresses(server)[0], `https://127.0.0.1:${server.port}`);
    const { status, text } = await askTls('/completion', { body: chat });
    assert.equal(status, 200, text);
    assert.equal((await ask({ socketPath: at('tls.sock') }, '/health')).status, 200);
  });

  it('streams, takes large bodies, and sees a hang-up', async () => {
    const { text } = await askTls('/completion', { body: { ...chat, n_predict: 50, stream: true } });
    assert.ok(text.split('\n\n').length > 40, text);
    const body = { content: 'x'.repeat(3 << 20) };
    assert.notEqual((await askTls('/tokenize', { body })).status, 413);
    const long = { prompt: [1, 2, 3], n_predict: 4000, ignore_eos: true, stream: true };
    await assert.rejects(askTls('/completion', { body: long, onData: (request) => request.destroy() }));
    await idle({ host: where.host, port: where.port, ca: where.ca }, { module: https });
  });

  it('sends nothing readable where a body is too large', async () => {
    let raw = ''; // what the server sends, below TLS
    const between = net.createServer((client) => {
      const upstream = net.connect(where.port, where.host);
      upstream.on('data', (data) => { raw += data.toString('latin1'); });
      for (const [from, to] of [[client, upstream], [upstream, client]]) {
        from.pipe(to);
        from.on('error', () => to.destroy());
      }
    });
    await new Promise((resolve) => between.listen(0, '127.0.0.1', resolve));
    const secure = tls.connect({ port: between.address().port, host: '127.0.0.1', ca: where.ca });
    secure.on('error', () => {});
    secure.on('secureConnect', () => {
      secure.write('POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n');
      for (let i = 0; i < 40; i++) secure.write(`20000\r\n${'x'.repeat(0x20000)}\r\n`);
    });
    await new Promise((resolve) => secure.on('close', resolve));
    between.close();
    assert.ok(raw.length > 500, 'the handshake went through here');
    assert.ok(!raw.includes('HTTP/1.1'), raw.slice(-400));
    assert.equal((await askTls('/health')).status, 200);
  });

  it('serves many at once', async () => {
    const all = await Promise.all(Array.from({ length: 20 }, () => askTls('/completion', { body: chat })));
    for (const { status } of all) assert.equal(status, 200);
  });

  it('has no ear for plain HTTP, and no client for a wrong name', async () => {
    await assert.rejects(ask({ host: where.host, port: where.port }, '/health'));
    await assert.rejects(ask({ host: where.host, port: where.port, ca: readFileSync(pem('two')) }, '/health', { module: https }));
    assert.equal((await askTls('/health')).status, 200);
  });

  it('says what is wrong with the files', async () => {
    await rejectsStart(['--ssl-key-file', pem('one-key')], /--ssl-cert-file is missing/);
    await rejectsStart(['--ssl-cert-file', pem('one')], /--ssl-key-file is missing/);
    await rejectsStart(['--ssl-key-file', at('none.pem'), '--ssl-cert-file', pem('one')], /--ssl-key-file: .*none\.pem/);
    await rejectsStart(['--ssl-key-file', pem('two-key'), '--ssl-cert-file', pem('one')], /HTTPS cannot be served with this/);
    writeFileSync(at('bad.pem'), 'no key');
    await rejectsStart(['--ssl-key-file', at('bad.pem'), '--ssl-cert-file', pem('one')], /HTTPS cannot be served with this/);
  });
});
