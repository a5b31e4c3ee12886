// One shape on one world: through chat completions, and where it is a shape of all three APIs, through each of them, which
// must cost the same.
import assert from 'node:assert/strict';
import { Case } from './scenario-world.mjs';
import { apis } from './scenario-apis.mjs';

/** Why a shape does not apply there, or null. */
export function skipped(shape, model, life, exact) {
  if (shape.life && shape.life !== life) return shape.life === 'restart' ? 'a shape of restarts' : 'a shape without restarts';
  if (shape.timed && model.fake) return 'its engine computes nothing, so its times say nothing';
  return shape.skip?.(model, exact) ?? null;
}

/** { rows, notes }; throws what went wrong, with `rows` as far as it came. */
export async function tryShape(world, shape, { everyApi = false } = {}) {
  const cases = [];
  try {
    for (const api of everyApi && shape.apis ? Object.keys(apis) : ['chat']) {
      const t = new Case(world, shape, api);
      cases.push(t);
      await shape.run(t);
      t.check();
    }
    const [chat, ...others] = cases.map((t) => t.rows.filter((r) => !r.figure).map((r) => r.counted));
    for (const [i, counted] of others.entries()) {
      const n = Math.min(chat.length, counted.length);
      assert.deepEqual(counted.slice(0, n), chat.slice(0, n), `${shape.id}: ${cases[i + 1].api} counts otherwise than chat completions`);
      assert.ok(n > 0 || chat.length === 0, `${shape.id}: nothing was counted through ${cases[i + 1].api}`);
    }
  } catch (error) {
    error.rows = cases[0].rows;
    throw error;
  }
  return { rows: cases[0].rows, notes: cases.flatMap((t) => t.notes), apis: cases.length };
}

/** The row that came nearest to its bound, or went farthest beyond it. */
export function worst(rows) {
  const margin = (r) => (r.least ? r.counted / (r.bound || 1) - 1 : 1 - r.counted / (r.bound || 1)) || 0;
  const beyond = rows.filter((r) => (r.least ? r.counted < r.bound : r.counted > r.bound));
  return (beyond.length ? beyond : rows).reduce((a, b) => (margin(b) < margin(a) ? b : a), rows[0] ?? null);
}
