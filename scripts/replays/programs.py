"""Programs without a complaint: strandline's answers against their own statistics."""

import glob
import json
import os
import re
import socket
import sys
import urllib.request

from . import base
from .base import allocator, rows, runtime

ALL, replay = base.listing()


def metric(text, name):
    return int(float(re.search(rf"^{name} (\S+)$", text, re.M).group(1)))


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode(errors="replace")


@replay("redis after a flush", packages=["redis-server"])
def redis(it):
    server = it.start(base.tool("redis-server"), "--port", it.port, "--save", "", "--enable-debug-command", "yes")
    client = [base.tool("redis-cli"), "-p", it.port]
    it.until("an answer", lambda: "PONG" in it.shell(*client, "ping", check=False))
    it.software = [base.debian_version("redis-server")]
    it.shell(*client, "debug", "populate", 1_000_000, "key", 100)
    it.shell(*client, "--eval", it.write("half.lua", "for n = 0, 999999, 2 do redis.call('del', 'key:' .. n) end"))
    info = dict(line.split(":", 1) for line in it.shell(*client, "info", "memory").split() if ":" in line)
    document = it.explain(server.pid)
    own = allocator(document, "jemalloc")["own"]
    it.compare("stats.allocated", own["stats.allocated"], it.truth("allocator_allocated", int(info["allocator_allocated"])))
    it.compare("stats.active", own["stats.active"], it.truth("allocator_active", int(info["allocator_active"])))
    it.remedy(server.pid, "jemalloc_purge")


@replay("a backend of PostgreSQL", packages=["postgresql"])
def postgres(it):
    binaries = max(glob.glob("/usr/lib/postgresql/*/bin"))
    data = os.path.join(it.folder, "data")
    os.chmod(it.folder, 0o777)
    it.software = [base.debian_version("postgresql-15")]
    user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
    it.shell(*user, f"{binaries}/initdb", "-D", data, "-A", "trust")
    it.start(*user, f"{binaries}/postgres", "-D", data, "-p", it.port, "-k", it.folder, "-c", "shared_buffers=64MB")
    client = ["psql", "-h", it.folder, "-p", it.port, "-U", "postgres", "-At"]
    it.until("an answer", lambda: it.shell(*client, "-c", "select 1", check=False).strip() == "1")
    # One that stays: it builds a large value and says what it has.
    session = it.start(*client)
    text = (f"prepare kept as select '{'x' * 30_000_000}';\n"
            "select pg_backend_pid() || ' ' || sum(total_bytes) || ' ready' from pg_backend_memory_contexts;\n")
    session.stdin.write(text.encode())
    session.stdin.flush()
    pid, total = it.until("its figures", lambda: re.search(r"^(\d+) (\d+) ready$", it.said(), re.M)).groups()
    document = it.explain(pid)
    total = it.truth("pg_backend_memory_contexts", int(total))
    it.bounds("glibc's blocks in use", allocator(document, "glibc")["live_bytes"], total, total * 1.05,
              "not all of a backend's memory is in contexts")


CPYTHON = """
import json, sys
kept = [{str(number): [number, float(number)]} for number in range(200000)]
before = sys.getallocatedblocks()
sys._debugmallocstats()
print("ready", json.dumps({"blocks": before, "version": sys.version.split()[0]}), flush=True)
sys.stdin.read()
"""


@replay("CPython's own allocator")
def cpython(it):
    process = it.start(sys.executable, it.write("objects.py", CPYTHON))
    it.software = ["Python " + it.figures()["version"]]
    said = it.said()
    used = int(re.search(r"# bytes in allocated blocks\s+=\s+([\d,]+)", said).group(1).replace(",", ""))
    document = it.explain(process.pid)
    it.compare("bytes_in_allocated_blocks", runtime(document, "cpython")["own"]["bytes_in_allocated_blocks"],
               it.truth("sys._debugmallocstats()", used))


NUMPY = """
import json, sys, numpy
kept = [numpy.ones(size) for size in (1000, 100000, 3000000) for _ in range(5)]
print("ready", json.dumps({"bytes": sum(array.nbytes for array in kept), "version": numpy.__version__}), flush=True)
sys.stdin.read()
"""


