"""Small rounds, and everything that people and programs read of them.

`CASES` maps a name to a function without arguments that returns {part: bytes}. `golden_diff` runs
the cases at two commits and compares every byte; `test_golden` compares the decisions of some with
stored values. Cases call robfcp through `golden_adapter` only.
"""

import csv
import hashlib
import json
import re
import tempfile
from functools import partial
from itertools import product
from pathlib import Path

import golden_adapter as adapter
import golden_old_names
import numpy as np

LAC = adapter.LAC
CASES = {}

# Adapters of commits before the renaming have a table of old options.
HAS_OLD_NAMES = hasattr(adapter, "OPTIONS")


def option(name):
    """The option of a name, at whichever commit the case runs."""
    return golden_old_names.OLD_OPTIONS[name] if HAS_OLD_NAMES else name


def report_key(name):
    """The key of a report's file, at whichever commit the case runs."""
    return golden_old_names.OLD_REPORT_KEYS[name] if HAS_OLD_NAMES else name


def case(name, work):
    """Register a case under a name."""
    if name in CASES:
        raise ValueError(f"two cases are called {name}")
    CASES[name] = work


def run_case(name):
    """{part: bytes} of a case; where the round is refused or crashes, the words of the error."""
    try:
        return CASES[name]()
    except adapter.REFUSAL as error:
        return {"refused": json.dumps(str(error)).encode()}
    except Exception as error:  # a crash is an answer too: the next commit may mend it
        return {"crashed": f"{type(error).__name__}: {error}".encode()}


# ------------------------------------------------------------------------------ reports


def crafted_scores(attack, scores, rng):
    """What a malicious client reports in place of its scores."""
    if attack == "zeros":
        return np.zeros_like(scores)
    if attack == "ones":
        return np.ones_like(scores)
    if attack == "smaller":
        return 0.55 * scores
    if attack == "larger":
        return 1 - 0.4 * (1 - scores)
    if attack == "reversed":
        return 1 - scores
    if attack == "mimic":
        return 0.8 * np.sort(scores)[rng.permutation(len(scores))]
    return scores


ATTACKS = ("zeros", "ones", "smaller", "larger", "duplicate", "reversed", "none", "mimic")


def round_reports(
    seed,
    *,
    n_clients=20,
    n_samples=120,
    n_classes=4,
    n_malicious=5,
    attack="zeros",
    min_cell_count=5,
    by="class",
    label_concentration=3.0,
    unequal_sizes=False,
    include_all_labels=False,
):
    """Reports of clients with different label distributions, some of them malicious."""
    rng = np.random.default_rng(seed)
    reports = []
    first_scores = first_labels = None
    for k in range(n_clients):
        n = int(n_samples * (1 + 3 * rng.random())) if unequal_sizes else n_samples
        distribution = rng.dirichlet(np.full(n_classes, label_concentration))
        labels = rng.choice(n_classes, n, p=distribution)
        logits = rng.normal(size=(n, n_classes))
        logits[np.arange(n), labels] += 1.5 + 0.5 * (labels % 2)
        probabilities = np.exp(logits)
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        scores = LAC(probabilities, labels)

        # Duplicates are copies of the first client's scores and labels.
        if k < n_malicious and attack == "duplicate":
            if k == 0:
                first_scores, first_labels = scores, labels
            scores, labels = first_scores, first_labels
        elif k < n_malicious:
            scores = crafted_scores(attack, scores, rng)

        options = {}
        if by == "class":
            options = {"labels": labels, "classes": n_classes}
        if by == "class-totals":
            options = {"labels": labels, "classes": n_classes, "stratify_by_class": None}
        if by == "group":
            names = ["ct", "mr", "us"]
            groups = np.array(names)[rng.integers(0, 3, len(scores))]
            options = {"groups": groups, "classes": names}
        if include_all_labels:
            options["all_label_scores"] = adapter.all_label_scores(probabilities)
        reports.append(
            adapter.report(
                f"s{k:03d}",
                scores,
                score=LAC,
                min_cell_count=min_cell_count,
                round="r1",
                model="m1",
                **options,
            )
        )
    return reports


def private_reports(seed, *, n_clients=16, protects_sample_size=False):
    """Reports with Laplace noise, three of them malicious."""
    rng = np.random.default_rng(seed)
    binning = adapter.uniform_binning(24)
    privacy = adapter.privacy(1.0, protects_sample_size=protects_sample_size)
    reports = []
    for k in range(n_clients):
        scores = rng.beta(2, 4, 400) * (0.3 if k < 3 else 1)
        noise = np.rint(rng.laplace(0, adapter.noise_scale(privacy), 24)).astype(int)
        reports.append(
            adapter.report_of_counts(
                f"p{k:02d}",
                adapter.bin_counts(binning, scores) + noise,
                binning,
                score=LAC,
                n_samples=None if protects_sample_size else 400,
                privacy=privacy,
            )
        )
    return reports


def loss_reports(seed, *, n_clients=12):
    """Reports of false negative rates, two of them malicious."""
    rng = np.random.default_rng(seed)
    binning = adapter.uniform_binning(40)
    reports = []
    for k in range(n_clients):
        probabilities = np.clip(rng.random((80, 5)) * (0.4 if k < 2 else 1), 0, 1)
        truths = (rng.random((80, 5)) < 0.4).astype(int)
        reports.append(adapter.report_of_multilabel(f"l{k:02d}", probabilities, truths, binning))
    return reports


