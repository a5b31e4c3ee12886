// The same conversations with a restart of the server between two turns, and bad days of its disk.
import { quickModels } from './scenario-models.mjs';
import { quick } from './scenario-quick.mjs';

quick({ models: quickModels, life: 'restart' });
