package Inside;
# What the subs of a program keep, read from inside by the core module B: for the claims that say that strandline's ledger
# has the same from outside.
#
#   use Inside;          before the mark, so that B is loaded
#   Inside::say_kept();  after it: prints { "version", "kept_bytes", "kept_strings", "constant_bytes" }
#
# Sizes are LEN, the bytes of the buffers. A lexical, or an operator's target, of a sub that is not running at that depth
# keeps its buffer; so does one without a value. Looked at are the named subs of main and the code of the file; strings
# that closures have captured are theirs, and in use.
use strict;
use warnings;
use B ();

my ($OK, $FAKE, $READONLY, $COW) = (0xff00, 0x0100_0000, 0x0800_0000, 0x1000_0000);
my ($STATE, $OUR) = $] >= 5.021_007 ? (2, 16) : (0x8000_0000, 0x0004_0000);

sub say_kept {
    my %sum = (kept_bytes => 0, kept_strings => 0, constant_bytes => 0);
    my %seen;
    no strict 'refs';
    # Addresses, so that no code is looked at twice: constants that perl inlines are in several globs.
    my @code = map { B::svref_2object($_) } grep { defined &$_ && !$seen{ $_ + 0 }++ } map { \&{"main::$_"} }
        grep { defined &{"main::$_"} } sort keys %main::;
    add($_, \%sum) for @code, B::main_cv();
    printf "{\"version\":\"%vd\",%s}\n", $^V, join ',', map { "\"$_\":$sum{$_}" } sort keys %sum;
    return;
}

# Adds what a sub's pads hold.
sub add {
    my ($code, $sum) = @_;
    return if $code->CvFLAGS & B::CVf_ISXSUB();
    my $list = $code->PADLIST;
    return unless $$list && $list->can('MAX');
    my $running = $$code == ${ B::main_cv() } ? 1 : $code->DEPTH;
    my @names = $list->ARRAYelt(0)->ARRAY;
    for my $depth (1 .. $list->MAX) {
        my @entries = $list->ARRAYelt($depth)->ARRAY;
        for my $index (1 .. $#entries) {
            my $value = $entries[$index];
            next unless $value->isa('B::PV') && $value->can('LEN') && !$value->isa('B::CV') && $value->LEN;
            add_value($value, $names[$index], $depth <= $running, $sum);
        }
    }
    return;
}

sub add_value {
    my ($value, $name, $is_running, $sum) = @_;
    my ($flags, $text) = ($value->FLAGS, $name && $name->can('PV') ? $name->PV : undef);
    my $is_named = defined $text && length $text && $text ne '&';
    my $marks = $is_named ? $name->FLAGS : 0;
    return if $marks & $FAKE || $marks & $OUR;
    # What the code holds for itself has an empty name; targets have none.
    if (!$is_named && (defined $text || $flags & $READONLY)) {
        $sum->{constant_bytes} += $value->LEN;
        return;
    }
    # A value of a sub that runs is in use, and one that others share is not the variable's alone.
    my $is_in_use = $is_running || $marks & $STATE || $value->REFCNT > 1;
    return if $flags & $OK && ($is_in_use || $flags & $COW);
    $sum->{kept_bytes} += $value->LEN;
    $sum->{kept_strings}++;
    return;
}

1;
