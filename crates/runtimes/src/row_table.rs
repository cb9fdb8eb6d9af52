//! Defines the ledger rows of a runtime as a table.

/// Defines one static [`strandline_claims::rows::RowKind`] per line, `NAME = (id, stratum, state,
/// label)`, and `ROWS`, the list of all of them.
macro_rules! row_table {
    ($($name:ident = ($id:literal, $stratum:ident, $state:ident, $label:literal),)+) => {
        $(
            #[doc = concat!("`", $id, "`: ", $label, ".")]
            pub static $name: strandline_claims::rows::RowKind = strandline_claims::rows::RowKind::new(
                $id,
                strandline_claims::facts::HolderKind::$stratum,
                strandline_claims::facts::State::$state,
                $label,
            );
        )+
        /// All rows of this runtime.
        pub static ROWS: [strandline_claims::rows::RowRef; [$($id),+].len()] = [$(&$name),+];
    };
}

pub(crate) use row_table;
