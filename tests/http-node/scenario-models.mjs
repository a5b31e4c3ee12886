// The models that conversations are tried on, and what there is to know about each: how its memory may be cut, and what
// its template does with thoughts and tools. Quick ones are tiny F32 models whose tokens are bytes; the table's have real
// tokenizers.
//
//   kind       full | window | hybrid
//   sampled    the template renders an earlier answer as it was sampled, so that a turn computes only what is new
//   thoughts   'dropped' (behind the next question), 'kept' (where the client sends them back), null (no place for them)
//   opens      text that the generation prompt ends with, so that an answer goes on from there
//   call       how a tool call is spelled; null: the template knows no tools
//   middle     a system message may stand in the middle
//   fake       a kind of memory for the fake engine, instead of a file
//   tolerance  logprobs that another batch shape may move; null: they are compared with --exact only
import path from 'node:path';
import { model, root } from './server.mjs';

export const template = (name) => path.join(root, 'build', 'engine', 'source', 'models', 'templates', `${name}.jinja`);

/** A JSON value with blanks behind commas and colons, as models spell it. */
export const spaced = (value) => (value && typeof value === 'object' && !Array.isArray(value)
  ? `{${Object.entries(value).map(([k, v]) => `${JSON.stringify(k)}: ${spaced(v)}`).join(', ')}}` : JSON.stringify(value));
/** As Hermes and Qwen3 spell a call: JSON between two marks. */
const jsonCall = (name, args) => `<tool_call>\n{"name": "${name}", "arguments": ${spaced(args)}}\n</tool_call>`;
/** As Qwen3.5 does: elements. */
const elementCall = (name, args) => `<tool_call>\n<function=${name}>\n${Object.entries(args)
  .map(([k, v]) => `<parameter=${k}>\n${typeof v === 'string' ? v : JSON.stringify(v)}\n</parameter>\n`).join('')}</function>\n</tool_call>`;

// Gemma's turns: no system role (its text begins the first user message), "model" for the assistant, blanks cut off.
const gemma = `{{ bos_token }}{%- set ns = namespace(head='', rest=messages) -%}
{%- if messages[0].role == 'system' -%}{%- set ns.head = messages[0].content + '\n\n' -%}{%- set ns.rest = messages[1:] -%}{%- endif -%}
{%- for message in ns.rest -%}
{%- if message.role == 'system' or (message.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('Roles must alternate between user and assistant') }}{%- endif -%}
{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' + (ns.head if loop.first else '') + message.content | trim + '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}`;

const qwen3 = { template: ['--chat-template-file', template('Qwen-Qwen3-0.6B')], sampled: true, thoughts: 'dropped', opens: '', call: jsonCall, middle: true };
const qwen35 = { template: ['--chat-template-file', template('Qwen3.5-4B')], sampled: false, thoughts: 'dropped', opens: '<think>\n', call: elementCall, middle: false };
const chatml = { template: [], sampled: true, thoughts: 'kept', opens: '', call: jsonCall, middle: true }; // mkmodel's own
const plain = { template: [], sampled: true, thoughts: null, opens: '', call: null, middle: true }; // SmolLM2's
const gemmas = { template: ['--chat-template', gemma], sampled: true, thoughts: null, opens: '', call: null, middle: false };

const bytes = { bytes: true, tolerance: 5e-4, context: 4096, chunk: 256, interval: 2048, threads: 1 };
const words = { bytes: false, tolerance: null, chunk: 256, interval: 2048, threads: 1 };

/** Of `make test`. Lengths are an eighth of the stated ones. */
export const quickModels = [
  { name: 'full', kind: 'full', file: model('tiny/llama.gguf'), block: 256, lora: model('tiny/lora/llama.gguf'), ...qwen3, ...bytes },
  { name: 'window', kind: 'window', file: model('tiny/gemma3.gguf'), block: 32, ...qwen3, ...bytes },
  { name: 'hybrid', kind: 'hybrid', file: model('tiny/lfm2.gguf'), block: 256, ...chatml, ...bytes },
  { name: 'hybrid with Qwen3.5', kind: 'hybrid', file: model('tiny/qwen35.gguf'), block: 256, ...qwen35, ...bytes },
];

/** Of `make scenarios`, at the lengths that the shapes state: the fake engine computes no layer (src/engine/engine_fake.h). */
export const longModels = [
  { name: 'full attention', kind: 'full', fake: 'full', block: 256, ...bytes, ...qwen3, context: 131072 },
  { name: 'sliding windows', kind: 'window', fake: 'window', block: 256, ...bytes, ...qwen3, context: 131072 },
  { name: 'recurrent layers', kind: 'hybrid', fake: 'hybrid', block: 256, ...bytes, ...qwen3, context: 131072 },
  { name: 'recurrent layers and windows', kind: 'hybrid', fake: 'hybrid_window', block: 256, ...bytes, ...qwen35, context: 131072 },
];

/** Of `make scenarios`. Contexts are what lets it finish in an hour. */
export const tableModels = [
  { name: 'SmolLM2', kind: 'full', file: model('SmolLM2-135M-Instruct.Q4_1.gguf'), block: 256, ...words, ...plain, threads: 2, context: 1024 },
  { name: 'gemma-3-270m', kind: 'window', file: model('gemma-3-270m-q4_k_m.gguf'), block: 256, ...words, ...gemmas, threads: 2, context: 1024 },
  { name: 'Qwen3.5 shape', kind: 'hybrid', file: model('shape/qwen35-tiny.gguf'), block: 256, ...words, ...qwen35, context: 4096 },
  { name: 'Qwen3.5 shape, SmolLM2 template', kind: 'hybrid', file: model('shape/qwen35-tiny.gguf'), block: 256, ...words, ...plain, context: 4096 },
  { name: 'LFM2 shape, Qwen3.5 template', kind: 'hybrid', file: model('shape/lfm2-tiny.gguf'), block: 256, ...words, ...qwen35, context: 4096 },
  { name: 'LFM2 shape', kind: 'hybrid', file: model('shape/lfm2-tiny.gguf'), block: 256, ...words, ...plain, context: 4096 },
];
