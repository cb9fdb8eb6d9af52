//! Adds up the effects of several calls.

use super::{Applied, Footprint};
use crate::facts::Reclamation;
use strandline_claims::caveat::Caveat;

/// Effects of several calls, added up.
#[derive(Default)]
pub struct CallTotals {
    /// Number of calls.
    pub calls: u32,
    /// Their effect and cost, added up.
    applied: Applied,
    /// Sum of the predictions right before each call.
    pub predicted_bytes: u64,
}

impl CallTotals {
    /// Adds the effect of a call.
    pub fn add(&mut self, applied: &Applied) {
        let (is_first, sum) = (self.calls == 0, &mut self.applied);
        sum.before = if is_first { applied.before } else { sum.before };
        sum.after = applied.after;
        let earlier = if is_first { Some(0) } else { sum.actual_bytes };
        sum.actual_bytes = earlier.zip(applied.actual_bytes).map(|(earlier, added)| earlier + added);
        sum.call_seconds += applied.call_seconds;
        sum.stopped_seconds = sum.stopped_seconds.into_iter().chain(applied.stopped_seconds).reduce(f64::max);
        sum.minor_faults_after = applied.minor_faults_after;
        sum.minor_faults_seconds = applied.minor_faults_seconds;
        self.calls += 1;
    }

    /// Sets the prediction to the one at the time of the calls. If a call releases exactly the
    /// resident bytes of some ranges, an allocator that purges in the background may have released
    /// part of them since the read.
    pub fn set_predicted(&self, answer: &mut Reclamation) {
        let Some(predicted) = answer.predicted_bytes.filter(|_| self.calls > 0) else { return };
        if let Some(gone_bytes) = predicted.checked_sub(self.predicted_bytes).filter(|&bytes| bytes > 0) {
            let text = "these bytes of the prediction were no longer resident at the time of the call";
            answer.caveats.push(Caveat::new(
                "changed_before_call",
                answer.remedy.clone(),
                Some(gone_bytes),
                text,
            ));
        }
        answer.predicted_bytes = Some(self.predicted_bytes);
    }

    /// Writes the effect into `answer`; false if there was no call.
    pub fn report(self, answer: &mut Reclamation) -> bool {
        if self.calls == 0 {
            return false;
        }
        let sum = self.applied;
        answer.rss_before_bytes = sum.before.map(|before| before.rss_bytes).or(answer.rss_before_bytes);
        answer.rss_after_bytes = sum.after.map(|after| after.rss_bytes);
        let released = |(before, after): (Footprint, Footprint)| {
            before.private_bytes.saturating_sub(after.private_bytes)
        };
        answer.actual_pss_bytes = sum.before.zip(sum.after).map(released);
        answer.actual_bytes = sum.actual_bytes;
        answer.call_seconds = Some(sum.call_seconds);
        answer.stopped_seconds = sum.stopped_seconds;
        answer.minor_faults_after = sum.minor_faults_after;
        answer.minor_faults_seconds = Some(sum.minor_faults_seconds);
        true
    }
}
