// F1 to F15: what clients in the field send, from public bug reports; and an agent's thoughts over ten turns.
import assert from 'node:assert/strict';
import { billing, hangUp, lookUp, noThoughts, noTools, tool, turned } from './scenario-parts.mjs';
import { Talk } from './scenario-world.mjs';

const KEYS = ['key', 'name', 'zone', 'address', 'number', 'colour'];
const manyTools = (t, n = 6) => Array.from({ length: n }, (_, i) => tool(`tool_${i}`, t.text(20), { [KEYS[i % KEYS.length]]: { type: 'string', description: t.text(6) } }));
const dropsThoughts = (m) => noThoughts(m) ?? (m.thoughts === 'dropped' ? null : 'its template keeps the thoughts that it is given');

/** An agent's request of one kind after the other: a call is played, and its result appended. */
class Agent {
  constructor(t, system, more = {}) {
    Object.assign(this, { t, tools: lookUp(t), more, messages: [{ role: 'system', content: t.text(system) }] });
  }

  ask(parts) {
    return this.t.ask(this.messages, { tools: this.tools, play: this.t.answer(parts), more: this.more });
  }

  call(n = 0, args = { key: this.t.word(), n }) {
    return { name: 'look_up', args };
  }

  result(message, content = this.t.text(30)) {
    this.messages.push(message, { role: 'tool', tool_call_id: message.tool_calls[0].id, content });
  }
}

