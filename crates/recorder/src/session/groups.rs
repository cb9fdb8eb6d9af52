//! The control group of the first process, in the loop of the recorder.

use super::Session;

impl Session<'_> {
    /// Samples the group if that is due.
    pub(super) fn sample_group(&mut self, now: u64) {
        if let Some(group) = &mut self.group {
            group.work(now);
        }
    }

    /// Takes the last look at the group: the command has ended by `signal`, or the recording ends.
    pub fn end_group(&mut self, signal: Option<i32>) {
        let now = self.clock.now_us();
        if let Some(group) = &mut self.group {
            group.end(now, signal);
        }
    }

    /// Writes what is known of the group.
    pub(super) fn write_group(&mut self) {
        let records = self.group.as_mut().map(|group| group.take_records()).unwrap_or_default();
        records.iter().for_each(|record| self.push(record));
    }
}
