//! Tests of the YAML reader: what is refused and where, what is kept exactly, and that nothing panics or explodes.

use proptest::prelude::*;

use super::*;
use crate::config::layer::{Kin, Reader};
use crate::config::shape::Shape;

fn tree(text: &str) -> Node {
    let (node, problems) = read(&Source::file("t.yaml", text));
    assert!(problems.is_empty(), "{text:?}: {problems:?}");
    node.unwrap()
}

fn problem(text: &str) -> Problem {
    let source = source("t.yaml", text.as_bytes()).unwrap();
    let (_, mut problems) = read(&source);
    assert!(!problems.is_empty(), "{text:?} was taken");
    problems.remove(0)
}

fn line_of(problem: &Problem) -> Option<u32> {
    problem.place.as_ref().and_then(|place| place.line)
}

fn scalars(node: &Node, out: &mut Vec<String>) {
    match &node.kind {
        Kind::Scalar { text, .. } => out.push(text.clone()),
        Kind::List(items) => items.iter().for_each(|item| scalars(item, out)),
        Kind::Map(entries) => entries.iter().for_each(|entry| {
            out.push(format!("{}:", entry.key));
            scalars(&entry.value, out);
        }),
    }
}

fn flat(text: &str) -> String {
    let mut out = Vec::new();
    scalars(&tree(text), &mut out);
    out.join(" ")
}

#[test]
fn scalars_keep_the_text_of_the_source() {
    assert_eq!(
        flat("a: [no, 1e5, 12.10, 010, 0x1F, ~, 'q''q', \"\\u00e4\"]"),
        "a: no 1e5 12.10 010 0x1F ~ q'q ä"
    );
    assert_eq!(flat("a: |\n  one\n  two\n"), "a: one\ntwo\n");
    assert_eq!(flat("a: >-\n  one\n  two\n"), "a: one two");
}

#[test]
fn spots_are_those_of_the_source() {
    let text = "ä: 1\nstages:\n  decoder: {threads: 4}\n";
    let Kind::Map(top) = tree(text).kind else { panic!() };
    let Kind::Map(stages) = &top[1].value.kind else {
        panic!()
    };
    let Kind::Map(keys) = &stages[0].value.kind else {
        panic!()
    };
    assert_eq!(keys[0].key_spot.place().to_string(), "t.yaml:3:13");
    assert_eq!(keys[0].value.spot.place().to_string(), "t.yaml:3:22");
    assert_eq!(&text[keys[0].value.spot.range.clone()], "4");
}

#[test]
fn merge_keys_let_own_keys_and_earlier_maps_win() {
    let text = "x: &x {a: 1, b: 2}\ny: &y {b: 3, c: 4}\nz:\n  <<: [*x, *y]\n  a: 9\n";
    assert_eq!(flat(text), "x: a: 1 b: 2 y: b: 3 c: 4 z: a: 9 b: 2 c: 4");
    assert!(problem("z:\n  <<: 4\n").what.contains("merge key"));
    assert!(problem("z:\n  <<: [{a: 1}, 4]\n").what.contains("merge key"));
    let twice = problem("x: &x {a: 1}\nz:\n  <<: *x\n  <<: *x\n");
    assert_eq!((twice.code, line_of(&twice)), (Code::YamlDuplicateKey, Some(4)));
    // Quoted, it is a key like any other, and unknown.
    assert_eq!(flat("z: {'<<': 1}"), "z: <<: 1");
}

#[test]
fn every_repeated_key_is_reported_with_both_lines() {
    let text = "a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\na: 4\n";
    let (node, problems) = read(&Source::file("t.yaml", text));
    assert!(node.is_some());
    let lines: Vec<_> = problems.iter().map(line_of).collect();
    assert_eq!(lines, [Some(5), Some(6)]);
    assert!(problems[0].what.contains("line 5") && problems[0].what.contains("line 3"));
    let snippet = problems[0].place.as_ref().unwrap().snippet.as_ref().unwrap();
    assert!(
        snippet.contains("first here") && snippet.contains("again here"),
        "{snippet}"
    );
}

#[test]
fn what_is_not_one_plain_document_is_refused_with_its_line() {
    for (text, line, word) in [
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("a:\n\tb: 1\n\tc: 2\n", 2, "tab"),
        ("a: 1\n\tb: 1\n", 2, "tab"),
        ("a: 1\nb: [1, 2\n", 3, "not YAML"),
        ("a: !!int 4\n", 1, "tag"),
        ("a: !custom {b: 1}\n", 1, "tag"),
        ("? [a, b]\n: 1\n", 1, "key is expected"),
        ("a: &a [*a]\n", 1, "inside the value"),
        ("a: *nowhere\n", 1, "not YAML"),
        ("a: 1\nb: 'open\n", 2, "not YAML"),
    ] {
        let problem = problem(text);
        assert!(problem.what.contains(word), "{text:?}: {problem}");
        assert!(
            line_of(&problem).is_some_and(|at| at.abs_diff(line) <= 1),
            "{text:?}: {problem}"
        );
        assert!(problem.place.unwrap().snippet.is_some(), "{text:?}");
    }
}

