//! Which addresses are out in the open.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is neither this machine nor a private network nor anything special. What is not known to be public is
/// not.
pub(super) fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => public_v4(ip),
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or_else(|| public_v6(ip), public_v4),
    }
}

const fn public_v4(ip: Ipv4Addr) -> bool {
    !matches!(
        ip.octets(),
        [0 | 10 | 127 | 224..=255, ..]
            | [100, 64..=127, ..]
            | [169, 254, ..]
            | [172, 16..=31, ..]
            | [192, 0, 0 | 2, _]
            | [192, 88, 99, _]
            | [192, 168, ..]
            | [198, 18..=19, ..]
            | [198, 51, 100, _]
            | [203, 0, 113, _]
    )
}

const fn public_v6(ip: Ipv6Addr) -> bool {
    match ip.segments() {
        // Tunnels, documentation and other special uses within what is global.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x2002 | 0x3ff0..=0x3fff, ..] => false,
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_out_in_the_open_is_public() {
        let public = |text: &str| is_public(text.parse().unwrap());
        for text in ["93.184.216.34", "1.1.1.1", "2606:2800:220:1::1", "::ffff:8.8.8.8"] {
            assert!(public(text), "{text}");
        }
        for text in [
            "127.0.0.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.31.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "2002:7f00:1::",
            "2001:db8::1",
            "64:ff9b::a00:1",
            "2001::1",
        ] {
            assert!(!public(text), "{text}");
        }
    }
}
