"""Old names of keys and values in golden answers, for comparison with commits before the renaming.

`translate` turns an answer of such a commit into the words of today, so that `golden_diff.py
--old-names` shows what the renaming changed besides names. Digests and signatures of files follow
from their bytes and are blanked on both sides.
"""

import json
import re

# Keys, whatever object they stand in.
KEYS = {
    "advice": "recommendation",
    "anchor": "trusted_report",
    "at_every_site": "per_client_lower",
    "bag": "exchangeability",
    "batches": "batch_digests",
    "brief": "auditor",
    "cells": "p_value_counts",
    "changes": "log_sr_statistics",
    "checked": "verification",
    "covered": "coverage",
    "crowd": "cdf_band",
    "defence": "defense",
    "empty_from": "vacuous_from",
    "enough": "n_samples_needed",
    "estimated": "max_malicious_estimated",
    "exactly": "n_malicious",
    "at_most": "max_malicious",
    "fact": "coverage_text",
    "finding": "description",
    "full_sets_from": "breakdown_point",
    "grid": "binning",
    "harm": "impact",
    "holders": "n_clients",
    "instead": "alternative",
    "log_coverage": "log_e_coverage",
    "log_drift": "log_e_exchangeability",
    "looks": "inspections",
    "message": "summary",
    "misses": "n_missed",
    "n_faulty": "n_rejected",
    "n_outside": "n_uncovered_clients",
    "n_sites": "n_clients",
    "n_trusted": "n_benign",
    "neighbours": "neighbors",
    "oddness": "maliciousness",
    "others": "peer_thresholds",
    "own": "settings",
    "promise": "guarantee",
    "promised": "is_guaranteed",
    "public_remarks": "public_notes",
    "recorded": "record_sha256",
    "registered": "sizes_registered",
    "remarks": "notes",
    "repeated": "n_repeated_rows",
    "reported": "n_reference",
    "run_length": "average_run_length",
    "samples_per_patient": "max_samples_per_patient",
    "several": "has_multiple_levels",
    "short": "summary",
    "short_since": "target_missed_since",
    "started": "log_wealths",
    "steps": "cell_steps",
    "sure": "is_clear",
    "wanted": "target_coverage",
}

# Keys whose meaning depends on the object: the key under which it stands, then old and new.
KEYS_OF = {
    "certificate": {
        "m": "max_malicious",
        "outside": "exclusions",
        "samples": "max_malicious_samples",
        "bound": "loss_bound",
        "floor": "trusted_lower",
        "trusted": "n_trusted_samples",
    },
    "certificate_points": {"m": "max_malicious"},
    "levels": {"curve": "certificate_points", "parts": "strata"},
    "strata": {"curve": "certificate_points", "samples": "n_samples", "parts": "strata"},
    "federation": {
        "faulty": "rejected_reports",
        "missing": "missing_clients",
        "sizes": "sample_sizes",
    },
    "guarantee": {
        "liars": "max_malicious",
        "alike": "heterogeneity",
        "samples": "max_malicious_samples",
        "mix": "label_distribution",
    },
    "body": {"confidence": "certificate_confidence"},
    "settings": {
        "confidence": "certificate_confidence",
        "m": "n_malicious",
        "promise": "guarantee",
    },
    "parameters": {
        "liars": "n_malicious",
        "seed": "random_state",
        "distance": "metric",
        "characterisation": "characterization",
    },
    "peer_thresholds": {
        "liars": "max_malicious",
        "alike": "heterogeneity",
        "stated": "max_malicious_given",
    },
    "privacy": {"rounds": "n_rounds"},
    "risk": {"bound": "upper_bound"},
    "reports": {"set_sizes": "all_label_counts"},
    "verification": {"sizes": "sample_sizes"},
}

# Objects that are known by their keys: what they must have, then old and new keys.
KEYS_BY_CONTENT = (
    ({"distance", "bins"}, {"bins": "n_bins"}),
    ({"liars", "bins"}, {"bins": "n_bins"}),
    ({"about", "harm"}, {"about": "info", "faulty": "rejected_reports", "view": "plot_bins",
                         "missing": "missing_clients"}),
    ({"first", "then"}, {"first": "sentence"}),
    ({"claim", "used"}, {"used": "coverage"}),
    ({"value", "assumptions"}, {"value": "coverage", "curve": "certificate_points"}),
    ({"used", "edges"}, {"used": "bins", "bins": "n_bins", "low": "lowest_edge",
                         "edges": "upper_edges"}),
    ({"id", "oddness"}, {"id": "client", "size": "n_samples", "trusted": "benign"}),
    ({"low", "middle", "high"}, {"low": "lower", "middle": "median", "high": "upper"}),
    ({"pooled_only", "sites"}, {"pooled_only": "pooled_clients", "sites": "clients"}),
    ({"proved", "out"}, {"sites": "n_clients", "samples": "n_samples", "proved": "certified",
                         "out": "n_excluded_samples"}),
    ({"own", "mix"}, {"samples": "n_samples", "own": "local_threshold",
                      "mix": "label_distribution", "by": "stratum_coverage"}),
    ({"alarms", "curve", "floor"}, {"alarms": "alarm_steps", "curve": "points", "n": "n_samples",
                                    "floor": "min_coverage", "rows": "row_ids",
                                    "seen": "row_digests_sample"}),
    ({"reported", "started"}, {"report": "report_sha256"}),
    ({"log_coverage", "floor"}, {"floor": "min_coverage"}),
    ({"covered", "total_size"}, {"covered": "n_covered", "total_size": "total_set_size"}),
)  # fmt: skip

