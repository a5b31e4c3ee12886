// Conversations with thoughts, tool calls and what clients do to them, through each of three APIs, which must cost the same:
// what the client drops, keeps or sends back in its own words costs no more than itself.
import { quickModels } from './scenario-models.mjs';
import { quick } from './scenario-quick.mjs';

quick({ models: quickModels, life: 'memory', everyApi: true, choose: (shape) => shape.apis });
