//! Handle and stage thread together, over a stage whose answers are known.

use super::*;
use crate::engine::scheduler::tests::{Alphabet, letters, request};
use crate::engine::stage::Stage;
use crate::engine::{FinishReason, pipeline};

fn start(mut stage: Alphabet, max_queue: usize, timeout: Option<Duration>) -> Handle {
    let sizes = stage.sizes();
    let line = Arc::new(Line::new(sizes.max_seqs + max_queue));
    let tokenizer = letters();
    let thread = {
        let (line, tokenizer) = (Arc::clone(&line), Arc::clone(&tokenizer));
        std::thread::spawn(move || pipeline::run(&line, &mut stage, tokenizer))
    };
    Handle::new(Parts {
        stage_name: "decoder".to_owned(),
        line,
        thread,
        chat_template: None,
        facts: ModelFacts {
            name: "letters".to_owned(),
            family: "rule".to_owned(),
            parameters: 0,
            vocab: sizes.vocab,
            context: sizes.context,
            context_train: sizes.context as u64,
            max_seqs: sizes.max_seqs,
            stop_ids: tokenizer.roles().stop.clone(),
        },
        tokenizer,
        opened: EffectiveModel::default(),
        tokenizer_bytes: None,
        request_timeout: timeout,
    })
}

fn wait(mut submission: Submission) -> (String, Event) {
    let mut text = String::new();
    loop {
        match submission.events.blocking_recv().expect("a last event") {
            Event::Token { text: piece, .. } => text.push_str(&piece),
            Event::Prefilled { .. } => {}
            Event::Done {
                text: rest,
                finish,
                usage,
            } => {
                text.push_str(&rest);
                return (
                    text.clone(),
                    Event::Done {
                        finish,
                        text: rest,
                        usage,
                    },
                );
            }
            failed @ Event::Failed(_) => return (text, failed),
        }
    }
}

fn failure(event: &Event) -> Code {
    match event {
        Event::Failed(problem) => problem.code,
        other => panic!("not failed: {other:?}"),
    }
}

#[test]
fn many_threads_get_their_own_answers() {
    let handle = start(Alphabet::new(3, 4), 100, None);
    std::thread::scope(|scope| {
        for first in 0..20u8 {
            let handle = handle.clone();
            scope.spawn(move || {
                let letter = char::from(b'a' + first);
                let prompt = letter.to_string().repeat(1 + usize::from(first) % 7);
                let (text, _) = wait(handle.submit(request(&prompt, 5)).unwrap());
                let expected: String = (letter..='z').skip(1).take(5).collect();
                assert_eq!(text, expected);
            });
        }
    });
    let status = handle.status();
    assert_eq!((status.accepted, status.finished, status.refused), (20, 20, 0));
    assert_eq!((status.queued, status.running), (0, 0));
}

#[test]
fn the_queue_is_bounded_and_recovers() {
    let stage = Alphabet::new(1, 4);
    let hold = Arc::clone(&stage.hold);
    let handle = start(stage, 2, None);
    let held = hold.lock().unwrap();
    let accepted: Vec<_> = (0..3).map(|_| handle.submit(request("a", 3)).unwrap()).collect();
    let refused = handle.submit(request("a", 3)).unwrap_err();
    assert_eq!(refused.code, Code::QueueFull);
    assert_eq!(handle.status().refused, 1);
    drop(held);
    for submission in accepted {
        assert_eq!(wait(submission).0, "bcd");
    }
    let again = loop {
        // The slot is free once the thread has come round.
        match handle.submit(request("x", 9)) {
            Ok(submission) => break submission,
            Err(problem) => assert_eq!(problem.code, Code::QueueFull),
        }
    };
    assert_eq!(wait(again).0, "yz");
}

