//! Assets: versions of content.

use serde_json::{Value, json};

use super::{
    Stage,
    material::{UNKNOWN, assert_same_404, asset, column, email_asset, id, walk},
};

#[tokio::test(flavor = "multi_thread")]
async fn every_change_is_a_version_and_a_repeat_is_none() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let key = &stage.acme.operator;
    let first = stage.post(key, "/assets", &email_asset("news"))?.expect(201)?;
    assert_eq!(
        (&first["name"], &first["version"], &first["channel"]),
        (&json!("news"), &json!(1), &json!("email"))
    );
    assert_eq!(first["content"]["subject"], "Hello");
    assert_eq!(first["workspace_id"], json!(stage.acme.workspace_id.0));
    assert_eq!(stage.post(key, "/assets", &email_asset("news"))?.expect(201)?, first, "the same content");

    let other =
        json!({ "name": "news", "channel": "email", "content": { "subject": "Hi", "html": "<p>Hi" } });
    let second = stage.post(key, "/assets", &other)?.expect(201)?;
    assert_eq!(second["version"], 2);
    let whole = stage.get(&stage.acme.viewer, &format!("/assets/{}", id(&second)?))?.expect(200)?;
    assert_eq!(whole, second);

    let voice = json!({ "name": "call", "channel": "voice", "content": { "script": "Hello." } });
    stage.post(key, "/assets", &voice)?.expect(201)?;
    for (query, expected) in [
        ("", vec!["call", "news", "news"]),
        ("?name=news", vec!["news", "news"]),
        ("?channel=voice", vec!["call"]),
    ] {
        let items = walk(&stage, &stage.acme.viewer, &format!("/assets{query}"), 1, |_| Ok(()))?;
        assert_eq!(column(&items, "name"), expected, "{query}");
        assert!(items.iter().all(|asset| asset.get("content").is_none()), "{items:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_would_fail_later_is_refused_now() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let with = |member: &str, value: Value| {
        let mut body = email_asset("news");
        body[member] = value;
        body
    };
    for (body, status, field, says) in [
        (with("name", json!(" ")), 422, "name", "1 to 255 bytes"),
        (with("name", json!("x".repeat(256))), 422, "name", "1 to 255 bytes"),
        (with("channel", json!("fax")), 400, "channel", "unknown variant `fax`"),
        (with("content", json!({ "subject": "Hi" })), 422, "content", "needs `text`, `html` or both"),
        (
            with("content", json!({ "subject": "{{ oops", "text": "" })),
            422,
            "content",
            "the subject has an error in line 1",
        ),
        (
            with("content", json!({ "subject": "a", "text": "b", "cc": "c" })),
            422,
            "content",
            "unknown field `cc`",
        ),
        (with("content", json!("Hello")), 400, "content", "must be a JSON object"),
        // In the order of the fields, which is nobody's contract.
        (with("content", json!(["Hi", "Hello.", null])), 400, "content", "must be a JSON object"),
        (with("version", json!(7)), 400, "version", "unknown field"),
        (with("tenant_id", json!(UNKNOWN)), 400, "tenant_id", "unknown field"),
        (with("workspace_id", json!(UNKNOWN)), 422, "workspace_id", "no such workspace"),
    ] {
        let reply = stage.post(&stage.acme.operator, "/assets", &body)?;
        assert_eq!(reply.field(status)?, field, "{body}");
        assert!(reply.text().contains(says), "{body}: {}", reply.text());
    }
    stage.post(&stage.acme.viewer, "/assets", &email_asset("news"))?.problem(403)?;
    assert_eq!(stage.count("select count(*) from execution.assets").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn assets_of_others_do_not_exist() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let beta = stage.tenant("beta").await?;
    let theirs = asset(&stage, &beta, "news")?;
    assert_same_404(&stage, &stage.acme.admin, &[("GET", "/assets/{id}", Value::Null)], &theirs)?;
    let mine = stage.get(&stage.acme.admin, "/assets")?.expect(200)?;
    assert_eq!(mine["items"], json!([]));
    let mut into_theirs = email_asset("news");
    into_theirs["workspace_id"] = json!(beta.workspace_id.0);
    assert_eq!(stage.post(&stage.acme.admin, "/assets", &into_theirs)?.field(422)?, "workspace_id");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_template_is_refused_and_the_server_goes_on() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let deep = format!("{{{{ 1{} }}}}", "+1".repeat(200_000));
    for text in [
        "{{ '%99999999999999s'|format('x') }}",
        "{{ range(10000)|join('A' * 500000) }}",
        "{{ range(10000)|slice(99999999999999) }}",
        "{{ range(10000)|batch(99999999999999, 'x') }}",
        "{{ 'A' * 99999999999999 }}",
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        &deep,
    ] {
        let body = json!({ "name": "news", "channel": "email", "content": { "subject": "s", "text": text } });
        let reply = stage.post(&stage.acme.operator, "/assets", &body)?;
        let shown: String = text.chars().take(80).collect();
        assert_eq!(reply.field(422)?, "content", "{shown}");
    }
    let header = json!({ "subject": "Hello\r\nBcc: all@example.com", "text": "t" });
    let body = json!({ "name": "news", "channel": "email", "content": header });
    let reply = stage.post(&stage.acme.operator, "/assets", &body)?;
    assert_eq!(reply.field(422)?, "content");
    assert!(reply.text().contains("`subject` holds a line break"), "{}", reply.text());
    stage.post(&stage.acme.operator, "/assets", &email_asset("news"))?.expect(201)?;
    Ok(())
}
