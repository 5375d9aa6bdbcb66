//! The line without a network: who goes first, who waits, who leaves.

use super::*;

const BOOKS: usize = 2;
const SAMPLES: usize = 80;

fn line(streams: usize) -> SoundLine {
    SoundLine::new(LineLimits {
        streams,
        codebooks: BOOKS,
        frame_samples: SAMPLES,
        sample_rate: 1000,
        frames_waiting: 8,
        chunks_waiting: 2,
    })
}

fn order(sizes: &[usize]) -> SoundOrder {
    SoundOrder {
        chunking: Chunking::Ramp {
            sizes: sizes.to_vec(),
        },
        first_chunk: None,
        unheard_frames: 0,
        began: Instant::now(),
        silent_frames: Arc::default(),
    }
}

/// Decodes like a network whose samples are the frame's first code over 100.
fn work(line: &SoundLine) -> usize {
    // Not `next`, which would wait for ever where a test is wrong.
    line.sweep(&mut line.lock());
    let work = line.choose(&mut line.lock()).unwrap();
    let pcm: Vec<f32> = work
        .codes
        .chunks(BOOKS)
        .flat_map(|codes| [codes[0] as f32 / 100.0; SAMPLES])
        .collect();
    let slot = work.slot;
    line.made(work, &pcm);
    slot
}

fn chunk(events: &mut mpsc::Receiver<SoundEvent>) -> (usize, Vec<f32>) {
    match events.try_recv() {
        Ok(SoundEvent::Chunk { pcm, frames }) => (frames, pcm),
        other => panic!("{other:?}"),
    }
}

#[test]
fn frames_become_chunks_of_the_sizes_asked_for_and_the_rest_at_the_end() {
    let line = line(1);
    let (source, mut events) = line.open(order(&[1, 3])).unwrap();
    for frame in 0..5u16 {
        assert_eq!(source.push(&[frame, 0]), Push::Taken);
    }
    work(&line);
    let (frames, pcm) = chunk(&mut events);
    assert_eq!((frames, pcm.len()), (1, SAMPLES));
    work(&line);
    let (frames, pcm) = chunk(&mut events);
    assert_eq!(frames, 3);
    assert!((pcm[0] - 0.01).abs() < 1e-6 && (pcm[2 * SAMPLES] - 0.03).abs() < 1e-6);
    source.finish();
    work(&line);
    assert_eq!(chunk(&mut events).0, 1);
    assert!(line.choose(&mut line.lock()).is_none());
    line.sweep(&mut line.lock());
    let Ok(SoundEvent::Done { heard: Some(heard) }) = events.try_recv() else {
        panic!("not done");
    };
    assert_eq!(heard.chunks, 3);
    assert!((heard.audio_s - 0.4).abs() < 1e-9);
    assert_eq!(line.streams(), 0);
}

#[test]
fn a_long_chunk_is_decoded_pass_by_pass_and_sent_once() {
    let line = line(1);
    let (source, mut events) = line.open(order(&[7])).unwrap();
    for frame in 0..7u16 {
        source.push(&[frame, 0]);
    }
    work(&line);
    assert!(events.try_recv().is_err());
    work(&line);
    assert_eq!(chunk(&mut events).0, 7);
}

#[test]
fn a_full_stream_pushes_back_and_what_it_holds_is_sent() {
    let line = line(1);
    let (source, mut events) = line.open(order(&[20])).unwrap();
    for _ in 0..8 {
        assert_eq!(source.push(&[1, 1]), Push::Taken);
    }
    assert_eq!(source.push(&[1, 1]), Push::Full);
    assert_eq!(source.room(), 0);
    work(&line);
    assert_eq!(source.room(), 4);
    work(&line);
    // A chunk larger than the line holds would never come: it is sent as large as it can be.
    assert_eq!(chunk(&mut events).0, 8);
}

#[test]
fn a_listener_who_does_not_read_holds_up_only_its_own_stream() {
    let line = line(2);
    let (slow, mut unread) = line.open(order(&[1])).unwrap();
    let (quick, mut read) = line.open(order(&[1])).unwrap();
    for _ in 0..8 {
        slow.push(&[1, 1]);
    }
    work(&line);
    work(&line);
    assert!(line.choose(&mut line.lock()).is_none(), "two chunks wait unread");
    for _ in 0..8 {
        quick.push(&[2, 2]);
        assert_eq!(work(&line), 1);
        chunk(&mut read);
    }
    chunk(&mut unread);
    assert_eq!(work(&line), 0);
    // The last event still fits a full channel.
    slow.fail(stopping());
    chunk(&mut unread);
    chunk(&mut unread);
    assert!(matches!(unread.try_recv(), Ok(SoundEvent::Failed(_))));
}

