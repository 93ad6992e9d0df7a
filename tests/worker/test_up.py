import io
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tests.fixtures.deployment import eventually
from worker.preflight import ConfigurationError
from worker.settings import EXIT_CONFIGURATION, Settings, settings
from worker.up import advise, gpu_cpus, read_procfile, up


def test_the_procfile_format(tmp_path: Path) -> None:
    procfile = tmp_path / "Procfile"
    procfile.write_text("# a comment\nweb: python -m api\n\ngpu:  celery -A x worker -Q gpu\n")
    assert read_procfile(procfile) == {"web": "python -m api", "gpu": "celery -A x worker -Q gpu"}


def test_a_process_that_dies_comes_back_and_all_stop_together() -> None:
    output, stopping = io.StringIO(), threading.Event()
    commands = {"short": "sh -c 'echo pid $$; exec sleep 60'", "other": "sleep 60"}
    thread = threading.Thread(target=up, args=(commands, stopping, output))
    thread.start()

    def pids() -> list[int]:
        return [int(line.split()[-1]) for line in output.getvalue().splitlines() if "pid" in line]

    eventually(lambda: len(pids()) == 1)
    os.kill(pids()[0], signal.SIGKILL)
    eventually(lambda: len(pids()) == 2)
    stopping.set()
    thread.join(60)
    assert not thread.is_alive()
    assert "short      | ended with status -9; starting it again in" in output.getvalue()
    with pytest.raises(ProcessLookupError):
        os.kill(pids()[1], 0)


def test_what_no_result_waits_for_starts_after_the_gpu_worker(tmp_path: Path) -> None:
    output, stopping = io.StringIO(), threading.Event()
    loaded = tmp_path / "loaded"
    gpu = f"sh -c 'until [ -e {loaded} ]; do sleep 0.1; done; echo gpu@host ready.; exec sleep 60'"
    commands = {
        "gpu": gpu,
        "files": "sh -c 'echo up; exec sleep 60'",
        "web": "sh -c 'echo up; exec sleep 60'",
    }
    thread = threading.Thread(target=up, args=(commands, stopping, output))
    thread.start()
    eventually(lambda: "web        | up" in output.getvalue())
    assert "files" not in output.getvalue()
    loaded.touch()
    eventually(lambda: "files      | up" in output.getvalue())
    stopping.set()
    thread.join(60)
    text = output.getvalue()
    assert text.index("gpu        | gpu@host ready.") < text.index("files      | up")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_each_gpu_worker_has_cpus_of_its_own() -> None:
    output, stopping = io.StringIO(), threading.Event()
    first, second, *_ = sorted(os.sched_getaffinity(0))
    shows = "grep Cpus_allowed_list /proc/self/status"
    commands = {
        "gpu": f"sh -c '{shows}; echo gpu@host ready.; exec sleep 60'",
        "flower": f"sh -c '{shows}; exec sleep 60'",
    }
    given = {"cpus": [{first}, {second}]}
    thread = threading.Thread(target=up, args=(commands, stopping, output), kwargs=given)
    thread.start()
    eventually(lambda: output.getvalue().count("list:") == 3 and output.getvalue().count("ready.") == 2)
    stopping.set()
    thread.join(60)
    ours = next(line for line in Path("/proc/self/status").read_text().splitlines() if "allowed_list" in line)
    lines = [line.partition(" ")[2] for line in output.getvalue().splitlines()]  # without the time
    assert f"gpu-1      | Cpus_allowed_list:\t{first}" in lines
    assert f"gpu-2      | Cpus_allowed_list:\t{second}" in lines
    assert f"flower     | {ours}" in lines
    assert {"gpu-1      | gpu-1@host ready.", "gpu-2      | gpu-2@host ready."} <= set(lines)


def test_the_cpus_of_gpu_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5})
    assert gpu_cpus(Settings(), ["web", "gpu"]) == [set()]
    assert gpu_cpus(Settings(cpu_workers=2), ["web", "gpu"]) == [{4}, {5}]
    assert gpu_cpus(Settings(cpu_workers=3), ["web"]) == [set()]  # it starts no worker
    for given, starter, problem in (
        ({"cpu_workers": 3}, "gpu", "cannot start 3 workers: this process may use 2 cores"),
        ({"cpu_workers": 2, "device": "cuda"}, "gpu", "for HEADRACE_DEVICE=cpu only"),
        ({"cpu_workers": 2, "max_workers": 2}, "autoscale", "does not go with"),
        ({"cpu_workers": 2, "models": "models/demo"}, "switching", "does not go with"),
    ):
        with pytest.raises(ConfigurationError, match=f"^HEADRACE_CPU_WORKERS: {problem}"):
            gpu_cpus(Settings(**given), ["web", starter])


