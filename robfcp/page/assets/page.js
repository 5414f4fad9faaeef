// Puts the page together.
function select(k) {
  state.client = k;
  CHARTS.get("clients-chart")?.redraw(false);
  showClient();
  showRows();
}

function drawAll() {
  drawClients();
  showClient();
  drawPooled();
  drawCurve();
  drawHistory();
}

function showWords() {
  const { title, lines } = DATA.about;
  if (title) document.title = title;
  byId("about-title").textContent = title || "calibration";
  byId("about-lines").textContent = lines.join(" · ");
  const harm = DATA.harm.first;
  byId("first").textContent = harm || DATA.message.first;
  byId("harm").textContent = DATA.harm.then;
  byId("message").textContent = harm ? DATA.message.first : "";
  byId("advice").textContent = DATA.message.then;
  byId("claim").textContent = `${DATA.headline.claim}.`;
  byId("used").textContent = DATA.headline.used;
  byId("promise").textContent = DATA.headline.promise;
  byId("reports").textContent = DATA.headline.reports;
  const first = DATA.levels[0];
  byId("statement").textContent = "It is assumed that";
  byId("assumptions").replaceChildren(...first.assumptions.map((text) => element("li", { text })));
  byId("notes").replaceChildren(...DATA.notes.map((text) => element("li", { text })));
  for (const part of ["brief", "audit"]) {
    const rows = DATA[part].map(([name, text]) => element("div", {}, element("dt", { text: name }), element("dd", { text })));
    byId(part).replaceChildren(...rows);
  }
  showLevels();
  showCurveTable();
  if (DATA.history?.alarm) {
    byId("since").textContent = `${DATA.history.claim}. ${DATA.history.todo}`;
    byId("since").hidden = false;
  }
}

/** What a model card says about uncertainty, as Markdown: who, what is proved, what it rests on. */
function modelCard() {
  const plain = (words) => words.replace(/[\\`*_|<>[\]#]/g, "\\$&").replace(/\s+/g, " ");
  const row = (cells) => `| ${cells.map((cell) => plain(String(cell))).join(" | ")} |`;
  const audit = new Map(DATA.audit), { headline, strata } = DATA;
  const brief = DATA.brief.filter(([name]) => name === "number of liars" || name === "threshold");
  const told = ["model", "round", "score", "defence", "promise", "calibration digest (SHA-256 without key and signature)"];
  const intervals = /^(AbsoluteResidual|CQR)\(/.test(audit.get("score"));
  const lines = [
    `## Prediction ${intervals ? "intervals" : "sets"}${DATA.about.title ? `: ${plain(DATA.about.title)}` : ""}`, "",
    `**Intended use.** ${intervals ? "Intervals" : "Sets of labels"} for new cases of the sites that reported; not for cases of other kinds, nor in place of judgement.`, "",
    `**Calibration data.** ${plain(headline.reports)} ${plain(headline.used)}`, "",
    `**Aim.** ${plain(headline.claim)}.`, "",
    `**What is proved.** ${plain(headline.promise)}`, "",
    "**It is assumed that**", "", ...DATA.levels[0].assumptions.map((text) => `- ${plain(text)}`), "",
  ];
  if (strata) {
    const some = hasStratumThresholds();
    const told = (one) => (some ? [one.proved ? proved(...one.proved) : "–"] : []);
    const heads = [strata.by, "threshold", "samples", "covered", ...(some ? ["proved"] : [])];
    lines.push(row(heads), `|${"---|".repeat(heads.length)}`);
    lines.push(...strata.rows.map((one) => row([one.name, shown(one.threshold), number(one.samples), one.covered === null ? "–" : percent(one.covered), ...told(one)])));
    lines.push("", "Covered: the share of their own cases, at the sites that were used.", "");
  }
  lines.push(...brief.map(([name, text]) => `- ${name}: ${plain(text)}`));
  lines.push(...told.filter((name) => audit.get(name) !== "none").map((name) => `- ${name}: ${plain(audit.get(name))}`));
  return `${lines.join("\n")}\n`;
}

function setUpCard() {
  const text = modelCard();
  byId("card").textContent = text;
  byId("card-save").addEventListener("click", () => save(text, "model-card.md", "text/markdown"));
}

/** Whom the page opens on: the oddest site left out, else one to look at, else the oddest. */
function culprit() {
  const oddest = (wanted) => ORDER.findLast((k) => client(k).verdict === wanted);
  return oddest("flagged") ?? oddest("look") ?? ORDER.at(-1);
}

/** A row for each level: its threshold, how large sets are where it is known, what is proved. */
function showLevels() {
  const sizes = DATA.mean_set_sizes;
  const threshold = hasStratumThresholds() ? "largest threshold" : "threshold";
  fillTable(
    "levels",
    [`${CONTROLLED} wanted`, threshold, ...(sizes ? ["labels in a set"] : []), `${CONTROLLED} proved`],
    DATA.levels.map((level, i) => [
      inUnits(level.value),
      shown(level.threshold),
      ...(sizes ? [sizes[i].toFixed(2)] : []),
      proved(level.lower, level.upper),
    ]),
  );
}

function setUpScales() {
  const choices = [["linear", "linear", "The scores as they are"], ["grid", "stretched", "By grid bin: fine where scores crowd"]];
  segments("scales", choices, scale, (key) => {
    scale = key;
    drawPooled();
    if (state.client < K) drawClient(state.client);
  });
}

/** Printers get light colours and the whole table. */
function setUpPrinting() {
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.theme = "light";
    drawAll();
    showRowsInPrint();
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.theme;
    drawAll();
    arrange();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}

state.client = culprit();
showWords();
showDiagnoses();
showStrata();
showHistory(DATA.history);
setUpScales();
setUpTable();
setUpCard();
setUpPrinting();
drawAll();
document.querySelectorAll(".chart").forEach((box) => resized.observe(box));
document.documentElement.dataset.ready = "yes";
