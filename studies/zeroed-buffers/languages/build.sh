#!/bin/sh
# Compiles the languages that are here and compiled, in the folder it is run in. What one compiler says goes to a file of
# its own and is nothing to the other languages: run.sh tells it where that language is run.
#   build.sh FOLDER_OF_THE_PROBES
here=$(cd "$(dirname "$0")" && pwd) probes=$1

# build LANGUAGE TOOL COMMAND…, in $folder: where the tool is not here, the study's needs say so.
build() {
    language=$1
    shift
    command -v "$1" >/dev/null 2>&1 || return 0
    (cd "$folder" && "$@") >"$language.log" 2>&1 || echo "build.sh: $language: $(grep -m 1 -i error "$language.log")" >&2
}
folder=.
build small_pages cc -O2 -o small_pages "$here/small_pages.c"
build c0 cc -O0 "-I$probes/c" -o c0 "$here/buffers.c"
build c2 cc -O2 "-I$probes/c" -o c2 "$here/buffers.c"
build cpp g++ -std=c++20 -O2 "-I$probes/c" -o cpp "$here/buffers.cpp"
build rust0 rustc -C opt-level=0 -o rust0 "$here/buffers.rs"
build rust2 rustc -C opt-level=2 -o rust2 "$here/buffers.rs"

mkdir -p go.module/strandline
cp "$here/buffers.go" go.module/
cp "$probes/go/strandline.go" go.module/strandline/
printf 'module buffers\n\ngo 1.19\n' >go.module/go.mod
GOFLAGS=-mod=mod GOTOOLCHAIN=local
export GOFLAGS GOTOOLCHAIN
# Go compiles its own library too: the user's cache of it, wherever XDG_CACHE_HOME points, or else one that is kept here.
if [ -z "${GOCACHE-}" ]; then
    GOCACHE=${HOME-}/.cache/go-build
    [ -w "$GOCACHE" ] || GOCACHE=${XDG_CACHE_HOME:-$PWD}/go-build
    export GOCACHE
fi
folder=go.module
build go go build -o ../go.program .

folder=.
mkdir -p java.classes
build java javac -d java.classes "$probes/java/strandline/Strandline.java" "$here/Buffers.java"
exit 0
