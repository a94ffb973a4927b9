//! Leads: import, list, look, suppress.

use std::{cell::RefCell, io::Write};

use anyhow::Context;
use serde_json::{Value, json};

use super::{
    Call, Stage,
    material::{UNKNOWN, assert_same_404, column, id, import, leads, walk},
};
use crate::{http, world::eventually};

#[tokio::test(flavor = "multi_thread")]
async fn good_lines_are_kept_and_bad_ones_reported() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let csv = "email,phone,first_name,unsubscribed\nann@example.org,,Ann,\nnobody,,,\nann@example.org,,Anna,\n\
               ,+49 30 901820,Bob,yes\n,,,\n";
    let summary = import(&stage, &stage.acme, "customers", csv)?.expect(200)?;
    assert!(summary["list_id"].is_string(), "{summary}");
    assert_eq!(
        [&summary["lines"], &summary["added"], &summary["updated"], &summary["repeated"], &summary["bad"]],
        [5, 2, 0, 1, 2],
        "{summary}"
    );
    assert_eq!(summary["bad_lines"][0]["line"], 3);
    assert!(summary["bad_lines"][0]["reason"].to_string().contains("is not an address"), "{summary}");

    let path = "/leads/import?list=customers&country=DE";
    let ndjson =
        "{\"email\": \"ann@example.org\", \"age\": 12345678901234567890}\n{\"phone\": \"030 901820\"}\n[1]\n";
    let call = stage.call("POST", path).key(&stage.acme.operator);
    let summary = call.bytes("application/x-ndjson; charset=utf-8", ndjson.as_bytes()).send()?.expect(200)?;
    assert_eq!([&summary["added"], &summary["updated"], &summary["bad"]], [0, 2, 1], "{summary}");

    let listed = stage.get(&stage.acme.viewer, "/leads?list=customers")?;
    assert!(listed.text().contains("12345678901234567890"), "numbers keep their digits: {}", listed.text());
    let listed = listed.expect(200)?;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2));
    let bob = &listed["items"][0];
    assert_eq!((&bob["phone"], &bob["suppression_reason"]), (&json!("+4930901820"), &json!("unsubscribed")));
    let mut ann =
        stage.get(&stage.acme.viewer, &format!("/leads/{}", id(&listed["items"][1])?))?.expect(200)?;
    let lists = ann.as_object_mut().and_then(|ann| ann.remove("list_suppressions"));
    assert_eq!((lists, &ann), (Some(json!([])), &listed["items"][1]));
    assert_eq!(ann["attributes"]["first_name"], "Anna");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_with_errors_names_them_and_stores_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let key = &stage.acme.operator;
    let send = |path: &str, kind: &str, body: &str| {
        stage.call("POST", &format!("/leads/import{path}")).key(key).bytes(kind, body.as_bytes()).send()
    };
    let good = "email\na@example.org\n";
    for (path, field, status) in [
        ("", "list", 400),
        ("?list=a&colour=red", "colour", 400),
        ("?list=%20", "list", 422),
        ("?list=a%0Ab", "list", 422),
        ("?list=a&delimiter=ab", "delimiter", 422),
        ("?list=a&country=Atlantis", "country", 422),
        (&format!("?list=a&workspace_id={UNKNOWN}"), "workspace_id", 422),
        ("?list=a&workspace_id=7", "workspace_id", 400),
    ] {
        assert_eq!(send(path, "text/csv", good)?.field(status)?, field, "{path}");
    }
    for (kind, body) in [
        ("text/csv", ""),
        ("text/csv", "colour\nred\n"),
        ("text/csv", "email\n"),
        ("application/x-ndjson", "[]"),
    ] {
        assert_eq!(send("?list=a", kind, body)?.field(400)?, "body", "{kind}: {body}");
    }
    for kind in ["application/json", "text/plain", "", "text/csv; charset=utf-16", "application/zip"] {
        send("?list=a", kind, good)?.problem(415)?;
    }
    let packed = stage.call("POST", "/leads/import?list=a").key(key).header("content-encoding", "gzip");
    packed.bytes("text/csv", good.as_bytes()).send()?.problem(415)?;
    let announced = stage.call("POST", "/leads/import?list=a").key(&stage.acme.viewer);
    announced.bytes("text/csv", good.as_bytes()).send()?.problem(403)?;
    assert_eq!(stage.count("select count(*) from execution.leads").await?, 0);
    assert_eq!(stage.count("select count(*) from execution.lead_lists").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_import_takes_no_more_memory_than_a_short_one() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    // Few leads with much about each: the file is what must not be in memory, however many people it is about.
    let filler = "x".repeat(4000);
    let file = |domain: &str, lines: usize| {
        let mut csv = String::from("email,filler\n");
        csv.extend((0..lines).map(|n| format!("{n}@{domain},{filler}\n")));
        csv
    };
    let peak = |stage: &Stage| -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", stage.server.process.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).context("no VmHWM")?;
        Ok(line.split_whitespace().nth(1).context("no number")?.parse()?)
    };
    // Several chunks of the same kind, so that everything that is ever needed was needed once.
    import(&stage, &stage.acme, "few", &file("example.com", 4_000))?.expect(200)?;
    let before = peak(&stage)?;
    let csv = file("example.org", 20_000);
    let bytes = csv.len() as u64;
    let summary = import(&stage, &stage.acme, "many", &csv)?.expect(200)?;
    assert_eq!([&summary["lines"], &summary["added"], &summary["bad"]], [20_000, 20_000, 0], "{summary}");
    let grown = (peak(&stage)?.saturating_sub(before)) * 1024;
    // Each thread may keep some of what it has freed; that is as much for a long file as for a longer one.
    assert!(grown < 32 * 1024 * 1024, "{bytes} bytes were imported, and the peak of memory grew by {grown}");
    assert_eq!(stage.count("select count(*) from execution.lead_list_members").await?, 24_000);
    assert_eq!(stage.count("select count(*) from execution.lead_intake").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_breaks_half_way_imports_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let begin = || -> anyhow::Result<std::net::TcpStream> {
        let (mut stream, address) = http::connect(&stage.server.http_url)?;
        let rows: String = (0..20_000).map(|n| format!("{n}@example.org\n")).collect();
        write!(
            stream,
            "POST /api/v2/leads/import?list=broken HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\n\
             content-type: text/csv\r\ncontent-length: 10000000\r\n\r\nemail\n{rows}",
            stage.acme.operator
        )?;
        Ok(stream)
    };
    // As many as a tenant may have are under way when another one is refused.
    let uploads = RefCell::new(Vec::new());
    eventually("uploads are under way", async || {
        let upload = begin()?;
        uploads.borrow_mut().push(upload);
        Ok(import(&stage, &stage.acme, "third", "email\nnobody\n")?.status == 429)
    })
    .await?;
    drop(uploads);
    eventually("the uploads were given up", async || {
        Ok(import(&stage, &stage.acme, "third", "email\nnobody\n")?.status == 200)
    })
    .await?;
    assert_eq!(stage.count("select count(*) from execution.leads").await?, 0);
    assert_eq!(stage.count("select count(*) from execution.lead_lists").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_import_delays_no_other_request() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let beta = stage.tenant("beta").await?;
    for tenant in [&stage.acme, &beta] {
        import(&stage, tenant, "last", "email\nlast@example.org\n")?.expect(200)?;
    }
    // Another transaction locks the lead on the last line of each file, so the imports stop there.
    let mut held = stage.admin.begin().await?;
    sqlx::query("select from execution.leads for update").execute(&mut *held).await?;
    let mut imports = Vec::new();
    for tenant in [&stage.acme, &beta] {
        for name in ["a", "b"] {
            let rows: String = (0..5_000).map(|n| format!("{name}-{n}@example.org\n")).collect();
            let csv = format!("email\n{rows}last@example.org\n");
            let call = stage.call("POST", &format!("/leads/import?list={name}")).key(&tenant.operator);
            let call = call.bytes("text/csv", csv.as_bytes());
            imports.push(tokio::task::spawn_blocking(move || call.send()));
        }
    }
    let stored = "select count(*) from execution.leads where email <> 'last@example.org'";
    eventually("first chunks are stored", async || Ok(stage.count(stored).await? >= 10_000)).await?;
    let waiting =
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%import_leads%'
                      and datname = current_database()";
    eventually("imports wait", async || Ok(stage.count(waiting).await? == 2)).await?;

    for path in ["/whoami", "/leads?limit=1", "/campaigns"] {
        stage.get(&stage.acme.viewer, path)?.expect(200)?;
    }
    assert_eq!(Call::new(&stage.server.http_url, "GET", "/readyz").send()?.status, 200);
    // The imported leads are committed: an unsubscription does not wait for the rest of the file.
    let sql = "select id from execution.leads where email like '_-0@example.org' and tenant_id = $1";
    for tenant in [&stage.acme, &beta] {
        let lead: Option<uuid::Uuid> =
            sqlx::query_scalar(sql).bind(tenant.id.0).fetch_optional(&stage.admin).await?;
        let Some(lead) = lead else { continue };
        let path = format!("/leads/{lead}/suppress");
        stage.post(&tenant.operator, &path, &json!({ "reason": "unsubscribed" }))?.expect(200)?;
    }
    held.rollback().await?;
    for import in imports {
        let summary = import.await??.expect(200)?;
        assert_eq!(
            [&summary["lines"], &summary["added"], &summary["updated"]],
            [5_001, 5_000, 1],
            "{summary}"
        );
    }
    assert_eq!(stage.count(stored).await?, 20_000);
    Ok(())
}

// The two files have the same people in the same order, so that their chunks meet.
#[tokio::test(flavor = "multi_thread")]
async fn two_imports_at_once_of_the_same_people_make_one_lead_of_each() -> anyhow::Result<()> {
    const PEOPLE: usize = 12_000;
    let stage = Stage::new().await?;
    let by_id: String = (0..PEOPLE).map(|n| format!("{n},{n}@example.org,A{n}\n")).collect();
    let by_mail: String = (0..PEOPLE).map(|n| format!("{n}@example.org,B{n}\n")).collect();
    let files = [
        ("id", format!("external_id,email,first\n{by_id}")),
        ("mail", format!("email,second\n{by_mail}only-here@example.org,B\n")),
    ];
    let mut imports = Vec::new();
    for (list, csv) in &files {
        let call = stage.call("POST", &format!("/leads/import?list={list}")).key(&stage.acme.operator);
        let call = call.bytes("text/csv", csv.as_bytes());
        imports.push(tokio::task::spawn_blocking(move || call.send()));
    }
    let (mut added, mut updated) = (0, 0);
    for (import, lines) in imports.into_iter().zip([PEOPLE, PEOPLE + 1]) {
        let summary = import.await??.expect(200)?;
        assert_eq!(
            [&summary["lines"], &summary["repeated"], &summary["bad"]],
            [&json!(lines), &json!(0), &json!(0)],
            "{summary}"
        );
        added += summary["added"].as_u64().context("no number")?;
        updated += summary["updated"].as_u64().context("no number")?;
    }
    assert_eq!((added, updated), (PEOPLE as u64 + 1, PEOPLE as u64));
    assert_eq!(stage.count("select count(*) from execution.leads").await?, PEOPLE as i64 + 1);
    let merged = "select count(*) from execution.leads
                   where external_id is not null and attributes ? 'first' and attributes ? 'second'";
    assert_eq!(stage.count(merged).await?, PEOPLE as i64);
    let members = "select list.name || ' ' || count(*) from execution.lead_list_members as member
                     join execution.lead_lists as list on list.tenant_id = member.tenant_id and list.id = member.list_id
                    group by list.name order by list.name";
    let members = crate::sql::texts(&stage.admin, members).await?;
    assert_eq!(members, [format!("id {PEOPLE}"), format!("mail {}", PEOPLE + 1)]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_with_a_key_is_done_once() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let send = |key: &str, body: &str| {
        let call = stage.call("POST", "/leads/import?list=a").key(&stage.acme.operator).idempotency_key(key);
        call.bytes("text/csv", body.as_bytes()).send()
    };
    let first = send("one", "email\na@example.org\n")?;
    let again = send("one", "email\na@example.org\n")?;
    assert_eq!(first.expect(200)?, again.expect(200)?);
    assert_eq!(
        (first.header("idempotent-replayed"), again.header("idempotent-replayed")),
        (None, Some("true"))
    );
    assert_eq!(first.expect(200)?["added"], 1);
    assert_eq!(send("one", "email\nb@example.org\n")?.field(422)?, "Idempotency-Key");
    assert_eq!(send("two", "email\na@example.org\n")?.expect(200)?["updated"], 1);
    assert_eq!(stage.count("select count(*) from execution.leads").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_walk_shows_every_lead_once_while_others_come() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    leads(&stage, &stage.acme, "old", 1000)?;
    for path in ["/leads", "/leads?suppressed=false", "/leads?list=old"] {
        let walked = walk(&stage, &stage.acme.viewer, path, 90, |page| {
            let list = format!("new-{page}-{}", uuid::Uuid::now_v7().simple());
            leads(&stage, &stage.acme, &list, 3)?;
            // Some join the very list that is walked.
            import(&stage, &stage.acme, "old", &format!("email\n{list}@late.example\n"))?.expect(200)?;
            Ok(())
        })?;
        let mut emails = column(&walked, "email");
        let seen = emails.len();
        emails.sort();
        emails.dedup();
        assert_eq!(emails.len(), seen, "{path}: somebody was shown twice");
        let old = emails.iter().filter(|email| email.starts_with("old-")).count();
        assert_eq!(old, 1000, "{path}: somebody was left out");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn leads_are_found_by_what_is_known_of_them() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let csv =
        "external_id,email,phone,unsubscribed\n7,ann@example.org,+4930901820,\n8,bob@example.org,,bounced\n";
    import(&stage, &stage.acme, "a", csv)?.expect(200)?;
    import(&stage, &stage.acme, "b", "email\ncy@example.org\n")?.expect(200)?;
    let beta = stage.tenant("beta").await?;
    import(&stage, &beta, "a", csv)?.expect(200)?;
    for (query, expected) in [
        ("", vec!["cy@example.org", "bob@example.org", "ann@example.org"]),
        ("?list=a", vec!["bob@example.org", "ann@example.org"]),
        ("?list=nobody", vec![]),
        ("?suppressed=true", vec!["bob@example.org"]),
        ("?suppressed=false&list=a", vec!["ann@example.org"]),
        ("?email=ann@example.org", vec!["ann@example.org"]),
        ("?email=ANN@example.org", vec![]),
        ("?phone=%2B4930901820", vec!["ann@example.org"]),
        ("?phone=+4930901820", vec!["ann@example.org"]),
        ("?external_id=8", vec!["bob@example.org"]),
        ("?external_id=8&list=b", vec![]),
        (
            &format!("?workspace_id={}", stage.acme.workspace_id.0),
            vec!["cy@example.org", "bob@example.org", "ann@example.org"],
        ),
        (&format!("?workspace_id={}", beta.workspace_id.0), vec![]),
    ] {
        let listed = stage.get(&stage.acme.viewer, &format!("/leads{query}"))?.expect(200)?;
        let items = listed["items"].as_array().context("no items")?;
        assert_eq!(column(items, "email"), expected, "{query}");
    }
    for (query, field) in [
        ("?limit=0", "limit"),
        ("?limit=201", "limit"),
        ("?cursor=bm8", "cursor"),
        ("?suppressed=perhaps", "suppressed"),
        ("?tenant_id=7", "tenant_id"),
    ] {
        assert_eq!(stage.get(&stage.acme.viewer, &format!("/leads{query}"))?.field(400)?, field, "{query}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suppression_is_for_good_and_its_first_reason_stays() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    leads(&stage, &stage.acme, "a", 1)?;
    let lead = id(&stage.get(&stage.acme.viewer, "/leads")?.expect(200)?["items"][0])?;
    let path = format!("/leads/{lead}/suppress");
    let first = stage.post(&stage.acme.operator, &path, &json!({ "reason": "asked for it" }))?.expect(200)?;
    assert_eq!(first["suppression_reason"], "asked for it");
    let second = stage.post(&stage.acme.operator, &path, &json!({ "reason": "again" }))?.expect(200)?;
    assert_eq!(first, second);
    let lines =
        "select count(*) from tenancy.audit_log where action = 'lead.suppressed' and actor like 'key:%'";
    assert_eq!(stage.count(lines).await?, 1);

    for (body, status, field) in [
        (json!({}), 400, ""),
        (json!({ "reason": " " }), 422, "reason"),
        (json!({ "reason": "x".repeat(256) }), 422, "reason"),
        (json!({ "reason": 7 }), 400, "reason"),
        (json!({ "reason": "a\u{0}" }), 400, "reason"),
        (json!({ "reason": "a", "suppressed_at": null }), 400, "suppressed_at"),
    ] {
        assert_eq!(stage.post(&stage.acme.operator, &path, &body)?.field(status)?, field, "{body}");
    }
    stage.post(&stage.acme.viewer, &path, &json!({ "reason": "a" }))?.problem(403)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn leads_of_others_do_not_exist() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let beta = stage.tenant("beta").await?;
    leads(&stage, &beta, "theirs", 3)?;
    let page = stage.get(&beta.viewer, "/leads?limit=1")?.expect(200)?;
    let theirs = id(&page["items"][0])?;
    let calls =
        [("GET", "/leads/{id}", Value::Null), ("POST", "/leads/{id}/suppress", json!({ "reason": "a" }))];
    assert_same_404(&stage, &stage.acme.admin, &calls, &theirs)?;
    assert_eq!(stage.count("select count(*) from execution.leads where suppressed_at is not null").await?, 0);
    // Their cursor and their list lead nowhere.
    let cursor = page["next_cursor"].as_str().context("no cursor")?;
    for query in [
        format!("?cursor={cursor}"),
        "?list=theirs".to_owned(),
        "?email=theirs-000001@example.org".to_owned(),
    ] {
        let seen = stage.get(&stage.acme.admin, &format!("/leads{query}"))?.expect(200)?;
        assert_eq!(seen, json!({ "items": [], "next_cursor": null }), "{query}");
    }
    // Nor can anything be put into their workspace.
    let path = format!("/leads/import?list=a&workspace_id={}", beta.workspace_id.0);
    let call =
        stage.call("POST", &path).key(&stage.acme.operator).bytes("text/csv", b"email\na@example.org\n");
    assert_eq!(call.send()?.field(422)?, "workspace_id");
    Ok(())
}
