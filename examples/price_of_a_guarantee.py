"""How large sets become when coverage is guaranteed whatever any m clients report."""

import robfcp
from robfcp import figures
from robfcp.experiments import outputs, partitions
from robfcp.experiments.scenarios import build_federation

GUARANTEES = {"marginal": robfcp.MarginalGuarantee, "pac": robfcp.PACGuarantee}
MAX_MALICIOUS = range(0, 16, 3)
N_CLIENTS = 60

score = robfcp.LAC()
pathology = outputs.load("pathmnist")
scores = score(pathology.probabilities, pathology.labels)
client_rows = partitions.partition_iid(len(scores), N_CLIENTS, rng=0)
client_scores = [scores[rows] for rows in client_rows]
federation = build_federation(client_scores, robfcp.Binning.default(), score)

(ax,) = figures.new_axes()
for (name, guarantee), marker in zip(GUARANTEES.items(), figures.MARKERS, strict=False):
    set_sizes = []
    for max_malicious in MAX_MALICIOUS:
        calibration = robfcp.calibrate(federation, guarantee=guarantee(max_malicious))
        sets = calibration.predict_set(pathology.probabilities[:1000])
        set_sizes.append(robfcp.metrics.mean_set_size(sets))
    ax.plot(MAX_MALICIOUS, set_sizes, marker=marker, label=name)

ax.set(xlabel="liars guarded against, of 60 sites", ylabel="mean set size")
ax.set_title("The price of a guarantee at 0.9")
ax.legend()
figures.save(ax, "price_of_a_guarantee.png")
print("-> price_of_a_guarantee.png")
