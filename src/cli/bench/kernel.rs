//! The copies that a yardstick is made of, without anything of the runtime.
//!
//! A streaming store goes past the caches. It saves reading the destination first, and leaves the
//! caches to others; whoever copies more than they hold can hardly do better.
#![allow(unsafe_code)] // Streaming stores have no safe form.

/// A way to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// What the C library thinks best.
    Memcpy,
    /// Streaming stores of 32 bytes.
    Stream,
    /// The same, and the next piece's source is prefetched.
    StreamAhead,
}

/// Bytes of one turn of the loops.
const TURN: usize = 128;

impl Kernel {
    /// Those that this machine can do.
    pub(crate) fn all() -> &'static [Kernel] {
        if streams() {
            &[Kernel::Memcpy, Kernel::Stream, Kernel::StreamAhead]
        } else {
            &[Kernel::Memcpy]
        }
    }

    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kernel::Memcpy => "memcpy",
            Kernel::Stream => "streaming stores",
            Kernel::StreamAhead => "streaming stores with prefetch",
        }
    }

    /// Copies `from` to `to`, which are of one length; `next` is what will be copied after it.
    /// [`fence`] makes the last one visible.
    pub(crate) fn copy(self, to: &mut [u8], from: &[u8], next: &[u8]) {
        let fits = streams() && to.as_ptr().addr().is_multiple_of(32) && to.len() == from.len();
        if self == Kernel::Memcpy || !fits {
            to.copy_from_slice(from);
            return;
        }
        let whole = to.len() - to.len() % TURN;
        let (body, tail) = to.split_at_mut(whole);
        let (from, rest) = from.split_at(whole);
        match self {
            Kernel::StreamAhead if next.len() >= whole => stream_ahead(body, from, next),
            _ => stream(body, from),
        }
        tail.copy_from_slice(rest);
    }
}

#[cfg(target_arch = "x86_64")]
fn streams() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn streams() -> bool {
    false
}

/// Waits until streamed bytes are where others see them.
#[cfg(target_arch = "x86_64")]
pub(crate) fn fence() {
    // SAFETY: every processor of this kind has it.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// Nothing was streamed.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn fence() {}

#[cfg(target_arch = "x86_64")]
fn stream(to: &mut [u8], from: &[u8]) {
    let turns = to.len().min(from.len()) / TURN;
    if turns == 0 {
        return;
    }
    // SAFETY: reads and writes `turns` times 128 bytes of slices that are at least so long; `to`
    // begins at a multiple of 32 and AVX2 is there, which the caller has checked. No state is left.
    unsafe {
        std::arch::asm!(
            "2:",
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm1, [{from} + 32]",
            "vmovdqu ymm2, [{from} + 64]",
            "vmovdqu ymm3, [{from} + 96]",
            "vmovntdq [{to}], ymm0",
            "vmovntdq [{to} + 32], ymm1",
            "vmovntdq [{to} + 64], ymm2",
            "vmovntdq [{to} + 96], ymm3",
            "sub {from}, -128",
            "sub {to}, -128",
            "dec {turns}",
            "jnz 2b",
            "vzeroupper",
            from = inout(reg) from.as_ptr() => _,
            to = inout(reg) to.as_mut_ptr() => _,
            turns = inout(reg) turns => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack),
        );
    }
}

#[cfg(target_arch = "x86_64")]
fn stream_ahead(to: &mut [u8], from: &[u8], next: &[u8]) {
    let turns = to.len().min(from.len()) / TURN;
    if turns == 0 {
        return;
    }
    // SAFETY: as in `stream`; a prefetch has no effect that could be wrong at any address.
    unsafe {
        std::arch::asm!(
            "2:",
            "prefetcht0 [{next}]",
            "prefetcht0 [{next} + 64]",
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm1, [{from} + 32]",
            "vmovdqu ymm2, [{from} + 64]",
            "vmovdqu ymm3, [{from} + 96]",
            "vmovntdq [{to}], ymm0",
            "vmovntdq [{to} + 32], ymm1",
            "vmovntdq [{to} + 64], ymm2",
            "vmovntdq [{to} + 96], ymm3",
            "sub {next}, -128",
            "sub {from}, -128",
            "sub {to}, -128",
            "dec {turns}",
            "jnz 2b",
            "vzeroupper",
            next = inout(reg) next.as_ptr() => _,
            from = inout(reg) from.as_ptr() => _,
            to = inout(reg) to.as_mut_ptr() => _,
            turns = inout(reg) turns => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack),
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

#[cfg(not(target_arch = "x86_64"))]
fn stream_ahead(to: &mut [u8], from: &[u8], _next: &[u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_copies_every_byte_and_no_other_at_any_length_and_place() {
        let from: Vec<u8> = (0..5_000).map(|i| (i * 31 % 251) as u8).collect();
        for &kernel in Kernel::all() {
            for len in [0, 1, 127, 128, 129, 255, 256, 1_000, 4_096] {
                for (at, source) in [(0, 0), (32, 7), (5, 64), (1, 1)] {
                    let mut to = vec![0xee; 5_000];
                    // The first address that is a multiple of 64, and then `at`.
                    let start = to.as_ptr().align_offset(64) + at;
                    let next = &from[source..source + len];
                    kernel.copy(
                        &mut to[start..start + len],
                        &from[source..source + len],
                        next,
                    );
                    fence();
                    assert_eq!(to[start..start + len], from[source..source + len]);
                    assert!(to[..start].iter().all(|&b| b == 0xee), "{kernel:?} {len}");
                    assert!(
                        to[start + len..].iter().all(|&b| b == 0xee),
                        "{kernel:?} {len}"
                    );
                }
            }
        }
    }

    #[test]
    fn nothing_to_prefetch_is_no_reason_not_to_copy() {
        let from = [7; 512];
        let mut to = [0; 512];
        Kernel::StreamAhead.copy(&mut to, &from, &[]);
        fence();
        assert_eq!(to, from);
    }
}
