//! reclaim against real processes. They stop and call into processes of their own only.

#[cfg(test)]
mod chaos;
#[cfg(test)]
mod process;
#[cfg(test)]
mod signals;
#[cfg(test)]
mod subject;
