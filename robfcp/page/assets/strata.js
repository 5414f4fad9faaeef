// Classes or groups: thresholds, who holds them, and coverage at each site.
function showStrata() {
  const found = DATA.strata;
  if (!found) return;
  const word = found.by;
  byId("strata-title").textContent = `By ${word}`;
  const cells = (kind, values) => element("tr", {}, ...values.map((value) => (value instanceof Node ? value : element(kind, { text: value }))));
  const share = (value) => (value === null ? "–" : percent(value));
  byId("strata").replaceChildren(
    element("thead", {}, cells("th", [word, "threshold", "sites", "samples", "cases covered", "proved", ""])),
    element("tbody", {}, ...found.rows.map((row) =>
      cells("td", [row.name, shown(row.threshold), number(row.sites), number(row.samples), share(row.covered), row.proved ? proved(...row.proved) : "–", row.protection]))),
  );
  const heat = (value) => {
    const cell = element("td", { text: share(value), className: "heat" });
    if (value !== null && value < DATA.levels[0].value - 0.05) cell.classList.add("low");
    return cell;
  };
  const names = found.rows.slice(0, 8).map((row) => row.name);
  const letters = found.sites.some((site) => site.own);
  const own = (site) => (letters ? (site.own ? [shown(site.own[0]), heat(site.own[1])] : ["–", "–"]) : []);
  byId("strata-sites").replaceChildren(
    element("thead", {}, cells("th", ["site", "samples", "covered", ...(letters ? ["own threshold", "covered by it"] : []), ...names])),
    element("tbody", {}, ...found.sites.slice(0, 20).map((site) =>
      cells("td", [site.name, number(site.samples), heat(site.covered), ...own(site), ...names.map((_, c) => mixed(site, c, heat))]))),
  );
  const more = found.n_strata > names.length ? ` The ${names.length} most frequent of ${found.n_strata} are shown.` : "";
  const pooled = found.pooled_only.length ? ` ${number(found.pooled_only.length)} sites withheld their labels and count for the pooled statements only.` : "";
  const clipped = letters ? " Own threshold: what the site's letter comes to, up to one bin; covered by it: the share of its own cases." : "";
  byId("strata-words").textContent =
    `Share of each site's own cases that are covered, worst sites first; in brackets how much of its data the ${word} is.${clipped}${more}${pooled}`;
  byId("strata-section").hidden = false;
}

function mixed(site, c, heat) {
  const cell = heat(site.by[c]);
  if (site.mix[c] !== null) cell.append(element("span", { text: ` (${percent(+site.mix[c].toPrecision(2))})`, className: "quiet" }));
  return cell;
}
