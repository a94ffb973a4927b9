//! URLs of private hosts in every notation, and names that resolve to private addresses.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use postrider_providers::guard::{CallError, GuardedClient, Limits, NoAddress, Policy, Resolve, Reuse};
use reqwest::{Method, Request};
use tokio::task::JoinSet;
use url::{Host, Url};

use crate::listener::{Names, PrivateListener};

pub const CLOSED: Policy = Policy { allow_private: false };
const DEVELOPMENT: Policy = Policy { allow_private: true };

/// Short limits, because no server answers at the public addresses of these tests.
pub const BRIEF: Limits = Limits { connect: Duration::from_millis(300), total: Duration::from_secs(5) };

/// Notations of this machine. A test shows that they connect when private addresses are allowed.
const LOOPBACK: &[&str] = &[
    // Plain, with a dot, short, decimal, octal, hexadecimal, and mixed.
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "127.0.1",
    "127.1.2.3",
    "127.255.255.254",
    "2130706433",
    "017700000001",
    "0x7f000001",
    "0X7F000001",
    "0177.0.0.1",
    "0177.1",
    "0x7f.0.0.1",
    "0x7f.1",
    "0x7F.0.0x0.01",
    "0000177.0.0.1",
    // Percent-encoded, also the dots; digits and dots of other scripts.
    "%31%32%37%2e0%2e0%2e1",
    "127%2E0%2E0%2E1",
    "%6c%6F%63alhost",
    "①②⑦.⓪.⓪.①",
    "１２７.０.０.１",
    "127。0。0。1",
    "１２７．０．０．１",
    "127｡0｡0｡1",
    "𝟏𝟐𝟕.𝟎.𝟎.𝟏",
    // The name, in other cases and scripts, with a dot, with an invisible character.
    "localhost",
    "LOCALHOST",
    "LocalHost.",
    "ｌｏｃａｌｈｏｓｔ",
    "loc\u{ad}alhost",
    "ⓛocalhost",
    "ⅼocalhost",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[0000:0000::0001]",
    "[::0.0.0.1]",
];

/// Always refused.
const NEVER: &[&str] = &[
    // This machine again, on Linux.
    "0.0.0.0",
    "0",
    "0x0",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:FFFF:127.0.0.1]",
    // Compatible, 6to4, NAT64, Teredo: with 127.0.0.1 or 10.0.0.1 listener.
    "[::127.0.0.1]",
    "[2002:7f00:1::]",
    "[2002:a00:1::1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b:1::a00:1]",
    "[2001:0:a00:1::]",
    // The metadata services of clouds.
    "169.254.169.254",
    "0xa9fea9fe",
    "2852039166",
    "0251.0376.0251.0376",
    "[::ffff:169.254.169.254]",
    "169.254.170.2",
    "168.63.129.16",
    // Link-local, site-local, multicast, broadcast, reserved, benchmark, documentation, discard.
    "[fe80::1]",
    "[fec0::1]",
    "[ff02::1]",
    "224.0.0.1",
    "239.255.255.250",
    "255.255.255.255",
    "240.0.0.1",
    "198.18.0.1",
    "192.0.2.1",
    "198.51.100.1",
    "203.0.113.1",
    "192.0.0.192",
    "[2001:db8::1]",
    "[3fff::1]",
    "[100::1]",
];

/// Refused, unless `allow_private` is set.
const PRIVATE: &[&str] = &[
    "10.0.0.1",
    "10.1",
    "012.0.0.1",
    "172.16.0.1",
    "172.31.255.254",
    "192.168.0.1",
    "192.168.257",
    "0xc0a80001",
    "100.64.0.1",
    "100.100.100.200",
    "[fc00::1]",
    "[fd00:ec2::254]",
];

