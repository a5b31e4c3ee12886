// S12, S13, S18 and S22 to S26: conversations that outlive their server, and bad days of the disk. Each has a directory of
// its own.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, chownSync, closeSync, openSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync, writeSync } from 'node:fs';
import path from 'node:path';
import { cacheTool, du, files, settled } from './scenario.mjs';
import { modelArgs, Talk } from './scenario-world.mjs';
import { binary, model, startServer } from './server.mjs';

const sum = (list) => list.reduce((a, f) => a + f.bytes, 0);
const ofKind = (dir, suffix) => [...files(path.join(dir, 'ns'))].filter((f) => f.path.endsWith(`.${suffix}`));
const removeIndex = (dir) => {
  for (const end of ['', '-wal', '-shm']) rmSync(path.join(dir, `index.sqlite${end}`), { force: true });
};

/** A shape's own directory, and the one server at a time that stands on it. */
class Disk {
  constructor(t) {
    this.t = t;
    this.dir = t.world.folders.make();
  }

  async start(...more) {
    await this.stop();
    this.server = await this.t.world.own(this.t.world.args('--cache-dir', this.dir, ...more));
    return this.server;
  }

  async stop(signal) {
    await this.server?.stop(signal);
    this.server = null;
  }

  verify() {
    return cacheTool(this.dir, 'verify');
  }
}

/** Turns of talks on a server of the shape's own. */
const turn = async (disk, talk, what, more = {}) => {
  const { t } = disk;
  const asked = talk.say(more.question ?? 30), text = t.text(20);
  const got = await talk.ask({ server: disk.server, play: t.answer({ text }) });
  await talk.judge(got, what);
  talk.messages.push({ role: 'assistant', content: got.message.content });
  talk.last = { text, sampled: t.model.sampled, question: asked };
  return got;
};
const check = async (disk, talk, what) => {
  talk.say(30);
  const got = await talk.ask({ server: disk.server });
  await talk.judge(got, what);
  await disk.t.cold(got, what);
  talk.messages.pop();
};

async function damaged(t) {
  const disk = new Disk(t);
  const damages = {
    truncate: (file) => truncateSync(file.path, file.size - 4096),
    flip: (file) => {
      const fd = openSync(file.path, 'r+');
      writeSync(fd, Buffer.from([0xa5, 0x5a, 0xa5]), 0, 3, file.size - 4096);
      closeSync(fd);
    },
    delete: (file) => rmSync(file.path),
    unreadable: (file) => chmodSync(file.path, 0),
  };
  if (process.getuid() === 0) { // who is root reads it all the same
    delete damages.unreadable;
    t.note('unreadable: not tried, as root reads it');
  }
  await disk.start();
  const cases = [];
  const seen = new Set();
  for (const suffix of { full: 'b', window: 'bw', hybrid: 'bc' }[t.model.kind]) {
    for (const damage of Object.keys(damages)) {
      const messages = [{ role: 'user', content: `${t.word()} ${t.text(t.exact ? 600 : 400)}` }];
      await t.ask(messages, { server: disk.server, n: 4 });
      await settled(disk.server);
      const own = ofKind(disk.dir, suffix).filter((f) => !seen.has(f.path));
      for (const kind of 'bwc') for (const file of ofKind(disk.dir, kind)) seen.add(file.path); // of this and earlier cases
      assert.ok(own.length > 0, `records .${suffix}`);
      cases.push({ suffix, damage, messages, own: suffix === 'b' ? own.slice(0, 1) : own });
    }
  }
  await disk.stop();
  for (const { damage, own } of cases) for (const file of own) damages[damage](file);
  await disk.start();
  for (const { suffix, damage, messages } of cases) {
    const what = `${damage} .${suffix}`;
    const got = await t.ask(messages, { server: disk.server, n: 4 });
    assert.ok(got.computed > 1 && got.miss, what);
    await t.cold(got, what);
    t.within(await t.ask(messages, { server: disk.server, n: 4 }), 1, `${what}, made anew`);
  }
  await disk.stop();
  const { code, out } = await cacheTool(disk.dir, 'stat');
  assert.equal(code, 0);
  assert.ok(out.quarantine_files > 0, JSON.stringify(out));
  await disk.verify(); // sets aside what nobody asked for
  assert.equal((await disk.verify()).code, 0, 'what is damaged was set aside');
}

