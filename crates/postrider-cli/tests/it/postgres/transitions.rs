//! The n × n test of a table's transitions: every pair of states is tried in raw SQL, as the most powerful client
//! there is, and the database must allow exactly what the model allows.

use std::fmt::Debug;

use postrider_model::events::EventState;
use sqlx::{AssertSqlSafe, PgPool};

use crate::{
    sql::{execute, refusal, tenant},
    world::World,
};

/// A table whose rows have states.
pub struct Machine<S> {
    pub table: &'static str,
    /// An expression that names the state of a row.
    pub state: &'static str,
    pub states: Vec<StateSql<S>>,
}

/// How one state is made.
pub struct StateSql<S> {
    pub state: S,
    /// The value of the machine's expression in this state.
    pub name: &'static str,
    /// Columns and values of a new row in this state.
    pub insert: String,
    /// Statements that bring the new row there, where no insert alone can.
    pub then: String,
    /// The assignments after `set` in the update that leads here.
    pub set: &'static str,
}

/// Tries every pair and says where the database and the model disagree.
pub async fn disagreements<S: Copy + Debug>(
    admin: &PgPool,
    machine: &Machine<S>,
    may_become: impl Fn(S, S) -> bool,
) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    for from in &machine.states {
        for to in &machine.states {
            let allowed = try_pair(admin, machine, from, to).await?;
            if allowed != may_become(from.state, to.state) {
                let database = if allowed { "allows" } else { "refuses" };
                wrong
                    .push(format!("{}: the database {database} {} -> {}", machine.table, from.name, to.name));
            }
        }
    }
    Ok(wrong)
}

/// Whether a row in one state can be brought into the other. Leaves no trace.
async fn try_pair<S>(
    admin: &PgPool,
    machine: &Machine<S>,
    from: &StateSql<S>,
    to: &StateSql<S>,
) -> anyhow::Result<bool> {
    let Machine { table, state, .. } = machine;
    let mut transaction = admin.begin().await?;
    execute(&mut *transaction, format!("insert into {table} {}; {}", from.insert, from.then)).await?;
    let made = format!("select ctid::text, {state} from {table} where xmin = pg_current_xact_id()::xid");
    let (at, begun): (String, String) =
        sqlx::query_as(AssertSqlSafe(made)).fetch_one(&mut *transaction).await?;
    anyhow::ensure!(begun == from.name, "{table}: the row begins as {begun}, not as {}", from.name);

    let update = format!("update {table} set {} where ctid = '{at}' returning {state}", to.set);
    let outcome = sqlx::query_scalar::<_, String>(AssertSqlSafe(update)).fetch_one(&mut *transaction).await;
    transaction.rollback().await?;
    match outcome {
        Ok(reached) => {
            anyhow::ensure!(reached == to.name, "{table}: the update led to {reached}, not to {}", to.name);
            Ok(true)
        }
        refused => {
            // Only a guard's refusal counts: a mistake in the statement is not one.
            let refused = refusal(refused)?;
            anyhow::ensure!(refused.code == "23514", "{table}: {} -> {}: {refused:?}", from.name, to.name);
            Ok(false)
        }
    }
}

