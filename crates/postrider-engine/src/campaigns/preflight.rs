//! Checks a campaign before it is created: whom it reaches, whether its templates can be filled in, and how long it takes.
//!
//! The check is bounded: of a list it classifies the first 100,000 members and renders 1,000 of these, spread over all of them, and it
//! stops counting and rendering after a few seconds. The report has the numbers that it used.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use postrider_model::{
    Channel, Limits,
    campaigns::{
        PhaseKind,
        estimate::{self, Estimate},
        limits::By,
    },
    ids::{TenantId, WorkspaceId},
    seal::{MasterKey, Place},
};
use postrider_providers::{Account, Adapters};
use postrider_store::{
    PgConnection, StoreError,
    campaigns::{
        Mistake, NewCampaign, NewPhase, assets, callbacks,
        leads::{self, Audience},
        send_jobs::Lead,
    },
    tenancy::accounts::{self, Circuit, ProviderAccount},
};

use super::{drafts, render::Template};

/// Time for counting and rendering, over all phases.
const BUDGET: Duration = Duration::from_secs(8);
/// Time for one count.
const COUNT_MAX: Duration = Duration::from_secs(4);
/// Time for rendering the sample of one phase.
const RENDER_MAX: Duration = Duration::from_secs(2);
/// Most variables that are named.
const VARIABLES_MAX: usize = 50;

/// The settings and keys that a check needs.
#[derive(Clone, Copy)]
pub struct Checker<'a> {
    /// The vendors that this version can call.
    pub adapters: &'a Adapters,
    /// Opens the secrets of accounts. Without it they are not checked.
    pub master_key: Option<&'a MasterKey>,
    /// Longest time from a reservation to the end of its call.
    pub call_max: Duration,
    /// Whether mails carry links to unsubscribe, because the installation has a public address.
    pub links_to_unsubscribe: bool,
}

/// In a sample, the link to unsubscribe.
const SAMPLE_LINK: &str = "https://example.com/unsubscribe";

/// The result of a check.
#[derive(Debug)]
pub struct Report {
    /// The reasons why the campaign cannot be created.
    pub errors: Vec<Mistake>,
    /// Its phases, in order.
    pub phases: Vec<PhaseReport>,
}

/// The findings about a phase. A phase that another service carries out has none.
#[derive(Debug)]
pub struct PhaseReport {
    /// The name of the phase.
    pub phase: String,
    /// Counts of its list.
    pub audience: Option<Audience>,
    /// The sample that was rendered.
    pub renders: Option<Renders>,
    /// Its account.
    pub account: Option<AccountReport>,
    /// How long it takes.
    pub estimate: Option<Estimate>,
    /// Risks, as sentences.
    pub warnings: Vec<String>,
}

/// The result of rendering a sample.
#[derive(Debug, Default)]
pub struct Renders {
    /// Leads for which the message was rendered.
    pub checked: usize,
    /// Leads for which it cannot be rendered.
    pub failed: usize,
    /// The first failure.
    pub first_problem: Option<String>,
    /// Variables that leads lack, with the number of these leads; the most frequent first.
    pub missing: Vec<(String, usize)>,
}

/// The account of a phase.
#[derive(Debug)]
pub struct AccountReport {
    /// Its name.
    pub name: String,
    /// Calls per second: its own limit, or the provider's.
    pub rate_per_second: Option<f64>,
    /// Calls per day.
    pub daily: Option<u64>,
    /// Calls of today, where they are counted.
    pub used_today: i64,
    /// The state of its circuit.
    pub circuit: Circuit,
}

type Counted = Option<(Audience, Vec<Arc<Lead>>)>;

