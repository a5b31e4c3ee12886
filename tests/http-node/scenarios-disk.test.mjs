// The same conversations with a restart of the server between two turns, and bad days of its disk.
import { quick } from './scenario-quick.mjs';

quick({ life: 'restart', everywhere: true, offset: 1 });
