"""An engine of two dictionaries in this process, and the driver of the shared tests."""

import time

from integration_faults import DATA, QUICK, Stage, Turn, looked, told, watched

import robfcp
from robfcp.integrations import DEFAULTS, ClientPolicy, run_monitoring_round
from robfcp.integrations._configuration import run_configured_round
from robfcp.integrations._messages import Participant
from robfcp.integrations._requests import TTL_GRACE_SECONDS, FailedReply, Transport
from robfcp.integrations.client import ClientRequestHandler, handle_message


class Loopback(Transport):
    """Sites answer when they are asked, unless a fault does it for them."""

    def __init__(self, sites, faults=None, only="report", deadline=20.0, poll=0.02):
        super().__init__("loopback", "none", deadline, poll)
        self.sites, self.replies, self.stage = sites, {}, Stage(sites, faults, only)

    def present(self):
        return [Participant(k, name) for k, name in enumerate(self.sites)]

    def send(self, participant, record, ttl):
        assert TTL_GRACE_SECONDS < ttl < self.deadline + TTL_GRACE_SECONDS + 1
        turn = LoopbackTurn(self, record, self.sites[participant.client])
        self.stage.act(turn, participant.client, record)
        return record["nonce"]

    def receive(self, identifier):
        self.stage.spoilt.get(identifier, int)()
        return self.replies.pop(identifier, None)


class LoopbackTurn(Turn):
    """A turn of a site in this process."""

    def __init__(self, engine, request, site):
        super().__init__(engine.stage, handle_message(request, site))
        self.engine, self.number = engine, request["nonce"]

    def send(self, record=None):
        self.engine.replies.setdefault(self.number, self.record if record is None else record)

    def beside(self):
        self.send({**self.record, "arrays": bytes(50 * 2**20)})

    def fail(self, code=42):
        self.engine.replies[self.number] = FailedReply("faulty", f"the site failed ({code})")


def sites_of(data=DATA, configs=None, fresh=None):
    """A site for each name, made when it is asked."""

    def site(name):
        watches = None if fresh is None or name not in fresh else lambda: told(fresh[name])
        rules = ClientPolicy().with_config((configs or {}).get(name, {}))
        return ClientRequestHandler(rules, lambda part: told(data[name]), watches)

    return {name: lambda name=name: site(name) for name in data}


class LoopbackDriver:
    """Rounds as configured, over the loopback."""

    name = "loopback"

    def play(self, folder, data=DATA, faults=None, configs=None, only="report", **config):
        folder.mkdir(exist_ok=True)
        output, started = str(folder / "calibration.json"), time.monotonic()
        config = {**DEFAULTS, **QUICK, **config, "output": output}
        waiting = config["deadline"], config["poll"]
        engine = Loopback(sites_of(data, configs), faults, only, *waiting)
        run_configured_round(engine, config)
        return (
            robfcp.Calibration.load(output, record=True),
            engine.stage.asked,
            time.monotonic() - started,
        )

    def answer(self, folder, record, fresh):
        """What the first site replies to a request."""
        own = {"letter-folder": str(folder), "monitor-folder": str(folder)}
        return handle_message(record, sites_of(DATA, {"site-0": own}, {"site-0": fresh})["site-0"])

    def monitor(self, folder, fresh, configs, liars, **options):
        engine = Loopback(sites_of(DATA, configs, fresh))
        return looked(run_monitoring_round(engine, watched(), liars, **options))
