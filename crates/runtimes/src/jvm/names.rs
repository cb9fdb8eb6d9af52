//! Names of classes. No other text of the target is output.

use super::klasses::{Classes, HEAD_BYTES, Headers};
use super::view::View;

/// Maximum bytes read of a name; longer names are truncated.
const MAX_NAME_BYTES: usize = 200;

/// Returns the name of a class in Java's form (`java.util.HashMap$Node`, `[I`), from its `Symbol`
/// (`oops/symbol.hpp`): a length of 16 bits, then modified UTF-8. `None` if it cannot be read, or
/// is no name.
pub fn class_name(view: &View<'_>, symbol: u64) -> Option<String> {
    let length = view.field_address(symbol, &["Symbol::_length"])?;
    let length = usize::from(u16::from_le_bytes(view.array(length)?));
    let body = view.field_address(symbol, &["Symbol::_body[0]", "Symbol::_body"])?;
    let mut bytes = [0; MAX_NAME_BYTES];
    let bytes = bytes.get_mut(..length.min(MAX_NAME_BYTES)).filter(|bytes| !bytes.is_empty())?;
    view.memory.read(body, bytes).ok()?;
    to_java_form(bytes, length > MAX_NAME_BYTES)
}

/// Converts a name to Java's form: dots instead of slashes. A hidden class's name ends in `+0x` and
/// its address; Java shows a slash (`convert_hidden_name_to_java`, `oops/klass.cpp`).
fn to_java_form(bytes: &[u8], is_truncated: bool) -> Option<String> {
    let may_be_in_name = |byte: &u8| *byte >= 0x80 || (b' '..=b'~').contains(byte) && *byte != b'.';
    if !bytes.iter().all(may_be_in_name) {
        return None;
    }
    let mut name = String::from_utf8_lossy(bytes).replace('/', ".");
    // Also rejects control characters above ASCII.
    if name.contains(char::is_control) {
        return None;
    }
    if let Some(plus) = name.rfind("+0x") {
        name.replace_range(plus..=plus, "/");
    }
    if is_truncated {
        name.push('…');
    }
    Some(name)
}

/// Names class loaders, by the class of each loader object.
pub struct LoaderNames<'a> {
    view: View<'a>,
    classes: Option<Classes<'a>>,
}

impl<'a> LoaderNames<'a> {
    /// Reads the format of object headers; without it no loader has a name.
    pub fn new(view: &View<'a>) -> Self {
        let classes = Headers::read(view).map(|headers| Classes::new(*view, headers));
        Self { view: *view, classes }
    }

    /// Returns the class name of the loader whose `ClassLoaderData` handle is `handle`; `None` if
    /// it cannot be read. 0 is the bootstrap loader, which is not an object.
    pub fn name_of(&mut self, handle: u64) -> Option<String> {
        if handle == 0 {
            return Some("bootstrap".to_owned());
        }
        let head: [u8; HEAD_BYTES] = self.view.array(self.view.word(handle)?)?;
        let classes = self.classes.as_mut()?;
        let class = classes.class_of(&head)?;
        classes.name_of(class).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_java_s_form() {
        let java_form = |text: &str| to_java_form(text.as_bytes(), false);
        assert_eq!(java_form("java/util/HashMap$Node").as_deref(), Some("java.util.HashMap$Node"));
        assert_eq!(java_form("[Ljava/lang/String;").as_deref(), Some("[Ljava.lang.String;"));
        assert_eq!(java_form("Main$$Lambda+0x00007f01").as_deref(), Some("Main$$Lambda/0x00007f01"));
        assert_eq!(java_form("a+b").as_deref(), Some("a+b"), "not hidden");
        assert_eq!(java_form("a+b+0x7f").as_deref(), Some("a+b/0x7f"));
        assert_eq!(java_form("MyTest$adds two numbers$1").as_deref(), Some("MyTest$adds two numbers$1"));
        assert_eq!(
            (java_form("a password\n"), java_form("a\u{85}b")),
            (None, None),
            "no class is called that"
        );
    }
}
