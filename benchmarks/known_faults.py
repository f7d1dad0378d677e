"""Are nineteen faults of released schedulers found again by the search that `run` uses?

    python benchmarks/known_faults.py [--seeds 3] [FAULT...]

For each fault of ``known_faults.toml``: the search on the last release that shows it, with every
invariant on (or those of one family, where the table says so) and nothing said of the fault, until
a signature of it is found and shrunk; then the trace is replayed on the first later release without
it. A trace that still fails there shows another fault of the same signature: the search then goes
on with another seed, and its time is added. Seconds are CPU seconds of one core, import and engine
construction apart.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from schedcheck.cli.traces import replay_in
from schedcheck.engine.events import Replayed
from schedcheck.host.code import code_folder
from schedcheck.host.environments import cache_folder, environment_for
from schedcheck.host.releases import find_release
from schedcheck.host.supervisor import place_for
from schedcheck.tracefile import decode

SECONDS_MAX = 120.0
TRIES_MAX = 6
"""Searches with other seeds, when what was found is another fault."""
HERE = Path(__file__).parent


@frozen(kw_only=True)
class Row:
    """What one seed came to."""

    signature: str
    seconds: float
    actions: int
    outcome: str
    """On the first release without the fault."""
    others: int
    """Traces found on the way that another fault explains."""


def search(fault: Mapping[str, Any], seed: int, seconds: float) -> dict:
    """Run one search under the interpreter of the last release that shows a fault."""
    release, patterns = fault["last"], fault["signatures"]
    python = environment_for(find_release(f"vllm=={release}")).python
    command = [str(python), str(HERE / "search_until.py"), "vllm", str(seed), str(seconds)]
    command.append(fault.get("invariants", ""))
    env = {**os.environ, "PYTHONPATH": str(code_folder(cache_folder())), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [*command, *patterns], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"vllm=={release}, seed {seed}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def replay(trace: str, release: str) -> str:
    """Return the outcome of a trace on a release."""
    target, place = place_for(
        f"vllm=={release}", python=None, in_process=False, progress=lambda _: None
    )
    told = replay_in(decode(trace.encode(), name="found"), "found", target, place)
    return str(told.outcome) if isinstance(told, Replayed) else f"ERROR: {told.message}"


def find(fault: Mapping[str, Any], seed: int) -> Row:
    """Search until a trace is found that the first clean release does not show."""
    spent, signature, outcome = 0.0, "", "not found"
    for number in range(TRIES_MAX):
        found = search(fault, seed + 1000 * number, SECONDS_MAX - spent)
        spent += found.get("seconds", 0.0)
        if not found["found"]:
            break
        signature = found["found"]
        outcome = replay(found["trace"], str(fault["clean"])) if "clean" in fault else "-"
        if outcome in ("FIXED", "HOLDS", "-") or spent >= SECONDS_MAX:
            return Row(
                signature=signature,
                seconds=spent,
                actions=found["actions"],
                outcome=outcome,
                others=number,
            )
    return Row(signature=signature, seconds=spent, actions=0, outcome=outcome, others=number)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    faults = tomllib.loads((HERE / "known_faults.toml").read_text())
    print(f"{'fault':<22} {'on':<7} {'seconds (median)':>16}  each, with actions, and where clean")
    missing = 0
    for name, fault in faults.items():
        if asked.faults and name not in asked.faults:
            continue
        rows = [find(fault, seed) for seed in range(asked.seeds)]
        median = statistics.median(row.seconds for row in rows)
        good = [row for row in rows if row.outcome in ("FIXED", "HOLDS", "-")]
        missing += 2 * len(good) <= len(rows) or median > SECONDS_MAX
        each = "; ".join(
            f"{row.seconds:.1f} s {row.actions} {row.signature} {row.outcome}"
            + (f" after {row.others} other(s)" if row.others else "")
            for row in rows
        )
        print(f"{name:<22} {fault['last']:<7} {median:>16.1f}  {each}", flush=True)
    sys.exit(missing > 0)


if __name__ == "__main__":
    main()