@replay("numpy's arrays")
def numpy(it):
    process, figures = it.python("numpy==2.1.3", NUMPY)
    held = it.truth("nbytes", figures["bytes"])
    document = it.explain(process.pid)
    arrays = sum(row["bytes"] for row in document["rows"] if row["holder"] == "numpy.ndarray")
    it.compare("held by numpy.ndarray", arrays, held)
    it.holder(process.pid, ["__main__.kept", "kept"], held * 0.9)


PYARROW = """
import json, sys, pyarrow
# 896 KiB each, a size that both allocators have: the pool counts what was asked for.
kept = [pyarrow.array(range(114688)) for _ in range(100)]
dropped = [pyarrow.array(range(114688)) for _ in range(200)]
del dropped
print("ready", json.dumps({"bytes": pyarrow.total_allocated_bytes(), "pool": pyarrow.default_memory_pool().backend_name,
                           "version": pyarrow.__version__}), flush=True)
sys.stdin.read()
"""


@replay("pyarrow's memory pool")
def pyarrow(it):
    for pool, name, remedy in (("mimalloc", "mimalloc", "mimalloc_collect"), ("jemalloc", "jemalloc", "jemalloc_purge")):
        process, figures = it.python("pyarrow==18.1.0", PYARROW, ARROW_DEFAULT_MEMORY_POOL=pool)
        document = it.explain(process.pid)
        held = it.truth(f"total_allocated_bytes() ({figures['pool']})", figures["bytes"])
        live = allocator(document, name).get("live_bytes")
        if name == "mimalloc":
            it.bounds(f"{name}'s blocks in use", live, held, held * 1.08, "15 slices of 64 KiB where 14 would do, for its alignment")
        else:
            it.compare(f"{name}'s blocks in use", live, held)
        it.remedy(process.pid, remedy)


DUCKDB = """
import json, sys, duckdb
connection = duckdb.connect()
connection.execute("create table kept as select range as a, repeat('x', 100) || range as b from range(1000000)")
total = connection.execute("select sum(memory_usage_bytes) from duckdb_memory()").fetchone()[0]
print("ready", json.dumps({"bytes": int(total), "version": duckdb.__version__}), flush=True)
sys.stdin.read()
"""


@replay("DuckDB's table in memory")
def duckdb(it):
    process, figures = it.python("duckdb==1.1.3", DUCKDB)
    document = it.explain(process.pid)
    live = base.blocks_in_use(document)
    held = it.truth("duckdb_memory()", figures["bytes"])
    it.bounds("blocks in use, without CPython's", live - rows(document, r"cpython\.(object|buffer).*"), held * 0.9, held * 1.1,
              "duckdb_memory() is of its buffers")


@replay("SQLite's memory", packages=["sqlite3"])
def sqlite(it):
    process = it.start("/usr/bin/sqlite3", ":memory:")
    it.software = [base.debian_version("sqlite3")]
    process.stdin.write(b"create table t(a); with recursive n(i) as (select 1 union all select i + 1 from n where i < 200000)\n"
                        b"insert into t select hex(randomblob(100)) from n;\n.stats stmt\n.stats on\nselect 1;\nselect 'ready';\n")
    process.stdin.flush()
    it.until("ready", lambda: "ready" in it.said())
    used = int(re.findall(r"Memory Used:\s+(\d+)", it.said())[-1])
    document = it.explain(process.pid)
    it.compare("glibc's blocks in use", allocator(document, "glibc")["live_bytes"], it.truth("Memory Used", used))


@replay("Lua's collector", packages=["lua5.4"])
def lua(it):
    script = ("local t = {} for i = 1, 40000 do t[i] = string.rep(tostring(i), 200) end collectgarbage() "
              "print(string.format('ready {\"bytes\": %d}', collectgarbage('count') * 1024)) io.stdout:flush() io.read()")
    process = it.start("lua5.4", "-e", script)
    it.software = [base.debian_version("lua5.4")]
    counted = it.truth("collectgarbage('count')", it.figures()["bytes"])
    document = it.explain(process.pid)
    # Lua counts what it asked for, malloc what it gave: up to 15 bytes a block more.
    it.compare("glibc's blocks in use", allocator(document, "glibc")["live_bytes"], counted)


