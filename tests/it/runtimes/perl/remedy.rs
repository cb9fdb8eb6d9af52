//! The remedy: how many bytes each `undef` releases, predicted and actual.

use crate::support::perl::{PerlLedger, list, number, start};
use crate::support::{Outcome, here, perls, strandline};

/// Allowed error of the prediction: pages at the ends of buffers, and the memory used by the calls.
const TOLERANCE_BYTES: u64 = 512 << 10;

#[test]
fn undef_releases_the_predicted_bytes() -> Outcome {
    for perl in perls::all(here!()) {
        let mut subject = start(&perl, "functions")?;
        let pid = subject.pid();
        let before = PerlLedger::of(pid)?;
        let remedy = list(&before.document["remedies"]).iter().find(|remedy| remedy["id"] == "perl_undef");
        let remedy = remedy.ok_or_else(|| format!("no perl_undef in {}", before.document["remedies"]))?;
        let predicted = remedy["predicted_bytes"].as_u64().ok_or("no prediction")?;
        let text = format!("{}{}", remedy["how"], remedy["cost"]);
        assert!(text.contains("$s") && text.contains("main::f"), "it names no lexical: {text}");
        subject.ask(b'u')?;
        subject.at_rest()?;
        strandline::json(&["reclaim", "--json", "--remedy", "malloc_trim", &pid.to_string()])?;
        let after = PerlLedger::of(pid)?;
        // File pages change with other activity on the machine.
        let own = |seen: &PerlLedger| number(&seen.document, "kernel.anonymous_bytes");
        // Memory that malloc_trim could give back anyway is not counted for the remedy.
        let trim = strandline::predicted(&before.document, "malloc_trim").unwrap_or(0);
        let actual = own(&before)?.saturating_sub(own(&after)?);
        let summary = format!("{perl}: predicted {predicted}, and {trim} of malloc_trim; actual {actual}");
        println!("{summary}");
        assert!(actual + TOLERANCE_BYTES >= predicted, "{summary}");
        assert!(actual <= predicted + trim + TOLERANCE_BYTES, "{summary}");
        let left: u64 = after.rows("perl.pad.retained").iter().map(|row| row.1).sum();
        assert!(left < 100_000, "{perl}: {left} bytes are still kept");
    }
    Ok(())
}

#[test]
fn the_view_names_the_largest_buffers() -> Outcome {
    let Some(perl) = perls::all(here!()).into_iter().next() else { return Ok(()) };
    let subject = start(&perl, "functions")?;
    let run = strandline::run(&["explain", &subject.pid_text()])?;
    assert_eq!(run.status, Some(0), "{}", run.summary());
    assert!(run.stdout.contains("main::f1 $s") || run.stdout.contains("main::f20 $s"), "{}", run.stdout);
    crate::support::check_no_control_characters(&run.stdout)?;
    Ok(())
}
