//! Stub.
/// Stub.
pub fn text(page: &super::page::Page) -> Result<String, String> {
    Ok(format!("{page:#?}"))
}
