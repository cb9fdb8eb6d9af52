//! Inspects real processes through the library: what they leave behind if they end meanwhile, the
//! ledger of an ending one, and the page map.

#[cfg(test)]
mod exit;
#[cfg(test)]
mod kills;
#[cfg(test)]
mod page_map;
#[cfg(test)]
mod subject;
