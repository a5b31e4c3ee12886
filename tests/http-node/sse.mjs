// Reading server-sent events as they come, for tests that look below the clients.

/** Yields each event of a fetch Response: { data, comment, at } where `at` is performance.now() of its arrival. */
export async function* events(response) {
  const decoder = new TextDecoder();
  let text = '';
  for await (const part of response.body) {
    const at = performance.now();
    text += decoder.decode(part, { stream: true });
    const blocks = text.split('\n\n');
    text = blocks.pop();
    for (const block of blocks) {
      const lines = block.split('\n');
      const data = lines.filter((l) => l.startsWith('data:')).map((l) => l.slice(5).trimStart()).join('\n');
      const comment = lines.filter((l) => l.startsWith(':')).map((l) => l.slice(1).trim()).join('\n');
      yield { data, comment, at };
    }
  }
  if (text.trim()) throw new Error(`the stream ended inside an event: ${JSON.stringify(text)}`);
}

/** POSTs `body` and gives all events' parsed data, `[DONE]` as text. */
export async function post(url, body, headers = {}) {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
  return response;
}
