"""What a federated training run is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from robfcp.errors import RobfcpError


@dataclass(frozen=True)
class TrainingSettings:
    """Federated training: who takes part, how long they train, how the server joins them."""

    model: str
    rounds: int
    clients: int = 100
    fraction: float = 0.1
    local_epochs: int = 10
    batch: int = 64
    learning_rate: float = 0.05
    final_rate: float = 0.1  # of the learning rate, reached by a cosine over the rounds
    momentum: float = 0.9
    weight_decay: float = 5e-4
    beta: float | None = None  # Dirichlet concentration of the label shares; None: iid
    aggregation: str = "mean"
    malicious: int = 0  # clients that poison their updates
    poison_strength: float = 1.0
    augment: bool = False  # shifted by up to 4 pixels
    mirror: bool = False
    slots: int = 1  # clients trained side by side
    seed: int = 0

    def __post_init__(self) -> None:
        checks = [
            (self.rounds >= 1, "rounds", "at least 1"),
            (self.clients >= 1, "clients", "at least 1"),
            (0 < self.fraction <= 1, "fraction", "in (0, 1]"),
            (self.local_epochs >= 1, "local_epochs", "at least 1"),
            (self.batch >= 1, "batch", "at least 1"),
            (self.learning_rate > 0, "learning_rate", "positive"),
            (self.beta is None or self.beta > 0, "beta", "positive, or left out for an iid split"),
            (0 <= self.malicious < self.clients, "malicious", "in 0..clients-1"),
            (self.slots >= 1, "slots", "at least 1"),
        ]
        for holds, field, need in checks:
            if not holds:
                raise RobfcpError(f"{field}: {getattr(self, field)} must be {need}; correct it")

    @property
    def per_round(self) -> int:
        """How many clients train in a round."""
        return max(1, round(self.fraction * self.clients))
