"""Twelve clients in NVFlare's simulator: two malicious, one forges a name, one cuts its report.

python simulation.py WORKSPACE [--rounds 2]      with --rounds, train first, in the same job
"""

import argparse
from pathlib import Path

from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.client.config import ExchangeFormat
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner
from nvflare.recipe import SimEnv
from nvflare.recipe.spec import Recipe
from show import show
from task import CLASSES, FEATURES

from robfcp.integrations.nvflare import CalibrationRecipe, add_calibration

FOLDER = Path(__file__).parent
SCRIPT = str(FOLDER / "client.py")
HELPERS = [str(FOLDER / name) for name in ("task.py", "faults.py")]
N_CLIENTS = 12
ARGUMENTS = f"--n-clients {N_CLIENTS} --faults"


def calibration_recipe(deadline):
    """Return the recipe of a calibration of the model that all clients have."""
    return CalibrationRecipe(
        min_clients=N_CLIENTS,
        script=SCRIPT,
        script_args=ARGUMENTS,
        helpers=HELPERS,
        max_malicious=2,
        deadline=deadline,
    )


def training_recipe(n_rounds, deadline):
    """Return the recipe of federated averaging, then calibration of the trained model."""
    job = FedJob(name="calibration", min_clients=N_CLIENTS)
    initial_weights = [[0.0] * CLASSES] * (FEATURES + 1)
    job.to_server(NPModelPersistor(model=initial_weights), id="persistor")
    job.to_server(FedAvg(num_clients=N_CLIENTS, num_rounds=n_rounds, persistor_id="persistor"))
    add_calibration(job, max_malicious=2, deadline=deadline)
    runner = ScriptRunner(
        script=SCRIPT,
        script_args=ARGUMENTS,
        framework=FrameworkType.NUMPY,
        server_expected_format=ExchangeFormat.NUMPY,
    )
    job.to_clients(runner, tasks=["train", "calibrate"])
    for helper in HELPERS:
        job.to_clients(helper)
    return Recipe(job)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--deadline", type=float, default=60.0)
    options = parser.parse_args()
    if options.rounds:
        recipe = training_recipe(options.rounds, options.deadline)
    else:
        recipe = calibration_recipe(options.deadline)
    env = SimEnv(num_clients=N_CLIENTS, workspace_root=str(options.workspace))
    run = recipe.execute(env)
    show(Path(run.get_result()) / "server" / "simulate_job" / "calibration.json")
