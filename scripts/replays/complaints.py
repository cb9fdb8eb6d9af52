"""The public complaints of the replay, each with the software that it is about."""

import json
import os
import sys
import time

from . import base
from .base import HERE, MIB, allocator, rows, runtime, size

ALL, replay = base.listing()

ISSUES = "https://github.com/"


@replay("memcached: 1 GiB stays after cache_memlimit", ISSUES + "memcached/memcached/issues/1088", ["memcached"])
def memcached(it):
    it.software = [base.debian_version("memcached")]
    server = it.start(base.tool("memcached"), "-u", "root", "-m", 1100, "-p", it.port, "-l", "127.0.0.1", "-U", 0)
    it.until("its port", lambda: "STAT pid" in it.ask("stats", b"\r\n", until="END"))
    value = "v" * 100_000
    for start in range(0, 10_000, 500):
        sets = "".join(f"set key{number} 0 0 100000 noreply\r\n{value}\r\n" for number in range(start, start + 500))
        it.ask(sets + "version", b"\r\n", until="VERSION")
    it.ask("cache_memlimit 64", b"\r\n", until="OK")
    stats = dict(line.split()[1:3] for line in it.ask("stats slabs", b"\r\n", until="END").splitlines() if "total_malloced" in line)
    slabs = it.truth("total_malloced (stats slabs)", int(stats["total_malloced"]))
    document = it.explain(server.pid)
    it.compare("glibc's blocks in use", allocator(document, "glibc")["live_bytes"], slabs)
    it.says("what releases slab pages (flush_all)", "flush_all" in json.dumps(document["remedies"]))
    # Debian's memcached is stripped: its variables are places in the program.
    it.holder(server.pid, ["primary_hashtable", "heads", "slabclass", "tails", "memcached+"], slabs * 0.9)
    it.remedy(server.pid, "malloc_trim")


POLARS = """
import gc, json, sys, polars
frame = polars.DataFrame({"a": range(3000000)})
frame = frame.with_columns([(polars.col("a") * i).cast(polars.Utf8).alias(f"c{i}") for i in range(1, 5)])
kept = frame.estimated_size() if len(sys.argv) > 1 else 0
if not kept:
    del frame
gc.collect()
print("ready", json.dumps({"kept": kept, "version": polars.__version__}), flush=True)
sys.stdin.readline()
frame = None
gc.collect()
print("dropped", json.dumps({"frame": None}), flush=True)
sys.stdin.read()
"""


@replay("polars keeps RAM after del", ISSUES + "pola-rs/polars/issues/23128")
def polars(it):
    process, _ = it.python("polars==1.29.0", POLARS)
    document = it.explain(process.pid)
    it.says("_RJEM_MALLOC_CONF, the setting of this build", "_RJEM_MALLOC_CONF" in json.dumps(document["remedies"]))
    it.remedy(process.pid, "jemalloc_purge")


@replay("polars keeps RAM after del, a later version", ISSUES + "pola-rs/polars/issues/23128")
def polars_later(it):
    process, _ = it.python("polars==1.31.0", POLARS)
    it.explain(process.pid)
    it.remedy(process.pid, "jemalloc_purge")


@replay("polars holds a frame", ISSUES + "pola-rs/polars/issues/21732")
def polars_frame(it):
    process, figures = it.python("polars==1.29.0", POLARS, "held")
    # What its vectors hold, without what they have room for.
    size_held = it.truth("estimated_size()", figures["kept"])
    it.holder(process.pid, ["__main__.frame"], size_held)
    live = rows(it.explain(process.pid), "jemalloc.live")
    # Without free memory in jemalloc, before and after.
    it.strandline("reclaim", process.pid, "--remedy", "jemalloc_purge")
    before = it.anonymous_bytes(process.pid)
    process.stdin.write(b"drop\n")
    process.stdin.flush()
    it.figures("dropped")
    it.strandline("reclaim", process.pid, "--remedy", "jemalloc_purge")
    dropped = it.truth("anonymous memory that goes with the frame", before - it.anonymous_bytes(process.pid))
    live -= rows(it.strandline("explain", process.pid), "jemalloc.live")
    it.compare("what jemalloc.live loses then", live, dropped)


PHP = """<?php
$all = [];
for ($i = 0; $i < 150; $i++) $all[] = str_repeat(chr(65 + $i % 26), 1000000);
$keep = json_decode(json_encode(range(1, 100000)));
unset($all);
echo "ready ", json_encode(["real" => memory_get_usage(true), "used" => memory_get_usage(), "version" => PHP_VERSION]), "\\n";
fgets(STDIN);
"""