# The key of the second of two sentences, by the object in which they stand.
SECOND_SENTENCES = {"impact": "details", "summary": "recommendation"}

# Words that are values of their own, by the key under which they stand.
VALUES_OF = {
    "kind": {
        "letter": "client-feedback",
        "e-report": "e-value-report",
        "alarms": "alarm-history",
        "mix": "label-distribution",
    },
    "name": {
        "liars": "max_malicious",
        "held": "max_malicious_samples",
        "alike": "heterogeneity",
        "corruption": "non_adaptive_corruption",
        "mixture": "test_distribution",
        "identity": "client_identity",
        "samples": "sampling",
        "anchor": "trusted_report",
    },
    "value": {"stated": "given"},
    "verdict": {
        "trusted": "benign",
        "faulty": "rejected",
        "within": "ok",
        "below": "undercoverage",
        "cannot tell yet": "inconclusive",
    },
    "cause": {
        "labels mixed up": "labels permuted",
        "copy": "duplicate report",
        "another model": "different model",
        "probabilities too extreme": "overconfident probabilities",
        "much smaller spread": "scores under-dispersed",
        "hard cases missing": "large scores missing",
        "other mix of classes": "different label distribution",
        "other cases": "different population",
        "not told": "unexplained",
        "residuals far off": "residuals off scale",
    },
    "field": {"grid": "binning", "set_sizes": "all_label_counts"},
    "protection": {"always covered": "trivial", "hardly protected": "weakly protected"},
    "verification": {"as most reports": "majority of reports", "as stated": "given"},
}

# What the cases themselves write, for the adapters of such commits: options and keys of reports.
OLD_OPTIONS = {
    "--withhold-labels": "--pooled",
    "--label-distribution": "--mix",
    "--dp-epsilon": "--epsilon",
    "--binning": "--grid",
    "--include-all-labels": "--set-sizes",
    "--min-class-count": "--least",
    "--normalize": "--normalise",
    "--stratify-by-class": "--by-class",
    "--max-client-share": "--max-share",
    "--local-data": "--local",
}
OLD_REPORT_KEYS = {"binning": "grid", "cell_steps": "steps", "all_label_counts": "set_sizes"}

_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
_SIGNATURE = re.compile(r"\b[0-9a-f]{128}\b|[A-Za-z0-9+/]{86}==")


def translate(data):
    """The answer of a commit before the renaming, in the words of today."""
    lines = []
    for line in data.decode(errors="backslashreplace").split("\n"):
        try:
            value = json.loads(line)
        except ValueError:
            lines.append(line)
            continue
        lines.append(json.dumps(_renamed(value, ""), sort_keys=True))
    return without_digests("\n".join(lines).encode())


def normalized(data):
    """An answer of today in the form that `translate` gives."""
    lines = []
    for line in data.decode(errors="backslashreplace").split("\n"):
        try:
            lines.append(json.dumps(json.loads(line), sort_keys=True))
        except ValueError:
            lines.append(line)
    return without_digests("\n".join(lines).encode())


def without_digests(data):
    """The answer without digests and signatures, which follow from the bytes of files."""
    text = data.decode(errors="backslashreplace")
    return _SIGNATURE.sub("SIGNATURE", _DIGEST.sub("DIGEST", text)).encode()


def _renamed(value, parent):
    """A JSON value with the names of today, given the key under which it stands."""
    if isinstance(value, list):
        return [_renamed(item, parent) for item in value]
    if isinstance(value, dict):
        if {"liars_stated", "liars"} <= value.keys():
            value = dict(value)
            given = value.pop("liars_stated")
            value["n_malicious"] = value.pop("liars")
            value["max_malicious"] = value["n_malicious"] if given else None
        own_keys = dict(KEYS_OF.get(parent, {}))
        for required, keys in KEYS_BY_CONTENT:
            if required <= value.keys():
                own_keys |= keys
        if "then" in value:
            own_keys["then"] = SECOND_SENTENCES.get(parent, "then")
        renamed = {}
        for key, item in value.items():
            new_key = own_keys.get(key) or KEYS.get(key, key)
            renamed[new_key] = _renamed(item, new_key)
            of_parent = VALUES_OF.get(parent, {})
            if isinstance(item, str) and item in of_parent:
                renamed[new_key] = of_parent[item]
        return renamed
    if isinstance(value, str):
        return VALUES_OF.get(parent, {}).get(value, value)
    return value