impl Checker<'_> {
    /// Checks a campaign in the tenant of the transaction. It writes nothing.
    pub async fn check(
        &self,
        connection: &mut PgConnection,
        tenant: TenantId,
        workspace: WorkspaceId,
        campaign: &NewCampaign,
    ) -> Result<Report, StoreError> {
        let ends = Instant::now() + BUDGET;
        if let Err(mistake) = campaign.check() {
            return Ok(Report { errors: vec![mistake], phases: Vec::new() });
        }
        let mut errors = drafts::mistakes(connection, tenant, workspace, campaign, self.adapters).await?;
        let accounts: Vec<ProviderAccount> = accounts::list(connection, tenant)
            .await?
            .into_iter()
            .filter(|account| account.workspace_id == workspace)
            .collect();
        let mut counted: HashMap<(&str, Channel), Counted> = HashMap::new();
        let mut phases = Vec::new();
        for (at, phase) in campaign.phases.iter().enumerate() {
            let mut report = PhaseReport::of(phase);
            let (PhaseKind::Delivery, Some(channel)) = (phase.kind, phase.channel) else {
                phases.push(report);
                continue;
            };
            let find = |name: &Option<String>| {
                accounts.iter().find(|account| name.as_ref().is_some_and(|name| *name == account.name))
            };
            let (account, failover) = (find(&phase.provider_account), find(&phase.failover_account));
            let leads: &[Arc<Lead>] = match &phase.list {
                None => &[],
                Some(list) => {
                    let key = (list.as_str(), channel);
                    if let Entry::Vacant(uncounted) = counted.entry(key) {
                        let within = ends.saturating_duration_since(Instant::now()).min(COUNT_MAX);
                        let audience = if within.is_zero() {
                            None
                        } else {
                            leads::audience(connection, tenant, workspace, list, channel, within).await?
                        };
                        uncounted.insert(audience);
                    }
                    match counted.get(&key) {
                        Some(Some((audience, leads))) => {
                            report.audience = Some(*audience);
                            leads
                        }
                        _ => {
                            // A mistake in the phase may be that there is no such list.
                            if !errors.iter().any(|error| error.at == Some(at)) {
                                report
                                    .warn(format!("the list `{list}` was not counted: that takes too long"));
                            }
                            &[]
                        }
                    }
                }
            };
            let within = ends.saturating_duration_since(Instant::now()).min(RENDER_MAX);
            report.renders = self.renders(connection, tenant, phase, channel, leads, within).await?;
            report.estimate = account.and_then(|account| self.estimate(account, phase, report.audience));
            report.account = account.map(|account| self.account(account));
            self.warn_of_audience(&mut report, phase);
            self.warn_of_account(&mut report, phase, account);
            for account in account.into_iter().chain(failover) {
                if let Some(problem) = self.unfit(connection, tenant, account).await? {
                    report.warn(problem);
                }
            }
            errors.extend(report.error(at));
            phases.push(report);
        }
        Ok(Report { errors, phases })
    }

    /// Renders the sample, or the one post of a phase without a list. `None` where the content does not compile.
    async fn renders(
        &self,
        connection: &mut PgConnection,
        tenant: TenantId,
        phase: &NewPhase,
        channel: Channel,
        leads: &[Arc<Lead>],
        within: Duration,
    ) -> Result<Option<Renders>, StoreError> {
        let Some(asset) = phase.asset_id else { return Ok(None) };
        let Some((_, content)) = assets::read(connection, tenant, asset).await? else { return Ok(None) };
        let (leads, is_post) = (leads.to_vec(), phase.list.is_none());
        let link = self.links_to_unsubscribe.then_some(SAMPLE_LINK);
        let rendering = tokio::task::spawn_blocking(move || {
            let template = Template::compile(channel, &content).ok()?;
            Some(if is_post {
                render_post(&template)
            } else {
                render_sample(&template, channel, &leads, link, within)
            })
        });
        // The template engine catches its own panics. After another one the sample counts as not rendered.
        Ok(rendering.await.unwrap_or(None))
    }

    fn rate(&self, account: &ProviderAccount) -> Option<f64> {
        let rate = self.adapters.get(&account.provider)?.manifest().rate?;
        Some(f64::from(rate.calls) / rate.per.as_secs_f64().max(0.001))
    }

    fn account(&self, account: &ProviderAccount) -> AccountReport {
        let limits = Limits::read(&account.limits).unwrap_or_default();
        AccountReport {
            name: account.name.clone(),
            rate_per_second: limits.rate_per_second.or_else(|| self.rate(account)),
            daily: limits.daily,
            used_today: account.state.used_today,
            circuit: account.state.circuit,
        }
    }

    fn estimate(
        &self,
        account: &ProviderAccount,
        phase: &NewPhase,
        audience: Option<Audience>,
    ) -> Option<Estimate> {
        let calls = match (&phase.list, audience) {
            (None, _) => 1,
            // A part of the list stands for the rest.
            (Some(_), Some(audience)) if audience.counted > 0 => {
                let whole = i128::from(audience.reachable) * i128::from(audience.members)
                    / i128::from(audience.counted);
                u64::try_from(whole).unwrap_or(u64::MAX)
            }
            (Some(_), _) => return None,
        };
        let limits = Limits::read(&account.limits).ok()?;
        let now = Timestamp::now();
        let begins =
            phase.scheduled_for.unwrap_or(now).max(account.state.waits_until.unwrap_or(now)).max(now);
        let is_today = begins.to_zoned(limits.zone()).date() == now.to_zoned(limits.zone()).date();
        let used_today = if is_today { account.state.used_today.unsigned_abs() } else { 0 };
        estimate::Account { limits: &limits, provider_rate: self.rate(account), used_today }
            .estimate(calls, begins)
    }

    fn warn_of_audience(&self, report: &mut PhaseReport, phase: &NewPhase) {
        let Some(audience) = report.audience else { return };
        let list = phase.list.as_deref().unwrap_or_default();
        if audience.members == 0 {
            report.warn(format!("the list `{list}` is empty, so the phase cannot be started yet"));
        } else if audience.reachable == 0 {
            report.warn(format!("no member of the list `{list}` can be reached"));
        }
        if audience.counted < audience.members {
            report.warn(format!(
                "the list is long: the counts are those of its first {} members of {}",
                audience.counted, audience.members
            ));
        }
        let tolerance = phase.failure_tolerance.unwrap_or(0.05);
        if let Some(renders) = &report.renders
            && renders.failed > 0
        {
            #[expect(clippy::cast_precision_loss, reason = "at most a thousand")]
            let share = renders.failed as f64 / renders.checked.max(1) as f64;
            let fails = if share > tolerance { ", more than the phase tolerates" } else { "" };
            let (failed, checked) = (renders.failed, renders.checked);
            report.warn(format!("the message cannot be rendered for {failed} of {checked} leads{fails}"));
        }
    }

    fn warn_of_account(&self, report: &mut PhaseReport, phase: &NewPhase, account: Option<&ProviderAccount>) {
        if phase.quiet_time_seconds.is_some_and(|quiet| u64::from(quiet) < self.call_max.as_secs()) {
            report.warn(format!(
                "quiet_time_seconds is shorter than a call may take ({} seconds); an item could be resolved as failed and arrive \
                 after that",
                self.call_max.as_secs()
            ));
        }
        let Some(account) = account else { return };
        match account.state.circuit {
            Circuit::Closed => {}
            Circuit::Open | Circuit::HalfOpen => {
                report.warn(format!("the circuit of account `{}` is open: its provider fails", account.name));
            }
        }
        if let Some(until) = account.state.waits_until {
            report
                .warn(format!("the provider of account `{}` asked for no calls until {until}", account.name));
        }
        let limits = Limits::read(&account.limits).unwrap_or_default();
        if report.estimate.is_some() && limits.hours.is_some_and(|hours| hours.by == By::Lead) {
            report.warn(
                "the sending hours are those of each lead; the estimate uses the time zone of the account"
                    .to_owned(),
            );
        }
    }

    /// The reason why an account cannot work with its settings. It is no error, because the configuration of the server that sends may
    /// differ.
    async fn unfit(
        &self,
        connection: &mut PgConnection,
        tenant: TenantId,
        account: &ProviderAccount,
    ) -> Result<Option<String>, StoreError> {
        let (Some(key), Some(adapter)) = (self.master_key, self.adapters.get(&account.provider)) else {
            return Ok(None);
        };
        let place = Place { tenant, account: account.id };
        // A login that serves requests reads secrets by this function alone.
        let opened = match callbacks::account(connection, key, place).await {
            Ok(versions) => versions.first().map_or(Ok(()), |found| {
                adapter
                    .open(&Account { id: account.id, settings: &account.settings, secret: &found.secret })
                    .map(drop)
                    .map_err(|error| error.to_string())
            }),
            Err(StoreError::Unfit(problem)) => Err(problem),
            Err(error) => return Err(error),
        };
        Ok(opened
            .err()
            .map(|problem| format!("account `{}` cannot work as it is set up: {problem}", account.name)))
    }
}

