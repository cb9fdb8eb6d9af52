//! Names of types are reported, and no other contents of memory.

use crate::support::sbcl::{Sbcl, explain, figures};
use crate::support::{Outcome, check_no_control_characters, for_any, here, strandline};

const MARKER: &str = "STRANDSECRETLINE";

#[test]
fn contents_of_strings_and_symbols_stay_private() -> Outcome {
    for_any(Sbcl::all(here!()), |sbcl| {
        let subject = sbcl.start("secret", &[&format!("secret={MARKER}")])?;
        let pid = subject.pid_text();
        // The report prints the command line, which any user can read, with the secret; the search
        // below excludes it.
        let commands: [&[&str]; 5] = [
            &["explain", "--rows", "all", &pid],
            &["explain", "--json", &pid],
            &["reclaim", "--dry-run", &pid],
            &["reclaim", "--json", &pid],
            &["explain", "--path-to", "MESSAGE", "--json", &pid],
        ];
        for command in commands {
            let run = strandline::run(command)?;
            let text = format!("{}{}", run.stdout, run.stderr)
                .replace(&format!("secret={MARKER}"), "")
                .to_lowercase();
            let traces = [MARKER, &MARKER[..8], &MARKER[8..], "4553444e41525453"];
            if let Some(trace) = traces.iter().find(|trace| text.contains(&trace.to_lowercase())) {
                let at = text.find(&trace.to_lowercase()).unwrap_or(0);
                let around: String = text.chars().skip(at.saturating_sub(200)).take(400).collect();
                return Err(format!("`{}` printed {trace:?}: {around}", command.join(" ")).into());
            }
        }
        Ok(())
    })
}

#[test]
fn names_of_types_are_short_and_harmless() -> Outcome {
    for_any(Sbcl::all(here!()), |sbcl| {
        let subject = sbcl.start("types", &[])?;
        let view = strandline::run(&["explain", "--rows", "all", &subject.pid_text()])?;
        check_no_control_characters(&view.stdout)?;
        let document = explain(&subject)?;
        let ours = figures(&document)?;
        let mut names = Vec::new();
        for list in ["live_by_type", "dead_by_type"] {
            for entry in ours[list].as_array().ok_or("no list by type")? {
                names.push(entry["type"].as_str().ok_or("a type without a name")?.to_owned());
            }
        }
        let bad = names.iter().find(|name| name.len() > 200 || name.chars().any(char::is_control));
        assert_eq!(bad, None);
        assert!(names.iter().any(|name| name == "lower-case"), "{names:?}");
        // The three have a space, control characters, and 5,000 letters.
        let replaced = ours["names_replaced"].as_u64().ok_or("no names_replaced")?;
        assert!(replaced >= 3, "{replaced} of three: {names:?}");
        Ok(())
    })
}