fn outbox() -> Machine<EventState> {
    let row = |columns: &str, values: &str| {
        format!(
            "(aggregate_type, aggregate_id, event_type, payload{columns}) values ('a', '1', 'e', '{{}}'{values})"
        )
    };
    Machine {
        table: "m10_recovery.outbox",
        state: "case when processed_at is not null then 'processed' when claimed_at is not null then 'claimed' else 'pending' end",
        states: vec![
            StateSql {
                state: EventState::Pending,
                name: "pending",
                insert: row("", ""),
                then: String::new(),
                set: "processed_at = null, claimed_at = null, claimed_by = null",
            },
            StateSql {
                state: EventState::Claimed,
                name: "claimed",
                insert: row(", claimed_at, claimed_by", ", now(), 'p'"),
                then: String::new(),
                set: "processed_at = null, claimed_at = now(), claimed_by = 'q'",
            },
            StateSql {
                state: EventState::Processed,
                name: "processed",
                insert: row(", claimed_at, claimed_by, processed_at", ", now(), 'p', now()"),
                then: String::new(),
                set: "processed_at = now()",
            },
        ],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_changes_its_state_exactly_as_the_model_says() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    let machine = outbox();
    let covered: Vec<EventState> = machine.states.iter().map(|state| state.state).collect();
    assert_eq!(covered, EventState::ALL);

    assert_eq!(disagreements(&admin, &machine, EventState::may_become).await?, [""; 0]);
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyState {
    Active,
    Revoked,
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_key_once_revoked_never_changes_again() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    let (own, _) = tenant(&admin, "own").await?;
    let row = |revoked_at: &str| {
        format!(
            "(id, tenant_id, name, role, hint, key_hash, revoked_at) \
             values (gen_random_uuid(), '{own}', 'n', 'viewer', 'pr_abc', sha256('x'), {revoked_at})"
        )
    };
    let machine = Machine {
        table: "tenancy.api_keys",
        state: "case when revoked_at is null then 'active' else 'revoked' end",
        states: vec![
            StateSql {
                state: KeyState::Active,
                name: "active",
                insert: row("null"),
                then: String::new(),
                set: "revoked_at = null, last_used_at = now()",
            },
            StateSql {
                state: KeyState::Revoked,
                name: "revoked",
                insert: row("now()"),
                then: String::new(),
                set: "revoked_at = now()",
            },
        ],
    };

    assert_eq!(disagreements(&admin, &machine, |from, _| from == KeyState::Active).await?, [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_guard_and_a_guard_too_many_are_both_noticed() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    execute(&admin, "drop trigger outbox_processed_is_final on m10_recovery.outbox").await?;
    let missing = disagreements(&admin, &outbox(), EventState::may_become).await?;
    assert_eq!(
        missing,
        [
            "m10_recovery.outbox: the database allows processed -> pending",
            "m10_recovery.outbox: the database allows processed -> claimed",
            "m10_recovery.outbox: the database allows processed -> processed",
        ]
    );

    execute(
        &admin,
        "create trigger too_much before update on m10_recovery.outbox for each row
         when (old.processed_at is not null or old.claimed_at is not null and new.claimed_at is null)
         execute function tenancy.refuse_change('no')",
    )
    .await?;
    let too_many = disagreements(&admin, &outbox(), EventState::may_become).await?;
    assert_eq!(too_many, ["m10_recovery.outbox: the database refuses claimed -> pending"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_audit_and_unprocessed_events_stay_even_against_a_superuser() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    let (own, workspace) = tenant(&admin, "own").await?;
    for state in ["null", "now()"] {
        let insert = format!(
            "insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload, processed_at) values ('a', '1', 'e', '{{}}', {state})"
        );
        execute(&admin, insert).await?;
    }
    let account = format!(
        "insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, sealed_secret)
         values (gen_random_uuid(), '{own}', '{workspace}', 'mail', 'smtp', 'x')"
    );
    execute(&admin, account).await?;
    let mut attempts: Vec<String> = [
        "id = default",
        "aggregate_type = 'b'",
        "aggregate_id = '2'",
        "event_type = 'f'",
        "payload = '[]'",
        "created_at = now()",
        "tenant_id = (select id from tenancy.tenants where name = 'own')",
    ]
    .map(|change| format!("update m10_recovery.outbox set {change} where processed_at is null"))
    .into();
    attempts.extend(
        [
            "delete from m10_recovery.outbox where processed_at is null",
            "truncate m10_recovery.outbox cascade",
            "update m10_recovery.outbox set retry_count = -1 where processed_at is null",
            "update m10_recovery.outbox set claimed_at = now() where processed_at is null",
            "update tenancy.tenants set name = 'x' where name = 'system'",
            "delete from tenancy.tenants where name = 'system'",
            "update tenancy.audit_log set note = 'x'",
            "delete from tenancy.audit_log",
            "truncate tenancy.audit_log",
            "update tenancy.provider_accounts set id = gen_random_uuid()",
            "update tenancy.provider_accounts set tenant_id = gen_random_uuid()",
        ]
        .map(str::to_owned),
    );
    for attempt in attempts {
        let refused =
            refusal(execute(&admin, &attempt).await).map_err(|error| error.context(attempt.clone()))?;
        assert_eq!(refused.code, "23514", "{attempt}: {refused:?}");
    }
    execute(&admin, "delete from m10_recovery.outbox where processed_at is not null").await?;
    Ok(())
}
