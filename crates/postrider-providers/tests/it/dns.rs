//! A hostile name server whose answers change.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use postrider_model::{EventSink, SinkError};
use postrider_providers::{
    HttpSink, HttpSinkConfig,
    guard::{CallError, Limits, NoAddress, Policy, Reuse, UrlRefused},
};
use reqwest::{
    Method, Request, StatusCode,
    dns::{Addrs, Name, Resolve, Resolving},
};
use url::Host;

use crate::{
    DEVELOPMENT, PATIENT, client_that_asks, event,
    server::{Reaction, Server},
};

/// Returns the first list of addresses for the first resolution, the second for the second, and the last from then on.
pub struct FlippingDns {
    answers: Vec<Vec<IpAddr>>,
    asked: AtomicUsize,
}

impl FlippingDns {
    pub fn new(answers: &[&[&str]]) -> Arc<Self> {
        let answers =
            answers.iter().map(|list| list.iter().map(|ip| ip.parse().unwrap()).collect()).collect();
        Arc::new(Self { answers, asked: AtomicUsize::new(0) })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Resolve for FlippingDns {
    fn resolve(&self, _: Name) -> Resolving {
        let resolution = self.asked.fetch_add(1, Ordering::SeqCst);
        let found = self.answers[resolution.min(self.answers.len() - 1)].clone();
        let addresses = found.into_iter().map(|ip| SocketAddr::new(ip, 0));
        Box::pin(async move { Ok(Box::new(addresses) as Addrs) })
    }
}

const CLOSED: Policy = Policy { allow_private: false };

/// Short limits, because no server answers at the public addresses.
const BRIEF: Limits = Limits { connect: Duration::from_millis(300), total: Duration::from_secs(5) };

fn post(url: &str) -> Request {
    Request::new(Method::POST, url.parse().unwrap())
}

fn ok() -> Reaction {
    Reaction::keep_open_after(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec())
}

// The first resolution is public, the second private: the attack fails if there is only one.
#[tokio::test]
async fn a_name_is_resolved_once_per_call_and_the_second_answer_is_never_used() {
    let server = Server::start(ok());
    // A public address that IANA took back, without a server.
    let dns = FlippingDns::new(&[&["3ffe:ffff::1"], &["127.0.0.1"]]);
    let client = client_that_asks(dns.clone(), CLOSED, BRIEF);

    let url = format!("https://rebind.example:{}/", server.port());
    let answer = client.send(post(&url), Reuse::Never).await;

    assert!(matches!(answer, Err(CallError::Unreachable { .. })), "{answer:?}");
    assert_eq!(dns.asked(), 1);
    assert_eq!(server.traffic().await.connections, 0);
}

// The client connects to the addresses of the one resolution.
#[tokio::test]
async fn the_connector_uses_the_addresses_that_were_checked() {
    let server = Server::start(ok());
    let dns = FlippingDns::new(&[&["127.0.0.1"], &["169.254.169.254"]]);
    let client = client_that_asks(dns.clone(), DEVELOPMENT, PATIENT);

    let url = format!("http://receiver.example:{}/", server.port());
    let answer = client.send(post(&url), Reuse::Never).await.unwrap();
    assert_eq!((answer.status, dns.asked()), (StatusCode::OK, 1));

    // The next call resolves to the metadata service, and is refused even if private addresses are allowed.
    let answer = client.send(post(&url), Reuse::Never).await;
    assert!(matches!(answer, Err(CallError::Refused(UrlRefused::ResolvesToNotPublic { .. }))), "{answer:?}");
    assert_eq!(dns.asked(), 2);
    assert_eq!(server.traffic().await.requests.len(), 1);
}

#[tokio::test]
async fn one_private_address_among_public_ones_refuses_the_name() {
    let lists: &[&[&str]] = &[
        &["127.0.0.1"],
        &["1.1.1.1", "127.0.0.1"],
        &["127.0.0.1", "1.1.1.1"],
        &["1.1.1.1", "2606:4700:4700::1111", "10.0.0.1", "8.8.8.8"],
        &["1.1.1.1", "::1"],
        &["::ffff:127.0.0.1"],
        &["2606:4700:4700::1111", "fd00:ec2::254"],
        &["64:ff9b::7f00:1"],
        &["1.1.1.1", "0.0.0.0"],
    ];
    for list in lists {
        let server = Server::start(ok());
        let dns = FlippingDns::new(&[list]);
        let client = client_that_asks(dns.clone(), CLOSED, BRIEF);
        let url = format!("https://mixed.example:{}/", server.port());
        let error = client.send(post(&url), Reuse::Allowed).await.expect_err("no answer");
        assert!(
            matches!(error, CallError::Refused(UrlRefused::ResolvesToNotPublic { .. })),
            "{list:?}: {error:?}"
        );
        assert_eq!((dns.asked(), server.traffic().await.connections), (1, 0), "{list:?}");
        // The error must not reveal addresses of the private network.
        let reason = error.reason();
        assert!(reason.starts_with("`mixed.example` resolves to "), "{reason}");
        assert!(list.iter().all(|address| !reason.contains(address)), "{reason}");
    }
}

#[tokio::test]
async fn a_name_without_an_address_is_unreachable() {
    let client = client_that_asks(FlippingDns::new(&[&[]]), CLOSED, BRIEF);
    let error = client.send(post("https://missing.example/"), Reuse::Never).await.expect_err("no answer");
    assert!(matches!(error, CallError::Unreachable { .. }), "{error:?}");
    assert!(error.reason().contains("`missing.example` has no address"), "{}", error.reason());
}

#[tokio::test]
async fn a_webhook_whose_name_is_private_is_unreachable_with_the_reason() {
    let client = client_that_asks(FlippingDns::new(&[&["10.0.0.7"]]), CLOSED, BRIEF);
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into();
    let config = HttpSinkConfig { url: "https://inside.example/".parse().unwrap(), secrets: vec![secret] };
    let error = HttpSink::new(&client, config).unwrap().deliver(&event(1)).await.unwrap_err();
    let SinkError::Unreachable { reason } = error else { panic!("{error:?}") };
    assert!(reason.starts_with("`inside.example` resolves to a private address"), "{reason}");
    assert!(reason.contains("outbound.allow_private"), "{reason}");
}

#[tokio::test]
async fn other_protocols_get_addresses_that_were_checked_and_no_others() {
    let dns = FlippingDns::new(&[&["93.184.216.34", "2606:2800::1"], &["93.184.216.34", "10.0.0.1"]]);
    let client = client_that_asks(dns.clone(), CLOSED, PATIENT);
    let resolve = async |host: &str| client.resolve(&Host::parse(host).unwrap(), 465).await;

    let found = resolve("mail.example").await.unwrap();
    assert_eq!(found, ["93.184.216.34:465".parse().unwrap(), "[2606:2800::1]:465".parse().unwrap()]);
    for (host, why) in [
        ("mail.example", "resolves to a private address"),
        ("10.0.0.1", "a private address"),
        ("0x7f.1", "a loopback address"),
        ("[::1]", "a loopback address"),
        ("169.254.169.254", "a link-local address"),
        ("mail.localhost", "this machine"),
    ] {
        let refused = resolve(host).await.unwrap_err();
        assert!(
            matches!(refused, NoAddress::Refused(_)) && refused.to_string().contains(why),
            "{host}: {refused}"
        );
    }
    // An address is not resolved.
    assert_eq!(dns.asked(), 2);
}
