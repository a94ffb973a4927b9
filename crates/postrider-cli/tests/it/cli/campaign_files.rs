//! The files of `postrider campaign create`: content, formats, and files and deployments that are refused.

use insta::assert_snapshot;
use serde_json::json;
use uuid::Uuid;

use super::{
    assert_misused, assert_refused,
    stage::{SPRING, Stage},
    succeeded,
};
use crate::{sql, world::run_with_input};

#[tokio::test]
async fn content_becomes_a_version_of_an_asset_which_other_campaigns_name() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    succeeded(stage.create(SPRING)?)?;
    let second =
        SPRING.replace("Spring is here.", "Still spring.").replace("name = \"spring\"", "name = \"late\"");
    succeeded(stage.create(&second)?)?;
    let assets: Vec<(String, i32)> =
        sqlx::query_as("select name, version from execution.assets order by created_at")
            .fetch_all(&stage.admin)
            .await?;
    assert_eq!(assets, [("spring/mail".to_owned(), 1), ("late/mail".to_owned(), 1)]);
    let id: Uuid = sqlx::query_scalar("select id from execution.assets where name = 'late/mail'")
        .fetch_one(&stage.admin)
        .await?;

    for (n, asset) in
        ["spring/mail", "spring/mail@1", &id.to_string(), &format!("asset_{id}")].iter().enumerate()
    {
        let campaign = json!({
            "name": format!("again {n}"),
            "auto_advance": false,
            "phases": [
                { "phase": "mail", "channel": "email", "list": "customers", "provider_account": "mailer", "asset": asset },
                { "phase": "post", "channel": "social", "provider_account": "mailer", "content": { "text": "Spring!" } },
                { "phase": "print", "kind": "external" },
            ],
        });
        let created = succeeded(stage.create(&campaign.to_string())?)?;
        assert!(created.stderr.contains(&format!("'again {n}'")), "quoted for the shell: {}", created.stderr);
    }
    let status = stage.json(&["campaign", "status", "again 1"])?;
    assert_eq!(status["phases"][0]["asset"], "spring/mail@1");
    assert_eq!(status["phases"][1]["channel"], "social");
    assert_eq!(
        (&status["phases"][2]["kind"], &status["phases"][2]["run"]),
        (&json!("external"), &json!(null))
    );
    assert_eq!(status["campaign"]["auto_advance"], json!(false));
    let status = stage.json(&["campaign", "status", "again 2"])?;
    assert_eq!(status["phases"][0]["asset"], "late/mail@1");

    // A social phase without a list is one post, and an external one is not deployed.
    stage.stdout(&["campaign", "deploy", "again 1", "--phase", "post"])?;
    stage.worker("hand").await?.finish_one("posted", "p-1").await?;
    succeeded(stage.run(&["campaign", "verify", "again 1", "--phase", "post"])?)?;
    assert_refused(
        &stage.run(&["campaign", "deploy", "again 1", "--phase", "print"])?,
        "phase `print` is done by another service and is not deployed",
    );
    assert_refused(
        &stage.run(&["campaign", "verify", "again 1", "--phase", "print"])?,
        "no certificate to verify",
    );
    assert_refused(
        &stage.run(&["campaign", "verify", "again 1", "--phase", "fax"])?,
        "`again 1` has no phase `fax`; it has mail, post, print",
    );
    Ok(())
}

#[tokio::test]
async fn files_are_toml_or_json_by_their_name_or_their_first_character() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    let home = tempfile::tempdir()?;
    let phase = json!({ "phase": "mail", "channel": "email", "list": "customers", "provider_account": "mailer",
                        "content": { "subject": "s", "text": "t" }, "scheduled_for": "2130-03-01T09:00:00+01:00",
                        "failure_tolerance": 0.5, "quiet_time_seconds": 900 });
    let json = |name: &str| json!({ "name": name, "phases": [phase] }).to_string();
    for (file, content) in [
        ("a.json", json("a")),
        ("b", format!("\n  {}", json("b"))),
        ("c.toml", SPRING.replace("spring", "c")),
        ("d", SPRING.replace("spring", "d")),
    ] {
        let path = home.path().join(file);
        std::fs::write(&path, content)?;
        stage.stdout(&["campaign", "create", &path.display().to_string()])?;
    }
    let status = stage.json(&["campaign", "status", "a"])?;
    assert_eq!(status["phases"][0]["scheduled_for"], "2130-03-01T08:00:00Z");
    assert_eq!(status["phases"][0]["failure_tolerance"], json!(0.5));
    let quiet: bool = sqlx::query_scalar(
        "select bool_or(quiet_time = interval '15 minutes') from execution.campaign_phases where scheduled_for is not null",
    )
    .fetch_one(&stage.admin)
    .await?;
    assert!(quiet);
    let deployed = succeeded(stage.run(&["campaign", "deploy", "a"])?)?;
    assert!(deployed.stderr.contains("the phase begins at 2130-03-01 08:00:00Z"), "{}", deployed.stderr);
    assert_refused(
        &stage.run(&["campaign", "create", "/nonexistent.toml"])?,
        "cannot read the campaign from /nonexistent.toml",
    );
    Ok(())
}

