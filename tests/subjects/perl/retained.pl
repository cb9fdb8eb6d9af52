#!/usr/bin/perl
# Perl programs whose retained and live strings are known.
#
#   perl -I FOLDER retained.pl CASE [SIZE]
#
# Sets up the case, prints one line of JSON with its known figures, and answers commands, a byte
# each: o prints the figures of Oracle.pm, u releases what the case retains (where the case defines
# it), q ends it.
#
# "expected" in the ready line lists each buffer that a pad retains, as [sub, lexical, depth, least
# bytes of LEN].
use strict;
use warnings;
use utf8;
use Oracle;

our ($undef, @kept, %kept, $package_text, $SIZE);
my $case = shift // die "usage: retained.pl CASE [SIZE]\n";
$SIZE = shift;

# This text must reach no output; cases put it into values, hash keys, constants and retained
# buffers.
my $secret = $ENV{ORACLE_SECRET} // '';

sub text { my ($letter, $bytes) = @_; return $letter x $bytes }

# The talk's functions: each has a string of 800,000 bytes.
BEGIN {
    for my $number (1 .. 20) {
        eval qq{
            sub f$number {
                my \$offset = shift;
                my \$s = (chr(ord("a") + $number + \$offset)) x 800000;
                undef \$s if \$main::undef;
                return "";
            }
            1;
        } or die $@;
    }
}

sub call_functions { no strict 'refs'; &{"f$_"}(1) for 1 .. 20; return }

sub case_functions {
    call_functions();
    return {
        expected => [map { ["main::f$_", '$s', 1, 800_001] } 1 .. 20],
    }, u => sub { $undef = 1; call_functions(); $undef = 0; return { undone => 20 } };
}

sub case_undef {
    $undef = 1;
    call_functions();
    return { expected => [], most_retained_bytes => 4096 * 4 };
}

# The talk's closures: 10 whose string is cleared, 10 whose string is kept.
sub generator {
    my $offset = shift;
    my $s;
    $s = (chr(ord("a") + $offset)) x 800000;
    return { info => sub { return length $s }, clear => sub { undef $s; return } };
}

sub case_closures {
    @kept = map { generator($_) } 1 .. 20;
    $_->{clear}->() for @kept[0 .. 9];
    return { expected => [], live_strings_bytes => 8_000_000 };
}

# Closures that have run: the pad of each retains a buffer of its own.
sub maker {
    my $letter = shift;
    return sub { my $own = $letter x 300_000; return length $own };
}

sub case_closure_pads {
    @kept = map { maker($_) } 'a' .. 'e';
    $_->() for @kept;
    return { expected => [map { ['main::__ANON__', '$own', 1, 300_001] } 1 .. 5] };
}

# Recursion: the pad of each depth retains a string.
sub deep {
    my ($depth, $stop, $within) = @_;
    my $string = chr(97 + $depth % 26) x 100_000;
    if ($depth < $stop) { deep($depth + 1, $stop, $within) }
    elsif ($within) { $within->() }
    return;
}

sub case_recursion {
    deep(1, 45, undef);
    return { expected => [map { ['main::deep', '$string', $_, 100_001] } 1 .. 45] };
}

# The same while the code runs at depth 20: strings of depths 1 to 20 are live, the deeper ones
# retained.
sub case_recursion_within {
    deep(1, 45, undef);
    deep(1, 20, sub {
        Oracle::serve({
            case => 'recursion_within',
            expected => [map { ['main::deep', '$string', $_, 100_001] } 21 .. 45],
            live => [map { ['main::deep', '$string', $_] } 1 .. 20],
        });
        exit 0;
    });
    return;
}

# The code keeps its constant's buffer in use; the lexical shares it while the code runs and retains
# none afterwards.
sub constant_user { my $copy = "constant text " x 20_000; return length $copy }
sub other_constant { return length("another one " x 30_000) }

sub case_constants {
    constant_user();
    other_constant();
    return { expected => [], constant_bytes => 280_000 };
}

# perl frees the string of a `local` variable on return.
sub local_user { local our $localized = (chr(97 + $_[0])) x 500_000; return length $localized }

sub case_local {
    local_user($_) for 1 .. 3;
    return { expected => [], absent => ['localized'] };
}

sub case_small_strings {
    my $count = $SIZE // 50_000;
    @kept = map { 'k' x (1 + $_ % 40) } 0 .. $count - 1;
    my ($bytes, $short) = (0, 0);
    for (@kept) { $bytes += length; $short++ if length() <= 15 }
    return { expected => [], least_strings => $count, least_payload_bytes => $bytes, least_short => $short };
}