async function indexGone(t) {
  const disk = new Disk(t);
  const talk = new Talk(t, { system: t.some(300) });
  await disk.start();
  for (let i = 0; i < 2; i++) await turn(disk, talk, `turn ${i}`);
  await disk.stop();
  removeIndex(disk.dir);
  await disk.start();
  await turn(disk, talk, 'no index');
  await disk.stop();
  removeIndex(disk.dir);
  writeFileSync(path.join(disk.dir, 'index.sqlite'), t.text(4000));
  await disk.start();
  await turn(disk, talk, 'a damaged index');
  await check(disk, talk, 'a damaged index');
  await disk.stop();
}

async function readOnly(t) {
  const disk = new Disk(t);
  // Root may write everywhere: the server then runs as somebody else, if that one can run it at all.
  const user = process.getuid() === 0 ? { uid: 65534, gid: 65534 } : {};
  if (user.uid && spawnSync(binary, ['version'], user).status !== 0) return t.note('read-only: not tried, another user cannot run the server');
  if (user.uid) chownSync(disk.dir, user.uid, user.gid);
  const cache = path.join(disk.dir, 'cache');
  disk.server = await t.world.own(t.world.args('--cache-dir', cache), { env: { HOME: disk.dir }, user });
  const talk = new Talk(t, { system: t.some(300) });
  await turn(disk, talk, 'before');
  await settled(disk.server);
  const all = [{ path: cache }, ...files(cache)].filter((f) => statSync(f.path).isDirectory());
  for (const folder of all) chmodSync(folder.path, 0o500);
  try {
    await turn(disk, talk, 'read-only');
    const own = await t.ask([{ role: 'user', content: `${t.word()} ${t.text(300)}` }], { server: disk.server });
    await t.cold(own, 'read-only');
    await disk.server.until((lines) => lines.some((l) => /denied|read-only|cannot/i.test(l)), 'saying so');
  } finally {
    for (const folder of all) chmodSync(folder.path, 0o700);
  }
  await check(disk, talk, 'writable again');
  return disk.stop();
}

