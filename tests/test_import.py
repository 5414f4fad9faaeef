"""`import robfcp` is light, each step loads what it needs, and all public names exist."""

import subprocess
import sys

import pytest
from makers import beta_scores, outputs, reports_of, write_table

import robfcp

LOADED = (
    "import sys; before = set(sys.modules)\n{}\n"
    "print(*sorted(set(sys.modules) - before), file=sys.stderr)\n"
)
REPORT = (
    "import robfcp\nrobfcp.Report.from_predictions('a', [[0.3, 0.7]] * 9, [1] * 9).save('a.json')"
)
CALIBRATE = "import robfcp\nrobfcp.calibrate(['r0.json', 'r1.json', 'r2.json'])"
PREDICT = "import robfcp\nrobfcp.Calibration.load('c.json').predict_set([[0.3, 0.7]])"
COMMAND = "from robfcp.cli import app\napp({!r}.split(), standalone_mode=False)"
REPORT_COMMAND = COMMAND.format("report client.csv --client a -o a.json")
PREDICT_COMMAND = COMMAND.format("predict c.json client.csv -o s.csv")

CORE_LIBRARIES = {"robfcp", "numpy", "msgspec", "typing_extensions"}
SERVER_LIBRARIES = CORE_LIBRARIES | {"scipy", "_csparsetools"}  # the latter by scipy.sparse
SERVER_LIBRARIES |= {"charset_normalizer"}  # by numpy, where it happens to be there
PYDANTIC = {"pydantic", "pydantic_core", "annotated_types", "typing_inspection"}  # so by typer
CLI_LIBRARIES = (
    CORE_LIBRARIES | PYDANTIC | {"typer", "click", "rich", "shellingham", "annotated_doc"}
)
AT_A_CLIENT = {
    "_files",
    "_probabilities",
    "_suggestions",
    "_validation",
    "binning",
    "errors",
    "privacy",
    "reports",
    "scores",
}
TO_PREDICT = {"_sealed", "calibration", "certificates"}
TO_CALIBRATE = {"defense", "federation", "fleet", "guarantees"}  # fleet reads the report files
TYPES = {"_typing"}  # names of array types


@pytest.fixture(scope="module")
def folder_of_client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("client")
    write_table(folder / "client.csv", *outputs(0, 1000, 4), names="abcd")
    reports = reports_of(beta_scores(0, 3))
    for k, report in enumerate(reports):
        report.save(folder / f"r{k}.json")
    robfcp.calibrate(reports).save(folder / "c.json")
    return folder


@pytest.mark.parametrize(
    ("code", "libraries", "packages"),
    [
        ("import robfcp", {"robfcp"}, set()),
        (REPORT, CORE_LIBRARIES, AT_A_CLIENT),
        (PREDICT, CORE_LIBRARIES, AT_A_CLIENT | TO_PREDICT),
        (CALIBRATE, SERVER_LIBRARIES, AT_A_CLIENT | TO_PREDICT | TO_CALIBRATE),
        (REPORT_COMMAND, CLI_LIBRARIES, AT_A_CLIENT | {"cli"}),
        (PREDICT_COMMAND, CLI_LIBRARIES, AT_A_CLIENT | TO_PREDICT | {"cli", "metrics"}),
    ],
    ids=["import", "report", "predict", "calibrate", "robfcp report", "robfcp predict"],
)
def test_each_step_loads_these_libraries_and_packages_and_no_others(
    code, libraries, packages, folder_of_client
):
    completed = subprocess.run(
        [sys.executable, "-c", LOADED.format(code)],
        capture_output=True,
        text=True,
        cwd=folder_of_client,
    )
    assert completed.returncode == 0, completed.stderr
    names = completed.stderr.split()
    loaded_libraries = {name.split(".")[0] for name in names} - sys.stdlib_module_names
    build_modules = {
        name
        for name in loaded_libraries
        if name.startswith(("_cy", "cython_runtime", "_sysconfig"))
    }
    assert loaded_libraries - build_modules <= libraries
    loaded_packages = {name.split(".")[1] for name in names if name.startswith("robfcp.")}
    assert loaded_packages - TYPES == packages
    scipy_packages = {name.split(".")[1] for name in names if name.startswith("scipy.")}
    heavy = {"stats", "optimize", "sparse", "linalg"}
    if "federation" in packages:
        heavy = heavy - {"sparse"}  # the table of counts
    assert not scipy_packages & heavy


def test_every_public_name_exists():
    assert all(getattr(robfcp, name) is not None for name in robfcp.__all__)
    assert set(robfcp.__all__) <= set(dir(robfcp))
    assert len(robfcp.__all__) <= 36
    assert not hasattr(robfcp, "nonsense")
