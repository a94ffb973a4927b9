//! `postrider channels`: senders, executors, messages and replies.

use anyhow::Context;
use insta::assert_snapshot;
use postrider_model::{
    channels::Reply,
    ids::{TenantId, WorkspaceId},
    tenancy::Role,
};
use postrider_store::{
    Pool,
    channels::{messages, replies::Verdict},
};
use serde_json::json;
use uuid::Uuid;

use super::{
    assert_misused, assert_refused,
    stage::{Stage, redacted},
    succeeded,
};
use crate::{
    api::conversations::{Conversation, SECRET, settle_all},
    world::{MASTER_KEY, Output, run_with_input},
};

impl Stage {
    async fn store(&self) -> anyhow::Result<Pool> {
        self.world.pool("postgres").await
    }

    /// An account of tenant `acme` at which `U1` may write.
    async fn conversation(&self, name: &str, provider: &str) -> anyhow::Result<Conversation> {
        let (tenant, workspace) = (TenantId(self.tenant), WorkspaceId(self.workspace));
        let conversation = Conversation::new(&self.store().await?, tenant, workspace, name, provider).await?;
        conversation.link("U1", "ada", Role::Operator).await?;
        Ok(conversation)
    }

    /// A command that seals, with something on its stdin.
    pub fn with_secret(&self, args: &[&str], input: &str) -> anyhow::Result<Output> {
        run_with_input(self.command(args).env("POSTRIDER_MASTER_KEY", MASTER_KEY), input)
    }

    /// The audit log of a subject: the action and its actor.
    pub async fn audited(&self, subject: &str) -> anyhow::Result<Vec<(String, String)>> {
        let sql = "select action, actor from tenancy.audit_log where subject = $1 order by id";
        Ok(sqlx::query_as(sql).bind(subject).fetch_all(&self.admin).await?)
    }

    async fn pending(&self) -> anyhow::Result<Vec<String>> {
        let sql =
            "select last_error from channels.channel_outbox where status = 'pending' order by last_error";
        Ok(sqlx::query_scalar(sql).fetch_all(&self.admin).await?)
    }
}

pub fn by_ada(actions: &[&str]) -> Vec<(String, String)> {
    actions.iter().map(|action| ((*action).to_owned(), "cli:ada".to_owned())).collect()
}

#[tokio::test]
async fn senders_are_linked_listed_and_forgotten() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    assert_eq!(
        succeeded(stage.run(&["channels", "links"])?)?.stderr,
        "no sender is linked; `postrider channels link ACCOUNT SENDER --user U --role R` links one to a user\n"
    );
    let team = stage.conversation("team", "slack").await?;
    let link = |role: &str| {
        stage.stdout(&["channels", "link", "team", "U2\u{1b}[31m", "--user", "bob", "--role", role])
    };
    let first = link("viewer")?;
    assert_eq!(link("operator")?, first, "the same sender has one link");
    let id = first.trim();
    assert_snapshot!(redacted(&stage.stdout(&["channels", "links"])?), @r"
    LINK ACCOUNT SENDER USER ROLE SINCE
    link_[id] team U2�[31m bob operator [date] [time]
    link_[id] team U1 ada operator [date] [time]
    ");
    let by_id =
        stage.json(&["channels", "links", "--account", &team.account.to_string(), "--sender", "U1"])?;
    assert_eq!((by_id.as_array().map(Vec::len), &by_id[0]["user_id"]), (Some(1), &json!("ada")));
    let gone = succeeded(stage.run(&["channels", "unlink", &format!("link_{id}")])?)?;
    assert_eq!(gone.stderr, format!("removed link_{id}; further messages of this sender are denied\n"));
    assert_eq!(
        stage.audited(&format!("link:{id}")).await?,
        by_ada(&["sender.linked", "sender.linked", "sender.unlinked"])
    );
    assert_refused(&stage.run(&["channels", "unlink", id])?, "; `postrider channels links` shows them");
    Ok(())
}

#[tokio::test]
async fn an_executor_is_set_listed_and_removed_and_its_secret_is_never_printed() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    stage.add_account("team", "slack").await?;
    let echo = succeeded(stage.with_secret(&["channels", "executor", "set", "--echo"], "")?)?.stdout;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), format!("{SECRET}\n"))?;
    let path = file.path().display().to_string();
    let agent = [
        &["channels", "executor", "set", "--account", "team", "--url", "https://agent.example.com/m"][..],
        &["--secret-file", &path, "--timeout-seconds", "60", "--required-role", "viewer"],
        &["--blocked-word", "refund", "--blocked-word", "wire transfer", "--messages-per-minute", "5"],
        &["--sentinel-url", "https://sentinel.example.com"],
    ]
    .concat();
    let set = succeeded(stage.with_secret(&agent, "")?)?;
    let shown = stage.stdout(&["channels", "executors"])?;
    assert_snapshot!(redacted(&shown).replace("\n\n", "\n"), @r"
    EXECUTOR ACCOUNT EXECUTES TIMEOUT NEEDS SENTINEL SINCE
    executor_[id] team https://agent.example.com/m 60 s viewer 2 blocked words, 5 a minute, https://sentinel.example.com [date] [time]
    executor_[id] (all others) echo 30 s operator - [date] [time]
    ");
    let listed = stage.json(&["channels", "executors"])?;
    assert_eq!(listed[0]["sentinel"]["blocked_words"], json!(["refund", "wire transfer"]));
    for text in [&shown, &listed.to_string(), &set.stderr, &stage.world.dump().await?] {
        assert!(!text.contains(&SECRET[6..]), "{text}");
    }
    // From stdin, in place of the one before.
    let from_stdin =
        ["channels", "executor", "set", "--account", "team", "--url", "https://agent.example.com/2"];
    let second = succeeded(stage.with_secret(&from_stdin, SECRET)?)?.stdout;
    assert_ne!(second, set.stdout);
    assert_eq!(stage.json(&["channels", "executors"])?[0]["url"], "https://agent.example.com/2");
    let removed = succeeded(stage.run(&["channels", "executor", "remove", echo.trim()])?)?;
    assert_eq!(removed.stderr, format!("removed executor_{}\n", echo.trim()));
    assert_eq!(
        stage.audited(&format!("executor:{}", echo.trim())).await?,
        by_ada(&["executor.set", "executor.removed"])
    );
    assert_refused(
        &stage.run(&["channels", "executor", "remove", echo.trim()])?,
        "; `postrider channels executors` shows them",
    );
    Ok(())
}

