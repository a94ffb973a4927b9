//! `process-alert-notifications`: tells people about alerts, through accounts of the tenant.
//!
//! ```json
//! {"notify": [{"account": "ops-webhook"}, {"account": "ops-mail", "to": "ops@example.com"}]}
//! ```
//!
//! Each alert is told to each of them once, and once more when it is over. A call needs a committed row with a key, as everywhere: what
//! provably did not leave is called again by the retry of the run; what may have left is in doubt, and settled by a later run as the
//! provider's class allows, after the quiet time.

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
    accounts::{self, ProviderAccount},
    notifications::{self, DoubtfulNotification, News, NotificationCall, Recipient, Verdict},
    pool,
    replies::{self, AccountVersion},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use super::{Function, FunctionError, Invoked, passing, read, to_value};

/// Longest that one call may take.
const CALL_WITHIN: Duration = Duration::from_secs(15);
/// How long after a call the provider's silence proves nothing.
const QUIET: Duration = Duration::from_secs(10 * 60 + 15);
/// How long to go on: what is reserved must be called within the function's time, or it is in doubt for nothing.
const GO_ON_FOR: Duration = Duration::from_secs(30);
/// A call that begins later than so long after its reservation is not made: others may take the silence for an answer by then.
const CALL_SOON: Duration = Duration::from_secs(60);
/// Who is told where the account alone says it.
const TO: &str = "alerts";

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
    /// By name or id.
    account: String,
    to: Option<String>,
}

#[derive(Default, Serialize)]
struct Told {
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
        let telling = self.telling(invoked.tenant).await.map_err(|error| passing(&error))?;
        let recipients =
            input.notify.iter().map(|target| telling.recipient(target)).collect::<Result<Vec<_>, _>>()?;
        let (told, problem) = telling.tell(&recipients).await.map_err(|error| passing(&error))?;
        match problem {
            // What was not sent is called again by the retry; what was refused is for a person.
            Some(problem) => Err(FunctionError {
                message: format!("not everybody could be told: {problem}"),
                retryable: told.not_sent > 0,
            }),
            None if told.is_unfinished => {
                Err(FunctionError::passing("there is more to tell than one run has time for"))
            }
            None => to_value(&told),
        }
    }
}

impl ProcessAlertNotifications {
    async fn telling(&self, tenant: TenantId) -> Result<Telling<'_>, StoreError> {
        let mut transaction = pool::begin_as(&self.pool, tenant).await?;
        let accounts = accounts::list(&mut transaction, tenant).await?;
        pool::commit(transaction).await?;
        let accounts = accounts.into_iter().map(|account| (account.id, account)).collect();
        Ok(Telling { function: self, tenant, accounts })
    }
}

/// One go at telling the people of a tenant.
struct Telling<'a> {
    function: &'a ProcessAlertNotifications,
    tenant: TenantId,
    accounts: HashMap<ProviderAccountId, ProviderAccount>,
}

