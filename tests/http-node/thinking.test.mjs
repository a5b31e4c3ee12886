// Conversations with thoughts and tool calls, on a tiny model of each memory kind with Qwen's templates: what the client
// drops, keeps or sends back in its own words costs no more than itself. In memory and after a restart.
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { root, startServer } from './server.mjs';
import { args, atMost, Folders, generator, greedy, greedyRaw, kinds, played, words } from './scenario.mjs';

const folders = new Folders();
after(() => folders.remove());

const template = (name) => path.join(root, 'build', 'engine', 'source', 'models', 'templates', `${name}.jinja`);
const tools = [{ type: 'function', function: { name: 'look_up', description: 'Looks a key up.',
  parameters: { type: 'object', properties: { key: { type: 'string' }, n: { type: 'integer' } } } } }];

for (const kind of Object.keys(kinds)) for (const life of ['in memory', 'restarted']) {
  describe(`thoughts and tools, ${life}, ${kind}`, () => {
    const more = ['--chat-template-file', template('Qwen-Qwen3-0.6B'), '-c', '16384',
      ...(life === 'restarted' ? ['--cache-dir', folders.make()] : [])];
    let server;
    before(async () => {
      server = await startServer({ args: args(kind, ...more) });
    });
    after(() => server?.stop());

    async function meanwhile() {
      if (life === 'in memory') {
        for (let i = 0; i < 3; i++) await greedyRaw(server, String.fromCharCode(33 + i) + words(generator(), 40), 2);
        return;
      }
      await server.stop();
      server = await startServer({ args: args(kind, ...more) });
    }

    /** What a message with this content takes beyond it: <|im_start|>role\n … <|im_end|>\n */
    const frame = (role) => role.length + 4;
    const G = frame('assistant') - 2; // the generation prompt

    it('S4: the client drops the thoughts of earlier turns', async () => {
      const rnd = generator();
      const messages = [{ role: 'system', content: words(rnd, 300) }];
      let last = null;
      for (let turn = 0; turn < 5; turn++) {
        messages.push({ role: 'user', content: words(rnd, 50) });
        const answer = words(rnd, 60).trim();
        const got = await played(server, messages, `<think>\n${words(rnd, 250).trim()}\n</think>\n\n${answer}`);
        if (last !== null) atMost(got.computed, last.length + frame('assistant') + 50 + frame('user') + 2 * G + 8, `S4: turn ${turn}`);
        assert.ok(got.json.choices[0].message.reasoning_content.length > 200);
        messages.push({ role: 'assistant', content: answer });
        last = answer;
        if (turn === 2) await meanwhile();
      }
    });

    it('S5: tool calls and their results', async () => {
      const rnd = generator();
      const messages = [{ role: 'system', content: words(rnd, 300) }, { role: 'user', content: words(rnd, 50) }];
      let fresh = Infinity;
      for (let turn = 0; turn < 6; turn++) {
        const key = words(rnd, 20).trim().replaceAll(' ', '');
        const got = await played(server, messages,
          `<think>\n${words(rnd, 80).trim()}\n</think>\n\n<tool_call>\n{"name": "look_up", "arguments": {"key": "${key}", "n": ${turn}}}\n</tool_call>`,
          { tools });
        atMost(got.computed, fresh, `S5: turn ${turn}`);
        const { message, finish_reason } = got.json.choices[0];
        assert.equal(finish_reason, 'tool_calls');
        const result = words(rnd, 70);
        messages.push(message, { role: 'tool', tool_call_id: message.tool_calls[0].id, content: result });
        // <|im_start|>user\n<tool_response>\n … \n</tool_response><|im_end|>\n
        fresh = result.length + frame('user') + 31 + G + 8;
        if (turn === 2) await meanwhile();
      }
    });

    it('S8: the last answer again, thinking on and off in turn', async () => {
      const rnd = generator();
      const messages = [{ role: 'user', content: words(rnd, 400) }];
      for (let i = 0; i < 4; i++) {
        const got = await greedy(server, messages, 4, { chat_template_kwargs: { enable_thinking: i % 2 === 0 } });
        if (i > 1) assert.equal(got.computed, 1, `F8: ${i}`);
        else if (i === 1) atMost(got.computed, 400 + frame('user') + 2 * G + 24, 'F8: off for the first time');
      }
    });
  });
}