#[tokio::test]
async fn an_executor_that_makes_no_sense_is_refused_and_writes_nothing() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    let before = stage.world.dump().await?;
    let set = |more: &[&str], input: &str| {
        stage.with_secret(&[&["channels", "executor", "set"][..], more].concat(), input)
    };
    let url = "https://agent.example.com";
    for (more, input, says) in [
        (&["--url", "agent"][..], SECRET, "--url: this is not a URL"),
        (&["--url", "http://agent.example.com"], SECRET, "--url: plain http is not encrypted; use https://"),
        (&["--url", "https://10.0.0.1"], SECRET, "--url: `10.0.0.1` is "),
        (
            &["--url", url],
            "",
            "no secret is given to sign requests with; pipe one in, or name a file with --secret-file; make one with",
        ),
        (&["--url", url], "hunter2", "the secret does not begin with `whsec_`; make one with"),
        (&["--url", url, "--secret-file", "/nonexistent"], "", "cannot read the secret from /nonexistent"),
        (&["--echo", "--sentinel-url", url], "", "no secret is given to sign requests with; pipe one in"),
        (&["--echo", "--sentinel-url", "https://localhost"], SECRET, "--sentinel-url: `localhost` is"),
        (
            &["--echo", "--secret-file", "/nonexistent"],
            "",
            "only requests to --url or --sentinel-url are signed with a secret; leave",
        ),
        (&["--echo", "--blocked-word", "..."], "", "is not a word that can be blocked"),
        (&["--echo", "--messages-per-minute", "0"], "", "messages_per_minute must lie between 1 and 999"),
        (&["--echo", "--account", "nowhere"], "", "there is no account `nowhere`; `postrider accounts list`"),
    ] {
        let refused = set(more, input)?;
        assert_refused(&refused, says);
        assert!(!refused.stderr.contains("hunter2"), "{}", refused.stderr);
    }
    for (more, says) in [
        (&[][..], "--echo"),
        (&["--echo", "--url", url], "cannot be used with"),
        (&["--echo", "--timeout-seconds", "61"], "61 is not in 1..=60"),
        (&["--echo", "--required-role", "owner"], "`owner` is not a role; choose viewer, operator or admin"),
    ] {
        assert_misused(&set(more, "")?, says);
    }
    assert_eq!(stage.world.dump().await?, before);
    Ok(())
}

