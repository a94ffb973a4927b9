//! The behavior of a vendor that the suite simulates.

use std::{fmt, sync::Arc, time::Duration};

use postrider_model::{DoubtClass, Message};
use secrecy::SecretString;
use serde_json::Value;

use super::{
    case::{Case, OutcomeKind},
    http::{Answer, Request},
};
use crate::provider::Adapter;

type Settings = Arc<dyn Fn(&str) -> Value + Send + Sync>;
type Matches = Arc<dyn Fn(&Request) -> bool + Send + Sync>;
type Answers = Arc<dyn Fn(&Request) -> Answer + Send + Sync>;

/// An adapter under test, and how its vendor answers.
#[derive(Clone)]
pub struct Subject {
    pub(super) adapter: Arc<dyn Adapter>,
    pub(super) settings: Settings,
    pub(super) secret: SecretString,
    pub(super) message: Message,
    pub(super) accepts: Answers,
    pub(super) refuses: Answer,
    pub(super) busy: (Answer, Option<Duration>),
    pub(super) key: Key,
    pub(super) preparations: Vec<(Matches, Answers)>,
    pub(super) look_up: Option<LookUp>,
    pub(super) varying_headers: Vec<String>,
    pub(super) exceptions: Vec<Exception>,
}

/// The look-up of a message at the vendor.
#[derive(Clone)]
pub(super) struct LookUp {
    pub is: Matches,
    pub found: Answers,
    pub missing: Answers,
}

/// An outcome that differs from the rule, because the vendor documents it.
#[derive(Clone)]
pub(super) struct Exception {
    pub case: Case,
    pub kind: OutcomeKind,
    pub because: String,
}

/// Where the vendor expects the idempotency key.
#[derive(Clone)]
pub enum Key {
    /// The vendor takes no key.
    Nowhere,
    /// In this header, unchanged.
    Header(&'static str),
    /// Anywhere that this function checks; the second argument is the key.
    Found(fn(&Request, &str) -> bool),
}

impl Key {
    pub(super) fn is_in(&self, request: &Request, key: &str) -> bool {
        match self {
            Self::Nowhere => true,
            Self::Header(name) => request.header(name) == Some(key),
            Self::Found(found) => found(request, key),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => f.write_str("nowhere"),
            Self::Header(name) => write!(f, "in the header `{name}`"),
            Self::Found(_) => f.write_str("where the subject looks for it"),
        }
    }
}

impl Subject {
    /// An adapter that sends `message`. `settings` builds an account's settings that lead to the suite's server: its argument is
    /// `http://127.0.0.1:PORT`, without a slash at the end.
    ///
    /// By default the vendor accepts with an empty 200, refuses with an empty 400, limits the rate with
    /// 429 and `Retry-After: 7`, and takes no key.
    #[must_use]
    pub fn new(
        adapter: Arc<dyn Adapter>,
        message: Message,
        settings: impl Fn(&str) -> Value + Send + Sync + 'static,
    ) -> Self {
        let busy = Answer::json(429, &serde_json::json!({ "error": "slow down" })).header("retry-after", "7");
        Self {
            adapter,
            settings: Arc::new(settings),
            secret: String::new().into(),
            message,
            accepts: Arc::new(|_| Answer::status(200)),
            refuses: Answer::status(400),
            busy: (busy, Some(Duration::from_secs(7))),
            key: Key::Nowhere,
            preparations: Vec::new(),
            look_up: None,
            varying_headers: Vec::new(),
            exceptions: Vec::new(),
        }
    }

    /// Sets the secret of the account. The suite checks that no outcome repeats it.
    #[must_use]
    pub fn secret(mut self, secret: &str) -> Self {
        self.secret = secret.to_owned().into();
        self
    }

    /// Sets the answer of success. [`Answer::with_message_id`] sets the id that the adapter must report.
    #[must_use]
    pub fn accepts(mut self, answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        self.accepts = Arc::new(answer);
        self
    }

