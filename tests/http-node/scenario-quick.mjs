// The quick form, which `make test` runs: every shape of scenario-shapes.mjs on tiny models.
import { after, describe, it } from 'node:test';
import { seed } from './scenario.mjs';
import { expectedToFail, skipped, tryShape } from './scenario-run.mjs';
import { shapes } from './scenario-shapes.mjs';
import { World } from './scenario-world.mjs';

/** KVASIR_SHAPES="S4 F7" and KVASIR_SHAPES_MODEL=window run only these. */
const only = process.env.KVASIR_SHAPES?.split(/[ ,]+/);

const onlyModel = process.env.KVASIR_SHAPES_MODEL;

export function quick({ models, life, exact = false, everyApi = false, choose = () => true }) {
  for (const model of models) {
    if (onlyModel && model.name !== onlyModel) continue;
    describe(`${life === 'memory' ? 'in memory' : 'restarted'}${exact ? ', --exact' : ''}, ${model.name}`, () => {
      const world = new World(model, { life, exact, seed });
      after(() => world.stop());
      for (const shape of shapes) {
        if (only && !only.includes(shape.id)) continue;
        if (!choose(shape) || skipped(shape, model, life, exact)) continue; // what does not apply is no test
        it(`${shape.id}: ${shape.what}`, { todo: !exact && expectedToFail(shape, model) }, async (t) => {
          const { notes } = await tryShape(world, shape, { everyApi });
          for (const note of notes) t.diagnostic(note);
        });
      }
    });
  }
}
