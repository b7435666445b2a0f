"""Jobs with Ray: in this process, on two nodes of which one dies, and with an object store."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from tests.helpers.program import call, process, snapshot
from tests.helpers.ray_nodes import two_nodes

pytestmark = pytest.mark.slow
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("ray.data", reason="jobs on several nodes need Ray: pip install 'ray[data]'")

ROWS, PART_ROWS, BAD = 2000, 10, 1234
TEXTS = [f"the cat sat on the mat {number}"[: 4 + number % 20] for number in range(ROWS)]
WAIT = 240.0  # seconds, against a job that hangs; nothing is measured


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file with a row that has no text."""
    texts = [None if number == BAD else text for number, text in enumerate(TEXTS)]
    pq.write_table(pa.table({"id": [*range(ROWS)], "text": texts}), tmp_path / "in.parquet", row_group_size=300)
    return tmp_path / "in.parquet"


def options(model: Path, source: object, output: object, address: str) -> list[str]:
    given = ["--input", str(source), "--output", str(output), "--cluster", address, "--part-rows", str(PART_ROWS)]
    return ["ray", "embed", "--model", str(model), "--dtype", "float32", *given]


def parts(output: Path) -> dict[str, bytes]:
    return {name: content for name, content in snapshot(output).items() if name.endswith(".parquet")}


