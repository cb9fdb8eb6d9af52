//! The layout of the extended processor state (x87, SSE, AVX, AMX …) in an XSAVE image.

/// Offset in bytes of extended state component `index` (2..63) in the standard form of an XSAVE
/// image; `None` if this processor has no such component or it is a supervisor one.
pub fn component_offset(index: u32) -> Option<usize> {
    let component = leaf_0d(index);
    let is_of_user = component.flags & SUPERVISOR_STATE == 0;
    (index >= 2 && component.bytes != 0 && is_of_user).then_some(component.offset as usize)
}

/// Bit of the flags of a component that is absent from a user's image.
const SUPERVISOR_STATE: u32 = 1;

/// What CPUID reports of a component.
struct Component {
    /// EAX.
    bytes: u32,
    /// EBX.
    offset: u32,
    /// ECX.
    flags: u32,
}

/// CPUID leaf 0x0d, sub-leaf `index`.
fn leaf_0d(index: u32) -> Component {
    let (mut eax, mut ecx) = (0x0d_u32, index);
    let ebx: u64;
    // SAFETY: CPUID is allowed in user mode and writes EAX, EBX, ECX and EDX only; RBX, which the
    // compiler reserves, is saved and restored around it.
    unsafe {
        std::arch::asm!(
            "xchg {kept:r}, rbx",
            "cpuid",
            "xchg {kept:r}, rbx",
            kept = inout(reg) 0_u64 => ebx,
            inout("eax") eax,
            inout("ecx") ecx,
            out("edx") _,
            options(nomem, nostack),
        );
    }
    Component { bytes: eax, offset: ebx as u32, flags: ecx }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_avx_state_follows_the_header() {
        assert_eq!(component_offset(0), None, "x87 is no component of the extended area");
        if std::arch::is_x86_feature_detected!("avx") {
            // The upper halves of the YMM registers, behind the 512-byte legacy area and the
            // header.
            assert_eq!(component_offset(2), Some(576));
        }
    }
}
