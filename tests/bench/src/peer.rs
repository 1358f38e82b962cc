//! The peer: SQLite as the original cocoon uses it.
//!
//! WAL, `synchronous=FULL`, one connection a process, `BEGIN IMMEDIATE`, a busy timeout of 50 ms and then retries after at
//! most 2 ms of jitter.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, params};
use uuid::Uuid;

use crate::Outcome;

/// How long the original retries before it gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes the database, with some VMs in it.
pub(crate) fn create(path: &Path, residents: usize) -> Outcome {
    let mut connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.execute_batch(
        "CREATE TABLE vms (id TEXT PRIMARY KEY, data BLOB NOT NULL);
         CREATE TABLE names (name TEXT PRIMARY KEY, id TEXT NOT NULL);",
    )?;
    let transaction = connection.transaction()?;
    for number in 0..residents {
        let name = format!("resident-{number}");
        transaction.execute("INSERT INTO vms VALUES (?1, ?2)", params![name, record("created")])?;
        transaction.execute("INSERT INTO names VALUES (?1, ?1)", params![name])?;
    }
    transaction.commit()?;
    Ok(())
}

/// A record of about the size of the original's.
fn record(state: &str) -> Vec<u8> {
    let mut data = format!("{{\"state\":\"{state}\"").into_bytes();
    data.resize(600, b' ');
    data
}

fn open(path: &Path) -> Outcome<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_millis(50))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

/// One transaction of the original's kind, retried as it does.
fn transact(
    connection: &mut Connection,
    work: impl Fn(&rusqlite::Transaction<'_>) -> rusqlite::Result<()>,
) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let attempt = connection
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
            .and_then(|transaction| {
                work(&transaction)?;
                transaction.commit()
            });
        match attempt {
            Ok(()) => return Ok(()),
            Err(rusqlite::Error::SqliteFailure(error, _))
                if error.code == ErrorCode::DatabaseBusy && Instant::now() < deadline =>
            {
                let jitter = u64::from(Uuid::new_v4().as_bytes()[0]) * 8;
                std::thread::sleep(Duration::from_micros(jitter));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reserves a VM and its name, then commits it: two transactions.
pub(crate) fn reserve_and_commit(path: &Path) -> Outcome {
    let mut connection = open(path)?;
    let id = Uuid::new_v4().simple().to_string();
    transact(&mut connection, |transaction| {
        transaction.query_row("SELECT count(*) FROM names WHERE name = ?1", [&id], |row| {
            row.get::<_, i64>(0)
        })?;
        transaction.execute("INSERT INTO vms VALUES (?1, ?2)", params![id, record("creating")])?;
        transaction.execute("INSERT INTO names VALUES (?1, ?1)", params![id]).map(|_| ())
    })?;
    transact(&mut connection, |transaction| {
        transaction.query_row("SELECT data FROM vms WHERE id = ?1", [&id], |row| {
            row.get::<_, Vec<u8>>(0)
        })?;
        transaction
            .execute("UPDATE vms SET data = ?2 WHERE id = ?1", params![id, record("created")])
            .map(|_| ())
    })
}

/// Some transactions that each replace a record.
pub(crate) fn commits(path: &Path, count: usize) -> Outcome {
    let mut connection = open(path)?;
    for _ in 0..count {
        transact(&mut connection, |transaction| {
            transaction
                .execute(
                    "UPDATE vms SET data = ?1 WHERE id = 'resident-0'",
                    params![record("gone")],
                )
                .map(|_| ())
        })?;
    }
    Ok(())
}
