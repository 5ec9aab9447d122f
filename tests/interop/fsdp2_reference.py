#!/usr/bin/env python3
"""Fine-tunes a Hugging Face causal language model with stock PyTorch FSDP2 on CPU (Gloo): what the project's own runs are compared with.

    python fsdp2_reference.py --model DIR --tokens tokens.bin --out DIR --ranks 2 --steps 10 --seq-len 32 --micro-batch 2

One unit a decoder layer, the rest in the root; gradients are summed over ranks, the loss is the sum of cross entropies divided by the targets of the
step; fused AdamW; fp32 unless --compute bf16. Sequence number (t*ranks + rank)*micro_batch + b of step t is block number modulo the blocks of the file:
uint16 tokens, x = block, y = the same one further. Every rank is one process of --threads threads.

Writes final.safetensors (full parameters, fp32) and metrics.jsonl: a line a step with loss and the CPU seconds of all ranks.
"""
import argparse
import json
import os
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--tokens", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--seq-len", type=int, default=32)
    p.add_argument("--micro-batch", type=int, default=2)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--weight-decay", type=float, default=0.0)
    p.add_argument("--compute", choices=("fp32", "bf16"), default="fp32")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--no-save", action="store_true")
    return p.parse_args()


def sharded_model(a):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
    model.train()
    compute = torch.bfloat16 if a.compute == "bf16" else torch.float32
    options = {"mesh": init_device_mesh("cpu", (a.ranks,)),
               "mp_policy": MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)}
    units = [*model.model.layers, model]
    for unit in units:
        fully_shard(unit, **options)
    for unit in units:
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
    return model


def batch(a, blocks, step, rank):
    first = (step * a.ranks + rank) * a.micro_batch
    rows = [(first + b) % len(blocks) for b in range(a.micro_batch)]
    chosen = torch.from_numpy(blocks[rows].astype(np.int64))
    return chosen[:, :-1].contiguous(), chosen[:, 1:].contiguous()


def sum_over_ranks(value):
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def train(rank, a, store):
    torch.set_num_threads(a.threads)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=a.ranks)
    tokens = np.fromfile(a.tokens, dtype="<u2")
    blocks = np.stack([tokens[k * a.seq_len : k * a.seq_len + a.seq_len + 1] for k in range((len(tokens) - 1) // a.seq_len)])
    model = sharded_model(a)
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=a.weight_decay, fused=True)
    targets = a.ranks * a.micro_batch * a.seq_len
    lines = []
    for step in range(a.steps):
        dist.barrier()
        cpu_before = time.process_time()
        x, y = batch(a, blocks, step, rank)
        logits = model(input_ids=x, use_cache=False).logits
        loss = F.cross_entropy(logits.float().view(-1, logits.size(-1)), y.view(-1), reduction="sum")
        del logits
        (loss / targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        cpu_seconds = time.process_time() - cpu_before
        lines.append({"step": step + 1, "loss": sum_over_ranks(loss.item()) / targets, "cpu_seconds": sum_over_ranks(cpu_seconds),
                      "tokens": targets})
    full = {} if a.no_save else {name: p.full_tensor().detach().clone() for name, p in model.named_parameters()}
    if rank == 0:
        os.makedirs(a.out, exist_ok=True)
        with open(f"{a.out}/metrics.jsonl", "w") as f:
            f.writelines(json.dumps(line) + "\n" for line in lines)
        if full:
            from safetensors.torch import save_file
            save_file(full, f"{a.out}/final.safetensors")
    dist.barrier()
    dist.destroy_process_group()


def main():
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    a = arguments()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(train, (a, f"{folder}/store"), nprocs=a.ranks, start_method="spawn")


if __name__ == "__main__":
    main()
