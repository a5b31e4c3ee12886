// One conversation through each of three APIs. It is kept as OpenAI's messages; each adapter says it in its API's own
// words, without anything that the server remembers (no previous_response_id), and reads the answer back.
//
//   send(body) → { path, body }     body: { messages, tools?, play?, max, more }
//   read(json) → { prompt, message }

const textOf = (content) => (typeof content === 'string' ? content : content == null ? '' : content.map((p) => p.text).join(''));

const chat = {
  path: '/v1/chat/completions',
  send: ({ messages, tools, max, more }) => ({ messages, ...(tools ? { tools } : {}), max_tokens: max, ...more }),
  read: (json) => ({ prompt: json.usage.prompt_tokens, message: json.choices[0].message }),
};

/* ── Anthropic's Messages ── */

const asBlocks = (m) => [
  ...(m.reasoning_content ? [{ type: 'thinking', thinking: m.reasoning_content, signature: '' }] : []),
  ...(textOf(m.content) ? [{ type: 'text', text: textOf(m.content) }] : []),
  ...(m.tool_calls ?? []).map((c) => ({ type: 'tool_use', id: c.id, name: c.function.name, input: { '@raw': c.function.arguments } })),
];

const anthropic = {
  path: '/v1/messages',
  send({ messages, tools, max, more }) {
    const [first] = messages;
    const body = { model: 'any', max_tokens: max, messages: [], ...more };
    if (first.role === 'system') body.system = [{ type: 'text', text: textOf(first.content) }];
    if (tools) body.tools = tools.map(({ function: f }) => ({ name: f.name, description: f.description, input_schema: f.parameters }));
    for (const m of messages.slice(first.role === 'system' ? 1 : 0)) {
      const last = body.messages.at(-1);
      if (m.role === 'assistant') body.messages.push({ role: 'assistant', content: asBlocks(m) });
      else if (m.role === 'tool') {
        const block = { type: 'tool_result', tool_use_id: m.tool_call_id, content: m.content };
        if (last?.role === 'user' && last.content.at(-1)?.type === 'tool_result') last.content.push(block);
        else body.messages.push({ role: 'user', content: [block] });
      } else body.messages.push({ role: m.role, content: [{ type: 'text', text: textOf(m.content) }] });
    }
    return body;
  },
  read(json) {
    const u = json.usage;
    const of = (type) => json.content.filter((b) => b.type === type);
    const message = { role: 'assistant', content: of('text').map((b) => b.text).join('') };
    if (of('thinking').length) message.reasoning_content = of('thinking').map((b) => b.thinking).join('');
    if (of('tool_use').length) {
      message.tool_calls = of('tool_use').map((b) => ({ id: b.id, type: 'function', function: { name: b.name, arguments: JSON.stringify(b.input) } }));
    }
    return { prompt: u.input_tokens + (u.cache_read_input_tokens ?? 0) + (u.cache_creation_input_tokens ?? 0), message };
  },
};

/* ── OpenAI's Responses ── */

const responses = {
  path: '/v1/responses',
  send({ messages, tools, max, more }) {
    const [first] = messages;
    const body = { model: 'any', store: false, max_output_tokens: max, input: [], ...more };
    if (first.role === 'system') body.instructions = textOf(first.content);
    if (tools) body.tools = tools.map(({ function: f }) => ({ type: 'function', ...f }));
    for (const m of messages.slice(first.role === 'system' ? 1 : 0)) {
      if (m.role === 'assistant') {
        if (m.reasoning_content) body.input.push({ type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: m.reasoning_content }] });
        if (textOf(m.content)) body.input.push({ type: 'message', role: 'assistant', content: [{ type: 'output_text', text: textOf(m.content), annotations: [] }] });
        for (const c of m.tool_calls ?? []) {
          body.input.push({ type: 'function_call', call_id: c.id, name: c.function.name, arguments: c.function.arguments });
        }
      } else if (m.role === 'tool') body.input.push({ type: 'function_call_output', call_id: m.tool_call_id, output: m.content });
      else body.input.push({ type: 'message', role: m.role, content: [{ type: 'input_text', text: textOf(m.content) }] });
    }
    return body;
  },
  read(json) {
    const of = (type) => json.output.filter((o) => o.type === type);
    const message = { role: 'assistant', content: of('message').flatMap((o) => o.content).map((c) => c.text).join('') };
    const thoughts = of('reasoning').flatMap((o) => (o.content?.length ? o.content : o.summary)).map((c) => c.text).join('');
    if (thoughts) message.reasoning_content = thoughts;
    const calls = of('function_call');
    if (calls.length) message.tool_calls = calls.map((o) => ({ id: o.call_id, type: 'function', function: { name: o.name, arguments: o.arguments } }));
    return { prompt: json.usage.input_tokens, message };
  },
};

export const apis = { chat, anthropic, responses };

/** A body as text. Arguments of a call stand in Anthropic's as the text that they are in the other two (1.0 stays 1.0). */
export const spell = (body) => JSON.stringify(body).replace(/\{"@raw":("(?:[^"\\]|\\.)*")\}/g, (_, text) => JSON.parse(text));
