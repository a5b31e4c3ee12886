// `make demo`, last step: starts kvasir on a free port, asks two questions over one document, prints what each cost,
// and stops it again.
// usage: node scripts/demo/demo.mjs MODEL [BYTES]      BYTES: how much of the document to take (default: all of it)
import { readFileSync } from 'node:fs';
import { startServer } from '../../tests/http-node/server.mjs';

const [model, bytes] = process.argv.slice(2);
const document = readFileSync(new URL('document.md', import.meta.url), 'utf8').slice(0, bytes ? Number(bytes) : undefined);
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => process.exit(130)); // which ends the server
const questions = ['What is the name of the supply boat?', 'How long does a keeper stay?'];

/** Asks, and gives { prompt, computed, firstMs, text } of the streamed answer. */
async function ask(question) {
  const start = performance.now();
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      messages: [
        { role: 'system', content: `Answer in one sentence from this document.\n\n${document}` },
        { role: 'user', content: question },
      ],
      max_tokens: 48,
      temperature: 0,
      stream: true,
      stream_options: { include_usage: true },
    }),
  });
  if (!response.ok) throw new Error(`HTTP ${response.status}: ${await response.text()}`);
  const decoder = new TextDecoder();
  const answer = { prompt: 0, computed: 0, firstMs: 0, text: '' };
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
      if (chunk.usage) {
        answer.prompt = chunk.usage.prompt_tokens;
        answer.computed = answer.prompt - (chunk.usage.prompt_tokens_details?.cached_tokens ?? 0);
      }
    }
  }
  return answer;
}

const args = ['-m', model, '-c', '4096'];
console.log(`demo: build/kvasir serve ${args.join(' ')} --port 0`);
const server = await startServer({ args });
const url = server.url;
console.log(`demo: ready at ${url}; the document has ${document.split(/\s+/).length} words\n`);
const rows = [['step', 'prompt tokens', 'computed tokens', 'time to first token', "answer's first words"]];
for (const [i, question] of questions.entries()) {
  console.log(`${i + 1}. ${question}`);
  const a = await ask(question);
  const words = a.text.replace(/[^\x20-\x7e\xa0-\ufffc]+/g, ' ').trim();
  console.log(`   ${words}`);
  rows.push([`question ${i + 1}`, `${a.prompt}`, `${a.computed}`, `${(a.firstMs / 1000).toFixed(2)} s`,
    words.length > 40 ? `${words.slice(0, 40)}...` : words || '(none)']);
}
const widths = rows[0].map((_, c) => Math.max(...rows.map((r) => r[c].length)));
const line = (r) => r.map((cell, c) => (c === 0 || c === 4 ? cell.padEnd(widths[c]) : cell.padStart(widths[c]))).join('  ').trimEnd();
console.log(`\n${line(rows[0])}\n${widths.map((w) => '-'.repeat(w)).join('  ')}`);
for (const row of rows.slice(1)) console.log(line(row));
await server.stop();
