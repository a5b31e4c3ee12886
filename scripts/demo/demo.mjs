// `make demo`, last step: starts kvasir on a free port with a cache directory of its own, asks over one document before
// and after a restart and a SIGKILL, goes on in a second conversation, prints what each step cost and where the rest came
// from, and leaves nothing running and nothing on disk.
// usage: node scripts/demo/demo.mjs MODEL [BYTES]      BYTES: how much of the document to take (default: all of it)
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { startServer } from '../../tests/http-node/server.mjs';

const [model, bytes] = process.argv.slice(2);
const document = readFileSync(new URL('document.md', import.meta.url), 'utf8').slice(0, bytes ? Number(bytes) : undefined);
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => process.exit(130)); // which ends the server
const cache = mkdtempSync(path.join(os.tmpdir(), 'kvasir-demo-'));
process.on('exit', () => rmSync(cache, { recursive: true, force: true }));
const args = ['-m', model, '-c', '4096', '--cache-dir', cache];
const system = { role: 'system', content: `Answer in one sentence from this document.\n\n${document}` };
let server;

async function start(why) {
  console.log(`demo: ${why}: build/kvasir serve ${args.join(' ')} --port 0`);
  server = await startServer({ args });
}

/** Asks, and gives { prompt, kvasir, firstMs, text } of the streamed answer. */
async function ask(messages) {
  const start = performance.now();
  const response = await fetch(`${server.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      messages: [system, ...messages],
      max_tokens: 48,
      temperature: 0,
      stream: true,
      stream_options: { include_usage: true },
    }),
  });
  if (!response.ok) throw new Error(`HTTP ${response.status}: ${await response.text()}`);
  const decoder = new TextDecoder();
  const answer = { prompt: 0, kvasir: null, firstMs: 0, text: '' };
  let rest = '';
  for await (const part of response.body) {
    const events = (rest + decoder.decode(part, { stream: true })).split('\n\n');
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith('data: {')) continue; // comments that keep the line open, and [DONE]
      const chunk = JSON.parse(event.slice('data: '.length));
      if (chunk.error) throw new Error(chunk.error.message);
      const delta = chunk.choices?.[0]?.delta ?? {};
      const text = delta.content ?? delta.reasoning_content ?? '';
      if (text) answer.firstMs ||= performance.now() - start;
      answer.text += text;
      answer.prompt = chunk.usage?.prompt_tokens ?? answer.prompt;
      answer.kvasir = chunk.kvasir ?? answer.kvasir;
    }
  }
  return answer;
}

const rows = [['step', 'prompt tokens', 'computed', 'from', 'time to first token', "answer's first words"]];

/** One row: asks and notes. Gives the answer's text. */
async function step(name, messages) {
  console.log(`${rows.length}. ${messages.at(-1).content}`);
  const a = await ask(messages);
  const words = a.text.replace(/[^\x20-\x7e\xa0-\ufffc]+/g, ' ').trim();
  console.log(`   ${words}`);
  const from = Object.entries(a.kvasir.cached).filter(([, n]) => n > 0).map(([tier, n]) => `${tier} ${n}`).join(', ');
  rows.push([name, `${a.prompt}`, `${a.kvasir.computed}`, from || '-', `${(a.firstMs / 1000).toFixed(2)} s`,
    words.length > 32 ? `${words.slice(0, 32)}...` : words || '(none)']);
  return a.text;
}

const ask1 = { role: 'user', content: 'What is the name of the supply boat?' };
const ask2 = { role: 'user', content: 'How long does a keeper stay?' };
await start('first start');
console.log(`demo: the document has ${document.split(/\s+/).length} words\n`);
const boat = await step('cold', [ask1]);
await step('second question', [ask2]);
await server.stop();
await start('after a clean stop');
await step('after restart', [ask1, { role: 'assistant', content: boat }, { role: 'user', content: 'Who sails it?' }]);
await onDisk();
await server.stop('SIGKILL');
await start('after SIGKILL');
await step('after SIGKILL', [ask2]);
await step('forked conversation', [ask1, { role: 'assistant', content: boat }, { role: 'user', content: 'When does it come?' }]);

/** Until nothing waits for the disk: within a second or so of the answer. */
async function onDisk() {
  for (;;) {
    const state = await (await fetch(`${server.url}/kvasir/cache`)).json();
    if (state.queue_bytes === 0) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const right = new Set([1, 2, 4]);
const widths = rows[0].map((_, c) => Math.max(...rows.map((r) => r[c].length)));
const line = (r) => r.map((cell, c) => (right.has(c) ? cell.padStart(widths[c]) : cell.padEnd(widths[c]))).join('  ').trimEnd();
console.log(`\n${line(rows[0])}\n${widths.map((w) => '-'.repeat(w)).join('  ')}`);
for (const row of rows.slice(1)) console.log(line(row));
await server.stop();
