//! The thread that takes surveys of all processes repeatedly. It uses at most a fiftieth of a
//! processor for any number of processes: it then takes surveys less often.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use strandline_survey::{Selection, Survey, Surveyor};

use crate::terminal::Waker;

/// The pause after a survey is at least this many times as long as the survey took.
const PAUSE_FACTOR: u32 = 50;
/// Part of an interval for reading proportional set sizes, for each of which the kernel walks page
/// tables: a quarter of the processor time that all of a survey may use.
const PSS_PART: f64 = 0.005;

/// Starts the thread; surveys arrive on the channel, and the waker announces them. If the thread
/// fails, it closes the channel and wakes too.
///
/// # Errors
/// If the kernel has no thread left.
pub fn start(selection: Selection, interval: Duration, waker: Waker) -> std::io::Result<Receiver<Survey>> {
    // Old surveys are useless: while one is unread, the next one waits.
    let (sender, receiver) = sync_channel(1);
    let mut surveyor = Surveyor::default();
    surveyor.pss_time_limit = interval.mul_f64(PSS_PART);
    let body = move || {
        while let Ok(survey) = catch_unwind(AssertUnwindSafe(|| surveyor.take(&selection, usize::MAX))) {
            let duration = survey.duration;
            if sender.send(survey).is_err() {
                return;
            }
            waker.wake();
            std::thread::sleep(interval.max(duration * PAUSE_FACTOR));
        }
        drop(sender);
        waker.wake();
    };
    std::thread::Builder::new().name("figures".into()).spawn(body)?;
    Ok(receiver)
}
