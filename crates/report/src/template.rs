//! What the writers of pages and pictures share: their error, how a page is rendered, and the
//! digests by which the content security policy of a page permits its own style and script.

use minijinja::value::Value;
use minijinja::{Environment, context};
use sha2::{Digest, Sha256};

use crate::json::VERSION;
use crate::text::counted;

/// Why a report could not be drawn, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the report cannot be drawn: {0}")]
pub struct DrawError(pub String);

impl DrawError {
    pub(crate) fn new(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// Renders the page of the template `source` with `content`, its `style`, and what all pages have.
/// Every text is escaped as HTML.
pub(crate) fn render(source: &str, style: &str, content: Value) -> Result<String, DrawError> {
    let mut templates = Environment::new();
    templates.add_filter("counted", |count: u64, noun: &str| counted(count, noun));
    let shared = context! { version => VERSION, style_digest => digest(style), style };
    // The ending of the name turns escaping on.
    templates.render_named_str("page.html", source, context! { ..content, ..shared }).map_err(DrawError::new)
}

/// The digest of an inline script or style, in the form of a content security policy.
pub(crate) fn digest(text: &str) -> String {
    /// The digits of Base64 (RFC 4648, section 4).
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::from("sha256-");
    for chunk in Sha256::digest(text.as_bytes()).chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte));
        let bits = bits << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * index)) as usize & 63];
            encoded.push(if index <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::digest;

    #[test]
    fn digests_are_as_a_policy_names_them() {
        assert_eq!(digest(""), "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
        assert_eq!(digest("alert('Hello, world.');"), "sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng=");
    }
}
