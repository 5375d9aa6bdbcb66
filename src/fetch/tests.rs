//! What `-m` may say.

use super::*;

#[test]
fn model_references_are_told_apart() {
    assert_eq!(
        ModelRef::parse("default").unwrap().to_string(),
        catalogue::DEFAULT
    );
    assert!(matches!(
        ModelRef::parse("gemma-3-270m").unwrap(),
        ModelRef::Named(_)
    ));
    assert!(matches!(ModelRef::parse("hf:o/n").unwrap(), ModelRef::Hub(_)));
    assert!(matches!(ModelRef::parse("./x").unwrap(), ModelRef::Path(_)));
    assert!(matches!(ModelRef::parse("x.gguf").unwrap(), ModelRef::Path(_)));
    let typo = ModelRef::parse("smolm2").unwrap_err();
    assert_eq!(typo.code, Code::ModelNotFound);
    assert!(typo.remedy.contains("smollm2-135m-instruct"), "{typo}");
    let address = ModelRef::parse("https://user:secret@host/x.gguf?sig=2").unwrap_err();
    assert!(!address.to_string().contains("secret") && !address.to_string().contains("sig"));
}

#[test]
fn a_path_needs_no_fetching() {
    let cache = Cache::at("/nonexistent");
    let model = ModelRef::Path(PathBuf::from("/some/where.gguf"));
    assert_eq!(model.present(&cache), Some(PathBuf::from("/some/where.gguf")));
    assert_eq!(ModelRef::parse("default").unwrap().present(&cache), None);
}
