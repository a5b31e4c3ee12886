// Conversations with thoughts, tool calls and what clients do to them, through each of three APIs, which must cost the same:
// what the client drops, keeps or sends back in its own words costs no more than itself.
import { quick } from './scenario-quick.mjs';

quick({ life: 'memory', everyApi: true, offset: 3, choose: (shape) => shape.apis });
