//! Values of settings: placeholders filled with figures of the baseline, and variables merged with
//! existing values.
//!
//! Merging keeps what the user has set: lists are merged by key, and options are appended.

/// Maximum factor of a placeholder.
const MAX_FACTOR: f64 = 100.0;
const MIB: u64 = 1 << 20;

/// A figure of the run without settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaselineFigure {
    /// Settled resident bytes.
    Settled,
    /// Peak resident bytes.
    Peak,
}

/// Returns `text` with its placeholders filled in: `{settled*1.25}` gives bytes, `{peak*0.5/MiB}`
/// whole MiB, rounded up and at least 1.
///
/// # Errors
/// A malformed placeholder, a factor that is 0 or above 100, or a figure that the run lacks.
pub fn fill_placeholders(
    text: &str,
    figure: &dyn Fn(BaselineFigure) -> Option<u64>,
) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    let mut remaining = text;
    while let Some((before, after)) = remaining.split_once('{') {
        let (placeholder, following) =
            after.split_once('}').ok_or_else(|| format!("`{text}` has a `{{` without a `}}`"))?;
        filled.push_str(before);
        filled.push_str(&placeholder_value(placeholder, figure)?.to_string());
        remaining = following;
    }
    filled.push_str(remaining);
    Ok(filled)
}

/// Returns the value of a placeholder without its braces.
fn placeholder_value(
    placeholder: &str,
    figure: &dyn Fn(BaselineFigure) -> Option<u64>,
) -> Result<u64, String> {
    let malformed = || {
        format!(
            "`{{{placeholder}}}` is not one of {{settled}}, {{peak}}, with *FACTOR and /MiB behind if wanted"
        )
    };
    let (product, is_mebibytes) =
        placeholder.strip_suffix("/MiB").map_or((placeholder, false), |product| (product, true));
    let (name, factor) = product.split_once('*').unwrap_or((product, "1"));
    let baseline_figure = match name {
        "settled" => BaselineFigure::Settled,
        "peak" => BaselineFigure::Peak,
        _ => return Err(malformed()),
    };
    // `parse` also accepts signs, exponents and `nan`.
    let is_plain = factor.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let factor: f64 = factor.parse().ok().filter(|_| is_plain).ok_or_else(malformed)?;
    if !(factor > 0.0 && factor <= MAX_FACTOR) {
        return Err(format!("`{{{placeholder}}}`: the factor is to be above 0 and at most {MAX_FACTOR}"));
    }
    let bytes = figure(baseline_figure)
        .ok_or_else(|| format!("the run without settings has no figure for `{name}`"))?;
    let value = (bytes as f64 * factor).ceil() as u64;
    Ok(if is_mebibytes { value.div_ceil(MIB).max(1) } else { value })
}

/// How a variable combines several settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeRule {
    /// The new value replaces the old one.
    Replace,
    /// A list of items, each with a key before `sign`.
    Keys {
        /// Separates two items.
        separator: char,
        /// Separates a key from its value.
        sign: char,
    },
    /// Command-line words; the last one wins.
    Words,
    /// A list; the first item wins.
    First,
}

/// Returns how the variable `name` combines several settings.
pub fn merge_rule(name: &str) -> MergeRule {
    match name {
        "GLIBC_TUNABLES" => MergeRule::Keys { separator: ':', sign: '=' },
        "MALLOC_CONF" | "_RJEM_MALLOC_CONF" => MergeRule::Keys { separator: ',', sign: ':' },
        "GODEBUG" => MergeRule::Keys { separator: ',', sign: '=' },
        "JAVA_TOOL_OPTIONS" | "JDK_JAVA_OPTIONS" | "NODE_OPTIONS" | "RUBYOPT" | "PERL5OPT" => {
            MergeRule::Words
        }
        "LD_PRELOAD" => MergeRule::First,
        _ => MergeRule::Replace,
    }
}

/// Returns the value of the variable `name` after setting `new_value` over `old_value`.
pub fn merge(name: &str, old_value: Option<&str>, new_value: &str) -> String {
    let Some(old_value) = old_value.filter(|value| !value.trim().is_empty()) else {
        return new_value.to_owned();
    };
    match merge_rule(name) {
        MergeRule::Replace => new_value.to_owned(),
        MergeRule::Words => format!("{old_value} {new_value}"),
        MergeRule::First => format!("{new_value}:{old_value}"),
        MergeRule::Keys { separator, sign } => {
            let key = |item: &str| item.split(sign).next().unwrap_or_default().trim().to_owned();
            let new_keys: Vec<String> = new_value.split(separator).map(key).collect();
            let kept_items =
                old_value.split(separator).filter(|item| !item.is_empty() && !new_keys.contains(&key(item)));
            let items: Vec<&str> = kept_items.chain(new_value.split(separator)).collect();
            items.join(&separator.to_string())
        }
    }
}

