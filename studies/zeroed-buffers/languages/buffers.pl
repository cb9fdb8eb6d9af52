# Takes COUNT buffers of 1 MiB: perl -I.../probes/perl buffers.pl repeat|folded|vec COUNT. Marks `before` and `taken`;
# prints one line of JSON: wanted_bytes, and the sum of one byte of each buffer (which keeps them in use until then).
use strict;
use warnings;
use Strandline;

use constant BUFFER_BYTES => 1_048_576;

my ($idiom, $count) = @ARGV;
my $bytes = BUFFER_BYTES;
my %idioms = (
    repeat => sub { "\0" x $bytes },
    # Both operands are known when it is compiled: perl makes one constant of it.
    folded => sub { "\0" x BUFFER_BYTES },
    vec    => sub { vec(my $buffer = '', $bytes - 1, 8) = 0; $buffer },
);
my $take = $idioms{$idiom} or die "buffers.pl: no such idiom: $idiom\n";

my @buffers;
$#buffers = $count - 1;
Strandline::mark('before');
$buffers[$_] = $take->() for 0 .. $count - 1;
Strandline::mark('taken');
my $sum = 0;
$sum += ord substr($_, 5000, 1) for @buffers;
printf qq({"wanted_bytes": %d, "sum": %d}\n), $count * BUFFER_BYTES, $sum;
