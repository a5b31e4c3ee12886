// Structured output on a real model at temperature 1: whatever it says follows the schema.
//
// What a length limit cuts is not counted, and must be rare: the schemas are small enough that a 135M model comes to an
// end. ajv judges, with the formats.
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import Ajv from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import { noRealModel, smollm2, startServer } from './server.mjs';

const seed = Number(process.env.KVASIR_SEED ?? Date.now() % 1e9);
const object = (properties, more = {}) => ({ type: 'object', properties, required: Object.keys(properties), additionalProperties: false, ...more });
const word = { type: 'string', maxLength: 12 };
const text = (pattern) => ({ type: 'string', pattern });

const schemas = {
  flag: object({ yes: { type: 'boolean' } }),
  nothing: { type: 'null' },
  range: object({ n: { type: 'integer', minimum: 1, maximum: 6 } }),
  'open range': object({ n: { type: 'integer', exclusiveMinimum: -5, exclusiveMaximum: 3 } }),
  number: object({ x: { type: 'number' } }),
  word: object({ name: { type: 'string', minLength: 2, maxLength: 8 } }),
  'a text alone': { type: 'string', minLength: 1, maxLength: 10 },
  enum: object({ colour: { enum: ['red', 'green', 'blue'] } }),
  'mixed enum': object({ v: { enum: [1, 'two', null, true, [3], { four: 4 }] } }),
  const: object({ kind: { const: 'cat' }, legs: { const: 4 } }),
  'a list': { type: 'array', items: { type: 'integer', minimum: 0, maximum: 99 }, minItems: 2, maxItems: 4 },
  tuple: { type: 'array', prefixItems: [{ type: 'boolean' }, { enum: ['a', 'b'] }], items: false, minItems: 2 },
  'optional members': { type: 'object', properties: { a: { type: 'boolean' }, b: { enum: [1, 2] }, c: { type: 'null' } }, additionalProperties: false },
  nullable: object({ a: { type: ['integer', 'null'], minimum: 0, maximum: 50 }, b: { type: ['boolean', 'null'] } }),
  nested: object({ a: object({ b: object({ c: object({ d: { type: 'boolean' } }) }) }) }),
  'list of objects': object({ points: { type: 'array', items: object({ x: { type: 'integer', minimum: 0, maximum: 9 }, y: { type: 'integer', minimum: 0, maximum: 9 } }), minItems: 1, maxItems: 3 } }),
  anyOf: object({ v: { anyOf: [{ type: 'boolean' }, { type: 'integer', minimum: 10, maximum: 20 }, { type: 'null' }] } }),
  oneOf: { oneOf: [object({ kind: { const: 'a' }, n: { type: 'integer', minimum: 0, maximum: 9 } }), object({ kind: { const: 'b' }, ok: { type: 'boolean' } })] },
  allOf: { allOf: [{ type: 'object', properties: { a: { type: 'boolean' } }, required: ['a'] }, { type: 'object', properties: { b: { enum: ['x'] } }, required: ['b'] }] },
  $defs: { ...object({ from: { $ref: '#/$defs/city' }, to: { $ref: '#/$defs/city' } }), $defs: { city: { enum: ['Oslo', 'Rome', 'Bonn'] } } },
  definitions: { $ref: '#/definitions/pair', definitions: { pair: object({ l: { $ref: '#/definitions/bit' }, r: { $ref: '#/definitions/bit' } }), bit: { enum: [0, 1] } } },
  'recursion with an end': { ...object({ tree: { $ref: '#/$defs/node' } }), $defs: { node: object({ leaf: { anyOf: [{ type: 'boolean' }, object({ again: { anyOf: [{ type: 'null' }, { enum: [1, 2, 3] }] } })] } }) } },
  'pattern of digits': object({ phone: text('^\\d{3}-\\d{4}$') }),
  'pattern with choices': object({ code: text('^(AB|CD)[0-9]{2}(x|y)?$') }),
  'pattern with quotes': object({ s: text('^"[^"]{1,6}"\\\\\\n?$') }),
  'pattern with anything': object({ s: text('^.{1,5}$') }),
  'unanchored pattern': object({ s: { type: 'string', pattern: '^[A-Z][a-z]{2,5}|^\\w{3}$' } }),
  date: object({ day: { type: 'string', format: 'date' } }),
  'date-time': object({ at: { type: 'string', format: 'date-time' }, time: { type: 'string', format: 'time' } }),
  uuid: object({ id: { type: 'string', format: 'uuid' } }),
  email: object({ mail: { type: 'string', format: 'email' } }),
  addresses: object({ ip: { type: 'string', format: 'ipv4' }, six: { type: 'string', format: 'ipv6' }, host: { type: 'string', format: 'hostname' } }),
  'uri and duration': object({ uri: { type: 'string', format: 'uri' }, lasts: { type: 'string', format: 'duration' } }),
  'additional members': { type: 'object', properties: { a: { type: 'boolean' } }, required: ['a'], additionalProperties: { enum: [1, 2] } },
  big: object(Object.fromEntries(Array.from({ length: 24 }, (_, i) => [`field_${i}`, i % 3 === 0 ? { type: 'boolean' } : i % 3 === 1 ? { enum: ['a', 'b', i] } : { type: ['null', 'boolean'] }]))),
  words: object({ a: word, b: word, c: { type: 'array', items: word, maxItems: 2 } }),
};

