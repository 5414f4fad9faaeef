// Puts the page together.
function select(k) {
  state.client = k;
  CHARTS.get("clients-chart")?.redraw(false);
  showClient();
  showRows();
}

/** Everything that follows the sliders. */
function refresh() {
  showOutcome();
  CHARTS.get("clients-chart")?.redraw(false);
  drawPooled();
  drawCost();
  if (state.client < K) drawClient(state.client);
}

function drawAll() {
  drawClients();
  drawCurve();
  showClient();
  drawHistory();
  refresh();
}

function showWords() {
  const { title, lines } = DATA.about;
  if (title) document.title = title;
  byId("about-title").textContent = title || "calibration";
  byId("about-lines").textContent = lines.join(" · ");
  byId("message").textContent = DATA.message.first;
  byId("advice").textContent = DATA.message.then;
  byId("claim").textContent = `${DATA.headline.claim}.`;
  byId("promise").textContent = DATA.headline.promise;
  byId("reports").textContent = DATA.headline.reports;
  const first = DATA.levels[0];
  const named = `${CONTROLLED[0].toUpperCase()}${CONTROLLED.slice(1)}`;
  for (const word of document.querySelectorAll(".controlled")) word.textContent = named;
  byId("statement").textContent = `${first.statement[0].toUpperCase()}${first.statement.slice(1)}. This holds if:`;
  byId("assumptions").replaceChildren(...first.assumptions.map((text) => element("li", { text })));
  byId("notes").replaceChildren(...DATA.notes.map((text) => element("li", { text })));
  byId("audit").replaceChildren(
    ...DATA.audit.map(([name, value]) => element("div", {}, element("dt", { text: name }), element("dd", { text: value }))),
  );
  if (DATA.levels.length > 1) showLevels();
  if (DATA.history?.alarm) {
    byId("since").textContent = `${DATA.history.claim}. ${DATA.history.todo}`;
    byId("since").hidden = false;
  }
}

/** Whom the page opens on: the strangest site left out, else one to look at, else the strangest. */
function culprit() {
  const strangest = (wanted) => ORDER.findLast((k) => client(k).verdict === wanted);
  return strangest("flagged") ?? strangest("look") ?? ORDER.at(-1);
}

function showLevels() {
  const cells = (kind, values) => element("tr", {}, ...values.map((text) => element(kind, { text })));
  byId("levels").replaceChildren(
    element("thead", {}, cells("th", [`${CONTROLLED} wanted`, "threshold", `${CONTROLLED} proved`])),
    element("tbody", {}, ...DATA.levels.map((level) =>
      cells("td", [inUnits(level.value), shown(level.threshold), proved(level.lower, level.upper)]))),
  );
  byId("levels-section").hidden = false;
}

function setUpScales() {
  const choices = [["linear", "linear", "The scores as they are"], ["grid", "stretched", "By grid bin: fine where scores crowd"]];
  segments("scales", choices, scale, (key) => {
    scale = key;
    refresh();
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
setUpWhatIf();
setUpScales();
setUpTable();
setUpPrinting();
drawAll();
document.querySelectorAll(".chart").forEach((box) => resized.observe(box));
document.documentElement.dataset.ready = "yes";
