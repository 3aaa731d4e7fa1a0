use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use mesh_actors::events::{Lifecycle, Receipt, ReceiptEnd, RequestEnd};
use mesh_proto::{
    RequestId, SessionId,
    v1::{FinishReason, RequestTimings},
};
use proptest::prelude::*;
use tempfile::TempDir;

use super::{
    chain::ChainKey,
    directory, head,
    log::{LogOptions, ReceiptLog},
    verify::verify_files,
    *,
};
use crate::NodeError;

/// Long enough for two files.
const LINES: u64 = 12;

/// A file holds seven of the lines.
const SMALL: u64 = 1024;

fn key() -> ChainKey {
    ChainKey::new(&[7; 32])
}

fn options(directory: &Path) -> LogOptions {
    LogOptions {
        directory: directory.to_owned(),
        key: key(),
        rotate_bytes: SMALL,
    }
}

fn open(directory: &Path) -> ReceiptLog {
    ReceiptLog::open(options(directory)).unwrap()
}

fn write(log: &mut ReceiptLog, lines: u64) {
    for count in 1..=lines {
        log.append([Content::Lost { count }]).unwrap();
    }
    log.commit(true).unwrap();
}

/// A log of two files, and all that is in it.
fn written() -> (TempDir, Vec<(PathBuf, Vec<u8>)>) {
    let dir = tempfile::tempdir().unwrap();
    write(&mut open(dir.path()), LINES);
    let files = directory::files(dir.path()).unwrap();
    let read = |file: directory::LogFile| (file.path.clone(), fs::read(file.path).unwrap());
    let files: Vec<_> = files.into_iter().map(read).collect();
    assert_eq!(files.len(), 2);
    (dir, files)
}

fn faults(directory: &Path) -> Vec<Fault> {
    verify_files(directory, &key()).unwrap().faults
}

/// What is wrong first.
fn first_fault(directory: &Path) -> String {
    let fault = faults(directory).into_iter().next().expect("a fault");
    let file = fault.file.file_name().unwrap().to_str().unwrap().to_owned();
    format!("{file}:{}: {}", fault.line, fault.fault)
}

fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes
        .split_inclusive(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect()
}

fn seqs(data_dir: &Path) -> Vec<u64> {
    let mut seqs = Vec::new();
    export(data_dir, 0, |line| {
        seqs.push(line.record.seq);
        Ok::<_, NodeError>(true)
    })
    .unwrap();
    seqs
}

#[test]
fn a_log_goes_on_over_files_and_restarts_without_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let receipts = directory::receipts_dir(dir.path());
    assert_eq!(faults(&receipts), []);
    for _ in 0..3 {
        write(&mut open(&receipts), LINES);
    }
    let found = verify(dir.path(), &key()).unwrap();
    assert_eq!((found.faults.len(), found.lines, found.last_seq), (0, 36, 36));
    assert!(found.files >= 5, "{}", found.files);
    assert!(
        directory::files(&receipts)
            .unwrap()
            .iter()
            .all(|file| fs::metadata(&file.path).unwrap().len() <= SMALL)
    );
    assert_eq!(seqs(dir.path()), (1..=36).collect::<Vec<_>>());
    let mut since = Vec::new();
    export(dir.path(), 30, |line| {
        assert!(serde_json::from_str::<serde_json::Value>(line.text).unwrap()["hash"].is_string());
        since.push(line.record.seq);
        Ok::<_, NodeError>(true)
    })
    .unwrap();
    assert_eq!(since, (30..=36).collect::<Vec<_>>());
}

#[cfg(unix)]
#[test]
fn receipts_are_readable_by_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let (dir, _) = written();
    for entry in fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(
            entry.metadata().unwrap().permissions().mode() & 0o777,
            0o600,
            "{:?}",
            entry.path()
        );
    }
}

#[test]
fn a_torn_line_is_cut_off_and_the_log_says_so() {
    let (dir, files) = written();
    let (path, bytes) = &files[1];
    fs::write(path, [bytes.as_slice(), b"{\"seq\":13,\"ti"].concat()).unwrap();
    assert!(
        first_fault(dir.path()).ends_with("06: the line has no end: it is torn, as after a crash")
            || first_fault(dir.path()).contains("the line has no end")
    );
    write(&mut open(dir.path()), 1);
    let found = verify_files(dir.path(), &key()).unwrap();
    assert_eq!((found.faults.len(), found.torn, found.last_seq), (0, 1, LINES + 2));
}

#[test]
fn a_file_of_nothing_but_a_torn_line_goes() {
    let dir = tempfile::tempdir().unwrap();
    write(&mut open(dir.path()), 1);
    let torn = directory::path_of(dir.path(), 2);
    fs::write(&torn, b"{").unwrap();
    write(&mut open(dir.path()), 1);
    let found = verify_files(dir.path(), &key()).unwrap();
    assert_eq!((found.faults.len(), found.torn, found.last_seq), (0, 1, 3));
    assert!(!torn.exists());
}

