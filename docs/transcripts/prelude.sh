# What the recipes share; scripts/transcripts reads it before each. `pidof` finds only the process that the recipe started.

# Ends the recipe as one that cannot run here.
lacks() {
    echo "$*" >&2
    exit 77
}

# Programs that this machine must have.
needs() {
    for program; do
        command -v "$program" >/dev/null || lacks "no $program"
    done
}

# Prints a command, and runs it.
run() {
    printf '$ %s\n' "$*"
    eval "$*"
}

# The process started last.
pidof() {
    echo "$subject"
}

# Runs until a command succeeds.
await() {
    until "$@"; do
        kill -0 "$subject"
        sleep 0.05
    done
}

# Whether a line of the transcript matches a pattern.
printed() {
    grep -q "$1" "$PRINTED"
}

# Whether the first thread of the subject sleeps for a while (nanosleep, clock_nanosleep).
asleep() {
    kill -0 "$subject"
    call=$(cat "/proc/$subject/syscall" 2>/dev/null) || lacks "no right to look at processes"
    case $call in
    "35 "* | "230 "*) ;;
    *) return 1 ;;
    esac
}

# Prints the first block of a language in a document.
block() {
    awk -v fence='```' -v language="$1" 'on && $0 == fence { exit } on { print } $0 == fence language { on = 1 }' "$ROOT/$2"
}
