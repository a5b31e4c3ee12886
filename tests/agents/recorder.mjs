// A proxy in front of a server that keeps what a client sends and gets.
//
//   const recorder = await record(server.url, folder);
//   … the client talks to recorder.url …
//   recorder.requests     [{ id, method, path, body (parsed JSON or null), status }], in the order in which they came
//   recorder.to(other.url)            from now on: after a restart, clients keep their address
//   await recorder.stop();
//
// Each request is named by an X-Request-Id of ours, which the server's log line repeats, and leaves NNN-request.json and
// NNN-response.txt in the folder.
import { mkdirSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import path from 'node:path';

export async function record(url, folder) {
  mkdirSync(folder, { recursive: true });
  const recorder = { requests: [], target: url };
  const pass = (request, body, response) => {
    const n = recorder.requests.length, id = `agent-${String(n).padStart(3, '0')}`;
    const file = (what) => path.join(folder, `${id}-${what}`);
    const entry = { id, method: request.method, path: request.url, body: null, status: 0 };
    try { entry.body = JSON.parse(body); } catch { /* none */ }
    recorder.requests.push(entry);
    writeFileSync(file('request.json'), JSON.stringify({ ...entry, headers: request.headers, body: entry.body ?? body.toString() }, null, 1));
    const forwarded = http.request(new URL(request.url, recorder.target), {
      method: request.method, headers: { ...request.headers, host: new URL(recorder.target).host, 'x-request-id': id },
    }, (answer) => {
      const parts = [];
      entry.status = answer.statusCode;
      response.writeHead(answer.statusCode, answer.headers);
      answer.on('data', (part) => parts.push(part));
      answer.on('close', () => writeFileSync(file('response.txt'), `${answer.statusCode} ${JSON.stringify(answer.headers)}\n\n${Buffer.concat(parts)}`));
      answer.pipe(response);
    });
    forwarded.on('error', () => response.destroy());
    response.on('close', () => { if (!response.writableEnded) forwarded.destroy(); });
    forwarded.end(body);
  };
  const proxy = http.createServer((request, response) => {
    const parts = [];
    request.on('data', (part) => parts.push(part));
    request.on('end', () => pass(request, Buffer.concat(parts), response));
  });
  await new Promise((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  recorder.url = `http://127.0.0.1:${proxy.address().port}`;
  recorder.to = (other) => { recorder.target = other; };
  recorder.stop = () => new Promise((resolve) => {
    proxy.close(resolve);
    proxy.closeAllConnections();
  });
  return recorder;
}
