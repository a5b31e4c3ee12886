// bench/median.mjs: the middle of some numbers; of an even count the mean of the two in the middle.
export function median(xs) {
  const sorted = [...xs].sort((a, b) => a - b), half = sorted.length / 2;
  return Number.isInteger(half) ? (sorted[half - 1] + sorted[half]) / 2 : sorted[Math.floor(half)];
}