#[test]
fn lines_that_are_cut_off_at_the_end_show_before_and_after_a_restart() {
    let (dir, files) = written();
    fs::remove_file(&files[1].0).unwrap();
    assert!(first_fault(dir.path()).contains("are missing after this line: the end was cut off"));
    write(&mut open(dir.path()), 1);
    assert!(
        first_fault(dir.path()).contains("the node found lines missing here"),
        "{}",
        first_fault(dir.path())
    );
    // Without the head, nobody knows how many.
    fs::remove_file(dir.path().join(head::NAME)).unwrap();
    assert!(first_fault(dir.path()).starts_with("head.json:1: the file is gone"));
    write(&mut open(dir.path()), 1);
    assert_eq!(faults(dir.path()).len(), 2);
}

#[test]
fn every_kind_of_change_is_named() {
    let (dir, files) = written();
    let (path, bytes) = &files[0];
    let whole = lines(bytes);
    let name = path.file_name().unwrap().to_str().unwrap();
    let expect = |changed: Vec<Vec<u8>>, fault: &str| {
        fs::write(path, changed.concat()).unwrap();
        assert_eq!(first_fault(dir.path()), format!("{name}:{fault}"));
    };
    let edited = |from: &str, to: &str| {
        let mut lines = whole.clone();
        lines[2] = String::from_utf8(lines[2].clone())
            .unwrap()
            .replace(from, to)
            .into_bytes();
        lines
    };
    expect(
        edited("\"count\":3", "\"count\":4"),
        "3: line number 3 or the one before it was changed",
    );
    expect(
        edited("{\"seq\"", "[\"seq\""),
        "3: not a line of a log: changed or damaged",
    );
    let mut removed = whole.clone();
    removed.remove(1);
    expect(removed, "2: numbers 2 are missing before this line");
    let mut doubled = whole.clone();
    doubled.insert(2, whole[1].clone());
    expect(doubled, "3: line number 2 is here for a second time");
    let mut swapped = whole.clone();
    swapped.swap(1, 2);
    expect(swapped, "2: numbers 2 are missing before this line");
    let out_of_order = |fault: &Fault| fault.fault == "line number 2 is out of order" && fault.line == 3;
    assert!(faults(dir.path()).iter().any(out_of_order));
    fs::remove_file(path).unwrap();
    assert!(first_fault(dir.path()).ends_with("are missing before this line"));
}

#[test]
fn another_key_is_named_and_not_written_over() {
    let (dir, _) = written();
    let other = ChainKey::new(&[8; 32]);
    let found = verify_files(dir.path(), &other).unwrap();
    assert_eq!(found.faults[0].fault, "written with another key than this node's");
    let error = ReceiptLog::open(LogOptions {
        key: other.clone(),
        ..options(dir.path())
    })
    .expect_err("another key");
    assert!(error.to_string().contains("another key"), "{error}");
    // A head that says otherwise helps nobody.
    head::Head::NEW.write(dir.path(), &other, false).unwrap();
    assert!(!verify_files(dir.path(), &other).unwrap().faults.is_empty());
}

