#!/usr/bin/perl
# Why a Perl process grows although every string goes out of scope: each sub keeps the buffer of its lexical
# for its next call.
#
#     strandline run -o lexicals.strandline -- perl examples/lexicals.pl
#     strandline report lexicals.strandline --format html -o lexicals.html
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/../probes/perl";
use Strandline;

my $size = 800_000;

Strandline::mark('start');
for my $number (1 .. 10) {
    no strict 'refs';
    # Each has its own lexical; not a constant, so that it is made anew at each call.
    eval "sub fill_$number { my \$buffer = chr(65 + \$_[0]) x $size; return length \$buffer } 1" or die $@;
}
Strandline::mark('10 subs compiled');
for my $cycle (1, 2) {
    for my $number (1 .. 10) {
        no strict 'refs';
        &{"fill_$number"}($number);
        Strandline::mark("cycle $cycle: fill_$number called");
    }
}
sub give_back { my $buffer = chr(65 + $_[0]) x $size; my $length = length $buffer; undef $buffer; return $length }
give_back(1);
Strandline::mark('a sub with undef $buffer called');
