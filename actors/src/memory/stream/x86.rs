//! The loops, with AVX2 or AVX-512.
//!
//! Rules: they are written in assembly so that they are as fast in a debug build, and so that a
//! streaming store is what the processor does and not what a compiler takes for a plain store.
//! Sources have any alignment. A [`Wide`] exists only on a processor that has its instructions.
#![allow(unsafe_code)] // Assembly.

use super::LINE;
use std::arch::{asm, is_x86_feature_detected};
use std::ptr::NonNull;

/// Which instructions; made only where the processor has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Wide(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Avx2,
    Avx512,
}

impl Wide {
    /// The widest that there are.
    pub(in super::super) fn detect() -> Option<Wide> {
        Wide::all().pop()
    }

    /// All that there are, the widest last.
    pub(in super::super) fn all() -> Vec<Wide> {
        let mut all = Vec::new();
        if is_x86_feature_detected!("avx2") {
            all.push(Wide(Kind::Avx2));
        }
        if is_x86_feature_detected!("avx512f") {
            all.push(Wide(Kind::Avx512));
        }
        all
    }

    /// In words.
    pub(in super::super) fn name(self) -> &'static str {
        match self.0 {
            Kind::Avx2 => "AVX2",
            Kind::Avx512 => "AVX-512",
        }
    }

    /// Copies `bytes` bytes with streaming stores, and reads as many from `next` into the cache.
    ///
    /// # Safety
    ///
    /// As for `std::ptr::copy_nonoverlapping`. `to` is aligned to [`LINE`], `bytes` is a positive
    /// multiple of it. `next` may be any address.
    pub(super) unsafe fn one(
        self,
        from: NonNull<u8>,
        to: NonNull<u8>,
        bytes: usize,
        next: NonNull<u8>,
    ) {
        debug_assert!(bytes > 0 && bytes.is_multiple_of(LINE));
        debug_assert!(to.addr().get().is_multiple_of(LINE));
        match self.0 {
            // SAFETY: a `Wide` of this kind exists, so AVX2 does; the rest is the caller's promise.
            Kind::Avx2 => unsafe { one_avx2(from, to, bytes, next) },
            // SAFETY: a `Wide` of this kind exists, so AVX-512 does; the rest is the caller's promise.
            Kind::Avx512 => unsafe { one_avx512(from, to, bytes, next) },
        }
    }

    /// Copies `bytes` bytes of each of two runs with streaming stores, a line of each in turn.
    ///
    /// # Safety
    ///
    /// As for `std::ptr::copy_nonoverlapping`, of each, and neither writes what the other reads.
    /// Both of `to` are aligned to [`LINE`], `bytes` is a positive multiple of it.
    pub(super) unsafe fn two(self, from: [NonNull<u8>; 2], to: [NonNull<u8>; 2], bytes: usize) {
        debug_assert!(bytes > 0 && bytes.is_multiple_of(LINE));
        debug_assert!(to.iter().all(|to| to.addr().get().is_multiple_of(LINE)));
        match self.0 {
            // SAFETY: a `Wide` of this kind exists, so AVX2 does; the rest is the caller's promise.
            Kind::Avx2 => unsafe { two_avx2(from, to, bytes) },
            // SAFETY: a `Wide` of this kind exists, so AVX-512 does; the rest is the caller's promise.
            Kind::Avx512 => unsafe { two_avx512(from, to, bytes) },
        }
    }
}

