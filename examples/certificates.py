"""What is certified about a threshold, for every number of malicious clients."""

import robfcp
from robfcp import figures
from robfcp.experiments import outputs, partitions
from robfcp.experiments.scenarios import build_federation

score = robfcp.LAC()
pathology = outputs.load("pathmnist")
scores = score(pathology.probabilities, pathology.labels)
client_rows = partitions.partition_iid(len(scores), 60, rng=0)
client_scores = [scores[rows] for rows in client_rows]
federation = build_federation(client_scores, robfcp.Binning.default(), score)

calibration = robfcp.calibrate(federation, [0.8, 0.9])
figures.save(figures.plot_certificates(calibration), "certificates.png")
print("-> certificates.png")
