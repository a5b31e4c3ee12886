// Conversations that outlive their server, and bad days of the disk, on a tiny model of each memory kind.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, chownSync, closeSync, openSync, rmSync, statSync, truncateSync, writeFileSync, writeSync } from 'node:fs';
import path from 'node:path';
import { after, describe, it } from 'node:test';
import { binary, model, startServer } from './server.mjs';
import { args, atMost, cacheTool, Chat, Cold, du, files, Folders, generator, greedy, greedyRaw, kinds, played, settled, words } from './scenario.mjs';

const cold = new Cold();
const folders = new Folders();
const started = [];
after(async () => {
  for (const server of started) if (!server.exit) await server.stop('SIGKILL'); // of a test that failed
  await cold.stop();
  folders.remove();
});

async function start(kind, dir, ...more) {
  return startFor({ args: args(kind, '--cache-dir', dir, ...more) });
}
async function startFor(what) {
  const server = await startServer(what);
  started.push(server);
  return server;
}
const sum = (list) => list.reduce((a, f) => a + f.bytes, 0);
const ofKind = (dir, suffix) => [...files(path.join(dir, 'ns'))].filter((f) => f.path.endsWith(`.${suffix}`));
const removeIndex = (dir) => {
  for (const end of ['', '-wal', '-shm']) rmSync(path.join(dir, `index.sqlite${end}`), { force: true });
};

