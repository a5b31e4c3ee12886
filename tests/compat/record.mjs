// Records how a llama-server answers requests.mjs:
//   node tests/compat/record.mjs LLAMA_SERVER > shapes.json         (all; the models must be in build/models)
//   node tests/compat/record.mjs LLAMA_SERVER NAME… < shapes.json   (only the named ones, put into what stdin holds)
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { model, root } from '../http-node/server.mjs';
import { requests, run, setups } from './requests.mjs';

const [program, ...names] = process.argv.slice(2);
if (!program) {
  console.error('usage: record.mjs LLAMA_SERVER [NAME…]');
  process.exit(2);
}
const places = {
  models: model('.'),
  templates: path.join(root, 'build/engine/source/models/templates'),
  scratch: mkdtempSync(path.join(tmpdir(), 'kvasir-record-')),
};

async function freePort() {
  const probe = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => probe.once('listening', resolve));
  const { port } = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

/** Starts the program and waits until its model is loaded. */
async function start(args) {
  const port = await freePort();
  const child = spawn(program, [...args, '--port', String(port)], { stdio: ['ignore', 'ignore', 'pipe'] });
  let log = '';
  await new Promise((resolve, reject) => {
    child.stderr.on('data', (part) => {
      log += part;
      if (/listening on http/.test(log)) resolve();
    });
    child.on('exit', (code) => reject(new Error(`${program} ended with ${code}:\n${log}`)));
  });
  return { child, url: `http://127.0.0.1:${port}` };
}

const out = names.length ? JSON.parse(readFileSync(0)) : {};
const wanted = requests.filter((r) => !names.length || names.includes(r.name));
for (const setup of Object.keys(setups).reverse()) {
  const mine = wanted.filter((r) => r.setup === setup);
  if (!mine.length) continue;
  const { child, url } = await start(setups[setup](places));
  try {
    for (const r of mine) {
      const began = Date.now();
      out[r.name] = await run(url, r);
      console.error(`${setup}: ${r.name}: ${out[r.name].status} in ${Date.now() - began} ms`);
    }
  } finally {
    child.kill('SIGKILL');
  }
}
rmSync(places.scratch, { recursive: true });
// In the order of the requests, without those that are gone.
process.stdout.write(`${JSON.stringify(Object.fromEntries(requests.map((r) => [r.name, out[r.name]])), null, 1)}\n`);