@replay("PHP keeps chunks after large strings", ISSUES + "php/php-src/issues/13599", ["php-cli"], blind=True)
def php(it):
    process = it.start(base.tool("php"), it.write("chunks.php", PHP))
    figures = it.figures()
    it.software = [f"PHP {figures['version']}"]
    real = it.truth("memory_get_usage(true)", figures["real"])
    document = it.explain(process.pid)
    it.compare("php's memory", rows(document, r"php\..*") or None, real)
    it.says("that php manages its own memory, which it cannot look into", "php" in document["verdict"]["headline"])
    it.remedy(process.pid, "malloc_trim")


SHARP = """
const sharp = require("sharp");
(async () => {
  const raw = Buffer.alloc(4000 * 3000 * 3, 120);
  for (let round = 0; round < 6; round++)
    await Promise.all([...Array(6)].map(() => sharp(raw, { raw: { width: 4000, height: 3000, channels: 3 } })
      .rotate(7).resize(2000).jpeg().toBuffer()));
  console.log("ready", JSON.stringify({ version: require("sharp/package.json").version }));
  setInterval(() => {}, 1 << 30);
})();
"""


@replay("sharp: RSS never goes down", ISSUES + "lovell/sharp/issues/3834")
def sharp(it):
    folder = base.node_with("sharp@0.33.5")
    process = it.start(base.tool("node"), it.write("resize.js", SHARP), NODE_PATH=os.path.join(folder, "node_modules"))
    it.software = [f"sharp {it.figures()['version']}", "node " + it.shell("node", "--version").strip()]
    document = it.explain(process.pid)
    it.says("the trim threshold as a setting", "trim_threshold" in json.dumps(document["remedies"]))
    it.remedy(process.pid, "malloc_trim")


def fragment(it, name, command, **environment):
    process = it.start(*command, 8, 40, 16, **environment)
    live = it.truth("blocks that the program keeps", it.figures()["live"])
    document = it.explain(process.pid)
    it.compare(f"{name}'s blocks in use", allocator(document, name)["live_bytes"], live)
    headline = document["verdict"]["headline"]
    it.says("that the rest is free", "free" in headline or "pinned" in headline)
    return process


def fragmenter(it, compiler):
    program = os.path.join(it.folder, "fragment")
    it.shell(base.tool(compiler), "-O1", "-pthread", "-o", program, os.path.join(HERE, "fragment.c"))
    return program


FREENET = ISSUES + "freenet/freenet-core/issues/4565"


@replay("80 MB live, 1.2 GB RSS: glibc", FREENET)
def fragmented_glibc(it):
    process = fragment(it, "glibc", [fragmenter(it, "gcc")])
    it.software = ["glibc " + os.confstr("CS_GNU_LIBC_VERSION").split()[-1]]
    it.remedy(process.pid, "malloc_trim")


@replay("80 MB live, 1.2 GB RSS: musl", FREENET, ["musl-tools"])
def fragmented_musl(it):
    process = fragment(it, "musl", [fragmenter(it, "musl-gcc")])
    it.software = [base.debian_version("musl")]
    document = it.strandline("reclaim", process.pid, fine=(0, 3))
    it.says("that musl has no call that releases memory", "musl has no call that releases memory" in (document["reason"] or ""))


@replay("nothing comes back unless PURGE_DELAY=0: mimalloc", ISSUES + "purpleprotocol/mimalloc_rust/issues/141", ["libmimalloc2.0"])
def fragmented_mimalloc(it):
    library = "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2"
    process = fragment(it, "mimalloc", [fragmenter(it, "gcc")], LD_PRELOAD=library)
    it.software = [base.debian_version("libmimalloc2.0")]
    it.remedy(process.pid, "mimalloc_collect")


@replay("JVM: heap flat, RSS +160 MB", ISSUES + "Krillsson/monitee-agent/issues/272")
def jvm(it):
    classes = os.path.join(it.folder, "classes")
    it.shell(base.tool("javac"), "-d", classes, os.path.join(HERE, "Garbage.java"))
    process = it.start(base.tool("java"), "-XX:+UseG1GC", "-Xmx512m", "-cp", classes, "Garbage")
    figures = it.figures()
    it.software = ["JDK " + figures["version"]]
    used = it.truth("heap used (MemoryMXBean)", figures["used"])
    document = it.explain(process.pid)
    heap = runtime(document, "jvm")
    it.compare("used_bytes", heap["used_bytes"], used)
    it.says("that the arrays are dead", heap["jvm"]["live_bytes"] <= 8 * MIB)
    it.remedy(process.pid, "jvm_gc")


