# shellcheck shell=sh
# strandline: names an instant of a shell script for `strandline run`.
#
#     . /path/to/probes/shell/strandline.sh
#     strandline_mark 'cache filled'
#     strandline run -o cache.strandline -- sh script.sh
#
# Without strandline (no STRANDLINE_MARK_FD in the environment) a mark is one test. With it, a mark starts no
# process: it writes and reads by builtins of bash, dash, ksh, mksh, zsh or busybox sh. Where the shell cannot
# (a descriptor above 9 in dash and mksh; a trap for PIPE in other shells than bash and zsh) it calls
# `strandline mark`, where that is in the path. Always returns 0. Figures: docs/probes.md.
#
# It needs the answer to be a line end, as strandline's is: `read` waits for one. Its variables begin with
# strandline_. Processes of one tree do not take turns: when two mark in the same instant, the later one's
# sample may be taken a little after its mark. Where a process made the socket non-blocking, bash, dash and
# busybox sh mark no more.

# Names this instant; returns when strandline has taken its sample. Control characters of the name become
# spaces; it is cut to 200 bytes. Does nothing where strandline is not there, or is no more.
strandline_mark() {
    case ${STRANDLINE_MARK_FD-}${strandline_off-} in
        [3-9] | [1-9][0-9] | [1-9][0-9][0-9]) ;;
        *) return 0 ;;
    esac
    # The script may have closed it, or made it a file of its own.
    if [ ! -S "/proc/self/fd/$STRANDLINE_MARK_FD" ]; then
        strandline_off=-
        return 0
    fi
    strandline_name=${1-}
    strandline_left=200
    while :; do
        case $strandline_name in
            *[[:cntrl:]]*) ;;
            *) break ;;
        esac
        if [ "$strandline_left" = 0 ]; then
            strandline_name=${strandline_name%%[[:cntrl:]]*}
            break
        fi
        strandline_name="${strandline_name%%[[:cntrl:]]*} ${strandline_name#*[[:cntrl:]]}"
        strandline_left=$((strandline_left - 1))
    done
    # Nobody at the other end is no reason to die of SIGPIPE, and the script's own trap for it is kept.
    if [ -n "${BASH_VERSION-}" ]; then
        strandline_bash_mark || strandline_off=-
    elif [ -n "${ZSH_VERSION-}" ]; then
        strandline_zsh_mark || strandline_off=-
    else
        strandline_posix_mark || strandline_off=-
    fi
    return 0
}

# A line, and the answer to it. mksh has no printf of its own.
strandline_write() {
    # shellcheck disable=SC2261 # a copy of one descriptor, and another
    case ${KSH_VERSION-} in
        *MIRBSD*) eval 'print -r -- "${strandline_name:0:200}"' ;;
        *) printf '%.200s\n' "$strandline_name" ;;
    esac 2>/dev/null >&"$STRANDLINE_MARK_FD"
}

strandline_read() {
    # shellcheck disable=SC2034 # the answer says nothing
    IFS= read -r strandline_x 2>/dev/null <&"$STRANDLINE_MARK_FD"
}

# bash can look whether there is something to read: before a line is written only the end of the connection,
# or the answer to another process. That one is read here, and the other process reads ours.
strandline_bash_mark() {
    # shellcheck disable=SC3045 # bash only
    if read -r -t 0 -u "$STRANDLINE_MARK_FD" 2>/dev/null; then
        strandline_read && strandline_write
        return
    fi
    strandline_write && strandline_read
}

# zsh puts a function's traps back by itself.
strandline_zsh_mark() {
    setopt localoptions localtraps
    trap '' PIPE
    strandline_write && strandline_read
}

# ksh lists its traps without a process; mksh, dash and busybox sh cannot, but the kernel can: fields 33 and
# 34 of stat, numbered from 1, are the masks of ignored and caught signals, and SIGPIPE is bit 12. A trap in place is not
# touched: another process makes the mark.
strandline_posix_mark() {
    strandline_ignored=0 strandline_caught=0
    case ${KSH_VERSION-} in
        '' | *MIRBSD*)
            # shellcheck disable=SC2034 # most fields are of no interest
            IFS=' ' read -r strandline_x strandline_x strandline_run \
                strandline_x strandline_x strandline_x strandline_x strandline_x strandline_x strandline_x \
                strandline_x strandline_x strandline_x strandline_x strandline_x strandline_x strandline_x \
                strandline_x strandline_x strandline_x strandline_x strandline_x strandline_x strandline_x \
                strandline_x strandline_x strandline_x strandline_x strandline_x strandline_x strandline_x \
                strandline_x strandline_ignored strandline_caught strandline_x </proc/self/stat || return
            # A name with a space in it shifts the fields.
            [ "$strandline_run" = R ] || strandline_caught=4096
            strandline_ignored=$((strandline_ignored >> 12 & 1))
            strandline_caught=$((strandline_caught >> 12 & 1))
            ;;
        *) case $(trap) in *PIPE*) strandline_caught=1 ;; esac ;;
    esac
    # Only ksh is known to redirect to numbers of two digits, and not its kin mksh.
    case ${#STRANDLINE_MARK_FD}${KSH_VERSION-}:$strandline_caught in
        *:1 | [23]:* | [23]*MIRBSD*)
            strandline_process_mark
            return 0
            ;;
    esac
    if [ "$strandline_ignored" = 1 ]; then
        strandline_write && strandline_read
        return
    fi
    trap '' PIPE
    strandline_write && strandline_read
    strandline_status=$?
    trap - PIPE
    return $strandline_status
}

strandline_process_mark() {
    command -v strandline >/dev/null 2>&1 && strandline mark -- "$strandline_name" >/dev/null 2>&1
}
