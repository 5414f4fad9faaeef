// Classes or groups: thresholds, who holds them, and coverage at each site.
/** Whether each class or group has a threshold, and a certificate, of its own. */
function hasStratumThresholds() {
  return Boolean(DATA.strata?.rows.some((row) => row.proved));
}

function showStrata() {
  const found = DATA.strata;
  if (!found) return;
  const word = found.by;
  byId("strata-title").textContent = `By ${word}`;
  const share = (value) => (value === null ? "–" : percent(value));
  const columns = [
    [word, (row) => row.name],
    ["threshold", (row) => shown(row.threshold)],
    ["sites used", (row) => number(row.sites)],
    ["their samples", (row) => number(row.samples)],
    ["covered", (row) => share(row.covered)],
    ["proved", (row) => (row.proved ? proved(...row.proved) : "–"), hasStratumThresholds()],
    ["", (row) => row.protection, found.rows.some((row) => row.protection)],
    [`samples of sites ${verdictWords("flagged")}`, (row) => number(row.out), found.rows.some((row) => row.out)],
  ].filter(([, , kept = true]) => kept);
  fillTable("strata", columns.map(([name]) => name), found.rows.map((row) => columns.map(([, text]) => text(row))));
  const heat = (value) => {
    const cell = element("td", { text: share(value), className: "heat" });
    if (value !== null && value < DATA.levels[0].value - 0.05) cell.classList.add("low");
    return cell;
  };
  const held = ({ samples, out }) => samples + out;
  const chosen = [...found.rows.keys()].sort((a, b) => held(found.rows[b]) - held(found.rows[a])).slice(0, 8).sort((a, b) => a - b);
  const names = chosen.map((c) => found.rows[c].name);
  const letters = found.sites.some((site) => site.own);
  const own = (site) => (letters ? (site.own ? [shown(site.own[0]), heat(site.own[1])] : ["–", "–"]) : []);
  fillTable(
    "strata-sites",
    ["site", "samples", "covered", ...(letters ? ["own threshold", "covered by it"] : []), ...names],
    found.sites.map((site) => [site.name, number(site.samples), heat(site.covered), ...own(site), ...chosen.map((c) => mixed(site, c, heat))]),
  );
  const more = found.n_strata > names.length ? ` The ${names.length} most frequent of ${found.n_strata} are shown.` : "";
  const pooled = found.pooled_only.length ? ` ${number(found.pooled_only.length)} sites reported no counts by ${word} and count for the pooled statements only.` : "";
  const clipped = letters ? " Own threshold: what the site's letter comes to, up to one bin; covered by it: the share of its own cases." : "";
  byId("strata-words").textContent =
    `Share of each used site's own cases that are covered, worst sites first; in brackets how much of its data the ${word} is.${clipped}${more}${pooled}`;
  byId("strata-section").hidden = false;
}

function mixed(site, c, heat) {
  const cell = heat(site.by[c]);
  if (site.mix[c] !== null) cell.append(element("span", { text: ` (${percent(+site.mix[c].toPrecision(2))})`, className: "quiet" }));
  return cell;
}
