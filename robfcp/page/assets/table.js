// The table of all clients: only visible rows exist.
const ROW_HEIGHT = 36;
const MAX_PRINTED_ROWS = 6;
const COLUMNS = [
  ["client", "site", (row) => row.client],
  ["verdict", "verdict", (row) => row.verdict],
  ["maliciousness", "maliciousness", (row) => (row.maliciousness === null ? "–" : formatNumber(row.maliciousness))],
  ["n_samples", "samples", (row) => (row.n_samples === null ? "–" : formatCount(row.n_samples))],
  ["coverage", CLIENT_MEASURE, (row) => (row.coverage === null ? "–" : formatMeasure(row.coverage))],
  ["diagnosis", "probable cause", (row) => DIAGNOSES.get(row.client)?.summary ?? (row.k >= N_CLIENTS ? row.reason : "")],
];
const EXPORTED_KEYS = [...COLUMNS.map(([key]) => key), "reason"];
const NUMERIC_KEYS = new Set(["maliciousness", "n_samples", "coverage"]);
const ROWS = Array.from({ length: N_CLIENTS + ABSENT.length }, (_, k) => clientRow(k));
const tableState = { sortKey: "maliciousness", isDescending: true, filter: "", verdict: "all", rows: ROWS };

function setUpTable() {
  const verdicts = VERDICTS.filter((verdict) => ROWS.some((row) => row.verdict === verdict));
  const choices = [["all", "all"], ...verdicts.map((verdict) => [verdict, verdict])];
  segmentedButtons("verdicts", choices, "all", (verdict) => {
    tableState.verdict = verdict;
    updateTable();
  });
  const headers = COLUMNS.map(([key, text]) => {
    const button = element("button", { text, type: "button", "data-key": key });
    button.addEventListener("click", () => {
      tableState.isDescending = tableState.sortKey === key ? !tableState.isDescending : NUMERIC_KEYS.has(key);
      tableState.sortKey = key;
      updateTable();
    });
    return element("th", { scope: "col", className: `col-${key}` }, button);
  });
  byId("table").tHead.replaceChildren(element("tr", {}, ...headers));
  byId("filter").addEventListener("input", (event) => {
    tableState.filter = event.target.value.toLowerCase();
    updateTable();
  });
  byId("scroll").addEventListener("scroll", () => showRows());
  byId("export").addEventListener("click", exportRows);
  byId("table").tBodies[0].addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-client]");
    if (row) selectClient(+row.dataset.client);
  });
  byId("table").tBodies[0].addEventListener("keydown", (event) => {
    const row = event.target.closest("tr[data-client]");
    if (row && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      selectClient(+row.dataset.client);
    }
  });
  updateTable();
}

/** Filter and sort, then show from the top. */
function updateTable() {
  const { sortKey, isDescending, filter, verdict } = tableState;
  const sign = isDescending ? -1 : 1;
  const matchesFilter = (row) =>
    !filter || [row.client, row.diagnosis, row.reason].some((text) => text.toLowerCase().includes(filter));
  tableState.rows = ROWS.filter((row) => (verdict === "all" || row.verdict === verdict) && matchesFilter(row)).sort(
    (a, b) => sign * compare(a[sortKey], b[sortKey]) || a.k - b.k,
  );
  for (const header of byId("table").tHead.rows[0].cells) {
    const key = header.firstChild.dataset.key;
    header.setAttribute("aria-sort", key !== sortKey ? "none" : isDescending ? "descending" : "ascending");
  }
  byId("table-count").textContent = `${formatCount(tableState.rows.length)} of ${formatCount(ROWS.length)} sites`;
  byId("scroll").scrollTop = 0;
  showRows();
}

function compare(a, b) {
  if (a === null || b === null) return (b === null ? 0 : -1) + (a === null ? 0 : 1);
  return typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
}

/** The visible rows, between two spacers. */
function showRows() {
  const box = byId("scroll");
  const nRows = tableState.rows.length;
  const first = Math.max(0, Math.floor(box.scrollTop / ROW_HEIGHT) - 6);
  const last = Math.min(nRows, first + Math.ceil(box.clientHeight / ROW_HEIGHT) + 12);
  byId("table").tBodies[0].replaceChildren(
    spacer(first),
    ...tableState.rows.slice(first, last).map(tableRow),
    spacer(nRows - last),
  );
}

/** For the printer: all but the benign, as many as fit; the file holds the others. */
function showPrintedRows() {
  const unusual = ROWS.filter((row) => row.verdict !== "benign");
  unusual.sort((a, b) => compare(b.maliciousness, a.maliciousness) || a.k - b.k);
  byId("table").tBodies[0].replaceChildren(...unusual.slice(0, MAX_PRINTED_ROWS).map(tableRow));
  const nMore = ROWS.length - Math.min(unusual.length, MAX_PRINTED_ROWS);
  byId("table-count").textContent = nMore
    ? `${formatCount(nMore)} more sites are in this page's file, to sort, filter and export.`
    : "";
}

function spacer(nRows) {
  const cell = element("td");
  cell.style.height = `${nRows * ROW_HEIGHT}px`;
  const row = element("tr", { className: "spacer", "aria-hidden": "true" }, cell);
  row.hidden = nRows === 0;
  return row;
}

function tableRow(row) {
  const cells = COLUMNS.map(([key, , textOf]) => {
    const cell = element("td", { className: `col-${key}` });
    const text = textOf(row);
    if (key === "verdict") cell.append(verdictMark(row.verdict));
    else cell.textContent = text;
    if (key === "client") cell.title = text;
    if (key === "diagnosis") cell.title = row.diagnosis || text;
    return cell;
  });
  const className = row.k === state.selected ? "selected" : "";
  return element("tr", { "data-client": row.k, tabindex: 0, className }, ...cells);
}

/** The rows as filtered and sorted, as CSV without what a spreadsheet takes for formulas. */
function exportRows() {
  const lines = tableState.rows.map((row) => EXPORTED_KEYS.map((key) => csvCell(row[key])).join(","));
  saveFile(`${EXPORTED_KEYS.join(",")}\r\n${lines.join("\r\n")}\r\n`, "clients.csv", "text/csv");
}

function csvCell(value) {
  if (value === null) return "";
  if (typeof value === "number") return String(value);
  const safe = /^\s*[=+\-@|\t\r\uff1d\uff0b\uff0d\uff20]/.test(value) ? `'${value}` : value;
  return `"${safe.replaceAll('"', '""')}"`;
}
