//! Looks at real processes through the library: what they leave behind when they end meanwhile, the
//! ledger of one that ends, and the picture of the address space.

#[cfg(test)]
mod exit;
#[cfg(test)]
mod kills;
#[cfg(test)]
mod page_map;
#[cfg(test)]
mod subject;
