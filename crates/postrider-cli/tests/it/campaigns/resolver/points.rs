//! A resolver dies at every boundary, alone, and the next one finds what it left.
#![cfg(debug_assertions)]

use anyhow::Context;
use postrider_store::postgres::crash::RESOLVER_POINTS;

use super::{LEADS, OUTBOUND, Scene};
use crate::{
    exits::Exit,
    sql::execute,
    world::{Process, postrider},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_resolver_that_dies_at_any_point_leaves_what_the_next_one_can_settle() -> anyhow::Result<()> {
    for point in RESOLVER_POINTS {
        let scene = Scene::new(&["--rule", r#"{"fault": "reset_before"}"#]).await?;
        let run = scene.deploy("webhook", "email").await?;
        scene.doubt(&[run]).await?;
        scene.end_faults()?;

        let config = scene.world.config(OUTBOUND)?;
        let mut command = postrider();
        command
            .envs(Exit::Kill.environment(point))
            .arg("--config")
            .arg(config.path())
            .args(["serve", "--roles", "resolver"]);
        let mut process = Process::start(&mut command)?;
        Exit::Kill.ended(&mut process).context(*point)?;

        // The lease ends.
        execute(&scene.stage.admin, "update execution.doubts set held_until = now() - interval '1 second'")
            .await?;
        let _resolver = scene.serve("campaigns,resolver")?;
        assert_eq!(scene.stage.ended(run).await?, "completed", "{point}");
        assert_eq!(scene.stage.items(run).await?, [("sent".to_owned(), LEADS)].into(), "{point}");
        assert_eq!(scene.acted_in(run).await?, [1; LEADS], "{point}");
    }
    Ok(())
}
