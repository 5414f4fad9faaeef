"""NVFlare's local deployment (POC): a server and five clients, each in a separate process.

python local.py WORKSPACE      takes NVFlare's default ports, 8002 and 8003
"""

import argparse
import os
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("workspace", type=Path)
parser.add_argument("--deadline", type=float, default=60.0)
options = parser.parse_args()
os.environ["NVFLARE_POC_WORKSPACE"] = str(options.workspace.resolve())

from nvflare.recipe import PocEnv  # noqa: E402
from show import show  # noqa: E402

from robfcp.integrations.nvflare import CalibrationRecipe  # noqa: E402

FOLDER = Path(__file__).parent
N_CLIENTS = 5  # of which site-2 and site-5 are malicious

recipe = CalibrationRecipe(
    min_clients=N_CLIENTS,
    script=str(FOLDER / "client.py"),
    script_args=f"--n-clients {N_CLIENTS} --faults",
    helpers=[str(FOLDER / "task.py"), str(FOLDER / "faults.py")],
    max_malicious=2,
    deadline=options.deadline,
)
env = PocEnv(num_clients=N_CLIENTS)
try:
    job = recipe.execute(env).get_job_id()
    result = Path(env.get_job_result(job, timeout=600))
    print(env.get_job_status(job))
    show(next(result.rglob("calibration.json")))  # before the workspace goes
finally:
    env.stop(clean_up=True)
