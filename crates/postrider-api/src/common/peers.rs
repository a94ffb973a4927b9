//! The address of the client that sent a request.
//!
//! It is the peer of the connection. If the peer is a proxy that the operator trusts (`api.trusted_proxies`), the client is the
//! right-most address of `X-Forwarded-For` that is not itself a trusted proxy: each proxy appends the address of its own peer, so
//! everything to the left of that address was written by the client and may be false.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    sync::Arc,
};

use axum::http::{Extensions, HeaderMap};
use ipnet::IpNet;

/// The peer of the connection on which a request came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Addresses and networks of proxies whose `X-Forwarded-For` counts.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies(Arc<[IpNet]>);

/// A text that is neither an address nor a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct NotANetwork {
    text: String,
    instead: Option<IpNet>,
}

impl fmt::Display for NotANetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not an address or a network; ", self.text)?;
        match self.instead {
            Some(network) => write!(f, "the network with this address is {network}"),
            None => {
                write!(f, "write an address such as 192.0.2.7, or a network such as 10.0.0.0/8 or fd00::/8")
            }
        }
    }
}

impl TrustedProxies {
    /// Reads addresses and networks.
    pub fn parse<T: AsRef<str>>(texts: &[T]) -> Result<Self, NotANetwork> {
        texts.iter().map(|text| network(text.as_ref())).collect::<Result<_, _>>().map(Self)
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }

    /// The client that sent a request.
    pub(crate) fn client(&self, extensions: &Extensions, headers: &HeaderMap) -> IpAddr {
        // Every connection has a peer; a request without one was made inside this process.
        let peer = extensions.get::<Peer>().map_or(IpAddr::from([0; 4]), |Peer(address)| *address);
        self.client_of(peer, headers)
    }

    fn client_of(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        let forwarded: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        let mut hops = forwarded.iter().rev().flat_map(|value| value.as_bytes().rsplit(|byte| *byte == b','));
        while self.contains(client) {
            // A proxy that names no address is itself the last one that is known.
            let Some(hop) = hops.next().and_then(address) else { break };
            client = hop;
        }
        client
    }
}

/// An address or a network. Bits behind the network's length are refused: they are a mistake in one of the two.
fn network(text: &str) -> Result<IpNet, NotANetwork> {
    let refused = |instead| NotANetwork { text: text.to_owned(), instead };
    let network = match IpAddr::from_str(text) {
        Ok(address) => IpNet::from(address.to_canonical()),
        Err(_) => text.parse().map_err(|_| refused(None))?,
    };
    if network.trunc() == network { Ok(network) } else { Err(refused(Some(network.trunc()))) }
}

/// An address as proxies write it: bare, in brackets, or with a port.
fn address(hop: &[u8]) -> Option<IpAddr> {
    let hop = std::str::from_utf8(hop).ok()?.trim();
    let bare = hop.strip_prefix('[').and_then(|hop| hop.strip_suffix(']')).unwrap_or(hop);
    let with_port = || Some(hop.parse::<SocketAddr>().ok()?.ip());
    bare.parse().ok().or_else(with_port).map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(trusted: &[&str], peer: &str, forwarded: &[&'static str]) -> String {
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append("x-forwarded-for", value.parse().unwrap());
        }
        let trusted = TrustedProxies::parse(trusted).unwrap();
        trusted.client_of(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn a_peer_that_is_not_trusted_is_the_client_and_its_headers_are_ignored() {
        for trusted in [&[][..], &["10.0.0.0/8", "fd00::/8"]] {
            assert_eq!(client(trusted, "192.0.2.1", &["203.0.113.5"]), "192.0.2.1");
            assert_eq!(client(trusted, "2001:db8::1", &["10.0.0.1"]), "2001:db8::1");
        }
    }

    #[test]
    fn the_client_is_the_right_most_address_that_is_no_trusted_proxy() {
        let trusted = ["10.0.0.0/8", "192.0.2.7", "fd00::/8"];
        for (forwarded, expected) in [
            (&["203.0.113.5"][..], "203.0.113.5"),
            // Everything to the left was written by the client.
            (&["198.51.100.1, 203.0.113.5"], "203.0.113.5"),
            (&["198.51.100.1, 203.0.113.5, 10.1.1.1 ,192.0.2.7"], "203.0.113.5"),
            (&["198.51.100.1", "203.0.113.5,fd00::7"], "203.0.113.5"),
            (&["198.51.100.1, 203.0.113.5:4711"], "203.0.113.5"),
            (&["2001:db8::5"], "2001:db8::5"),
            (&["[2001:db8::5]"], "2001:db8::5"),
            (&["[2001:db8::5]:4711"], "2001:db8::5"),
            (&["::ffff:203.0.113.5"], "203.0.113.5"),
            // A hop that names no address hides the client; the proxy that wrote it counts.
            (&["203.0.113.5, unknown"], "10.9.9.9"),
            (&["203.0.113.5, unknown, 10.1.1.1"], "10.1.1.1"),
            (&[""], "10.9.9.9"),
            (&[], "10.9.9.9"),
            // All of them are trusted: the first one is the client.
            (&["10.2.2.2, 10.1.1.1"], "10.2.2.2"),
        ] {
            assert_eq!(client(&trusted, "10.9.9.9", forwarded), expected, "{forwarded:?}");
        }
        assert_eq!(client(&trusted, "::ffff:10.9.9.9", &["203.0.113.5"]), "203.0.113.5");
    }

    #[test]
    fn a_text_that_is_no_network_is_refused_with_one_that_is() {
        for text in ["", "proxy.example", "10.0.0.0/33", "10.0.0", "10.0.0.1:80", "::/129", "10.0.0.0/8, ::1"]
        {
            let refused = TrustedProxies::parse(&["10.0.0.0/8", text]).unwrap_err().to_string();
            assert!(refused.contains(&format!("`{text}`")) && refused.contains("such as"), "{refused}");
        }
        let refused = TrustedProxies::parse(&["10.1.2.3/8"]).unwrap_err().to_string();
        assert!(refused.contains("10.0.0.0/8"), "{refused}");
    }
}
