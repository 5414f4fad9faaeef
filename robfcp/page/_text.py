"""The page's first sentences: what harm was done, who did it, what it looks like, what to do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from robfcp.calibration import Calibration, CoverageLevel, _strata
from robfcp.certificates import format_lower
from robfcp.diagnosis import MIN_REFERENCE_SCORES, Diagnosis
from robfcp.federation import Federation, StratifiedTable
from robfcp.guarantees import FCPThreshold, breakdown_point_of_any_rule
from robfcp.scores import Risk

MAX_NAMED = 4  # sites that the first sentence names with their cause


def impact_text(calibration: Calibration) -> dict[str, str]:
    """What believing every report would do to the cases of the sites that were used, and how much.

    An estimate: their own reported samples against the threshold of all sites together. Empty where
    no more are missed than were asked for, and sets do not grow.
    """
    federation, level, risk = calibration.federation, calibration.levels[0], calibration.risk
    both, used = (level, _undefended_level(calibration)), calibration.benign_mask
    now, new = np.round(_covered(calibration, *both), 3)
    if not (new > now or new < min(now, level.coverage)):
        return {"first": "", "then": ""}
    missed = [round(1000 * (1 - one)) for one in (new, now)]
    counts = f"{missed[0]} of 1,000 sets would miss the true label in place of {missed[1]}"
    sizes, words = federation.all_label_counts, "sets would be wider than needed"
    if risk is not None:
        lost = [_loss(risk, one) for one in (new, now)]
        words, counts = f"the mean {risk.name} would be about {lost[0]} in place of {lost[1]}", ""
    elif new < now:
        name, counts = _most_affected(calibration, both, counts)
        more = f"about {missed[0] - missed[1]} more of every 1,000 cases"
        words = f"{more} would get a wrong set{name}"
    elif sizes is not None and calibration.by is None:
        labels = mean_set_sizes(federation, sizes, used)
        mean = [
            f"{labels[federation.binning.bin_index_of_threshold(one.threshold)]:.2f}"
            for one in both
        ]
        words = f"a set would hold about {mean[1]} labels in place of {mean[0]}"
    kind = "not flagged" if calibration.is_guaranteed else "used"
    rests = f"estimated from the reports of the sites that were {kind}, which may lie too."
    then = f"{counts}; {rests}" if counts else _sentence(rests)
    return {"first": f"Had every report been believed, {words}.", "then": then}


def mean_set_sizes(
    federation: Federation, told: StratifiedTable, used: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """(bins,) the mean number of labels in a set with each threshold, at the used that tell it."""
    kept = used[told.rows]
    total = max(1, int(federation.sample_sizes[told.rows[kept]].sum()))
    return np.asarray(np.cumsum(told.table.pooled_counts(kept)) / total)


def _covered(calibration: Calibration, *levels: CoverageLevel) -> NDArray[np.float64]:
    """(L,) the share of what used sites reported that each level covers."""
    used, mass = calibration.benign_mask, calibration.federation.total_counts
    shares = calibration.client_coverage(levels)[used]
    return np.asarray(mass[used] @ shares / mass[used].sum())


def _undefended_level(calibration: Calibration) -> CoverageLevel:
    """The first level with the thresholds of all sites together."""
    federation, level = calibration.federation, calibration.levels[0]

    if calibration.by is None:
        return replace(level, threshold=_fcp(federation, level))
    every = _strata.stratum_federations(
        calibration.federation, calibration.by, calibration.require_record().clusters
    )
    own = {name: _fcp(held.federation(), level) for held in every for name in held.members}
    strata = tuple(replace(one, threshold=own[one.name]) for one in level.strata)
    return replace(level, threshold=max(own.values()), strata=strata)


def _fcp(held: Federation, level: CoverageLevel, used: NDArray[np.bool_] | None = None) -> float:
    """FCP's threshold on the sites that are used, all if None."""
    rule = FCPThreshold(held, np.ones(held.n_clients, dtype=bool) if used is None else used)
    return held.threshold_at(rule.bin_index(level.coverage) if held.n_clients else None)


def _most_affected(
    calibration: Calibration, both: Sequence[CoverageLevel], counts: str
) -> tuple[str, str]:
    """The class or group that would be missed most, of those missed more; how many in each case."""
    strata = calibration.federation.strata
    if strata is None:
        return "", counts
    used = calibration.benign_mask[strata.rows]
    found = [calibration.class_coverage(one) for one in both]
    held = found[0][2][used].sum(axis=0)
    now, then = (held - covered[used].sum(axis=0) for _, covered, _ in found)
    more = then - now
    c = int(np.argmax(np.where(more > 0, then / np.maximum(held, MIN_REFERENCE_SCORES), -1)))
    often = "mostly" if 2 * more[c] > more.sum() else "worst"
    name = f"{strata.by} {strata.labels[c]}"
    rates = [round(1000 * one[c] / max(held[c], 1)) for one in (then, now)]
    return f", {often} in {name}", f"{counts}, in {name} {rates[0]} in place of {rates[1]}"