/// Whole URLs that pretend to be another one, or speak another protocol.
const TRICKS: &[&str] = &[
    "https://example.com@127.0.0.1:{port}/",
    "https://example.com:443@127.0.0.1:{port}/",
    "https://example.com%00@127.0.0.1:{port}/",
    "https://user:password@127.0.0.1:{port}/",
    "https://127.0.0.1:{port}\\@example.com/",
    "https://127.0.0.1:{port}#@example.com/",
    "https://127.0.0.1:{port}?@example.com/",
    "https:127.0.0.1:{port}/",
    "https:/127.0.0.1:{port}/",
    "https:\\\\127.0.0.1:{port}\\",
    "https://///127.0.0.1:{port}/",
    " https://127.0.0.1:{port}/ ",
    "https://12\t7.0.0\n.1:{port}/",
    "HtTpS://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}/",
    "http://example.com:{port}/",
    "ftp://127.0.0.1:{port}/",
    "gopher://127.0.0.1:{port}/_x",
    "ws://127.0.0.1:{port}/",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "blob:https://127.0.0.1:{port}/",
    "unix:/run/docker.sock",
    "jar:https://127.0.0.1:{port}/!/",
];

/// Zones, invalid numbers and invalid hosts: texts that do not parse as URLs, so they cannot be set.
const UNREADABLE: &[&str] = &[
    "file://127.0.0.1:{port}/etc/passwd",
    "https://[fe80::1%25lo]:{port}/",
    "https://[fe80::1%lo]:{port}/",
    "https://[::1%25lo]:{port}/",
    "https://[::1]%25lo:{port}/",
    "https://127.0.0.1.1:{port}/",
    "https://256.0.0.1:{port}/",
    "https://0x100000000:{port}/",
    "https://127.0.0.1 :{port}/",
    "https://127.0.0.1%20:{port}/",
    "https://127.0.0.1%00.example.com:{port}/",
    "https://[::127.0.0.1:{port}/",
    "https://[127.0.0.1]:{port}/",
    "https://:{port}/",
];

/// Names that resolve to private addresses.
pub const NAMES: &[(&str, &[&[&str]])] = &[
    ("metadata.google.internal", &[&["169.254.169.254"]]),
    ("db.internal", &[&["10.0.0.5"]]),
    ("printer.local", &[&["192.168.1.9"]]),
    ("localtest.example", &[&["127.0.0.1"]]),
    ("six.example", &[&["::1"]]),
    ("mapped.example", &[&["::ffff:127.0.0.1"]]),
    ("nowhere.example", &[&["0.0.0.0"]]),
    ("carrier.example", &[&["100.64.0.1"]]),
    ("unique.example", &[&["fd12::1"]]),
    ("mixed.example", &[&["1.1.1.1", "127.0.0.1"]]),
    ("mixed-the-other-way.example", &[&["::1", "2606:4700:4700::1111"]]),
    ("late.example", &[&["1.1.1.1", "2606:4700:4700::1111", "8.8.8.8", "10.0.0.1"]]),
];

/// The first resolution is public, the second is this machine. No server is at the public address.
pub const REBINDING: (&str, &[&[&str]]) = ("rebind.example", &[&["3ffe:ffff::1"], &["127.0.0.1"]]);

/// Every host that must not be reached.
pub fn hosts() -> impl Iterator<Item = &'static str> {
    LOOPBACK.iter().chain(NEVER).chain(PRIVATE).copied()
}

/// Every URL that must lead nowhere.
pub fn urls(port: u16) -> Vec<String> {
    let whole = TRICKS.iter().chain(UNREADABLE).map(|url| url.replace("{port}", &port.to_string()));
    hosts().map(|host| format!("https://{host}:{port}/")).chain(whole).collect()
}

fn client(policy: Policy, limits: Limits, names: &Arc<Names>) -> GuardedClient {
    GuardedClient::with_resolver(policy, limits, Arc::clone(names) as Arc<dyn Resolve>).unwrap()
}

async fn call(client: &GuardedClient, url: Url, reuse: Reuse) -> CallError {
    client.send(Request::new(Method::POST, url), reuse).await.expect_err("no server answers")
}

fn parse(form: &str) -> Url {
    form.parse().unwrap_or_else(|error| panic!("{form}: {error}"))
}

