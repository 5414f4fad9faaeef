// Clients by maliciousness, and the panel of the selected one.
const VERDICTS = ["benign", "suspicious", "flagged", "rejected", "missing"];
const state = { selected: 0 };
const ORDER = Array.from({ length: N_CLIENTS }, (_, k) => k).sort(
  (a, b) => CLIENTS.maliciousness[a] - CLIENTS.maliciousness[b] || a - b,
);
const RANK = new Array(N_CLIENTS);
ORDER.forEach((k, position) => (RANK[k] = N_CLIENTS - position));
// Clients without a valid report.
const ABSENT = [
  ...DATA.rejected_reports.map(({ client, reason }) => ({ client, verdict: "rejected", reason })),
  ...DATA.missing_clients.map((client) => ({ client, verdict: "missing", reason: "registered, but sent nothing" })),
];

/** The row of a client by its index; indices from N_CLIENTS on are those without a valid report. */
function clientRow(k) {
  if (k >= N_CLIENTS) {
    const unknown = { rank: null, n_samples: null, maliciousness: null, coverage: null, diagnosis: "" };
    return { k, ...unknown, ...ABSENT[k - N_CLIENTS] };
  }
  const name = CLIENTS.client[k];
  const diagnosis = DIAGNOSES.get(name);
  const verdict = !CLIENTS.benign[k] ? "flagged" : diagnosis ? "suspicious" : "benign";
  return {
    k,
    client: name,
    verdict,
    rank: RANK[k],
    n_samples: CLIENTS.n_samples[k],
    maliciousness: CLIENTS.maliciousness[k],
    coverage: CLIENTS.coverage[k],
    reason: verdict === "flagged" ? CLIENTS.reason[name] : "",
    diagnosis: diagnosis ? `${capitalize(diagnosis.description)}.` : "",
  };
}

