// Many clients, and many requests: everything finishes, and memory stays where it was.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import { binary, model, startServer } from './server.mjs';

/* Why the resident set says nothing here, or false. */
const noRss = process.platform !== 'linux' ? 'reads /proc'
  : /asan|tsan/.test(binary) && 'a sanitizer keeps freed memory for a while';

const median = (xs) => [...xs].sort((a, b) => a - b)[Math.floor(xs.length / 2)];

describe('load on SmolLM2', () => {
  let server;
  before(async () => {
    // A cache so small that it is full, and evicting, long before the first measurement.
    server = await startServer({ args: ['-m', model('SmolLM2-135M-Instruct.Q4_1.gguf'), '-c', '8192', '--cache-ram', '4'] });
  });
  after(() => server?.stop());

  const post = (body, path = '/v1/chat/completions') => fetch(server.url + path, { method: 'POST', body: JSON.stringify(body) });

  it('64 streaming clients at once finish', async () => {
    const texts = await Promise.all(Array.from({ length: 64 }, async (_, i) => {
      const res = await post({ messages: [{ role: 'user', content: `Count from ${i}.` }], max_tokens: 8, stream: true, temperature: 0 });
      assert.equal(res.status, 200);
      return res.text();
    }));
    for (const text of texts) assert.match(text, /data: \[DONE\]\n\n$/);
  });

  it('2,000 requests leave memory where it was', { skip: noRss }, async (t) => {
    const rss = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${server.pid}/status`))[1]);
    const seen = [];
    let next = 0;
    await Promise.all(Array.from({ length: 8 }, async () => {
      for (;;) {
        const i = next++;
        if (i >= 2000) return;
        const res = await post({ prompt: `${i} is a number`, n_predict: 1, cache_prompt: i % 4 !== 0, stream: i % 3 === 0 }, '/completion');
        assert.equal(res.status, 200);
        await res.text();
        seen[i] = rss();
      }
    }));
    const early = median(seen.slice(200, 300)), late = median(seen.slice(1900, 2000));
    t.diagnostic(`median RSS: requests 200–300 ${early} KiB, 1,900–2,000 ${late} KiB`);
    assert.ok(late <= early + 8 * 1024, `${early} KiB grew to ${late} KiB`);
  });
});
