// Conversations as real users bring them, in memory: between two turns others take every slot. The shapes and their bounds
// are those of `make scenarios` (scenario-shapes.mjs), at an eighth of the lengths, on a tiny model of each memory kind.
// thinking.test.mjs has those of all three APIs.
import { quick } from './scenario-quick.mjs';

quick({ life: 'memory', everywhere: true, choose: (shape) => !shape.apis || process.env.KVASIR_SHAPES });
