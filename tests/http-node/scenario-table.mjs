// `make scenarios` (scripts/scenarios.sh): every shape on every model, in both lives, in normal mode and with --exact, at
// its own lengths or what the context has room for; the table goes to docs/scenarios.md.
//
// usage: node tests/http-node/scenario-table.mjs [--out FILE] [--shapes "S4 F7"] [--models "SmolLM2;…"] [--normal | --exact]
//        [--context N] [--threads N]   no context is larger than N: a try in minutes; threads where others work, too
//        [--long]        the lengths that the shapes state, on the fake engine, in minutes: docs/scenarios-long.md
//        [--keep FILE]   what was within its bound is written there, and not run again by the next call of the same program:
//                        the shapes that are times when the machine does nothing else, say, or after a cut
//   with a choice of shapes or models, or of one mode, the table goes to standard output (or to FILE)
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { skipped, tryShape, worst } from './scenario-run.mjs';
import { longModels, tableModels } from './scenario-models.mjs';
import { shapes } from './scenario-shapes.mjs';
import { Cold, World } from './scenario-world.mjs';
import { binary } from './server.mjs';

const { values: given } = parseArgs({ options: { out: { type: 'string' }, shapes: { type: 'string' }, models: { type: 'string' }, context: { type: 'string' }, threads: { type: 'string' }, keep: { type: 'string' }, normal: { type: 'boolean' }, long: { type: 'boolean' }, exact: { type: 'boolean' } } });
const chosen = given.shapes?.split(/[ ,]+/);
const known = given.long ? longModels : tableModels;
const models = given.models ? given.models.split(';').map((name) => known.find((m) => m.name === name) ?? fail(name)) : known;
if (given.context) for (const m of models) m.context = Math.min(m.context, Number(given.context));
if (given.threads) for (const m of models) m.threads = Number(given.threads);
const rows = shapes.filter((s) => !chosen || chosen.includes(s.id));
const lives = ['memory', 'restart'];
const modes = given.normal || given.long ? [false] : given.exact ? [true] : [false, true];
const seed = Number(process.env.KVASIR_SEED ?? 20261130);
const began = performance.now();

function fail(name) {
  console.error(`scenarios: no model is called ${name}; there are ${known.map((m) => m.name).join(', ')}`);
  process.exit(2);
}

const told = (row) => (row === null ? 'held' : `${row.counted} ${row.least ? '≥' : '≤'} ${row.bound}${row.figure ? ` ${row.what}` : ''}`);

/** Seconds of processor time of the servers that ended so far. */
function spent() {
  try {
    const fields = readFileSync('/proc/self/stat', 'utf8').split(') ')[1].split(' ');
    return (Number(fields[13]) + Number(fields[14])) / 100;
  } catch { return NaN; }
}

const column = (model, life, exact) => `${model.name}/${model.context}/${life}/${exact}`;
const cells = new Map(); // `${shape} ${column}` → text
const failures = [];
const earlier = new Map(); // of --keep
let earlierSeconds = 0;
const program = `${createHash('sha256').update(readFileSync(binary)).digest('hex')}, seed ${seed}`;
if (given.keep && existsSync(given.keep)) {
  const kept = JSON.parse(readFileSync(given.keep, 'utf8'));
  if (kept.program !== program) {
    console.error(`scenarios: what ${given.keep} has was counted with another program or seed; remove it to begin anew`);
    process.exit(2);
  }
  for (const [key, text] of Object.entries(kept.cells)) earlier.set(key, text);
  earlierSeconds = kept.seconds;
}
const elapsed = () => Math.round(earlierSeconds + (performance.now() - began) / 1000);
function keep(key, text) {
  cells.set(key, text);
  if (!given.keep) return;
  earlier.set(key, text);
  writeFileSync(given.keep, JSON.stringify({ program, seconds: elapsed(), cells: Object.fromEntries(earlier) }));
}
for (const model of models) {
  for (const exact of modes) {
    const cold = new Cold(model, exact);
    for (const life of lives) {
      const world = new World(model, { life, exact, quick: false, seed, cold });
      const start = performance.now();
      for (const shape of rows) {
        const key = `${shape.id} ${column(model, life, exact)}`;
        const why = skipped(shape, model, life, exact);
        if (why) {
          cells.set(key, `– ${why}`);
          continue;
        }
        if (earlier.has(key)) {
          cells.set(key, earlier.get(key));
          continue;
        }
        const at = performance.now();
        try {
          const { rows: counted, notes } = await tryShape(world, shape, { everyApi: true });
          keep(key, [told(worst(counted)), ...notes].join('; '));
        } catch (error) {
          failures.push(`${shape.id}, ${model.name}, ${life}${exact ? ', --exact' : ''}: ${error.message}`);
          cells.set(key, `**${told(worst(error.rows ?? []))}: failed**`);
        }
        console.error(`${model.name}, ${life}${exact ? ', --exact' : ''}: ${shape.id} ${cells.get(key)} (${((performance.now() - at) / 1000).toFixed(1)} s)`);
      }
      await world.stop();
      console.error(`${model.name}, ${life}${exact ? ', --exact' : ''}: ${((performance.now() - start) / 1000).toFixed(0)} s; servers so far ${spent().toFixed(0)} s of processor time`);
    }
    await cold.stop();
  }
}

