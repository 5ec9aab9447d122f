"""Loads a saved folder in transformers and prints the loss over rows of ids.   final_in_transformers.py FOLDER ROWS.jsonl SEQ_LEN

Exit code 77: transformers is not installed here.
"""
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    from transformers import AutoModelForCausalLM
except ImportError as missing:
    print(missing)
    sys.exit(77)

folder, rows, seq_len = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
model, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
problems = {k: sorted(v) for k, v in told.items() if v and k in ("missing_keys", "unexpected_keys", "mismatched_keys")}
loss = targets = 0
for line in open(rows):
    ids = torch.tensor(json.loads(line)["input_ids"][:seq_len])
    with torch.no_grad():
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].double()
    loss += torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum").item()
    targets += len(ids) - 1
print(json.dumps({"loss": loss / targets, "targets": targets, "problems": problems, "dtype": str(model.dtype)}))
