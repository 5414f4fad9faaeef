// The charts of score distributions, one client's and the pooled one's, and what is proved for each number of liars.
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
      hooks: { draw: [(chart) => rule(chart, { x: place(thresholdBin()), stroke: colour("accent"), text: "threshold" })] },
      read: (i) => `at or below ${scoreAt(i)}: ${percent(own[i])} of its scores, ${percent(data[1][i])} – ${percent(data[2][i])} of most others'`,
    }),
    data,
  );
}

/** The trusted clients' pooled CDF inside what the certificate proves. */
function drawPooled() {
  const first = DATA.levels[0];
  const { lower, upper } = DATA.coverage_band;
  const used = pooledShares((k) => CLIENTS.trusted[k]);
  const data = [shownPlaces(), [0, ...lower], [0, ...upper], [0, ...used]];
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
            rule(chart, { y: first.value, stroke: colour("quiet"), text: inUnits(first.value), dash: [2, 3] });
            rule(chart, { x: place(thresholdBin()), stroke: colour("accent"), text: `threshold ${shown(first.threshold)}` });
          },
        ],
      },
      read: (i) => `threshold ${scoreAt(i)}: ${percent(data[3][i])} of the scores used, ${CONTROLLED} ${proved(data[1][i], data[2][i])}`,
    }),
    data,
  );
  const sure = percent(DATA.own.confidence);
  byId("pooled-words").textContent =
    `The shaded range holds the honest sites' ${CONTROLLED} at every score, with ${sure} confidence, ${whatever(DATA.own.m)}.`;
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

/** The same in numbers. */
function showCurveTable() {
  fillTable(
    "curve-table",
    ["sites that may lie", `${CONTROLLED} proved`],
    DATA.levels[0].curve.map(([m, lower, upper]) => [number(m), proved(lower, upper)]),
  );
}
