//! Stub.
/// Stub.
pub fn text(page: &super::page::Page) -> String {
    format!("{page:#?}")
}
