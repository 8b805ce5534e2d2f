//! Serde format of hashes and signatures: lower-case hex, the only form that JSON accepts.

use data_encoding::HEXLOWER;
use serde::{Deserialize, Deserializer, Serializer, de::Error, ser::SerializeSeq};

pub(crate) fn encode_hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

pub(crate) fn decode_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

pub(crate) fn serialize<S: Serializer, const N: usize>(
    bytes: &[u8; N],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&encode_hex(bytes))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
    deserializer: D,
) -> Result<[u8; N], D::Error> {
    let text = String::deserialize(deserializer)?;
    decode_hex(&text)
        .ok_or_else(|| D::Error::custom(format!("expected {N} bytes as lower-case hex")))
}

/// Serde format of a hash that may be absent.
pub(crate) mod optional {
    use super::{Deserialize, Deserializer, Error, Serializer, decode_hex, encode_hex};

    #[expect(clippy::ref_option, reason = "serde gives a reference to the field")]
    pub(crate) fn serialize<S: Serializer, const N: usize>(
        bytes: &Option<[u8; N]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => serializer.serialize_some(&encode_hex(bytes)),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
        deserializer: D,
    ) -> Result<Option<[u8; N]>, D::Error> {
        Option::<String>::deserialize(deserializer)?
            .map(|text| {
                decode_hex(&text).ok_or_else(|| D::Error::custom("expected lower-case hex"))
            })
            .transpose()
    }
}

/// Serde format of a list of hashes.
pub(crate) mod list {
    use super::{
        Deserialize, Deserializer, Error, SerializeSeq, Serializer, decode_hex, encode_hex,
    };

    pub(crate) fn serialize<S: Serializer>(
        hashes: &[[u8; 32]],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(hashes.len()))?;
        for hash in hashes {
            list.serialize_element(&encode_hex(hash))?;
        }
        list.end()
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<[u8; 32]>, D::Error> {
        Vec::<String>::deserialize(deserializer)?
            .iter()
            .map(|text| decode_hex(text).ok_or_else(|| D::Error::custom("expected lower-case hex")))
            .collect()
    }
}