def wait_for(output: Path, count: int, job: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + WAIT
    while len([*output.glob("part-*.parquet")]) < count:
        assert job.poll() is None and time.monotonic() < end
        time.sleep(0.05)


def check(output: Path, model: Path) -> None:
    table = pq.read_table(output)
    assert table["id"].to_pylist() == [*range(ROWS)]
    failed = [number for number, error in enumerate(table["error"].to_pylist()) if error is not None]
    assert failed == [BAD] and "null" in table["error"][BAD].as_py()
    expected = mlxbert.embed(mlxbert.load(model, dtype="float32"), TEXTS)
    difference = np.abs(np.array(table["embedding"].to_pylist()) - expected)
    assert np.delete(difference, BAD, axis=0).max() <= 1e-5
    assert not [*output.glob("*.unfinished")]


def started(arguments: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "mlxbert", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def test_a_node_dies_and_each_row_is_there_once(tiny_folder: Path, source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with two_nodes(1) as nodes:  # with actors, one CPU per node would not be enough
        job = started(options(tiny_folder, source, output, nodes.address))
        wait_for(output, 2, job)
        nodes.kill()
        out, err = job.communicate(timeout=WAIT)
    assert job.returncode == 1, err  # because of the row without a text
    summary = json.loads(out)
    assert (summary["rows"], summary["failed"], summary["parts"]) == (ROWS, 1, ROWS // PART_ROWS)
    assert "raylet" not in out + err and "Traceback" not in err
    check(output, tiny_folder)


def test_a_job_ends_when_no_machine_large_enough_is_left(tiny_folder: Path, source: Path, tmp_path: Path) -> None:
    with two_nodes(1, of_worker=2) as nodes:
        job = started([*options(tiny_folder, source, tmp_path / "out", nodes.address), "--cpus", "2"])
        wait_for(tmp_path / "out", 2, job)
        nodes.kill()
        _, err = job.communicate(timeout=WAIT)
    assert job.returncode == 1 and "no machine with 2 CPUs" in err and "same command" in err
    assert 2 <= len(parts(tmp_path / "out")) < ROWS // PART_ROWS


def test_an_interrupted_job_resumes_and_computes_nothing_twice(tiny_folder: Path, source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = options(tiny_folder, source, output, "local")
    job = started(arguments)
    wait_for(output, 3, job)
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=WAIT)
    assert job.returncode == 130 and "Traceback" not in err and "same command" in err
    kept = parts(output)
    times = {name: (output / name).stat().st_mtime_ns for name in kept}
    assert 3 <= len(kept) < ROWS // PART_ROWS
    job = started(arguments)
    summary = json.loads(job.communicate(timeout=WAIT)[0])
    assert summary["computed"] == ROWS - PART_ROWS * len(kept) and summary["rows"] == ROWS
    assert {name: (output / name).stat().st_mtime_ns for name in kept} == times
    check(output, tiny_folder)
    again = process(*arguments)
    assert again.status == 2 and "complete" in again.err


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket on a server that speaks S3, in this process."""
    server = pytest.importorskip("moto.server", reason="an object store needs moto: pip install 'moto[server]'")
    boto3 = pytest.importorskip("boto3")
    running = server.ThreadedMotoServer(port=0)
    running.start()
    host, port = running.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {"AWS_ENDPOINT_URL": f"http://{host}:{port}", **keys}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="texts")
    yield client
    running.stop()


def test_input_and_output_in_an_object_store(tiny_folder: Path, source: Path, tmp_path: Path, bucket: Any) -> None:
    bucket.upload_file(str(source), "texts", "in/2024/a.parquet")
    arguments = options(tiny_folder, "s3://texts/in/*/*.parquet", "s3://texts/out/", "local")
    outcome = process(*arguments)
    assert outcome.status == 1 and json.loads(outcome.out)["failed"] == 1
    (tmp_path / "copy").mkdir()
    for entry in bucket.list_objects_v2(Bucket="texts", Prefix="out/")["Contents"]:
        bucket.download_file("texts", entry["Key"], str(tmp_path / "copy" / entry["Key"].rpartition("/")[2]))
    check(tmp_path / "copy", tiny_folder)
    assert process(*arguments).status == 2
    for sources, output in [
        ("s3://no-bucket/*.parquet", "s3://texts/other"),
        ("s3://texts/in/2024", "s3://no-bucket/x"),
    ]:
        process(*options(tiny_folder, sources, output, "local")).fails(1, "s3://no-bucket")


def test_a_full_disk_ends_the_job_and_leaves_no_half_of_a_part(tiny_folder: Path, source: Path, tmp_path: Path) -> None:
    output = tmp_path / "small"
    output.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(output)], check=False)
    if mounted.returncode:
        pytest.skip("only root mounts a small disk")
    try:
        job = started(options(tiny_folder, source, output, "local"))
        _, err = job.communicate(timeout=WAIT)
        assert job.returncode == 1 and "No space left" in err and "Traceback" not in err
        assert all(pq.read_metadata(output / name).num_rows == PART_ROWS for name in parts(output))
    finally:
        subprocess.run(["umount", str(output)], check=True)


def test_too_many_cpus_and_an_address_where_nothing_listens(tiny_folder: Path, source: Path, tmp_path: Path) -> None:
    cpus = str((os.cpu_count() or 1) + 1)
    outcome = process(*options(tiny_folder, source, tmp_path / "out", "local"), "--cpus", cpus)
    outcome.fails(2, "--cpus")
    call(*options(tiny_folder, source, tmp_path / "out", "127.0.0.1:9")).fails(1, "127.0.0.1:9")


def test_actors_of_ray_data(tiny_folder: Path, source: Path) -> None:
    code = f"""
import ray, mlxbert.scale
from mlxbert.cpu.cores import cores_at_hand

class Counting(mlxbert.scale.Embedder):
    def __call__(self, batch):
        cores = cores_at_hand()
        return super().__call__(batch).append_column("cores", [[cores] * len(batch)])

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
actors = ray.data.ActorPoolStrategy(size=1)
model = {{"model": {str(tiny_folder)!r}}}
rows = ray.data.read_parquet({str(source)!r}).map_batches(
    Counting, fn_constructor_kwargs=model, batch_format="pyarrow", compute=actors, num_cpus=1
)
rows = [(row["error"], row["cores"]) for row in rows.iter_rows()]
print(len(rows), sum(error is not None for error, _ in rows), *{{cores for _, cores in rows}})
ray.shutdown()
"""
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT, env=environment, check=True
    )
    assert printed.stdout.split()[-3:] == [str(ROWS), "1", "1"]  # rows, failed rows, cores of an actor with one CPU
