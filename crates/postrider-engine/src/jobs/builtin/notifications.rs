//! `process-alert-notifications`: notifies recipients of alerts, through accounts of the tenant.
//!
//! ```json
//! {"notify": [{"account": "ops-webhook"}, {"account": "ops-mail", "to": "ops@example.com"}]}
//! ```
//!
//! Each recipient receives one notification of each alert, and one when the alert is resolved. A call needs a committed row with an
//! idempotency key. The retry of the run repeats a call that was provably not sent. A notification that may have been sent is in doubt; a
//! later run settles it after the quiet time, as the provider's class allows
//! (docs/decisions/0016-a-run-is-picked-up-and-grains-are-those-of-utc.md).

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::FutureExt;
use postrider_model::{
    Channel, DoubtClass, Finding, Manifest, Message, Outcome,
    ids::{ProviderAccountId, TenantId},
    seal::MasterKey,
};
use postrider_providers::{Account, Adapters, Provider};
use postrider_store::{
    Pool, StoreError,
    channels::replies::{self, AccountVersion},
    jobs::notifications::{self, DoubtfulNotification, News, NotificationCall, Recipient, Verdict},
    postgres::pool,
    tenancy::accounts::{self, ProviderAccount},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use super::{Function, FunctionError, Invoked, passing, read, to_value};

/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Quiet time: for this long after a call, an absent message is no proof that it was not sent.
const QUIET: Duration = Duration::from_secs(10 * 60 + 15);
/// Maximum time in which calls begin. A reservation whose call does not end within the function's timeout is needlessly in doubt.
const TIME_BUDGET: Duration = Duration::from_secs(30);
/// Maximum age of a reservation at the begin of its call. After the quiet time another process may conclude that no call was made
/// (docs/decisions/0011-a-call-begins-soon-or-not-at-all.md).
const RESERVATION_AGE_MAX: Duration = Duration::from_secs(60);
/// Name of the recipient where the account itself is the address.
const ACCOUNT_RECIPIENT: &str = "alerts";

pub(super) struct ProcessAlertNotifications {
    pub(super) pool: Pool,
    pub(super) adapters: Adapters,
    pub(super) master_key: MasterKey,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    #[serde(default)]
    notify: Vec<Target>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    /// Name or id of the account.
    account: String,
    to: Option<String>,
}

#[derive(Default, Serialize)]
struct Summary {
    planned: i32,
    sent: u32,
    failed: u32,
    not_sent: u32,
    in_doubt: u32,
    #[serde(skip)]
    is_unfinished: bool,
}

#[async_trait]
impl Function for ProcessAlertNotifications {
    async fn call(&self, invoked: &Invoked<'_>) -> Result<Value, FunctionError> {
        let input: Input = read(invoked.input)?;
        let notifier = self.notifier(invoked.tenant).await.map_err(|error| passing(&error))?;
        let recipients =
            input.notify.iter().map(|target| notifier.recipient(target)).collect::<Result<Vec<_>, _>>()?;
        let (summary, problem) = notifier.notify(&recipients).await.map_err(|error| passing(&error))?;
        match problem {
            // The retry repeats calls that were not sent. Rejected notifications are left to a person.
            Some(problem) => Err(FunctionError {
                message: format!("some notifications failed: {problem}"),
                retryable: summary.not_sent > 0,
            }),
            None if summary.is_unfinished => {
                Err(FunctionError::passing("one run cannot send all notifications; its retry sends the rest"))
            }
            None => to_value(&summary),
        }
    }
}

impl ProcessAlertNotifications {
    async fn notifier(&self, tenant: TenantId) -> Result<Notifier<'_>, StoreError> {
        let mut transaction = pool::begin_as(&self.pool, tenant).await?;
        let accounts = accounts::list(&mut transaction, tenant).await?;
        pool::commit(transaction).await?;
        let accounts = accounts.into_iter().map(|account| (account.id, account)).collect();
        Ok(Notifier { function: self, tenant, accounts })
    }
}

/// Sends the notifications of one tenant in one call of the function.
struct Notifier<'a> {
    function: &'a ProcessAlertNotifications,
    tenant: TenantId,
    accounts: HashMap<ProviderAccountId, ProviderAccount>,
}

