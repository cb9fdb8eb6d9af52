# What the strings alone save, put into the perl that runs this. An estimate, not a measurement: it supposes that perl's
# string work is that of the library's cow-byte, and that it is replaced by that of short. The two perls that the study
# takes as p0 and p1 are what can be measured.
#
#   estimate.pl BENCHMARK COW_BYTE SHORT    A, B, C or D; the library's bench in the two layouts
#
# Each, and the mail's program, is run under cachegrind with 10,000 and with 20,000 iterations. Prints one JSON line, in instructions an iteration
# (the difference, so that starting is not in them):
#
#   perl, cow_byte, short   of each
#   strings_part            short / cow_byte, in per cent
#   estimate                (perl - cow_byte + short) / perl, in per cent
#   version                 of this perl, and whether it is threaded
use strict;
use warnings;
use Config;

# How often is the programs' argument.
my $expressions = 'for (1 .. shift) { my $x = "a" x $n; my $y = substr($x, 3, $n-5); my $z = $y . "xyz"; }';
my %programs = (
    A => "my \$n = 12; $expressions",
    B => "my \$n = 24; $expressions",
    C => 'my @a; push @a, "aaa$_" for 1 .. shift;',
    D => 'my @a; push @a, "aaaaaaaaaaaaaaaaaaaaaa$_" for 1 .. shift;',
);
my ($benchmark, $cow_byte, $short) = @ARGV;
die "usage: estimate.pl A|B|C|D COW_BYTE SHORT\n" if !defined $short || !$programs{$benchmark};

# Instructions of the command, by cachegrind.
sub instructions {
    my @command = (qw(valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null --log-fd=9), @_);
    open my $log, '+>', undef or die "estimate: $!\n";
    my $child = fork // die "estimate: fork: $!\n";
    if (!$child) {
        require POSIX;
        POSIX::dup2(fileno $log, 9);
        open STDOUT, '>', '/dev/null';
        exec @command or exit 127;
    }
    waitpid $child, 0;
    die "estimate: @command: status $?\n" if $?;
    seek $log, 0, 0;
    my ($count) = join('', <$log>) =~ /I\s+refs:\s+([\d,]+)/ or die "estimate: cachegrind counted nothing\n";
    return $count =~ tr/,//dr;
}

# An iteration more.
sub slope {
    return (instructions(@_, 20_000) - instructions(@_, 10_000)) / 10_000;
}

my $perl_each = slope($^X, '-e', $programs{$benchmark});
my $cow_each = slope($cow_byte, $benchmark);
my $short_each = slope($short, $benchmark);
printf qq({"perl": %.1f, "cow_byte": %.1f, "short": %.1f, "strings_part": %.1f, "estimate": %.1f, "version": "%vd, %s"}\n),
    $perl_each, $cow_each, $short_each, 100 * $short_each / $cow_each,
    100 * (1 - ($cow_each - $short_each) / $perl_each), $^V, $Config{useithreads} ? 'threaded' : 'not threaded';
