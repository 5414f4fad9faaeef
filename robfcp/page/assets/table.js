// The table of all clients: only the rows in sight exist.
const ROW = 36;
const PRINTED = 6;
const COLUMNS = [
  ["id", "site", (row) => row.id],
  ["verdict", "verdict", (row) => verdictWords(row.verdict)],
  ["oddness", "oddness", (row) => (row.oddness === null ? "–" : shown(row.oddness))],
  ["size", "samples", (row) => (row.size === null ? "–" : number(row.size))],
  ["covered", OWN_CASES, (row) => (row.covered === null ? "–" : inUnits(row.covered))],
  ["diagnosis", "what it looks like", (row) => DIAGNOSES.get(row.id)?.short ?? (row.k >= K ? row.reason : "")],
];
const EXPORTED = [...COLUMNS.map(([key]) => key), "reason"];
const NUMBERS = new Set(["oddness", "size", "covered"]);
const ROWS = Array.from({ length: K + ABSENT.length }, (_, k) => client(k));
const view = { sort: "oddness", down: true, text: "", verdict: "all", rows: ROWS };

function setUpTable() {
  const kinds = ["trusted", "look", "flagged", "faulty", "missing"].filter((kind) => ROWS.some((row) => row.verdict === kind));
  segments("verdicts", [["all", "all"], ...kinds.map((kind) => [kind, verdictWords(kind)])], "all", (key) => {
    view.verdict = key;
    arrange();
  });
  const heads = COLUMNS.map(([key, text]) => {
    const button = element("button", { text, type: "button", "data-key": key });
    button.addEventListener("click", () => {
      view.down = view.sort === key ? !view.down : NUMBERS.has(key);
      view.sort = key;
      arrange();
    });
    return element("th", { scope: "col", className: `col-${key}` }, button);
  });
  byId("table").tHead.replaceChildren(element("tr", {}, ...heads));
  byId("filter").addEventListener("input", (event) => {
    view.text = event.target.value.toLowerCase();
    arrange();
  });
  byId("scroll").addEventListener("scroll", () => showRows());
  byId("export").addEventListener("click", exportRows);
  byId("table").tBodies[0].addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-client]");
    if (row) select(+row.dataset.client);
  });
  byId("table").tBodies[0].addEventListener("keydown", (event) => {
    const row = event.target.closest("tr[data-client]");
    if (row && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      select(+row.dataset.client);
    }
  });
  arrange();
}

/** Filter and sort, then show from the top. */
function arrange() {
  const sign = view.down ? -1 : 1;
  view.rows = ROWS.filter(
    (row) =>
      (view.verdict === "all" || row.verdict === view.verdict) &&
      (!view.text || [row.id, row.diagnosis, row.reason].some((words) => words.toLowerCase().includes(view.text))),
  ).sort((a, b) => sign * compare(a[view.sort], b[view.sort]) || a.k - b.k);
  for (const head of byId("table").tHead.rows[0].cells) {
    const key = head.firstChild.dataset.key;
    head.setAttribute("aria-sort", key !== view.sort ? "none" : view.down ? "descending" : "ascending");
  }
  byId("table-count").textContent = `${number(view.rows.length)} of ${number(ROWS.length)} sites`;
  byId("scroll").scrollTop = 0;
  showRows();
}

function compare(a, b) {
  if (a === null || b === null) return (b === null ? 0 : -1) + (a === null ? 0 : 1);
  return typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
}

/** The rows in sight, between two spacers. */
function showRows() {
  const box = byId("scroll");
  const total = view.rows.length;
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 6);
  const last = Math.min(total, first + Math.ceil(box.clientHeight / ROW) + 12);
  byId("table").tBodies[0].replaceChildren(
    spacer(first),
    ...view.rows.slice(first, last).map(tableRow),
    spacer(total - last),
  );
}

/** For the printer: whoever was not simply used, as many as fit; the file holds the rest. */
function showRowsInPrint() {
  const odd = ROWS.filter((row) => row.verdict !== "trusted").sort((a, b) => compare(b.oddness, a.oddness) || a.k - b.k);
  byId("table").tBodies[0].replaceChildren(...odd.slice(0, PRINTED).map(tableRow));
  const left = ROWS.length - Math.min(odd.length, PRINTED);
  byId("table-count").textContent = left ? `${number(left)} more sites are in this page's file, to sort, filter and export.` : "";
}

function spacer(rows) {
  const cell = element("td");
  cell.style.height = `${rows * ROW}px`;
  const row = element("tr", { className: "spacer", "aria-hidden": "true" }, cell);
  row.hidden = rows === 0;
  return row;
}

function tableRow(row) {
  const cells = COLUMNS.map(([key, , text]) => {
    const cell = element("td", { className: `col-${key}` });
    const words = text(row);
    if (key === "verdict") cell.append(verdictMark(row.verdict));
    else cell.textContent = words;
    if (key === "diagnosis" || key === "id") cell.title = key === "id" ? words : row.diagnosis || words;
    return cell;
  });
  return element("tr", { "data-client": row.k, tabindex: 0, className: row.k === state.client ? "chosen" : "" }, ...cells);
}

/** The rows as filtered and sorted, as CSV that no spreadsheet takes for formulas. */
function exportRows() {
  const lines = view.rows.map((row) => EXPORTED.map((key) => csv(row[key])).join(","));
  const text = `${EXPORTED.map((key) => (key === "size" ? "samples" : key === "id" ? "client" : key)).join(",")}\r\n${lines.join("\r\n")}\r\n`;
  save(text, "clients.csv", "text/csv");
}

function csv(value) {
  if (value === null) return "";
  if (typeof value === "number") return String(value);
  const safe = /^\s*[=+\-@|\t\r\uff1d\uff0b\uff0d\uff20]/.test(value) ? `'${value}` : value;
  return `"${safe.replaceAll('"', '""')}"`;
}