describe('structured output on SmolLM2', { skip: noRealModel }, () => {
  let server;
  before(async () => {
    server = await startServer({ args: ['-m', smollm2, '-c', '8192', '-np', '10', '-kvu', '-fa', 'off'] });
  });
  after(() => server.stop());

  const ajv = addFormats(new Ajv({ strict: false, allErrors: true }));

  async function ask(name, stream) {
    const response = await fetch(`${server.url}/v1/chat/completions`, {
      method: 'POST',
      body: JSON.stringify({
        messages: [{ role: 'user', content: `Give me an example of "${name}" as JSON.` }],
        response_format: { type: 'json_schema', json_schema: { name: 'answer', strict: true, schema: schemas[name] } },
        temperature: 1, seed: seed + Object.keys(schemas).indexOf(name), max_tokens: name === 'big' ? 500 : 160, stream,
      }),
    });
    const body = await response.text();
    assert.equal(response.status, 200, `${name}: ${body}`);
    return JSON.parse(body).choices[0];
  }

  it(`follows each of ${Object.keys(schemas).length} schemas`, async () => {
    assert.ok(Object.keys(schemas).length >= 30);
    let cut = 0;
    const waiting = Object.keys(schemas).reverse(); // the big one first
    const worker = async () => {
      for (let name; (name = waiting.shift());) {
        const choice = await ask(name, false);
        if (choice.finish_reason === 'length') {
          cut++;
          continue;
        }
        let value;
        try {
          value = JSON.parse(choice.message.content);
        } catch (error) {
          assert.fail(`${name}: ${choice.message.content}: ${error} (KVASIR_SEED=${seed})`);
        }
        const check = ajv.compile(schemas[name]);
        assert.ok(check(value), `${name}: ${choice.message.content}: ${ajv.errorsText(check.errors)} (KVASIR_SEED=${seed})`);
      }
    };
    await Promise.all(Array.from({ length: 10 }, worker)); // many a batch: a token of each costs little more than one
    assert.ok(cut <= 3, `${cut} answers were cut by the length limit (KVASIR_SEED=${seed})`);
  });

  it('gives an object for json_object', async () => {
    const response = await fetch(`${server.url}/v1/chat/completions`, {
      method: 'POST',
      body: JSON.stringify({ messages: [{ role: 'user', content: 'A tiny JSON object, please.' }], response_format: { type: 'json_object' }, temperature: 0, max_tokens: 120 }),
    });
    const { choices: [choice] } = await response.json();
    assert.match(choice.message.content, /^\{/);
    if (choice.finish_reason === 'stop') assert.equal(typeof JSON.parse(choice.message.content), 'object');
  });

  it('follows what it can of a schema that need not be followed strictly', async () => {
    const response = await fetch(`${server.url}/v1/chat/completions`, {
      method: 'POST',
      body: JSON.stringify({
        messages: [{ role: 'user', content: 'A number between 0 and 1.' }], max_tokens: 100, temperature: 1, seed,
        response_format: { type: 'json_schema', json_schema: { name: 'x', strict: false, schema: object({ ok: { type: 'boolean', not: {} }, p: { enum: [1] } }) } },
      }),
    });
    const { choices: [choice] } = await response.json();
    const value = JSON.parse(choice.message.content);
    assert.equal(typeof value.ok, 'boolean');
    assert.equal(value.p, 1);
  });
});
