//! The material of a send job: template, leads and accounts; and the plan for each item.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use postrider_model::{Channel, Message, error_chain, ids::OutboxId};
use postrider_store::{
    StoreError,
    campaigns::{
        outbox::{Plan, PlannedItem},
        send_jobs::{self, ClaimedJob, Lead, OpenAccount},
    },
};
use uuid::Uuid;

use super::render::Template;
use super::{
    Shared,
    admission::{NoRoute, Route, Target},
    send_job::Ended,
};

/// Most compiled assets that are kept. Content never changes under its id.
const TEMPLATES_MAX: usize = 64;

/// The material of a send job.
pub(super) struct Prepared {
    template: Arc<Template>,
    pub(super) leads: HashMap<Uuid, Arc<Lead>>,
    pub(super) account: Route,
    pub(super) failover: Option<Route>,
    /// Items that need no call token, because they have a row already.
    pub(super) begun: HashSet<Uuid>,
    /// The limits of the account, as they were read.
    pub(super) limits: serde_json::Value,
    /// When the attempt began, right after the claim.
    pub(super) claimed_at: Instant,
}

impl Prepared {
    pub(super) async fn new(shared: &Shared, job: &ClaimedJob) -> Result<Self, Ended> {
        let claimed_at = Instant::now();
        let adapter = shared.adapters.get(&job.provider);
        let known = shared.templates().get(&(job.hold.tenant_id, job.asset_id)).map(Arc::clone);
        let wanted = send_jobs::Wanted {
            content: known.is_none(),
            begun: adapter.is_some_and(|adapter| {
                adapter.manifest().rate.is_some() || adapter.manifest().quota.is_some()
            }),
        };
        let material = shared
            .retry_while_unavailable(|pool, worker| {
                send_jobs::material(pool, worker, &shared.master_key, job, wanted)
            })
            .await
            .map_err(|error| match error {
                // The secret does not open: this worker was started with another master key.
                StoreError::Unfit(why) => Ended::NotOurs(why),
                error => Ended::Failed(error_chain(&error)),
            })?
            .ok_or(Ended::Lost)?;
        let template = match known {
            Some(template) => template,
            None => compile(shared, job, &material.content.unwrap_or_default())?,
        };
        let Some(account) = &material.account else {
            return Err(Ended::Failed(format!("the provider account {} was removed", job.account_id)));
        };
        let account_route = Route::open(shared, job, account, false).map_err(|no_route| match no_route {
            NoRoute::NotHere(why) => Ended::NotOurs(why),
            NoRoute::Unfit(why) => Ended::Failed(why),
        })?;
        let failover = material.failover.as_ref().and_then(|account| failover(shared, job, account));
        let limits = account.limits.clone();
        let leads = material.leads.into_iter().map(|lead| (lead.id.0, Arc::new(lead))).collect();
        Ok(Self {
            template,
            leads,
            account: account_route,
            failover,
            begun: material.begun,
            limits,
            claimed_at,
        })
    }

    pub(super) fn route(&self, target: Target) -> &Route {
        match (target, &self.failover) {
            (Target::Failover, Some(failover)) => failover,
            _ => &self.account,
        }
    }

    /// The plan for one item, and the message if it is a call.
    pub(super) fn plan(&self, channel: Channel, item: Uuid) -> (PlannedItem, Option<Message>) {
        let lead = self.leads.get(&item);
        let address = lead.and_then(|lead| match channel {
            Channel::Email => lead.email.as_deref(),
            Channel::Voice => lead.phone.as_deref(),
            Channel::Social | Channel::Chat => None,
        });
        let skip = |reason: &str| (Plan::Skip { reason: reason.to_owned() }, None);
        let (plan, message) = match (channel, lead.map(|lead| &**lead)) {
            (_, Some(Lead { suppression_reason: Some(reason), .. })) => {
                skip(&format!("suppressed: {reason}"))
            }
            (Channel::Email, _) if address.is_none() => skip("the lead has no e-mail address"),
            (Channel::Voice, _) if address.is_none() => skip("the lead has no phone number"),
            _ => match self.template.render(lead, address) {
                Ok(message) => (Plan::Call { message_hash: message.hash() }, Some(message)),
                Err(error) => (Plan::Fail { reason: error.to_string() }, None),
            },
        };
        let recipient = address.map(str::to_owned);
        (PlannedItem { item_id: item, outbox_id: OutboxId::new(), recipient, plan }, message)
    }
}

/// Compiles an asset, once for all send jobs that send it.
fn compile(shared: &Shared, job: &ClaimedJob, content: &serde_json::Value) -> Result<Arc<Template>, Ended> {
    let template =
        Template::compile(job.hold.channel, content).map_err(|error| Ended::Failed(error.to_string()))?;
    let template = Arc::new(template);
    let mut templates = shared.templates();
    if templates.len() >= TEMPLATES_MAX {
        templates.clear();
    }
    templates.insert((job.hold.tenant_id, job.asset_id), Arc::clone(&template));
    Ok(template)
}

/// The failover account. A send job goes on without it if it cannot be used.
fn failover(shared: &Shared, job: &ClaimedJob, account: &OpenAccount) -> Option<Route> {
    match Route::open(shared, job, account, true) {
        Ok(route) => Some(route),
        Err(NoRoute::NotHere(why) | NoRoute::Unfit(why)) => {
            tracing::warn!(job.id = %job.hold.job_id, "{} cannot fail over: {why}", job.hold.job_id);
            None
        }
    }
}
