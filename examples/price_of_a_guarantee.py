"""How large sets become when they must hold whatever any m sites do."""

import robfcp
from robfcp import figures
from robfcp.experiments import outputs, partitions
from robfcp.experiments.scenarios import build_federation

score = robfcp.LAC()
sizes: dict[str, list[float]] = {"marginal": [], "pac": []}
promises = {"marginal": robfcp.MarginalGuarantee, "pac": robfcp.PACGuarantee}
liars = list(range(0, 16, 3))
tissue = outputs.load("pathmnist")
probabilities, labels = tissue.probabilities, tissue.labels
parts = partitions.partition_iid(len(labels), 60, rng=0)
federation = build_federation(
    [score(probabilities[rows], labels[rows]) for rows in parts], robfcp.Binning.default(), score
)
for name, found in sizes.items():
    for m in liars:
        calibration = robfcp.calibrate(federation, guarantee=promises[name](m))
        found.append(robfcp.metrics.mean_set_size(calibration.predict_set(probabilities[:1000])))
(ax,) = figures.new_axes()
for (name, found), marker in zip(sizes.items(), figures.MARKERS, strict=False):
    ax.plot(liars, found, marker=marker, label=name)
ax.set(xlabel="liars guarded against, of 60 sites", ylabel="mean set size")
ax.set_title("The price of a guarantee at 0.9")
ax.legend()
figures.save(ax, "price_of_a_guarantee.png")
print("-> price_of_a_guarantee.png")