@replay("SBCL's dynamic space")
def sbcl(it):
    script = ("(progn (defvar *kept* (loop for i below 200000 collect (list i (format nil \"~a\" i)))) (sb-ext:gc :full t) "
              "(format t \"ready {\\\"bytes\\\": ~d, \\\"version\\\": ~s}~%\" (sb-kernel:dynamic-usage) (lisp-implementation-version)) "
              "(finish-output) (read-line))")
    process = it.start(base.tool("sbcl"), "--noinform", "--no-sysinit", "--no-userinit", "--eval", script)
    figures = it.figures()
    it.software = ["SBCL " + figures["version"]]
    document = it.explain(process.pid)
    it.compare("used_bytes", runtime(document, "sbcl")["used_bytes"], it.truth("dynamic-usage", figures["bytes"]))


@replay("ParallelGC's pools")
def parallel(it):
    it.shell(base.tool("javac"), "-d", it.folder, os.path.join(base.HERE, "Garbage.java"))
    process = it.start(base.tool("java"), "-XX:+UseParallelGC", "-Xmx512m", "-cp", it.folder, "Garbage")
    figures = it.figures()
    it.software = ["JDK " + figures["version"]]
    document = it.explain(process.pid)
    it.compare("used_bytes", runtime(document, "jvm")["used_bytes"], it.truth("heap used (MemoryMXBean)", figures["used"]))
    it.remedy(process.pid, "jvm_gc")


def go_metrics(it, process, url):
    it.until("its metrics", lambda: "go_memstats" in get(url))
    before = get(url)
    document = it.explain(process.pid)
    after = get(url)
    own = runtime(document, "go")["own"]
    sys_bytes = it.truth("go_memstats_heap_sys_bytes", metric(before, "go_memstats_heap_sys_bytes"))
    it.compare("HeapSys", own["HeapSys"], sys_bytes)
    # It works meanwhile: what the ledger says lies between the two.
    low, high = sorted(metric(text, "go_memstats_heap_inuse_bytes") for text in (before, after))
    it.truth("go_memstats_heap_inuse_bytes, before", low)
    it.bounds("HeapInuse", own["HeapInuse"], low * 0.9, high * 1.1, "it works meanwhile")


@replay("Prometheus", packages=["prometheus"])
def prometheus(it):
    config = it.write("prometheus.yml", f"scrape_configs: [{{job_name: self, static_configs: [{{targets: ['127.0.0.1:{it.port}']}}]}}]")
    process = it.start(base.tool("prometheus"), f"--config.file={config}", f"--web.listen-address=127.0.0.1:{it.port}",
                       f"--storage.tsdb.path={it.folder}/data")
    it.software = [base.debian_version("prometheus")]
    go_metrics(it, process, f"http://127.0.0.1:{it.port}/metrics")


@replay("etcd", packages=["etcd-server"])
def etcd(it):
    url = f"http://127.0.0.1:{it.port}"
    process = it.start(base.tool("etcd"), "--data-dir", f"{it.folder}/data", "--listen-client-urls", url, "--advertise-client-urls",
                       url, "--listen-peer-urls", f"http://127.0.0.1:{base.free_port()}")
    it.software = [base.debian_version("etcd-server")]
    go_metrics(it, process, f"{url}/metrics")


@replay("caddy", packages=["caddy"])
def caddy(it):
    config = it.write("caddy.json", json.dumps({"admin": {"listen": f"127.0.0.1:{it.port}"}}))
    process = it.start(base.tool("caddy"), "run", "--config", config, HOME=it.folder)
    it.software = [base.debian_version("caddy")]
    go_metrics(it, process, f"http://127.0.0.1:{it.port}/metrics")


@replay("haproxy's pools", packages=["haproxy"])
def haproxy(it):
    config = it.write("haproxy.cfg", f"global\n stats socket {it.folder}/s level admin\n maxconn 2000\ndefaults\n mode http\n"
                      " timeout client 60s\n timeout connect 5s\n timeout server 60s\n"
                      f"frontend f\n bind 127.0.0.1:{it.port}\n http-request return status 200\n")
    process = it.start(base.tool("haproxy"), "-f", config)
    it.software = [base.debian_version("haproxy")]
    peers = it.until("connections", lambda: [socket.create_connection(("127.0.0.1", it.port)) for _ in range(300)])
    for peer in peers:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        peer.recv(1000)

    def pools():
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(f"{it.folder}/s")
            control.sendall(b"show pools\n")
            text = b""
            while piece := control.recv(1 << 16):
                text += piece
        return text.decode()
    total = int(re.search(r"Total: \d+ pools, (\d+) bytes allocated", pools()).group(1))
    document = it.explain(process.pid)
    it.truth("show pools, allocated", total)
    it.bounds("glibc's blocks in use", allocator(document, "glibc")["live_bytes"], total, total + (64 << 20),
              "pools are a part of it")


