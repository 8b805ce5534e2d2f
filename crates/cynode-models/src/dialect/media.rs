//! Data URLs: bytes embedded in text.

/// Splits `data:TYPE;base64,BYTES` into the media type and the bytes.
pub(super) fn split_data_url(url: &str) -> Option<(&str, &str)> {
    let (head, data) = url.strip_prefix("data:")?.split_once(',')?;
    let media_type = head.strip_suffix(";base64")?;
    (!media_type.is_empty() && !media_type.contains(';')).then_some((media_type, data))
}

/// Returns the data URL of the bytes.
pub(super) fn data_url(media_type: &str, data: &str) -> String {
    format!("data:{media_type};base64,{data}")
}