    /// Sets the answer that refuses this message.
    #[must_use]
    pub fn refuses(mut self, answer: Answer) -> Self {
        self.refuses = answer;
        self
    }

    /// Sets the answer of a rate limit, and the time to wait that it contains.
    #[must_use]
    pub fn limits_rate(mut self, answer: Answer, retry_after: Option<Duration>) -> Self {
        self.busy = (answer, retry_after);
        self
    }

    /// Sets the place of the key in every request that acts.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.key = key;
        self
    }

    /// Adds requests that precede the action and send no message, such as a login, and their answers.
    /// They are not counted as actions.
    #[must_use]
    pub fn prepares(
        mut self,
        is: impl Fn(&Request) -> bool + Send + Sync + 'static,
        answer: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    ) -> Self {
        self.preparations.push((Arc::new(is), Arc::new(answer)));
        self
    }

    /// Sets the requests by which the adapter looks an item up, and the answers when the vendor has it and when it does not. `found`
    /// may have an [`Answer::with_message_id`].
    #[must_use]
    pub fn looks_up(
        mut self,
        is: impl Fn(&Request) -> bool + Send + Sync + 'static,
        found: impl Fn(&Request) -> Answer + Send + Sync + 'static,
        missing: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    ) -> Self {
        self.look_up = Some(LookUp { is: Arc::new(is), found: Arc::new(found), missing: Arc::new(missing) });
        self
    }

    /// Adds a header that may differ between a call and its repeat, such as a signature with its time.
    #[must_use]
    pub fn varies(mut self, header: &str) -> Self {
        self.varying_headers.push(header.to_owned());
        self
    }

    /// Adds an exception from the rule that the vendor documents, for example a 5xx that is never carried out. The report shows
    /// the reason. There is no exception for a second request or a missing key.
    #[must_use]
    pub fn differs(mut self, case: Case, kind: OutcomeKind, because: &str) -> Self {
        self.exceptions.push(Exception { case, kind, because: because.to_owned() });
        self
    }

    /// Checks that the subject is complete for the manifest of its adapter.
    pub(super) fn check(&self) -> Result<(), String> {
        let manifest = self.adapter.manifest();
        let name = manifest.name;
        if !manifest.channels.contains(&self.message.channel()) {
            return Err(format!(
                "`{name}` does not serve {} messages; use another message",
                self.message.channel()
            ));
        }
        match manifest.doubt {
            DoubtClass::Key if manifest.key_lifetime.is_none() => {
                Err(format!("`{name}` has class `Key`, but its manifest has no `key_lifetime`; set it"))
            }
            DoubtClass::Key if matches!(self.key, Key::Nowhere) => {
                Err(format!("`{name}` has class `Key`; set the place of the key with `Subject::key`"))
            }
            DoubtClass::Lookup if self.look_up.is_none() => {
                Err(format!("`{name}` has class `Lookup`; set the answers with `Subject::looks_up`"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the resolver repeats calls of this vendor.
    pub(super) fn is_repeated(&self) -> bool {
        matches!(self.adapter.manifest().doubt, DoubtClass::Key | DoubtClass::Natural)
    }

    /// The cases that apply to this vendor.
    pub(super) fn cases(&self) -> impl Iterator<Item = Case> {
        Case::ALL.iter().copied().filter(|case| match case {
            Case::PreparationRefused | Case::PreparationCut => !self.preparations.is_empty(),
            Case::RepeatNotTaken => !self.is_repeated(),
            case if case.is_repeat() => self.is_repeated(),
            case if case.is_look_up() => self.look_up.is_some(),
            _ => true,
        })
    }

    /// The results that the adapter may report in a case: the exception, or the rule.
    pub(super) fn expects(&self, case: Case) -> (Vec<OutcomeKind>, Option<&str>) {
        match self.exceptions.iter().find(|exception| exception.case == case) {
            Some(exception) => (vec![exception.kind], Some(&exception.because)),
            None => (case.rule().to_vec(), None),
        }
    }
}