#[test]
fn the_stream_that_runs_dry_first_goes_first() {
    let line = line(2);
    let (ahead, mut a) = line.open(order(&[4, 1])).unwrap();
    let (behind, mut b) = line.open(order(&[1])).unwrap();
    for _ in 0..5 {
        ahead.push(&[1, 1]);
    }
    assert_eq!(work(&line), 0);
    behind.push(&[2, 2]);
    assert_eq!(work(&line), 1);
    // 320 ms of sound against 80.
    behind.push(&[2, 2]);
    assert_eq!(work(&line), 1);
    assert_eq!(work(&line), 0);
    assert_eq!((chunk(&mut a).0, chunk(&mut b).0), (4, 1));
}

#[test]
fn leaving_at_either_end_frees_the_slot_at_once() {
    let line = line(1);
    let (source, events) = line.open(order(&[1])).unwrap();
    assert_eq!(line.open(order(&[1])).unwrap_err().code, Code::QueueFull);
    drop(source);
    assert_eq!(line.streams(), 0);
    drop(events);

    let (source, events) = line.open(order(&[1])).unwrap();
    source.push(&[1, 1]);
    drop(events);
    assert_eq!(source.push(&[1, 1]), Push::Gone);
    line.sweep(&mut line.lock());
    assert_eq!(line.streams(), 0);
    // The old source cannot touch the slot's next stream.
    let (next, mut events) = line.open(order(&[1])).unwrap();
    assert_eq!(source.push(&[9, 9]), Push::Gone);
    drop(source);
    next.push(&[3, 3]);
    work(&line);
    assert!((chunk(&mut events).1[0] - 0.03).abs() < 1e-6);
}

#[test]
fn leaving_during_a_pass_drops_what_the_pass_made() {
    let line = line(1);
    let (source, mut events) = line.open(order(&[1])).unwrap();
    source.push(&[1, 1]);
    let under_way = line.next().unwrap();
    drop(source);
    assert!(matches!(events.try_recv(), Ok(SoundEvent::Failed(problem)) if problem.code == Code::Cancelled));
    let (next, mut heard) = line.open(order(&[1])).unwrap();
    line.made(under_way, &[0.5; SAMPLES]);
    assert!(heard.try_recv().is_err());
    next.push(&[2, 2]);
    let work = line.next().unwrap();
    assert!(work.first);
}

#[test]
fn a_failure_ends_its_stream_alone() {
    let line = line(2);
    let (one, mut first) = line.open(order(&[1])).unwrap();
    let (two, mut second) = line.open(order(&[1])).unwrap();
    one.push(&[1, 1]);
    let broken = line.next().unwrap();
    line.failed(&broken, stopping());
    assert!(matches!(first.try_recv(), Ok(SoundEvent::Failed(_))));
    assert_eq!(one.push(&[1, 1]), Push::Gone);
    two.push(&[2, 2]);
    work(&line);
    chunk(&mut second);
}

#[test]
fn the_frames_of_a_recording_are_decoded_and_not_heard() {
    let line = line(1);
    let (source, mut events) = line
        .open(SoundOrder {
            unheard_frames: 6,
            ..order(&[2])
        })
        .unwrap();
    for frame in 0..8u16 {
        source.push(&[frame, 0]);
    }
    work(&line);
    work(&line);
    assert!(events.try_recv().is_err());
    work(&line);
    let (frames, pcm) = chunk(&mut events);
    assert_eq!((frames, pcm.len()), (2, 2 * SAMPLES));
    assert!((pcm[0] - 0.06).abs() < 1e-6);
}

#[test]
fn silence_is_counted_until_something_is_heard() {
    let line = line(1);
    let silent = Arc::new(AtomicUsize::new(0));
    let (source, _events) = line
        .open(SoundOrder {
            silent_frames: Arc::clone(&silent),
            ..order(&[2])
        })
        .unwrap();
    for code in [0, 0, 5, 0] {
        source.push(&[code, 0]);
    }
    work(&line);
    assert_eq!(silent.load(Ordering::Relaxed), 2);
    work(&line);
    assert_eq!(silent.load(Ordering::Relaxed), 1);
}

#[test]
fn closing_ends_the_stage_and_fails_what_is_open() {
    let line = line(1);
    let (source, mut events) = line.open(order(&[1])).unwrap();
    let other = line.clone();
    let thread = std::thread::spawn(move || other.next().is_none());
    std::thread::sleep(Duration::from_millis(10));
    line.close();
    assert!(thread.join().unwrap());
    assert!(matches!(events.try_recv(), Ok(SoundEvent::Failed(_))));
    assert_eq!(source.push(&[1, 1]), Push::Gone);
    assert_eq!(line.open(order(&[1])).unwrap_err().code, Code::NotReady);
}

#[test]
fn waiting_for_room_ends_when_there_is_some() {
    let line = line(1);
    let (source, _events) = line.open(order(&[1])).unwrap();
    // Nobody is full: no wait.
    line.wait_for_room(Duration::from_mins(1));
    for _ in 0..8 {
        source.push(&[1, 1]);
    }
    let other = line.clone();
    let thread = std::thread::spawn(move || other.wait_for_room(Duration::from_mins(1)));
    work(&line);
    // Whether it began to wait before or after, it returns.
    thread.join().unwrap();
}
