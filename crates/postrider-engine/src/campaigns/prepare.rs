//! What a job needs before its first item, and what becomes of each item.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use postrider_model::{Channel, Message, ids::OutboxId};
use postrider_store::{
    StoreError,
    jobs::{self, ClaimedJob, Lead, OpenAccount},
    outbox::{Plan, PlannedItem},
};
use uuid::Uuid;

use super::{
    Shared,
    job::Ended,
    route::{NoRoute, Route},
    turns::Way,
};
use crate::render::Template;

/// Most compiled assets that are kept. Content never changes under its id.
const TEMPLATES_MAX: usize = 64;

/// What a job needs before its first item.
pub(super) struct Prepared {
    template: Arc<Template>,
    pub(super) leads: HashMap<Uuid, Arc<Lead>>,
    /// Its account.
    pub(super) first: Route,
    /// The account that it fails over to.
    pub(super) second: Option<Route>,
    /// Items that need no turn, because they have a row already.
    pub(super) begun: HashSet<Uuid>,
    /// The limits of its account, as they were read.
    pub(super) limits: serde_json::Value,
    /// When the attempt began, right after the claim.
    pub(super) claimed_at: Instant,
}

impl Prepared {
    pub(super) async fn new(shared: &Shared, job: &ClaimedJob) -> Result<Self, Ended> {
        let claimed_at = Instant::now();
        let adapter = shared.adapters.get(&job.provider);
        let known = shared.templates().get(&(job.hold.tenant_id, job.asset_id)).map(Arc::clone);
        let wanted = jobs::Wanted {
            content: known.is_none(),
            begun: adapter.is_some_and(|adapter| adapter.manifest().rate.is_some()),
        };
        let material = shared
            .while_away(|pool, worker| jobs::material(pool, worker, &shared.master_key, job, wanted))
            .await
            .map_err(|error| match error {
                // The secret does not open: this worker was started with another master key.
                StoreError::Unfit(why) => Ended::NotOurs(why),
                error => Ended::Failed(describe(&error)),
            })?
            .ok_or(Ended::Lost)?;
        let template = match known {
            Some(template) => template,
            None => compile(shared, job, &material.content.unwrap_or_default())?,
        };
        let Some(account) = &material.account else {
            return Err(Ended::Failed(format!("the provider account {} was removed", job.account_id)));
        };
        let first = Route::open(shared, job, account, false).map_err(|no_route| match no_route {
            NoRoute::NotHere(why) => Ended::NotOurs(why),
            NoRoute::Unfit(why) => Ended::Failed(why),
        })?;
        let second = material.failover.as_ref().and_then(|account| second(shared, job, account));
        let limits = account.limits.clone();
        let leads = material.leads.into_iter().map(|lead| (lead.id.0, Arc::new(lead))).collect();
        Ok(Self { template, leads, first, second, begun: material.begun, limits, claimed_at })
    }

    pub(super) fn route(&self, way: Way) -> &Route {
        match (way, &self.second) {
            (Way::Second, Some(second)) => second,
            _ => &self.first,
        }
    }

    /// What is going to happen to one item, and the message if it is a call.
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

/// Compiles an asset, once for all jobs that send it.
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

/// The account to fail over to. A job goes on without it, if it cannot be used.
fn second(shared: &Shared, job: &ClaimedJob, account: &OpenAccount) -> Option<Route> {
    match Route::open(shared, job, account, true) {
        Ok(route) => Some(route),
        Err(NoRoute::NotHere(why) | NoRoute::Unfit(why)) => {
            tracing::warn!(job.id = %job.hold.job_id, "{} cannot fail over: {why}", job.hold.job_id);
            None
        }
    }
}

fn describe(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