@replay("Go with cgo: stacks of C threads stay", ISSUES + "golang/go/issues/71150")
def go_cgo(it):
    it.shell("cp", os.path.join(HERE, "cgo.go"), it.folder)
    it.shell("go", "build", "-o", "cgo", "cgo.go", GO111MODULE="off", GOFLAGS="-mod=mod", HOME=it.folder)
    process = it.start(os.path.join(it.folder, "cgo"))
    figures = it.figures()
    it.software = [figures["version"]]
    stacks = it.truth("what its C threads wrote on their stacks", figures["stacks"])
    document = it.explain(process.pid)
    it.compare("threads' stacks", rows(document, r"kernel\.stack_below_sp", r"program\.stack"), stacks)
    it.says("stacks in the headline", "stack" in document["verdict"]["headline"])
    process.stdin.write(b"x")
    process.stdin.flush()
    after = it.figures("after")["HeapSys"]
    it.compare("Go's HeapSys", runtime(document, "go")["own"]["HeapSys"], it.truth("HeapSys right after", after))
    it.remedy(process.pid, "malloc_trim")


@replay("RabbitMQ: most is allocated_unused", ISSUES + "rabbitmq/rabbitmq-server/issues/1804", ["rabbitmq-server"], blind=True)
def rabbitmq(it):
    base.tool("erl")
    it.software = [base.debian_version("erlang-base")]
    script = ("L = [binary:copy(<<1:8>>, 100000) || _ <- lists:seq(1, 1500)], "
              "io:format(\"~p~n\", [length(L)]), garbage_collect(), "
              "A = erlang:memory(total), "
              "io:format(\"ready {\\\"total\\\": ~p}~n\", [A]), receive never -> ok end.")
    process = it.start(base.tool("erl"), "-noshell", "-eval", script)
    total = it.truth("erlang:memory(total)", it.figures()["total"])
    document = it.explain(process.pid)
    it.compare("erlang's memory", rows(document, r"erlang\..*") or None, total)
    it.says("that it does not read Erlang", "rlang" in json.dumps([document["caveats"], document["runtimes"]]))


ONNX = """
import json, sys, numpy, onnx, onnxruntime
from onnx import helper, TensorProto
node = helper.make_node("MatMul", ["x", "w"], ["y"])
graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 1024])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 1024])],
    [helper.make_tensor("w", TensorProto.FLOAT, [1024, 1024], numpy.ones(1 << 20, "float32").tobytes(), raw=True)])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
for count in (100, 1000, 8000):
    session.run(None, {"x": numpy.ones((count, 1024), "float32")})
print("ready", json.dumps({"version": onnxruntime.__version__}), flush=True)
sys.stdin.read()
"""


@replay("onnxruntime: the arena does not shrink", ISSUES + "microsoft/onnxruntime/issues/23339")
def onnxruntime(it):
    process, _ = it.python("onnxruntime==1.20.1 onnx==1.17.0 numpy==2.1.3", ONNX)
    it.explain(process.pid)
    # Tensors of 8000 by 1024 floats come from the arena: 31 MiB at the least.
    it.truth("the largest tensor", 8000 * 1024 * 4)
    it.holder(process.pid, ["__main__.session", "BFCArena"], 31 * MIB)
    it.remedy(process.pid, "malloc_trim")


GUNICORN = """
import json
zeros = bytearray(64 << 20)
for at in range(0, len(zeros), 4096):
    zeros[at] = 0
def application(environ, start):
    start("200 OK", [])
    return [b"ok"]
"""


@replay("gunicorn: workers share what zero_pages promises")
def gunicorn(it):
    python = base.python_with("gunicorn==23.0.0")
    it.write("app.py", GUNICORN)
    master = it.start(python, "-m", "gunicorn", "-w", 4, "--preload", "-b", f"127.0.0.1:{it.port}", "app:application")

    def workers():
        with open(f"/proc/{master.pid}/task/{master.pid}/children") as children:
            return children.read().split() if "Booting worker" in it.said() else []
    it.until("four workers", lambda: len(workers()) == 4)
    it.until("an answer", lambda: "ok" in it.ask("GET / HTTP/1.0\r\n", b"\r\n"))
    it.software = ["gunicorn 23.0.0", "Python " + sys.version.split()[0]]

    def pss():
        total = 0
        for pid in [str(master.pid), *workers()]:
            with open(f"/proc/{pid}/smaps_rollup") as sums:
                total += next(int(line.split()[1]) << 10 for line in sums if line.startswith("Pss:"))
        return total
    worker = workers()[0]
    document = it.explain(worker)
    zeros = next((one for one in document["remedies"] if one["id"] == "zero_pages"), {})
    before = pss()
    done = it.strandline("reclaim", worker, "--remedy", "zero_pages", "--allow-lost-write-risk", fine=(0, 3))
    time.sleep(0.2)
    machine = before - pss()
    it.truth("the sum of PSS fell by", machine)
    it.says("with how many processes the pages are shared", "share" in json.dumps([zeros, done]))
    predicted = done.get("predicted_pss_bytes")
    holds = predicted is not None and abs(predicted - machine) <= max(0.02 * (done["actual_bytes"] or 0), MIB)
    it.checks.append(base.Check("remedy", f"zero_pages on PSS: {size(predicted)}, {size(machine)}", holds))
