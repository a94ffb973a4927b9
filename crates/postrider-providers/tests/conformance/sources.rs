//! Reservations of the suite come from a real database, and only from the suite's own rows.

use std::collections::HashSet;

use postrider_model::Message;
use postrider_providers::conformance::Reservations;
use postrider_store::postgres::{
    embedded::{Cluster, Options, SUPERUSER},
    provision,
};

/// The keys of `count` reservations; half of them are put in doubt.
async fn keys(source: &Reservations, message: &Message, count: usize) -> Vec<String> {
    let mut keys = Vec::new();
    for (n, reservation) in source.take(message, count).await.unwrap().into_iter().enumerate() {
        assert_eq!(reservation.channel(), message.channel());
        let key = reservation.key().to_string();
        if n % 2 == 0 {
            let doubt = source.doubt(reservation).await.unwrap();
            assert_eq!((doubt.key().to_string(), doubt.recipient()), (key.clone(), message.recipient()));
        }
        keys.push(key);
    }
    assert_eq!(keys.len(), count);
    keys
}

#[tokio::test]
async fn sources_in_one_database_do_not_take_from_each_other() {
    let data_dir = std::env::temp_dir().join(format!("postrider-sources-{}", std::process::id()));
    let options = Options { data_dir: data_dir.clone(), ..Options::default() };
    let cluster =
        tokio::task::spawn_blocking(move || Cluster::start_or_adopt(&options)).await.unwrap().unwrap();
    provision::ensure_database(&cluster.url(SUPERUSER, "postgres"), "shared").await.unwrap();
    let url = cluster.url(SUPERUSER, "shared");

    let one = Reservations::in_database(&url).await.unwrap();
    let two = Reservations::in_database(&url).await.unwrap();
    let messages = [crate::email(), crate::voice(), crate::social()];
    let mut all = HashSet::new();
    for message in &messages {
        let (first, second) = tokio::join!(keys(&one, message, 4), keys(&two, message, 6));
        all.extend(first.into_iter().chain(second));
    }
    assert_eq!(all.len(), messages.len() * 10, "all keys differ");

    drop((one, two));
    tokio::task::spawn_blocking(move || cluster.stop()).await.unwrap().unwrap();
    std::fs::remove_dir_all(data_dir).unwrap();
}
