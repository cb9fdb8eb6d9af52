//! The text formats Prometheus 0.0.4 and OpenMetrics 1.0, which differ in the names of counters'
//! families and in the last line. A label value may be any text; backslash, quotation mark and
//! newline are escaped in both.

use std::fmt::Write;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `text/plain; version=0.0.4`
    Plain,
    /// `application/openmetrics-text; version=1.0.0`
    OpenMetrics,
}

impl Format {
    /// Its media type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that goes up and down.
    Gauge,
    /// A value that only grows; the name ends in `_total`.
    Counter,
}

/// A text that is being written.
#[derive(Debug)]
pub struct Exposition {
    format: Format,
    text: String,
}

impl Exposition {
    /// An empty text.
    pub fn new(format: Format) -> Self {
        Self { format, text: String::new() }
    }

    /// Announces the family of `name`; its samples must follow, with no other family in between.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let family = match self.format {
            Format::OpenMetrics => name.strip_suffix("_total").unwrap_or(name),
            Format::Plain => name,
        };
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        self.write(format_args!("# HELP {family} {help}\n# TYPE {family} {kind}\n"));
    }

    /// Adds a sample of the family that was announced last.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Into<Value>) {
        self.text.push_str(name);
        for (index, (label, label_value)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            self.text.push_str(label);
            self.text.push_str("=\"");
            escape(label_value, &mut self.text);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        match value.into() {
            Value::Whole(value) => self.write(format_args!(" {value}\n")),
            Value::Real(value) => self.write(format_args!(" {value:.6}\n")),
        }
    }

    /// Returns the whole text.
    pub fn end(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    /// Appends formatted text.
    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(text);
    }
}

/// A sample's value.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// Bytes and counts.
    Whole(u64),
    /// Seconds.
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

/// Appends a label value to `text`.
fn escape(value: &str, text: &mut String) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            _ => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example(format: Format) -> String {
        let mut text = Exposition::new(format);
        text.family("x_seconds_total", Kind::Counter, "How long.");
        text.sample("x_seconds_total", &[("pid", "7"), ("process", "a\"\\\nb")], 0.5);
        text.family("y_bytes", Kind::Gauge, "How many.");
        text.sample("y_bytes", &[], u64::MAX);
        text.end()
    }

    #[test]
    fn both_formats_are_written() {
        let plain = "# HELP x_seconds_total How long.\n# TYPE x_seconds_total counter\n\
                     x_seconds_total{pid=\"7\",process=\"a\\\"\\\\\\nb\"} 0.500000\n\
                     # HELP y_bytes How many.\n# TYPE y_bytes gauge\ny_bytes 18446744073709551615\n";
        assert_eq!(example(Format::Plain), plain);
        let open_metrics = example(Format::OpenMetrics);
        assert!(
            open_metrics
                .starts_with("# HELP x_seconds How long.\n# TYPE x_seconds counter\nx_seconds_total{")
        );
        assert!(open_metrics.ends_with("y_bytes 18446744073709551615\n# EOF\n"));
    }

    proptest! {
        #[test]
        fn any_value_stays_on_its_line_and_reads_back(value: String) {
            let mut text = String::new();
            escape(&value, &mut text);
            prop_assert!(!text.contains('\n'));
            let mut unescaped = String::new();
            let mut chars = text.chars();
            while let Some(c) = chars.next() {
                prop_assert!(c != '"');
                match c {
                    '\\' => unescaped.push(match chars.next() { Some('n') => '\n', Some(c) => c, None => '?' }),
                    c => unescaped.push(c),
                }
            }
            prop_assert_eq!(unescaped, value);
        }
    }
}
