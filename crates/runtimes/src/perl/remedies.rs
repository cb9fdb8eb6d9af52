//! Remedies that make Perl release memory.

use std::collections::BTreeMap;

use super::facts::{Amount, Keeper, RetainedBuffers};
use strandline_claims::facts::Remedy;
use strandline_claims::units::{bytes as bytes_text, counted};

/// Maximum number of lexicals that the remedy names.
const MAX_ADVISED: usize = 3;

/// A lexical of a sub, in all of its pads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Lexical<'a> {
    sub: &'a str,
    name: &'a str,
}

/// The remedy of `undef` on lexicals; `None` if it releases nothing.
pub fn undef(retained: &[&RetainedBuffers]) -> Option<Remedy> {
    let mut by_lexical: BTreeMap<Lexical<'_>, Amount> = BTreeMap::new();
    let mut other_bytes = 0;
    for buffer in retained.iter().flat_map(|retained| &retained.top) {
        match (&buffer.sub, &buffer.lexical, buffer.keeper) {
            (Some(sub), Some(name), Keeper::Lexical) => {
                by_lexical.entry(Lexical { sub, name }).or_default().add(buffer.page_bytes);
            }
            _ => other_bytes += buffer.page_bytes,
        }
    }
    let predicted_bytes = by_lexical.values().map(|amount| amount.bytes).sum::<u64>();
    if predicted_bytes == 0 {
        return None;
    }
    let mut largest: Vec<_> = by_lexical.into_iter().filter(|entry| entry.1.bytes > 0).collect();
    largest.sort_by_key(|entry| std::cmp::Reverse(entry.1.bytes));
    let advice_on = |(Lexical { sub, name }, amount): &(Lexical<'_>, Amount)| {
        let pads = match amount.buffers {
            1 => String::new(),
            many => format!(" (in {many} pads)"),
        };
        let position = if sub.ends_with("(file scope)") { "in" } else { "at the end of" };
        format!("undef {name} {position} {sub}{pads} releases {}", bytes_text(amount.bytes))
    };
    let mut parts: Vec<String> = largest.iter().take(MAX_ADVISED).map(advice_on).collect();
    if largest.len() > MAX_ADVISED {
        let further = (largest.len() - MAX_ADVISED) as u64;
        parts.push(format!("undef of {} releases the rest", counted(further, "more lexical")));
    }
    let mut cost = "the next call allocates the buffer again".to_owned();
    if other_bytes > 0 {
        cost += &format!("; temporaries and package variables retain {} more", bytes_text(other_bytes));
    }
    let advice = format!("{}; then malloc_trim", parts.join(", "));
    Some(Remedy::advice("perl_undef", Some(predicted_bytes), &advice, &cost))
}