impl PhaseReport {
    fn of(phase: &NewPhase) -> Self {
        Self {
            phase: phase.phase.clone(),
            audience: None,
            renders: None,
            account: None,
            estimate: None,
            warnings: Vec::new(),
        }
    }

    fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// The campaign is refused when its message can be rendered for none of several leads.
    fn error(&self, at: usize) -> Option<Mistake> {
        let renders = self.renders.as_ref()?;
        if renders.checked == 0 || renders.failed < renders.checked {
            return None;
        }
        let why = match renders.missing.as_slice() {
            [] => renders.first_problem.clone().unwrap_or_default(),
            [(name, _)] => format!("the variable `{name}` is undefined"),
            names => {
                let names: Vec<String> = names.iter().take(5).map(|(name, _)| format!("`{name}`")).collect();
                format!("the variables {} are undefined", names.join(", "))
            }
        };
        let problem = format!(
            "the message can be rendered for none of the {} leads that were tried: {why}",
            renders.checked
        );
        Some(Mistake::in_phase(at, &self.phase, "asset_id", problem))
    }
}

fn render_post(template: &Template) -> Renders {
    let problem = template.render(None, None, None).err().map(|error| error.to_string());
    Renders {
        checked: 1,
        failed: usize::from(problem.is_some()),
        first_problem: problem,
        missing: Vec::new(),
    }
}

fn render_sample(
    template: &Template,
    channel: Channel,
    leads: &[Arc<Lead>],
    link: Option<&str>,
    within: Duration,
) -> Renders {
    let began = Instant::now();
    let mut renders = Renders::default();
    let mut missing: BTreeMap<String, usize> = BTreeMap::new();
    for lead in leads {
        if began.elapsed() >= within {
            break;
        }
        renders.checked += 1;
        let address = super::render::address_of(channel, lead);
        let Err(error) = template.render(Some(lead), address, link) else { continue };
        renders.failed += 1;
        renders.first_problem.get_or_insert_with(|| error.to_string());
        for name in template.missing(lead, address, link).unwrap_or_default() {
            if missing.len() < VARIABLES_MAX || missing.contains_key(&name) {
                *missing.entry(name).or_default() += 1;
            }
        }
    }
    renders.missing = missing.into_iter().collect();
    renders.missing.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    renders
}
