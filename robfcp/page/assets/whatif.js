// The sliders: every position is an entry of a table the library computed.
const TABLES = DATA.whatif.tables;
const MODE_WORDS = {
  defence: ["Defended", "The threshold of the sites that are used"],
  marginal: ["Guaranteed", "The threshold that holds whatever any so many sites do"],
  stated: [DATA.own.guarantee ?? "", "The guarantee that was stated, at the settings computed for it"],
};
const OWN_MODE = TABLES.stated ? "stated" : (DATA.own.guarantee ?? "defence");
const state = { mode: OWN_MODE, level: DATA.levels[0].value, m: DATA.own.m, client: 0 };

/** The outcome at the settings of the sliders. */
function outcome() {
  const table = TABLES[state.mode];
  const row = nearest(table.liars, state.m), column = nearest(table.levels, state.level);
  const index = table.index[row][column];
  return {
    m: table.liars[row],
    level: table.levels[column],
    index,
    threshold: edgeValue(index),
    lower: table.lower[row][column],
    upper: table.upper[row][column],
    size: table.size ? table.size[row][column] : null,
    excluded: new Set(DATA.whatif.excluded[nearest(DATA.whatif.liars, table.liars[row])]),
  };
}

function ownOutcome() {
  const kept = { ...state };
  Object.assign(state, { mode: OWN_MODE, level: DATA.levels[0].value, m: DATA.own.m });
  const found = outcome();
  Object.assign(state, kept);
  return found;
}

const RECORDED = ownOutcome();

function setUpWhatIf() {
  segments("modes", Object.keys(TABLES).map((key) => [key, ...MODE_WORDS[key]]), state.mode, (mode) => {
    state.mode = mode;
    syncSliders();
    refresh();
  });
  byId("level").addEventListener("input", (event) => {
    state.level = TABLES[state.mode].levels[+event.target.value];
    refresh();
  });
  byId("liars").addEventListener("input", (event) => {
    state.m = TABLES[state.mode].liars[+event.target.value];
    refresh();
  });
  byId("reset").addEventListener("click", () => {
    Object.assign(state, { mode: OWN_MODE, level: DATA.levels[0].value, m: DATA.own.m });
    for (const button of byId("modes").children) {
      button.setAttribute("aria-pressed", String(button.dataset.key === OWN_MODE));
    }
    syncSliders();
    refresh();
  });
  syncSliders();
}

function syncSliders() {
  const table = TABLES[state.mode];
  for (const [id, values, value] of [["level", table.levels, state.level], ["liars", table.liars, state.m]]) {
    const slider = byId(id);
    slider.max = values.length - 1;
    slider.value = nearest(values, value);
    slider.disabled = values.length < 2;
  }
}

function showOutcome() {
  const now = outcome();
  byId("level-value").textContent = inUnits(now.level);
  byId("liars-value").textContent = `${number(now.m)} of ${number(K)}`;
  byId("level").setAttribute("aria-valuetext", inUnits(now.level));
  byId("liars").setAttribute("aria-valuetext", `${now.m} of ${K}`);
  byId("excluded-word").textContent = state.mode === "defence" ? "Sites left out" : "Sites flagged";
  const rows = {
    threshold: [shown(now.threshold), shown(RECORDED.threshold), now.threshold],
    excluded: [number(now.excluded.size), number(RECORDED.excluded.size), now.excluded.size],
    ...(now.size === null ? {} : { size: [now.size.toFixed(2), RECORDED.size.toFixed(2), now.size] }),
    certificate: [proved(now.lower, now.upper), proved(RECORDED.lower, RECORDED.upper), `${now.lower} ${now.upper}`],
  };
  for (const [name, [text, was, value]] of Object.entries(rows)) {
    const out = byId(`out-${name}`);
    out.textContent = text;
    out.dataset.value = value;
    byId(`was-${name}`).textContent = String(text) === String(was) ? "as calibrated" : `calibrated: ${was}`;
    byId(`was-${name}`).classList.toggle("changed", String(text) !== String(was));
  }
  byId("size-tile").hidden = now.size === null;
  byId("whatif-words").textContent = modeWords(now);
}

function modeWords(now) {
  if (now.threshold === Infinity) return "The threshold is infinite: every prediction set would be full.";
  if (state.mode === "defence") {
    const certificate = proved(now.lower, now.upper) === "nothing" ? `nothing is proved about ${CONTROLLED}` : `${CONTROLLED} is proved to be ${proved(now.lower, now.upper)}`;
    const told = DATA.whatif.frozen
      ? `The defence cannot be run again from its record, so the recorded ${number(now.excluded.size)} stay out`
      : `Told that ${number(now.m)} of ${number(K)} sites may lie, the defence leaves ${number(now.excluded.size)} out`;
    return `${told}; ${now.m ? `whatever at most ${number(now.m)} sites do` : "if nobody lies"}, ${certificate}, with ${percent(DATA.own.confidence)} confidence.`;
  }
  const sure = state.mode === "stated" && DATA.own.guarantee !== "marginal" ? ` with ${percent(DATA.own.confidence)} confidence` : "";
  return `${DATA.risk ? `A ${CONTROLLED} of at most` : "Coverage of at least"} ${inUnits(now.lower, atLeast, atMost)} is guaranteed${sure} ${now.m ? `whatever any ${number(now.m)} of ${number(K)} sites do, if that number is fixed before the reports are seen` : "if nobody lies"}.`;
}