#[tokio::test]
async fn a_bad_file_is_refused_in_one_line_and_writes_nothing() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    stage.add_account("fax", "fax").await?;
    stage.add_account("post", "smtp").await?;
    let voice = "name = 'voice'\n[[phase]]\nphase = 'call'\nchannel = 'voice'\nlist = 'customers'\n\
                 provider_account = 'mailer'\ncontent.script = 'Hello.'";
    succeeded(stage.create(voice)?)?;
    let spring = |from: &str, to: &str| SPRING.replace(from, to);
    let with = |line: &str| format!("{SPRING}{line}\n");
    let long = "x".repeat(252);
    let before = stage.world.dump().await?;
    for (file, says) in [
        (spring("\"customers\"", "\"nobody\""), "phase `mail`: there is no list `nobody`; import one with"),
        (spring("list = \"customers\"", ""), "phase `mail`: `list` is missing"),
        (
            spring("\"mailer\"", "\"nobody\""),
            "phase `mail`: there is no provider account `nobody`; the tenant has fax, mailer, post, and `postrider accounts add`",
        ),
        (spring("provider_account = \"mailer\"", ""), "phase `mail`: `provider_account` is missing"),
        (
            spring("\"mailer\"", "\"fax\""),
            "phase `mail`: account `fax` is at `fax`, which this version cannot call; it can call bluesky, mastodon, resend, sim, slack, smtp, telegram, twilio, webhook, whatsapp",
        ),
        (
            voice.replace("'mailer'", "'post'").replace("'voice'\n[[", "'new'\n[["),
            "phase `call`: account `post` is at `smtp`, which carries email, not voice; voice is carried by sim, twilio, webhook",
        ),
        (spring("{{ first_name }}", "{{ first_name"), "phase `mail`: the subject has an error in line 1"),
        (spring("content.text = ", "content.body = "), "phase `mail`: the content is not fit for email: unknown field `body`"),
        (
            spring("content.text = \"Spring is here.\"", ""),
            "phase `mail`: the content is not fit for email: an e-mail needs `text`, `html` or both",
        ),
        (with("asset = 'spring/mail'"), "phase `mail`: `asset` and `content` are both set"),
        (
            "name = 'new'\n[[phase]]\nphase = 'mail'\nchannel = 'email'\nlist = 'customers'\nprovider_account = 'mailer'".to_owned(),
            "phase `mail`: `asset` and `content` are both missing; name an `asset`, or write what to send under `content`",
        ),
        (
            "name = 'new'\n[[phase]]\nphase = 'mail'\nchannel = 'email'\nlist = 'customers'\nprovider_account = 'mailer'\n\
             asset = 'voice/call'"
                .to_owned(),
            "phase `mail`: asset `voice/call@1` is for channel voice, the phase for email; choose an asset of the phase's channel",
        ),
        (
            "name = 'new'\n[[phase]]\nphase = 'mail'\nchannel = 'email'\nlist = 'customers'\nprovider_account = 'mailer'\n\
             asset = 'voice/call@2'"
                .to_owned(),
            "phase `mail`: there is no asset `voice/call@2`; name one as ID, NAME or NAME@VERSION",
        ),
        (spring("\"spring\"", "\"voice\""), "a campaign called `voice` exists already; choose another name"),
        (spring("\"spring\"", "\" \""), "a campaign needs a name of 1 to 255 bytes"),
        (spring("\"spring\"", &format!("\"{long}\"")), "give the campaign a shorter name"),
        (spring("\"mail\"", "\"First mail\""), "`First mail` is not a name for a phase"),
        (format!("{SPRING}{}", SPRING.replace("name = \"spring\"", "")), "two phases are called `mail`"),
        ("name = 'new'".to_owned(), "the campaign has no phases; add one under [[phase]]"),
        ("name = 'new'\nphase = []".to_owned(), "the campaign has no phases"),
        (with("failure_tolerance = 1.5"), "phase `mail`: failure_tolerance is a share between 0 and 1"),
        (with("failure_tolerance = nan"), "phase `mail`: failure_tolerance is a share between 0 and 1"),
        (with("quiet_time_seconds = 0"), "phase `mail`: quiet_time_seconds must be at least 1"),
        (with("quiet_time_seconds = -5"), "cannot parse stdin: line 11: "),
        (with("scheduled_for = 'tomorrow'"), "cannot parse stdin: line 11: `tomorrow` is not a time; write a time with its offset"),
        (with("scheduled_for = 2130-03-01T09:00:00"), "is not a time; write a time with its offset"),
        (with("scheduled_for = '2130-02-30T09:00:00Z'"), "`2130-02-30T09:00:00Z` is not a time"),
        (with("scheduled_for = 2020-03-01T09:00:00Z"), "phase `mail`: scheduled_for lies in the past (2020-03-01T09:00:00Z)"),
        (with("priority = 'high'"), "cannot parse stdin: line 11: unknown field `priority`, expected one of `phase`"),
        (format!("colour = 'red'\n{SPRING}"), "cannot parse stdin: line 1: unknown field `colour`"),
        (spring("\"email\"", "\"telex\""), "unknown variant `telex`, expected one of `email`, `voice`, `social`"),
        (spring("channel = \"email\"", ""), "phase `mail`: `channel` is missing; known are email, voice, social"),
        (spring("name = \"spring\"", "name = \"spring"), "cannot parse stdin: line 2: "),
        (r#"{"name": "new", "phases": [{"phase": "mail"}"#.to_owned(), "cannot parse stdin: EOF while parsing"),
        (r#"{"name": "new", "phases": [], "colour": "red"}"#.to_owned(), "cannot parse stdin: unknown field `colour`"),
        (String::new(), "cannot parse stdin: "),
        (
            "name = 'new'\n[[phase]]\nphase = 'print'\nkind = 'external'\nlist = 'customers'".to_owned(),
            "phase `print`: another service does an external phase, so `list` does not belong here",
        ),
    ] {
        assert_refused(&stage.create(&file)?, says);
        assert_eq!(stage.world.dump().await?, before, "{file}");
    }
    Ok(())
}

#[tokio::test]
async fn a_bad_deployment_is_refused_and_writes_nothing() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    stage.add_list("nobody", &[]).await?;
    succeeded(stage.create(SPRING)?)?;
    succeeded(
        stage.create(&SPRING.replace("\"spring\"", "\"empty\"").replace("\"customers\"", "\"nobody\""))?,
    )?;
    let unknown = Uuid::now_v7().to_string();
    let before = stage.world.dump().await?;
    for (args, says) in [
        (
            &["campaign", "deploy", "empty"][..],
            "the list of phase `mail` is empty; import leads with `postrider campaign import`",
        ),
        (
            &["campaign", "deploy", "summer"],
            "there is no campaign `summer`; `postrider campaign status` lists them",
        ),
        (&["campaign", "deploy", &unknown], "there is no campaign with the id"),
        (
            &["campaign", "deploy", "spring", "--phase", "fax"],
            "the campaign has no phase `fax`; it has: mail",
        ),
        (&["campaign", "status", "summer"], "there is no campaign `summer`"),
        (&["campaign", "watch", &unknown], "there is no campaign or run"),
        (&["campaign", "verify", &format!("run_{unknown}")], "there is no campaign or run"),
    ] {
        assert_refused(&stage.run(args)?, says);
        assert_eq!(stage.world.dump().await?, before, "{args:?}");
    }
    for size in ["0", "10001", "many"] {
        assert_misused(&stage.run(&["campaign", "deploy", "spring", "--job-size", size])?, "--job-size");
    }
    assert_misused(&stage.run(&["campaign", "create"])?, "<FILE>");
    Ok(())
}

