//! Contents of strings, keys and constants appear in no output, and control characters in names of
//! code reach no terminal.

use crate::support::perl::{PerlLedger, command};
use crate::support::{Outcome, Subject, check_no_control_characters, here, perls, strandline};

const SECRET: &str = "STRANDSECRETLINE";

#[test]
fn contents_of_strings_reach_no_output() -> Outcome {
    for perl in perls::all(here!()) {
        let mut command = command(&perl, "secret");
        command.env("ORACLE_SECRET", SECRET);
        let subject = Subject::start_command(command)?;
        let pid = subject.pid_text();
        // The perl is read; otherwise the test would prove nothing.
        PerlLedger::of(subject.pid())?.main()?;
        for arguments in [
            &["explain", &pid][..],
            &["explain", "--rows", "all", &pid],
            &["explain", "--json", &pid],
            &["reclaim", "--dry-run", &pid],
            &["reclaim", "--json", &pid],
        ] {
            let run = strandline::run(arguments)?;
            let printed = format!("{}{}", run.stdout, run.stderr).to_lowercase();
            for trace in [SECRET, &SECRET[..8], &SECRET[8..]] {
                assert!(!printed.contains(&trace.to_lowercase()), "{perl}: {arguments:?} printed {trace}");
            }
        }
    }
    Ok(())
}

#[test]
fn names_of_code_are_harmless() -> Outcome {
    let Some(perl) = perls::all(here!()).into_iter().next() else { return Ok(()) };
    let script = r#"
        $| = 1;
        no strict 'refs';
        my $long = 'n' x 5000;
        for my $name ("esc\e[2J\e]0;owned\a", "line\nbreak", "nul\0nul", "\x{202e}right", $long, "sl/../ash") {
            my $sub = eval 'sub { my $kept = chr(97 + $_[0]) x 200000; length $kept }';
            *{"main::$name"} = $sub;
            # Named as the glob is: through a sub that is made in it.
            eval { require Sub::Util; Sub::Util::set_subname("main::$name", $sub) };
            $sub->(1);
        }
        print "ready\n";
        sysread STDIN, my $byte, 1;
    "#;
    let mut command = std::process::Command::new(&perl);
    command.args(["-e", script]);
    let subject = Subject::start_command(command)?;
    let seen = PerlLedger::of(subject.pid())?;
    let holders: Vec<&str> = seen.rows("perl.pad.retained").iter().map(|row| row.0).collect();
    assert!(holders.iter().all(|holder| holder.len() <= 600), "{holders:?}");
    for holder in &holders {
        check_no_control_characters(holder)?;
    }
    for arguments in
        [&["explain", "--rows", "all", &subject.pid_text()][..], &["explain", "--json", &subject.pid_text()]]
    {
        check_no_control_characters(&strandline::run(arguments)?.stdout)?;
    }
    Ok(())
}
