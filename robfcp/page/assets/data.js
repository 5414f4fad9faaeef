// The few ways the page looks things up in what the library embedded.
const CLIENTS = DATA.clients;
const K = CLIENTS.id.length;
const VIEW = DATA.view;
const COUNTS = Float64Array.from(DATA.counts);
const EDGE = new Map(DATA.grid.used.map((bin, i) => [bin, DATA.grid.edges[i]]));

/** The threshold at a bin number; -1 and an open top bin are infinite. */
function edgeValue(bin) {
  const value = bin < 0 ? null : EDGE.get(bin);
  return value === null ? Infinity : value;
}

/** The bin of the first level's threshold; -1 where it is infinite. */
function thresholdBin() {
  const { threshold } = DATA.levels[0];
  return threshold === null ? -1 : DATA.grid.used[DATA.grid.edges.indexOf(threshold)];
}

/** Cumulated shares within [0, 1] that never fall, as counts with privacy noise may. */
function rising(counts, size) {
  let total = 0, highest = 0;
  return Array.from(counts, (count) => {
    total += count;
    highest = Math.min(1, Math.max(highest, total / size));
    return highest;
  });
}

/** One client's CDF at the shown edges. */
function clientShares(k) {
  const width = VIEW.length;
  return rising(COUNTS.subarray(k * width, (k + 1) * width), CLIENTS.size[k]);
}

/** The pooled CDF of the clients that are chosen by number. */
function pooledShares(isChosen) {
  const width = VIEW.length, sums = new Float64Array(width);
  let total = 0;
  for (let k = 0; k < K; k++) {
    if (!isChosen(k)) continue;
    total += CLIENTS.size[k];
    for (let b = 0; b < width; b++) sums[b] += COUNTS[k * width + b];
  }
  return rising(sums, total);
}
