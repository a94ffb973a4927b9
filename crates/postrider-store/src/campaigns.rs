//! Campaigns: create, deploy, find, list, and how they stand. What works on them is in [`crate::jobs`] and
//! [`crate::outbox`].
//!
//! Functions that change something act in the tenant of the transaction. Functions that read name the tenant as well,
//! because an operator's login sees every tenant's rows.

use std::{collections::HashMap, str::FromStr};

use jiff::Timestamp;
use postrider_model::{
    Channel,
    campaign::{NotAWord, PhaseKind, PhaseStatus},
    ids::{AssetId, CampaignId, PhaseId, RunId, TenantId, WorkspaceId},
};
use serde::Serialize;
use sqlx::{PgConnection, types::Json};

use crate::{
    StoreError,
    limits::{self, Waiting},
    runs::{self, Progress, Run},
    unnamed::unnamed,
};

/// Items per job, unless said otherwise.
pub const JOB_SIZE: i32 = 500;
/// Most items per job.
pub const JOB_SIZE_MAX: i32 = 10_000;
/// Most phases of a campaign.
const PHASES_MAX: usize = 100;

/// What a new campaign consists of.
#[derive(Debug, Clone)]
pub struct NewCampaign {
    /// What the tenant calls it.
    pub name: String,
    /// Whether a phase that completes starts the next one.
    pub auto_advance: bool,
    /// Its steps, in order.
    pub phases: Vec<NewPhase>,
}

/// What a new phase consists of. Lists and accounts are named; they must exist.
#[derive(Debug, Clone, Serialize)]
pub struct NewPhase {
    /// Its name inside the campaign.
    pub phase: String,
    /// Who does it.
    pub kind: PhaseKind,
    /// How people are reached.
    pub channel: Option<Channel>,
    /// What is sent.
    pub asset_id: Option<AssetId>,
    /// To whom. A social phase without a list is one post.
    pub list: Option<String>,
    /// Through whom.
    pub provider_account: Option<String>,
    /// Through whom instead, where that one provably did not send an item.
    pub failover_account: Option<String>,
    /// The share of failed items with which it still counts as completed.
    pub failure_tolerance: Option<f64>,
    /// Not before this time.
    pub scheduled_for: Option<Timestamp>,
    /// How long after a call the provider's silence counts as "it was never sent".
    pub quiet_time_seconds: Option<u32>,
}

impl NewCampaign {
    /// What can be said about it without asking the database. A mistake is named with its phase.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.name.trim().is_empty() || self.name.len() > 255 {
            return Err(refused("a campaign needs a name of 1 to 255 bytes".to_owned()));
        }
        if self.name.contains(char::is_control) {
            return Err(refused("the name of a campaign has no control characters".to_owned()));
        }
        if self.phases.is_empty() || self.phases.len() > PHASES_MAX {
            return Err(refused(format!(
                "a campaign has between 1 and {PHASES_MAX} phases, not {}",
                self.phases.len()
            )));
        }
        for (n, phase) in self.phases.iter().enumerate() {
            if !is_simple(&phase.phase) {
                return Err(refused(format!(
                    "`{}` is not a name for a phase; use up to 63 of a-z, 0-9, `-` and `_`, like `first-mail`",
                    phase.phase.escape_debug()
                )));
            }
            if self.phases.iter().take(n).any(|earlier| earlier.phase == phase.phase) {
                return Err(refused(format!(
                    "two phases are called `{}`; give one another name",
                    phase.phase
                )));
            }
            phase
                .problem()
                .map_or(Ok(()), |problem| Err(refused(format!("phase `{}`: {problem}", phase.phase))))?;
        }
        Ok(())
    }
}

