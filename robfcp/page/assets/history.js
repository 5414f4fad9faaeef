// What became of a calibration: alarms over time by site, and what to do.
const HISTORY_RANGE = [-4, 9]; // log10 of the alarm strength; what lies beyond is drawn at the rim
const WHOLE_STEPS = [0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));
const HISTORY_WORDS = {
  coverage: [
    "Alarm strength against “coverage is at least its floor”",
    "While coverage here is at least the floor, it reaches the line marked alarm with a chance of at most delta, however often one looks.",
  ],
  drift: [
    "Alarm strength against “scores are like the site's own report”",
    "The same for scores like those reported: drift shows before coverage falls, if it does.",
  ],
};
let historyKind = "coverage";

function showHistory(found) {
  if (!found) return;
  if (found.watch) showWatch(found.watch);
}

/** A table from column names and rows of texts or cells. */
function fillTable(id, names, rows) {
  const cells = (kind, values) => element("tr", {}, ...values.map((value) => (value instanceof Node ? value : element(kind, { text: value }))));
  byId(id).replaceChildren(element("thead", {}, cells("th", names)), element("tbody", {}, ...rows.map((row) => cells("td", row))));
}

function showWatch(found) {
  byId("history-section").hidden = false;
  byId("history-line").textContent = found.line;
  const kinds = found.kinds.filter((kind) => kind.lines.length);
  historyKind = kinds[0]?.key ?? historyKind;
  segments("history-kinds", kinds.map((kind) => [kind.key, kind.key, HISTORY_WORDS[kind.key][0]]), historyKind, (key) => {
    historyKind = key;
    drawHistory();
  });
  const log = (value) => (value === null ? "–" : value.toFixed(2));
  const counted = found.sites.some((site) => site.covered !== null); // known at the site only
  fillTable(
    "history-sites",
    ["site", "state", "what to do", "samples", ...(counted ? ["covered"] : []), "alarm strength (log10)", "drift (log10)"],
    found.sites.map((site) => [
      element("td", { text: site.name, className: "col-id" }),
      verdictCell(site),
      site.todo,
      number(site.samples),
      ...(counted ? [site.covered === null ? "–" : percent(site.covered)] : []),
      log(site.coverage),
      log(site.drift),
    ]),
  );
  byId("history-count").textContent = found.more ? `The ${number(found.sites.length)} sites with the strongest alarms; ${number(found.more)} more are not shown.` : "";
  if (found.looks.length) {
    fillTable(
      "history-looks",
      ["step", "sites heard", "refused", "mean of the K − m smallest, log10", "drift, log10", "alarm by themselves"],
      found.looks.map(([step, heard, refused, coverage, drift, alarmed]) => [String(step), number(heard), number(refused), log(coverage), log(drift), alarmed]),
    );
  }
}

function verdictCell(site) {
  const looks = { alarm: "flagged", drift: "faulty", silent: "missing", quiet: "trusted" };
  return element("td", {}, element("span", { text: site.word, className: `verdict ${looks[site.state]}` }));
}

function drawHistory() {
  const found = DATA.history?.watch;
  if (!found) return;
  const kind = found.kinds.find((one) => one.key === historyKind);
  if (!kind?.lines.length) return;
  const [low, high] = HISTORY_RANGE;
  const within = (value) => Math.min(high, Math.max(low, value));
  const joined = uPlot.join(kind.lines.map((line) => [line.x, line.y.map(within)]));
  const strokes = { alarm: colour("flagged"), quiet: colour("crowd"), together: colour("text") };
  draw(
    "history-chart",
    {
      padding: [null, 28, null, null],
      scales: { x: { time: false }, y: { range: () => [low - 0.3, high + 0.3] } },
      axes: [
        axis({ label: found.unit, incrs: WHOLE_STEPS, values: (_, ticks) => ticks.map((t) => (Number.isInteger(t) ? place(found, t) : "")) }),
        axis({ label: `alarm strength (log10), drawn ${low} to ${high}`, size: 46 }),
      ],
      series: [
        {},
        ...kind.lines.map((line) => ({
          stroke: strokes[line.state],
          width: line.state === "quiet" ? 1.4 : 2.4,
          dash: line.state === "together" ? [7, 4] : undefined,
          spanGaps: true,
          points: { show: line.x.length < 40 && line.state !== "quiet", size: 5 },
        })),
      ],
      hooks: { draw: [(chart) => rule(chart, { y: kind.limit, stroke: colour("flagged"), text: "alarm" })] },
      read: (i) => readHistory(found, kind, joined[0][i]),
    },
    joined,
  );
  const together = kind.lines.some((line) => line.state === "together");
  byId("history-words").textContent = `${together ? "Broken line: all sites together. " : ""}${HISTORY_WORDS[kind.key][1]}`;
}

/** A step is a name (a week, say), not a number of things. */
function place(found, x) {
  return found.unit === "step" ? String(x) : number(x);
}

/** What stands at one place of the axis: together first, then the largest. */
function readHistory(found, kind, x) {
  const here = kind.lines
    .map((line) => ({ line, value: line.y[line.x.indexOf(x)] }))
    .filter(({ value }) => value !== undefined)
    .sort((a, b) => (b.line.state === "together") - (a.line.state === "together") || b.value - a.value);
  const words = here.slice(0, 3).map(({ line, value }) => `${line.name} ${value.toFixed(2)}`);
  return `${found.unit} ${place(found, x)}: ${words.join(", ")}`;
}
