"""Set sizes when coverage is guaranteed for any reports of m malicious clients.

The reports are default ones. A guarantee assumes the largest scores that they allow, which is part
of the price; `min_cell_count=1` makes reports of exact counts, for which it is lower.
"""

import robfcp
from robfcp import figures
from robfcp.experiments import outputs, partitions

GUARANTEES = {"marginal": robfcp.MarginalGuarantee, "pac": robfcp.PACGuarantee}
MAX_MALICIOUS = range(0, 16, 3)
N_CLIENTS = 60

pathology = outputs.load("pathmnist")
client_rows = partitions.partition_iid(len(pathology.labels), N_CLIENTS, rng=0)
reports = [
    robfcp.Report.from_predictions(
        f"client-{k:02d}", pathology.probabilities[rows], pathology.labels[rows]
    )
    for k, rows in enumerate(client_rows)
]
federation = robfcp.Federation.from_reports(reports)

(ax,) = figures.new_axes()
for (name, guarantee), marker in zip(GUARANTEES.items(), figures.MARKERS, strict=False):
    set_sizes = []
    for max_malicious in MAX_MALICIOUS:
        calibration = robfcp.calibrate(federation, guarantee=guarantee(max_malicious))
        sets = calibration.predict_set(pathology.probabilities[:1000])
        set_sizes.append(robfcp.metrics.mean_set_size(sets))
    ax.plot(MAX_MALICIOUS, set_sizes, marker=marker, label=name)

ax.set(xlabel="largest number of malicious clients, of 60", ylabel="mean set size")
ax.set_title("The price of guaranteed coverage of 0.9")
ax.legend()
figures.save(ax, "price_of_a_guarantee.png")
print("-> price_of_a_guarantee.png")