#[tokio::test]
async fn a_file_is_checked_without_creating_anything() -> anyhow::Result<()> {
    let stage = Stage::new(3).await?;
    let check = |file: &str, more: &[&str]| {
        run_with_input(&mut stage.command(&[&["campaign", "check", "-"], more].concat()), file)
    };
    let before = stage.world.rows().await?;
    let shown = succeeded(check(SPRING, &[])?)?;
    assert_snapshot!(shown.stdout, @r"
    PHASE  MEMBERS  REACHABLE  SUPPRESSED  NO ADDRESS  SAME ADDRESS  RENDERED  ACCOUNT  TAKES
    mail   3        3          0           0           0             3/3       mailer   -
    ");
    let wrong = SPRING.replace("first_name", "last_name");
    let refused = check(&wrong, &[])?;
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("mail: `last_name` is undefined for 3 of 3 leads"), "{}", refused.stderr);
    let error = "error: phase `mail`: the message can be rendered for none of the 3 leads that were tried: the variable `last_name` is undefined";
    assert!(refused.stderr.contains(error), "{}", refused.stderr);
    let json: serde_json::Value = serde_json::from_str(&check(&wrong, &["--json"])?.stdout)?;
    assert_eq!(json["errors"][0]["field"], "phases[0].asset_id");
    assert_eq!(json["phases"][0]["renders"]["missing"][0]["leads"], 3);
    assert_refused(&stage.create(&wrong)?, "the variable `last_name` is undefined");
    assert_refused(&check("name = 'a'", &[])?, "the campaign has no phases");
    assert_eq!(stage.world.rows().await?, before);

    sql::execute(&stage.admin, "update tenancy.provider_accounts set limits = '{\"daily\": 2}'").await?;
    sql::execute(&stage.admin, "update execution.leads set suppressed_at = now(), suppression_reason = 'x' where email = 'lead1@example.com'").await?;
    let json: serde_json::Value = serde_json::from_str(&succeeded(check(SPRING, &["--json"])?)?.stdout)?;
    let mail = &json["phases"][0];
    assert_eq!((&mail["audience"]["suppressed"], &mail["audience"]["reachable"]), (&1.into(), &2.into()));
    assert_eq!(mail["account"]["daily"], 2);
    Ok(())
}
