//! What programs and libraries call their variables and functions.

use strandline_process::elf::Object;
use strandline_process::map::Mapping;
use strandline_process::procfs::Process;

use super::names;
use crate::explain::snapshot::Snapshot;

/// The most symbols of one program or library.
const MOST_SYMBOLS: usize = 1 << 21;

/// A symbol of data.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    /// Where it is in the process.
    pub address: u64,
    /// How large.
    pub bytes: u64,
    /// As it stands in the file.
    pub name: Vec<u8>,
}

/// Symbols of data, in address order.
pub struct Symbols(Vec<Symbol>);

impl Symbols {
    /// Those of the program or library of a mapping; none where it cannot be read.
    pub fn of(process: &Process, snapshot: &Snapshot, mapping: &Mapping) -> Self {
        let mut symbols: Vec<Symbol> = Vec::new();
        if let Ok(object) = Object::open(process, &snapshot.space, mapping) {
            object.each_symbol(&mut |name, symbol| {
                let found = snapshot.space.find(symbol.address);
                let is_data = found.is_some_and(|mapping| !mapping.permissions.execute);
                if is_data && symbol.bytes > 0 && symbols.len() < MOST_SYMBOLS {
                    let name = name.get(..name.len().min(names::MOST_BYTES)).unwrap_or_default().to_vec();
                    symbols.push(Symbol { address: symbol.address, bytes: symbol.bytes, name });
                }
            });
        }
        symbols.sort_unstable();
        Self(symbols)
    }

    /// The symbol that has an address.
    pub fn at(&self, address: u64) -> Option<&Symbol> {
        let index = self.0.partition_point(|symbol| symbol.address <= address).checked_sub(1)?;
        self.0.get(index).filter(|symbol| address - symbol.address < symbol.bytes)
    }
}

/// The functions that some instructions of one program or library are in, in the order of these.
pub fn functions(
    process: &Process,
    snapshot: &Snapshot,
    mapping: &Mapping,
    instructions: &[u64],
) -> Vec<Option<String>> {
    let mut found: Vec<Option<(u64, Vec<u8>)>> = vec![None; instructions.len()];
    let mut order: Vec<usize> = (0..instructions.len()).collect();
    order.sort_unstable_by_key(|&index| instructions.get(index));
    if let Ok(object) = Object::open(process, &snapshot.space, mapping) {
        object.each_symbol(&mut |name, symbol| {
            let end = symbol.address.saturating_add(symbol.bytes);
            let at = |&index: &usize| instructions.get(index).copied().unwrap_or(0);
            let first = order.partition_point(|index| at(index) < symbol.address);
            for &index in order.iter().skip(first).take_while(|index| at(index) < end) {
                // Of functions that overlap the one that begins last.
                if let Some(known) = found.get_mut(index)
                    && known.as_ref().is_none_or(|known| known.0 < symbol.address)
                {
                    let name = name.get(..name.len().min(names::MOST_BYTES)).unwrap_or_default();
                    *known = Some((symbol.address, name.to_vec()));
                }
            }
        });
    }
    found.into_iter().map(|found| found.map(|(_, name)| names::of_symbol(&name))).collect()
}
