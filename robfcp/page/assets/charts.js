// What all charts share: colours from the style sheet, size from their box, the score axis.
const CHARTS = new Map();
let scale = defaultScale();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function axis(extra = {}) {
  return {
    stroke: colour("quiet"),
    grid: { stroke: colour("line"), width: 1 },
    ticks: { stroke: colour("line"), width: 1, size: 4 },
    font: `12px ${colour("font")}`,
    labelFont: `12px ${colour("font")}`,
    labelSize: 18,
    labelGap: 0,
    size: 32,
    ...extra,
  };
}

/** Draw a chart into its box, replacing the one before; `read` says what the pointer is at. */
function draw(id, { read, hooks, ...options }, data) {
  const box = byId(id);
  CHARTS.get(id)?.destroy();
  const readout = element("div", { className: "readout" });
  const chart = new uPlot(
    {
      width: box.clientWidth || 300,
      height: box.clientHeight || 240,
      legend: { show: false },
      padding: [20, 18, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      ...options,
      hooks: {
        ...hooks,
        setCursor: [({ cursor }) => (readout.textContent = cursor.idx == null ? "" : read(cursor.idx))],
      },
    },
    data,
    box,
  );
  chart.root.append(readout);
  CHARTS.set(id, chart);
  return chart;
}

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const chart = CHARTS.get(target.id);
    if (chart && (chart.width !== target.clientWidth || chart.height !== target.clientHeight)) {
      chart.setSize({ width: target.clientWidth, height: target.clientHeight });
    }
  }
});

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
  const first = DATA.everybody.findLastIndex((share) => share < 0.002);
  const last = DATA.everybody.findIndex((share) => share > 0.998);
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

/** The axis of scores, below or (side 3) on the left. */
function scoreAxis(label, extra = {}) {
  const base = axis({ label, ...extra });
  if (scale === "linear") return { ...base, values: (_, ticks) => ticks.map((v) => +v.toPrecision(6)) };
  const upright = base.side === 3;
  return {
    ...base,
    splits: (chart, _axis, low, high) => {
      const length = (upright ? chart.bbox.height : chart.bbox.width) / devicePixelRatio;
      return gridTicks(low, high, ((upright ? 30 : 58) / length) * (high - low));
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

/** A dashed line across the plot with a word at its end. */
function rule(chart, { x, y, stroke, text, dash = [5, 4], right = false }) {
  const { ctx, bbox } = chart;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.strokeStyle = ctx.fillStyle = stroke;
  ctx.lineWidth = 1.5 * ratio;
  ctx.setLineDash(dash.map((d) => d * ratio));
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  ctx.font = `${12 * ratio}px ${colour("font")}`;
  ctx.beginPath();
  if (x !== undefined) {
    const at = chart.valToPos(x, "x", true);
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    const width = ctx.measureText(text ?? "").width;
    const left = at + 6 * ratio + width > bbox.left + bbox.width ? at - 6 * ratio - width : at + 6 * ratio;
    if (text) ctx.fillText(text, left, bbox.top + bbox.height - 10 * ratio);
  } else {
    const at = chart.valToPos(y, "y", true);
    ctx.moveTo(bbox.left, at);
    ctx.lineTo(bbox.left + bbox.width, at);
    const width = ctx.measureText(text ?? "").width;
    const left = right ? bbox.left + bbox.width - width - 8 * ratio : bbox.left + 8 * ratio;
    if (text) ctx.fillText(text, left, right ? at + 16 * ratio : at - 6 * ratio);
  }
  ctx.stroke();
  ctx.restore();
}

/** One mark: a shape and a colour for every verdict, so that colour is never alone. */
function mark(ctx, verdict, x, y, size) {
  ctx.beginPath();
  if (verdict === "flagged") {
    ctx.moveTo(x, y - size * 1.2);
    ctx.lineTo(x + size * 1.1, y + size * 0.8);
    ctx.lineTo(x - size * 1.1, y + size * 0.8);
    ctx.closePath();
    ctx.fill();
  } else if (verdict === "trusted") {
    ctx.arc(x, y, size * 0.85, 0, 2 * Math.PI);
    ctx.fill();
  } else if (verdict === "faulty") {
    ctx.moveTo(x - size, y - size);
    ctx.lineTo(x + size, y + size);
    ctx.moveTo(x + size, y - size);
    ctx.lineTo(x - size, y + size);
    ctx.stroke();
  } else {
    ctx.rect(x - size * 0.8, y - size * 0.8, size * 1.6, size * 1.6);
    ctx.stroke();
  }
}