def merged_class_reports(seed):
    """Reports whose small classes are merged into "(other)"."""
    rng = np.random.default_rng(seed)
    reports = []
    for k in range(14):
        labels = rng.choice(4, 150, p=rng.dirichlet(np.ones(4)))
        scores = np.clip(rng.beta(2, 4, 150) + 0.05 * labels, 0, 1) * (0.2 if k < 2 else 1)
        reports.append(
            adapter.report(
                f"o{k:02d}",
                scores,
                score=LAC,
                labels=labels,
                classes=["a", "b", "c", "d"],
                min_class_count=20,
            )
        )
    return reports


def trusted_report(seed, n_samples):
    """The server's own report of trusted samples, by class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n_samples)
    scores = rng.beta(2, 3, n_samples)
    return adapter.report("server", scores, score=LAC, min_cell_count=1, labels=labels, classes=4)


# ------------------------------------------------------------------------------ calibrations


def calibrated(make_reports, coverage=0.9, *, everything=True, **options):
    """A case: the texts of one calibration."""
    return adapter.texts(
        adapter.calibrate(make_reports(), coverage, **options), everything=everything
    )


for attack, min_cell_count, seed in product(ATTACKS, (1, 5), (0, 1)):
    kind = "exact" if min_cell_count == 1 else "coarse"
    reports = partial(round_reports, seed, attack=attack, min_cell_count=min_cell_count)
    case(f"default/{attack}/{kind}/{seed}", partial(calibrated, reports, [0.8, 0.9]))

for attack, seed in product(ATTACKS, (6, 7)):
    reports = partial(round_reports, seed, attack=attack, by="class-totals")
    case(f"totals/{attack}/{seed}", partial(calibrated, reports, [0.8, 0.9]))

for attack, seed in product(ATTACKS, (2, 3)):
    reports = partial(
        round_reports, seed, attack=attack, by=None, unequal_sizes=True, n_malicious=7
    )
    case(f"pooled/{attack}/{seed}", partial(calibrated, reports))
    reports = partial(
        round_reports,
        seed,
        attack=attack,
        n_clients=15,
        n_malicious=6,
        label_concentration=0.4,
        unequal_sizes=True,
        min_cell_count=1,
    )
    case(f"heterogeneous/{attack}/{seed}", partial(calibrated, reports))

DEFENSES = {
    "none": partial(adapter.defense, "none"),
    "rob-fcp": partial(adapter.defense, "rob-fcp", n_malicious=5),
    "rob-fcp-estimated": partial(adapter.defense, "rob-fcp"),
    "rob-fcp-released": partial(adapter.defense, "rob-fcp-released", n_malicious=5),
    "rob-fcp-released-estimated": partial(adapter.defense, "rob-fcp-released"),
    "consensus-exactly": partial(adapter.defense, "consensus", n_malicious=5),
    "consensus-at-most": partial(adapter.defense, "consensus", max_malicious=3),
    "rob-fcp-cosine-gaussian": partial(
        adapter.defense, "rob-fcp", n_malicious=5, metric="cosine", vector="gaussian"
    ),
}


def defended(make_defense, attack):
    """A case: the texts of a calibration by one defense."""
    reports = partial(round_reports, 4, attack=attack)
    return calibrated(reports, defense=make_defense())


for (name, make_defense), attack in product(DEFENSES.items(), ("zeros", "smaller")):
    case(f"defense/{name}/{attack}", partial(defended, make_defense, attack))

MIXED_LABELS = [{"0": 0.4, "1": 0.3, "2": 0.2, "3": 0.1}, "uniform"]
GUARANTEES = {
    "marginal": partial(adapter.guarantee, "marginal", 3),
    "marginal-samples": partial(adapter.guarantee, "marginal", max_malicious_samples=400),
    "marginal-both": partial(adapter.guarantee, "marginal", 3, max_malicious_samples=400),
    "pac": partial(adapter.guarantee, "pac", 3),
    "pac-heterogeneity": partial(adapter.guarantee, "pac", 3, heterogeneity=0.05),
    "label-shift": partial(adapter.guarantee, "label-shift", 3),
    "label-shift-uniform": partial(
        adapter.guarantee, "label-shift", 3, heterogeneity=0.02, labels="uniform"
    ),
    "label-shift-any": partial(adapter.guarantee, "label-shift", 2, labels="any"),
    "label-shift-several": partial(adapter.guarantee, "label-shift", 3, labels=MIXED_LABELS),
}


def guaranteed(make_guarantee, attack):
    """A case: the texts of a calibration under one guarantee."""
    reports = partial(round_reports, 5, attack=attack, unequal_sizes=True)
    return calibrated(reports, 0.8, guarantee=make_guarantee())


for (name, make_guarantee), attack in product(GUARANTEES.items(), ("zeros", "ones")):
    case(f"guarantee/{name}/{attack}", partial(guaranteed, make_guarantee, attack))

# Without a guarantee, and with the two that hold for every kind of report.
FEW_GUARANTEES = {
    "defense": lambda: None,
    "marginal": partial(adapter.guarantee, "marginal", 2),
    "pac": partial(adapter.guarantee, "pac", 2),
}
CLUSTERS = {"0": "a", "1": "a", "2": "b", "3": "b"}
NAMED_CLUSTERS = {"a": "x", "b": "x", "c": "y", "d": "y"}
FEW_HOLDERS = {
    "n_clients": 7,
    "n_samples": 60,
    "n_classes": 6,
    "label_concentration": 0.1,
    "n_malicious": 2,
    "min_cell_count": 1,
}


def under_guarantee(make_reports, make_guarantee, coverage, make_options=dict):
    """A case: the texts of a calibration, whose options are made when it runs."""
    return calibrated(make_reports, coverage, guarantee=make_guarantee(), **make_options())


for name, make_guarantee in FEW_GUARANTEES.items():
    reports = partial(round_reports, 6, n_samples=300)
    merged = partial(merged_class_reports, 3)
    rounds = {
        "by/class": (reports, 0.8, partial(dict, by="class")),
        "by/cluster": (reports, 0.8, partial(dict, by=CLUSTERS)),
        "by/other": (merged, 0.8, partial(dict, by="class")),
        "by/other-cluster": (merged, 0.8, partial(dict, by=NAMED_CLUSTERS)),
        "by/trusted": (
            reports,
            0.8,
            lambda: {"by": "class", "trusted": trusted_report(1, 400)},
        ),
        "by/few-trusted": (
            reports,
            [0.7, 0.8],
            lambda: {"by": "class", "trusted": trusted_report(1, 24)},
        ),
        "by/few-holders": (
            partial(round_reports, 6, **FEW_HOLDERS),
            0.8,
            lambda: {"by": "class", "defense": adapter.defense("consensus", max_malicious=2)},
        ),
        "trusted": (
            partial(round_reports, 7, attack="ones"),
            0.8,
            lambda: {"trusted": trusted_report(9, 300)},
        ),
        "private": (partial(private_reports, 8), 0.8, dict),
        "private-sizes": (partial(private_reports, 8, protects_sample_size=True), 0.8, dict),
    }
    for title, (make_reports, coverage, make_options) in rounds.items():
        work = partial(under_guarantee, make_reports, make_guarantee, coverage, make_options)
        case(f"{title}/{name}", work)
    risks = partial(dict, risk_level=[0.2, 0.3])
    case(
        f"risk/{name}",
        partial(under_guarantee, partial(loss_reports, 8), make_guarantee, 0.9, risks),
    )

case("by/group", partial(calibrated, partial(round_reports, 6, by="group"), 0.8, by="group"))
case(
    "by/40-classes",
    partial(
        calibrated,
        partial(round_reports, 6, n_samples=400, n_classes=40, min_cell_count=1),
        0.8,
        by="class",
        everything=False,
    ),
)
case(
    "by/1000-classes",
    partial(
        calibrated,
        partial(round_reports, 6, n_clients=8, n_samples=3000, n_classes=1000, n_malicious=1),
        0.8,
        by="class",
        everything=False,
    ),
)
case(
    "all-labels",
    partial(
        calibrated,
        partial(round_reports, 9, include_all_labels=True, min_cell_count=1),
        0.8,
    ),
)


def mixed_noise():
    """Private and other clients in one round."""
    reports = private_reports(8)[:9]
    binning = adapter.uniform_binning(24)
    for k in range(5):
        scores = np.random.default_rng(k).beta(2, 4, 300)
        reports.append(adapter.report(f"q{k}", scores, binning=binning, score=LAC))
    return adapter.texts(adapter.calibrate(adapter.federation(reports, privacy=None), 0.8))


def few_clients():
    """Rounds of one to four clients."""
    answers = {}
    for n_clients in (1, 2, 3, 4):
        reports = partial(round_reports, 1, n_clients=n_clients, n_malicious=0)
        for part, text in calibrated(reports, 0.8).items():
            answers[f"{n_clients}-{part}"] = text
    return answers


def sampled_clients():
    """A round of so many clients that references are sought among a sample of them."""
    reports = partial(round_reports, 3, n_clients=300, n_samples=60, n_malicious=80, by=None)
    seeded = adapter.defense("consensus", seed=5)
    return calibrated(reports, defense=seeded, everything=False)


case("mixed-noise", mixed_noise)
case("few-clients", few_clients)
case("sampled-clients", sampled_clients)


# ------------------------------------------------------------------------------ stored counts


def stored(**options):
    """The calibrations of a round whose counts stay in Parquet."""
    reports = round_reports(3, n_clients=40, n_malicious=9, **options)
    guarantees = {
        "defense": None,
        "marginal": adapter.guarantee("marginal", 4),
        "pac": adapter.guarantee("pac", 4),
    }
    calibrations = adapter.stored_calibrations(reports, guarantees.values())
    answers = {}
    for name, calibration in zip(guarantees, calibrations, strict=True):
        answers[name] = adapter.calibration_json(calibration)
    return answers


for attack, by in product(("zeros", "smaller", "larger"), (None, "class")):
    name = "pooled" if by is None else "by-class"
    case(f"stored/{attack}/{name}", partial(stored, attack=attack, by=by, n_samples=60))
for n_samples in (100, 300):
    case(f"stored/{n_samples}-samples", partial(stored, by=None, n_samples=n_samples))


# ------------------------------------------------------------------------------ intake


def changed_report(data, **fields):
    """A report's JSON with other fields; the value `None` is written, "drop" leaves one out."""
    decoded = json.loads(data)
    decoded.update(fields)
    kept = {key: value for key, value in decoded.items() if value != "drop"}
    return json.dumps(kept).encode()


