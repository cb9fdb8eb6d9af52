//! The layout of the extended processor state (x87, SSE, AVX, AMX …) in an XSAVE image (Intel SDM,
//! volume 1, section 13.2: CPUID leaf 0DH).

/// The leaf of CPUID with the components of the extended state, one in each sub-leaf.
const STATE_LEAF: u32 = 0x0d;
/// The first component that has a place of its own; x87 and SSE are in the legacy area.
const FIRST_EXTENDED_COMPONENT: u32 = 2;
/// Bit of ECX for a component that is absent from a user's image.
const SUPERVISOR_STATE: u32 = 1;

/// Offset in bytes of extended state component `index` (2 to 62) in the standard form of an XSAVE
/// image; `None` if this processor has no such component or it is a supervisor one.
pub fn component_offset(index: u32) -> Option<usize> {
    // For a leaf above the maximum, which leaf 0 has, a processor returns another leaf's values.
    if index < FIRST_EXTENDED_COMPONENT || cpuid(0, 0).eax < STATE_LEAF {
        return None;
    }
    let Registers { eax: bytes, ebx: offset, ecx: flags } = cpuid(STATE_LEAF, index);
    (bytes != 0 && flags & SUPERVISOR_STATE == 0).then_some(offset as usize)
}

/// What CPUID returns, without EDX.
struct Registers {
    eax: u32,
    ebx: u32,
    ecx: u32,
}

/// Executes CPUID (Intel SDM, volume 2A). The standard library's function for it is safe in some of
/// the supported versions of Rust only.
fn cpuid(leaf: u32, sub_leaf: u32) -> Registers {
    let (mut eax, mut ecx) = (leaf, sub_leaf);
    let rbx: u64;
    // SAFETY: CPUID is allowed in user mode and writes EAX, EBX, ECX and EDX only; RBX, which the
    // compiler reserves, is saved and restored around it.
    unsafe {
        std::arch::asm!(
            "xchg {kept:r}, rbx",
            "cpuid",
            "xchg {kept:r}, rbx",
            kept = inout(reg) 0_u64 => rbx,
            inout("eax") eax,
            inout("ecx") ecx,
            out("edx") _,
            options(nomem, nostack),
        );
    }
    Registers { eax, ebx: rbx as u32, ecx }
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
