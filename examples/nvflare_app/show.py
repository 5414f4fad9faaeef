"""What came out, and what every site did."""

import sys

import robfcp


def show(path):
    """Print a calibration with its record of the round."""
    calibration = robfcp.Calibration.load(path, record=True)
    print(f"threshold {calibration.threshold:.6g}: {calibration.certificate.statement}")
    for client, entry in calibration.provenance["clients"].items():
        words = "flagged" if client in calibration.flagged_clients else entry["status"]
        claims = entry.get("claims")
        if claims:
            words += f", covered {claims['covered'][0]} of {claims['n_samples']} test samples"
        print(f"  {client}: {words} {entry['reason']}")


if __name__ == "__main__":
    show(sys.argv[1])
