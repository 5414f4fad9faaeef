// The sites that were left out or deserve a look: what is seen, what it looks like, what to do.
const DIAGNOSES = new Map(Object.entries(DATA.diagnoses));
const FIRST_CARDS = 6;
const FIRST_NAMES = 4;

function showDiagnoses() {
  const ks = ORDER.filter((k) => DIAGNOSES.has(CLIENTS.id[k])).reverse();
  if (!ks.length) return;
  const groups = new Map();
  for (const k of ks) {
    const { id, verdict } = client(k), { finding, advice, instead } = DIAGNOSES.get(id);
    const key = JSON.stringify([verdict, finding, advice, instead]);
    groups.set(key, [...(groups.get(key) ?? []), k]);
  }
  const cards = [...groups.values()].sort((a, b) => CLIENTS.trusted[a[0]] - CLIENTS.trusted[b[0]]);
  const word = verdictWords("flagged"), out = ks.filter((k) => !CLIENTS.trusted[k]).length;
  const left = sentence(word);
  byId("diagnoses-title").textContent = out === 0 ? "Used, but look" : out === ks.length ? left : `${left}, and used but to be looked at`;
  const fill = (most, names) => byId("diagnoses").replaceChildren(...cards.slice(0, most).map((group) => diagnosisCard(group, names)));
  fill(FIRST_CARDS, FIRST_NAMES);
  const more = byId("diagnoses-more");
  more.hidden = cards.length <= FIRST_CARDS && cards.every((group) => group.length <= FIRST_NAMES);
  if (!more.hidden) more.textContent = `Show all ${number(ks.length)}`;
  more.addEventListener("click", () => {
    fill(Infinity, Infinity);
    more.hidden = true;
  });
  byId("diagnoses-section").hidden = false;
}

/** Sites of which the same is said, the oddest first. */
function diagnosisCard(group, most) {
  const { id, verdict } = client(group[0]);
  const { finding, fact, advice, instead } = DIAGNOSES.get(id);
  const names = group.slice(0, most).map((k) => {
    const name = element("button", { text: CLIENTS.id[k], type: "button", className: "site" });
    name.addEventListener("click", () => {
      select(k);
      byId("client").scrollIntoView({ behavior: "smooth", block: "nearest" });
    });
    return name;
  });
  const rest = group.length - names.length;
  const who = element("div", { className: "names" }, ...names, ...(rest ? [element("span", { className: "quiet", text: `and ${number(rest)} more` })] : []));
  const same = group.every((k) => DIAGNOSES.get(CLIENTS.id[k]).fact === fact);
  const seen = same ? sentence(fact) : group.length > 1 ? `${inUnits(Math.min(...group.map((k) => CLIENTS.covered[k])))} – ${inUnits(Math.max(...group.map((k) => CLIENTS.covered[k])))} ${DATA.risk ? `is their ${OWN_CASES}` : "of their own cases are covered"}` : sentence(fact);
  const parts = [
    element("div", { className: "who" }, who, verdictMark(verdict)),
    element("p", { className: "seen" }, element("strong", { text: `${sentence(finding)}.` }), ...(seen ? [` ${seen}.`] : [])),
    element("p", { className: "todo", text: `${sentence(advice)}.` }),
  ];
  if (instead) parts.push(element("p", { className: "quiet small", text: `Not certain; it may also be: ${instead}.` }));
  const reasons = group.slice(0, most).map((k) => [CLIENTS.id[k], client(k).reason]).filter(([, reason]) => reason);
  if (reasons.length) {
    const lines = reasons.map(([name, reason]) => element("p", { text: group.length > 1 ? `${name}: ${reason}` : reason }));
    parts.push(element("details", { className: "quiet small" }, element("summary", { text: "Technical reason" }), ...lines));
  }
  return element("li", {}, ...parts);
}

/** The words beside a verdict's colour. */
function verdictWords(verdict) {
  return { trusted: "used", look: "used, but look", flagged: DATA.own.guarantee ? "flagged" : "left out" }[verdict] ?? verdict;
}

function verdictMark(verdict) {
  return element("span", { className: `verdict ${verdict}`, text: verdictWords(verdict) });
}
