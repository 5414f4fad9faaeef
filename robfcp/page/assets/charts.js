// What all charts share: colours from the style sheet, size from their box.
const CHARTS = new Map();

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
  } else if (verdict === "look") {
    ctx.moveTo(x, y - size * 1.25);
    ctx.lineTo(x + size * 1.1, y);
    ctx.lineTo(x, y + size * 1.25);
    ctx.lineTo(x - size * 1.1, y);
    ctx.closePath();
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
