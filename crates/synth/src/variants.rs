//! Defines an enum as a table.

/// Defines an enum with one variant per line, `Name = "Documentation.",`, and `ALL`, the list of
/// all variants.
macro_rules! variants {
    ($(#[$about:meta])* pub enum $name:ident { $($variant:ident = $meaning:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $(#[doc = $meaning] $variant,)+
        }

        impl $name {
            /// All variants, in order.
            pub const ALL: [Self; [$(Self::$variant),+].len()] = [$(Self::$variant),+];
        }
    };
}

pub(crate) use variants;
