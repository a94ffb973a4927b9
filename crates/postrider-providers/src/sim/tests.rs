use postrider_model::ids::ProviderAccountId;
use secrecy::SecretString;
use serde_json::{Value, json};

use super::*;
use crate::{
    guard::Ending,
    http::tests::{ScriptedServer, answer, client, key, refused, social},
};

fn open(client: &GuardedClient, settings: &Value, token: &str) -> Sim {
    let secret = SecretString::from(token);
    Sim::new(client, &Account { id: ProviderAccountId::new(), settings, secret: &secret }).ok().unwrap()
}

#[test]
fn an_account_has_a_url_and_perhaps_a_token_and_nothing_else() {
    let development = client(true);
    for (url, messages) in [
        ("http://127.0.0.1:9", "http://127.0.0.1:9/messages"),
        ("http://127.0.0.1:9/", "http://127.0.0.1:9/messages"),
        ("https://sim.example/a/b?c#d", "https://sim.example/a/b/messages"),
    ] {
        let sim = open(&development, &json!({ "url": url }), "");
        assert_eq!((sim.messages.as_str(), sim.token), (messages, None));
    }
    let token = open(&development, &json!({ "url": "http://127.0.0.1:9" }), "hunter2").token.unwrap();
    assert_eq!((token.to_str().unwrap(), token.is_sensitive()), ("Bearer hunter2", true));

    refused(
        Sim::new,
        &[
            (true, json!({}), "", "missing field `url`"),
            (true, json!({ "url": "sim" }), "", "relative URL without a base"),
            (true, json!({ "url": "http://127.0.0.1:9", "ur": 1 }), "", "unknown field `ur`"),
            (true, json!({ "url": "ftp://127.0.0.1" }), "", "use an https:// URL"),
            (true, json!({ "url": "http://127.0.0.1:9" }), "hunter2\n", "a header cannot carry"),
            (false, json!({ "url": "http://127.0.0.1:9" }), "", "plain http"),
            (false, json!({ "url": "https://10.0.0.1" }), "", "a private address"),
        ],
    );
}

#[test]
fn only_answers_of_the_sim_settle_a_doubt() {
    let done = || Finding::Done {
        message_id: "sim-1".to_owned(),
        evidence: "the sim has a message under this key".to_owned(),
    };
    let absent = || Finding::Absent { evidence: "the sim has no message under this key".to_owned() };
    let (good, unknown) = (r#"{"id": "sim-1"}"#, r#"{"error": "unknown key"}"#);
    assert_eq!(found(&answer(200, good)), done());
    assert_eq!(found(&answer(404, unknown)), absent());
    for (status, body) in [
        (200, ""),
        (200, "{}"),
        (201, good),
        (404, ""),
        (404, r#"{"error": "no such route"}"#),
        (404, "unknown key"),
        (400, unknown),
        (401, unknown),
        (429, unknown),
        (500, good),
        (503, unknown),
    ] {
        let finding = found(&answer(status, body));
        assert!(matches!(finding, Finding::Unclear { .. }), "{status} {body}: {finding:?}");
    }
    for (status, body) in [(200, good), (404, unknown)] {
        let half = Answer { ending: Ending::Broken, ..answer(status, body) };
        assert!(matches!(found(&half), Finding::Unclear { .. }), "{status}");
    }
}

// This server answers once per connection, so a pooled connection would fail.
#[tokio::test]
async fn every_call_has_a_connection_of_its_own_and_a_question_names_the_key() {
    let good = || (200, json!({ "id": "sim-1" }));
    let server = ScriptedServer::start(vec![good(), good(), good()]);
    let sim = open(&client(true), &json!({ "url": server.url }), "hunter2");
    for _ in 0..2 {
        assert_eq!(sim.send(&key(), &social()).await.kind(), "delivered");
    }
    assert!(matches!(sim.ask(&key()).await, Finding::Done { .. }));
    let question = format!("GET /messages?key={}", key());
    assert_eq!(server.lines(), ["POST /messages", "POST /messages", &question]);
}