#[test]
fn a_log_that_ends_in_something_else_is_not_written_to() {
    let (dir, files) = written();
    fs::write(&files[1].0, b"something else\n").unwrap();
    let error = ReceiptLog::open(options(dir.path())).expect_err("damaged").to_string();
    assert!(error.contains("mesh receipts verify"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_change_of_a_byte_goes_unseen(file in 0usize..2, place in any::<prop::sample::Index>(), to in any::<u8>()) {
        let (dir, files) = written();
        let (path, mut bytes) = files[file].clone();
        let place = place.index(bytes.len());
        prop_assume!(bytes[place] != to);
        bytes[place] = to;
        fs::write(path, bytes).unwrap();
        prop_assert!(!faults(dir.path()).is_empty());
    }

    #[test]
    fn no_line_that_is_removed_doubled_or_moved_goes_unseen(
        from in 0..LINES as usize,
        to in 0..LINES as usize,
        what in 0u8..3,
    ) {
        let (dir, files) = written();
        let first = lines(&files[0].1).len();
        let mut all: Vec<_> = files.iter().flat_map(|(_, bytes)| lines(bytes)).collect();
        match what {
            0 => drop(all.remove(from)),
            1 => all.insert(to, all[from].clone()),
            _ => {
                prop_assume!(from != to);
                let line = all.remove(from);
                all.insert(to, line);
            }
        }
        let (one, two) = all.split_at(first);
        fs::write(&files[0].0, one.concat()).unwrap();
        fs::write(&files[1].0, two.concat()).unwrap();
        prop_assert!(!faults(dir.path()).is_empty());
    }
}

proptest! {
    // Few: an unfinished line is looked at for a while, as a node may be about to finish it.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_piece_that_is_cut_off_at_the_end_goes_unseen(length in any::<prop::sample::Index>()) {
        let (dir, files) = written();
        let (path, bytes) = &files[1];
        fs::write(path, &bytes[..length.index(bytes.len())]).unwrap();
        prop_assert!(!faults(dir.path()).is_empty());
    }
}

fn receipt(tokens: usize) -> Arc<Receipt> {
    Arc::new(Receipt {
        request: RequestId::random(),
        attempt: 1,
        deployment: "d".into(),
        model_id: "m".into(),
        session: SessionId(8),
        agent_session: None,
        prompt_tokens: 3,
        prompt_digest: [1; 32],
        generated: vec![5; tokens],
        token_us: vec![9; tokens],
        end: ReceiptEnd::Finished(FinishReason::Stop),
        seed: u64::MAX,
        arrived: SystemTime::now(),
        ended: SystemTime::now(),
        timings: RequestTimings::default(),
    })
}

fn end(sink: &ReceiptSink, receipt: &Arc<Receipt>) {
    let kind = Lifecycle::Finished(receipt.clone());
    sink.observer().ended(&RequestEnd {
        request: receipt.request,
        operation: mesh_actors::events::Operation::Chat,
        deployment: "d",
        trace: None,
        arrived: receipt.arrived,
        ended: receipt.ended,
        kind: &kind,
    });
}

fn sink(data_dir: &Path, policy: ReceiptPolicy, token_ids: bool) -> ReceiptSink {
    let options = SinkOptions {
        data_dir: data_dir.to_owned(),
        key: key(),
        node: "a".to_owned(),
        policy,
        token_ids,
    };
    ReceiptSink::start(options).unwrap().expect("they are on")
}

fn contents(data_dir: &Path) -> Vec<Content> {
    let mut contents = Vec::new();
    export(data_dir, 1, |line| {
        contents.push(line.record.content);
        Ok::<_, NodeError>(true)
    })
    .unwrap();
    contents
}

#[tokio::test]
async fn what_is_queued_is_written_before_the_node_has_stopped() {
    for policy in [ReceiptPolicy::Always, ReceiptPolicy::Interval, ReceiptPolicy::Never] {
        let dir = tempfile::tempdir().unwrap();
        let sink = sink(dir.path(), policy, policy == ReceiptPolicy::Always);
        for tokens in 0..50 {
            end(&sink, &receipt(tokens));
        }
        let late = sink.observer.clone();
        sink.close().await;
        assert!(!late.is_queued(&receipt(1)));
        let found = verify(dir.path(), &key()).unwrap();
        assert_eq!(
            (found.faults.len(), found.receipts, found.lost),
            (0, 50, 0),
            "{policy:?}"
        );
        let Content::Receipt { receipt } = contents(dir.path()).swap_remove(2) else {
            panic!("no receipt");
        };
        assert_eq!(
            (receipt.completion_tokens, receipt.seed, receipt.end()),
            (2, u64::MAX, "stop")
        );
        assert_eq!(receipt.token_ids, (policy == ReceiptPolicy::Always).then(|| vec![5, 5]));
    }
}

#[tokio::test]
async fn receipts_that_a_disk_does_not_take_are_counted_and_told_of_when_it_does() {
    let dir = tempfile::tempdir().unwrap();
    let sink = sink(dir.path(), ReceiptPolicy::Always, false);
    let receipts = directory::receipts_dir(dir.path());
    // A directory in place of the file: writes fail until it is gone.
    let in_the_way = directory::path_of(&receipts, 1);
    fs::create_dir(&in_the_way).unwrap();
    end(&sink, &receipt(1));
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while (sink.figures())().lost == 0 && std::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(((sink.figures())().lost, (sink.figures())().written), (1, 0));
    fs::remove_dir(&in_the_way).unwrap();
    end(&sink, &receipt(1));
    sink.close().await;
    let contents = contents(dir.path());
    assert!(
        matches!(contents[..], [Content::Receipt { .. }, Content::Lost { count: 1 }]),
        "{contents:?}"
    );
    assert_eq!(verify(dir.path(), &key()).unwrap().faults, []);
}

#[tokio::test]
async fn a_queue_that_is_full_loses_and_counts() {
    let dir = tempfile::tempdir().unwrap();
    let sink = sink(dir.path(), ReceiptPolicy::Never, false);
    sink.observer
        .counters
        .queued_bytes
        .store(usize::MAX / 2, std::sync::atomic::Ordering::Relaxed);
    end(&sink, &receipt(1));
    assert_eq!((sink.figures())().lost, 1);
    sink.close().await;
    assert!(matches!(contents(dir.path())[..], [Content::Lost { count: 1 }]));
}
