// `make dist`: the archive unpacks somewhere else, asks for nothing from here, starts, answers and stops. And what it and
// `make install` bring for service managers is well-formed.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { binary, model, root, runKvasir } from './server.mjs';

const scratch = mkdtempSync(path.join(os.tmpdir(), 'kvasir-dist-'));
after(() => rmSync(scratch, { recursive: true, force: true }));

function run(program, args, options = {}) {
  const { status, stdout, stderr, error } = spawnSync(program, args, { encoding: 'utf8', ...options });
  assert.equal(status, 0, `${program} ${args.join(' ')}: ${error ?? ''}\n${stdout}\n${stderr}`);
  return stdout;
}

const packaging = (name) => readFileSync(path.join(root, 'packaging', name), 'utf8')
  .replaceAll('@KVASIR_BINARY@', binary).replaceAll('@KVASIR_GPU_GROUPS@', 'video render');

test('the archive runs where it is unpacked', (t) => {
  const build = path.dirname(binary);
  if (!existsSync(path.join(build, 'share', 'kvasir.1'))) return t.skip(`${build} is a sanitizer's build, nothing to pack`);
  const archive = run(path.join(root, 'scripts', 'dist.sh'), [build, scratch]).trim();
  assert.match(run(path.join(root, 'scripts', 'dist-test.sh'), [archive, model('tiny/llama.gguf')]), /unpacks, starts, answers and stops/);
});

for (const [name, unit, args] of [['kvasir.service.in', 'kvasir.service', []], ['kvasir.user.service.in', 'kvasir-user.service', ['--user']]]) {
  test(`systemd finds nothing wrong with ${name}`, (t) => {
    if (spawnSync('systemd-analyze', ['--version']).error) return t.skip('there is no systemd-analyze');
    const file = path.join(scratch, unit);
    writeFileSync(file, packaging(name));
    const { status, stderr } = spawnSync('systemd-analyze', ['verify', '--man=no', ...args, file],
      { encoding: 'utf8', env: { ...process.env, XDG_RUNTIME_DIR: scratch } });
    assert.equal(stderr.trim(), '');
    assert.equal(status, 0);
  });
}

test('managers wait longer for a stop than the server takes', async () => {
  const { stdout } = await runKvasir(['serve', '--print-config', '-m', 'x.gguf']);
  const limit = Number(/^#? ?stop-timeout = (\d+)$/m.exec(stdout)[1]);
  const least = (text, pattern) => Number(pattern.exec(text)[1]) > limit;
  assert.ok(least(packaging('kvasir.service.in'), /^TimeoutStopSec=(\d+)s$/m));
  assert.ok(least(packaging('kvasir.user.service.in'), /^TimeoutStopSec=(\d+)s$/m));
  assert.ok(least(packaging('kvasir.server.plist.in'), /<key>ExitTimeOut<\/key>\s*<integer>(\d+)</));
  assert.ok(least(packaging('compose.yaml'), /stop_grace_period: (\d+)s/));
});

test('the launch agent is a property list, and its options are known', async () => {
  const plist = JSON.parse(run('python3', ['-c', 'import json, plistlib, sys; print(json.dumps(plistlib.loads(sys.stdin.buffer.read())))'],
    { input: packaging('kvasir.server.plist.in') }));
  assert.equal(plist.ProgramArguments[0], binary);
  const { code, stderr } = await runKvasir([...plist.ProgramArguments.slice(1), '--print-config']);
  assert.equal(code, 0, stderr);
});

test('the example settings are read', async () => {
  const { code, stderr, stdout } = await runKvasir(['serve', '--config', path.join(root, 'packaging', 'kvasir.conf'), '--print-config']);
  assert.equal(code, 0, stderr);
  assert.match(stdout, /^model = \/var\/lib\/models\/model\.gguf$/m);
  // What stands there as a comment is right too.
  const uncommented = path.join(scratch, 'all.conf');
  writeFileSync(uncommented, readFileSync(path.join(root, 'packaging', 'kvasir.conf'), 'utf8').replaceAll(/^# ([a-z-]+ = )/gm, '$1'));
  const all = await runKvasir(['serve', '--config', uncommented, '--print-config']);
  assert.equal(all.code, 0, all.stderr);
  assert.match(all.stdout, /^cache-disk = 20G$|^cache-disk = 21474836480$/m);
});
