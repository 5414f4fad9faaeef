"""What is certified about a threshold, for every number of malicious clients."""

import robfcp
from robfcp import figures
from robfcp.experiments import outputs, partitions

pathology = outputs.load("pathmnist")
client_rows = partitions.partition_iid(len(pathology.labels), 60, rng=0)
reports = [
    robfcp.Report.from_predictions(
        f"client-{k:02d}", pathology.probabilities[rows], pathology.labels[rows]
    )
    for k, rows in enumerate(client_rows)
]

calibration = robfcp.calibrate(reports, coverage=[0.8, 0.9])
figures.save(figures.plot_certificates(calibration), "certificates.png")
print("-> certificates.png")
