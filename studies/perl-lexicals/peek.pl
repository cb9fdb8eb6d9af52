#!/usr/bin/perl
# The talk's small experiments: what becomes of a scalar and of its string's buffer, read from inside the process.
#
#   perl -I PROBES/perl peek.pl EXPERIMENT [--dump]
#
# At each step the scalar's head is read by the core module B (address, reference count, flags, CUR, LEN), and the
# buffer's address from the head itself (its third word since Perl 5.10, `sv_u`); each step is a mark for
# `strandline run` too. Prints one line of JSON, { "version": the perl's, STEP: { … } }:
#
#   sv, buffer   which head, which buffer: 1 for the first address seen, 2 for the next, …; buffer 0: none
#   cur, len     CUR: bytes of the string; LEN: bytes allocated for it (0 where there is no body or no buffer)
#   references   the reference count
#   defined, string, integer     the flags that say so, as 1 or 0
#   shared       1: the buffer is marked as copy-on-write, from Perl 5.20 on
#   flags        SvFLAGS as a number
#
# Two buffers of one number had one address: that may be a buffer kept, or one freed and given out again by malloc.
# No content of a string is printed. With --dump, Devel::Peek's dump of each scalar goes to standard error: a test compares
# the two.
use strict;
use warnings;
use B ();
use Strandline;

my $experiment = shift;
my $dump = @ARGV && $ARGV[0] eq '--dump' && shift;
my $pointer_bytes = length pack 'p', undef;
my $pointer_format = $pointer_bytes == 8 ? 'Q' : 'L';
my (%sv_number, %buffer_number, @steps);

# Notes the state of the scalar (an alias, not a copy) under a name.
sub note {
    my $name = $_[0];
    # The reference is gone with this statement: it must not count, nor keep the scalar from being reused.
    my $object = B::svref_2object(\$_[1]);
    push @steps, state_of($name, $object);
    Strandline::mark($name);
    return;
}

# The state of B's object as JSON.
sub state_of {
    my ($name, $object) = @_;
    my ($address, $flags) = ($$object, $object->FLAGS);
    dump_of($object) if $dump;
    # A body with a string is of a type from PV on; below that the third word is something else.
    my $has_body = $object->isa('B::PV');
    my $pointer = $has_body ? pointer_at($address + $pointer_bytes + 8) : 0;
    my ($cur, $len) = $has_body && $pointer ? ($object->CUR, $object->LEN) : (0, 0);
    my $sv = number_of(\%sv_number, $address);
    my $buffer = $pointer && $len ? number_of(\%buffer_number, $pointer) : 0;
    my $is = sub { $flags & $_[0] ? 1 : 0 };
    # SVf_IOK, NOK, POK, ROK; SVf_IsCOW.
    my @shown = (
        [sv => $sv], [buffer => $buffer], [cur => $cur], [len => $len], [references => $object->REFCNT],
        [defined => $is->(0xf00)], [string => $is->(0x400)], [integer => $is->(0x100)], [shared => $is->(0x10000000)],
        [flags => $flags],
    );
    return "\"$name\":{" . join(',', map { "\"$_->[0]\":$_->[1]" } @shown) . '}';
}

# What Devel::Peek says of it. (Of a temporary of the code it says what a copy is like: a call takes copies of them.)
sub dump_of {
    no warnings 'once';
    require Devel::Peek;
    local $Devel::Peek::pv_limit = 1;
    Devel::Peek::Dump(${ $_[0]->object_2svref });
}

# The number of an address among those seen.
sub number_of {
    my ($numbers, $address) = @_;
    $numbers->{$address} = 1 + keys %$numbers unless exists $numbers->{$address};
    return $numbers->{$address};
}

# The pointer that is at an address. In a scalar's head `sv_u` comes after a pointer and two numbers of 32 bits.
sub pointer_at {
    return unpack $pointer_format, unpack "P$pointer_bytes", pack $pointer_format, $_[0];
}

