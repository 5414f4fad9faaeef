// The axis of scores: linear, or stretched so that all bins are equally wide.
const POOLED_CDF = pooledCdf(() => true);
let scale = defaultScale();

/** Linear if the threshold is well inside the visible range, else by bin index. */
function defaultScale() {
  const [first, last] = visibleBins();
  const low = first < 0 ? DATA.binning.lowest_edge : upperEdge(first);
  const high = upperEdge(last) === Infinity ? lastFiniteEdge() : upperEdge(last);
  const threshold = DATA.levels[0].threshold ?? high;
  return low !== null && threshold - low > 0.05 * (high - low) ? "linear" : "binning";
}

/** The bins between which scores lie; all of them on a finite binning. */
function visibleBins() {
  if (DATA.binning.lowest_edge !== null && upperEdge(PLOT_BINS.at(-1)) !== Infinity) return [-1, PLOT_BINS.at(-1)];
  const first = POOLED_CDF.findLastIndex((fraction) => fraction < 0.002);
  const last = POOLED_CDF.findIndex((fraction) => fraction > 0.998);
  return [first < 0 ? PLOT_BINS[0] : PLOT_BINS[first], PLOT_BINS[last]];
}

function visibleRange() {
  const [first, last] = visibleBins();
  return [first < 0 ? startPosition() : edgePosition(first), edgePosition(last)];
}

/** The position of a bin's upper edge on the axis of scores. */
function edgePosition(bin) {
  if (scale === "binning") return bin < 0 ? DATA.binning.n_bins : bin + 1;
  const edge = upperEdge(bin);
  return edge === Infinity ? lastFiniteEdge() : edge;
}

function lastFiniteEdge() {
  return DATA.binning.upper_edges.filter((edge) => edge !== null).at(-1);
}

function startPosition() {
  if (scale === "binning") return 0;
  return DATA.binning.lowest_edge === null ? DATA.binning.upper_edges[0] : DATA.binning.lowest_edge;
}

function plotPositions() {
  return [startPosition(), ...PLOT_BINS.map(edgePosition)];
}

/** The axis of scores. */
function scoreAxis(label) {
  const base = axis({ label });
  if (scale === "linear") return { ...base, values: (_, ticks) => ticks.map((tick) => +tick.toPrecision(6)) };
  return {
    ...base,
    splits: (chart, _axis, low, high) => {
      const length = chart.bbox.width / devicePixelRatio;
      return binningTicks(low, high, (58 / length) * (high - low));
    },
    values: (_, ticks) => ticks.map((position) => tickText(scoreOfPosition(position))),
  };
}

/** Positions of round numbers on the stretched axis, the roundest first, `spacing` apart. */
function binningTicks(low, high, spacing) {
  const ticks = [];
  const addIfFree = (position) => {
    const isVisible = position >= low && position <= high;
    if (isVisible && ticks.every((tick) => Math.abs(tick - position) >= spacing)) ticks.push(position);
  };
  roundNumbers().forEach((score) => addIfFree(positionOfScore(score)));
  if (ticks.length < 3) DATA.binning.bins.forEach((bin) => addIfFree(bin + 1));
  return ticks.sort((a, b) => a - b);
}

/** 0, 1, the powers of ten and their complements to 1, then their halves and fifths. */
function roundNumbers() {
  const powers = Array.from({ length: 14 }, (_, k) => 10 ** (6 - k));
  const complements = powers.filter((power) => power < 1).map((power) => 1 - power);
  const multiples = powers.flatMap((power) => [2 * power, 5 * power]);
  const positive = [...powers, 0.5, ...complements, ...multiples];
  return [0, 1, ...positive, ...positive.map((value) => -value)];
}

/** A score's position on the stretched axis, interpolated between the edges around it. */
function positionOfScore(score) {
  const { bins, upper_edges: edges, lowest_edge: lowestEdge } = DATA.binning;
  const next = edges.findIndex((edge) => edge === null || edge >= score);
  if (next < 0 || edges[next] === null) return NaN;
  const [start, edge] = next ? [bins[next - 1] + 1, edges[next - 1]] : [0, lowestEdge];
  if (edge === null || score < edge) return NaN;
  return start + ((score - edge) / (edges[next] - edge)) * (bins[next] + 1 - start);
}

/** The score at a position on the stretched axis. */
function scoreOfPosition(position) {
  const { bins, upper_edges: edges, lowest_edge: lowestEdge } = DATA.binning;
  const next = bins.findIndex((bin) => bin + 1 >= position - 1e-9);
  if (edges[next] === null) return Infinity;
  const [start, edge] = next ? [bins[next - 1] + 1, edges[next - 1]] : [0, lowestEdge];
  const low = edge ?? edges[next];
  const fraction = (position - start) / (bins[next] + 1 - start);
  return low + fraction * (edges[next] - low);
}

function tickText(score) {
  if (!Number.isFinite(score)) return "";
  const complement = 1 - score;
  if (complement > 0 && complement < 0.1) return String(+(1 - +complement.toPrecision(2)).toFixed(9));
  return String(+score.toPrecision(3));
}
