// Numbers and elements, always as text.
function percent(share) {
  return `${+(100 * share).toPrecision(4)}%`;
}

function shown(value) {
  if (value === null || value === Infinity) return "infinite";
  if (value === -Infinity) return "the lowest";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size < 1e-3 || size >= 1e5 ? value.toExponential(2) : String(+value.toPrecision(4));
}

function number(value) {
  return value.toLocaleString("en-GB");
}

/** A percentage that is not larger, and one that is not smaller: what is proved is never rounded up. */
function atLeast(share) {
  return `${Math.floor(+(1e4 * share).toPrecision(12)) / 100}%`;
}

function atMost(share) {
  return `${Math.ceil(+(1e4 * share).toPrecision(12)) / 100}%`;
}

/** What is controlled by name, and a value of it in its units: of a loss B (1 - share). */
const CONTROLLED = DATA.risk ? `mean ${DATA.risk.name}` : "coverage";
const OWN_CASES = DATA.risk ? `own mean ${DATA.risk.name}` : "own cases covered";

function inUnits(share, rounded = percent, turned = rounded) {
  if (!DATA.risk) return rounded(share);
  return DATA.risk.bound === 1 ? turned(1 - share) : lossShown(DATA.risk.bound * (1 - share), turned);
}

/** Four digits, rounded to the safe side where it is proved. */
function lossShown(value, rounded) {
  if (value <= 0) return "0";
  const step = 10 ** (Math.floor(Math.log10(value)) - 3);
  const steps = +(value / step).toPrecision(12);
  const whole = rounded === atMost ? Math.ceil(steps) : rounded === atLeast ? Math.floor(steps) : steps;
  return String(+(whole * step).toPrecision(4));
}

function proved(lower, upper) {
  if (lower <= 0 && upper >= 1) return "nothing";
  if (DATA.risk) return upper >= 1 ? `≤ ${inUnits(lower, atLeast, atMost)}` : `${inUnits(upper, atMost, atLeast)} – ${inUnits(lower, atLeast, atMost)}`;
  return upper >= 1 ? `≥ ${atLeast(lower)}` : `${atLeast(lower)} – ${atMost(upper)}`;
}

function liarsWord(m) {
  return m === 1 ? "1 liar" : `${number(m)} liars`;
}

/** "whatever 3 liars reported", or the plain case. */
function whatever(m) {
  return m === 0 ? "if nobody lies" : `whatever ${liarsWord(m)} reported`;
}

function byId(id) {
  return document.getElementById(id);
}

/** A new element with text and children; nothing is ever parsed as HTML. */
function element(name, { text, className, ...rest } = {}, ...children) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  for (const [key, value] of Object.entries(rest)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Hand the reader a file. */
function save(text, name, type) {
  const link = element("a", { download: name, href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  URL.revokeObjectURL(link.href);
}

function sentence(words) {
  return words.slice(0, 1).toUpperCase() + words.slice(1);
}

/** Buttons of which one is pressed; `choose` is told its key. */
function segments(id, choices, pressed, choose) {
  byId(id).replaceChildren(
    ...choices.map(([key, text, title]) => {
      const button = element("button", { text, type: "button", "data-key": key });
      if (title) button.title = title;
      button.setAttribute("aria-pressed", String(key === pressed));
      button.addEventListener("click", () => {
        for (const other of byId(id).children) {
          other.setAttribute("aria-pressed", String(other === button));
        }
        choose(key);
      });
      return button;
    }),
  );
}
