#!/usr/bin/env python3
"""Reads a run folder and says whether the main job held: the loss fell, and measured memory equals the prediction.

    demo_verdict.py RUN_FOLDER        exit 0 if it held
"""
import json
import pathlib
import sys

run = pathlib.Path(sys.argv[1])
steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
losses = [s["loss"] for s in steps if "loss" in s]
report = json.loads((run / "report.json").read_text())

fell = len(losses) >= 10 and sum(losses[-3:]) / 3 < 0.8 * losses[0]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps: {'falls' if fell else 'DOES NOT FALL'}")
print(f"memory on {report['ranks']} ranks ({report['device']}): predicted and measured {'equal' if report['equal'] else 'DIFFER'}")
for phase in report["phases"]:
    predicted = phase["predicted"]["peak_requested_bytes"]
    measured = phase["measured"]["peak_requested_bytes"]
    print(f"  {phase['phase']:<6} rank {phase['rank']}   predicted {predicted:>13,} B   measured {measured:>13,} B   difference {measured - predicted:+,} B")
sys.exit(0 if fell and report["equal"] else 1)
