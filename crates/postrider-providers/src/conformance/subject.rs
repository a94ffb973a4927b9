//! What the suite has to know about a vendor to play it.

use std::{fmt, sync::Arc, time::Duration};

use postrider_model::{DoubtClass, Message};
use secrecy::SecretString;
use serde_json::Value;

use super::{
    case::{Case, Verdict},
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
    pub(super) question: Option<Question>,
    pub(super) varying_headers: Vec<String>,
    pub(super) exceptions: Vec<Exception>,
}

/// How the vendor is asked what became of a message.
#[derive(Clone)]
pub(super) struct Question {
    pub is: Matches,
    pub found: Answers,
    pub missing: Answers,
}

/// An outcome that differs from the rule, because the vendor documents it.
#[derive(Clone)]
pub(super) struct Exception {
    pub case: Case,
    pub verdict: Verdict,
    pub because: String,
}

/// Where the vendor expects the idempotency key.
#[derive(Clone)]
pub enum Key {
    /// It takes none.
    Nowhere,
    /// In a header of its own, as it is.
    Header(&'static str),
    /// Wherever this finds it: the second argument is the key.
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
    /// An adapter that sends `message`. `settings` makes an account's settings that lead to the suite's server: it is given
    /// `http://127.0.0.1:PORT`, without a slash at the end.
    ///
    /// Until it is told otherwise, the vendor accepts with an empty 200, refuses with an empty 400, asks for patience with
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
            question: None,
            varying_headers: Vec::new(),
            exceptions: Vec::new(),
        }
    }

    /// The secret of the account. The suite sees to it that no outcome repeats it.
    #[must_use]
    pub fn secret(mut self, secret: &str) -> Self {
        self.secret = secret.to_owned().into();
        self
    }

    /// How the vendor says yes. [`Answer::with_message_id`] says which id the adapter must find in it.
    #[must_use]
    pub fn accepts(mut self, answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        self.accepts = Arc::new(answer);
        self
    }

    /// How the vendor says no to this very message.
    #[must_use]
    pub fn refuses(mut self, answer: Answer) -> Self {
        self.refuses = answer;
        self
    }

    /// How the vendor says "later", and when that is.
    #[must_use]
    pub fn asks_for_patience(mut self, answer: Answer, retry_after: Option<Duration>) -> Self {
        self.busy = (answer, retry_after);
        self
    }

    /// Where the key must be, in every request that acts.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.key = key;
        self
    }

    /// Requests that do nothing to anybody and come before the action, such as signing in, and how they are answered.
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

    /// Requests with which the adapter looks an item up, and the answers when the vendor has it and when it has not. `found`
    /// may carry an [`Answer::with_message_id`].
    #[must_use]
    pub fn looks_up(
        mut self,
        is: impl Fn(&Request) -> bool + Send + Sync + 'static,
        found: impl Fn(&Request) -> Answer + Send + Sync + 'static,
        missing: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    ) -> Self {
        self.question =
            Some(Question { is: Arc::new(is), found: Arc::new(found), missing: Arc::new(missing) });
        self
    }

    /// A header that may differ between a call and its repeat, such as a signature with its time.
    #[must_use]
    pub fn varies(mut self, header: &str) -> Self {
        self.varying_headers.push(header.to_owned());
        self
    }

    /// What the vendor documents otherwise than the rule has it, for example a 5xx that is never carried out. The reason stands in
    /// the report. A second request or a missing key cannot be excused.
    #[must_use]
    pub fn differs(mut self, case: Case, verdict: Verdict, because: &str) -> Self {
        self.exceptions.push(Exception { case, verdict, because: because.to_owned() });
        self
    }

    /// Whether it says enough about a vendor with such a manifest.
    pub(super) fn check(&self) -> Result<(), String> {
        let manifest = self.adapter.manifest();
        let name = manifest.name;
        if !manifest.channels.contains(&self.message.channel()) {
            return Err(format!("`{name}` carries no {} messages; choose another", self.message.channel()));
        }
        match manifest.doubt {
            DoubtClass::Key if manifest.key_lifetime.is_none() => {
                Err(format!("`{name}` recognises keys, and its manifest does not say for how long"))
            }
            DoubtClass::Key if matches!(self.key, Key::Nowhere) => {
                Err(format!("`{name}` recognises keys; say where they are with `Subject::key`"))
            }
            DoubtClass::Lookup if self.question.is_none() => {
                Err(format!("`{name}` can be asked; say how it answers with `Subject::looks_up`"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the resolver repeats calls of this vendor.
    pub(super) fn is_repeated(&self) -> bool {
        matches!(self.adapter.manifest().doubt, DoubtClass::Key | DoubtClass::Natural)
    }

    /// The cases that make sense for this vendor.
    pub(super) fn cases(&self) -> impl Iterator<Item = Case> {
        Case::ALL.iter().copied().filter(|case| match case {
            Case::PreparationRefused | Case::PreparationCut => !self.preparations.is_empty(),
            Case::RepeatNotTaken => !self.is_repeated(),
            case if case.is_repeat() => self.is_repeated(),
            case if case.is_question() => self.question.is_some(),
            _ => true,
        })
    }

    /// What may be said in a case: the exception first, where there is one.
    pub(super) fn expects(&self, case: Case) -> (Vec<Verdict>, Option<&str>) {
        match self.exceptions.iter().find(|exception| exception.case == case) {
            Some(exception) => (vec![exception.verdict], Some(&exception.because)),
            None => (case.rule().to_vec(), None),
        }
    }
}
