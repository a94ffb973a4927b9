//! `campaign import`: what becomes of files, good and bad.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::Context;
use insta::assert_snapshot;
use postrider_model::campaigns::audience::{Chunk, Leads, Options};
use postrider_store::campaigns::leads::{self, Destination};
use serde_json::{Value, json, value::RawValue};

use super::{World, assert_misused, assert_refused, stable, succeeded};
use crate::{
    sql::{acting_as, execute, number, refusal, texts},
    world::{Output, PATIENCE, eventually, postrider, run, run_with_input},
};

const IMPORT: [&str; 6] = ["campaign", "import", "--tenant", "acme", "--list", "news"];

/// Lines of one chunk.
const CHUNK: usize = 5_000;

async fn world() -> anyhow::Result<World> {
    let world = World::new().await?;
    world.stdout(&["tenants", "create", "acme"])?;
    Ok(world)
}

/// Imports into a world, and what they left there.
trait Imports {
    fn import(&self, content: impl AsRef<[u8]>, more: &[&str]) -> anyhow::Result<Output>;

    /// An import without a bad line; its summary.
    fn imported(&self, content: &str, more: &[&str]) -> anyhow::Result<Value>;

    /// One column of every lead, in the order of identities.
    async fn leads(&self, column: &str) -> anyhow::Result<Vec<String>>;

    async fn count(&self, table: &str) -> anyhow::Result<i64>;
}

impl Imports for World {
    fn import(&self, content: impl AsRef<[u8]>, more: &[&str]) -> anyhow::Result<Output> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), content)?;
        let path = file.path().display().to_string();
        self.postrider(&[&IMPORT[..], more, &[&path]].concat())
    }

    fn imported(&self, content: &str, more: &[&str]) -> anyhow::Result<Value> {
        let output = succeeded(self.import(content, &[more, &["--json"]].concat())?)?;
        Ok(serde_json::from_str(&output.stdout)?)
    }

    async fn leads(&self, column: &str) -> anyhow::Result<Vec<String>> {
        let admin = self.client("postgres").await?;
        let sql = format!(
            "select coalesce(({column})::text, '-') from execution.leads order by identity collate \"C\""
        );
        Ok(texts(&admin, sql).await?)
    }

    async fn count(&self, table: &str) -> anyhow::Result<i64> {
        let admin = self.client("postgres").await?;
        Ok(number(&admin, format!("select count(*) from execution.{table}")).await?)
    }
}

fn summary(output: &Output) -> anyhow::Result<Value> {
    serde_json::from_str(&output.stdout).with_context(|| output.stderr.clone())
}

/// Every bad line of a summary, as `line: reason`.
fn bad_lines(summary: &Value) -> Vec<String> {
    let bad = summary["bad_lines"].as_array().cloned().unwrap_or_default();
    bad.iter().map(|bad| format!("{}: {}", bad["line"], bad["reason"].as_str().unwrap_or_default())).collect()
}