sub case_hashes {
    my $count = $SIZE // 30_000;
    %kept = map { ("key number $_ $secret" => $_) } 1 .. $count;
    return { expected => [], least_keys => $count };
}

# One copy-on-write buffer that 51 scalars own.
sub case_cow {
    my $original = text('w', 1_000_000);
    @kept = ($original) x 50;
    return { expected => [], shared_bytes => 1_000_000, owners => 50 };
}

# Strings that start inside their buffers (SVf_OOK).
sub case_ook {
    my $front = text('o', 700_000);
    substr $front, 0, 100_000, '';
    # Perl either moves the start of the string or its bytes.
    my $bitten = text('p', 600_000);
    $bitten =~ s/^.// for 1 .. 300;
    push @kept, \$front, \$bitten;
    return { expected => [], offset_strings => 1, live_strings_bytes => 600_000 + 599_700 };
}

# Emptied arrays and hashes that keep their storage.
sub array_user { my @list = (1 .. $_[0]); my %table = map { $_ => 1 } 1 .. $_[1]; return scalar(@list) + keys %table }

# A variable that was a string and is now a number has a value, and so has one that keeps its value
# between calls. Perls before 5.30 allow `my $cache if 0` for the latter, as old programs have it.
{ my $counter = ''; sub next_number { return $counter = length $counter ? $counter + 1 : 'c' x ($_[0] // 1) } sub to_number { return $counter = 42 } }
BEGIN {
    eval($] < 5.030 ? q{ sub cached { no warnings; my $cache if 0; $cache = 'v' x 300_000 if !defined $cache; return length $cache } 1 }
        : q{ { my $cache; sub cached { $cache = 'v' x 300_000 if !defined $cache; return length $cache } } 1 }) or die $@;
}

sub case_numbers {
    next_number(700_000);
    to_number();
    cached();
    return { expected => [], absent => ['$counter', '$cache'], live_strings_bytes => 300_000 };
}

sub case_arrays {
    array_user(200_000, 20_000);
    return { expected => [], containers => [['main::array_user', '@list', 1], ['main::array_user', '%table', 1]] };
}

{
    use feature 'state';
    sub state_user { state $remembered = chr(97 + $_[0]) x 400_000; return length $remembered }
}

sub case_state {
    state_user(3);
    state_user(4);
    return { expected => [], absent => ['$remembered'], live_strings_bytes => 400_000 };
}

our $formatted = '';
format REPORT =
@<<<<<<<<<<<<<<<<<<
$formatted
.

sub case_formats {
    open my $sink, '>', '/dev/null' or die;
    my $old = select $sink;
    $~ = 'REPORT';
    for (1 .. 50) { $formatted = 'line ' . $_ x 20; write }
    select $old;
    return { expected => [] };
}

sub case_string_evals {
    for my $number (1 .. 20) { eval "my \$e = 'x' x (1000 + \$number); length \$e" or die $@ }
    eval 'sub evaluated { my $inner = chr(98) x (250_000 + shift); return length $inner } 1' or die $@;
    evaluated(1);
    return { expected => [['main::evaluated', '$inner', 1, 250_002]] };
}

sub outermost {
    my $x = text('x', 110_000);
    my $in = sub {
        my $y = text('y', 120_000) . length $x;
        my $in2 = sub { my $z = text('z', 130_000) . length $y; return length $z };
        $in2->();
        return $in2;
    };
    my $made = $in->();
    $made->();
    push @kept, $in, $made;
    return;
}

sub case_nested {
    outermost();
    # Live closures capture $x and $y, which are therefore in use. The inner closure retains $z.
    return { expected => [['main::__ANON__', '$z', 1, 130_000]], absent => ['$x', '$y'] };
}

sub by_text { my $both = $a . $b . text('-', 90_000); return $a cmp $b || length $both }

sub case_sortsubs {
    @kept = sort by_text map { "s$_" } 1 .. 50;
    @kept = sort { my $inline = text('i', 50_000); $a cmp $b || length $inline } @kept;
    return { expected => [['main::by_text', '$both', 1, 90_001]] };
}

sub case_ours {
    our $shared_text = text('u', 500_000);
    $package_text = text('v', 500_000);
    # A package variable without a value keeps its buffer, but no pad retains it.
    our $emptied = text('w', 600_000);
    $emptied = undef;
    return { expected => [], live_strings_bytes => 1_000_000, other_bytes => 600_000 };
}

package Tie { sub TIESCALAR { return bless [] } sub FETCH { return 't' x 1000 } sub STORE { } }

sub case_magic {
    tie my $tied, 'Tie';
    my $read = $tied . '';
    my $matched = text('m', 200_000);
    $matched =~ /m{3}/g;
    local $ENV{ORACLE_TEXT} = text('e', 10_000);
    push @kept, \$tied, \$matched, bless({ name => $read }, 'Tie::Thing'), qr/(a+)b/, \substr($matched, 2, 4), *STDOUT{IO}, \pos($matched);
    return { expected => [] };
}

sub größe { my $länge = "\x{263a}" x (100_000 + $_[0]); return length $länge }

sub case_utf8 {
    größe(1);
    return { expected => [['main::größe', '$länge', 1, 300_001]] };
}

sub case_weak {
    require Scalar::Util;
    my $strong = { text => text('s', 300_000) };
    my $weak = $strong;
    Scalar::Util::weaken($weak);
    my $other = $strong;
    Scalar::Util::weaken($other);
    push @kept, $strong, \$weak, \$other;
    return { expected => [], live_strings_bytes => 300_000 };
}

package Dying { sub DESTROY { my $last = 'd' x (150_000 + $$ % 2); main::stop('destroy', length $last); kill 'KILL', $$ } }

sub stop { Oracle::serve({ case => $_[0], expected => [] }) }

sub case_destroy { { my $object = bless {}, 'Dying' } return }

sub case_regex {
    my $subject = text('r', 200_000);
    $subject =~ /^r+(?{ stop('regex') })/;
    exit 0;
}

sub case_fork {
    call_functions();
    # The kernel closes the parent's end of the pipe when the parent ends, and the child then ends
    # too.
    pipe my $ends, my $lives or die;
    my $child = fork // die;
    if (!$child) { close $lives; close STDOUT; sysread $ends, my $nothing, 1; kill 'KILL', $$ }
    push @kept, $lives;
    return { child => $child, expected => [map { ["main::f$_", '$s', 1, 800_001] } 1 .. 20] };
}

sub thread_body {
    my ($number, $gate) = @_;
    my $done = thread_text($number);
    { lock $$gate; $$gate += 1; threads::shared::cond_broadcast($gate); threads::shared::cond_wait($gate) while $$gate < 1000 }
    return $done;
}

sub thread_text { my $threaded = chr(100 + $_[0]) x (500_000 + $_[0]); return length $threaded }

sub case_threads {
    require threads;
    require threads::shared;
    my $gate = 0;
    &threads::shared::share(\$gate);
    @kept = map { threads->create(\&thread_body, $_, \$gate) } 1 .. 3;
    { lock $gate; threads::shared::cond_wait(\$gate) while $gate < 3 }
    return { expected => [], threads => 3, threaded => [map { ['main::thread_text', '$threaded', 1, 500_002] } 1 .. 3] };
}

# Secrets in values, keys, constants and retained buffers.
sub secret_user { my $hidden = $secret x (20_000 + $_[0]); return length $hidden }
sub secret_constant { return length(our $holder = $_[0]) }

sub case_secret {
    secret_user(1);
    secret_constant($secret x 10);
    %kept = map { ("$secret$_" => "$_$secret") } 1 .. 1000;
    @kept = ($secret) x 1000;
    eval 'my $x = "' . $secret . '" x 1000; sub secret_code { return length "' . $secret . '" } 1' or die $@;
    return { expected => [['main::secret_user', '$hidden', 1, 1000]] };
}

# A heap of many scalars: 5 million of about 200 bytes each fill 1 GiB.
sub case_big {
    my $count = $SIZE // 5_000_000;
    $#kept = $count - 1;
    for my $index (0 .. $count - 1) { $kept[$index] = chr(97 + $index % 26) x (20 + $index % 240) }
    return { expected => [], least_strings => $count };
}

# Allocates and frees without end; answers no command.
sub case_hot {
    syswrite STDOUT, "{\"case\":\"hot\",\"pid\":$$}\n";
    my (@list, %table);
    for (my $turn = 0;; $turn++) {
        push @list, chr(97 + $turn % 26) x ($turn * 7919 % 9000);
        $table{ $turn % 5000 } = [$turn, "$turn" x 3];
        splice @list, 0, 300 if @list > 1000;
        hot_user($turn);
        %table = () if $turn % 20_000 == 0;
    }
    return;
}

sub hot_user { my $own = 'h' x ($_[0] * 31 % 70_000); my @own = (1 .. $_[0] % 100); return hot_deep($_[0] % 12) }
sub hot_deep { my $left = shift; my $string = 'q' x (5000 * $left); return $left ? hot_deep($left - 1) : 0 }

my $setup = main->can("case_$case") // die "retained.pl: no case $case\n";
my ($ready, %answers) = $setup->();
Oracle::serve({ case => $case, %$ready }, %answers);
# A normal exit would warn about threads that still wait.
kill 'KILL', $$ if $ready->{threads};
exit 0;
