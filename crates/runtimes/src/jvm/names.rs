//! Names of classes. No other text of the target is output.

use super::klasses::{Classes, HEAD_BYTES, Headers};
use super::view::View;

/// Longest name; longer ones are cut.
const MAX_BYTES: usize = 200;

/// Returns the name of a class in Java's form (`java.util.HashMap$Node`, `[I`), from its `Symbol`
/// (`oops/symbol.hpp`): a length of 16 bits, then modified UTF-8.
pub fn of_class(view: &View<'_>, symbol: u64) -> Option<String> {
    let length = view.field_address(symbol, &["Symbol::_length"])?;
    let mut bytes = [0; 2];
    view.memory.read(length, &mut bytes).ok()?;
    let length = usize::from(u16::from_le_bytes(bytes));
    let body = view.field_address(symbol, &["Symbol::_body[0]", "Symbol::_body"])?;
    let mut bytes = [0; MAX_BYTES];
    let bytes = bytes.get_mut(..length.min(MAX_BYTES)).filter(|bytes| !bytes.is_empty())?;
    view.memory.read(body, bytes).ok()?;
    to_java_form(bytes, length > MAX_BYTES)
}

/// Converts a name to Java's form: dots instead of slashes. A hidden class has a `+` before its
/// address (`Klass::external_name`).
fn to_java_form(bytes: &[u8], is_cut: bool) -> Option<String> {
    let is_of_name = |byte: &u8| *byte >= 0x80 || (b' '..=b'~').contains(byte) && *byte != b'.';
    if !bytes.iter().all(is_of_name) {
        return None;
    }
    let mut name = String::from_utf8_lossy(bytes).replace('/', ".");
    // Also rejects control characters above ASCII.
    if name.contains(char::is_control) {
        return None;
    }
    if let Some(plus) = name.rfind('+') {
        name.replace_range(plus..=plus, "/");
    }
    if is_cut {
        name.push('…');
    }
    Some(name)
}

/// Names of class loaders: the names of their classes.
pub struct LoaderNames<'a>(View<'a>, Option<Classes<'a>>);

impl<'a> LoaderNames<'a> {
    /// No names yet.
    pub fn new(view: &View<'a>) -> Self {
        Self(*view, Headers::read(view).map(|headers| Classes::new(*view, headers)))
    }

    /// Returns the name of the loader with this handle. The bootstrap loader is no object and has
    /// no handle.
    pub fn of(&mut self, handle: u64) -> Option<String> {
        if handle == 0 {
            return Some("bootstrap".to_owned());
        }
        let mut head = [0; HEAD_BYTES];
        self.0.memory.read(self.0.word(handle)?, &mut head).ok()?;
        let classes = self.1.as_mut()?;
        let class = classes.class_of(&head)?;
        classes.class_at(class).map(|(_, name)| name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_java_s() {
        let of = |text: &str| to_java_form(text.as_bytes(), false);
        assert_eq!(of("java/util/HashMap$Node").as_deref(), Some("java.util.HashMap$Node"));
        assert_eq!(of("[Ljava/lang/String;").as_deref(), Some("[Ljava.lang.String;"));
        assert_eq!(of("Main$$Lambda+0x00007f01").as_deref(), Some("Main$$Lambda/0x00007f01"));
        assert_eq!(of("MyTest$adds two numbers$1").as_deref(), Some("MyTest$adds two numbers$1"));
        assert_eq!((of("a password\n"), of("a\u{85}b")), (None, None), "no class is called that");
    }
}
