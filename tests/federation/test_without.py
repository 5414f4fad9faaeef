"""Reports that the operator of a round sets aside."""

import numpy as np
import pytest
from makers import outputs, reports_by_class, reports_of

import robfcp
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.fleet import _parquet

REASON = "site-02: was excluded by the operator; ask the operator why"


def stratified_reports():
    """Six reports by class."""
    return reports_by_class([outputs(seed, 120) for seed in range(6)])


def remaining_reports(reports):
    """All reports but the one that is excluded below."""
    return [report for report in reports if report.client != "site-02"]


def test_the_federation_is_that_of_the_other_reports():
    reports = stratified_reports()

    federation = Federation.from_reports(reports).without(["site-02"])

    expected = Federation.from_reports(remaining_reports(reports))
    assert list(federation) == list(expected)
    np.testing.assert_array_equal(federation.counts, expected.counts)
    np.testing.assert_array_equal(federation.sample_sizes, expected.sample_sizes)


@pytest.mark.parametrize("by", [None, "class"])
def test_the_calibration_is_that_of_the_other_reports(by):
    reports = stratified_reports()

    calibration = robfcp.calibrate(Federation.from_reports(reports).without(["site-02"]), by=by)

    expected = robfcp.calibrate(remaining_reports(reports), by=by)
    thresholds = [level.threshold for level in calibration.levels]
    assert thresholds == [level.threshold for level in expected.levels]
    assert calibration.flagged_clients == expected.flagged_clients
    assert calibration.certificate.lower == expected.certificate.lower


def test_counts_that_stay_in_parquet_are_excluded_too(tmp_path, monkeypatch):
    reports = stratified_reports()
    Federation.from_reports(reports).save(tmp_path / "round.parquet")
    monkeypatch.setattr(_parquet, "MAX_VALUES_IN_MEMORY", 0)

    federation = Federation.from_files(tmp_path / "round.parquet").without(["site-02"])

    assert federation.is_out_of_core
    expected = robfcp.calibrate(remaining_reports(reports))
    assert robfcp.calibrate(federation).threshold == expected.threshold


def test_an_excluded_client_is_listed_among_the_rejected_with_the_reason():
    federation = Federation.from_reports([*stratified_reports(), b"{broken"])

    remaining = federation.without(["site-02"])

    assert remaining.rejected_reports[0] == federation.rejected_reports[0]
    (rejected,) = remaining.rejected_reports[1:]
    assert (rejected.client, rejected.field, rejected.reason) == ("site-02", "client", REASON)
    calibration = robfcp.calibrate(remaining)
    verdict = calibration.verdicts["site-02"]
    assert (verdict.status, verdict.effect) == ("rejected", "excluded")
    assert calibration.feedback("site-02").reason == REASON
    assert calibration.certificate.n_uncovered_clients == 2


def test_an_excluded_client_is_not_listed_as_resubmitted():
    reports = stratified_reports()
    federation = Federation.from_reports([*reports, reports[1], reports[2]])
    assert federation.resubmitted_clients == ("site-01", "site-02")

    assert federation.without(["site-02"]).resubmitted_clients == ("site-01",)


def test_who_has_no_valid_report_may_be_named():
    refused = {"client": "refused"}
    federation = Federation.from_reports(
        [*stratified_reports(), refused], expected_clients=["missing"]
    )
    assert federation.missing_clients == ("missing",)

    assert federation.without(["refused", "missing"]) is federation
    assert federation.without([]) is federation
    with_one_more = federation.without(["refused", "site-02"])
    assert [rejected.client for rejected in with_one_more.rejected_reports] == [
        "refused",
        "site-02",
    ]


def test_an_unknown_name_is_refused():
    federation = Federation.from_reports(reports_of([[0.1, 0.2]] * 3))
    with pytest.raises(RobfcpError) as caught:
        federation.without(["site-00", "site-9", "site-8"])
    assert str(caught.value) == (
        "clients (--exclude): no client of this round is called site-8, site-9; check the name"
    )


def test_one_report_must_remain():
    federation = Federation.from_reports(reports_of([[0.1, 0.2]] * 3))
    with pytest.raises(RobfcpError, match="no report is left; exclude fewer"):
        federation.without(federation.clients)
