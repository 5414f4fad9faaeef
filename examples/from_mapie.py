"""From MAPIE to robfcp: the same scores give the same sets, and a faulty client is excluded.

MAPIE conformalizes one model on one calibration set. robfcp takes the same nonconformity scores as
counts in bins, so calibration sets may stay where they are.
"""

import numpy as np
from mapie.classification import SplitConformalClassifier
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import robfcp

COVERAGE = 0.9
N_CLIENTS = 9
FAULTY_CLIENT = 4  # its labels are shifted by one: a 0 is called 1, and so on


def mapie_prediction_sets(X_conf: np.ndarray, y_conf: np.ndarray) -> np.ndarray:
    """Conformalize the model with MAPIE, whose default score is 1 - p; (n_test, 10) of bool."""
    classifier = SplitConformalClassifier(model, confidence_level=COVERAGE, prefit=True)
    classifier.conformalize(X_conf, y_conf)
    _, sets = classifier.predict_set(X_test)
    return sets[:, :, 0]  # the last axis is one of confidence levels


def print_coverage(name: str, sets: np.ndarray) -> None:
    """Print the coverage and the mean size of prediction sets of the test samples."""
    coverage = robfcp.metrics.coverage(sets, y_test)
    set_size = robfcp.metrics.mean_set_size(sets)
    print(f"  {name:24} covers {coverage:.1%} with {set_size:.2f} labels per set")


# A model that is right in four of five cases, so that prediction sets are informative.
X, y = load_digits(return_X_y=True)
X_train, X_rest, y_train, y_rest = train_test_split(X / 16, y, train_size=300, random_state=0)
X_conf, X_test, y_conf, y_test = train_test_split(X_rest, y_rest, train_size=900, random_state=0)
model = LogisticRegression(max_iter=400, C=0.02).fit(X_train, y_train)
test_probabilities = model.predict_proba(X_test)
score = robfcp.LAC()  # also 1 - p

print("One client, the same 900 scores:")
mapie_sets = mapie_prediction_sets(X_conf, y_conf)
print_coverage("MAPIE", mapie_sets)

# robfcp sees counts in bins: its threshold is the upper edge of the bin that MAPIE's quantile lies
# in, never below it. The finer the bins, the fewer labels lie between the two. Counts are exact
# here, so that both have the same scores.
scores = score(model.predict_proba(X_conf), y_conf)
for binning in (robfcp.Binning.default(), robfcp.Binning.uniform(20_000)):
    report = robfcp.Report.from_scores("client-0", scores, binning, score=score)
    calibration = robfcp.calibrate([report], coverage=COVERAGE, defense="none")
    robfcp_sets = calibration.predict_set(test_probabilities)
    only_mapie = (mapie_sets & ~robfcp_sets).sum()
    only_robfcp = (robfcp_sets & ~mapie_sets).sum()
    print_coverage(f"robfcp, {binning.n_bins} bins", robfcp_sets)
    print(f"    labels in MAPIE's sets only: {only_mapie}, in robfcp's only: {only_robfcp}")

print(f"{N_CLIENTS} clients, 100 samples each, one with wrong labels:")
client_rows = np.array_split(np.random.default_rng(0).permutation(len(y_conf)), N_CLIENTS)
client_labels = [y_conf[rows] for rows in client_rows]
client_labels[FAULTY_CLIENT] = (client_labels[FAULTY_CLIENT] + 1) % 10

# MAPIE needs all samples in one place, and cannot detect that a ninth of them is wrong.
pooled_rows = np.concatenate(client_rows)
pooled_labels = np.concatenate(client_labels)
print_coverage("MAPIE, pooled", mapie_prediction_sets(X_conf[pooled_rows], pooled_labels))

# Each client sends a default report, in cells of at least five samples, and keeps its samples.
reports = []
for k in range(N_CLIENTS):
    probabilities = model.predict_proba(X_conf[client_rows[k]])
    reports.append(robfcp.Report.from_predictions(f"client-{k}", probabilities, client_labels[k]))
calibration = robfcp.calibrate(reports, coverage=COVERAGE)
print_coverage("robfcp, federated", calibration.predict_set(test_probabilities))
for diagnosis in robfcp.diagnose(calibration).values():
    print(f"  {diagnosis.sentence}")
