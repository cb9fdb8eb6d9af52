//! `reclaim PID`: a remedy, applied.

use strandline_inspect::facts::{Outcome, Reclamation};
use strandline_inspect::remedy::{ReclaimOptions, reclaim};

use super::arguments::Reclaim;
use super::output::{Output, complain};
use super::{Ending, Result};
use crate::report::{self, reclamation};

/// The schema of the document.
pub const SCHEMA: &str = "strandline/reclaim/1";

/// Applies the remedy and says what came of it. A refusal is "could not".
pub fn run(arguments: &Reclaim, output: &mut Output) -> Result<Ending> {
    let options = ReclaimOptions {
        remedy: arguments.remedy.clone(),
        dry_run: arguments.dry_run,
        wait: arguments.wait,
        allow_lost_write_risk: arguments.allow_lost_write_risk,
    };
    let reclamation = reclaim(arguments.pid, &options)?;
    let refused = reclamation.outcome == Outcome::Refused;
    if output.json {
        output.document(SCHEMA, reclamation.before.as_ref(), &reclamation)?;
    } else if !refused {
        output.print(&text(arguments.pid, &reclamation, output))?;
    }
    if refused {
        complain(&format!("process {}: {}", arguments.pid, reclamation::headline(&reclamation)));
        return Ok(Ending::CouldNot);
    }
    Ok(Ending::Done)
}

fn text(pid: i32, given: &Reclamation, output: &Output) -> String {
    let title = given.before.as_ref().map_or_else(
        || format!("process {pid}"),
        |before| format!("process {pid} · {}", report::model::program(&before.target)),
    );
    let title = report::text::shorten(&title, output.surface.columns);
    let title = output.surface.paint(report::paint::Paint::Faint, &title);
    let mut text = format!("{title}\n\n{}", reclamation::reclamation(given, output.surface));
    if given.dry_run && given.outcome == Outcome::Done {
        text += &format!(
            "\napply it: strandline reclaim {pid} --remedy {}\n",
            report::text::clean(&given.remedy)
        );
    }
    text
}
