//! The addresses of the public internet. Every other address may lead into a private network.
//!
//! IPv4 is open except for this list (the IANA special-purpose registry, and one address that a cloud answers on
//! every machine). IPv6 is closed except for 2000::/3, and the list takes its own exceptions out of that.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// An address that is not called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotPublic {
    /// Ends the sentence "this host is …".
    pub what: &'static str,
    /// Whether `outbound.allow_private = true` opens it: a developer's own machine and network. The metadata
    /// service of a cloud, multicast and the like stay closed.
    pub development: bool,
}

const fn always(what: &'static str) -> NotPublic {
    NotPublic { what, development: false }
}

const fn unless_development(what: &'static str) -> NotPublic {
    NotPublic { what, development: true }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits)
}

const fn v6(a: u16, b: u16, c: u16, bits: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), bits)
}

const V4_NOT_PUBLIC: &[(Ipv4Net, NotPublic)] = &[
    (v4(127, 0, 0, 0, 8), unless_development("a loopback address")),
    (v4(10, 0, 0, 0, 8), unless_development("a private address")),
    (v4(172, 16, 0, 0, 12), unless_development("a private address")),
    (v4(192, 168, 0, 0, 16), unless_development("a private address")),
    (v4(100, 64, 0, 0, 10), unless_development("a shared (carrier-grade NAT) address")),
    (v4(169, 254, 0, 0, 16), always("a link-local address (cloud metadata lives there)")),
    (v4(168, 63, 129, 16, 32), always("the address of a cloud's own platform service")),
    (v4(0, 0, 0, 0, 8), always("an unspecified address")),
    (v4(192, 0, 0, 0, 24), always("an address reserved for protocols")),
    (v4(192, 0, 2, 0, 24), always("a documentation address")),
    (v4(198, 51, 100, 0, 24), always("a documentation address")),
    (v4(203, 0, 113, 0, 24), always("a documentation address")),
    (v4(192, 88, 99, 0, 24), always("a 6to4 relay address")),
    (v4(198, 18, 0, 0, 15), always("a benchmarking address")),
    (v4(224, 0, 0, 0, 4), always("a multicast address")),
    (v4(255, 255, 255, 255, 32), always("the broadcast address")),
    (v4(240, 0, 0, 0, 4), always("a reserved address")),
];

const V6_PUBLIC: Ipv6Net = v6(0x2000, 0, 0, 3);

/// More specific networks first. An address that contains an IPv4 address is always refused.
const V6_NOT_PUBLIC: &[(Ipv6Net, NotPublic)] = &[
    (Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128), unless_development("a loopback address")),
    (v6(0xfc00, 0, 0, 7), unless_development("a private (unique local) address")),
    (v6(0xfe80, 0, 0, 10), always("a link-local address")),
    (v6(0xfec0, 0, 0, 10), always("a site-local address")),
    (v6(0xff00, 0, 0, 8), always("a multicast address")),
    (Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 128), always("an unspecified address")),
    (Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96), always("an IPv4-mapped address")),
    (v6(0, 0, 0, 96), always("an IPv4-compatible address")),
    (v6(0x64, 0xff9b, 0, 96), always("a NAT64 address")),
    (v6(0x64, 0xff9b, 1, 48), always("a NAT64 address")),
    (v6(0x100, 0, 0, 64), always("a discard address")),
    (v6(0x2001, 0, 0, 32), always("a Teredo address")),
    (v6(0x2001, 0, 0, 23), always("an address reserved for protocols")),
    (v6(0x2001, 0xdb8, 0, 32), always("a documentation address")),
    (v6(0x3fff, 0, 0, 20), always("a documentation address")),
    (v6(0x2002, 0, 0, 16), always("a 6to4 address")),
];

/// The reason why an address is not public; `None` if it is.
pub(super) fn not_public(address: IpAddr) -> Option<NotPublic> {
    match address {
        IpAddr::V4(v4) => V4_NOT_PUBLIC.iter().find(|(net, _)| net.contains(&v4)).map(|(_, why)| *why),
        IpAddr::V6(v6) => match V6_NOT_PUBLIC.iter().find(|(net, _)| net.contains(&v6)) {
            Some((_, why)) => Some(*why),
            None if V6_PUBLIC.contains(&v6) => None,
            None => Some(always("an address outside the public internet")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_public(address: &str) -> bool {
        not_public(address.parse().unwrap()).is_none()
    }

    // The first and last address of each closed network, and their open neighbours.
    #[test]
    fn networks_end_where_the_registry_says() {
        let closed = [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.0",
            "127.255.255.255",
            "168.63.129.16",
            "169.254.0.0",
            "169.254.255.255",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.0",
            "192.0.0.255",
            "192.0.2.0",
            "192.88.99.1",
            "192.168.0.0",
            "192.168.255.255",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.0",
            "255.255.255.255",
            "::",
            "::1",
            "::2",
            "::ffff:8.8.8.8",
            "::127.0.0.1",
            "64:ff9b::808:808",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:1ff:ffff::",
            "2001:db8::1",
            "2002::1",
            "2002:7f00:1::",
            "3fff:fff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fdff::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "1fff::1",
        ];
        let open = [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.0.3.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "8.8.8.8",
            "2000::1",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2003::1",
            "2606:4700::1111",
            "2a00:1450::1",
            "3ffe:ffff::1",
            "3fff:1000::1",
        ];
        for address in closed {
            assert!(!is_public(address), "{address} must be closed");
        }
        for address in open {
            assert!(is_public(address), "{address} must be open");
        }
    }
}
