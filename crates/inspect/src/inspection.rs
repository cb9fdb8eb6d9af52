//! An explanation together with what `reclaim` needs, and with holders if they are wanted.

use std::time::Instant;

use crate::account::Account;
use crate::capture::{Options, with_capture};
use crate::explain::describe;
use crate::facts::Explanation;
use crate::holders::{self, facts::Holders};
use strandline_claims::allocator::Reading;
use strandline_claims::remedy::Notification;
use strandline_process::error;
use strandline_process::range::RangeSet;

/// A process's ledger, and what is needed to apply remedies.
pub struct Inspection {
    /// The report.
    pub explanation: Explanation,
    /// What the allocators' readers found.
    pub readings: Vec<Reading>,
    /// For each runtime that takes requests: its request, or why none can be made.
    pub notifications: Vec<Result<Notification, String>>,
    /// All-zero resident pages of private anonymous memory, claimed or not, in address order.
    pub zero_runs: RangeSet,
    /// Holders of live blocks, if [`Options::keeps_blocks`] is set.
    pub holders: Option<Holders>,
}

impl Inspection {
    /// Returns the request for `remedy`, or why none can be made; `None` if no runtime that takes
    /// requests was read.
    pub fn notification(&self, remedy: &str) -> Option<Result<&Notification, &str>> {
        let requests = self.notifications.iter().flatten();
        let found = requests.clone().find(|request| request.remedy == remedy);
        let reason = || self.notifications.iter().find_map(|request| request.as_ref().err());
        found.map(Ok).or_else(|| reason().map(|reason| Err(reason.as_str())))
    }
}

/// Inspects process `pid`.
///
/// # Errors
/// Those of [`crate::explain::explain()`].
pub fn inspect(pid: i32, options: &Options<'_>) -> error::Result<Inspection> {
    let start = Instant::now();
    with_capture(pid, options, |process, mut frozen| {
        let mut holders = options.keeps_blocks.then(|| holders::find(process, &mut frozen, options));
        let mut account = Account::new(process, frozen, options, start)?;
        if let Some(holders) = &mut holders {
            holders::complete(holders, process, &mut account);
        }
        let explanation = describe(process, &mut account);
        if let Some(holders) = &mut holders {
            holders.cost = explanation.cost;
        }
        let readings = &mut account.frozen.runtime_readings;
        let notifications = readings.iter_mut().filter_map(|reading| reading.notification.take()).collect();
        Ok(Inspection {
            explanation,
            notifications,
            readings: account.frozen.allocator_readings,
            zero_runs: account.zero_runs,
            holders,
        })
    })
}