for (const kind of Object.keys(kinds)) {
  describe(`lives of a server, ${kind}`, () => {
    const dir = folders.make();
    const chats = [];
    const same = [{ role: 'user', content: words(generator(), 500) }];

    async function goOn(server, what) {
      for (const chat of chats) {
        const { cached } = await chat.turn(server, what);
        assert.ok(cached.disk > 300 && cached.engine < 30, `${what}: ${JSON.stringify(cached)}`);
      }
      await chats[0].check(server, cold, what);
    }

    it('S12, S1, S8: stopped and started between turns', async () => {
      let server = await start(kind, dir);
      for (let i = 0; i < 3; i++) chats.push(new Chat(kind, 300)); // more than slots
      for (let turn = 0; turn < 2; turn++) for (const chat of chats) await chat.turn(server, `turn ${turn}`);
      await greedy(server, same);
      await played(server, same, words(generator(), 300));
      await server.stop();
      server = await start(kind, dir);
      const again = await greedy(server, same);
      assert.equal(again.computed, 1, 'S1');
      assert.equal(again.cached.disk, again.prompt - 1);
      await cold.check(kind, same, again, 'S1');
      await goOn(server, 'S12');
      await settled(server);
      await server.stop('SIGKILL');
    });

    it('S13: killed between turns', async () => {
      let server = await start(kind, dir);
      await goOn(server, 'S13: killed when all was on disk');
      chats[1].ask(700);
      const last = await played(server, chats[1].messages, 'killed at once');
      await server.stop('SIGKILL');
      server = await start(kind, dir);
      const got = await greedy(server, chats[1].messages);
      atMost(got.computed, last.computed, 'S13: what was published before is there');
      await cold.check(kind, chats[1].messages, got, 'S13: killed at once');
      chats[1].messages.pop();
      await server.stop();
      const { code, out } = await cacheTool(dir, 'verify');
      assert.equal(code, 0, JSON.stringify(out));
    });

    it('S25: the index is deleted, then damaged', async () => {
      removeIndex(dir);
      let server = await start(kind, dir);
      await goOn(server, 'S25: no index');
      await server.stop();
      removeIndex(dir);
      writeFileSync(path.join(dir, 'index.sqlite'), words(generator(), 20000));
      server = await start(kind, dir);
      await goOn(server, 'S25: a damaged index');
      await server.stop();
    });

    it('S18: other number formats or adapters share nothing', async (t) => {
      const variants = [[/K type f16 → q8_0/, '-ctk', 'q8_0']];
      if (kind === 'full') variants.push([/adapters none → \S+/, '--lora', model('tiny/lora/llama.gguf')]);
      for (const [differs, ...variant] of variants) {
        const server = await start(kind, dir, ...variant);
        const got = await greedy(server, same);
        assert.equal(got.computed, got.prompt, variant.join(' '));
        assert.equal(got.miss.reason, 'other_namespace');
        assert.match(got.miss.explanation, differs, variant.join(' '));
        t.diagnostic(`${variant[0]}: ${got.miss.explanation}`);
        assert.equal((await greedy(server, same)).computed, 1);
        await server.stop();
      }
      const server = await start(kind, dir);
      assert.equal((await greedy(server, same)).computed, 1, 'and back');
      await goOn(server, 'S18: and back');
      await server.stop();
    });
  });

  describe(`disk budgets and bad days, ${kind}`, () => {
    it('S22: a shared prefix is stored once', async (t) => {
      const dir = folders.make();
      const PREFIX = 1280, OWN = 256, FORKS = 10; // whole blocks: a block is what is shared
      const prefix = words(generator(), PREFIX);
      const fork = (server, i) => greedyRaw(server, prefix + String.fromCharCode(65 + i) + words(generator(), OWN - 1), 1);
      let server = await start(kind, dir);
      await fork(server, 0);
      await server.stop();
      const one = sum(ofKind(dir, 'b'));
      server = await start(kind, dir);
      for (let i = 1; i < FORKS; i++) await fork(server, i);
      await server.stop();
      const all = sum(ofKind(dir, 'b')), own = one / (PREFIX + OWN) * OWN * (FORKS - 1);
      t.diagnostic(`one ${one}, ten ${all} of ${one + own} bytes of blocks; windows ${sum(ofKind(dir, 'w'))}, checkpoints ${sum(ofKind(dir, 'c'))}`);
      assert.ok(all <= 1.02 * (one + own), `${all} bytes, for one ${one}, own ${own}`);
    });

    it('S23: a budget smaller than one session', async (t) => {
      const dir = folders.make();
      const BUDGET = 1 << 20;
      const server = await start(kind, dir, '--cache-disk', '1M', '-cram', '0', '-np', '1');
      let most = 0, over = false;
      const watch = (async () => {
        while (!over) {
          most = Math.max(most, du(dir));
          await (await fetch(`${server.url}/health`)).arrayBuffer(); // the server gets its turn between two looks
        }
      })();
      const prompt = words(generator(), 3600); // more than 1 MiB on every model
      const written = [];
      for (let i = 0; i < 3; i++) {
        const got = await greedyRaw(server, prompt);
        if (i === 2) await cold.checkRaw(kind, prompt, got, 'S23');
        await greedyRaw(server, `${'!"#$'[i]}another`, 1); // takes the slot
        written.push((await settled(server)).bytes_written);
      }
      over = true;
      await watch;
      t.diagnostic(`at most ${most} of ${BUDGET} bytes; written after each round ${written}`);
      assert.ok(most > BUDGET / 8 && most <= BUDGET, `${most} bytes in the directory`);
      assert.ok(written.at(-1) <= 2 * BUDGET, `written ${written} bytes: stored to be evicted next`);
      await server.stop();
      assert.equal((await cacheTool(dir, 'verify')).code, 0);
    });

    it('S24: damaged, short, missing and unreadable records', async (t) => {
      const dir = folders.make();
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
      if (process.getuid() === 0) delete damages.unreadable; // who is root reads it all the same
      let server = await start(kind, dir);
      const cases = [];
      const seen = new Set();
      for (const suffix of { full: 'b', window: 'bw', hybrid: 'bc' }[kind]) {
        for (const damage of Object.keys(damages)) {
          const messages = [{ role: 'user', content: words(generator(), 700) }];
          await greedy(server, messages);
          await settled(server);
          const own = ofKind(dir, suffix).filter((f) => !seen.has(f.path));
          for (const kindOf of 'bwc') for (const file of ofKind(dir, kindOf)) seen.add(file.path); // of this and earlier cases
          assert.ok(own.length > 0);
          cases.push({ suffix, damage, messages, own: suffix === 'b' ? own.slice(0, 1) : own });
        }
      }
      await server.stop();
      for (const { damage, own } of cases) for (const file of own) damages[damage](file);
      server = await start(kind, dir);
      for (const { suffix, damage, messages } of cases) {
        const what = `S24: ${damage} .${suffix}`;
        const got = await greedy(server, messages);
        t.diagnostic(`${damage} .${suffix}: computed ${got.computed} of ${got.prompt}, ${got.miss?.reason}`);
        assert.ok(got.computed > 1 && got.miss, what);
        await cold.check(kind, messages, got, what);
        const again = await greedy(server, messages);
        assert.equal(again.computed, 1, `${what}: made anew, but ${JSON.stringify(again.miss)}`);
      }
      await server.stop();
      const { code, out } = await cacheTool(dir, 'stat');
      assert.equal(code, 0);
      assert.ok(out.quarantine_files > 0, JSON.stringify(out));
      await cacheTool(dir, 'verify'); // sets aside what nobody asked for
      assert.equal((await cacheTool(dir, 'verify')).code, 0, 'what is damaged was set aside');
    });

    it('S25: the directory becomes read-only', async (t) => {
      const dir = folders.make();
      // Root may write everywhere: the server then runs as somebody else, if that one can run it at all.
      const user = process.getuid() === 0 ? { uid: 65534, gid: 65534 } : {};
      if (user.uid && spawnSync(binary, ['version'], user).status !== 0) return t.skip('another user cannot run the server');
      if (user.uid) chownSync(dir, user.uid, user.gid);
      const cache = path.join(dir, 'cache');
      const server = await startFor({ args: args(kind, '--cache-dir', cache), env: { HOME: dir }, user });
      const chat = new Chat(kind, 300);
      await chat.turn(server, 'before');
      await settled(server);
      const all = [{ path: cache }, ...files(cache)].filter((f) => statSync(f.path).isDirectory());
      for (const folder of all) chmodSync(folder.path, 0o500);
      try {
        await chat.turn(server, 'S25: read-only');
        const own = [{ role: 'user', content: words(generator(), 600) }];
        await cold.check(kind, own, await greedy(server, own), 'S25: read-only');
        await server.until((lines) => lines.some((l) => /denied|read-only|cannot/i.test(l)), 'saying so');
      } finally {
        for (const folder of all) chmodSync(folder.path, 0o700);
      }
      await chat.check(server, cold, 'S25: writable again');
      await server.stop();
    });

    it('S25: the volume is full', async (t) => {
      const dir = folders.make();
      if (process.getuid() !== 0 || spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=2m', 'kvasir-test', dir]).status !== 0)
        return t.skip('no small volume can be mounted');
      try {
        const server = await start(kind, dir, '--cache-disk', '64M');
        for (let i = 0; i < 3; i++) {
          const prompt = words(generator(), 2000);
          const got = await greedyRaw(server, prompt);
          if (i === 2) await cold.checkRaw(kind, prompt, got, 'S25: full');
          assert.equal((await greedyRaw(server, prompt)).computed, 1);
        }
        const state = await settled(server);
        t.diagnostic(`written ${state.written}, not written ${state.not_written}, on the volume ${du(dir)} bytes`);
        await server.stop();
        assert.equal((await cacheTool(dir, 'verify')).code, 0);
      } finally {
        spawnSync('umount', ['-l', dir]);
      }
    });
  });
}

describe('S26: another model, then back', () => {
  it('each model finds its conversations in the same directory', async () => {
    const dir = folders.make();
    const chats = Object.keys(kinds).map((kind) => new Chat(kind, 300));
    for (let round = 1; round <= 2; round++) {
      for (const chat of chats) {
        const server = await start(chat.kind, dir);
        if (round === 2) assert.ok((await chat.turn(server, 'S26')).cached.disk > 300);
        else await chat.turn(server, 'S26');
        if (round === 2) await chat.check(server, cold, 'S26');
        await server.stop();
      }
    }
  });
});
