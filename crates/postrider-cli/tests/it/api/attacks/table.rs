//! How each operation is attacked.

use postrider_model::tenancy::Role;
use serde_json::{Value, json};

use super::super::{
    Stage, Tenant,
    conversations::Conversation,
    material::{id, leads, one_phase, run, take_all},
};
use super::jobs::{self, Jobs};
use crate::campaigns::execution::calls::finalize;

/// One operation: who may call it, and how it is called so that it succeeds.
pub struct Attack {
    /// Its id in the document.
    pub operation: &'static str,
    /// The role that the operation requires.
    pub needs: Needs,
    /// The resource in the path.
    pub names: Names,
    /// The required query parameters.
    pub query: &'static str,
    /// A body that it takes.
    pub sent: Sent,
    /// The status that the owner gets.
    pub done: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Everybody is answered, and learns nothing about tenants.
    Nothing,
    /// A provider's signature.
    Signature,
    /// A key with at least this role.
    Role(Role),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    Nothing,
    Account,
    Asset,
    Campaign,
    /// A message that somebody wrote.
    ChannelMessage,
    /// A reply that was given up.
    DeadReply,
    /// A card that nobody has decided.
    DecisionCard,
    /// A campaign with a run and a history.
    Delivery,
    Event,
    /// That of the spare account.
    Executor,
    /// A run of a function that failed for good.
    FailedRun,
    /// A function that nothing needs.
    Function,
    Item,
    /// A run of a function that waits for its runner.
    JobRun,
    Key,
    Lead,
    /// A lead that two runs reached.
    ReachedLead,
    Link,
    /// A function that there is none of: it is made.
    NewFunction,
    Run,
    Schedule,
    /// A session that somebody opened.
    Session,
    /// A message outside a campaign.
    SingleMessage,
    /// An account that nothing uses.
    SpareAccount,
    /// A dead letter.
    SyncError,
}

