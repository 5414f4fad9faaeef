// How the page looks values up in the embedded data.
const CLIENTS = DATA.clients;
const N_CLIENTS = CLIENTS.client.length;
const PLOT_BINS = DATA.plot_bins;
const COUNTS = Float64Array.from(DATA.counts);
const UPPER_EDGES = new Map(DATA.binning.bins.map((bin, i) => [bin, DATA.binning.upper_edges[i]]));

/** The upper edge of a bin; that of -1 and of an open top bin is infinite. */
function upperEdge(bin) {
  const edge = bin < 0 ? null : UPPER_EDGES.get(bin);
  return edge === null ? Infinity : edge;
}

/** The bin of the first level's threshold; -1 where it is infinite. */
function thresholdBin() {
  const { threshold } = DATA.levels[0];
  return threshold === null ? -1 : DATA.binning.bins[DATA.binning.upper_edges.indexOf(threshold)];
}

/** A CDF within [0, 1] that never falls, as cumulative counts with privacy noise may. */
function monotoneCdf(counts, nSamples) {
  let cumulative = 0;
  let highest = 0;
  return Array.from(counts, (count) => {
    cumulative += count;
    highest = Math.min(1, Math.max(highest, cumulative / nSamples));
    return highest;
  });
}

/** A client's CDF at the edges of the plot's bins. */
function clientCdf(clientIndex) {
  const width = PLOT_BINS.length;
  const counts = COUNTS.subarray(clientIndex * width, (clientIndex + 1) * width);
  return monotoneCdf(counts, CLIENTS.n_samples[clientIndex]);
}

/** The pooled CDF of the clients for whose index a condition holds. */
function pooledCdf(isIncluded) {
  const width = PLOT_BINS.length;
  const pooledCounts = new Float64Array(width);
  let nSamples = 0;
  for (let k = 0; k < N_CLIENTS; k++) {
    if (!isIncluded(k)) continue;
    nSamples += CLIENTS.n_samples[k];
    for (let b = 0; b < width; b++) pooledCounts[b] += COUNTS[k * width + b];
  }
  return monotoneCdf(pooledCounts, nSamples);
}
