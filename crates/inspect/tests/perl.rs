//! Compares what the system's perl reports about itself with what is read from outside.

#![cfg(test)]

use std::io::BufRead;
use std::process::{Command, Stdio};

use strandline_inspect::explain::{Options, explain};
use strandline_inspect::facts::Explanation;
use strandline_runtimes::perl::facts::{BufferKind, Interpreter, Perl};
use strandline_runtimes::perl::layout::RELEASES;

/// Runs a script until it prints that it is ready, and explains it; also returns its other lines.
/// `None`, with a message, if that is not possible here.
fn look(test: &str, script: &str) -> Option<(Vec<String>, Explanation)> {
    let skipped = |why: String| eprintln!("skipped: {test}: {why}");
    let program =
        Command::new("perl").args(["-e", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = program else {
        skipped("no perl here: apt-get install perl".to_owned());
        return None;
    };
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let lines: Vec<String> = lines.take_while(|line| line != "ready").collect();
    let explanation = explain(child.id().cast_signed(), &Options::default());
    child.kill().unwrap();
    child.wait().unwrap();
    let explanation = explanation.map_err(|error| skipped(error.to_string())).ok()?;
    let runtime = explanation.runtimes.iter().find(|runtime| runtime.name == "perl").unwrap();
    let version = runtime.version.as_deref().unwrap_or("");
    if !RELEASES.iter().any(|release| version.starts_with(&format!("5.{}.", release.version))) {
        skipped(format!("{version} has no layout"));
        return None;
    }
    Some((lines, explanation))
}

fn interpreter(explanation: &Explanation) -> (Interpreter, bool) {
    let runtime = explanation.runtimes.iter().find(|runtime| runtime.name == "perl").unwrap();
    let perl: Perl = runtime.details("perl").unwrap();
    let [interpreter] = <[Interpreter; 1]>::try_from(perl.interpreters).unwrap();
    assert_eq!(interpreter.sv_count, interpreter.heads.live);
    (interpreter, perl.ithreads)
}

/// Prints LEN, depth and sub of each large buffer in the pads of two subs.
const PADS: &str = r#"
    use B;
    sub big { my $s = chr(97 + $_[0]) x 800_000; return }
    sub deep { my ($n) = @_; my $s = chr(97) x (100_000 * $n); deep($n - 1) if $n > 1; return }
    big(1); deep(3);
    for my $sub (\&big, \&deep) {
        my @lists = B::svref_2object($sub)->PADLIST->ARRAY;
        for my $depth (1 .. $#lists) {
            for my $sv ($lists[$depth]->ARRAY) {
                print $sv->LEN, " $depth ", B::svref_2object($sub)->GV->NAME, "\n"
                    if ref $sv eq 'B::PV' && $sv->LEN > 4096;
            }
        }
    }
    $| = 1; print "ready\n"; <STDIN>;
"#;

#[test]
fn the_systems_perl_agrees() {
    let Some((lines, explanation)) = look("the_systems_perl_agrees", PADS) else { return };
    let (interpreter, _) = interpreter(&explanation);
    assert_eq!(lines.len(), 4);
    for line in lines {
        let [bytes, depth, name] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
        let holder = format!("main::{name} $s (depth {depth})");
        let found = interpreter.retained.top.iter().find(|buffer| buffer.holder == holder);
        assert_eq!(found.map(|buffer| buffer.bytes), bytes.parse().ok(), "{holder}");
    }
}

/// Numbers that were strings, globals with data in their names, an empty array in a file that runs.
const VALUES: &str = r#"
    sub text { return chr(97 + $_[0]) x $_[1] }
    { my $count = text(1, 6_000_000); $count = 42; sub next_id { return $count++ } }
    our $number = text(2, 700_000); $number = 7;
    our $emptied = text(3, 500_000); $emptied = undef;
    ${"user_$ENV{HOME}"} = text(4, 400_000); ${"user_$ENV{HOME}"} = undef;
    my @list = (1 .. 100_000); @list = ();
    $| = 1; print "ready\n"; <STDIN>;
"#;

#[test]
fn values_are_not_called_kept() {
    let Some((_, explanation)) = look("values_are_not_called_kept", VALUES) else { return };
    let (interpreter, ithreads) = interpreter(&explanation);
    let top = &interpreter.retained.top;
    let holders: Vec<&str> = top.iter().map(|buffer| buffer.holder.as_str()).collect();
    assert!(!holders.iter().any(|name| name.contains("$count") || name.contains("$number")), "{holders:?}");
    assert!(!holders.iter().any(|name| name.contains("user_")), "{holders:?}");
    let unnamed = holders.iter().filter(|name| name.starts_with("a package variable, head at 0x")).count();
    assert_eq!(holders.contains(&"$main::emptied"), ithreads, "{holders:?}");
    assert_eq!(unnamed, if ithreads { 1 } else { 2 }, "{holders:?}");
    let array = top.iter().find(|buffer| buffer.kind == BufferKind::Array).unwrap();
    assert_eq!(array.holder, "main (file scope) @list (depth 1)");
    let remedy = explanation.remedies.iter().find(|remedy| remedy.id == "perl_undef").unwrap();
    assert!(remedy.how.contains("@list") && !remedy.how.contains("$count"), "{}", remedy.how);
}
