//! stub until the branch lands
use super::reclaim::{ReclaimOptions, refuse};
use crate::explain::Look;
use crate::facts::Reclamation;
pub(super) fn reclaim(_: i32, _: &Look, _: &ReclaimOptions<'_>, answer: &mut Reclamation) -> bool {
    refuse(answer, "not yet");
    false
}
