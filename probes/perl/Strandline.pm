# Strandline: names an instant of a Perl program for `strandline run`.
#
#     use lib 'probes/perl'; use Strandline;
#     Strandline::mark('cache filled');
#     strandline run -o cache.strandline -- perl program.pl
#
# Without strandline (no STRANDLINE_MARK_FD in the environment) a mark is a call that returns at once. With
# it, a mark is six short system calls plus the time that strandline takes for its sample. Its buffers are
# made at the first mark and kept: VmData does not grow with further marks. Figures: docs/probes.md.
#
# Pure Perl 5.18 or later, no module but Config (core). 64-bit Linux on x86-64 and aarch64; elsewhere a mark
# does nothing. $!, $@, $? and _ are kept. It works in the child of a fork, and processes of one tree
# take turns; ithreads of one process do not.
package Strandline;

use strict;
use warnings;
use Config ();

our $VERSION = '0.1.0';

# System calls by number: a file handle on the descriptor would close it, or a file of the program's that
# has its number by then, when it is destroyed; and would hold a buffer.
# sendto, recvfrom, fcntl, getsockopt, ppoll
my %CALLS = ('x86_64' => [44, 45, 72, 55, 271], 'aarch64' => [206, 207, 25, 209, 73]);
my ($SENDTO, $RECVFROM, $FCNTL, $GETSOCKOPT, $PPOLL);

my $MSG_NOSIGNAL = 0x4000;
my ($MSG_PEEK, $MSG_DONTWAIT) = (2, 0x40);
my ($EINTR, $EAGAIN) = (4, 11);

# undef: not looked yet; 0: off for ever; 1: on.
my $mode;
my ($fd, $file, $link);

# Answers awaited, and by which process: one that a die in a signal handler left behind is read with the
# next; a fork's child owes nothing.
my ($owed, $process) = (0, 0);

# Kept, so that a mark allocates nothing new.
my ($line, $at, $got, $now) = ('', 0, 0, '');
my $byte = "\0";
my ($lock, $unlock, $readable, $writable);

# A signal handler that interrupts a mark cannot wait for it: its mark is left out.
our $busy;

# Names this instant; returns when strandline has taken its sample. Control characters of the name become
# spaces; it is cut to 200 bytes. Does nothing where strandline is not there, or is no more.
sub mark {
    return if defined $mode && !$mode || $busy;
    local ($!, $@);
    local $busy = 1;
    $mode = _look() unless defined $mode;
    return unless $mode;
    # The descriptor may be another file of the program's by now.
    $now = readlink $link;
    return $mode = 0 unless defined $now && $now eq $file;

    $line = defined $_[0] ? $_[0] : '';
    utf8::encode($line) if utf8::is_utf8($line);
    substr($line, 200) = '' if length $line > 200;
    $line =~ tr/\x00-\x1f\x7f/ /;
    $line .= "\n";
    if ($process != $$) { ($process, $owed) = ($$, 0) }

    # Processes of one tree share the socket: else one might read the answer that was meant for another.
    # Released in the statement of the eval: a signal handler can die between two statements.
    my ($done) = (
        scalar(eval {
            1 while syscall($FCNTL, $fd, 7, $lock) == -1 && $! == $EINTR;
            $mode = 0 unless _talk();
            1;
        }),
        syscall($FCNTL, $fd, 7, $unlock),
    );
    return if $done;
    # A signal handler has died in there: that goes on, and was told to its handler before.
    local $SIG{__DIE__};
    die $@;
}

# Writes the line and waits until nothing is owed; false where there is nobody at the other end.
sub _talk {
    while ($line ne '') {
        # Sent and counted in one statement: Perl runs no signal handler within one that does not branch.
        $owed += ($at = syscall($SENDTO, $fd, $line, length $line, $MSG_NOSIGNAL, 0, 0)) == length $line;
        if ($at > 0) { substr($line, 0, $at) = '' }
        elsif ($at == -1 && $! == $EAGAIN) { syscall($PPOLL, $writable, 1, 0, 0, 8) }
        elsif ($at == 0 || $! != $EINTR) { return 0 }
    }
    while ($owed > 0) {
        # Looked at, and then counted and taken, without a branch: a handler that dies must not leave a mark
        # that waits for an answer which was read.
        $got = syscall($RECVFROM, $fd, $byte, 1, $MSG_PEEK, 0, 0);
        if ($got == 1) {
            $owed--;
            syscall($RECVFROM, $fd, $byte, 1, $MSG_DONTWAIT, 0, 0);
        }
        elsif ($got == -1 && $! == $EAGAIN) { syscall($PPOLL, $readable, 1, 0, 0, 8) }
        elsif ($got == 0 || $! != $EINTR) { return 0 }
    }
    return 1;
}

# Whether there is a strandline to talk to: a number, above the standard descriptors, of a stream socket of
# the local kind.
sub _look {
    # The pattern's group also takes off the taint.
    return 0 unless defined $ENV{STRANDLINE_MARK_FD} && $ENV{STRANDLINE_MARK_FD} =~ /\A([0-9]{1,9})\z/;
    $fd = $1 + 0;
    my ($machine) = $Config::Config{archname} =~ /\A(x86_64|aarch64)-/ or return 0;
    return 0 if $fd < 3 || $^O ne 'linux' || length(pack 'p', undef) != 8;
    ($SENDTO, $RECVFROM, $FCNTL, $GETSOCKOPT, $PPOLL) = @{ $CALLS{$machine} };
    $link = "/proc/self/fd/$fd";
    $file = readlink $link;
    return 0 unless defined $file && $file =~ /\Asocket:/;
    # SOL_SOCKET 1: SO_DOMAIN 39 is AF_UNIX 1, SO_TYPE 3 is SOCK_STREAM 1.
    for my $option (39, 3) {
        my ($value, $bytes) = (pack('i', 0), pack('i', 4));
        return 0 if syscall($GETSOCKOPT, $fd, 1, $option, $value, $bytes) != 0 || unpack('i', $value) != 1;
    }
    # struct flock, F_WRLCK 1 and F_UNLCK 2; struct pollfd, POLLIN 1 and POLLOUT 4.
    ($lock, $unlock) = map { pack 's s x4 q q i x4', $_, 0, 0, 0, 0 } 1, 2;
    ($readable, $writable) = map { pack 'i s s', $fd, $_, 0 } 1, 4;
    return 1;
}

1;
