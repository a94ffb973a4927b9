//! Permission to execute, the valid answers of an agent, and the end of a message after any other answer.

use postrider_model::{channels::Sentinel, tenancy::Role};
use serde_json::{Value, json};

use super::{
    agent::{Does, says},
    stage::{Executed, Stage, status},
    vendors::Vendor,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_or_unpermitted_sender_is_denied_and_nothing_is_executed() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let bot = stage.stranger(&stage.acme, Vendor::Webhook, "own").await?;
    stage.executes(&bot, &stage.executor()).await?;
    assert_eq!(stage.say(&bot, 1, "hello")?, "denied");
    stage.link(&bot, bot.vendor.sender(), Role::Viewer).await?;
    assert_eq!(stage.say(&bot, 2, "hello")?, "denied");
    // It was denied, and stays so, whatever its sender becomes.
    stage.link(&bot, bot.vendor.sender(), Role::Operator).await?;
    assert_eq!(stage.say(&bot, 1, "hello")?, "duplicate");
    assert_eq!(stage.agent.asked("/agent").len(), 0);
    assert_eq!(stage.say(&bot, 3, "hello")?, "executed");
    // Another sender writes to the same account.
    let mallory = bot.vendor.messages(&[(4, "mallory", "hello")]);
    assert_eq!(status(&stage.deliver(&bot, &mallory)?.expect(200)?)?, "denied");
    // The same name at another account is somebody else.
    let elsewhere = stage.stranger(&stage.acme, Vendor::Webhook, "elsewhere").await?;
    stage.executes(&elsewhere, &stage.executor()).await?;
    assert_eq!(stage.say(&elsewhere, 1, "hello")?, "denied");
    assert_eq!(
        stage.statuses().await?,
        ["denied_unlinked", "denied_rbac", "executed", "denied_unlinked", "denied_unlinked"]
    );
    assert_eq!(stage.agent.asked("/agent").len(), 1);
    stage.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_anything_that_executes_a_message_is_put_off_and_not_recorded() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let bot = stage.stranger(&stage.acme, Vendor::Slack, "own").await?;
    stage.link(&bot, bot.vendor.sender(), Role::Admin).await?;
    let webhook = bot.vendor.message(1, "hello");
    let problem = stage.deliver(&bot, &webhook)?.problem(503)?;
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("nothing executes") && detail.contains("/api/v2/channels/executors"), "{detail}");
    assert_eq!(stage.statuses().await?, Vec::<String>::new());
    stage.executes(&bot, &stage.executor()).await?;
    assert_eq!(stage.say(&bot, 1, "hello")?, "executed");
    stage.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_denies_by_words_by_rate_and_by_http() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let bot = stage.bot(Vendor::Telegram).await?;
    let sentinel = Sentinel {
        blocked_words: vec!["wire transfer".to_owned()],
        messages_per_minute: Some(4),
        url: Some(format!("{}/check", stage.agent.url)),
    };
    stage.executes(&bot, &Executed { sentinel, ..stage.executor() }).await?;
    assert_eq!(stage.say(&bot, 1, "a Wire-Transfer, please")?, "denied_sentinel");
    assert_eq!(stage.agent.asked("/check").len(), 0, "the rules come first");

    stage.agent.at(
        "/check",
        Does::Answers(200, "application/json", json!({ "allow": true, "score": 0.1 }).to_string()),
    );
    assert_eq!(stage.say(&bot, 2, "the weather, please")?, "executed");
    let no = json!({ "allow": false, "reason": "not\u{0}\ntoday" }).to_string();
    stage.agent.at("/check", Does::Answers(200, "application/json", no));
    assert_eq!(stage.say(&bot, 3, "the weather, please")?, "denied_sentinel");
    assert_eq!(stage.say(&bot, 3, "the weather, please")?, "duplicate");
    stage.agent.at("/check", Does::Answers(200, "application/json", json!({ "allow": true }).to_string()));
    assert_eq!(stage.say(&bot, 4, "the weather, please")?, "executed");
    assert_eq!(stage.say(&bot, 5, "the weather, please")?, "denied_sentinel");

    // It hears what the agent would hear, and cannot take one for a repeat of the other.
    let (checked, asked) = (stage.agent.asked("/check"), stage.agent.asked("/agent"));
    assert_eq!((checked.len(), asked.len()), (3, 2), "too fast is not even asked about");
    assert_eq!(checked[0].body["type"], "message.check");
    assert_eq!(checked[0].body["data"], asked[0].body["data"]);
    assert_ne!(checked[0].headers["webhook-id"], asked[0].headers["webhook-id"]);
    let denied =
        "select last_error from channels.channel_messages where status = 'denied_sentinel' order by id";
    assert_eq!(
        stage.texts(denied).await?,
        [
            "`wire transfer` is blocked",
            "the sentinel denied it: not today",
            "more than 4 messages in a minute"
        ]
    );
    stage.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_that_cannot_be_asked_lets_nothing_through() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let bot = stage.bot(Vendor::Webhook).await?;
    let with = |url: String, timeout_seconds: u32| Executed {
        timeout_seconds,
        sentinel: Sentinel { url: Some(url), ..Sentinel::default() },
        ..stage.executor()
    };
    // No server listens there any more.
    let closed = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    stage.executes(&bot, &with(format!("http://{closed}/check"), 30)).await?;
    stage.deliver(&bot, &bot.vendor.message(1, "hello"))?.problem(500)?;
    for (n, does) in [
        Does::Answers(500, "application/json", json!({ "allow": true }).to_string()),
        Does::Answers(200, "application/json", json!({ "allow": "true" }).to_string()),
        Does::Answers(200, "application/json", json!({}).to_string()),
        Does::Answers(200, "text/plain", json!({ "allow": true }).to_string()),
        Does::Answers(200, "application/json", format!("{{\"allow\": true{}}}", " ".repeat(100_000))),
        Does::Moves,
        Does::Holds("never".to_owned()),
    ]
    .into_iter()
    .enumerate()
    {
        // Only who never answers is waited for.
        let timeout_seconds = if matches!(does, Does::Holds(_)) { 1 } else { 30 };
        stage.executes(&bot, &with(format!("{}/check", stage.agent.url), timeout_seconds)).await?;
        stage.agent.at("/check", does);
        stage.deliver(&bot, &bot.vendor.message(2 + n as u32, "hello"))?.problem(500)?;
    }
    assert_eq!(stage.agent.asked("/agent").len(), 0);
    assert_eq!(stage.statuses().await?, vec!["dispatch_failed"; 8]);
    stage.executes(&bot, &with(format!("{}/check", stage.agent.url), 30)).await?;
    // It can be asked again, and so can the message be delivered again.
    stage.agent.at("/check", Does::Answers(200, "application/json", json!({ "allow": true }).to_string()));
    assert_eq!(stage.say(&bot, 1, "hello")?, "executed");
    assert_eq!(stage.agent.asked("/agent").len(), 1);
    stage.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_fails_fails_the_message_which_may_be_delivered_again() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let bot = stage.bot(Vendor::Webhook).await?;
    let json = |text: &str| Does::Answers(200, "application/json", json!({ "text": text }).to_string());
    let cases = [
        (Does::Answers(500, "text/plain", "canary".to_owned()), "answered 500"),
        (Does::Answers(404, "text/plain", "canary".to_owned()), "answered 404"),
        (Does::Moves, "redirects are not followed"),
        (Does::Answers(200, "text/html", "<p>canary</p>".to_owned()), "content type `text/html`"),
        (Does::Answers(200, "application/json", "{\"canary".to_owned()), "JSON object"),
        (Does::Answers(200, "application/json", "[\"canary\"]".to_owned()), "JSON object"),
        (Does::Answers(200, "application/json", "{\"text\": null}".to_owned()), "JSON object"),
        (Does::Answers(204, "text/plain", String::new()), "the reply is empty"),
        (json(" \n\t"), "the reply is empty"),
        (json("\u{0}"), "the reply is empty"),
        (Does::Answers(200, "text/plain", "canary ".repeat(5 << 20 >> 3)), "more than 65536 bytes"),
        (Does::Holds("canary".to_owned()), "did not finish within its timeout of 1 s"),
    ];
    let count = cases.len();
    for (n, (does, says)) in cases.into_iter().enumerate() {
        // Only who never answers is waited for.
        let timeout_seconds = if matches!(does, Does::Holds(_)) { 1 } else { 30 };
        stage.executes(&bot, &Executed { timeout_seconds, ..stage.executor() }).await?;
        stage.agent.at("/agent", does.clone());
        let webhook = bot.vendor.message(n as u32, "hello");
        let problem = stage.deliver(&bot, &webhook)?.problem(500)?;
        assert!(!problem.to_string().contains("canary"), "{problem}");
        let row = "select concat_ws(' | ', status, reply::text, last_error) from channels.channel_messages order by id desc limit 1";
        let row = stage.texts(row).await?.remove(0);
        assert!(
            row.starts_with("dispatch_failed | ") && row.contains(says) && !row.contains("canary"),
            "{does:?}: {row}"
        );
    }
    assert_eq!(stage.count("select count(*) from channels.channel_outbox").await?, 0);
    assert!(!stage.server.process.lines().join("\n").contains("canary"));

    stage.executes(&bot, &stage.executor()).await?;
    // Better now. The agent can tell that it has been asked before.
    stage.agent.at("/agent", says("fine\u{0} again"));
    for n in 0..count {
        assert_eq!(stage.say(&bot, n as u32, "hello")?, "executed");
    }
    let asked = stage.agent.asked("/agent");
    let ids = |from: usize| {
        asked[from..from + count].iter().map(|asked| asked.headers["webhook-id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((asked.len(), ids(0)), (2 * count, ids(count)));
    let bodies = |from: usize| {
        asked[from..from + count].iter().map(|asked| asked.body.clone()).collect::<Vec<Value>>()
    };
    assert_eq!(bodies(0), bodies(count));
    let replies = "select distinct payload ->> 'text' from channels.channel_outbox";
    assert_eq!(stage.texts(replies).await?, ["fine again"]);
    stage.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_may_be_as_long_as_a_message_and_no_longer() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let bot = stage.bot(Vendor::Slack).await?;
    stage.agent.at("/agent", Does::Answers(200, "text/plain; charset=utf-8", "x".repeat(65536)));
    assert_eq!(stage.say(&bot, 1, "hello")?, "executed");
    stage.agent.at("/agent", Does::Answers(200, "text/plain", "x".repeat(65537)));
    stage.deliver(&bot, &bot.vendor.message(2, "hello"))?.problem(500)?;
    assert_eq!(stage.statuses().await?, ["executed", "dispatch_failed"]);
    stage.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_still_being_executed_is_not_executed_again() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let bot = stage.bot(Vendor::Slack).await?;
    stage.agent.at("/agent", Does::Holds("at last".to_owned()));
    let webhook = bot.vendor.message(1, "hello");
    let first = stage.delivering(&bot, &webhook);
    stage.agent.wait_for("/agent", 1)?;
    for _ in 0..3 {
        assert_eq!(stage.say(&bot, 1, "hello")?, "duplicate");
    }
    stage.agent.release();
    assert_eq!(status(&first.answer()?.expect(200)?)?, "executed");
    assert_eq!(stage.agent.asked("/agent").len(), 1);
    assert_eq!(
        stage.texts("select deliveries || ' ' || executions from channels.channel_messages").await?,
        ["4 1"]
    );
    stage.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn many_deliveries_of_one_message_at_a_time_are_one_execution() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let bot = stage.bot(Vendor::Whatsapp).await?;
    let webhook = bot.vendor.message(1, "hello");
    let deliveries: Vec<_> = (0..16).map(|_| stage.delivering(&bot, &webhook)).collect();
    let answers = deliveries.into_iter().map(|delivery| status(&delivery.answer()?.expect(200)?));
    let became = answers.collect::<anyhow::Result<Vec<_>>>()?;
    assert_eq!(became.iter().filter(|became| *became == "executed").count(), 1, "{became:?}");
    assert_eq!(became.iter().filter(|became| *became == "duplicate").count(), 15, "{became:?}");
    assert_eq!(stage.agent.asked("/agent").len(), 1);
    stage.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_with_the_same_message_ids_do_not_meet() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let globex = stage_tenant(&stage).await?;
    let (own, theirs) =
        (stage.bot(Vendor::Telegram).await?, stage.bot_of(&globex, Vendor::Telegram, "theirs").await?);
    for bot in [&own, &theirs] {
        assert_eq!(stage.say(bot, 1, "hello")?, "executed");
        assert_eq!(stage.say(bot, 1, "hello")?, "duplicate");
    }
    let asked = stage.agent.asked("/agent");
    let accounts: Vec<&Value> = asked.iter().map(|asked| &asked.body["data"]["account_id"]).collect();
    assert_eq!(accounts, [&json!(own.account.0), &json!(theirs.account.0)]);
    let rows = "select count(distinct tenant_id) from channels.channel_outbox";
    assert_eq!((stage.count(rows).await?, stage.statuses().await?.len()), (2, 2));
    stage.check().await
}

async fn stage_tenant(stage: &Stage) -> anyhow::Result<crate::api::Tenant> {
    crate::api::tenant(&stage.admin, "globex").await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_messages_in_one_webhook_only_what_failed_is_executed_again() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let bot = stage.bot(Vendor::Whatsapp).await?;
    let sentinel = Sentinel { url: Some(format!("{}/check", stage.agent.url)), ..Sentinel::default() };
    let sender = bot.vendor.sender();
    let webhook = bot.vendor.messages(&[(1, sender, "one"), (2, "16315550000", "two"), (3, sender, "three")]);
    stage.executes(&bot, &Executed { sentinel, ..stage.executor() }).await?;
    stage.deliver(&bot, &webhook)?.problem(500)?;
    assert_eq!(stage.agent.asked("/agent").len(), 0, "the sentinel talks like an agent");
    stage.agent.at("/check", Does::Answers(200, "application/json", json!({ "allow": true }).to_string()));
    let answer = stage.deliver(&bot, &webhook)?.expect(200)?;
    let became: Vec<&str> =
        answer["messages"].as_array().unwrap().iter().map(|it| it["status"].as_str().unwrap()).collect();
    assert_eq!(became, ["executed", "duplicate", "executed"], "the second was denied at once");
    assert_eq!(stage.agent.asked("/agent").len(), 2);
    stage.check().await
}
