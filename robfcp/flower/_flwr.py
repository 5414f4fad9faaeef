"""What this package needs of flwr beyond its public names, which moved between 1.32 and 1.42.

Everything that depends on flwr's version stands here; the rest uses `flwr.app`, `flwr.clientapp`
and `flwr.serverapp`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Node:
    """A node as a network lists it."""

    node_id: int
    name: str = ""
    status: str = "online"
    public_key: bytes = b""


def network_trouble() -> tuple[type[Exception], ...]:
    """The exceptions of a network that may work again a moment later."""
    found: list[type[Exception]] = [OSError]
    for module, name in (("httpx", "HTTPError"), ("grpc", "RpcError")):
        with suppress(ModuleNotFoundError):
            found.append(getattr(import_module(module), name))
    return tuple(found)


def nodes_of(network: Any) -> list[Node]:
    """The network's nodes with their registered names, where its version of flwr tells them."""
    if not hasattr(network, "get_nodes"):
        return [Node(int(node_id)) for node_id in network.get_node_ids()]
    return [_node(node) for node in _listed(network)]


def _listed(network: Any) -> Iterable[Any]:
    nodes: Iterable[Any] = network.get_nodes()
    return nodes


def _node(node: Any) -> Node:
    key = getattr(node, "public_key", b"")
    return Node(
        int(node.node_id),
        str(getattr(node, "name", "") or ""),
        str(getattr(node, "status", "") or "online"),
        key.encode() if isinstance(key, str) else bytes(key),
    )


def empty_run(run_id: int) -> Any:
    """flwr's description of a run, with nothing in it but its number."""
    return import_module("flwr.supercore.run").Run.create_empty(run_id)


def identify_task(run_id: int) -> None:
    """Tell flwr, from 1.34 on, which run this process belongs to, unless it knows."""
    with suppress(ModuleNotFoundError):
        identity = import_module("flwr.supercore.task_identity").TaskIdentity
        if identity._run_id is None:
            identity.run_id, identity.task_id, identity.node_id = run_id, 1, 1