#[tokio::test]
async fn messages_and_replies_are_listed_and_each_tells_its_whole_story() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    let store = stage.store().await?;
    let team = stage.conversation("team", "slack").await?;
    assert_eq!(succeeded(stage.run(&["channels", "messages"])?)?.stderr, "no such messages\n");
    assert_eq!(succeeded(stage.run(&["channels", "outbox"])?)?.stderr, "no such replies\n");
    let (message, reply) = team.answer("C1:1.1", "U1", "hello\u{1b}]0;x\u{7}\nand \u{202e}bye").await?;
    team.receive("C1:1.1", "U1", "hello").await?;
    team.receive("C1:1.2", "U9", "let me in, please, it is really very urgent").await?;
    let failed = team.accept("C1:1.3", "U1", "hm").await?;
    let kept = Reply { text: "kept".to_owned(), thread: None };
    messages::fail(&store, failed, Some(&kept), "the outbox is full").await?;
    let wide = |args: &[&str]| -> anyhow::Result<String> { Ok(redacted(&stage.stdout(args)?)) };
    assert_snapshot!(wide(&["channels", "messages"])?, @r"
    MESSAGE STATUS ACCOUNT SENDER USER CAME TEXT REASON
    message_[id] dispatch_failed team U1 ada [date] [time] hm the outbox is full
    message_[id] denied_unlinked team U9 - [date] [time] let me in, please, it is really very urg… no user is linked to this sender
    message_[id] executed team U1 ada [date] [time] hello�]0;x� and �bye -
    ");
    let denied = stage.json(&["channels", "messages", "--status", "denied_unlinked"])?;
    assert_eq!((denied.as_array().map(Vec::len), &denied[0]["sender_id"]), (Some(1), &json!("U9")));
    assert_snapshot!(wide(&["channels", "outbox"])?, @r"
    REPLY STATUS ACCOUNT PROVIDER TO FAILURES NEXT SENT LAST ERROR
    reply_[id] pending team slack room-of-U1 0 of 5 [date] [time] - -
    ");

    let retry = Verdict::Retry {
        error: "no answer within 30 s".to_owned(),
        pause: std::time::Duration::ZERO,
        in_doubt: true,
    };
    settle_all(&store, &retry).await?;
    settle_all(&store, &Verdict::Dead { error: "channel_not_found".to_owned() }).await?;
    let dead = succeeded(stage.run(&["channels", "dead"])?)?;
    assert_snapshot!(redacted(&dead.stdout), @r"
    REPLY ACCOUNT PROVIDER TO ATTEMPTS DIED LAST ERROR
    reply_[id] team slack room-of-U1 2 of 5 [date] [time] channel_not_found; it may have arrived
    ");
    assert!(dead.stderr.contains("`postrider channels requeue ID`"), "{}", dead.stderr);

    let story = stage.stdout(&["channels", "show", &message.to_string()])?;
    assert_snapshot!(redacted(&story), @r"
    message_[id] executed via slack, account team
    │ from U1, who is ada (operator)
    │ came [date] [time], delivered 2 times, executed once
    │ the provider calls it C1:1.1
    │ correlation id [id]
    │ > hello�]0;x�
    │ > and �bye
    └─ reply_[id] dead to room-of-U1
    2 of 5 attempts have failed
    in doubt since [date] [time]: it may have arrived
    last error: channel_not_found
    > you said: hello�]0;x�
    > and �bye
    log
    [date] [time] reply.dead by hand: channel_not_found
    ");
    // By its reply it is the same story, with and without a prefix.
    for id in [format!("reply_{}", reply.0), reply.0.to_string(), message.0.to_string()] {
        assert_eq!(stage.stdout(&["channels", "show", &id])?, story, "{id}");
    }
    let told = stage.json(&["channels", "show", &reply.0.to_string()])?;
    assert_eq!((&told["message"]["id"], &told["reply"]["id"]), (&json!(message), &json!(reply)));
    assert_eq!(told["log"][0]["action"], "reply.dead");
    let kept = stage.json(&["channels", "messages", "--status", "dispatch_failed"])?;
    let kept = stage.stdout(&["channels", "show", kept[0]["id"].as_str().unwrap_or_default()])?;
    assert!(kept.contains("└─ a reply that could not be queued in the outbox yet\n   > kept\n"), "{kept}");
    let failed = stage.json(&["channels", "messages", "--status", "dispatch_failed"])?;
    let failed = failed[0]["id"].as_str().unwrap_or_default().to_owned();
    let taken = succeeded(stage.run(&["channels", "retry", &failed])?)?;
    assert_eq!(taken.stderr, "a process with the role `dispatcher` executes the message again in a moment\n");
    assert!(stage.stdout(&["channels", "show", &failed])?.contains("message.retried"));
    let second = team.accept("C1:1.4", "U1", "hm again").await?;
    let kept = Reply { text: "kept".to_owned(), thread: None };
    messages::fail(&store, second, Some(&kept), "the outbox is full").await?;
    let listed = stage.json(&["channels", "messages", "--status", "dispatch_failed"])?;
    let second = listed.as_array().and_then(|all| all.iter().find(|one| one["text"] == "hm again"));
    let second = second.context("the second message did not fail")?["id"].clone();
    let retried = stage.json(&["channels", "retry", second.as_str().unwrap_or_default()])?;
    assert_eq!(retried["id"], second, "{retried}");
    assert_refused(
        &stage.run(&["channels", "retry", &message.to_string()])?,
        "is executed or is being executed now; only a failed message can be retried",
    );
    let unknown = Uuid::now_v7();
    assert_refused(&stage.run(&["channels", "retry", &unknown.to_string()])?, "lists what failed");
    for id in [format!("message_{unknown}"), format!("reply_{}", message.0), unknown.to_string()] {
        let refused = stage.run(&["channels", "show", &id])?;
        assert_refused(&refused, "; `postrider channels messages` and `postrider channels outbox` list them");
    }
    assert_misused(
        &stage.run(&["channels", "show", "seven"])?,
        "`seven` is not the id of a message or a reply",
    );
    assert_misused(&stage.run(&["channels", "outbox", "--status", "lost"])?, "pending, sending, sent, dead");
    Ok(())
}