#[derive(Debug, Clone, Copy)]
pub enum Sent {
    Nothing,
    Json(fn(&Things) -> Value),
    Csv,
    Bytes(&'static [u8]),
}

const fn attack(operation: &'static str, needs: Needs, names: Names, sent: Sent, done: u16) -> Attack {
    Attack { operation, needs, names, query: "", sent, done }
}

const VIEWER: Needs = Needs::Role(Role::Viewer);
const OPERATOR: Needs = Needs::Role(Role::Operator);
const ADMIN: Needs = Needs::Role(Role::Admin);

/// In this order they succeed one after the other: what looks comes first, what removes comes last.
#[rustfmt::skip]
pub const ATTACKS: &[Attack] = &[
    attack("healthz", Needs::Nothing, Names::Nothing, Sent::Nothing, 200),
    attack("readyz", Needs::Nothing, Names::Nothing, Sent::Nothing, 200),
    attack("metrics", Needs::Nothing, Names::Nothing, Sent::Nothing, 200),
    // The simulated provider takes no callbacks.
    attack("receive_callback", Needs::Signature, Names::Account, Sent::Bytes(b"Status=delivered"), 404),
    // Nor does anybody chat there.
    attack("receive_channel_webhook", Needs::Signature, Names::Account, Sent::Bytes(b"{}"), 404),
    attack("verify_channel_webhook", Needs::Signature, Names::Account, Sent::Nothing, 404),
    // The key is in the body.
    attack("create_session", Needs::Nothing, Names::Nothing, Sent::Json(|things| json!({ "key": things.tenant.viewer, "name": format!("{}-person", things.mark) })), 200),
    attack("whoami", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("get_overview", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("get_catalogue", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_workers", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_lead_lists", VIEWER, Names::Nothing, Sent::Nothing, 200),
    // A stream that is refused, so that the answer ends. Other tests read it.
    Attack { query: "?campaign=none", ..attack("stream_tenant", VIEWER, Names::Nothing, Sent::Nothing, 400) },
    attack("list_keys", ADMIN, Names::Nothing, Sent::Nothing, 200),
    attack("list_sessions", ADMIN, Names::Nothing, Sent::Nothing, 200),
    attack("list_provider_accounts", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_audit", ADMIN, Names::Nothing, Sent::Nothing, 200),
    attack("list_events", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_leads", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_assets", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_campaigns", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_runs", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_messages", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_in_doubt", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_channel_links", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_channel_executors", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_channel_messages", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_channel_replies", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_functions", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_job_runs", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_schedules", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_sync_errors", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_alerts", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_decision_cards", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("list_schedule_firings", VIEWER, Names::Schedule, Sent::Nothing, 200),
    attack("job_health", VIEWER, Names::Nothing, Sent::Nothing, 200),
    attack("get_function", VIEWER, Names::Function, Sent::Nothing, 200),
    attack("get_job_run", VIEWER, Names::JobRun, Sent::Nothing, 200),
    attack("get_schedule", VIEWER, Names::Schedule, Sent::Nothing, 200),
    attack("get_sync_error", VIEWER, Names::SyncError, Sent::Nothing, 200),
    attack("get_decision_card", VIEWER, Names::DecisionCard, Sent::Nothing, 200),
    attack("preview_schedule", VIEWER, Names::Nothing, Sent::Json(|_| json!({ "cron": "0 * * * *" })), 200),
    attack("list_run_items", VIEWER, Names::Run, Sent::Nothing, 200),
    attack("list_run_failures", VIEWER, Names::Run, Sent::Nothing, 200),
    attack("export_run_items", OPERATOR, Names::Run, Sent::Nothing, 200),
    attack("get_message", VIEWER, Names::SingleMessage, Sent::Nothing, 200),
    attack("get_item", VIEWER, Names::Item, Sent::Nothing, 200),
    attack("list_campaign_history", VIEWER, Names::Delivery, Sent::Nothing, 200),
    attack("get_provider_account", VIEWER, Names::Account, Sent::Nothing, 200),
    attack("get_lead", VIEWER, Names::Lead, Sent::Nothing, 200),
    attack("list_lead_items", VIEWER, Names::ReachedLead, Sent::Nothing, 200),
    attack("get_asset", VIEWER, Names::Asset, Sent::Nothing, 200),
    attack("get_campaign", VIEWER, Names::Campaign, Sent::Nothing, 200),
    attack("campaign_status", VIEWER, Names::Campaign, Sent::Nothing, 200),
    // After the newest event, so that the answer ends.
    Attack { query: "?after=9223372036854775807", ..attack("stream_campaign_events", VIEWER, Names::Campaign, Sent::Nothing, 200) },
    attack("get_run", VIEWER, Names::Run, Sent::Nothing, 200),
    attack("get_run_launch", VIEWER, Names::Run, Sent::Nothing, 200),
    attack("get_run_trace", VIEWER, Names::Run, Sent::Nothing, 200),
    attack("get_channel_message", VIEWER, Names::ChannelMessage, Sent::Nothing, 200),
    attack("get_channel_reply", VIEWER, Names::DeadReply, Sent::Nothing, 200),
    attack("publish_event", OPERATOR, Names::Nothing, Sent::Json(|_| json!({ "aggregate_type": "order", "aggregate_id": "1", "event_type": "order.placed", "payload": {} })), 201),
    attack("retry_event", OPERATOR, Names::Event, Sent::Nothing, 204),
    Attack { query: "?list=imported", ..attack("import_leads", OPERATOR, Names::Nothing, Sent::Csv, 200) },
    attack("suppress_lead", OPERATOR, Names::Lead, Sent::Json(|_| json!({ "reason": "unsubscribed" })), 200),
    attack("unsuppress_lead", OPERATOR, Names::Lead, Sent::Json(|_| json!({ "note": "asked for it" })), 200),
    attack("create_asset", OPERATOR, Names::Nothing, Sent::Json(|things| asset(&format!("{}-new", things.mark))), 201),
    attack("create_campaign", OPERATOR, Names::Nothing, Sent::Json(|things| one_phase(&format!("{}-new", things.mark), &things.asset, &things.list)), 201),
    attack("send_message", OPERATOR, Names::Nothing, Sent::Json(|things| message(&format!("{}-new", things.mark))), 201),
    attack("control_phase", OPERATOR, Names::Campaign, Sent::Json(|_| json!({ "expected_state": "not_started" })), 200),
    attack("report_progress", OPERATOR, Names::Campaign, Sent::Json(|_| json!({ "progressPercentage": 50 })), 200),
    attack("resolve_many_in_doubt", OPERATOR, Names::Nothing, Sent::Json(|things| json!({ "as": "sent", "note": "their log has it", "items": [{ "outbox_id": things.spare_item }] })), 200),
    attack("resolve_in_doubt", OPERATOR, Names::Item, Sent::Json(|_| json!({ "as": "sent", "note": "their log has it" })), 200),
    attack("link_channel_sender", OPERATOR, Names::Nothing, Sent::Json(|things| json!({ "account": things.account, "sender_id": "new", "user_id": "new", "role": "viewer" })), 201),
    attack("retry_channel_message", OPERATOR, Names::ChannelMessage, Sent::Nothing, 409),
    attack("requeue_channel_reply", OPERATOR, Names::DeadReply, Sent::Nothing, 200),
    attack("requeue_channel_replies", OPERATOR, Names::Nothing, Sent::Json(|_| json!({ "all": true })), 200),
    attack("unlink_channel_sender", OPERATOR, Names::Link, Sent::Nothing, 204),
    attack("put_channel_executor", ADMIN, Names::Nothing, Sent::Json(|things| json!({ "account": things.account, "kind": "echo", "sentinel": { "blocked_words": ["refund"] } })), 200),
    attack("remove_channel_executor", ADMIN, Names::Executor, Sent::Nothing, 204),
    // No runner is started, so the caller does not wait.
    Attack { query: "?wait=0", ..attack("invoke_function", OPERATOR, Names::Function, Sent::Json(|things| json!({ "input": things.mark })), 202) },
    attack("retry_job_run", OPERATOR, Names::FailedRun, Sent::Nothing, 200),
    attack("cancel_job_run", OPERATOR, Names::JobRun, Sent::Json(|_| json!({ "note": "not needed" })), 200),
    attack("resolve_sync_error", OPERATOR, Names::SyncError, Sent::Json(|_| json!({ "note": "mended" })), 200),
    attack("retry_sync_error", OPERATOR, Names::SyncError, Sent::Nothing, 200),
    attack("decide_decision_card", OPERATOR, Names::DecisionCard, Sent::Json(|_| json!({ "status": "DISMISSED" })), 200),
    attack("create_schedule", OPERATOR, Names::Nothing, Sent::Json(jobs::schedule), 201),
    attack("put_schedule", OPERATOR, Names::Schedule, Sent::Json(jobs::schedule), 200),
    attack("disable_schedule", OPERATOR, Names::Schedule, Sent::Nothing, 200),
    attack("enable_schedule", OPERATOR, Names::Schedule, Sent::Nothing, 200),
    attack("remove_schedule", OPERATOR, Names::Schedule, Sent::Nothing, 204),
    attack("put_function", ADMIN, Names::NewFunction, Sent::Json(|_| jobs::noop()), 201),
    attack("remove_function", ADMIN, Names::Function, Sent::Nothing, 204),
    attack("create_key", ADMIN, Names::Nothing, Sent::Json(|_| json!({ "name": "new", "role": "viewer" })), 201),
    // A request with a key has none to end.
    attack("end_session", VIEWER, Names::Nothing, Sent::Nothing, 204),
    attack("revoke_session", ADMIN, Names::Session, Sent::Nothing, 204),
    attack("revoke_key", ADMIN, Names::Key, Sent::Nothing, 204),
    attack("create_provider_account", ADMIN, Names::Nothing, Sent::Json(|_| account("new")), 201),
    attack("update_provider_account", ADMIN, Names::Account, Sent::Json(|_| json!({ "limits": { "daily": 7 } })), 200),
    attack("rotate_provider_account", ADMIN, Names::Account, Sent::Json(|_| json!({ "secret": "another" })), 204),
    attack("erase_lead", ADMIN, Names::Lead, Sent::Nothing, 200),
    attack("remove_provider_account", ADMIN, Names::SpareAccount, Sent::Nothing, 204),
];

fn account(name: &str) -> Value {
    json!({ "name": name, "provider": "sim", "settings": { "url": "https://sim.example" }, "secret": "s" })
}

/// A sender writes to an existing account, and `echo` executes the message.
async fn conversation(stage: &Stage, tenant: &Tenant, account: &str) -> anyhow::Result<Conversation> {
    Conversation::at(&stage.admin, tenant.id, account.parse()?, "sim").await
}

fn message(key: &str) -> Value {
    json!({ "channel": "email", "account": "mail", "recipient": format!("{key}@example.org"), "key": key, "content": { "subject": "Hello", "text": key } })
}

fn asset(name: &str) -> Value {
    json!({ "name": name, "channel": "email", "content": { "subject": "Hello", "text": name } })
}

/// The resources of a tenant: at least two rows in every list, all of which show its mark.
pub struct Things {
    pub tenant: Tenant,
    /// Stands in every name.
    pub mark: &'static str,
    pub list: String,
    pub phase: &'static str,
    pub account: String,
    pub spare_account: String,
    pub asset: String,
    pub channel_message: String,
    pub dead_reply: String,
    /// With a phase that another service does.
    pub campaign: String,
    pub event: String,
    pub executor: String,
    pub item: String,
    /// Another one.
    pub spare_item: String,
    pub jobs: Jobs,
    pub key: String,
    pub lead: String,
    pub reached: String,
    pub link: String,
    pub run: String,
    pub session: String,
    pub single_message: String,
    /// The campaign of that run.
    pub delivery: String,
}

impl Things {
    pub async fn make(stage: &Stage, tenant: Tenant, mark: &'static str) -> anyhow::Result<Self> {
        let (admin, operator) = (tenant.admin.clone(), tenant.operator.clone());
        let make = |key: &str, path: &str, body: &Value| id(&stage.post(key, path, body)?.expect(201)?);
        let account_id = make(&admin, "/provider-accounts", &account("mail"))?;
        let spare_account = make(&admin, "/provider-accounts", &account(&format!("{mark}-spare")))?;
        let list = format!("{mark}-people");
        leads(stage, &tenant, &list, 2)?;
        let asset_id = make(&operator, "/assets", &asset(&format!("{mark}-a")))?;
        let phase = "print";
        let external =
            json!({ "name": format!("{mark}-print"), "phases": [{ "phase": phase, "kind": "external" }] });
        let campaign = make(&operator, "/campaigns", &external)?;
        let mut events = Vec::new();
        for n in 0..2 {
            let event = json!({ "aggregate_type": format!("{mark}-order"), "aggregate_id": n.to_string(), "event_type": "t", "payload": {} });
            events.push(stage.post(&operator, "/events", &event)?.expect(201)?["id"].to_string());
        }
        let mut singles = Vec::new();
        for n in 0..2 {
            singles.push(make(&operator, "/messages", &message(&format!("{mark}-single-{n}")))?);
        }
        let key = make(&admin, "/keys", &json!({ "name": format!("{mark}-spare"), "role": "admin" }))?;
        let mut sessions = Vec::new();
        for n in 0..2 {
            let sign_in = json!({ "key": tenant.admin, "name": format!("{mark}-person-{n}") });
            sessions.push(stage.call("POST", "/session").json(&sign_in).send()?.expect(200)?);
        }
        // Two runs of two items each, all of them in doubt.
        let (mut runs, mut items) = (Vec::new(), Vec::new());
        for n in 0..2 {
            runs.push(run(stage, &tenant, &format!("{mark}-run-{n}"), 2, 500).await?);
            let (worker, taken) = take_all(stage).await?;
            let reserved: Vec<_> = taken.into_iter().flat_map(|(_, items)| items).collect();
            let doubted: Vec<_> = reserved.iter().map(|item| (*item, "in_doubt")).collect();
            finalize(&worker, tenant.id.0, "w", &doubted).await?;
            items.extend(reserved);
        }
        // The people of the first run got something else, too.
        let first = format!("{mark}-run-0");
        let again = make(&operator, "/campaigns", &one_phase(&format!("{mark}-again"), &asset_id, &first))?;
        stage.post(&operator, &format!("/campaigns/{again}/phases/mail/start"), &json!({}))?.expect(200)?;
        let (worker, taken) = take_all(stage).await?;
        let sent: Vec<_> =
            taken.into_iter().flat_map(|(_, items)| items).map(|item| (item, "sent")).collect();
        finalize(&worker, tenant.id.0, "w", &sent).await?;
        let reached = stage.get(&tenant.viewer, &format!("/leads?list={first}"))?.expect(200)?;
        // Two accounts at which people write; two messages, and their replies are dead.
        let spare = conversation(stage, &tenant, &spare_account).await?;
        let conversation = conversation(stage, &tenant, &account_id).await?;
        let mut links = Vec::new();
        for n in 0..2 {
            let sender = format!("{mark}-sender-{n}");
            links.push(conversation.link(&sender, &format!("{mark}-user"), Role::Operator).await?);
            conversation.die(&format!("{mark}-message-{n}"), &sender, &format!("{mark}-error")).await?;
        }
        let messages = stage.get(&tenant.viewer, "/channels/messages")?.expect(200)?;
        let executors = stage.get(&tenant.viewer, "/channels/executors")?.expect(200)?;
        let of_spare = |executor: &&Value| executor["account_id"] == json!(spare.account);
        let executor = executors["items"].as_array().into_iter().flatten().find(of_spare);
        let found = stage.get(&tenant.viewer, &format!("/leads?list={list}"))?.expect(200)?;
        let (delivery, run) = runs.remove(0);
        for control in ["pause", "resume"] {
            let path = format!("/campaigns/{delivery}/phases/mail/{control}");
            stage.post(&operator, &path, &json!({}))?.expect(200)?;
        }
        Ok(Self {
            mark,
            list,
            phase,
            account: account_id,
            spare_account,
            asset: asset_id,
            campaign,
            channel_message: id(&messages["items"][0])?,
            dead_reply: messages["items"][0]["reply_id"].as_str().unwrap_or_default().to_owned(),
            event: events.remove(0),
            executor: id(executor.unwrap_or(&Value::Null))?,
            item: items[0].to_string(),
            spare_item: items[1].to_string(),
            jobs: Jobs::make(stage, &tenant, mark).await?,
            key,
            lead: id(&found["items"][0])?,
            reached: id(&reached["items"][0])?,
            link: links[0].0.to_string(),
            run,
            session: id(&sessions.remove(0)["session"])?,
            single_message: singles.remove(0),
            delivery,
            tenant,
        })
    }

    /// The id or name for the path of an operation.
    pub fn named(&self, names: Names) -> &str {
        match names {
            Names::Nothing => "",
            Names::Account => &self.account,
            Names::Asset => &self.asset,
            Names::Campaign => &self.campaign,
            Names::ChannelMessage => &self.channel_message,
            Names::DeadReply => &self.dead_reply,
            Names::DecisionCard => &self.jobs.card,
            Names::Delivery => &self.delivery,
            Names::Event => &self.event,
            Names::Executor => &self.executor,
            Names::FailedRun => &self.jobs.failed_run,
            Names::Function => &self.jobs.function,
            Names::Item => &self.item,
            Names::JobRun => &self.jobs.run,
            Names::Key => &self.key,
            Names::Lead => &self.lead,
            Names::ReachedLead => &self.reached,
            Names::Link => &self.link,
            Names::NewFunction => &self.jobs.new_function,
            Names::Run => &self.run,
            Names::Schedule => &self.jobs.schedule,
            Names::Session => &self.session,
            Names::SingleMessage => &self.single_message,
            Names::SpareAccount => &self.spare_account,
            Names::SyncError => &self.jobs.sync_error,
        }
    }

    /// The key that has this role and no more.
    pub fn secret(&self, role: Role) -> &str {
        match role {
            Role::Viewer => &self.tenant.viewer,
            Role::Operator => &self.tenant.operator,
            Role::Admin => &self.tenant.admin,
        }
    }

    /// A file of leads.
    pub fn csv(&self) -> String {
        format!("email,number\n{}-imported@example.org,1\n", self.mark)
    }

    /// Texts that no other tenant may ever see.
    pub fn marks(&self) -> Vec<String> {
        let Self { account, spare_account, asset, campaign, item, key, lead, run, delivery, .. } = self;
        let Self { spare_item, single_message, .. } = self;
        let Self { channel_message, dead_reply, executor, link, session, .. } = self;
        let ids = [account, spare_account, asset, campaign, item, spare_item, key, lead, run, delivery];
        let ids = ids
            .into_iter()
            .chain([channel_message, dead_reply, executor, link, session, single_message])
            .chain(self.jobs.ids())
            .cloned();
        let tenant =
            [self.tenant.id.0.to_string(), self.tenant.workspace_id.0.to_string(), format!("{}-", self.mark)];
        ids.chain(tenant).collect()
    }
}
