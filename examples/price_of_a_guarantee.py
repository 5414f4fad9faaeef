"""How large sets become when they must hold whatever any m sites do."""

import robfcp
from robfcp import figures
from robfcp.lab import outputs, partitions
from robfcp.lab.worlds import federation_of

score = robfcp.LAC()
sizes: dict[str, list[float]] = {"marginal": [], "pac": []}
promises = {"marginal": robfcp.Marginal, "pac": robfcp.Pac}
liars = list(range(0, 16, 3))
tissue = outputs.load("pathmnist")
probabilities, labels = tissue.probabilities, tissue.labels
parts = partitions.iid(len(labels), 60, rng=0)
federation = federation_of(
    [score(probabilities[rows], labels[rows]) for rows in parts], robfcp.Grid.default(), score
)
for name, found in sizes.items():
    for m in liars:
        calibration = robfcp.calibrate(federation, promise=promises[name](m))
        found.append(robfcp.metrics.set_size(calibration.predict_set(probabilities[:1000])))
(ax,) = figures.new_axes()
for (name, found), marker in zip(sizes.items(), figures.MARKERS, strict=False):
    ax.plot(liars, found, marker=marker, label=name)
ax.set(xlabel="liars guarded against, of 60 sites", ylabel="mean set size")
ax.set_title("The price of a guarantee at 0.9")
ax.legend()
figures.save(ax, "price_of_a_guarantee.png")
print("-> price_of_a_guarantee.png")
