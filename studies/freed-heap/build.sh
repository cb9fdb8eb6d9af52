#!/bin/sh
# build.sh DIR PROBES: builds the study's programs where it is run. DIR is the study's folder, PROBES that of the probes.
set -eu
# As needed: steps calls nothing of libstdc++, and its heap begins without libstdc++'s blocks.
for name in sweep blocks cutoff steps said; do
    c++ -std=c++11 -O2 -Wall -Wextra -I"$2/c" "$1/$name.cpp" -o "$name" -Wl,--as-needed -ldl
done
c++ -std=c++11 -O2 -Wall -Wextra -shared -fPIC "$1/own.cpp" -o own.so
