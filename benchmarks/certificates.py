"""Tables of docs/certificates.md: `python benchmarks/certificates.py widths` (or another).

Scores of widths and price are LAC of a simulated ten-class model with 85% accuracy; clients are
alike or have Dirichlet(0.5) class shares. Everything is seeded.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
from measure import markdown
from numpy.typing import NDArray

from robfcp import LAC, Binning, Consensus, LabelShiftGuarantee, Report, calibrate
from robfcp.experiments.attacks import ATTACKS, AdaptiveAttack
from robfcp.experiments.outputs import load as shipped
from robfcp.experiments.paper.theorems import TheoremSetting, table_bin, theorem_1
from robfcp.experiments.scenarios import (
    Scenario,
    ScenarioConfig,
    apply_attack,
    build_federation,
    make_scenario,
)
from robfcp.federation import Federation
from robfcp.guarantees import (
    PACGuarantee,
    certify_threshold,
    fcp_bin_index,
    marginal_threshold_bin,
)

CLIENTS, CLASSES, LEVEL = 100, 10, Fraction(9, 10)
BUDGETS, SIZES = (5, 9, 20, 40), (50, 500, 5000)
GRID, SCORE = Binning.default(), LAC()


def labels(rng: np.random.Generator, n: int, mix: str, clients: int = CLIENTS) -> NDArray[np.intp]:
    """(K, n) labels: uniform, or by Dirichlet(0.5) shares of the classes."""
    if mix == "alike":
        return rng.integers(0, CLASSES, (clients, n))
    shares = rng.dirichlet(np.full(CLASSES, 0.5), clients)
    return np.stack([rng.choice(CLASSES, n, p=row) for row in shares])


def outputs(rng: np.random.Generator, truth: NDArray[np.intp]) -> NDArray[np.float64]:
    """Class probabilities of the simulated model; the last classes are harder."""
    logits = 2.2 * rng.standard_normal((truth.size, CLASSES))
    logits[np.arange(truth.size), truth] += 8 - 0.4 * truth
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def draw(rng: np.random.Generator, n: int, mix: str) -> tuple[Federation, NDArray[np.float64]]:
    """A federation of n samples a client, and (n, C) label scores of 100 fresh ones a client."""
    every = labels(rng, n + 100, mix)
    calibration, test = every[:, :n], every[:, n:]
    counts = np.zeros((CLIENTS, GRID.n_bins), dtype=np.int64)
    for k, own in enumerate(calibration):
        scores = SCORE(outputs(rng, own), own)
        counts[k] = np.bincount(GRID.bin_indices(scores), minlength=GRID.n_bins)
    flat = test.ravel()
    scores = SCORE.score_all_labels(outputs(rng, flat))
    own = scores[np.arange(flat.size), flat]
    return Federation.from_counts(counts, GRID), np.column_stack([own, scores])


def attacked(federation: Federation, liars: int) -> Federation:
    """The first `liars` clients report nothing but the smallest scores."""
    counts = federation.counts.copy()
    counts[:liars] = 0
    counts[:liars, 0] = federation.sample_sizes[:liars]
    return Federation.from_counts(counts, GRID)


def widths() -> Iterable[Sequence[str]]:
    """What is proved at 95% about undefended FCP's threshold, ours beside the paper's."""
    yield ["n_k", "m", "nobody lies", "m lie", "clients differ", "the paper's"]
    for n in SIZES:
        rng = np.random.default_rng(n)
        alike, _ = draw(rng, n, "alike")
        apart, _ = draw(rng, n, "dirichlet")
        for m in BUDGETS:
            row = [str(n), str(m)]
            for federation in (alike, attacked(alike, m), apart):
                index = fcp_bin_index(federation, LEVEL)
                found = certify_threshold(federation, index, m, 0.95)
                row.append(f"{found.lower:.3f}-{found.upper:.3f}")
            paper = theorem_1(TheoremSetting(CLIENTS - m, m, n, m * n, 10, 0.9, 0.05))
            row.append(f"{paper[0]:.3g} to {paper[1]:.3g}")
            yield row


def price() -> Iterable[Sequence[str]]:
    """Coverage and mean set size of each guaranteed threshold while nobody lies."""
    kinds = ["undefended FCP", "marginal", "pac", "pac of sites alike"]
    yield ["clients", "n_k", "m", *kinds]
    for mix, sigma in (("alike", 0.01), ("dirichlet", 0.3)):
        for n in SIZES:
            federation, test = draw(np.random.default_rng([n, 1]), n, mix)
            plain = fcp_bin_index(federation, LEVEL)
            for m in BUDGETS:
                found = [plain, marginal_threshold_bin(federation, LEVEL, m)]
                found += [
                    PACGuarantee(m, s).threshold(federation, LEVEL, 0.95)[0] for s in (None, sigma)
                ]
                yield [mix, str(n), str(m), *(_outcome(index, test) for index in found)]


def _outcome(index: int | None, test: NDArray[np.float64]) -> str:
    threshold = np.inf if index is None else GRID.upper_edges[index]
    sets = test <= threshold
    return f"{sets[:, 0].mean():.3f} / {sets[:, 1:].sum(axis=1).mean():.2f}"


def classes() -> Iterable[Sequence[str]]:
    """By class, 20 sites alike, one may lie, nobody does: mean coverage, least and greatest of the
    ten classes, over 1000 runs. Scores are uniform, so that a threshold is its coverage."""
    rules = ["one pool, rank of N + 1", "one rank charged", "and one site removed (the rule)"]
    yield ["labels", "n a site", *rules]
    for mix, n in product(("alike", "dirichlet"), SIZES[:2]):
        rng, covered = np.random.default_rng([n, 2]), np.zeros((len(rules), CLASSES))
        for _ in range(1000):
            truth = labels(rng, n, mix, 20)
            scores = list(rng.random(truth.shape))
            made = build_federation(scores, GRID, SCORE, labels=list(truth), n_classes=CLASSES)
            for c in range(CLASSES):
                part = made.select_stratum(c)
                found = [table_bin(part, LEVEL), fcp_bin_index(part, LEVEL)]
                found.append(marginal_threshold_bin(part, LEVEL, 1))
                covered[:, c] += [1 if k is None else GRID.upper_edges[k] for k in found]
        yield [mix, str(n), *(f"{row.min():.4f} to {row.max():.4f}" for row in covered / 1000)]


def shift() -> Iterable[Sequence[str]]:
    """Coverage at 0.9 (lowest run) of 20 runs on CIFAR-10 and PathMNIST: of the honest sites' pool,
    and of the uniform mix for T; "full": every set is."""
    yield ["K, n, Dirichlet, m", "liars", "PC", "plain PAC", "T"]
    lies = ("none", "efficiency", "truncation", "pair-mimic", "class-capture")
    for (sites, n, beta, m), lie in product(((20, 250, 0.3, 8), (100, 50, 0.3, 20)), lies):
        promises = (LabelShiftGuarantee(m), PACGuarantee(m), LabelShiftGuarantee(m, mix="uniform"))
        setting = ScenarioConfig(n_clients=sites, beta=beta, share=m / sites)
        found = []
        for dataset, seed in product(("cifar10", "pathmnist"), range(10)):
            rng, given = np.random.default_rng([seed, 3]), shipped(dataset)
            some = rng.permutation(len(given.labels))[: 2 * sites * n]
            world = make_scenario(given.probabilities[some], given.labels[some], setting, rng)
            seen = world.federation if lie == "none" else apply_attack(ATTACKS[lie], world, rng)
            found.append([_reached(world, seen, promise) for promise in promises])
        cells = []
        for runs in np.array(found).T:
            full = np.isnan(runs)
            known = f"{np.nanmean(runs):.3f} ({np.nanmin(runs):.3f})" if not full.all() else "full"
            cells.append(known + (f", {full.mean():.0%} full" if 0 < full.mean() < 1 else ""))
        yield [f"{sites}, {n}, {beta}, {m}", lie, *cells]


def _reached(
    world: Scenario, seen: Federation, promise: PACGuarantee | LabelShiftGuarantee
) -> float:
    """Coverage on the honest sites' test samples, of the uniform mix where that is promised."""
    limit = calibrate(seen, 0.9, defense="none", guarantee=promise).threshold
    hit, label = world.measured(limit).hits, world.test_labels
    by_class = [hit[label == c].mean() for c in np.unique(label)]
    covered = hit.mean() if getattr(promise, "mix", None) is None else np.mean(by_class)
    return float(covered) if np.isfinite(limit) and limit < 1 else np.nan


