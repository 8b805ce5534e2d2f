//! Prices as people write them.

/// The cents of a price, with commas between thousands.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.replace(',', "");
    let (whole, cents) = text.split_once('.').unwrap_or((&text, ""));
    let cents = format!("{cents:0<2}");
    Some(whole.parse::<u64>().ok()? * 100 + cents.get(..2)?.parse::<u64>().ok()?)
}
