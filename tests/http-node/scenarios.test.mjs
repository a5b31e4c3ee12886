// Conversations as real users bring them, on a tiny model of each memory kind: each turn computes no more than what is
// new, and the answer is a cold server's. What happens between two turns is that others take the slots, or that the
// server ends and another begins on its disk cache. scenarios-disk.test.mjs has the days when that cache is harmed.
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { startServer } from './server.mjs';
import { events } from './sse.mjs';
import { args, assertSame, atMost, B, Chat, Cold, Folders, generator, greedy, greedyRaw, kinds, N, played, post, words } from './scenario.mjs';

const cold = new Cold();
const folders = new Folders();
after(() => cold.stop());
after(() => folders.remove());

/** Others' requests, enough of them to take every slot; they share no token with anybody's prompt. */
let others = 0;
async function unrelated(server, n = 3) {
  for (let i = 0; i < n; i++) await greedyRaw(server, String.fromCharCode(33 + others++ % 27) + words(generator(), 40), 2);
}

for (const kind of Object.keys(kinds)) for (const life of ['in memory', 'restarted']) {
  describe(`${life}, ${kind}`, () => {
    const more = life === 'restarted' ? ['--cache-dir', folders.make()] : [];
    let server;
    before(async () => {
      server = await startServer({ args: args(kind, ...more) });
    });
    after(() => server?.stop());

    /** Between two requests: others take every slot (n of them), or the server is another one. */
    async function meanwhile(n = 3) {
      if (life === 'in memory') return unrelated(server, n);
      await server.stop();
      server = await startServer({ args: args(kind, ...more) });
    }

    it('S1: the same prompt again computes one token', async () => {
      const messages = [{ role: 'user', content: words(generator(), 700) }];
      const first = await greedy(server, messages);
      assert.equal(first.computed, first.prompt);
      const again = await greedy(server, messages);
      assert.equal(again.computed, 1, 'at once');
      assert.equal(again.miss, null);
      await meanwhile();
      const later = await greedy(server, messages);
      assert.equal(later.computed, 1, 'after others took the slots');
      assert.equal(later.cached.engine, 0);
      for (const got of [first, again, later]) await cold.check(kind, messages, got, 'S1');
    });

    it('S1: the same prompt again, after an answer longer than a window', async () => {
      const messages = [{ role: 'user', content: words(generator(), 700) }];
      await played(server, messages, words(generator(), 300));
      await meanwhile();
      const again = await greedy(server, messages);
      await cold.check(kind, messages, again, 'S1');
      assert.equal(again.computed, 1);
    });

    it('S2, S8: a chat of ten turns computes what is new; its last answer again, one token', async () => {
      const chat = new Chat(kind, 300);
      for (let i = 1; i < 10; i++) {
        await chat.turn(server, `S2: turn ${i}`);
        if (i % 3 === 0 && life === 'restarted') await meanwhile();
      }
      await chat.check(server, cold, 'S2: turn 10');
      chat.ask(40);
      await played(server, chat.messages, 'one answer, not liked');
      for (let i = 0; i < 2; i++) {
        const again = await greedy(server, chat.messages);
        assert.equal(again.computed, 1, 'S8');
        await cold.check(kind, chat.messages, again, 'S8');
      }
    });

    it('S3: another question over the same system prompt and tools', async () => {
      const rnd = generator();
      const chat = new Chat(kind, 1900, rnd);
      const tools = [{ type: 'function', function: { name: 'look_up', description: words(rnd, 100),
        parameters: { type: 'object', properties: { key: { type: 'string' } } } } }];
      const ask = (first) => [...chat.messages, { role: 'user', content: first + words(rnd, 60) }];
      const first = await greedy(server, ask('A'), 4, { tools });
      await meanwhile();
      for (const letter of ['B', 'C']) {
        const messages = ask(letter);
        const got = await greedy(server, messages, 4, { tools });
        atMost(got.computed, 8 + 61 + 11, `S3 ${letter}`); // the question's message and the generation prompt
        const alone = await greedy(await cold.server(kind), messages, 4, { tools, cache_prompt: false });
        assertSame(got.tokens, alone.tokens, `S3 ${letter}`);
        assert.equal((await greedy(server, messages, 4, { tools })).computed, 1, `S3 ${letter} again`);
      }
    });

    it('S6: an early message of a long chat is edited', async () => {
      const chat = new Chat(kind, 300);
      for (let i = 0; i < 7; i++) await chat.turn(server, 'S6');
      await meanwhile();
      const size = (m) => 4 + m.role.length + m.content.length;
      for (const at of [9, 5, 3]) {
        const messages = [...chat.messages.slice(0, at), { role: 'user', content: `Instead ${words(chat.rnd, 40)}` },
          ...chat.messages.slice(at + 1, -1)];
        const got = await greedy(server, messages, 4);
        const before = messages.slice(0, at).reduce((sum, m) => sum + size(m), 0);
        atMost(got.computed, got.prompt - before, `S6: message ${at}`);
        await cold.check(kind, messages, got, `S6: message ${at}`);
      }
    });

    it('S7: two branches in turn', async () => {
      const root = new Chat(kind, 300);
      for (let i = 0; i < 4; i++) await root.turn(server, 'S7');
      const branches = [0, 1].map(() => Object.assign(new Chat(kind), { messages: [...root.messages] }));
      for (let i = 0; i < 3; i++) {
        for (const branch of branches) await branch.turn(server, 'S7');
        await meanwhile();
      }
      for (const branch of branches) await branch.check(server, cold, 'S7');
    });

    it('S9: a document and different questions, without messages', async () => {
      const rnd = generator();
      const text = words(rnd, 2900);
      for (const [i, letter] of ['A', 'B', 'C', 'D'].entries()) {
        const prompt = text + letter + words(rnd, 70);
        const got = await greedyRaw(server, prompt);
        await cold.checkRaw(kind, prompt, got, `S9 ${i}`);
        if (i > 0) atMost(got.computed, (kind === 'full' ? 0 : i === 1 ? N : 1) + 71, `S9: question ${i}`);
        await meanwhile();
      }
    });

    it('F12: each prompt shares less with the first', async () => {
      const rnd = generator();
      const text = words(rnd, 2600);
      await greedyRaw(server, text, 2);
      for (let shared = 2300; shared >= 1500; shared -= 200) {
        const prompt = `${text.slice(0, shared)}${String.fromCharCode(33 + shared / 100)}${words(rnd, 300)}`;
        const got = await greedyRaw(server, prompt, 4);
        await cold.checkRaw(kind, prompt, got, `F12: ${shared}`);
        atMost(got.computed, got.prompt - shared + (kind === 'full' ? 0 : N), `F12: ${shared} shared`);
        const again = await greedyRaw(server, `${text.slice(0, shared)}~${words(rnd, 100)}`, 2);
        atMost(again.computed, again.prompt - shared + 1, `F12: ${shared} shared, once seen`);
      }
    });

    it('S10: more conversations than slots, in turn', async () => {
      const chats = Array.from({ length: 5 }, () => new Chat(kind, 200));
      for (let round = 1; round <= 3; round++) {
        for (const [i, chat] of chats.entries()) await chat.turn(server, `S10: conversation ${i}, turn ${round}`);
        if (life === 'restarted') await meanwhile();
      }
      for (const chat of chats) await chat.check(server, cold, 'S10');
    });

    it('S11: an unrelated short request between two turns of a long chat', async () => {
      const chat = new Chat(kind, 1800);
      await chat.turn(server, 'S11');
      await meanwhile(1);
      await chat.turn(server, 'S11: after one');
      await meanwhile();
      await chat.check(server, cold, 'S11: after three');
    });

    it('S14: a client that hangs up in the middle of a prefill, and comes again', async () => {
      const rnd = generator();
      const prompt = words(rnd, 2600);
      const gone = new AbortController();
      const response = await fetch(`${server.url}/completion`, { method: 'POST', signal: gone.signal,
        body: JSON.stringify({ prompt, n_predict: 1, stream: true, return_progress: true }) });
      let done = 0;
      await assert.rejects(async () => {
        for await (const { data } of events(response)) {
          if (!data) continue;
          done = Math.max(done, JSON.parse(data).prompt_progress?.processed ?? 0);
          if (done >= 500) gone.abort();
        }
      });
      assert.ok(done >= 500 && done < 2600, `hung up at ${done}`);
      await meanwhile();
      const got = await greedyRaw(server, prompt);
      atMost(got.computed, got.prompt - done + B[kind], 'S14');
      await cold.checkRaw(kind, prompt, got, 'S14');
    });

    it('S15: a prompt longer than the context', async () => {
      const chat = new Chat(kind, 500);
      await chat.turn(server, 'S15');
      const running = { messages: [{ role: 'user', content: words(generator(), 300) }] };
      const other = greedy(server, running.messages, 60);
      const { status, json } = await post(server, '/completion', { prompt: words(generator(), 9000), n_predict: 1 });
      assert.equal(status, 400);
      assert.equal(json.error.n_prompt_tokens, 9000);
      assert.equal(json.error.n_ctx, 8192);
      await cold.check(kind, running.messages, await other, 'S15: one that ran meanwhile');
      await meanwhile();
      await chat.check(server, cold, 'S15: a conversation goes on');
    });

    it('S17: cache_prompt or store false read nothing, leave nothing, and take nothing from others', async () => {
      const chat = new Chat(kind, 500);
      await chat.turn(server, 'S17');
      chat.ask(40);
      for (const off of [{ cache_prompt: false }, { kvasir: { store: false } }]) {
        const own = [{ role: 'user', content: words(generator(), 600) }];
        for (const messages of [chat.messages, own, own]) {
          const got = await greedy(server, messages, 8, off);
          assert.equal(got.computed, got.prompt, JSON.stringify(off));
          assert.equal(got.miss.reason, 'disabled');
          await cold.check(kind, messages, got, 'S17');
        }
        await meanwhile();
        const left = await greedy(server, own, 1);
        assert.ok(left.computed > left.prompt - 20, `nothing of it was left, but ${left.prompt - left.computed} tokens were found`);
      }
      chat.messages.pop();
      await chat.check(server, cold, 'S17: the conversation goes on');
    });

    it('S29: idle conversations beside a running one go on as if alone', async () => {
      const idle = Array.from({ length: 6 }, () => new Chat(kind, 350));
      for (const chat of idle) await chat.turn(server, 'S29');
      if (life === 'restarted') await meanwhile();
      const running = [{ role: 'user', content: words(generator(), 400) }];
      const got = greedy(server, running, 200);
      for (const chat of idle) await chat.turn(server, 'S29: resumed beside a running one');
      await cold.check(kind, running, await got, 'S29: the running one');
      for (const chat of idle) await chat.check(server, cold, 'S29');
    });
  });

  describe(`S16: two answers that overflow the cells, ${life}, ${kind}`, () => {
    const more = ['-c', '1024', ...(life === 'restarted' ? ['--cache-dir', folders.make()] : [])];
    let server;
    before(async () => {
      server = await startServer({ args: args(kind, ...more) });
    });
    after(() => server?.stop());

    it('both come to their end', async () => {
      const prompts = [0, 1].map(() => [{ role: 'user', content: words(generator(), 300) }]);
      const got = await Promise.all(prompts.map((messages) => greedy(server, messages, 500)));
      const metrics = await (await fetch(`${server.url}/metrics`)).text();
      assert.ok(Number(/^kvasir_preemptions_total (\d+)/m.exec(metrics)[1]) > 0, 'one was preempted');
      if (life === 'restarted') {
        await server.stop();
        server = await startServer({ args: args(kind, ...more) });
        for (const messages of prompts) got.push(await greedy(server, messages, 8));
        for (const again of got.slice(2)) assert.equal(again.computed, 1, 'S16: asked again');
      }
      for (const [i, answer] of got.entries()) {
        assert.equal(answer.tokens.length, i < 2 ? 500 : 8);
        await cold.check(kind, prompts[i % 2], answer, `S16: ${i}`);
      }
    });
  });
}
