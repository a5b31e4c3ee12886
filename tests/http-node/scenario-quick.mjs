// The quick form, which `make test` runs: the shapes of scenario-shapes.mjs on tiny models. All of them on all models take
// a quarter of an hour, so each shape is tried on one model in each life and mode, in turn, and a few on every one;
// `make scenarios` tries all on all.
//
//   KVASIR_SCENARIOS=all                            everything on every model
//   KVASIR_SHAPES="S4 F7" KVASIR_SHAPES_MODEL=window   only these, wherever they apply
import { after, describe, it } from 'node:test';
import { seed } from './scenario.mjs';
import { skipped, tryShape } from './scenario-run.mjs';
import { quickModels } from './scenario-models.mjs';
import { shapes } from './scenario-shapes.mjs';
import { World } from './scenario-world.mjs';

const only = process.env.KVASIR_SHAPES?.split(/[ ,]+/), onlyModel = process.env.KVASIR_SHAPES_MODEL;
const all = Boolean(process.env.KVASIR_SCENARIOS === 'all' || only || onlyModel);
const EVERYWHERE = ['S1', 'S2', 'S7', 'F11'];

/** Is it this model's turn? `offset` differs between files, so that a shape meets another model in each. */
function itsTurn(shape, model, life, exact, offset) {
  const possible = quickModels.filter((m) => !skipped(shape, m, life, exact));
  return possible[(shapes.indexOf(shape) + offset) % possible.length] === model;
}

export function quick({ life, exact = false, everyApi = false, choose = () => true, everywhere = false, offset = 0 }) {
  for (const model of quickModels) {
    if (onlyModel && model.name !== onlyModel) continue;
    const here = shapes.filter((shape) => choose(shape) && !skipped(shape, model, life, exact) && (!only || only.includes(shape.id))
      && (all || (everywhere && EVERYWHERE.includes(shape.id)) || itsTurn(shape, model, life, exact, offset)));
    if (here.length === 0) continue;
    describe(`${life === 'memory' ? 'in memory' : 'restarted'}${exact ? ', --exact' : ''}, ${model.name}`, () => {
      const world = new World(model, { life, exact, seed });
      after(() => world.stop());
      for (const shape of here) {
        it(`${shape.id}: ${shape.what}`, async (t) => {
          const { notes } = await tryShape(world, shape, { everyApi });
          for (const note of notes) t.diagnostic(note);
        });
      }
    });
  }
}
