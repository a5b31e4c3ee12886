// `make kill`: SIGKILLs under load at random instants, tiny models of each kind in turn, ten kills a directory. Prints one
// line a round, and a failure's seed and place. What is checked stands in tests/http-node/kill.mjs.
// usage: node tests/kill/kill.mjs [KILLS [SEED]]
import { killMany, kinds } from '../http-node/kill.mjs';

const ROUND = 10;
const kills = Number(process.argv[2] ?? 200), seed = Number(process.argv[3] ?? process.env.KVASIR_SEED ?? Date.now() % 1e9);
console.log(`kill: ${kills} kills, KVASIR_SEED=${seed}`);
let done = 0, resumed = 0, checked = 0;
for (let round = 0; done < kills; round++) {
  const kind = kinds[round % kinds.length], n = Math.min(ROUND, kills - done);
  let last = 0;
  try {
    const killed = await killMany(kind, n, seed + round, (i) => { last = i; });
    done += n;
    resumed += killed.resumed;
    checked += killed.checked;
    console.log(`kill: ${done} of ${kills}: ${n} on ${kind}, ${killed.resumed} tokens came from disk`);
  } catch (error) {
    console.error(`kill: round ${round} (${kind}, seed ${seed + round}), after ${last} kills of it:\n${error.stack}`);
    process.exit(1);
  }
}
console.log(`kill: ${done} kills: every directory verified clean, no file left in tmp/, every answer that of a cold server, ` +
  `${checked} conversations resumed with ${resumed} tokens from disk`);
