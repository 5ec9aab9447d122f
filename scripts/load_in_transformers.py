#!/usr/bin/env python3
"""Loads a saved model folder in transformers: no key missing or unexpected, logits finite.   load_in_transformers.py FOLDER"""
import sys

import torch
from transformers import AutoModelForCausalLM

model, info = AutoModelForCausalLM.from_pretrained(sys.argv[1], output_loading_info=True)
problems = {k: v for k, v in info.items() if v and k in ("missing_keys", "unexpected_keys", "mismatched_keys")}
if problems:
    sys.exit(f"transformers reports {problems}")
ids = torch.arange(32)[None] % model.config.vocab_size
with torch.no_grad():
    logits = model(input_ids=ids).logits
assert torch.isfinite(logits).all()
print(f"transformers loads {sys.argv[1]}: {sum(p.numel() for p in model.parameters()):,} parameters, logits finite")
