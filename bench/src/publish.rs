//! Publishing: 1,000 events in a transaction, and one event in each.

use std::time::Instant;

use crate::{
    Scale,
    drive::{Batch, Client, Side},
    place::{Database, Place},
    report::Report,
};

const BATCH: usize = 1000;
const CLIENTS: usize = 8;

pub(crate) async fn measure(place: &Place, scale: Scale, report: &mut Report) -> anyhow::Result<()> {
    let mut batched = Vec::new();
    let mut single = Vec::new();
    for round in 0..scale.rounds {
        let mut rates = [[0.0; 2]; 2];
        for (at, side) in Side::BOTH.into_iter().enumerate() {
            let database = place.fresh(&format!("bench_publish_{round}_{at}")).await?;
            rates[0][at] = in_batches(&database, side, scale.events).await?;
            rates[1][at] = one_by_one(&database, side, scale.single_events).await?;
            database.remove().await?;
        }
        batched.push(rates[0].into());
        single.push(rates[1].into());
    }
    report.compare("publish, batches of 1,000, 1 connection", &batched, None);
    report.compare("publish, a commit each, 8 connections", &single, None);
    Ok(())
}

async fn in_batches(database: &Database<'_>, side: Side, events: i64) -> anyhow::Result<f64> {
    let batch = Batch::of(BATCH);
    let batches = usize::try_from(events)? / BATCH;
    let mut client = Client::publisher(database, side).await?;
    let begun = Instant::now();
    for _ in 0..batches {
        client.publish(&batch).await?;
    }
    let took = begun.elapsed();
    client.close().await?;
    Ok((batches * BATCH) as f64 / took.as_secs_f64())
}

async fn one_by_one(database: &Database<'_>, side: Side, events: i64) -> anyhow::Result<f64> {
    let each = usize::try_from(events)? / CLIENTS;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Client::publisher(database, side).await?);
    }
    let begun = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for mut client in clients {
        tasks.spawn(async move {
            let batch = Batch::of(1);
            for _ in 0..each {
                client.publish(&batch).await?;
            }
            client.close().await
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok((each * CLIENTS) as f64 / begun.elapsed().as_secs_f64())
}
