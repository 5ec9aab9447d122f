#!/usr/bin/env python3
"""Turns text into the token ids that `execute --data` reads.

    encode_text.py --model DIR --out OUT FILE...     the tokenizer of a model directory (needs the Python package tokenizers)
    encode_text.py --byte-level --out OUT FILE...    ids are bytes, <pad> = 256, <bos> = 257, <eos> = 258; needs nothing

A file that ends in .jsonl holds one object a line:
    {"text": ...}                    a document
    {"prompt": ..., "completion": ...}   a row whose prompt is not learned; ends with the end-of-sequence token
    {"messages": [{"role", "content"}, ...]}   a chat, in the model's own template (needs transformers); only what the assistant says is learned
Any other file is one document of plain text.

What is written under OUT:
    tokens.bin, tokens.json   documents end to end, each followed by the end-of-sequence token; uint16, or uint32 for large vocabularies
    rows.jsonl                rows and chats: {"input_ids": [...], "labels": [...]}, labels not shifted, -100 where nothing is learned
    manifest.json             hash of the tokenizer, counts
"""
import argparse
import array
import hashlib
import json
import os
import sys

NO_TARGET = -100


class ByteLevel:
    """Ids are bytes; three special tokens follow."""

    vocab_size, eos, digest = 259, 258, "byte-level"

    def ids(self, text):
        return list(text.encode())

    def chat(self, messages):
        raise SystemExit("error: --byte-level has no chat template\n  try: --model DIR, the directory of a chat model")


class ModelTokenizer:
    """tokenizer.json of a model directory."""

    def __init__(self, directory):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise SystemExit("error: the Python package tokenizers is missing\n  try: scripts/install --tests, or pip install tokenizers")
        path = os.path.join(directory, "tokenizer.json")
        if not os.path.exists(path):
            raise SystemExit(f"error: no tokenizer.json\n  at: {directory}\n  try: name the model's directory")
        self.directory = directory
        self.tokenizer = Tokenizer.from_file(path)
        self.vocab_size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        self.digest = hashlib.sha256(open(path, "rb").read()).hexdigest()
        config = json.load(open(os.path.join(directory, "config.json")))
        eos = config.get("eos_token_id")
        self.eos = eos[0] if isinstance(eos, list) else eos
        if self.eos is None:
            raise SystemExit(f"error: eos_token_id is missing\n  at: {directory}/config.json\n  try: name it there")

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def chat(self, messages):
        """Ids of the whole chat, and which of them the assistant says: what each further message adds to the template's text."""
        from transformers import AutoTokenizer
        if not hasattr(self, "template"):
            self.template = AutoTokenizer.from_pretrained(self.directory, local_files_only=True)
        ids, labels = [], []
        for n, message in enumerate(messages, 1):
            so_far = list(self.template.apply_chat_template(messages[:n], tokenize=True, return_dict=False))
            if so_far[: len(ids)] != ids:
                raise SystemExit("error: the chat template rewrites earlier messages; its rows cannot be masked message by message")
            new = so_far[len(ids):]
            labels += new if message["role"] == "assistant" else [NO_TARGET] * len(new)
            ids = so_far
        return ids, labels


def encode(tokenizer, files):
    """-> ids of all documents, rows of (ids, labels)"""
    documents, rows = [], []
    for file in files:
        if not file.endswith(".jsonl"):
            documents += tokenizer.ids(open(file, encoding="utf-8", errors="replace").read()) + [tokenizer.eos]
            continue
        for number, line in enumerate(open(file, encoding="utf-8"), 1):
            if not line.strip():
                continue
            row = json.loads(line)
            if "text" in row:
                documents += tokenizer.ids(row["text"]) + [tokenizer.eos]
            elif "prompt" in row and "completion" in row:
                prompt = tokenizer.ids(row["prompt"])
                completion = tokenizer.ids(row["completion"]) + [tokenizer.eos]
                rows.append((prompt + completion, [NO_TARGET] * len(prompt) + completion))
            elif "messages" in row:
                rows.append(tokenizer.chat(row["messages"]))
            else:
                raise SystemExit(f"error: row has none of 'text', 'prompt' with 'completion', 'messages'\n  at: {file}:{number}")
    return documents, rows


def write_whole(path, data):
    with open(path + ".tmp", "wb") as f:
        f.write(data)
    os.replace(path + ".tmp", path)


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    which = p.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", help="model directory with tokenizer.json and config.json")
    which.add_argument("--byte-level", action="store_true")
    p.add_argument("--out", required=True)
    p.add_argument("files", nargs="+")
    a = p.parse_args(argv)
    tokenizer = ByteLevel() if a.byte_level else ModelTokenizer(a.model)
    documents, rows = encode(tokenizer, a.files)
    os.makedirs(a.out, exist_ok=True)
    manifest = {"tokenizer": tokenizer.digest, "vocab_size": tokenizer.vocab_size, "tokens": len(documents), "rows": len(rows)}
    if documents:
        kind, code = ("uint16", "H") if tokenizer.vocab_size <= 1 << 16 else ("uint32", "I")
        tokens = array.array(code, documents)
        if sys.byteorder == "big":
            tokens.byteswap()
        write_whole(f"{a.out}/tokens.bin", tokens.tobytes())
        side = {"dtype": kind, "count": len(documents), "vocab_size": tokenizer.vocab_size}
        write_whole(f"{a.out}/tokens.json", (json.dumps(side) + "\n").encode())
    if rows:
        lines = "".join(json.dumps({"input_ids": ids, "labels": labels}) + "\n" for ids, labels in rows)
        write_whole(f"{a.out}/rows.jsonl", lines.encode())
    write_whole(f"{a.out}/manifest.json", (json.dumps(manifest) + "\n").encode())
    print(f"{a.out}: {len(documents):,} tokens of documents, {len(rows):,} rows")


if __name__ == "__main__":
    main()
