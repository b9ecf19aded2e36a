"""How much memory there is: the least of what the machine, its control groups, its job and the process allow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asymptotix.numerics import memory

SOURCE = Path(__file__).parents[2] / "src"
GIB = 2**30
MACHINE = 64 * GIB


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A machine of 64 GiB without any limit, and a function that writes the files of its kernel."""
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": MACHINE // 4096}.__getitem__)
    for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    groups = {
        controller: (str(tmp_path / root.lstrip("/")), file) for controller, (root, file) in memory.CGROUPS.items()
    }
    monkeypatch.setattr(memory, "CGROUPS", groups)
    monkeypatch.setattr(memory, "OWN_CGROUPS", str(tmp_path / "proc/self/cgroup"))
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def write(path: str, text: str) -> None:
        file = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


def test_without_limits_it_is_the_memory_of_the_machine(system):
    assert memory.physical_memory() == MACHINE


def test_a_container_sees_its_limit_at_the_root(system):
    system("/proc/self/cgroup", "0::/\n")
    system("/sys/fs/cgroup/memory.max", f"{2 * GIB}\n")
    assert memory.physical_memory() == 2 * GIB


def test_a_container_may_be_told_a_path_that_it_does_not_see(system):
    system("/proc/self/cgroup", "0::/docker/0123abcd\n")
    system("/sys/fs/cgroup/memory.max", f"{2 * GIB}\n")
    assert memory.physical_memory() == 2 * GIB


@pytest.mark.parametrize(
    ("own", "above", "expected"), [("max", 4 * GIB, 4 * GIB), (3 * GIB, 4 * GIB, 3 * GIB), (3 * GIB, "max", 3 * GIB)]
)
def test_own_group_and_those_above_count_in_version_2(system, own, above, expected):
    system("/proc/self/cgroup", "0::/user.slice/job:1.scope\n")  # a path may hold a colon
    system("/sys/fs/cgroup/user.slice/job:1.scope/memory.max", f"{own}\n")
    system("/sys/fs/cgroup/user.slice/memory.max", f"{above}\n")
    system("/sys/fs/cgroup/other.slice/memory.max", "1\n")  # of which this process is not
    assert memory.physical_memory() == expected


def test_own_group_of_the_memory_controller_counts_in_version_1(system):
    system("/proc/self/cgroup", "9:cpu,cpuacct:/of_another\n4:hugetlb,memory:/slurm/job_7\n0::/\n")
    system("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")  # how version 1 says "none"
    system("/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", f"{5 * GIB}\n")
    system("/sys/fs/cgroup/memory/of_another/memory.limit_in_bytes", "1\n")
    assert memory.physical_memory() == 5 * GIB


def test_a_list_of_groups_that_cannot_be_read_leaves_the_root(system):
    system("/proc/self/cgroup", "no such form\n")
    system("/sys/fs/cgroup/memory.max", f"{2 * GIB}\n")
    assert memory.physical_memory() == 2 * GIB


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_MEM_PER_NODE": "2048"}, 2 * GIB),
        ({"SLURM_MEM_PER_CPU": "1024", "SLURM_CPUS_ON_NODE": "3"}, 3 * GIB),
        ({"SLURM_MEM_PER_CPU": "1024"}, GIB),
        ({"SLURM_MEM_PER_NODE": "0"}, MACHINE),
        ({"SLURM_MEM_PER_NODE": "unlimited"}, MACHINE),
        ({"SLURM_MEM_PER_CPU": "1024", "SLURM_CPUS_ON_NODE": "2(x2)"}, MACHINE),
    ],
)
def test_memory_of_a_slurm_job(system, monkeypatch, environment, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert memory.physical_memory() == expected


def test_limit_of_the_process_itself(system, monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_AS: (GIB, 2 * GIB)}.__getitem__)
    assert memory.physical_memory() == GIB


def test_more_than_seven_tenths_are_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(memory, "physical_memory", lambda: 10 * GIB)
    memory.refuse_beyond_memory(7 * GIB, "a table", "a smaller one")
    message = r"^a table takes 7\.5 GiB, and there are 10\.0 GiB for this process; try a smaller one$"
    with pytest.raises(MemoryError, match=message):
        memory.refuse_beyond_memory(15 * GIB // 2, "a table", "a smaller one")
    with pytest.raises(MemoryError, match="takes far more than any machine has"):
        memory.refuse_beyond_memory(10**400, "a table", "a smaller one")


def test_nothing_is_refused_where_the_memory_is_not_known(monkeypatch):
    monkeypatch.setattr(memory, "physical_memory", lambda: None)
    memory.refuse_beyond_memory(10**400, "a table", "a smaller one")


def test_of_what_every_machine_has_nothing_is_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(memory, "physical_memory", lambda: asked.append("how much?"))
    memory.refuse_beyond_memory(memory.ALWAYS_THERE, "a table", "a smaller one")
    assert asked == []
    memory.refuse_beyond_memory(memory.ALWAYS_THERE + 1, "a table", "a smaller one")
    assert asked == ["how much?"]


def test_small_models_are_made_without_jax():
    program = (
        "import sys\n"
        "from asymptotix.attention_index.model import AttentionIndex\n"
        "from asymptotix.attention_paths.network.path_network import AttentionPaths\n"
        "AttentionIndex(), AttentionPaths(layers=2, heads=3)\n"
        "sys.exit('jax was imported' if 'jax' in sys.modules else 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert finished.returncode == 0, finished.stderr
