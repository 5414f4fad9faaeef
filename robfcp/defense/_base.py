"""What every defense is: a verdict on every client, and the threshold that follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from robfcp._typing import BoolArray, FloatArray
from robfcp._validation import check_integer
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import FCPThreshold, RankRule, rank_correction

MALICIOUSNESS_DECIMALS = 12  # beyond them rounding would order clients, not their reports


class Note(NamedTuple):
    """What else must be said of a round, and the clients that the text names.

    A note that names nobody is public: it stands in the calibration, which goes to everybody.
    """

    text: str
    clients: Sequence[str] = ()


class ThresholdRule(Protocol):
    """Gives the threshold of one round at any level."""

    def bin_index(self, level: Fraction) -> int | None:
        """Return the bin whose upper edge is the threshold; None for an infinite one.

        Parameters
        ----------
        level : Fraction
            The target coverage, between 0 and 1.

        Returns
        -------
        int or None
            A position among the bins of the round's binning, which `Federation.threshold_at` takes.
        """
        ...


@dataclass(frozen=True, eq=False)
class Assessment:
    """A defense's verdict on every client, and the threshold that rests on it.

    Attributes
    ----------
    maliciousness : ndarray of float, shape (K,)
        The maliciousness score of every client, larger for more malicious ones; its unit is the
        defense's own. Clients are in the order of the federation.
    benign_mask : ndarray of bool, shape (K,)
        The clients that the threshold rests on; at least one.
    reasons : mapping of str to str
        Why each excluded client is excluded, by its name. The excluded clients are those outside
        `benign_mask`, whether or not they have a reason here.
    notes : tuple of Note
        What else must be said: what was approximated, which clients send equal reports.
    n_malicious : int or None
        The number of malicious clients that a certificate speaks of: as given, as estimated, or
        None for the number of excluded clients.
    n_malicious_given : bool
        Whether that number was given to the defense.
    """

    maliciousness: FloatArray
    benign_mask: BoolArray
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    n_malicious: int | None = None
    n_malicious_given: bool = False

    def threshold_rule(
        self, federation: Federation, rank: RankRule = rank_correction
    ) -> ThresholdRule:
        """Return the rule that gives the threshold: FCP's, on the benign clients.

        Parameters
        ----------
        federation : Federation
            The round that was assessed, with the counts as they were sent: those of losses count
            parts of samples, where `Defense.assess` gets samples.
        rank : RankRule
            By how many samples a pooled count must exceed level times N.
        """
        return FCPThreshold(federation, self.benign_mask, rank)


class Defense(Protocol):
    """Decides which clients are benign; how many may be malicious is its own business.

    Attributes
    ----------
    name : str
        By which a calibration records the defense; see `robfcp.defense._registry`.
    """

    name: ClassVar[str]

    def assess(self, federation: Federation) -> Assessment:
        """Return the verdict on every client.

        Parameters
        ----------
        federation : Federation
            The reports of one round, one count a sample: `calibrate` converts losses before.
            Counts of private reports hold noise and may be negative.

        Raises
        ------
        RobfcpError
            Where the reports allow no verdict. A threshold with a guarantee is then calibrated
            without one.
        """
        ...


def select_benign_set(
    federation: Federation, maliciousness: FloatArray, n_benign: int
) -> BoolArray:
    """Select the clients with the lowest maliciousness scores; ties are broken by name.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    maliciousness : ndarray of shape (K,)
        The score of every client, not NaN; compared to twelve decimals. Minus infinity for clients
        that are to be selected first.
    n_benign : int
        How many clients to select, from 1 to K; `check_benign_majority` ensures it.

    Returns
    -------
    ndarray of bool, shape (K,)
        With exactly `n_benign` true entries.
    """
    rounded = np.round(maliciousness, MALICIOUSNESS_DECIMALS)

    # The highest score that is selected: clients below it are selected, clients at it are tied.
    highest = np.partition(rounded, n_benign - 1)[n_benign - 1]
    is_selected = rounded < highest
    tied = np.flatnonzero(rounded == highest)

    # Names decide rather than positions, so that the order of the reports does not matter.
    n_tied_selected = n_benign - int(is_selected.sum())
    if n_tied_selected < len(tied):
        by_name = np.argsort(list(federation.names_of(tied)), kind="stable")
        tied = tied[by_name]
    is_selected[tied[:n_tied_selected]] = True
    return is_selected


def check_benign_majority(
    federation: Federation, n_malicious: int, parameter: str = "n_malicious"
) -> int:
    """Return the number of benign clients, K_b = K - K_m; refuse all but a benign majority.

    Parameters
    ----------
    federation : Federation
        The reports of K clients.
    n_malicious : int
        K_m, the number of malicious clients.
    parameter : str
        The argument that gave the number, for the error.

    Returns
    -------
    int
        More than K / 2.

    Raises
    ------
    RobfcpError
        Where the number is negative, or half of K or more.
    """
    n_clients = federation.n_clients
    is_minority = n_malicious >= 0 and 2 * n_malicious < n_clients
    if not is_minority:
        raise RobfcpError(
            f"{parameter}: {n_malicious} of {n_clients} clients are no minority; a defense needs a "
            f"majority of benign clients; give at most {(n_clients - 1) // 2}"
        )
    return n_clients - n_malicious


def exclude_most_malicious(
    federation: Federation,
    n_malicious: int,
    maliciousness: FloatArray,
    origin: str,
    notes: tuple[Note, ...] = (),
    *,
    n_malicious_given: bool = True,
) -> Assessment:
    """Exclude exactly so many clients, those with the highest maliciousness scores.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    n_malicious : int
        How many clients to exclude; refused unless fewer than half.
    maliciousness : ndarray of shape (K,)
        The score of every client: how far it is from `origin`, in the defense's unit.
    origin : str
        What the score is the distance from, for the reasons.
    notes : tuple of Note
        What else must be said.
    n_malicious_given : bool
        Whether the number was given to the defense rather than estimated from the reports.
    """
    n_benign = check_benign_majority(federation, n_malicious)
    benign_mask = select_benign_set(federation, maliciousness, n_benign)
    reason = f"among the {n_malicious} sites farthest from {origin}"
    reasons = dict.fromkeys(federation.names_of(~benign_mask), reason)
    return Assessment(
        maliciousness=maliciousness,
        benign_mask=benign_mask,
        reasons=reasons,
        notes=notes,
        n_malicious=n_malicious,
        n_malicious_given=n_malicious_given,
    )


def check_client_number(parameter: str, value: int | None) -> int | None:
    """Return a number of clients that a defense is constructed with as an int.

    Parameters
    ----------
    parameter : str
        The name of the parameter, for the message.
    value : int or None
        Its value; None where no number was given.

    Returns
    -------
    int or None
        Not negative. Whether it leaves a majority is checked with the reports, in `assess`.
    """
    if value is None:
        return None
    return check_integer(parameter, value, "give a number of sites")
