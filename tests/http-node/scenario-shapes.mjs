// Conversations as users bring them, S1 to S30: each shape once, for every model, life and mode. `make test` runs them on
// tiny models at an eighth of the lengths, `make scenarios` on real tokenizers at their own and writes docs/scenarios.md.
//
//   id, what, expect   as docs/scenarios.md tells them
//   life               the only life in which it is a shape at all: 'memory' or 'restart'
//   skip(model, exact) why it does not apply, or null
//   apis               it costs the same through each of the three
//   timed              its figure is a time: measured for the table, in `make test` only the answers count
//   run(t)             t: a Case of scenario-world.mjs
import assert from 'node:assert/strict';
import { diskShapes } from './scenario-disk.mjs';
import { fieldShapes } from './scenario-fields.mjs';
import { timeShapes } from './scenario-time.mjs';
import { billing, hangUp, lookUp, noThoughts, noTools, tool, turned } from './scenario-parts.mjs';
import { post, Talk } from './scenario-world.mjs';

const conversations = [
  {
    id: 'S1', what: 'the same prompt twice', expect: '1 token',
    async run(t) {
      for (const long of [false, true]) { // the answer in between: short, or longer than a window
        const messages = [{ role: 'user', content: t.text(t.some(600)) }];
        await t.ask(messages, long ? { play: t.answer({ text: t.text(Math.min(t.some(300), 300)) }) } : {});
        const at_once = await t.ask(messages);
        t.within(at_once, 1, 'at once');
        await t.between();
        const later = await t.ask(messages);
        t.within(later, 1, 'later');
        if (long) await t.cold(later);
        else await t.coldToo(later);
      }
    },
  },
  {
    id: 'S2', what: 'append-only chat, 10 turns', expect: 'the new message and the edge of the answer before',
    async run(t) {
      const talk = new Talk(t, { system: t.some(300) });
      for (let turn = 1; turn < 10; turn++) {
        await talk.turn(`turn ${turn}`, { question: 20 + t.rnd(30), answer: 10 + t.rnd(20) });
        if (turn % 3 === 0) await t.between();
      }
      await talk.check('turn 10');
    },
  },
  {
    id: 'S3', what: 'same system prompt and tools, another question', expect: 'from the question on',
    async run(t) {
      const tools = t.model.call ? lookUp(t) : undefined;
      const system = { role: 'system', content: t.text(t.some(800)) };
      const ask = (word) => t.ask([system, { role: 'user', content: `${word} ${t.text(30)}` }], { n: 4, tools });
      await ask(t.word());
      await t.between();
      for (let i = 0; i < 2; i++) {
        const word = t.word();
        const got = await ask(word);
        // a template without a system role has its text in the question's own message
        const own = t.messageAt(got.text, got.text.lastIndexOf(word)) > got.text.indexOf(system.content);
        t.within(got, own ? await t.from(got, word) : await t.fresh(got), `question ${i + 2}`);
        await (i ? t.cold(got) : t.coldToo(got));
      }
    },
  },
  {
    id: 'S4', what: 'thinking model: the client drops the thoughts of earlier turns', expect: 'the answer without its thoughts and the new message',
    apis: true, skip: noThoughts,
    async run(t) {
      const talk = new Talk(t, { system: t.some(300) });
      for (let turn = 1; turn <= 5; turn++) {
        await talk.turn(`turn ${turn}`, { thought: t.model.bytes ? 200 : 60 });
        if (turn === 3) await t.between();
      }
    },
  },
  {
    id: 'S5', what: 'tool call and result appended, ten times', expect: 'the result and the edge of the call', apis: true, skip: noTools,
    async run(t) {
      const tools = lookUp(t);
      const messages = [{ role: 'system', content: t.text(t.some(300)) }, { role: 'user', content: t.text(30) }];
      for (let turn = 0; turn < 10; turn++) {
        const play = t.answer({ thought: t.model.thoughts ? t.text(20) : null, call: { name: 'look_up', args: { key: t.word(), n: turn } } });
        const got = await t.ask(messages, { play, tools });
        if (turn) t.within(got, await t.behind(got, '</tool_call>'), `result ${turn}`);
        assert.equal(got.message.tool_calls?.length, 1, JSON.stringify(got.message));
        messages.push(got.message, { role: 'tool', tool_call_id: got.message.tool_calls[0].id, content: t.text(40) });
        if (turn % 4 === 2) await t.between();
      }
      if (t.api !== 'chat') return;
      const last = await t.ask(messages, { tools });
      t.within(last, await t.behind(last, '</tool_call>'), 'the last result');
      await t.cold(last);
    },
  },
  {
    id: 'S6', what: 'an early message of a long chat is edited', expect: "from the edited message's beginning",
    async run(t) {
      const talk = new Talk(t, { system: t.some(300) });
      for (let i = 0; i < 7; i++) await talk.turn(`turn ${i}`);
      await t.between();
      for (const at of [9, 5, 3]) {
        const word = t.word();
        const messages = [...talk.messages.slice(0, at), { role: 'user', content: `${word} ${t.text(20)}` }, ...talk.messages.slice(at + 1, -1)];
        const got = await t.ask(messages, { n: 4 });
        t.within(got, await t.from(got, word), `message ${at}`);
        await (at === 3 ? t.cold(got) : t.coldToo(got));
      }
    },
  },
  {
    id: 'S7', what: 'branch at turn 5, both branches in turn', expect: 'after the first pass of each: as S2',
    async run(t) {
      const root = new Talk(t, { system: t.some(300) });
      for (let i = 0; i < 5; i++) await root.turn(`turn ${i}`);
      const branches = [root.fork(), root.fork()];
      for (let i = 0; i < 3; i++) {
        for (const [k, branch] of branches.entries()) await branch.turn(`branch ${k}, turn ${i}`);
        await t.between();
      }
      for (const branch of branches) await branch.check('at last');
    },
  },
  {
    id: 'S8', what: 'the last answer again', expect: '1 token',
    async run(t) {
      const talk = new Talk(t, { system: t.some(300) });
      for (let i = 0; i < 2; i++) await talk.turn(`turn ${i}`);
      talk.say(30);
      await talk.ask({ play: t.answer({ text: t.text(20) }) });
      for (let i = 0; i < 2; i++) {
        const got = await talk.ask();
        t.within(got, 1, `time ${i + 2}`);
        await (i ? t.cold(got) : t.coldToo(got));
        await t.between();
      }
    },
  },
  {
    id: 'S9', what: 'long document and different questions, without messages',
    expect: 'full: the question; else the second ≤ N + the question, from the third on 1 + the question',
    async run(t) {
      const document = t.text(t.n(23000));
      for (let i = 0; i < (t.quick ? 3 : 4); i++) {
        const question = ` ${'vwxyz'[i]}${t.word()} ${t.text(40)}`; // they part at their first letter
        const got = await t.raw(document + question, { n: 4 });
        const own = (await t.world.tokens(question)).length;
        if (i) t.within(got, own + (t.model.kind === 'full' ? 1 : i === 1 ? t.model.interval : 1), `question ${i + 1}`);
        await (i === 2 ? t.cold(got) : t.coldToo(got));
        await t.between();
      }
    },
  },
  {
    id: 'S10', what: 'more conversations than slots, in turn', expect: 'as S2 for each',
    async run(t) {
      const talks = Array.from({ length: 5 }, () => new Talk(t, { system: t.some(200) }));
      for (let round = 0; round < 3; round++) {
        for (const [i, talk] of talks.entries()) await talk.turn(`conversation ${i}, turn ${round}`);
        if (t.world.life === 'restart') await t.between();
      }
      for (const talk of t.quick ? talks.slice(0, 1) : talks) await talk.check('at last');
    },
  },
  {
    id: 'S11', what: 'an unrelated short request between two turns of a 20K chat', expect: 'as S2',
    async run(t) {
      const talk = new Talk(t, { system: t.n(20000) });
      await talk.turn('first');
      await t.between(1);
      await talk.turn('after one');
      await t.between();
      await talk.check('after three');
    },
  },
  {
    id: 'S14', what: 'the client hangs up in the middle of a long prefill and comes again', expect: 'within B of where it was',
    async run(t) {
      const prompt = t.text(t.n(20000));
      const tokens = await t.world.tokens(prompt);
      const { processed } = await hangUp(t, prompt, tokens.length / 5);
      await t.between();
      const got = await t.raw(prompt);
      const B = t.exact ? t.model.chunk : t.model.block;
      got.earlier.push({ tokens, n: Math.max(1, processed), cut: true });
      t.within(got, got.prompt - processed + B, `hung up at ${processed}`);
      await t.cold(got);
    },
  },
  {
    id: 'S15', what: 'a prompt longer than the context', expect: '400 with both numbers; nothing lost, others unharmed',
    async run(t) {
      const talk = new Talk(t, { system: t.some(500) });
      await talk.turn('before');
      const running = t.raw(t.text(t.some(300)), { n: 24 });
      const prompt = t.text(t.model.context + 300);
      const n = (await t.world.tokens(prompt)).length;
      const { status, json } = await post(await t.world.up(), '/completion', { prompt, n_predict: 1 }, { 'x-kvasir-scope': t.scope });
      assert.equal(status, 400);
      assert.ok([n, n + 1].includes(json.error.n_prompt_tokens), JSON.stringify(json));
      assert.equal(json.error.n_ctx, t.model.context);
      await t.cold(await running, 'one that ran meanwhile');
      await t.between();
      await talk.check('goes on');
    },
  },
  {
    id: 'S16', what: 'two long generations that together overflow the cells', expect: 'both finish',
    skip: (m, exact) => (exact ? 'one request at a time' : null),
    async run(t) {
      const args = t.world.args('-c', '1024', ...(t.world.disk ? ['--cache-dir', t.world.folders.make()] : []));
      const long = 460, prompts = [0, 1].map(() => t.text(300));
      let server = await t.world.own(args);
      const answers = await Promise.all(prompts.map((p) => t.raw(p, { n: long, server })));
      const metrics = await (await fetch(`${server.url}/metrics`)).text();
      assert.ok(Number(/^kvasir_preemptions_total (\d+)/m.exec(metrics)[1]) > 0, 'one was preempted');
      for (const [i, got] of answers.entries()) {
        assert.equal(got.json.tokens_predicted, long);
        await t.cold(got, `answer ${i}`);
      }
      t.figure(Math.min(...answers.map((got) => got.json.tokens_predicted)), long, 'tokens of each answer', { least: true });
      if (t.world.life === 'restart') {
        await server.stop();
        server = await t.world.own(args);
        for (const p of prompts) t.within(await t.raw(p, { server }), 1, 'asked again');
      }
      await server.stop();
    },
  },
  {
    id: 'S17', what: '`cache_prompt: false`, `kvasir: {store: false}`', expect: 'all computed; nothing read, written or lost',
    async run(t) {
      const talk = new Talk(t, { system: t.some(500) });
      await talk.turn('before');
      talk.say(30);
      for (const off of [{ cache_prompt: false }, { kvasir: { store: false } }]) {
        const own = [{ role: 'user', content: `${t.word()} ${t.text(t.some(600))}` }];
        for (const messages of [talk.messages, own, own]) {
          const got = await t.ask(messages, { more: off });
          assert.equal(got.computed, got.prompt, JSON.stringify(off));
          assert.equal(got.miss.reason, 'disabled');
          await t.coldToo(got, JSON.stringify(off));
        }
        t.history.splice(-3); // nothing of these is there
        await t.between();
        const left = await t.ask(own, { n: 1 });
        t.figure(left.computed, (await t.fresh(left)) - 20, 'tokens of what was not to be kept, computed again', { least: true });
      }
      talk.messages.pop();
      await talk.check('goes on');
    },
  },
  {
    id: 'S19', what: 'system prompt with a changing nonce', expect: 'known ones: as S2; unknown: the reason points at the text', apis: true,
    async run(t) {
      const talk = new Talk(t, { system: 8 });
      const rules = t.text(t.some(600));
      for (let turn = 0; turn < 3; turn++) {
        talk.messages[0] = { role: 'system', content: `${billing(t)}\n${rules}` };
        await talk.turn(`turn ${turn}`);
        await t.between();
      }
      for (let turn = 0; turn < 2; turn++) {
        const stamp = `2026-11-30T0${2 + turn}:1${t.rnd(10)}:00Z`;
        const got = await t.ask([{ role: 'system', content: `Rules. The time is ${stamp}. ${rules}` }, { role: 'user', content: t.text(20) }], { n: 1 });
        if (turn === 0) continue;
        assert.ok(got.miss, 'nothing of it can be found');
        if (t.exact) continue; // the reason is where chunks end
        assert.match(got.miss.reason, /diverged|no_window|no_checkpoint/, JSON.stringify(got.miss));
        assert.match(`${got.miss.text} ${got.miss.hint}`, /:1\d:00Z/, JSON.stringify(got.miss));
      }
    },
  },
  {
    id: 'S20', what: 'tool schemas with their keys in another order', expect: 'as S2', apis: true,
    skip: (m, exact) => noTools(m) ?? null,
    async run(t) {
      const talk = new Talk(t, { system: t.some(300), tools: [...lookUp(t), tool('open_page', t.text(20), { address: { type: 'string', maxLength: 300 } })] });
      for (let turn = 0; turn < 3; turn++) {
        await talk.turn(`turn ${turn}`);
        talk.tools = talk.tools.map(turned);
        await t.between();
      }
    },
  },
  {
    id: 'S21', what: 'sampled text that is tokenised otherwise when it comes back', expect: 'as S2', skip: (m) => (m.bytes ? 'each text has one spelling where tokens are bytes' : null),
    async run(t) {
      const talk = new Talk(t, { system: t.some(300) });
      for (let turn = 0; turn < 3; turn++) {
        const question = talk.say(30);
        const text = t.text(12);
        const letters = [];
        for (const c of text) letters.push(...await t.world.tokens(c));
        const begin = t.answer({}) ? await t.world.tokens(t.answer({})) : [];
        const got = await talk.ask({ play: [...begin, ...letters] });
        assert.equal(got.message.content.trim(), text);
        await talk.judge(got, `turn ${turn}`);
        talk.messages.push({ role: 'assistant', content: got.message.content });
        talk.last = { text, sampled: t.model.sampled, question };
        await t.between();
      }
    },
  },
];

export const shapes = [...conversations, ...diskShapes, ...timeShapes, ...fieldShapes]
  .sort((a, b) => a.id[0].localeCompare(b.id[0]) * -1 || Number(a.id.slice(1)) - Number(b.id.slice(1)));
