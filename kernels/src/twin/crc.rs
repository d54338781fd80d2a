//! Multiplication of CRC32C registers: polynomials over GF(2) modulo Castagnoli's, bit-reflected
//! (the highest bit is x^0).
//!
//! A register that a byte is fed to is multiplied by x^8. So the part that an early byte has in a
//! register is that byte times a power of x, and can be computed apart.

const POLYNOMIAL: u32 = 0x82f6_3b78;
/// x^(2^31) = x, which a test shows.
const ORDER: u64 = (1 << 31) - 1;

pub(super) fn times(mut a: u32, b: u32) -> u32 {
    let mut product = 0;
    for bit in (0..32).rev() {
        if b >> bit & 1 == 1 {
            product ^= a;
        }
        a = a >> 1 ^ if a & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    product
}

/// What a register is multiplied by when this many zero bytes are fed to it.
pub(super) fn bytes(count: u64) -> u32 {
    let mut exponent = count % ORDER * 8 % ORDER;
    let (mut product, mut square) = (0x8000_0000, 0x4000_0000);
    while exponent > 0 {
        if exponent & 1 == 1 {
            product = times(product, square);
        }
        square = times(square, square);
        exponent >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feeding_zeros_multiplies_the_register() {
        for count in [0usize, 1, 2, 7, 64, 4096] {
            let data = b"any bytes at all";
            let register = !crc32c::crc32c(data);
            let fed = !crc32c::crc32c_append(crc32c::crc32c(data), &vec![0; count]);
            assert_eq!(times(register, bytes(count as u64)), fed, "{count}");
        }
    }

    #[test]
    fn powers_of_x_come_round_after_two_to_the_31_minus_1() {
        let x = 0x4000_0000;
        let round = (0..31).fold(x, |square, _| times(square, square));
        assert_eq!(round, x);
        // 8 has an inverse modulo ORDER, so the byte counts come round, too.
        assert_eq!(bytes(ORDER), 0x8000_0000);
        assert_eq!(bytes(u64::MAX), bytes(u64::MAX % ORDER));
    }
}
