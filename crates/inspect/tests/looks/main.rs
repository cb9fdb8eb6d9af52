//! Looks at real processes through the library: what they leave behind when they end meanwhile, and the
//! ledger of one that ends.

#[cfg(test)]
mod exit;
#[cfg(test)]
mod kills;
#[cfg(test)]
mod subject;
