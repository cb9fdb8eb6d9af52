#!/usr/bin/perl
# Generates one Perl program that fills lexical (or local) scalars and tells `strandline run` each step by a mark;
# the memory of the process (Vm… of /proc/PID/status) is read there. At its end it prints { "version": the perl's }.
# The program is written to --output, or printed.
#
#   --shape functions   (default) N functions with a scalar each, called in turn, in one or more cycles.
#                       Marks: c1 before the first cycle, c1f1 … c1fN after each call, c2, c2f1 …; with --mark s: s1 …
#   --shape closures    N closures kept, then N more. Marks: start, g1 … gN, (emptied,) g(N+1) … g(2N)
#   --shape recursion   a function that calls itself to depth 20; then 20 to 45, so 25 deep. Marks: r1 … r45 as the
#                       talk has them (on entry, before the scalar of that depth is filled), done
#   --shape walk        one function that is called with 17 sizes up and down. Marks: w0, w1 … w17
#
#   --shape talk        the talk's own script: the functions of --shape functions, which say their number, and the Vm lines
#                       of the process's status before the first call and after each. No marks, and a module less than
#                       with marks: for limit.pl --absolute
#
#   --functions N       of functions or closures (20; of closures in each half)
#   --size BYTES        of each scalar's string (800000); --size 800000,400000,200000: a size for each cycle
#   --cycles N          how often all functions are called (1, or as many as there are sizes)
#   --value variable|constant|function
#                       the expression: one that only the call knows; one that perl can fold when it compiles; or what
#                       one other function returns (of a constant, or of the cycle's size where there are several).
#                       In a recursion it is always a function that returns it: of a constant, as the talk has it, or not
#   --undef none|call|assign    what is done with the scalar at the end: nothing, undef($s), $s = undef
#   --storage my|local  the scalar is lexical, or a package variable made local
#   --return nothing|value|reference    what a function returns; the value goes to a variable of a block around the call
#   --second keep|clear|empty   closures: the second N are kept too; are cleared by their own clear(); or come after the
#                       array that holds the first N was emptied
#   --define before|after|shrinking     recursion: the scalar is filled before the recursive call; after it; or before
#                       it, with less from the 12th call on (and then a third time, 45 to 50)
#   --inside            at its end a mark "kept", and then what the core module B tells from inside of what subs keep
#                       (Inside.pm), in the line of JSON
#   --say               prints "sub N" on entry of function N, for limit.pl, and not the version
use strict;
use warnings;
use Getopt::Long qw(GetOptions);

my %o = (
    shape => 'functions', functions => 20, size => 800_000, value => 'variable', undef => 'none', storage => 'my',
    return => 'nothing', second => 'keep', define => 'before', mark => 'c',
);
GetOptions(\%o, 'shape=s', 'functions=i', 'size=s', 'cycles=i', 'value=s', 'undef=s', 'storage=s', 'return=s', 'second=s',
    'define=s', 'mark=s', 'inside', 'say', 'output=s') or die "$0: see the head of this file\n";
my %choices = (
    shape => 'functions closures recursion walk talk', value => 'variable constant function', undef => 'none call assign',
    storage => 'my local', return => 'nothing value reference', second => 'keep clear empty',
    define => 'before after shrinking',
);
for my $name (sort keys %choices) {
    my @known = split ' ', $choices{$name};
    die "$0: --$name is one of @known\n" unless grep { $_ eq $o{$name} } @known;
}
my @sizes = split /,/, $o{size};
die "$0: --mark takes letters\n" unless $o{mark} =~ /\A[a-z]+\z/;
die "$0: --size takes numbers\n" if !@sizes || grep { !/\A[1-9][0-9]{0,9}\z/ } @sizes;
my $size = $sizes[0];
my $cycles = $o{cycles} || @sizes;
@sizes = ($size) x $cycles if @sizes == 1;
die "$0: as many --cycles as sizes\n" if @sizes != $cycles;

my %shapes = (functions => \&functions, closures => \&closures, recursion => \&recursion, walk => \&walk, talk => \&talk);
$o{say} = 1 if $o{shape} eq 'talk';
my $used = $o{shape} eq 'talk' ? '' : $o{inside} ? "use Strandline;\nuse Inside;\n" : "use Strandline;\n";
my $strict = $o{shape} eq 'talk' ? '' : "use strict;\nuse warnings;\n";
my $program = "# Made by generate.pl.\n$strict$used" . $shapes{ $o{shape} }->();
# Which perl it was, in a line of JSON at the end.
my $told = $o{inside} ? 'Strandline::mark("kept"); Inside::say_kept();' : q(printf "{\"version\":\"%vd\"}\n", $^V;);
$program .= "$told\n" unless $o{say};
my $out = \*STDOUT;
if (defined $o{output}) { open $out, '>', $o{output} or die "$0: $o{output}: $!\n" }
print {$out} $program or die "$0: $!\n";
close $out or die "$0: $!\n";