#[tokio::test]
async fn dead_replies_are_queued_again_one_by_a_filter_or_all() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    let store = stage.store().await?;
    let team = stage.conversation("team", "slack").await?;
    let other = stage.conversation("other", "telegram").await?;
    assert_eq!(succeeded(stage.run(&["channels", "dead"])?)?.stderr, "there are no dead replies\n");
    let one = team.die("m-1", "U1", "channel_not_found").await?;
    team.die("m-2", "U1", "timeout").await?;
    other.die("m-3", "U1", "blocked").await?;
    let id = format!("reply_{}", one.0);

    let before = stage.world.dump().await?;
    for (args, says) in [
        (
            &["--account", "nowhere"][..],
            "there is no account `nowhere`; `postrider accounts list` shows them",
        ),
        (&["--error-contains", ""], "--error-contains is empty; use --all to requeue every dead reply"),
        (
            &[&Uuid::now_v7().to_string()],
            "; `postrider channels dead` lists the replies that can be requeued",
        ),
    ] {
        assert_refused(&stage.run(&[&["channels", "requeue"][..], args].concat())?, says);
    }
    for (args, says) in [
        (&[][..], "required arguments were not provided"),
        (&["--limit", "5"], "required arguments were not provided"),
        (&[&id, "--all"], "cannot be used with"),
        (&["--all", "--provider", "slack"], "cannot be used with"),
        (&["--since", "yesterday"], "`yesterday` is not a time; write it like 2026-02-03T04:05:06Z"),
        (&["--since=-009999-01-02T00:00:00Z"], "is not a time"),
        (&["seven"], "`seven` is not a reply id"),
        (&["--all", "--limit", "0"], "0 is not in 1..=10000"),
    ] {
        assert_misused(&stage.run(&[&["channels", "requeue"][..], args].concat())?, says);
    }
    assert_eq!(stage.world.dump().await?, before);

    let mut listener = sqlx::postgres::PgListener::connect(&stage.world.admin_url()).await?;
    listener.listen("postrider_replies").await?;
    let requeue = |args: &[&str]| -> anyhow::Result<String> {
        Ok(succeeded(stage.run(&[&["channels", "requeue"][..], args].concat())?)?.stderr)
    };
    assert_eq!(requeue(&[&id])?, "1 reply is requeued\n");
    tokio::time::timeout(crate::world::PATIENCE, listener.recv()).await??;
    assert_eq!(stage.pending().await?, ["channel_not_found"]);
    let audited = stage.audited(&format!("reply:{}", one.0)).await?;
    assert_eq!(audited[1..], by_ada(&["reply.requeued"]));
    assert_refused(
        &stage.run(&["channels", "requeue", &id])?,
        &format!("{id} is pending, and only a dead reply can be requeued; `postrider channels show {id}`"),
    );

    let nothing = "no dead reply matches; `postrider channels dead` lists the dead replies\n";
    assert_eq!(requeue(&["--since", "2999-01-01T00:00:00Z"])?, nothing);
    assert_eq!(requeue(&["--before", "2001-01-01T00:00:00Z"])?, nothing);
    assert_eq!(requeue(&["--account", "team", "--error-contains", "blocked"])?, nothing);
    assert_eq!(requeue(&["--error-contains", "TIME", "--provider", "slack"])?, "1 reply is requeued\n");
    assert_eq!(stage.pending().await?, ["channel_not_found", "timeout"]);
    settle_all(&store, &Verdict::Dead { error: "again".to_owned() }).await?;
    assert_eq!(
        requeue(&["--all", "--limit", "2"])?,
        "2 replies are requeued\nthere may be more dead replies: run the command again\n"
    );
    let all = stage.json(&["channels", "requeue", "--all"])?;
    assert_eq!(all, json!({ "requeued": 1 }));
    assert_eq!(stage.pending().await?.len(), 3);
    Ok(())
}
