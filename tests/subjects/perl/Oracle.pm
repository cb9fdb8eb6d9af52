package Oracle;
# Perl's own figures of its memory, with which strandline's must agree.
#
# This module knows one of perl's structures: the head of a scalar (three words, and the arena's
# first head; sv.h). It asks the core module B about all else: it turns the address of any head in
# an arena into an object of B. It finds the interpreter's count of heads (PL_sv_count) by its
# behaviour: the word that grows by the number of scalars made.
#
# A child process takes the figures, so that taking them does not change the parent. The child reads
# heads, CUR and LEN from the parent's memory, and asks B about its copy. It fails if these differ
# for code outside this package.
#
# It prints sizes, addresses and names of code, and never the contents of strings.
use strict;
use warnings;
use B ();
use DynaLoader ();

my $VERSION_NUMBER = $];
my ($COUNT_AT, $ROOT_AT) = (0, 0);
my @keep;
my ($before, $after, $again) = ('') x 3;

# The bytes at an address.
sub bytes_at { return unpack "P$_[1]", pack 'J', $_[0] }
sub word_at { return unpack 'J', unpack 'P8', pack 'J', $_[0] }

sub grow { my ($scalars) = @_; push @keep, 7 for 1 .. $scalars; return }

# Finds PL_sv_count: an exported variable, or with ithreads the interpreter's word that grows by the
# number of scalars made.
sub find_count {
    my $program = DynaLoader::dl_load_file('', 0);
    my $exported = DynaLoader::dl_find_symbol($program, 'PL_sv_count');
    if ($exported) {
        ($COUNT_AT, $ROOT_AT) = ($exported, DynaLoader::dl_find_symbol($program, 'PL_sv_arenaroot'));
        return;
    }
    my $interpreter = word_at(symbol($program, 'PL_curinterp'));
    my $bytes = unpack 'S', bytes_at(symbol($program, 'PL_interp_size'), 2);
    for my $round (1 .. 2) {
        @keep = ();
        $before = bytes_at($interpreter, $bytes);
        grow(997);
        $after = bytes_at($interpreter, $bytes);
        grow(1009);
        $again = bytes_at($interpreter, $bytes);
    }
    my @words = map { [unpack 'J*', $_] } $before, $after, $again;
    my @found = grep {
        $words[1][$_] - $words[0][$_] == 997 && $words[2][$_] - $words[1][$_] == 1009
    } 0 .. $#{ $words[0] };
    @found == 1 or die 'Oracle: ' . @found . " words of the interpreter count scalars\n";
    @keep = ();
    # PL_sv_arenaroot is near (intrpvar.h). The first head of an arena holds its number of slots and
    # no flags; `heads` checks the number of heads in the chain against the count.
    $COUNT_AT = $interpreter + 8 * $found[0];
    for my $at (map { $COUNT_AT + 8 * $_ } 1 .. 4) {
        my $address = word_at($at);
        next if $address < 65536 || $address % 8;
        my ($slots, $flags) = unpack 'LL', bytes_at($address + 8, 8);
        $ROOT_AT = $at if $flags == 0 && $slots > 100 && $slots < 1000;
    }
    $ROOT_AT or die "Oracle: no chain of arenas near the count\n";
    return;
}

sub symbol {
    my ($program, $name) = @_;
    return DynaLoader::dl_find_symbol($program, $name)
        // DynaLoader::dl_find_symbol(scalar DynaLoader::dl_load_file("libperl.so.$1", 0), $name)
        // die "Oracle: this perl does not export $name\n";
}

# Reads the parent's memory.
sub reader_of {
    my ($memory) = @_;
    return sub {
        my ($address, $bytes) = @_;
        sysseek($memory, $address, 0) && sysread($memory, my $read, $bytes) == $bytes or die "Oracle: nothing at $address\n";
        return $read;
    };
}