#[test]
fn byte_order_mark_and_line_ends_are_no_part_of_the_text() {
    let source = source("t.yaml", b"\xEF\xBB\xBFa: 1\r\nb: 2\rc: 3\n").unwrap();
    assert_eq!(source.text, "a: 1\nb: 2\nc: 3\n");
    assert!(
        super::source("t.yaml", b"\xFF\xFEa\0")
            .unwrap_err()
            .what
            .contains("UTF-16")
    );
    let problem = super::source("t.yaml", b"a: 1\nb: \xFF\n").unwrap_err();
    assert!(problem.what.contains("line 2"), "{problem}");
    let problem = super::source("t.yaml", &vec![b' '; MAX_BYTES + 1]).unwrap_err();
    assert!(problem.what.contains("more than"), "{problem}");
}

#[test]
fn size_and_depth_are_bounded_also_through_aliases_and_merge_keys() {
    let deep = format!("a: {}{}", "[".repeat(5000), "]".repeat(5000));
    assert_eq!(problem(&deep).code, Code::YamlSyntax);
    let deep_blocks = (0..500)
        .map(|i| " ".repeat(i) + "a:\n")
        .collect::<Vec<_>>()
        .concat();
    assert_eq!(problem(&deep_blocks).code, Code::YamlSyntax);
    // Depth that only aliases add up to.
    let chain: String = (1..60)
        .map(|i| format!("k{i}: &k{i} [*k{}]\n", i - 1))
        .fold("k0: &k0 [x]\n".to_owned(), |text, line| text + &line);
    assert!(problem(&chain).what.contains("deep"));
    // One long text, many times.
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), "*a, ".repeat(1000));
    assert!(problem(&long).what.contains("bytes of text"));
    // Maps that double with each merge key.
    let keys: Vec<_> = (0..2000).map(|i| format!("k{i}: 1")).collect();
    let maps: Vec<_> = (0..100).map(|i| format!("m{i}: {{<<: *a}}\n")).collect();
    let many = format!("a: &a {{{}}}\n{}", keys.join(", "), maps.concat());
    assert!(problem(&many).what.contains("parts") || problem(&many).what.contains("merge keys"));
    let wide = format!("a: [{}]\n", "x, ".repeat(60_000));
    assert!(problem(&wide).what.contains("50000"));
}

#[test]
fn what_is_written_reads_back() {
    let value =
        serde_json::json!({"model": {"revision": "1e5", "version": "12.10", "languages": ["no", "y", "~"]}});
    let text = write(&value).unwrap();
    let mut out = Vec::new();
    scalars(&tree(&text), &mut out);
    assert_eq!(
        out.join(" "),
        "model: revision: 1e5 version: 12.10 languages: no y ~"
    );
}

/// Text made of the pieces that YAML gives a meaning.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "stages",
        "decoder",
        "threads",
        "model",
        "policy",
        "x-a",
        ":",
        ": ",
        "- ",
        "\n",
        "\n  ",
        "\n    ",
        "\t",
        "{",
        "}",
        "[",
        "]",
        ",",
        "&a ",
        "*a",
        "<<: ",
        "!!str ",
        "'",
        "\"",
        "#",
        "|",
        ">",
        "---\n",
        "...",
        "%YAML 1.2\n",
        "~",
        "null",
        "auto",
        "010",
        "1e3",
        "4GiB",
        "\u{feff}",
        "ä",
        "\0",
        "\u{2028}",
        "?",
        " ",
    ]);
    prop::collection::vec(piece, 0..60).prop_map(|parts| parts.concat())
}

fn read_all(bytes: &[u8]) {
    let Ok(source) = source("t.yaml", bytes) else {
        return;
    };
    let root = Shape::of_profile();
    for kin in [Kin::User, Kin::Class] {
        let (_, problems) = Reader::new(&root, kin, false).file(&source);
        for problem in problems {
            assert!(!problem.what.is_empty() && !problem.to_string().is_empty());
            assert!(
                problem
                    .place
                    .is_none_or(|place| place.line.is_none_or(|line| line > 0))
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read_all(&bytes);
    }

    #[test]
    fn random_yaml_never_panics(text in pieces()) {
        read_all(text.as_bytes());
    }

    #[test]
    fn any_text_is_kept_exactly(text in "\\PC{0,40}") {
        let yaml = format!("a: {}\n", serde_json::to_string(&text).unwrap());
        let Kind::Map(entries) = tree(&yaml).kind else { panic!() };
        let Kind::Scalar { text: kept, plain } = &entries[0].value.kind else { panic!() };
        prop_assert_eq!(kept, &text);
        prop_assert!(!plain);
    }
}

#[test]
fn a_file_too_large_or_not_utf_8_is_said_as_far_as_it_is_known() {
    let large = source("a.yaml", &vec![b'a'; MAX_BYTES + 1]).unwrap_err();
    assert!(
        large.what.contains(&format!("more than {MAX_BYTES} bytes")),
        "{large}"
    );
    let place = source("a.yaml", b"a: 1\nb: \xc3\xa4\xff\n")
        .unwrap_err()
        .place
        .unwrap();
    assert_eq!((place.line, place.column), (Some(2), Some(5)));
}
