//! Imports into one workspace at the same time: each person becomes one lead, whichever file comes first.

use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use super::{Stage, row};
use crate::{
    sql::{acting_as, execute, number, someone_waits},
    world::PATIENCE,
};

const PEOPLE: i64 = 50;

/// Imports the same people: by external id and e-mail address, or by the address alone. Returns how many leads it added,
/// updated, and recognised by their address. The caller commits.
async fn import(session: &mut PgConnection, stage: &Stage, is_by_id: bool) -> anyhow::Result<[i64; 3]> {
    let intake = Uuid::now_v7();
    let (identity, external_id) =
        if is_by_id { ("'id:' || n", "n::text") } else { ("'email:' || n || '@example.org'", "null") };
    let stage_lines = format!(
        "insert into execution.lead_intake (intake, line, lead_id, identity, external_id, email, attributes)
         select '{intake}'::uuid, n, gen_random_uuid(), {identity}, {external_id}, n || '@example.org', '{{}}'::jsonb
           from generate_series(1, {PEOPLE}) as n"
    );
    execute(&mut *session, acting_as(stage.own.id)).await?;
    execute(&mut *session, stage_lines).await?;
    let list = if is_by_id { "by id" } else { "by mail" };
    let import = format!(
        "select added, updated, matched
               from execution.import_leads(tenancy.current_tenant_id(), '{intake}', '{}', '{list}', gen_random_uuid())",
        stage.own.workspace
    );
    let found = row(&mut *session, import).await?;
    Ok([found.try_get("added")?, found.try_get("updated")?, found.try_get("matched")?])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_of_two_imports_at_once_sees_the_leads_of_the_first() -> anyhow::Result<()> {
    for first_is_by_id in [true, false] {
        let stage = Stage::new().await?;
        let (mut first, mut second) = (stage.admin.acquire().await?, stage.admin.acquire().await?);
        let mut first = first.begin().await?;
        let mut second = second.begin().await?;
        assert_eq!(import(&mut first, &stage, first_is_by_id).await?, [PEOPLE, 0, 0]);
        let importing = import(&mut second, &stage, !first_is_by_id);
        let commit = async {
            someone_waits(&stage.admin).await?;
            first.commit().await?;
            anyhow::Ok(())
        };
        let (found, committed) =
            tokio::time::timeout(PATIENCE, async { tokio::join!(importing, commit) }).await?;
        committed?;
        assert_eq!(found?, [0, PEOPLE, PEOPLE], "by id first: {first_is_by_id}");
        second.commit().await?;
        assert_eq!(number(&stage.admin, "select count(*) from execution.leads").await?, PEOPLE);
        assert_eq!(
            number(&stage.admin, "select count(*) from execution.lead_list_members").await?,
            2 * PEOPLE
        );
        let named =
            "select count(*) from execution.leads where external_id is not null and email is not null";
        assert_eq!(number(&stage.admin, named).await?, PEOPLE);
    }
    Ok(())
}
