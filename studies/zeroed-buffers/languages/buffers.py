"""Takes COUNT buffers of 1 MiB: buffers.py IDIOM COUNT (with probes/python on PYTHONPATH). The idioms are below; those
that begin with `np.` want numpy. Marks `before` and `taken`; prints one line of JSON: wanted_bytes, and the sum of one
byte of each buffer (which keeps them in use until then)."""

import json
import sys

import strandline

BUFFER_BYTES = 1 << 20

idiom, count = sys.argv[1], int(sys.argv[2])
if idiom.startswith("np."):
    import numpy as np
else:
    import array
idioms = {
    "bytearray": lambda: bytearray(BUFFER_BYTES),
    "bytes": lambda: bytes(BUFFER_BYTES),
    "repeat": lambda: b"\0" * BUFFER_BYTES,
    "array": lambda: array.array("B", [0]) * BUFFER_BYTES,
    "np.zeros": lambda: np.zeros(BUFFER_BYTES, np.uint8),
    "np.empty": lambda: np.empty(BUFFER_BYTES, np.uint8),
    "np.full": lambda: np.full(BUFFER_BYTES, 0, np.uint8),
    "np.ones": lambda: np.ones(BUFFER_BYTES, np.uint8),
    "np.zeros_like": lambda: np.zeros_like(model),
}
take = idioms[idiom]
model = np.zeros(BUFFER_BYTES, np.uint8) if idiom == "np.zeros_like" else None

buffers = []
strandline.mark("before")
for _ in range(count):
    buffers.append(take())
strandline.mark("taken")
print(json.dumps({"wanted_bytes": count * BUFFER_BYTES, "sum": sum(int(buffer[5000]) for buffer in buffers)}))
