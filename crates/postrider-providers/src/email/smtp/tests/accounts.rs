//! Settings of accounts.

use super::*;

fn with(changes: &Value) -> Value {
    let mut settings =
        json!({ "host": "smtp.example.com", "from": "News <news@example.org>", "user": "mailer" });
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => settings.as_object_mut().unwrap().remove(name),
            value => settings.as_object_mut().unwrap().insert(name.clone(), value.clone()),
        };
    }
    settings
}

#[test]
fn tls_is_the_default_and_the_port_follows_from_it() {
    for (changes, security, port) in [
        (json!({}), Security::Tls, 465),
        (json!({ "security": "tls" }), Security::Tls, 465),
        (json!({ "security": "starttls" }), Security::StartTls, 587),
        (json!({ "security": "starttls", "port": 2525 }), Security::StartTls, 2525),
    ] {
        let server = open(&CLOSED, &with(&changes), "hunter2").ok().unwrap();
        assert_eq!((server.security, server.port, server.hello.as_str()), (security, port, "example.org"));
        assert!(server.tls.is_some() && server.login.is_some());
    }
}

#[test]
fn invalid_settings_are_refused_with_advice_and_without_the_password() {
    for (changes, password, why) in [
        (json!({ "host": null }), "hunter2", "missing field `host`"),
        (json!({ "from": null }), "hunter2", "missing field `from`"),
        (json!({ "hots": "x" }), "hunter2", "unknown field `hots`"),
        (json!({ "security": "ssl" }), "hunter2", "unknown variant `ssl`"),
        (json!({ "security": "none" }), "hunter2", "use `tls` or `starttls`"),
        (json!({ "port": 0 }), "hunter2", "465 with `tls`"),
        (json!({ "port": 65536 }), "hunter2", "u16"),
        (json!({ "host": "" }), "hunter2", "`host` is not"),
        (json!({ "host": "smtp example" }), "hunter2", "`host` is not"),
        (json!({ "host": "127.0.0.1" }), "hunter2", "a loopback address"),
        (json!({ "host": "0x7f.1" }), "hunter2", "a loopback address"),
        (json!({ "host": "[::1]" }), "hunter2", "a loopback address"),
        (json!({ "host": "169.254.169.254" }), "hunter2", "a link-local address"),
        (json!({ "host": "localhost" }), "hunter2", "this machine"),
        (json!({ "from": "News" }), "hunter2", "`from` is not an address"),
        (json!({ "from": "a@example.org\r\nBcc: b@example.org" }), "hunter2", "`from` holds a line break"),
        (json!({ "reply_to": "nobody" }), "hunter2", "`reply_to` is not an address"),
        (json!({ "hello": "a b" }), "hunter2", "`hello` is not"),
        (json!({ "hello": "a\r\nRSET" }), "hunter2", "`hello` is not"),
        (json!({ "user": null }), "hunter2", "no `user`"),
        (json!({ "user": "" }), "hunter2", "`user` is empty"),
        (json!({ "user": "a\0b" }), "hunter2", "control character"),
        (json!({}), "", "`user` needs a password"),
        (json!({}), "hunter2\r\n", "without control characters"),
    ] {
        let error = open(&CLOSED, &with(&changes), password).err().unwrap().to_string();
        assert!(error.contains(why) && !error.contains("hunter2"), "{changes}: {error}");
    }
    assert!(open(&CLOSED, &with(&json!({ "user": null })), "").is_ok());
    assert!(open(&OPEN, &with(&json!({ "security": "none", "host": "127.0.0.1" })), "p").is_ok());
}

#[tokio::test]
async fn a_name_that_leads_inside_is_not_connected_to() {
    use reqwest::dns::{Addrs, Name, Resolve, Resolving};

    struct Inside;
    impl Resolve for Inside {
        fn resolve(&self, _: Name) -> Resolving {
            let found = ["93.184.216.34:0", "127.0.0.1:0"].map(|address| address.parse().unwrap());
            Box::pin(async move { Ok(Box::new(found.into_iter()) as Addrs) })
        }
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = GuardedClient::with_resolver(Policy::default(), PATIENT, Arc::new(Inside)).unwrap();
    let settings = with(&json!({ "port": port }));

    let outcome =
        open(&client, &settings, "hunter2").ok().unwrap().send(&key(), &email("a@example.com")).await;

    let Outcome::NotSent { reason, .. } = outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("resolves to a loopback address"), "{reason}");
    assert!(timeout(Duration::ZERO, listener.accept()).await.is_err());
}
