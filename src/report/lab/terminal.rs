//! Stub.
/// Stub.
pub fn lines(page: &super::page::Page, _surface: crate::report::paint::Surface) -> String {
    format!("{page:#?}")
}
