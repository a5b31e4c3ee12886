// What several shapes are made of.
import assert from 'node:assert/strict';
import { events } from './sse.mjs';

export const tool = (name, description, properties) => ({ type: 'function', function: { name, description, parameters: { type: 'object', properties } } });
export const noTools = (m) => (m.call ? null : 'its template knows no tools');
export const noThoughts = (m) => (m.thoughts ? null : 'its template has no place for thoughts');

/** The tool that agents here call. */
export const lookUp = (t) => [tool('look_up', t.text(20), { key: { type: 'string', description: t.text(8) }, n: { type: 'integer' } })];

/** Claude Code's first line: the checksums are of this request. */
export const billing = (t) => {
  const hex = (n) => Array.from({ length: n }, () => '0123456789abcdef'[t.rnd(16)]).join('');
  return `x-anthropic-billing-header: cc_version=2.1.63.${hex(3)}; cc_entrypoint=cli; cch=${hex(5)};`;
};

/** The same value with the keys of every object in the opposite order. */
export const turned = (value) => (Array.isArray(value) ? value.map(turned)
  : value && typeof value === 'object' ? Object.fromEntries(Object.entries(value).reverse().map(([k, v]) => [k, turned(v)])) : value);

/** Hangs up when at least `at` tokens of the prompt are done; { processed, cached } as the client saw them. */
export async function hangUp(t, prompt, at) {
  const gone = new AbortController();
  const server = await t.world.up();
  const response = await fetch(`${server.url}/completion`, { method: 'POST', signal: gone.signal, headers: { 'x-kvasir-scope': t.scope },
    body: JSON.stringify({ prompt, n_predict: 1, stream: true, return_progress: true }) });
  let processed = 0, cached = 0;
  await assert.rejects(async () => {
    for await (const { data } of events(response)) {
      const progress = data && JSON.parse(data).prompt_progress;
      if (!progress) continue;
      processed = Math.max(processed, progress.processed);
      cached = progress.cache;
      if (processed >= at) gone.abort();
    }
  }, 'the prompt was over before the client could hang up');
  return { processed, cached };
}
