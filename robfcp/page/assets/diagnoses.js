// The sites that are flagged or suspicious: their observations, causes and what to do.
const DIAGNOSES = new Map(Object.entries(DATA.diagnoses));
const N_CARDS_AT_FIRST = 6;
const N_NAMES_AT_FIRST = 4;

function showDiagnoses() {
  const diagnosed = ORDER.filter((k) => DIAGNOSES.has(CLIENTS.client[k])).reverse();
  if (!diagnosed.length) return;
  const groups = new Map();
  for (const k of diagnosed) {
    const { client, verdict } = clientRow(k);
    const { description, recommendation, alternative } = DIAGNOSES.get(client);
    const key = JSON.stringify([verdict, description, recommendation, alternative]);
    groups.set(key, [...(groups.get(key) ?? []), k]);
  }
  const cards = [...groups.values()].sort((a, b) => CLIENTS.benign[a[0]] - CLIENTS.benign[b[0]]);
  byId("diagnoses-title").textContent = diagnosesTitle(diagnosed);
  const showCards = (maxCards, maxNames) =>
    byId("diagnoses").replaceChildren(...cards.slice(0, maxCards).map((group) => diagnosisCard(group, maxNames)));
  showCards(N_CARDS_AT_FIRST, N_NAMES_AT_FIRST);
  const moreButton = byId("diagnoses-more");
  moreButton.hidden = cards.length <= N_CARDS_AT_FIRST && cards.every((group) => group.length <= N_NAMES_AT_FIRST);
  if (!moreButton.hidden) moreButton.textContent = `Show all ${formatCount(diagnosed.length)}`;
  moreButton.addEventListener("click", () => {
    showCards(Infinity, Infinity);
    moreButton.hidden = true;
  });
  byId("diagnoses-section").hidden = false;
}

function diagnosesTitle(diagnosed) {
  const nFlagged = diagnosed.filter((k) => !CLIENTS.benign[k]).length;
  const title = capitalize(effectOnFlagged());
  if (nFlagged === 0) return "Included, but suspicious";
  return nFlagged === diagnosed.length ? title : `${title}, and included but suspicious`;
}

/** The card of sites with the same diagnosis, the most malicious first. */
function diagnosisCard(group, maxNames) {
  const { client, verdict } = clientRow(group[0]);
  const { description, recommendation, alternative } = DIAGNOSES.get(client);
  const names = group.slice(0, maxNames).map(clientButton);
  const nMore = group.length - names.length;
  if (nMore) names.push(element("span", { className: "quiet", text: `and ${formatCount(nMore)} more` }));
  const coverageText = groupCoverageText(group);
  const card = element(
    "li",
    {},
    element("div", { className: "card-head" }, element("div", { className: "names" }, ...names), verdictMark(verdict)),
    element(
      "p",
      { className: "observation" },
      element("strong", { text: `${capitalize(description)}.` }),
      ...(coverageText ? [` ${coverageText}.`] : []),
    ),
    element("p", { className: "recommendation", text: `${capitalize(recommendation)}.` }),
  );
  if (alternative) {
    card.append(element("p", { className: "quiet small", text: `Not certain; it may also be: ${alternative}.` }));
  }
  const rows = group.slice(0, maxNames).map(clientRow);
  const lines = rows
    .filter((row) => row.reason)
    .map((row) => element("p", { text: group.length > 1 ? `${row.client}: ${row.reason}` : row.reason }));
  if (lines.length) {
    card.append(element("details", { className: "quiet small" }, element("summary", { text: "Technical reason" }), ...lines));
  }
  return card;
}

/** A client's name, which selects it. */
function clientButton(k) {
  const button = element("button", { text: CLIENTS.client[k], type: "button", className: "client-name" });
  button.addEventListener("click", () => {
    selectClient(k);
    byId("client").scrollIntoView({ behavior: "smooth", block: "nearest" });
  });
  return button;
}

/** The coverage of the clients of a card: as their diagnoses state it, else its range. */
function groupCoverageText(group) {
  const texts = group.map((k) => DIAGNOSES.get(CLIENTS.client[k]).coverage_text);
  if (texts.every((text) => text === texts[0])) return capitalize(texts[0]);
  const coverages = group.map((k) => CLIENTS.coverage[k]);
  const range = `${formatMeasure(Math.min(...coverages))} – ${formatMeasure(Math.max(...coverages))}`;
  return DATA.risk ? `${range} is their ${CLIENT_MEASURE}` : `${range} of their own cases are covered`;
}

/** The word for flagged clients in sentences: under a guarantee they are not excluded. */
function effectOnFlagged() {
  return DATA.settings.guarantee ? "flagged" : "excluded";
}

function verdictMark(verdict) {
  return element("span", { className: `verdict ${verdict}`, text: verdict });
}
