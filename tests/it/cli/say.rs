//! `say`: from a text to a WAV file, planned and read back like a server.

use super::Sandbox;
use crate::support::shared;

#[test]
fn a_text_becomes_a_wav_file_as_planned() {
    let Some(model) = shared("cli::say::a_text", "golden/qwen3-tts/custom-voice") else {
        return;
    };
    let sandbox = Sandbox::new();
    let out = sandbox.path().join("said.wav");
    let (model, file) = (model.to_str().unwrap(), out.to_str().unwrap());
    let say = |more: &[&str]| {
        let usual = [
            "say",
            "Hello world.",
            "-m",
            model,
            "-o",
            file,
            "--json",
            "--max-frames",
            "5",
        ];
        let args: Vec<&str> = usual.iter().chain(more).copied().collect();
        (sandbox.json(&args), std::fs::read(&out).unwrap())
    };
    let (said, first) = say(&["--voice", "Ryan", "--language", "english"]);
    assert_eq!(said["differences"], serde_json::json!([]), "{said}");
    assert_eq!(said["usage"]["frames"], 5);
    assert_eq!(said["samples"], 5 * 1920);
    assert_eq!(first.len(), 44 + 2 * 5 * 1920);
    assert_eq!(&first[..4], b"RIFF");
    let (_, again) = say(&["--voice", "ryan", "--language", "English"]);
    assert!(first == again, "the same seed, another sound");
    let (_, other) = say(&["--voice", "ryan", "--language", "English", "--seed", "1"]);
    assert!(first != other, "another seed, the same sound");
}

#[test]
fn models_and_commands_that_do_not_fit_say_so() {
    let Some(model) = shared("cli::say::do_not_fit", "golden/qwen3-tts/custom-voice") else {
        return;
    };
    let sandbox = Sandbox::new();
    let speech = model.to_str().unwrap();
    let (code, said) = sandbox.refused(&["run", "Hello", "-m", speech, "--json"]);
    assert_eq!(
        (code, said["error"]["code"].as_str()),
        (4, Some("model_unsupported")),
        "{said}"
    );
    let text = crate::support::tiny::TinyModel::new("llama", 7).write_gguf(sandbox.path());
    let (code, said) = sandbox.refused(&["say", "Hello", "-m", text.to_str().unwrap(), "--json"]);
    assert_eq!(
        (code, said["error"]["code"].as_str()),
        (4, Some("model_unsupported")),
        "{said}"
    );
    let (code, said) = sandbox.refused(&["say", "Hello", "-m", speech, "--voice", "nobody", "--json"]);
    assert_eq!(said["error"]["code"], "request_invalid", "{said}");
    assert_ne!(code, 0);
}