/// Whether the variable `name` can hold both `a` and `b` without losing either.
pub fn can_merge(name: &str, a: &str, b: &str) -> bool {
    if a == b {
        return true;
    }
    let (separator, key_ends) = match merge_rule(name) {
        MergeRule::Replace | MergeRule::First => return false,
        MergeRule::Keys { separator, sign } => (separator, vec![sign]),
        MergeRule::Words => (' ', vec!['=', ':']),
    };
    let items = |text| str::split(text, separator).filter(|item| !item.is_empty());
    let excludes = |item_a: &str, item_b: &str| {
        item_a != item_b && option_key(item_a, &key_ends) == option_key(item_b, &key_ends)
    };
    !items(a).any(|item_a| items(b).any(|item_b| excludes(item_a, item_b)))
}

/// Returns the setting that an item changes: `-XX:+UseG1GC` and `-XX:+UseSerialGC` both set the
/// collector, `-Xms16m` sets `-Xms`. Otherwise it is the part before one of `key_ends`.
fn option_key(item: &str, key_ends: &[char]) -> String {
    if let Some(option) = item.strip_prefix("-XX:") {
        let name = option.trim_start_matches(['+', '-']).split('=').next().unwrap_or_default();
        let is_collector = name.starts_with("Use") && name.ends_with("GC");
        return if is_collector { "-XX:collector".to_owned() } else { format!("-XX:{name}") };
    }
    if item.starts_with("-X") {
        return item.chars().take_while(|c| !c.is_ascii_digit()).collect();
    }
    item.split(|c| key_ends.contains(&c)).next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced_by_figures() {
        let figure = |name| match name {
            BaselineFigure::Settled => Some(100 << 20),
            BaselineFigure::Peak => None,
        };
        assert_eq!(fill_placeholders("{settled*1.25}", &figure).unwrap(), (125 << 20).to_string());
        assert_eq!(fill_placeholders("--x={settled*0.5/MiB}m", &figure).unwrap(), "--x=50m");
        assert_eq!(fill_placeholders("{settled*0.001/MiB}", &figure).unwrap(), "1");
        assert_eq!(fill_placeholders("plain }", &figure).unwrap(), "plain }");
        assert!(fill_placeholders("{peak}", &figure).unwrap_err().contains("no figure"));
        for wrong in
            ["{settled", "{settled*0}", "{settled*-1}", "{settled*1e9}", "{settled*nan}", "{x}", "{}"]
        {
            assert!(fill_placeholders(wrong, &figure).is_err(), "{wrong}");
        }
    }

    #[test]
    fn merging_keeps_the_existing_settings() {
        let merged = merge(
            "GLIBC_TUNABLES",
            Some("glibc.malloc.arena_max=4:glibc.rtld.nns=8"),
            "glibc.malloc.arena_max=2",
        );
        assert_eq!(merged, "glibc.rtld.nns=8:glibc.malloc.arena_max=2");
        assert_eq!(merge("MALLOC_CONF", Some("narenas:4"), "dirty_decay_ms:0"), "narenas:4,dirty_decay_ms:0");
        assert_eq!(merge("NODE_OPTIONS", Some("--require x"), "--expose-gc"), "--require x --expose-gc");
        assert_eq!(merge("LD_PRELOAD", Some("/a.so"), "/b.so"), "/b.so:/a.so");
        assert_eq!(merge("GOGC", Some("100"), "50"), "50");
        assert_eq!(merge("NODE_OPTIONS", Some(" "), "--expose-gc"), "--expose-gc");
    }

    #[test]
    fn different_values_of_one_setting_cannot_be_merged() {
        assert!(can_merge("GLIBC_TUNABLES", "glibc.malloc.arena_max=1", "glibc.malloc.top_pad=0"));
        assert!(!can_merge("GLIBC_TUNABLES", "glibc.malloc.arena_max=1", "glibc.malloc.arena_max=2"));
        assert!(can_merge("GLIBC_TUNABLES", "glibc.malloc.arena_max=1", "glibc.malloc.arena_max=1"));
        assert!(!can_merge("JAVA_TOOL_OPTIONS", "-XX:+UseG1GC", "-XX:+UseSerialGC"));
        assert!(!can_merge("JAVA_TOOL_OPTIONS", "-Xms16m", "-Xms32m"));
        assert!(can_merge("JAVA_TOOL_OPTIONS", "-XX:+UseG1GC -Xms16m", "-XX:TrimNativeHeapInterval=3000"));
        assert!(!can_merge("NODE_OPTIONS", "--max-old-space-size=10", "--max-old-space-size=20"));
        assert!(!can_merge("GOGC", "50", "25"));
    }
}