def hostile_reports(good):
    """Reports with one fault each, under names of their own."""
    first = json.loads(good[0])
    strata = first["strata"]
    too_many_bins = {"name": "uniform", "digest": "ab", "parameters": {"bins": 10**9}}
    changes = [
        {"kind": "calibration"},
        {"schema": 3},
        {"schema": True},
        {report_key("binning"): None},
        {report_key("binning"): "drop"},
        {"n_samples": -1},
        {"n_samples": 7},
        {"n_samples": 2**41},
        {"client": ""},
        {"client": "a\n"},
        {"client": "file:x"},
        {"client": 5},
        {"round": "other"},
        {"model": "other"},
        {"round": "x" * 300},
        {"score": {"name": "aps"}},
        {"score": {"name": "nope"}},
        {"strata": {**strata, "by": "x"}},
        {"strata": {**strata, "names": 9}},
        {"strata": {**strata, "names": ["a", "a"]}},
        {"strata": {**strata, "counts": strata["counts"][1:]}},
        {
            "strata": {
                **strata,
                report_key("cell_steps"): [0] * len(strata[report_key("cell_steps")]),
            }
        },
        {"strata": {**strata, "counts": [-count for count in strata["counts"]]}},
        {"counts": [1, 2]},
        {"extra": 1},
        {"risk": {"name": "fnr"}},
        {"privacy": {"epsilon": 1.0}},
        {report_key("all_label_counts"): [1]},
        {report_key("binning"): {**first[report_key("binning")], "digest": "00"}},
        {report_key("binning"): too_many_bins},
    ]
    bad = [b"", b"{}", b"[", b"\xff", b"null", good[0][:50], good[1]]
    for number, fields in enumerate(changes):
        bad.append(changed_report(good[0], **{"client": f"x{number}", **fields}))
    return bad


