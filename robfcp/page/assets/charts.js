// What all charts share: colors from the style sheet, size from their box.
const CHARTS = new Map();

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function axis(options = {}) {
  return {
    stroke: color("quiet"),
    grid: { stroke: color("line"), width: 1 },
    ticks: { stroke: color("line"), width: 1, size: 4 },
    font: `12px ${color("font")}`,
    labelFont: `12px ${color("font")}`,
    labelSize: 18,
    labelGap: 0,
    size: 32,
    ...options,
  };
}

/** Draw a chart into its box, replacing the previous one; `readout` describes the pointer's index. */
function drawChart(id, { readout, hooks, ...options }, data) {
  const box = byId(id);
  CHARTS.get(id)?.destroy();
  const readoutBox = element("div", { className: "readout" });
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
        setCursor: [({ cursor }) => (readoutBox.textContent = cursor.idx == null ? "" : readout(cursor.idx))],
      },
    },
    data,
    box,
  );
  chart.root.append(readoutBox);
  CHARTS.set(id, chart);
  return chart;
}

const chartResizer = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const chart = CHARTS.get(target.id);
    if (chart && (chart.width !== target.clientWidth || chart.height !== target.clientHeight)) {
      chart.setSize({ width: target.clientWidth, height: target.clientHeight });
    }
  }
});

/** A dashed line across the plot with a label at its end. */
function referenceLine(chart, { x, y, stroke, text, dash = [5, 4] }) {
  const { ctx, bbox } = chart;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.strokeStyle = ctx.fillStyle = stroke;
  ctx.lineWidth = 1.5 * ratio;
  ctx.setLineDash(dash.map((length) => length * ratio));
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  ctx.font = `${12 * ratio}px ${color("font")}`;
  ctx.beginPath();
  if (x !== undefined) {
    const position = chart.valToPos(x, "x", true);
    ctx.moveTo(position, bbox.top);
    ctx.lineTo(position, bbox.top + bbox.height);
    const width = ctx.measureText(text ?? "").width;
    const overflows = position + 6 * ratio + width > bbox.left + bbox.width;
    const left = overflows ? position - 6 * ratio - width : position + 6 * ratio;
    if (text) ctx.fillText(text, left, bbox.top + bbox.height - 10 * ratio);
  } else {
    const position = chart.valToPos(y, "y", true);
    ctx.moveTo(bbox.left, position);
    ctx.lineTo(bbox.left + bbox.width, position);
    if (text) ctx.fillText(text, bbox.left + 8 * ratio, position - 6 * ratio);
  }
  ctx.stroke();
  ctx.restore();
}

/** A mark: a shape and a color for every verdict, so that color never stands alone. */
function drawMark(ctx, verdict, x, y, size) {
  ctx.beginPath();
  if (verdict === "flagged") {
    ctx.moveTo(x, y - size * 1.2);
    ctx.lineTo(x + size * 1.1, y + size * 0.8);
    ctx.lineTo(x - size * 1.1, y + size * 0.8);
    ctx.closePath();
    ctx.fill();
  } else if (verdict === "benign") {
    ctx.arc(x, y, size * 0.85, 0, 2 * Math.PI);
    ctx.fill();
  } else if (verdict === "suspicious") {
    ctx.moveTo(x, y - size * 1.25);
    ctx.lineTo(x + size * 1.1, y);
    ctx.lineTo(x, y + size * 1.25);
    ctx.lineTo(x - size * 1.1, y);
    ctx.closePath();
    ctx.fill();
  } else if (verdict === "rejected") {
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