my %experiments = (
    kept => sub {
        my $call = 0;
        my $big = sub {
            $call++;
            my $x;
            note("entry$call", $x);
            $x = "a" x 80000;
            note("filled$call", $x);
        };
        $big->();
        $big->();
    },

    value => sub {
        my $call = 0;
        my $big = sub {
            $call++;
            my $x;
            note("entry$call", $x);
            $x = "a" x 80000;
            note("filled$call", $x);
            return $x;
        };
        my $x1 = $big->();
        note('caller1', $x1);
        my $x2 = $big->();
        note('caller2', $x2);
    },

    reference => sub {
        my $call = 0;
        my $big = sub {
            $call++;
            my $x;
            note("entry$call", $x);
            $x = "a" x 80000;
            note("filled$call", $x);
            return \$x;
        };
        my $x1 = $big->();
        note('caller1', $$x1);
        my $x2 = $big->();
        note('caller2', $$x2);
    },

    assign => sub {
        my $call = 0;
        my $big = sub {
            $call++;
            my $x;
            note("entry$call", $x);
            $x = "a" x 80000;
            note("filled$call", $x);
            $x = undef;
            note("undef$call", $x);
            return;
        };
        $big->();
        $big->();
    },

    call => sub {
        my $call = 0;
        my $big = sub {
            $call++;
            my $x;
            note("entry$call", $x);
            $x = "a" x 80000;
            note("filled$call", $x);
            undef $x;
            note("undef$call", $x);
        };
        $big->();
        $big->();
    },

    shorter => sub {
        my $big = sub {
            my $x;
            note('entry', $x);
            $x = "a" x 80000;
            note('filled', $x);
            $x = "b";
            note('shorter', $x);
            $x = 1;
            note('number', $x);
        };
        $big->();
    },

    local => sub {
        our $x;
        my $big = sub {
            my $offset = shift;
            local $x;
            note("entry$offset", $x);
            $x = (chr(ord("a") + $offset)) x (80000 - $offset * 16);
            note("filled$offset", $x);
            return;
        };
        note('before', $x);
        $big->(1);
        note('between', $x);
        $big->(2);
        note('after', $x);
    },

    function => sub {
        my $call = 0;
        my $one = sub { my $size = shift; return "a" x $size; };
        my $big = sub {
            my $size = shift;
            $call++;
            my $x;
            note("entry$call", $x);
            $x = $one->($size);
            note("filled$call", $x);
        };
        $big->(80_000);
        $big->(40_000);
    },

    # The same with the expression in the function itself.
    own => sub {
        my $call = 0;
        my $big = sub {
            my $size = shift;
            $call++;
            my $x;
            note("entry$call", $x);
            $x = "a" x $size;
            note("filled$call", $x);
        };
        $big->(80_000);
        $big->(40_000);
    },

    closures => sub {
        my $generate = sub {
            my $offset = shift;
            my $s;
            note("entry$offset", $s);
            $s = (chr(ord("a") + $offset)) x 800000;
            note("filled$offset", $s);
            return {
                info => sub { note("$_[0]$offset", $s) },
                clear => sub { undef($s) },
            };
        };
        my $c1 = $generate->(1);
        my $c2 = $generate->(2);
        $c1->{info}->('info');
        $c1->{clear}->();
        $c1->{info}->('cleared');
        $c2->{info}->('info');
        $c2->{clear}->();
        $c2->{info}->('cleared');
    },

    # What a function's code holds before and after its calls: the constant that perl folded when it compiled, or
    # the target into which it makes the value of an expression that cannot be folded.
    code => sub {
        note_code('constant1_compiled', \&constant1, 'const');
        note_code('constant2_compiled', \&constant2, 'const');
        note_code('variable_compiled', \&variable, 'repeat');
        constant1();
        variable(1);
        note_code('constant1_called', \&constant1, 'const');
        note_code('variable_called', \&variable, 'repeat');
    },
);

sub constant1 { my $s = "a" x 80000; note('constant1_filled', $s); undef($s); return ""; }
sub constant2 { my $s = "a" x 80000; undef($s); return ""; }
sub variable { my $offset = shift; my $s = (chr(ord("a") + $offset)) x 80000; note('variable_filled', $s); return ""; }

# Notes the scalar that the first operator of a kind holds: a constant's, or its target's. In a perl with threads
# both are in the function's pad.
sub note_code {
    my ($name, $code, $kind) = @_;
    my $cv = B::svref_2object($code);
    my $op = first_op($cv->ROOT, $kind) or die "$0: no $kind in $name\n";
    my $object = $kind eq 'const' ? $op->sv : undef;
    $object = ($cv->PADLIST->ARRAY)[1]->ARRAYelt($op->targ) unless $object && $$object;
    push @steps, state_of($name, $object);
    Strandline::mark($name);
}

# The first operator of a kind (of constants: one that was folded) at or below another; false where there is none.
sub first_op {
    my ($op, $kind) = @_;
    return $op if $op->name eq $kind && ($kind ne 'const' || is_folded($op));
    return 0 unless $op->flags & B::OPf_KIDS();
    for (my $child = $op->first; $$child; $child = $child->sibling) {
        my $found = first_op($child, $kind);
        return $found if $found;
    }
    return 0;
}

# Whether a constant is one that was folded from other operators.
sub is_folded { return $_[0]->can('folded') ? $_[0]->folded : 1 }

die "usage: $0 @{[sort keys %experiments]}\n" unless defined $experiment && $experiments{$experiment} && !@ARGV;
$experiments{$experiment}->();
print '{', join(',', sprintf('"version":"%vd"', $^V), @steps), "}\n";
