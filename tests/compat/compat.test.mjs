// kvasir answers requests.mjs as the recorded llama-server did (shapes.json): same status, keys, types, order of
// events and finish reasons. Keys that only kvasir has are allowed. What differs on purpose is in `different`.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import { model, startServer } from '../http-node/server.mjs';
import { requests, run } from './requests.mjs';

const recorded = JSON.parse(readFileSync(new URL('shapes.json', import.meta.url)));

const different = {
  'error: bad JSON': { status: 400 }, // llama-server says 500 to the client's own mistake
  // The code is the one that OpenAI clients look for; llama-server repeats the HTTP status there.
  'error: context full': { types: { '.error.code': 'string' } },
  'error: context full, streamed': { types: { '.error.code': 'string' } },
  // A progress event brings no token; llama-server sends one dummy 0, which clients that collect tokens would keep.
  'completion with progress': { empty: ['.tokens'] },
};

/** Every key and type of `want` is in `got`. */
function includes(got, want, path, { types = {}, empty = [] }) {
  const wanted = types[path] ?? want;
  if (Array.isArray(wanted)) {
    assert.ok(Array.isArray(got), `${path || 'body'} is an array`);
    if (wanted.length && got.length) includes(got[0], wanted[0], `${path}[]`, { types, empty });
    else if (!empty.includes(path)) assert.equal(got.length > 0, wanted.length > 0, `${path || 'body'} is empty in one of the two`);
    return;
  }
  if (typeof wanted !== 'object') {
    assert.equal(typeof got === 'object' ? 'object' : got, wanted, path || 'body');
    return;
  }
  assert.ok(got !== null && typeof got === 'object' && !Array.isArray(got), `${path || 'body'} is an object`);
  for (const key of Object.keys(wanted)) {
    assert.ok(key in got, `${path}.${key} is missing`);
    includes(got[key], wanted[key], `${path}.${key}`, { types, empty });
  }
}

describe('answers have the shapes of llama-server', () => {
  let server;
  before(async () => {
    server = await startServer({ args: ['-m', model('SmolLM2-135M-Instruct.Q4_1.gguf'), '-c', '8192', '-np', '4', '-kvu'] });
  });
  after(() => server?.stop());

  for (const request of requests) {
    it(request.name, async () => {
      const want = recorded[request.name];
      assert.ok(want, 'shapes.json has this request; record it again if it is new');
      const allowed = different[request.name] ?? {};
      const got = await run(server.url, request);
      assert.equal(got.status, allowed.status ?? want.status, 'status');
      assert.equal(got.type, want.type, 'content type');
      assert.equal(got.finish, want.finish, 'finish reason');
      if (want.events) {
        assert.equal(got.events.length, want.events.length,
          `kinds of events in order:\n${JSON.stringify(got.events, null, 1)}`);
        want.events.forEach((event, i) => includes(got.events[i], event, '', allowed));
      } else {
        includes(got.body, want.body, '', allowed);
      }
    });
  }
});