def consensus_fcp_bin(federation: Federation) -> int | None:
    """The bin of FCP's threshold on the clients that the default defense keeps."""
    return fcp_bin_index(federation, LEVEL, Consensus().assess(federation).benign_mask)


def anchor() -> Iterable[Sequence[str]]:
    """Coverage at 0.9 of fresh samples under every attack, mean of 10 runs on CIFAR-10, 20 sites of
    200 samples, default defence, beside trusted samples; by class so many a class, and the class
    that is covered least."""
    numbers, given = (0, 29, 100), shipped("cifar10")
    yield [
        "liars",
        "attack",
        *(f"{n} trusted" for n in numbers),
        *(f"{n} a class" for n in numbers),
    ]
    for share, (name, lie) in product((0.4, 0.6, 0.9), ATTACKS.items()):
        if isinstance(lie, AdaptiveAttack):  # who knows the defence
            lie = replace(lie, defense_rule=consensus_fcp_bin, trials=10)
        found = []
        for seed in range(10):
            rng = np.random.default_rng([seed, 4])
            order, setting = (
                rng.permutation(len(given.labels)),
                ScenarioConfig(n_clients=20, share=share),
            )
            first, rest = order[:8000], given.labels[order[8000:]]
            world = make_scenario(given.probabilities[first], given.labels[first], setting, rng)
            seen, scores = (
                apply_attack(lie, world, rng),
                SCORE(given.probabilities[order[8000:]], rest),
            )
            found.append(
                [_held(seen, scores, rest, n, by) for by in ("", "class") for n in numbers]
            )
        cells = np.mean(found, axis=0).min(axis=1)
        yield [f"{share:.0%}", name, *(f"{cell:.3f}" for cell in cells)]


def _held(
    seen: Federation, scores: NDArray[np.float64], label: NDArray[np.intp], n: int, by: str
) -> list[float]:
    """Coverage of each class, or of all, by those that are not among the n trusted samples."""
    kept = [c if by else np.arange(CLASSES) for c in range(CLASSES)]
    groups = [np.flatnonzero(np.isin(label, c)) for c in kept]
    own = np.unique(np.concatenate([group[:n] for group in groups]))
    named = {"score": SCORE, "labels": label[own], "classes": CLASSES}
    held = Report.from_scores("server", scores[own], seen.binning, **named) if n else None
    found = calibrate(seen, 0.9, by=by or None, trusted_report=held)
    hit = scores <= np.broadcast_to(found.threshold, CLASSES)[label]
    return [float(hit[group[n:]].mean()) for group in groups]


TABLES = {"widths": widths, "price": price, "classes": classes, "shift": shift, "anchor": anchor}


def main() -> None:
    """Print the table asked for in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=list(TABLES))
    build = TABLES[parser.parse_args().table]
    header, *rows = build()
    print(f"{build.__doc__}\n\n{markdown(header, rows)}")


if __name__ == "__main__":
    main()