@replay("unbound's local names", packages=["unbound"])
def unbound(it):
    config = it.write("unbound.conf", f"server:\n interface: 127.0.0.1\n port: {it.port}\n username: \"\"\n chroot: \"\"\n directory: {it.folder}\n"
                      f" pidfile: {it.folder}/pid\n use-syslog: no\n do-daemonize: no\n local-zone: \"z.\" static\n"
                      + "".join(f" local-data: \"n{number}.z. A 10.0.0.1\"\n" for number in range(60000))
                      + f"remote-control:\n control-enable: yes\n control-interface: 127.0.0.1\n control-port: {it.port + 1}\n control-use-cert: no\n")
    process = it.start(base.tool("unbound"), "-d", "-c", config)
    it.software = [base.debian_version("unbound")]
    control = [base.tool("unbound-control"), "-c", config]
    it.until("its statistics", lambda: "time.up" in it.shell(*control, "stats_noreset", check=False))
    # It says how many names it has, and nothing of their memory: a name and an address take some 250 bytes.
    names = it.shell(*control, "list_local_data").count("10.0.0.1")
    it.truths.append(f"{names} local names")
    document = it.explain(process.pid)
    live = allocator(document, "glibc")["live_bytes"]
    it.bounds("glibc's blocks in use", live, 100 * names, 2000 * names, "100 to 2,000 bytes a name")
    it.says("all 60,000 names", names == 60000)


@replay("BIND's memory contexts", packages=["bind9"])
def named(it):
    zone = it.write("zone", "$TTL 60\n@ SOA a. b. 1 60 60 60 60\n@ NS a.\n" + "".join(f"n{number} A 10.0.0.1\n" for number in range(100000)))
    config = it.write("named.conf", f'options {{ directory "{it.folder}"; pid-file "{it.folder}/pid"; listen-on port {it.port} {{ 127.0.0.1; }}; '
                      f"listen-on-v6 {{ none; }}; recursion no; session-keyfile \"{it.folder}/key\"; }};\ncontrols {{ }};\n"
                      f'zone "z" {{ type master; file "{zone}"; }};\n'
                      f"statistics-channels {{ inet 127.0.0.1 port {it.port + 1} allow {{ 127.0.0.1; }}; }};\n")
    process = it.start(base.tool("named"), "-g", "-c", config)
    it.software = [base.debian_version("bind9")]
    url = f"http://127.0.0.1:{it.port + 1}/json/v1/mem"
    it.until("the zone", lambda: "loaded serial" in it.said() and "all zones loaded" in it.said())
    memory = json.loads(it.until("its statistics", lambda: get(url)))["memory"]
    used = it.truth("InUse", memory["InUse"])
    document = it.explain(process.pid)
    live = base.blocks_in_use(document)
    it.bounds("blocks in use", live, used, used * 1.1, "BIND counts what it asked for, jemalloc what it gave")


@replay("MariaDB's memory", packages=["mariadb-server"])
def mariadb(it):
    data = os.path.join(it.folder, "data")
    it.shell("mariadb-install-db", "--user=root", f"--datadir={data}", "--auth-root-authentication-method=normal")
    process = it.start(base.tool("mariadbd"), "--user=root", f"--datadir={data}", f"--socket={it.folder}/s", "--skip-networking",
                       "--performance-schema=ON", "--innodb-buffer-pool-size=64M")
    it.software = [base.debian_version("mariadb-server")]
    client = ["mariadb", "-u", "root", f"--socket={it.folder}/s", "-N", "-e"]
    it.until("an answer", lambda: it.shell(*client, "select 1", check=False).strip() == "1")
    used = int(it.shell(*client, "show global status like 'Memory_used'").split()[1])
    document = it.explain(process.pid)
    it.truth("Memory_used", used)
    live = base.blocks_in_use(document)
    it.bounds("blocks in use", live, used * 0.2, used * 2, "its counter includes memory that it maps itself")