def summary_text(calibration: Calibration, found: Mapping[str, Diagnosis]) -> dict[str, str]:
    """Who was left out, else who deserves a look, else that nothing stands out.

    Of one site also what to do; of more the page has cards.
    """
    out = [one for one in found.values() if not one.trusted]
    looks = [one for one in found.values() if one.trusted]
    clients, told = calibration.federation.n_clients, out or looks
    used = "The one site was used" if clients == 1 else f"All {clients} sites were used"
    verdict = "flagged" if calibration.is_guaranteed else "left out"
    if out:
        first = f"{len(out)} of {clients} sites were {verdict}: {_worst_clients(out)}."
        if len(out) == 1:
            first = f"{out[0].client} was {verdict}: {out[0].observation}."
    elif looks:
        whom = "" if len(looks) <= MAX_NAMED else f"{len(looks)} of them: "
        whom = (
            f"{looks[0].client}: {looks[0].observation}"
            if len(looks) == 1
            else whom + _worst_clients(looks)
        )
        first = f"{used}, but look at {whom}."
    else:
        report = "its report" if clients == 1 else "their reports"
        first = f"{used}; nothing in {report} looks wrong."
    then = f"{_sentence(told[0].advice)}." if len(told) == 1 else ""
    return {"first": first, "then": then}


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _worst_clients(sites: Sequence[Diagnosis]) -> str:
    """Up to four by name with their cause; of more what was found how often, and the worst."""
    if len(sites) <= MAX_NAMED:
        return _join([f"{one.client} ({one.summary})" for one in sites])
    told = [one.cause.replace("not told", "cause unclear") for one in sites]
    kinds = _join([f"{cause} at {number}" for cause, number in Counter(told).most_common()])
    kinds = f"{told[0]} at each of them" if len(set(told)) == 1 else kinds
    low = min(sites, key=lambda one: math.inf if math.isnan(one.covered) else one.covered)
    if not low.coverage_text or low.covered >= low.wanted:
        return kinds
    return f"{kinds}. The worst is {low.client}: {low.coverage_text}"