/// The two loops for one width. `rax` counts; the rest is a line's loads and stores.
macro_rules! loops {
    ($feature:literal, $one:ident: [$($one_line:literal),*], $two:ident: [$($two_line:literal),*]) => {
        #[target_feature(enable = $feature)]
        unsafe fn $one(from: NonNull<u8>, to: NonNull<u8>, bytes: usize, next: NonNull<u8>) {
            // SAFETY: reads `bytes` bytes at `from` and writes as many at `to`, a line in each round,
            // until `rax` reaches `bytes`, a positive multiple of a line; the caller promised both
            // ranges, and the stores' alignment. A prefetch of any address is allowed and touches
            // nothing. Every vector register counts as overwritten.
            unsafe {
                asm!(
                    "2:",
                    "prefetcht0 [{next} + rax]",
                    $($one_line,)*
                    "add rax, 64",
                    "cmp rax, {bytes}",
                    "jb 2b",
                    "vzeroupper",
                    inout("rax") 0_usize => _,
                    from = in(reg) from.as_ptr(),
                    to = in(reg) to.as_ptr(),
                    next = in(reg) next.as_ptr(),
                    bytes = in(reg) bytes,
                    clobber_abi("sysv64"),
                    options(nostack),
                );
            }
        }

        #[target_feature(enable = $feature)]
        unsafe fn $two(from: [NonNull<u8>; 2], to: [NonNull<u8>; 2], bytes: usize) {
            let ([a, b], [c, d]) = (from, to);
            // SAFETY: reads `bytes` bytes at `a` and at `b` and writes as many at `c` and at `d`, a
            // line of each in each round, until `rax` reaches `bytes`, a positive multiple of a line;
            // the caller promised all four ranges, and the stores' alignment. Every vector register
            // counts as overwritten.
            unsafe {
                asm!(
                    "2:",
                    $($two_line,)*
                    "add rax, 64",
                    "cmp rax, {bytes}",
                    "jb 2b",
                    "vzeroupper",
                    inout("rax") 0_usize => _,
                    a = in(reg) a.as_ptr(),
                    b = in(reg) b.as_ptr(),
                    c = in(reg) c.as_ptr(),
                    d = in(reg) d.as_ptr(),
                    bytes = in(reg) bytes,
                    clobber_abi("sysv64"),
                    options(nostack),
                );
            }
        }
    };
}

loops!(
    "avx2",
    one_avx2: [
        "vmovdqu ymm0, [{from} + rax]",
        "vmovdqu ymm1, [{from} + rax + 32]",
        "vmovntdq [{to} + rax], ymm0",
        "vmovntdq [{to} + rax + 32], ymm1"
    ],
    two_avx2: [
        "vmovdqu ymm0, [{a} + rax]",
        "vmovdqu ymm1, [{a} + rax + 32]",
        "vmovdqu ymm2, [{b} + rax]",
        "vmovdqu ymm3, [{b} + rax + 32]",
        "vmovntdq [{c} + rax], ymm0",
        "vmovntdq [{c} + rax + 32], ymm1",
        "vmovntdq [{d} + rax], ymm2",
        "vmovntdq [{d} + rax + 32], ymm3"
    ]
);

loops!(
    "avx512f",
    one_avx512: [
        "vmovdqu64 zmm0, [{from} + rax]",
        "vmovntdq [{to} + rax], zmm0"
    ],
    two_avx512: [
        "vmovdqu64 zmm0, [{a} + rax]",
        "vmovdqu64 zmm1, [{b} + rax]",
        "vmovntdq [{c} + rax], zmm0",
        "vmovntdq [{d} + rax], zmm1"
    ]
);

/// Puts a range out of all caches, so that a measurement finds it cold. Nothing changes in memory.
///
/// # Safety
///
/// The range is mapped.
pub(super) unsafe fn put_out(start: NonNull<u8>, bytes: usize) {
    if bytes == 0 {
        return;
    }
    // SAFETY: an instruction that every x86-64 has, on one line after the other of a range that the
    // caller says is mapped; it writes lines back and changes none.
    unsafe {
        asm!(
            "2:",
            "clflush [{start} + {i}]",
            "add {i}, 64",
            "cmp {i}, {bytes}",
            "jb 2b",
            "mfence",
            i = inout(reg) 0_usize => _,
            start = in(reg) start.as_ptr(),
            bytes = in(reg) bytes,
            options(nostack),
        );
    }
}