function drawClients() {
  const scores = ORDER.map((k) => CLIENTS.maliciousness[k]);
  const positive = scores.filter((score) => score > 0);
  const isLog = positive.length > 1 && positive.at(-1) > 20 * positive[Math.floor(positive.length / 2)];
  const lowest = isLog ? positive[0] / 1.5 : 0;
  const gap = ABSENT.length ? Math.max(1, Math.round(N_CLIENTS / 40)) : 0;
  const xs = [...ORDER.map((_, i) => i + 1), ...ABSENT.map((_, i) => N_CLIENTS + gap + i + 1)];
  const ys = [...scores.map((score) => Math.max(score, lowest)), ...ABSENT.map(() => null)];
  const indices = [...ORDER, ...ABSENT.map((_, i) => N_CLIENTS + i)];
  const rankText = (tick) => (tick > 0 && tick <= N_CLIENTS && Number.isInteger(tick) ? tick : "");
  const chart = drawChart(
    "clients-chart",
    {
      scales: {
        x: { time: false, range: (_, low, high) => [low - 0.02 * (high - low) - 0.5, high + 0.02 * (high - low) + 0.5] },
        y: { distr: isLog ? 3 : 1, range: isLog ? undefined : (_, low, high) => [0, high * 1.08 || 1] },
      },
      axes: [
        axis({ label: "sites by maliciousness, the largest on the right", values: (_, ticks) => ticks.map(rankText) }),
        axis({
          label: isLog ? "maliciousness (log; 0 at the bottom)" : "maliciousness",
          size: 52,
          splits: isLog ? logTicks : undefined,
          filter: (_, ticks) => ticks,
          values: (_, ticks) => ticks.map(formatNumber),
        }),
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: { draw: [(chart) => drawMarks(chart, xs, ys, indices)] },
      readout: (i) => clientReadout(clientRow(indices[i])),
    },
    [xs, ys],
  );
  chart.over.addEventListener("click", () => {
    if (chart.cursor.idx !== null) selectClient(indices[chart.cursor.idx]);
  });
  const present = new Set([...indices.map((k) => clientRow(k).verdict), "benign", "flagged"]);
  const verdicts = VERDICTS.filter((verdict) => present.has(verdict));
  byId("clients-legend").replaceChildren(...verdicts.map((verdict) => element("li", {}, verdictMark(verdict))));
}

/** Powers of ten, with 2 and 5 between them where there are few. */
function logTicks(_chart, _axis, low, high) {
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  const digits = last - first > 3 ? [1] : [1, 2, 5];
  const ticks = [];
  for (let power = first; power <= last; power++) digits.forEach((digit) => ticks.push(digit * 10 ** power));
  return ticks.filter((tick) => tick >= low && tick <= high);
}

function drawMarks(chart, xs, ys, indices) {
  const { ctx, bbox } = chart;
  const ratio = devicePixelRatio;
  const size = (N_CLIENTS > 600 ? 2.2 : N_CLIENTS > 150 ? 3.2 : 4.5) * ratio;
  const bottom = bbox.top + bbox.height - 8 * ratio;
  const xPosition = (i) => chart.valToPos(xs[i], "x", true);
  const yPosition = (i) => (ys[i] === null ? bottom : chart.valToPos(ys[i], "y", true));
  const verdicts = indices.map((k) => clientRow(k).verdict);
  ctx.save();
  ctx.lineWidth = 1.6 * ratio;
  for (const layer of VERDICTS) {
    ctx.fillStyle = ctx.strokeStyle = color(layer);
    ctx.globalAlpha = layer === "benign" ? 0.75 : 1;
    verdicts.forEach((verdict, i) => {
      if (verdict === layer) drawMark(ctx, verdict, xPosition(i), yPosition(i), size);
    });
  }
  const selected = indices.indexOf(state.selected);
  if (selected >= 0) {
    ctx.globalAlpha = 1;
    ctx.strokeStyle = color("text");
    ctx.beginPath();
    ctx.arc(xPosition(selected), yPosition(selected), Math.max(2.4 * size, 7 * ratio), 0, 2 * Math.PI);
    ctx.stroke();
  }
  ctx.restore();
}

function clientReadout({ client, verdict, maliciousness }) {
  const suffix = maliciousness === null ? "" : `, maliciousness ${formatNumber(maliciousness)}`;
  return `${client}: ${verdict}${suffix}`;
}

function showClient() {
  const row = clientRow(state.selected);
  const isAbsent = row.k >= N_CLIENTS;
  byId("client-title").textContent = row.client;
  const verdict = byId("client-verdict");
  const isExcluded = row.verdict === "flagged" && !DATA.settings.guarantee;
  verdict.textContent = isExcluded ? "flagged, excluded" : row.verdict;
  verdict.className = `verdict ${row.verdict}`;
  byId("client-description").textContent = isAbsent ? row.reason : clientDescription(row);
  byId("client-reason").textContent = row.reason;
  byId("client-technical").hidden = isAbsent || !row.reason;
  const facts = isAbsent
    ? []
    : [
        ["samples", formatCount(row.n_samples)],
        ["maliciousness", formatNumber(row.maliciousness)],
        ["maliciousness rank", `${row.rank} of ${N_CLIENTS}`],
        [CLIENT_MEASURE, formatMeasure(row.coverage)],
      ];
  fillDescriptions("client-facts", facts);
  byId("client-chart").hidden = isAbsent;
  if (!isAbsent) drawClient(row.k);
}

/** The diagnosis of a client, if there is one, in sentences. */
function clientDescription({ client }) {
  const diagnosis = DIAGNOSES.get(client);
  if (!diagnosis) return "Included: nothing in its report is suspicious.";
  const { description, coverage_text: coverageText, recommendation } = diagnosis;
  const clauses = [description, coverageText, recommendation].filter(Boolean);
  return `${clauses.map(capitalize).join(". ")}.`;
}
