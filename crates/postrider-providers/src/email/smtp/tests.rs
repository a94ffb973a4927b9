mod accounts;
mod faults;
mod judging;
mod server;
mod tls;

use std::{net::Ipv4Addr, sync::LazyLock};

use postrider_model::{
    ids::{AssetId, ProviderAccountId, RunId},
    key::KeyPart,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::guard::{Limits, Policy};

/// Long enough for a busy machine.
const PATIENT: Limits = Limits { connect: Duration::from_secs(10), total: Duration::from_secs(30) };

/// Short enough for tests of a timeout; long enough to reach the point before it.
const HASTY: Limits = Limits { connect: Duration::from_secs(10), total: Duration::from_secs(6) };

// Created once, because creating a client takes time that running calls would lose.
static CLOSED: LazyLock<GuardedClient> = LazyLock::new(|| client(false, PATIENT));
static OPEN: LazyLock<GuardedClient> = LazyLock::new(|| client(true, PATIENT));
static OPEN_AND_HASTY: LazyLock<GuardedClient> = LazyLock::new(|| client(true, HASTY));

fn client(allow_private: bool, limits: Limits) -> GuardedClient {
    GuardedClient::new(Policy { allow_private }, limits).unwrap()
}

fn key() -> IdempotencyKey {
    IdempotencyKey::new(RunId(Uuid::nil()), Uuid::nil(), KeyPart::Asset(AssetId(Uuid::nil())), None)
}

fn email(to: &str) -> Message {
    let text = Some(".\r\nHello.".to_owned());
    Message::Email { to: to.to_owned(), subject: "Hello".to_owned(), text, html: None, unsubscribe_url: None }
}

fn open(client: &GuardedClient, settings: &Value, password: &str) -> Result<Server, InvalidAccount> {
    let secret = SecretString::from(password);
    SmtpAdapter::new(client).server(&Account { id: ProviderAccountId::new(), settings, secret: &secret })
}

/// An account at a server of this test.
fn account(client: &GuardedClient, port: u16) -> Server {
    let settings =
        json!({ "host": Ipv4Addr::LOCALHOST, "port": port, "security": "none", "from": "news@example.org" });
    open(client, &settings, "").ok().unwrap()
}
