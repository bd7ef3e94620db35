"""The metrics of the proposer, read from the running incarnation on each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from quorum_wal.walproposer.checks.commit_watch import CommitWatch
from quorum_wal.walproposer.status import STATES, open_peers, peer_status
from quorum_wal.walproposer.stream.incarnation import Incarnation
from quorum_wal.walproposer.stream.progress import PeerState

if TYPE_CHECKING:  # without --qsync it is not imported
    from quorum_wal.walproposer.qsync.coordination import Coordination

GAUGES = {
    "sk_proposer_commit_lsn": "Position confirmed by a quorum, in bytes",
    "sk_proposer_received_lsn": "End of the WAL received from the primary, in bytes",
    "sk_proposer_term": "Term of this incarnation",
    "sk_proposer_quorum_ok": "1 while a quorum follows, 0 while commits wait",
    "sk_proposer_window_bytes": "WAL held in memory for slow safekeepers",
    "sk_proposer_unconfirmed_seconds": "Time since commit_lsn advanced, with records to confirm",
    "sk_proposer_primary_silent_seconds": "Time since the primary last answered, asked each second",
    "sk_proposer_stalled_seconds": "Delay of the event loop",
}
STATE_GAUGES = {"sk_proposer_state": "1 for the state that the proposer is in, 0 for the others"}
PROTECTION = {"sk_proposer_commits_protected": "1 while commits wait for the quorum, 0 if not"}
COUNTERS = {"sk_proposer_quorum_losses": "Times the quorum was lost"}
SAFEKEEPER_GAUGES = {
    "sk_proposer_safekeeper_connected": "1 while it follows",
    "sk_proposer_safekeeper_lag_bytes": "WAL it has not flushed",
    "sk_proposer_safekeeper_chained": "1 while it takes the WAL from another safekeeper",
    "sk_proposer_safekeeper_left_behind": "1 when no safekeeper still has the WAL that it lacks",
}

#: Metrics of the coordinator, if there is one: names and texts.
QSYNC_GAUGES = {
    "sk_proposer_qsync_deciding": "1 while the coordinator gives verdicts",
    "sk_proposer_qsync_term": "Term in which it gives them; 0 while it does not lead",
    "sk_proposer_qsync_quorum": "How many safekeepers must have a PREPARE",
    "sk_proposer_qsync_limbo_len": "Transactions of qsync that are prepared",
    "sk_proposer_qsync_limbo_len_max": "How many may be prepared before no more are admitted",
    "sk_proposer_qsync_limbo_age_seconds": "Age of the oldest of them",
    "sk_proposer_qsync_unconfirmed": "Those whose PREPARE no quorum has yet",
    "sk_proposer_qsync_foreign": "Prepared transactions of others, which are left alone",
    "sk_proposer_qsync_waiting": "Questions that wait for an answer",
    "sk_proposer_qsync_confirm_lag_seconds": "How long the last one that was confirmed had waited",
}
QSYNC_OWNER = "sk_proposer_qsync_owner"
QSYNC_OWNER_TEXT = "1, with the uuid of the proposer that owns the limbo; absent while none does"
QSYNC_COUNTERS = {
    "sk_proposer_qsync_confirmed": "Questions answered: the quorum has it",
    "sk_proposer_qsync_pending": "Questions answered: not yet",
    "sk_proposer_qsync_committed": "Transactions committed by the janitor",
    "sk_proposer_qsync_rollback_count": "Transactions rolled back by the janitor",
    "sk_proposer_qsync_adopted": "Transactions found prepared when a term began",
}
_QSYNC_WORDS = {
    "sk_proposer_qsync_deciding": "is_deciding",
    "sk_proposer_qsync_limbo_len": "len",
    "sk_proposer_qsync_limbo_len_max": "len_max",
    "sk_proposer_qsync_limbo_age_seconds": "age",
    "sk_proposer_qsync_confirm_lag_seconds": "confirm_lag",
}

Family = GaugeMetricFamily | CounterMetricFamily


class ProposerCollector(Collector):
    """`state()` returns one of STATES. `incarnation()` returns the running incarnation, or the last
    one. Without one there are only the state and the metrics of qsync."""

    def __init__(
        self,
        state: Callable[[], str],
        incarnation: Callable[[], Incarnation | None],
        coordination: Coordination | None,
        watch: CommitWatch,
    ) -> None:
        self._state = state
        self._incarnation = incarnation
        self._coordination = coordination
        self._watch = watch

    @property
    def registry(self) -> CollectorRegistry:
        """A separate registry."""
        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def collect(self) -> Iterable[Family]:
        qsync = _qsync_families(self._coordination) if self._coordination is not None else []
        incarnation = self._incarnation()
        if incarnation is None:
            return [self._states(), *qsync]
        return [
            self._states(),
            *_own_families(incarnation),
            *_safekeeper_families(incarnation),
            *self._protection(),
            *qsync,
        ]

    def _states(self) -> GaugeMetricFamily:
        """A series for each state, so that a change of it leaves no gap."""
        now = self._state()
        family = GaugeMetricFamily(*next(iter(STATE_GAUGES.items())), labels=["state"])
        for state in STATES:
            family.add_metric([state], int(state == now))
        return family

    def _protection(self) -> list[Family]:
        """Empty until the state is known."""
        problems = self._watch.problems
        if problems is None:
            return []
        return [GaugeMetricFamily(n, text, value=not problems) for n, text in PROTECTION.items()]


def _own_families(incarnation: Incarnation) -> list[Family]:
    core, watch = incarnation.core, incarnation.quorum_watch
    window = core.leader.window if core.leader is not None else None
    values = {
        "sk_proposer_commit_lsn": core.commit_lsn,
        "sk_proposer_received_lsn": window.end_lsn if window is not None else 0,
        "sk_proposer_term": core.node_id.term if core.node_id is not None else 0,
        "sk_proposer_quorum_ok": int(watch.ok),
        "sk_proposer_window_bytes": window.size_bytes if window is not None else 0,
        "sk_proposer_unconfirmed_seconds": watch.unconfirmed_seconds,
        "sk_proposer_primary_silent_seconds": incarnation.primary_silent_seconds or 0.0,
        "sk_proposer_stalled_seconds": incarnation.stalled_seconds,
    }
    families: list[Family] = [
        GaugeMetricFamily(name, text, value=values[name]) for name, text in GAUGES.items()
    ]
    losses = "sk_proposer_quorum_losses"
    families.append(CounterMetricFamily(losses, COUNTERS[losses], value=watch.losses_count))
    return families


def _qsync_families(coordination: Coordination) -> list[Family]:
    """Without a coordinator, only the metric that it gives no verdicts."""
    if coordination.coordinator is None:
        name = "sk_proposer_qsync_deciding"
        return [GaugeMetricFamily(name, QSYNC_GAUGES[name], value=0)]
    status = coordination.coordinator.status

    def value(name: str) -> float:
        return float(status[_QSYNC_WORDS.get(name, name.removeprefix("sk_proposer_qsync_"))])

    owner = GaugeMetricFamily(QSYNC_OWNER, QSYNC_OWNER_TEXT, labels=["owner"])
    if status["owner"] is not None:
        owner.add_metric([status["owner"]], 1)
    return [
        owner,
        *(GaugeMetricFamily(n, text, value=value(n)) for n, text in QSYNC_GAUGES.items()),
        *(CounterMetricFamily(n, text, value=value(n)) for n, text in QSYNC_COUNTERS.items()),
    ]


def _safekeeper_families(incarnation: Incarnation) -> list[Family]:
    families = {
        name: GaugeMetricFamily(name, text, labels=["safekeeper"])
        for name, text in SAFEKEEPER_GAUGES.items()
    }
    for each in open_peers(incarnation):
        status, progress = peer_status(incarnation, each), each.progress
        values = {
            "sk_proposer_safekeeper_connected": int(status["connected"]),
            "sk_proposer_safekeeper_lag_bytes": status["lag_bytes"],
            "sk_proposer_safekeeper_chained": int(progress.state is PeerState.CHAINED),
            "sk_proposer_safekeeper_left_behind": int(progress.state is PeerState.LEFT_BEHIND),
        }
        for name, value in values.items():
            families[name].add_metric([status["address"]], value)
    return list(families.values())
