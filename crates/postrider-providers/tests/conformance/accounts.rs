//! Every adapter whose address a tenant sets, with addresses listener private networks.

use std::sync::Arc;

use postrider_model::{Channel, Message, Outcome, ids::ProviderAccountId};
use postrider_providers::{
    Account, Adapter, Adapters, GuardedClient, InvalidAccount, Provider,
    conformance::Reservations,
    guard::{Policy, Resolve},
};
use secrecy::SecretString;
use serde_json::{Value, json};
use url::Url;

use crate::{
    hostile::{self, BRIEF, CLOSED, NAMES, REBINDING},
    listener::{Names, PrivateListener},
};

/// Settings of an account that lead to this URL, and a secret that fits.
fn account(adapter: &str, url: &str) -> (Value, &'static str) {
    match adapter {
        "sim" | "mastodon" => (json!({ "url": url }), "token"),
        "webhook" => (json!({ "url": url }), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        "resend" => (json!({ "url": url, "from": "news@example.com" }), "re_token"),
        "bluesky" => (json!({ "url": url, "identifier": "news.example.com" }), "password"),
        "twilio" => {
            let sid = format!("AC{}", "0".repeat(32));
            let callback_url = "https://postrider.example.com";
            let number = "+15005550006";
            (json!({ "url": url, "account_sid": sid, "from": number, "callback_url": callback_url }), "token")
        }
        "slack" => (json!({ "url": url }), r#"{"bot_token": "xoxb-token", "signing_secret": "secret"}"#),
        "telegram" => (json!({ "url": url }), r#"{"bot_token": "1:token", "webhook_secret": "secret"}"#),
        "whatsapp" => {
            let secret = r#"{"access_token": "token", "app_secret": "secret", "verify_token": "token"}"#;
            (json!({ "url": url, "phone_number_id": "105512345" }), secret)
        }
        "smtp" => {
            let (host, port) = host_and_port(url);
            (json!({ "host": host, "port": port, "from": "news@example.com" }), "")
        }
        other => {
            panic!("add the setting of `{other}` that holds a URL, so that the guard is tested with it")
        }
    }
}

/// Host and port of a URL, for a vendor with separate settings.
fn host_and_port(url: &str) -> (String, u16) {
    let authority = url.split_once("//").map_or(url, |(_, rest)| rest).split('/').next().unwrap_or_default();
    let (host, port) = authority.rsplit_once(':').unwrap_or((authority, ""));
    (host.to_owned(), port.parse().unwrap_or(465))
}

fn message(channel: Channel) -> Message {
    match channel {
        Channel::Email => crate::email(),
        Channel::Voice => crate::voice(),
        Channel::Social => crate::social(),
        Channel::Chat => crate::chat(),
    }
}

fn adapters(policy: Policy, names: &Arc<Names>) -> Vec<Arc<dyn Adapter>> {
    let client = GuardedClient::with_resolver(policy, BRIEF, Arc::clone(names) as Arc<dyn Resolve>).unwrap();
    let adapters = Adapters::standard(&client);
    adapters.manifests().map(|manifest| adapters.get(manifest.name).unwrap().clone()).collect()
}

fn open(adapter: &dyn Adapter, url: &str) -> Result<Arc<dyn Provider>, InvalidAccount> {
    let (settings, secret) = account(adapter.manifest().name, url);
    let secret = SecretString::from(secret);
    adapter.open(&Account { id: ProviderAccountId::new(), settings: &settings, secret: &secret })
}

// Without this test, adapters that open no account at all would pass.
#[test]
fn every_adapter_opens_an_account_at_a_public_address() {
    for adapter in adapters(CLOSED, &Names::new(&[])) {
        let opened = open(&*adapter, "https://vendor.example.com:8443").err();
        assert_eq!(opened, None, "{}", adapter.manifest().name);
    }
}

#[tokio::test]
async fn no_adapter_opens_an_account_that_leads_inside() {
    let listener = PrivateListener::start();
    let port = listener.port();
    let names = Names::new(&[]);
    for adapter in adapters(CLOSED, &names) {
        let name = adapter.manifest().name;
        let forms = match name {
            // SMTP accounts have a host, not a URL.
            "smtp" => hostile::hosts().map(|host| format!("https://{host}:{port}/")).collect(),
            _ => hostile::urls(port),
        };
        for form in forms {
            let Err(InvalidAccount(reason)) = open(&*adapter, &form) else {
                panic!("`{name}` opens an account at {form}");
            };
            assert!(!reason.trim().is_empty(), "`{name}` does not say what is wrong with {form}");
            if let Ok(url) = form.parse::<Url>()
                && url.scheme() == "https"
                && url.username().is_empty()
            {
                assert!(
                    reason.contains("only public addresses are called"),
                    "`{name}` about {form}: {reason}"
                );
            }
        }
    }
    assert_eq!((names.questions(), listener.count()), (0, 0));
}

// A name can only be refused when it is resolved, during the call.
#[tokio::test]
async fn no_adapter_connects_to_a_name_that_leads_inside() {
    let reservations = Reservations::start().await.unwrap();
    let listener = PrivateListener::start();
    let names = Names::new(NAMES);
    let all = adapters(CLOSED, &names);
    for (name, _) in NAMES {
        for adapter in &all {
            let reason = reason_not_sent(&**adapter, name, &listener, &reservations).await;
            let vendor = adapter.manifest().name;
            assert!(reason.contains(&format!("`{name}` resolves to ")), "`{vendor}` to {name}: {reason}");
            assert_eq!((names.questions(), listener.count()), (1, 0), "`{vendor}` to {name}");
        }
    }
    // The first resolution is public, the second private. Each adapter has its own name server.
    for vendor in 0..all.len() {
        let names = Names::new(&[REBINDING]);
        let adapter = adapters(CLOSED, &names).remove(vendor);
        reason_not_sent(&*adapter, REBINDING.0, &listener, &reservations).await;
        assert_eq!((names.questions(), listener.count()), (1, 0), "`{}`", adapter.manifest().name);
    }
}

/// The reason why a call to this name was not sent.
async fn reason_not_sent(
    adapter: &dyn Adapter,
    name: &str,
    listener: &PrivateListener,
    reservations: &Reservations,
) -> String {
    let manifest = adapter.manifest();
    let message = message(manifest.channels[0]);
    let provider = open(adapter, &format!("https://{name}:{}", listener.port())).unwrap();
    let reservation = reservations.take(&message, 1).await.unwrap().remove(0);
    match provider.call(&reservation, &message).await {
        Outcome::NotSent { reason, .. } => reason,
        outcome => panic!("`{}` to {name}: {outcome:?}", manifest.name),
    }
}
