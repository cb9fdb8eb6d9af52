//! The mapped files that hold one runtime, as a reader returns them.

use std::time::Instant;

use strandline_claims::caveat::Caveat;
use strandline_claims::runtime::{Busy, Context, FoundRuntime, Reading};

/// The mapped files that hold a runtime. Each reader implements [`FoundRuntime`] for its type of
/// program.
pub struct Programs<P>(pub Vec<P>);

/// A limit on the instances of a runtime that are read in one process, and the caveat on the
/// others.
pub struct Limit {
    /// Most instances that are read: each costs memory and time.
    pub max_programs: usize,
    /// Code of the caveat.
    pub code: &'static str,
    /// Name of the runtime, in the plural.
    pub runtimes: &'static str,
}

impl<P> Programs<P>
where
    Self: FoundRuntime + 'static,
{
    /// Returns `programs` as a reader does; `None` if there are none.
    pub fn found(programs: Vec<P>) -> Option<Box<dyn FoundRuntime>> {
        if programs.is_empty() { None } else { Some(Box::new(Self(programs))) }
    }
}

impl<P> Programs<P> {
    /// Reads the first program, and the others within `limit` and before the deadline; `read` gets
    /// the earlier readings. If programs are left out, the last reading gets a caveat at the `path`
    /// of the first of them.
    ///
    /// # Errors
    /// [`Busy`] if `read` returns it.
    pub fn read_within(
        &self,
        context: &Context<'_>,
        limit: &Limit,
        path: fn(&P) -> &str,
        read: impl Fn(&P, &[Reading]) -> Result<Reading, Busy>,
    ) -> Result<Vec<Reading>, Busy> {
        let mut readings: Vec<Reading> = Vec::new();
        for (index, program) in self.0.iter().enumerate() {
            let is_late = index > 0 && Instant::now() >= context.deadline;
            if let Some(last) = readings.last_mut().filter(|_| is_late || index >= limit.max_programs) {
                let text = format!(
                    "the process has more {} than strandline reads, or there was no time: this one and later ones \
                     count as anonymous, or for the allocator's rows",
                    limit.runtimes
                );
                last.caveats.push(Caveat::new(limit.code, path(program), None, text));
                break;
            }
            let reading = read(program, &readings)?;
            readings.push(reading);
        }
        Ok(readings)
    }
}
