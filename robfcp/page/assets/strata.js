// Classes or groups: thresholds, their numbers of sites, and coverage at each site.
const MAX_STRATUM_COLUMNS = 8;
const LOW_COVERAGE_GAP = 0.05; // below the target, from where on a cell is marked

/** Whether each class or group has its own threshold and certificate. */
function hasStratumThresholds() {
  return Boolean(DATA.strata?.rows.some((row) => row.certified));
}

function showStrata() {
  const { strata } = DATA;
  if (!strata) return;
  byId("strata-title").textContent = `By ${strata.by}`;
  showStratumRows(strata);
  const columns = largestStrata(strata.rows);
  const hasLocalThresholds = strata.clients.some((client) => client.local_threshold);
  showClientRows(strata, columns, hasLocalThresholds);
  byId("strata-text").textContent = strataText(strata, columns, hasLocalThresholds);
  byId("strata-section").hidden = false;
}

function fractionText(fraction) {
  return fraction === null ? "–" : formatPercent(fraction);
}

/** A row for each class or group, without columns that are empty. */
function showStratumRows({ by, rows }) {
  const columns = [
    [by, (row) => row.name],
    ["threshold", (row) => formatNumber(row.threshold)],
    ["sites included", (row) => formatCount(row.n_clients)],
    ["their samples", (row) => formatCount(row.n_samples)],
    ["covered", (row) => fractionText(row.coverage)],
    ["certified", (row) => (row.certified ? formatCertified(...row.certified) : "–"), hasStratumThresholds()],
    ["", (row) => row.protection, rows.some((row) => row.protection)],
    [
      `samples of ${effectOnFlagged()} sites`,
      (row) => formatCount(row.n_excluded_samples),
      rows.some((row) => row.n_excluded_samples),
    ],
  ].filter(([, , isShown = true]) => isShown);
  const names = columns.map(([name]) => name);
  fillTable("strata", names, rows.map((row) => columns.map(([, textOf]) => textOf(row))));
}

/** The indices of the classes or groups with most samples, in their order. */
function largestStrata(rows) {
  const nSamples = ({ n_samples, n_excluded_samples }) => n_samples + n_excluded_samples;
  const bySize = [...rows.keys()].sort((a, b) => nSamples(rows[b]) - nSamples(rows[a]));
  return bySize.slice(0, MAX_STRATUM_COLUMNS).sort((a, b) => a - b);
}

/** A row for each of the sites of lowest coverage. */
function showClientRows({ rows, clients }, columns, hasLocalThresholds) {
  const localNames = hasLocalThresholds ? ["local threshold", "covered by it"] : [];
  const localCells = ({ local_threshold: local }) => {
    if (!hasLocalThresholds) return [];
    return local ? [formatNumber(local[0]), coverageCell(local[1])] : ["–", "–"];
  };
  fillTable(
    "strata-clients",
    ["site", "samples", "covered", ...localNames, ...columns.map((column) => rows[column].name)],
    clients.map((client) => [
      client.name,
      formatCount(client.n_samples),
      coverageCell(client.coverage),
      ...localCells(client),
      ...columns.map((column) => stratumCell(client, column)),
    ]),
  );
}

function strataText(strata, columns, hasLocalThresholds) {
  const { by, n_strata: nStrata, pooled_clients: pooledClients } = strata;
  const sentences = [
    `Share of each included site's own cases that are covered, lowest first; in brackets the share of the ${by} in its samples.`,
  ];
  if (hasLocalThresholds) {
    sentences.push("Local threshold: that of the site's feedback, up to one bin; covered by it: the share of its own cases.");
  }
  if (nStrata > columns.length) sentences.push(`The ${columns.length} most frequent of ${nStrata} are shown.`);
  if (pooledClients.length) {
    sentences.push(
      `${formatCount(pooledClients.length)} sites reported no counts by ${by} and count for the pooled statements only.`,
    );
  }
  return sentences.join(" ");
}

/** A cell with a coverage, marked if it is well below the target. */
function coverageCell(coverage) {
  const cell = element("td", { text: fractionText(coverage), className: "coverage" });
  if (coverage !== null && coverage < DATA.levels[0].coverage - LOW_COVERAGE_GAP) cell.classList.add("low");
  return cell;
}

/** A cell with a client's coverage of a class or group, and the share of those samples. */
function stratumCell(client, column) {
  const cell = coverageCell(client.stratum_coverage[column]);
  const fraction = client.label_distribution[column];
  if (fraction !== null) {
    cell.append(element("span", { text: ` (${formatPercent(+fraction.toPrecision(2))})`, className: "quiet" }));
  }
  return cell;
}
