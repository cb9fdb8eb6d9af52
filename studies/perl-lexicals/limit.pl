#!/usr/bin/perl
# Runs a generated program (generate.pl --say) under a limit of its address space, and tells where it ends.
#
#   perl limit.pl PERL PROGRAM HEADROOM_BYTES
#   perl limit.pl PERL PROGRAM LIMIT_BYTES --absolute
#
# The limit is the VmPeak that PERL has once it has compiled PROGRAM (seen in a run without a limit that stops
# there) plus HEADROOM_BYTES: so a perl that is larger at the start has as much left for the functions. With --absolute it
# is LIMIT_BYTES, as the talk had it, and PROGRAM (--shape talk) prints its VmPeak itself.
#
# Prints one line of JSON: start_peak_bytes; limit_bytes; completed, the functions that returned; died_in, the number
# of the function that was running (0: all returned); first_string_bytes, what VmPeak rose by in the first function, where the
# program prints it; status, the exit status; ended_by_signal; version, that of PERL; message, the last line that was
# none of the program's own.
use strict;
use warnings;

my $absolute = @ARGV == 4 && $ARGV[3] eq '--absolute' ? pop @ARGV : '';
my ($perl, $program, $bytes) = @ARGV;
die "usage: $0 PERL PROGRAM BYTES [--absolute]\n" unless @ARGV == 3 && -r $program && $bytes =~ /\A[0-9]{1,15}\z/;
# Where the probe is.
my @modules = map { "-I$_" } grep { -e "$_/Strandline.pm" } @INC;

open my $asked, '-|', $perl, '-e', 'printf "%vd", $^V' or die "$0: $perl: $!\n";
my $version = <$asked>;
close $asked or die "$0: $perl does not run\n";
my $start_kib = $absolute ? 0 : start_peak_kib();
my $limit_kib = $start_kib + int $bytes / 1024;
# The shell's ulimit counts in KiB. What perl says when it runs out of memory goes to standard error.
my $pid = open my $out, '-|', 'sh', '-c', 'ulimit -v "$1" && shift && exec "$@" 2>&1', 'sh', $limit_kib, $perl, @modules,
    $program or die "$0: sh: $!\n";
my ($running, $message, @peaks) = (0, '');
while (my $line = <$out>) {
    chomp $line;
    if ($line =~ /\Asub ([0-9]+)\z/) { $running = $1 }
    elsif ($line =~ /\AVmPeak:\s+([0-9]+) kB\z/) { push @peaks, $1 }
    elsif ($line !~ /\A(?:Vm[A-Z]|cycle )/) { $message = $line }
}
close $out;
my ($status, $signal) = ($? >> 8, $? & 127);
die "$0: ended before its first function: $message\n" unless $running;
my $died = $? == 0 ? 0 : $running;
$start_kib ||= $peaks[0] || die "$0: it did not say its VmPeak: $message\n";
my $first = @peaks > 1 ? ($peaks[1] - $peaks[0]) * 1024 : 'null';
$message =~ s/[^ -~]//g;
$message =~ s/(["\\])/\\$1/g;
printf qq({"start_peak_bytes":%d,"limit_bytes":%d,"completed":%d,"died_in":%d,"first_string_bytes":%s,"status":%d,),
    $start_kib * 1024, $limit_kib * 1024, $died ? $died - 1 : $running, $died, $first, $status;
printf qq("ended_by_signal":%d,"version":"%s","message":"%s"}\n), $signal, $version, $message;

# VmPeak of a perl that has loaded the program's modules and compiled it.
sub start_peak_kib {
    open my $text, '<', $program or die "$0: $program: $!\n";
    my $source = do { local $/; <$text> };
    my $print = 'open my $status, "<", "/proc/self/status" or die; print grep { /^VmPeak/ } <$status>; exit;';
    delete local $ENV{STRANDLINE_MARK_FD};
    # In the program's own place, not before it: what is compiled is the same. The main program's first statement runs
    # once all of it was compiled.
    open my $peak, '-|', $perl, @modules, '-e', "$print\n$source" or die "$0: $perl: $!\n";
    my ($kib) = map { /([0-9]+)/ } <$peak>;
    close $peak;
    return $kib || die "$0: no VmPeak\n";
}
