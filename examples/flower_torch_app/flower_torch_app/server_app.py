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
    sizes = register_sample_sizes(FlowerTransport(grid, arrays, **timing))

    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid, arrays, num_rounds=config["num-server-rounds"])

    max_malicious = None if config["liars"] == "unknown" else config["liars"]
    calibration = run_calibration_round(
        FlowerTransport(grid, result.arrays, **timing),
        registered_sizes=sizes,
        coverage=config["coverage"],
        defense=robfcp.Consensus(at_most=max_malicious),
        run_id=context.run_id,
    )
    if config["output"]:
        calibration.save(config["output"])
