"""Print a calibration and the outcome of every client in the round."""

import sys

import robfcp


def show(path):
    """Print a calibration with its record of the round."""
    calibration = robfcp.Calibration.load(path, record=True)
    print(f"threshold {calibration.threshold:.6g}: {calibration.certificate.statement}")
    for client, entry in calibration.provenance["clients"].items():
        status = "flagged" if client in calibration.flagged_clients else entry["status"]
        claims = entry.get("claims")
        if claims:
            status += f", covered {claims['n_covered'][0]} of {claims['n_samples']} test samples"
        print(f"  {client}: {status} {entry['reason']}")


if __name__ == "__main__":
    show(sys.argv[1])
