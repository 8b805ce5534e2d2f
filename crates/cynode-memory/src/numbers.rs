//! Numbers that are the same on every platform: conversions, and a logarithm without the C library.

/// Converts a count. Counts above `u32::MAX` become that.
pub(crate) fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Rounds to the precision of an embedding.
#[expect(clippy::cast_possible_truncation, reason = "an embedding has single precision")]
pub(crate) const fn single(value: f64) -> f32 {
    value as f32
}

/// Returns the natural logarithm of a normal positive number, else 0.
///
/// The libraries of platforms differ in the last bit of `ln`. This one uses only operations that IEEE 754 rounds exactly.
pub(crate) fn ln(value: f64) -> f64 {
    const MANTISSA_BITS: u32 = 52;
    const EXPONENT_OF_ONE: u64 = 1023;
    const TERMS: u32 = 11;
    if !value.is_normal() || value < 0.0 {
        return 0.0;
    }
    let bits = value.to_bits();
    let biased = u32::try_from(bits >> MANTISSA_BITS).unwrap_or_default();
    let fraction = bits & ((1 << MANTISSA_BITS) - 1);
    let mut mantissa = f64::from_bits(fraction | (EXPONENT_OF_ONE << MANTISSA_BITS));
    let mut exponent = f64::from(biased) - 1023.0;
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1.0;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), and the argument is at most 0.172.
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    let mut sum = 0.0;
    for term in (0..TERMS).rev() {
        sum = sum * square + 1.0 / f64::from(2 * term + 1);
    }
    2.0 * ratio * sum + exponent * std::f64::consts::LN_2
}
