// What happened since a calibration: e-values over time by site, and what to do.
const LOG10_E_VALUE_RANGE = [-4, 9]; // values beyond it are drawn at its ends
const INTEGER_STEPS = [0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));
const ALARM_TEXTS = {
  coverage: [
    "E-value against “coverage is at least its minimum”",
    "While coverage is at least its minimum, the e-value reaches the line of the alarm with a probability of at most delta, however often it is inspected.",
  ],
  drift: [
    "E-value against “scores are distributed as in the site's own report”",
    "The same for scores distributed as reported: drift shows before coverage falls, if it does.",
  ],
};
const CURVE_COLORS = { alarm: "flagged", quiet: "cdf-band", together: "text" };
const STATE_VERDICTS = { alarm: "flagged", drift: "rejected", silent: "missing", quiet: "benign" }; // same marks
let alarmKind = "coverage";

function showHistory(history) {
  if (history?.alarm_panel) showAlarmPanel(history.alarm_panel);
}

function showAlarmPanel(panel) {
  byId("history-section").hidden = false;
  byId("history-line").textContent = panel.line;
  const kinds = panel.charts.filter((chart) => chart.curves.length).map((chart) => chart.kind);
  alarmKind = kinds[0] ?? alarmKind;
  segmentedButtons("history-kinds", kinds.map((kind) => [kind, kind, ALARM_TEXTS[kind][0]]), alarmKind, (kind) => {
    alarmKind = kind;
    drawHistory();
  });
  showHistoryClients(panel);
  showInspections(panel.inspections);
}

function logText(value) {
  return value === null ? "–" : value.toFixed(2);
}

function showHistoryClients({ clients, n_clients_not_shown: nMore }) {
  const hasCoverage = clients.some((client) => client.coverage !== null); // known to the site only
  const coverageCells = ({ coverage }) => {
    if (!hasCoverage) return [];
    return [coverage === null ? "–" : formatPercent(coverage)];
  };
  fillTable(
    "history-clients",
    ["site", "state", "what to do", "samples", ...(hasCoverage ? ["covered"] : []), "e-value of coverage (log10)", "of drift (log10)"],
    clients.map((client) => [
      element("td", { text: client.name, className: "col-client" }),
      stateCell(client),
      client.recommendation,
      formatCount(client.n_samples),
      ...coverageCells(client),
      logText(client.log10_e_coverage),
      logText(client.log10_e_exchangeability),
    ]),
  );
  byId("history-count").textContent = nMore
    ? `The ${formatCount(clients.length)} sites with the largest e-values; ${formatCount(nMore)} more are not shown.`
    : "";
}

function showInspections(inspections) {
  if (!inspections.length) return;
  fillTable(
    "history-inspections",
    ["step", "reports", "rejected", "mean of the K − m smallest, log10", "drift, log10", "alarm by themselves"],
    inspections.map(([step, nReports, nRejected, log10ECoverage, log10EExchangeability, alarming]) => [
      String(step),
      formatCount(nReports),
      formatCount(nRejected),
      logText(log10ECoverage),
      logText(log10EExchangeability),
      alarming,
    ]),
  );
}

function stateCell(client) {
  const className = `verdict ${STATE_VERDICTS[client.state]}`;
  return element("td", {}, element("span", { text: client.state_text, className }));
}

function drawHistory() {
  const panel = DATA.history?.alarm_panel;
  const alarmChart = panel?.charts.find((chart) => chart.kind === alarmKind);
  if (!alarmChart?.curves.length) return;
  const { curves, log10_alarm_threshold: log10Threshold } = alarmChart;
  const [low, high] = LOG10_E_VALUE_RANGE;
  const clip = (value) => Math.min(high, Math.max(low, value));
  const data = uPlot.join(curves.map((curve) => [curve.x, curve.y.map(clip)]));
  const stepText = (tick) => (Number.isInteger(tick) ? xText(panel, tick) : "");
  drawChart(
    "history-chart",
    {
      padding: [null, 28, null, null],
      scales: { x: { time: false }, y: { range: () => [low - 0.3, high + 0.3] } },
      axes: [
        axis({ label: panel.x_unit, incrs: INTEGER_STEPS, values: (_, ticks) => ticks.map(stepText) }),
        axis({ label: `e-value (log10), drawn ${low} to ${high}`, size: 46 }),
      ],
      series: [{}, ...curves.map(curveStyle)],
      hooks: {
        draw: [(chart) => referenceLine(chart, { y: log10Threshold, stroke: color("flagged"), text: "alarm" })],
      },
      readout: (i) => historyReadout(panel, curves, data[0][i]),
    },
    data,
  );
  const prefix = curves.some(isOfAllClients) ? "Broken line: all sites together. " : "";
  byId("history-text").textContent = `${prefix}${ALARM_TEXTS[alarmKind][1]}`;
}

function isOfAllClients(curve) {
  return curve.state === "together";
}

function curveStyle(curve) {
  const isQuiet = curve.state === "quiet";
  return {
    stroke: color(CURVE_COLORS[curve.state]),
    width: isQuiet ? 1.4 : 2.4,
    dash: isOfAllClients(curve) ? [7, 4] : undefined,
    spanGaps: true,
    points: { show: curve.x.length < 40 && !isQuiet, size: 5 },
  };
}

/** A step is a name (a week, say), a number of samples is a count. */
function xText(panel, x) {
  return panel.x_unit === "step" ? String(x) : formatCount(x);
}

/** The e-values at one x: that of all clients first, then the largest. */
function historyReadout(panel, curves, x) {
  const points = curves
    .map((curve) => ({ curve, value: curve.y[curve.x.indexOf(x)] }))
    .filter(({ value }) => value !== undefined)
    .sort((a, b) => isOfAllClients(b.curve) - isOfAllClients(a.curve) || b.value - a.value);
  const texts = points.slice(0, 3).map(({ curve, value }) => `${curve.name} ${value.toFixed(2)}`);
  return `${panel.x_unit} ${xText(panel, x)}: ${texts.join(", ")}`;
}