impl Telling<'_> {
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
                "the account `{wanted}` can be told nothing: its provider sends neither e-mails nor messages"
            ))),
            (Some(to), Some(_)) => Ok(Recipient { account: account.id, to: to.clone() }),
            // A webhook is its own address.
            (None, Some(_)) if account.provider == "webhook" => {
                Ok(Recipient { account: account.id, to: TO.to_owned() })
            }
            (None, Some(_)) => {
                Err(FunctionError::lasting(format!("say to whom the account `{wanted}` sends, with `to`")))
            }
        }
    }

    /// A message where the provider sends such, otherwise an e-mail.
    fn channel(&self, account: ProviderAccountId) -> Option<Channel> {
        let manifest = self.manifest(account)?;
        [Channel::Chat, Channel::Email].into_iter().find(|channel| manifest.channels.contains(channel))
    }

    fn manifest(&self, account: ProviderAccountId) -> Option<&'static Manifest> {
        let provider = &self.accounts.get(&account)?.provider;
        self.function.adapters.get(provider).map(|adapter| adapter.manifest())
    }

    async fn tell(&self, recipients: &[Recipient]) -> Result<(Told, Option<String>), StoreError> {
        let pool = &self.function.pool;
        let channel = |recipient: &Recipient| self.channel(recipient.account).unwrap_or(Channel::Email);
        let mut told =
            Told { planned: notifications::plan(pool, self.tenant, recipients).await?, ..Told::default() };
        let (mut problem, began) = (None, Instant::now());
        // One at a time. What was not sent waits for the retry of the run, not for the next round.
        while told.not_sent == 0 && began.elapsed() < GO_ON_FOR {
            let Some(call) = notifications::reserve(pool, self.tenant, 1, channel).await?.pop() else {
                break;
            };
            let verdict = self.say(&call).await;
            problem = self.settle(&call.news, verdict, &mut told).await?.or(problem);
        }
        while began.elapsed() < GO_ON_FOR {
            let doubtful = notifications::claim_doubtful(pool, self.tenant, QUIET, 1, channel).await?.pop();
            let Some(doubtful) = doubtful else { return Ok((told, problem)) };
            let verdict = self.clear_up(&doubtful).await;
            problem = self.settle(&doubtful.news, verdict, &mut told).await?.or(problem);
        }
        told.is_unfinished = true;
        Ok((told, problem))
    }

    /// Writes a verdict down and counts it; brings what went wrong.
    async fn settle(
        &self,
        news: &News,
        verdict: Verdict,
        told: &mut Told,
    ) -> Result<Option<String>, StoreError> {
        notifications::settle(&self.function.pool, self.tenant, news, &verdict).await?;
        let (count, problem) = match verdict {
            Verdict::Sent(_) => (&mut told.sent, None),
            Verdict::Failed(reason) => (&mut told.failed, Some(reason)),
            Verdict::NotSent(reason) => (&mut told.not_sent, Some(reason)),
            Verdict::Unknown(_) => (&mut told.in_doubt, None),
        };
        *count += 1;
        Ok(problem)
    }

    /// Makes the one call.
    async fn say(&self, call: &NotificationCall) -> Verdict {
        let news = &call.news;
        let provider = match self.open(news.recipient.account).await {
            Ok(provider) => provider,
            Err(verdict) => return verdict,
        };
        let message = message(news, call.reservation().channel());
        if call.reservation().age() > CALL_SOON {
            return Verdict::Unknown("it was held up, and not called".to_owned());
        }
        let calling = AssertUnwindSafe(provider.call(call.reservation(), &message)).catch_unwind();
        match tokio::time::timeout(CALL_WITHIN, calling).await {
            Ok(Ok(Outcome::Delivered { message_id })) => Verdict::Sent(message_id),
            Ok(Ok(Outcome::Rejected { reason })) => Verdict::Failed(reason),
            Ok(Ok(Outcome::NotSent { reason, .. })) => Verdict::NotSent(reason),
            Ok(Ok(Outcome::Unknown { reason })) => Verdict::Unknown(reason),
            Ok(Err(_)) => Verdict::Unknown("the adapter panicked".to_owned()),
            Err(_) => Verdict::Unknown(format!("no answer within {CALL_WITHIN:?}")),
        }
    }

    /// Repeats what may be repeated, asks where that is possible, and leaves the rest in doubt.
    async fn clear_up(&self, doubtful: &DoubtfulNotification) -> Verdict {
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
        let asking = async {
            match manifest.doubt {
                _ if is_repeatable => provider.repeat(doubt, &message).await,
                DoubtClass::Lookup => provider.look_up(doubt, Some(&message)).await,
                _ => Finding::CannotTell { reason: "only the recipient knows".to_owned() },
            }
        };
        match tokio::time::timeout(CALL_WITHIN, AssertUnwindSafe(asking).catch_unwind()).await {
            Ok(Ok(Finding::Done { message_id, .. })) => Verdict::Sent(message_id),
            // A repeat may be refused because the provider has it.
            Ok(Ok(Finding::Absent { evidence })) if is_repeatable => Verdict::Unknown(evidence),
            Ok(Ok(Finding::Absent { evidence })) => Verdict::Failed(evidence),
            Ok(Ok(Finding::Unclear { reason } | Finding::CannotTell { reason })) => Verdict::Unknown(reason),
            Ok(Err(_)) => Verdict::Unknown("the adapter panicked".to_owned()),
            Err(_) => Verdict::Unknown(format!("no answer within {CALL_WITHIN:?}")),
        }
    }

    /// The account, ready to be called. Nothing was sent when it is not.
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

/// The same words each time.
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
