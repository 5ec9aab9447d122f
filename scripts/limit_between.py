#!/usr/bin/env python3
"""Prints a memory limit in bytes half-way between the least that any plan of a job needs and what its fastest plan takes.

    limit_between.py PLAN_COMMAND JOB_FLAGS...
"""
import json
import subprocess
import sys


def peak_bytes(objective):
    command = [*sys.argv[1:], "--objective", objective, "--json"]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return answer["forecast"]["peak_requested_bytes"]


print((peak_bytes("memory") + peak_bytes("throughput")) // 2)
