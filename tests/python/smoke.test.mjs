// The clients of Python against one server: tests/python/smoke.py, in an environment of its own in build/.
import assert from 'node:assert/strict';
import { execFile, execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { model, root, startServer } from '../http-node/server.mjs';

test('openai, anthropic and ollama of Python', async () => {
  const python = execFileSync(path.join(root, 'scripts/python-env.sh'), { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] }).trim();
  const state = mkdtempSync(path.join(os.tmpdir(), 'kvasir-python-'));
  const server = await startServer({
    args: ['-m', model('tiny/llama.gguf'), '--alias', 'tiny', '-c', '8192', '-np', '1', '-t', '1', '--test-sampler', '--state-dir', state, '--chat-template-file',
      path.join(root, 'build/engine/source/models/templates/Qwen-Qwen3-0.6B.jinja')],
  });
  try {
    const { stdout } = await promisify(execFile)(python, [path.join(root, 'tests/python/smoke.py'), server.url]);
    assert.deepEqual(stdout.trim().split('\n'), ['ok with_openai', 'ok with_anthropic', 'ok with_ollama']);
  } finally {
    await server.stop();
    rmSync(state, { recursive: true });
  }
});