@replay("Varnish's storage", packages=["varnish"])
def varnish(it):
    it.start(sys.executable, "-c", "import http.server, sys\n"
             "class H(http.server.BaseHTTPRequestHandler):\n"
             "  def do_GET(self): self.send_response(200); self.send_header('Content-Length', '100000'); self.end_headers(); self.wfile.write(b'x' * 100000)\n"
             f"http.server.HTTPServer(('127.0.0.1', {it.port + 1}), H).serve_forever()")
    manager = it.start(base.tool("varnishd"), "-F", "-n", f"{it.folder}/v", "-a", f"127.0.0.1:{it.port}", "-b", f"127.0.0.1:{it.port + 1}",
                       "-s", "malloc,256m")
    it.software = [base.debian_version("varnish")]
    it.until("an answer", lambda: get(f"http://127.0.0.1:{it.port}/0"))
    for number in range(1000):
        get(f"http://127.0.0.1:{it.port}/{number}")
    used = json.loads(it.shell("varnishstat", "-n", f"{it.folder}/v", "-j"))["counters"]["SMA.s0.g_bytes"]["value"]
    with open(f"/proc/{manager.pid}/task/{manager.pid}/children") as children:
        child = children.read().split()[0]
    document = it.explain(child)
    live = base.blocks_in_use(document)
    it.truth("SMA.s0.g_bytes", used)
    it.bounds("blocks in use", live, used, used * 1.3, "storage is a part of it, and jemalloc's classes are larger")
    it.remedy(child, "jemalloc_purge")


@replay("mosquitto's heap", packages=["mosquitto", "mosquitto-clients"])
def mosquitto(it):
    config = it.write("m.conf", f"listener {it.port} 127.0.0.1\nallow_anonymous true\nsys_interval 1\n")
    process = it.start(base.tool("mosquitto"), "-c", config)
    it.software = [base.debian_version("mosquitto")]
    it.until("its port", lambda: socket.create_connection(("127.0.0.1", it.port)).close() is None)
    for topic in range(20):
        it.shell("mosquitto_pub", "-p", it.port, "-r", "-t", f"t/{topic}", "-m", "x" * 100_000)
    # The first is what the broker said before, and kept.
    heap = int(it.shell("mosquitto_sub", "-p", it.port, "-t", "$SYS/broker/heap/current", "-C", 3).split()[-1])
    document = it.explain(process.pid)
    live = allocator(document, "glibc")["live_bytes"]
    it.truth("$SYS/broker/heap/current", heap)
    it.bounds("glibc's blocks in use", live, heap, heap + (256 << 10), "it does not count what libraries allocate")


@replay("R's vectors", packages=["r-base-core"])
def r(it):
    script = it.write("v.R", "kept <- lapply(1:100, function(i) rnorm(500000)); invisible(gc()); m <- gc(); "
                      "cat(sprintf('ready {\"bytes\": %.0f}\\n', sum(m[,2]) * 1048576)); invisible(readLines(file('stdin'), 1))")
    process = it.start(base.tool("Rscript"), "--vanilla", script)
    it.software = [base.debian_version("r-base-core")]
    used = it.truth("gc(), used", it.figures()["bytes"])
    document = it.explain(process.pid)
    it.bounds("glibc's blocks in use", allocator(document, "glibc")["live_bytes"], used, used * 1.05,
              "free cells of R's pages do not count as used")


@replay("OCaml's heap", packages=["ocaml-nox"])
def ocaml(it):
    source = it.write("k.ml", "let kept = Array.init 5000000 (fun i -> [string_of_int i])\n"
                      "let () = Gc.full_major (); let s = Gc.quick_stat () in\n"
                      "Printf.printf \"ready {\\\"bytes\\\": %d}\\n%!\" ((s.Gc.heap_words + (Gc.get ()).Gc.minor_heap_size) * 8); ignore (read_line ()); ignore kept.(0)\n")
    it.shell("ocamlopt", "-o", "k", source)
    process = it.start(os.path.join(it.folder, "k"))
    it.software = [base.debian_version("ocaml-nox")]
    heap = it.truth("Gc.heap_words and minor_heap_size", it.figures()["bytes"])
    document = it.explain(process.pid)
    it.bounds("glibc's blocks in use", allocator(document, "glibc")["live_bytes"], heap, heap * 1.05,
              "OCaml's marking stack and tables are no part of its heap")


