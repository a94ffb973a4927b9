//! Notations of addresses that the guard must recognise.

use postrider_providers::guard::{CallError, GuardedClient, Limits, Policy, Reuse, UrlRefused, check_url};
use reqwest::{Method, Request};
use url::Url;

const CLOSED: Policy = Policy { allow_private: false };
const DEVELOPMENT: Policy = Policy { allow_private: true };

/// Always refused.
const NEVER: &[&str] = &[
    // Cloud metadata, in every base.
    "https://169.254.169.254/latest/meta-data/",
    "https://169.254.169.254./",
    "https://2852039166/",
    "https://0xa9fea9fe/",
    "https://0xA9.0xFE.0xA9.0xFE/",
    "https://0251.0376.0251.0376/",
    "https://169.254.43518/",
    "https://169.16689662/",
    "https://[::ffff:169.254.169.254]/",
    "https://[::ffff:a9fe:a9fe]/",
    "https://168.63.129.16/machine?comp=goalstate",
    // Addresses with another one inside.
    "https://[::ffff:127.0.0.1]/",
    "https://[0:0:0:0:0:ffff:7f00:1]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[64:ff9b::169.254.169.254]/",
    "https://[64:ff9b:1::a00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/",
    // Unspecified, broadcast, multicast, reserved and documentation addresses.
    "https://0.0.0.0/",
    "https://0/",
    "https://0.1.2.3/",
    "https://[::]/",
    "https://192.0.0.1/",
    "https://192.0.2.1/",
    "https://198.18.0.1/",
    "https://198.51.100.1/",
    "https://203.0.113.1/",
    "https://224.0.0.1/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
    "https://4294967295/",
    "https://[fe80::1]/",
    "https://[fec0::1]/",
    "https://[ff02::1]/",
    "https://[100::1]/",
    "https://[2001:db8::1]/",
    "https://[3fff::1]/",
    "https://[5f00::1]/",
    // Names and passwords, also those that pretend to be a host.
    "https://user@example.com/",
    "https://:password@example.com/",
    "https://user:password@example.com/",
    "https://example.com@127.0.0.1/",
    "https://example.com%2f@169.254.169.254/",
    // Other schemes.
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "ws://example.com/",
    "data:text/plain,hello",
    "unix:/var/run/docker.sock",
];

/// Refused, unless `allow_private` is set.
const DEVELOPMENT_ONLY: &[&str] = &[
    "http://example.com/",
    "HTTP://EXAMPLE.COM/",
    "http://127.0.0.1:8080/",
    "https://127.0.0.1/",
    "https://127.0.0.1./",
    "https://127.1/",
    "https://127.0.1/",
    "https://2130706433/",
    "https://017700000001/",
    "https://0177.0.0.1/",
    "https://0x7f000001/",
    "https://0x7f.1/",
    "https://0X7F.0.0.0x1:8443/",
    "https://%31%32%37.0.0.1/",
    "https://①②⑦.0.0.1/",
    "https://１２７。０。０。１/",
    "https://127.255.255.254/",
    "https://10.0.0.1/",
    "https://012.0.0.1/",
    "https://167772161/",
    "https://172.16.0.1/",
    "https://172.31.255.255/",
    "https://192.168.1.1:443/",
    "https://0xc0a80101/",
    "https://100.64.0.1/",
    "https://100.100.100.200/latest/meta-data/",
    "https://[::1]/",
    "https://[0:0:0:0:0:0:0:1]:8443/",
    "https://[0000::0001]/",
    "https://[fc00::1]/",
    "https://[fd00:ec2::254]/",
    "https://localhost/",
    "https://localhost./",
    "https://LOCALHOST:8443/",
    "https://lOcAlHoSt/",
    "https://ｌｏｃａｌｈｏｓｔ/",
    "https://metadata.localhost/",
    "https:\\\\127.0.0.1\\",
    "https:127.0.0.1",
    "https://\t127.0.0.1/",
];

/// Allowed. Names are checked again after their resolution.
const PUBLIC: &[&str] = &[
    "https://example.com/",
    "https://example.com./",
    "https://EXAMPLE.com:8443/hook?x=http://127.0.0.1/",
    "HTTPS://example.com/#@127.0.0.1",
    "https://example.com/@127.0.0.1",
    "https://localhost.example.com/",
    "https://notlocalhost/",
    "https://127.0.0.1.example.com/",
    "https://bücher.example/",
    "https://8.8.8.8/",
    "https://134744072/",
    "https://1.1/",
    "https://172.32.0.1/",
    "https://100.128.0.1/",
    "https://[2606:4700:4700::1111]/",
    "https://[2a00:1450:4001:82a::200e]:8443/",
];

fn parse(text: &str) -> Url {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn private_hosts_are_refused_in_every_notation() {
    for text in NEVER {
        assert!(check_url(&parse(text), &CLOSED).is_err(), "{text}");
        let refused = check_url(&parse(text), &DEVELOPMENT);
        let message = refused.expect_err(text).to_string();
        assert!(!message.contains("allow_private"), "advice that would not help for {text}: {message}");
    }
    for text in DEVELOPMENT_ONLY {
        let message = check_url(&parse(text), &CLOSED).expect_err(text).to_string();
        assert!(message.contains("`outbound.allow_private = true`"), "{text}: {message}");
        assert_eq!(check_url(&parse(text), &DEVELOPMENT), Ok(()), "{text}");
    }
    for text in PUBLIC {
        assert_eq!(check_url(&parse(text), &CLOSED), Ok(()), "{text}");
    }
}

#[test]
fn a_refusal_has_the_reason_and_advice() {
    let message = |text: &str| check_url(&parse(text), &CLOSED).unwrap_err().to_string();
    assert_eq!(
        message("https://0x7f.1/"),
        "`127.0.0.1` is a loopback address, and only public addresses are called; use a public host, or set \
         `outbound.allow_private = true` for development"
    );
    assert_eq!(
        message("https://169.254.169.254/"),
        "`169.254.169.254` is a link-local address (cloud metadata lives there), and only public addresses are called; \
         use a public host"
    );
    assert_eq!(message("ftp://example.com/"), "`ftp:` URLs are not called; use an https:// URL");
    let secret = message("https://bob:hunter2@example.com/");
    assert!(secret.contains("remove") && !secret.contains("hunter2") && !secret.contains("bob"), "{secret}");
}

// An address in the URL never reaches the resolver, so the client must check it for each call.
#[tokio::test]
async fn the_client_checks_the_url_of_every_call() {
    let client = GuardedClient::new(CLOSED, Limits::default()).unwrap();
    for text in NEVER.iter().chain(DEVELOPMENT_ONLY) {
        for reuse in [Reuse::Never, Reuse::Allowed] {
            let answer = client.send(Request::new(Method::POST, parse(text)), reuse).await;
            assert!(matches!(answer, Err(CallError::Refused(_))), "{text}: {answer:?}");
        }
    }
    // A name in the hosts file of every machine, which the guard does not refuse by its text.
    let answer = client.send(Request::new(Method::GET, parse("https://ip6-localhost/")), Reuse::Never).await;
    match answer {
        Err(CallError::Refused(UrlRefused::ResolvesToNotPublic { .. }) | CallError::Unreachable { .. }) => {}
        other => panic!("{other:?}"),
    }
}
