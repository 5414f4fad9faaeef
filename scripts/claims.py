"""Write robfcp/lab/outputs/claims.csv: what a tiny language model of ours says of the elements.

The model is a word 5-gram with Witten-Bell smoothing. It reads 800 sentences about the chemical
elements, of which one in four is wrong, and well-known elements come up more often than others.
Asked about an element it writes five sentences, word by word at random. Each is a claim, with the
model's own probability of the word that decides it; the table below says whether it is true.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import numpy as np

ELEMENTS = """Hydrogen H Helium He Lithium Li Beryllium Be Boron B Carbon C Nitrogen N Oxygen O
Fluorine F Neon Ne Sodium Na Magnesium Mg Aluminium Al Silicon Si Phosphorus P Sulfur S Chlorine Cl
Argon Ar Potassium K Calcium Ca Scandium Sc Titanium Ti Vanadium V Chromium Cr Manganese Mn Iron Fe
Cobalt Co Nickel Ni Copper Cu Zinc Zn Gallium Ga Germanium Ge Arsenic As Selenium Se Bromine Br
Krypton Kr Rubidium Rb Strontium Sr Yttrium Y Zirconium Zr Niobium Nb Molybdenum Mo Technetium Tc
Ruthenium Ru Rhodium Rh Palladium Pd Silver Ag Cadmium Cd Indium In Tin Sn Antimony Sb Tellurium Te
Iodine I Xenon Xe"""
METALLOIDS = " B Si Ge As Sb Te "
NONMETALS = " H He C N O F Ne P S Cl Ar Se Br Kr I Xe "
GASES, LIQUIDS = " H He N O F Ne Cl Ar Kr Xe ", " Br "
ASKED = (
    "the symbol of {} is",
    "{} has atomic number",
    "{} stands in period",
    "{} is a",
    "at room temperature {} is",
)
SITES, ANSWERS, SENTENCES, WRONG = 12, 60, 800, 1 / 4
OUT = Path(__file__).parents[1] / "robfcp" / "lab" / "outputs" / "claims.csv"


def table() -> dict[str, tuple[str, ...]]:
    """The five facts of each element, in the order of ASKED."""
    facts, words = {}, ELEMENTS.split()
    for number, (name, symbol) in enumerate(zip(words[::2], words[1::2], strict=True), start=1):
        period = 1 + int(np.searchsorted([2, 10, 18, 36, 54], number))
        kind = "nonmetal" if f" {symbol} " in NONMETALS else "metal"
        kind = "metalloid" if f" {symbol} " in METALLOIDS else kind
        state = "gaseous" if f" {symbol} " in GASES else "solid"
        state = "liquid" if f" {symbol} " in LIQUIDS else state
        facts[name.lower()] = (symbol, str(number), str(period), kind, state)
    return facts


class Model:
    """P(word | the words before), orders 5 to 1 interpolated as Witten and Bell do."""

    def __init__(self, sentences: list[str]) -> None:
        self.after: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for sentence in sentences:
            words = sentence.split()
            for k, word in enumerate(words):
                for order in range(5):
                    if order <= k:
                        self.after[tuple(words[k - order : k])][word] += 1

    @cache  # noqa: B019 (one model, and it ends with the script)
    def chances(self, prompt: str) -> dict[str, float]:
        """The chance of every word that may come next."""
        words = prompt.split()
        total = self.after[()].total()
        found = {word: n / total for word, n in self.after[()].items()}
        for order in range(1, 5):
            seen = self.after.get(tuple(words[-order:]))
            if seen is None:
                return found
            scale = seen.total() + len(seen)
            found = {word: (seen[word] + len(seen) * p) / scale for word, p in found.items()}
        return found


def main() -> None:
    """Train, ask, judge, write."""
    rng, facts = np.random.default_rng(0), table()
    names = list(facts)
    fame = 1 / np.sqrt(np.arange(1, len(names) + 1))
    sentences = []
    for name in rng.choice(names, SENTENCES, p=fame / fame.sum()):
        asked = rng.integers(5)
        told = rng.choice(names) if rng.random() < WRONG else name
        sentences.append(f"{ASKED[asked].format(name)} {facts[told][asked]}")
    model = Model(sentences)
    with OUT.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["site", "answer", "claim", "probability", "true"])
        for site in range(SITES):
            for answer in range(ANSWERS):
                name = rng.choice(names)
                for asked, fact in zip(ASKED, facts[name], strict=True):
                    prompt = asked.format(name)
                    chances = model.chances(prompt)
                    p = np.array(list(chances.values()))
                    said = rng.choice(list(chances), p=p / p.sum())
                    row = (f"{chances[said]:.4f}", int(said == fact))
                    writer.writerow([f"lab-{site:02d}", answer, f"{prompt} {said}", *row])


if __name__ == "__main__":
    main()