impl NewPhase {
    fn problem(&self) -> Option<String> {
        if self.failure_tolerance.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            return Some("failure_tolerance is a share between 0 and 1, such as 0.05".to_owned());
        }
        if self.quiet_time_seconds == Some(0) {
            return Some("quiet_time_seconds must be at least 1".to_owned());
        }
        match self.kind {
            PhaseKind::External => {
                let given = [
                    ("asset_id", self.asset_id.is_some()),
                    ("list", self.list.is_some()),
                    ("provider_account", self.provider_account.is_some()),
                    ("failover_account", self.failover_account.is_some()),
                ];
                let (field, _) = given.into_iter().find(|(_, is_given)| *is_given)?;
                Some(format!("another service does an external phase, so `{field}` does not belong here"))
            }
            PhaseKind::Delivery => {
                let missing = [
                    ("channel", self.channel.is_none()),
                    ("asset_id", self.asset_id.is_none()),
                    ("provider_account", self.provider_account.is_none()),
                    ("list", self.list.is_none() && self.channel != Some(Channel::Social)),
                ];
                if let Some((field, _)) = missing.into_iter().find(|(_, is_missing)| *is_missing) {
                    return Some(format!("`{field}` is missing"));
                }
                (self.failover_account.is_some() && self.failover_account == self.provider_account)
                    .then(|| "it fails over to the account that it uses anyway; name another one".to_owned())
            }
        }
    }
}

/// As the check `campaign_phases_name_is_simple` says it.
fn is_simple(name: &str) -> bool {
    let small = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= 63 && name.starts_with(small) && name.chars().all(|c| small(c) || c == '-' || c == '_')
}

/// Makes a campaign in the tenant of the transaction; all of it or nothing.
pub async fn create(
    connection: &mut PgConnection,
    workspace: WorkspaceId,
    campaign: &NewCampaign,
    actor: &str,
) -> Result<CampaignId, StoreError> {
    #[derive(Serialize)]
    struct Row<'a> {
        id: PhaseId,
        #[serde(flatten)]
        phase: &'a NewPhase,
    }

    campaign.check()?;
    let id = CampaignId::new();
    let phases: Vec<Row<'_>> =
        campaign.phases.iter().map(|phase| Row { id: PhaseId::new(), phase }).collect();
    sqlx::query!(
        "select execution.create_campaign($1, $2, $3, $4, $5, $6)",
        id.0,
        workspace.0,
        campaign.name,
        campaign.auto_advance,
        Json(&phases) as _,
        actor,
    )
    .fetch_one(unnamed(connection))
    .await
    .map_err(|error| match StoreError::constraint(&error) {
        Some("campaigns_one_per_name") => StoreError::Refused {
            message: format!("a campaign called `{}` exists already", campaign.name),
            hint: Some("Choose another name; `postrider campaign status` lists those taken.".to_owned()),
        },
        _ => StoreError::on("creating the campaign")(error),
    })?;
    Ok(id)
}

/// What a deployment answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deployed {
    /// The run of the phase.
    pub run_id: RunId,
    /// Whether this very deployment made it. Otherwise it was under way before, and nothing changed.
    pub is_new: bool,
}

/// Deploys a phase, or without a name the one that is next. Wake the workers with [`crate::jobs::hint`] after the commit.
pub async fn deploy(
    connection: &mut PgConnection,
    campaign: CampaignId,
    phase: Option<&str>,
    job_size: i32,
    actor: &str,
) -> Result<Deployed, StoreError> {
    let made = RunId::new();
    let run_id = sqlx::query_scalar!(
        r#"select execution.deploy_campaign($1, $2, $3, $4, $5) as "id!""#,
        campaign.0,
        phase,
        actor,
        made.0,
        job_size,
    )
    .fetch_one(unnamed(connection))
    .await
    .map(RunId)
    .map_err(StoreError::on("deploying the campaign"))?;
    Ok(Deployed { run_id, is_new: run_id == made })
}

/// A campaign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Campaign {
    /// Its id.
    pub id: CampaignId,
    /// Where it belongs.
    pub workspace_id: WorkspaceId,
    /// What the tenant calls it.
    pub name: String,
    /// Whether a phase that completes starts the next one.
    pub auto_advance: bool,
    /// Since when.
    pub created_at: Timestamp,
}

/// A campaign by its name or its id.
pub async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    name_or_id: &str,
) -> Result<Option<Campaign>, StoreError> {
    let row = sqlx::query!(
        r#"
        select id,
               workspace_id,
               name,
               auto_advance,
               created_at as "created_at: jiff_sqlx::Timestamp"
          from execution.campaigns
         where tenant_id = $1
           and (id = $2 or name = $3)
         order by id = $2 desc nulls last, created_at desc
         limit 1
        "#,
        tenant.0,
        name_or_id.parse::<CampaignId>().ok().map(|id| id.0),
        name_or_id,
    )
    .fetch_optional(unnamed(connection))
    .await
    .map_err(StoreError::on("looking for the campaign"))?;
    Ok(row.map(|row| Campaign {
        id: CampaignId(row.id),
        workspace_id: WorkspaceId(row.workspace_id),
        name: row.name,
        auto_advance: row.auto_advance,
        created_at: row.created_at.to_jiff(),
    }))
}

