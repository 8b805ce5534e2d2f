//! SSRF guard: tells globally routable IP addresses from loopback, private, link-local and cloud metadata addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is out in the open: not this machine, not a private network, not a place where clouds keep secrets.
/// What is not known to be public is not.
pub fn is_globally_routable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_globally_routable_v4(ip),
        IpAddr::V6(ip) => is_globally_routable_v6(ip),
    }
}

fn is_globally_routable_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    !(ip.is_unspecified()
        || ip.is_loopback()
        || ip.is_private()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_broadcast()
        || ip.is_documentation()
        || a == 0
        || (a == 100 && (64..128).contains(&b)) // shared by carriers
        || (a == 192 && b == 0 && c == 0) // protocol assignments
        || (a == 192 && b == 88 && c == 99) // 6to4 relays
        || (a == 198 && (18..20).contains(&b)) // benchmarks
        || a >= 240)
}

fn is_globally_routable_v6(ip: Ipv6Addr) -> bool {
    // An IPv4 address in disguise is judged as what it is.
    if let Some(inner) = ip.to_ipv4_mapped() {
        return is_globally_routable_v4(inner);
    }
    let segments = ip.segments();
    let global = segments[0] & 0xe000 == 0x2000;
    let documentation =
        (segments[0] == 0x2001 && segments[1] == 0xdb8) || segments[0] & 0xfff0 == 0x3ff0;
    // Teredo, 6to4 and their like lead to addresses that we do not see here.
    let tunnel = (segments[0] == 0x2001 && segments[1] < 0x200) || segments[0] == 0x2002;
    global && !documentation && !tunnel
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_out_in_the_open_is_public() {
        let public = |text: &str| is_globally_routable(text.parse().unwrap());
        for text in ["93.184.216.34", "1.1.1.1", "2606:2800:220:1::1", "::ffff:8.8.8.8"] {
            assert!(public(text), "{text}");
        }
        for text in [
            "127.0.0.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
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
