"""A standalone Spark cluster in containers: `pytest tests/containers/spark_cluster.py`.

    container   master    worker-1    worker-2    driver, which runs spark-submit
    /shared     WAL, the lake and its checkpoint: a folder that all containers mount

Not part of the suite, because its images need 3 GB of disk and some minutes.
`tests/spark/test_spark_cluster.py` has the same cluster as processes of one machine.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from container_engine import PREFERRED
from container_images import ROOT, Engine, build
from container_network import PinnedNetwork
from container_service import ServiceContainer
from docker.types import Mount
from sink_rows import written
from wal_rows import lsns, rows_of

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.program import run_program
from quorum_wal.spark.inputs.folder_input import FolderInput

CONTEXT = Path(__file__).parent / "spark"
DRIVER = ROOT / "tests/spark/cluster_driver.py"
CLASSES = "org.apache.spark.deploy"
MASTER = "spark://master:7077"
ZIP = "/quorum_wal.zip"
SEGMENT_BYTES = 1 << 20
#: the driver and its arguments
PROGRAM = ("/shared/cluster_driver.py", MASTER, "/shared/pg_wal", "/shared")
TIMEOUT = 600.0  # seconds
BUILD_TIMEOUT = 900.0


@dataclass(frozen=True, slots=True)
class SparkImages:
    """`spark` has all packages but ours, `quorum` has ours, too; `wheel` is ours."""

    spark: str
    quorum: str
    wheel: Path


@pytest.fixture(scope="module")
def images(engine: Engine, containers_dir: Path) -> SparkImages:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    digest = hashlib.sha256("\n".join(needed).encode()).hexdigest()
    packages = wheels_of(containers_dir / f"spark-wheels-{digest[:12]}", *needed)
    ours = containers_dir / "spark-wheel"
    shutil.rmtree(ours, ignore_errors=True)
    (wheel,) = wheels_of(ours, "--no-deps", str(ROOT))
    files = [(path, f"wheels/{path.name}") for path in packages]
    files.append((CONTEXT / "Dockerfile", "Dockerfile"))
    spark = build(engine.client, "spark", files, {"BASE_IMAGE": engine.base.image})
    files = [(wheel, wheel.name), (CONTEXT / "quorum/Dockerfile", "Dockerfile")]
    quorum = build(engine.client, "spark-quorum", files, {"SPARK_IMAGE": spark})
    return SparkImages(spark, quorum, wheel)


def wheels_of(folder: Path, *arguments: str) -> list[Path]:
    """What `pip wheel` makes or downloads. An existing folder is complete."""
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        pip = [*PREFERRED, sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", partial]
        run_program([*pip, *arguments], timeout=BUILD_TIMEOUT)
        partial.rename(folder)
    return sorted(folder.iterdir())


@pytest.fixture
def shared(postgres_factory: Callable[..., Postgres], tmp_path: Path) -> Path:
    """The folder of all containers, with the driver and the WAL of a stopped server."""
    folder = tmp_path / "shared"
    folder.mkdir()
    shutil.copy(DRIVER, folder)
    postgres = postgres_factory(wal_seg_size=SEGMENT_BYTES, settings={"wal_keep_size": "1GB"})
    postgres.execute("CREATE TABLE t (id serial PRIMARY KEY, payload text)")
    for _ in range(6):
        postgres.execute(
            "INSERT INTO t (payload) SELECT md5(i::text) FROM generate_series(1, 8000) i"
        )
    postgres.stop()
    shutil.copytree(postgres.pg_wal, folder / "pg_wal")
    return folder


class SparkCluster:
    """A master and two workers of one image, and drivers."""

    def __init__(self, engine: Engine, image: str, shared: Path, stack: ExitStack) -> None:
        self._engine = engine
        self._image = image
        self._shared = shared
        self._stack = stack
        self._network = stack.enter_context(PinnedNetwork(engine.client))
        self._hosts = iter(range(10, 250))
        self.master = self._daemon("master", "master.Master", "--host", "master")
        worker = ("worker.Worker", "--cores", "1", "--memory", "1g", MASTER)
        self.workers = [self._daemon(f"worker-{number}", *worker) for number in (1, 2)]
        wait_until(lambda: self.alive_workers() == 2, TIMEOUT, "two workers")

    def submit(self, *arguments: str, **options: Any) -> ServiceContainer:
        """A driver that runs spark-submit, with options of ServiceContainer."""
        return self.drive("spark-submit", "--master", MASTER, *arguments, **options)

    def drive(self, *command: str, **options: Any) -> ServiceContainer:
        """A driver that runs the command, with options of ServiceContainer, and `image`."""
        return self._run("driver", *command, **options)

    def alive_workers(self) -> int:
        try:
            with urlopen(f"http://{self.master.ip}:8080/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, json.JSONDecodeError):  # for a moment there is only a page for people
            return 0

    def _daemon(self, name: str, kind: str, *arguments: str) -> ServiceContainer:
        program = ("sh", "-c", 'exec "$SPARK_HOME/bin/spark-class" "$@"', "spark")
        return self._run(name, *program, f"{CLASSES}.{kind}", *arguments)

    def _run(self, name: str, *command: str, **options: Any) -> ServiceContainer:
        image = options.pop("image", self._image)
        env = {"SPARK_LOCAL_HOSTNAME": name, "SPARK_DAEMON_MEMORY": "256m"}
        container = ServiceContainer(
            self._engine.client, self._network, next(self._hosts), image, command,
            name=name,
            env={**env, **options.pop("env", {})},
            mounts=[Mount("/shared", str(self._shared), type="bind")],
            init=True,
            **options,
        )  # fmt: skip
        self._stack.callback(container.discard)
        container.start()
        return container


@pytest.fixture
def cluster_of(engine: Engine, shared: Path) -> Iterator[Callable[[str], SparkCluster]]:
    with ExitStack() as stack:
        yield lambda image: SparkCluster(engine, image, shared, stack)


def test_the_wheel_is_installed_and_a_worker_is_killed(
    images: SparkImages, cluster_of: Callable[[str], SparkCluster], shared: Path
) -> None:
    cluster = cluster_of(images.quorum)
    driver = cluster.submit(*PROGRAM)
    loses_no_row(cluster, driver, shared)


def test_the_wheel_is_sent_and_a_worker_is_killed(
    images: SparkImages, cluster_of: Callable[[str], SparkCluster], shared: Path
) -> None:
    """It is only in the container of the driver, and Spark sends it to the working folders of the
    executors. Spark does not add it to the paths of the Python processes of a data source."""
    cluster = cluster_of(images.spark)
    driver = cluster.submit(
        *("--py-files", ZIP, "--conf", f"spark.executorEnv.PYTHONPATH={ZIP[1:]}", *PROGRAM),
        env={"PYTHONPATH": ZIP},
        files={ZIP: images.wheel.read_bytes()},
    )
    loses_no_row(cluster, driver, shared)


def loses_no_row(cluster: SparkCluster, driver: ServiceContainer, shared: Path) -> None:
    """Kills a worker after the first batch of the stream."""
    second = shared / "checkpoint/offsets/1"
    wait_until(lambda: second.exists() or not driver.alive, TIMEOUT, "a batch")
    assert driver.alive, driver.log_text()[-5000:]
    cluster.workers[0].kill()
    assert driver.wait(TIMEOUT) == 0, driver.log_text()[-5000:]
    assert not cluster.workers[0].alive
    expected = lsns(rows_of(FolderInput(str(shared / "pg_wal")), columns=("lsn",)))
    assert [int(line) for line in (shared / "batch").read_text().split()] == expected
    assert written(shared / "lake") == expected


def test_spark_refuses_the_cluster_mode(
    images: SparkImages, cluster_of: Callable[[str], SparkCluster], shared: Path
) -> None:
    driver = cluster_of(images.quorum).submit("--deploy-mode", "cluster", *PROGRAM)
    assert driver.wait(TIMEOUT) == 1
    assert "not supported for python applications on standalone clusters" in driver.log_text()


def test_workers_that_lack_the_wheel_are_one_error(
    images: SparkImages, cluster_of: Callable[[str], SparkCluster]
) -> None:
    ingest = ("sk", "spark", "ingest", "/lake", "--path", "/shared/pg_wal", "--once")
    driver = cluster_of(images.spark).drive(*ingest, "--master", MASTER, image=images.quorum)
    assert driver.wait(TIMEOUT) == 1
    text = driver.log_text()
    *_, error, hint = text.splitlines()
    assert error == "sk: error: a Python process of Spark has no module quorum_wal", text
    assert hint.startswith("hint: Install quorum-wal[spark] on all machines")
    assert "Traceback" not in text