# All heads in use: address, sv_any, references, flags and sv_u; and the interpreter's own count.
sub heads {
    my ($at) = @_;
    my $count = unpack 'J', $at->($COUNT_AT, 8);
    my $arena = unpack 'J', $at->($ROOT_AT, 8);
    my (@used, $free, $arenas);
    while ($arena) {
        my ($next, $slots, $flags) = unpack 'JLL', $at->($arena, 16);
        $flags == 0 && $slots > 1 && $slots < 1e6 or die "Oracle: no arena at $arena: $slots slots, flags $flags\n";
        $arenas++;
        my $heads = $at->($arena, 24 * $slots);
        for my $slot (1 .. $slots - 1) {
            my ($any, $references, $flags, $word) = unpack 'JLLJ', substr $heads, 24 * $slot, 24;
            # A free head has the flags SVTYPEMASK.
            if ($flags == 0xff) { $free++ }
            else { push @used, [$arena + 24 * $slot, $any, $references, $flags, $word] }
        }
        $arena = $next;
    }
    # A value under destruction may be counted and already have the type of a free head.
    abs(@used - $count) <= 4 or die 'Oracle: ' . @used . " heads in use, the interpreter says $count\n";
    return (\@used, $count, $free // 0, $arenas);
}

# Whether code belongs to this package, by name or as an anonymous sub.
sub is_own {
    my ($cv) = @_;
    my $stash = $cv->STASH;
    return ref $stash && $stash->isa('B::HV') && $stash->NAME eq __PACKAGE__;
}

sub name_of {
    my ($cv) = @_;
    return 'main (file scope)' if $$cv == ${ B::main_cv() };
    my $named = $cv->can('NAME_HEK') && $cv->NAME_HEK;
    if (defined $named && length $named) {
        my $stash = $cv->STASH;
        return text($stash->NAME) . '::' . text($named);
    }
    my $gv = $cv->GV;
    # The code of an eval or of a file has no name.
    return ($cv->STASH->isa('B::HV') ? text($cv->STASH->NAME) : 'main') . ' (file scope)' unless $gv && $gv->isa('B::GV');
    my $stash = $gv->STASH;
    return ($stash->isa('B::HV') ? text($stash->NAME) : '?') . '::' . text($gv->NAME);
}

# Encodes as UTF-8; takes bytes that are no UTF-8 for Latin-1, in which old perls return names.
sub text {
    my ($text) = @_;
    my $copy = $text;
    utf8::encode($text) if utf8::is_utf8($text) || !utf8::decode($copy);
    return $text;
}

# The type number of an example.
sub type_of { return B::svref_2object($_[0])->SvTYPE }

format EXAMPLE =
.

# Types of scalars that have CUR and LEN.
my %string_type = do {
    my ($pv, $pviv, $pvnv, $pvmg) = ('a', 1, 1.5, 'a');
    $_ .= '' for $pviv, $pvnv;
    $pvmg =~ /a/g;
    pos $pvmg;
    map { type_of($_) => 1 } \$pv, \$pviv, \$pvnv, \$pvmg, \substr($pv, 0), ref ${ \qr/x/ } ? () : ${ \\qr/x/ };
};
my $LV_TYPE = type_of(\substr(my $text = 'a', 0));
my $CV_TYPE = type_of(\&type_of);
my $FM_TYPE = type_of(*EXAMPLE{FORMAT});

# Flags of sv.h, the same since 5.18: SVp_POK and the like; SVf_IsCOW since 5.20.
my ($OK, $POK, $FAKE, $COW, $PADTMP, $OOK) = (0xff00, 0x4400, 0x0100_0000, 0x1000_0000, 0x0002_0000, 0x0200_0000);
my $READONLY = B::SVf_READONLY();
my ($OUTER, $STATE, $OUR) = $VERSION_NUMBER >= 5.021_007 ? ($FAKE, 2, 16) : ($FAKE, 0x8000_0000, 0x40000);

# Adds each entry of the code's pads that owns a buffer: name, kind, depth, CUR, LEN and state.
sub pads {
    my ($cv, $entries, $strings) = @_;
    return if $cv->CvFLAGS & B::CVf_ISXSUB();
    my $list = $cv->PADLIST;
    return unless $$list && $list->can('MAX') && $list->MAX >= 0;
    my $is_own = is_own($cv);
    my $depth_now = $is_own ? runs_in_parent($cv) : $cv->DEPTH;
    my $is_main = $$cv == ${ B::main_cv() };
    $depth_now = 1 if $is_main && $depth_now == 0;
    my @names = $list->ARRAYelt(0)->ARRAY;
    my $sub = name_of($cv);
    for my $depth (1 .. $list->MAX) {
        my $pad = $list->ARRAYelt($depth);
        next unless $$pad && $pad->can('ARRAY');
        my @slots = $pad->ARRAY;
        for my $index (1 .. $#slots) {
            my ($sv, $name) = ($slots[$index], $names[$index]);
            next unless $$sv && $sv->can('SvTYPE');
            my $entry = { %{ $strings->{$$sv} // next } };
            $is_own || agrees($sv, $entry) or die "Oracle: B has other figures of $$sv\n";
            my $called = $name && $name->can('PV') ? $name->PV : undef;
            my $flags = defined $called ? $name->FLAGS : 0;
            next if defined $called && $flags & $OUTER;
            $entry->{sub} = $sub;
            $entry->{cv} = $$cv;
            $entry->{depth} = $depth;
            $entry->{running} = $depth <= $depth_now ? 1 : 0;
            $entry->{named} = defined $called && length $called && $called ne '&' ? 1 : 0;
            $entry->{name} = $entry->{named} ? text($called) : '';
            # A constant of the code has an empty name; an operator's target has none.
            $entry->{constant} = defined $called && !length $called ? 1 : 0;
            $entry->{state} = $flags & $STATE ? 1 : 0;
            $entry->{our} = $flags & $OUR ? 1 : 0;
            push @$entries, $entry;
        }
    }
    return;
}

# Whether B has the same figures of a scalar with a buffer.
sub agrees {
    my ($sv, $entry) = @_;
    my $pv = bless \(my $address = $$sv), 'B::PV';
    return $sv->FLAGS == $entry->{flags} && $pv->LEN + $entry->{offset} == $entry->{len}
        && (!$entry->{string} || $pv->CUR == $entry->{cur});
}

# Whether the code is a function of this package that the parent is running.
sub runs_in_parent { return name_of($_[0]) =~ /\AOracle::(?:serve|say_figures)\z/ ? 1 : 0 }

# CUR, LEN and decoded flags of a scalar that owns a buffer.
sub buffer {
    my ($at, $head) = @_;
    my ($sv, $any, $references, $flags, $word) = @$head;
    my $type = $flags & 0xff;
    return unless $string_type{$type} && $any && $word && !($flags & 0x800);
    # A variable of type PVLV may hold a glob.
    return if $type == $LV_TYPE && ($flags & 0xc000) == 0x8000;
    # xpv_cur and xpv_len_u: the third and the fourth word of the body.
    my ($cur, $len) = unpack 'JJ', $at->($any + 16, 16);
    return unless $len;
    my $offset = 0;
    if ($flags & $OOK) {
        $offset = unpack 'C', $at->($word - 1, 1);
        $offset ||= unpack 'J', $at->($word - 9, 8);
    }
    return {
        sv => $sv, cur => $flags & $POK ? $cur : 0, len => $len + $offset, offset => $offset, buffer => $word - $offset,
        flags => $flags, value => $flags & $OK ? 1 : 0, string => $flags & $POK ? 1 : 0, cow => $flags & $COW ? 1 : 0,
        temporary => $flags & $PADTMP ? 1 : 0, readonly => $flags & $READONLY ? 1 : 0, references => $references,
    };
}

# Why the buffer of a pad's entry is not needed: the entry has no value, or it is an operator's
# target and its code does not run at that depth. Returns '' for a buffer in use, such as that of a
# lexical with a value (`my $x if 0` keeps one from call to call).
sub why_retained {
    my ($entry) = @_;
    return '' if $entry->{our};
    # Constants are in use whether their code runs or not.
    return '' if !$entry->{named} && ($entry->{readonly} || $entry->{constant});
    return 'no value' if !$entry->{value};
    return '' if $entry->{named} || $entry->{running};
    return 'not running';
}

sub json_string {
    my $text = text($_[0]);
    $text =~ s/([\x00-\x1f"\\])/sprintf '\\u%04x', ord $1/ge;
    return qq("$text");
}

sub json {
    my ($value) = @_;
    return '{' . join(',', map { json_string($_) . ':' . json($value->{$_}) } sort keys %$value) . '}' if ref $value eq 'HASH';
    return '[' . join(',', map { json($_) } @$value) . ']' if ref $value eq 'ARRAY';
    return 'null' unless defined $value;
    return $value =~ /\A-?(?:0|[1-9][0-9]{0,18})\z/ ? $value : json_string($value);
}

# All figures, as a structure.
sub figures {
    my ($at) = @_;
    my ($heads, $count, $free, $arenas) = heads($at);
    my (%types, @codes, @entries, %buffers, %values);
    my %strings = (strings => 0, payload_bytes => 0, short_strings => 0, buffers_bytes => 0);
    for my $head (@$heads) {
        my ($address, $type) = ($head->[0], $head->[3] & 0xff);
        $types{$type}++;
        push @codes, bless \(my $copy = $address), $type == $FM_TYPE ? 'B::FM' : 'B::CV'
            if $type == $CV_TYPE || $type == $FM_TYPE;
        my $entry = buffer($at, $head) or next;
        $values{$address} = $entry;
        my $buffer = $buffers{ $entry->{buffer} } //= { len => $entry->{len}, owners => 0, strings => 0 };
        $buffer->{owners}++;
        $buffer->{strings}++ if $entry->{string};
        $strings{buffers_bytes} += $entry->{len};
        next unless $entry->{string};
        $strings{strings}++;
        $strings{payload_bytes} += $entry->{cur};
        $strings{short_strings}++ if $entry->{cur} <= 15;
    }
    pads($_, \@entries, \%values) for @codes;
    my $retained = retained(\@entries, \%buffers);
    return {
        sv_count => $count, live_heads => scalar @$heads, free_heads => $free, arenas => $arenas,
        types => { map { ("t$_" => $types{$_}) } keys %types },
        %strings,
        distinct_buffers => scalar(keys %buffers),
        distinct_bytes => sum(map { $_->{len} } values %buffers),
        shared_buffers => scalar(grep { $_->{owners} > 1 } values %buffers),
        shared_bytes => sum(map { $_->{len} } grep { $_->{owners} > 1 } values %buffers),
        strings_in_use => scalar(grep { $_->{strings} > 0 } values %buffers)
            - scalar(grep { $_->{string} && $_->{owners} == 1 } @{ $retained->{retained} }),
        shared_strings => scalar(grep { $_->{strings} > 1 } values %buffers),
        shared_string_bytes => sum(map { $_->{len} } grep { $_->{strings} > 1 } values %buffers),
        %$retained,
    };
}

sub sum { my $sum = 0; $sum += $_ for @_; return $sum }

# The buffers that pads retain, and their sums.
sub retained {
    my ($entries, $buffers) = @_;
    my (@retained, %seen);
    for my $entry (@$entries) {
        my $why = why_retained($entry) or next;
        next if $seen{ $entry->{buffer} }++;
        my $owners = ($buffers->{ $entry->{buffer} } // { owners => 1 })->{owners};
        push @retained, { (map { ($_ => $entry->{$_}) } qw(sub name named depth cur len buffer cow temporary cv string)),
            why => $why, owners => $owners };
    }
    my @alone = grep { $_->{owners} == 1 } @retained;
    return {
        retained => [sort { $b->{len} <=> $a->{len} || $a->{buffer} <=> $b->{buffer} } @retained],
        retained_bytes => sum(map { $_->{len} } @alone),
        retained_lexicals_bytes => sum(map { $_->{len} } grep { $_->{named} } @alone),
        retained_temporaries_bytes => sum(map { $_->{len} } grep { !$_->{named} } @alone),
    };
}

# Prints the figures of this process as one line of JSON.
sub say_figures {
    my $child = fork;
    defined $child or die "Oracle: fork: $!\n";
    if ($child) {
        waitpid $child, 0;
        return;
    }
    my $parent = getppid;
    my $line = eval {
        open my $memory, '<:raw', "/proc/$parent/mem" or die "Oracle: the memory of $parent: $!\n";
        json(figures(reader_of($memory)));
    };
    $line = json({ error => "$@" }) unless defined $line;
    $line .= "\n";
    my $done = 0;
    while ($done < length $line) {
        my $wrote = syswrite STDOUT, $line, length($line) - $done, $done;
        last unless defined $wrote;
        $done += $wrote;
    }
    # A normal exit would run END blocks and destructors of the parent's objects.
    kill 'KILL', $$;
    return;
}

# Prints the ready line, then answers commands, a byte each, until q or the end of input: o prints
# the figures, `%answers` has the others.
sub serve {
    my ($ready, %answers) = @_;
    my $line = json({ version => sprintf('%vd', $^V), pid => $$, %$ready }) . "\n";
    syswrite STDOUT, $line;
    undef $line;
    while (sysread STDIN, my $command, 1) {
        last if $command eq 'q';
        if ($command eq 'o') { say_figures() }
        elsif ($answers{$command}) { my $answer = json($answers{$command}->()) . "\n"; syswrite STDOUT, $answer }
    }
    return;
}

find_count();
1;
