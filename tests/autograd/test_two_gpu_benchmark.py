"""``tests/benchmarks/two_gpu_autograd.py``, run as its users run it, small and on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "blocks": 2, "layers": 2, "width": 8, "tokens": 4, "nodes": 5, "native-width": 4,
    "rounds": 2, "warm": 1, "passes": 1, "dtype": "float32",
}  # fmt: skip


def test_on_the_cpu(tmp_path):
    """Recomputes find their mesh with ctxcarry only, each way is timed, and no goal is judged."""
    path = tmp_path / "out.json"
    ended = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tests" / "benchmarks" / "two_gpu_autograd.py"),
            *(word for name, value in TINY.items() for word in (f"--{name}", str(value))),
            *("--device", "cpu", "--markdown", "--json", str(path)),
        ],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env=os.environ
        | {
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]),
            ),
        },
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert "nothing runs on autograd's device threads" in ended.stdout
    data = json.loads(path.read_text("utf-8"))
    plain, carried = data["recompute"][:2], data["recompute"][2:]
    assert [("None", "the caller's")] * 2 == [(each["saw"], each["thread"]) for each in plain]
    assert [True, True] == [each["saw"] == each["had"] != "None" for each in carried]
    assert {"contextvars", "torch.function_modes", "process_groups"} <= set(data["carried"])
    assert [TINY["rounds"]] * 8 == [len(row["rounds"]) for row in data["results"]]
    assert {None} == {goal["reached"] for goal in data["goals"]}
