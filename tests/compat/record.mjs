// Records how a llama-server answers requests.mjs: node tests/compat/record.mjs http://127.0.0.1:8080 > shapes.json
// Start it with SmolLM2, `-c 8192 -np 4 --slots --metrics --props` (scripts/fetch-models.sh brings the model).
import { requests, run } from './requests.mjs';

const base = process.argv[2];
if (!base) {
  console.error('usage: record.mjs BASE_URL');
  process.exit(2);
}
const out = {};
for (const r of requests) out[r.name] = await run(base, r);
process.stdout.write(`${JSON.stringify(out, null, 1)}\n`);
