//! The thread that looks at all processes, again and again. Looking takes at most a fiftieth of a processor, however many
//! there are: it is done less often then.

use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use strandline_survey::{Painter, Picture, Selection};

use crate::terminal::Waker;

/// For so many times as long as looking took nothing is looked at.
const REST_TIMES: u32 = 50;
/// The part of an interval for which proportional set sizes are asked for, a walk through page tables each.
const PSS_PART: f64 = 0.005;

/// Starts it; pictures come by the channel, and the waker tells of them.
pub fn start(selection: Selection, interval: Duration, waker: Waker) -> std::io::Result<Receiver<Picture>> {
    // Nobody needs an old one: with one unread, the next waits.
    let (sender, receiver) = sync_channel(1);
    let mut painter = Painter::default();
    painter.pss_time = interval.mul_f64(PSS_PART);
    let body = move || {
        loop {
            let picture = painter.paint(&selection, usize::MAX);
            let took = picture.took;
            if sender.send(picture).is_err() {
                return;
            }
            waker.wake();
            std::thread::sleep(interval.max(took * REST_TIMES));
        }
    };
    std::thread::Builder::new().name("figures".into()).spawn(body)?;
    Ok(receiver)
}
