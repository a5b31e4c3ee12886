// kvasir answers requests.mjs as the recorded llama-server did (shapes.json): same status, keys, types, order of
// events and finish reasons. Keys that only kvasir has are allowed. What differs on purpose is in `different`.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { model, root, startServer } from '../http-node/server.mjs';
import { requests, run, setups } from './requests.mjs';

const recorded = JSON.parse(readFileSync(new URL('shapes.json', import.meta.url)));

const CUT = { finish: 'incomplete', types: { '.completed_at': 'null' } };

/** What differs, by the request's name. status, finish: kvasir's; types: of a key; empty: keys that may be empty in one
 * of the two; more: kvasir's stream has events between those of llama-server; body: false when the body or the events
 * are not compared at all. */
const different = {
  // llama-server says 500 to the client's own mistakes.
  'error: bad JSON': { status: 400 },
  'error: detokenize text': { status: 400 },
  'error: tools not a list': { status: 400 },
  'error: an image': { status: 400 },
  // Anthropic's clients look for Anthropic's error shape; llama-server answers in OpenAI's there.
  'error: messages without messages': { status: 400, body: false },
  'error: messages, context full': { body: false },
  // The code is the one that OpenAI clients look for; llama-server repeats the HTTP status there.
  'error: context full': { types: { '.error.code': 'string' } },
  'error: context full, streamed': { types: { '.error.code': 'string' } },
  'error: responses, context full': { types: { '.error.code': 'string' } },
  // A field that is missing is named; llama-server tokenizes nothing.
  'tokenize of nothing': { status: 400, body: false },
  // llama-server erases a slot that it does not have.
  'error: slot that is not there': { status: 400, body: false },
  // Scales are part of what a cached state was computed with, so they are chosen at start.
  'lora-adapters, set': { status: 400, body: false },
  // kvasir names the adapters that were in effect, llama-server only those that the request changed.
  'completion with an adapter': { empty: ['.generation_settings.lora'] },
  // A progress event brings no token; llama-server sends one dummy 0, which clients that collect tokens would keep.
  'completion with progress': { empty: ['.tokens'] },
  // llama-server sends the piece in which the stop string was found as an event of its own.
  'completion streamed to a stop string': { body: false },
  // Both prompts run at once; whose events come first is chance. llama-server begins with an event `null`.
  'completion of two prompts, streamed': { body: false },
  // With include_usage the usage has an event of its own, without choices, as in OpenAI's API; llama-server adds it to
  // the last event here, though not in chat.
  'completions streamed with usage': { body: false },
  // OpenAI's API has null there when a message is only tool calls.
  'tool call': { types: { '.choices[].message.content': 'null' } },
  // Anthropic's API has this reason; llama-server knows it only for the strings of a template.
  'messages to a stop sequence': { finish: 'stop_sequence' },
  // llama-server begins this stream without message_start.
  'messages with tools, streamed': { more: true },
  // An answer that max_output_tokens cut is incomplete in OpenAI's API.
  responses: CUT,
  'responses streamed': { finish: 'incomplete', body: false },
  'responses of items': CUT,
  'responses without /v1': CUT,
  // OpenAI's API has response.function_call_arguments.done before the item's end; llama-server leaves it out.
  'responses with a tool call, streamed': { more: true },
  'responses with a tool result': CUT,
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

// Headers that differ on purpose.
const HEADERS = new Set([
  'server', // each tells its own name
  'access-control-allow-origin', // llama-server allows every page of the web; kvasir only those of this machine
  'process-start-time-unix', // kvasir has the metric kvasir_start_time_seconds
]);

function sameHeaders(got, want) {
  for (const [name, value] of Object.entries(want)) {
    if (HEADERS.has(name)) continue;
    assert.ok(name in got, `header ${name} is missing`);
    if (name === 'content-type') assert.equal(got[name].split(';')[0], value.split(';')[0], name);
  }
}

for (const [setup, args] of Object.entries(setups)) {
  describe(`answers have the shapes of llama-server: ${setup}`, () => {
    let server;
    const scratch = mkdtempSync(path.join(tmpdir(), 'kvasir-compat-'));
    before(async () => {
      server = await startServer({ args: args({
        models: model('.'), templates: path.join(root, 'build/engine/source/models/templates'), scratch,
      }) });
    });
    after(async () => {
      await server?.stop();
      rmSync(scratch, { recursive: true });
    });

    for (const request of requests.filter((r) => r.setup === setup)) {
      it(request.name, async () => {
        const want = recorded[request.name];
        assert.ok(want, 'shapes.json has this request; record it again if it is new');
        const allowed = different[request.name] ?? {};
        const got = await run(server.url, request);
        assert.equal(got.status, allowed.status ?? want.status, `status of ${JSON.stringify(got.body)}`);
        sameHeaders(got.headers, want.headers);
        assert.equal(got.finish, allowed.finish ?? want.finish, 'finish reason');
        if (allowed.body === false) return;
        if (want.events && allowed.more) {
          let next = 0; // a wanted event is met by the next one of its name
          for (const event of want.events) {
            while (next < got.events.length && Object.keys(got.events[next])[0] !== Object.keys(event)[0]) next++;
            assert.ok(next < got.events.length, `${Object.keys(event)[0]} is missing in its place`);
            includes(got.events[next++], event, '', allowed);
          }
        } else if (want.events) {
          assert.equal(got.events.length, want.events.length,
            `kinds of events in order:\n${JSON.stringify(got.events, null, 1)}`);
          want.events.forEach((event, i) => includes(got.events[i], event, '', allowed));
        } else {
          includes(got.body, want.body, '', allowed);
        }
      });
    }
  });
}