/// A campaign in a list.
#[derive(Debug, Clone, Serialize)]
pub struct Listed {
    /// Which one.
    #[serde(flatten)]
    pub campaign: Campaign,
    /// Its phases, in order.
    pub phases: Vec<ListedPhase>,
}

/// A phase in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListedPhase {
    /// Its name inside the campaign.
    pub phase: String,
    /// Where it stands.
    pub status: PhaseStatus,
}

/// The campaigns of a tenant, newest first.
pub async fn list(
    connection: &mut PgConnection,
    tenant: TenantId,
    limit: i64,
) -> Result<Vec<Listed>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select campaign.id,
               campaign.workspace_id,
               campaign.name,
               campaign.auto_advance,
               campaign.created_at as "created_at: jiff_sqlx::Timestamp",
               phases.names as "names!",
               phases.statuses as "statuses!"
          from execution.campaigns as campaign
               cross join lateral (
                   select array_agg(phase.phase order by phase.position) as names,
                          array_agg(phase.status order by phase.position) as statuses
                     from execution.campaign_phases as phase
                    where phase.tenant_id = campaign.tenant_id
                      and phase.campaign_id = campaign.id) as phases
         where campaign.tenant_id = $1
         order by campaign.created_at desc, campaign.id
         limit $2
        "#,
        tenant.0,
        limit,
    )
    .fetch_all(unnamed(connection))
    .await
    .map_err(StoreError::on("listing the campaigns"))?;
    rows.into_iter()
        .map(|row| {
            let phases = row
                .names
                .into_iter()
                .zip(row.statuses)
                .map(|(phase, status)| word(&status).map(|status| ListedPhase { phase, status }));
            Ok(Listed {
                campaign: Campaign {
                    id: CampaignId(row.id),
                    workspace_id: WorkspaceId(row.workspace_id),
                    name: row.name,
                    auto_advance: row.auto_advance,
                    created_at: row.created_at.to_jiff(),
                },
                phases: phases.collect::<Result<_, _>>()?,
            })
        })
        .collect()
}

/// How a phase stands.
#[derive(Debug, Clone, Serialize)]
pub struct PhaseState {
    /// Its id.
    pub id: PhaseId,
    /// Its name inside the campaign.
    pub phase: String,
    /// Who does it.
    pub kind: PhaseKind,
    /// How people are reached.
    pub channel: Option<Channel>,
    /// Where it stands.
    pub status: PhaseStatus,
    /// The asset that it sends, as `NAME@VERSION`.
    pub asset: Option<String>,
    /// The list that it addresses.
    pub list: Option<String>,
    /// The account that it uses.
    pub provider_account: Option<String>,
    /// The account that it fails over to.
    pub failover_account: Option<String>,
    /// The share of failed items with which it still counts as completed.
    pub failure_tolerance: f64,
    /// Not before this time.
    pub scheduled_for: Option<Timestamp>,
    /// Its newest run, if it was deployed.
    pub run: Option<RunState>,
}

/// How a run stands.
#[derive(Debug, Clone, Serialize)]
pub struct RunState {
    /// Which one.
    #[serde(flatten)]
    pub run: Run,
    /// How far it is.
    pub progress: Progress,
    /// What it waits for, if its account's limits hold it up.
    pub waiting: Option<Waiting>,
}

