# Grows by 64 MiB at a mark and gives it back at the next; status 7.
use strict;
use warnings;
use POSIX ();
use Strandline;
use Time::HiRes ();

my $mib = 64;
my ($task, $argument) = (@ARGV, '', '');
if ($task eq 'loop') {
    Strandline::mark('quiet') for 1 .. 100;
    Strandline::mark('before');
    Strandline::mark('quiet') for 1 .. $argument;
    Strandline::mark('after');
    exit 7;
}
if ($task eq 'crowd') {
    my $child = fork;
    Strandline::mark('quiet') for 1 .. $argument;
    POSIX::_exit(3) if !$child;
    waitpid $child, 0;
    my $ended = $? >> 8;
    # A signal handler dies at any point of a mark; no later mark may hang, here or in a child.
    local $SIG{ALRM} = sub { die "alarm\n" };
    for my $turn (1 .. 200) {
        eval {
            Time::HiRes::ualarm(300 + $turn);
            Strandline::mark('quiet') for 1 .. 100;
            1;
        };
        eval { Time::HiRes::ualarm(0) };
        if (!($child = fork)) {
            Strandline::mark('quiet');
            POSIX::_exit(3);
        }
        waitpid $child, 0;
    }
    Strandline::mark('after');
    exit($ended == 3 ? 7 : 1);
}
Strandline::mark('start');
if ($task eq 'reuse') {
    # The program closes the inherited descriptor, and opens a file of its own at its number.
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
