#!/bin/sh
# Builds the D program, its object file (for calls.sh) and, on the machine it is written for, the library that counts, in
# the folder it is run in.
#   build.sh COMPILER OPTIMISATION FOLDER_OF_THE_D_PROBE
set -eu
compiler=$1 optimisation=$2 probe=$3
here=$(dirname "$0")
case ${compiler##*/} in
*ldc*) to=-of= ;; # as in -of=NAME
*) to=-o ;;
esac
"$compiler" "$optimisation" -g "-I$probe" -c "${to}way.o" "$here/buffers.d"
"$compiler" "$optimisation" -g -c "${to}probe.o" "$probe/strandline.d"
"$compiler" "${to}buffers" way.o probe.o
[ "$(uname -m)" != x86_64 ] || cc -O2 -fPIC -shared -o interpose.so "$here/interpose.c"