impl Notifier<'_> {
    fn recipient(&self, target: &Target) -> Result<Recipient, FunctionError> {
        let wanted = &target.account;
        let id = wanted.parse::<ProviderAccountId>().ok();
        let mut named =
            self.accounts.values().filter(|account| account.name == *wanted || Some(account.id) == id);
        let (Some(account), None) = (named.next(), named.next()) else {
            return Err(FunctionError::lasting(format!(
                "`{wanted}` is not the name or id of exactly one account; see `postrider accounts list`"
            )));
        };
        let channel = self.channel(account.id);
        match (&target.to, channel) {
            (_, None) => Err(FunctionError::lasting(format!(
                "the account `{wanted}` cannot notify: its provider sends neither e-mails nor chat messages"
            ))),
            (Some(to), Some(_)) => Ok(Recipient { account: account.id, to: to.clone() }),
            // The address of a webhook is part of its account.
            (None, Some(_)) if account.provider == "webhook" => {
                Ok(Recipient { account: account.id, to: ACCOUNT_RECIPIENT.to_owned() })
            }
            (None, Some(_)) => {
                Err(FunctionError::lasting(format!("no recipient for the account `{wanted}`; set `to`")))
            }
        }
    }

    /// Chat where the provider supports it, otherwise e-mail.
    fn channel(&self, account: ProviderAccountId) -> Option<Channel> {
        let manifest = self.manifest(account)?;
        [Channel::Chat, Channel::Email].into_iter().find(|channel| manifest.channels.contains(channel))
    }

    fn manifest(&self, account: ProviderAccountId) -> Option<&'static Manifest> {
        let provider = &self.accounts.get(&account)?.provider;
        self.function.adapters.get(provider).map(|adapter| adapter.manifest())
    }

    async fn notify(&self, recipients: &[Recipient]) -> Result<(Summary, Option<String>), StoreError> {
        let pool = &self.function.pool;
        let channel = |recipient: &Recipient| self.channel(recipient.account).unwrap_or(Channel::Email);
        let planned = notifications::plan(pool, self.tenant, recipients).await?;
        let mut summary = Summary { planned, ..Summary::default() };
        let (mut problem, began) = (None, Instant::now());
        // One at a time. A notification that was not sent ends the loop and waits for the retry of the run.
        while summary.not_sent == 0 && began.elapsed() < TIME_BUDGET {
            let Some(call) = notifications::reserve(pool, self.tenant, 1, channel).await?.pop() else {
                break;
            };
            let verdict = self.call(&call).await;
            problem = self.settle(&call.news, verdict, &mut summary).await?.or(problem);
        }
        while began.elapsed() < TIME_BUDGET {
            let doubtful = notifications::claim_doubtful(pool, self.tenant, QUIET, 1, channel).await?.pop();
            let Some(doubtful) = doubtful else { return Ok((summary, problem)) };
            let verdict = self.resolve(&doubtful).await;
            problem = self.settle(&doubtful.news, verdict, &mut summary).await?.or(problem);
        }
        summary.is_unfinished = true;
        Ok((summary, problem))
    }

    /// Records a verdict and counts it. Returns the reason of a failure.
    async fn settle(
        &self,
        news: &News,
        verdict: Verdict,
        summary: &mut Summary,
    ) -> Result<Option<String>, StoreError> {
        notifications::settle(&self.function.pool, self.tenant, news, &verdict).await?;
        let (count, problem) = match verdict {
            Verdict::Sent(_) => (&mut summary.sent, None),
            Verdict::Failed(reason) => (&mut summary.failed, Some(reason)),
            Verdict::NotSent(reason) => (&mut summary.not_sent, Some(reason)),
            Verdict::Unknown(_) => (&mut summary.in_doubt, None),
        };
        *count += 1;
        Ok(problem)
    }

    /// Calls the provider once.
    async fn call(&self, call: &NotificationCall) -> Verdict {
        let news = &call.news;
        let provider = match self.open(news.recipient.account).await {
            Ok(provider) => provider,
            Err(verdict) => return verdict,
        };
        let message = message(news, call.reservation().channel());
        if call.reservation().age() > RESERVATION_AGE_MAX {
            return Verdict::Unknown("the call was not made because the process was delayed".to_owned());
        }
        let calling = AssertUnwindSafe(provider.call(call.reservation(), &message)).catch_unwind();
        match tokio::time::timeout(CALL_TIMEOUT, calling).await {
            Ok(Ok(Outcome::Delivered { message_id })) => Verdict::Sent(message_id),
            Ok(Ok(Outcome::Rejected { reason })) => Verdict::Failed(reason),
            Ok(Ok(Outcome::NotSent { reason, .. } | Outcome::AccountRefused { reason, .. })) => {
                Verdict::NotSent(reason)
            }
            Ok(Ok(Outcome::Unknown { reason })) => Verdict::Unknown(reason),
            Ok(Err(_)) => Verdict::Unknown("the adapter panicked".to_owned()),
            Err(_) => Verdict::Unknown(format!("no answer within {CALL_TIMEOUT:?}")),
        }
    }

    /// Repeats the call or looks it up, as the provider's class allows. Otherwise the notification stays in doubt.
    async fn resolve(&self, doubtful: &DoubtfulNotification) -> Verdict {
        let DoubtfulNotification { news, doubt, age } = doubtful;
        let Some(manifest) = self.manifest(news.recipient.account) else {
            return Verdict::Unknown(
                "its account was removed, or this version does not know its provider".to_owned(),
            );
        };
        let provider = match self.open(news.recipient.account).await {
            Ok(provider) => provider,
            Err(Verdict::NotSent(reason) | Verdict::Failed(reason)) => return Verdict::Unknown(reason),
            Err(verdict) => return verdict,
        };
        let message = message(news, doubt.channel());
        let is_repeatable = match manifest.doubt {
            DoubtClass::Key => manifest.repeat_within().is_some_and(|within| *age < within),
            DoubtClass::Natural => true,
            _ => false,
        };
        let finding = async {
            match manifest.doubt {
                _ if is_repeatable => provider.repeat(doubt, &message).await,
                DoubtClass::Lookup => provider.look_up(doubt, Some(&message)).await,
                _ => Finding::CannotTell { reason: "only the recipient knows".to_owned() },
            }
        };
        match tokio::time::timeout(CALL_TIMEOUT, AssertUnwindSafe(finding).catch_unwind()).await {
            Ok(Ok(Finding::Done { message_id, .. })) => Verdict::Sent(message_id),
            // The provider may have refused the repeat because it has the message.
            Ok(Ok(Finding::Absent { evidence })) if is_repeatable => Verdict::Unknown(evidence),
            Ok(Ok(Finding::Absent { evidence })) => Verdict::Failed(evidence),
            Ok(Ok(
                Finding::Unclear { reason } | Finding::Later { reason, .. } | Finding::CannotTell { reason },
            )) => Verdict::Unknown(reason),
            Ok(Err(_)) => Verdict::Unknown("the adapter panicked".to_owned()),
            Err(_) => Verdict::Unknown(format!("no answer within {CALL_TIMEOUT:?}")),
        }
    }

    /// Opens an account. The error is the verdict: nothing was sent.
    async fn open(&self, id: ProviderAccountId) -> Result<Arc<dyn Provider>, Verdict> {
        let removed = || Verdict::Failed("its account was removed".to_owned());
        let account = self.accounts.get(&id).ok_or_else(removed)?;
        let Some(adapter) = self.function.adapters.get(&account.provider) else {
            return Err(Verdict::NotSent(format!(
                "this version does not know the provider `{}`",
                account.provider
            )));
        };
        let version = AccountVersion { tenant: self.tenant, id, changed_at: None };
        let read = replies::account(&self.function.pool, &self.function.master_key, version).await;
        let (settings, secret) =
            read.map_err(|error| Verdict::NotSent(error.to_string()))?.ok_or_else(removed)?;
        adapter
            .open(&Account { id, settings: &settings, secret: &secret })
            .map_err(|error| Verdict::NotSent(error.to_string()))
    }
}

/// Renders a notification. The text is the same each time, as repeats require.
fn message(news: &News, channel: Channel) -> Message {
    let News { recipient, subject, body, .. } = news;
    match channel {
        Channel::Chat => {
            Message::Chat { to: recipient.to.clone(), thread: None, text: format!("{subject}\n{body}") }
        }
        _ => Message::Email {
            to: recipient.to.clone(),
            subject: subject.clone(),
            text: Some(body.clone()),
            html: None,
        },
    }
}
