// The three charts of score distributions: one client's, the pooled one's, what a guarantee would cost.
function cdfOptions(extra) {
  const { scales, ...rest } = extra;
  return {
    axes: [scoreAxis("score"), axis({ label: "share of scores at or below", size: 48, values: (_, ticks) => ticks.map((v) => percent(v)) })],
    scales: { x: { time: false, range: shownRange }, y: { range: [0, 1.02] }, ...scales },
    ...rest,
  };
}

/** The score at a position of the shown edges, the lower end first. */
function scoreAt(i) {
  return i === 0 ? shown(DATA.grid.low ?? -Infinity) : shown(edgeValue(VIEW[i - 1]));
}

/** One client's CDF against the middle 90% of the trusted clients'. */
function drawClient(k) {
  const { low, middle, high } = DATA.crowd;
  const shades = client(k).verdict;
  const now = outcome();
  const own = [0, ...clientShares(k)];
  const data = [shownPlaces(), [0, ...low], [0, ...high], [0, ...middle], own];
  draw(
    "client-chart",
    cdfOptions({
      series: [
        {},
        { stroke: "transparent", points: { show: false } },
        { stroke: "transparent", points: { show: false } },
        { stroke: colour("quiet"), width: 1.5, dash: [4, 3], points: { show: false } },
        { stroke: colour(shades), width: 2.5, points: { show: false } },
      ],
      bands: [{ series: [2, 1], fill: colour("crowd") }],
      hooks: { draw: [(chart) => rule(chart, { x: place(now.index), stroke: colour("accent"), text: "threshold" })] },
      read: (i) => `at or below ${scoreAt(i)}: ${percent(own[i])} of its scores, ${percent(data[1][i])} – ${percent(data[2][i])} of most others'`,
    }),
    data,
  );
}

/** The trusted clients' pooled CDF inside what the certificate proves. */
function drawPooled() {
  const now = outcome();
  const { lower, upper } = DATA.whatif.proved;
  const row = nearest(DATA.whatif.liars, now.m);
  const data = [shownPlaces(), [0, ...lower[row]], [0, ...upper[row]], [0, ...pooledShares(now.excluded)]];
  draw(
    "pooled-chart",
    cdfOptions({
      series: [
        {},
        { stroke: colour("band-line"), width: 1, points: { show: false } },
        { stroke: colour("band-line"), width: 1, points: { show: false } },
        { stroke: colour("trusted"), width: 2.5, points: { show: false } },
      ],
      bands: [{ series: [2, 1], fill: colour("band") }],
      hooks: {
        draw: [
          (chart) => {
            rule(chart, { y: now.level, stroke: colour("quiet"), text: inUnits(now.level), dash: [2, 3] });
            rule(chart, { x: place(now.index), stroke: colour("accent"), text: `threshold ${shown(now.threshold)}` });
          },
        ],
      },
      read: (i) => `threshold ${scoreAt(i)}: ${percent(data[3][i])} of the scores used, ${CONTROLLED} ${proved(data[1][i], data[2][i])}`,
    }),
    data,
  );
  const sure = percent(DATA.own.confidence);
  byId("pooled-words").textContent =
    `The shaded range holds the honest sites' ${CONTROLLED} at every score, with ${sure} confidence, ${whatever(DATA.whatif.liars[row])}.`;
}

/** The threshold that is guaranteed against each number of liars. */
function drawCost() {
  const now = outcome();
  const table = DATA.whatif.tables.marginal;
  const column = nearest(table.levels, now.level);
  const bins = table.index.map((row) => row[column]);
  const full = bins.findIndex((bin) => edgeValue(bin) === Infinity);
  const last = full < 0 ? bins.length - 1 : Math.min(bins.length - 1, full + Math.max(2, Math.round(full / 3)));
  const xs = table.liars.slice(0, last + 1);
  const top = scale === "grid" ? DATA.grid.bins : lastFinite();
  const ys = bins.slice(0, last + 1).map((bin) => (edgeValue(bin) === Infinity ? top : place(bin)));
  draw(
    "cost-chart",
    {
      axes: [
        axis({ label: "sites that may lie", values: (_, ticks) => ticks.map((t) => (Number.isInteger(t) ? t : "")) }),
        scoreAxis("guaranteed threshold", { size: 60, side: 3 }),
      ],
      scales: { x: { time: false, range: (_, low, high) => [low, Math.max(high, low + 1)] }, y: { range: (_, low, high) => widened(low, high) } },
      series: [{}, { stroke: colour("trusted"), width: 2.5, paths: uPlot.paths.stepped({ align: -1 }), points: { show: xs.length < 40, size: 5, fill: colour("trusted") } }],
      hooks: {
        draw: [
          (chart) => {
            if (full >= 0) rule(chart, { x: xs[Math.min(full, last)], stroke: colour("quiet"), text: "every set full", dash: [2, 3] });
            if (now.threshold !== Infinity) rule(chart, { y: place(now.index), stroke: colour("accent"), text: `threshold ${shown(now.threshold)}` });
          },
        ],
      },
      read: (i) => `${liarsWord(xs[i])}: threshold ${shown(edgeValue(bins[i]))}`,
    },
    [xs, ys],
  );
  const limit = full < 0 ? "" : ` From ${liarsWord(table.liars[full])} on, these reports leave no finite guaranteed threshold at ${inUnits(now.level)}.`;
  byId("cost-words").textContent = `The threshold that would hold ${DATA.risk ? `a ${CONTROLLED} of at most` : "coverage of"} ${inUnits(now.level)} whatever so many sites do, if their number is fixed before the reports are seen.${limit}`;
}

/** Where coverage lies for every number of liars, at the threshold as calibrated. */
function drawCurve() {
  const first = DATA.levels[0];
  const [xs, lower, upper] = [0, 1, 2].map((column) => first.curve.map((point) => point[column]));
  if (xs.length < 2) return;
  byId("curve-section").hidden = false;
  draw(
    "curve-chart",
    {
      axes: [
        axis({ label: "sites that may lie", values: (_, ticks) => ticks.map((t) => (Number.isInteger(t) ? t : "")) }),
        axis({ label: `${CONTROLLED} proved`, size: 60, side: 3, values: (_, ticks) => ticks.map((t) => inUnits(t)) }),
      ],
      scales: { x: { time: false }, y: { range: (_, low) => [Math.max(0, low - 0.02), 1] } },
      bands: [{ series: [2, 1], fill: colour("crowd") }],
      series: [
        {},
        { stroke: colour("trusted"), width: 2, points: { show: xs.length < 40, size: 5, fill: colour("trusted") } },
        { stroke: colour("trusted"), width: 2, points: { show: xs.length < 40, size: 5, fill: colour("trusted") } },
      ],
      hooks: { draw: [(chart) => rule(chart, { y: first.value, stroke: colour("quiet"), text: `wanted ${inUnits(first.value)}`, dash: [2, 3] })] },
      read: (i) => `at most ${liarsWord(xs[i])}: ${proved(lower[i], upper[i])}`,
    },
    [xs, lower, upper],
  );
  const empty = first.empty_from === null ? "" : ` From ${liarsWord(first.empty_from)} on nothing is proved.`;
  byId("curve-words").textContent =
    `With ${percent(DATA.own.confidence)} confidence all of it is true at once: for every number, either more sites lie or the honest sites' ${CONTROLLED} lies in the range.${empty}`;
}

function widened(low, high) {
  const room = (high - low) * 0.12 || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}
