#!/bin/sh
# Runs one round of a strandline lab: PROGRAM FOLDER ARRAY. The folder has the files that describe it.
program=$1 folder=$2 array=$3
task="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}_${SLURM_ARRAY_TASK_ID:-0}"
node=${SLURMD_NODENAME:-$(uname -n)}
restarts=${SLURM_RESTART_COUNT:-0}
# The runs get the variables of the submitting user without those of the scheduler.
for name in $(env | sed -n 's/^\(SLURM[A-Z]*_[A-Za-z0-9_]*\)=.*/\1/p'); do
    case $name in
    SLURM_CONF) ;;
    *) unset "$name" ;;
    esac
done
if [ ! -x "$program" ]; then
    echo "$program: not on $node: the lab's folder has to have the same path on all nodes" >&2
    exit 72 # EX_OSFILE of sysexits.h
fi
exec "$program" lab-round --folder "$folder" --array "$array" --task "$task" --node "$node" --restarts "$restarts"