#[tokio::test]
async fn none_of_a_hundred_forms_connects() {
    let listener = PrivateListener::start();
    let names = Names::new(&[("example.com", &[&["127.0.0.1"]])]);
    let client = client(CLOSED, BRIEF, &names);
    let forms = urls(listener.port());
    assert!(forms.len() >= 100, "{}", forms.len());
    let (readable, unreadable): (Vec<_>, Vec<_>) = forms.iter().partition(|form| form.parse::<Url>().is_ok());
    assert_eq!(unreadable.len(), UNREADABLE.len(), "{unreadable:#?}");
    for form in readable {
        let url = parse(form);
        for reuse in [Reuse::Never, Reuse::Allowed] {
            let error = call(&client, url.clone(), reuse).await;
            assert!(matches!(error, CallError::Refused(_)), "{form}: {error:?}");
            assert_eq!(listener.count(), 0, "{form}");
        }
    }
    // No name was resolved: the guard refuses each by its text.
    assert_eq!(names.questions(), 0);
}

// Shows that the listener counts connections, and that the notations lead to it.
#[tokio::test]
async fn the_same_forms_connect_when_private_addresses_are_allowed() {
    let listener = PrivateListener::start();
    let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    let hasty = Limits { connect: Duration::from_secs(10), total: Duration::from_secs(6) };
    let development = client(DEVELOPMENT, hasty, &Names::new(&[("localhost", &[&["127.0.0.1"]])]));
    // Concurrently, because each call runs into its time limit.
    let mut calls = JoinSet::new();
    for host in LOOPBACK.iter().filter(|host| has_ipv6 || !host.starts_with('[')) {
        let (client, url) = (development.clone(), parse(&format!("http://{host}:{}/", listener.port())));
        calls.spawn(async move { (host, call(&client, url, Reuse::Never).await) });
    }
    let called = calls.join_all().await;
    for (host, error) in &called {
        assert!(matches!(error, CallError::Unanswered { .. }), "{host}: {error:?}");
    }
    assert_eq!(listener.count(), called.len());
    for host in NEVER {
        let form = format!("http://{host}:{}/", listener.port());
        let error = call(&development, parse(&form), Reuse::Never).await;
        assert!(matches!(error, CallError::Refused(_)), "{form}: {error:?}");
        assert_eq!(listener.count(), 0, "{form}");
    }
    // Some refused addresses would reach this machine.
    for address in ["0.0.0.0", "::ffff:127.0.0.1", "::"] {
        let address = SocketAddr::new(address.parse().unwrap(), listener.port());
        if has_ipv6 || address.is_ipv4() {
            drop(std::net::TcpStream::connect(address).unwrap());
            assert_eq!(listener.count(), 1, "{address}");
        }
    }
}

#[tokio::test]
async fn names_of_private_addresses_are_refused_after_one_resolution() {
    let listener = PrivateListener::start();
    let names = Names::new(NAMES);
    let client = client(CLOSED, BRIEF, &names);
    for (name, _) in NAMES {
        for form in [name.to_string(), name.to_uppercase(), format!("{name}.")] {
            let url = parse(&format!("https://{form}:{}/", listener.port()));
            for reuse in [Reuse::Never, Reuse::Allowed] {
                let error = call(&client, url.clone(), reuse).await;
                assert!(matches!(error, CallError::Refused(_)), "{url}: {error:?}");
            }
            let host = Host::parse(&form).unwrap();
            let found = client.resolve(&host, listener.port()).await;
            assert!(matches!(found, Err(NoAddress::Refused(_))), "{form}: {found:?}");
            assert_eq!((names.questions(), listener.count()), (3, 0), "{form}");
        }
    }
}

// Each call resolves once and connects to those addresses. The next call resolves again, and is refused.
#[tokio::test]
async fn a_name_that_changes_between_check_and_connect_is_not_connected_to() {
    let listener = PrivateListener::start();
    for reuse in [Reuse::Never, Reuse::Allowed] {
        let names = Names::new(&[REBINDING]);
        let client = client(CLOSED, BRIEF, &names);
        let url = parse(&format!("https://rebind.example:{}/", listener.port()));
        let first = call(&client, url.clone(), reuse).await;
        assert!(matches!(first, CallError::Unreachable { .. }), "{first:?}");
        assert_eq!((names.questions(), listener.count()), (1, 0));
        for _ in 0..3 {
            let later = call(&client, url.clone(), reuse).await;
            assert!(matches!(later, CallError::Refused(_)), "{later:?}");
            assert_eq!((names.questions(), listener.count()), (1, 0));
        }
    }
}
