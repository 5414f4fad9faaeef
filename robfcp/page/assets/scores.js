// The axis of scores: linear, or stretched to the grid.
const EVERYBODY = pooledShares(() => true);
let scale = defaultScale();

/** Linear where the threshold stands well inside the shown range, else by bin number. */
function defaultScale() {
  const [first, last] = shownBins();
  const low = first < 0 ? DATA.grid.low : edgeValue(first);
  const high = edgeValue(last) === Infinity ? lastFinite() : edgeValue(last);
  const threshold = DATA.levels[0].threshold ?? high;
  return low !== null && threshold - low > 0.05 * (high - low) ? "linear" : "grid";
}

/** The bins between which scores lie; all of them on a finite grid. */
function shownBins() {
  if (DATA.grid.low !== null && edgeValue(VIEW.at(-1)) !== Infinity) return [-1, VIEW.at(-1)];
  const first = EVERYBODY.findLastIndex((share) => share < 0.002);
  const last = EVERYBODY.findIndex((share) => share > 0.998);
  return [first < 0 ? VIEW[0] : VIEW[first], VIEW[last]];
}

function shownRange() {
  const [first, last] = shownBins();
  return [first < 0 ? startPlace() : place(first), place(last)];
}

/** Where an edge stands on the score axis. */
function place(bin) {
  if (scale === "grid") return bin < 0 ? DATA.grid.bins : bin + 1;
  const value = edgeValue(bin);
  return value === Infinity ? lastFinite() : value;
}

function lastFinite() {
  return DATA.grid.edges.filter((edge) => edge !== null).at(-1);
}

function startPlace() {
  if (scale === "grid") return 0;
  return DATA.grid.low === null ? DATA.grid.edges[0] : DATA.grid.low;
}

function shownPlaces() {
  return [startPlace(), ...VIEW.map(place)];
}

/** The axis of scores. */
function scoreAxis(label) {
  const base = axis({ label });
  if (scale === "linear") return { ...base, values: (_, ticks) => ticks.map((v) => +v.toPrecision(6)) };
  return {
    ...base,
    splits: (chart, _axis, low, high) => {
      const length = chart.bbox.width / devicePixelRatio;
      return gridTicks(low, high, (58 / length) * (high - low));
    },
    values: (_, ticks) => ticks.map((position) => tickText(valueAt(position))),
  };
}

/** Places of round numbers on the stretched axis, the roundest first, `room` apart. */
function gridTicks(low, high, room) {
  const chosen = [];
  const add = (position) => {
    const fits = position >= low && position <= high;
    if (fits && chosen.every((other) => Math.abs(other - position) >= room)) chosen.push(position);
  };
  roundNumbers().forEach((value) => add(placeOf(value)));
  if (chosen.length < 3) DATA.grid.used.forEach((bin) => add(bin + 1));
  return chosen.sort((a, b) => a - b);
}

/** 0, 1, the powers of ten and their likes near 1, then their halves and fifths. */
function roundNumbers() {
  const powers = Array.from({ length: 14 }, (_, k) => 10 ** (6 - k));
  const near = powers.filter((p) => p < 1).map((p) => 1 - p);
  const between = powers.flatMap((p) => [2 * p, 5 * p]);
  const positive = [...powers, 0.5, ...near, ...between];
  return [0, 1, ...positive, ...positive.map((value) => -value)];
}

/** A value's place on the stretched axis, between the edges around it. */
function placeOf(value) {
  const { used, edges, low } = DATA.grid;
  const after = edges.findIndex((edge) => edge === null || edge >= value);
  if (after < 0 || edges[after] === null) return NaN;
  const [bin, edge] = after ? [used[after - 1] + 1, edges[after - 1]] : [0, low];
  if (edge === null || value < edge) return NaN;
  return bin + ((value - edge) / (edges[after] - edge)) * (used[after] + 1 - bin);
}

/** The value at a place on the stretched axis. */
function valueAt(position) {
  const { used, edges, low } = DATA.grid;
  const after = used.findIndex((bin) => bin + 1 >= position - 1e-9);
  const [bin, edge] = after ? [used[after - 1] + 1, edges[after - 1]] : [0, low];
  const share = (position - bin) / (used[after] + 1 - bin);
  return edges[after] === null ? Infinity : (edge ?? edges[after]) + share * (edges[after] - (edge ?? edges[after]));
}

function tickText(value) {
  if (!Number.isFinite(value)) return "";
  const near = 1 - value;
  return near > 0 && near < 0.1 ? String(+(1 - +near.toPrecision(2)).toFixed(9)) : String(+value.toPrecision(3));
}
