"""Measures what CPython's, Go's and the JVM's readers add to the stop and to the memory of `explain`, beside a look without them, in turns.

Called by run.sh: runtimes.py WORK OUT.
"""
import os
import shutil
import statistics
import subprocess

from shared import MIB, WORK, figure, looked_at, stopped_ms, write

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
OBJECTS = int(os.environ.get("BENCH_OBJECTS", "4000000"))
PYTHON = """
import sys
class Node:
    def __init__(self, number):
        self.number, self.text = number, 'node%d' % number
keep = [Node(number) for number in range(int(sys.argv[1]))]
print('ready', flush=True)
sys.stdin.read()
"""
GO = """
package main

import (
	"fmt"
	"os"
	"strconv"
)

type node struct {
	next *node
	some [28]int
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	var keep []*node
	for i := 0; i < count; i++ {
		one := &node{}
		one.some[0], one.some[20] = i, i
		keep = append(keep, one)
	}
	fmt.Println("ready")
	var byte [1]byte
	os.Stdin.Read(byte[:])
	fmt.Println(len(keep))
}
"""
JAVA = """
public class Nodes {
    Nodes next;
    long[] some = new long[26];
    public static void main(String[] words) throws Exception {
        Nodes last = null;
        for (int i = Integer.parseInt(words[0]); i > 0; i--) {
            Nodes one = new Nodes();
            one.next = last;
            last = one;
        }
        System.out.println("ready");
        System.in.read();
        System.out.println(last.some.length);
    }
}
"""
WAYS = {
    "without": ["--no-runtimes", "--snapshot=never"],
    "stop": ["--snapshot=never"],
    "snapshot": ["--no-runtimes", "--snapshot=always"],
    "default": [],
}
# What a process is stopped longer than for a snapshot alone, at most, in milliseconds, where that is what is promised.
MAX_ON_SNAPSHOT = {"JVM": 20}


def one(name, command, lines, claims):
    found = looked_at(command, WAYS, ROUNDS)
    rss = found["stop"][0]["kernel"]["rss_bytes"]
    stopped = stopped_ms(found)
    wall = [one["cost"]["wall_seconds"] * 1e3 for one in found["default"]]
    peak = {way: max(one["cost"]["peak_rss_bytes"] / MIB for one in all_) for way, all_ in found.items()}
    lines.append(f"| {name} | {rss / (1 << 30):.2f} | {figure(stopped['without'], 1, 0)} | {figure(stopped['stop'], 1, 0)} | "
                 f"{figure(stopped['pictured'], 1, 0)} | {figure(stopped['default'], 1, 0)} | {figure(wall, 1, 0)} | {peak['stop']:.0f} | {peak['default']:.0f} |")
    middle = {way: statistics.median(times) for way, times in stopped.items()}
    if name in MAX_ON_SNAPSHOT:
        most, longer = MAX_ON_SNAPSHOT[name], middle["default"] - middle["snapshot"]
        claims.append((f"{name}, on a snapshot: stopped at most {most / 1e3} s longer than without its reader",
                       f"{longer / 1e3:.3f} s", longer <= most))
    for way, most in (() if name in MAX_ON_SNAPSHOT else (("default", 150), ("stop", 600))):
        longer = middle[way] - middle["without"]
        words = "as it comes" if way == "default" else "without a snapshot"
        claims.append((f"{name}, {words}: stopped at most {most / 1e3} s longer than without its reader", f"{longer / 1e3:.3f} s",
                       longer <= most))
    most = max(peak["stop"], peak["default"])
    claims.append((f"{name}: memory at most 64 MiB", f"{most:.0f} MiB", most <= 64))


def main():
    lines = ["", f"{OBJECTS} objects; every figure of one process, looked at in all ways in turns.", "",
             "| process | GiB | stopped ms: without | stop | snapshot without | default | in all ms | peak MiB: stop | default |",
             "|---|---|---|---|---|---|---|---|---|"]
    claims = []
    one("CPython", ["python3", "-c", PYTHON, str(OBJECTS)], lines, claims)
    if shutil.which("go"):
        source, program = os.path.join(WORK, "nodes.go"), os.path.join(WORK, "nodes")
        with open(source, "w") as file:
            file.write(GO)
        subprocess.run(["go", "build", "-o", program, source], check=True)
        one("Go", [program, str(OBJECTS)], lines, claims)
    else:
        lines.append("| Go | | not run: no go | | | | | | |")
    if shutil.which("javac"):
        source = os.path.join(WORK, "Nodes.java")
        with open(source, "w") as file:
            file.write(JAVA)
        subprocess.run(["javac", "-d", WORK, source], check=True)
        one("JVM", ["java", "-XX:+UseG1GC", "-Xms1200m", "-Xmx1200m", "-cp", WORK, "Nodes", str(OBJECTS)], lines, claims)
    else:
        lines.append("| JVM | | not run: no javac | | | | | | |")
    write("runtimes", claims, lines)


main()