# The functions, and the calls with a mark after each.
sub functions {
    my $several = keys %{ { map { $_ => 1 } @sizes } } > 1;
    my $text = $o{say} ? "\$| = 1;\n" : '';
    $text .= "our \$s;\n" if $o{storage} eq 'local';
    $text .= $several ? "sub value { my \$size = shift; return \"a\" x \$size; }\n" : "sub value { return \"a\" x $size; }\n"
        if $o{value} eq 'function';
    $text .= one_function($_, $several) for 1 .. $o{functions};
    for my $cycle (1 .. $cycles) {
        $text .= "Strandline::mark(\"$o{mark}$cycle\");\n";
        my $argument = $several ? $sizes[$cycle - 1] : $cycle;
        for my $n (1 .. $o{functions}) {
            my $call = "f$n($argument);";
            $call = "{ my \$x = $call }" if $o{return} ne 'nothing';
            $text .= "$call\nStrandline::mark(\"$o{mark}${cycle}f$n\");\n";
        }
    }
    return $text;
}

# The functions, and the calls with what the kernel says after each. It loads what the talk's script loads, because that
# is memory too; its pauses of a second are left out.
sub talk {
    my $text = <<'PERL';
use FindBin;
{
    package ProcVM;
    use autodie;
    sub print_proc_vm {
        open my $status, '<', "/proc/$$/status";
        while (<$status>) {
            print if /^Vm/;
        }
        close $status;
    }
}
PERL
    $text .= one_function($_, 0) for 1 .. $o{functions};
    $text .= "print \"cycle 1\\n\";\nProcVM::print_proc_vm();\n";
    $text .= "f$_(1);\nProcVM::print_proc_vm();\n" for 1 .. $o{functions};
    return $text;
}

# Function number `n`; `several`: it is called with the size.
sub one_function {
    my ($n, $several) = @_;
    my $argument = $several ? 'size' : 'offset';
    my $count = $several ? '$size' : $size;
    my %value = (
        variable => '(chr(ord("a") + ' . $n . ($several ? '' : ' + $offset') . ")) x $count",
        constant => "\"a\" x $size",
        function => $several ? 'value($size)' : 'value()',
    );
    my $text = "sub f$n {\n    my \$$argument = shift;\n";
    $text .= "    print \"sub $n\\n\";\n" if $o{say};
    $text .= "    $o{storage} \$s = $value{$o{value}};\n";
    $text .= { none => '', call => "    undef(\$s);\n", assign => "    \$s = undef;\n" }->{ $o{undef} };
    $text .= { nothing => '    return "";', value => '    return $s;', reference => '    return \\$s;' }->{ $o{return} };
    return "$text\n}\n";
}

# Closures over a scalar each; info() is there because the talk's have one, so that two closures share the scalar.
sub closures {
    my $n = $o{functions};
    my $last = 2 * $n;
    my $empty = $o{second} eq 'empty' ? "\@kept = ();\nStrandline::mark(\"emptied\");\n" : '';
    my $clear = $o{second} eq 'clear' ? '    $kept[-1]{clear}->();' . "\n" : '';
    my $next = $n + 1;
    return <<"PERL";
sub generate {
    my \$offset = shift;
    my \$s;
    \$s = (chr(ord("a") + \$offset)) x $size;
    return {
        info  => sub { return length \$s },
        clear => sub { undef(\$s) },
    };
}
my \@kept;
Strandline::mark("start");
for my \$i (1 .. $n) {
    push \@kept, generate(\$i);
    Strandline::mark("g\$i");
}
${empty}for my \$i ($next .. $last) {
    push \@kept, generate(\$i);
$clear    Strandline::mark("g\$i");
}
PERL
}

# A function that calls itself.
sub recursion {
    my $fill = "    my \$s;\n    \$s = value(\$count);\n";
    my $call = "    recur(\$count, \$limit);\n";
    my $character = $o{value} eq 'constant' ? 'ord("a")' : 'ord("a") + shift';
    my ($value, $body, $more) = ("return chr($character) x $size;", "$fill    return recur(\$count, \$limit);\n", '');
    $body = $call . $fill . "    return;\n" if $o{define} eq 'after';
    if ($o{define} eq 'shrinking') {
        $value = "my \$part = shift;\n    \$part -= 10;\n    \$part = 1 if \$part < 1;\n"
            . "    return chr(ord(\"a\")) x ($size / \$part);";
        $more = "recur(45, 50);\n";
    }
    return <<"PERL";
no warnings 'recursion';
sub value {
    $value
}
sub recur {
    my \$count = shift;
    my \$limit = shift;
    return if \$count >= \$limit;
    \$count++;
    Strandline::mark("r\$count");
$body}
recur(0, 20);
recur(20, 45);
${more}Strandline::mark("done");
PERL
}

# One function, 17 sizes in KiB.
sub walk {
    return <<'PERL';
sub value {
    my $size = shift;
    return "a" x $size;
}
sub test {
    my $size = shift;
    my $s;
    value($size);
    $s = value($size);
    return;
}
Strandline::mark("w0");
my $step = 1;
for my $kib (250, 500, 750, 1000, 750, 500, 250, 500, 750, 1000, 2000, 1000, 750, 500, 250, 500, 750) {
    test($kib * 1024 - 4);
    Strandline::mark("w$step");
    $step++;
}
PERL
}
