# A hash of many small arrays, half of them deleted: values, bodies and storage are spread over the
# heap.
#
#   perl hash.pl ENTRIES
#
# Prints one line of JSON when it has finished, and waits for its input to end.
use strict;
use warnings;

my $entries = shift // 300_000;
my %entries;
$entries{"key$_"} = [ $_, $_ + 1, $_ + 2 ] for 1 .. $entries;
delete $entries{"key$_"} for grep { $_ % 2 } 1 .. $entries;
$| = 1;
printf qq({"version": "%vd", "entries": %d}\n), $^V, scalar keys %entries;
<STDIN>;