async function volumeFull(t) {
  const disk = new Disk(t);
  if (process.getuid() !== 0 || spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=2m', 'kvasir-test', disk.dir]).status !== 0)
    return t.note('volume full: not tried, no small volume can be mounted');
  try {
    await disk.start('--cache-disk', '64M');
    for (let i = 0; i < 3; i++) {
      const prompt = `${t.word()} ${t.text(t.model.bytes ? 2000 : 500)}`;
      const got = await t.raw(prompt, { server: disk.server });
      if (i === 2) await t.cold(got, 'full');
      t.within(await t.raw(prompt, { server: disk.server }), 1, 'volume full');
    }
    await settled(disk.server);
    await disk.stop();
    assert.equal((await disk.verify()).code, 0);
  } finally {
    spawnSync('umount', ['-l', disk.dir]);
  }
}

async function smallBudget(t) {
  const prompt = t.text(t.n(30000));
  const big = new Disk(t);
  await big.start();
  await t.raw(prompt, { server: big.server });
  await settled(big.server);
  await big.stop();
  const session = du(big.dir), largest = Math.max(...[...files(path.join(big.dir, 'ns'))].map((f) => f.bytes));
  let budget = Math.max(1 << 20, 2 ** Math.floor(Math.log2(session / 2)));
  if (budget < largest + (1 << 16)) budget *= 2; // a block at least
  assert.ok(t.quick || budget < session, `${budget} bytes are no less than the session's ${session}`);
  const disk = new Disk(t);
  const server = await disk.start('--cache-disk', `${budget}`, '-cram', '0', '-np', '1');
  let most = 0, over = false;
  const watch = (async () => {
    while (!over) {
      most = Math.max(most, du(disk.dir));
      await (await fetch(`${server.url}/health`)).arrayBuffer(); // the server gets its turn between two looks
    }
  })();
  let written = 0;
  for (let i = 0; i < 3; i++) {
    const got = await t.raw(prompt, { server });
    if (i === 2) await t.cold(got, 'at last');
    await t.raw(`${'!"#$'[i]}another`, { server, n: 1 }); // takes the slot
    written = (await settled(server)).bytes_written;
  }
  over = true;
  await watch;
  t.figure(most, budget, 'bytes in the directory');
  t.figure(written, 2 * budget, 'bytes written in three rounds');
  assert.ok(most > budget / 8, `${most} bytes in the directory`);
  await disk.stop();
  assert.equal((await disk.verify()).code, 0);
}

/* ── sleep ── */

const rss = (server) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${server.pid}/status`, 'utf8'))[1]) * 1024;
/** For the n-th time, and all is given back: the metric turns 1 when it begins. */
const asleep = (server, n) => server.until((lines) => lines.filter((line) => /^asleep after/.test(line)).length >= n, 'its sleep');

async function sleeps(t) {
  const disk = new Disk(t);
  const talks = [new Talk(t, { system: t.some(300) }), new Talk(t, { system: t.some(300) })];
  await disk.start('--sleep-idle-seconds', '0.3', '--metrics');
  for (let round = 0; round < 3; round++) {
    for (const talk of talks) await turn(disk, talk, `round ${round}`);
    await asleep(disk.server, round + 1);
  }
  if (process.platform === 'linux' && !/-asan|-tsan|build-/.test(binary)) {
    const none = await startServer({ args: ['--test-fake', 'full'] });
    const bare = rss(none);
    await none.stop();
    t.figure(Math.round((rss(disk.server) - bare) / 2 ** 20), 64, 'MiB asleep beyond a server without a model');
  }
  await check(disk, talks[0], 'awake again');
  await disk.stop();
}

async function anotherModel(t) {
  const disk = new Disk(t);
  const talk = new Talk(t, { system: t.some(300) });
  await disk.start();
  await turn(disk, talk, 'before');
  await disk.stop();
  const other = { ...t.model, fake: null, file: model(t.model.file?.endsWith('llama.gguf') ? 'tiny/gemma3.gguf' : 'tiny/llama.gguf'), context: 4096 };
  const server = await t.world.own(modelArgs(other, '--cache-dir', disk.dir));
  const response = await fetch(`${server.url}/completion`, { method: 'POST', body: JSON.stringify({ prompt: t.text(300), n_predict: 2 }) });
  assert.equal(response.status, 200);
  await response.arrayBuffer();
  await server.stop();
  await disk.start();
  const got = await turn(disk, talk, 'and back');
  assert.ok(got.cached.disk > 0 || t.exact, JSON.stringify(got.cached));
  await check(disk, talk, 'and back');
  await disk.stop();
}

export const diskShapes = [
  {
    id: 'S12', what: 'server restarted cleanly between turns', expect: 'as S2', life: 'restart',
    async run(t) {
      const disk = new Disk(t);
      const talks = Array.from({ length: 3 }, () => new Talk(t, { system: t.some(300) })); // more than slots
      for (let i = 0; i < 3; i++) {
        await disk.start();
        for (const talk of talks) await turn(disk, talk, `start ${i}`);
      }
      await disk.start();
      await check(disk, talks[0], 'at last');
      await disk.stop();
    },
  },
  {
    id: 'S13', what: 'server killed with SIGKILL between turns', expect: 'when all is on disk: as S2; at once: from what was published', life: 'restart',
    async run(t) {
      const disk = new Disk(t);
      const talk = new Talk(t, { system: t.some(300) });
      await disk.start();
      await turn(disk, talk, 'before');
      for (let i = 0; i < 2; i++) {
        await settled(disk.server);
        await disk.stop('SIGKILL');
        await disk.start();
        await turn(disk, talk, `killed when all was on disk, ${i}`);
      }
      await settled(disk.server);
      const question = talk.say(300);
      const last = await talk.ask({ server: disk.server, play: t.answer({ text: 'killed at once' }) });
      await disk.stop('SIGKILL');
      await disk.start();
      const got = await talk.ask({ server: disk.server });
      got.earlier = got.earlier.slice(0, -1);
      t.within(got, last.computed, 'killed at once');
      await t.cold(got, 'killed at once');
      assert.ok(question);
      await disk.stop();
      const { code, out } = await disk.verify();
      assert.equal(code, 0, JSON.stringify(out));
    },
  },
  {
    id: 'S18', what: 'another KV type, same tokens; in `make test` another LoRA, too', expect: 'no reuse across; the reason says so', life: 'restart',
    async run(t) {
      const disk = new Disk(t);
      const messages = [{ role: 'user', content: t.text(400) }];
      await disk.start();
      await t.ask(messages, { server: disk.server });
      const variants = [[/K type f16 → q8_0/, '-ctk', 'q8_0']];
      if (t.model.lora) variants.push([/adapters none → \S+/, '--lora', t.model.lora]);
      for (const [differs, ...variant] of variants) {
        await disk.start(...variant);
        const got = await t.ask(messages, { server: disk.server });
        t.figure(got.reused, 0, `tokens reused with ${variant[0]}`);
        assert.equal(got.miss.reason, 'other_namespace');
        assert.match(got.miss.explanation, differs, variant.join(' '));
        t.within(await t.ask(messages, { server: disk.server }), 1, 'the same again');
      }
      await disk.start();
      t.within(await t.ask(messages, { server: disk.server }), 1, 'and back');
      await disk.stop();
    },
  },
  {
    id: 'S22', what: '10 forks of one 10K prefix', expect: "attention bytes ≤ 1.02 × (one + the forks' own)", life: 'restart',
    async run(t) {
      const OWN = 256, FORKS = 10, prefix = Math.floor(Math.min(t.n(10000), t.model.context - OWN - 8) / 256) * 256;
      const disk = new Disk(t);
      const ids = (await t.world.tokens(t.text(prefix))).slice(0, prefix);
      assert.equal(ids.length, prefix);
      const fork = async (i) => t.raw([...ids, ...(await t.world.tokens(` ${String.fromCharCode(65 + i)} ${t.text(OWN)}`)).slice(0, OWN)], { n: 1, server: disk.server });
      await disk.start();
      await fork(0);
      await disk.stop();
      const one = sum(ofKind(disk.dir, 'b'));
      await disk.start();
      for (let i = 1; i < FORKS; i++) await fork(i);
      await disk.stop();
      const all = sum(ofKind(disk.dir, 'b')), own = one / (prefix + OWN) * OWN * (FORKS - 1);
      t.figure(Number((all / (one + own)).toFixed(3)), 1.02, `of one's and the forks' own bytes`);
      t.note(`windows ${Math.round(sum(ofKind(disk.dir, 'w')) / 1024)} KiB, checkpoints ${Math.round(sum(ofKind(disk.dir, 'c')) / 1024)} KiB`);
    },
  },
  { id: 'S23', what: 'disk budget smaller than one session', expect: 'correct, never over budget, nothing stored to be evicted next', life: 'restart', run: smallBudget },
  { id: 'S24', what: 'records truncated, flipped, deleted, unreadable', expect: 'a miss with a reason, the right answer, set aside', life: 'restart', run: damaged },
  {
    id: 'S25', what: 'disk full, directory read-only, index deleted or damaged', expect: 'serves on, says so; the index comes back from the files', life: 'restart',
    async run(t) {
      await indexGone(t);
      await readOnly(t);
      await volumeFull(t);
    },
  },
  {
    id: 'S26', what: 'idle unload and wake; another model, then back', expect: 'every session as S12; asleep ≤ 64 MiB more than without a model',
    run: (t) => (t.world.life === 'restart' ? anotherModel(t) : sleeps(t)),
  },
];
