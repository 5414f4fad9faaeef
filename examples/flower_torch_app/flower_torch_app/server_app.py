"""The server: an ordinary FedAvg run; the lines after it calibrate the trained model."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import robfcp
from flower_torch_app.task import make_model
from robfcp.integrations import register_sample_sizes, run_calibration_round
from robfcp.integrations.flower import FlowerTransport

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, then calibrate."""
    config = context.run_config
    arrays = ArrayRecord(make_model().state_dict())
    timing = {"deadline": config["deadline"], "poll": config["poll"]}
    registered_sizes = register_sample_sizes(FlowerTransport(grid, arrays, **timing))

    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid, arrays, num_rounds=config["num-server-rounds"])

    max_malicious = config["max-malicious"]
    if max_malicious == "unknown":
        max_malicious = None
    calibration = run_calibration_round(
        FlowerTransport(grid, result.arrays, **timing),
        registered_sizes=registered_sizes,
        coverage=config["coverage"],
        defense=robfcp.Consensus(max_malicious=max_malicious),
        run_id=context.run_id,
    )
    if config["output"]:
        calibration.save(config["output"])