/// How the phases of a campaign stand, in their order.
pub async fn status(
    connection: &mut PgConnection,
    tenant: TenantId,
    campaign: CampaignId,
) -> Result<Vec<PhaseState>, StoreError> {
    let rows = sqlx::query_file!("sql/campaign_phases.sql", tenant.0, campaign.0)
        .fetch_all(unnamed(&mut *connection))
        .await
        .map_err(StoreError::on("reading the campaign's phases"))?;
    let run_ids: Vec<RunId> = rows.iter().filter_map(|row| row.run_id).map(RunId).collect();
    let mut states = run_states(connection, tenant, &run_ids).await?;
    rows.into_iter()
        .map(|row| {
            Ok(PhaseState {
                id: PhaseId(row.id),
                phase: row.phase,
                kind: word(&row.kind)?,
                channel: row.channel.as_deref().map(word).transpose()?,
                status: word(&row.status)?,
                asset: row.asset,
                list: row.list,
                provider_account: row.provider_account,
                failover_account: row.failover_account,
                failure_tolerance: row.failure_tolerance,
                scheduled_for: row.scheduled_for.map(jiff_sqlx::Timestamp::to_jiff),
                run: row.run_id.and_then(|id| states.remove(&RunId(id))),
            })
        })
        .collect()
}

/// How runs stand, by their ids.
pub async fn run_states(
    connection: &mut PgConnection,
    tenant: TenantId,
    ids: &[RunId],
) -> Result<HashMap<RunId, RunState>, StoreError> {
    let runs = runs::read(&mut *connection, tenant, ids).await?;
    let mut progress = runs::progress(&mut *connection, tenant, ids).await?;
    let mut waiting = limits::waiting(connection, tenant, ids).await?;
    Ok(runs
        .into_iter()
        .filter_map(|run| {
            let progress = progress.remove(&run.id)?;
            let waiting = waiting.remove(&run.id);
            Some((run.id, RunState { run, progress, waiting }))
        })
        .collect())
}

/// A word that the database holds. One that this version does not know was written by a newer one.
pub(crate) fn word<T: FromStr<Err = NotAWord>>(text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|unknown: NotAWord| StoreError::Unfit(unknown.to_string()))
}

fn refused(message: String) -> StoreError {
    StoreError::Refused { message, hint: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &str) -> NewPhase {
        NewPhase {
            phase: name.to_owned(),
            kind: PhaseKind::Delivery,
            channel: Some(Channel::Email),
            asset_id: Some(AssetId::new()),
            list: Some("customers".to_owned()),
            provider_account: Some("mail".to_owned()),
            failover_account: None,
            failure_tolerance: None,
            scheduled_for: None,
            quiet_time_seconds: None,
        }
    }

    fn refusal(phases: Vec<NewPhase>) -> String {
        let campaign = NewCampaign { name: "spring".to_owned(), auto_advance: true, phases };
        campaign.check().err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn a_whole_campaign_is_accepted() {
        let post = NewPhase { list: None, channel: Some(Channel::Social), ..phase("post") };
        let external = NewPhase {
            kind: PhaseKind::External,
            channel: None,
            asset_id: None,
            list: None,
            provider_account: None,
            ..phase("print")
        };
        assert_eq!(refusal(vec![phase("mail"), post, external]), "");
    }

    #[test]
    fn what_is_wrong_is_said_with_the_name_of_the_phase() {
        let cases = [
            (vec![], "a campaign has between 1 and 100 phases, not 0"),
            (vec![phase("mail"), phase("mail")], "two phases are called `mail`"),
            (vec![phase("First mail")], "`First mail` is not a name for a phase"),
            (vec![phase("")], "`` is not a name for a phase"),
            (vec![NewPhase { channel: None, ..phase("mail") }], "phase `mail`: `channel` is missing"),
            (vec![NewPhase { list: None, ..phase("mail") }], "phase `mail`: `list` is missing"),
            (
                vec![NewPhase { provider_account: None, ..phase("mail") }],
                "phase `mail`: `provider_account` is missing",
            ),
            (
                vec![NewPhase { failover_account: Some("mail".to_owned()), ..phase("mail") }],
                "phase `mail`: it fails over to the account that it uses anyway",
            ),
            (
                vec![NewPhase { failure_tolerance: Some(f64::NAN), ..phase("mail") }],
                "phase `mail`: failure_tolerance is a share between 0 and 1",
            ),
            (
                vec![NewPhase { quiet_time_seconds: Some(0), ..phase("mail") }],
                "phase `mail`: quiet_time_seconds must be at least 1",
            ),
            (
                vec![NewPhase { kind: PhaseKind::External, ..phase("print") }],
                "phase `print`: another service does an external phase, so `asset_id` does not belong here",
            ),
        ];
        for (phases, expected) in cases {
            let message = refusal(phases);
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
