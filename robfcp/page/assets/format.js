// Numbers and elements, always as text.
function formatPercent(fraction) {
  return `${+(100 * fraction).toPrecision(4)}%`;
}

function formatNumber(value) {
  if (value === null || value === Infinity) return "infinite";
  if (value === -Infinity) return "the lowest";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size < 1e-3 || size >= 1e5 ? value.toExponential(2) : String(+value.toPrecision(4));
}

function formatCount(count) {
  return count.toLocaleString("en-GB");
}

/** A percentage that is not larger, and one that is not smaller: certified bounds are never rounded up. */
function formatLower(fraction) {
  return `${Math.floor(+(1e4 * fraction).toPrecision(12)) / 100}%`;
}

function formatUpper(fraction) {
  return `${Math.ceil(+(1e4 * fraction).toPrecision(12)) / 100}%`;
}

/** The name of the measure that is controlled, of all clients and of one. */
const MEASURE = DATA.risk ? `mean ${DATA.risk.name}` : "coverage";
const CLIENT_MEASURE = DATA.risk ? `own mean ${DATA.risk.name}` : "own cases covered";

/** A coverage in units of the measure: of a loss with bound B it is B (1 - coverage). */
function formatMeasure(coverage, format = formatPercent, formatComplement = format) {
  if (!DATA.risk) return format(coverage);
  const bound = DATA.risk.upper_bound;
  return bound === 1 ? formatComplement(1 - coverage) : formatLoss(bound * (1 - coverage), formatComplement);
}

/** Four digits, of certified bounds rounded to the safe side. */
function formatLoss(loss, format) {
  if (loss <= 0) return "0";
  const step = 10 ** (Math.floor(Math.log10(loss)) - 3);
  const steps = +(loss / step).toPrecision(12);
  const rounded = format === formatUpper ? Math.ceil(steps) : format === formatLower ? Math.floor(steps) : steps;
  return String(+(rounded * step).toPrecision(4));
}

/** The certified range of the measure, from bounds of coverage. */
function formatCertified(lower, upper) {
  if (lower <= 0 && upper >= 1) return "vacuous";
  if (DATA.risk) {
    const largest = formatMeasure(lower, formatLower, formatUpper);
    return upper >= 1 ? `≤ ${largest}` : `${formatMeasure(upper, formatUpper, formatLower)} – ${largest}`;
  }
  return upper >= 1 ? `≥ ${formatLower(lower)}` : `${formatLower(lower)} – ${formatUpper(upper)}`;
}

function formatMalicious(nMalicious) {
  return nMalicious === 1 ? "1 malicious site" : `${formatCount(nMalicious)} malicious sites`;
}

/** "whatever 3 malicious sites reported", or that there are none. */
function maliciousCondition(nMalicious) {
  return nMalicious === 0 ? "if all sites are benign" : `whatever ${formatMalicious(nMalicious)} reported`;
}

function byId(id) {
  return document.getElementById(id);
}

/** A new element with text and children; nothing is ever parsed as HTML. */
function element(tag, { text, className, ...attributes } = {}, ...children) {
  const created = document.createElement(tag);
  if (text !== undefined) created.textContent = text;
  if (className) created.className = className;
  for (const [name, value] of Object.entries(attributes)) created.setAttribute(name, value);
  created.append(...children);
  return created;
}

/** Offer a file for download. */
function saveFile(text, filename, type) {
  const link = element("a", { download: filename, href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  URL.revokeObjectURL(link.href);
}

function capitalize(text) {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

/** Buttons of which exactly one is pressed; `onSelect` gets its key. */
function segmentedButtons(id, choices, pressedKey, onSelect) {
  byId(id).replaceChildren(
    ...choices.map(([key, text, title]) => {
      const button = element("button", { text, type: "button", "data-key": key });
      if (title) button.title = title;
      button.setAttribute("aria-pressed", String(key === pressedKey));
      button.addEventListener("click", () => {
        for (const sibling of byId(id).children) {
          sibling.setAttribute("aria-pressed", String(sibling === button));
        }
        onSelect(key);
      });
      return button;
    }),
  );
}

/** Replace a description list's rows by names and texts. */
function fillDescriptions(id, rows) {
  byId(id).replaceChildren(
    ...rows.map(([name, text]) => element("div", {}, element("dt", { text: name }), element("dd", { text }))),
  );
}

/** Replace a list's items by texts. */
function fillList(id, texts) {
  byId(id).replaceChildren(...texts.map((text) => element("li", { text })));
}

/** A table from column names and rows of texts or cells. */
function fillTable(id, names, rows) {
  const tableRow = (tag, values) =>
    element("tr", {}, ...values.map((value) => (value instanceof Node ? value : element(tag, { text: value }))));
  byId(id).replaceChildren(
    element("thead", {}, tableRow("th", names)),
    element("tbody", {}, ...rows.map((values) => tableRow("td", values))),
  );
}
