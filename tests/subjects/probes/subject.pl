# Grows by 64 MiB at a mark and gives it back at the next; status 7.
use strict;
use warnings;
use Strandline;

my $mib = 64;
my ($task, $argument) = (@ARGV, '', '');
if ($task eq 'loop') {
    Strandline::mark('quiet') for 1 .. 100;
    Strandline::mark('before');
    Strandline::mark('quiet') for 1 .. $argument;
    Strandline::mark('after');
    exit 7;
}
Strandline::mark('start');
if ($task eq 'reuse') {
    # The program closes what it does not know, and the number becomes a file of its own.
    require POSIX;
    my ($path) = $argument =~ m{\A(.*)\z}s;
    POSIX::close($ENV{STRANDLINE_MARK_FD});
    my $fd = POSIX::open($path, POSIX::O_CREAT() | POSIX::O_RDWR());
    POSIX::dup2($fd, $ENV{STRANDLINE_MARK_FD}) if $fd != $ENV{STRANDLINE_MARK_FD};
}
my $memory = "\1" x ($mib << 20);
$! = 77;
$@ = 'kept';
Strandline::mark('grown');
my $kept = ($! + 0) . " $@";
undef $memory;
Strandline::mark('freed');
Strandline::mark("two\nlines\x01");
Strandline::mark('n' x 300);
print "done $kept\n";
exit 7;