const escape = (text) => text.replaceAll('|', '\\|');
function table(exact) {
  const columns = models.flatMap((m) => lives.map((life) => [m, life]));
  const lines = [`| shape | expected | ${columns.map(([m, life]) => `${m.name}, ${life === 'memory' ? 'in memory' : 'restarted'}`).join(' | ')} |`,
    `|---|---|${columns.map(() => '---|').join('')}`];
  for (const s of rows) {
    const list = columns.map(([m, life]) => cells.get(`${s.id} ${column(m, life, exact)}`));
    lines.push(`| **${s.id}** ${escape(s.what)} | ${escape(s.expect)} | ${list.map(escape).join(' | ')} |`);
  }
  return lines.join('\n');
}

const seconds = elapsed();
const partial = chosen || given.models || given.context || (modes.length < 2 && !given.long);
const silent = ['--out', '--keep', '--threads']; // which change nothing that is counted
const asked = process.argv.slice(2).filter((a, i, all) => !silent.includes(a) && !silent.includes(all[i - 1]));
const command = partial || given.long ? `scripts/scenarios.sh build ${asked.map((a) => (/[ ;]/.test(a) ? `"${a}"` : a)).join(' ')}` : 'make scenarios';
const page = `# Scenarios${given.long ? ', at their lengths' : ''}

Written by \`${command}\`: what conversations as users bring them cost, over HTTP. Each cell is the prompt tokens that were
computed, and how many there may be: of all requests of the shape, the one that came nearest to its bound. Where a figure
is no count of tokens, its unit stands behind it. \`held\`: what the shape expects is no number, and was so. \`–\`: it does not
apply, and why.

- **Bounds** are counted by the model's own tokenizer in the text that its template renders: the piece of it that the second
  column names, and ${'`'}G + 8${'`'} tokens for the generation prompt and the edge of the answer before; for F shapes P − D + g (P: tokens
  of the prompt, D: what it shares with the best stored path, g: back to where that memory can go on; 0 with full
  attention, else at most a message, at most ${models[0].interval}). Templates that do not render an answer as it was sampled cost S4 where
  others cost S2.
- **In memory**: between two requests others take every slot. **Restarted**: the server ends, another begins on its disk cache.
- S4, S5, S19, S20 and F1 to F8 run through chat completions, Anthropic's Messages and Responses, and fail unless all three
  count the same.
${given.long ? `- **Lengths** are those that the shapes state, a token a byte, in a context of ${models[0].context}. The engine is \`engine_fake\`, which
  computes no layer (so S28 to S30 are not tried): cells, windows and states are digests of all that led to them, so that
  whatever is put back wrongly changes the answer. The scheduler, the cache and the server are as they are.` : `- **Lengths** are the shape's own where ¾ of the context has room for them, and else that: ${models.map((m) => `${m.name} ${m.context}`).join(', ')}; S29
  and S30 have servers of their own with at least 4096 and 6144. The lengths that the rows name are run in
  [scenarios-long.md](scenarios-long.md). The shapes are random Q8_0 weights around SmolLM2's tokenizer (\`tools/mkmodel\`).`}
- Answers that go on in a conversation are played. ${given.long ? 'The others are compared with those of a server without a cache.' : `Compared with cold ones are those with \`--exact\` here; in normal mode,
  where another shape of batch may move a quantised model, those of the tiny F32 models in \`make test\`, which runs the same
  shapes at an eighth of the lengths (\`tests/http-node/scenario-shapes.mjs\`).`}

Seed ${seed}; ${models.length} models, ${rows.length} shapes, ${seconds} s.

${modes.map((exact) => `${given.long ? '' : `## ${exact ? 'With --exact' : 'Normal'}\n\n`}${exact ? `Every answer of the model's own is a cold run's, bit for bit, on a server without a cache. The bound is what lies behind the
last end of a chunk (${models[0].chunk} tokens) that an earlier prompt had in common: sampled tokens are computed again.\n\n` : ''}${table(exact)}`).join('\n\n')}
`;
if (given.out) writeFileSync(given.out, page);
else if (partial) process.stdout.write(page);
else writeFileSync(new URL(`../../docs/${given.long ? 'scenarios-long' : 'scenarios'}.md`, import.meta.url), page);
for (const failure of failures) console.error(`scenarios: ${failure}`);
console.error(`scenarios: ${cells.size} cells, ${failures.length} failed, ${seconds} s`);
process.exit(failures.length ? 1 : 0);
