//! Runs reclaim against real processes. The tests stop and call into their own processes only.

#[cfg(test)]
mod chaos;
#[cfg(test)]
mod process;
#[cfg(test)]
mod signals;
#[cfg(test)]
mod subject;