def refusal_or(work):
    """The result of an intake as JSON, or the words of the refusal."""
    try:
        return json.dumps(adapter.intake_result(work())).encode()
    except adapter.REFUSAL as error:
        return json.dumps({"refused": str(error)}).encode()


def hostile():
    """What is rejected of hostile reports, and the words."""
    good = [adapter.report_json(one) for one in round_reports(1, n_clients=6, n_malicious=0)]
    bad = hostile_reports(good)
    other = round_reports(1, n_clients=2, n_malicious=0)[1]
    contradiction = adapter.report_json(round_reports(77, n_clients=2, n_malicious=0)[1])
    objects = [5, None, {"client": "m"}, other]
    sizes = {**{f"s{k:03d}": 120 for k in range(5)}, "s000": 7}
    expected = ["s001", "absent"]
    rounds = {
        "expected": partial(adapter.federation, [*good, *bad, *objects], expected_clients=expected),
        "sizes": partial(adapter.federation, [*good, *bad], registered_sizes=sizes),
        "twice": partial(adapter.federation, [*good, good[0], contradiction]),
    }
    agreed = {
        "quorum-share": {"quorum": 0.9},
        "quorum-count": {"quorum": 50},
        "client-share-1": {"max_client_share": 0.01},
        "client-share-20": {"max_client_share": 0.2},
        "round": {"round": "zzz"},
        "binning": {"binning": adapter.uniform_binning(7)},
        "score": {"score": adapter.APS},
        "privacy": {"privacy": adapter.privacy(1.0)},
    }
    for name, options in agreed.items():
        rounds[name] = partial(adapter.federation, [*good, *bad], **options)
    return {name: refusal_or(work) for name, work in rounds.items()}


def half_protect_sizes():
    """Whether a size may be protected where half, fewer or more than half of the reports do so."""
    private = private_reports(8, protects_sample_size=True)[:6]
    rest = private_reports(9)[6:12]
    rounds = {
        "half": [*private, *rest],
        "fewer": [*private[:5], *rest],
        "more": [*private, *rest[:5]],
    }
    return {
        name: refusal_or(partial(adapter.federation, reports)) for name, reports in rounds.items()
    }


