// Clients by oddness, and the panel of the one that was clicked.
const state = { client: 0 };
const ORDER = Array.from({ length: K }, (_, k) => k).sort(
  (a, b) => CLIENTS.oddness[a] - CLIENTS.oddness[b] || a - b,
);
const ABSENT = [
  ...DATA.faulty.map((fault) => ({ id: fault.client, verdict: "faulty", reason: fault.reason })),
  ...DATA.missing.map((id) => ({ id, verdict: "missing", reason: "registered, but sent nothing" })),
];

/** Client k's row; numbers from K on are those without a valid report. */
function client(k) {
  if (k >= K) return { k, rank: null, size: null, oddness: null, covered: null, diagnosis: "", ...ABSENT[k - K] };
  const id = CLIENTS.id[k];
  const verdict = !CLIENTS.trusted[k] ? "flagged" : Object.hasOwn(DATA.diagnoses, id) ? "look" : "trusted";
  return {
    k,
    id,
    verdict,
    rank: RANK[k],
    size: CLIENTS.size[k],
    oddness: CLIENTS.oddness[k],
    covered: CLIENTS.covered[k],
    reason: verdict === "flagged" ? CLIENTS.reason[id] : "",
    diagnosis: Object.hasOwn(DATA.diagnoses, id) ? `${sentence(DATA.diagnoses[id].finding)}.` : "",
  };
}

const RANK = new Array(K);
ORDER.forEach((k, position) => (RANK[k] = K - position));

function drawClients() {
  const numbers = ORDER.map((k) => CLIENTS.oddness[k]);
  const positive = numbers.filter((value) => value > 0);
  const log = positive.length > 1 && positive.at(-1) > 20 * positive[Math.floor(positive.length / 2)];
  const floor = log ? positive[0] / 1.5 : 0;
  const gap = ABSENT.length ? Math.max(1, Math.round(K / 40)) : 0;
  const xs = [...ORDER.map((_, i) => i + 1), ...ABSENT.map((_, i) => K + gap + i + 1)];
  const ys = [...numbers.map((value) => Math.max(value, floor)), ...ABSENT.map(() => null)];
  const drawn = [...ORDER, ...ABSENT.map((_, i) => K + i)];
  const chart = draw(
    "clients-chart",
    {
      scales: {
        x: { time: false, range: (_, low, high) => [low - 0.02 * (high - low) - 0.5, high + 0.02 * (high - low) + 0.5] },
        y: { distr: log ? 3 : 1, range: log ? undefined : (_, low, high) => [0, high * 1.08 || 1] },
      },
      axes: [
        axis({ label: "sites, the oddest on the right", values: (_, ticks) => ticks.map((t) => (t > 0 && t <= K && Number.isInteger(t) ? t : "")) }),
        axis({ label: log ? "oddness (log; 0 at the foot)" : "oddness", size: 52, splits: log ? powers : undefined, filter: (_, ticks) => ticks, values: (_, ticks) => ticks.map(shown) }),
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: { draw: [(chart) => drawMarks(chart, xs, ys, drawn)] },
      read: (i) => describe(client(drawn[i])),
    },
    [xs, ys],
  );
  chart.over.addEventListener("click", () => {
    if (chart.cursor.idx !== null) select(drawn[chart.cursor.idx]);
  });
  const present = new Set([...ORDER.map((k) => client(k).verdict), ...ABSENT.map((one) => one.verdict), "trusted", "flagged"]);
  const kinds = ["trusted", "look", "flagged", "faulty", "missing"].filter((kind) => present.has(kind));
  byId("clients-legend").replaceChildren(
    ...kinds.map((kind) => element("li", {}, verdictMark(kind))),
  );
}

/** Powers of ten, with 2 and 5 between them where there are few. */
function powers(_chart, _axis, low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const steps = last - first > 3 ? [1] : [1, 2, 5];
  const all = [];
  for (let power = first; power <= last; power++) steps.forEach((step) => all.push(step * 10 ** power));
  return all.filter((value) => value >= low && value <= high);
}

function drawMarks(chart, xs, ys, drawn) {
  const { ctx, bbox } = chart;
  const ratio = devicePixelRatio;
  const size = (K > 600 ? 2.2 : K > 150 ? 3.2 : 4.5) * ratio;
  const bottom = bbox.top + bbox.height - 8 * ratio;
  const verdicts = drawn.map((k) => client(k).verdict);
  ctx.save();
  ctx.lineWidth = 1.6 * ratio;
  for (const wanted of ["trusted", "look", "flagged", "faulty", "missing"]) {
    ctx.fillStyle = ctx.strokeStyle = colour(wanted);
    ctx.globalAlpha = wanted === "trusted" ? 0.75 : 1;
    verdicts.forEach((verdict, i) => {
      if (verdict !== wanted) return;
      const y = ys[i] === null ? bottom : chart.valToPos(ys[i], "y", true);
      mark(ctx, verdict, chart.valToPos(xs[i], "x", true), y, size);
    });
  }
  const position = drawn.indexOf(state.client);
  if (position >= 0) {
    const y = ys[position] === null ? bottom : chart.valToPos(ys[position], "y", true);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = colour("text");
    ctx.beginPath();
    ctx.arc(chart.valToPos(xs[position], "x", true), y, Math.max(2.4 * size, 7 * ratio), 0, 2 * Math.PI);
    ctx.stroke();
  }
  ctx.restore();
}

function describe({ id, verdict, oddness }) {
  return `${id}: ${verdictWords(verdict)}${oddness === null ? "" : `, oddness ${shown(oddness)}`}`;
}

function showClient() {
  const chosen = client(state.client);
  byId("client-title").textContent = chosen.id;
  const verdict = byId("client-verdict");
  verdict.textContent = verdictWords(chosen.verdict);
  verdict.className = `verdict ${chosen.verdict}`;
  const found = DIAGNOSES.get(chosen.id);
  const told = chosen.k < K && found;
  byId("client-finding").textContent = told
    ? [found.finding, found.fact, found.advice].filter(Boolean).map(sentence).join(". ") + "."
    : chosen.k < K ? "Used: nothing in its report looks wrong." : chosen.reason;
  byId("client-reason").textContent = chosen.reason;
  byId("client-technical").hidden = chosen.k >= K || !chosen.reason;
  const facts =
    chosen.size === null
      ? []
      : [
          ["samples", number(chosen.size)],
          ["oddness", shown(chosen.oddness)],
          ["oddest first", `${chosen.rank} of ${K}`],
          [OWN_CASES, inUnits(chosen.covered)],
        ];
  byId("client-facts").replaceChildren(
    ...facts.map(([name, value]) => element("div", {}, element("dt", { text: name }), element("dd", { text: value }))),
  );
  byId("client-chart").hidden = chosen.size === null;
  if (chosen.size !== null) drawClient(chosen.k);
}
