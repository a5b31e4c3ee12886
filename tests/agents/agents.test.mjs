// `make test` runs the agent that installs in seconds (Continue, 80 MB); `make agents` runs all of them.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import path from 'node:path';
import { it } from 'node:test';
import { binary, noRealModel, root } from '../http-node/server.mjs';

it('Continue does a task, goes on, and goes on after a restart', { skip: noRealModel }, () => {
  const { NODE_TEST_CONTEXT, ...env } = process.env; // else the inner node would report to the outer one
  const run = spawnSync(path.join(root, 'scripts', 'agents.sh'), [path.dirname(binary), 'continue'], { env, encoding: 'utf8' });
  assert.equal(run.status, 0, `${run.stdout}\n${run.stderr}`);
  assert.match(run.stdout, /pass 3\b/);
});
