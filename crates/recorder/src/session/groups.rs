//! The control group of the first process, in the loop of the recorder.

use super::Session;

impl Session<'_> {
    /// Samples the group if that is due.
    pub(super) fn sample_group(&mut self, now_us: u64) {
        if let Some(group) = &mut self.group {
            group.sample_if_due(now_us);
        }
    }

    /// Takes the last sample of the group, when the command has ended by `signal` or the recording
    /// ends.
    pub fn end_group(&mut self, signal: Option<i32>) {
        let now_us = self.clock.now_us();
        if let Some(group) = &mut self.group {
            group.end(now_us, signal);
        }
    }

    /// Writes the samples of the group that were not written yet.
    pub(super) fn write_group(&mut self) {
        let records = self.group.as_mut().map(|group| group.take_records()).unwrap_or_default();
        records.iter().for_each(|record| self.push(record));
    }
}
