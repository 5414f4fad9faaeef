// Puts the page together.
function selectClient(k) {
  state.selected = k;
  CHARTS.get("clients-chart")?.redraw(false);
  showClient();
  showRows();
}

function drawAll() {
  drawClients();
  showClient();
  drawPooled();
  drawCertificates();
  drawHistory();
}

function showTexts() {
  const { info, impact, summary, headline, history } = DATA;
  if (info.title) document.title = info.title;
  byId("info-title").textContent = info.title || "calibration";
  byId("info-lines").textContent = info.lines.join(" · ");
  byId("first-sentence").textContent = impact.sentence || summary.sentence;
  byId("impact-details").textContent = impact.details;
  byId("summary").textContent = impact.sentence ? summary.sentence : "";
  byId("summary-recommendation").textContent = summary.recommendation;
  byId("claim").textContent = `${headline.claim}.`;
  byId("coverage").textContent = headline.coverage;
  byId("certificate").textContent = headline.certificate;
  byId("reports").textContent = headline.reports;
  byId("assumptions-intro").textContent = "It is assumed that";
  fillList("assumptions", DATA.levels[0].assumptions);
  fillList("notes", DATA.notes);
  fillDescriptions("auditor-answers", DATA.auditor);
  fillDescriptions("audit", DATA.audit);
  showLevels();
  showCertificatesTable();
  if (history?.is_alarm) {
    byId("alarm").textContent = `${history.claim}. ${history.recommendation}`;
    byId("alarm").hidden = false;
  }
}

const MODEL_CARD_ANSWERS = ["number of malicious sites", "threshold"];
const MODEL_CARD_AUDIT_ROWS = [
  "model",
  "round",
  "score",
  "defense",
  "guarantee",
  "calibration digest (SHA-256 without key and signature)",
];

/** The text of a model card on uncertainty, as Markdown: data, certificate, assumptions. */
function modelCard() {
  const { info, headline, strata, levels } = DATA;
  const auditRows = new Map(DATA.audit);
  const isRegression = /^(AbsoluteResidual|CQR)\(/.test(auditRows.get("score"));
  const title = info.title ? `: ${escapeMarkdown(info.title)}` : "";
  const uses = isRegression ? "Intervals" : "Sets of labels";
  const lines = [
    `## Prediction ${isRegression ? "intervals" : "sets"}${title}`,
    "",
    `**Intended use.** ${uses} for new cases of the sites that reported; not for cases of other kinds, nor in place of judgment.`,
    "",
    `**Calibration data.** ${escapeMarkdown(headline.reports)} ${escapeMarkdown(headline.coverage)}`,
    "",
    `**Aim.** ${escapeMarkdown(headline.claim)}.`,
    "",
    `**Certificate.** ${escapeMarkdown(headline.certificate)}`,
    "",
    "**It is assumed that**",
    "",
    ...levels[0].assumptions.map((text) => `- ${escapeMarkdown(text)}`),
    "",
  ];
  if (strata) lines.push(...strataMarkdown(strata));
  const answers = DATA.auditor.filter(([name]) => MODEL_CARD_ANSWERS.includes(name));
  lines.push(...answers.map(([name, text]) => `- ${name}: ${escapeMarkdown(text)}`));
  const auditNames = MODEL_CARD_AUDIT_ROWS.filter((name) => auditRows.get(name) !== "none");
  lines.push(...auditNames.map((name) => `- ${name}: ${escapeMarkdown(auditRows.get(name))}`));
  return `${lines.join("\n")}\n`;
}

function escapeMarkdown(text) {
  return text.replace(/[\\`*_|<>[\]#]/g, "\\$&").replace(/\s+/g, " ");
}

/** The lines of a Markdown table of classes or groups. */
function strataMarkdown({ by, rows }) {
  const markdownRow = (cells) => `| ${cells.map((cell) => escapeMarkdown(String(cell))).join(" | ")} |`;
  const isCertified = hasStratumThresholds();
  const names = [by, "threshold", "samples", "covered"];
  if (isCertified) names.push("certified");
  const lines = [markdownRow(names), `|${"---|".repeat(names.length)}`];
  for (const row of rows) {
    const cells = [row.name, formatNumber(row.threshold), formatCount(row.n_samples), fractionText(row.coverage)];
    if (isCertified) cells.push(row.certified ? formatCertified(...row.certified) : "–");
    lines.push(markdownRow(cells));
  }
  lines.push("", "Covered: the share of their own cases, at the included sites.", "");
  return lines;
}

function setUpModelCard() {
  const text = modelCard();
  byId("model-card").textContent = text;
  byId("model-card-save").addEventListener("click", () => saveFile(text, "model-card.md", "text/markdown"));
}

/** The client that is selected first: the most malicious flagged, else suspicious one, else of all. */
function initialClient() {
  const mostMalicious = (verdict) => ORDER.findLast((k) => clientRow(k).verdict === verdict);
  return mostMalicious("flagged") ?? mostMalicious("suspicious") ?? ORDER.at(-1);
}

/** A row for each level: its threshold, the mean set size where it is known, the certificate. */
function showLevels() {
  const sizes = DATA.mean_set_sizes;
  const threshold = hasStratumThresholds() ? "largest threshold" : "threshold";
  fillTable(
    "levels",
    [`target ${MEASURE}`, threshold, ...(sizes ? ["labels in a set"] : []), `certified ${MEASURE}`],
    DATA.levels.map((level, i) => [
      formatMeasure(level.coverage),
      formatNumber(level.threshold),
      ...(sizes ? [sizes[i].toFixed(2)] : []),
      formatCertified(level.lower, level.upper),
    ]),
  );
}

function setUpScales() {
  const choices = [
    ["linear", "linear", "The scores as they are"],
    ["binning", "stretched", "By bin: fine where scores are dense"],
  ];
  segmentedButtons("scales", choices, scale, (key) => {
    scale = key;
    drawPooled();
    if (state.selected < N_CLIENTS) drawClient(state.selected);
  });
}

/** Printers get light colors and the unusual rows of the table. */
function setUpPrinting() {
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.theme = "light";
    drawAll();
    showPrintedRows();
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.theme;
    drawAll();
    updateTable();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}

state.selected = initialClient();
showTexts();
showDiagnoses();
showStrata();
showHistory(DATA.history);
setUpScales();
setUpTable();
setUpModelCard();
setUpPrinting();
drawAll();
document.querySelectorAll(".chart").forEach((box) => chartResizer.observe(box));
document.documentElement.dataset.ready = "yes";
