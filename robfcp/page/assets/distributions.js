// The distributions of scores, of a client and pooled, and the certificates for each number of malicious sites.
function cdfOptions({ scales, ...options }) {
  const fractionTicks = (_, ticks) => ticks.map((tick) => formatPercent(tick));
  return {
    axes: [scoreAxis("score"), axis({ label: "share of scores at or below", size: 48, values: fractionTicks })],
    scales: { x: { time: false, range: visibleRange }, y: { range: [0, 1.02] }, ...scales },
    ...options,
  };
}

/** The text of the score at an index of the plot's edges, the lower end first. */
function scoreText(i) {
  return formatNumber(i === 0 ? (DATA.binning.lowest_edge ?? -Infinity) : upperEdge(PLOT_BINS[i - 1]));
}

function drawThreshold(chart, text) {
  referenceLine(chart, { x: edgePosition(thresholdBin()), stroke: color("accent"), text });
}

/** A client's CDF and the band of the middle 90% of the benign clients' CDFs. */
function drawClient(k) {
  const { lower, median, upper } = DATA.cdf_band;
  const cdf = [0, ...clientCdf(k)];
  const data = [plotPositions(), [0, ...lower], [0, ...upper], [0, ...median], cdf];
  const bandText = (i) => `${formatPercent(data[1][i])} – ${formatPercent(data[2][i])}`;
  drawChart(
    "client-chart",
    cdfOptions({
      series: [
        {},
        { stroke: "transparent", points: { show: false } },
        { stroke: "transparent", points: { show: false } },
        { stroke: color("quiet"), width: 1.5, dash: [4, 3], points: { show: false } },
        { stroke: color(clientRow(k).verdict), width: 2.5, points: { show: false } },
      ],
      bands: [{ series: [2, 1], fill: color("cdf-band") }],
      hooks: { draw: [(chart) => drawThreshold(chart, "threshold")] },
      readout: (i) => `at or below ${scoreText(i)}: ${formatPercent(cdf[i])} of its scores, ${bandText(i)} of most other sites'`,
    }),
    data,
  );
}

/** The benign clients' pooled CDF inside the certified range. */
function drawPooled() {
  const level = DATA.levels[0];
  const { lower, upper } = DATA.coverage_band;
  const cdf = pooledCdf((k) => CLIENTS.benign[k]);
  const data = [plotPositions(), [0, ...lower], [0, ...upper], [0, ...cdf]];
  const drawLines = (chart) => {
    referenceLine(chart, { y: level.coverage, stroke: color("quiet"), text: formatMeasure(level.coverage), dash: [2, 3] });
    drawThreshold(chart, `threshold ${formatNumber(level.threshold)}`);
  };
  drawChart(
    "pooled-chart",
    cdfOptions({
      series: [
        {},
        { stroke: color("band-line"), width: 1, points: { show: false } },
        { stroke: color("band-line"), width: 1, points: { show: false } },
        { stroke: color("benign"), width: 2.5, points: { show: false } },
      ],
      bands: [{ series: [2, 1], fill: color("band") }],
      hooks: { draw: [drawLines] },
      readout: (i) => {
        const certified = formatCertified(data[1][i], data[2][i]);
        return `threshold ${scoreText(i)}: ${formatPercent(data[3][i])} of the included scores, ${MEASURE} ${certified}`;
      },
    }),
    data,
  );
  const confidence = formatPercent(DATA.settings.certificate_confidence);
  const condition = maliciousCondition(DATA.settings.n_malicious);
  byId("pooled-text").textContent =
    `The shaded range contains the benign sites' ${MEASURE} at every score, with ${confidence} confidence, ${condition}.`;
}

/** The certified range for every number of malicious sites, at the calibrated threshold. */
function drawCertificates() {
  const level = DATA.levels[0];
  const [nMalicious, lower, upper] = [0, 1, 2].map((column) => level.certificate_points.map((point) => point[column]));
  if (nMalicious.length < 2) return;
  byId("certificates-section").hidden = false;
  const integerText = (tick) => (Number.isInteger(tick) ? tick : "");
  const points = { show: nMalicious.length < 40, size: 5, fill: color("benign") };
  const target = { y: level.coverage, stroke: color("quiet"), text: `target ${formatMeasure(level.coverage)}`, dash: [2, 3] };
  drawChart(
    "certificates-chart",
    {
      axes: [
        axis({ label: "malicious sites, at most", values: (_, ticks) => ticks.map(integerText) }),
        axis({ label: `certified ${MEASURE}`, size: 60, side: 3, values: (_, ticks) => ticks.map((tick) => formatMeasure(tick)) }),
      ],
      scales: { x: { time: false }, y: { range: (_, low) => [Math.max(0, low - 0.02), 1] } },
      bands: [{ series: [2, 1], fill: color("cdf-band") }],
      series: [{}, { stroke: color("benign"), width: 2, points }, { stroke: color("benign"), width: 2, points }],
      hooks: { draw: [(chart) => referenceLine(chart, target)] },
      readout: (i) => `at most ${formatMalicious(nMalicious[i])}: ${formatCertified(lower[i], upper[i])}`,
    },
    [nMalicious, lower, upper],
  );
  const confidence = formatPercent(DATA.settings.certificate_confidence);
  const vacuousFrom = level.vacuous_from;
  const suffix = vacuousFrom === null ? "" : ` From ${formatMalicious(vacuousFrom)} on the certificate is vacuous.`;
  byId("certificates-text").textContent =
    `With ${confidence} confidence all of these hold at once: for every number, the benign sites' ${MEASURE} lies in the range, unless more sites are malicious.${suffix}`;
}

/** The same certificates as a table. */
function showCertificatesTable() {
  fillTable(
    "certificates-table",
    ["malicious sites, at most", `certified ${MEASURE}`],
    DATA.levels[0].certificate_points.map(([nMalicious, lower, upper]) => [formatCount(nMalicious), formatCertified(lower, upper)]),
  );
}