#[tokio::test]
async fn a_csv_file_becomes_a_list_of_leads() -> anyhow::Result<()> {
    let world = world().await?;
    let csv = "\u{feff}external_id;email;phone;timezone;unsubscribed;Name\r\n\
               1;Ada@Example.org;030 901820;europe/berlin;;\"Ada \"\"the first\"\"; Countess\"\r\n\
               ;bob@example.org;;;asked by phone;\r\n\
               ;;+1 202 555 0123;;;Eve\r\n";
    let output = succeeded(world.import(csv, &["--country", "DE"])?)?;
    assert_snapshot!(stable(&output.stdout), @r"
    list_id [id]
    lines 3
    added 3
    updated 0
    repeated 0
    matched 0 by address
    bad 0
    ");
    assert_eq!(output.stderr, "");
    assert_eq!(world.leads("identity").await?, ["email:bob@example.org", "id:1", "phone:+12025550123"]);
    assert_eq!(world.leads("email").await?, ["bob@example.org", "Ada@Example.org", "-"]);
    assert_eq!(world.leads("phone").await?, ["-", "+4930901820", "+12025550123"]);
    assert_eq!(world.leads("timezone").await?, ["-", "Europe/Berlin", "-"]);
    assert_eq!(world.leads("suppression_reason").await?, ["asked by phone", "-", "-"]);
    assert_eq!(
        world.leads("attributes").await?,
        ["{}", r#"{"Name": "Ada \"the first\"; Countess"}"#, r#"{"Name": "Eve"}"#]
    );
    let admin = world.client("postgres").await?;
    let on_list = "select count(*) from execution.lead_list_members as member
                     join execution.lead_lists as list on list.id = member.list_id and list.name = 'news'";
    assert_eq!(number(&admin, on_list).await?, 3);
    assert_eq!(world.count("lead_intake").await?, 0);
    Ok(())
}

#[tokio::test]
async fn ndjson_from_stdin_keeps_types_and_digits() -> anyhow::Result<()> {
    let world = world().await?;
    let lines = r#"{"external_id": 7, "email": "ada@example.org", "score": 12345678901234567890.10, "tags": ["a\tb", "c\\d"]}

{"phone": "+49 30 901820", "unsubscribed": true, "attributes": {"city": "K\u00f6ln", "gone": null}}
"#;
    let mut command = postrider();
    command.args(["--database-url", &world.admin_url()]).args(IMPORT).args(["--json", "-"]);
    let output = succeeded(run_with_input(&mut command, lines)?)?;
    assert_eq!(summary(&output)?["added"], 2);
    assert_eq!(
        world.leads("attributes").await?,
        [
            r#"{"tags": ["a\tb", "c\\d"], "score": 12345678901234567890.10}"#,
            r#"{"city": "Köln", "gone": null}"#
        ]
    );
    assert_eq!(world.leads("suppression_reason").await?, ["-", "unsubscribed"]);
    Ok(())
}

#[tokio::test]
async fn a_second_import_updates_keeps_what_it_does_not_mention_and_never_takes_a_suppression_back()
-> anyhow::Result<()> {
    let world = world().await?;
    let first = world.imported(
        "external_id,email,unsubscribed,city,plan\n1,a@example.org,no longer interested,Bonn,free\n2,b@example.org,,,\n",
        &[],
    )?;
    let again = "external_id,phone,unsubscribed,city\n1,+4930901820,no,Köln\n3,,,\n";
    let second = world.imported(again, &[])?;
    assert_eq!(second["list_id"], first["list_id"]);
    assert_eq!(
        [&second["lines"], &second["added"], &second["updated"], &second["repeated"]],
        [&json!(2), &json!(1), &json!(1), &json!(0)]
    );
    let third = world.imported(again, &[])?;
    assert_eq!([&third["added"], &third["updated"]], [&json!(0), &json!(2)]);
    assert_eq!(world.leads("email").await?, ["a@example.org", "b@example.org", "-"]);
    assert_eq!(world.leads("phone").await?, ["+4930901820", "-", "-"]);
    assert_eq!(world.leads("suppression_reason").await?, ["no longer interested", "-", "-"]);
    assert_eq!(world.leads("attributes").await?, [r#"{"city": "Köln", "plan": "free"}"#, "{}", "{}"]);
    assert_eq!((world.count("lead_lists").await?, world.count("lead_list_members").await?), (1, 3));
    Ok(())
}

#[tokio::test]
async fn a_person_with_an_external_id_who_is_imported_again_by_address_alone_stays_one_lead()
-> anyhow::Result<()> {
    let world = world().await?;
    world.imported("external_id,email,phone,city\n1,Ada@example.org,,Bonn\n2,,+4930901820,\n", &[])?;
    let again = world
        .imported("email,phone,city\nada@example.org,,Köln\n,+4930901820,Ulm\nnew@example.org,,\n", &[])?;
    assert_eq!(
        [&again["added"], &again["updated"], &again["matched_by_address"], &again["bad"]],
        [&json!(1), &json!(2), &json!(2), &json!(0)]
    );
    assert_eq!(world.count("leads").await?, 3);
    assert_eq!(world.leads("attributes").await?[1..], [r#"{"city": "Köln"}"#, r#"{"city": "Ulm"}"#]);
    // In the same file, and the other way round: the lead that is known by its address gets the external id.
    let both =
        world.imported("external_id,email\n,eve@example.org\n5,eve@example.org\n7,new@example.org\n", &[])?;
    assert_eq!([&both["added"], &both["matched_by_address"]], [&json!(1), &json!(2)]);
    assert_eq!(world.count("leads").await?, 4);
    world.imported("external_id,city\n7,Mainz\n", &[])?;
    assert_eq!(world.count("leads").await?, 4);
    Ok(())
}

#[tokio::test]
async fn imports_of_the_same_people_at_once_make_one_lead_of_each_person() -> anyhow::Result<()> {
    // More than one chunk, so that the imports alternate.
    const PEOPLE: usize = CHUNK + 500;
    let world = world().await?;
    // The list exists, so that imports do not wait for the one that makes it.
    world.imported("email\nperson0@example.org\n", &[])?;
    let by_id = |n: usize| format!("{n},person{n}@example.org\n");
    let by_address = |n: usize| format!(",person{n}@example.org\n");
    let file =
        |lines: &mut dyn Iterator<Item = String>| format!("external_id,email\n{}", lines.collect::<String>());
    // In opposite orders, so that locks taken in the order of the lines would deadlock.
    let files = [
        file(&mut (0..PEOPLE).map(by_id)),
        file(&mut (0..PEOPLE).rev().map(by_id)),
        file(&mut (0..PEOPLE).map(by_address)),
        file(&mut (0..PEOPLE).rev().map(by_address)),
    ];
    let summaries = std::thread::scope(|scope| {
        let world = &world;
        let imports: Vec<_> =
            files.iter().map(|file| scope.spawn(move || world.imported(file, &[]))).collect();
        imports.into_iter().map(|import| import.join().unwrap()).collect::<anyhow::Result<Vec<Value>>>()
    })?;
    let sum = |field: &str| summaries.iter().filter_map(|summary| summary[field].as_u64()).sum::<u64>();
    let people = PEOPLE as u64;
    assert_eq!((sum("added"), sum("updated"), sum("bad")), (people - 1, 3 * people + 1, 0), "{summaries:?}");
    assert_eq!(world.count("leads").await?, PEOPLE as i64);
    assert_eq!(world.count("lead_list_members").await?, PEOPLE as i64);
    let named = "leads where external_id is not null and email is not null";
    assert_eq!(world.count(named).await?, PEOPLE as i64);
    Ok(())
}

#[tokio::test]
async fn a_line_whose_address_several_leads_have_is_bad_and_writes_nothing() -> anyhow::Result<()> {
    let world = world().await?;
    world.imported("external_id,email\n1,a@example.org\n2,a@example.org\n", &[])?;
    let before = world.leads("attributes").await?;
    let bad = world.import("email,city\na@example.org,Bonn\n", &[])?;
    assert_eq!(bad.code, 1);
    assert!(bad.stderr.contains("line 2: more than one lead has this e-mail address; add the external_id"));
    assert_eq!(world.leads("attributes").await?, before);
    assert_eq!((world.count("leads").await?, world.count("lead_lists").await?), (2, 1));
    Ok(())
}

#[tokio::test]
async fn a_person_who_is_in_a_file_twice_is_one_lead_with_what_both_lines_say() -> anyhow::Result<()> {
    let world = world().await?;
    let csv = "email,phone,unsubscribed,city\nADA@example.org,,yes,Bonn\nbob@example.org,,,\nada@example.org,+4930901820,,Köln\n";
    let done = world.imported(csv, &[])?;
    assert_eq!(
        [&done["lines"], &done["added"], &done["updated"], &done["repeated"]],
        [&json!(3), &json!(2), &json!(0), &json!(1)]
    );
    assert_eq!(world.leads("email").await?, ["ada@example.org", "bob@example.org"]);
    assert_eq!(world.leads("phone").await?, ["+4930901820", "-"]);
    assert_eq!(world.leads("suppression_reason").await?, ["unsubscribed", "-"]);
    assert_eq!(world.leads("attributes").await?, [r#"{"city": "Köln"}"#, "{}"]);
    Ok(())
}

#[tokio::test]
async fn lines_of_other_clients_cannot_take_a_suppression_back_either() -> anyhow::Result<()> {
    let world = world().await?;
    let app = world.client("postrider_app").await?;
    let admin = world.client("postgres").await?;
    let (tenant, workspace) =
        sqlx::query_as::<_, (uuid::Uuid, uuid::Uuid)>("select tenant_id, id from tenancy.workspaces")
            .fetch_one(&admin)
            .await?;
    let mut transaction = app.begin().await?;
    let line = |line: i64, reason: &str| {
        format!(
            "insert into execution.lead_intake (intake, line, lead_id, identity, attributes, suppression_reason)
             values ('{tenant}', {line}, gen_random_uuid(), 'id:1', '{{\"line\": {line}}}', {reason});"
        )
    };
    execute(
        &mut *transaction,
        format!(
            "{}; {} {}
             select execution.import_leads(tenancy.current_tenant_id(), '{tenant}', '{workspace}', 'news', gen_random_uuid())",
            acting_as(tenant),
            line(1, "'asked us to stop'"),
            line(2, "null"),
        ),
    )
    .await?;
    transaction.commit().await?;
    assert_eq!(
        world.leads("attributes ->> 'line' || ': ' || suppression_reason").await?,
        ["2: asked us to stop"]
    );
    Ok(())
}

#[tokio::test]
async fn bad_lines_are_told_with_number_and_reason_and_the_good_ones_are_kept() -> anyhow::Result<()> {
    let world = world().await?;
    let csv = "email,phone,note\n\
               a@example.org,,\"two\nlines\"\n\
               b@localhost,,\n\
               c@example.org,12345,\n\
               \n\
               ,,nobody\n\
               d@example.org\n\
               e@example.org,,fine\n";
    let file = tempfile::NamedTempFile::new()?;
    let path = file.path().display().to_string();
    let output = world.import(csv, &["--bad", &path])?;
    assert_eq!(output.code, 1);
    assert_snapshot!(stable(&output.stdout), @r"
    list_id [id]
    lines 6
    added 2
    updated 0
    repeated 0
    matched 0 by address
    bad 4
    ");
    assert_snapshot!(output.stderr, @r"
    line 4: email `b@localhost` is not an address; one looks like name@example.org
    line 5: phone `12345` has no country code; write it as +49…, or use --country
    line 7: it has none of external_id, email or phone
    line 8: it has 1 field where the header has 3
    error: 4 of 6 lines were left out; the others are on the list `news`: correct those and import them again
    ");
    let written = std::fs::read_to_string(file.path())?;
    let first: Value = serde_json::from_str(written.lines().next().unwrap_or_default())?;
    assert_eq!((written.lines().count(), &first["line"]), (4, &json!(4)));
    assert_eq!(world.leads("identity").await?, ["email:a@example.org", "email:e@example.org"]);
    Ok(())
}

#[tokio::test]
async fn of_many_bad_lines_the_first_are_shown_and_all_are_counted() -> anyhow::Result<()> {
    let world = world().await?;
    let csv = format!("email\nada@example.org\n{}", "bad\n".repeat(150));
    let output = world.import(csv, &["--json"])?;
    let told = summary(&output)?;
    assert_eq!((&told["bad"], told["bad_lines"].as_array().map(Vec::len)), (&json!(150), Some(100)));
    let lines: Vec<&str> = output.stderr.lines().collect();
    assert_eq!(lines.len(), 22, "{}", output.stderr);
    assert_eq!(lines[20], "and 130 more bad lines; --bad FILE saves all of them");
    assert!(lines[21].starts_with("error: 150 of 151 lines were left out"), "{}", lines[21]);
    Ok(())
}

#[tokio::test]
async fn a_file_without_a_good_line_makes_no_list() -> anyhow::Result<()> {
    let world = world().await?;
    let before = world.rows().await?;
    for content in ["email\nbad\n", "{\"email\": 1}\nnothing\n"] {
        let output = world.import(content, &["--json"])?;
        assert_eq!((output.code, &summary(&output)?["list_id"]), (1, &Value::Null));
        assert!(output.stderr.contains("is a lead; nothing was imported"), "{}", output.stderr);
        assert_eq!(world.rows().await?, before);
    }
    Ok(())
}

#[tokio::test]
async fn a_file_that_cannot_be_imported_is_refused_in_one_sentence() -> anyhow::Result<()> {
    let world = world().await?;
    let before = world.rows().await?;
    for (content, more, says) in [
        (&b""[..], &[][..], "it is empty"),
        (b"email,city\n", &[], "it has a header and no lines"),
        (b"email,city\n\n\n", &[], "it has no lines"),
        (b"hello\nworld\n", &[], "its header has no column called external_id, email or phone"),
        (b"PK\x03\x04\0\0\n\0\n", &[], "its first line is not text in UTF-8"),
        (b"\xff\xfee\0m\0", &[], "it is written in UTF-16; save it as UTF-8"),
        (b"[{\"email\": \"ada@example.org\"}]", &[], "it is a JSON array"),
        (b"email,email\na,b\n", &[], "its header names the column `email` twice"),
        (b"email,\na@example.org,b\n", &[], "column 2 of its header has no name"),
        (b"{\"external_id\": 1}\n", &["--format", "csv"], "its header has no column called"),
        (b"{\"external_id\": 1}\n", &["--delimiter", ";"], "it is NDJSON, where nothing is delimited"),
        (b"email\na@example.org\n", &["--tenant", "nobody"], "there is no tenant `nobody`"),
        (b"email\na@example.org\n", &["--list", " "], "--list: a list needs a name of 1 to 255 bytes"),
        (b"email\na@example.org\n", &["--bad", "/nonexistent/bad"], "cannot write /nonexistent/bad"),
    ] {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), content)?;
        let path = file.path().display().to_string();
        // A flag cannot be given twice.
        let mut args = vec!["campaign", "import"];
        for default in [["--tenant", "acme"], ["--list", "news"]] {
            if !more.contains(&default[0]) {
                args.extend(default);
            }
        }
        let output = world.postrider(&[&args[..], more, &[&path]].concat())?;
        assert_refused(&output, says);
        assert_eq!(world.rows().await?, before, "{says}");
    }
    for (path, says) in [
        ("/nonexistent.csv", "cannot open /nonexistent.csv: No such file"),
        ("/", "it cannot be read: Is a directory"),
    ] {
        assert_refused(&world.postrider(&[&IMPORT[..], &[path]].concat())?, says);
    }
    for (more, says) in [
        (["--format", "xlsx"], "[possible values: csv, ndjson]"),
        (["--country", "Germany"], "`Germany` is not a country code; use two letters"),
        (["--delimiter", "ab"], "`ab` is not a delimiter"),
    ] {
        assert_misused(&run(postrider().args(IMPORT).args(more).arg("x.csv"))?, says);
    }
    Ok(())
}

#[tokio::test]
async fn the_file_that_is_read_is_never_overwritten_with_its_bad_lines() -> anyhow::Result<()> {
    let world = world().await?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), "email\nbad\n")?;
    let path = file.path().display().to_string();
    let output = world.postrider(&[&IMPORT[..], &["--bad", &path, &path]].concat())?;
    assert_refused(&output, "--bad names the file that is imported; name another one");
    assert_eq!(std::fs::read_to_string(file.path())?, "email\nbad\n");
    Ok(())
}

#[tokio::test]
async fn hostile_csv_is_kept_as_text_or_reported() -> anyhow::Result<()> {
    let world = world().await?;
    let mut csv = b"email,note\n".to_vec();
    for line in [
        &b"a@example.org,\"=cmd|' /C calc'!A0\"\n"[..],
        b"b@example.org,\"\\N\"\n",
        b"c@example.org,\"x\ty\\.\n\\.\n'); drop table execution.leads; --\"\n",
        b"\"d@example.org\r\nBcc: e@example.org\",\n",
        b"f@example.org,x\0y\n",
        b"g@example.org,K\xf6ln\n",
        b"h@example.org,",
    ] {
        csv.extend(line);
    }
    csv.extend(vec![b'x'; 10 * 1024 * 1024]);
    csv.extend(b"\ni@example.org,\"still here\"\n");
    let output = world.import(csv, &["--json"])?;
    assert_eq!(
        bad_lines(&summary(&output)?),
        [
            "7: email contains a control character, such as a line break; remove it",
            "9: it holds the character with the number zero, which Postgres cannot store; remove it",
            "10: it is not UTF-8 text; save the file as UTF-8",
            "11: it is longer than 65536 bytes",
        ]
    );
    assert_eq!(
        world.leads("attributes ->> 'note'").await?,
        ["=cmd|' /C calc'!A0", "\\N", "x\ty\\.\n\\.\n'); drop table execution.leads; --", "still here"]
    );
    Ok(())
}

#[tokio::test]
async fn hostile_ndjson_is_reported_and_the_database_never_stumbles() -> anyhow::Result<()> {
    let world = world().await?;
    let deep = format!("{{\"external_id\": 1, \"a\": {}{}}}", "[".repeat(30_000), "]".repeat(30_000));
    let shallow = format!("{{\"external_id\": 2, \"a\": {}{}}}", "[".repeat(100), "]".repeat(100));
    // Text that is short here and long there, in every way there is.
    let spaces = format!("{{\"external_id\": 3, \"a\": [{}1]}}", "1,".repeat(3500));
    let digits = format!("{{\"external_id\": 4, \"a\": [{}1]}}", "1e308,".repeat(40));
    let escapes = format!("{{\"external_id\": 5, \"a\": \"{}\"}}", "\\u0001".repeat(1300));
    let fits = format!("{{\"external_id\": 6, \"a\": \"{}\"}}", "\\u4e2d".repeat(2600));
    let lines = [
        &deep,
        &shallow,
        &spaces,
        &digits,
        &escapes,
        &fits,
        r#"{"external_id": 7, "a": "\u0000"}"#,
        r#"{"external_id": 8, "a": "\udead"}"#,
        r#"{"external_id": 9, "a": 1e-99999}"#,
        r#"{"external_id": 10, "a": {"b": 1, "b": 2}}"#,
    ];
    let output = world.import(lines.join("\n"), &["--json"])?;
    let told = summary(&output)?;
    let bad: Vec<u64> =
        told["bad_lines"].as_array().unwrap().iter().filter_map(|bad| bad["line"].as_u64()).collect();
    assert_eq!(bad, [1, 3, 4, 7, 8, 9], "{:#?}", bad_lines(&told));
    assert!(bad_lines(&told).iter().all(|reason| !reason.contains("the database refused it")));
    assert_eq!(world.leads("identity").await?, ["id:10", "id:2", "id:5", "id:6"]);
    Ok(())
}

// The sum of what is known and what is new is too large: nobody can know that before the merge.
#[tokio::test]
async fn a_line_that_the_database_refuses_is_reported_and_its_chunk_is_kept() -> anyhow::Result<()> {
    let world = world().await?;
    let half = "x".repeat(5000);
    world.imported(&format!("external_id,a\n7,{half}\n"), &[])?;
    let others: String = (100..140).map(|id| format!("{id},,y\n")).collect();
    let output =
        world.import(format!("external_id,a,b\n{others}7,,{half}\n7,,{half}\n41,,z\n"), &["--json"])?;
    let told = summary(&output)?;
    let reason = "its attributes and those that the lead has already take more than 8192 bytes together";
    assert_eq!(bad_lines(&told), [format!("42: {reason}"), format!("43: {reason}")]);
    assert_eq!([&told["added"], &told["updated"], &told["bad"]], [&json!(41), &json!(0), &json!(2)]);
    assert_eq!(world.count("leads").await?, 42);
    assert_eq!(world.count("lead_intake").await?, 0);
    Ok(())
}

// The rules let nothing through that COPY refuses; should they ever, one line is lost and not the import.
#[tokio::test]
async fn a_line_that_copy_refuses_is_reported_and_its_chunk_is_kept() -> anyhow::Result<()> {
    let world = world().await?;
    let mut chunk = Chunk::default();
    for entry in
        Leads::open(format!("external_id,email\n{}", numbered(0, 20)).as_bytes(), &Options::default())?
    {
        chunk.add(entry?);
    }
    let nul = RawValue::from_string(r#""\u0000""#.to_owned())?;
    chunk.rows[13].lead.attributes.insert("a".to_owned(), nul);
    let pool = world.pool("postgres").await?;
    let mut transaction = postrider_store::postgres::pool::begin(&pool).await?;
    let tenant = postrider_store::tenancy::tenants::find(&mut transaction, "acme").await?;
    drop(transaction);
    let to = Destination { tenant: tenant.id, workspace: tenant.workspace_id, list: "news" };
    let imported = leads::import(&pool, to, &chunk.rows).await?;
    assert_eq!((imported.added, world.count("leads").await?), (19, 19));
    let refused: Vec<u64> = imported.refused.iter().map(|bad| bad.line).collect();
    assert_eq!(refused, [15]);
    assert!(imported.refused[0].reason.starts_with("the database refused it: "), "{:?}", imported.refused);
    Ok(())
}

#[tokio::test]
async fn no_other_tenant_sees_the_leads_or_can_be_given_any() -> anyhow::Result<()> {
    let world = world().await?;
    world.imported("email\nada@example.org\n", &[])?;
    let other = world.json(&["tenants", "create", "other"])?;
    let (tenant, workspace) = (other["tenant_id"].as_str().unwrap(), other["workspace_id"].as_str().unwrap());
    let acme = world.json(&["tenants", "list"])?[0]["id"].as_str().unwrap().to_owned();
    let app = world.client("postrider_app").await?;
    for (tenant, expected) in [(tenant, 0), (acme.as_str(), 1)] {
        let mut transaction = app.begin().await?;
        execute(&mut *transaction, acting_as(tenant.parse()?)).await?;
        for table in ["leads", "lead_lists", "lead_list_members"] {
            let seen = number(&mut *transaction, format!("select count(*) from execution.{table}")).await?;
            assert_eq!(seen, expected, "{table}");
        }
    }
    // The context is one tenant, the workspace another's.
    let mut transaction = app.begin().await?;
    execute(&mut *transaction, acting_as(acme.parse()?)).await?;
    let merge = format!(
        "select execution.import_leads(tenancy.current_tenant_id(), gen_random_uuid(), '{workspace}', 'x', gen_random_uuid())"
    );
    assert_eq!(refusal(execute(&mut *transaction, merge).await)?.code, "23503");
    let mut transaction = app.begin().await?;
    let look = execute(&mut *transaction, "select * from execution.lead_intake").await;
    assert_eq!(refusal(look)?.code, "42501");
    Ok(())
}

/// An import that reads what the test writes, when the test writes it. It ends with its test.
struct Piped {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Piped {
    fn start(world: &World) -> anyhow::Result<Self> {
        let mut child = postrider()
            .args(["--database-url", &world.admin_url()])
            .args(IMPORT)
            .args(["--json", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take();
        Ok(Self { child, stdin })
    }

    fn write(&mut self, text: &str) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("no stdin")?;
        stdin.write_all(text.as_bytes())?;
        Ok(stdin.flush()?)
    }

    /// Waits for its end; its stdin stays as it is.
    fn end(mut self) -> anyhow::Result<Output> {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            anyhow::ensure!(Instant::now() < deadline, "the import did not end");
            std::thread::sleep(Duration::from_millis(5)); // waits for the child, which has no other signal
        };
        let (mut stdout, mut stderr) = (String::new(), String::new());
        if let Some(mut stream) = self.child.stdout.take() {
            stream.read_to_string(&mut stdout)?;
        }
        if let Some(mut stream) = self.child.stderr.take() {
            stream.read_to_string(&mut stderr)?;
        }
        Ok(Output { code: status.code().unwrap_or(-1), stdout, stderr })
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn numbered(from: usize, to: usize) -> String {
    (from..to).map(|id| format!("{id},user{id}@example.org\n")).collect()
}

#[tokio::test]
async fn an_interrupt_keeps_what_is_committed_and_says_how_far_it_came() -> anyhow::Result<()> {
    let world = world().await?;
    let mut import = Piped::start(&world)?;
    import.write("external_id,email\n")?;
    import.write(&numbered(0, CHUNK + 10))?;
    eventually("the first chunk is stored", async || Ok(world.count("leads").await? == CHUNK as i64)).await?;
    let pid = import.child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status()?.success());
    // Its stdin is still open: a reader that waits must not hold up the end.
    let output = import.end()?;
    assert_eq!((output.code, &summary(&output)?["added"]), (130, &json!(CHUNK)));
    assert_eq!(
        output.stderr,
        "the import was interrupted after line 5001; import the file again to import the rest\n"
    );
    assert_eq!(world.count("leads").await?, CHUNK as i64);
    Ok(())
}

#[tokio::test]
async fn a_failure_in_the_middle_keeps_what_is_committed_and_says_how_far_it_came() -> anyhow::Result<()> {
    let world = world().await?;
    let mut import = Piped::start(&world)?;
    import.write("external_id,email\n")?;
    import.write(&numbered(0, CHUNK))?;
    eventually("the first chunk is stored", async || Ok(world.count("leads").await? == CHUNK as i64)).await?;
    world.as_superuser("alter function execution.import_leads rename to gone").await?;
    import.write("1,a@example.org\n")?;
    import.stdin = None;
    let output = import.end()?;
    assert_eq!((output.code, output.stdout.as_str()), (1, ""));
    assert!(
        output
            .stderr
            .starts_with("error: the import stopped after line 5001; the lines before it are imported")
    );
    assert_eq!(world.count("leads").await?, CHUNK as i64);
    Ok(())
}

#[tokio::test]
async fn a_hundred_thousand_leads_take_no_more_memory_than_a_few_chunks() -> anyhow::Result<()> {
    // All leads at once would take several times as much.
    const MEMORY_KIB_MAX: u64 = 128 * 1024;
    // One chunk more than it tells us about: the last one is stored when it is full, or at the end.
    let lines = 100_000 + CHUNK;
    let world = world().await?;
    let mut import = Piped::start(&world)?;
    let note = "n".repeat(700);
    import.write("external_id,email,note\n")?;
    for from in (0..lines).step_by(1000) {
        let text: String =
            (from..from + 1000).map(|id| format!("{id},user{id}@example.org,{note}\n")).collect();
        import.write(&text)?;
    }
    let stderr = import.child.stderr.take().context("no stderr")?;
    let (sender, told) = mpsc::channel();
    std::thread::spawn(move || sender.send(BufReader::new(stderr).lines().map_while(Result::ok).next()));
    let told = told.recv_timeout(3 * PATIENCE).context("it never told how far it is")?;
    assert!(told.as_ref().is_some_and(|told| told.starts_with("importing  10")), "{told:?}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", import.child.id()))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse()?;
    assert!(peak < MEMORY_KIB_MAX, "{peak} KiB");
    import.stdin = None;
    let output = import.end()?;
    assert_eq!((output.code, &summary(&output)?["added"]), (0, &json!(lines)));
    assert_eq!(world.count("leads").await?, lines as i64);
    Ok(())
}

#[tokio::test]
async fn a_column_that_templates_cannot_use_is_reported_with_its_new_name() -> anyhow::Result<()> {
    let world = world().await?;
    let csv = "email,First Name,plain,2nd\na@example.org,Ann,x,y\n";
    let output = succeeded(world.import(csv, &[])?)?;
    let says = "column `First Name` is no name for a variable; templates use it as `{{ First_Name }}`";
    assert!(output.stderr.contains(says) && output.stderr.contains("{{ _2nd }}"), "{}", output.stderr);
    assert!(!output.stderr.contains("plain"), "{}", output.stderr);
    let names = "(select string_agg(name, ',' order by name collate \"C\") from jsonb_object_keys(attributes) as name)";
    assert_eq!(world.leads(names).await?, ["First_Name,_2nd,plain"]);
    let lines = "{\"email\": \"b@example.org\", \"attributes\": {\"Favourite Colour\": \"red\"}}\n";
    let summary = world.imported(lines, &[])?;
    assert_eq!(summary["renamed"], json!([{ "column": "Favourite Colour", "variable": "Favourite_Colour" }]));
    Ok(())
}