def _join(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def headline_text(calibration: Calibration, level: CoverageLevel) -> dict[str, str]:
    """The top of the page for one level: what was promised, or how much is proved up to where; the
    exact promise; and what became of the reports."""
    promise, every = f"{_sentence(level.certificate.statement)}.", calibration.by
    wanted = f"{format_percent(float(level.coverage))} coverage" + (
        f" of every {every}" if every else ""
    )
    wanted = wanted if calibration.risk is None else calibration.target_text(level)
    claim = (_guaranteed_text if calibration.is_guaranteed else _defended_text)(
        calibration, level, wanted
    )
    if not calibration.is_guaranteed and level.vacuous_from is not None:
        promise += f" From {pluralize(level.vacuous_from, 'liar')} on nothing is proved."
    if not calibration.is_guaranteed and level.certificate.lower < level.coverage:
        promise += " The wanted level itself is not proved."
    (share,), used = _covered(calibration, level), len(calibration.benign_clients)
    covers = f"{format_percent(share)} are covered"
    if calibration.risk is not None:
        covers = f"the mean {calibration.risk.name} is {_loss(calibration.risk, share)}"
    kind, out = ("unflagged", "flagged") if calibration.is_guaranteed else ("used", "left out")
    numbers = {
        kind: used,
        out: len(calibration.flagged_clients),
        "refused as faulty": len(calibration.rejected_reports),
        "missing": len(calibration.missing_clients),
    }
    told = ", ".join(f"{n} {word}" for word, n in numbers.items() if n or word in (kind, out))
    federation = calibration.federation
    valid = (
        f"{pluralize(federation.n_clients, 'valid report')} with {federation.n_samples:,} samples"
    )
    return {
        "claim": claim,
        "used": f"Of the cases that the {pluralize(used, f'{kind} site')} reported, {covers}.",
        "promise": promise,
        "reports": f"{valid}; {told}.",
    }


def _loss(risk: Risk, share: float) -> str:
    return format_percent(1 - share) if risk.bound == 1 else f"{risk.bound * (1 - share):.3g}"


def format_percent(share: float) -> str:
    """A share as a percentage of at most four digits; not for what is proved."""
    return f"{100 * share:.4g}%"


def auditor_questions(calibration: Calibration, verdict: str) -> dict[str, str]:
    """Who is left out, what is proved and estimated, how it was made and what would change it."""
    record, federation, level = (
        calibration.require_record(),
        calibration.federation,
        calibration.levels[0],
    )
    origin = (
        "stated before the reports" if calibration.n_malicious_given else "read off the reports"
    )
    by = "" if calibration.by is None else f", for each {calibration.by}"
    rule = f"FCP's, on the reports of the sites that were used{by}"
    if calibration.is_guaranteed:
        rule = "the promise's: the least that keeps it, whatever the liars report"
    elif record.defense.startswith("custom:"):
        rule = "that of the defence that was passed, FCP's where it has none"
    elif (
        record.defense == "consensus"
        and not (by or federation.has_noise)
        and federation.counts_per_sample == 1
    ):
        voted = level.threshold > _fcp(federation, level, calibration.benign_mask)
        rule = "the vote of the sites that were used, never below FCP's threshold on them; here "
        rule += "the vote decides" if voted else "FCP's decides"
    rule += (
        "" if record.trusted_report is None else "; held within what the server's own sample allows"
    )
    weak = next((one.m for one in level.certificate_points if one.lower < level.coverage), None)
    falls = "" if weak is None else f"; what is proved is below the level from {weak} liars on"
    falls = "; nothing is promised if more lie than stated" if calibration.is_guaranteed else falls
    full = breakdown_point_of_any_rule(federation.sample_sizes, level.coverage)
    promised = "under a promise, unless how alike sites are is stated (--alike)"
    falls += "" if full is None else f"; {full} or more liars could fill every set {promised}"
    falls += "; more sites: below ten detection is weak" if federation.n_clients < 10 else ""
    change = (
        "another number of liars (robfcp show -m), a trusted sample (--anchor), corrected reports"
    )
    again = "robfcp verify calibration.json, the record beside it, computes it all again"
    return {
        "who is left out": f"{verdict} Decided by {record.defense}; reasons are in the cards above",
        "proved": level.certificate.statement,
        "estimated": "the harm averted, the shares covered, oddness and diagnosis: from reports",
        "number of liars": f"{calibration.n_malicious}, {origin}",
        "threshold": rule,
        "what would change it": change + falls,
        "to verify": f"{again}; compare the digests below",
    }


def reading_notes(calibration: Calibration) -> Iterator[str]:
    """What to know of a page of losses, or with a threshold for each class."""
    if calibration.risk is not None:
        bound = "" if calibration.risk.bound == 1 else f" / {calibration.risk.bound:g}"
        yield (
            "These reports hold losses: what charts call the share of scores at or below a "
            f"threshold is 1 - mean {calibration.risk.name}{bound} there."
        )
    if calibration.by is not None:
        yield (
            f"There is a threshold for each {calibration.by}; the charts above the table show the "
            "largest of them."
        )


def pluralize(number: int, word: str) -> str:
    """'1 site', '2 sites'."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _guaranteed_text(calibration: Calibration, level: CoverageLevel, wanted: str) -> str:
    certificate = level.certificate
    condition = f"even if any {certificate.m} of {certificate.n_clients} sites lie"
    if certificate.samples is not None:
        held = f"at most {certificate.samples} samples together"
        condition = f"even if any sites that hold {held} lie"
    elif certificate.m == 0:
        condition = "if nobody lies"
    sure, flagged = certificate.confidence, len(calibration.flagged_clients)
    sure_words = "" if sure is None else f" with {format_lower(sure)} confidence"
    claim = f"{_sentence(wanted)} is guaranteed{sure_words} {condition}"
    if level.is_trivial:
        return f"{claim}, but only because every prediction set is full"
    return f"{claim}; {pluralize(flagged, 'site') if flagged else 'no site'} flagged"


def _defended_text(calibration: Calibration, level: CoverageLevel, wanted: str) -> str:
    flagged, clients = len(calibration.flagged_clients), calibration.federation.n_clients
    if level.is_trivial:
        return f"Too few samples for {wanted}: every prediction set is full"
    if flagged == 0:
        whom = f"all {clients} sites" if clients > 1 else "the one site"
    else:
        whom = f"the {clients - flagged} of {clients} sites that were used"
    aim = "The thresholds aim" if calibration.by else "The threshold aims"
    return f"{aim} at {wanted}, from {whom}"