export const fieldShapes = [
  {
    id: 'F1', what: 'a billing header with fresh checksums begins the system prompt; 20K of system and tools follow',
    expect: 'rule on: new messages only; off: all, with a reason that shows the line', apis: true,
    async run(t) {
      const rules = t.text(t.n(20000) - (t.quick ? 600 : 100));
      const tools = t.model.call ? lookUp(t) : undefined;
      const talk = new Talk(t, { system: 8, tools });
      for (let turn = 0; turn < 4; turn++) {
        talk.messages[0] = { role: 'system', content: `${billing(t)}\n${rules}` };
        await talk.turn(`turn ${turn}`);
        if (turn === 1) await t.between();
      }
      if (t.api !== 'chat') return;
      const server = await t.world.own(t.world.args('--canonicalise', 'none'));
      const short = t.text(t.some(300));
      for (let turn = 0; turn < 2; turn++) {
        const line = billing(t);
        const got = await t.ask([{ role: 'system', content: `${line}\n${short}` }, { role: 'user', content: 'on' }], { server, n: 1 });
        if (turn === 0) continue;
        assert.ok(got.computed >= (await t.world.tokens(short)).length, 'the rule is off');
        assert.ok(got.miss, 'it has a reason');
        if (t.exact) continue; // the reason is where chunks end
        const shown = `${got.miss.text} ${got.miss.hint}`; // from where it can go on, or from where they part
        assert.ok(shown.includes('x-anthropic-billing') || line.includes(got.miss.text.slice(0, 8)), `${line}: ${JSON.stringify(got.miss)}`);
      }
      await server.stop();
    },
  },
  {
    id: 'F2', what: 'tools in another order; some vanish for one turn and return',
    expect: 'from the first moved tool; on return what was added meanwhile', apis: true, skip: noTools,
    async run(t) {
      const all = manyTools(t);
      const talk = new Talk(t, { system: t.some(300), tools: all });
      for (let i = 0; i < 2; i++) await talk.turn(`turn ${i}`);
      for (const [what, tools] of [['moved', [...all.slice(0, 3), all[5], all[3], all[4]]], ['two vanished', all.slice(0, 4)], ['returned', all]]) {
        talk.tools = tools;
        talk.say(20);
        await t.between();
        const got = await talk.ask({ play: t.answer({ text: t.text(10) }) });
        t.within(got, await t.fresh(got), what);
        talk.messages.push({ role: 'assistant', content: got.message.content });
      }
    },
  },
  {
    id: 'F3', what: 'a reminder stands behind the last user message only', expect: 'from the end of the old user text on', apis: true,
    async run(t) {
      const talk = new Talk(t, { system: t.some(300) });
      for (let turn = 0; turn < 4; turn++) {
        const old = talk.say(30);
        const user = talk.messages.at(-1);
        user.content = `${old}\n\n<reminder>The mode is ${t.word()}.</reminder>`;
        const got = await talk.ask({ play: t.answer({ text: t.text(20) }) });
        if (turn) t.within(got, await t.fresh(got), `turn ${turn}`);
        user.content = old;
        talk.messages.push({ role: 'assistant', content: got.message.content });
        if (turn === 1) await t.between();
      }
    },
  },
  {
    id: 'F4', what: 'a system message in the middle, after each result', expect: "the new tail; else a 4xx with the template's error", apis: true,
    async run(t) {
      const { model } = t;
      const agent = model.call ? new Agent(t, t.some(300)) : null;
      const messages = agent?.messages ?? [{ role: 'system', content: t.text(t.some(300)) }];
      messages.push({ role: 'user', content: t.text(30) });
      let last = null;
      for (let turn = 0; turn < 4; turn++) {
        const text = agent ? '</tool_call>' : t.text(12);
        const play = agent ? t.answer({ call: agent.call(turn) }) : t.answer({ text });
        if (turn && !model.middle) {
          const { status, json } = await t.ask(messages, { play, tools: agent?.tools, refused: true });
          assert.equal(status, 400, JSON.stringify(json));
          assert.match(JSON.stringify(json), /must be at the beginning|must alternate/);
          return t.note('4xx');
        }
        const got = await t.ask(messages, { play, tools: agent?.tools });
        if (turn) t.within(got, await t.behind(got, last), `turn ${turn}`);
        if (agent) agent.result(got.message);
        else messages.push({ role: 'assistant', content: got.message.content }, { role: 'user', content: t.text(20) });
        messages.push({ role: 'system', content: `${9000 - 700 * turn} tokens are left.` });
        last = text;
        if (turn === 1) await t.between();
      }
    },
  },
  {
    id: 'F5', what: 'the replayed text lacks its newline before a tool call', expect: 'the result and the edge of the call; from the visible text on where the template cuts blanks', apis: true, skip: noTools,
    async run(t) {
      const agent = new Agent(t, t.some(300));
      agent.messages.push({ role: 'user', content: t.text(30) });
      for (let turn = 0; turn < 4; turn++) {
        const { name, args } = agent.call(turn);
        const text = t.text(12);
        const play = `${t.answer({ text })}\n\n\n${t.model.call(name, args)}`;
        const got = await t.ask(agent.messages, { play, tools: agent.tools });
        // a template that cuts blanks off cannot write what was sampled: from the end of the visible text on
        if (turn) t.within(got, t.model.sampled ? await t.behind(got, '</tool_call>') : await t.fresh(got), `result ${turn}`);
        assert.equal(got.message.content.trim(), text);
        agent.result({ ...got.message, content: text });
        if (turn === 1) await t.between();
      }
    },
  },
  {
    id: 'F6', what: "a call's arguments come back with sorted keys, other blanks, 1.0 for 1", expect: 'the result and the edge of the call',
    apis: true, skip: noTools,
    async run(t) {
      const agent = new Agent(t, t.some(300));
      agent.messages.push({ role: 'user', content: t.text(30) });
      for (let turn = 0; turn < 4; turn++) {
        const key = t.word();
        const got = await agent.ask({ call: { name: 'look_up', args: { n: 1, key } } });
        if (turn) t.within(got, await t.behind(got, '</tool_call>'), `result ${turn}`);
        const [call] = got.message.tool_calls;
        assert.deepEqual(JSON.parse(call.function.arguments), { key, n: 1 });
        call.function.arguments = `{ "key":"${key}",  "n":1.0}`;
        agent.result(got.message);
        if (turn === 1) await t.between();
      }
    },
  },
  {
    id: 'F7', what: 'thoughts are kept behind the last question only: question, call, result, call, result, answer, next question',
    expect: 'from the first answer after the question before', apis: true, skip: (m) => noTools(m) ?? dropsThoughts(m),
    async run(t) {
      const agent = new Agent(t, t.some(300));
      let question = null;
      for (let round = 0; round < 3; round++) {
        const asked = t.text(30);
        agent.messages.push({ role: 'user', content: asked });
        for (let k = 0; k < 2; k++) {
          const got = await agent.ask({ thought: t.text(30), call: agent.call(k) });
          if (k) t.within(got, await t.behind(got, '</tool_call>'), `round ${round}, result`);
          else if (question) t.within(got, await t.behind(got, question), `round ${round}, question`);
          agent.result(got.message);
        }
        const got = await agent.ask({ thought: t.text(30), text: t.text(20) });
        t.within(got, await t.behind(got, '</tool_call>'), `round ${round}, last result`);
        agent.messages.push(got.message);
        question = asked;
        if (round === 1) await t.between();
      }
    },
  },
  {
    id: 'F8', what: 'thinking on and off in turn: the generation prompt has an empty think block that history has not',
    expect: 'the last reply and the new message', apis: true, skip: dropsThoughts,
    async run(t) {
      const talk = new Talk(t, { system: t.some(300) });
      for (let turn = 0; turn < 5; turn++) {
        const on = turn % 2 === 1;
        talk.more = { chat_template_kwargs: { enable_thinking: on } };
        const question = talk.say(30), text = t.text(20);
        const got = await talk.ask({ play: on ? t.answer({ thought: t.text(20), text }) : text });
        if (turn) t.within(got, await t.behind(got, talk.last.question), `turn ${turn}`);
        assert.equal(got.message.content.trim(), text);
        talk.messages.push({ role: 'assistant', content: text });
        talk.last = { question };
        if (turn === 2) await t.between();
      }
      talk.say(20);
      for (let i = 0; i < 4; i++) { // the same prompt, on and off
        const got = await talk.ask({ n: 2, api: 'chat', more: { chat_template_kwargs: { enable_thinking: i % 2 === 0 } } });
        if (i > 1) t.within(got, 1, 'the same question again');
      }
    },
  },
  {
    id: 'F9', what: 'compaction: the history as one user message; then system, tools, summary and the last messages',
    expect: 'compaction: all; then the summary and the kept tail; the old branch is still there',
    async run(t) {
      const tools = t.model.call ? lookUp(t) : undefined;
      const talk = new Talk(t, { system: t.some(600), tools });
      for (let i = 0; i < 5; i++) await talk.turn(`turn ${i}`);
      const flat = talk.messages.map((m) => `${m.role}: ${m.content}`).join('\n');
      await t.ask([{ role: 'user', content: `Sum up.\n${flat}` }], { play: t.answer({ text: t.text(30) }) });
      await t.between();
      const small = new Talk(t, { system: talk.messages[0].content, tools });
      const word = t.word();
      small.messages.push({ role: 'user', content: `${word} ${t.text(40)}` }, ...talk.messages.slice(-3));
      small.say(20);
      const got = await small.ask({ play: t.answer({ text: t.text(20) }) });
      // where the system prompt is a part of the first user message, that is what parts
      t.within(got, t.messageAt(got.text, got.text.lastIndexOf(word)) > got.text.indexOf(talk.messages[0].content)
        ? await t.from(got, word) : await t.fresh(got), 'the first one after it');
      await talk.check('the old branch');
    },
  },
  {
    id: 'F10', what: 'prompt, answer, the same prompt again, five times', expect: '1 token each',
    async run(t) {
      const messages = [{ role: 'system', content: t.text(t.some(300)) }, { role: 'user', content: t.text(40) }];
      for (let i = 0; i < 6; i++) {
        const got = await t.ask(messages, { play: t.answer({ text: t.text(20 + 10 * i) }) });
        if (i) t.within(got, 1, `time ${i + 1}`);
        if (i === 2) await t.between();
      }
      const got = await t.ask(messages);
      t.within(got, 1, 'at last');
      await t.cold(got);
    },
  },
  {
    id: 'F11', what: 'the stored path overruns what is shared by a few tokens', expect: "full: from where they part; else from the prompt's end",
    async run(t) {
      const talk = new Talk(t, { system: t.some(300) });
      for (let turn = 0; turn < 3; turn++) {
        const question = talk.say(30), text = t.text(20);
        const got = await talk.ask({ play: t.answer({ text: `${text}xyz` }) });
        if (turn) t.within(got, t.model.kind === 'full' && t.model.sampled ? await t.fresh(got) : await t.behind(got, talk.last.question), `turn ${turn}`);
        talk.messages.push({ role: 'assistant', content: text });
        talk.last = { question };
        await t.between();
      }
    },
  },
  {
    id: 'F12', what: 'each prompt shares less with the first: 1,600 + 600, then 1,500 + 700 … in steps of 100', expect: 'P − D + N each; no cliff',
    async run(t) {
      const total = Math.min(2200, Math.floor(t.model.context * 0.75));
      const text = t.text(total).slice(0, t.model.bytes ? total : undefined);
      const ids = await t.world.tokens(text);
      await t.raw(ids, { n: 2 });
      for (let shared = Math.floor(total * 0.73); shared >= total * (t.quick ? 0.5 : 0.35); shared -= t.quick ? 200 : 100) {
        const prompt = [...ids.slice(0, shared), ...await t.world.tokens(` ${t.word()} ${t.text(Math.max(1, total - shared - 20))}`)];
        const got = await t.raw(prompt, { n: 2 });
        t.within(got, prompt.length - shared + (t.model.kind === 'full' ? 0 : t.model.interval), `${shared} shared`);
        await t.coldToo(got, `${shared} shared`);
        if (!t.quick) continue;
        const again = await t.raw([...ids.slice(0, shared), ...await t.world.tokens(` ${t.word()} ${t.text(100)}`)], { n: 2 });
        t.within(again, again.prompt - shared + 1, `${shared} shared, once seen`);
      }
      const last = await t.raw([...ids.slice(0, Math.floor(total / 2)), ...await t.world.tokens(` ${t.word()} ${t.text(60)}`)]);
      await t.cold(last, 'half shared');
    },
  },
  {
    id: 'F13', what: 'a main agent (100K) and sub-agents that share 12K of system prompt and tools, one after the other',
    expect: "a sub-agent: its own messages; the main one on return: the new tail",
    async run(t) {
      const tools = t.model.call ? lookUp(t) : undefined;
      const main = new Talk(t, { system: t.n(12000) - (t.n(12000) > t.model.context / 2 ? t.model.context / 4 : 0), tools });
      const room = t.n(100000) - main.messages[0].content.length / (t.model.bytes ? 1 : 5) - (t.model.call ? (t.model.bytes ? 1300 : 300) : 0);
      for (let i = 0; i < 3; i++) await main.turn(`main, turn ${i}`, { question: Math.max(30, Math.floor(room / 4)) });
      for (let sub = 0; sub < 2; sub++) {
        const talk = new Talk(t, { system: main.messages[0].content, tools });
        const word = t.word();
        talk.say(`${word} ${t.text(40)}`);
        const got = await talk.ask({ play: t.answer({ text: t.text(20) }) });
        const own = t.messageAt(got.text, got.text.lastIndexOf(word)) > got.text.indexOf(main.messages[0].content);
        t.within(got, own ? await t.from(got, word) : await t.fresh(got), `sub-agent ${sub}`);
        await t.between();
        await main.turn(`main after sub-agent ${sub}`);
      }
      await main.check('main at last');
    },
  },
  {
    id: 'F14', what: 'the client times out in the middle of a 40K prefill and sends the same again, three times', expect: 'in total P + one chunk a retry',
    async run(t) {
      const prompt = t.text(t.n(40000));
      const tokens = await t.world.tokens(prompt);
      let computed = 0, processed = 0;
      for (let i = 1; i <= 3; i++) {
        const seen = await hangUp(t, prompt, tokens.length * i / 5);
        computed += Math.max(0, seen.processed - seen.cached);
        processed = Math.max(processed, seen.processed);
        if (i === 2) await t.between();
      }
      const got = await t.raw(prompt, { n: 2 });
      got.earlier.push({ tokens, n: Math.max(1, processed), cut: true });
      t.within(got, got.prompt - processed + t.model.chunk, 'after the last retry');
      if (!t.exact || t.model.kind === 'full') t.figure(computed + got.computed, got.prompt + 3 * t.model.chunk, 'in all');
      await t.cold(got);
    },
  },
  {
    id: 'F15', what: 'two conversations busy, one ends, an unrelated one starts', expect: "never another's state; `cached` true to the tokens",
    async run(t) {
      for (let round = 0; round < 2; round++) {
        const prompt = t.text(t.some(300)), other = t.text(t.some(200));
        const busy = t.raw(prompt, { n: 60 });
        await t.raw(other, { n: 4 });
        const unrelated = `${t.word()} ${t.text(t.some(200))}`;
        const got = await t.raw(unrelated, { n: 8 });
        t.figure(got.reused, t.shared(got), 'cached tokens of an unrelated prompt');
        await t.cold(got, 'the unrelated one');
        await t.cold(await busy, 'the busy one');
        await t.between();
        const half = prompt.slice(0, prompt.length / 2).replace(/ \S*$/, '') + ` ${t.word()} ${t.text(20)}`;
        const part = await t.raw(half, { n: 4 });
        t.figure(part.reused, t.shared(part), 'cached tokens of one that shares half');
        await t.cold(part, 'one that shares half');
      }
    },
  },
  {
    id: 'T1', what: 'an agent thinks and calls tools over ten questions; thoughts dropped by the template', expect: 'what is new, and the answer without its thoughts',
    skip: (m) => noTools(m) ?? dropsThoughts(m), run: (t) => thinkingAgent(t, 'dropped'),
  },
  {
    id: 'T2', what: 'the same with a template that keeps the thoughts it is given', expect: 'what is new',
    skip: (m) => noTools(m) ?? noThoughts(m) ?? (m.thoughts === 'kept' ? null : 'its template drops the thoughts'), run: (t) => thinkingAgent(t, 'kept'),
  },
];

/** Ten questions; each is answered by a thought with a call, and after its result by a thought with a text. The client
 * sends the thoughts back. */
async function thinkingAgent(t, thoughts) {
  const agent = new Agent(t, t.some(300));
  let question = null;
  for (let turn = 0; turn < (t.quick ? 6 : 10); turn++) {
    const asked = t.text(30);
    agent.messages.push({ role: 'user', content: asked });
    const first = await agent.ask({ thought: t.text(30), call: agent.call(turn) });
    if (question) t.within(first, await t.behind(first, thoughts === 'kept' ? agent.last : question), `question ${turn}`);
    assert.ok(first.message.reasoning_content);
    agent.result(first.message);
    if (turn % 3 === 1) await t.between();
    agent.last = t.text(20);
    const second = await agent.ask({ thought: t.text(30), text: agent.last });
    t.within(second, await t.behind(second, '</tool_call>'), `result ${turn}`);
    agent.messages.push(second.message);
    question = asked;
  }
}