def signed():
    """Signed and forged reports, of this round and another, with registered keys and without."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        return {}
    keys = {}
    for k in range(6):
        seed = hashlib.sha256(bytes([k])).digest()
        keys[f"s{k:03d}"] = Ed25519PrivateKey.from_private_bytes(seed)
    reports = round_reports(1, n_clients=6, n_malicious=0)
    sent = [
        adapter.signed_report(report, key)
        for report, key in zip(reports, keys.values(), strict=True)
    ]
    sent[1] = adapter.signed_report(reports[1], keys["s002"])  # somebody else's key
    sent[2] = adapter.report_json(reports[2])  # not signed
    sent[3] = sent[3].replace(b'"model":"m1"', b'"model":"m2"')  # changed after it was signed
    public = {client: adapter.public_key(key) for client, key in keys.items() if client != "s005"}
    revoked = {**public, "s000": ""}  # a key that counts no more
    rounds = {
        "this-round": {"keys": public, "round": "r1"},
        "other-round": {"keys": public, "round": "r2"},
        "revoked": {"keys": revoked, "round": "r1"},
        "no-registry": {},
    }
    return {
        name: refusal_or(partial(adapter.federation, [*sent, b"{"], **options))
        for name, options in rounds.items()
    }


case("hostile", hostile)
case("half-protect-sizes", half_protect_sizes)
case("signed", signed)


# ------------------------------------------------------------------------------ monitoring


def fresh_samples(rng, n, *, informative):
    """Probabilities and labels; the probabilities know the labels only if `informative`."""
    labels = rng.integers(0, 4, n)
    logits = rng.normal(size=(n, 4))
    logits[np.arange(n), labels] += 1.5 if informative else 0
    probabilities = np.exp(logits)
    return probabilities / probabilities.sum(axis=1, keepdims=True), labels


def monitored():
    """A monitor with and without a report of its own, before and after the model fails."""
    reports = round_reports(2, n_malicious=0, min_cell_count=1)
    guarantee = adapter.guarantee("pac", 1)
    calibration = adapter.calibrate(reports, 0.9, guarantee=guarantee)
    rng = np.random.default_rng(5)
    answers = {}
    for name, reference in (("named", None), ("reference", reports[3])):
        monitor = adapter.monitor(
            calibration,
            seed=7,
            min_coverage=0.85,
            reference_report=reference,
            client="a" if reference is None else None,
        )
        for informative in (True, False):
            probabilities, labels = fresh_samples(rng, 200, informative=informative)
            part = f"{name}-{'good' if informative else 'bad'}"
            answers[part] = adapter.monitor_update(monitor, probabilities, labels)
        answers[f"{name}-e-value"] = adapter.e_value_report(monitor, "r", 1)
        answers[f"{name}-evaluation"] = adapter.evaluation_text(
            calibration, probabilities, labels, min_coverage=0.8
        )
    return answers


case("monitored", monitored)


# ------------------------------------------------------------------------------ commands


CLASS_NAMES = ("flu", "cold", "none")


def write_table(path, seed, n_samples, *, one_hot=False, with_ward=False):
    """A CSV file of class probabilities and labels, and perhaps the ward of each sample."""
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(3, 0.4), n_samples)
    drawn = rng.random((n_samples, 1))
    labels = (probabilities.cumsum(axis=1) > drawn).argmax(axis=1)
    if one_hot:
        probabilities = np.eye(3)[labels]
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        ward = ["ward"] if with_ward else []
        writer.writerow(["id", *CLASS_NAMES, *ward, "label"])
        for row, label in enumerate(labels):
            values = [f"{value:.6f}" for value in probabilities[row]]
            ward = ["ab"[row % 2]] if with_ward else []
            writer.writerow([f"p{row}", *values, *ward, CLASS_NAMES[label]])


def commands():
    """The JSON and the printed text of every command on one round."""
    answers = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "reports").mkdir()
        for k in range(9):
            write_table(folder / f"site-{k}.csv", k, 120, one_hot=k == 2)
        write_table(folder / "fresh.csv", 50, 200)
        write_table(folder / "wards.csv", 52, 200, with_ward=True)
        write_table(folder / "trusted.csv", 51, 150)
        (folder / "round.toml").write_text('round = "r1"\nmodel = "m1"\n')

        def run(part, command, *arguments, **options):
            output = partial(adapter.command_line, command, *arguments, folder=folder, **options)
            text = output(json=True)
            answers[part] = text.replace(name.encode(), b"FOLDER")

        run("terms", "terms", "round.toml")
        for k in range(9):
            options = {"client": f"site-{k}", "round": "r1", "model": "m1"}
            options["output"] = f"reports/{k}.json"
            if k == 1:
                options["min_cell_count"] = 1
            run(f"report-{k}", "report", f"site-{k}.csv", **options)
        run("collect", "collect", "reports", output="round.parquet", round="r1")
        run("calibrate", "calibrate", "reports", output="c.json", feedback="feedback")
        run(
            "calibrate-guarantee",
            "calibrate",
            "reports",
            output="g.json",
            guarantee="marginal",
            max_malicious=1,
            coverage=0.8,
        )
        run("calibrate-class", "calibrate", "reports", by="class", coverage=0.7)
        run("calibrate-stored", "calibrate", "round.parquet", output="p.json")
        run("calibrate-trusted", "calibrate", "reports", trusted_data="trusted.csv")
        run("predict", "predict", "c.json", "fresh.csv", output="sets.csv")
        run("evaluate", "evaluate", "c.json", "wards.csv", group="ward")
        run(
            "monitor",
            "monitor",
            "c.json",
            "fresh.csv",
            state="monitor.json",
            client="site-3",
            report="e-3.json",
            round="r1",
            step=1,
        )
        run("merge-alarms", "merge-alarms", "e-3.json", max_malicious=1, n_clients=9)
        run("show", "show", "c.json", max_malicious="0,1,2", coverage=0.8)
        run("verify", "verify", "c.json", report="reports/3.json")
        run("verify-feedback", "verify", "feedback/site-3.json")
        run("refused", "calibrate", "nobody.json")
        printed = partial(adapter.command_line, folder=folder)
        answers["calibrate-printed"] = printed("calibrate", "reports")
        answers["show-printed"] = printed("show", "c.json")
        sets = folder / "sets.csv"
        answers["sets"] = sets.read_bytes() if sets.exists() else b"not written"
    return answers


case("commands", commands)


def files_of_a_round():
    """Everything that `calibrate` writes and prints, and what it refuses."""
    answers = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "reports").mkdir()
        (folder / "pooled").mkdir()
        for k in range(9):
            write_table(folder / f"site-{k}.csv", k, 120, one_hot=k == 2)
            arguments = ["report", f"site-{k}.csv"]
            options = {"client": f"site-{k}", "round": "r1", "folder": folder}
            adapter.command_line(*arguments, output=f"reports/{k}.json", **options)
            adapter.command_line(
                *arguments, option("--withhold-labels"), output=f"pooled/{k}.json", **options
            )
        write_table(folder / "trusted.csv", 51, 150)
        (folder / "round.toml").write_text('round = "r1"\n')
        (folder / "sizes.json").write_text(json.dumps({f"site-{k}": 120 for k in range(8)}))

        def run(part, *arguments, command="calibrate", **options):
            text = adapter.command_line(command, *arguments, folder=folder, **options)
            answers[part] = text.replace(name.encode(), b"FOLDER")

        common = {"output": "c.json", "html": "page.html", "feedback": "feedback"}
        run("first", "reports", terms="round.toml", audit="log.jsonl", **common)
        for path in sorted(folder.glob("c.*")) + sorted(folder.glob("feedback/*")):
            answers[f"written-{path.name}"] = path.read_bytes()
        page = (folder / "page.html").read_bytes()
        answers["written-page"] = hashlib.sha256(page).hexdigest().encode()
        events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        kept = [{k: v for k, v in one.items() if k not in ("time", "previous")} for one in events]
        answers["written-log"] = json.dumps(kept).encode()
        run("verified", "c.json", command="verify", report="reports/4.json", audit="log.jsonl")
        run("letter", "feedback/site-3.json", command="verify")

        run("again", "reports", previous="c.json", exclude="site-4", output="d.json")
        run("again-json", "reports", previous="c.json", exclude="site-4", json=True)
        run("sizes", "reports", registered_sizes="sizes.json", quorum=0.5, json=True)
        run("share", "reports", option("--max-client-share"), "0.01")
        run("levels", "reports", "--coverage", "0.8", "--coverage", "0.95", by="class")
        run("shift", "reports", guarantee="label-shift", max_malicious=1, label_distribution="any")
        distributions = [
            option("--label-distribution"),
            "flu=0.1,cold=0.2,none=0.7",
            option("--label-distribution"),
            "uniform",
        ]
        run("shift-two", "reports", *distributions, guarantee="label-shift", max_malicious=1)
        run("exactly", "reports", n_malicious=1, json=True)
        run("rob-fcp", "reports", defense="rob-fcp", max_malicious=1)
        run("trusted-report", "reports", trusted_data="reports/1.json")
        run("pooled", "pooled", guarantee="pac", max_malicious=1, heterogeneity=0.05)
        run("collected", "reports", command="collect", output="round.parquet")
        run("stored", "round.parquet", output="stored.json", json=True)

        run("refused-input", "reports", output="reports/1.json")
        run("refused-page", "reports", html="reports/new.json", feedback="reports")
        run("refused-previous", "reports", previous="c.json", output="c.json")
        run("refused-page-is-folder", "reports", html="feedback")
        run("refused-heterogeneity", "reports", heterogeneity=0.1)
        run("refused-samples", "reports", samples=4)
        run("refused-distribution", "reports", label_distribution="a=lot")
        run("refused-exactly", "reports", defense="none", n_malicious=1)
        run("refused-exclude", "reports", exclude="nobody")
        run("refused-coverage", "reports", coverage="1.5")
        run("refused-key", "reports", sign="nobody.key")
        run("refused-log", "c.json", command="verify", audit="reports")
        run("left-aside", "c.json", "reports")
    return answers


case("files-of-a-round", files_of_a_round)

PLAIN = "cat,dog,label\n"
TABLES = {  # files as people have them, right and wrong
    "plain": PLAIN + "0.25,0.75,dog\n0.5,0.5,cat\n",
    "semicolons": "cat;dog;label\n0,25;0,75;dog\n0,5;0,5;cat\n",
    "both-points": "cat;dog;label\n0,5;0.5;cat\n",
    "point-later": "cat;dog;label\n0.5;0.5;cat\n0,5;1;dog\n",
    "hint": "sep=;\ncat;dog;label\n0,25;0,75;dog\n",
    "ids": "id,cat,dog,label\na,0.25,0.75,dog\na,0.5,0.5,cat\n",
    "twice": PLAIN + "0.25,0.75,dog\n0.5,0.5,cat\n" * 2 + "0.1,0.9,dog\n0.3,0.7,cat\n" * 2,
    "eight-twice": PLAIN + "".join(f"0.{k},0.{10 - k},dog\n" for k in range(1, 9)) * 2,
    "percent": PLAIN + "25,75,dog\n50,50,cat\n",
    "not-one": PLAIN + "0.25,0.7,dog\n0.5,0.5,cat\n",
    "spare": "cat,dog,age,label\n0.25,0.75,5,dog\n0.5,0.5,7,cat\n",
    "negative": PLAIN + "-0.25,1.25,dog\n",
    "missing": PLAIN + "0.25,,dog\n",
    "nan": PLAIN + "nan,0.75,dog\n",
    "word": PLAIN + "0.25,x,dog\n0.5,0.5,cat\n",
    "words": "name,cat,dog,label\nann,0.25,0.75,dog\nbob,0.5,0.5,cat\n",
    "no-label": "cat,dog\n0.25,0.75\n",
    "label-missing": PLAIN + "0.25,0.75,\n",
    "label-unknown": PLAIN + "0.25,0.75,cow\n",
    "numbers": "p0,p1,p2,label\n0.2,0.3,0.5,0\n0.2,0.3,0.5,2\n",
    "from-one": "a,b,c,label\n0.2,0.3,0.5,1\n0.2,0.3,0.5,3\n",
    "maybe-from-one": "a,b,c,label\n0.2,0.3,0.5,1\n0.2,0.3,0.5,2\n",
    "binary": "risk,y\n0.2,0\n0.7,1\n",
    "binary-true": "risk,y\n0.2,False\n0.7,True\n",
    "binary-class-0": "p0,y\n0.2,0\n0.7,1\n",
    "binary-words": "risk,y\n0.2,no\n0.7,yes\n",
    "binary-percent": "risk,y\n20,0\n70,1\n",
    "binary-counts": "risk,y\n0.2,1\n0.7,2\n",
    "values": "prediction,y\n1.5,1.25\n2.5,3.75\n",
    "many-values": "a,b,y\n1.5,2.5,1.25\n2.5,3.5,3.75\n",
    "quantiles": "high,y,low\n2,1.25,1\n4,3.75,3\n",
    "quantiles-turned": "low,y,high\n2,1.25,1\n4,3.75,3\n",
    "multilabel": "p_a,p_b,label_a,label_b\n0.2,0.9,0,1\n0.7,0.1,1,0\n",
    "same-names": "cat,Cat,label\n1,0,cat\n",
    "no-names": "0.5,0.5,1\n0.5,0.5,0\n",
    "short-row": PLAIN + "0.5,0.5\n",
    "only-names": PLAIN,
    "empty-row": "\n" + PLAIN,
    "empty": "",
    "no-predictions": "label\ncat\n",
    "group": "cat,dog,ward,label\n0.25,0.75,n,dog\n0.5,0.5,s,cat\n0.4,0.6,n,cat\n",
}
READINGS = {
    "as-it-is": [],
    "logits": ["--logits"],
    "normalize": [option("--normalize")],
    "classes": ["--classes", "dog,cat"],
    "label": ["--label", "dog"],
    "id": ["--id", "cat"],
    "lac": ["--score", "lac"],
    "cqr": ["--score", "cqr"],
    "absolute-residual": ["--score", "absolute-residual"],
    "group": ["--group", "ward"],
    "risk": ["--risk", "false-negative-rate"],
    "private": [
        option("--dp-epsilon"),
        "1",
        "--ledger",
        "ledger.json",
        option("--binning"),
        "uniform:8",
    ],
}


def read_tables_as(arguments):
    """What `report` makes of every table, or says of it."""
    answers = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for table, text in TABLES.items():
            (folder / "t.csv").write_text(text)
            (folder / "r.json").unlink(missing_ok=True)
            words = ["report", "t.csv", "--client", "a", "--output", "r.json", *arguments]
            printed = adapter.command_line(*words, folder=folder)
            written = folder / "r.json"
            if "--ledger" in arguments:  # its noise is drawn anew
                printed = re.sub(rb"in \d+ bytes", b"", printed)
            elif written.exists():
                printed += written.read_bytes()
            answers[table] = printed
    return answers


for name, arguments in READINGS.items():
    case(f"tables/{name}", partial(read_tables_as, arguments))


def read_arrays_as(arguments):
    """What `report` makes of arrays, or says of them."""
    p = np.random.default_rng(4).dirichlet(np.ones(3), 30)
    labels = p.argmax(axis=1)
    words = np.array(["a", "b", "c"])
    arrays = {
        "plain": {"probabilities": p, "labels": labels},
        "names": {"probabilities": p, "labels": words[labels], "classes": words},
        "logits": {"logits": np.log(p), "targets": labels, "ids": np.arange(30) % 29},
        "binary": {"probabilities": p[:, 0], "labels": labels > 0},
        "values": {"predictions": p[:, 0], "y": p[:, 1]},
        "no-predictions": {"labels": labels},
        "no-labels": {"probabilities": p},
        "short": {"probabilities": p, "labels": labels[:7]},
        "two-names": {"probabilities": p, "labels": labels, "classes": words[:2]},
        "missing": {"probabilities": np.where(p > 0.9, np.nan, p), "labels": labels},
    }
    answers = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, named in arrays.items():
            np.savez(folder / "t.npz", **named)
            (folder / "r.json").unlink(missing_ok=True)
            given = ["report", "t.npz", "--client", "a", "--output", "r.json", *arguments]
            printed = adapter.command_line(*given, folder=folder)
            written = folder / "r.json"
            answers[part] = printed + (written.read_bytes() if written.exists() else b"")
    return answers


for name, arguments in {
    "as-it-is": [],
    "aps": ["--score", "aps", "--seed", "3"],
    "classes": ["--classes", "c,b,a"],
    "id": ["--id", "ids"],
    "sizes": [
        option("--include-all-labels"),
        "--min-cell-count",
        "1",
        option("--min-class-count"),
        "4",
    ],
    "by-class": [option("--stratify-by-class")],
    "values": ["--score", "absolute-residual"],
}.items():
    case(f"arrays/{name}", partial(read_arrays_as, arguments))


def commands_of_a_client():
    """What the commands of a client write and print, and what they refuse."""
    answers = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "reports").mkdir()
        for k in range(7):
            write_table(folder / f"site-{k}.csv", k, 150, one_hot=k == 2)
            options = {"client": f"site-{k}", "folder": folder, "model": "m1"}
            output = f"reports/{k}.json"
            adapter.command_line("report", f"site-{k}.csv", output=output, **options)
        write_table(folder / "fresh.csv", 50, 200, with_ward=True)
        levels = ["--coverage", "0.8", "--coverage", "0.95"]
        made = {"output": "c.json", "feedback": "feedback", "folder": folder}
        adapter.command_line("calibrate", "reports", *levels, **made)
        adapter.command_line("calibrate", "reports", by="class", output="k.json", folder=folder)

        def run(part, command, *arguments, **options):
            text = adapter.command_line(command, *arguments, folder=folder, **options)
            answers[part] = text.replace(name.encode(), b"FOLDER")
            sets = folder / "sets.csv"
            if sets.exists():
                answers[part] += sets.read_bytes()
                sets.unlink()

        run("predict", "predict", "c.json", "fresh.csv", classes="a,b", output="sets.csv")
        run("predict-level", "predict", "c.json", "fresh.csv", level=0.95, output="sets.csv")
        run("predict-model", "predict", "c.json", "fresh.csv", model="m2")
        run("predict-class", "predict", "k.json", "site-3.csv", output="sets.csv", json=True)
        options = {"non_empty": True, "level": 0.8, "output": "sets.csv"}
        run("predict-filled", "predict", "c.json", "site-4.csv", **options)
        letter = "feedback/site-3.json"
        local = [option("--local-data"), "site-3.csv"]
        run("predict-own", "predict", letter, "site-4.csv", *local, output="sets.csv")
        options = {"feedback": letter, "json": True}
        run("predict-letter", "predict", "site-4.csv", *local, output="sets.csv", **options)
        run("predict-local-only", "predict", "c.json", *local)
        run("refused-letter", "predict", "c.json", "site-4.csv", feedback=letter)
        run("refused-nothing", "predict", "--json")
        run("refused-no-data", "predict", "c.json")
        run("refused-level", "predict", "c.json", "fresh.csv", level=0.5)
        run("refused-ending", "predict", "c.json", "site-3.csv", output="sets.doc")
        run("evaluate", "evaluate", "c.json", "fresh.csv", group="ward")
        run("evaluate-letter", "evaluate", letter, "site-4.csv", min_coverage=0.99)
        run("evaluate-strict", "evaluate", "k.json", "site-5.csv", "--strict", seed=3)

        state = {"state": "watch", "min_coverage": 0.8}
        run("monitor", "monitor", "c.json", "site-4.csv", html="m.html", **state)
        run("monitor-again", "monitor", "site-4.csv", "site-5.csv", state="watch", id="id")
        run("monitor-stands", "monitor", state="watch", json=True)
        own = {"reference_report": "reports/4.json", "report": "e-4.json", "round": "r"}
        run("monitor-own", "monitor", "c.json", "site-4.csv", state="m.json", client="a", **own)
        run("refused-state", "monitor", state="nobody")
        options = {"client": "site-5", "report": "e-5.json", "round": "r", "step": 1}
        run("monitor-five", "monitor", "c.json", "site-6.csv", state="n.json", **options)
        run("alarms", "merge-alarms", "e-5.json", max_malicious=0, n_clients=3)
        kept = {"max_malicious": 0, "n_clients": 3, "history": "h.json", "step": 1}
        run("alarms-kept", "merge-alarms", "e-5.json", json=True, html="h.html", **kept)
        run("alarms-again", "merge-alarms", "e-5.json", **kept)
        run("refused-step", "merge-alarms", "e-5.json", max_malicious=0, history="g.json")
        run("show-history", "show", "h.json", html="s.html")
        run("show", "show", "c.json", max_malicious="0,3", heterogeneity=0.1, html="s.html")
        run("show-class", "show", "k.json")
        run("show-class-json", "show", "k.json", json=True)
    return answers


case("commands-of-a-client", commands_of_a_client)


# ------------------------------------------------------------------------------ integrations


def not_json(turn):
    """Reply with the right nonce and a body that is not JSON."""
    turn.send({"nonce": turn.record["nonce"], "body": b"\xff\xfe"})


def forged(turn):
    """Reply without knowing the nonce."""
    turn.send({**turn.record, "nonce": "0" * 32})


def of_another_round(turn):
    """Reply with a report of another round."""
    report = json.loads(turn.record["body"])
    body = json.dumps({**report, "round": "yesterday"}, separators=(",", ":")).encode()
    turn.send({**turn.record, "body": body})


def silent(turn):
    """Never reply."""
    turn.vanish()


FAULTS = {"site-1": not_json, "site-3": forged, "site-5": of_another_round}


def over_integration(driver, faults, deadline=20.0):
    """One round over an integration; some clients may misbehave."""
    with tempfile.TemporaryDirectory() as name:
        return adapter.integration_round(driver, Path(name) / "round", faults, deadline)


for name, driver in adapter.integration_drivers().items():
    case(f"integration/{name}/all-answer", partial(over_integration, driver, {}))
    case(f"integration/{name}/faults", partial(over_integration, driver, FAULTS))
    if name == "loopback":
        work = partial(over_integration, driver, {"site-6": silent}, deadline=1.0)
        case(f"integration/{name}/silent", work)