#[test]
fn cancelling_by_number_and_by_leaving_both_work() {
    let stage = Alphabet::new(1, 4);
    let hold = Arc::clone(&stage.hold);
    let handle = start(stage, 10, None);
    let held = hold.lock().unwrap();
    let first = handle.submit(request("a", 20)).unwrap();
    let left = handle.submit(request("b", 20)).unwrap();
    let third = handle.submit(request("c", 20)).unwrap();
    let last = handle.submit(request("w", 20)).unwrap();
    assert!(handle.cancel(first.id) && handle.cancel(third.id));
    drop(left);
    drop(held);
    for submission in [first, third] {
        let id = submission.id;
        let (_, end) = wait(submission);
        assert!(
            matches!(
                end,
                Event::Done {
                    finish: FinishReason::Cancelled,
                    ..
                }
            ),
            "{end:?}"
        );
        // Its thread lets go of it just after the last event.
        let mut looks = 0;
        while handle.cancel(id) {
            looks += 1;
            assert!(looks < 10_000, "it has ended and is still known");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(wait(last).0, "xyz");
    assert_eq!(handle.status().cancelled, 3);
    assert!(!handle.cancel(999));
}

#[test]
fn shutdown_finishes_what_runs_refuses_what_comes_and_wakes_nobody_twice() {
    let stage = Alphabet::new(1, 4);
    let hold = Arc::clone(&stage.hold);
    let handle = start(stage, 10, None);
    let held = hold.lock().unwrap();
    let running = handle.submit(request("a", 20)).unwrap();
    while handle.status().queued > 0 {
        std::thread::yield_now();
    }
    let waiting = handle.submit(request("b", 20)).unwrap();
    let stopper = {
        let handle = handle.clone();
        std::thread::spawn(move || handle.shutdown(Duration::from_mins(1)))
    };
    while !handle.status().stopping {
        std::thread::yield_now();
    }
    assert_eq!(handle.submit(request("c", 1)).unwrap_err().code, Code::NotReady);
    drop(held);
    stopper.join().unwrap();
    assert_eq!(wait(running).0, "bcdefghijklmnopqrstu");
    assert_eq!(failure(&wait(waiting).1), Code::NotReady);
    assert_eq!(handle.submit(request("c", 1)).unwrap_err().code, Code::NotReady);
    assert_eq!(handle.effective().unwrap_err().code, Code::NotReady);
    handle.shutdown(Duration::ZERO);
}

#[test]
fn shutdown_without_grace_fails_what_runs() {
    let stage = Alphabet::new(1, 4);
    let hold = Arc::clone(&stage.hold);
    let handle = start(stage, 10, None);
    let held = hold.lock().unwrap();
    let running = handle.submit(request("a", 20)).unwrap();
    while handle.status().queued > 0 {
        std::thread::yield_now();
    }
    let stopper = {
        let handle = handle.clone();
        std::thread::spawn(move || handle.shutdown(Duration::ZERO))
    };
    // Held back until the stop is known, else the answer could be finished before it.
    while !handle.status().stopping {
        std::thread::yield_now();
    }
    drop(held);
    stopper.join().unwrap();
    let (_, end) = wait(running);
    assert!(
        matches!(&end, Event::Failed(p) if p.code == Code::DeadlinePassed || p.code == Code::NotReady),
        "{end:?}"
    );
}

#[test]
fn a_panicking_pass_leaves_the_engine_alive() {
    let mut stage = Alphabet::new(1, 4);
    stage.poison = Some(request("q", 1).prompt[0]);
    let handle = start(stage, 10, None);
    let (text, end) = wait(handle.submit(request("n", 20)).unwrap());
    assert_eq!((text.as_str(), failure(&end)), ("opq", Code::StageFailed));
    assert_eq!(wait(handle.submit(request("r", 2)).unwrap()).0, "st");
}

#[test]
fn a_request_has_the_servers_time_and_no_more() {
    let stage = Alphabet::new(1, 4);
    let hold = Arc::clone(&stage.hold);
    let handle = start(stage, 10, Some(Duration::from_millis(1)));
    let held = hold.lock().unwrap();
    let late = handle.submit(request("a", 20)).unwrap();
    std::thread::sleep(Duration::from_millis(3));
    drop(held);
    assert_eq!(failure(&wait(late).1), Code::DeadlinePassed);
}

#[test]
fn what_cannot_succeed_is_refused_with_numbers() {
    let handle = start(Alphabet::new(1, 4), 10, None);
    let long = "a".repeat(60);
    let problem = handle.submit(request(&long, 41)).unwrap_err();
    assert_eq!(problem.code, Code::ContextOverflow);
    assert!(problem.what.contains("60") && problem.what.contains("41") && problem.what.contains("100"));
    assert_eq!(problem.details.unwrap()["room"], 40);
    assert_eq!(
        handle.submit(request(&long, usize::MAX)).unwrap_err().code,
        Code::ContextOverflow
    );
    assert!(handle.submit(request(&long, 40)).is_ok());
    type Spoil = Box<dyn Fn(&mut Request)>;
    let cases: Vec<(&str, Spoil)> = vec![
        ("empty prompt", Box::new(|r| r.prompt.clear())),
        ("no tokens", Box::new(|r| r.max_tokens = 0)),
        ("unknown token", Box::new(|r| r.prompt.push(30))),
        ("empty stop", Box::new(|r| r.stop.push(String::new()))),
        ("temperature", Box::new(|r| r.sampling.temperature = f32::NAN)),
        (
            "negative temperature",
            Box::new(|r| r.sampling.temperature = -1.0),
        ),
        ("top_p", Box::new(|r| r.sampling.top_p = 0.0)),
        ("min_p", Box::new(|r| r.sampling.min_p = 1.5)),
        ("repetition", Box::new(|r| r.sampling.repetition_penalty = 0.0)),
        (
            "presence",
            Box::new(|r| r.sampling.presence_penalty = f32::INFINITY),
        ),
        ("bias id", Box::new(|r| r.sampling.logit_bias.push((30, 1.0)))),
        (
            "bias value",
            Box::new(|r| r.sampling.logit_bias.push((3, f32::NAN))),
        ),
        ("logprobs", Box::new(|r| r.logprobs = Some(101))),
    ];
    for (name, spoil) in cases {
        let mut bad = request("a", 1);
        spoil(&mut bad);
        assert_eq!(
            handle.submit(bad).unwrap_err().code,
            Code::RequestInvalid,
            "{name}"
        );
    }
}
