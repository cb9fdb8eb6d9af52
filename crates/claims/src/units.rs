//! Numbers as people read them.

/// Bytes in binary units, with three digits above a KiB: `512 B`, `4.00 KiB`, `96.0 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    // The limits are where rounding would give one digit more: 999.5 is shown as 1000.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// Shown for a figure that is not known.
pub const UNKNOWN: &str = "?";

/// Bytes, or `?` where they are not known.
pub fn maybe_bytes(count: Option<u64>) -> String {
    count.map_or_else(|| UNKNOWN.to_owned(), bytes)
}

/// A count and what is counted: `1 arena`, `12,411 arenas`, `2 processes`.
pub fn counted(count: u64, thing: &str) -> String {
    let plural = if thing.ends_with('s') { "es" } else { "s" };
    format!("{} {thing}{}", thousands(count), if count == 1 { "" } else { plural })
}

/// A count with separators: `12,411`.
pub fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(4096), "4.00 KiB");
        assert_eq!(bytes(1_023_999), "0.98 MiB");
        assert_eq!(bytes(96 << 20), "96.0 MiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn counts_have_separators() {
        assert_eq!((thousands(0).as_str(), thousands(999).as_str()), ("0", "999"));
        assert_eq!(thousands(12_411), "12,411");
        assert_eq!(thousands(1_000_000), "1,000,000");
    }

    #[test]
    fn counted_things_have_their_plural() {
        assert_eq!(counted(1, "thread"), "1 thread");
        assert_eq!(counted(2_000, "thread"), "2,000 threads");
        assert_eq!(counted(2, "process"), "2 processes");
    }
}
