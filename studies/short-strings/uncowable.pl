# Which lengths of text the perl that runs this cannot share between two scalars: one scalar is read into again and
# again, a byte more each time, and copied. perl keeps the number of sharers in the byte after the text's NUL; where the
# text fills its buffer there is none. Prints one JSON line:
#
#   uncowable   lengths from 16 to 1,000 that could not be shared though there is no other reason (times)
#   first       the first eight of them
#   refused     lengths not shared because much of the buffer is unused: 80 bytes or half of it (perl's sv.c)
#   sharers     that one text has after it was copied 1,000 times
#   version     of this perl
use strict;
use warnings;
use B ();

my $is_cow = B::SVf_IsCOW();
open my $zeros, '<:raw', '/dev/zero' or die "uncowable: /dev/zero: $!\n";

# Whether the first is shared with the second, which has no buffer, after it was copied to it.
sub is_shared {
    undef $_[1];
    $_[1] = $_[0];
    return !!(B::svref_2object(\$_[0])->FLAGS & $is_cow);
}

my ($text, $copy) = ('');
my $refused = 0;
my @uncowable;
for my $length (1 .. 1000) {
    read $zeros, $text, $length;
    my $size = B::svref_2object(\$text)->LEN;
    my $shared = is_shared($text, $copy);
    undef $copy;
    next if $shared || $length < 16;
    if   ($size - $length >= 80 || $size >= 2 * $length) { $refused++ }
    else                                                 { push @uncowable, $length }
}

my $one = 'a' x 100;
my @copies = ($one) x 1000;
my $address = unpack 'J', pack 'P', $one;
my $sharers = grep { $address == unpack 'J', pack 'P', $_ } $one, @copies;

my @first = (@uncowable, (0) x 8)[0 .. 7];
printf qq({"version": "%vd", "uncowable": %d, "first": [%s], "refused": %d, "sharers": %d}\n),
    $^V, scalar @uncowable, join(', ', @first), $refused, $sharers;
