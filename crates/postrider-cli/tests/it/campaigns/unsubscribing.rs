//! Unsubscribing end to end: the mails that go out, the page, and the campaigns after it.

use anyhow::Context;
use postrider_testkit::server::{Reaction, Received, ScriptedServer};
use serde_json::{Value, json};
use uuid::Uuid;

use super::deliveries::{Scene, mail};
use crate::{
    api::{
        client::{Call, Reply},
        material::{UNKNOWN, column, import},
    },
    sql::{execute, number, texts},
    world::eventually,
};

const BASE: &str = "http://localhost:9/mail";
const PUBLIC: &str = "public_url = 'http://localhost:9/mail/'\n";

/// A scene whose mails go to a server that accepts all of them.
async fn scene(campaigns: &'static str) -> anyhow::Result<(Scene, ScriptedServer)> {
    let mut scene = Scene::with(campaigns).await?;
    let resend = ScriptedServer::always(Reaction::json("200 OK", r#"{"id": "m"}"#))?;
    let settings = json!({ "from": "news@example.com", "url": resend.url() });
    scene.account("resend", &settings, "re_1").await?;
    scene.work()?;
    Ok((scene, resend))
}

fn content() -> Value {
    json!({
        "subject": "Hello",
        "text": "Stop: {{ unsubscribe_url }}",
        "html": "<a href=\"{{ unsubscribe_url }}\">Stop</a>",
    })
}

/// Sends to a list, and answers with the mails by recipient.
async fn send(
    scene: &Scene,
    resend: &ScriptedServer,
    name: &str,
    list: &str,
    content: &Value,
) -> anyhow::Result<Vec<Value>> {
    let before = resend.requests().len();
    let run = scene.begin(&scene.create(name, "email", "resend", list, content)?)?;
    scene.ended(run).await?;
    let mut mails: Vec<Value> = resend.requests()[before..].iter().map(Received::json).collect();
    mails.sort_by_key(|mail| mail["to"].to_string());
    Ok(mails)
}

/// The link in the headers of a mail, as a path of the API.
fn link(mail: &Value) -> anyhow::Result<String> {
    let header = mail["headers"]["List-Unsubscribe"].as_str().with_context(|| mail.to_string())?;
    let url = header.strip_prefix('<').and_then(|url| url.strip_suffix('>')).context(header.to_owned())?;
    Ok(url.strip_prefix(BASE).context(header.to_owned())?.to_owned())
}

fn one_click(scene: &Scene, path: &str) -> anyhow::Result<Reply> {
    post(scene, path, "List-Unsubscribe=One-Click")
}

fn post(scene: &Scene, path: &str, form: &str) -> anyhow::Result<Reply> {
    Call::new(&scene.api.server.http_url, "POST", path)
        .bytes("application/x-www-form-urlencoded", form.as_bytes())
        .send()
}

async fn suppressed(scene: &Scene) -> anyhow::Result<Vec<String>> {
    let sql = "select split_part(email, '@', 1) || ' ' || suppression_reason from execution.leads where suppressed_at is not null and erased_at is null
        union all
        select split_part(lead.email, '@', 1) || ' ' || list.name || ' ' || listed.reason
          from execution.list_suppressions as listed
               join execution.leads as lead on lead.id = listed.lead_id
               join execution.lead_lists as list on list.id = listed.list_id
         order by 1";
    Ok(texts(&scene.api.admin, sql).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_carries_a_link_without_data_of_the_person_and_a_transactional_one_none() -> anyhow::Result<()>
{
    let (scene, resend) = scene(PUBLIC).await?;
    scene.people(2)?;
    let mails = send(&scene, &resend, "news", "people", &content()).await?;
    let tenant = scene.api.acme.id.0;
    let mut tokens = Vec::new();
    for mail in &mails {
        assert_eq!(mail["headers"]["List-Unsubscribe-Post"], "List-Unsubscribe=One-Click");
        let path = link(mail)?;
        let token =
            path.strip_prefix(&format!("/api/v2/tenants/{tenant}/unsubscribe/")).context(path.clone())?;
        assert!(token.len() == 64 && !path.contains("person"), "{path}");
        assert_eq!(mail["text"], format!("Stop: {BASE}{path}"));
        assert!(mail["html"].as_str().is_some_and(|html| html.contains(token)), "{mail}");
        tokens.push(token.to_owned());
    }
    assert_ne!(tokens[0], tokens[1]);
    // The message can be rendered again, and is the same.
    let items = texts(&scene.api.admin, "select id::text from execution.channel_outbox").await?;
    let shown = scene.api.get(&scene.api.acme.viewer, &format!("/items/{}", items[0]))?.expect(200)?;
    assert_eq!(shown["item"]["message_matches"], json!(true));

    let receipt = json!({ "subject": "Receipt", "text": "Thanks", "transactional": true });
    let mails = send(&scene, &resend, "receipt", "people", &receipt).await?;
    assert_eq!((mails.len(), &mails[0]["headers"]), (2, &Value::Null));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_asks_by_get_and_unsubscribes_by_post_for_the_workspace_or_the_list() -> anyhow::Result<()> {
    let (scene, resend) = scene(PUBLIC).await?;
    for list in ["people", "others"] {
        scene.people_on(list, 3)?;
    }
    let mails = send(&scene, &resend, "news", "people", &content()).await?;
    let paths = mails.iter().map(link).collect::<anyhow::Result<Vec<_>>>()?;
    // Scanners follow links.
    for _ in 0..3 {
        let page = Call::new(&scene.api.server.http_url, "GET", &paths[0]).send()?;
        assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
        let policy = page.header("content-security-policy").unwrap_or_default();
        assert!(policy.starts_with("default-src 'none'; form-action 'self'"), "{policy}");
        let html = page.text();
        assert!(html.contains(r#"<form method="post">"#) && html.contains(r#"value="list""#), "{html}");
        assert!(!html.contains("<script") && !html.contains("person") && !html.contains("people"), "{html}");
    }
    assert!(suppressed(&scene).await?.is_empty());

    for _ in 0..2 {
        let done = one_click(&scene, &paths[0])?;
        assert!(done.status == 200 && done.text().contains("You get no more messages."), "{}", done.text());
        let done = post(&scene, &paths[1], "scope=list")?;
        assert!(done.status == 200 && done.text().contains("of this kind"), "{}", done.text());
    }
    let parts =
        "--x\r\nContent-Disposition: form-data; name=\"List-Unsubscribe\"\r\n\r\nOne-Click\r\n--x--\r\n";
    let form = Call::new(&scene.api.server.http_url, "POST", &paths[2]);
    assert_eq!(form.bytes("multipart/form-data; boundary=x", parts.as_bytes()).send()?.status, 200);
    assert_eq!(
        suppressed(&scene).await?,
        ["person0 unsubscribed", "person1 people unsubscribed", "person2 unsubscribed"]
    );
    let log = "select actor || ' ' || action || ' ' || note from tenancy.audit_log where action = 'lead.suppressed' order by id";
    assert_eq!(
        texts(&scene.api.admin, log).await?,
        [
            "recipient lead.suppressed unsubscribed",
            "recipient lead.suppressed list people: unsubscribed",
            "recipient lead.suppressed unsubscribed"
        ]
    );
    // The next campaigns: nobody is left on the list, and one person on the other list.
    assert!(send(&scene, &resend, "more", "people", &content()).await?.is_empty());
    let reasons = "select distinct error from execution.channel_outbox where status = 'skipped'";
    assert_eq!(texts(&scene.api.admin, reasons).await?, ["suppressed: unsubscribed"]);
    let mails = send(&scene, &resend, "else", "others", &content()).await?;
    assert_eq!(column(&mails, "to"), [mail(1)]);

    // A forged link, one of another tenant, and requests that ask for nothing.
    let beta = scene.api.tenant("beta").await?;
    let before = suppressed(&scene).await?;
    let good = &paths[1];
    let own = scene.api.acme.id.0.to_string();
    let flipped = |at: usize| {
        let start = good.len() - 64 + at;
        let other = if good.as_bytes()[start] == b'A' { "B" } else { "A" };
        format!("{}{other}{}", &good[..start], &good[start + 1..])
    };
    for path in [
        flipped(0),
        flipped(30),
        flipped(50),
        flipped(63),
        good.replace(&own, &beta.id.0.to_string()),
        good.replace(&own, UNKNOWN),
        good.replace(&own, &Uuid::nil().to_string()),
        good.replace(&own, "acme"),
        good[..good.len() - 1].to_owned(),
        format!("{good}A"),
    ] {
        one_click(&scene, &path)?.problem(404)?;
        Call::new(&scene.api.server.http_url, "GET", &path).send()?.problem(404)?;
    }
    for form in ["", "scope=everything", "List-Unsubscribe=No"] {
        post(&scene, good, form)?.problem(400)?;
    }
    post(&scene, good, &"a".repeat(5000))?.problem(413)?;
    Call::new(&scene.api.server.http_url, "DELETE", good).send()?.problem(405)?;
    assert_eq!(suppressed(&scene).await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_click_unsubscribes_from_the_list_where_the_setting_says_so() -> anyhow::Result<()> {
    let (scene, resend) =
        scene("public_url = 'http://localhost:9/mail'\nunsubscribe_scope = 'list'\n").await?;
    scene.people(1)?;
    let mails = send(&scene, &resend, "news", "people", &content()).await?;
    assert_eq!(one_click(&scene, &link(&mails[0])?)?.status, 200);
    assert_eq!(suppressed(&scene).await?, ["person0 people unsubscribed"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_suppress_and_unsuppress_for_a_list_by_api_and_command() -> anyhow::Result<()> {
    let scene = Scene::new().await?;
    let api = &scene.api;
    scene.people(2)?;
    // Another lead of the same person.
    import(api, &api.acme, "people", &format!("external_id,email\ntwin,{}\n", mail(0).to_uppercase()))?
        .expect(200)?;
    let found = api.get(&api.acme.viewer, "/leads?external_id=p0")?.expect(200)?;
    let lead = found["items"][0]["id"].as_str().context("no lead")?.to_owned();
    let twin = api.get(&api.acme.viewer, "/leads?external_id=twin")?.expect(200)?["items"][0]["id"].clone();
    let (suppress, unsuppress) = (format!("/leads/{lead}/suppress"), format!("/leads/{lead}/unsuppress"));
    let beta = api.tenant("beta").await?;
    let body = json!({ "reason": "asked by phone", "list": "people" });
    api.post(&api.acme.viewer, &suppress, &body)?.problem(403)?;
    api.post(&beta.admin, &suppress, &body)?.problem(404)?;
    let unknown = json!({ "reason": "r", "list": "nobody" });
    assert_eq!(api.post(&api.acme.operator, &suppress, &unknown)?.field(422)?, "list");
    api.post(&api.acme.operator, &suppress, &json!({ "reason": "r", "lists": "people" }))?.problem(400)?;
    assert!(suppressed(&scene).await?.is_empty());
    for reason in ["asked by phone", "again"] {
        let body = json!({ "reason": reason, "list": "people" });
        let done = api.post(&api.acme.operator, &suppress, &body)?.expect(200)?;
        assert_eq!(done["suppressed_at"], Value::Null);
        assert_eq!(
            done["list_suppressions"][0]["reason"], "asked by phone",
            "the reason of the first request stays"
        );
    }
    let shown = api.get(&api.acme.viewer, &format!("/leads/{lead}"))?.expect(200)?;
    assert_eq!(shown["list_suppressions"][0]["list"], "people");

    // By command.
    let run = |args: &[&str]| api.world.postrider(&[args, &["--tenant", "acme"]].concat());
    let twin_id = twin.as_str().context("no twin")?;
    let done = run(&["leads", "suppress", twin_id, "--list", "people", "--reason", "wrote a letter"])?;
    assert!(done.code == 0 && done.stderr.contains("is suppressed for list people"), "{}", done.stderr);
    let refused = run(&["leads", "suppress", twin_id, "--list", "nobody"])?;
    assert!(refused.code == 1 && refused.stderr.contains("has no list `nobody`"), "{}", refused.stderr);
    let shown = run(&["leads", "show", twin_id])?;
    assert!(shown.stdout.contains("suppressed for list people 2"), "{}", shown.stdout);
    let shown: Value = serde_json::from_str(&run(&["leads", "show", twin_id, "--json"])?.stdout)?;
    assert_eq!(shown[0]["list_suppressions"][0]["reason"], "wrote a letter");

    // The end of the one for all lists leaves those for single lists alone.
    api.post(&api.acme.operator, &unsuppress, &json!({ "note": "signed up" }))?.expect(200)?;
    assert_eq!(suppressed(&scene).await?.len(), 2);
    let note = json!({ "note": "signed up", "list": "people" });
    api.post(&api.acme.viewer, &unsuppress, &note)?.problem(403)?;
    api.post(&beta.admin, &unsuppress, &note)?.problem(404)?;
    api.post(&api.acme.operator, &unsuppress, &json!({ "note": " ", "list": "people" }))?.problem(422)?;
    assert_eq!(
        api.post(&api.acme.operator, &unsuppress, &json!({ "note": "n", "list": "nobody" }))?.field(422)?,
        "list"
    );
    for _ in 0..2 {
        let done = api.post(&api.acme.operator, &unsuppress, &note)?.expect(200)?;
        assert_eq!((&done["list_suppressions"], &done["also_suppressed"]), (&json!([]), &json!([twin])));
    }
    let done = run(&["leads", "unsuppress", twin_id, "--list", "people", "--note", "their mistake"])?;
    assert!(
        done.code == 0 && done.stderr.contains("is no longer suppressed for list people"),
        "{}",
        done.stderr
    );
    assert!(suppressed(&scene).await?.is_empty());
    let notes = "select note from tenancy.audit_log where action = 'lead.unsuppressed' order by id";
    assert_eq!(texts(&api.admin, notes).await?, ["list people: signed up", "list people: their mistake"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suppression_for_a_list_outlives_an_erasure_and_holds_for_every_lead_with_the_address()
-> anyhow::Result<()> {
    let (scene, resend) = scene(PUBLIC).await?;
    let api = &scene.api;
    for list in ["people", "others"] {
        scene.people_on(list, 1)?;
    }
    let mails = send(&scene, &resend, "news", "people", &content()).await?;
    assert_eq!(post(&scene, &link(&mails[0])?, "scope=list")?.status, 200);
    // Another lead of the same person, in upper case.
    import(api, &api.acme, "people", &format!("external_id,email\ntwin,{}\n", mail(0).to_uppercase()))?
        .expect(200)?;
    assert!(send(&scene, &resend, "more", "people", &content()).await?.is_empty());
    let found = api.get(&api.acme.viewer, "/leads?external_id=p0")?.expect(200)?;
    let lead = found["items"][0]["id"].as_str().context("no lead")?.to_owned();
    api.call("POST", &format!("/leads/{lead}/erase")).key(&api.acme.admin).send()?.expect(200)?;
    assert_eq!(
        suppressed(&scene).await?.iter().filter(|line| line.contains("people")).count(),
        1,
        "the twin"
    );
    let erase_twin = api.get(&api.acme.viewer, "/leads?external_id=twin")?.expect(200)?;
    let twin = erase_twin["items"][0]["id"].as_str().context("no twin")?.to_owned();
    api.call("POST", &format!("/leads/{twin}/erase")).key(&api.acme.admin).send()?.expect(200)?;

    for list in ["people", "others"] {
        scene.people_on(list, 1)?;
    }
    let back = "select suppressed_at is null || ' ' || (select count(*) from execution.list_suppressions as listed where listed.lead_id = lead.id)
        from execution.leads as lead where erased_at is null";
    let back = back.replace("suppressed_at is null ||", "(suppressed_at is null)::text ||");
    assert_eq!(texts(&api.admin, back).await?, ["true 1"]);
    assert!(send(&scene, &resend, "again", "people", &content()).await?.is_empty());
    assert_eq!(send(&scene, &resend, "else", "others", &content()).await?.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_by_the_resolver_has_the_same_link() -> anyhow::Result<()> {
    let mut scene = Scene::with(PUBLIC).await?;
    let settings = json!({ "from": "news@example.com", "url": format!("{}/resend", scene.sim.http_url) });
    scene.account("resend", &settings, "re_1").await?;
    scene.people(3)?;
    // It acts, and hangs up. It would refuse another mail under the same key.
    scene.sim.set_rules(&json!([{ "fault": "reset" }]))?;
    let campaign = scene.create("news", "email", "resend", "people", &content())?;
    execute(&scene.api.admin, "update execution.campaign_phases set quiet_time = interval '2 seconds'")
        .await?;
    let run = scene.begin(&campaign)?;
    scene.work()?;
    let doubts = format!(
        "select count(*) from execution.channel_outbox where run_id = '{run}' and in_doubt_since is not null"
    );
    eventually("all are in doubt", async || Ok(number(&scene.api.admin, doubts.as_str()).await? == 3))
        .await?;
    scene.sim.set_rules(&json!([]))?;
    scene.ended(run).await?;
    let settled =
        "select distinct note from execution.campaign_audit_log where action = 'item.resolved_as_sent'";
    assert_eq!(
        texts(&scene.api.admin, settled).await?,
        ["a repeat under the same key was accepted as the same message"]
    );
    let acted = scene.sim.receipts()?.iter().filter(|receipt| receipt["acted"] == true).count();
    assert_eq!(acted, 3);
    Ok(())
}