def test_several_nodes_are_worth_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = ["web", "gpu"]
    monkeypatch.setattr("worker.up.numa_nodes", lambda: [{0}])
    assert advise(Settings(), processes) is None
    monkeypatch.setattr("worker.up.numa_nodes", lambda: [{0}, {1}])
    assert "HEADRACE_CPU_WORKERS=2 starts" in (advise(Settings(), processes) or "")
    assert advise(Settings(cpu_workers=2), processes) is None
    assert advise(Settings(device="cuda"), processes) is None
    assert advise(Settings(), ["web"]) is None


def test_processes_die_with_the_one_that_keeps_them_running() -> None:
    code = """
import threading
from worker.up import up
up({"one": "sh -c 'echo pid $$; exec sleep 600'", "two": "sh -c 'echo pid $$; sleep 600'"}, threading.Event())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = [psutil.Process(int(process.stdout.readline().split()[-1])) for _ in range(2)]
        process.kill()
        assert eventually(lambda: not any(one.is_running() for one in started), what="their end")


def test_a_process_has_the_time_of_a_drain_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is killed before HEADRACE_DRAIN_SECONDS are over hands nothing back."""
    monkeypatch.setattr("worker.up.HAND_BACK_SECONDS", 0.0)
    output, stopping = io.StringIO(), threading.Event()
    command = "sh -c 'trap \"echo drained; exit\" TERM; echo up; while :; do sleep 0.1; done'"
    thread = threading.Thread(target=up, args=({"gpu": command}, stopping, output))
    thread.start()
    eventually(lambda: "up" in output.getvalue())
    stopping.set()
    thread.join(60)
    assert "drained" in output.getvalue()


def test_a_process_whose_configuration_is_wrong_ends_them_all() -> None:
    output, stopping = io.StringIO(), threading.Event()
    commands = {"wrong": f"sh -c 'echo PORT: say why; exit {EXIT_CONFIGURATION}'", "other": "sleep 600"}
    assert up(commands, stopping, output) == "PORT: say why"
    assert "starting it again" not in output.getvalue()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DATABASE_URL", "mysql://a"),
        ("DATABASE_URL", "nonsense"),
        ("REDIS_URL", "http://a"),
        ("PORT", "0"),
        ("PORT", "http"),
        ("HEADRACE_DEVICE", "tpu"),
        ("HEADRACE_SHARD_SIZE", "0"),
        ("HEADRACE_WEBHOOK_SECRET", "plain"),
        ("HEADRACE_WEBHOOK_SECRET", "whsec_"),
        ("HEADRACE_WEBHOOK_ALLOWED_NETWORKS", "10.0.0.0/99"),
    ],
)
def test_a_bad_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    settings.cache_clear()
    with pytest.raises(SystemExit, match=str(EXIT_CONFIGURATION)):
        settings()
    assert capsys.readouterr().err.startswith(f"{variable}: ")
    monkeypatch.undo()
    settings()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "headrace.example"])
def test_keys_are_off_on_loopback_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    monkeypatch.setenv("HEADRACE_AUTH", "off")
    for local in ("127.0.0.1", "::1", "localhost"):
        monkeypatch.setenv("HEADRACE_HOST", local)
        assert Settings().auth == "off"
    monkeypatch.setenv("HEADRACE_HOST", host)
    settings.cache_clear()
    with pytest.raises(SystemExit, match=str(EXIT_CONFIGURATION)):
        settings()
    assert re.match(r"HEADRACE_AUTH: .*loopback only", capsys.readouterr().err)
    monkeypatch.undo()
    settings()


def test_loopback_callbacks_follow_the_listening_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().allowed_networks
    monkeypatch.setenv("HEADRACE_HOST", "0.0.0.0")
    monkeypatch.setenv("HEADRACE_AUTH", "keys")
    assert Settings().allowed_networks == ()
    monkeypatch.setenv("HEADRACE_WEBHOOK_ALLOWED_NETWORKS", "10.0.0.0/8, fd00::/8")
    assert [str(network) for network in Settings().allowed_networks] == ["10.0.0.0/8", "fd00::/8"]
