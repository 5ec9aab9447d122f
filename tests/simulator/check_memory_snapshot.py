"""Reads a memory snapshot as PyTorch's own tools do and prints what it says, one "name value" a line.

    python check_memory_snapshot.py SNAPSHOT.pickle FOLDER_OF_THE_TORCH_PACKAGE

Uses torch/cuda/_memory_viz.py alone, without importing torch.
"""

import copy
import importlib.util
import pickle
import sys

snapshot_file, torch_folder = sys.argv[1:]
spec = importlib.util.spec_from_file_location("_memory_viz", torch_folder + "/cuda/_memory_viz.py")
viz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(viz)

with open(snapshot_file, "rb") as file:
    snapshot = pickle.load(file)

level = peak = reserved = reserved_peak = 0
at_peak = None
for event in snapshot["device_traces"][0]:
    if event["action"] == "alloc":
        level += event["size"]
    elif event["action"] == "free_completed":
        level -= event["size"]
    elif event["action"] in ("segment_alloc", "segment_map"):
        reserved += event["size"]
    elif event["action"] in ("segment_free", "segment_unmap"):
        reserved -= event["size"]
    if level > peak:
        peak, at_peak = level, event
    reserved_peak = max(reserved_peak, reserved)

print("peak_requested", peak)
print("peak_reserved", reserved_peak)
print("reserved_at_end", reserved)
print("segments_at_end", sum(segment["total_size"] for segment in snapshot["segments"]))
print("allocated_at_end", sum(segment["allocated_size"] for segment in snapshot["segments"]))
print("requested_at_end", sum(segment["requested_size"] for segment in snapshot["segments"]))
print("peak_frames", " | ".join("%s:%d:%s" % (f["filename"], f["line"], f["name"]) for f in at_peak["frames"]))
print("categories", ", ".join(sorted({event["category"] for event in snapshot["device_traces"][0]})))
print("times", ", ".join(str(t) for t in sorted({event["time_us"] for event in snapshot["device_traces"][0]})[:10]))
print("expandable_segments", snapshot["allocator_settings"]["expandable_segments"])

# The tools assert their own accounting; none may refuse the file.
summary = viz.segsum(snapshot)
print("summary", [line for line in summary.splitlines() if line.startswith("total_reserved")][0])
assert "TOTAL MEM" in viz.trace(snapshot)
lines = viz.memory(snapshot, format_flamegraph=lambda text: text).splitlines()
print("flame_bytes", sum(int(line.rsplit(" ", 1)[1]) for line in lines))
assert viz.segments(snapshot, format_flamegraph=lambda text: text)
assert "Allocator State History" in viz.segment_plot(snapshot)
for plot_segments in (False, True):
    assert "snapshot.pickle" in viz.trace_plot(snapshot, plot_segments=plot_segments)
assert "snapshot.pickle" in viz.trace_plot(copy.deepcopy(snapshot), filter_freed=True)
